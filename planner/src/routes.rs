//! Cheapest physical ways between ranks: each hop of a ring crosses forwarders only.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::flow_graph::FlowGraph;

/// Cost of what cannot be reached; sums of finite costs stay far below it.
pub(crate) const UNREACHABLE: u64 = u64::MAX;

/// Adjacency of a [`FlowGraph`]: where each node's outgoing edges lie in its sorted edge list.
#[derive(Clone, Debug)]
pub(crate) struct Adjacency {
    first: Vec<usize>,
}

impl Adjacency {
    pub(crate) fn new(graph: &FlowGraph) -> Self {
        let mut first = vec![0; graph.nodes + 1];
        for edge in &graph.edges {
            first[edge.from + 1] += 1;
        }
        for node in 0..graph.nodes {
            first[node + 1] += first[node];
        }
        Self { first }
    }

    /// Indices of the edges that leave `node`.
    pub(crate) fn leaving(&self, node: usize) -> core::ops::Range<usize> {
        self.first[node]..self.first[node + 1]
    }
}

/// Cheapest ways from every rank to every other.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    ranks: usize,
    nodes: usize,
    /// By source rank, then node: cost of the cheapest way.
    cost: Vec<u64>,
    /// By source rank, then node: the edge the cheapest way arrives on.
    arrival: Vec<Option<usize>>,
}

impl Routes {
    /// Dijkstra from every rank. `weights` by edge, [`UNREACHABLE`] closes one. Ways pass through other ranks only where
    /// `relays` allows. Ties go to fewer hops, then to the lower node, so equal inputs give equal ways.
    pub(crate) fn cheapest(
        graph: &FlowGraph,
        adjacency: &Adjacency,
        weights: &[u64],
        relays: bool,
    ) -> Self {
        let mut routes = Self::none(graph);
        for source in 0..graph.ranks {
            routes.search(graph, adjacency, weights, relays, source);
        }
        routes
    }

    /// No ways yet.
    pub(crate) fn none(graph: &FlowGraph) -> Self {
        let (ranks, nodes) = (graph.ranks, graph.nodes);
        Self {
            ranks,
            nodes,
            cost: vec![UNREACHABLE; ranks * nodes],
            arrival: vec![None; ranks * nodes],
        }
    }

    /// Finds the ways from one rank afresh.
    pub(crate) fn search(
        &mut self,
        graph: &FlowGraph,
        adjacency: &Adjacency,
        weights: &[u64],
        relays: bool,
        source: usize,
    ) {
        let base = source * self.nodes;
        self.cost[base..base + self.nodes].fill(UNREACHABLE);
        self.arrival[base..base + self.nodes].fill(None);
        let mut hops = vec![usize::MAX; self.nodes];
        let mut queue = BinaryHeap::new();
        self.cost[base + source] = 0;
        hops[source] = 0;
        queue.push(Reverse((0_u64, 0_usize, source)));
        while let Some(Reverse((cost, depth, node))) = queue.pop() {
            // What was found before something better is still in the queue.
            let outdated = (cost, depth) != (self.cost[base + node], hops[node]);
            if outdated || (node != source && node < self.ranks && !relays) {
                continue;
            }
            for index in adjacency.leaving(node) {
                let weight = weights[index];
                if weight == UNREACHABLE {
                    continue;
                }
                let to = graph.edges[index].to;
                let next = (cost.saturating_add(weight).min(UNREACHABLE - 1), depth + 1);
                let known = (self.cost[base + to], hops[to]);
                if next < known {
                    queue.push(Reverse((next.0, next.1, to)));
                    self.cost[base + to] = next.0;
                    hops[to] = next.1;
                    self.arrival[base + to] = Some(index);
                }
            }
        }
    }

    /// Cost from rank to rank.
    pub(crate) fn cost(&self, from: usize, to: usize) -> u64 {
        self.cost[from * self.nodes + to]
    }

    /// Edges of the cheapest way, in order; `None` where there is none.
    pub(crate) fn way(&self, graph: &FlowGraph, from: usize, to: usize) -> Option<Vec<usize>> {
        let base = from * self.nodes;
        let mut edges = Vec::new();
        let mut node = to;
        while node != from {
            let edge = self.arrival[base + node]?;
            edges.push(edge);
            node = graph.edges[edge].from;
        }
        edges.reverse();
        Some(edges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_graph::FlowEdge;

    #[test]
    fn ranks_do_not_forward_unless_allowed() {
        // 0 -> 1 -> 2 in a row, and a detour 0 -> 3 -> 4 -> 2 over forwarders.
        let e = |from, to| FlowEdge { from, to, capacity: 1 };
        let graph = FlowGraph::new(3, 5, [e(0, 1), e(1, 2), e(0, 3), e(3, 4), e(4, 2)]);
        let adjacency = Adjacency::new(&graph);
        let weights = vec![1; graph.edges.len()];
        let plain = Routes::cheapest(&graph, &adjacency, &weights, false);
        assert_eq!(plain.cost(0, 2), 3);
        let relayed = Routes::cheapest(&graph, &adjacency, &weights, true);
        assert_eq!(relayed.cost(0, 2), 2);
        assert_eq!(plain.way(&graph, 2, 0), None);
        let nodes: Vec<usize> =
            plain.way(&graph, 0, 2).unwrap().into_iter().map(|edge| graph.edges[edge].to).collect();
        assert_eq!(nodes, [3, 4, 2]);
    }
}
