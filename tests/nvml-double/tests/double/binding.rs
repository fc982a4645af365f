//! Facts of healthy and deviating machines.

use machines::machine::{Gpu, NvLinkPeer};
use machines::scenario::Level;
use machines::{Deviation, Machine, catalogue, dgx1v};
use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::enum_wrappers::nv_link::{Capability, ErrorCounter};
use nvml_wrapper::enums::device::DeviceArchitecture;
use nvml_wrapper::error::NvmlError;

use crate::Stage;

/// Everything the binding reads of a machine is what its description says.
fn check(machine: &Machine) {
    let stage = Stage::new(machine);
    let name = machine.name;
    let Some(driver) = &machine.driver else {
        // AMD's GPUs, or none: the library is there and says that no driver is.
        assert!(matches!(stage.init(), Err(NvmlError::DriverNotLoaded)), "{name}");
        return;
    };
    let nvml = stage.nvml();
    assert_eq!(nvml.sys_driver_version().unwrap(), driver.version, "{name}");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), driver.cuda, "{name}");
    assert!(nvml.sys_nvml_version().unwrap().ends_with(&driver.version), "{name}");
    assert_eq!(nvml.device_count().unwrap() as usize, machine.gpus.len(), "{name}");
    for (index, gpu) in (0..).zip(&machine.gpus) {
        let device = nvml.device_by_index(index).unwrap();
        let place = format!("{name} GPU{index}");
        assert_eq!(device.index().unwrap(), index, "{place}");
        assert_eq!(device.minor_number().unwrap(), index, "{place}");
        assert_eq!(device.uuid().unwrap(), gpu.uuid, "{place}");
        assert_eq!(device.name().unwrap(), gpu.model.name, "{place}");
        assert_eq!(device.memory_info().unwrap().total, gpu.model.memory_bytes, "{place}");
        let capability = device.cuda_compute_capability().unwrap();
        assert_eq!((capability.major, capability.minor), gpu.model.compute_capability, "{place}");
        let expected = match capability.major {
            6 => DeviceArchitecture::Pascal,
            7 => DeviceArchitecture::Volta,
            8 => DeviceArchitecture::Ampere,
            9 => DeviceArchitecture::Hopper,
            _ => DeviceArchitecture::Blackwell,
        };
        assert_eq!(device.architecture().unwrap(), expected, "{place}");
        let pci = device.pci_info().unwrap();
        let id = gpu.bus_id;
        assert_eq!(
            pci.bus_id,
            format!("{:08X}:{:02X}:{:02X}.0", id.domain(), id.bus(), id.device())
        );
        assert_eq!(pci.pci_device_id, u32::from(gpu.model.device) << 16 | 0x10de, "{place}");
        assert_eq!(nvml.device_by_uuid(gpu.uuid.as_str()).unwrap().index().unwrap(), index);
        assert_eq!(nvml.device_by_pci_bus_id(id.to_string()).unwrap().index().unwrap(), index);
        check_links(machine, gpu, &device);
    }
    nvml.shutdown().unwrap();
}

fn check_links(machine: &Machine, gpu: &Gpu, device: &Device<'_>) {
    for number in 0..18 {
        let link = device.link_wrapper_for(number);
        let place = format!("{} {} link {number}", machine.name, gpu.bus_id);
        let Some(expected) = gpu.links.get(number as usize) else {
            assert!(matches!(link.is_active(), Err(NvmlError::NotSupported)), "{place}");
            continue;
        };
        assert_eq!(link.is_active().unwrap(), expected.active, "{place}");
        assert_eq!(link.version().unwrap(), gpu.model.nvlink_version, "{place}");
        assert!(link.has_capability(Capability::P2p).unwrap(), "{place}");
        assert_eq!(link.error_counter(ErrorCounter::DlReplay).unwrap(), 0, "{place}");
        let peer = match expected.peer {
            NvLinkPeer::Gpu(peer, _) => machine.gpus[peer].bus_id,
            NvLinkPeer::Switch(bus_id) => bus_id,
            NvLinkPeer::Nothing => continue,
        };
        match link.remote_pci_info() {
            Ok(remote) => {
                assert!(expected.active, "{place}");
                assert_eq!(remote.bus_id.parse::<topology::BusId>().unwrap(), peer, "{place}");
            }
            Err(error) => {
                assert!(
                    !expected.active && matches!(error, NvmlError::NotSupported),
                    "{place}: {error}"
                );
            }
        }
    }
    assert!(matches!(device.link_wrapper_for(18).is_active(), Err(NvmlError::InvalidArg)));
}

#[test]
fn every_machine() {
    for machine in catalogue::all() {
        check(&machine);
    }
}

#[test]
fn links_down() {
    check(&dgx1v().with(Deviation::NvLinkDown { gpu: 0, link: 2 }));
    check(&dgx1v().with(Deviation::NvLinksDown { gpu: 3 }));
}

#[test]
fn affinity() {
    let stage = Stage::new(&dgx1v());
    let nvml = stage.nvml();
    // CPUs 20-39 and 60-79 for the GPUs of the second socket.
    let words = nvml.device_by_index(4).unwrap().cpu_affinity(2).unwrap();
    assert_eq!(words, [0xf000_00ff_fff0_0000, 0xffff]);
    // An array too short gets what fits.
    let words = nvml.device_by_index(4).unwrap().cpu_affinity(1).unwrap();
    assert_eq!(words, [0xf000_00ff_fff0_0000]);
}

#[test]
fn ancestors() {
    let stage = Stage::new(&dgx1v());
    let nvml = stage.nvml();
    let device = |index| nvml.device_by_index(index).unwrap();
    #[track_caller]
    fn same(found: TopologyLevel, expected: Level) {
        let code: u32 = found.as_c();
        assert_eq!(code, expected.code());
    }
    same(device(0).topology_common_ancestor(device(1)).unwrap(), Level::Single);
    same(device(0).topology_common_ancestor(device(2)).unwrap(), Level::HostBridge);
    same(device(7).topology_common_ancestor(device(2)).unwrap(), Level::System);
    same(device(7).topology_common_ancestor(device(7)).unwrap(), Level::Internal);
    let near = device(5).topology_nearest_gpus(TopologyLevel::HostBridge).unwrap();
    let near: Vec<_> = near.iter().map(|device| device.index().unwrap()).collect();
    assert_eq!(near, [6, 7]);
}

#[test]
fn pcie_generations_of_an_idle_machine() {
    let stage = Stage::new(&dgx1v().with(Deviation::Idle));
    let nvml = stage.nvml();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.current_pcie_link_gen().unwrap(), 1);
    assert_eq!(device.max_pcie_link_gen().unwrap(), 3);
    assert_eq!(device.current_pcie_link_width().unwrap(), 16);
    assert_eq!(device.max_pcie_link_width().unwrap(), 16);
}

#[test]
fn partitioning() {
    let stage = Stage::new(&dgx1v());
    let nvml = stage.nvml();
    assert!(matches!(nvml.device_by_index(0).unwrap().mig_mode(), Err(NvmlError::NotSupported)));
}

#[test]
fn initialisations_are_counted() {
    let stage = Stage::new(&dgx1v());
    let first = stage.nvml();
    let second = stage.nvml();
    second.shutdown().unwrap();
    assert_eq!(first.device_count().unwrap(), 8);
    first.shutdown().unwrap();
    let flags = nvml_wrapper::Nvml::builder()
        .lib_path(stage.library.as_os_str())
        .flags(InitFlags::NO_ATTACH)
        .init()
        .unwrap();
    assert_eq!(flags.device_count().unwrap(), 8);
}

#[test]
fn unknown_devices() {
    let stage = Stage::new(&dgx1v());
    let nvml = stage.nvml();
    assert!(matches!(nvml.device_by_index(8), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid("GPU-none"), Err(NvmlError::NotFound)));
    assert!(matches!(nvml.device_by_pci_bus_id("00000000:77:00.0"), Err(NvmlError::NotFound)));
    assert!(matches!(nvml.device_by_pci_bus_id("nonsense"), Err(NvmlError::InvalidArg)));
}
