//! Scatter and gather: one flow from the root that is both the bound and the plan.
//!
//! Every other rank takes one part of the data. At a guess of the rate a single maximum flow tells whether all of them can be served at once;
//! if not, its cut is the next guess (Newton's method, as in [`bound`](crate::bound)). The flow at the last guess is whole in
//! units of 1/q of a part, and falls apart into ways from the root to each rank, so a plan reaches the bound exactly.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use crate::bound::{
    BoundError, Cut, UpperBound, capacity_unit, check_root, count, reduced, sum, whole,
};
use crate::flow_graph::FlowGraph;
use crate::max_flow::{EdgeId, FlowNetwork, scaled};
use crate::pairs::Pair;
use crate::rings::Way;

/// The optimum of one root.
#[derive(Clone, Debug)]
pub struct SingleSource {
    /// No routing moves more; [`pairs`](Self::pairs) move as much.
    pub bound: UpperBound,
    root: usize,
    /// By edge of the graph, or of the graph turned round for a gather.
    flow: Vec<u64>,
    /// Flow that each rank takes.
    part: u64,
    /// Whether ways lead towards the root.
    gathers: bool,
}

/// The best way to scatter from `root`: every rank gets its own 1/N of the data, the root keeping its part.
///
/// # Errors
/// [`BoundError`].
pub fn scatter(graph: &FlowGraph, root: usize) -> Result<SingleSource, BoundError> {
    check_root(graph, root)?;
    let unit = capacity_unit(graph);
    let total = sum(graph.edges.iter().map(|e| e.capacity / unit))?;
    scaled(2 * count(graph.ranks), total.max(1)).ok_or(BoundError::TooLarge)?;
    let mut net = FlowNetwork::new(graph.nodes + 1);
    let sink = graph.nodes;
    let edges: Vec<EdgeId> = graph.edges.iter().map(|e| net.add_edge(e.from, e.to, 0)).collect();
    let demands: Vec<EdgeId> =
        (0..graph.ranks).filter(|&v| v != root).map(|v| net.add_edge(v, sink, 0)).collect();
    let mut inside = vec![false; graph.nodes];
    inside[root] = true;
    loop {
        let cut = Cut::leaving(graph, &inside);
        if cut.capacity == 0 {
            return Err(BoundError::Disconnected(cut));
        }
        let outside = count((0..graph.ranks).filter(|&v| !inside[v]).count());
        let (p, q) = reduced((outside, cut.capacity / unit));
        for (&id, edge) in edges.iter().zip(&graph.edges) {
            let capacity = scaled(p, edge.capacity / unit).ok_or(BoundError::TooLarge)?;
            net.set_capacity(id, capacity);
        }
        let demand = scaled(q, 1).ok_or(BoundError::TooLarge)?;
        demands.iter().for_each(|&id| net.set_capacity(id, demand));
        let want = scaled(q, count(demands.len())).ok_or(BoundError::TooLarge)?;
        if net.max_flow(root, sink, want) == want {
            let algbw = Fraction::of(q, p) * Fraction::of(unit, 1) * whole(graph.ranks);
            let flow = edges.iter().map(|&id| net.flow(id).max(0).unsigned_abs()).collect();
            let bound = UpperBound { algbw, cuts: vec![cut] };
            return Ok(SingleSource { bound, root, flow, part: q, gathers: false });
        }
        inside = net.source_side(&[root]);
        inside.truncate(graph.nodes);
    }
}

/// The best way to gather to `root`: a scatter backwards.
///
/// # Errors
/// [`BoundError`].
pub fn gather(graph: &FlowGraph, root: usize) -> Result<SingleSource, BoundError> {
    let turned = graph.reversed();
    let found = scatter(&turned, root).map_err(|error| error.turned(graph))?;
    let cuts = found.bound.cuts.into_iter().map(|cut| cut.turned(graph)).collect();
    let bound = UpperBound { algbw: found.bound.algbw, cuts };
    Ok(SingleSource { bound, gathers: true, ..found })
}

impl SingleSource {
    /// Ways between the root and every other rank, which fill no edge of `graph`, the one this was found on, beyond its
    /// capacity at the bound. Sorted by sender, then receiver.
    #[must_use]
    pub fn pairs(&self, graph: &FlowGraph) -> Vec<Pair> {
        let turned = self.gathers.then(|| graph.reversed());
        let graph = turned.as_ref().unwrap_or(graph);
        let mut left = self.flow.clone();
        let mut entering = vec![Vec::new(); graph.nodes];
        for (i, e) in graph.edges.iter().enumerate() {
            entering[e.to].push(i);
        }
        let mut pairs = Vec::with_capacity(graph.ranks - 1);
        for to in (0..graph.ranks).filter(|&to| to != self.root) {
            let mut ways: Vec<(Vec<usize>, u64)> = Vec::new();
            let mut missing = self.part;
            while missing > 0 {
                // What enters a node and is not for it leaves it, so flow into a rank can be followed back to the root.
                let Some(way) = shortest_back(graph, &entering, &left, self.root, to) else {
                    break;
                };
                let through = way.iter().map(|&i| left[i]).fold(missing, u64::min);
                way.iter().for_each(|&i| left[i] -= through);
                missing -= through;
                let inner = &way[..way.len() - 1];
                ways.push((inner.iter().map(|&i| graph.edges[i].from).collect(), through));
            }
            let ways = ways.into_iter().map(|(mut via, amount)| {
                // Found from the receiver's end.
                if !self.gathers {
                    via.reverse();
                }
                Way { via, share: Fraction::of(amount, self.part) }
            });
            let mut ways: Vec<Way> = ways.collect();
            ways.sort_unstable_by(|a, b| a.via.cmp(&b.via));
            let (from, to) = if self.gathers { (to, self.root) } else { (self.root, to) };
            pairs.push(Pair { from, to, ways });
        }
        pairs
    }
}

/// Edges of a way with flow from `root` to `to`, the fewest, last first.
fn shortest_back(
    graph: &FlowGraph,
    entering: &[Vec<usize>],
    left: &[u64],
    root: usize,
    to: usize,
) -> Option<Vec<usize>> {
    let mut onward = vec![usize::MAX; graph.nodes];
    let mut queue = VecDeque::from([to]);
    while let Some(node) = queue.pop_front() {
        if node == root {
            let mut way = Vec::new();
            let mut at = root;
            while at != to {
                way.push(onward[at]);
                at = graph.edges[onward[at]].to;
            }
            way.reverse();
            return Some(way);
        }
        for &i in &entering[node] {
            let from = graph.edges[i].from;
            if left[i] > 0 && onward[from] == usize::MAX && from != to {
                onward[from] = i;
                queue.push_back(from);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::tests::rate;
    use crate::test_graphs::{bars, connected_graph, dgx1v, graph, published, rails, star};
    use proptest::prelude::*;

    /// Both ways from and to every rank reach the bound exactly, as loads counted afresh say.
    #[track_caller]
    fn check(g: &FlowGraph) {
        for root in 0..g.ranks {
            for found in [scatter(g, root).unwrap(), gather(g, root).unwrap()] {
                let pairs = found.pairs(g);
                assert_eq!(pairs.len(), g.ranks - 1);
                let far = |pair: &Pair| if found.gathers { pair.to } else { pair.from };
                assert!(pairs.iter().all(|pair| far(pair) == root));
                assert_eq!(rate(g, &pairs), found.bound.algbw, "root {root}");
            }
        }
    }

    #[test]
    fn known_graphs() {
        check(&star(4, 3));
        check(&dgx1v());
        check(&rails(2, 4, 12, 1));
        check(&graph(3, 3, &[(0, 1, 2), (1, 2, 3), (2, 0, 5)]));
        assert!(scatter(&graph(2, 2, &[(1, 0, 1)]), 0).is_err());
        assert_eq!(scatter(&dgx1v(), 8).unwrap_err(), BoundError::NoSuchRank(8));
    }

    #[test]
    fn bars_and_published_graphs() {
        for case in bars().into_iter().flatten() {
            check(&case.graph);
        }
        for (_, graph, _) in published("alltoall").into_iter().flatten() {
            check(&graph);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The bound is the least over all cuts around the root, and is reached.
        #[test]
        fn any_graph(g in connected_graph(6, 3)) {
            check(&g);
            for root in 0..g.ranks {
                let found = scatter(&g, root).unwrap().bound.algbw;
                let least = (0..1_u32 << g.nodes)
                    .map(|set| (0..g.nodes).map(|v| set >> v & 1 == 1).collect::<Vec<bool>>())
                    .filter(|side| side[root] && !side[..g.ranks].iter().all(|&x| x))
                    .map(|side| {
                        let outside = count((0..g.ranks).filter(|&v| !side[v]).count());
                        let capacity = Cut::leaving(&g, &side).capacity;
                        Fraction::of(capacity * count(g.ranks), outside)
                    })
                    .min()
                    .unwrap();
                prop_assert_eq!(found, least);
            }
        }
    }
}
