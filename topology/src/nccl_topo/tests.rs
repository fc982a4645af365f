use super::*;
use crate::nccl_dialect::scan;
use crate::snapshot::{GpuLinks, NumaNode, PcieLink, PcieLinkFacts, Source};
use crate::{GpuIndex, formats, lower};
use proptest::prelude::*;

fn id(text: &str) -> BusId {
    text.parse().unwrap()
}

/// So many switches, each with a GPU and `nics` NICs of one port below it; every GPU has `links` links to each of `chips`
/// NVSwitches.
fn host(switches: u8, nics: u8, links: u32, chips: u8) -> Snapshot {
    let mut host = Snapshot::new(Source::Live);
    let gen4 = PcieLink { mtps: 16_000, width: 16 };
    let link = PcieLinkFacts {
        trained: Some(PcieLink { mtps: 2_500, width: 16 }),
        device_capable: Some(gen4),
        slot_capable: Some(gen4),
        trained_total: None,
    };
    for node in 0..2 {
        let cpus = CpuList::from_cpus(node * 8..(node + 1) * 8);
        host.numa_nodes.push(NumaNode { cpus: Some(cpus), ..NumaNode::new(node) });
    }
    for switch in 0..switches {
        let at = |bus: u8, device: u8| BusId::new(u32::from(switch), bus, device, 0).unwrap();
        let node = Some(u32::from(switch >= switches / 2));
        let mut add = |bus_id, parent, kind| {
            let link = match kind {
                PciKind::RootPort | PciKind::SwitchPort => PcieLinkFacts::default(),
                _ => link,
            };
            let device =
                PciDevice { parent, numa_node: node, link, ..PciDevice::new(bus_id, kind) };
            host.pci_devices.push(device);
        };
        add(at(0, 1), None, PciKind::RootPort);
        add(at(1, 0), Some(at(0, 1)), PciKind::Switch);
        for slot in 0..=nics {
            add(at(2, slot), Some(at(1, 0)), PciKind::SwitchPort);
            let kind = if slot == 0 { PciKind::Gpu } else { PciKind::Nic };
            add(at(3 + slot, 0), Some(at(2, slot)), kind);
        }
        let to = |chip| GpuLinks {
            kind: GpuLinkKind::NvLink,
            peer: LinkPeer::Switch(BusId::new(0xff, chip, 0, 0)),
            count: links,
            rate: None,
        };
        host.gpus.push(Gpu {
            bus_id: Some(at(3, 0)),
            numa_node: node,
            compute_capability: Some(90),
            links: (0..chips).map(to).collect(),
            ..Gpu::new(GpuIndex(switch.into()))
        });
        for slot in 1..=nics {
            let name = format!("mlx5_{}", switch * nics + slot - 1);
            host.nics.push(Nic {
                bus_id: Some(at(3 + slot, 0)),
                numa_node: node,
                port: Some(1),
                mbit: Some(200_000),
                role: NicRole::Fabric,
                ..Nic::new(name)
            });
        }
    }
    host.pci_devices.sort_by_key(|device| device.bus_id);
    host
}

/// Classes of all pairs of a host, by name.
fn classes(host: &Snapshot) -> Vec<String> {
    let topology = lower(core::slice::from_ref(host), crate::RateModel::Effective).unwrap();
    let matrix = topology.matrix(crate::HostId(0));
    let rows = matrix.devices.iter().zip(&matrix.cells);
    rows.map(|(device, cells)| {
        let cells: Vec<String> =
            cells.iter().map(|cell| cell.map_or("-".into(), |cell| cell.to_string())).collect();
        format!("{device}: {}", cells.join(" "))
    })
    .collect()
}

fn read_back(file: &TopoFile) -> Snapshot {
    let text = file.write();
    assert_eq!(scan(&text).expect("NCCL's dialect").elements, file.elements(), "{text}");
    formats::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}")).remove(0)
}

#[test]
fn a_host_is_read_back_with_the_same_paths() {
    let host = host(4, 2, 3, 6);
    let file = TopoFile::of_host(&host).unwrap();
    assert_eq!(file.notes(), [""; 0]);
    let again = read_back(&file);
    assert_eq!(classes(&again), classes(&host));
    assert_eq!(again.gpus.len(), 4);
    assert_eq!(again.nics.iter().map(|nic| nic.mbit).collect::<Vec<_>>(), [Some(200_000); 8]);
    assert_eq!(again.gpus[1].links, host.gpus[1].links);
    assert_eq!(again.numa_nodes[1].cpus, host.numa_nodes[1].cpus);
}

#[test]
fn what_is_not_known_is_assumed_aloud() {
    let mut host = host(1, 1, 0, 0);
    for device in &mut host.pci_devices {
        device.link = PcieLinkFacts::default();
        device.numa_node = None;
    }
    host.gpus[0].numa_node = None;
    host.nics[0].numa_node = None;
    let file = TopoFile::of_host(&host).unwrap();
    assert!(file.notes()[0].starts_with("PCIe Gen3 x16 written"), "{:?}", file.notes());
    let text = file.write();
    assert!(text.contains("<cpu numaid=\"-1\">") && text.contains("8.0 GT/s PCIe"), "{text}");
    read_back(&file);
}

#[test]
fn what_cannot_be_written_is_refused() {
    let mut odd = host(1, 1, 0, 0);
    odd.nics[0].name = "a\"b".into();
    assert!(matches!(
        TopoFile::of_host(&odd),
        Err(TopoError::Unwritable { attribute: "name", .. })
    ));
    let empty = Snapshot::new(Source::TopoMatrix);
    assert_eq!(TopoFile::of_host(&empty), Err(TopoError::NoAddresses));
}

/// The maintainer's recipe by hand: keep processors and bridges, drop GPUs and NICs, change the addresses
/// (NVIDIA/nccl-tests#86).
#[test]
fn field_case_070_a_file_for_a_guest() {
    let host = host(4, 1, 3, 6);
    // The guest has the GPUs of two switches of one processor, with a NIC each.
    let map: GuestMap = "0000:03:00.0 0000:06:00.0 # GPU 0\n0000:04:00.0 = 0000:07:00.0\n\
                         0001:03:00.0=0000:08:00.0,0001:04:00.0=0000:09:00.0\n"
        .parse()
        .unwrap();
    let file = TopoFile::for_guest(&host, &map, None).unwrap();
    let text = file.write();
    for absent in ["<gpu", "<nic", "<net", "<nvlink", "affinity", "0001:"] {
        assert!(!text.contains(absent), "{absent} in {text}");
    }
    assert!(
        file.notes().iter().any(|note| note.starts_with("4 GPUs and NICs")),
        "{:?}",
        file.notes()
    );
    let again = read_back(&file);
    // A GPU and the NIC beside it stay beside each other; their switches have addresses of no guest.
    let parent = |at: &str| {
        let device = again.pci_devices.iter().find(|device| device.bus_id == id(at)).unwrap();
        device.parent.unwrap()
    };
    assert_eq!(parent("06:00.0"), parent("07:00.0"));
    assert_eq!(parent("08:00.0"), parent("09:00.0"));
    assert_ne!(parent("06:00.0"), parent("08:00.0"));
    assert_eq!(parent("06:00.0").domain(), 0xffff);
    assert_eq!(again.gpus.len(), 2);
}

#[test]
fn maps_that_do_not_fit() {
    let host = host(2, 1, 0, 0);
    let check = |text: &str, guest: Option<&Snapshot>, word: &str| {
        let error = match text.parse::<GuestMap>() {
            Err(error) => error.to_string(),
            Ok(map) => TopoFile::for_guest(&host, &map, guest).unwrap_err().to_string(),
        };
        assert!(error.contains(word), "{error}");
    };
    check("0000:03:00.0", None, "line 1: '0000:03:00.0' is no pair");
    check("\n0000:03:00.0 x", None, "line 2: 'x' is no PCI address");
    check("03:00.0 1:0.0\n03:00.0 2:0.0", None, "named twice");
    check("03:00.0 06:00.0\n04:00.0 06:00.0", None, "of the guest is named twice");
    check("09:00.0 06:00.0", None, "0000:09:00.0 is no GPU and no NIC of the host");
    check("04:00.0 06:00.0", None, "names no GPU");
    check("", None, "names no GPU");
    let mut guest = Snapshot::new(Source::Live);
    guest.pci_devices.push(PciDevice::new(id("06:00.0"), PciKind::Nic));
    check("03:00.0 06:00.0", Some(&guest), "differ in kind");
    check("03:00.0 07:00.0", Some(&guest), "no GPU and no NIC of the guest");
}

/// With the guest's own facts the masks are its own.
#[test]
fn a_guest_that_is_known() {
    let host = host(2, 0, 0, 0);
    let mut guest = Snapshot::new(Source::Live);
    guest.pci_devices.push(PciDevice::new(id("06:00.0"), PciKind::Gpu));
    guest.numa_nodes.push(NumaNode { cpus: Some("0-3".parse().unwrap()), ..NumaNode::new(0) });
    let map = "0000:03:00.0 06:00.0".parse().unwrap();
    let text = TopoFile::for_guest(&host, &map, Some(&guest)).unwrap().write();
    assert!(text.contains("affinity=\"0000000f\""), "{text}");
}

/// 32 NICs and 18 links to each of 8 GPUs are more elements than NCCL's parser takes (NVIDIA/nccl#2160); what NCCL finds out by
/// itself is left out, and said.
#[test]
fn field_case_073_files_that_fit() {
    let host = host(8, 4, 1, 18);
    let mut file = TopoFile::of_host(&host).unwrap();
    let all = file.elements();
    assert!(all > MOST_TOPOLOGY_ELEMENTS, "{all}");
    file.fit();
    assert!(file.elements() <= MANY_ELEMENTS, "{}", file.elements());
    assert!(file.notes()[0].contains("links of GPUs are left out"), "{:?}", file.notes());
    // Idle branches were never in it, and every device keeps its place.
    let again = read_back(&file);
    assert_eq!((again.gpus.len(), again.nics.len()), (8, 32));
    let mut small = TopoFile::of_host(&host_of_one()).unwrap();
    let before = small.clone();
    small.fit();
    assert_eq!(small, before);
}

fn host_of_one() -> Snapshot {
    host(1, 1, 1, 1)
}

proptest! {
    /// Whatever a map says, it is a file or a refusal.
    #[test]
    fn any_map(text in "(0000:0[0-4]:00.0|0001:03:00.0| |=|,|#|\n){0,12}") {
        if let Ok(map) = text.parse::<GuestMap>()
            && let Ok(file) = TopoFile::for_guest(&host(2, 1, 0, 0), &map, None)
        {
            read_back(&file);
        }
    }
}
