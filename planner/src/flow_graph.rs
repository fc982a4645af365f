//! The graph every algorithm of the planner works on: ranks, forwarders, integer capacities.

use alloc::vec;
use alloc::vec::Vec;

/// A directed capacitated graph. Nodes `0..ranks` are GPUs by rank and hold data; the others only forward.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowGraph {
    /// How many nodes are ranks.
    pub ranks: usize,
    /// How many nodes there are.
    pub nodes: usize,
    /// Sorted by `(from, to)`, at most one per pair, none with capacity 0, no self-loops.
    pub edges: Vec<FlowEdge>,
}

/// One directed edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowEdge {
    /// Tail.
    pub from: usize,
    /// Head.
    pub to: usize,
    /// Capacity in kB/s, or in whatever unit the caller scaled to.
    pub capacity: u64,
}

impl FlowGraph {
    /// A graph from edges in any order: parallel edges are added up, empty ones and self-loops dropped.
    ///
    /// # Panics
    /// Where an edge names a node outside `0..nodes`, or `ranks > nodes`.
    #[must_use]
    pub fn new(ranks: usize, nodes: usize, edges: impl IntoIterator<Item = FlowEdge>) -> Self {
        assert!(ranks <= nodes, "more ranks than nodes");
        let mut edges: Vec<FlowEdge> =
            edges.into_iter().filter(|e| e.capacity > 0 && e.from != e.to).collect();
        assert!(
            edges.iter().all(|e| e.from < nodes && e.to < nodes),
            "edge to a node outside the graph"
        );
        edges.sort_unstable();
        edges.dedup_by(|later, first| {
            let same = (later.from, later.to) == (first.from, first.to);
            if same {
                first.capacity = first.capacity.saturating_add(later.capacity);
            }
            same
        });
        Self { ranks, nodes, edges }
    }

    /// The edge between two nodes.
    #[must_use]
    pub fn edge(&self, from: usize, to: usize) -> Option<&FlowEdge> {
        let at = self.edges.binary_search_by_key(&(from, to), |e| (e.from, e.to)).ok()?;
        Some(&self.edges[at])
    }

    /// The same graph with every edge turned round.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let turned =
            self.edges.iter().map(|e| FlowEdge { from: e.to, to: e.from, capacity: e.capacity });
        Self::new(self.ranks, self.nodes, turned)
    }

    /// By node, by how much more can enter than leave.
    #[must_use]
    pub fn surplus(&self) -> Vec<i128> {
        let mut surplus = vec![0_i128; self.nodes];
        for e in &self.edges {
            surplus[e.to] += i128::from(e.capacity);
            surplus[e.from] -= i128::from(e.capacity);
        }
        surplus
    }

    /// Whether as much can leave every node as can enter it, and so every set of nodes.
    #[must_use]
    pub fn is_level(&self) -> bool {
        self.surplus().iter().all(|&surplus| surplus == 0)
    }

    /// Whether every edge has an equal one the other way.
    #[must_use]
    pub fn is_symmetric(&self) -> bool {
        self.reversed() == *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_edges_add_up() {
        let e = |from, to, capacity| FlowEdge { from, to, capacity };
        let graph =
            FlowGraph::new(2, 3, [e(1, 0, 2), e(0, 1, 1), e(0, 1, 3), e(2, 2, 9), e(0, 2, 0)]);
        assert_eq!(graph.edges, [e(0, 1, 4), e(1, 0, 2)]);
        assert!(!graph.is_symmetric());
    }
}
