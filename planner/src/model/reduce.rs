//! Makes a graph smaller without changing what can be planned on it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use num_integer::gcd;
use topology::{Fraction, VertexId};

use crate::flow_graph::{FlowEdge, FlowGraph};

/// For each node the vertices it stands for, with their parts of its traffic.
pub(super) type Members = Vec<Vec<(VertexId, Fraction)>>;

/// Graphs with the vertices their nodes stand for.
pub(super) struct Reduced {
    pub(super) graph: FlowGraph,
    pub(super) relaxed: Option<(FlowGraph, Members)>,
    pub(super) members: Members,
}

/// Drops forwarders that nothing passes through and merges equal forwarders of which `plane` holds. `relaxed` is kept only where it differs from `usable`.
pub(super) fn reduce(
    usable: &FlowGraph,
    relaxed: &FlowGraph,
    vertices: &[VertexId],
    plane: impl Fn(VertexId) -> bool,
) -> Reduced {
    let kept_relaxed = useful(relaxed);
    let bare_relaxed = only(relaxed, &kept_relaxed);
    let kept = useful(usable);
    let bare = only(usable, &kept);
    let members: Members =
        kept.iter().map(|node| [(vertices[*node], Fraction::ONE)].into()).collect();
    let (graph, members) = merge_planes(bare.clone(), members, &plane);
    let relaxed = (bare != bare_relaxed || kept != kept_relaxed).then(|| {
        let own = kept_relaxed.iter().map(|node| [(vertices[*node], Fraction::ONE)].into());
        merge_planes(bare_relaxed, own.collect(), &plane)
    });
    Reduced { graph, relaxed, members }
}

/// Ranks, and forwarders that lead from one node to another.
fn useful(graph: &FlowGraph) -> Vec<usize> {
    let mut kept = alloc::vec![true; graph.nodes];
    loop {
        let mut before: Vec<Option<usize>> = alloc::vec![None; graph.nodes];
        let mut after = before.clone();
        let mut several = alloc::vec![false; graph.nodes];
        for edge in graph.edges.iter().filter(|e| kept[e.from] && kept[e.to]) {
            for (slot, other) in
                [(&mut after[edge.from], edge.to), (&mut before[edge.to], edge.from)]
            {
                let node = if other == edge.to { edge.from } else { edge.to };
                match slot {
                    None => *slot = Some(other),
                    Some(known) if *known != other => several[node] = true,
                    Some(_) => {}
                }
            }
        }
        let dead = (graph.ranks..graph.nodes).filter(|&node| {
            let nowhere = before[node].is_none() || after[node].is_none();
            kept[node] && (nowhere || (!several[node] && before[node] == after[node]))
        });
        let dead: Vec<usize> = dead.collect();
        if dead.is_empty() {
            return (0..graph.nodes).filter(|node| kept[*node]).collect();
        }
        for node in dead {
            kept[node] = false;
        }
    }
}

/// The graph on some of its nodes.
fn only(graph: &FlowGraph, kept: &[usize]) -> FlowGraph {
    let place: BTreeMap<usize, usize> =
        kept.iter().enumerate().map(|(new, old)| (*old, new)).collect();
    let edges = graph.edges.iter().filter_map(|e| {
        Some(FlowEdge { from: *place.get(&e.from)?, to: *place.get(&e.to)?, capacity: e.capacity })
    });
    FlowGraph::new(graph.ranks, kept.len(), edges)
}

/// A forwarder's edges with their greatest common divisor taken out: equal for planes of one switch.
type Shape = (Vec<(usize, u64)>, Vec<(usize, u64)>);

fn shape(graph: &FlowGraph, node: usize) -> (Shape, u64) {
    let mut leaving: Vec<(usize, u64)> =
        graph.edges.iter().filter(|e| e.from == node).map(|e| (e.to, e.capacity)).collect();
    let mut entering: Vec<(usize, u64)> =
        graph.edges.iter().filter(|e| e.to == node).map(|e| (e.from, e.capacity)).collect();
    let common = leaving.iter().chain(&entering).fold(0, |g, (_, c)| gcd(g, *c)).max(1);
    for (_, capacity) in leaving.iter_mut().chain(&mut entering) {
        *capacity /= common;
    }
    ((leaving, entering), common)
}

fn merge_planes(
    graph: FlowGraph,
    members: Members,
    plane: &impl Fn(VertexId) -> bool,
) -> (FlowGraph, Members) {
    let mut groups: BTreeMap<Shape, Vec<(usize, u64)>> = BTreeMap::new();
    for node in (graph.ranks..graph.nodes).filter(|node| plane(members[*node][0].0)) {
        let (shape, weight) = shape(&graph, node);
        groups.entry(shape).or_default().push((node, weight));
    }
    let mut stands_for: Vec<usize> = (0..graph.nodes).collect();
    let mut merged = members;
    for group in groups.into_values().filter(|group| group.len() > 1) {
        let total: u64 = group.iter().map(|(_, weight)| *weight).sum();
        let first = group[0].0;
        merged[first] = group
            .iter()
            .map(|&(node, weight)| (merged[node][0].0, Fraction::of(weight, total)))
            .collect();
        for (node, _) in group {
            stands_for[node] = first;
        }
    }
    let kept: Vec<usize> = (0..graph.nodes).filter(|node| stands_for[*node] == *node).collect();
    if kept.len() == graph.nodes {
        return (graph, merged);
    }
    let moved = graph.edges.iter().map(|e| FlowEdge {
        from: stands_for[e.from],
        to: stands_for[e.to],
        capacity: e.capacity,
    });
    let joined = FlowGraph::new(graph.ranks, graph.nodes, moved);
    let members = kept.iter().map(|node| merged[*node].clone()).collect();
    (only(&joined, &kept), members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vertices(n: usize) -> Vec<VertexId> {
        (0..n).map(VertexId::new).collect()
    }

    fn both(links: &[(usize, usize, u64)]) -> impl Iterator<Item = FlowEdge> {
        links.iter().flat_map(|&(a, b, capacity)| {
            [FlowEdge { from: a, to: b, capacity }, FlowEdge { from: b, to: a, capacity }]
        })
    }

    #[test]
    fn dead_ends_vanish() {
        // Ranks 0, 1 on switch 2; a chain 3, 4 hangs off it.
        let graph = FlowGraph::new(2, 5, both(&[(0, 2, 5), (1, 2, 5), (2, 3, 5), (3, 4, 5)]));
        let reduced = reduce(&graph, &graph, &vertices(5), |_| true);
        assert_eq!(reduced.graph, FlowGraph::new(2, 3, both(&[(0, 2, 5), (1, 2, 5)])));
        assert_eq!(reduced.relaxed, None);
    }

    #[test]
    fn planes_merge_by_rate() {
        let graph = FlowGraph::new(
            3,
            5,
            both(&[(0, 3, 20), (1, 3, 20), (2, 3, 40), (0, 4, 10), (1, 4, 10), (2, 4, 20)]),
        );
        let reduced = reduce(&graph, &graph, &vertices(5), |_| true);
        assert_eq!(
            reduced.graph,
            FlowGraph::new(3, 4, both(&[(0, 3, 30), (1, 3, 30), (2, 3, 60)]))
        );
        assert_eq!(
            reduced.members[3],
            [(VertexId::new(3), Fraction::of(2, 3)), (VertexId::new(4), Fraction::of(1, 3))]
        );
    }
}
