//! Rings as NCCL searches them: one speed for all, depth first, within a budget of steps.
//!
//! ```text
//!   for each speed, fastest first:  as many rings of that speed as depth-first search fits in, one after the other
//!   best is rings x speed
//! ```
//!
//! A ring is grown rank by rank over the widest remaining way; where the next rank cannot be reached the search steps
//! back, until the budget is spent. [`rings::pack`](crate::rings::pack) does better wherever rings of unequal rates or a
//! look at the whole help; this is what to compare it with.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::flow_graph::FlowGraph;
use crate::rings::MAX_RINGS;
use crate::routes::Adjacency;

/// NCCL's budget for one search (`NCCL_SEARCH_TIMEOUT`, `src/graph/search.cc`).
pub const STEPS_PER_SPEED: u64 = 1 << 14;

/// Rings of one speed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundedRings {
    /// Orders, each from rank 0; the same one may be there several times.
    pub orders: Vec<Vec<usize>>,
    /// Of each ring, in the graph's unit.
    pub speed: u64,
    /// Steps spent over all speeds.
    pub steps: u64,
}

impl BoundedRings {
    /// What the rings carry together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.speed.saturating_mul(self.orders.len() as u64)
    }
}

/// Searches at each capacity of the graph and its halves, thirds and quarters, `steps_per_speed` steps each.
#[must_use]
pub fn search(graph: &FlowGraph, steps_per_speed: u64) -> BoundedRings {
    let mut best = BoundedRings::default();
    if graph.ranks < 2 {
        return best;
    }
    let mut speeds: Vec<u64> =
        graph.edges.iter().flat_map(|e| (1..=4).map(|part| e.capacity / part)).collect();
    speeds.sort_unstable();
    speeds.dedup();
    let mut steps = 0;
    for speed in speeds.into_iter().rev().filter(|speed| *speed > 0) {
        let mut search = Search::new(graph, speed, steps_per_speed);
        search.extend(&mut vec![0]);
        steps += search.steps;
        let found = BoundedRings { orders: search.best, speed, steps };
        // At equal totals the faster speed, which came first, needs fewer rings.
        if found.total() > best.total() {
            best = found;
        }
    }
    best.steps = steps;
    best
}

struct Search<'g> {
    graph: &'g FlowGraph,
    adjacency: Adjacency,
    speed: u64,
    left: Vec<u64>,
    steps: u64,
    budget: u64,
    current: Vec<Vec<usize>>,
    best: Vec<Vec<usize>>,
    /// More rings than this cannot be: what a rank can send, over the speed.
    most: usize,
}

impl<'g> Search<'g> {
    fn new(graph: &'g FlowGraph, speed: u64, budget: u64) -> Self {
        let mut sent = vec![0_u64; graph.ranks];
        for edge in graph.edges.iter().filter(|e| e.from < graph.ranks) {
            sent[edge.from] = sent[edge.from].saturating_add(edge.capacity);
        }
        let most = sent.into_iter().min().unwrap_or(0) / speed;
        Self {
            graph,
            adjacency: Adjacency::new(graph),
            speed,
            left: graph.edges.iter().map(|e| e.capacity).collect(),
            steps: 0,
            budget,
            current: Vec::new(),
            best: Vec::new(),
            most: usize::try_from(most).unwrap_or(MAX_RINGS).min(MAX_RINGS),
        }
    }

    fn extend(&mut self, order: &mut Vec<usize>) {
        if self.steps >= self.budget || self.best.len() >= self.most {
            return;
        }
        self.steps += 1;
        let here = order[order.len() - 1];
        let ways = self.ways(here);
        if order.len() == self.graph.ranks {
            if let Some((_, way)) = ways[order[0]].clone() {
                self.take(&way);
                self.current.push(order.clone());
                if self.current.len() > self.best.len() {
                    self.best.clone_from(&self.current);
                }
                if self.current.len() < self.most {
                    self.extend(&mut vec![0]);
                }
                self.current.pop();
                self.give_back(&way);
            }
            return;
        }
        let mut nexts: Vec<(u64, usize, Vec<usize>)> = ways
            .into_iter()
            .enumerate()
            .filter(|(to, _)| !order.contains(to))
            .filter_map(|(to, way)| way.map(|(width, edges)| (width, to, edges)))
            .collect();
        nexts.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        for (_, to, way) in nexts {
            self.take(&way);
            order.push(to);
            self.extend(order);
            order.pop();
            self.give_back(&way);
        }
    }

    fn take(&mut self, way: &[usize]) {
        for &edge in way {
            self.left[edge] -= self.speed;
        }
    }

    fn give_back(&mut self, way: &[usize]) {
        for &edge in way {
            self.left[edge] += self.speed;
        }
    }

    /// By rank: the way of fewest hops that has room for the speed, and its width.
    fn ways(&self, from: usize) -> Vec<Option<(u64, Vec<usize>)>> {
        let mut arrival: Vec<Option<usize>> = vec![None; self.graph.nodes];
        let mut queue = VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            if node != from && node < self.graph.ranks {
                continue;
            }
            for edge in self.adjacency.leaving(node) {
                let to = self.graph.edges[edge].to;
                if to != from && arrival[to].is_none() && self.left[edge] >= self.speed {
                    arrival[to] = Some(edge);
                    queue.push_back(to);
                }
            }
        }
        (0..self.graph.ranks)
            .map(|to| {
                let mut way = Vec::new();
                let mut width = u64::MAX;
                let mut node = to;
                while node != from {
                    let edge = arrival[node]?;
                    width = width.min(self.left[edge]);
                    way.push(edge);
                    node = self.graph.edges[edge].from;
                }
                way.reverse();
                (!way.is_empty()).then_some((width, way))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_graph::FlowEdge;
    use crate::rings::{RingOptions, pack};
    use proptest::prelude::*;
    use topology::Fraction;

    fn both(ranks: usize, nodes: usize, links: &[(usize, usize, u64)]) -> FlowGraph {
        let edges = links.iter().flat_map(|&(a, b, capacity)| {
            [FlowEdge { from: a, to: b, capacity }, FlowEdge { from: b, to: a, capacity }]
        });
        FlowGraph::new(ranks, nodes, edges)
    }

    #[test]
    fn one_switch_is_filled() {
        let star: Vec<_> = (0..8).map(|gpu| (gpu, 8, 240)).collect();
        let found = search(&both(8, 9, &star), STEPS_PER_SPEED);
        assert_eq!((found.total(), found.orders.len()), (240, 1));
    }

    #[test]
    fn a_square_runs_both_ways() {
        let square = both(4, 4, &[(0, 1, 20), (1, 2, 20), (2, 3, 20), (3, 0, 20)]);
        let found = search(&square, STEPS_PER_SPEED);
        assert_eq!(found.orders, [[0, 1, 2, 3], [0, 3, 2, 1]]);
        assert_eq!(found.speed, 20);
    }

    #[test]
    fn the_budget_is_kept() {
        let links: Vec<_> = (0..7).flat_map(|a| (a + 1..7).map(move |b| (a, b, 20))).collect();
        let graph = both(7, 7, &links);
        let few = search(&graph, 8);
        assert!(few.steps <= 8 * 4);
        assert!(few.total() <= search(&graph, STEPS_PER_SPEED).total());
    }

    proptest! {
        #[test]
        fn never_beats_the_packing(
            ranks in 2_usize..6,
            links in proptest::collection::vec((0_usize..7, 0_usize..7, 1_u64..30), 1..20),
        ) {
            let nodes = ranks + 2;
            let links: Vec<_> =
                links.into_iter().map(|(a, b, c)| (a % nodes, b % nodes, c)).collect();
            let graph = both(ranks, nodes, &links);
            let found = Fraction::integer(i128::from(search(&graph, 512).total()));
            let packed = pack(&graph, &RingOptions::new(vec![0; ranks])).total;
            // The packing stops within a tenth of a percent of its best.
            prop_assert!(found * Fraction::integer(1000) <= packed * Fraction::integer(1001));
        }
    }
}
