//! Packing spanning trees into a graph of ranks, one set of trees per root, every tree with a whole weight.
//!
//! Edmonds: trees of weight w_v rooted at every v fit exactly if capacity B⁺(S) ≥ w(S) for every set S that misses a rank.
//! Trees are grown one edge at a time; for trees in the making, with weights m_i and ranks R_i reached so far, the condition reads
//!
//! ```text
//!   B⁺(S)  ≥  Σ { m_i : R_i ⊆ S }      for every S that misses a rank
//! ```
//!
//! and one maximum flow tells by how much a tree may grow along an edge without breaking it. Where that is
//! less than the tree's weight, the tree splits in two. So weights stay large and trees few, whatever the scale.
//!
//! An optional height cap forbids to grow from ranks at that depth. Then growth can get stuck, and another order may not;
//! orders are drawn from a counter, so equal inputs give equal trees.

use alloc::vec;
use alloc::vec::Vec;

use crate::flow_graph::{FlowEdge, FlowGraph};
use crate::max_flow::{EdgeId, FlowNetwork, UNLIMITED};
use crate::served::Served;

/// Capacities between ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankGraph {
    ranks: usize,
    capacity: Vec<i64>,
}

/// A spanning tree with its weight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackedTree {
    /// Where it starts.
    pub root: usize,
    /// Parent and child, parents first.
    pub edges: Vec<(usize, usize)>,
    /// Capacity it takes on each of its edges.
    pub weight: i64,
}

/// How to pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackOptions {
    /// Longest way from a root in edges; `None` is any.
    pub height: Option<usize>,
    /// Order of growth; 0 is breadth first by capacity, others vary it.
    pub order: u64,
    /// Most trees with one root.
    pub max_trees: usize,
}

/// Why there is no packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// A tree could not grow: a height cap or limit of trees is in the way, or the weights do not fit.
    #[error("a tree cannot grow under these limits")]
    Stuck,
    /// The budget of steps is used up.
    #[error("the budget of steps is used up")]
    OutOfSteps,
}

impl RankGraph {
    /// No edges.
    #[must_use]
    pub fn new(ranks: usize) -> Self {
        Self { ranks, capacity: vec![0; ranks * ranks] }
    }

    /// How many ranks there are.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Capacity from one rank to another.
    #[must_use]
    pub fn capacity(&self, from: usize, to: usize) -> i64 {
        self.capacity[from * self.ranks + to]
    }

    /// Sets it.
    pub fn set_capacity(&mut self, from: usize, to: usize, capacity: i64) {
        self.capacity[from * self.ranks + to] = capacity;
    }

    /// Pairs with capacity, ascending.
    pub fn edges(&self) -> impl Iterator<Item = (usize, usize, i64)> {
        let n = self.ranks;
        self.capacity
            .iter()
            .enumerate()
            .filter(|&(_, &c)| c > 0)
            .map(move |(i, &c)| (i / n, i % n, c))
    }

    /// The same as a graph for bounds.
    #[must_use]
    pub fn flow_graph(&self) -> FlowGraph {
        let edge =
            |(from, to, c): (usize, usize, i64)| FlowEdge { from, to, capacity: c.unsigned_abs() };
        FlowGraph::new(self.ranks, self.ranks, self.edges().map(edge))
    }

    /// Whether every rank can be sent everything at once: the condition for a packing.
    #[must_use]
    pub fn supports(&self, weights: &[i64]) -> bool {
        let mut network = FlowNetwork::new(self.ranks + 1);
        for (u, t, c) in self.edges() {
            network.add_edge(u, t, c);
        }
        for (v, &w) in weights.iter().enumerate() {
            network.add_edge(self.ranks, v, w);
        }
        Served::all(&mut network, self.ranks, self.ranks, weights.iter().sum())
    }
}

/// Packs trees with total weight `weights[v]` at each root v. Uses one of `steps` for each maximum flow.
///
/// # Errors
/// [`PackError`]. Without limits it fails only where the weights do not fit.
///
/// # Panics
/// Where there is not one weight per rank.
pub fn pack(
    graph: &RankGraph,
    weights: &[i64],
    options: PackOptions,
    steps: &mut u64,
) -> Result<Vec<PackedTree>, PackError> {
    assert_eq!(weights.len(), graph.ranks, "one weight per rank");
    let mut trees = match stars(graph, weights) {
        Some(trees) => trees,
        None => Packer::new(graph, weights, options).run(steps)?,
    };
    trees.sort_unstable();
    trees.dedup_by(|later, first| {
        let same = (later.root, &later.edges) == (first.root, &first.edges);
        if same {
            first.weight += later.weight;
        }
        same
    });
    Ok(trees)
}

/// Every root to every rank directly, where there is capacity for that.
fn stars(graph: &RankGraph, weights: &[i64]) -> Option<Vec<PackedTree>> {
    let n = graph.ranks;
    let fits = |v: usize| (0..n).all(|y| y == v || graph.capacity(v, y) >= weights[v]);
    (0..n).all(fits).then(|| {
        let star =
            |root: usize| (0..n).filter(move |&y| y != root).map(move |y| (root, y)).collect();
        (0..n)
            .filter(|&v| weights[v] > 0)
            .map(|root| PackedTree { root, edges: star(root), weight: weights[root] })
            .collect()
    })
}

/// A tree in the making.
#[derive(Clone, Debug)]
struct Growing {
    root: usize,
    weight: i64,
    /// Depth of each rank reached.
    depth: Vec<Option<usize>>,
    edges: Vec<(usize, usize)>,
    /// Edges found to have no room for this tree. Room never comes back, so they need no second look.
    dead: Vec<bool>,
}

struct Packer {
    ranks: usize,
    residual: RankGraph,
    options: PackOptions,
    pending: Vec<Growing>,
    done: Vec<PackedTree>,
    trees_of: Vec<usize>,
    network: FlowNetwork,
    /// Network edge of each pair with capacity.
    edge_of: Vec<Option<EdgeId>>,
    /// What feeds the other trees.
    hub: usize,
    /// Weight of the other trees.
    others: i64,
    /// Residual capacity out of each rank, and into it.
    out_left: Vec<i64>,
    in_left: Vec<i64>,
    /// Weight of the other trees that have reached nothing but this rank, and of those that have reached it.
    only_here: Vec<i64>,
    been_here: Vec<i64>,
}

impl Packer {
    fn new(graph: &RankGraph, weights: &[i64], options: PackOptions) -> Self {
        let n = graph.ranks;
        let mut roots: Vec<usize> = (0..n).filter(|&v| weights[v] > 0).collect();
        if options.order > 0 {
            roots.sort_by_key(|&v| (mix(options.order, v, n), v));
        }
        let mut trees_of = vec![0; n];
        // The last is taken first.
        let pending = roots
            .iter()
            .rev()
            .map(|&root| {
                trees_of[root] += 1;
                let mut depth = vec![None; n];
                depth[root] = Some(0);
                Growing {
                    root,
                    weight: weights[root],
                    depth,
                    edges: Vec::new(),
                    dead: vec![false; n * n],
                }
            })
            .collect();
        Self {
            ranks: n,
            residual: graph.clone(),
            options,
            pending,
            done: Vec::new(),
            trees_of,
            network: FlowNetwork::new(n),
            edge_of: vec![None; n * n],
            hub: n,
            others: 0,
            out_left: vec![0; n],
            in_left: vec![0; n],
            only_here: vec![0; n],
            been_here: vec![0; n],
        }
    }

    fn run(mut self, steps: &mut u64) -> Result<Vec<PackedTree>, PackError> {
        while let Some(tree) = self.pending.pop() {
            self.build_network();
            let tree = self.grow(tree, steps)?;
            self.done.push(PackedTree { root: tree.root, edges: tree.edges, weight: tree.weight });
        }
        Ok(self.done)
    }

    /// ```text
    ///   hub ──m_i──> set i ══∞══> every rank of R_i
    ///   rank u ──residual──> rank t
    /// ```
    /// A minimum cut between the hub with x, the tail in question, and y pays B⁺(S), and m_i for every set that is not inside S.
    fn build_network(&mut self) {
        let n = self.ranks;
        self.network.reset(n + 1);
        self.edge_of.fill(None);
        for sums in
            [&mut self.out_left, &mut self.in_left, &mut self.only_here, &mut self.been_here]
        {
            sums.fill(0);
        }
        for (u, t, c) in self.residual.edges() {
            self.edge_of[u * n + t] = Some(self.network.add_edge(u, t, c));
            self.out_left[u] += c;
            self.in_left[t] += c;
        }
        self.others = 0;
        for i in 0..self.pending.len() {
            self.feed(i);
        }
    }

    /// Adds pending tree `i` to the network.
    fn feed(&mut self, i: usize) {
        let Growing { root, weight, ref depth, ref edges, .. } = self.pending[i];
        self.others += weight;
        if edges.is_empty() {
            self.network.add_edge(self.hub, root, weight);
            self.only_here[root] += weight;
            self.been_here[root] += weight;
            return;
        }
        let set = self.network.add_node();
        self.network.add_edge(self.hub, set, weight);
        for (v, _) in depth.iter().enumerate().filter(|(_, d)| d.is_some()) {
            self.network.add_edge(set, v, UNLIMITED);
            self.been_here[v] += weight;
        }
    }

    /// What the cuts around the tail alone and around the head alone leave: most edges without room fail here already.
    fn simple_cuts(&self, x: usize, y: usize) -> i64 {
        let out = self.out_left[x] - self.only_here[x];
        let into = self.in_left[y] + self.been_here[y] - self.others;
        out.min(into)
    }

    /// By how much the tree may grow along an edge.
    fn room(
        &mut self,
        tree: &mut Growing,
        x: usize,
        y: usize,
        steps: &mut u64,
    ) -> Result<i64, PackError> {
        let at = x * self.ranks + y;
        let capacity = self.residual.capacity(x, y);
        if tree.dead[at] || capacity == 0 {
            return Ok(0);
        }
        let want = tree.weight.min(capacity).min(self.simple_cuts(x, y));
        if want <= 0 {
            tree.dead[at] = true;
            return Ok(0);
        }
        if *steps == 0 {
            return Err(PackError::OutOfSteps);
        }
        *steps -= 1;
        self.network.clear_flow();
        let flow = self.network.augment_between(&[self.hub, x], &[y], self.others + want);
        let room = (flow - self.others).max(0);
        tree.dead[at] = room == 0;
        Ok(room)
    }

    fn grow(&mut self, mut tree: Growing, steps: &mut u64) -> Result<Growing, PackError> {
        let n = self.ranks;
        let cap = self.options.height.unwrap_or(n);
        while tree.edges.len() + 1 < n {
            // First by edges that carry the whole tree, as deep as allowed; only then split it.
            let mut partial: Option<(i64, usize, usize)> = None;
            let mut level = 0;
            while level < cap && tree.edges.len() + 1 < n {
                let candidates = self.candidates(&tree, level);
                if candidates.is_empty() && !tree.depth.contains(&Some(level + 1)) {
                    break;
                }
                for (x, y) in candidates {
                    if tree.depth[y].is_some() {
                        continue;
                    }
                    let room = self.room(&mut tree, x, y, steps)?;
                    if room == tree.weight {
                        self.take(&mut tree, x, y);
                    } else if room > 0 && partial.is_none_or(|(most, ..)| room > most) {
                        partial = Some((room, x, y));
                    }
                }
                level += 1;
            }
            if tree.edges.len() + 1 == n {
                break;
            }
            // Edges taken since may have used up the room noted.
            let Some((_, x, y)) = partial else { return Err(PackError::Stuck) };
            if tree.depth[y].is_some() {
                continue;
            }
            let room = self.room(&mut tree, x, y, steps)?;
            if room == 0 {
                continue;
            }
            if room < tree.weight {
                self.trees_of[tree.root] += 1;
                if self.trees_of[tree.root] > self.options.max_trees {
                    return Err(PackError::Stuck);
                }
                let mut rest = tree.clone();
                rest.weight -= room;
                tree.weight = room;
                self.pending.push(rest);
                self.feed(self.pending.len() - 1);
            }
            self.take(&mut tree, x, y);
        }
        Ok(tree)
    }

    /// Edges from ranks at `level` to ranks not reached, in the order to try them.
    fn candidates(&self, tree: &Growing, level: usize) -> Vec<(usize, usize)> {
        let n = self.ranks;
        let reached = |d: &Option<usize>| *d == Some(level);
        let mut found: Vec<(u64, i64, usize, usize)> = Vec::new();
        for (x, _) in tree.depth.iter().enumerate().filter(|(_, d)| reached(d)) {
            for y in (0..n).filter(|&y| tree.depth[y].is_none()) {
                let capacity = self.residual.capacity(x, y);
                if capacity > 0 && !tree.dead[x * n + y] {
                    let order = self.options.order;
                    let draw = if order == 0 {
                        0
                    } else {
                        mix(order ^ (tree.root as u64) << 32, x * n + y, self.done.len())
                    };
                    found.push((draw, -capacity, x, y));
                }
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, _, x, y)| (x, y)).collect()
    }

    fn take(&mut self, tree: &mut Growing, x: usize, y: usize) {
        let left = self.residual.capacity(x, y) - tree.weight;
        self.residual.set_capacity(x, y, left);
        if let Some(edge) = self.edge_of[x * self.ranks + y] {
            self.network.set_capacity(edge, left);
        }
        self.out_left[x] -= tree.weight;
        self.in_left[y] -= tree.weight;
        tree.edges.push((x, y));
        tree.depth[y] = tree.depth[x].map(|d| d + 1);
    }
}

impl PackedTree {
    /// Longest way from the root in edges.
    #[must_use]
    pub fn height(&self) -> usize {
        let size = self.edges.iter().map(|&(a, b)| a.max(b)).max().unwrap_or(self.root) + 1;
        let mut depth = vec![0; size];
        for &(parent, child) in &self.edges {
            depth[child] = depth[parent] + 1;
        }
        depth.into_iter().max().unwrap_or(0)
    }
}

/// A number that looks random, from a counter (the finaliser of SplitMix64).
fn mix(seed: u64, a: usize, b: usize) -> u64 {
    let mut z = seed
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add((a as u64) << 20)
        .wrapping_add(b as u64)
        .wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::{bottleneck, capacity_unit};
    use crate::test_graphs::{connected_graph, dgx1v};
    use proptest::prelude::*;

    const FREE: PackOptions = PackOptions { height: None, order: 0, max_trees: usize::MAX };

    fn ranks_only(g: &FlowGraph, factor: i64) -> RankGraph {
        let mut graph = RankGraph::new(g.ranks);
        for e in &g.edges {
            graph.set_capacity(e.from, e.to, i64::try_from(e.capacity).unwrap() * factor);
        }
        graph
    }

    /// Spanning, rooted, parents first, right weights, no edge overloaded.
    #[track_caller]
    fn certify(graph: &RankGraph, weights: &[i64], trees: &[PackedTree]) {
        let n = graph.ranks();
        let mut left = graph.clone();
        let mut of_root = vec![0; n];
        for tree in trees {
            let mut reached = vec![false; n];
            reached[tree.root] = true;
            for &(x, y) in &tree.edges {
                assert!(reached[x] && !reached[y], "{tree:?}");
                reached[y] = true;
                left.set_capacity(x, y, left.capacity(x, y) - tree.weight);
                assert!(left.capacity(x, y) >= 0, "overloaded {x}-{y}");
            }
            assert!(reached.iter().all(|&r| r) && tree.weight > 0);
            of_root[tree.root] += tree.weight;
        }
        assert_eq!(of_root, weights);
    }

    #[test]
    fn dgx1v_at_the_optimum() {
        // 7/6 of a brick per unit: six trees per root and seven units per brick.
        let graph = ranks_only(&dgx1v(), 7);
        let weights = [6; 8];
        assert!(graph.supports(&weights) && !graph.supports(&[7; 8]));
        let trees = pack(&graph, &weights, FREE, &mut 10_000).unwrap();
        certify(&graph, &weights, &trees);
    }

    #[test]
    fn limits_are_kept() {
        // Two rounds per chunk at height 2, the least: some pairs are not linked.
        let graph = ranks_only(&dgx1v(), 2);
        let limit = |height, order| PackOptions { height: Some(height), order, max_trees: 1 };
        assert_eq!(pack(&graph, &[1; 8], limit(1, 0), &mut 1000), Err(PackError::Stuck));
        let trees = (0..200)
            .find_map(|order| pack(&graph, &[1; 8], limit(2, order), &mut 1000).ok())
            .unwrap();
        certify(&graph, &[1; 8], &trees);
        assert!(trees.iter().all(|t| t.height() <= 2));
        assert_eq!(pack(&graph, &[1; 8], FREE, &mut 5), Err(PackError::OutOfSteps));
    }

    #[test]
    fn cliques_give_stars() {
        let mut graph = RankGraph::new(4);
        (0..16).filter(|i| i / 4 != i % 4).for_each(|i| graph.set_capacity(i / 4, i % 4, 3));
        let trees = pack(&graph, &[3; 4], FREE, &mut 0).unwrap();
        certify(&graph, &[3; 4], &trees);
        assert!(trees.iter().all(|t| t.height() == 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Edmonds' theorem, on random graphs and weights, in any order of growth.
        #[test]
        fn exact_packings_never_get_stuck(
            g in connected_graph(8, 0),
            w in proptest::collection::vec(0_u64..4, 8),
            order in 0_u64..4,
        ) {
            let weights = &w[..g.ranks];
            prop_assume!(weights.iter().any(|&w| w > 0));
            let r = bottleneck(&g, weights).unwrap().ratio;
            prop_assume!(r.numerator() > 0);
            // Capacities times p, weights times q: exactly tight.
            let graph = ranks_only(&g, i64::try_from(r.numerator()).unwrap());
            let q = i64::try_from(r.denominator()).unwrap();
            let scaled: Vec<i64> = weights.iter().map(|&w| i64::try_from(w).unwrap() * q).collect();
            prop_assert!(graph.supports(&scaled) && capacity_unit(&g) > 0);
            let options = PackOptions { order, ..FREE };
            let trees = pack(&graph, &scaled, options, &mut 1_000_000).unwrap();
            certify(&graph, &scaled, &trees);
        }
    }
}
