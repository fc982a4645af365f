//! By how much cuts exceed what they must let through, asked again and again while capacities change.

use alloc::vec;
use alloc::vec::Vec;

use super::splitter::Splitter;
use crate::max_flow::{EdgeId, FlowNetwork};

/// The network of a splitter: a source that supplies every rank with its weight.
pub(super) struct Probe {
    network: FlowNetwork,
    nodes: usize,
    /// By `from * nodes + to`.
    edges: Vec<Option<EdgeId>>,
    source: usize,
    total: i64,
}

impl Probe {
    pub(super) fn new(splitter: &Splitter<'_>) -> Self {
        let nodes = splitter.nodes;
        let source = nodes;
        let mut network = FlowNetwork::new(nodes + 1);
        let mut edges = vec![None; nodes * nodes];
        for (i, &capacity) in splitter.capacity.iter().enumerate().filter(|(_, c)| **c > 0) {
            edges[i] = Some(network.add_edge(i / nodes, i % nodes, capacity));
        }
        for (v, &weight) in splitter.weights.iter().enumerate() {
            network.add_edge(source, v, weight);
        }
        Self { network, nodes, edges, source, total: splitter.total }
    }

    /// Takes over a capacity that changed.
    pub(super) fn set(&mut self, from: usize, to: usize, capacity: i64) {
        if from == to {
            return;
        }
        match &mut self.edges[from * self.nodes + to] {
            Some(edge) => self.network.set_capacity(*edge, capacity),
            none => *none = Some(self.network.add_edge(from, to, capacity)),
        }
    }

    /// By how much, at most `want`, every set that holds all `inside`, none of `outside` and misses a rank of `targets` exceeds what
    /// it must let through.
    pub(super) fn slack(
        &mut self,
        inside: &[usize],
        outside: &[usize],
        targets: &[usize],
        want: i64,
        steps: &mut u64,
    ) -> i64 {
        self.slack_or_plain(inside, outside, targets, want, false, steps)
    }

    /// The same; with `plain` the sets need miss no target.
    pub(super) fn slack_or_plain(
        &mut self,
        inside: &[usize],
        outside: &[usize],
        targets: &[usize],
        want: i64,
        plain: bool,
        steps: &mut u64,
    ) -> i64 {
        let Some(left) = steps.checked_sub(1) else { return 0 };
        *steps = left;
        let mut sources = vec![self.source];
        sources.extend_from_slice(inside);
        let limit = self.total + want;
        // Common to all targets: what reaches the nodes outside.
        self.network.clear_flow();
        let mut base = self.network.augment_between(&sources, outside, limit);
        if plain || base == limit {
            return (base - self.total).clamp(0, want);
        }
        let mut least = limit;
        let mut inner = Inner::new(self.network.nodes(), outside);
        sources.iter().for_each(|&node| inner.add(&self.network, node, least));
        let mut sinks = outside.to_vec();
        for &target in targets {
            let Some(left) = steps.checked_sub(1) else { return 0 };
            *steps = left;
            if inner.holds[target] {
                continue;
            }
            // It ends at the target as far as it is new there, else at the nodes outside.
            sinks.push(target);
            let more = self.network.augment_between(&inner.nodes, &sinks, least - base);
            sinks.pop();
            least = least.min(base + more);
            if least <= self.total {
                return 0;
            }
            base += more - self.network.arriving(target);
            inner.add(&self.network, target, least);
        }
        (least - self.total).clamp(0, want)
    }
}

/// The side of narrow cuts that the source is on. No cut between a node here and the nodes outside is narrower than the least so far, so a narrower
/// one has them all on that side, and they serve as sources.
struct Inner {
    nodes: Vec<usize>,
    holds: Vec<bool>,
    is_outside: Vec<bool>,
    /// What edges from here into the nodes outside carry, and those into each other node.
    outward: i64,
    direct: Vec<i64>,
}

impl Inner {
    fn new(nodes: usize, outside: &[usize]) -> Self {
        let mut is_outside = vec![false; nodes];
        outside.iter().for_each(|&node| is_outside[node] = true);
        Self {
            nodes: Vec::with_capacity(nodes),
            holds: vec![false; nodes],
            is_outside,
            outward: 0,
            direct: vec![0; nodes],
        }
    }

    /// Takes a node in, and those that edges from here alone serve: a cut around such a one and the nodes outside crosses them all.
    fn add(&mut self, network: &FlowNetwork, node: usize, least: i64) {
        let mut found = vec![node];
        while let Some(node) = found.pop() {
            if core::mem::replace(&mut self.holds[node], true) {
                continue;
            }
            self.nodes.push(node);
            for (to, capacity) in network.leaving(node) {
                if self.is_outside[to] {
                    self.outward += capacity;
                } else {
                    self.direct[to] += capacity;
                    if self.direct[to] + self.outward >= least && !self.holds[to] {
                        found.push(to);
                    }
                }
            }
        }
    }
}
