//! Which nodes a source can send a demand to, one at a time.
//!
//! A node that gets the demand may stand as a source for the others: a cut that parts it from the source is wide enough, so a cut that is
//! too narrow has it on the source's side. So every node served makes the next flows shorter, and most need none: what the sources could send
//! them directly is enough. Values and smallest cuts are those of flows from the source alone.

use alloc::vec;
use alloc::vec::Vec;

use crate::max_flow::FlowNetwork;

/// The source with the nodes that get its demand.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    demand: i64,
    sources: Vec<usize>,
    is_source: Vec<bool>,
    /// By node, what all sources could send it over one edge each.
    direct: Vec<i64>,
}

impl Served {
    /// With those that direct edges serve.
    pub(crate) fn new(network: &FlowNetwork, source: usize, demand: i64) -> Self {
        let nodes = network.nodes();
        let mut served = Self {
            demand,
            sources: Vec::with_capacity(nodes),
            is_source: vec![false; nodes],
            direct: vec![0; nodes],
        };
        served.add(network, source);
        served
    }

    /// Another demand, or other capacities, under which all who are served still are.
    pub(crate) fn renew(&mut self, network: &FlowNetwork, demand: i64) {
        let before = core::mem::take(&mut self.sources);
        self.demand = demand;
        self.is_source.fill(false);
        self.direct.fill(0);
        before.into_iter().for_each(|node| self.add(network, node));
    }

    /// Takes a node for served, and whoever its edges then serve.
    pub(crate) fn add(&mut self, network: &FlowNetwork, node: usize) {
        let mut found = vec![node];
        while let Some(node) = found.pop() {
            if core::mem::replace(&mut self.is_source[node], true) {
                continue;
            }
            self.sources.push(node);
            for (to, capacity) in network.leaving(node) {
                self.direct[to] = self.direct[to].saturating_add(capacity);
                if self.direct[to] >= self.demand && !self.is_source[to] {
                    found.push(to);
                }
            }
        }
    }

    /// What `sink` gets at most, where that is less than the demand; else it is served from now on.
    pub(crate) fn shortage(&mut self, network: &mut FlowNetwork, sink: usize) -> Option<i64> {
        if self.is_source[sink] {
            return None;
        }
        network.clear_flow();
        let flow = network.augment_between(&self.sources, &[sink], self.demand);
        if flow < self.demand {
            return Some(flow);
        }
        self.add(network, sink);
        None
    }

    /// After a shortage: the smallest source side of a cut that is as narrow.
    pub(crate) fn side(&self, network: &mut FlowNetwork) -> Vec<bool> {
        network.source_side(&self.sources)
    }

    /// Whether each of the nodes `0..sinks` gets the demand.
    pub(crate) fn all(network: &mut FlowNetwork, source: usize, sinks: usize, demand: i64) -> bool {
        let mut served = Self::new(network, source, demand);
        (0..sinks).all(|sink| served.shortage(network, sink).is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::max_flow::UNLIMITED;
    use proptest::prelude::*;

    proptest! {
        /// What every sink gets, and the cut where that is too little, are as by a flow of its own.
        #[test]
        fn equals_flows_from_the_source_alone(
            nodes in 2_usize..9,
            raw in proptest::collection::vec((0_usize..9, 0_usize..9, 0_i64..20), 0..40),
            demand in 0_i64..40,
        ) {
            let mut network = FlowNetwork::new(nodes);
            for (a, b, c) in raw {
                network.add_edge(a % nodes, b % nodes, c);
            }
            let mut alone = network.clone();
            let mut served = Served::new(&network, 0, demand);
            for sink in 1..nodes {
                let flow = alone.max_flow(0, sink, UNLIMITED);
                let short = served.shortage(&mut network, sink);
                prop_assert_eq!(short, (flow < demand).then_some(flow));
                if short.is_some() {
                    prop_assert_eq!(served.side(&mut network), alone.source_side(&[0]));
                }
            }
        }
    }
}
