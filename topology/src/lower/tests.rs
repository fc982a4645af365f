//! Small hosts, one oddity each.

use alloc::string::ToString;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::matrix::{Cell, Matrix};
use crate::snapshot::{
    C2c, GpuLinkKind, GpuLinks, LinkPeer, NumaNode, PciDevice, PciKind, PcieLink, PcieLinkFacts,
};
use crate::{BusId, CpuArch, CpuModel, Gpu, GpuIndex, Nic, PathType, Source};

fn id(text: &str) -> BusId {
    text.parse().unwrap()
}

fn pci(
    kind: PciKind,
    at: &str,
    parent: Option<&str>,
    host_bridge: Option<&str>,
    numa_node: Option<u32>,
) -> PciDevice {
    PciDevice {
        parent: parent.map(id),
        host_bridge: host_bridge.map(Into::into),
        numa_node,
        link: PcieLinkFacts {
            trained: None,
            device_capable: Some(PcieLink { mtps: 16000, width: 16 }),
            slot_capable: None,
            trained_total: None,
        },
        ..PciDevice::new(id(at), kind)
    }
}

fn gpu(index: u32, at: &str) -> Gpu {
    Gpu { bus_id: Some(id(at)), compute_capability: Some(80), ..Gpu::new(GpuIndex(index)) }
}

fn nic(name: &str, at: Option<&str>, port: u32) -> Nic {
    Nic { bus_id: at.map(id), port: Some(port), mbit: Some(200_000), ..Nic::new(name) }
}

fn links(peer: LinkPeer, count: u32) -> GpuLinks {
    GpuLinks { kind: GpuLinkKind::NvLink, peer, count, rate: None }
}

fn numa(id: u32) -> NumaNode {
    let cpu = CpuModel {
        arch: Some(CpuArch::X86_64),
        vendor: Some("AuthenticAMD".into()),
        family: Some(25),
        model: Some(1),
    };
    NumaNode { cpu, ..NumaNode::new(id) }
}

/// Two sockets; below node 0 a switch with ports and two devices, a second root port of the same host bridge, and
/// a second host bridge; below node 1 two cascaded switches.
fn host() -> Snapshot {
    use PciKind::{Gpu as G, Nic as N, RootPort, Switch, SwitchPort};
    let mut s = Snapshot::new(Source::Live);
    s.numa_nodes = [numa(0), numa(1)].into();
    let (a, b, c) = (Some("pci0000:00"), Some("pci0000:40"), Some("pci0000:80"));
    s.pci_devices = [
        pci(RootPort, "00:01.0", None, a, Some(0)),
        pci(Switch, "01:00.0", Some("00:01.0"), None, Some(0)),
        pci(SwitchPort, "02:00.0", Some("01:00.0"), None, Some(0)),
        pci(SwitchPort, "02:01.0", Some("01:00.0"), None, Some(0)),
        pci(G, "03:00.0", Some("02:00.0"), None, None),
        pci(N, "04:00.0", Some("02:01.0"), None, Some(0)),
        pci(RootPort, "00:02.0", None, a, Some(0)),
        pci(G, "05:00.0", Some("00:02.0"), None, Some(0)),
        pci(RootPort, "40:01.0", None, b, Some(0)),
        pci(G, "41:00.0", Some("40:01.0"), None, Some(0)),
        pci(RootPort, "80:01.0", None, c, Some(1)),
        pci(Switch, "81:00.0", Some("80:01.0"), None, Some(1)),
        pci(SwitchPort, "82:00.0", Some("81:00.0"), None, Some(1)),
        pci(Switch, "83:00.0", Some("82:00.0"), None, Some(1)),
        pci(SwitchPort, "84:00.0", Some("83:00.0"), None, Some(1)),
        pci(SwitchPort, "84:01.0", Some("83:00.0"), None, Some(1)),
        pci(SwitchPort, "82:01.0", Some("81:00.0"), None, Some(1)),
        pci(G, "85:00.0", Some("84:00.0"), None, Some(1)),
        pci(N, "86:00.0", Some("84:01.0"), None, Some(1)),
        pci(N, "87:00.0", Some("82:01.0"), None, Some(1)),
    ]
    .into();
    s.gpus = [gpu(0, "03:00.0"), gpu(1, "05:00.0"), gpu(2, "41:00.0"), gpu(3, "85:00.0")].into();
    s.nics = [
        nic("mlx5_0", Some("04:00.0"), 1),
        nic("mlx5_1", Some("86:00.0"), 1),
        nic("mlx5_2", Some("87:00.0"), 1),
    ]
    .into();
    s
}

#[track_caller]
fn check(topology: &Topology, from: &str, to: &str, class: &str, gbps: &str) {
    let [a, b] = [from, to].map(|name| topology.find_device(name).unwrap());
    let path = topology.path(a, b);
    let cell = Cell { class: path.class, links: path.links };
    assert_eq!(
        (cell.to_string().as_str(), path.bottleneck.display_gbps().as_str()),
        (class, gbps),
        "{from} to {to}"
    );
}

#[test]
fn classes_by_nearest_common_ancestor() {
    let t = lower(&[host()], RateModel::Effective).unwrap();
    check(&t, "GPU0", "GPU0", "X", "0");
    check(&t, "GPU0", "NIC0", "PIX", "24");
    check(&t, "GPU0", "GPU1", "PHB", "24");
    check(&t, "GPU0", "GPU2", "NODE", "24");
    check(&t, "GPU0", "GPU3", "SYS", "16");
    check(&t, "GPU3", "NIC1", "PIX", "24");
    check(&t, "GPU3", "NIC2", "PXB", "24");
    check(&t, "mlx5_1", "0000:03:00.0", "SYS", "16");
    assert!(t.assumptions().is_empty(), "{:?}", t.assumptions());
}

#[test]
fn ports_vanish_and_a_switch_is_one_vertex() {
    let t = lower(&[host()], RateModel::Effective).unwrap();
    let names: Vec<&str> = t.graph().node_weights().map(|v| v.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "GPU0",
            "GPU1",
            "GPU2",
            "GPU3",
            "0000:01:00.0",
            "0000:81:00.0",
            "0000:83:00.0",
            "numa0",
            "numa1",
            "mlx5_0",
            "mlx5_1",
            "mlx5_2",
            "fabric"
        ]
    );
}

#[test]
fn nvlink_comes_before_pcie() {
    let mut s = host();
    s.gpus[0].links = [links(LinkPeer::Gpu(id("05:00.0")), 4)].into();
    s.gpus[1].links = [links(LinkPeer::Gpu(id("03:00.0")), 3)].into();
    s.gpus[2].links = [links(LinkPeer::Switch(None), 12)].into();
    s.gpus[3].links = [links(LinkPeer::Switch(None), 10)].into();
    let t = lower(&[s], RateModel::Effective).unwrap();
    // Each direction as its sender lists it; through switches the lesser end counts.
    check(&t, "GPU0", "GPU1", "NV4", "80");
    check(&t, "GPU1", "GPU0", "NV3", "60");
    check(&t, "GPU2", "GPU3", "NV10", "200");
    check(&t, "GPU0", "GPU2", "NODE", "24");
}

#[test]
fn ports_of_one_card_share_its_link() {
    let mut s = host();
    s.nics[1] = nic("mlx5_0", Some("04:00.1"), 2);
    s.pci_devices.push(pci(PciKind::Nic, "04:00.1", Some("02:01.0"), None, Some(0)));
    let t = lower(&[s], RateModel::Effective).unwrap();
    let card = t.find("0000:04:00.0").unwrap();
    let switch = t.find("0000:01:00.0").unwrap();
    assert_eq!(t.links_between(card, switch).len(), 1);
    check(&t, "GPU0", "NIC0", "PIX", "24");
    check(&t, "GPU0", "NIC1", "PIX", "24");
    assert!(t.find("mlx5_0:2").is_some());
}

#[test]
fn a_port_that_is_down_reaches_no_network() {
    let mut s = host();
    s.nics[0].up = Some(false);
    let t = lower(&[s], RateModel::Effective).unwrap();
    let (nic, fabric) = (t.find("mlx5_0").unwrap(), t.find("fabric").unwrap());
    assert!(t.links_between(nic, fabric).is_empty());
}

#[test]
fn unknown_link_is_assumed_and_said() {
    let mut s = host();
    s.pci_devices[4].link = PcieLinkFacts::default();
    let t = lower(&[s], RateModel::Effective).unwrap();
    check(&t, "GPU0", "GPU1", "PHB", "12");
    assert_eq!(t.assumptions(), ["GPU0: PCIe Gen3 x16 assumed"]);
}

#[test]
fn unknown_numa_node_is_remote_from_every_other() {
    let mut s = host();
    for device in &mut s.pci_devices {
        if device.bus_id == id("41:00.0") || device.bus_id == id("40:01.0") {
            device.numa_node = None;
        }
    }
    let t = lower(&[s], RateModel::Effective).unwrap();
    check(&t, "GPU0", "GPU2", "SYS", "16");
    assert_eq!(t.assumptions(), ["GPU2: NUMA node unknown, taken as remote from every other"]);
}

#[test]
fn c2c_is_a_link_beside_pcie() {
    let mut s = host();
    s.gpus[1].c2c = Some(C2c { count: 5, rate: crate::Bandwidth::from_mbps(44_712) });
    let t = lower(&[s], RateModel::Effective).unwrap();
    let (gpu, node) = (t.find("GPU1").unwrap(), t.find("numa0").unwrap());
    let rates: Vec<String> =
        t.links_between(gpu, node).iter().map(|l| t.link(*l).bandwidth.display_gbps()).collect();
    assert_eq!(rates, ["223.56", "24"]);
}

#[test]
fn hosts_meet_in_the_fabric() {
    let t = lower(&[host(), host()], RateModel::Effective).unwrap();
    assert_eq!(t.gpus().len(), 8);
    check(&t, "0:GPU0", "1:GPU0", "NET", "24");
    check(&t, "1:GPU0", "1:NIC0", "PIX", "24");
    assert!(t.find("fabric").is_some() && t.find("0:mlx5_0").is_some());
}

#[test]
fn contradictions_are_refused() {
    let refused = |s: Snapshot| lower(&[s], RateModel::Effective).unwrap_err().reason;
    let mut twice = host();
    twice.pci_devices.push(twice.pci_devices[0].clone());
    assert!(refused(twice).contains("listed twice"));
    let mut orphan = host();
    orphan.pci_devices[4].parent = Some(id("99:00.0"));
    assert!(refused(orphan).contains("0000:99:00.0"));
    let mut ring = host();
    ring.pci_devices[0].parent = Some(id("01:00.0"));
    assert!(refused(ring).contains("bridges above"));
    let mut same = host();
    same.gpus[1].index = GpuIndex(0);
    assert!(refused(same).contains("two devices are named GPU0"));
    assert!(lower(&[], RateModel::Effective).is_err());
}

fn matrix_host(rows: &[&str]) -> Snapshot {
    let mut s = Snapshot::new(Source::TopoMatrix);
    let words: Vec<Vec<&str>> = rows.iter().map(|row| row.split_whitespace().collect()).collect();
    let cells =
        words.iter().map(|row| row[1..].iter().map(|cell| cell.parse().ok()).collect()).collect();
    let devices: Vec<String> = words.iter().map(|row| row[0].into()).collect();
    for name in &devices {
        match name.strip_prefix("GPU") {
            Some(index) => s.gpus.push(Gpu {
                bus_id: None,
                compute_capability: None,
                ..gpu(index.parse().unwrap(), "00:00.0")
            }),
            None => s.nics.push(nic(name, None, 1)),
        }
    }
    s.matrix = Some(Matrix { devices, cells });
    s
}

#[test]
fn a_matrix_becomes_the_least_tree() {
    let s = matrix_host(&[
        "GPU0 X PIX PXB NODE SYS PIX",
        "GPU1 PIX X PXB NODE SYS PIX",
        "GPU2 PXB PXB X NODE SYS PXB",
        "GPU3 NODE NODE NODE X SYS NODE",
        "GPU4 SYS SYS SYS SYS X SYS",
        "mlx5_0 PIX PIX PXB NODE SYS X",
    ]);
    let t = lower(core::slice::from_ref(&s), RateModel::Effective).unwrap();
    assert_eq!(t.matrix(HostId(0)), s.matrix.unwrap());
    // The tree itself, without the stated classes, has the same ones.
    let bare = Topology { hosts: [Snapshot::new(Source::Live)].into(), ..t };
    check(&bare, "GPU0", "GPU1", "PIX", "12");
    check(&bare, "GPU0", "GPU2", "PXB", "12");
    check(&bare, "GPU0", "GPU3", "NODE", "12");
    check(&bare, "GPU0", "GPU4", "SYS", "6");
    check(&bare, "GPU1", "NIC0", "PIX", "12");
}

#[test]
fn many_links_in_a_row_mean_switches() {
    let t = lower(
        &[matrix_host(&["GPU0 X NV12 NV12", "GPU1 NV12 X NV12", "GPU2 NV12 NV12 X"])],
        RateModel::Effective,
    )
    .unwrap();
    assert!(t.find("nvs0").is_some());
    check(&t, "GPU0", "GPU1", "NV12", "240");
    let t = lower(
        &[matrix_host(&["GPU0 X NV4 NV4", "GPU1 NV4 X NV4", "GPU2 NV4 NV4 X"])],
        RateModel::Effective,
    )
    .unwrap();
    assert!(t.find("nvs0").is_none());
    check(&t, "GPU0", "GPU1", "NV4", "80");
}

#[test]
fn a_missing_cell_is_the_worst_reachable() {
    let mut s = matrix_host(&["GPU0 X PIX", "GPU1 PIX X"]);
    s.matrix.as_mut().unwrap().cells =
        alloc::vec![alloc::vec![None, None], alloc::vec![None, None]];
    let t = lower(&[s], RateModel::Effective).unwrap();
    assert!(t.assumptions().iter().any(|a| a == "GPU0 to GPU1: not told, SYS assumed"));
    let (a, b) = (t.find("GPU0").unwrap(), t.find("GPU1").unwrap());
    assert_eq!(t.path(a, b).class, PathType::Sys);
}

proptest! {
    #[test]
    fn order_of_discovery_does_not_matter(seed: u64) {
        let reference = lower(&[host()], RateModel::Effective).unwrap();
        let mut s = host();
        shuffle(&mut s.pci_devices, seed);
        shuffle(&mut s.gpus, seed / 7);
        shuffle(&mut s.numa_nodes, seed / 11);
        let t = lower(&[s], RateModel::Effective).unwrap();
        prop_assert_eq!(t.fingerprint(), reference.fingerprint());
    }
}

fn shuffle<T>(items: &mut [T], mut seed: u64) {
    for end in (1..items.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(end, usize::try_from(seed >> 33).unwrap() % (end + 1));
    }
}

/// Two hosts at leaf-1 and one at leaf-2, NICs 0 to 2 each, below one spine; and a leaf that no host of these is at.
const TREE: &str = r#"
Switch 8 "S-01" # "leaf-1"
[1] "H-a0"[1] # "a mlx5_0" lid 1 4xHDR
[2] "H-a1"[1] # "a mlx5_1" lid 1 4xHDR
[3] "H-b0"[1] # "b mlx5_0" lid 1 2xHDR
[7] "S-03"[1] # "spine-1" lid 1 4xHDR
[8] "S-03"[2] # "spine-1" lid 1 4xHDR
Switch 8 "S-02" # "leaf-2"
[1] "H-c0"[1] # "c mlx5_0" lid 1 4xHDR
[7] "S-03"[3] # "spine-1" lid 1 4xHDR
Switch 8 "S-03" # "spine-1"
[1] "S-01"[7] # "leaf-1" lid 1 4xHDR
[2] "S-01"[8] # "leaf-1" lid 1 4xHDR
[3] "S-02"[7] # "leaf-2" lid 1 4xHDR
[4] "S-04"[1] # "leaf-3" lid 1 4xHDR
Switch 8 "S-04" # "leaf-3"
[1] "S-03"[4] # "spine-1" lid 1 4xHDR
[2] "H-d0"[1] # "d mlx5_0" lid 1 4xHDR
"#;

/// Hosts of a fabric, by name, each the same machine.
fn in_fabric(
    form: crate::fabric::FabricForm,
    text: &str,
    names: &[&str],
) -> Result<Topology, LowerError> {
    let fabric = crate::fabric::read(form, text).unwrap();
    let place = |name: &&str| fabric.hosts.iter().position(|host| host.name == **name).unwrap();
    let places: Vec<usize> = names.iter().map(place).collect();
    let hosts: Vec<Snapshot> = names.iter().map(|_| host()).collect();
    lower_in(&hosts, RateModel::Effective, Some(Network { fabric: &fabric, hosts: &places }))
}

/// Rates of the links from one vertex to another, GB/s.
fn rates_between(t: &Topology, from: &str, to: &str) -> Vec<String> {
    let [from, to] = [from, to].map(|name| t.find(name).unwrap());
    t.links_between(from, to).iter().map(|l| t.link(*l).bandwidth.display_gbps()).collect()
}

#[test]
fn switches_above_used_leaves_are_vertices() {
    use crate::fabric::FabricForm::Infiniband;
    let t = in_fabric(Infiniband, TREE, &["a", "b", "c"]).unwrap();
    for (from, to, rates) in [
        ("0:mlx5_0", "fabric:leaf-1", &["25"][..]),
        // Half the lanes at the switch.
        ("1:mlx5_0", "fabric:leaf-1", &["12.5"]),
        ("2:mlx5_0", "fabric:leaf-2", &["25"]),
        // Two cables.
        ("fabric:leaf-1", "fabric:spine-1", &["50"]),
        ("fabric:spine-1", "fabric:leaf-2", &["25"]),
    ] {
        assert_eq!(rates_between(&t, from, to), rates, "{from} to {to}");
        assert_eq!(rates_between(&t, to, from), rates, "{to} to {from}");
    }
    assert!(t.find("fabric").is_none() && t.find("fabric:leaf-3").is_none());
    check(&t, "0:GPU0", "2:GPU0", "NET", "24");
    let told = t.assumptions().join("\n");
    for part in [
        "host 0: mlx5_2: not in the network's file",
        "host 1: mlx5_0: 200000 Mbit/s by the host and 100000 by the network's file, the lesser taken",
        "as adaptive routing does",
    ] {
        assert!(told.contains(part), "{told}");
    }
    // Of hosts at one leaf, nothing above it is of use.
    let t = in_fabric(Infiniband, TREE, &["a", "b"]).unwrap();
    assert!(t.find("fabric:leaf-1").is_some() && t.find("fabric:spine-1").is_none());
}

#[test]
fn a_network_without_rates_tells_what_is_joined() {
    use crate::fabric::FabricForm::SlurmConf;
    let tree = "SwitchName=s1 Nodes=a,b\nSwitchName=s2 Nodes=c\nSwitchName=top Switches=s[1-2]\n";
    let t = in_fabric(SlurmConf, tree, &["a", "c"]).unwrap();
    assert_eq!(rates_between(&t, "0:mlx5_2", "fabric"), ["25"]);
    assert!(t.assumptions().iter().any(|told| told.contains("tells no rates")));
    let apart = "SwitchName=s1 Nodes=a,b\nSwitchName=s2 Nodes=c\n";
    let t = in_fabric(SlurmConf, apart, &["a", "c"]).unwrap();
    assert_eq!(rates_between(&t, "0:mlx5_2", "fabric:s1"), ["25"]);
    assert_eq!(rates_between(&t, "1:mlx5_2", "fabric:s2"), ["25"]);
}

#[test]
fn ports_of_other_names_are_taken_in_order_or_refused() {
    use crate::fabric::FabricForm::Infiniband;
    let port =
        |number: usize| format!("[{number}] \"H-{number}\"[1] # \"a HCA-{number}\" lid 1 4xHDR\n");
    let leaf = |name: usize, ports: &[usize]| {
        let ports: String = ports.iter().map(|number| port(*number)).collect();
        format!("Switch 8 \"S-0{name}\" # \"leaf-{name}\"\n{ports}")
    };
    let t = in_fabric(Infiniband, &(leaf(1, &[1, 2]) + &leaf(2, &[3])), &["a"]).unwrap();
    assert_eq!(rates_between(&t, "mlx5_2", "fabric:leaf-2"), ["25"]);
    assert!(t.assumptions().iter().any(|told| told.contains("mlx5_2: taken as HCA-3")));
    let error = in_fabric(Infiniband, &(leaf(1, &[1]) + &leaf(2, &[3])), &["a"]).unwrap_err();
    assert!(error.reason.contains("which NIC is at which switch"), "{error}");
    // At one switch it does not matter which is which.
    let t = in_fabric(Infiniband, &leaf(1, &[1, 2, 3]), &["a"]).unwrap();
    assert_eq!(rates_between(&t, "mlx5_2", "fabric:leaf-1"), ["25"]);
    // Fewer cables than NICs carry less than NICs could.
    in_fabric(Infiniband, &leaf(1, &[1, 2]), &["a"]).unwrap_err();
}
