//! Form: ranks are GPUs of the topology, channels have the shape of their pattern, hops follow links that exist.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use topology::plan::{ChannelEdge, EdgePath, LinkPolicy, Pattern, PlanRank};
use topology::{
    Channel, Collective, Fraction, HostId, LinkId, Rank, Topology, VertexId, VertexKind,
    plan::TopologyRef,
};

use super::violation::{Place, Violation, ViolationKind};
use super::{exact, policy};

/// What a hop puts on a link: which of the [`Parts`] of its data. A link may occur several times.
pub(super) type HopLoad = Vec<(LinkId, u32)>;

/// The few parts that many hops put on their many links.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts(Vec<Fraction>);

impl Parts {
    pub(super) fn of(&self, part: u32) -> Fraction {
        self.0[part as usize]
    }

    /// Its number; what was added lately is not added again.
    fn number(&mut self, part: Fraction) -> u32 {
        let recent = self.0.iter().rev().take(4).position(|known| *known == part);
        let place = recent.map_or(self.0.len(), |back| self.0.len() - 1 - back);
        if recent.is_none() {
            self.0.push(part);
        }
        u32::try_from(place).expect("fewer parts than a plan has hops")
    }
}

/// A vertex that links lead to, and those links with their parts of what crosses.
type Bundle = (VertexId, Vec<(LinkId, Fraction)>);

/// Which way a tree's hops run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the root.
    Down,
    /// Towards the root.
    Up,
}

/// The plan names this topology.
pub(super) fn topology_ref(topology: &Topology, plan: &TopologyRef, found: &mut Vec<Violation>) {
    let at = Place::default();
    if plan.fingerprint != topology.fingerprint() {
        found.push(at.violation(ViolationKind::Fingerprint {
            plan: plan.fingerprint.clone(),
            topology: topology.fingerprint().into(),
        }));
    }
    if plan.rates != topology.rates() {
        found.push(
            at.violation(ViolationKind::Rates { plan: plan.rates, topology: topology.rates() }),
        );
    }
}

/// The vertex of each rank; `None` where one has none, which is then reported.
pub(super) fn ranks(
    topology: &Topology,
    ranks: &[PlanRank],
    found: &mut Vec<Violation>,
) -> Option<Vec<VertexId>> {
    let before = found.len();
    let mut report = |kind| found.push(Place::default().violation(kind));
    if ranks.is_empty() {
        report(ViolationKind::NoRanks);
    }
    let mut taken = BTreeMap::new();
    let mut vertices = Vec::with_capacity(ranks.len());
    for (place, rank) in ranks.iter().enumerate() {
        if rank.rank.index() != place {
            report(ViolationKind::RankPlace { rank: rank.rank, place });
        }
        let Some(id) = topology.gpu(rank.host, rank.gpu) else {
            report(ViolationKind::UnknownGpu { rank: rank.rank, host: rank.host, gpu: rank.gpu });
            continue;
        };
        if let Some(first) = taken.insert(id, rank.rank) {
            report(ViolationKind::SameGpu { first, second: rank.rank });
        }
        let known = topology.vertex(id).bus_id;
        if rank.bus_id != known {
            report(ViolationKind::BusId { rank: rank.rank, plan: rank.bus_id, topology: known });
        }
        let facts = topology.hosts().get(rank.host.index());
        let gpu = facts.and_then(|host| host.gpus.iter().find(|gpu| gpu.index == rank.gpu));
        if let (Some(plan), Some(known)) = (&rank.uuid, gpu.and_then(|gpu| gpu.uuid.as_ref()))
            && plan != known
        {
            report(ViolationKind::Uuid {
                rank: rank.rank,
                plan: plan.clone(),
                topology: known.clone(),
            });
        }
        vertices.push(id);
    }
    (found.len() == before).then_some(vertices)
}

/// The shape of one channel, whatever it carries.
pub(super) fn channel(channel: &Channel, count: usize, at: Place, found: &mut Vec<Violation>) {
    let before = found.len();
    if channel.collectives.is_empty() {
        found.push(at.violation(ViolationKind::NoCollective));
    }
    for (place, collective) in channel.collectives.iter().enumerate() {
        if channel.collectives[..place].contains(collective) {
            found.push(at.collective(*collective).violation(ViolationKind::CollectiveTwice));
        }
    }
    if channel.share <= Fraction::ZERO {
        found.push(at.violation(ViolationKind::Share { share: channel.share }));
    }
    let named = channel.ranks.iter().chain(&channel.root);
    let on_edges = channel.all_edges().flat_map(|edge| [&edge.from, &edge.to]);
    let unknown: BTreeSet<Rank> =
        named.chain(on_edges).filter(|rank| rank.index() >= count).copied().collect();
    for rank in unknown {
        found.push(at.violation(ViolationKind::UnknownRank { rank }));
    }
    for edge in channel.all_edges().filter(|edge| edge.from == edge.to) {
        found.push(at.edge(edge.from, edge.to).violation(ViolationKind::SelfEdge));
    }
    if found.len() > before {
        return;
    }
    match channel.pattern {
        Pattern::Ring => ring(channel, count, at, found),
        Pattern::Tree => {
            for (_, at, edges, direction) in tree_parts(channel, at) {
                tree(channel.root, edges, direction, count, at, found);
            }
            if !channel.ranks.is_empty() {
                found.push(at.violation(superfluous(Pattern::Tree, "ring order")));
            }
            if !channel.reduce_edges.is_empty()
                && !channel.collectives.contains(&Collective::AllReduce)
            {
                found.push(at.violation(superfluous(Pattern::Tree, "way up without all-reduce")));
            }
        }
        Pattern::Pairs => {
            if !channel.ranks.is_empty() {
                found.push(at.violation(superfluous(Pattern::Pairs, "ring order")));
            }
        }
        Pattern::Rounds => {
            for (there, field) in [
                (!channel.ranks.is_empty(), "ring order"),
                (channel.root.is_some(), "root"),
                (!channel.reduce_edges.is_empty(), "way up"),
            ] {
                if there {
                    found.push(at.violation(superfluous(Pattern::Rounds, field)));
                }
            }
        }
    }
}

/// The lists of hops of a tree with the way each must run, once per way: what the tree's collectives make of them.
fn tree_parts(
    channel: &Channel,
    at: Place,
) -> impl Iterator<Item = (Collective, Place, &[ChannelEdge], Direction)> {
    let mut seen = Vec::new();
    channel
        .collectives
        .iter()
        .flat_map(move |collective| {
            ways(channel, *collective)
                .into_iter()
                .map(move |(edges, way)| (*collective, at.collective(*collective), edges, way))
        })
        .filter(move |(_, _, edges, way)| {
            let key = (edges.as_ptr(), *way);
            let first = !seen.contains(&key);
            seen.push(key);
            first
        })
}

/// The lists of a tree's hops that `collective` runs over, in the order it does.
pub(super) fn ways(channel: &Channel, collective: Collective) -> Vec<(&[ChannelEdge], Direction)> {
    match collective {
        Collective::AllReduce | Collective::Barrier => {
            vec![(&channel.reduce_edges, Direction::Up), (&channel.edges, Direction::Down)]
        }
        Collective::ReduceScatter | Collective::Reduce => vec![(&channel.edges, Direction::Up)],
        Collective::AllGather | Collective::Broadcast => vec![(&channel.edges, Direction::Down)],
        // No tree carries these; `semantics` says so.
        Collective::AllToAll | Collective::Gather | Collective::Scatter | Collective::SendRecv => {
            Vec::new()
        }
    }
}

fn superfluous(pattern: Pattern, field: &'static str) -> ViolationKind {
    ViolationKind::Superfluous { pattern, field }
}

/// One edge per hop in ring order, over all ranks.
fn ring(channel: &Channel, count: usize, at: Place, found: &mut Vec<Violation>) {
    if channel.root.is_some() {
        found.push(at.violation(superfluous(Pattern::Ring, "root")));
    }
    if !channel.reduce_edges.is_empty() {
        found.push(at.violation(superfluous(Pattern::Ring, "way up")));
    }
    let mut visits = vec![0_usize; count];
    for rank in &channel.ranks {
        visits[rank.index()] += 1;
    }
    if let Some((rank, times)) = (0..).map(Rank).zip(visits).find(|(_, times)| *times != 1) {
        found.push(at.violation(ViolationKind::RingOrder { rank, times }));
        return;
    }
    // One rank alone has nobody to send to.
    let expected = if count == 1 { 0 } else { count };
    if channel.edges.len() != expected {
        found.push(at.violation(ViolationKind::EdgeCount {
            pattern: Pattern::Ring,
            found: channel.edges.len(),
            expected,
        }));
    }
    for (hop, edge) in channel.edges.iter().enumerate().take(expected) {
        let expected = (channel.ranks[hop], channel.ranks[(hop + 1) % count]);
        if (edge.from, edge.to) != expected {
            let at = at.edge(edge.from, edge.to);
            found.push(at.violation(ViolationKind::RingHop { hop, expected }));
        }
    }
}

/// A spanning tree whose hops are listed in an order they can be executed in.
fn tree(
    root: Option<Rank>,
    edges: &[ChannelEdge],
    direction: Direction,
    count: usize,
    at: Place,
    found: &mut Vec<Violation>,
) {
    let Some(root) = root else {
        found.push(at.violation(ViolationKind::NoRoot));
        return;
    };
    if edges.len() + 1 != count {
        found.push(at.violation(ViolationKind::EdgeCount {
            pattern: Pattern::Tree,
            found: edges.len(),
            expected: count - 1,
        }));
    }
    // Down: who has the data. Up: who has passed its sum on.
    let mut done = vec![false; count];
    if direction == Direction::Down {
        done[root.index()] = true;
    }
    for edge in edges {
        let at = at.edge(edge.from, edge.to);
        let (from, to) = (edge.from.index(), edge.to.index());
        match direction {
            Direction::Down => {
                if !done[from] {
                    found.push(
                        at.violation(ViolationKind::SendsBeforeReceiving { rank: edge.from }),
                    );
                }
                if done[to] {
                    found.push(at.violation(ViolationKind::ReachedTwice { rank: edge.to }));
                }
                done[to] = true;
            }
            Direction::Up => {
                if done[from] || edge.from == root {
                    found.push(at.violation(ViolationKind::SendsTwice { rank: edge.from }));
                }
                if done[to] {
                    found.push(at.violation(ViolationKind::ReceivesAfterSending { rank: edge.to }));
                }
                done[from] = true;
            }
        }
    }
    for (rank, done) in (0..).map(Rank).zip(done) {
        if !done && (direction == Direction::Down || rank != root) {
            found.push(at.violation(ViolationKind::NotSpanned { rank }));
        }
    }
}

/// Links by their ends, and names by their vertices, for the many hops of a plan.
#[derive(Debug)]
pub(super) struct Walker<'a> {
    topology: &'a Topology,
    /// By tail: heads in order, each with the links there and their parts of what crosses.
    heads: Vec<Vec<Bundle>>,
    /// Hosts whose PCIe must not carry data between their ranks.
    off_pcie: BTreeSet<HostId>,
}

impl<'a> Walker<'a> {
    pub(super) fn new(topology: &'a Topology, ranks: &[VertexId], links: LinkPolicy) -> Self {
        let graph = topology.graph();
        let of_tail = |tail: VertexId| {
            let links = topology.links_from(tail);
            links
                .chunk_by(|a, b| a.1 == b.1)
                .map(|same| (same[0].1, bundle(topology, same)))
                .collect()
        };
        Self {
            topology,
            heads: graph.node_indices().map(of_tail).collect(),
            off_pcie: policy::hosts_off_pcie(topology, ranks, links),
        }
    }

    pub(super) fn topology(&self) -> &'a Topology {
        self.topology
    }

    fn between(&self, from: VertexId, to: VertexId) -> Option<&[(LinkId, Fraction)]> {
        let heads = &self.heads[from.index()];
        let place = heads.binary_search_by_key(&to, |(head, _)| *head).ok()?;
        Some(&heads[place].1)
    }
}

/// A path names vertices, so parallel links share it as a bundle does: in proportion to their rates. Dead links carry nothing.
fn bundle(topology: &Topology, links: &[(LinkId, VertexId)]) -> Vec<(LinkId, Fraction)> {
    let rate = |link: LinkId| topology.link(link).bandwidth.kbps();
    let total: u64 = links.iter().map(|(link, _)| rate(*link)).sum();
    let alive = links.iter().map(|(link, _)| *link).filter(|link| rate(*link) > 0);
    alive.map(|link| (link, Fraction::of(rate(link), total))).collect()
}

/// Hops that were followed, for those that take the same ways.
#[derive(Debug, Default)]
pub(super) struct Followed<'a> {
    /// By ends, and whether ranks may forward.
    hops: BTreeMap<(Rank, Rank, bool), Vec<Ways<'a>>>,
    /// Those that the loads of all hops name.
    parts: Parts,
}

/// The ways of a hop, and what it puts on links.
type Ways<'a> = (&'a [EdgePath], Sound);

/// What a hop without violations puts on links, and the NICs it crosses.
#[derive(Clone, Debug)]
struct Sound {
    load: HopLoad,
    nics: Vec<VertexId>,
}

/// Ways kept for a pair of ranks: beyond it they are followed again.
const MOST_FOLLOWED: usize = 8;

impl<'a> Followed<'a> {
    /// The parts so far.
    pub(super) fn parts(&self) -> Parts {
        self.parts.clone()
    }

    fn find(&self, edge: &ChannelEdge, relayed: bool) -> Option<&Sound> {
        let known = self.hops.get(&(edge.from, edge.to, relayed))?;
        known.iter().find(|(paths, _)| *paths == edge.paths).map(|(_, sound)| sound)
    }

    fn keep(&mut self, edge: &'a ChannelEdge, relayed: bool, sound: Sound) {
        let known = self.hops.entry((edge.from, edge.to, relayed)).or_default();
        if known.len() < MOST_FOLLOWED {
            known.push((&edge.paths, sound));
        }
    }
}

/// The loads of each hop of a channel, the way up first, as [`Channel::all_edges`] lists them.
pub(super) fn hops<'a>(
    walker: &Walker<'_>,
    vertices: &[VertexId],
    channel: &'a Channel,
    followed: &mut Followed<'a>,
    at: Place,
    found: &mut Vec<Violation>,
) -> Vec<HopLoad> {
    let topology = walker.topology;
    let mut loads = Vec::new();
    let mut nics: BTreeSet<VertexId> = BTreeSet::new();
    // Ranks that take part may forward for a pair; a tree or ring has a hop for each rank it passes.
    let relayed = matches!(channel.pattern, Pattern::Pairs | Pattern::Rounds);
    let relays = if relayed { vertices } else { &[] };
    // Hops after one another often cross the same vertices in the same order.
    let mut names = Names { topology, known: Vec::new() };
    for edge in channel.all_edges() {
        if let Some(sound) = followed.find(edge, relayed) {
            nics.extend(&sound.nics);
            loads.push(sound.load.clone());
            continue;
        }
        let before = found.len();
        let at = at.edge(edge.from, edge.to);
        let ends = (vertices[edge.from.index()], vertices[edge.to.index()]);
        let parts = &mut followed.parts;
        let sound = hop(walker, ends, edge, (relays, &mut names, parts), at, found);
        nics.extend(&sound.nics);
        loads.push(sound.load.clone());
        if found.len() == before {
            followed.keep(edge, relayed, sound);
        }
    }
    let nics: BTreeSet<&str> = nics.iter().map(|id| topology.vertex(*id).name.as_str()).collect();
    let listed: BTreeSet<&str> = channel.nics.iter().map(String::as_str).collect();
    for &name in listed.symmetric_difference(&nics) {
        let kind = ViolationKind::Nics { name: name.into(), listed: listed.contains(name) };
        found.push(at.violation(kind));
    }
    loads
}

/// Vertices by name, those of the hop before first.
struct Names<'a> {
    topology: &'a Topology,
    known: Vec<(&'a str, VertexId)>,
}

impl<'a> Names<'a> {
    /// The vertex of the hop's name number `place`.
    fn find(&mut self, place: usize, name: &'a str) -> Option<VertexId> {
        match self.known.get(place) {
            Some((known, id)) if *known == name => Some(*id),
            _ => {
                let id = self.topology.find(name)?;
                self.known.truncate(place);
                self.known.push((name, id));
                Some(id)
            }
        }
    }
}

/// Follows the ways of one hop between two vertices, over no GPUs but `relays`.
fn hop<'a>(
    walker: &Walker<'_>,
    ends: (VertexId, VertexId),
    edge: &'a ChannelEdge,
    (relays, names, parts): (&[VertexId], &mut Names<'a>, &mut Parts),
    at: Place,
    found: &mut Vec<Violation>,
) -> Sound {
    let topology = walker.topology;
    // The host that both ends are on, where its PCIe is for other traffic.
    let hosts = (topology.vertex(ends.0).host, topology.vertex(ends.1).host);
    let inside = hosts.0.filter(|host| hosts.1 == Some(*host));
    let off_pcie = inside.is_some_and(|host| walker.off_pcie.contains(&host));
    let mut load = HopLoad::with_capacity(2 * edge.paths.len());
    let mut nics = Vec::new();
    let mut crossed = Vec::new();
    if edge.paths.is_empty() {
        found.push(at.violation(ViolationKind::NoPath));
    }
    for path in edge.paths.iter().filter(|path| path.share <= Fraction::ZERO) {
        found.push(at.violation(ViolationKind::Share { share: path.share }));
    }
    match exact::sum(edge.paths.iter().map(|path| path.share)) {
        Some(sum) if sum == Fraction::ONE => {}
        Some(sum) => found.push(at.violation(ViolationKind::PathShares { sum })),
        None => found.push(at.violation(ViolationKind::Overflow)),
    }
    let mut place = 0;
    for path in &edge.paths {
        crossed.clear();
        let mut unknown = None;
        for via in &path.via {
            match names.find(place, via) {
                Some(id) => crossed.push(id),
                None => unknown = unknown.or(Some(via)),
            }
            place += 1;
        }
        if let Some(name) = unknown {
            found.push(at.violation(ViolationKind::UnknownVertex { name: name.clone() }));
            continue;
        }
        let before = load.len();
        match walk(walker, ends, (&crossed, path.share), relays, parts, &mut load) {
            Ok(()) => {
                let is_nic =
                    |id: &VertexId| matches!(topology.vertex(*id).kind, VertexKind::Nic { .. });
                nics.extend(crossed.iter().copied().filter(is_nic));
                if off_pcie {
                    found.extend(over_pcie(topology, &load[before..]).map(|k| at.violation(k)));
                }
            }
            Err(kind) => {
                load.truncate(before);
                found.push(at.violation(kind));
            }
        }
    }
    Sound { load, nics }
}

/// The first link that is not one between GPUs; none where the way passes from switch to switch of the network, for then PCIe carries what NICs do.
fn over_pcie(topology: &Topology, load: &[(LinkId, u32)]) -> Option<ViolationKind> {
    if load.iter().any(|(id, _)| policy::is_between_switches(topology, *id)) {
        return None;
    }
    let other = load.iter().find(|(id, _)| !policy::is_between_gpus(topology, *id))?.0;
    let (from, to) = topology.graph().edge_endpoints(other)?;
    let name = |id| topology.vertex(id).name.clone();
    let link = topology.link(other).kind;
    Some(ViolationKind::AgainstPolicy { link, from: name(from), to: name(to) })
}

/// Follows one path link by link over the vertices crossed: what it adds to `load`.
fn walk(
    walker: &Walker<'_>,
    (from, to): (VertexId, VertexId),
    (crossed, share): (&[VertexId], Fraction),
    relays: &[VertexId],
    parts: &mut Parts,
    load: &mut HopLoad,
) -> Result<(), ViolationKind> {
    let topology = walker.topology;
    let name = |id| topology.vertex(id).name.clone();
    for (place, &id) in crossed.iter().enumerate() {
        if id == from || id == to || crossed[..place].contains(&id) {
            return Err(ViolationKind::Loop { name: name(id) });
        }
        if matches!(topology.vertex(id).kind, VertexKind::Gpu { .. }) && !relays.contains(&id) {
            return Err(ViolationKind::CrossesGpu { name: name(id) });
        }
    }
    let mut here = from;
    for next in crossed.iter().copied().chain([to]) {
        let Some(links) = walker.between(here, next) else {
            return Err(ViolationKind::NoLink { from: name(here), to: name(next) });
        };
        if links.is_empty() {
            return Err(ViolationKind::DeadLink { from: name(here), to: name(next) });
        }
        for &(link, part) in links {
            let part = if part == Fraction::ONE {
                share
            } else {
                part.checked_mul(share).ok_or(ViolationKind::Overflow)?
            };
            load.push((link, parts.number(part)));
        }
        here = next;
    }
    Ok(())
}
