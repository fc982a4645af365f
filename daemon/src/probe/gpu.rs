//! GPUs: what NVML tells of them, joined with what PCI shows.

use std::collections::{BTreeMap, BTreeSet};

use topology::snapshot::{FaultKind, Gpu, GpuLinkKind, GpuLinks, LinkPeer, PeerAccess};
use topology::{Bandwidth, BusId, Fault, GpuIndex};

use super::apart::Clock;
use super::kfd::KfdGpu;
use super::kind::{NVIDIA, is_gpu, is_nvswitch};
use super::locality::Locality;
use super::nvml::{self, NvLink, NvmlGpu, NvmlPart, Remote};
use super::pci::PciFunction;
use super::trouble::Trouble;

/// What the NVML probe told.
#[derive(Debug, Default)]
pub(super) struct NvmlFacts {
    /// Version of the driver.
    pub(super) driver: Option<String>,
    /// Whether the GPUs are in confidential computing mode.
    pub(super) confidential: Option<bool>,
    peers: BTreeMap<GpuIndex, Vec<PeerAccess>>,
    gpus: Vec<NvmlGpu>,
    refused: BTreeSet<GpuIndex>,
    /// Whether every GPU of NVML's was told.
    complete: bool,
    /// Why NVML was not asked, and where: not a fault on a host without NVIDIA GPUs.
    unavailable: Option<(String, Trouble)>,
}

impl NvmlFacts {
    /// From the parts; `None` is NVML switched off.
    pub(super) fn new(parts: Option<Vec<NvmlPart>>) -> Self {
        let mut facts = Self::default();
        let Some(parts) = parts else {
            let off = Trouble::plain(FaultKind::Unreadable, "not asked: switched off");
            facts.unavailable = Some(("NVML".into(), off));
            return facts;
        };
        for part in parts {
            match part {
                NvmlPart::Unavailable { place, error } => facts.unavailable = Some((place, error)),
                NvmlPart::Driver(version) => facts.driver = Some(version),
                NvmlPart::Confidential(on) => facts.confidential = Some(on),
                NvmlPart::Gpu(gpu) => facts.gpus.push(*gpu),
                NvmlPart::Peers(index, peers) => drop(facts.peers.insert(index, peers)),
                NvmlPart::Refused(index) => drop(facts.refused.insert(index)),
                NvmlPart::Complete => facts.complete = true,
            }
        }
        facts
    }
}

/// All GPUs that can be used, by index, and what is missing of them.
///
/// A GPU that NVML refuses (denied, lost) is left out: it cannot be planned on, and its PCI function and the fault
/// say where it is. One that NVML could not be asked about is drawn from PCI.
pub(super) fn gpus(
    facts: NvmlFacts,
    boards: &BTreeMap<BusId, KfdGpu>,
    locality: Locality<'_>,
    gpudirect: Option<bool>,
    clock: Clock,
) -> (Vec<Gpu>, Vec<Fault>) {
    let mut faults = Vec::new();
    let functions = locality.functions;
    let on_pci: Vec<(BusId, &PciFunction)> =
        functions.iter().filter(|(_, function)| is_gpu(function)).map(|(id, f)| (*id, f)).collect();
    let told: BTreeSet<BusId> = facts.gpus.iter().filter_map(|gpu| gpu.bus_id).collect();
    let mut taken: BTreeSet<GpuIndex> =
        facts.gpus.iter().map(|gpu| gpu.index).chain(facts.refused.iter().copied()).collect();

    let mut gpus = Vec::new();
    let (mut nvidia_drawn, mut other_drawn) = (false, false);
    for (place, (bus_id, function)) in (0..).zip(&on_pci) {
        let nvidia = function.vendor == Some(NVIDIA);
        if told.contains(bus_id) {
            continue;
        }
        if nvidia && facts.complete {
            let driver = function.driver.as_deref().unwrap_or("none");
            let text = format!("NVML does not list this GPU or gives no access (driver: {driver})");
            let trouble = Trouble::new(FaultKind::Absent, text);
            faults.push(clock.fault(nvml::PROBE, bus_id, trouble));
            continue;
        }
        let board = boards.get(bus_id).filter(|_| !nvidia);
        nvidia_drawn |= nvidia;
        other_drawn |= !nvidia && board.is_none();
        // NVML numbers GPUs in the order of their addresses.
        let index = (place..).map(GpuIndex).find(|index| !taken.contains(index));
        let Some(index) = index else { continue };
        taken.insert(index);
        let drawn = drawn_from_pci(index, *bus_id, locality);
        gpus.push(match board {
            Some(board) => Gpu { gdr: gpudirect, ..from_kfd(drawn, board) },
            None => drawn,
        });
    }
    if let Some((place, trouble)) = facts.unavailable.filter(|_| nvidia_drawn) {
        let drawn = "GPUs are drawn from PCI alone, their NVLinks are not known";
        faults.push(clock.fault(nvml::PROBE, place, trouble.with(drawn)));
    }
    if other_drawn {
        let text = "not asked: not in sys/class/kfd: this GPU's links to others are not known";
        let trouble = Trouble::plain(FaultKind::Unreadable, text);
        faults.push(clock.fault("pci", "sys/class/kfd", trouble));
    }
    for gpu in facts.gpus {
        if let Some(bus_id) =
            gpu.bus_id.filter(|id| !functions.contains_key(id) && !functions.is_empty())
        {
            faults.push(clock.fault(
                "pci",
                bus_id,
                Trouble::new(FaultKind::Absent, "NVML lists this GPU, the PCI tree does not"),
            ));
        }
        let peers = facts.peers.get(&gpu.index).cloned().unwrap_or_default();
        gpus.push(Gpu { gdr: gpudirect, peers, ..from_nvml(gpu, &told, locality) });
    }
    gpus.sort_by_key(|gpu| gpu.index);
    (gpus, faults)
}

fn drawn_from_pci(index: GpuIndex, bus_id: BusId, locality: Locality<'_>) -> Gpu {
    Gpu {
        bus_id: Some(bus_id),
        numa_node: locality.node_of(bus_id),
        cpus: locality.cpus_of(bus_id),
        ..Gpu::new(index)
    }
}

fn from_kfd(drawn: Gpu, board: &KfdGpu) -> Gpu {
    let link = |(peer, rate): (&Option<BusId>, &Option<Bandwidth>)| GpuLinks {
        kind: GpuLinkKind::Xgmi,
        peer: peer.map_or(LinkPeer::Cpu(None), LinkPeer::Gpu),
        // The kernel tells the rate of all links to a peer together.
        count: 1,
        rate: *rate,
    };
    Gpu {
        name: board.name.clone(),
        gfx: board.gfx.clone(),
        memory_bytes: board.memory_bytes,
        partition: board.partition.clone(),
        links: board.links.iter().map(link).collect(),
        ..drawn
    }
}

fn from_nvml(gpu: NvmlGpu, gpus: &BTreeSet<BusId>, locality: Locality<'_>) -> Gpu {
    let by_pci = || locality.node_of(gpu.bus_id?);
    // A mask names the near node where it has one and leaves out another.
    let by_memory = || match gpu.nodes.as_slice() {
        [node] if locality.nodes.len() != 1 => Some(*node),
        _ => None,
    };
    let by_cpus = || gpu.cpus.as_ref().and_then(|cpus| locality.node_of_cpus(cpus));
    let numa_node = by_memory().or_else(by_cpus).or_else(by_pci);
    let cpus = gpu.cpus.clone().or_else(|| locality.cpus_of(gpu.bus_id?));
    Gpu {
        bus_id: gpu.bus_id,
        uuid: gpu.uuid,
        name: gpu.name,
        compute_capability: gpu.compute_capability,
        memory_bytes: gpu.memory_bytes,
        numa_node,
        cpus,
        links: grouped(&gpu.links, gpus, locality.functions),
        inactive_links: gpu.inactive_links,
        c2c: gpu.c2c,
        mig: gpu.mig,
        minor: gpu.minor,
        memory_node: gpu.memory_node,
        fabric: gpu.fabric,
        link_errors: gpu.link_errors,
        ..Gpu::new(gpu.index)
    }
}

/// Links counted by peer and rate, in the order of the peers.
fn grouped(
    links: &[NvLink],
    gpus: &BTreeSet<BusId>,
    functions: &BTreeMap<BusId, PciFunction>,
) -> Vec<GpuLinks> {
    let mut counts: BTreeMap<(Remote, Option<BusId>, Option<Bandwidth>), u32> = BTreeMap::new();
    for link in links {
        let remote = match (link.remote, link.remote_bus_id) {
            // Where the library does not tell the kind, the address may.
            (Remote::Unknown, Some(id)) if gpus.contains(&id) => Remote::Gpu,
            (Remote::Unknown, Some(id)) if functions.get(&id).is_some_and(is_nvswitch) => {
                Remote::Switch
            }
            // A GPU without an address is none that could be named.
            (Remote::Gpu, None) => Remote::Unknown,
            (remote, _) => remote,
        };
        *counts.entry((remote, link.remote_bus_id, link.rate)).or_default() += 1;
    }
    let links = |((remote, bus_id, rate), count)| GpuLinks {
        kind: GpuLinkKind::NvLink,
        peer: match (remote, bus_id) {
            (Remote::Gpu, Some(bus_id)) => LinkPeer::Gpu(bus_id),
            (Remote::Switch, bus_id) => LinkPeer::Switch(bus_id),
            (Remote::Cpu, bus_id) => LinkPeer::Cpu(bus_id),
            (Remote::Gpu | Remote::Unknown, _) => LinkPeer::Unknown,
        },
        count,
        rate,
    };
    counts.into_iter().map(links).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::CpuList;

    fn id(text: &str) -> BusId {
        text.parse().unwrap()
    }

    fn nvml_gpu(index: u32, bus_id: &str) -> NvmlGpu {
        NvmlGpu {
            index: GpuIndex(index),
            bus_id: Some(id(bus_id)),
            uuid: None,
            name: None,
            compute_capability: None,
            memory_bytes: None,
            mig: None,
            nodes: Vec::new(),
            cpus: None,
            links: Vec::new(),
            inactive_links: Some(0),
            c2c: None,
            minor: None,
            memory_node: None,
            fabric: None,
            link_errors: Vec::new(),
        }
    }

    fn pci_gpu(vendor: u16) -> PciFunction {
        PciFunction { class: Some(0x030200), vendor: Some(vendor), ..PciFunction::default() }
    }

    /// `expect`: index and address of each GPU, then the places of the faults.
    #[track_caller]
    fn check(
        parts: Option<Vec<NvmlPart>>,
        functions: &[(&str, u16)],
        expect: &[(u32, &str)],
        faults: &[&str],
    ) {
        let functions =
            functions.iter().map(|(bus_id, vendor)| (id(bus_id), pci_gpu(*vendor))).collect();
        let locality = Locality { functions: &functions, nodes: &[] };
        let facts = NvmlFacts::new(parts);
        let (gpus, found) = gpus(facts, &BTreeMap::new(), locality, None, Clock::new(false));
        let gpus: Vec<_> =
            gpus.iter().map(|gpu| (gpu.index.0, gpu.bus_id.unwrap().to_string())).collect();
        let gpus: Vec<_> = gpus.iter().map(|(index, id)| (*index, id.as_str())).collect();
        assert_eq!(gpus, expect);
        let found: Vec<_> = found.iter().map(|fault| fault.place.as_str()).collect();
        assert_eq!(found, faults);
    }

    const AMD: u16 = 0x1002;

    fn missing_library() -> NvmlPart {
        let error = Trouble::new(FaultKind::Absent, "no");
        NvmlPart::Unavailable { place: "lib".into(), error }
    }

    #[test]
    fn without_nvml_gpus_are_drawn_in_order() {
        let two = [("0000:81:00.0", NVIDIA), ("0000:01:00.0", NVIDIA)];
        let drawn = [(0, "0000:01:00.0"), (1, "0000:81:00.0")];
        check(None, &two, &drawn, &["NVML"]);
        let missing = missing_library();
        check(Some(vec![missing]), &two, &drawn, &["lib"]);
        // Where there is no NVIDIA GPU, nobody misses NVML.
        let missing = missing_library();
        check(Some(vec![missing]), &[], &[], &[]);
        check(None, &[("0000:01:00.0", AMD)], &[(0, "0000:01:00.0")], &["sys/class/kfd"]);
    }

    #[test]
    fn a_probe_cut_short_leaves_the_rest_to_pci() {
        let parts = vec![NvmlPart::Gpu(nvml_gpu(0, "0000:01:00.0").into())];
        let functions = [("0000:01:00.0", NVIDIA), ("0000:02:00.0", NVIDIA)];
        check(Some(parts), &functions, &[(0, "0000:01:00.0"), (1, "0000:02:00.0")], &[]);
    }

    #[test]
    fn refused_and_unlisted_gpus_are_left_out() {
        let parts = vec![
            NvmlPart::Gpu(nvml_gpu(0, "0000:01:00.0").into()),
            NvmlPart::Refused(GpuIndex(1)),
            NvmlPart::Gpu(nvml_gpu(2, "0000:03:00.0").into()),
            NvmlPart::Complete,
        ];
        let functions =
            [("0000:01:00.0", NVIDIA), ("0000:02:00.0", NVIDIA), ("0000:03:00.0", NVIDIA)];
        let expect = [(0, "0000:01:00.0"), (2, "0000:03:00.0")];
        check(Some(parts), &functions, &expect, &["0000:02:00.0"]);
    }

    #[test]
    fn a_gpu_that_only_nvml_knows() {
        let parts = vec![NvmlPart::Gpu(nvml_gpu(0, "0000:09:00.0").into()), NvmlPart::Complete];
        let expect = [(0, "0000:09:00.0"), (1, "0000:01:00.0")];
        let faults = ["sys/class/kfd", "0000:09:00.0"];
        check(Some(parts), &[("0000:01:00.0", AMD)], &expect, &faults);
    }

    #[test]
    fn links_are_grouped_by_peer() {
        let rate = Some(Bandwidth::from_mbps(25_000));
        let link =
            |remote, bus_id: &str| NvLink { remote, remote_bus_id: bus_id.parse().ok(), rate };
        let links = [
            link(Remote::Gpu, "0000:02:00.0"),
            link(Remote::Switch, ""),
            link(Remote::Unknown, "0000:02:00.0"),
            link(Remote::Unknown, "0000:05:00.0"),
            link(Remote::Unknown, "0000:77:00.0"),
            link(Remote::Gpu, ""),
        ];
        let switch =
            PciFunction { class: Some(0x068000), vendor: Some(NVIDIA), ..PciFunction::default() };
        let functions = BTreeMap::from([(id("05:00.0"), switch)]);
        let groups = grouped(&links, &BTreeSet::from([id("02:00.0")]), &functions);
        let groups: Vec<_> = groups.into_iter().map(|group| (group.peer, group.count)).collect();
        assert_eq!(
            groups,
            [
                (LinkPeer::Gpu(id("02:00.0")), 2),
                (LinkPeer::Switch(None), 1),
                (LinkPeer::Switch(Some(id("05:00.0"))), 1),
                (LinkPeer::Unknown, 1),
                (LinkPeer::Unknown, 1),
            ]
        );
    }

    #[test]
    fn nvml_affinity_goes_before_sysfs() {
        let functions = BTreeMap::from([(
            id("01:00.0"),
            PciFunction { numa_node: Some(0), ..pci_gpu(NVIDIA) },
        )]);
        let locality = Locality { functions: &functions, nodes: &[] };
        let node = |nodes: &[u32]| {
            let gpu = NvmlGpu { nodes: nodes.into(), ..nvml_gpu(0, "01:00.0") };
            from_nvml(gpu, &BTreeSet::new(), locality).numa_node
        };
        assert_eq!(node(&[1]), Some(1));
        assert_eq!(node(&[]), Some(0));
        assert_eq!(node(&[0, 1]), Some(0));
        let cpus = CpuList::from_cpus([1, 2]);
        let gpu = NvmlGpu { cpus: Some(cpus.clone()), ..nvml_gpu(0, "01:00.0") };
        assert_eq!(from_nvml(gpu, &BTreeSet::new(), locality).cpus, Some(cpus));
    }
}
