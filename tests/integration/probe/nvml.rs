//! The probe of whole machines with their driver: device tree and NVML double from one description.

mod child;
mod playable;

use std::fs;
use std::sync::LazyLock;
use std::time::Duration;

use daemon::probe::{NvmlChoice, ProbeConfig, TimeLimits};
use machines::scenario::{Action, Code, Fault, SCENARIO_BESIDE_LIBRARY};
use machines::{Deviation, Machine, dgx1v, install_nvml_double};
use topology::snapshot::LinkPeer;
use topology::{Bandwidth, BusId, Gpu, Snapshot};

/// A machine written out, removed when dropped.
struct Written {
    dir: tempfile::TempDir,
    config: ProbeConfig,
}

impl Written {
    fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }
}

fn write(machine: &Machine) -> Written {
    let dir = tempfile::tempdir().unwrap();
    let paths = machine.write(dir.path()).unwrap();
    let library = install_nvml_double(dir.path()).unwrap();
    // Long enough that only a call that hangs is cut short, however busy the machine.
    let limits = TimeLimits { files: Duration::from_secs(300), nvml: Duration::from_secs(300) };
    let config = ProbeConfig {
        root: paths.root,
        nvml: NvmlChoice::Library(library),
        nvml_program: None,
        limits,
    };
    Written { dir, config }
}

/// Writes a scenario of the double alone, and an empty root.
fn write_scenario(scenario: &serde_json::Value) -> Written {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(SCENARIO_BESIDE_LIBRARY), scenario.to_string()).unwrap();
    let library = install_nvml_double(dir.path()).unwrap();
    let config = ProbeConfig {
        nvml: NvmlChoice::Library(library),
        ..ProbeConfig::recorded(dir.path().join("root"))
    };
    Written { dir, config }
}

/// Probes, and leaves out the reasons of roles, which descriptions do not word.
fn probe(config: &ProbeConfig) -> Snapshot {
    let mut snapshot = daemon::probe::probe(config);
    snapshot.nics.iter_mut().for_each(|nic| nic.role_reason = None);
    snapshot
}

fn probed(machine: &Machine) -> Snapshot {
    probe(&write(machine).config)
}

/// The machine's driver beside the tree of the DGX-1V as its maker meant it, which is written once: for what only
/// the driver tells.
fn with_driver_of(machine: &Machine) -> Written {
    static TREE: LazyLock<Written> = LazyLock::new(|| write(&dgx1v()));
    let dir = tempfile::tempdir().unwrap();
    machine.write_scenario(dir.path()).unwrap();
    let library = install_nvml_double(dir.path()).unwrap();
    let config = ProbeConfig { nvml: NvmlChoice::Library(library), ..TREE.config.clone() };
    Written { dir, config }
}

/// The faults of the NVML probe: the place, and the first word of the error.
fn nvml_faults(snapshot: &Snapshot) -> Vec<(&str, &str)> {
    snapshot
        .faults
        .iter()
        .filter(|fault| fault.probe == "nvml")
        .map(|fault| (fault.place.as_str(), fault.error.split(':').next().unwrap_or_default()))
        .collect()
}

fn indices(snapshot: &Snapshot) -> Vec<u32> {
    snapshot.gpus.iter().map(|gpu| gpu.index.0).collect()
}

/// The probe finds what the description of the machine says, and nothing is missing.
#[track_caller]
fn check(written: &Written, machine: &Machine) {
    let (found, expect) = (probe(&written.config), machine.snapshot());
    assert_eq!(found.host, expect.host);
    assert_eq!(found.numa_nodes, expect.numa_nodes);
    assert_eq!(found.pci_devices, expect.pci_devices);
    assert_eq!(found.gpus, expect.gpus);
    assert_eq!(found.nics, expect.nics);
    assert_eq!(found, expect);
}

#[test]
fn machines_with_something_wrong_in_the_tree() {
    let machine = dgx1v()
        .with(Deviation::HalfWidth { nic: "mlx5_1".into() })
        .with(Deviation::PortDown { nic: "mlx5_2".into() })
        .with(Deviation::Idle)
        .with(Deviation::Unprivileged);
    check(&write(&machine), &machine);
}

#[test]
fn machines_with_something_wrong_in_the_driver() {
    for deviation in [
        Deviation::NvLinkDown { gpu: 2, link: 1 },
        Deviation::NvLinksDown { gpu: 5 },
        Deviation::MigOn { gpu: 3 },
    ] {
        println!("{deviation:?}");
        let machine = dgx1v().with(deviation);
        check(&with_driver_of(&machine), &machine);
    }
}

/// Row 10: firmware publishes no NUMA node; the driver's affinity does (NVIDIA/cuCascade#119).
#[test]
fn field_case_010_the_driver_knows_the_numa_node() {
    let machine = dgx1v().with(Deviation::NumaUnknown);
    let found = probed(&machine);
    assert_eq!(found.gpus, machine.snapshot().gpus);
    assert!(found.gpus.iter().all(|gpu| gpu.numa_node.is_some()));
    assert!(found.pci_devices.iter().all(|device| device.numa_node.is_none()));
}

/// Row 18: without a driver, GPUs are drawn from PCI alone (open-mpi/hwloc#365).
#[test]
fn field_case_018_no_driver() {
    let found = probed(&dgx1v().with(Deviation::NoDriver));
    assert_eq!(indices(&found), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(found.gpus.iter().all(|gpu| gpu.inactive_links.is_none() && gpu.links.is_empty()));
    let whole = dgx1v().snapshot();
    let place = |gpu: &Gpu| (gpu.bus_id, gpu.numa_node, gpu.cpus.clone());
    assert!(found.gpus.iter().map(place).eq(whole.gpus.iter().map(place)));
    let faults = nvml_faults(&found);
    assert!(matches!(faults[..], [(place, "absent")] if place.ends_with("libnvidia-ml.so.1")));
}

/// Row 68: a GPU that is denied, and one that is lost, cost only themselves (NVIDIA/nvidia-docker#1730).
#[test]
fn field_case_068_denied_and_lost_are_told_apart() {
    for (deviation, word) in
        [(Deviation::GpuDenied { gpu: 2 }, "denied"), (Deviation::GpuLost { gpu: 2 }, "lost")]
    {
        let found = probe(&with_driver_of(&dgx1v().with(deviation)).config);
        assert_eq!(indices(&found), [0, 1, 3, 4, 5, 6, 7]);
        let whole = dgx1v().snapshot();
        let mut others = whole.gpus.clone();
        others.retain(|gpu| gpu.index.0 != 2);
        // Nobody reaches it, and it is not asked.
        others.iter_mut().for_each(|gpu| gpu.peers.retain(|access| access.peer.0 != 2));
        assert_eq!(found.gpus, others);
        // It is still on the bus, and said to be missing from NVML.
        assert_eq!(found.pci_devices, whole.pci_devices);
        let bus_id = whole.gpus[2].bus_id.unwrap().to_string();
        assert!(nvml_faults(&found).contains(&(&bus_id, "absent")), "{:?}", found.faults);
        let by_call = |(place, error): &(&str, &str)| place.starts_with("nvml") && *error == word;
        assert!(nvml_faults(&found).iter().any(by_call), "{:?}", found.faults);
    }
}

/// Row 17: a call that hangs costs what NVML had not yet told, and names itself (NVIDIA/nccl#557).
#[test]
fn field_case_017_a_call_that_hangs() {
    let hold = tempfile::NamedTempFile::new().unwrap();
    let machine = dgx1v().with(Deviation::Hang {
        call: "nvmlDeviceGetNvLinkState".into(),
        gpu: Some(3),
        until_gone: Some(hold.path().into()),
    });
    let written = with_driver_of(&machine);
    let limits = TimeLimits { nvml: Duration::from_secs(5), ..written.config.limits };
    let config = ProbeConfig { limits, ..written.config.clone() };
    let found = probe(&config);
    let whole = dgx1v().snapshot();

    assert_eq!(nvml_faults(&found), [("nvmlDeviceGetNvLinkState(0) of GPU 3", "timed out")]);
    assert_eq!(found.host, whole.host);
    assert_eq!(found.numa_nodes, whole.numa_nodes);
    assert_eq!(found.pci_devices, whole.pci_devices);
    assert_eq!(found.nics, whole.nics);
    // What came before is whole but for peers, which come last; the rest is drawn from PCI with its links unknown.
    let mut first = whole.gpus[..3].to_vec();
    first.iter_mut().for_each(|gpu| gpu.peers.clear());
    assert_eq!(found.gpus[..3], first);
    assert_eq!(indices(&found), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(found.gpus[3..].iter().all(|gpu| gpu.inactive_links.is_none()));

    // While it hangs it is not asked again, so this takes no time limit and loses nothing else.
    let again = probe(&config);
    let faults = nvml_faults(&again);
    assert!(faults.iter().any(|(_, error)| error.contains("still hangs")), "{faults:?}");
    assert_eq!(again.pci_devices, whole.pci_devices);
    assert_eq!(again.gpus.len(), 8);
}

/// A delay within the limit loses nothing.
#[test]
fn field_case_017_a_call_that_is_slow() {
    let slow = Fault::new("nvmlDeviceGetUUID", Action::Delay { milliseconds: 20 });
    check_with_fault(slow, |_| {}, &[]);
}

/// With one fault of the double, the facts are those of the machine but for `change`, and these faults are told.
#[track_caller]
fn check_with_fault(fault: Fault, change: impl Fn(&mut Gpu), faults: &[(&str, &str)]) {
    let found = probe(&with_driver_of(&dgx1v().with(Deviation::Nvml(fault))).config);
    let mut expect = dgx1v().snapshot().gpus;
    expect.iter_mut().for_each(change);
    assert_eq!(found.gpus, expect);
    assert_eq!(nvml_faults(&found), faults);
}

#[test]
fn drivers_that_tell_less() {
    let unsupported = || Action::Return(Code::NOT_SUPPORTED);
    let missing = || Action::Return(Code::FUNCTION_NOT_FOUND);
    // The kind of a link's other end is known from its address.
    check_with_fault(Fault::new("nvmlDeviceGetNvLinkRemoteDeviceType", unsupported()), |_| {}, &[]);
    // The count of links is found by asking for each.
    check_with_fault(Fault { field: Some(91), ..fields(unsupported()) }, |_| {}, &[]);
    // Without a speed the version gives the nominal one: 25 GB/s for NVLink 2.
    let nominal = |gpu: &mut Gpu| {
        for links in &mut gpu.links {
            links.rate = Some(Bandwidth::from_mbps(25_000));
        }
    };
    check_with_fault(Fault { field: Some(164), ..fields(unsupported()) }, nominal, &[]);
    // Affinity comes from sysfs then, memory from the older call.
    check_with_fault(Fault::new("nvmlDeviceGetMemoryAffinity", missing()), |_| {}, &[]);
    check_with_fault(Fault::new("nvmlDeviceGetCpuAffinity*", missing()), |_| {}, &[]);
    check_with_fault(Fault::new("nvmlDeviceGetMemoryInfo_v2", missing()), |_| {}, &[]);
}

fn fields(action: Action) -> Fault {
    Fault::new("nvmlDeviceGetFieldValues", action)
}

#[test]
fn one_fact_that_cannot_be_read() {
    let denied = Action::Return(Code::NO_PERMISSION);
    check_with_fault(
        Fault::new("nvmlDeviceGetUUID", denied.clone()).on_device(1),
        |gpu| {
            if gpu.index.0 == 1 {
                gpu.uuid = None;
            }
        },
        &[("nvmlDeviceGetUUID() of GPU 1", "denied")],
    );
    // A state that cannot be read makes the count of inactive links unknown, not zero.
    let unknown = Action::Return(Code::UNKNOWN);
    let fault = Fault { link: Some(7), ..Fault::new("nvmlDeviceGetNvLinkState", unknown) };
    check_with_fault(
        fault.on_device(0),
        |gpu| {
            if gpu.index.0 == 0 {
                gpu.inactive_links = None;
            }
        },
        &[("nvmlDeviceGetNvLinkState(7) of GPU 0", "unreadable")],
    );
}

#[test]
fn initialisation_that_is_refused() {
    let fault = Fault::new("nvmlInit*", Action::Return(Code::NO_PERMISSION));
    let found = probe(&with_driver_of(&dgx1v().with(Deviation::Nvml(fault))).config);
    assert_eq!(found.gpus.len(), 8);
    let faults = nvml_faults(&found);
    assert!(
        matches!(faults[..], [(place, "denied")] if place.starts_with("nvmlInit_v2()")),
        "{faults:?}"
    );
}

fn device(bus_id: &str, capability: (u32, u32), links: serde_json::Value) -> serde_json::Value {
    serde_json::json!({
        "uuid": format!("GPU-{bus_id}"), "name": "NVIDIA Example", "bus_id": bus_id,
        "pci_device_id": 0x2330_10de_u32, "minor": 0, "memory_total": 1u64 << 36,
        "compute_capability": [capability.0, capability.1],
        "pcie": { "max_generation": 5, "device_max_generation": 5, "max_width": 16,
                  "current_generation": 1, "current_width": 16 },
        "nvlinks": links,
    })
}

fn link(active: bool, mbytes: u32, remote: Option<(&str, &str)>) -> serde_json::Value {
    let mut link = serde_json::json!({
        "active": active, "version": 6, "mbytes_per_second": mbytes,
    });
    if let Some((kind, bus_id)) = remote {
        link["remote"] = serde_json::json!({ "kind": kind, "bus_id": bus_id });
    }
    link
}

#[track_caller]
fn links_of(scenario: &serde_json::Value) -> (Vec<(LinkPeer, u32)>, Option<u32>) {
    let written = write_scenario(scenario);
    let found = probe(&written.config);
    assert_eq!(nvml_faults(&found), [] as [(&str, &str); 0]);
    let gpu = &found.gpus[0];
    (gpu.links.iter().map(|l| (l.peer.clone(), l.count)).collect(), gpu.inactive_links)
}

fn switch(bus_id: &str) -> LinkPeer {
    LinkPeer::Switch(Some(bus_id.parse::<BusId>().unwrap()))
}

/// An H100 has 5, 4, 4, 5 links to its four NVSwitches, numbers up to 17, and one more GPU may have lost some.
#[test]
fn links_per_switch_chip() {
    let chips = ["0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0"];
    let counts = [5, 4, 4, 5];
    let mut links = Vec::new();
    for (chip, count) in chips.iter().zip(counts) {
        links.extend((0..count).map(|_| link(true, 26_562, Some(("switch", chip)))));
    }
    let scenario = |links: Vec<serde_json::Value>| {
        serde_json::json!({
            "driver_version": "550.54.15",
            "devices": [device("0000:1b:00.0", (9, 0), links.into())],
        })
    };
    let expect: Vec<_> = chips.into_iter().map(switch).zip(counts).collect();
    assert_eq!(links_of(&scenario(links.clone())), (expect, Some(0)));
    links[17] = link(false, 0, None);
    let (found, inactive) = links_of(&scenario(links));
    assert_eq!((found[3].1, inactive), (4, Some(1)));
}

/// A GPU of Rubin's kind: more links than the binding's own constant.
#[test]
fn more_links_than_the_binding_knows() {
    // A switch in another chassis has no address here.
    let far = ("switch", "FFFFFFFF:FFFF:FF");
    let links: Vec<_> = (0..36).map(|n| link(n != 35, 50_000, Some(far))).collect();
    let scenario = serde_json::json!({
        "driver_version": "590.10.01", "max_links": 36,
        "devices": [device("0000:1b:00.0", (10, 7), links.into())],
    });
    assert_eq!(links_of(&scenario), (vec![(LinkPeer::Switch(None), 35)], Some(1)));
}

/// A card without NVLink has no links, which is not "all links down"; either way drivers say so.
#[test]
fn cards_without_links() {
    for absent in ["not-supported", "invalid-argument"] {
        let scenario = serde_json::json!({
            "driver_version": "550.54.15", "absent_link": absent,
            "devices": [device("0000:1b:00.0", (8, 9), serde_json::json!([]))],
        });
        assert_eq!(links_of(&scenario), (vec![], Some(0)), "{absent}");
    }
}

/// Row 16: chip-to-chip links are facts of their own (NVIDIA/nccl#2202).
#[test]
fn field_case_016_c2c() {
    let mut gpu = device("0009:01:00.0", (9, 0), serde_json::json!([]));
    let c2c = |active: bool| serde_json::json!({ "active": active, "mbytes_per_second": 44_712 });
    gpu["c2c_links"] = (0..10).map(|n| c2c(n != 9)).collect();
    let scenario = serde_json::json!({ "driver_version": "550.54.15", "devices": [gpu] });
    let written = write_scenario(&scenario);
    let found = probe(&written.config);
    let c2c = found.gpus[0].c2c.unwrap();
    assert_eq!((c2c.count, c2c.rate), (9, Bandwidth::from_mbps(44_712)));
}
