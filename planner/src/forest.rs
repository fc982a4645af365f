//! Spanning trees for collectives: what plan assembly calls.
//!
//! ```text
//!   FlowGraph ─ Reduction ─▶ simpler graph ─ scale ─▶ whole capacities ─ remove_switches ─▶ ranks only ─ pack ─▶ trees
//!                                │                                                                        │
//!                                └──────────────── expand hops to physical paths ◀────────────────────────┘
//! ```
//!
//! The scale fixes how finely capacities are cut. At the exact scale the trees reach the bound to the last digit; coarse scales,
//! with k trees per root and capacities rounded down to whole trees, need fewer. Of all that reach 99 % of the best, the
//! forest with the least height is taken, then the one with the fewest trees.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use crate::bound::BoundError;
use crate::flow_graph::FlowGraph;
use crate::packing::PackError;
use search::Search;

mod scale;
mod search;
#[cfg(test)]
pub(crate) mod tests;

/// Limits on a forest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForestOptions {
    /// Most trees with one root: the channels of the plan.
    pub max_trees: usize,
    /// Budget of maximum flows. It bounds the search for lower forests and fewer trees, not the first solution.
    pub steps: u64,
    /// Whether to find the best there is, at whatever scale. Otherwise only trees at a coarse scale are looked for: what
    /// one wants beside rings that reach the bound already.
    pub thorough: bool,
}

/// Channels of NCCL's and MSCCL's formats that everything can run.
pub const MAX_CHANNELS: usize = 32;
/// Parts of the best rate: what a forest must reach to be considered.
const NEAR: (u64, u64) = (99, 100);

impl Default for ForestOptions {
    fn default() -> Self {
        Self { max_trees: MAX_CHANNELS, steps: 1500, thorough: true }
    }
}

/// Trees that together carry a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forest {
    /// By root; trees of one root by their edges.
    pub trees: Vec<Tree>,
    /// Rate of one unit of weight in the graph's unit of capacity.
    pub unit: Fraction,
    /// Total data of the collective per second: weights times unit.
    pub algbw: Fraction,
}

/// A spanning tree that carries its part of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The rank whose data it spreads, or that it reduces to.
    pub root: usize,
    /// Its part of the data is this over the sum of all weights.
    pub weight: u64,
    /// In the order the data takes: parents before children from a root, children before parents towards one.
    pub edges: Vec<TreeEdge>,
}

/// A hop between ranks, in data direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEdge {
    /// Sender.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// Physical ways; shares add up to 1.
    pub paths: Vec<TreePath>,
}

/// A physical way between two ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreePath {
    /// Nodes crossed, both ends left out.
    pub via: Vec<usize>,
    /// Part of the hop's data.
    pub share: Fraction,
}

/// Why there is no forest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForestError {
    /// There is no bound either.
    #[error(transparent)]
    Bound(#[from] BoundError),
    /// No packing was found within the limits.
    #[error("no trees found within the limits")]
    Pack(#[from] PackError),
    /// A scale is too coarse for the switches, so that trees at it would be slower than others.
    #[error("capacities cut this coarsely carry too little")]
    Coarse,
}

impl Forest {
    /// Longest chain of hops.
    #[must_use]
    pub fn height(&self) -> usize {
        self.trees.iter().map(Tree::height).max().unwrap_or(0)
    }

    /// The largest number of trees with one root.
    #[must_use]
    pub fn channels(&self) -> usize {
        let mut of_root = BTreeMap::new();
        self.trees.iter().for_each(|tree| *of_root.entry(tree.root).or_insert(0) += 1);
        of_root.into_values().max().unwrap_or(0)
    }

    /// Data per second on every physical edge used.
    #[must_use]
    pub fn loads(&self) -> BTreeMap<(usize, usize), Fraction> {
        let mut loads = BTreeMap::new();
        for tree in &self.trees {
            let rate = Fraction::of(tree.weight, 1) * self.unit;
            add_loads(&mut loads, &tree.edges, rate);
        }
        loads
    }

    /// The same trees run backwards: a broadcast becomes a reduction on the graph turned round.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let trees = self.trees.iter().map(|tree| Tree {
            root: tree.root,
            weight: tree.weight,
            edges: turned(&tree.edges),
        });
        Self { trees: trees.collect(), ..*self }
    }
}

impl Tree {
    /// Longest chain of hops, whichever way the data runs.
    #[must_use]
    pub fn height(&self) -> usize {
        let mut depth = BTreeMap::from([(self.root, 0)]);
        let away = self.edges.first().is_none_or(|e| e.from == self.root);
        let mut deepest = 0;
        for i in 0..self.edges.len() {
            let edge = if away { &self.edges[i] } else { &self.edges[self.edges.len() - 1 - i] };
            let (parent, child) = if away { (edge.from, edge.to) } else { (edge.to, edge.from) };
            let level = depth.get(&parent).copied().unwrap_or(0) + 1;
            depth.insert(child, level);
            deepest = deepest.max(level);
        }
        deepest
    }
}

/// Adds what a tree's edges put on physical edges at `rate`.
pub fn add_loads(
    loads: &mut BTreeMap<(usize, usize), Fraction>,
    edges: &[TreeEdge],
    rate: Fraction,
) {
    for edge in edges {
        for path in &edge.paths {
            let mut at = edge.from;
            for &next in path.via.iter().chain([&edge.to]) {
                let load = loads.entry((at, next)).or_insert(Fraction::ZERO);
                *load = *load + rate * path.share;
                at = next;
            }
        }
    }
}

/// The edges with data running the other way, in the other order.
#[must_use]
pub fn turned(edges: &[TreeEdge]) -> Vec<TreeEdge> {
    let back = |path: &TreePath| TreePath {
        via: path.via.iter().rev().copied().collect(),
        share: path.share,
    };
    edges
        .iter()
        .rev()
        .map(|e| TreeEdge { from: e.to, to: e.from, paths: e.paths.iter().map(back).collect() })
        .collect()
}

/// All-gather: trees from every rank, of equal total weight for each.
///
/// # Errors
/// [`ForestError`].
pub fn all_gather(graph: &FlowGraph, options: &ForestOptions) -> Result<Forest, ForestError> {
    weighted_all_gather(graph, &vec![1; graph.ranks], options)
}

/// Reduce-scatter: trees towards every rank.
///
/// # Errors
/// [`ForestError`].
pub fn reduce_scatter(graph: &FlowGraph, options: &ForestOptions) -> Result<Forest, ForestError> {
    weighted_all_gather(&graph.reversed(), &vec![1; graph.ranks], options).map(|f| f.reversed())
}

/// Broadcast: trees from one rank.
///
/// # Errors
/// [`ForestError`].
pub fn broadcast(
    graph: &FlowGraph,
    root: usize,
    options: &ForestOptions,
) -> Result<Forest, ForestError> {
    if root >= graph.ranks {
        return Err(BoundError::NoSuchRank(root).into());
    }
    let weights: Vec<u64> = (0..graph.ranks).map(|v| u64::from(v == root)).collect();
    weighted_all_gather(graph, &weights, options)
}

/// Reduce: trees towards one rank.
///
/// # Errors
/// [`ForestError`].
pub fn reduce(
    graph: &FlowGraph,
    root: usize,
    options: &ForestOptions,
) -> Result<Forest, ForestError> {
    broadcast(&graph.reversed(), root, options).map(|f| f.reversed())
}

/// All-gather of unequal parts: rank v owns `weights[v]` of their sum.
///
/// # Errors
/// [`ForestError`].
///
/// # Panics
/// Where there is not one weight per rank, or all are zero.
pub fn weighted_all_gather(
    graph: &FlowGraph,
    weights: &[u64],
    options: &ForestOptions,
) -> Result<Forest, ForestError> {
    near_best(graph, weights, Fraction::ZERO, options)
}

/// The same, taking what reaches 99 % of `best` where the weights allow more than that.
pub(crate) fn near_best(
    graph: &FlowGraph,
    weights: &[u64],
    best: Fraction,
    options: &ForestOptions,
) -> Result<Forest, ForestError> {
    assert!(weights.iter().any(|&w| w > 0), "somebody owns something");
    Search::new(graph, weights, best, options)?.run()
}

/// Forests of one graph, each made once: collectives share them, turned round where the graph is the same both ways.
#[derive(Debug)]
pub struct Forests<'a> {
    graph: &'a FlowGraph,
    /// The graph turned round, unless that is the same.
    turned: Option<FlowGraph>,
    options: ForestOptions,
    made: BTreeMap<(bool, Vec<u64>), Result<Forest, ForestError>>,
}

impl<'a> Forests<'a> {
    /// None made yet.
    #[must_use]
    pub fn new(graph: &'a FlowGraph, options: ForestOptions) -> Self {
        let turned = graph.reversed();
        let turned = (turned != *graph).then_some(turned);
        Self { graph, turned, options, made: BTreeMap::new() }
    }

    /// How hard to search from here on.
    pub fn set_options(&mut self, options: ForestOptions) {
        self.options = options;
    }

    /// What they are made of.
    #[must_use]
    pub fn graph(&self) -> &'a FlowGraph {
        self.graph
    }

    /// Whether the graph is the same turned round.
    #[must_use]
    pub fn is_symmetric(&self) -> bool {
        self.turned.is_none()
    }

    /// Trees from roots: an all-gather of parts in proportion to the weights, near `best` or near the best there is.
    ///
    /// # Errors
    /// [`ForestError`].
    pub fn spread(&mut self, weights: &[u64], best: Fraction) -> Result<Forest, ForestError> {
        self.near(false, weights, best)
    }

    /// Trees towards roots: the same for a reduce-scatter.
    ///
    /// # Errors
    /// [`ForestError`].
    pub fn collect(&mut self, weights: &[u64], best: Fraction) -> Result<Forest, ForestError> {
        let turned = !self.is_symmetric();
        self.near(turned, weights, best).map(|forest| forest.reversed())
    }

    fn near(
        &mut self,
        turned: bool,
        weights: &[u64],
        best: Fraction,
    ) -> Result<Forest, ForestError> {
        let key = (turned, weights.to_vec());
        let part = Fraction::of(NEAR.0, NEAR.1);
        match self.made.get(&key) {
            Some(Ok(forest)) if forest.algbw >= best * part => return Ok(forest.clone()),
            Some(Err(error)) => return Err(error.clone()),
            _ => {}
        }
        let graph = if turned { self.turned.as_ref() } else { None }.unwrap_or(self.graph);
        let forest = near_best(graph, weights, best, &self.options);
        if forest.is_ok() || self.options.thorough {
            self.made.insert(key, forest.clone());
        }
        forest
    }
}
