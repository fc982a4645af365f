//! From a [`Topology`] and a request to the graph that is planned on, and back to names.
//!
//! Which links count:
//!
//! ```text
//!   one host, NVLink connects its GPUs      NVLink alone
//!   NVLink does not connect them, or --links all    everything, NIC to NIC through the fabric too
//!   several hosts, NVLink connects a host's GPUs    NVLink, and PCIe between GPUs and NICs
//! ```
//!
//! In the last case a PCIe switch must not carry data from GPU to GPU, which a plain vertex cannot express. So
//! the host's PCIe side becomes two layers, one for data on its way out and one for data on its way in:
//!
//! ```text
//!   GPU0 ─▶ plx0 (out) ─▶ mlx5_0 (out) ─▶ fabric ─▶ mlx5_0 (in) ─▶ plx0 (in) ─▶ GPU0
//! ```
//!
//! The fabric then is one node per host for what it sends and one for what it receives, so that nothing comes back to the host
//! it left. Where PCIe joins GPUs anyway, GPUs may go NIC to NIC inside their host, as NCCL does.
//!
//! Switches with equal neighbours and proportional rates (the planes of an NVSwitch rack) become one node; its traffic
//! is spread over them by rate.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use topology::plan::{EdgePath, LinkPolicy, PlanRank};
use topology::snapshot::NicRole;
use topology::{
    Finding, Fraction, GpuIndex, HostId, LinkKind, PlanRequest, Rank, Severity, Topology, VertexId,
    VertexKind,
};

use crate::flow_graph::{FlowEdge, FlowGraph};
use crate::network::Network;
use crate::plan_error::PlanError;

mod layers;
mod reduce;
mod switches;

/// Names a link, or a pair of nodes without one.
pub(crate) type Pool = (VertexId, VertexId, Option<(usize, usize)>);

/// What is planned on.
#[derive(Clone, Debug)]
pub struct Model {
    /// Capacities in kB/s. Every plan on it keeps the topology's capacities.
    pub graph: FlowGraph,
    /// A graph on which no plan that keeps the rules can be better, where `graph` itself is not that.
    relaxed: Option<(FlowGraph, reduce::Members)>,
    /// By rank.
    pub ranks: Vec<PlanRank>,
    /// Host of each rank, counted from 0 over the hosts that take part.
    pub hosts: Vec<usize>,
    /// Whether NVLink, xGMI or a link graph's edges join the GPUs of every host.
    pub gpu_links: bool,
    /// What was given up, in making the graph.
    pub findings: Vec<Finding>,
    /// By host of `hosts`, whether its GPUs are joined without PCIe, which then carries nothing between them.
    joined: Vec<bool>,
    /// By vertex, whether it is a GPU or a switch of GPUs' links.
    between_gpus: Vec<bool>,
    /// Vertices a node stands for, each with its part of the traffic.
    members: reduce::Members,
    /// The ways of a hop over this node alone.
    over: Vec<Vec<EdgePath>>,
    names: Vec<String>,
    nics: BTreeSet<String>,
}

impl Model {
    /// The graph for a request.
    ///
    /// # Errors
    /// Where a GPU does not exist, is named twice, is the only one, or cannot reach another.
    pub fn new(topology: &Topology, request: &PlanRequest) -> Result<Self, PlanError> {
        let gpus = requested_gpus(topology, request)?;
        let names: Vec<String> = topology.graph().node_weights().map(|v| v.name.clone()).collect();
        let mut hosts: Vec<HostId> = Vec::new();
        let mut host_of_rank = Vec::with_capacity(gpus.len());
        let mut ranks = Vec::with_capacity(gpus.len());
        for (rank, &gpu) in gpus.iter().enumerate() {
            let vertex = topology.vertex(gpu);
            let host = vertex.host.unwrap_or_default();
            if hosts.last() != Some(&host) {
                hosts.push(host);
            }
            host_of_rank.push(hosts.len() - 1);
            ranks.push(plan_rank(topology, gpu, host, rank));
        }

        let mut findings = Vec::new();
        let mut draft = Draft::new(topology, &gpus);
        for &host in &hosts {
            let of_host: Vec<VertexId> = gpus
                .iter()
                .copied()
                .filter(|gpu| topology.vertex(*gpu).host.unwrap_or_default() == host)
                .collect();
            let apart = not_joined_by_gpu_links(topology, &of_host);
            if request.links == LinkPolicy::Auto && apart.is_empty() {
                draft.joined.insert(host);
            } else if request.links == LinkPolicy::Auto {
                findings.extend(not_joined(topology, &of_host, &apart));
            }
        }
        for &host in &hosts {
            if !draft.joined.contains(&host) {
                draft.everything(host);
                continue;
            }
            draft.gpu_links(host);
            if hosts.len() > 1 {
                draft.nic_traffic(host);
            }
        }
        draft.fabrics();
        draft.switches();
        let joined: Vec<bool> = hosts.iter().map(|host| draft.joined.contains(host)).collect();
        let gpu_links = joined.iter().all(|&joined| joined);
        let reduced = draft.finish();
        let nics = topology.nics().iter().map(|id| topology.vertex(*id).name.clone()).collect();
        let model = Self {
            graph: reduced.graph,
            relaxed: reduced.relaxed,
            ranks,
            hosts: host_of_rank,
            gpu_links,
            findings,
            joined,
            between_gpus: topology.graph().node_weights().map(|v| joins(&v.kind)).collect(),
            over: over(&reduced.members, &names),
            members: reduced.members,
            names,
            nics,
        };
        model.connected()?;
        Ok(model)
    }

    /// How many GPUs take part.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.graph.ranks
    }

    /// The graph that bounds hold on: no plan that keeps the rules is better than the best on it.
    #[must_use]
    pub fn bound_graph(&self) -> &FlowGraph {
        self.relaxed.as_ref().map_or(&self.graph, |(graph, _)| graph)
    }

    /// Whether [`bound_graph`](Self::bound_graph) is another than `graph`: then links are shared in it.
    #[must_use]
    pub fn is_relaxed(&self) -> bool {
        self.relaxed.is_some()
    }

    /// Whether data between two ranks of one host may take a way over these nodes of [`bound_graph`](Self::bound_graph).
    pub(crate) fn may_pass(&self, from: usize, to: usize, over: &[usize]) -> bool {
        let host = self.hosts[from];
        let bound = host == self.hosts[to] && self.joined[host];
        let inside = |&node: &usize| {
            self.bound_members()[node].iter().all(|(vertex, _)| self.between_gpus[vertex.index()])
        };
        !bound || over.iter().all(inside)
    }

    /// Name of a node of [`bound_graph`](Self::bound_graph).
    #[must_use]
    pub fn bound_name(&self, node: usize) -> String {
        self.name_in(self.bound_members(), node)
    }

    /// The vertices that a node of [`bound_graph`](Self::bound_graph) stands for.
    pub(crate) fn bound_vertices(&self, node: usize) -> impl Iterator<Item = VertexId> {
        let members = self.relaxed.as_ref().map_or(&self.members, |(_, members)| members);
        members[node].iter().map(|(vertex, _)| *vertex)
    }

    /// Name of a node of `graph`, as a person would say it.
    #[must_use]
    pub fn name(&self, node: usize) -> String {
        self.name_in(&self.members, node)
    }

    fn name_in(&self, members: &reduce::Members, node: usize) -> String {
        match members[node].as_slice() {
            [(only, _)] => self.names[only.index()].clone(),
            [(first, _), .., (last, _)] => {
                format!("{} to {}", self.names[first.index()], self.names[last.index()])
            }
            [] => String::new(),
        }
    }

    /// Whether a vertex name is a NIC's.
    #[must_use]
    pub fn is_nic(&self, name: &str) -> bool {
        self.nics.contains(name)
    }

    /// The physical ways of a hop whose rate is split over node paths (inner nodes only) by share; sorted, equal ones joined,
    /// detours cut short.
    #[must_use]
    pub fn paths<'a>(
        &self,
        ways: impl IntoIterator<Item = (&'a [usize], Fraction)>,
    ) -> Vec<EdgePath> {
        let ways: Vec<(&[usize], Fraction)> = ways.into_iter().collect();
        if let [(nodes, share)] = ways[..]
            && nodes.len() < 2
        {
            let Some(&node) = nodes.first() else {
                return vec![EdgePath { via: Vec::new(), share }];
            };
            let mut paths = self.over[node].clone();
            if share != Fraction::ONE {
                paths.iter_mut().for_each(|path| path.share = path.share * share);
            }
            return paths;
        }
        self.paths_in(&self.members, ways)
    }

    /// The same for nodes of [`bound_graph`](Self::bound_graph).
    #[must_use]
    pub fn bound_paths<'a>(
        &self,
        ways: impl IntoIterator<Item = (&'a [usize], Fraction)>,
    ) -> Vec<EdgePath> {
        self.paths_in(self.bound_members(), ways)
    }

    /// The vertices a node of `graph` stands for, with their parts of its traffic.
    #[must_use]
    pub fn planes(&self, node: usize) -> Vec<(String, Fraction)> {
        self.members[node]
            .iter()
            .map(|(id, part)| (self.names[id.index()].clone(), *part))
            .collect()
    }

    /// [`bound_graph`](Self::bound_graph), in which edges for one direction of one link, one for data on its way out and
    /// one for data on its way in, draw on one pool. So a plan on it divides such links as suits it.
    #[must_use]
    pub fn network(&self) -> Network {
        Network::new(self.bound_graph(), |e| self.pool(e))
    }

    /// What an edge of [`bound_graph`](Self::bound_graph) draws on.
    pub(crate) fn pool(&self, e: &FlowEdge) -> Pool {
        let members = self.bound_members();
        let (from, to) = (members[e.from][0].0, members[e.to][0].0);
        // Between the halves of a fabric there is no link.
        (from, to, (from == to).then_some((e.from, e.to)))
    }

    fn bound_members(&self) -> &reduce::Members {
        self.relaxed.as_ref().map_or(&self.members, |(_, members)| members)
    }

    fn paths_in<'a>(
        &self,
        members: &reduce::Members,
        ways: impl IntoIterator<Item = (&'a [usize], Fraction)>,
    ) -> Vec<EdgePath> {
        let mut joined: BTreeMap<Vec<VertexId>, Fraction> = BTreeMap::new();
        for (nodes, share) in ways {
            let mut expanded: Vec<(Vec<VertexId>, Fraction)> =
                vec![(Vec::with_capacity(nodes.len()), share)];
            for &node in nodes {
                let Some((&(first, of_first), others)) = members[node].split_first() else {
                    continue;
                };
                for at in 0..expanded.len() {
                    for &(vertex, part) in others {
                        let (path, share) = &expanded[at];
                        let other = (onward(path.clone(), vertex), *share * part);
                        expanded.push(other);
                    }
                    let (path, share) = &mut expanded[at];
                    *path = onward(core::mem::take(path), first);
                    *share = *share * of_first;
                }
            }
            for (path, share) in expanded {
                let sum = joined.entry(path).or_insert(Fraction::ZERO);
                *sum = *sum + share;
            }
        }
        let name = |vertex: VertexId| self.names[vertex.index()].clone();
        let mut paths: Vec<EdgePath> = joined
            .into_iter()
            .map(|(path, share)| EdgePath { via: path.into_iter().map(name).collect(), share })
            .collect();
        paths.sort_unstable_by(|a, b| a.via.cmp(&b.via));
        paths
    }

    fn connected(&self) -> Result<(), PlanError> {
        for (graph, turned) in [(&self.graph, false), (&self.graph.reversed(), true)] {
            let mut seen = vec![false; graph.nodes];
            let mut stack = vec![0];
            seen[0] = true;
            while let Some(node) = stack.pop() {
                for edge in graph.edges.iter().filter(|e| e.from == node) {
                    if !seen[edge.to] {
                        seen[edge.to] = true;
                        stack.push(edge.to);
                    }
                }
            }
            if let Some(lost) = (0..graph.ranks).find(|rank| !seen[*rank]) {
                let (from, to) = if turned { (lost, 0) } else { (0, lost) };
                return Err(PlanError::Disconnected { from: self.name(from), to: self.name(to) });
            }
        }
        Ok(())
    }
}

/// The path with one vertex more. The two halves of a fabric are one vertex; and a way that comes back to a vertex does without what lies between.
fn onward(mut path: Vec<VertexId>, vertex: VertexId) -> Vec<VertexId> {
    match path.iter().position(|known| *known == vertex) {
        Some(at) => path.truncate(at + 1),
        None => path.push(vertex),
    }
    path
}

/// For each node the ways over it alone: one for every vertex it stands for, by name.
fn over(members: &reduce::Members, names: &[String]) -> Vec<Vec<EdgePath>> {
    let ways = |of: &Vec<(VertexId, Fraction)>| {
        let way = |(vertex, part): &(VertexId, Fraction)| EdgePath {
            via: vec![names[vertex.index()].clone()],
            share: *part,
        };
        let mut ways: Vec<EdgePath> = of.iter().map(way).collect();
        ways.sort_unstable_by(|a, b| a.via.cmp(&b.via));
        ways
    };
    members.iter().map(ways).collect()
}

/// GPUs in rank order: by host, within a host in request order.
fn requested_gpus(topology: &Topology, request: &PlanRequest) -> Result<Vec<VertexId>, PlanError> {
    let gpus = match &request.gpus {
        None => topology.gpus().to_vec(),
        Some(wanted) => {
            let mut seen = BTreeSet::new();
            if let Some(twice) = wanted.iter().find(|index| !seen.insert(**index)) {
                return Err(PlanError::GpuTwice { gpu: *twice });
            }
            let mut hosts: Vec<HostId> =
                topology.gpus().iter().filter_map(|gpu| topology.vertex(*gpu).host).collect();
            hosts.dedup();
            let mut gpus = Vec::new();
            for host in hosts {
                for &wanted in wanted {
                    let found = topology.gpu(host, wanted);
                    gpus.push(found.ok_or_else(|| unknown_gpu(topology, wanted, host))?);
                }
            }
            gpus
        }
    };
    match gpus.as_slice() {
        [] => Err(PlanError::NoGpu),
        [only] => Err(PlanError::OneGpu { gpu: topology.vertex(*only).name.clone() }),
        _ => Ok(gpus),
    }
}

fn unknown_gpu(topology: &Topology, gpu: GpuIndex, host: HostId) -> PlanError {
    let of_host = |id: &&VertexId| topology.vertex(**id).host == Some(host);
    let index = |id: &VertexId| match topology.vertex(*id).kind {
        VertexKind::Gpu { index } => Some(index),
        _ => None,
    };
    let known = topology.gpus().iter().filter(of_host).filter_map(index).collect();
    PlanError::UnknownGpu { gpu, host, known }
}

fn plan_rank(topology: &Topology, gpu: VertexId, host: HostId, rank: usize) -> PlanRank {
    let vertex = topology.vertex(gpu);
    let index = match vertex.kind {
        VertexKind::Gpu { index } => index,
        _ => GpuIndex::default(),
    };
    let facts = topology
        .hosts()
        .get(host.index())
        .and_then(|snapshot| snapshot.gpus.iter().find(|gpu| gpu.index == index));
    PlanRank {
        rank: rank_of(rank),
        host,
        gpu: index,
        bus_id: vertex.bus_id,
        uuid: facts.and_then(|gpu| gpu.uuid.clone()),
    }
}

/// A rank number from an index.
///
/// # Panics
/// Beyond 2^32 ranks, which no topology has.
#[must_use]
pub fn rank_of(index: usize) -> Rank {
    Rank(u32::try_from(index).expect("topologies have fewer than 2^32 vertices"))
}

/// Whether a link is of the kind that joins GPUs without PCIe. A POWER9 GPU's NVLink to its CPU is not.
fn joins_gpus(topology: &Topology, from: VertexId, to: VertexId, kind: LinkKind) -> bool {
    let end = |id: VertexId| joins(&topology.vertex(id).kind);
    matches!(kind, LinkKind::NvLink | LinkKind::Xgmi | LinkKind::Abstract) && end(from) && end(to)
}

/// Whether a vertex is a GPU or a switch of GPUs' links.
fn joins(kind: &VertexKind) -> bool {
    matches!(kind, VertexKind::Gpu { .. } | VertexKind::NvSwitch | VertexKind::Switch)
}

/// GPUs that NVLink, xGMI or a link graph's edges do not join with the first one, both ways.
fn not_joined_by_gpu_links(topology: &Topology, gpus: &[VertexId]) -> Vec<VertexId> {
    let graph = topology.graph();
    let absent: BTreeSet<VertexId> =
        topology.gpus().iter().copied().filter(|gpu| !gpus.contains(gpu)).collect();
    let mut next: BTreeMap<(bool, VertexId), Vec<VertexId>> = BTreeMap::new();
    for edge in graph.edge_indices() {
        let Some((from, to)) = graph.edge_endpoints(edge) else { continue };
        if joins_gpus(topology, from, to, graph[edge].kind) {
            next.entry((true, from)).or_default().push(to);
            next.entry((false, to)).or_default().push(from);
        }
    }
    let mut lost = BTreeSet::new();
    for forward in [true, false] {
        let mut seen = BTreeSet::from([gpus[0]]);
        let mut stack = vec![gpus[0]];
        while let Some(at) = stack.pop() {
            for &to in next.get(&(forward, at)).into_iter().flatten() {
                if !absent.contains(&to) && seen.insert(to) {
                    stack.push(to);
                }
            }
        }
        lost.extend(gpus.iter().copied().filter(|gpu| !seen.contains(gpu)));
    }
    lost.into_iter().collect()
}

/// Says that PCIe is used because NVLink does not connect the GPUs; nothing where the host has no such link.
fn not_joined(topology: &Topology, gpus: &[VertexId], apart: &[VertexId]) -> Option<Finding> {
    let graph = topology.graph();
    let any = graph.edge_indices().any(|edge| {
        let kind = graph[edge].kind;
        matches!(kind, LinkKind::NvLink | LinkKind::Xgmi)
            && graph
                .edge_endpoints(edge)
                .is_some_and(|(a, b)| gpus.contains(&a) && joins_gpus(topology, a, b, kind))
    });
    let names: Vec<&str> = apart.iter().map(|gpu| topology.vertex(*gpu).name.as_str()).collect();
    any.then(|| {
        Finding::new(
            "gpu-links-do-not-connect",
            Severity::Info,
            names.join(", "),
            format!(
                "no NVLink or xGMI joins {} with {}: PCIe carries traffic between GPUs too",
                names.join(", "),
                topology.vertex(gpus[0]).name
            ),
            "choose GPUs that NVLink connects, or look for links that are down",
        )
    })
}

/// A node while the graph is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    /// A vertex as it is.
    Whole(VertexId),
    /// Its part for data on the way to the fabric.
    Out(VertexId),
    /// Its part for data on the way from the fabric.
    In(VertexId),
    /// A fabric's part for what a host sends.
    Sent(VertexId, HostId),
    /// A fabric's part for what a host receives.
    Received(VertexId, HostId),
    /// A switch's part for what came from below it, or from above.
    Arrived(VertexId, bool),
    /// A switch's part for what goes up from it, or down.
    Leaving(VertexId, bool),
}

impl Node {
    fn vertex(self) -> VertexId {
        match self {
            Self::Whole(id) | Self::Out(id) | Self::In(id) => id,
            Self::Sent(id, _) | Self::Received(id, _) => id,
            Self::Arrived(id, _) | Self::Leaving(id, _) => id,
        }
    }
}

/// Directed capacities between nodes: what a plan may use, and what no plan can exceed.
struct Draft<'t> {
    topology: &'t Topology,
    ranks: &'t [VertexId],
    /// Hosts whose GPUs are joined without PCIe.
    joined: BTreeSet<HostId>,
    edges: BTreeMap<(Node, Node), Capacity>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Capacity {
    usable: u64,
    relaxed: u64,
}

/// A directed link of one host, or between its NICs and the fabric.
#[derive(Clone, Copy, Debug)]
struct HostLink {
    from: VertexId,
    to: VertexId,
    capacity: u64,
}

impl<'t> Draft<'t> {
    fn new(topology: &'t Topology, ranks: &'t [VertexId]) -> Self {
        Self { topology, ranks, joined: BTreeSet::new(), edges: BTreeMap::new() }
    }

    fn add(&mut self, from: Node, to: Node, usable: u64, relaxed: u64) {
        let sum = self.edges.entry((from, to)).or_default();
        sum.usable = sum.usable.saturating_add(usable);
        sum.relaxed = sum.relaxed.saturating_add(relaxed);
    }

    /// Links with an end on `host` that pass through no absent GPU and no NIC that is not for collectives.
    fn links(
        &self,
        host: HostId,
        wanted: impl Fn(VertexId, VertexId, LinkKind) -> bool,
    ) -> Vec<HostLink> {
        let graph = self.topology.graph();
        graph
            .edge_indices()
            .filter_map(|edge| Some((graph.edge_endpoints(edge)?, &graph[edge])))
            .filter(|((from, to), link)| {
                let here = [*from, *to].iter().any(|end| {
                    self.topology.vertex(*end).host.unwrap_or_default() == host
                        && self.topology.vertex(*end).kind != VertexKind::Fabric
                });
                here && self.allowed(*from) && self.allowed(*to) && wanted(*from, *to, link.kind)
            })
            .map(|((from, to), link)| HostLink { from, to, capacity: link.bandwidth.kbps() })
            .collect()
    }

    fn allowed(&self, id: VertexId) -> bool {
        let vertex = self.topology.vertex(id);
        match vertex.kind {
            VertexKind::Gpu { .. } => self.ranks.contains(&id),
            VertexKind::Nic { index } => {
                let host = vertex.host.unwrap_or_default();
                self.topology
                    .hosts()
                    .get(host.index())
                    .and_then(|snapshot| snapshot.nics.get(index as usize))
                    .is_none_or(|nic| nic.role != NicRole::Other)
            }
            _ => true,
        }
    }

    /// Every link of a host, forwarding anywhere.
    fn everything(&mut self, host: HostId) {
        for link in self.links(host, |_, _, _| true) {
            let from = self.fabric_end(link.from, Node::Received(link.from, host));
            let to = self.fabric_end(link.to, Node::Sent(link.to, host));
            self.add(from, to, link.capacity, link.capacity);
        }
    }

    /// The half of a fabric that a NIC's link ends at, the whole vertex for everything else.
    fn fabric_end(&self, id: VertexId, half: Node) -> Node {
        if self.topology.vertex(id).kind == VertexKind::Fabric { half } else { Node::Whole(id) }
    }

    /// Joins what hosts send to a fabric with what others receive. Hosts whose GPUs are joined without PCIe get nothing back.
    fn fabrics(&mut self) {
        let mut sent: BTreeMap<(VertexId, HostId), Capacity> = BTreeMap::new();
        let mut received = sent.clone();
        for ((from, to), capacity) in &self.edges {
            for (half, sums) in [(*to, &mut sent), (*from, &mut received)] {
                if let Node::Sent(fabric, host) | Node::Received(fabric, host) = half {
                    let sum = sums.entry((fabric, host)).or_default();
                    sum.usable = sum.usable.saturating_add(capacity.usable);
                    sum.relaxed = sum.relaxed.saturating_add(capacity.relaxed);
                }
            }
        }
        for (&(fabric, from), out) in &sent {
            for (&(other, to), into) in &received {
                if fabric == other && (from != to || !self.joined.contains(&from)) {
                    let (from, to) = (Node::Sent(fabric, from), Node::Received(fabric, to));
                    let usable = out.usable.min(into.usable);
                    self.add(from, to, usable, out.relaxed.min(into.relaxed));
                }
            }
        }
    }

    /// Links that join GPUs without PCIe.
    fn gpu_links(&mut self, host: HostId) {
        let topology = self.topology;
        for link in self.links(host, |from, to, kind| joins_gpus(topology, from, to, kind)) {
            self.add(Node::Whole(link.from), Node::Whole(link.to), link.capacity, link.capacity);
        }
    }

    /// The way from GPUs to NICs and back, in two layers.
    fn nic_traffic(&mut self, host: HostId) {
        let topology = self.topology;
        let links = self.links(host, |from, to, kind| !joins_gpus(topology, from, to, kind));
        let kind = |id: VertexId| &topology.vertex(id).kind;
        let is_gpu = |id: VertexId| matches!(kind(id), VertexKind::Gpu { .. });
        let is_nic = |id: VertexId| matches!(kind(id), VertexKind::Nic { .. });
        let is_fabric = |id: VertexId| matches!(kind(id), VertexKind::Fabric);
        let shared = layers::directions(&links, is_gpu, is_nic, is_fabric);
        for link in links {
            let HostLink { from, to, capacity } = link;
            if is_fabric(to) {
                self.add(Node::Out(from), Node::Sent(to, host), capacity, capacity);
            } else if is_fabric(from) {
                self.add(Node::Received(from, host), Node::In(to), capacity, capacity);
            } else if is_gpu(from) && is_gpu(to) {
                // Neither NVLink nor on the way to a NIC.
            } else if is_gpu(from) {
                self.add(Node::Whole(from), Node::Out(to), capacity, capacity);
            } else if is_gpu(to) {
                self.add(Node::In(from), Node::Whole(to), capacity, capacity);
            } else if is_nic(to) {
                self.add(Node::Out(from), Node::Out(to), capacity, capacity);
            } else if is_nic(from) {
                self.add(Node::In(from), Node::In(to), capacity, capacity);
            } else {
                let (out, into) = shared.get(&(from, to)).copied().unwrap_or_default();
                self.add(Node::Out(from), Node::Out(to), out, capacity);
                self.add(Node::In(from), Node::In(to), into, capacity);
            }
        }
    }

    fn finish(self) -> reduce::Reduced {
        let mut nodes: BTreeSet<Node> = self.edges.keys().flat_map(|(a, b)| [*a, *b]).collect();
        for rank in self.ranks {
            nodes.remove(&Node::Whole(*rank));
        }
        let order: Vec<Node> =
            self.ranks.iter().map(|rank| Node::Whole(*rank)).chain(nodes).collect();
        let place: BTreeMap<Node, usize> = order.iter().enumerate().map(|(i, n)| (*n, i)).collect();
        let graph = |capacity: fn(&Capacity) -> u64| {
            let edges = self.edges.iter().map(|((from, to), c)| FlowEdge {
                from: place[from],
                to: place[to],
                capacity: capacity(c),
            });
            FlowGraph::new(self.ranks.len(), order.len(), edges)
        };
        let usable = graph(|c| c.usable);
        let relaxed = graph(|c| c.relaxed);
        let vertices: Vec<VertexId> = order.iter().map(|node| node.vertex()).collect();
        // Spines are planes of one switch too.
        let plane = |id: VertexId| {
            let kind = &self.topology.vertex(id).kind;
            matches!(kind, VertexKind::NvSwitch | VertexKind::Switch | VertexKind::Fabric)
        };
        reduce::reduce(&usable, &relaxed, &vertices, plane)
    }
}
