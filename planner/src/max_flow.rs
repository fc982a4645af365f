//! Maximum flow by Dinic's algorithm, with what the planner needs beside the value: an upper limit at which to stop,
//! augmenting on from an earlier flow, and both sides of a minimum cut.
//!
//! One [`FlowNetwork`] serves thousands of flows; it allocates only while it grows.

use alloc::vec;
use alloc::vec::Vec;

/// Capacity that never limits. A quarter of the range, so that a few of them can be added without overflow.
pub const UNLIMITED: i64 = i64::MAX / 4;

/// An edge of a [`FlowNetwork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeId(usize);

/// A directed network and a flow in it.
///
/// Capacities out of one node, and those into one, must add up to less than `i64::MAX` where they are on the side of
/// a finite cut; callers scale their numbers with [`scaled`] so that they do.
#[derive(Clone, Debug, Default)]
pub struct FlowNetwork {
    /// First arc out of a node, `NONE` at the end of the list. Arc `a ^ 1` is the reverse of arc `a`.
    first: Vec<u32>,
    arcs: Vec<Arc>,
    capacity: Vec<i64>,
    level: Vec<u32>,
    current: Vec<u32>,
    queue: Vec<u32>,
    is_sink: Vec<bool>,
    /// Level of the nearest sink.
    last: u32,
}

/// What a search reads of an arc, side by side.
#[derive(Clone, Copy, Debug)]
struct Arc {
    head: u32,
    next: u32,
    residual: i64,
}

const NONE: u32 = u32::MAX;

impl FlowNetwork {
    /// A network of nodes `0..nodes` without edges.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        let mut network = Self::default();
        network.reset(nodes);
        network
    }

    /// Removes all edges and sets the number of nodes, keeping the buffers.
    pub fn reset(&mut self, nodes: usize) {
        self.first.clear();
        self.first.resize(nodes, NONE);
        self.arcs.clear();
        self.capacity.clear();
    }

    /// How many nodes there are.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.first.len()
    }

    /// Adds a node.
    pub fn add_node(&mut self) -> usize {
        self.first.push(NONE);
        self.first.len() - 1
    }

    /// Adds an edge.
    ///
    /// # Panics
    /// Where a node does not exist or the capacity is negative.
    pub fn add_edge(&mut self, from: usize, to: usize, capacity: i64) -> EdgeId {
        assert!(capacity >= 0, "negative capacity");
        let id = self.arcs.len();
        for (tail, head, capacity) in [(from, to, capacity), (to, from, 0)] {
            let arc = index(self.arcs.len());
            self.arcs.push(Arc { head: index(head), next: self.first[tail], residual: capacity });
            self.first[tail] = arc;
            self.capacity.push(capacity);
        }
        EdgeId(id)
    }

    /// Changes a capacity and takes the edge's own flow off; call [`clear_flow`](Self::clear_flow) before the next flow
    /// unless the edge carried none.
    pub fn set_capacity(&mut self, edge: EdgeId, capacity: i64) {
        self.capacity[edge.0] = capacity;
        self.arcs[edge.0].residual = capacity;
        self.arcs[edge.0 ^ 1].residual = 0;
    }

    /// The capacity of an edge.
    #[must_use]
    pub fn capacity(&self, edge: EdgeId) -> i64 {
        self.capacity[edge.0]
    }

    /// Heads and capacities of the edges out of a node.
    pub(crate) fn leaving(&self, node: usize) -> impl Iterator<Item = (usize, i64)> {
        let arcs = core::iter::successors(Some(self.first[node]), |arc| {
            self.arcs.get(*arc as usize).map(|arc| arc.next)
        });
        let edges = arcs.take_while(|arc| *arc != NONE).filter(|arc| arc % 2 == 0);
        edges.map(|arc| (self.arcs[arc as usize].head as usize, self.capacity[arc as usize]))
    }

    /// What the flow brings to a node more than it takes from it.
    pub(crate) fn arriving(&self, node: usize) -> i64 {
        let arcs = core::iter::successors(Some(self.first[node]), |arc| {
            self.arcs.get(*arc as usize).map(|arc| arc.next)
        });
        // What an arc sends is what its reverse has more room for than it had.
        let sent = |arc: usize| self.capacity[arc] - self.arcs[arc].residual;
        -arcs.take_while(|arc| *arc != NONE).map(|arc| sent(arc as usize)).sum::<i64>()
    }

    /// What the flow sends over an edge.
    #[must_use]
    pub fn flow(&self, edge: EdgeId) -> i64 {
        self.arcs[edge.0 ^ 1].residual
    }

    /// Back to no flow.
    pub fn clear_flow(&mut self) {
        self.arcs.iter_mut().zip(&self.capacity).for_each(|(arc, &c)| arc.residual = c);
    }

    /// Augments the present flow from `source` to `sink` by up to `limit`; returns by how much.
    ///
    /// A result below `limit` means the flow is maximum.
    pub fn augment(&mut self, source: usize, sink: usize, limit: i64) -> i64 {
        self.augment_between(&[source], &[sink], limit)
    }

    /// The same from any of `sources` to any of `sinks`; nothing where they meet.
    pub fn augment_between(&mut self, sources: &[usize], sinks: &[usize], limit: i64) -> i64 {
        self.is_sink.clear();
        self.is_sink.resize(self.first.len(), false);
        sinks.iter().for_each(|&sink| self.is_sink[sink] = true);
        if sources.iter().any(|&source| self.is_sink[source]) {
            return 0;
        }
        let mut pushed = 0;
        while pushed < limit && self.levels(sources, sinks.len() == 1) {
            self.current.clear();
            self.current.extend_from_slice(&self.first);
            // Levels reach a sink, so a blocking flow is never empty.
            for &source in sources {
                pushed += self.push(source, limit - pushed);
                if pushed == limit {
                    break;
                }
            }
        }
        pushed
    }

    /// A maximum flow from nothing, but no more than `limit`.
    pub fn max_flow(&mut self, source: usize, sink: usize, limit: i64) -> i64 {
        self.clear_flow();
        self.augment(source, sink, limit)
    }

    /// Marks what any of `sources` still reaches: after a maximum flow, the smallest source side of a minimum cut.
    #[must_use]
    pub fn source_side(&mut self, sources: &[usize]) -> Vec<bool> {
        self.reach(sources, |arcs, arc| arcs[arc].residual)
    }

    /// Marks what still reaches `sink`: after a maximum flow, the smallest sink side of a minimum cut.
    #[must_use]
    pub fn sink_side(&mut self, sink: usize) -> Vec<bool> {
        self.reach(&[sink], |arcs, arc| arcs[arc ^ 1].residual)
    }

    fn reach(&mut self, starts: &[usize], room: impl Fn(&[Arc], usize) -> i64) -> Vec<bool> {
        let mut side = vec![false; self.first.len()];
        self.queue.clear();
        for &start in starts {
            side[start] = true;
            self.queue.push(index(start));
        }
        while let Some(node) = self.queue.pop() {
            let mut arc = self.first[node as usize];
            while arc != NONE {
                let Arc { head, next, .. } = self.arcs[arc as usize];
                if !side[head as usize] && room(&self.arcs, arc as usize) > 0 {
                    side[head as usize] = true;
                    self.queue.push(head);
                }
                arc = next;
            }
        }
        side
    }

    /// Breadth-first levels from the sources; whether a sink was reached. One sink ends the search at once, of several all at
    /// the nearest one's level get theirs.
    fn levels(&mut self, sources: &[usize], one_sink: bool) -> bool {
        self.level.clear();
        self.level.resize(self.first.len(), NONE);
        self.queue.clear();
        for &source in sources {
            self.level[source] = 0;
            self.queue.push(index(source));
        }
        let mut at = 0;
        self.last = NONE;
        while at < self.queue.len() {
            let node = self.queue[at] as usize;
            at += 1;
            let mut arc = self.first[node];
            let next_level = self.level[node] + 1;
            if next_level > self.last {
                break;
            }
            while arc != NONE {
                let Arc { head, next, residual } = self.arcs[arc as usize];
                let level = &mut self.level[head as usize];
                if residual > 0 && *level == NONE {
                    *level = next_level;
                    if self.is_sink[head as usize] {
                        self.last = next_level;
                        if one_sink {
                            return true;
                        }
                    }
                    self.queue.push(head);
                }
                arc = next;
            }
        }
        self.last != NONE
    }

    /// Depth-first along the levels, using each arc until it is full or leads nowhere. At the level of the sinks others lead nowhere.
    fn push(&mut self, node: usize, limit: i64) -> i64 {
        if self.is_sink[node] {
            return limit;
        }
        let mut pushed = 0;
        let mut arc = self.current[node];
        let below = self.level[node] + 1;
        while arc != NONE {
            let Arc { head, next, residual } = self.arcs[arc as usize];
            if residual > 0
                && self.level[head as usize] == below
                && (below < self.last || self.is_sink[head as usize])
            {
                let more = self.push(head as usize, residual.min(limit - pushed));
                self.arcs[arc as usize].residual -= more;
                self.arcs[arc as usize ^ 1].residual += more;
                pushed += more;
                if pushed == limit {
                    // The arc may have room left: keep it current.
                    break;
                }
            }
            arc = next;
        }
        self.current[node] = arc;
        pushed
    }
}

/// `a · b` as a capacity; `None` where sums of such products could overflow.
#[must_use]
pub fn scaled(a: u64, b: u64) -> Option<i64> {
    let product = u128::from(a) * u128::from(b);
    i64::try_from(product).ok().filter(|&p| p < UNLIMITED)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "graphs have far fewer than 2^32 nodes and arcs"
)]
fn index(i: usize) -> u32 {
    debug_assert!(i < NONE as usize);
    i as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(nodes: usize, edges: &[(usize, usize, i64)], limit: i64, expect: i64) {
        let mut net = FlowNetwork::new(nodes);
        for &(a, b, c) in edges {
            net.add_edge(a, b, c);
        }
        assert_eq!(net.max_flow(0, nodes - 1, limit), expect);
    }

    #[test]
    fn values() {
        check(2, &[(0, 1, 7)], UNLIMITED, 7);
        check(2, &[(0, 1, 7)], 3, 3);
        check(2, &[(1, 0, 7)], UNLIMITED, 0);
        check(4, &[(0, 1, 3), (0, 2, 2), (1, 2, 1), (1, 3, 2), (2, 3, 3)], UNLIMITED, 5);
        // Needs the reverse of an arc that a first path would take.
        check(4, &[(0, 1, 1), (0, 2, 1), (1, 2, 1), (1, 3, 1), (2, 3, 1)], UNLIMITED, 2);
    }

    #[test]
    fn augmenting_on_equals_one_flow() {
        let mut net = FlowNetwork::new(4);
        let edges = [(0, 1, 3), (0, 2, 2), (1, 3, 2), (2, 3, 9), (1, 2, 5)]
            .map(|(a, b, c)| net.add_edge(a, b, c));
        assert_eq!(net.augment(0, 3, 1), 1);
        assert_eq!(net.augment(0, 3, UNLIMITED), 4);
        assert_eq!(net.flow(edges[0]) + net.flow(edges[1]), 5);
        net.set_capacity(edges[0], 0);
        assert_eq!(net.max_flow(0, 3, UNLIMITED), 2);
        assert_eq!(net.capacity(edges[1]), 2);
        assert_eq!((net.nodes(), net.add_node()), (4, 4));
    }

    #[test]
    fn products_that_could_overflow_are_refused() {
        assert_eq!(scaled(3, 4), Some(12));
        assert_eq!(scaled(1 << 40, 1 << 30), None);
    }

    proptest! {
        /// The value equals the least of all cuts, tried one by one, and both sides found are such cuts.
        #[test]
        fn equals_the_least_cut(
            nodes in 2_usize..8,
            raw in proptest::collection::vec((0_usize..8, 0_usize..8, 0_i64..20), 0..30),
        ) {
            let edges: Vec<_> = raw.into_iter().map(|(a, b, c)| (a % nodes, b % nodes, c)).collect();
            let mut net = FlowNetwork::new(nodes);
            for &(a, b, c) in &edges {
                net.add_edge(a, b, c);
            }
            let value = net.max_flow(0, nodes - 1, UNLIMITED);
            if nodes > 3 {
                // Sets of sources and sinks are what nodes joined to them without limit are.
                net.clear_flow();
                let between = net.augment_between(&[0, 1], &[nodes - 2, nodes - 1], UNLIMITED);
                let mut joined = net.clone();
                joined.add_edge(0, 1, UNLIMITED);
                joined.add_edge(nodes - 2, nodes - 1, UNLIMITED);
                prop_assert_eq!(between, joined.max_flow(0, nodes - 1, UNLIMITED));
                prop_assert_eq!(net.max_flow(0, nodes - 1, UNLIMITED), value);
            }
            let cut = |side: &dyn Fn(usize) -> bool| -> i64 {
                edges.iter().filter(|e| side(e.0) && !side(e.1)).map(|e| e.2).sum()
            };
            let least = (0..1_u32 << nodes)
                .filter(|set| set & 1 == 1 && set >> (nodes - 1) & 1 == 0)
                .map(|set| cut(&|v| set >> v & 1 == 1))
                .min();
            prop_assert_eq!(Some(value), least);
            let source = net.source_side(&[0]);
            prop_assert_eq!(cut(&|v| source[v]), value);
            let sink = net.sink_side(nodes - 1);
            prop_assert_eq!(cut(&|v| !sink[v]), value);
        }
    }
}
