//! Ways for data that pairs of ranks exchange: all-to-all, gather, scatter.
//!
//! The best ways come with the bounds, from [`concurrent_flow`](crate::concurrent_flow) and [`single_source`](crate::single_source). Where those
//! do not serve, [`route`] cuts the data of every pair into pieces, which it routes one after the other, each by the way that is least loaded so
//! far. Ranks may forward for a pair.

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
    let pieces = if graph.ranks > MOST_FINE_RANKS { COARSE_PIECES } else { PIECES };
    route_in(graph, pieces, wanted)
}

/// [`route`], the data of each pair in so many pieces.
pub(crate) fn route_in(
    graph: &FlowGraph,
    count: u64,
    wanted: impl Fn(usize, usize) -> bool,
) -> Option<Vec<Pair>> {
    let adjacency = Adjacency::new(graph);
    let widest = graph.edges.iter().map(|e| e.capacity).max().unwrap_or(1);
    let mut load = vec![0_u64; graph.edges.len()];
    let mut ways: BTreeMap<(usize, usize), BTreeMap<Vec<usize>, u64>> = BTreeMap::new();
    let mut routes = Routes::none(graph);
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
pub(crate) mod tests {
    use super::*;
    use crate::bound::whole;
    use crate::test_graphs::{duplex, graph};

    /// What pairs reach: N parts per second, after a look at whether each has its whole data on ways of the graph.
    #[track_caller]
    pub(crate) fn rate(graph: &FlowGraph, pairs: &[Pair]) -> Fraction {
        let mut load: BTreeMap<(usize, usize), Fraction> = BTreeMap::new();
        for pair in pairs {
            assert_eq!(pair.ways.iter().map(|way| way.share).sum::<Fraction>(), Fraction::ONE);
            for way in &pair.ways {
                let inner = way.via.iter().copied();
                let stops: Vec<usize> =
                    [pair.from].into_iter().chain(inner).chain([pair.to]).collect();
                for hop in stops.windows(2) {
                    let sum = load.entry((hop[0], hop[1])).or_insert(Fraction::ZERO);
                    *sum = *sum + way.share;
                }
            }
        }
        let rate_of = |((from, to), load): (&(usize, usize), &Fraction)| {
            let edge = graph.edges.binary_search_by_key(&(*from, *to), |e| (e.from, e.to));
            Fraction::of(graph.edges[edge.expect("a way of the graph")].capacity, 1) / *load
        };
        load.iter().map(rate_of).min().unwrap() * whole(graph.ranks)
    }

    #[test]
    fn every_pair_gets_its_whole_data() {
        let ring = duplex(4, 4, &[(0, 1, 20), (1, 2, 20), (2, 3, 20), (3, 0, 20)]);
        let pairs = route(&ring, |_, _| true).unwrap();
        assert_eq!(pairs.len(), 12);
        // Neighbours take one hop and opposite corners two: two pairs' worth on each of the eight edges, at best.
        assert!(rate(&ring, &pairs) >= Fraction::of(320, 9));
    }

    #[test]
    fn only_what_is_wanted() {
        let star = duplex(3, 4, &[(0, 3, 20), (1, 3, 20), (2, 3, 20)]);
        let pairs = route(&star, |from, _| from == 0).unwrap();
        assert_eq!(pairs.iter().map(|p| (p.from, p.to)).collect::<Vec<_>>(), [(0, 1), (0, 2)]);
        assert_eq!(route(&graph(2, 2, &[]), |_, _| true), None);
    }
}
