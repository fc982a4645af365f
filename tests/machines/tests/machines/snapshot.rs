//! Snapshots against what is publicly known of the machines.

use machines::{
    Deviation, Machine, catalogue, dgx_a100, dgx_h100, dgx1p, dgx1v, dgx2, pcie_two_sockets,
    vm_flat,
};
use topology::snapshot::{LinkPeer, PciKind};

/// For each GPU, its links to GPUs by index: `0:1 3:2` is one to GPU0 and two to GPU3.
#[track_caller]
fn check_links(machine: &Machine, expect: &[&str]) {
    let snapshot = machine.snapshot();
    let index_of = |peer: &LinkPeer| {
        let LinkPeer::Gpu(bus_id) = peer else { panic!("{peer:?} is no GPU") };
        snapshot.gpus.iter().position(|gpu| gpu.bus_id == Some(*bus_id)).unwrap()
    };
    let found: Vec<String> = snapshot
        .gpus
        .iter()
        .map(|gpu| {
            let links =
                gpu.links.iter().map(|links| format!("{}:{}", index_of(&links.peer), links.count));
            links.collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert_eq!(found, expect);
}

#[test]
fn dgx1v_links() {
    check_links(
        &dgx1v(),
        &[
            "1:1 2:1 3:2 4:2",
            "0:1 2:2 3:1 5:2",
            "0:1 1:2 3:2 6:1",
            "0:2 1:1 2:2 7:1",
            "0:2 5:1 6:1 7:2",
            "1:2 4:1 6:2 7:1",
            "2:1 4:1 5:2 7:2",
            "3:1 4:2 5:1 6:2",
        ],
    );
}

#[test]
fn dgx1p_links() {
    check_links(
        &dgx1p(),
        &[
            "1:1 2:1 3:1 4:1",
            "0:1 2:1 3:1 5:1",
            "0:1 1:1 3:1 6:1",
            "0:1 1:1 2:1 7:1",
            "0:1 5:1 6:1 7:1",
            "1:1 4:1 6:1 7:1",
            "2:1 4:1 5:1 7:1",
            "3:1 4:1 5:1 6:1",
        ],
    );
}

#[test]
fn a_link_down_is_down_at_both_ends() {
    // Link 2 of GPU0 is the first of its pair to GPU3.
    let snapshot = dgx1v().with(Deviation::NvLinkDown { gpu: 0, link: 2 }).snapshot();
    let inactive: Vec<_> = snapshot.gpus.iter().map(|gpu| gpu.inactive_links.unwrap()).collect();
    assert_eq!(inactive, [1, 0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn without_a_driver_the_devices_remain() {
    let snapshot = dgx1v().with(Deviation::NoDriver).snapshot();
    assert_eq!(snapshot.gpus.len(), 8);
    assert!(
        snapshot
            .gpus
            .iter()
            .all(|gpu| gpu.uuid.is_none() && gpu.links.is_empty() && gpu.numa_node.is_some())
    );
    assert_eq!(snapshot.host.driver, None);
}

#[test]
fn numa_from_the_driver_where_firmware_is_silent() {
    let snapshot = dgx1v().with(Deviation::NumaUnknown).snapshot();
    assert!(snapshot.pci_devices.iter().all(|device| device.numa_node.is_none()));
    assert_eq!(snapshot.gpus[7].numa_node, Some(1));
    assert_eq!(snapshot.nics[3].numa_node, None);
    let silent = dgx1v().with(Deviation::NumaUnknown).with(Deviation::NoDriver).snapshot();
    assert_eq!(silent.gpus[7].numa_node, None);
}

#[test]
fn idle_and_half_width() {
    let idle = dgx1v().with(Deviation::Idle).snapshot();
    let gpu = |snapshot: &topology::Snapshot| {
        let bus_id = snapshot.gpus[0].bus_id.unwrap();
        snapshot.pci_devices.iter().find(|device| device.bus_id == bus_id).unwrap().link
    };
    assert_eq!(gpu(&idle).trained.unwrap().mtps, 2500);
    assert_eq!(gpu(&idle).usable(), (Some(8000), Some(16)));
    let half = dgx1v().with(Deviation::HalfWidth { nic: "mlx5_2".to_owned() });
    let bus_id = half.nics[2].bus_id;
    let snapshot = half.snapshot();
    let link = snapshot.pci_devices.iter().find(|device| device.bus_id == bus_id).unwrap().link;
    assert_eq!(link.usable(), (Some(8000), Some(8)));
}

/// Parents exist and come with a link; devices are in address order and none twice; every GPU and NIC has its
/// function.
#[test]
fn every_machine_is_whole() {
    for machine in catalogue::all() {
        let snapshot = machine.snapshot();
        let name = machine.name;
        let addresses: Vec<_> = snapshot.pci_devices.iter().map(|device| device.bus_id).collect();
        assert!(addresses.is_sorted_by(|a, b| a < b), "{name}");
        for device in &snapshot.pci_devices {
            assert_eq!(
                device.parent.is_none(),
                device.host_bridge.is_some(),
                "{name} {}",
                device.bus_id
            );
            assert!(device.parent.is_none_or(|parent| addresses.contains(&parent)), "{name}");
            if device.kind == PciKind::SwitchPort {
                let above =
                    snapshot.pci_devices.iter().find(|other| Some(other.bus_id) == device.parent);
                assert_eq!(above.unwrap().kind, PciKind::Switch, "{name} {}", device.bus_id);
            }
        }
        let ends = snapshot
            .gpus
            .iter()
            .map(|gpu| gpu.bus_id)
            .chain(snapshot.nics.iter().map(|nic| nic.bus_id));
        for end in ends {
            assert!(addresses.contains(&end.unwrap()), "{name} {end:?}");
        }
        let indices: Vec<_> = snapshot.gpus.iter().map(|gpu| gpu.bus_id).collect();
        assert!(indices.is_sorted(), "{name}: NVML numbers GPUs by address");
    }
}

/// Links of a GPU to each switch, in address order.
#[track_caller]
fn check_switches(machine: &Machine, gpu: usize, expect: &[(&str, u32)]) {
    let found: Vec<_> = machine.snapshot().gpus[gpu]
        .links
        .iter()
        .map(|links| {
            let LinkPeer::Switch(Some(bus_id)) = links.peer else { panic!("{:?}", links.peer) };
            (bus_id.to_string(), links.count)
        })
        .collect();
    let expect: Vec<_> =
        expect.iter().map(|(bus_id, count)| ((*bus_id).to_owned(), *count)).collect();
    assert_eq!(found, expect, "{} GPU{gpu}", machine.name);
}

#[test]
fn switches() {
    check_switches(
        &dgx_h100(),
        0,
        &[("0000:07:00.0", 4), ("0000:08:00.0", 5), ("0000:09:00.0", 5), ("0000:0a:00.0", 4)],
    );
    let a100 = ["c4", "c5", "c6", "c7", "c8", "c9"].map(|bus| format!("0000:{bus}:00.0"));
    check_switches(&dgx_a100(), 5, &a100.each_ref().map(|bus_id| (bus_id.as_str(), 2)));
    check_switches(&vm_flat(), 3, &a100.each_ref().map(|bus_id| (bus_id.as_str(), 2)));
    let board = ["61", "62", "63", "65", "66", "67"].map(|bus| format!("0000:{bus}:00.0"));
    check_switches(&dgx2(), 7, &board.each_ref().map(|bus_id| (bus_id.as_str(), 1)));
    assert!(
        dgx2().snapshot().gpus[8]
            .links
            .iter()
            .all(|links| links.peer != LinkPeer::Switch("0000:61:00.0".parse().ok()))
    );
}

#[test]
fn localities() {
    let nodes = |machine: &Machine| {
        machine.snapshot().gpus.iter().map(|gpu| gpu.numa_node).collect::<Vec<_>>()
    };
    assert_eq!(nodes(&dgx_a100()), [3, 3, 1, 1, 7, 7, 5, 5].map(Some));
    let cpus = dgx_a100().snapshot().gpus[0].cpus.clone().unwrap().to_string();
    assert_eq!(cpus, "48-63,176-191");
    assert_eq!(nodes(&vm_flat()), [None; 4]);
    let names = dgx_a100().snapshot().nics.iter().map(|nic| nic.role).collect::<Vec<_>>();
    assert_eq!(
        names.iter().filter(|role| **role == topology::snapshot::NicRole::Fabric).count(),
        8
    );
}

#[test]
fn cards_without_bridges() {
    let snapshot = pcie_two_sockets().snapshot();
    assert!(snapshot.gpus.iter().all(|gpu| gpu.links.is_empty() && gpu.inactive_links == Some(12)));
}

/// Bus numbers are such as firmware gives: below a bridge they are greater than its own, equal among the
/// functions of one bus, and no two bridges' ranges overlap.
#[test]
fn bus_numbers_are_possible() {
    fn walk(bus: u8, functions: &[machines::machine::Function], machine: &str) -> u8 {
        let mut last = bus;
        for function in functions {
            assert_eq!(function.bus_id.bus(), bus, "{machine} {}", function.bus_id);
            if let Some(child) = function.children.first() {
                let secondary = child.bus_id.bus();
                assert!(
                    secondary > last,
                    "{machine} {}: bus {secondary:x} is taken",
                    function.bus_id
                );
                last = walk(secondary, &function.children, machine);
            }
        }
        last
    }
    for machine in catalogue::all() {
        let mut last = None;
        for bridge in &machine.host_bridges {
            // Every domain counts its buses from 0.
            let free = last.is_none_or(|last| (bridge.domain, bridge.bus) > last);
            assert!(free, "{} {:x}:{:x}", machine.name, bridge.domain, bridge.bus);
            let used = walk(bridge.bus, &bridge.functions, machine.name);
            last = Some((bridge.domain, used));
        }
        let mut addresses: Vec<_> =
            machine.functions().iter().map(|(_, function)| function.bus_id).collect();
        addresses.sort_unstable();
        assert!(addresses.is_sorted_by(|a, b| a < b), "{}", machine.name);
    }
}
