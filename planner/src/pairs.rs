//! Ways for data that pairs of ranks exchange: all-to-all, gather, scatter.
//!
//! The data of every pair is cut into pieces, which are routed one after the other, each by the way that is least loaded so far.
//! Ranks may forward for a pair. This comes near the best concurrent flow and is exact where one way per pair is.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use crate::flow_graph::FlowGraph;
use crate::rings::Way;
use crate::routes::{Adjacency, Routes};

/// Pieces of the data of a pair; all its ways have multiples of one piece.
const PIECES: u64 = 12;
/// The same where there are more ranks than this, whose many pairs fill the links evenly with fewer.
const COARSE_PIECES: u64 = 4;
const MOST_FINE_RANKS: usize = 32;

/// Two ranks with the ways from one to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Sender.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// Physical ways; shares add up to 1.
    pub ways: Vec<Way>,
}

/// Routes pairs, each of which carries as much as any other; `None` where one of them is not connected. Sorted by sender, then
/// receiver.
#[must_use]
pub fn route(graph: &FlowGraph, wanted: impl Fn(usize, usize) -> bool) -> Option<Vec<Pair>> {
    let adjacency = Adjacency::new(graph);
    let widest = graph.edges.iter().map(|e| e.capacity).max().unwrap_or(1);
    let mut load = vec![0_u64; graph.edges.len()];
    let mut ways: BTreeMap<(usize, usize), BTreeMap<Vec<usize>, u64>> = BTreeMap::new();
    let mut routes = Routes::none(graph);
    let count = if graph.ranks > MOST_FINE_RANKS { COARSE_PIECES } else { PIECES };
    for _ in 0..count {
        for from in 0..graph.ranks {
            let receivers: Vec<usize> =
                (0..graph.ranks).filter(|to| *to != from && wanted(from, *to)).collect();
            if receivers.is_empty() {
                continue;
            }
            let weights: Vec<u64> = graph
                .edges
                .iter()
                .zip(&load)
                .map(|(e, l)| weight(*l, e.capacity, widest))
                .collect();
            routes.search(graph, &adjacency, &weights, true, from);
            for to in receivers {
                let edges = routes.way(graph, from, to)?;
                for &edge in &edges {
                    load[edge] += 1;
                }
                let via =
                    edges[..edges.len() - 1].iter().map(|&edge| graph.edges[edge].to).collect();
                *ways.entry((from, to)).or_default().entry(via).or_insert(0) += 1;
            }
        }
    }
    let pairs = ways.into_iter().map(|((from, to), ways)| Pair {
        from,
        to,
        ways: ways
            .into_iter()
            .map(|(via, pieces)| Way { via, share: Fraction::of(pieces, count) })
            .collect(),
    });
    Some(pairs.collect())
}

/// Grows with the square of the load, so that what is busy is avoided even at the price of more hops.
fn weight(load: u64, capacity: u64, widest: u64) -> u64 {
    let busy = (u128::from(load) + 1) * 64 * u128::from(widest) / u128::from(capacity);
    u64::try_from(busy.saturating_mul(busy)).unwrap_or(u64::MAX).clamp(1, 1 << 48)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_graph::FlowEdge;

    fn both(ranks: usize, nodes: usize, links: &[(usize, usize, u64)]) -> FlowGraph {
        let edges = links.iter().flat_map(|&(a, b, capacity)| {
            [FlowEdge { from: a, to: b, capacity }, FlowEdge { from: b, to: a, capacity }]
        });
        FlowGraph::new(ranks, nodes, edges)
    }

    #[test]
    fn every_pair_gets_its_whole_data() {
        let graph = both(4, 4, &[(0, 1, 20), (1, 2, 20), (2, 3, 20), (3, 0, 20)]);
        let pairs = route(&graph, |_, _| true).unwrap();
        assert_eq!(pairs.len(), 12);
        for pair in &pairs {
            assert_eq!(pair.ways.iter().map(|w| w.share).sum::<Fraction>(), Fraction::ONE);
        }
        // Neighbours take one hop and opposite corners two: two pairs' worth on each of the eight edges, at best.
        let mut load: BTreeMap<(usize, usize), Fraction> = BTreeMap::new();
        for pair in &pairs {
            for way in &pair.ways {
                let stops: Vec<usize> =
                    [pair.from].iter().chain(&way.via).chain([&pair.to]).copied().collect();
                for hop in stops.windows(2) {
                    let sum = load.entry((hop[0], hop[1])).or_insert(Fraction::ZERO);
                    *sum = *sum + way.share;
                }
            }
        }
        assert_eq!(load.len(), 8);
        assert!(load.values().all(|l| *l <= Fraction::of(9, 4)), "{load:?}");
    }

    #[test]
    fn only_what_is_wanted() {
        let graph = both(3, 4, &[(0, 3, 20), (1, 3, 20), (2, 3, 20)]);
        let pairs = route(&graph, |from, _| from == 0).unwrap();
        assert_eq!(pairs.iter().map(|p| (p.from, p.to)).collect::<Vec<_>>(), [(0, 1), (0, 2)]);
        assert_eq!(route(&FlowGraph::new(2, 2, []), |_, _| true), None);
    }
}
