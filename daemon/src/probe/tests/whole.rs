//! Whole probes: a machine with all kinds of facts, odd trees, and the machine the tests run on.

use std::fs;
use std::path::Path;

use topology::snapshot::{LinkLayer, NicRole};
use topology::{CpuArch, Source};

use super::sysfs_tree::SysfsTree;
use crate::probe::{NvmlChoice, ProbeConfig, probe, recorded_root};

const MACHINE: &str = "
    node0 cpus=0-3 kib=1048576 distance=10,32
    node1 cpus=4-7 kib=1048576 distance=32,10
    pci0000:00
      0000:00:01.0 060400 1022:1483 numa=0 max=16.0x16
        0000:01:00.0 030200 10de:20b0 numa=0 cpus=0-3 max=16.0x16 now=16.0x16 driver=nvidia
      0000:00:02.0 060400 1022:1483 numa=0 max=16.0x16
        0000:02:00.0 020700 15b3:101b numa=0 cpus=0-3 max=16.0x16 now=16.0x16
        0000:02:00.1 020700 15b3:101b numa=0 cpus=0-3 max=16.0x16 now=16.0x16
    pci0000:80
      0000:80:01.0 060400 1022:1483 numa=1 max=16.0x16
        0000:81:00.0 020000 8086:1593 numa=1 cpus=4-7 max=16.0x16 now=16.0x16
        0000:81:00.1 020000 8086:1593 numa=1 cpus=4-7 max=16.0x16 now=16.0x16
    rdma mlx5_10 0000:02:00.1 ib=down rate=10
    rdma mlx5_2 0000:02:00.0 ib=up rate=200
    net ib0 0000:02:00.0 state=up
    net eth0 0000:81:00.0 speed=25000 state=up
    net eth1 0000:81:00.1 speed=25000 state=up
    file proc/sys/kernel/osrelease 5.15.0-1
    file sys/class/dmi/id/product_name Example Server
    file proc/driver/nvidia/version NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat
    ";

fn machine() -> SysfsTree {
    let tree = SysfsTree::new(MACHINE);
    tree.write(
        "proc/cpuinfo",
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nflags\t\t: fpu lm\n",
    );
    // A bond of the two Ethernet ports, with a VLAN on top that carries the default route.
    let bond = "sys/devices/virtual/net/bond0";
    for (file, text) in
        [("bonding/slaves", "eth0 eth1"), ("speed", "50000"), ("operstate", "up"), ("type", "1")]
    {
        tree.write(&format!("{bond}/{file}"), text);
    }
    for leg in ["eth0", "eth1"] {
        tree.link(&format!("{bond}/lower_{leg}"), "unused");
    }
    for (leg, function) in [("eth0", "0000:81:00.0"), ("eth1", "0000:81:00.1")] {
        let dir = format!("sys/devices/pci0000:80/0000:80:01.0/{function}/net/{leg}");
        tree.write(&format!("{dir}/bonding_slave/state"), "active");
    }
    tree.write("sys/devices/virtual/net/bond0.7/operstate", "up");
    tree.link("sys/devices/virtual/net/bond0.7/lower_bond0", "unused");
    for name in ["bond0", "bond0.7", "lo"] {
        tree.link(&format!("sys/class/net/{name}"), &format!("../../devices/virtual/net/{name}"));
    }
    tree.write("sys/class/net/bonding_masters", "bond0");
    tree.write("proc/net/route", "bond0.7\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0");
    tree
}

#[test]
fn every_fact_of_a_machine() {
    let tree = machine();
    let snapshot = probe(&tree.config());
    assert_eq!(snapshot.source, Source::Live);

    let host = &snapshot.host;
    assert_eq!(host.kernel.as_deref(), Some("5.15.0-1"));
    assert_eq!(host.product.as_deref(), Some("Example Server"));
    assert_eq!(host.driver.as_deref(), Some("535.104.05"));
    assert_eq!(host.hypervisor, Some(false));

    let node = &snapshot.numa_nodes[1];
    assert_eq!((node.id, node.memory_bytes), (1, Some(1 << 30)));
    assert_eq!(node.cpus.as_ref().unwrap().to_string(), "4-7");
    assert_eq!(node.distances.iter().collect::<Vec<_>>(), [(&0, &32), (&1, &10)]);
    assert_eq!((node.cpu.arch, node.cpu.family), (Some(CpuArch::X86_64), Some(25)));

    let nics: Vec<_> = snapshot
        .nics
        .iter()
        .map(|nic| (nic.name.as_str(), nic.port, nic.mbit, nic.up, nic.numa_node, nic.role))
        .collect();
    assert_eq!(
        nics,
        [
            ("mlx5_2", Some(1), Some(200_000), Some(true), Some(0), NicRole::Fabric),
            // What a port that is down says of its rate is not its rate.
            ("mlx5_10", Some(1), None, Some(false), Some(0), NicRole::Fabric),
            ("bond0", None, Some(50_000), Some(true), Some(1), NicRole::Other),
            ("eth0", None, Some(25_000), Some(true), Some(1), NicRole::Other),
            ("eth1", None, Some(25_000), Some(true), Some(1), NicRole::Other),
        ]
    );
    assert_eq!(snapshot.nics[0].link_layer, Some(LinkLayer::Infiniband));
    assert_eq!(snapshot.nics[2].link_layer, Some(LinkLayer::Ethernet));

    let faults: Vec<_> = snapshot.faults.iter().map(|fault| fault.probe.as_str()).collect();
    assert_eq!(faults, ["nvml"], "{:?}", snapshot.faults);
}

#[test]
fn a_copy_without_links_has_the_same_tree() {
    let tree = machine();
    let linked = probe(&tree.config());
    // As `cp -rL` makes it: entries of the bus are directories, the device tree is beside them.
    let entries = tree.path().join("sys/bus/pci/devices");
    for entry in fs::read_dir(&entries).unwrap() {
        let entry = entry.unwrap().path();
        let target = fs::canonicalize(&entry).unwrap();
        fs::remove_file(&entry).unwrap();
        copy_files(&target, &entry);
    }
    let copied = probe(&tree.config());
    assert_eq!(copied.pci_devices, linked.pci_devices);
    assert_eq!(copied.nics, linked.nics);

    // With the entries alone, the bus numbers of the bridges tell the tree.
    fs::remove_dir_all(tree.path().join("sys/devices/pci0000:00")).unwrap();
    fs::remove_dir_all(tree.path().join("sys/devices/pci0000:80")).unwrap();
    for (bridge, bus) in [("0000:00:01.0", "1"), ("0000:00:02.0", "2"), ("0000:80:01.0", "129")] {
        tree.write(&format!("sys/bus/pci/devices/{bridge}/secondary_bus_number"), bus);
    }
    let flat = probe(&tree.config());
    let places = |snapshot: &topology::Snapshot| -> Vec<_> {
        let place = |d: &topology::snapshot::PciDevice| {
            (d.bus_id, d.parent, d.host_bridge.clone(), d.kind, d.link)
        };
        snapshot.pci_devices.iter().map(place).collect()
    };
    // Without the device tree the second port of the Ethernet card has lost nothing but its interface.
    assert_eq!(places(&flat), places(&linked));
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

#[test]
fn an_empty_root_is_all_faults() {
    let dir = tempfile::tempdir().unwrap();
    for root in [dir.path().to_owned(), dir.path().join("nothing/here")] {
        let snapshot = probe(&ProbeConfig::recorded(root));
        assert!(snapshot.gpus.is_empty() && snapshot.nics.is_empty());
        let places: Vec<_> = snapshot.faults.iter().map(|f| f.place.as_str()).collect();
        assert_eq!(
            places,
            ["proc/cpuinfo", "sys/devices/system/node", "sys/class/net", "sys/bus/pci/devices"]
        );
    }
}

#[test]
fn a_missing_library_is_no_fault_without_gpus() {
    let tree = SysfsTree::new("node0 cpus=0 kib=1 distance=10\nfile proc/cpuinfo processor : 0");
    let nvml = NvmlChoice::Library(tree.path().join("libnvidia-ml.so.1"));
    let snapshot = probe(&ProbeConfig { nvml: nvml.clone(), ..tree.config() });
    assert!(snapshot.faults.is_empty(), "{:?}", snapshot.faults);

    let tree = SysfsTree::new("pci0000:00\n  0000:00:01.0 030200 10de:20b0");
    let snapshot = probe(&ProbeConfig { nvml, ..tree.config() });
    let fault = snapshot.faults.iter().find(|fault| fault.probe == "nvml").unwrap();
    assert!(fault.place.ends_with("libnvidia-ml.so.1"), "{fault:?}");
    assert!(fault.error.starts_with("absent: "), "{fault:?}");
    assert_eq!(snapshot.gpus.len(), 1);
}

#[test]
fn a_bridge_the_recorder_left_out() {
    let tree = SysfsTree::new(
        "
        pci0000:00
          0000:00:01.0 060400 8086:2030 max=16.0x16
            0000:01:00.0
              0000:02:00.0 060400 1000:c010 max=16.0x16
                0000:03:00.0 030200 10de:20b0 max=16.0x16 now=16.0x16
        ",
    );
    let snapshot = probe(&tree.config());
    let ids: Vec<_> = snapshot.pci_devices.iter().map(|d| d.bus_id.to_string()).collect();
    assert_eq!(ids, ["0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]);
    assert!(snapshot.faults.iter().any(|f| f.place.ends_with("0000:01:00.0/class")));
}

#[test]
fn roots_of_unpacked_archives() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(recorded_root(dir.path()), None);
    let inner = dir.path().join("machine");
    fs::create_dir_all(inner.join("sys")).unwrap();
    assert_eq!(recorded_root(dir.path()), Some(inner.clone()));
    assert_eq!(recorded_root(&inner), Some(inner));
    fs::create_dir_all(dir.path().join("other/sys")).unwrap();
    assert_eq!(recorded_root(dir.path()), None);
}

#[test]
fn this_very_machine() {
    let snapshot = probe(&ProbeConfig::live());
    assert!(snapshot.host.kernel.is_some());
    assert!(snapshot.faults.iter().all(|fault| fault.at_unix_ms.is_some()));
    let json = serde_json::to_string(&snapshot).unwrap();
    assert_eq!(serde_json::from_str::<topology::Snapshot>(&json).unwrap(), snapshot);
}

/// A BlueField-3 of two ports, one of them with a virtual function, and its management function.
#[test]
fn functions_of_a_dpu() {
    let tree = SysfsTree::new(
        "
        pci0000:00
          0000:00:01.0 060400 8086:352a max=32.0x16
            0000:01:00.0 020700 15b3:a2dc max=32.0x16 now=32.0x16
            0000:01:00.1 020700 15b3:a2dc max=32.0x16 now=32.0x16
            0000:01:00.2 080100 15b3:c2d5
            0000:01:00.3 020700 15b3:101e max=32.0x16 now=32.0x16 physfn=0000:01:00.0
        rdma mlx5_0 0000:01:00.0 ib=up rate=400
        rdma mlx5_1 0000:01:00.1 ib=up rate=400
        rdma mlx5_2 0000:01:00.3 ib=up rate=400
        ",
    );
    let snapshot = probe(&tree.config());
    let dpu = topology::dpu::of_nic(&snapshot, &snapshot.nics[0]).unwrap();
    assert_eq!(
        dpu.summary(),
        "BlueField-3, mode unknown; functions seen: 2 network, 1 virtual, 1 management"
    );
    let of_it = snapshot.faults.iter().filter(|fault| fault.place.contains("0000:01:00.2"));
    assert_eq!(of_it.count(), 0, "{:?}", snapshot.faults);
    assert!(topology::health::judge(&snapshot).not_told.contains(&"mode of DPUs"));
    // On the card's own cores the port is there in DPU mode alone.
    tree.write("sys/class/dmi/id/product_name", "BlueField-3 DPU");
    let own = probe(&tree.config());
    let found = topology::health::judge(&own);
    assert!(!found.not_told.contains(&"mode of DPUs"));
    let codes: Vec<&str> = found.findings.iter().map(|finding| finding.code.as_str()).collect();
    assert_eq!(
        codes.iter().filter(|code| **code == "dpu-holds-its-switch").count(),
        2,
        "{codes:?}"
    );
}
