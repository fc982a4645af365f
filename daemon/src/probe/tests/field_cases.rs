//! Troubles users of GPU hosts ran into, each named after its row in the list of field cases.

use topology::snapshot::{
    Acs, GidKind, GidScope, IommuDomain, IommuGroup, LinkPeer, NicRole, PciDevice, PciKind,
    PcieLink,
};
use topology::{BusId, Snapshot};

use super::sysfs_tree::SysfsTree;
use crate::probe::probe;

fn id(text: &str) -> BusId {
    text.parse().unwrap()
}

#[track_caller]
fn device<'a>(snapshot: &'a Snapshot, bus_id: &str) -> &'a PciDevice {
    let wanted = id(bus_id);
    snapshot.pci_devices.iter().find(|device| device.bus_id == wanted).expect("in the snapshot")
}

/// Places of the faults, without the tree's own path.
fn fault_places(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.faults.iter().map(|fault| fault.place.as_str()).collect()
}

/// Two root ports of one host bridge make PHB, two host bridges on one NUMA node make NODE: both must be told apart
/// by what is recorded (NVIDIA/nccl#1502).
#[test]
fn field_case_002_host_bridges_are_recorded() {
    let tree = SysfsTree::new(
        "
        node0 cpus=0-7 kib=1024 distance=10
        pci0000:00
          0000:00:01.0 060400 8086:2030 numa=0 max=16.0x16
            0000:01:00.0 030200 10de:20b0 numa=0 max=16.0x16 now=16.0x16
          0000:00:02.0 060400 8086:2031 numa=0 max=16.0x16
            0000:02:00.0 030200 10de:20b0 numa=0 max=16.0x16 now=16.0x16
        pci0000:40
          0000:40:01.0 060400 8086:2030 numa=0 max=16.0x16
            0000:41:00.0 030200 10de:20b0 numa=0 max=16.0x16 now=16.0x16
        ",
    );
    let snapshot = probe(&tree.config());
    let above = |gpu: &str| {
        let parent = device(&snapshot, gpu).parent.unwrap().to_string();
        let bridge = device(&snapshot, &parent).host_bridge.clone().unwrap();
        (parent, bridge)
    };
    assert_eq!(above("0000:01:00.0"), ("0000:00:01.0".into(), "pci0000:00".into()));
    assert_eq!(above("0000:02:00.0"), ("0000:00:02.0".into(), "pci0000:00".into()));
    assert_eq!(above("0000:41:00.0"), ("0000:40:01.0".into(), "pci0000:40".into()));
    assert!(snapshot.gpus.iter().all(|gpu| gpu.numa_node == Some(0)));
    assert!(snapshot.pci_devices.iter().all(|d| d.host_bridge.is_none() == d.parent.is_some()));
}

/// A guest's link files say "Unknown": that is no speed, and certainly not 0 (NVIDIA/nccl#428).
#[test]
fn field_case_005_unknown_speeds_are_not_zero() {
    let tree = SysfsTree::new(
        "
        pci0000:00
          0000:00:01.0 060400 1b36:000c
            0000:01:00.0 030200 10de:2330 max=16.0x16 now=16.0x16
        ",
    );
    let gpu = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
    tree.write(&format!("{gpu}/current_link_speed"), "Unknown");
    tree.write(&format!("{gpu}/max_link_width"), "0");
    let snapshot = probe(&tree.config());
    let link = device(&snapshot, "0000:01:00.0").link;
    assert_eq!((link.trained, link.device_capable, link.slot_capable), (None, None, None));
    for file in ["current_link_speed", "max_link_width"] {
        assert!(fault_places(&snapshot).contains(&format!("{gpu}/{file}").as_str()), "{file}");
    }
}

/// A bridge without `max_link_width` must not bring a 0 into the minimum over the path (meta-pytorch/monarch#4630).
#[test]
fn field_case_006_missing_width_of_a_bridge() {
    let description = "
        node0 cpus=0-7 kib=1024 distance=10
        pci0000:00
          0000:00:01.0 060400 8086:2030 max=16.0x16
            0000:01:00.0 060400 1000:c010 max=16.0x16 now=16.0x16
              0000:02:08.0 060400 1000:c010 max=16.0x16
                0000:03:00.0 030200 10de:20b0 max=16.0x16 now=16.0x16
        ";
    let tree = SysfsTree::new(description);
    let whole = probe(&tree.config());
    let port = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0";
    tree.remove(&format!("{port}/max_link_width"));
    let snapshot = probe(&tree.config());

    let link = device(&snapshot, "0000:03:00.0").link;
    assert_eq!(link.slot_capable, None);
    assert_eq!(link.usable(), (Some(16_000), Some(16)));
    assert_eq!(device(&whole, "0000:03:00.0").link.slot_capable, Some(GEN4_X16));
    // One fault, and it names the file.
    let new: Vec<_> =
        snapshot.faults.iter().filter(|fault| !whole.faults.contains(fault)).collect();
    assert_eq!(new.len(), 1, "{new:?}");
    assert_eq!(new[0].place, format!("{port}/max_link_width"));
    assert!(new[0].error.starts_with("absent:"), "{}", new[0].error);
}

const GEN4_X16: PcieLink = PcieLink { mtps: 16_000, width: 16 };

/// Where both speeds are missing, equal trees still give equal facts (NVIDIA/nccl#1020).
#[test]
fn field_case_007_missing_speeds_are_deterministic() {
    let description = "
        node0 cpus=0-7 kib=1024 distance=10
        pci0000:00
          0000:00:01.0 060400 8086:2030
            0000:01:00.0 030200 10de:20b0
          0000:00:02.0 060400 8086:2030
            0000:02:00.0 020700 15b3:101b
        rdma mlx5_0 0000:02:00.0 ib=up rate=200
        ";
    let (one, two) = (SysfsTree::new(description), SysfsTree::new(description));
    let snapshot = probe(&one.config());
    assert_eq!(snapshot, probe(&two.config()));
    assert_eq!(snapshot, probe(&one.config()));
    assert_eq!(device(&snapshot, "0000:01:00.0").link.usable(), (None, None));
}

/// An idle GPU trains down to Gen1; what it can do is another fact (open-mpi/hwloc#653).
#[test]
fn field_case_008_idle_down_shift() {
    let tree = SysfsTree::new(
        "
        node0 cpus=0-7 kib=1024 distance=10
        pci0000:00
          0000:00:01.0 060400 8086:2030 max=32.0x16
            0000:01:00.0 030200 10de:2330 numa=0 max=32.0x16 now=2.5x16
        ",
    );
    let link = device(&probe(&tree.config()), "0000:01:00.0").link;
    let gen5 = Some(PcieLink { mtps: 32_000, width: 16 });
    assert_eq!(link.trained, Some(PcieLink { mtps: 2_500, width: 16 }));
    assert_eq!((link.device_capable, link.slot_capable), (gen5, gen5));
    assert_eq!(link.usable(), (Some(32_000), Some(16)));
}

/// A NIC trained at half its width stays at half: only the speed is an idle matter.
#[test]
fn field_case_008_half_width_is_no_down_shift() {
    let tree = SysfsTree::new(
        "
        pci0000:00
          0000:00:01.0 060400 8086:2030 max=16.0x16
            0000:01:00.0 020700 15b3:101b max=16.0x16 now=16.0x8
        ",
    );
    let link = device(&probe(&tree.config()), "0000:01:00.0").link;
    assert_eq!(link.usable(), (Some(16_000), Some(8)));
}

/// Firmware that publishes no NUMA node: the device's CPUs, then the bridges above, may know (NVIDIA/cuCascade#119).
#[test]
fn field_case_010_numa_node_is_minus_one() {
    let tree = SysfsTree::new(
        "
        node0 cpus=0-3 kib=1024 distance=10,21
        node1 cpus=4-7 kib=1024 distance=21,10
        pci0000:00
          0000:00:01.0 060400 8086:2030 numa=1 cpus=4-7 max=16.0x16
            0000:01:00.0 030200 10de:20b0 numa=-1 cpus=0-7 max=16.0x16 now=16.0x16
          0000:00:02.0 060400 8086:2030 numa=-1 cpus=0-7 max=16.0x16
            0000:02:00.0 030200 10de:20b0 numa=-1 cpus=4-5 max=16.0x16 now=16.0x16
            0000:02:00.1 030200 10de:20b0 numa=-1 cpus=0-7 max=16.0x16 now=16.0x16
        ",
    );
    let snapshot = probe(&tree.config());
    let places: Vec<_> = snapshot
        .gpus
        .iter()
        .map(|gpu| (gpu.numa_node, gpu.cpus.as_ref().map(ToString::to_string)))
        .collect();
    let expect = [(Some(1), Some("4-7")), (Some(1), Some("4-5")), (None, None)];
    assert_eq!(places, expect.map(|(node, cpus)| (node, cpus.map(String::from))));
    // The function's own fact stays unknown, and is not node 0.
    assert_eq!(device(&snapshot, "0000:01:00.0").numa_node, None);
}

/// GPUs that are anonymous "3D" functions without a driver are still drawn (open-mpi/hwloc#365).
#[test]
fn field_case_018_gpus_without_a_driver() {
    let tree = SysfsTree::new(
        "
        node0 cpus=0-7 kib=1024 distance=10
        pci0000:00
          0000:00:01.0 060400 8086:2030 numa=0 max=16.0x16
            0000:01:00.0 030200 10de:20b0 numa=0 max=16.0x16 now=2.5x16
          0000:00:02.0 060400 8086:2030 numa=0 max=16.0x16
            0000:0a:00.0 030200 10de:20b0 numa=0 max=16.0x16 now=2.5x16
          0000:00:03.0 060400 8086:2030 numa=0 max=8.0x1
            0000:03:00.0 030000 1a03:2000 numa=0
        ",
    );
    let snapshot = probe(&tree.config());
    let gpus: Vec<_> = snapshot.gpus.iter().map(|gpu| (gpu.index.0, gpu.bus_id.unwrap())).collect();
    assert_eq!(gpus, [(0, id("0000:01:00.0")), (1, id("0000:0a:00.0"))]);
    // What could not be known is said, and is unknown: not "no link is down".
    assert!(snapshot.gpus.iter().all(|gpu| gpu.inactive_links.is_none() && gpu.uuid.is_none()));
    assert!(snapshot.faults.iter().any(|f| f.probe == "nvml" && f.error.contains("PCI alone")));
    // The board controller's display is no GPU, and nothing else needs its root port.
    assert_eq!(snapshot.pci_devices.len(), 4);
}

/// Grace: NUMA nodes that have memory and no CPUs (vllm#39361).
#[test]
fn field_case_047_nodes_without_cpus() {
    let tree = SysfsTree::new(
        "
        node0 cpus=0-71 kib=1024 distance=10,40
        node1 kib=2048 distance=40,10
        file sys/devices/system/node/node1/cpulist
        file proc/cpuinfo processor : 0
        ",
    );
    let snapshot = probe(&tree.config());
    let nodes: Vec<_> = snapshot
        .numa_nodes
        .iter()
        .map(|node| (node.id, node.cpus.as_ref().unwrap().len(), node.memory_bytes.unwrap()))
        .collect();
    assert_eq!(nodes, [(0, 72, 1 << 20), (1, 0, 2 << 20)]);
    assert!(snapshot.faults.is_empty(), "{:?}", snapshot.faults);
}

/// The front end is not the NIC to use, however near it is (meta-pytorch/monarch#1832).
#[test]
fn field_case_052_front_end_nic() {
    let tree = SysfsTree::new(
        "
        pci0000:00
          0000:00:01.0 060400 8086:2030 max=32.0x16
            0000:01:00.0 020000 15b3:1021 max=32.0x16 now=32.0x16
            0000:01:00.1 020000 15b3:101e max=32.0x16 now=32.0x16 physfn=0000:01:00.0
          0000:00:02.0 060400 8086:2030 max=16.0x16
            0000:02:00.0 020000 15b3:101d max=16.0x16 now=16.0x16
          0000:00:03.0 060400 8086:2030 max=8.0x4
            0000:03:00.0 020000 8086:1533 max=8.0x1 now=8.0x1
        rdma mlx5_0 0000:02:00.0 roce=up rate=100
        net ens2 0000:02:00.0 speed=100000 state=up
        rdma mlx5_1 0000:01:00.0 roce=up rate=400
        net ens1 0000:01:00.0 speed=400000 state=up
        rdma mlx5_2 0000:01:00.1 roce=up rate=400
        net eno1 0000:03:00.0 speed=1000 state=up
        ",
    );
    tree.write(
        "proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\nens2\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000",
    );
    let snapshot = probe(&tree.config());
    let roles: Vec<_> = snapshot.nics.iter().map(|nic| (nic.name.as_str(), nic.role)).collect();
    assert_eq!(
        roles,
        [
            ("mlx5_0", NicRole::Other),
            ("mlx5_1", NicRole::Fabric),
            ("mlx5_2", NicRole::Other),
            ("eno1", NicRole::Other),
        ]
    );
}

/// A switch below a switch: each is recognised by its place.
#[test]
fn field_case_001_bridges_are_told_apart() {
    let tree = SysfsTree::new(
        "
        pci0000:00
          0000:00:01.0 060400 8086:2030 max=16.0x16
            0000:01:00.0 060400 1000:c010 max=16.0x16 now=16.0x16
              0000:02:00.0 060400 1000:c010 max=16.0x16
                0000:03:00.0 060400 1000:c010 max=16.0x16 now=16.0x16
                  0000:04:00.0 060400 1000:c010 max=16.0x16
                    0000:05:00.0 030200 10de:20b0 max=16.0x16 now=16.0x16
              0000:02:01.0 060400 1000:c010 max=16.0x16
                0000:08:00.0 068000 10de:1af1 max=16.0x2 now=16.0x2
              0000:02:02.0 060400 1000:c010 max=16.0x16
                0000:09:00.0 010802 144d:a824 max=16.0x4 now=16.0x4
        ",
    );
    let snapshot = probe(&tree.config());
    let kinds: Vec<_> =
        snapshot.pci_devices.iter().map(|d| (d.bus_id.to_string(), d.kind)).collect();
    let expect = [
        ("0000:00:01.0", PciKind::RootPort),
        ("0000:01:00.0", PciKind::Switch),
        ("0000:02:00.0", PciKind::SwitchPort),
        ("0000:02:01.0", PciKind::SwitchPort),
        ("0000:03:00.0", PciKind::Switch),
        ("0000:04:00.0", PciKind::SwitchPort),
        ("0000:05:00.0", PciKind::Gpu),
        ("0000:08:00.0", PciKind::NvSwitch),
    ];
    assert_eq!(kinds, expect.map(|(bus_id, kind)| (bus_id.to_owned(), kind)));
    // The link of a switch is that of its upstream port; its ports have none of their own above them.
    assert_eq!(device(&snapshot, "0000:03:00.0").link.slot_capable, Some(GEN4_X16));
    assert_eq!(device(&snapshot, "0000:02:00.0").link, Default::default());
}

/// Configuration space of an express port whose access control is at 0x100.
fn port_config(control: u16) -> Vec<u8> {
    let mut config = vec![0; 4096];
    config[0x34] = 0x40;
    config[0x40] = 0x10;
    config[0x100..0x104].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
    config[0x104] = 0x1f;
    config[0x106..0x108].copy_from_slice(&control.to_le_bytes());
    config
}

/// Access control of two bridges from their bytes, groups and kernel options (NVIDIA/nccl#2079); what cannot be read is
/// unknown, and not off.
#[test]
fn field_case_054_access_control_and_translation() {
    let tree = SysfsTree::new(
        "
        pci0000:00
          0000:00:01.0 060400 8086:2030 max=16.0x16
            0000:01:00.0 060400 1000:c010 max=16.0x16 now=16.0x16
              0000:02:00.0 060400 1000:c010 max=16.0x16
                0000:03:00.0 030200 10de:20b0 max=16.0x16 now=16.0x16
              0000:02:01.0 060400 1000:c010 max=16.0x16
                0000:04:00.0 030200 10de:20b0 max=16.0x16 now=16.0x16
        file sys/kernel/iommu_groups/7/type DMA-FQ
        file proc/cmdline BOOT_IMAGE=/vmlinuz root=/dev/sda1 intel_iommu=on pci=realloc
        ",
    );
    let switch = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
    let write = |function: &str, bytes: &[u8]| {
        std::fs::write(tree.path().join(switch).join(function).join("config"), bytes).unwrap();
    };
    write("0000:02:00.0", &port_config(0x1d));
    write("0000:02:01.0", &port_config(0x1d)[..64]);
    tree.link(
        &format!("{switch}/0000:02:00.0/0000:03:00.0/iommu_group"),
        "../../../../../../kernel/iommu_groups/7",
    );
    let snapshot = probe(&tree.config());
    let acs = Acs { supported: 0x1f, enabled: 0x1d };
    assert_eq!(device(&snapshot, "0000:02:00.0").acs, Some(acs));
    assert!(acs.redirects());
    assert_eq!(device(&snapshot, "0000:02:01.0").acs, None);
    assert_eq!(
        device(&snapshot, "0000:03:00.0").iommu,
        Some(IommuGroup { group: 7, domain: Some(IommuDomain::DmaFq) })
    );
    assert_eq!(device(&snapshot, "0000:04:00.0").iommu, None);
    assert_eq!(snapshot.host.iommu, Some(true));
    let flags = snapshot.host.kernel_flags.unwrap();
    assert_eq!(flags, ["intel_iommu=on", "pci=realloc"]);
}

/// A port's GID table: types, interfaces, and how far each address reaches, but no address (NVIDIA/nccl#426).
#[test]
fn field_case_080_gid_tables() {
    let tree = SysfsTree::new(
        "
        pci0000:00
          0000:00:01.0 060400 8086:2030 max=16.0x16
            0000:01:00.0 020000 15b3:101d max=16.0x16 now=16.0x16
        rdma mlx5_0 0000:01:00.0 roce=up rate=100
        net eth0 0000:01:00.0 speed=100000 state=up
        ",
    );
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    let entries = [
        ("fe80:0000:0000:0000:0200:00ff:fe00:0001", Some("IB/RoCE v1")),
        ("fe80:0000:0000:0000:0200:00ff:fe00:0001", Some("RoCE v2")),
        ("0000:0000:0000:0000:0000:0000:0000:0000", None),
        ("0000:0000:0000:0000:0000:ffff:c612:0001", Some("RoCE v2")),
    ];
    for (index, (gid, kind)) in entries.into_iter().enumerate() {
        tree.write(&format!("{port}/gids/{index}"), gid);
        if let Some(kind) = kind {
            tree.write(&format!("{port}/gid_attrs/types/{index}"), kind);
            tree.write(&format!("{port}/gid_attrs/ndevs/{index}"), "eth0");
        }
    }
    let snapshot = probe(&tree.config());
    let gids = snapshot.nics[0].gids.as_ref().unwrap();
    let table: Vec<_> = gids.iter().map(|gid| (gid.index, gid.kind, gid.scope)).collect();
    assert_eq!(
        table,
        [
            (0, GidKind::IbOrRoceV1, GidScope::LinkLocal),
            (1, GidKind::RoceV2, GidScope::LinkLocal),
            (3, GidKind::RoceV2, GidScope::Ipv4),
        ]
    );
    assert!(gids.iter().all(|gid| gid.netdev.as_deref() == Some("eth0")));
    assert_eq!(gids.iter().filter(|gid| gid.is_routable()).count(), 1);
    let json = serde_json::to_string(&snapshot).unwrap();
    assert!(!json.contains("c612") && !json.contains("00ff:fe00"), "{json}");
}

/// A bond of two ports is one RDMA device; its legs are known, and counted once (NVIDIA/nccl#1015).
#[test]
fn field_case_081_bond_of_two_ports() {
    let tree = SysfsTree::new(
        "
        pci0000:00
          0000:00:01.0 060400 8086:2030 max=16.0x16
            0000:01:00.0 020000 15b3:101d max=16.0x16 now=16.0x16
            0000:01:00.1 020000 15b3:101d max=16.0x16 now=16.0x16
        rdma mlx5_bond_0 0000:01:00.0 roce=up rate=200
        net eth0 0000:01:00.0 speed=100000 state=up
        net eth1 0000:01:00.1 speed=100000 state=down
        file sys/devices/virtual/net/bond0/bonding/slaves eth0 eth1
        file sys/devices/virtual/net/bond0/bonding/mode 802.3ad 4
        ",
    );
    tree.link("sys/class/net/bond0", "../../devices/virtual/net/bond0");
    for (leg, function, state) in [("eth0", "0000:01:00.0", "up"), ("eth1", "0000:01:00.1", "down")]
    {
        let dir = format!("sys/devices/pci0000:00/0000:00:01.0/{function}/net/{leg}");
        tree.write(&format!("{dir}/bonding_slave/mii_status"), state);
        tree.link(&format!("{dir}/master"), "/sys/devices/virtual/net/bond0");
    }
    let snapshot = probe(&tree.config());
    let nic = snapshot.nics.iter().find(|nic| nic.name == "mlx5_bond_0").unwrap();
    let bond = nic.bond.as_ref().unwrap();
    assert_eq!((bond.name.as_str(), bond.mode.as_deref()), ("bond0", Some("802.3ad")));
    let legs: Vec<_> = bond.members.iter().map(|leg| (leg.name.as_str(), leg.up)).collect();
    assert_eq!(legs, [("eth0", Some(true)), ("eth1", Some(false))]);
    assert!(!snapshot.nics.iter().any(|nic| nic.name == "bond0"));
    let found = topology::health::examine(&snapshot);
    assert!(found.iter().any(|finding| finding.code == "bond-leg-down"), "{found:?}");
}

/// Optional device nodes and classes that are not there are no faults (NVIDIA/NVSentinel#1716).
#[test]
fn field_case_040_optional_files_are_no_faults() {
    let tree = SysfsTree::new(
        "
        node0 cpus=0-7 kib=1024 distance=10
        pci0000:00
          0000:00:01.0 060400 8086:2030 numa=0 max=16.0x16
            0000:01:00.0 020700 15b3:101b numa=0 max=16.0x16 now=16.0x16
        rdma mlx5_0 0000:01:00.0 ib=up rate=200
        file proc/cpuinfo processor : 0
        ",
    );
    let snapshot = probe(&tree.config());
    assert!(snapshot.faults.is_empty(), "{:?}", snapshot.faults);
    assert_eq!(snapshot.nics[0].counters, None);
}

/// The compute driver's nodes of AMD boards. In CPX mode a board shows a node for each of its parts, and weights of
/// links change (ROCm/rccl#1290): a link is one by its type.
fn kfd_tree(parts: u32, weight: u32) -> SysfsTree {
    let tree = SysfsTree::new(
        "
        node0 cpus=0-7 kib=1024 distance=10
        pci0000:00
          0000:00:01.0 060400 1022:14ab numa=0 max=32.0x16
            0000:01:00.0 120000 1002:74a1 numa=0 max=32.0x16 now=32.0x16
          0000:00:02.0 060400 1022:14ab numa=0 max=32.0x16
            0000:02:00.0 120000 1002:74a1 numa=0 max=32.0x16 now=32.0x16
        file proc/cpuinfo processor : 0
        file sys/bus/pci/devices/0000:01:00.0/current_compute_partition CPX
        ",
    );
    let nodes = "sys/class/kfd/kfd/topology/nodes";
    tree.write(&format!("{nodes}/0/properties"), "cpu_cores_count 8\ngfx_target_version 0");
    let all = parts * 2;
    for node in 1..=all {
        let location = if node <= parts { 0x100 } else { 0x200 };
        let text = format!("gfx_target_version 90402\nlocation_id {location}\ndomain 0");
        tree.write(&format!("{nodes}/{node}/properties"), &text);
        tree.write(
            &format!("{nodes}/{node}/mem_banks/0/properties"),
            "heap_type 1\nsize_in_bytes 1024",
        );
        tree.write(
            &format!("{nodes}/{node}/io_links/0/properties"),
            "type 2\nnode_to 0\nweight 20",
        );
        for (number, to) in (1..).zip((1..=all).filter(|to| *to != node)) {
            let text = format!("type 11\nnode_to {to}\nweight {weight}\nmax_bandwidth 64000");
            tree.write(&format!("{nodes}/{node}/io_links/{number}/properties"), &text);
        }
    }
    tree
}

#[test]
fn field_case_015_weights_decide_nothing() {
    for (parts, weight) in [(1, 15), (4, 13), (4, 41)] {
        let snapshot = probe(&kfd_tree(parts, weight).config());
        assert_eq!(snapshot.gpus.len(), 2, "{parts} {weight}");
        let gpu = &snapshot.gpus[0];
        assert_eq!(gpu.gfx.as_deref(), Some("gfx942"));
        assert_eq!(gpu.memory_bytes, Some(1024 * u64::from(parts)));
        assert_eq!(gpu.partition.as_deref(), Some("CPX"));
        let peers: Vec<_> =
            gpu.links.iter().map(|links| (links.peer.clone(), links.count)).collect();
        assert_eq!(peers, [(LinkPeer::Gpu(id("0000:02:00.0")), 1)], "{parts} {weight}");
        assert!(snapshot.faults.is_empty(), "{:?}", snapshot.faults);
    }
}

/// Links that a tool calls PCIe are none, and a board of this kind without any is said to be broken
/// (ROCm/rocm-systems#5297).
#[test]
fn field_case_013_links_without_xgmi() {
    let tree = kfd_tree(1, 15);
    for node in [1, 2] {
        let link = format!("sys/class/kfd/kfd/topology/nodes/{node}/io_links/1/properties");
        tree.write(&link, "type 2\nnode_to 1\nweight 40");
    }
    let snapshot = probe(&tree.config());
    assert!(snapshot.gpus.iter().all(|gpu| gpu.links.is_empty()));
    let found = topology::health::examine(&snapshot);
    let codes: Vec<_> = found.iter().map(|finding| finding.code.as_str()).collect();
    assert_eq!(codes, ["gpu-no-xgmi", "gpu-no-xgmi"]);
}

/// An NVSwitch's own port is an RDMA device like others, and not for traffic between GPUs
/// (NVIDIA's guide to the fabric manager; siderolabs#893).
#[test]
fn ports_that_manage_switches() {
    let tree = SysfsTree::new(
        "
        pci0000:00
          0000:00:01.0 060400 8086:2030 max=16.0x16
            0000:01:00.0 020700 15b3:1021 max=16.0x16 now=16.0x16
            0000:01:00.1 020700 15b3:1021 max=16.0x16 now=16.0x16
        rdma mlx5_0 0000:01:00.0 ib=up rate=400
        rdma mlx5_1 0000:01:00.1 ib=up rate=400
        ",
    );
    let function = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.1";
    std::fs::write(tree.path().join(function).join("vpd"), b"\x82\x01SN1234 SW_MNG\x00").unwrap();
    let snapshot = probe(&tree.config());
    let roles: Vec<_> =
        snapshot.nics.iter().map(|nic| (nic.role, nic.role_reason.as_deref().unwrap())).collect();
    assert_eq!(roles[0].0, NicRole::Fabric);
    assert_eq!(roles[1], (NicRole::Other, "an NVSwitch's own port"));
}
