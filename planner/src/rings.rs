//! Best packing of directed rings into a graph: unequal rates, every hop on its physical ways, all capacities kept.
//!
//! ```text
//!   greedy      widest ring, take it out, again; under three ways of counting scarcity
//!   bound       smallest cut between ranks: every ring crosses it, so no packing carries more
//!   columns     where greedy falls short: linear program over rings, new rings priced by its duals
//! ```
//!
//! A ring of rate R moves R bytes a second over each of its N hops; rings of total rate R make an all-gather of
//! R·N/(N-1) and an all-reduce of R·N/(2(N-1)).
//!
//! Orders are searched exactly for up to ten ranks, and for several hosts among those that visit each host once; see
//! [`order`]. What comes out of the linear program is turned into exact fractions and checked in them, so floats decide
//! only which rings are used, never what they are said to carry.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use topology::Fraction;

use crate::bound;
use crate::flow_graph::FlowGraph;
use crate::routes::{Adjacency, Routes, UNREACHABLE};
use columns::RingProgram;
use order::Tables;

mod columns;
mod order;

/// NCCL exports and MSCCL schedules end at 32 channels.
pub const MAX_RINGS: usize = 32;

/// How far to search.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// Host of each rank; ranks of one host are contiguous.
    pub hosts: Vec<usize>,
    /// Largest number of rings.
    pub max_rings: usize,
    /// Budget in elementary steps, for the greedy search and for the linear program each; what was found by then is
    /// returned.
    pub max_steps: u64,
}

impl RingOptions {
    /// Usual limits for these hosts.
    #[must_use]
    pub fn new(hosts: Vec<usize>) -> Self {
        Self { hosts, max_rings: MAX_RINGS, max_steps: 24_000_000 }
    }
}

/// A directed cycle over all ranks with the ways its hops take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// From rank 0.
    pub order: Vec<usize>,
    /// On each hop, in the graph's unit.
    pub rate: Fraction,
    /// Hop i leads from `order[i]` to the next one.
    pub hops: Vec<Vec<Way>>,
}

/// One physical way of a hop.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// Nodes crossed, both ends left out.
    pub via: Vec<usize>,
    /// Part of the hop's rate; the shares of a hop add up to 1.
    pub share: Fraction,
}

/// Rings that fit together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RingPacking {
    /// Largest rate first.
    pub rings: Vec<Ring>,
    /// Sum of the rates.
    pub total: Fraction,
    /// No set of rings carries more: the smallest cut between ranks.
    pub cut: u64,
    /// Steps spent.
    pub steps: u64,
}

/// What every search for a ring on one graph uses.
#[derive(Debug)]
struct Ground {
    adjacency: Adjacency,
    tables: Tables,
}

/// One cycle with one way per hop.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Column {
    order: Vec<usize>,
    /// Edges of each hop.
    hops: Vec<Vec<usize>>,
}

impl Column {
    /// How often each edge is crossed.
    fn usage(&self) -> BTreeMap<usize, u64> {
        let mut usage = BTreeMap::new();
        for &edge in self.hops.iter().flatten() {
            *usage.entry(edge).or_insert(0) += 1;
        }
        usage
    }

    /// Cheap cycles under `weights`, each with its cost, the cheapest first.
    fn cheapest(
        graph: &FlowGraph,
        ground: &Ground,
        weights: &[u64],
        options: &RingOptions,
        steps: &mut u64,
    ) -> Vec<(u64, Self)> {
        let routes = Routes::cheapest(graph, &ground.adjacency, weights, false);
        *steps += (graph.ranks * graph.edges.len()) as u64;
        let (hosts, tables) = (&options.hosts, &ground.tables);
        let orders = order::cheapest_cycles(&routes, hosts, tables, steps, options.max_steps);
        orders.into_iter().filter_map(|order| Self::along(graph, &routes, order)).collect()
    }

    fn along(graph: &FlowGraph, routes: &Routes, order: Vec<usize>) -> Option<(u64, Self)> {
        let mut hops = Vec::with_capacity(order.len());
        let mut cost = 0_u64;
        for (i, &from) in order.iter().enumerate() {
            let to = order[(i + 1) % order.len()];
            cost = cost.saturating_add(routes.cost(from, to));
            hops.push(routes.way(graph, from, to)?);
        }
        Some((cost, Self { order, hops }))
    }
}

/// A set of columns with exact rates.
#[derive(Clone, Debug)]
struct Rated {
    columns: Vec<(Column, Fraction)>,
    total: Fraction,
}

impl Rated {
    fn new(columns: Vec<(Column, Fraction)>) -> Self {
        let total = columns.iter().map(|(_, rate)| *rate).sum();
        Self { columns, total }
    }

    /// Distinct orders, which is what becomes a channel.
    fn orders(&self) -> usize {
        let mut orders: Vec<&Vec<usize>> = self.columns.iter().map(|(c, _)| &c.order).collect();
        orders.sort_unstable();
        orders.dedup();
        orders.len()
    }

    /// Whether it carries clearly more (a tenth of a percent), or as much with fewer rings.
    fn beats(&self, other: &Self) -> bool {
        let scale = |f: Fraction, by| f * Fraction::integer(by);
        if scale(self.total, 1000) > scale(other.total, 1001) {
            return true;
        }
        scale(self.total, 1001) >= scale(other.total, 1000)
            && (self.orders(), other.total) < (other.orders(), self.total)
    }
}

/// Packs rings over all ranks of `graph`. Empty where no ring exists or there is but one rank.
///
/// # Panics
/// Where `options.hosts` does not name a host for every rank.
#[must_use]
pub fn pack(graph: &FlowGraph, options: &RingOptions) -> RingPacking {
    assert_eq!(options.hosts.len(), graph.ranks, "one host per rank");
    let mut packing =
        RingPacking { rings: Vec::new(), total: Fraction::ZERO, cut: cut(graph), steps: 0 };
    if graph.ranks < 2 || packing.cut == 0 {
        return packing;
    }
    let ground = Ground { adjacency: Adjacency::new(graph), tables: Tables::default() };
    let ceiling = Fraction::integer(i128::from(packing.cut));

    let mut best: Option<Rated> = None;
    let mut seeds: Vec<Column> = Vec::new();
    for scarcity in [Scarcity::Inverse, Scarcity::Square, Scarcity::Hops] {
        let rated = greedy(graph, &ground, options, scarcity, &mut packing.steps);
        seeds.extend(rated.columns.iter().map(|(column, _)| column.clone()));
        let better = best.as_ref().is_none_or(|known| rated.beats(known));
        if better && !rated.columns.is_empty() {
            best = Some(rated);
        }
        if best.as_ref().is_some_and(|known| known.total == ceiling)
            || packing.steps > options.max_steps
        {
            break;
        }
    }
    let Some(mut best) = best else { return packing };
    if best.total < ceiling {
        seeds.sort_unstable();
        seeds.dedup();
        let mut program = RingProgram::new(graph, seeds);
        let mut steps = 0;
        if let Some(rated) = program.solve(&ground, options, ceiling, &mut steps)
            && rated.beats(&best)
        {
            best = rated;
        }
        packing.steps += steps;
    }
    packing.rings = merge(graph, best, options.max_rings);
    packing.total = packing.rings.iter().map(|ring| ring.rate).sum();
    packing
}

/// How the cost of an edge follows from what is left of it.
#[derive(Clone, Copy, Debug)]
enum Scarcity {
    /// 1 / left.
    Inverse,
    /// 1 / left².
    Square,
    /// Every edge the same.
    Hops,
}

impl Scarcity {
    fn weight(self, left: u64, widest: u64) -> u64 {
        const SCALE: u128 = 1 << 20;
        let (left, widest) = (u128::from(left), u128::from(widest));
        let weight = match self {
            Self::Inverse => SCALE * widest / left,
            Self::Square => SCALE * widest * widest / (left * left),
            Self::Hops => SCALE,
        };
        // Keeps sums over any ring far from UNREACHABLE.
        u64::try_from(weight).unwrap_or(u64::MAX).min(1 << 44)
    }
}

/// Widest ring first, until none is left.
fn greedy(
    graph: &FlowGraph,
    ground: &Ground,
    options: &RingOptions,
    scarcity: Scarcity,
    steps: &mut u64,
) -> Rated {
    let mut left: Vec<u64> = graph.edges.iter().map(|e| e.capacity).collect();
    let mut columns: Vec<(Column, Fraction)> = Vec::new();
    // Several columns of one order are one ring, so more columns than rings are useful.
    while columns.len() < 4 * options.max_rings && *steps < options.max_steps {
        let found = widest_ring(graph, ground, options, scarcity, &left, steps);
        let Some((column, rate)) = found else { break };
        for (edge, times) in column.usage() {
            left[edge] -= rate * times;
        }
        columns.push((column, Fraction::integer(i128::from(rate))));
    }
    Rated::new(columns)
}

/// The ring of largest rate in what is left: the largest threshold under which a ring exists, then lower ones as long as they
/// can be better, which they are where a ring has to cross an edge more than once.
fn widest_ring(
    graph: &FlowGraph,
    ground: &Ground,
    options: &RingOptions,
    scarcity: Scarcity,
    left: &[u64],
    steps: &mut u64,
) -> Option<(Column, u64)> {
    let mut thresholds: Vec<u64> = left.iter().copied().filter(|l| *l > 0).collect();
    thresholds.sort_unstable();
    thresholds.dedup();
    let widest = *thresholds.last()?;
    let mut at_threshold = |threshold: u64| {
        let weights: Vec<u64> = left
            .iter()
            .map(|&l| if l < threshold { UNREACHABLE } else { scarcity.weight(l, widest) })
            .collect();
        let cycles = Column::cheapest(graph, ground, &weights, options, steps);
        let (_, column) = cycles.into_iter().next()?;
        let rate = column.usage().into_iter().map(|(edge, times)| left[edge] / times).min()?;
        Some((column, rate)).filter(|(_, rate)| *rate > 0)
    };
    // Existence is monotone in the threshold, so bisect for the largest one.
    let (mut low, mut high) = (0, thresholds.len());
    let mut best = at_threshold(thresholds[0])?;
    while high - low > 1 {
        let middle = usize::midpoint(low, high);
        match at_threshold(thresholds[middle]) {
            Some(found) => {
                low = middle;
                if found.1 >= best.1 {
                    best = found;
                }
            }
            None => high = middle,
        }
    }
    for &threshold in thresholds[1..=low].iter().rev() {
        if best.1 >= threshold {
            break;
        }
        if let Some(found) = at_threshold(threshold)
            && found.1 > best.1
        {
            best = found;
        }
    }
    Some(best)
}

/// Columns of one order become one ring with several ways; the smallest rings beyond `max_rings` are dropped.
fn merge(graph: &FlowGraph, rated: Rated, max_rings: usize) -> Vec<Ring> {
    let mut by_order: BTreeMap<Vec<usize>, Vec<(Column, Fraction)>> = BTreeMap::new();
    for (column, rate) in rated.columns {
        by_order.entry(column.order.clone()).or_default().push((column, rate));
    }
    let mut rings: Vec<Ring> = by_order
        .into_iter()
        .map(|(order, columns)| {
            let rate: Fraction = columns.iter().map(|(_, rate)| *rate).sum();
            let hops = (0..order.len())
                .map(|hop| {
                    let mut ways: BTreeMap<Vec<usize>, Fraction> = BTreeMap::new();
                    for (column, part) in &columns {
                        let edges = &column.hops[hop];
                        let inner = &edges[..edges.len() - 1];
                        let via = inner.iter().map(|&edge| graph.edges[edge].to).collect();
                        let share = ways.entry(via).or_insert(Fraction::ZERO);
                        *share = *share + *part / rate;
                    }
                    ways.into_iter().map(|(via, share)| Way { via, share }).collect()
                })
                .collect();
            Ring { order, rate, hops }
        })
        .collect();
    rings.sort_by(|a, b| b.rate.cmp(&a.rate).then_with(|| a.order.cmp(&b.order)));
    rings.truncate(max_rings);
    rings
}

/// The smallest cut between ranks: the least of what rank 0 can send to, or get from, any other.
fn cut(graph: &FlowGraph) -> u64 {
    let sent = bound::broadcast(graph, 0).map(|b| b.algbw.floor());
    let got = bound::reduce(graph, 0).map(|b| b.algbw.floor());
    match (sent, got) {
        (Ok(sent), Ok(got)) => u64::try_from(sent.min(got)).unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_graph::FlowEdge;
    use alloc::string::{String, ToString};
    use alloc::vec;
    use proptest::prelude::*;

    /// Both directions of each `(a, b, capacity)`.
    fn both(ranks: usize, nodes: usize, links: &[(usize, usize, u64)]) -> FlowGraph {
        let edges = links.iter().flat_map(|&(a, b, capacity)| {
            [FlowEdge { from: a, to: b, capacity }, FlowEdge { from: b, to: a, capacity }]
        });
        FlowGraph::new(ranks, nodes, edges)
    }

    /// The hybrid cube mesh of a DGX-1V; a brick is 20.
    fn cube_mesh() -> FlowGraph {
        let double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)];
        let single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)];
        let links: Vec<_> = double
            .iter()
            .map(|&(a, b)| (a, b, 40))
            .chain(single.iter().map(|&(a, b)| (a, b, 20)))
            .collect();
        both(8, 8, &links)
    }

    /// Every hop is walked over edges that exist, loads fit, shares add up.
    #[track_caller]
    fn verify(graph: &FlowGraph, packing: &RingPacking) {
        let mut load: BTreeMap<(usize, usize), Fraction> = BTreeMap::new();
        for ring in &packing.rings {
            let mut ranks = ring.order.clone();
            ranks.sort_unstable();
            assert_eq!(ranks, (0..graph.ranks).collect::<Vec<_>>(), "a ring visits each rank once");
            for (i, ways) in ring.hops.iter().enumerate() {
                let (from, to) = (ring.order[i], ring.order[(i + 1) % ring.order.len()]);
                assert_eq!(ways.iter().map(|w| w.share).sum::<Fraction>(), Fraction::ONE);
                for way in ways {
                    let stops: Vec<usize> =
                        [from].iter().chain(&way.via).chain([&to]).copied().collect();
                    for pair in stops.windows(2) {
                        let sum = load.entry((pair[0], pair[1])).or_insert(Fraction::ZERO);
                        *sum = *sum + way.share * ring.rate;
                    }
                }
            }
        }
        for ((from, to), sum) in load {
            let edge = graph.edges.iter().find(|e| (e.from, e.to) == (from, to));
            let capacity = edge.expect("the edge exists").capacity;
            assert!(
                sum <= Fraction::integer(i128::from(capacity)),
                "{from}->{to} overloaded: {sum}"
            );
        }
        assert!(packing.total <= Fraction::integer(i128::from(packing.cut)));
    }

    #[track_caller]
    fn check(graph: &FlowGraph, hosts: &[usize], total: &str) -> RingPacking {
        let packing = pack(graph, &RingOptions::new(hosts.to_vec()));
        verify(graph, &packing);
        assert_eq!(packing.total.to_string(), total, "{packing:?}");
        packing
    }

    fn orders(packing: &RingPacking) -> Vec<String> {
        let text = |ring: &Ring| {
            let order: Vec<String> = ring.order.iter().map(usize::to_string).collect();
            alloc::format!("{} at {}", order.join("-"), ring.rate)
        };
        packing.rings.iter().map(text).collect()
    }

    #[test]
    fn cube_mesh_has_its_known_rings() {
        let packing = check(&cube_mesh(), &[0; 8], "120");
        assert_eq!(
            orders(&packing),
            [
                "0-3-2-1-5-6-7-4 at 40",
                "0-4-7-6-5-1-2-3 at 40",
                "0-1-3-7-5-4-6-2 at 20",
                "0-2-6-4-5-7-3-1 at 20",
            ]
        );
    }

    #[test]
    fn one_switch_takes_one_ring_at_full_rate() {
        let star: Vec<_> = (0..6).map(|gpu| (gpu, 6, 240)).collect();
        let packing = check(&both(6, 7, &star), &[0; 6], "240");
        assert_eq!(packing.rings.len(), 1);
    }

    #[test]
    fn planes_become_ways_of_one_ring() {
        let links: Vec<_> =
            (0..4).flat_map(|gpu| [(gpu, 4, 20), (gpu, 5, 20), (gpu, 6, 10)]).collect();
        let packing = check(&both(4, 7, &links), &[0; 4], "50");
        assert_eq!(packing.rings.len(), 1);
        assert_eq!(packing.rings[0].hops[0].len(), 3);
    }

    #[test]
    fn a_pcie_tree_is_walked_depth_first() {
        // Two sockets, two switches each, two GPUs below each; an uplink carries one GPU's worth.
        let (plx, numa) = (8, 12);
        let links: Vec<_> = (0..8)
            .map(|gpu| (gpu, plx + gpu / 2, 12))
            .chain((0..4).map(|p| (plx + p, numa + p / 2, 12)))
            .chain([(numa, numa + 1, 10)])
            .collect();
        check(&both(8, 14, &links), &[0; 8], "10");
    }

    #[test]
    fn hosts_use_every_nic_at_its_own_rate() {
        // Two hosts of four GPUs behind one switch, a NIC beside each GPU, one of them at half rate.
        let nic = |host: usize, gpu: usize| 10 + host * 4 + gpu;
        let mut links = Vec::new();
        for host in 0..2 {
            for gpu in 0..4 {
                let rank = host * 4 + gpu;
                links.push((rank, 8 + host, 240));
                links.push((rank, nic(host, gpu), 24));
                links.push((nic(host, gpu), 18, if (host, gpu) == (0, 2) { 12 } else { 24 }));
            }
        }
        check(&both(8, 19, &links), &[0, 0, 0, 0, 1, 1, 1, 1], "84");
    }

    #[test]
    fn a_lost_brick_costs_no_more_than_it_must() {
        let mut graph = cube_mesh();
        for edge in &mut graph.edges {
            let pair = (edge.from.min(edge.to), edge.from.max(edge.to));
            if pair == (2, 3) {
                edge.capacity = 20;
            }
        }
        // A search at one speed for all rings finds 80 here.
        check(&graph, &[0; 8], "100");
    }

    #[test]
    fn ranks_are_never_passed_through() {
        check(&both(3, 3, &[(0, 1, 20), (0, 2, 40)]), &[0; 3], "0");
    }

    #[test]
    fn no_ring_of_one() {
        check(&FlowGraph::new(1, 1, []), &[0], "0");
        check(&FlowGraph::new(2, 2, []), &[0; 2], "0");
    }

    proptest! {
        #[test]
        fn packings_fit(
            ranks in 2_usize..7,
            switches in 0_usize..3,
            links in proptest::collection::vec((0_usize..9, 0_usize..9, 1_u64..50), 1..40),
        ) {
            let nodes = ranks + switches;
            let links: Vec<_> =
                links.into_iter().map(|(a, b, c)| (a % nodes, b % nodes, c)).collect();
            let graph = both(ranks, nodes, &links);
            let options = RingOptions::new(vec![0; ranks]);
            let packing = pack(&graph, &options);
            verify(&graph, &packing);
            prop_assert_eq!(pack(&graph, &options), packing);
        }
    }
}
