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
        let mut sinks = outside.to_vec();
        let limit = self.total + want;
        // Common to all targets: what reaches the nodes outside.
        self.network.clear_flow();
        let base = self.network.augment_between(&sources, &sinks, limit);
        let mut least = if plain { base } else { limit };
        if base < limit && !plain {
            self.network.save();
            for &target in targets {
                let Some(left) = steps.checked_sub(1) else {
                    least = 0;
                    break;
                };
                *steps = left;
                sinks.push(target);
                let more = self.network.augment_between(&sources, &sinks, least - base);
                sinks.pop();
                least = least.min(base + more);
                if least <= self.total {
                    break;
                }
                self.network.rollback();
            }
        }
        (least - self.total).clamp(0, want)
    }
}
