//! Proved upper bounds on the bandwidth of collectives, as exact fractions with the cut that proves them.
//!
//! Every bound is the same argument: a set of nodes S holds data that must leave it (or lacks data that must enter),
//! and only the edges across its border can carry it. For all-gather
//!
//! ```text
//!   T  ≥  max over S that miss a rank   |S ∩ ranks| · M/N  /  B⁺(S)          B⁺(S): capacity leaving S
//! ```
//!
//! and Edmonds' theorem on packing arborescences says this is reached. The maximum over all S is found by Newton's method on
//! the ratio: at a guess r, one maximum flow per rank tells whether a set beats r, and if so names one, whose ratio is the
//! next guess. A rank satisfied at r is satisfied at every larger r, so one ascending pass over the ranks suffices.
//!
//! Switches only forward here. A switch that multiplies or adds up data in the network can beat these bounds.

use alloc::vec;
use alloc::vec::Vec;

use num_integer::Integer;
use topology::Fraction;

use crate::balance::{self, is_balanced};
use crate::flow_graph::{FlowEdge, FlowGraph};
use crate::max_flow::{EdgeId, FlowNetwork, UNLIMITED, scaled};
use crate::served::Served;
use crate::single_source;
use crate::splitting::balanced;

/// Edges that separate two sets of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// The side the edges leave, ascending.
    pub from: Vec<usize>,
    /// The edges from it to the other nodes.
    pub edges: Vec<FlowEdge>,
    /// What they carry together.
    pub capacity: u64,
}

/// A proved upper bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpperBound {
    /// Total data of the collective per second in the graph's unit of capacity.
    pub algbw: Fraction,
    /// What proves it. One cut, or for [`all_reduce`] one around each group of ranks.
    pub cuts: Vec<Cut>,
}

/// Why there is no bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundError {
    /// Some rank cannot be reached from another; the cut has no edges.
    #[error("disconnected: {} nodes cannot reach the others", .0.from.len())]
    Disconnected(Cut),
    /// With fewer than two ranks nothing is sent.
    #[error("a collective of fewer than two ranks sends nothing")]
    TooFewRanks,
    /// Not a rank.
    #[error("{0} is not a rank")]
    NoSuchRank(usize),
    /// Capacities and weights whose products do not fit 62 bits.
    #[error("capacities and weights are too large to be compared exactly")]
    TooLarge,
}

/// The largest ratio of weight to leaving capacity, and the set that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bottleneck {
    /// w(S) / B⁺(S).
    pub ratio: Fraction,
    /// S with the edges that leave it.
    pub cut: Cut,
}

impl Cut {
    /// The edges of `graph` that leave the marked nodes.
    ///
    /// # Panics
    /// Where `inside` has another length than the graph has nodes.
    #[must_use]
    pub fn leaving(graph: &FlowGraph, inside: &[bool]) -> Self {
        assert_eq!(inside.len(), graph.nodes, "one mark per node");
        let edges: Vec<FlowEdge> =
            graph.edges.iter().filter(|e| inside[e.from] && !inside[e.to]).copied().collect();
        let capacity = edges.iter().fold(0_u64, |sum, e| sum.saturating_add(e.capacity));
        let from = (0..graph.nodes).filter(|&v| inside[v]).collect();
        Self { from, edges, capacity }
    }

    /// The edges of `graph` that enter the marked nodes.
    ///
    /// # Panics
    /// Where `inside` has another length than the graph has nodes.
    #[must_use]
    pub fn entering(graph: &FlowGraph, inside: &[bool]) -> Self {
        let outside: Vec<bool> = inside.iter().map(|&x| !x).collect();
        Self::leaving(graph, &outside)
    }

    /// Seen in the graph with every edge turned round.
    pub(crate) fn turned(self, graph: &FlowGraph) -> Self {
        let mut inside = vec![false; graph.nodes];
        self.from.iter().for_each(|&v| inside[v] = true);
        Self::entering(graph, &inside)
    }
}

impl BoundError {
    pub(crate) fn turned(self, graph: &FlowGraph) -> Self {
        match self {
            Self::Disconnected(cut) => Self::Disconnected(cut.turned(graph)),
            other => other,
        }
    }
}

/// max over sets S that miss a rank of weight(S) / B⁺(S): the time an all-gather takes per unit of data, where rank v owns
/// `weights[v]` units.
///
/// # Errors
/// [`BoundError::Disconnected`] where data cannot leave some S, [`BoundError::TooLarge`].
///
/// # Panics
/// Where there is not one weight per rank.
pub fn bottleneck(graph: &FlowGraph, weights: &[u64]) -> Result<Bottleneck, BoundError> {
    assert_eq!(weights.len(), graph.ranks, "one weight per rank");
    if graph.ranks < 2 {
        return Err(BoundError::TooFewRanks);
    }
    let unit = capacity_unit(graph);
    let total_weight = sum(weights.iter().copied())?;
    let total_capacity = sum(graph.edges.iter().map(|e| e.capacity / unit))?;
    // Every capacity below is at most this product, and so is every sum of them.
    scaled(2 * total_weight, total_capacity.max(1)).ok_or(BoundError::TooLarge)?;

    let mut entering = vec![0_u64; graph.nodes];
    graph.edges.iter().for_each(|e| entering[e.to] += e.capacity / unit);
    // The sets that miss one rank only are the most likely to be tight, and cost nothing to try.
    let mut best = (0_u64, 1_u64);
    let mut inside = vec![false; graph.nodes];
    for v in 0..graph.ranks {
        let ratio = (total_weight - weights[v], entering[v]);
        if ratio.0 > 0 && (ratio.1 == 0 || exceeds(ratio, best)) {
            inside.fill(true);
            inside[v] = false;
            if ratio.1 == 0 {
                return Err(BoundError::Disconnected(Cut::leaving(graph, &inside)));
            }
            best = reduced(ratio);
        }
    }

    let mut net = SourceNetwork::new(graph);
    net.set(graph, unit, best, weights);
    let mut served = Served::new(&net.network, net.source, net.supply);
    for v in 0..graph.ranks {
        while served.shortage(&mut net.network, v).is_some() {
            let mut side = served.side(&mut net.network);
            side.truncate(graph.nodes);
            let cut = Cut::leaving(graph, &side);
            if cut.capacity == 0 {
                return Err(BoundError::Disconnected(cut));
            }
            let weight = (0..graph.ranks).filter(|&x| side[x]).map(|x| weights[x]).sum();
            best = reduced((weight, cut.capacity / unit));
            inside = side;
            net.set(graph, unit, best, weights);
            served.renew(&net.network, net.supply);
        }
    }
    let cut = Cut::leaving(graph, &inside);
    let ratio =
        Fraction::of(best.0, best.1) * Fraction::new(1, i128::from(unit)).unwrap_or(Fraction::ONE);
    Ok(Bottleneck { ratio, cut })
}

/// All-gather: every rank's share of the data, 1/N of it, reaches every rank.
///
/// # Errors
/// [`BoundError`].
pub fn all_gather(graph: &FlowGraph) -> Result<UpperBound, BoundError> {
    let weights = vec![1; graph.ranks];
    let Bottleneck { ratio, cut } = bottleneck(graph, &weights)?;
    let found = UpperBound { algbw: whole(graph.ranks) / ratio, cuts: vec![cut] };
    Ok(forwarded(graph, &weights, found))
}

/// Edges up to which the program is faster than a long look whether it can be spared. Either way the bound is the same.
const FEW_EDGES: usize = 160;

/// The bound for roots of these weights, tightened where switches cannot forward what cuts allow: cuts alone flatter a switch that takes more
/// than it gives, or gives more than it takes.
fn forwarded(graph: &FlowGraph, weights: &[u64], found: UpperBound) -> UpperBound {
    let total = Fraction::of(weights.iter().sum(), 1);
    let ratio = total / found.algbw;
    if graph.edges.len() <= balance::MAX_EDGES
        && !is_balanced(graph)
        && !trimming_is_free(graph, weights, ratio)
        && let Some(tighter) = balance::balance(graph, weights)
        && tighter.ratio > ratio
    {
        return UpperBound { algbw: total / tighter.ratio, cuts: tighter.cuts };
    }
    found
}

/// Whether some capacities that are balanced at every switch, simply found, allow as much.
fn trimming_is_free(graph: &FlowGraph, weights: &[u64], ratio: Fraction) -> bool {
    let unit = capacity_unit(graph);
    let ratio = ratio * Fraction::of(unit, 1);
    let whole = |x: i128| u64::try_from(x).ok();
    let (Some(p), Some(q)) = (whole(ratio.numerator()), whole(ratio.denominator())) else {
        return false;
    };
    let mut edges = Vec::with_capacity(graph.edges.len());
    for e in &graph.edges {
        let Some(capacity) = scaled(e.capacity / unit, p) else { return false };
        edges.push(FlowEdge { capacity: capacity.unsigned_abs(), ..*e });
    }
    let Some(weights) = weights.iter().map(|&w| scaled(w, q)).collect::<Option<Vec<_>>>() else {
        return false;
    };
    let n = count(graph.ranks);
    let tight = FlowGraph::new(graph.ranks, graph.nodes, edges);
    let mut flows = if graph.edges.len() <= FEW_EDGES { 16 * n } else { 64 * n * n * n };
    balanced(&tight, &weights, &mut flows).is_none_or(|simple| supports(&simple, &weights))
}

/// Reduce-scatter: an all-gather backwards.
///
/// # Errors
/// [`BoundError`].
pub fn reduce_scatter(graph: &FlowGraph) -> Result<UpperBound, BoundError> {
    turned(graph, all_gather)
}

/// Broadcast from `root`: by Edmonds, the least maximum flow from it to any rank.
///
/// # Errors
/// [`BoundError`].
pub fn broadcast(graph: &FlowGraph, root: usize) -> Result<UpperBound, BoundError> {
    check_root(graph, root)?;
    let mut net = plain(graph)?;
    let mut served = Served::new(&net, root, UNLIMITED);
    let mut least: Option<Vec<bool>> = None;
    for v in (0..graph.ranks).filter(|&v| v != root) {
        if let Some(flow) = served.shortage(&mut net, v) {
            least = Some(served.side(&mut net));
            served.renew(&net, flow);
            served.add(&net, v);
        }
    }
    let side = least.ok_or(BoundError::TooLarge)?;
    bounded_by(graph, &side, |capacity| capacity)
}

/// The same, tightened where switches cannot forward what cuts allow. That takes a linear program: worth it where a plan falls short of cuts.
///
/// # Errors
/// [`BoundError`].
pub fn forwarded_broadcast(graph: &FlowGraph, root: usize) -> Result<UpperBound, BoundError> {
    let found = broadcast(graph, root)?;
    let weights: Vec<u64> = (0..graph.ranks).map(|v| u64::from(v == root)).collect();
    Ok(forwarded(graph, &weights, found))
}

/// A reduce's, tightened in the same way.
///
/// # Errors
/// [`BoundError`].
pub fn forwarded_reduce(graph: &FlowGraph, root: usize) -> Result<UpperBound, BoundError> {
    turned(graph, |graph| forwarded_broadcast(graph, root))
}

/// Reduce to `root`: a broadcast backwards.
///
/// # Errors
/// [`BoundError`].
pub fn reduce(graph: &FlowGraph, root: usize) -> Result<UpperBound, BoundError> {
    turned(graph, |graph| broadcast(graph, root))
}

/// Scatter from `root`: every rank gets its own 1/N of the data, the root keeping its part.
///
/// # Errors
/// [`BoundError`].
pub fn scatter(graph: &FlowGraph, root: usize) -> Result<UpperBound, BoundError> {
    single_source::scatter(graph, root).map(|found| found.bound)
}

/// Gather to `root`: a scatter backwards.
///
/// # Errors
/// [`BoundError`].
pub fn gather(graph: &FlowGraph, root: usize) -> Result<UpperBound, BoundError> {
    single_source::gather(graph, root).map(|found| found.bound)
}

/// One rank sends to another over as many paths as help.
///
/// # Errors
/// [`BoundError`].
pub fn send_recv(graph: &FlowGraph, from: usize, to: usize) -> Result<UpperBound, BoundError> {
    check_root(graph, from)?;
    check_root(graph, to)?;
    let mut net = plain(graph)?;
    net.max_flow(from, to, UNLIMITED);
    let side = net.source_side(&[from]);
    bounded_by(graph, &side, |capacity| capacity)
}

/// All-reduce by any schedule: in groups X₁…X_p of the ranks, every byte of the result crosses into some group at least p-1
/// times while it is reduced and p-1 times while it is spread, so
///
/// ```text
///   T  ≥  2(p-1)·M / Σ B⁻(X_i)          B⁻(X): least capacity into X, switches placed on either side
/// ```
///
/// and the same with what leaves the groups. The best of all partitions is found exactly: B⁻ is submodular, so
/// for a guess λ the partition with the least Σ (B⁻(X_i) - 2λ) comes from one minimum cut per rank (Dilworth truncation), and
/// Newton's method finds the λ where it is -2λ. On switch-free symmetric graphs this is the Nash-Williams/Tutte
/// strength, which spanning trees reach; elsewhere it is an upper bound that need not be.
///
/// # Errors
/// [`BoundError`].
pub fn all_reduce(graph: &FlowGraph) -> Result<UpperBound, BoundError> {
    // A partition counts both directions together and would not see that one of them is missing.
    bottleneck(graph, &vec![1; graph.ranks])?;
    let entering = partition(graph)?;
    if graph.is_symmetric() {
        return Ok(entering);
    }
    let leaving = turned(graph, partition)?;
    Ok(if leaving.algbw < entering.algbw { leaving } else { entering })
}

/// The partition bound by what enters the groups of a connected graph.
fn partition(graph: &FlowGraph) -> Result<UpperBound, BoundError> {
    let n = count(graph.ranks);
    let total = sum(graph.edges.iter().map(|e| e.capacity))?;
    scaled(8 * n * n, total.max(1)).ok_or(BoundError::TooLarge)?;

    let mut cuts = GroupCuts::new(graph);
    let mut groups: Vec<Cut> = Vec::new();
    for v in 0..graph.ranks {
        let group: Vec<bool> = (0..graph.ranks).map(|x| x == v).collect();
        groups.push(cuts.around(graph, &group));
    }
    loop {
        let capacity = sum(groups.iter().map(|cut| cut.capacity))?;
        // λ = a / b is this partition's bound on the algbw.
        let (a, b) = reduced((capacity, 2 * (count(groups.len()) - 1)));
        let (blocks, excess) = cuts.truncate(graph, a, b)?;
        if excess >= 0 {
            return Ok(UpperBound { algbw: Fraction::of(a, b), cuts: groups });
        }
        groups = blocks.iter().map(|block| cuts.around(graph, block)).collect();
    }
}

/// Minimum cuts around groups of ranks, switches falling on either side.
struct GroupCuts {
    network: FlowNetwork,
    edges: Vec<EdgeId>,
    from_source: Vec<EdgeId>,
    to_sink: Vec<EdgeId>,
    source: usize,
    sink: usize,
}

impl GroupCuts {
    fn new(graph: &FlowGraph) -> Self {
        let (source, sink) = (graph.nodes, graph.nodes + 1);
        let mut network = FlowNetwork::new(graph.nodes + 2);
        let edges = graph.edges.iter().map(|e| network.add_edge(e.from, e.to, 0)).collect();
        let from_source = (0..graph.ranks).map(|v| network.add_edge(source, v, 0)).collect();
        let to_sink = (0..graph.ranks).map(|v| network.add_edge(v, sink, 0)).collect();
        Self { network, edges, from_source, to_sink, source, sink }
    }

    fn scale(&mut self, graph: &FlowGraph, factor: u64) {
        for (&id, edge) in self.edges.iter().zip(&graph.edges) {
            // In range: the caller checked the product with the sum of all capacities.
            self.network.set_capacity(id, scaled(factor, edge.capacity).unwrap_or(UNLIMITED));
        }
    }

    /// The least cut into the group.
    fn around(&mut self, graph: &FlowGraph, group: &[bool]) -> Cut {
        self.scale(graph, 1);
        for (v, &inside) in group.iter().enumerate() {
            self.network.set_capacity(self.from_source[v], if inside { 0 } else { UNLIMITED });
            self.network.set_capacity(self.to_sink[v], if inside { UNLIMITED } else { 0 });
        }
        self.network.max_flow(self.source, self.sink, UNLIMITED);
        let mut side = self.network.source_side(&[self.source]);
        side.truncate(graph.nodes);
        Cut::leaving(graph, &side)
    }

    /// The partition with the least Σ (b·B⁻(X_i) - 2a), and by how much that sum exceeds -2a (never above zero: one group
    /// of all ranks has exactly -2a).
    ///
    /// Greedily, rank by rank, y_v is the most the new rank can be given such that no group of the ranks so far is given more
    /// than its b·B⁻ - 2a. Groups that are given exactly as much unite where they meet, as B⁻ is submodular.
    fn truncate(
        &mut self,
        graph: &FlowGraph,
        a: u64,
        b: u64,
    ) -> Result<(Vec<Vec<bool>>, i64), BoundError> {
        let n = graph.ranks;
        let price = scaled(2, a).ok_or(BoundError::TooLarge)?;
        self.scale(graph, b);
        let mut given: Vec<i64> = Vec::with_capacity(n);
        let mut blocks: Vec<Vec<bool>> = Vec::new();
        for v in 0..n {
            for x in 0..n {
                let (source, sink) = match given.get(x) {
                    // Ranks still to come stay outside; the new one is inside.
                    None if x == v => (0, UNLIMITED),
                    None => (UNLIMITED, 0),
                    Some(&y) if y >= 0 => (0, y),
                    Some(&y) => (-y, 0),
                };
                self.network.set_capacity(self.from_source[x], source);
                self.network.set_capacity(self.to_sink[x], sink);
            }
            let flow = self.network.max_flow(self.source, self.sink, UNLIMITED);
            let side = self.network.source_side(&[self.source]);
            // flow = b·B⁻(X) + what inside was given below zero + what outside was given above zero.
            let positive: i64 = given.iter().filter(|&&y| y > 0).sum();
            given.push(flow - positive - price);
            let mut block: Vec<bool> = (0..n).map(|x| !side[x]).collect();
            blocks.retain(|other| {
                let meet = other.iter().zip(&block).any(|(&o, &b)| o && b);
                if meet {
                    block.iter_mut().zip(other).for_each(|(b, &o)| *b |= o);
                }
                !meet
            });
            blocks.push(block);
        }
        Ok((blocks, given.iter().sum::<i64>() + price))
    }
}

/// A graph with a source that supplies every rank: the network of [`bottleneck`].
#[derive(Clone, Debug)]
pub(crate) struct SourceNetwork {
    pub(crate) network: FlowNetwork,
    pub(crate) edges: Vec<EdgeId>,
    pub(crate) supplies: Vec<EdgeId>,
    pub(crate) source: usize,
    /// Sum of the supplies.
    pub(crate) supply: i64,
}

impl SourceNetwork {
    pub(crate) fn new(graph: &FlowGraph) -> Self {
        let source = graph.nodes;
        let mut network = FlowNetwork::new(graph.nodes + 1);
        let edges = graph.edges.iter().map(|e| network.add_edge(e.from, e.to, 0)).collect();
        let supplies = (0..graph.ranks).map(|v| network.add_edge(source, v, 0)).collect();
        Self { network, edges, supplies, source, supply: 0 }
    }

    /// With capacities and weights as they are; `None` where they are too large.
    pub(crate) fn whole(graph: &FlowGraph, weights: &[i64]) -> Option<Self> {
        let mut net = Self::new(graph);
        for (&id, edge) in net.edges.iter().zip(&graph.edges) {
            net.network.set_capacity(id, scaled(edge.capacity, 1)?);
        }
        for (&id, &weight) in net.supplies.iter().zip(weights) {
            net.network.set_capacity(id, weight);
        }
        net.supply = weights.iter().sum();
        Some(net)
    }

    /// Edges get `p` times their capacity in units, supplies `q` times the weight.
    fn set(&mut self, graph: &FlowGraph, unit: u64, (p, q): (u64, u64), weights: &[u64]) {
        // In range: the caller checked the products of the sums.
        for (&id, edge) in self.edges.iter().zip(&graph.edges) {
            self.network.set_capacity(id, scaled(p, edge.capacity / unit).unwrap_or(UNLIMITED));
        }
        self.supply = 0;
        for (&id, &weight) in self.supplies.iter().zip(weights) {
            let supply = scaled(q, weight).unwrap_or(UNLIMITED);
            self.network.set_capacity(id, supply);
            self.supply += supply;
        }
    }
}

/// Whether every rank can be sent everything that the ranks own at once.
pub(crate) fn supports(graph: &FlowGraph, weights: &[i64]) -> bool {
    SourceNetwork::whole(graph, weights)
        .is_some_and(|mut net| Served::all(&mut net.network, net.source, graph.ranks, net.supply))
}

/// The largest unit in which all capacities are whole numbers.
pub(crate) fn capacity_unit(graph: &FlowGraph) -> u64 {
    graph.edges.iter().fold(0, |unit, e| e.capacity.gcd(&unit)).max(1)
}

fn plain(graph: &FlowGraph) -> Result<FlowNetwork, BoundError> {
    let mut net = FlowNetwork::new(graph.nodes);
    let total = sum(graph.edges.iter().map(|e| e.capacity))?;
    scaled(total, 2).ok_or(BoundError::TooLarge)?;
    for edge in &graph.edges {
        net.add_edge(edge.from, edge.to, scaled(edge.capacity, 1).ok_or(BoundError::TooLarge)?);
    }
    Ok(net)
}

fn bounded_by(
    graph: &FlowGraph,
    side: &[bool],
    algbw: impl Fn(u64) -> u64,
) -> Result<UpperBound, BoundError> {
    let cut = Cut::leaving(graph, side);
    if cut.capacity == 0 {
        return Err(BoundError::Disconnected(cut));
    }
    Ok(UpperBound { algbw: Fraction::of(algbw(cut.capacity), 1), cuts: vec![cut] })
}

/// Bounds `graph` by `bound` of the graph turned round.
pub(crate) fn turned(
    graph: &FlowGraph,
    bound: impl Fn(&FlowGraph) -> Result<UpperBound, BoundError>,
) -> Result<UpperBound, BoundError> {
    let UpperBound { algbw, cuts } = bound(&graph.reversed()).map_err(|e| e.turned(graph))?;
    Ok(UpperBound { algbw, cuts: cuts.into_iter().map(|cut| cut.turned(graph)).collect() })
}

/// A bound of what leaves a root as one of what gets to it, by a map that takes every way to one back and ranks to themselves.
pub(crate) fn mirrored(found: UpperBound, graph: &FlowGraph, mirror: &[usize]) -> UpperBound {
    let image = |cut: &Cut| {
        let mut inside = vec![false; graph.nodes];
        cut.from.iter().for_each(|&v| inside[mirror[v]] = true);
        Cut::entering(graph, &inside)
    };
    UpperBound { algbw: found.algbw, cuts: found.cuts.iter().map(image).collect() }
}

pub(crate) fn check_root(graph: &FlowGraph, root: usize) -> Result<(), BoundError> {
    if root >= graph.ranks {
        return Err(BoundError::NoSuchRank(root));
    }
    if graph.ranks < 2 { Err(BoundError::TooFewRanks) } else { Ok(()) }
}

fn exceeds(a: (u64, u64), b: (u64, u64)) -> bool {
    u128::from(a.0) * u128::from(b.1) > u128::from(b.0) * u128::from(a.1)
}

pub(crate) fn reduced((p, q): (u64, u64)) -> (u64, u64) {
    let g = p.gcd(&q).max(1);
    (p / g, q / g)
}

pub(crate) fn sum(mut values: impl Iterator<Item = u64>) -> Result<u64, BoundError> {
    values
        .try_fold(0_u64, u64::checked_add)
        .filter(|&s| s < u64::MAX / 4)
        .ok_or(BoundError::TooLarge)
}

pub(crate) fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

pub(crate) fn whole(n: usize) -> Fraction {
    Fraction::integer(i128::from(count(n)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_graphs::{BarCase, bars, connected_graph, edge, graph, relabelled};
    use proptest::prelude::*;

    /// Two GPUs, a switch between them, 3 one way and 5 the other.
    fn lopsided() -> FlowGraph {
        graph(2, 3, &[(0, 2, 3), (2, 1, 3), (1, 2, 5), (2, 0, 5)])
    }

    /// A switch that is given 10 cannot give both of two ranks 10, and these pass on 3 to each other.
    #[test]
    fn a_switch_does_not_multiply_a_broadcast() {
        let edges = [(0, 3, 10), (3, 1, 10), (3, 2, 10), (1, 2, 3), (2, 1, 3)];
        let g = graph(3, 4, &edges);
        assert_eq!(broadcast(&g, 0).unwrap().algbw, Fraction::integer(10));
        assert_eq!(forwarded_broadcast(&g, 0).unwrap().algbw, Fraction::integer(8));
        let back = g.reversed();
        assert_eq!(reduce(&back, 0).unwrap().algbw, Fraction::integer(10));
        assert_eq!(forwarded_reduce(&back, 0).unwrap().algbw, Fraction::integer(8));
    }

    #[test]
    fn cuts_are_named_in_the_direction_of_their_edges() {
        let g = lopsided();
        let bound = all_gather(&g).unwrap();
        assert_eq!(bound.algbw, Fraction::integer(6));
        let cut = &bound.cuts[0];
        assert_eq!((cut.capacity, cut.edges.len()), (3, 1));
        assert!(cut.from.contains(&0) && !cut.from.contains(&1));
        let bound = reduce_scatter(&g).unwrap();
        assert_eq!(bound.algbw, Fraction::integer(6));
        assert!(bound.cuts[0].from.contains(&0) && !bound.cuts[0].from.contains(&1));
        for (root, rate) in [(0, 3), (1, 5)] {
            assert_eq!(broadcast(&g, root).unwrap().algbw, Fraction::integer(rate));
            assert_eq!(reduce(&g, 1 - root).unwrap().algbw, Fraction::integer(rate));
            assert_eq!(scatter(&g, root).unwrap().algbw, Fraction::integer(2 * rate));
            assert_eq!(gather(&g, 1 - root).unwrap().algbw, Fraction::integer(2 * rate));
            assert_eq!(send_recv(&g, root, 1 - root).unwrap().algbw, Fraction::integer(rate));
        }
        assert_eq!(all_reduce(&g).unwrap().algbw, Fraction::integer(4));
    }

    #[test]
    fn what_cannot_be_bounded_is_said() {
        let g = graph(3, 3, &[(0, 1, 1), (1, 0, 1), (2, 0, 1)]);
        for result in [all_gather(&g), broadcast(&g, 0), scatter(&g, 1), all_reduce(&g)] {
            let Err(BoundError::Disconnected(cut)) = result else { panic!("{result:?}") };
            assert!(!cut.from.contains(&2) && cut.edges.is_empty());
        }
        let Err(BoundError::Disconnected(cut)) = reduce(&g.reversed(), 0) else { panic!() };
        assert_eq!(cut.from, [2]);
        assert_eq!(all_gather(&graph(1, 1, &[])), Err(BoundError::TooFewRanks));
        assert_eq!(broadcast(&lopsided(), 2), Err(BoundError::NoSuchRank(2)));
        let huge = graph(2, 2, &[(0, 1, u64::MAX / 8), (1, 0, u64::MAX / 8 - 1)]);
        assert_eq!(all_gather(&huge), Err(BoundError::TooLarge));
        // A common factor costs nothing.
        let large = graph(2, 2, &[(0, 1, 1 << 60), (1, 0, 1 << 60)]);
        assert_eq!(all_gather(&large).unwrap().algbw, Fraction::integer(1 << 61));
    }

    #[test]
    fn weights_move_the_bottleneck() {
        let g = lopsided();
        assert_eq!(bottleneck(&g, &[3, 5]).unwrap().ratio, Fraction::ONE);
        assert_eq!(bottleneck(&g, &[0, 5]).unwrap().ratio, Fraction::ONE);
        assert_eq!(bottleneck(&g, &[0, 0]).unwrap().ratio, Fraction::ZERO);
    }

    /// Every exact optimum in the bars, to the last digit.
    #[test]
    fn bars_are_met_exactly() {
        let Some(cases) = bars() else { return };
        for BarCase { name, graph, r_star, broadcasts, all_reduce: reduce_bar, .. } in &cases {
            let n = whole(graph.ranks);
            assert_eq!(all_gather(graph).unwrap().algbw, n / *r_star, "{name}");
            assert_eq!(reduce_scatter(graph).unwrap().algbw, n / *r_star, "{name}");
            for &(root, rate) in broadcasts {
                assert_eq!(broadcast(graph, root).unwrap().algbw.to_f64(), rate, "{name} {root}");
            }
            let bound = all_reduce(graph).unwrap();
            // The file gives some figures to six digits only.
            assert!(
                (bound.algbw.to_f64() / reduce_bar - 1.0).abs() < 2e-6,
                "{name}: partition bound {} for {reduce_bar}",
                bound.algbw
            );
        }
    }

    fn subsets(g: &FlowGraph) -> impl Iterator<Item = Vec<bool>> {
        let nodes = g.nodes;
        (1..1_u32 << nodes).map(move |set| (0..nodes).map(|v| set >> v & 1 == 1).collect())
    }

    /// Least cut into a group of ranks, by trying every placement of the switches.
    fn entering_by_force(g: &FlowGraph, group: u32) -> u64 {
        let ranks = (1_u32 << g.ranks) - 1;
        subsets(g)
            .enumerate()
            .filter(|(i, _)| (u32::try_from(*i).unwrap() + 1) & ranks == group)
            .map(|(_, side)| Cut::entering(g, &side).capacity)
            .min()
            .unwrap()
    }

    /// All partitions of `0..n` as lists of bit sets.
    fn partitions(n: u32) -> Vec<Vec<u32>> {
        let mut all: Vec<Vec<u32>> = vec![vec![]];
        for v in 0..n {
            let mut next = Vec::new();
            for blocks in all {
                for i in 0..=blocks.len() {
                    let mut grown = blocks.clone();
                    if i == blocks.len() {
                        grown.push(0);
                    }
                    grown[i] |= 1 << v;
                    next.push(grown);
                }
            }
            all = next;
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// On a level graph every root is at the far side of the narrowest cut, and where every way has an equal way back what bounds a
        /// reduce is the mirror of what bounds a broadcast.
        #[test]
        fn roots_of_level_graphs_are_alike(g in connected_graph(6, 4)) {
            let symmetric = g.is_symmetric();
            prop_assert!(g.is_level() || !symmetric);
            let as_it_is: Vec<usize> = (0..g.nodes).collect();
            let first = broadcast(&g, 0).unwrap();
            for root in 0..g.ranks {
                let found = broadcast(&g, root).unwrap();
                prop_assert!(found.algbw == first.algbw || !g.is_level());
                if symmetric {
                    prop_assert_eq!(mirrored(found, &g, &as_it_is), reduce(&g, root).unwrap());
                }
            }
        }

        /// Where simply trimmed switches forward what cuts allow, the program proves no tighter bound: it need not be asked, and may be.
        #[test]
        fn the_program_says_no_less_than_trimming_shows(g in connected_graph(6, 4)) {
            let weights = vec![1; g.ranks];
            let ratio = bottleneck(&g, &weights).unwrap().ratio;
            if trimming_is_free(&g, &weights, ratio) && let Some(proved) = balance::balance(&g, &weights) {
                prop_assert!(proved.ratio <= ratio);
            }
        }

        #[test]
        fn equals_brute_force_over_all_cuts(g in connected_graph(6, 4), w in proptest::collection::vec(0_u64..4, 6)) {
            let weights = &w[..g.ranks];
            let mut best = Fraction::ZERO;
            let mut scattering = Fraction::ZERO;
            for side in subsets(&g) {
                let outside = (0..g.ranks).filter(|&v| !side[v]).count();
                let capacity = Cut::leaving(&g, &side).capacity;
                if outside > 0 && (0..g.ranks).any(|v| side[v]) {
                    let weight = (0..g.ranks).filter(|&v| side[v]).map(|v| weights[v]).sum();
                    best = best.max(Fraction::of(weight, capacity));
                    if side[0] {
                        scattering = scattering.max(Fraction::of(count(outside), capacity));
                    }
                }
            }
            let found = bottleneck(&g, weights).unwrap();
            prop_assert_eq!(found.ratio, best);
            if !best.is_zero() {
                let weight = found.cut.from.iter().filter(|&&v| v < g.ranks).map(|&v| weights[v]).sum();
                prop_assert_eq!(Fraction::of(weight, found.cut.capacity), best);
            }
            prop_assert_eq!(scatter(&g, 0).unwrap().algbw, whole(g.ranks) / scattering);
        }

        #[test]
        fn partition_bound_equals_brute_force(g in connected_graph(5, 3)) {
            let enter: Vec<u64> = (0..1_u32 << g.ranks).map(|group| {
                if group == 0 { 0 } else { entering_by_force(&g, group) }
            }).collect();
            let best = partitions(u32::try_from(g.ranks).unwrap())
                .iter()
                .filter(|blocks| blocks.len() > 1)
                .map(|blocks| {
                    let capacity = blocks.iter().map(|&b| enter[b as usize]).sum();
                    Fraction::of(capacity, 2 * (count(blocks.len()) - 1))
                })
                .min()
                .unwrap();
            prop_assert_eq!(partition(&g).unwrap().algbw, best);
        }

        #[test]
        fn names_do_not_matter(g in connected_graph(7, 4), seed in 0_u64..1000) {
            let (other, map) = relabelled(&g, seed);
            prop_assert_eq!(all_gather(&g).unwrap().algbw, all_gather(&other).unwrap().algbw);
            prop_assert_eq!(all_reduce(&g).unwrap().algbw, all_reduce(&other).unwrap().algbw);
            prop_assert_eq!(broadcast(&g, 0).unwrap().algbw, broadcast(&other, map[0]).unwrap().algbw);
        }

        #[test]
        fn more_capacity_never_lowers_a_bound(g in connected_graph(7, 4), which in 0_usize..100, by in 1_u64..50) {
            let mut more = g.edges.clone();
            let chosen = more[which % more.len()];
            more.push(edge(chosen.from, chosen.to, by));
            let wider = FlowGraph::new(g.ranks, g.nodes, more);
            for bound in [all_gather, reduce_scatter, all_reduce] {
                prop_assert!(bound(&wider).unwrap().algbw >= bound(&g).unwrap().algbw);
            }
            prop_assert!(broadcast(&wider, 0).unwrap().algbw >= broadcast(&g, 0).unwrap().algbw);
            prop_assert!(gather(&wider, 0).unwrap().algbw >= gather(&g, 0).unwrap().algbw);
        }
    }
}
