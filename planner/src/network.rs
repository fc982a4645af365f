//! A flow graph as trees are composed on it: simple forwarders folded into edges, and edges that share one link.
//!
//! ```text
//!   plx ─▶ mlx5_0 ─▶ fabric
//!    └───▶ mlx5_1 ─────┘         ⇒      plx ══▶ fabric, half of it by each NIC
//! ```
//!
//! A PCIe link may stand in the graph twice, once for data on its way out of a host and once for data on its way in. Both edges draw on one
//! pool, which no plan may overdraw, and which plans divide as suits them.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use crate::flow_graph::{FlowEdge, FlowGraph};
use crate::forest::TreePath;

/// A graph with pools, simplified.
#[derive(Clone, Debug)]
pub struct Network {
    /// Nodes are those of the graph it came from; folded ones have no edges.
    pub graph: FlowGraph,
    /// By edge.
    pub pool_of: Vec<usize>,
    /// By pool.
    pub capacity: Vec<u64>,
    /// By edge, the ways it stands for: nodes folded into it, and their parts of its traffic.
    ways: Vec<Vec<(Vec<usize>, Fraction)>>,
}

/// An edge while forwarders are folded.
#[derive(Clone, Debug)]
struct Bundle {
    from: usize,
    to: usize,
    capacity: u64,
    pool: usize,
    /// Folded nodes and capacity of each way.
    ways: Vec<(Vec<usize>, u64)>,
}

impl Network {
    /// `shared` names what an edge draws on; edges of one name share the largest capacity of them.
    #[must_use]
    pub fn new<K: Ord>(graph: &FlowGraph, shared: impl Fn(&FlowEdge) -> K) -> Self {
        Self::made(graph, shared, true)
    }

    /// The graph as it is, every edge its own pool.
    #[must_use]
    pub fn unfolded(graph: &FlowGraph) -> Self {
        Self::made(graph, |e| (e.from, e.to), false)
    }

    fn made<K: Ord>(graph: &FlowGraph, shared: impl Fn(&FlowEdge) -> K, folded: bool) -> Self {
        let mut pools: BTreeMap<K, usize> = BTreeMap::new();
        let mut users: Vec<usize> = Vec::new();
        let mut capacity: Vec<u64> = Vec::new();
        let mut bundles: Vec<Bundle> = Vec::with_capacity(graph.edges.len());
        for e in &graph.edges {
            let next = users.len();
            let pool = *pools.entry(shared(e)).or_insert(next);
            if pool == next {
                users.push(0);
                capacity.push(0);
            }
            users[pool] += 1;
            capacity[pool] = capacity[pool].max(e.capacity);
            let ways = vec![(Vec::new(), e.capacity)];
            bundles.push(Bundle { from: e.from, to: e.to, capacity: e.capacity, pool, ways });
        }
        if folded {
            fold(graph, &mut bundles, &users);
        }
        bundles.sort_by_key(|b| (b.from, b.to));
        let mut pool_of = Vec::with_capacity(bundles.len());
        let mut place: BTreeMap<usize, usize> = BTreeMap::new();
        let mut kept: Vec<u64> = Vec::new();
        for bundle in &bundles {
            let own = users[bundle.pool] == 1;
            let at = *place.entry(bundle.pool).or_insert(kept.len());
            if at == kept.len() {
                kept.push(if own { bundle.capacity } else { capacity[bundle.pool] });
            }
            pool_of.push(at);
        }
        let edges =
            bundles.iter().map(|b| FlowEdge { from: b.from, to: b.to, capacity: b.capacity });
        let graph = FlowGraph::new(graph.ranks, graph.nodes, edges);
        let ways = bundles
            .into_iter()
            .map(|b| {
                let total = b.capacity;
                b.ways.into_iter().map(|(via, c)| (via, Fraction::of(c, total))).collect()
            })
            .collect();
        Self { graph, pool_of, capacity: kept, ways }
    }

    /// Simplified, every edge its own pool.
    #[must_use]
    pub fn plain(graph: &FlowGraph) -> Self {
        Self::new(graph, |e| (e.from, e.to))
    }

    /// The same with every edge turned round.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let mut order: Vec<usize> = (0..self.pool_of.len()).collect();
        let edges = &self.graph.edges;
        order.sort_by_key(|&i| (edges[i].to, edges[i].from));
        let back = |way: &(Vec<usize>, Fraction)| (way.0.iter().rev().copied().collect(), way.1);
        Self {
            graph: self.graph.reversed(),
            pool_of: order.iter().map(|&i| self.pool_of[i]).collect(),
            capacity: self.capacity.clone(),
            ways: order.iter().map(|&i| self.ways[i].iter().map(back).collect()).collect(),
        }
    }

    /// The edge between two nodes.
    #[must_use]
    pub fn edge(&self, from: usize, to: usize) -> Option<usize> {
        self.graph.edges.binary_search_by_key(&(from, to), |e| (e.from, e.to)).ok()
    }

    /// The narrowest edge of each way that an edge stands for, in `original`, the graph this came from.
    pub(crate) fn narrowest(&self, original: &FlowGraph, edge: &FlowEdge) -> Vec<FlowEdge> {
        let Some(at) = self.edge(edge.from, edge.to) else { return Vec::new() };
        let narrowest = |via: &Vec<usize>| {
            let stops = via.iter().copied().chain([edge.to]);
            let hops = stops.scan(edge.from, |at, next| {
                let hop = original.edge(*at, next).copied();
                *at = next;
                Some(hop)
            });
            hops.flatten().min_by_key(|hop| hop.capacity)
        };
        self.ways[at].iter().filter_map(|(via, _)| narrowest(via)).collect()
    }

    /// The ways of a path, given with both ends, in the graph this came from.
    #[must_use]
    pub fn expand(&self, path: &[usize]) -> Vec<TreePath> {
        let Some(edges) = path.windows(2).map(|hop| self.edge(hop[0], hop[1])).collect() else {
            return Vec::new();
        };
        let edges: Vec<usize> = edges;
        let many: usize = edges.iter().map(|edge| self.ways[*edge].len()).product();
        let mut found = Vec::with_capacity(many);
        found.push(TreePath { via: Vec::with_capacity(path.len()), share: Fraction::ONE });
        for (i, (hop, edge)) in path.windows(2).zip(edges).enumerate() {
            let Some(((folded, part), others)) = self.ways[edge].split_first() else { continue };
            if i > 0 {
                found.iter_mut().for_each(|so_far| so_far.via.push(hop[0]));
            }
            for at in 0..found.len() {
                for (folded, part) in others {
                    let TreePath { via, share } = &found[at];
                    let via = via.iter().chain(folded).copied().collect();
                    let other = TreePath { via, share: *share * *part };
                    found.push(other);
                }
                found[at].via.extend(folded);
                if *part != Fraction::ONE {
                    found[at].share = found[at].share * *part;
                }
            }
        }
        found.sort_unstable();
        found
    }
}

/// Folds forwarders with one edge in and one out that share their links with nobody, and unites edges that then run side by side.
fn fold(graph: &FlowGraph, bundles: &mut Vec<Bundle>, users: &[usize]) {
    // Forwarders that cannot be folded without loss; others still can, or equal hosts would look different.
    let mut left = vec![false; graph.nodes];
    loop {
        let mut entering: Vec<Option<usize>> = vec![None; graph.nodes];
        let mut leaving = entering.clone();
        let mut simple = vec![true; graph.nodes];
        for (i, b) in bundles.iter().enumerate() {
            for (slot, node) in [(&mut leaving[b.from], b.from), (&mut entering[b.to], b.to)] {
                if slot.replace(i).is_some() || users[b.pool] > 1 {
                    simple[node] = false;
                }
            }
        }
        let foldable = (graph.ranks..graph.nodes).find_map(|node| {
            let (a, b) = (entering[node]?, leaving[node]?);
            let loops = bundles[a].from == bundles[b].to;
            (simple[node] && !left[node] && !loops).then_some((node, a, b))
        });
        let Some((node, a, b)) = foldable else { return };
        let (first, second) = (bundles[a].clone(), bundles[b].clone());
        let capacity = first.capacity.min(second.capacity);
        let whole = |c: u64, of: u64| u128::from(c) * u128::from(capacity) / u128::from(of);
        let narrow = |c: u128| u64::try_from(c).unwrap_or(u64::MAX);
        let mut ways = Vec::new();
        for (before, share) in &first.ways {
            for (after, part) in &second.ways {
                let mut via = before.clone();
                via.push(node);
                via.extend(after);
                let through = whole(*share, first.capacity) * u128::from(*part);
                ways.push((via, narrow(through / u128::from(second.capacity))));
            }
        }
        // Where rounding down loses anything the fold would be a smaller graph, on which nothing is proved about this one.
        if ways.iter().map(|way| way.1).sum::<u64>() != capacity {
            left[node] = true;
            continue;
        }
        ways.retain(|way| way.1 > 0);
        let (from, to) = (first.from, second.to);
        let beside = bundles.iter().position(|x| (x.from, x.to) == (from, to));
        match beside {
            Some(other) if users[bundles[other].pool] == 1 => {
                bundles[other].capacity += capacity;
                bundles[other].ways.append(&mut ways);
                let (high, low) = (a.max(b), a.min(b));
                bundles.remove(high);
                bundles.remove(low);
            }
            // A shared link beside it: two edges between the same nodes are not to be told apart, so leave the forwarder.
            Some(_) => left[node] = true,
            None => {
                bundles[a] = Bundle { from, to, capacity, pool: first.pool, ways };
                bundles.remove(b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_graphs::graph;

    #[test]
    fn nics_side_by_side_become_one_edge() {
        // Rank 0 to rank 1 by forwarders 2 and 3, of which 3 is twice as wide.
        let g = graph(2, 4, &[(0, 2, 10), (2, 1, 12), (0, 3, 20), (3, 1, 20), (1, 0, 5)]);
        let network = Network::plain(&g);
        assert_eq!(network.graph, graph(2, 4, &[(0, 1, 30), (1, 0, 5)]));
        let path = |via: usize, share| TreePath { via: vec![via], share };
        assert_eq!(
            network.expand(&[0, 1]),
            [path(2, Fraction::of(1, 3)), path(3, Fraction::of(2, 3))]
        );
        assert_eq!(network.capacity, [30, 5]);
    }

    #[test]
    fn links_in_a_pool_stay() {
        let g = graph(2, 4, &[(0, 2, 10), (2, 1, 10), (1, 3, 10), (3, 0, 10)]);
        let network = Network::new(&g, |e| if e.from < 2 { 9 } else { e.from });
        assert_eq!(network.graph, g);
        let pools: Vec<usize> = network.pool_of.clone();
        assert_eq!(pools[0], pools[1], "{pools:?}");
        assert_eq!(network.capacity.len(), 3);
        assert_eq!(network.expand(&[0, 2, 1]), [TreePath { via: vec![2], share: Fraction::ONE }]);
    }
}
