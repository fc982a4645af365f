//! What NCCL made of a host beside what is known of it, and its channels beside a plan's.
//!
//! Three things NCCL tells: its topology (`NCCL_TOPO_DUMP_FILE`), its channels (`NCCL_GRAPH_DUMP_FILE`), its log
//! (`NCCL_DEBUG=INFO`). Where NCCL sees less than there is, a finding says what and why that costs; where it sees more, the
//! record here is in doubt, and that is said. What agrees is said as well, so that silence is never agreement.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::matrix::Cell;
use crate::nccl_graph::{self, Graph, GraphFile};
use crate::nccl_hca::HcaFilter;
use crate::nccl_log::{Connection, DeviceMark, NcclLog};
use crate::paths::Path;
use crate::snapshot::{Gpu, NicRole, Snapshot};
use crate::words::some_of;
use crate::{
    BusId, Finding, Fraction, GpuIndex, HostId, PathType, Plan, Severity, Topology, VertexId,
    VertexKind,
};

/// What a comparison came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Differences.
    pub findings: Vec<Finding>,
    /// What was compared and is alike, or could not be compared, in words.
    pub notes: Vec<String>,
    /// How many things were compared; none is no agreement.
    pub compared: usize,
}

impl Comparison {
    fn finding(
        &mut self,
        code: &str,
        severity: Severity,
        component: impl Into<String>,
        evidence: impl Into<String>,
        fix: &str,
    ) {
        self.findings.push(Finding::new(code, severity, component, evidence, fix));
    }

    /// Joins another.
    pub fn join(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.notes.extend(other.notes);
        self.compared += other.compared;
    }
}

const STALE: &str =
    "record the host anew, or dump NCCL's view on it: they are not of one state of one host";

/// A host's devices by address, with the graph to ask for paths.
struct Devices<'a> {
    topology: &'a Topology,
    gpus: BTreeMap<BusId, (VertexId, &'a Gpu)>,
}

impl<'a> Devices<'a> {
    fn new(topology: &'a Topology) -> Self {
        let mut gpus = BTreeMap::new();
        let facts = topology.hosts().first();
        for id in topology.gpus().iter().filter(|id| topology.vertex(**id).host == Some(HostId(0)))
        {
            let VertexKind::Gpu { index } = topology.vertex(*id).kind else { continue };
            let gpu = facts.and_then(|host| host.gpus.iter().find(|gpu| gpu.index == index));
            if let Some((gpu, bus_id)) = gpu.and_then(|gpu| Some((gpu, gpu.bus_id?))) {
                gpus.insert(bus_id, (*id, gpu));
            }
        }
        Self { topology, gpus }
    }

    fn nics(&self) -> Vec<(&'a str, Option<u32>, VertexId)> {
        let Some(host) = self.topology.hosts().first() else { return Vec::new() };
        let of_host = |id: &&VertexId| self.topology.vertex(**id).host == Some(HostId(0));
        let nic = |id: &VertexId| match self.topology.vertex(*id).kind {
            VertexKind::Nic { index } => {
                let nic = host.nics.get(index as usize)?;
                Some((nic.name.as_str(), nic.port, *id))
            }
            _ => None,
        };
        self.topology.nics().iter().filter(of_host).filter_map(nic).collect()
    }
}

/// NCCL's own dump of a topology beside ours. NCCL knows no host bridges apart, so two of one NUMA node are `PHB` on either side.
#[must_use]
pub fn topology(ours: &Topology, theirs: &Topology) -> Comparison {
    let mut found = Comparison::default();
    let (mine, seen) = (Devices::new(ours), Devices::new(theirs));
    if mine.gpus.is_empty() || seen.gpus.is_empty() {
        found
            .notes
            .push("topology: one side tells no addresses of GPUs, and nothing was compared".into());
        return found;
    }
    let named = |bus_id: &BusId| match mine.gpus.get(bus_id) {
        Some((_, gpu)) => format!("GPU{}", gpu.index),
        None => bus_id.to_string(),
    };
    // A dump is of the communicator's own GPUs: those of another job are no difference.
    for bus_id in seen.gpus.keys().filter(|bus_id| !mine.gpus.contains_key(bus_id)) {
        let evidence = "NCCL has it, and it is not known here";
        found.finding(
            "nccl-has-other-gpu",
            Severity::Degraded,
            bus_id.to_string(),
            evidence,
            STALE,
        );
    }
    let both: Vec<&BusId> =
        mine.gpus.keys().filter(|bus_id| seen.gpus.contains_key(bus_id)).collect();
    let absent: Vec<String> =
        mine.gpus.keys().filter(|bus_id| !seen.gpus.contains_key(bus_id)).map(named).collect();
    if !absent.is_empty() {
        found.notes.push(format!("topology: {} are not in NCCL's communicator", some_of(&absent)));
    }
    for bus_id in &both {
        gpu(&mine, &seen, bus_id, &named(bus_id), &mut found);
    }
    for (at, a) in both.iter().enumerate() {
        for b in &both[at + 1..] {
            let pair = format!("{}-{}", named(a), named(b));
            let ends = |devices: &Devices<'_>| (devices.gpus[*a].0, devices.gpus[*b].0);
            path(&mine, &seen, ends(&mine), ends(&seen), &pair, &mut found);
        }
    }
    nics(&mine, &seen, &both, &named, &mut found);
    let differing = found.findings.len();
    found.notes.push(format!(
        "topology: {} GPUs, {} facts and paths compared, {differing} differ",
        both.len(),
        found.compared
    ));
    found
}

fn gpu(mine: &Devices<'_>, seen: &Devices<'_>, bus_id: &BusId, name: &str, found: &mut Comparison) {
    let ((_, ours), (_, theirs)) = (&mine.gpus[bus_id], &seen.gpus[bus_id]);
    found.compared += 1;
    if ours.index != theirs.index {
        let evidence =
            format!("NVML number {} here, {} in NCCL's file at {bus_id}", ours.index, theirs.index);
        found.finding("nccl-gpu-number-differs", Severity::Degraded, name, evidence, STALE);
    }
    if let (Some(here), Some(there)) = (ours.numa_node, theirs.numa_node)
        && here != there
    {
        let evidence = format!("NUMA node {here} here, {there} in NCCL's file");
        let fix =
            "NCCL takes the node from the kernel's numa_node, or from NCCL_TOPO_FILE: correct that";
        found.finding("nccl-numa-differs", Severity::Degraded, name, evidence, fix);
    }
}

/// NCCL's classes, in which host bridges of one node are not told apart.
fn class_of(class: PathType) -> PathType {
    if class == PathType::Node { PathType::Phb } else { class }
}

fn path(
    mine: &Devices<'_>,
    seen: &Devices<'_>,
    (from, to): (VertexId, VertexId),
    (seen_from, seen_to): (VertexId, VertexId),
    pair: &str,
    found: &mut Comparison,
) {
    let (ours, theirs) = (mine.topology.path(from, to), seen.topology.path(seen_from, seen_to));
    found.compared += 1;
    let words = |path: &Path| Cell { class: class_of(path.class), links: path.links }.to_string();
    let (here, there) = (words(&ours), words(&theirs));
    if here == there {
        return;
    }
    let evidence = format!("{here} here, {there} to NCCL");
    let nvlink = ours.class == PathType::Nvl;
    let less =
        class_of(theirs.class) > class_of(ours.class) || (nvlink && theirs.links < ours.links);
    match (less, nvlink) {
        (true, true) => found.finding(
            "nccl-sees-fewer-nvlinks",
            Severity::Degraded,
            pair,
            evidence,
            "look for an NCCL_TOPO_FILE that lists links, which keeps NCCL from asking the driver; topoctl nccl lint finds it",
        ),
        (true, false) => found.finding(
            "nccl-sees-longer-path",
            Severity::Degraded,
            pair,
            evidence,
            "give NCCL the tree: topoctl export --format nccl-topo, as NCCL_TOPO_FILE",
        ),
        (false, _) => found.finding("nccl-sees-shorter-path", Severity::Info, pair, evidence, STALE),
    }
}

fn nics(
    mine: &Devices<'_>,
    seen: &Devices<'_>,
    gpus: &[&BusId],
    named: &dyn Fn(&BusId) -> String,
    found: &mut Comparison,
) {
    let (ours, theirs) = (mine.nics(), seen.nics());
    if theirs.is_empty() {
        found
            .notes
            .push("topology: NCCL's file has no NIC, as on one host where it needs none".into());
        return;
    }
    let facts = mine.topology.hosts().first();
    for (name, port, id) in &ours {
        let same = |other: &&(&str, Option<u32>, VertexId)| {
            other.0 == *name && (other.1 == *port || port.is_none() || other.1.is_none())
        };
        let Some((.., seen_id)) = theirs.iter().find(same) else {
            let role = facts
                .and_then(|host| {
                    host.nics.iter().find(|nic| nic.name == *name && nic.port == *port)
                })
                .map(|nic| nic.role);
            if role == Some(NicRole::Fabric) {
                found.finding(
                    "nccl-misses-nic",
                    Severity::Degraded,
                    *name,
                    "for traffic between GPUs here, and NCCL does not have it",
                    "look at NCCL_IB_HCA (topoctl nccl hca --check) and at the port's state",
                );
            }
            continue;
        };
        for bus_id in gpus {
            let pair = format!("{}-{name}", named(bus_id));
            let ends = ((mine.gpus[*bus_id].0, *id), (seen.gpus[*bus_id].0, *seen_id));
            path(mine, seen, ends.0, ends.1, &pair, found);
        }
    }
    let known = |name: &str| ours.iter().any(|(own, ..)| *own == name);
    for (name, ..) in theirs.iter().filter(|(name, ..)| !known(name)) {
        let evidence = "NCCL has it, and it is not known here";
        found.finding("nccl-has-other-nic", Severity::Info, *name, evidence, STALE);
    }
}

/// NCCL's own channels beside a plan's rings.
#[must_use]
pub fn graph(topology: &Topology, plan: &Plan, theirs: &GraphFile) -> Comparison {
    let mut found = Comparison::default();
    let Some(ring) = theirs.graphs.iter().find(|graph| graph.id == 0 && !graph.channels.is_empty())
    else {
        found.notes.push("channels: NCCL's file has no rings, and nothing was compared".into());
        return found;
    };
    let ours = match nccl_graph::from_plan(topology, plan) {
        Ok(file) => file,
        Err(error) => {
            found.notes.push(format!("channels: {error}; nothing was compared"));
            return found;
        }
    };
    let Some(own) = ours.graphs.first() else { return found };
    let gpus = |graph: &Graph| -> BTreeSet<u64> {
        graph.channels.iter().flat_map(|channel| channel.gpus.iter().copied()).collect()
    };
    let list =
        |gpus: &BTreeSet<u64>| gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    found.compared += 1;
    if gpus(own) != gpus(ring) {
        let evidence = format!(
            "NCCL's rings are over GPUs {}, the plan's over {}",
            list(&gpus(ring)),
            list(&gpus(own))
        );
        let fix = "plan on the same: --gpus";
        found.finding("nccl-rings-of-other-gpus", Severity::Degraded, "rings", evidence, fix);
        return found;
    }
    let total = |graph: &Graph| graph.speed_intra * Fraction::integer(graph.channels.len() as i128);
    let (here, there) = (total(own), total(ring));
    let words = |graph: &Graph| {
        format!(
            "{} channels of {} GB/s over {}",
            graph.channels.len(),
            nccl_graph::decimal(graph.speed_intra),
            graph.type_intra
        )
    };
    let evidence = format!(
        "NCCL has {}, {} GB/s in all; the plan {}, {} GB/s",
        words(ring),
        nccl_graph::decimal(there),
        words(own),
        nccl_graph::decimal(here)
    );
    // NCCL searches in steps of speeds that lie a tenth and more apart (src/graph/search.cc, speedArray).
    let near = here * Fraction::of(95, 100);
    match () {
        () if there < near => found.finding(
            "nccl-rings-below-plan",
            Severity::Degraded,
            "rings",
            evidence,
            "where all communicators are over these GPUs, topoctl export --format nccl-graph gives NCCL the plan's rings",
        ),
        () if here < there * Fraction::of(95, 100) => found.finding(
            "nccl-rings-above-plan",
            Severity::Info,
            "rings",
            evidence,
            "the plan's rates are lower: compare topologies (--topo), or NCCL_GRAPH_FILE promises more than there is",
        ),
        () => found.notes.push(format!("channels: {evidence}")),
    }
    found.compared += 1;
    if ring.type_intra > own.type_intra {
        let evidence = format!(
            "NCCL's rings cross {}, the plan's at worst {}",
            ring.type_intra, own.type_intra
        );
        found.finding(
            "nccl-rings-cross-worse-paths",
            Severity::Degraded,
            "rings",
            evidence,
            "compare topologies (--topo)",
        );
    }
    let hops = |graph: &Graph| -> BTreeSet<(u64, u64)> {
        let of = |gpus: &[u64]| -> Vec<(u64, u64)> {
            let next = gpus.iter().cycle().skip(1);
            gpus.iter().copied().zip(next.copied()).take(gpus.len()).collect()
        };
        graph.channels.iter().flat_map(|channel| of(&channel.gpus)).collect()
    };
    let (own_hops, their_hops) = (hops(own), hops(ring));
    let unused: Vec<String> =
        own_hops.difference(&their_hops).map(|(from, to)| format!("GPU{from}>GPU{to}")).collect();
    if !unused.is_empty() {
        found.notes.push(format!(
            "channels: hops of the plan that NCCL's rings have not: {}",
            some_of(&unused)
        ));
    }
    found
}

/// NCCL's log beside our topology and, where there is one, a plan.
#[must_use]
pub fn log(topology: &Topology, plan: Option<&Plan>, log: &NcclLog) -> Comparison {
    let mut found = Comparison::default();
    let Some(host) = topology.hosts().first() else { return found };
    if let Some(version) = &log.version {
        found.notes.push(format!("log: NCCL {version}"));
    }
    ports(host, log, &mut found);
    ways(topology, host, log, &mut found);
    rings(plan, log, &mut found);
    found
}

fn ports(host: &Snapshot, log: &NcclLog, found: &mut Comparison) {
    let Some(filter) = HcaFilter::of(&host.nics) else { return };
    if log.ports.is_empty() {
        if log.connections.iter().any(|one| one.via.starts_with("NET/Socket")) {
            let evidence = format!("NCCL goes by sockets, and there is {filter}");
            let fix = "look for NCCL_IB_DISABLE, NCCL_NET, NCCL_IB_HCA and missing RDMA libraries in the image";
            found.finding("nccl-uses-sockets", Severity::Degraded, "network", evidence, fix);
        }
        return;
    }
    let fix = format!("NCCL_IB_HCA=\"{filter}\"");
    let ours: BTreeSet<(String, u32)> =
        filter.entries.iter().map(|entry| (entry.name.clone(), entry.port.unwrap_or(1))).collect();
    found.compared += 1;
    let words = |ports: Vec<&(String, u32)>| -> Vec<String> {
        ports.into_iter().map(|(name, port)| format!("{name}:{port}")).collect()
    };
    let missed = words(ours.difference(&log.ports).collect());
    if !missed.is_empty() {
        let evidence = format!("NCCL does not use {}", some_of(&missed));
        found.finding("nccl-misses-nic", Severity::Degraded, "network", evidence, &fix);
    }
    let other = words(log.ports.difference(&ours).collect());
    if !other.is_empty() {
        let evidence =
            format!("NCCL uses {}, not known to be for traffic between GPUs", some_of(&other));
        found.finding("nccl-uses-other-nic", Severity::Degraded, "network", evidence, &fix);
    }
    if missed.is_empty() && other.is_empty() {
        found.notes.push(format!("log: NCCL uses the {} ports it should", ours.len()));
    }
}

/// Neighbours on one host that go by host memory or network although there is a path for their GPUs.
fn ways(topology: &Topology, host: &Snapshot, log: &NcclLog, found: &mut Comparison) {
    let gpu = |mark: DeviceMark, rank: u32| -> Option<VertexId> {
        let device = log.devices.get(&rank);
        let bus_id = match mark {
            DeviceMark::Address(bus_id) => Some(bus_id),
            DeviceMark::Number(_) => device.and_then(|device| device.bus_id),
        };
        let number = match mark {
            DeviceMark::Number(number) => {
                Some(device.and_then(|device| device.nvml).unwrap_or(GpuIndex(number)))
            }
            DeviceMark::Address(_) => None,
        };
        let is_it = |gpu: &&Gpu| match (bus_id, gpu.bus_id) {
            (Some(wanted), Some(has)) => wanted == has,
            _ => Some(gpu.index) == number,
        };
        let index = host.gpus.iter().find(is_it)?.index;
        topology.gpu(HostId(0), index)
    };
    let on_one_host =
        |one: &Connection| match (log.devices.get(&one.from), log.devices.get(&one.to)) {
            (Some(from), Some(to)) => from.host == to.host,
            // Without names, only what itself says so.
            _ => one.via.starts_with("SHM") || one.via.starts_with("P2P"),
        };
    let mut direct = BTreeSet::new();
    let mut around: BTreeMap<(String, String), String> = BTreeMap::new();
    for one in log.connections.iter().filter(|one| on_one_host(one)) {
        let ends = gpu(one.from_device, one.from).zip(gpu(one.to_device, one.to));
        let Some((from, to)) = ends.filter(|(from, to)| from != to) else { continue };
        found.compared += 1;
        let path = topology.path(from, to);
        let name = |id: VertexId| topology.vertex(id).name.clone();
        if one.via.starts_with("P2P") {
            direct.insert((from, to));
        } else if path.class <= PathType::Pxb {
            let class = match path.class {
                PathType::Nvl => format!("NV{}", path.links),
                class => class.to_string(),
            };
            around.insert(
                (name(from), name(to)),
                format!("by {} although {class} joins them", one.via),
            );
        }
    }
    for ((from, to), evidence) in around {
        found.finding(
            "nccl-goes-around",
            Severity::Degraded,
            format!("{from}-{to}"),
            evidence,
            "look for NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, access control (topoctl check), and containers that share neither /dev/shm nor process numbers",
        );
    }
    if !direct.is_empty() {
        found.notes.push(format!("log: {} pairs of GPUs reach each other directly", direct.len()));
    }
}

fn rings(plan: Option<&Plan>, log: &NcclLog, found: &mut Comparison) {
    if log.rings.is_empty() {
        return;
    }
    let turned = |ring: &[u32]| -> Vec<u32> {
        let at = ring.iter().position(|rank| *rank == 0).unwrap_or(0);
        ring[at..].iter().chain(&ring[..at]).copied().collect()
    };
    let theirs: BTreeSet<Vec<u32>> = log.rings.values().map(|ring| turned(ring)).collect();
    let told = format!(
        "{} channels, {} of them different, over {} ranks",
        log.rings.len(),
        theirs.len(),
        log.ranks
    );
    let Some(plan) = plan.filter(|plan| plan.ranks.len() == log.ranks) else {
        found.notes.push(format!("log: {told}; no plan for as many ranks to compare with"));
        return;
    };
    let rings = nccl_graph::rings(plan);
    let ours: BTreeSet<Vec<u32>> = rings
        .iter()
        .map(|ring| turned(&ring.ranks.iter().map(|rank| rank.0).collect::<Vec<_>>()))
        .collect();
    found.compared += 1;
    let same = theirs.intersection(&ours).count();
    found.notes.push(format!(
        "log: NCCL has {told}; the plan {} rings, {same} of them the same",
        ours.len()
    ));
}
