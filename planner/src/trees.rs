//! Double binary trees: low latency, every rank an inner node of one tree only.
//!
//! ```text
//!   over 8 members             6                     second tree: the mirror image (7 - m)
//!                     0---------------4              for an even count, shifted by one for an odd
//!                                 2-------6
//!                                1-3     5-7
//! ```
//!
//! The tree is NCCL's (`src/graph/trees.cc`): the parent of member m is found by clearing its lowest set bit and setting the next
//! one, or only clearing it where that is beyond the end; odd members are leaves. Member 0 is the root with a single child.
//!
//! On one host the members are the ranks. On several the members are hosts, and inside a host the data runs along a chain
//! from the rank that receives it; one pair of trees for each ring, entering the host where the ring does, so that
//! every NIC the rings use is used.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use crate::flow_graph::FlowGraph;
use crate::rings::{RingPacking, Way};
use crate::routes::{Adjacency, Routes, UNREACHABLE};

/// A tree that spans all ranks, for reducing up and spreading down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The rank all data is reduced at and spread from.
    pub root: usize,
    /// Way down, parents before children.
    pub down: Vec<TreeEdge>,
    /// Way up, children before parents.
    pub up: Vec<TreeEdge>,
    /// Longest way from the root, in edges.
    pub height: usize,
}

/// One edge of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEdge {
    /// Sender.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// Physical way.
    pub way: Way,
}

/// The parent of member `m` of `n` in the first tree; `None` for the root.
#[must_use]
pub fn parent(m: usize, n: usize) -> Option<usize> {
    if m == 0 || m >= n {
        return None;
    }
    let low = m & m.wrapping_neg();
    let up = (m ^ low) | (low << 1);
    Some(if up < n { up } else { m ^ low })
}

/// Parents of both trees over `n` members.
#[must_use]
pub fn double_tree(n: usize) -> [Vec<Option<usize>>; 2] {
    let first: Vec<Option<usize>> = (0..n).map(|m| parent(m, n)).collect();
    let second = if n.is_multiple_of(2) {
        (0..n).map(|m| parent(n - 1 - m, n).map(|up| n - 1 - up)).collect()
    } else {
        (0..n).map(|m| parent((m + n - 1) % n, n).map(|up| (up + 1) % n)).collect()
    };
    [first, second]
}

/// Trees over all ranks, at most `most` of them, each for an equal part of the data; empty where the links allow none.
/// `rings` says how hosts are entered and in which order their ranks follow each other.
#[must_use]
pub fn double_trees(
    graph: &FlowGraph,
    hosts: &[usize],
    rings: &RingPacking,
    most: usize,
) -> Vec<Tree> {
    let mut load = Load::new(graph);
    let shapes = if hosts.iter().all(|host| *host == hosts[0]) {
        one_host(graph, &load)
    } else {
        several_hosts(hosts, rings, most)
    };
    let trees: Vec<Option<Tree>> =
        shapes.iter().map(|parents| route_tree(graph, parents, &mut load)).collect();
    trees.into_iter().collect::<Option<Vec<Tree>>>().unwrap_or_default()
}

/// Double binary trees over the ranks where every edge has a way both ways; else trees of fewest hops from two roots.
fn one_host(graph: &FlowGraph, load: &Load) -> Vec<Vec<Option<usize>>> {
    let routes = load.routes(graph);
    let reach =
        |a: usize, b: usize| routes.cost(a, b) != UNREACHABLE && routes.cost(b, a) != UNREACHABLE;
    let double = double_tree(graph.ranks);
    let complete = double.iter().all(|parents| {
        parents.iter().enumerate().all(|(rank, up)| up.is_none_or(|up| reach(rank, up)))
    });
    if complete {
        return double.into();
    }
    // The two roots nearest to everybody; a tree is as high as its root is far.
    let mut trees: Vec<(usize, usize, Vec<Option<usize>>)> = (0..graph.ranks)
        .filter_map(|root| {
            let (parents, height) = breadth_first(graph.ranks, root, reach)?;
            Some((height, root, parents))
        })
        .collect();
    trees.sort_unstable();
    trees.truncate(2);
    trees.into_iter().map(|(.., parents)| parents).collect()
}

/// A tree of fewest hops, and its height; `None` where it does not span.
fn breadth_first(
    ranks: usize,
    root: usize,
    reach: impl Fn(usize, usize) -> bool,
) -> Option<(Vec<Option<usize>>, usize)> {
    let mut parents = vec![None; ranks];
    let mut depth = vec![usize::MAX; ranks];
    depth[root] = 0;
    let mut queue = VecDeque::from([root]);
    let mut height = 0;
    while let Some(rank) = queue.pop_front() {
        height = depth[rank];
        for to in 0..ranks {
            if depth[to] == usize::MAX && reach(rank, to) {
                depth[to] = depth[rank] + 1;
                parents[to] = Some(rank);
                queue.push_back(to);
            }
        }
    }
    depth.iter().all(|d| *d != usize::MAX).then_some((parents, height))
}

/// For each ring both trees over the hosts, or where that is too many the two in turn.
fn several_hosts(hosts: &[usize], rings: &RingPacking, most: usize) -> Vec<Vec<Option<usize>>> {
    let count = hosts.iter().max().map_or(0, |last| last + 1);
    let double = double_tree(count);
    let natural: Vec<usize> = (0..hosts.len()).collect();
    let mut orders: Vec<&[usize]> = rings.rings.iter().map(|ring| ring.order.as_slice()).collect();
    if orders.is_empty() {
        orders.push(&natural);
    }
    let both = 2 * orders.len() <= most;
    let mut shapes = Vec::new();
    for (i, order) in orders.into_iter().enumerate().take(most) {
        let chains = chains_of(order, hosts, count);
        for (which, over_hosts) in double.iter().enumerate() {
            if both || which == i % 2 {
                shapes.push(over_chains(&chains, over_hosts, hosts.len()));
            }
        }
    }
    shapes
}

/// Ranks of each host in ring order, from where the ring enters it.
fn chains_of(order: &[usize], hosts: &[usize], count: usize) -> Vec<Vec<usize>> {
    let n = order.len();
    let enters = |i: usize| hosts[order[i]] != hosts[order[(i + n - 1) % n]];
    let start = (0..n).find(|i| enters(*i)).unwrap_or(0);
    let mut chains = vec![Vec::new(); count];
    for step in 0..n {
        let rank = order[(start + step) % n];
        chains[hosts[rank]].push(rank);
    }
    chains
}

fn over_chains(
    chains: &[Vec<usize>],
    over_hosts: &[Option<usize>],
    ranks: usize,
) -> Vec<Option<usize>> {
    let mut parents = vec![None; ranks];
    for (chain, up) in chains.iter().zip(over_hosts) {
        for pair in chain.windows(2) {
            parents[pair[1]] = Some(pair[0]);
        }
        if let (Some(head), Some(up)) = (chain.first(), up) {
            parents[*head] = chains[*up].first().copied();
        }
    }
    parents
}

/// How many trees use each edge so far: the next one prefers what is left.
struct Load {
    adjacency: Adjacency,
    trees: Vec<u64>,
}

impl Load {
    fn new(graph: &FlowGraph) -> Self {
        Self { adjacency: Adjacency::new(graph), trees: vec![0; graph.edges.len()] }
    }

    fn routes(&self, graph: &FlowGraph) -> Routes {
        let widest = graph.edges.iter().map(|e| e.capacity).max().unwrap_or(1);
        let weights: Vec<u64> = graph
            .edges
            .iter()
            .zip(&self.trees)
            .map(|(e, trees)| {
                let weight = (u128::from(*trees) + 1) * u128::from(widest) * (1 << 10)
                    / u128::from(e.capacity);
                u64::try_from(weight).unwrap_or(u64::MAX).min(1 << 40)
            })
            .collect();
        Routes::cheapest(graph, &self.adjacency, &weights, false)
    }
}

fn route_tree(graph: &FlowGraph, parents: &[Option<usize>], load: &mut Load) -> Option<Tree> {
    let routes = load.routes(graph);
    let root = parents.iter().position(Option::is_none)?;
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); parents.len()];
    for (rank, up) in parents.iter().enumerate() {
        if let Some(up) = up {
            children[*up].push(rank);
        }
    }
    let mut tree = Tree { root, down: Vec::new(), up: Vec::new(), height: 0 };
    let mut queue = VecDeque::from([(root, 0)]);
    while let Some((rank, depth)) = queue.pop_front() {
        tree.height = tree.height.max(depth);
        for &child in &children[rank] {
            for (from, to, edges) in [(rank, child, &mut tree.down), (child, rank, &mut tree.up)] {
                let way = routes.way(graph, from, to)?;
                for &edge in &way {
                    load.trees[edge] += 1;
                }
                let via = way[..way.len() - 1].iter().map(|&edge| graph.edges[edge].to).collect();
                edges.push(TreeEdge { from, to, way: Way { via, share: Fraction::ONE } });
            }
            queue.push_back((child, depth + 1));
        }
    }
    tree.up.reverse();
    (tree.down.len() + 1 == parents.len()).then_some(tree)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_graph::FlowEdge;
    use crate::rings::{RingOptions, pack};
    use proptest::prelude::*;

    fn both(ranks: usize, nodes: usize, links: &[(usize, usize, u64)]) -> FlowGraph {
        let edges = links.iter().flat_map(|&(a, b, capacity)| {
            [FlowEdge { from: a, to: b, capacity }, FlowEdge { from: b, to: a, capacity }]
        });
        FlowGraph::new(ranks, nodes, edges)
    }

    #[track_caller]
    fn verify(graph: &FlowGraph, tree: &Tree) {
        let mut reached = vec![false; graph.ranks];
        reached[tree.root] = true;
        for edge in &tree.down {
            assert!(reached[edge.from], "parents come first");
            assert!(!reached[edge.to], "each rank is reached once");
            reached[edge.to] = true;
        }
        assert!(reached.iter().all(|r| *r));
        let turned: Vec<_> = tree.up.iter().rev().map(|e| (e.to, e.from)).collect();
        assert_eq!(turned, tree.down.iter().map(|e| (e.from, e.to)).collect::<Vec<_>>());
        for edge in tree.down.iter().chain(&tree.up) {
            let stops: Vec<usize> =
                [edge.from].iter().chain(&edge.way.via).chain([&edge.to]).copied().collect();
            for pair in stops.windows(2) {
                assert!(graph.edges.iter().any(|e| (e.from, e.to) == (pair[0], pair[1])));
            }
        }
    }

    #[test]
    fn parents_of_eight() {
        let [first, second] = double_tree(8);
        assert_eq!(first, [None, Some(2), Some(4), Some(2), Some(0), Some(6), Some(4), Some(6)]);
        assert_eq!(second, [Some(1), Some(3), Some(1), Some(7), Some(5), Some(3), Some(5), None]);
    }

    #[test]
    fn one_switch_gets_two_flat_trees() {
        let star: Vec<_> = (0..8).map(|gpu| (gpu, 8, 240)).collect();
        let graph = both(8, 9, &star);
        let trees = double_trees(&graph, &[0; 8], &pack(&graph, &RingOptions::new(vec![0; 8])), 32);
        assert_eq!(trees.len(), 2);
        for tree in &trees {
            verify(&graph, tree);
            assert_eq!(tree.height, 3);
        }
    }

    #[test]
    fn a_mesh_without_all_links_gets_trees_of_fewest_hops() {
        let ring: Vec<_> = (0..6).map(|gpu| (gpu, (gpu + 1) % 6, 20)).collect();
        let graph = both(6, 6, &ring);
        let trees = double_trees(&graph, &[0; 6], &pack(&graph, &RingOptions::new(vec![0; 6])), 32);
        assert_eq!(trees.iter().map(|t| (t.root, t.height)).collect::<Vec<_>>(), [(0, 3), (1, 3)]);
        trees.iter().for_each(|tree| verify(&graph, tree));
    }

    #[test]
    fn hosts_are_entered_at_every_nic() {
        let mut links = Vec::new();
        let hosts: Vec<usize> = (0..12).map(|rank| rank / 4).collect();
        for (rank, host) in hosts.iter().enumerate() {
            links.push((rank, 12 + host, 240));
            links.push((rank, 15, 24));
        }
        let graph = both(12, 16, &links);
        let rings = pack(&graph, &RingOptions::new(hosts.clone()));
        let trees = double_trees(&graph, &hosts, &rings, 32);
        assert_eq!(trees.len(), 2 * rings.rings.len());
        trees.iter().for_each(|tree| verify(&graph, tree));
        let entered: alloc::collections::BTreeSet<usize> = trees
            .iter()
            .flat_map(|t| &t.down)
            .filter(|e| hosts[e.from] != hosts[e.to])
            .map(|e| e.to)
            .collect();
        assert_eq!(entered.len(), 12);
    }

    proptest! {
        #[test]
        fn both_trees_span_and_share_no_inner_member(n in 1_usize..200) {
            let trees = double_tree(n);
            let mut inner = vec![0; n];
            for parents in &trees {
                prop_assert_eq!(parents.iter().filter(|p| p.is_none()).count(), 1);
                let mut children = vec![0; n];
                for (m, mut up) in parents.iter().copied().enumerate() {
                    if let Some(up) = up {
                        children[up] += 1;
                    }
                    let mut steps = 0;
                    while let Some(at) = up {
                        up = parents[at];
                        steps += 1;
                        prop_assert!(steps <= 2 * n.ilog2() + 2, "member {} is too deep", m);
                    }
                }
                prop_assert!(children.iter().all(|c| *c <= 2));
                for (m, c) in children.iter().enumerate() {
                    inner[m] += usize::from(*c == 2);
                }
            }
            prop_assert!(inner.iter().all(|times| *times <= 1));
        }
    }
}
