//! One healthy host, and what is found when one thing about it is changed. Tests of a row of the list of field cases are
//! named after it.

use alloc::vec::Vec;

use super::*;
use crate::snapshot::*;
use crate::{Bandwidth, BusId, CpuList, GpuIndex};

fn id(text: &str) -> BusId {
    text.parse().unwrap()
}

/// One socket of two; a switch with two GPUs and a NIC; NVLinks between the GPUs.
fn healthy() -> Snapshot {
    let mut s = Snapshot::new(Source::Live);
    s.host.hypervisor = Some(false);
    s.host.iommu = Some(false);
    s.host.gpudirect = Some(GpuDirectFacts {
        peermem_loaded: Some(true),
        peermem_registered: Some(true),
        dma_buf_driver: Some(false),
        dma_buf_kernel: Some(true),
        p2pdma: None,
    });
    let node = |id, cpus: &str| NumaNode { cpus: cpus.parse().ok(), ..NumaNode::new(id) };
    s.numa_nodes = [node(0, "0-3"), node(1, "4-7")].into();
    let best = Some(PcieLink { mtps: 16000, width: 16 });
    let link = PcieLinkFacts {
        trained: best,
        device_capable: best,
        slot_capable: best,
        trained_total: None,
    };
    let off = Some(Acs { supported: 0x1f, enabled: 0 });
    let tree: [(&str, Option<&str>, PciKind); 8] = [
        ("00:01.0", None, PciKind::RootPort),
        ("01:00.0", Some("00:01.0"), PciKind::Switch),
        ("02:00.0", Some("01:00.0"), PciKind::SwitchPort),
        ("02:01.0", Some("01:00.0"), PciKind::SwitchPort),
        ("02:02.0", Some("01:00.0"), PciKind::SwitchPort),
        ("03:00.0", Some("02:00.0"), PciKind::Gpu),
        ("04:00.0", Some("02:01.0"), PciKind::Gpu),
        ("05:00.0", Some("02:02.0"), PciKind::Nic),
    ];
    for (at, parent, kind) in tree {
        let bridge = matches!(kind, PciKind::RootPort | PciKind::SwitchPort);
        s.pci_devices.push(PciDevice {
            parent: parent.map(id),
            host_bridge: parent.is_none().then(|| "pci0000:00".into()),
            vendor: Some(if kind == PciKind::Nic { 0x15b3 } else { 0x10de }),
            device: Some(1),
            numa_node: Some(0),
            link: if bridge { PcieLinkFacts::default() } else { link },
            acs: off.filter(|_| bridge),
            ..PciDevice::new(id(at), kind)
        });
    }
    s.gpus = [gpu(0, "03:00.0", "04:00.0"), gpu(1, "04:00.0", "03:00.0")].into();
    s.nics.push(nic("mlx5_0", "05:00.0"));
    s
}

fn gpu(index: u32, at: &str, peer: &str) -> Gpu {
    let ok = Some(PeerStatus::Ok);
    Gpu {
        bus_id: Some(id(at)),
        compute_capability: Some(80),
        numa_node: Some(0),
        cpus: Some("0-3".parse().unwrap()),
        links: [links(LinkPeer::Gpu(id(peer)), 4)].into(),
        inactive_links: Some(0),
        peers: [PeerAccess {
            peer: GpuIndex(1 - index),
            read: ok,
            write: ok,
            nvlink: ok,
            atomics: ok,
            pcie: ok,
        }]
        .into(),
        ..Gpu::new(GpuIndex(index))
    }
}

fn links(peer: LinkPeer, count: u32) -> GpuLinks {
    let rate = Some(Bandwidth::from_mbps(25_000));
    GpuLinks { kind: GpuLinkKind::NvLink, peer, count, rate }
}

fn nic(name: &str, at: &str) -> Nic {
    Nic {
        bus_id: Some(id(at)),
        numa_node: Some(0),
        port: Some(1),
        mbit: Some(200_000),
        link_layer: Some(LinkLayer::Infiniband),
        up: Some(true),
        role: NicRole::Fabric,
        counters: Some(PortCounters { link_downed: Some(0), ..PortCounters::default() }),
        ..Nic::new(name)
    }
}

/// Four GPUs at switches of this host, as on a board with NVSwitches; access between all.
fn switched(s: &mut Snapshot) {
    s.pci_devices.push(PciDevice {
        host_bridge: Some("pci0000:00".into()),
        numa_node: Some(0),
        ..PciDevice::new(id("00:05.0"), PciKind::NvSwitch)
    });
    let ok = Some(PeerStatus::Ok);
    s.gpus = (0..4)
        .map(|index| Gpu {
            bus_id: None,
            links: [links(LinkPeer::Switch(Some(id("00:05.0"))), 18)].into(),
            peers: (0..4)
                .filter(|peer| *peer != index)
                .map(|peer| PeerAccess {
                    peer: GpuIndex(peer),
                    read: ok,
                    write: ok,
                    nvlink: ok,
                    atomics: ok,
                    pcie: None,
                })
                .collect(),
            index: GpuIndex(index),
            ..gpu(0, "03:00.0", "04:00.0")
        })
        .collect();
}

/// After `change`, these findings but for mere advice, these rules that lack a fact, and this verdict.
#[track_caller]
fn check(
    change: impl FnOnce(&mut Snapshot),
    expect: &[(&str, &str)],
    unchecked: &[&str],
    status: Status,
) {
    let mut snapshot = healthy();
    change(&mut snapshot);
    let found = judge(&snapshot);
    let findings: Vec<(&str, &str)> =
        found.findings.iter().map(|f| (f.code.as_str(), f.component.as_str())).collect();
    assert_eq!(findings, expect, "{:#?}", found.findings);
    let codes: Vec<&str> = found.unchecked.iter().map(|u| u.code.as_str()).collect();
    assert_eq!(codes, unchecked, "{:#?}", found.unchecked);
    assert_eq!(found.status(), status);
}

#[track_caller]
fn finds(change: impl FnOnce(&mut Snapshot), code: &str, component: &str, status: Status) {
    check(change, &[(code, component)], &[], status);
}

#[track_caller]
fn silent(change: impl FnOnce(&mut Snapshot)) {
    check(change, &[], &[], Status::Ok);
}

/// Every finding's words, for what they must say.
#[track_caller]
fn evidence(change: impl FnOnce(&mut Snapshot), words: &[&str]) {
    let mut snapshot = healthy();
    change(&mut snapshot);
    let found = examine(&snapshot);
    let text: Vec<String> =
        found.iter().map(|f| alloc::format!("{} {} {}", f.component, f.evidence, f.fix)).collect();
    for word in words {
        assert!(text.iter().any(|text| text.contains(word)), "no '{word}' in {text:#?}");
    }
}

fn device<'a>(s: &'a mut Snapshot, at: &str) -> &'a mut PciDevice {
    let at = id(at);
    s.pci_devices.iter_mut().find(|device| device.bus_id == at).unwrap()
}

#[test]
fn a_healthy_host_has_none() {
    silent(|_| {});
    silent(switched);
}

#[test]
fn a_host_without_gpus_is_unknown() {
    check(|s| s.gpus.clear(), &[], &["no-gpu"], Status::Unknown);
}

#[test]
fn what_could_not_be_read_is_never_ok() {
    let fault = Fault::new("nvml", "nvmlInit", FaultKind::TimedOut, "timed out");
    check(|s| s.faults.push(fault), &[], &[], Status::Unknown);
}

#[test]
fn what_a_format_cannot_tell_is_listed_and_no_failing() {
    let mut snapshot = healthy();
    snapshot.source = Source::NcclXml;
    snapshot.host = HostFacts::default();
    snapshot.pci_devices.iter_mut().for_each(|device| device.acs = None);
    let found = judge(&snapshot);
    assert_eq!((found.status(), found.unchecked.len()), (Status::Ok, 0));
    assert!(found.not_told.contains(&"peer access"));
}

#[test]
fn each_fact_a_rule_needs_is_missed() {
    let gpu = |change: fn(&mut Gpu)| move |s: &mut Snapshot| change(&mut s.gpus[0]);
    let nic = |change: fn(&mut Nic)| move |s: &mut Snapshot| change(&mut s.nics[0]);
    let host = |change: fn(&mut HostFacts)| move |s: &mut Snapshot| change(&mut s.host);
    let acs = |s: &mut Snapshot| device(s, "02:00.0").acs = None;
    check(acs, &[], &["acs-redirects-peer-traffic"], Status::Unknown);
    check(host(|host| host.iommu = None), &[], &["iommu-translates"], Status::Unknown);
    check(host(|host| host.iommu = Some(true)), &[], &["iommu-translates"], Status::Unknown);
    check(host(|host| host.gpudirect = None), &[], &["gpudirect-not-possible"], Status::Unknown);
    check(gpu(|gpu| gpu.inactive_links = None), &[], &["gpu-links-inactive"], Status::Unknown);
    check(gpu(|gpu| gpu.peers.clear()), &[], &["peer-access-denied"], Status::Unknown);
    check(nic(|nic| nic.up = None), &[], &["nic-port-down"], Status::Unknown);
    check(nic(|nic| nic.mbit = None), &[], &["nic-rate-below-siblings"], Status::Unknown);
    check(nic(|nic| nic.counters = None), &[], &["nic-port-flapping"], Status::Unknown);
    let roce = nic(|nic| nic.link_layer = Some(LinkLayer::Ethernet));
    check(roce, &[], &["roce-gid-missing"], Status::Unknown);
    let hopper = |s: &mut Snapshot| {
        switched(s);
        s.gpus[0].compute_capability = Some(90);
    };
    check(hopper, &[], &["fabric-not-registered"], Status::Unknown);
}

#[test]
fn gpu_links() {
    let one_way = |s: &mut Snapshot| s.gpus[1].links[0].count = 3;
    let expect = [
        ("gpu-links-asymmetric", "0000:03:00.0 to 0000:04:00.0"),
        ("gpu-links-fewer-than-siblings", "GPU1 (0000:04:00.0)"),
    ];
    check(one_way, &expect, &[], Status::Degraded);
    // A single card beside a bridged pair has lost nothing.
    silent(|s| {
        let mut single = gpu(0, "03:00.0", "04:00.0");
        single.index = GpuIndex(2);
        single.bus_id = None;
        single.links.clear();
        single.inactive_links = Some(12);
        single.peers.clear();
        s.gpus.push(single);
        for index in 0..3_u32 {
            let ok = Some(PeerStatus::Ok);
            let access = |peer| PeerAccess {
                peer: GpuIndex(peer),
                read: ok,
                write: ok,
                nvlink: None,
                atomics: None,
                pcie: ok,
            };
            let peers = (0..3).filter(|peer| *peer != index).map(access).collect();
            s.gpus[index as usize].peers = peers;
        }
    });
    // Cards with no bridge on them at all expect none.
    silent(|s| {
        for gpu in &mut s.gpus {
            gpu.links.clear();
            gpu.inactive_links = Some(12);
        }
    });
    let errors = LinkErrors { link: 3, replay: 2, recovery: 1, crc: 0 };
    finds(
        |s| s.gpus[0].link_errors.push(errors),
        "gpu-link-errors",
        "GPU0 (0000:03:00.0)",
        Status::Ok,
    );
}

/// All links of one GPU are down while its siblings' are up (leptonai/gpud#1085).
#[test]
fn field_case_034_inactive_links_on_one_gpu() {
    let down = |s: &mut Snapshot| {
        switched(s);
        s.gpus[2].links.clear();
        s.gpus[2].inactive_links = Some(18);
    };
    let expect = [("gpu-links-inactive", "GPU2"), ("gpu-links-fewer-than-siblings", "GPU2")];
    check(down, &expect, &[], Status::Critical);
    evidence(
        down,
        &["18 links inactive, 0 active", "0 active links, its siblings on this host have 18"],
    );
    let some = |s: &mut Snapshot| {
        switched(s);
        s.gpus[2].links[0].count = 16;
        s.gpus[2].inactive_links = Some(2);
    };
    let expect = [("gpu-links-fewer-than-siblings", "GPU2"), ("gpu-links-inactive", "GPU2")];
    check(some, &expect, &[], Status::Degraded);
}

/// An enum mixed up turned every xGMI link into PCIe (ROCm/rocm-systems#5297).
#[test]
fn field_case_013_mi300_without_xgmi() {
    let amd = |links: bool| {
        move |s: &mut Snapshot| {
            for device in s.pci_devices.iter_mut().filter(|d| d.kind == PciKind::Gpu) {
                device.vendor = Some(0x1002);
            }
            for gpu in &mut s.gpus {
                gpu.gfx = Some("gfx942".into());
                gpu.inactive_links = None;
                gpu.peers.clear();
                gpu.compute_capability = None;
                if !links {
                    gpu.links.clear();
                }
            }
        }
    };
    silent(amd(true));
    let both = [("gpu-no-xgmi", "GPU0 (0000:03:00.0)"), ("gpu-no-xgmi", "GPU1 (0000:04:00.0)")];
    check(amd(false), &both, &[], Status::Critical);
}

/// Idle GPUs are shown at Gen1, which is not what their links can do (open-mpi/hwloc#653).
#[test]
fn field_case_008_idle_down_shift_is_no_degradation() {
    let idle = Some(PcieLink { mtps: 2500, width: 16 });
    silent(|s| device(s, "03:00.0").link.trained = idle);
    // The kernel puts other devices to sleep too, and says so.
    silent(|s| {
        device(s, "05:00.0").link.trained = idle;
        device(s, "05:00.0").suspended = Some(true);
    });
    let slow = |s: &mut Snapshot| device(s, "05:00.0").link.trained = idle;
    finds(slow, "nic-pcie-rate-reduced", "0000:05:00.0", Status::Degraded);
    let switch = |s: &mut Snapshot| device(s, "01:00.0").link.trained = idle;
    finds(switch, "pcie-rate-reduced", "0000:01:00.0", Status::Degraded);
}

/// One host of many has a NIC at half its width, found by hand after days (NVIDIA/nccl-tests#106).
#[test]
fn field_case_037_nic_at_half_width() {
    let half = |s: &mut Snapshot| {
        let narrow = Some(PcieLink { mtps: 16000, width: 8 });
        device(s, "05:00.0").link.trained = narrow;
    };
    finds(half, "pcie-width-reduced", "0000:05:00.0", Status::Degraded);
    evidence(half, &["trained x8, both ends can do x16"]);
    let slot = |s: &mut Snapshot| {
        let narrow = Some(PcieLink { mtps: 16000, width: 8 });
        device(s, "05:00.0").link.trained = narrow;
        device(s, "05:00.0").link.slot_capable = narrow;
    };
    finds(slot, "pcie-slot-narrower", "0000:05:00.0", Status::Ok);
}

fn with_second_nic(s: &mut Snapshot) -> &mut Nic {
    let mut function = device(s, "05:00.0").clone();
    function.bus_id = id("05:00.1");
    s.pci_devices.push(function);
    s.nics.push(nic("mlx5_1", "05:00.1"));
    &mut s.nics[1]
}

/// The same box with one bridge level more on one host: the class of a path says so (NVIDIA/nccl#820).
#[test]
fn field_case_003_a_bridge_too_many_on_one_host() {
    let (usual, mut odd) = (healthy(), healthy());
    for (at, parent, kind) in
        [("06:00.0", "02:02.0", PciKind::Switch), ("07:00.0", "06:00.0", PciKind::SwitchPort)]
    {
        let bridge = PciDevice { parent: Some(id(parent)), ..PciDevice::new(id(at), kind) };
        odd.pci_devices.push(bridge);
    }
    device(&mut odd, "05:00.0").parent = Some(id("07:00.0"));
    let found = differences(&usual, &odd);
    let paths: Vec<&str> =
        found.iter().filter(|d| d.what == "path").map(|d| d.component.as_str()).collect();
    assert_eq!(paths, ["GPU0 to NIC0", "GPU1 to NIC0"], "{found:#?}");
    assert!(found.iter().all(|d| d.severity == Severity::Degraded));
}

/// Ports that go down again and again end jobs with error 12 (NVIDIA/nccl#905).
#[test]
fn field_case_038_flapping_port() {
    let downed = |count| {
        move |s: &mut Snapshot| {
            with_second_nic(s).counters.as_mut().unwrap().link_downed = Some(count);
        }
    };
    silent(downed(0));
    finds(downed(1), "nic-port-was-down", "mlx5_1", Status::Ok);
    finds(downed(31), "nic-port-flapping", "mlx5_1", Status::Degraded);
    // A counter that has grown since the profile says it without any sibling.
    let (profile, mut now) = (healthy(), healthy());
    now.nics[0].counters.as_mut().unwrap().link_downed = Some(2);
    let found = judge_against(&now, &profile);
    let codes: Vec<&str> = found.findings.iter().map(|f| f.code.as_str()).collect();
    assert_eq!(codes, ["nic-port-flapping", "nic-port-was-down"]);
    assert!(found.findings[0].evidence.contains("2 times since"));
}

/// Operators ask for port down, rate and errors (NVIDIA/NVSentinel#642).
#[test]
fn field_case_039_port_down_rate_and_errors() {
    let down = |s: &mut Snapshot| {
        let nic = with_second_nic(s);
        (nic.up, nic.mbit, nic.phys_state) = (Some(false), None, Some("Polling".into()));
    };
    finds(down, "nic-port-down", "mlx5_1", Status::Degraded);
    evidence(down, &["link Polling"]);
    let slow = |s: &mut Snapshot| {
        s.nics[0].lanes = Some(4);
        let nic = with_second_nic(s);
        (nic.mbit, nic.lanes) = (Some(100_000), Some(2));
    };
    finds(slow, "nic-rate-below-siblings", "mlx5_1", Status::Degraded);
    evidence(slow, &["100 Gbit/s on 2 of 4 lanes, its siblings have 200"]);
    let errors = |s: &mut Snapshot| {
        s.nics[0].counters.as_mut().unwrap().symbol_errors = Some(7);
    };
    finds(errors, "nic-port-errors", "mlx5_0", Status::Ok);
    // What is not for traffic between GPUs may be down.
    silent(|s| {
        let nic = with_second_nic(s);
        (nic.up, nic.role) = (Some(false), NicRole::Other);
    });
}

/// AMD processors need relaxed ordering for the NICs' full rate (openucx/ucx#10955).
#[test]
fn field_case_041_relaxed_ordering() {
    let amd = |s: &mut Snapshot| {
        s.numa_nodes[0].cpu.vendor = Some("AuthenticAMD".into());
        s.numa_nodes[0].cpu.family = Some(25);
    };
    finds(amd, "relaxed-ordering-advised", "host", Status::Ok);
    evidence(amd, &["family 25", "NCCL_IB_PCI_RELAXED_ORDERING"]);
}

/// A golden profile holds classes, widths and rails, not the text of a tree (Azure's health checks).
#[test]
fn field_case_043_golden_profile() {
    let found = |change: fn(&mut Snapshot)| {
        let mut now = healthy();
        change(&mut now);
        let found = judge_against(&now, &healthy());
        let of_profile = found.findings.into_iter().filter(|f| f.code == "differs-from-profile");
        of_profile.map(|f| alloc::format!("{}: {}", f.component, f.evidence)).collect::<Vec<_>>()
    };
    assert_eq!(found(|_| {}), [""; 0]);
    // What may differ: identifiers, counters, faults.
    assert_eq!(
        found(|s| {
            s.gpus[0].uuid = Some("GPU-other".into());
            s.nics[0].counters = None;
            s.faults.push(Fault::new("a", "b", FaultKind::Absent, "c"));
        }),
        [""; 0]
    );
    assert_eq!(
        found(|s| s.nics[0].mbit = Some(100_000)),
        ["mlx5_0: Mbit/s: 100000, the profile has 200000"]
    );
    assert_eq!(
        found(|s| device(s, "05:00.0").link.trained = Some(PcieLink { mtps: 16000, width: 8 })),
        ["mlx5_0: PCIe link: 16000 MT/s x8, the profile has 16000 MT/s x16"]
    );
    let gone = found(|s| drop(s.gpus.pop()));
    assert!(gone[0].starts_with("GPU1: presence: -"), "{gone:?}");
    let moved = found(|s| device(s, "05:00.0").parent = Some(id("00:01.0")));
    assert!(
        moved.iter().any(|text| text.contains("path: PXB") || text.contains("path: P")),
        "{moved:?}"
    );
}

/// Access control and translation between GPUs and NICs (NVIDIA/nccl#2079): which bridge, which bits, what to type.
#[test]
fn field_case_054_acs_and_iommu() {
    let on = |s: &mut Snapshot| {
        device(s, "02:00.0").acs = Some(Acs { supported: 0x1f, enabled: 0x1d });
    };
    finds(on, "acs-redirects-peer-traffic", "0000:02:00.0", Status::Degraded);
    evidence(on, &["ACSCtl 0x001d", "GPU0 and GPU1", "setpci -s BUSID ECAP_ACS+0x6.w=0000"]);
    // Validation of the source alone redirects nothing, and a root port above both is not between them.
    silent(|s| device(s, "02:00.0").acs = Some(Acs { supported: 0x1f, enabled: 1 }));
    silent(|s| device(s, "00:01.0").acs = Some(Acs { supported: 0x1f, enabled: 0x1d }));

    let translated = |s: &mut Snapshot| {
        s.host.iommu = Some(true);
        s.host.kernel_flags = Some(["intel_iommu=on".into()].into());
        for device in &mut s.pci_devices {
            device.iommu = Some(IommuGroup { group: 1, domain: Some(IommuDomain::DmaFq) });
        }
    };
    finds(translated, "iommu-translates", "3 devices", Status::Degraded);
    evidence(translated, &["intel_iommu=on", "iommu=pt"]);
    silent(|s| {
        translated(s);
        for device in &mut s.pci_devices {
            device.iommu = Some(IommuGroup { group: 1, domain: Some(IommuDomain::Identity) });
        }
    });
    // In a virtual machine both are what isolates it.
    silent(|s| {
        on(s);
        translated(s);
        s.host.hypervisor = Some(true);
    });
}

/// The same on the way between a GPU and a NIC (NVIDIA/nccl#1737).
#[test]
fn field_case_055_acs_between_gpu_and_nic() {
    let on = |s: &mut Snapshot| {
        device(s, "02:02.0").acs = Some(Acs { supported: 0x1f, enabled: 0x1d });
    };
    finds(on, "acs-redirects-peer-traffic", "0000:02:02.0", Status::Degraded);
    evidence(on, &["GPU0 and mlx5_0"]);
}

fn kernel(change: impl FnOnce(&mut GpuDirectFacts)) -> impl FnOnce(&mut Snapshot) {
    move |s| change(s.host.gpudirect.as_mut().unwrap())
}

/// The module is loaded, and GPUDirect is off all the same; nothing says why (NVIDIA/nccl#1939).
#[test]
fn field_case_056_peermem_loaded_and_not_registered() {
    let loaded = || kernel(|facts| facts.peermem_registered = Some(false));
    finds(loaded(), "gpudirect-not-possible", "mlx5_0", Status::Degraded);
    evidence(loaded(), &["loaded and not registered", "not of the kind that exports DMA-BUF"]);
    silent(kernel(|facts| {
        facts.peermem_registered = Some(false);
        facts.dma_buf_driver = Some(true);
    }));
    let old = || {
        kernel(|facts| {
            (facts.peermem_loaded, facts.peermem_registered) = (Some(false), Some(false));
            (facts.dma_buf_driver, facts.dma_buf_kernel) = (Some(true), Some(false));
        })
    };
    evidence(old(), &["no peer memory module is loaded", "too old for DMA-BUF"]);
}

/// A kernel built without peer-to-peer DMA (siderolabs/pkgs#1356).
#[test]
fn field_case_058_kernel_without_p2pdma() {
    let without = || {
        kernel(|facts| {
            facts.peermem_registered = Some(false);
            facts.dma_buf_driver = Some(true);
            facts.p2pdma = Some(false);
        })
    };
    finds(without(), "gpudirect-not-possible", "mlx5_0", Status::Degraded);
    evidence(without(), &["CONFIG_PCI_P2PDMA"]);
}

/// Logs do not say which way GPUDirect takes; here each pair has one (NVIDIA/nccl-tests#245).
#[test]
fn field_case_059_mode_of_each_pair() {
    let mode = |change: fn(&mut Snapshot)| {
        let mut s = healthy();
        change(&mut s);
        gpudirect(&s, &s.gpus[0], &s.nics[0])
    };
    assert_eq!(mode(|_| {}), GpuDirect::Open(GpuDirectPath::Peermem));
    let dma_buf = mode(|s| {
        let facts = s.host.gpudirect.as_mut().unwrap();
        (facts.peermem_registered, facts.dma_buf_driver) = (Some(false), Some(true));
    });
    assert_eq!(dma_buf, GpuDirect::Open(GpuDirectPath::DmaBuf));
    assert!(matches!(mode(|s| s.nics[0].port = None), GpuDirect::Closed(_)));
    let stated = mode(|s| {
        s.host.gpudirect = None;
        (s.gpus[0].gdr, s.nics[0].gdr) = (Some(true), Some(true));
    });
    assert_eq!(stated, GpuDirect::Open(GpuDirectPath::Unnamed));
    assert!(matches!(mode(|s| s.host.gpudirect = None), GpuDirect::Unknown(_)));
}

/// NVLinks are there and the driver denies access (NVIDIA/nccl#2329): which pair, and why.
#[test]
fn field_case_033_peer_access_denied() {
    let denied = |status: PeerStatus| {
        move |s: &mut Snapshot| {
            s.gpus[0].peers[0].read = Some(status);
            s.gpus[1].peers[0].read = Some(status);
        }
    };
    let chipset = denied(PeerStatus::ChipsetNotSupported);
    finds(chipset, "peer-access-denied", "GPU0-GPU1", Status::Degraded);
    evidence(chipset, &["the chipset does not support it: GPU0-GPU1"]);
    let nvlink = |s: &mut Snapshot| s.gpus[0].peers[0].nvlink = Some(PeerStatus::NotSupported);
    finds(nvlink, "peer-access-denied", "GPU0-GPU1", Status::Degraded);
    // Without links between them, what the machine was built to be is no degradation.
    let apart = |status: PeerStatus| {
        move |s: &mut Snapshot| {
            s.gpus.iter_mut().for_each(|gpu| gpu.links.clear());
            denied(status)(s);
        }
    };
    let topology = apart(PeerStatus::TopologyNotSupported);
    finds(topology, "peer-access-denied", "GPU0-GPU1", Status::Ok);
    let option = apart(PeerStatus::DisabledByRegkey);
    finds(option, "peer-access-denied", "GPU0-GPU1", Status::Degraded);
}

/// A partitioned GPU has no peers, and says so once (NVIDIA/k8s-device-plugin#296).
#[test]
fn field_case_065_mig_has_no_peers() {
    let mig = |s: &mut Snapshot| {
        s.gpus[0].mig = Some(true);
        for gpu in &mut s.gpus {
            gpu.peers[0].read = Some(PeerStatus::GpuNotSupported);
        }
    };
    finds(mig, "mig-no-peer-access", "GPU0 (0000:03:00.0)", Status::Ok);
}

/// Nodes of memory alone, as on Grace: numactl fails there (vllm#39361).
#[test]
fn field_case_047_nodes_without_cpus() {
    let bare = |s: &mut Snapshot| {
        let node = NumaNode { cpus: Some(CpuList::default()), ..NumaNode::new(2) };
        s.numa_nodes.push(node);
    };
    finds(bare, "numa-nodes-of-memory-alone", "NUMA nodes 2", Status::Ok);
}

#[test]
fn numa() {
    let unknown = |s: &mut Snapshot| {
        s.gpus[0].numa_node = None;
        s.pci_devices.iter_mut().for_each(|device| device.numa_node = None);
    };
    finds(unknown, "numa-node-unknown", "GPU0 (0000:03:00.0)", Status::Degraded);
    let limits = |cpus: &str| ProcessLimits { cpus: cpus.parse().ok(), ..ProcessLimits::default() };
    let pinned = |s: &mut Snapshot| s.host.limits = Some(limits("4-7"));
    let both = [
        ("near-cpus-not-allowed", "GPU0 (0000:03:00.0)"),
        ("near-cpus-not-allowed", "GPU1 (0000:04:00.0)"),
    ];
    check(pinned, &both, &[], Status::Degraded);
    silent(|s| s.host.limits = Some(limits("3-7")));
}

/// The front-end NIC is no nearer or farther than the others; its role tells (meta-pytorch/monarch#1832).
#[test]
fn field_case_052_doubtful_role() {
    let doubtful = |s: &mut Snapshot| {
        let nic = with_second_nic(s);
        nic.role = NicRole::Unknown;
        nic.role_reason = Some("no RDMA".into());
    };
    finds(doubtful, "nic-role-doubtful", "mlx5_1", Status::Ok);
    evidence(doubtful, &["no RDMA", "NCCL_IB_HCA"]);
}

fn gid(index: u32, kind: GidKind, scope: GidScope) -> Gid {
    Gid { index, kind, scope, netdev: Some("eth0".into()) }
}

fn roce(gids: &[(u32, GidKind, GidScope)]) -> impl FnOnce(&mut Snapshot) {
    let gids: Vec<Gid> =
        gids.iter().map(|(index, kind, scope)| gid(*index, *kind, *scope)).collect();
    move |s| {
        s.nics[0].link_layer = Some(LinkLayer::Ethernet);
        s.nics[0].gids = Some(gids);
    }
}

/// Which GID index, and is it the same on every port (NVIDIA/nccl#426).
#[test]
fn field_case_080_gid_tables() {
    use GidKind::{IbOrRoceV1, RoceV2};
    use GidScope::{Global, Ipv4, LinkLocal};
    silent(roce(&[(0, IbOrRoceV1, LinkLocal), (1, RoceV2, LinkLocal), (3, RoceV2, Ipv4)]));
    silent(roce(&[(4, RoceV2, Global)]));
    let lacking = [
        (vec![], "the GID table is empty"),
        (vec![(0, IbOrRoceV1, Ipv4)], "none of RoCE v2"),
        (vec![(0, IbOrRoceV1, LinkLocal), (1, RoceV2, LinkLocal)], "all link-local"),
    ];
    for (gids, words) in lacking {
        finds(roce(&gids), "roce-gid-missing", "mlx5_0", Status::Degraded);
        evidence(roce(&gids), &[words]);
    }
    let second = |index| {
        move |s: &mut Snapshot| {
            roce(&[(3, RoceV2, Ipv4), (5, RoceV2, Global)])(s);
            let nic = with_second_nic(s);
            nic.link_layer = Some(LinkLayer::Ethernet);
            nic.gids = Some([gid(index, RoceV2, Ipv4)].into());
        }
    };
    silent(second(5));
    finds(second(4), "roce-gid-indices-differ", "host", Status::Degraded);
    evidence(second(4), &["mlx5_0 3/5, mlx5_1 4", "NCCL_IB_ADDR_FAMILY"]);
}

/// A bond is one port and has several legs; one queue pair uses one of them (NVIDIA/nccl#1015).
#[test]
fn field_case_081_bonds() {
    let member =
        |name: &str, up| BondMember { name: name.into(), up: Some(up), mbit: Some(100_000) };
    let bond = move |up| {
        move |s: &mut Snapshot| {
            s.nics[0].bond = Some(Bond {
                name: "bond0".into(),
                mode: Some("802.3ad".into()),
                members: [member("eth0", true), member("eth1", up)].into(),
            });
        }
    };
    finds(bond(true), "bond-needs-queue-pairs", "bond0", Status::Ok);
    evidence(bond(true), &["NCCL_IB_QPS_PER_CONNECTION"]);
    let both = [("bond-leg-down", "bond0"), ("bond-needs-queue-pairs", "bond0")];
    check(bond(false), &both, &[], Status::Degraded);
    evidence(bond(false), &["1 of 2 legs down: eth1"]);
}

/// GPUs of a rack: links to switches that the host does not have, registered with a fabric.
fn rack(fabric: impl Fn(u32) -> GpuFabric) -> impl FnOnce(&mut Snapshot) {
    move |s| {
        switched(s);
        s.pci_devices.retain(|device| device.kind != PciKind::NvSwitch);
        for gpu in &mut s.gpus {
            gpu.compute_capability = Some(100);
            gpu.links = [links(LinkPeer::Switch(None), 18)].into();
            gpu.fabric = Some(fabric(gpu.index.0));
        }
    }
}

fn registered(clique: u32) -> GpuFabric {
    GpuFabric {
        state: FabricState::Completed,
        status: Some(0),
        cluster: Some("5a5a".into()),
        clique: Some(clique),
        health_mask: Some(0xaa),
        health: Some(FabricHealth::Healthy),
    }
}

/// 0xaa says of all four conditions that they are false (NVIDIA/nccl#2186).
#[test]
fn field_case_036_health_mask() {
    silent(rack(|_| registered(7)));
    let degraded = || {
        rack(|gpu| GpuFabric {
            health_mask: Some(if gpu == 1 { 0xa9 } else { 0xaa }),
            ..registered(7)
        })
    };
    finds(degraded(), "fabric-not-healthy", "GPU1", Status::Degraded);
    evidence(degraded(), &["degraded bandwidth, health mask 0xa9"]);
    let unhealthy = rack(|gpu| GpuFabric {
        health: Some(if gpu == 2 { FabricHealth::Unhealthy } else { FabricHealth::Healthy }),
        ..registered(7)
    });
    finds(unhealthy, "fabric-not-healthy", "GPU2", Status::Critical);
}

/// Cliques of different racks have the same numbers, and sentinels are none (torchcomms#3704).
#[test]
fn field_case_j1_sentinel_cliques_are_unknown() {
    let sentinel = rack(|_| registered(32_766));
    let all: Vec<_> =
        ["GPU0", "GPU1", "GPU2", "GPU3"].map(|gpu| ("fabric-clique-unknown", gpu)).into();
    check(sentinel, &all, &[], Status::Degraded);
    finds(rack(registered), "fabric-cliques-differ", "host", Status::Degraded);
}

/// A board without a rack fabric reads "completed" too (torchcomms#1315).
#[test]
fn field_case_j2_completed_is_no_fabric() {
    let h100 = GpuFabric {
        cluster: None,
        clique: Some(0),
        health_mask: None,
        health: None,
        ..registered(0)
    };
    assert_eq!(h100.domain(), None);
    silent(|s| {
        switched(s);
        for gpu in &mut s.gpus {
            gpu.compute_capability = Some(90);
            gpu.fabric = Some(h100.clone());
        }
    });
}

/// Unknown never equals unknown (torchcomms#2482).
#[test]
fn field_case_j3_unknown_never_equals_unknown() {
    let unknown = GpuFabric { cluster: None, ..registered(7) };
    let (a, b) = (unknown.domain(), unknown.domain());
    assert!(a.is_none() && b.is_none());
    let same =
        |a: Option<(&str, u32)>, b: Option<(&str, u32)>| a.zip(b).is_some_and(|(a, b)| a == b);
    assert!(!same(a, b));
    assert!(same(registered(7).domain(), registered(7).domain()));
}

/// "unknown" is no domain of its own that others could differ from or join (NeMo-RL#2924).
#[test]
fn field_case_j4_unknown_is_no_domain() {
    let one_unknown =
        rack(|gpu| GpuFabric { cluster: (gpu != 0).then(|| "5a5a".into()), ..registered(7) });
    finds(one_unknown, "fabric-clique-unknown", "GPU0", Status::Degraded);
}

/// What works over NVLink says nothing of the network behind it: each has a verdict of its own (aicr#640).
#[test]
fn field_case_j6_a_verdict_for_each_fabric() {
    let verdicts = |change: &dyn Fn(&mut Snapshot)| -> Vec<(Fabric, usize, Status)> {
        let mut snapshot = healthy();
        rack(|_| registered(7))(&mut snapshot);
        change(&mut snapshot);
        let found = judge(&snapshot);
        fabrics(&snapshot, &found).into_iter().map(|v| (v.fabric, v.ends, v.status)).collect()
    };
    use Fabric::{GpuLinks, Infiniband, NvLinkRack, OtherRdma};
    let rest = [(GpuLinks, 4, Status::Ok), (NvLinkRack, 4, Status::Ok)];
    let with = |network: (Fabric, usize, Status)| [&rest[..], &[network]].concat();
    assert_eq!(verdicts(&|_| {}), with((Infiniband, 1, Status::Ok)));
    let down = |s: &mut Snapshot| s.nics[0].up = Some(false);
    assert_eq!(verdicts(&down), with((Infiniband, 1, Status::Degraded)));
    // A network that nothing is known of does not pass because NVLink does.
    let efa = |s: &mut Snapshot| {
        s.nics[0].link_layer = None;
        s.nics[0].up = None;
    };
    assert_eq!(verdicts(&efa), with((OtherRdma, 1, Status::Unknown)));
    // And the other way round.
    let no_channel = |s: &mut Snapshot| {
        s.host.imex = Some(Imex { channels: Some(0), peers: None, service_masked: None });
    };
    let expect =
        [(GpuLinks, 4, Status::Ok), (NvLinkRack, 4, Status::Degraded), (Infiniband, 1, Status::Ok)];
    assert_eq!(verdicts(&no_channel), expect);
}

/// What memory of other hosts needs on this one (dra-driver-nvidia-gpu#524).
#[test]
fn field_case_j5_imex() {
    let imex = |channels, peers| {
        move |s: &mut Snapshot| {
            rack(|_| registered(7))(s);
            s.host.imex = Some(Imex { channels, peers, service_masked: Some(true) });
        }
    };
    silent(imex(Some(1), Some(18)));
    silent(imex(None, None));
    finds(imex(Some(0), None), "imex-no-channel", "host", Status::Degraded);
    evidence(imex(Some(0), None), &["masked"]);
    finds(imex(Some(1), Some(0)), "imex-no-peers", "host", Status::Degraded);
}

/// "In progress" has three causes (gpu-operator#2511).
#[test]
fn field_case_j7_registration_in_progress() {
    let progress = || rack(|_| GpuFabric { state: FabricState::InProgress, ..registered(7) });
    let all: Vec<_> =
        ["GPU0", "GPU1", "GPU2", "GPU3"].map(|gpu| ("fabric-not-registered", gpu)).into();
    check(progress(), &all, &[], Status::Critical);
    evidence(progress(), &["NVLSM"]);
    let hopper = |s: &mut Snapshot| {
        progress()(s);
        s.gpus.iter_mut().for_each(|gpu| gpu.compute_capability = Some(90));
    };
    evidence(hopper, &["the fabric manager is not running"]);
    let failed =
        rack(|gpu| GpuFabric { status: Some(if gpu == 0 { 999 } else { 0 }), ..registered(7) });
    finds(failed, "fabric-not-registered", "GPU0", Status::Critical);
    // No switch at all: nothing to wait for.
    silent(|s| {
        for gpu in &mut s.gpus {
            gpu.compute_capability = Some(90);
            gpu.fabric = Some(GpuFabric { state: FabricState::NotStarted, ..registered(7) });
        }
    });
}

/// A GPU that fell off the bus is not one that nobody may read.
#[test]
fn field_case_068_lost_is_critical() {
    let lost = Fault::new("nvml", "nvmlDeviceGetUUID() of GPU 2", FaultKind::Lost, "lost: gone");
    let place = "nvmlDeviceGetUUID() of GPU 2";
    finds(|s| s.faults.push(lost), "gpu-lost", place, Status::Critical);
    let denied = Fault::new("nvml", place, FaultKind::Denied, "denied: no");
    check(|s| s.faults.push(denied), &[], &[], Status::Unknown);
}

/// In a flat guest all paths look alike (NVIDIA/nccl#1843).
#[test]
fn field_case_069_flat_guest() {
    let flat = |s: &mut Snapshot| {
        s.host.hypervisor = Some(true);
        for device in &mut s.pci_devices {
            (device.parent, device.host_bridge) = (None, Some("pci0000:00".into()));
        }
    };
    finds(flat, "vm-flat-pci", "host", Status::Ok);
    evidence(flat, &["all 3 GPUs and NICs on the root bus", "NCCL_TOPO_FILE"]);
}

/// Text is a view of one model, and equal facts give equal findings in whatever order they are listed.
#[test]
fn order_does_not_matter() {
    let mut a = healthy();
    with_second_nic(&mut a).up = Some(false);
    device(&mut a, "02:00.0").acs = Some(Acs { supported: 0x1f, enabled: 0x1d });
    let mut b = a.clone();
    b.nics.reverse();
    b.gpus.reverse();
    b.pci_devices.reverse();
    assert_eq!(judge(&a), judge(&b));
}
