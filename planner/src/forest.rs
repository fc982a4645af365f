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

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use num_integer::Integer;
use topology::Fraction;

use crate::balance::{GRID, balance, is_balanced};
use crate::bound::{BoundError, bottleneck, count, supports};
use crate::flow_graph::{FlowEdge, FlowGraph};
use crate::max_flow::scaled;
use crate::packing::{PackError, PackOptions, PackedTree, pack};
use crate::splitting::{LogicalGraph, Reduction, balanced, remove_switches};

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

/// How capacities are cut: `weights[v]` units at each root, capacities in units, the rate of a unit.
#[derive(Clone, Debug)]
struct Scale {
    graph: FlowGraph,
    weights: Vec<i64>,
    unit: Fraction,
}

/// Parts of the best rate: what a forest must reach to be considered.
const NEAR: (u64, u64) = (99, 100);
/// Coarse scales tried.
const MAX_COARSE: u64 = 8;
/// Orders of growth tried per height.
const ORDERS: u64 = 4;
/// Height at which no other scale is tried: the only lower forests are stars, which a coarse scale finds at once.
const LOW: usize = 2;
/// Breakpoints looked at for one coarse scale.
const MAX_BREAKPOINTS: usize = 20_000;
/// Trees times ranks beyond which no second scale is packed once one is good enough.
const LARGE: u64 = 3000;
/// Coarse scales to fall back on, in order, where the finer ones need too many trees.
const FALLBACK: [u64; 8] = [32, 24, 16, 12, 8, 4, 2, 1];

struct Search<'a> {
    weights: &'a [u64],
    options: &'a ForestOptions,
    reduction: Reduction,
    /// Least height that any trees can have.
    least_height: usize,
    /// What is packed: the reduction's graph, with switches balanced.
    graph: FlowGraph,
    /// Capacity of one unit of `graph`.
    unit: Fraction,
    /// Best time per unit of weight on `graph`.
    ratio: Fraction,
    total: Fraction,
    /// Rate that a forest must reach to be considered.
    near: Fraction,
    steps: u64,
}

/// What to look for at a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// Trees near the best rate.
    Near,
    /// Those, and lower than this.
    Lower(usize),
    /// Whatever there is.
    Any,
}

/// A packing with what it takes to lay it out.
struct Found {
    trees: Vec<PackedTree>,
    logical: LogicalGraph,
    unit: Fraction,
    algbw: Fraction,
    height: usize,
}

impl<'a> Search<'a> {
    fn new(
        graph: &FlowGraph,
        weights: &'a [u64],
        best: Fraction,
        options: &'a ForestOptions,
    ) -> Result<Self, ForestError> {
        // On the graph as it is, so that a cut in an error names its edges.
        let ratio = bottleneck(graph, weights)?.ratio;
        let total = Fraction::of(weights.iter().sum(), 1);
        let reduction = Reduction::new(graph);
        let mut search = Self {
            weights,
            options,
            least_height: least_height(&reduction.graph, weights),
            graph: reduction.graph.clone(),
            reduction,
            unit: Fraction::ONE,
            ratio,
            total,
            near: Fraction::ZERO,
            steps: options.steps,
        };
        search.balance();
        let reach = search.total / search.ratio * search.unit;
        let part = Fraction::of(NEAR.0, NEAR.1);
        search.near = if best.is_zero() { reach * part } else { reach.min(best * part) };
        Ok(search)
    }

    /// Lowers what switches cannot use: first without loss where that is simple, else by the program over all ways to do it.
    fn balance(&mut self) {
        if is_balanced(&self.graph) {
            return;
        }
        let Some(exact) = self.exact_scale() else { return };
        let n = count(self.weights.len());
        let mut steps = 64 * n * n * n;
        let Some(simple) = balanced(&exact.graph, &exact.weights, &mut steps) else { return };
        let mut choices = vec![(simple, exact.unit)];
        if !supports(&choices[0].0, &exact.weights)
            && let Some(best) = balance(&self.graph, self.weights)
        {
            choices.extend(self.rounded(&best.shares));
        }
        let rated = choices.into_iter().filter_map(|(graph, unit)| {
            let ratio = bottleneck(&graph, self.weights).ok()?.ratio;
            Some((graph, unit, ratio))
        });
        if let Some((graph, unit, ratio)) = rated.max_by_key(|(_, unit, ratio)| *unit / *ratio) {
            (self.graph, self.ratio, self.unit) = (graph, ratio, unit);
        }
    }

    /// Capacities as parts of [`GRID`] of the largest, rounded down onto a coarser grid where they all but lie on it, and levelled.
    fn rounded(&self, shares: &[u64]) -> Vec<(FlowGraph, Fraction)> {
        let largest = self.graph.edges.iter().map(|e| e.capacity).max().unwrap_or(1);
        let grid = u64::from(GRID);
        let near = |&d: &u64| shares.iter().all(|&s| (s * d + 64 * d).rem_euclid(grid) <= 128 * d);
        let coarse = (1..=64).find(near);
        let mut found = Vec::new();
        for steps in coarse.into_iter().chain([grid / 4096]) {
            let capacity = |share: u64| (share * steps + 64 * steps) / grid;
            let edges = self.graph.edges.iter().zip(shares).map(|(e, &share)| {
                // Never above the capacity itself.
                let most = u128::from(e.capacity) * u128::from(steps) / u128::from(largest);
                let capacity = capacity(share).min(u64::try_from(most).unwrap_or(u64::MAX));
                FlowEdge { capacity, ..*e }
            });
            let graph = FlowGraph::new(self.graph.ranks, self.graph.nodes, edges);
            let idle = vec![0; graph.ranks];
            let level = balanced(&graph, &idle, &mut 0).unwrap_or(graph);
            found.push((level, Fraction::of(largest, steps) * self.unit));
        }
        found
    }

    fn run(mut self) -> Result<Forest, ForestError> {
        let mut best: Option<Found> = None;
        let mut error = ForestError::Bound(BoundError::TooLarge);
        let exact = self.exact_scale();
        let whole = exact.as_ref().map_or(u64::MAX, |scale| self.trees_per_root(scale));
        let mut scales: Vec<(u64, Scale)> = Vec::new();
        if whole > 1 {
            for k in 1..=MAX_COARSE.min(whole - 1) {
                let limit = self.total * self.unit * Fraction::of(k, 1) / self.near;
                scales.extend(self.coarse_scale(k, limit).map(|scale| (k, scale)));
            }
        }
        if self.options.thorough || whole <= MAX_COARSE {
            scales.extend(exact.clone().map(|scale| (whole, scale)));
        }
        // One root on a switch: finer cuts let every rank take part at once, which makes trees low.
        let roots = count(self.weights.iter().filter(|&&w| w > 0).count());
        let others = count(self.weights.len() - 1);
        if roots == 1 {
            let finer = others.min(count(self.options.max_trees) / whole.max(1)).min(MAX_COARSE);
            let scale = exact.as_ref().filter(|_| finer > 1).and_then(|scale| scale.finer(finer));
            scales.extend(scale.map(|scale| (finer, scale)));
        }
        for (k, scale) in scales {
            // Once there is a good one, only lower ones are of interest.
            let good = best.as_ref().filter(|found| found.algbw >= self.near).map(|f| f.height);
            if good.is_some() && !self.options.thorough {
                break;
            }
            if let Some(height) = good
                && (height <= self.least_height.max(LOW)
                    || k.saturating_mul(roots * others) > LARGE)
            {
                continue;
            }
            if good.is_some() && self.steps == 0 {
                break;
            }
            let wanted = good.map_or(Wanted::Near, Wanted::Lower);
            match self.solve(&scale, wanted) {
                Ok(found) => self.keep(&mut best, found),
                Err(e) => error = e,
            }
        }
        for k in FALLBACK {
            if !self.options.thorough {
                break;
            }
            // No scale reached it within the limit of trees: take the best there is.
            let enough = |found: &Found| found.algbw >= self.near * Fraction::of(NEAR.0, NEAR.1);
            if best.as_ref().is_some_and(enough) {
                break;
            }
            if k > count(self.options.max_trees) {
                continue;
            }
            let limit = self.ratio * Fraction::of(k, 1) + self.coarsest_step();
            let Some(scale) = self.coarse_scale(k, limit) else { continue };
            let rate = scale.unit * self.total * Fraction::of(k, 1);
            if best.as_ref().is_some_and(|found| found.algbw >= rate) {
                continue;
            }
            match self.solve(&scale, Wanted::Any) {
                Ok(found) => self.keep(&mut best, found),
                Err(e) => error = e,
            }
        }
        if best.is_none()
            && self.options.thorough
            && let Some(scale) = exact
        {
            match self.solve(&scale, Wanted::Any) {
                Ok(found) => self.keep(&mut best, found),
                Err(e) => error = e,
            }
        }
        let found = best.ok_or(error)?;
        Ok(self.lay_out(found))
    }

    fn keep(&self, best: &mut Option<Found>, found: Found) {
        let key = |f: &Found| {
            let rate = f.algbw.min(self.near);
            (rate, core::cmp::Reverse((f.height, f.trees.len())), f.algbw)
        };
        if best.as_ref().is_none_or(|other| key(&found) > key(other)) {
            *best = Some(found);
        }
    }

    /// Capacities times p and weights times q, divided by all they have in common, where p/q is the best time.
    fn exact_scale(&self) -> Option<Scale> {
        let p = u64::try_from(self.ratio.numerator()).ok()?;
        let q = u64::try_from(self.ratio.denominator()).ok()?;
        let edges = &self.graph.edges;
        let common = edges.iter().try_fold(0, |g, e| Some(e.capacity.checked_mul(p)?.gcd(&g)))?;
        let common =
            self.weights.iter().try_fold(common, |g, w| Some(w.checked_mul(q)?.gcd(&g)))?;
        let sum = edges.iter().try_fold(0_u64, |sum, e| sum.checked_add(e.capacity))?;
        scaled(sum, p)?;
        let graph = with_capacities(&self.graph, |c| c * p / common);
        let weights = self.weights.iter().map(|&w| scaled(w, q).map(|w| w / common.cast_signed()));
        Some(Scale {
            graph,
            weights: weights.collect::<Option<_>>()?,
            unit: Fraction::of(common, p) * self.unit,
        })
    }

    /// Units of weight per unit of a root's weight.
    fn trees_per_root(&self, scale: &Scale) -> u64 {
        let pairs = scale.weights.iter().zip(self.weights).filter(|(_, w)| **w > 0);
        pairs.map(|(&units, _)| units.unsigned_abs()).max().unwrap_or(1)
    }

    /// The least step of a scale that must help: one unit more on the smallest edge.
    fn coarsest_step(&self) -> Fraction {
        let least = self.graph.edges.iter().map(|e| e.capacity).min().unwrap_or(1);
        Fraction::of(1, least)
    }

    /// The least U ≤ `limit` at which capacities ⌊U·b⌋ support k trees per unit of weight.
    fn coarse_scale(&self, k: u64, limit: Fraction) -> Option<Scale> {
        let graph = &self.graph;
        let least = self.ratio * Fraction::of(k, 1);
        let mut sizes: Vec<u64> = graph.edges.iter().map(|e| e.capacity).collect();
        sizes.sort_unstable();
        sizes.dedup();
        // Only where some ⌊U·b⌋ changes can the answer change.
        let mut breakpoints: Vec<Fraction> = vec![least];
        for &b in &sizes {
            let size = Fraction::of(b, 1);
            let first = (least * size).floor().max(0);
            let last = (limit * size).floor();
            for j in first..=last {
                if breakpoints.len() > MAX_BREAKPOINTS {
                    return None;
                }
                let at = Fraction::new(j, i128::from(b))?;
                if at > least && at <= limit {
                    breakpoints.push(at);
                }
            }
        }
        breakpoints.sort_unstable();
        breakpoints.dedup();
        let enough =
            |u: &Fraction| self.scale_at(k, *u).is_some_and(|s| supports(&s.graph, &s.weights));
        if !breakpoints.last().is_some_and(enough) {
            return None;
        }
        let at = breakpoints.partition_point(|u| !enough(u));
        self.scale_at(k, *breakpoints.get(at)?)
    }

    fn scale_at(&self, k: u64, u: Fraction) -> Option<Scale> {
        let (p, q) = (u64::try_from(u.numerator()).ok()?, u64::try_from(u.denominator()).ok()?);
        let sum =
            self.reduction.graph.edges.iter().try_fold(0_u64, |s, e| s.checked_add(e.capacity))?;
        scaled(sum, p)?;
        let weights = self.weights.iter().map(|&w| scaled(w, k)).collect::<Option<_>>()?;
        Some(Scale {
            graph: with_capacities(&self.graph, |c| c * p / q),
            weights,
            unit: Fraction::of(q, p) * self.unit,
        })
    }

    /// Trees at a scale, as low as the budget allows.
    fn solve(&mut self, scale: &Scale, wanted: Wanted) -> Result<Found, ForestError> {
        // The first solution is not to fail for want of steps: give it what it needs on top.
        let n = count(self.weights.len());
        let mut steps = self.steps + 64 * n * n * n;
        let given = steps;
        let level = balanced(&scale.graph, &scale.weights, &mut steps);
        if let Some(level) = &level
            && wanted != Wanted::Any
            && self.rate(level, &scale.weights, scale.unit)? < self.near
        {
            return Err(ForestError::Coarse);
        }
        let graph = level.as_ref().unwrap_or(&scale.graph);
        let mut logical = remove_switches(graph, &scale.weights, &mut steps);
        if wanted != Wanted::Near {
            self.steps = self.steps.saturating_sub(given - steps);
        }
        let mut weights = scale.weights.clone();
        let mut unit = scale.unit;
        if !logical.graph.supports(&weights) {
            // Some switch takes more than it gives, or the other way round, and what is left supports less.
            let whole: Vec<u64> = weights.iter().map(|w| w.unsigned_abs()).collect();
            let ratio = bottleneck(&logical.graph.flow_graph(), &whole)?.ratio;
            let too_large = || BoundError::TooLarge;
            let p = u64::try_from(ratio.numerator()).map_err(|_| too_large())?;
            let q = u64::try_from(ratio.denominator()).map_err(|_| too_large())?;
            logical = logical.scaled(p).ok_or_else(too_large)?;
            let wider = whole.iter().map(|&w| scaled(w, q)).collect::<Option<Vec<_>>>();
            weights = wider.ok_or_else(too_large)?;
            unit = unit * Fraction::of(1, p);
        }
        let whole = weights.iter().sum::<i64>();
        let algbw = unit * Fraction::integer(i128::from(whole));
        if wanted != Wanted::Any && algbw < self.near {
            return Err(ForestError::Coarse);
        }
        let mut trees = match wanted {
            Wanted::Lower(than) => self.lower(&logical, &weights, than).ok_or(PackError::Stuck)?,
            Wanted::Near | Wanted::Any => self.pack(&logical, &weights, None, 0, &mut steps)?,
        };
        while let Some(found) = self.lower(&logical, &weights, height(&trees)) {
            trees = found;
        }
        let height = height(&trees);
        Ok(Found { trees, logical, unit, algbw, height })
    }

    /// Total data per second that a graph of a scale allows.
    fn rate(
        &self,
        graph: &FlowGraph,
        weights: &[i64],
        unit: Fraction,
    ) -> Result<Fraction, BoundError> {
        let weights: Vec<u64> = weights.iter().map(|w| w.unsigned_abs()).collect();
        let total = Fraction::of(weights.iter().sum(), 1);
        Ok(total / bottleneck(graph, &weights)?.ratio * unit)
    }

    /// Trees lower than `height`, by the first order of growth that gives some.
    fn lower(
        &mut self,
        logical: &LogicalGraph,
        weights: &[i64],
        height: usize,
    ) -> Option<Vec<PackedTree>> {
        if height <= self.least_height {
            return None;
        }
        (0..ORDERS).find_map(|order| {
            let mut steps = self.steps;
            let found = self.pack(logical, weights, Some(height - 1), order, &mut steps);
            self.steps = steps;
            found.ok()
        })
    }

    fn pack(
        &self,
        logical: &LogicalGraph,
        weights: &[i64],
        height: Option<usize>,
        order: u64,
        steps: &mut u64,
    ) -> Result<Vec<PackedTree>, PackError> {
        let options = PackOptions { height, order, max_trees: self.options.max_trees };
        pack(&logical.graph, weights, options, steps)
    }

    fn lay_out(&self, found: Found) -> Forest {
        let Found { trees, mut logical, unit, algbw, .. } = found;
        let trees = trees.into_iter().map(|tree| {
            let edges = tree.edges.iter().map(|&(from, to)| {
                let mut paths: BTreeMap<Vec<usize>, Fraction> = BTreeMap::new();
                for (via, amount) in logical.take(from, to, tree.weight) {
                    let mut whole = vec![from];
                    whole.extend(via);
                    whole.push(to);
                    let part = Fraction::of(amount.unsigned_abs(), tree.weight.unsigned_abs());
                    for (path, share) in self.reduction.expand(&whole) {
                        let via = path[1..path.len() - 1].to_vec();
                        let sum = paths.entry(via).or_insert(Fraction::ZERO);
                        *sum = *sum + share * part;
                    }
                }
                let paths = paths.into_iter().map(|(via, share)| TreePath { via, share }).collect();
                TreeEdge { from, to, paths }
            });
            Tree { root: tree.root, weight: tree.weight.unsigned_abs(), edges: edges.collect() }
        });
        Forest { trees: trees.collect(), unit, algbw }
    }
}

impl Scale {
    /// The same with everything cut into `factor` pieces.
    fn finer(&self, factor: u64) -> Option<Self> {
        let sum = self.graph.edges.iter().map(|e| e.capacity).sum();
        scaled(sum, factor)?;
        let weights = self.weights.iter().map(|w| scaled(w.unsigned_abs(), factor));
        Some(Self {
            graph: with_capacities(&self.graph, |c| c * factor),
            weights: weights.collect::<Option<_>>()?,
            unit: self.unit * Fraction::of(1, factor),
        })
    }
}

/// The most hops from a root to the rank farthest from it, where switches cost nothing.
fn least_height(graph: &FlowGraph, weights: &[u64]) -> usize {
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes];
    graph.edges.iter().for_each(|e| next[e.from].push(e.to));
    let from = |root: usize| {
        let mut hops = vec![usize::MAX; graph.nodes];
        hops[root] = 0;
        let mut queue = VecDeque::from([root]);
        while let Some(v) = queue.pop_front() {
            for &x in &next[v] {
                // Entering a switch is free, leaving a rank is a hop.
                let far = hops[v] + usize::from(x < graph.ranks);
                if far < hops[x] {
                    hops[x] = far;
                    if x < graph.ranks { queue.push_back(x) } else { queue.push_front(x) }
                }
            }
        }
        hops[..graph.ranks].iter().copied().filter(|h| *h < usize::MAX).max().unwrap_or(0)
    };
    (0..graph.ranks).filter(|&v| weights[v] > 0).map(from).max().unwrap_or(0)
}

fn height(trees: &[PackedTree]) -> usize {
    trees.iter().map(PackedTree::height).max().unwrap_or(0)
}

fn with_capacities(graph: &FlowGraph, capacity: impl Fn(u64) -> u64) -> FlowGraph {
    let edges = graph.edges.iter().map(|e| FlowEdge { capacity: capacity(e.capacity), ..*e });
    FlowGraph::new(graph.ranks, graph.nodes, edges)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::bound;
    use crate::test_graphs::{bars, connected_graph, dgx1v, duplex, published, relabelled, star};
    use proptest::prelude::*;

    /// Spanning trees in data order, shares that add up, physical paths, loads within capacity: by a sum of its own.
    #[track_caller]
    pub(crate) fn certify(g: &FlowGraph, forest: &Forest, towards: bool) {
        let mut loads: BTreeMap<(usize, usize), Fraction> = BTreeMap::new();
        let mut total = 0;
        for tree in &forest.trees {
            total += tree.weight;
            let mut reached = vec![false; g.ranks];
            reached[tree.root] = true;
            let edges: Vec<&TreeEdge> = if towards {
                tree.edges.iter().rev().collect()
            } else {
                tree.edges.iter().collect()
            };
            assert_eq!(edges.len(), g.ranks - 1);
            for edge in edges {
                let (parent, child) =
                    if towards { (edge.to, edge.from) } else { (edge.from, edge.to) };
                assert!(reached[parent] && !reached[child]);
                reached[child] = true;
                let shares: Fraction = edge.paths.iter().map(|p| p.share).sum();
                assert_eq!(shares, Fraction::ONE);
                for path in &edge.paths {
                    assert!(path.share > Fraction::ZERO);
                    assert!(path.via.iter().all(|&v| v >= g.ranks), "through a rank: {path:?}");
                    let mut nodes = vec![edge.from];
                    nodes.extend(&path.via);
                    nodes.push(edge.to);
                    for hop in nodes.windows(2) {
                        let load = loads.entry((hop[0], hop[1])).or_insert(Fraction::ZERO);
                        *load = *load + path.share * Fraction::of(tree.weight, 1) * forest.unit;
                    }
                }
            }
        }
        for (&(from, to), &load) in &loads {
            let edge = g.edges.iter().find(|e| (e.from, e.to) == (from, to));
            let capacity = edge.expect("paths follow edges").capacity;
            assert!(load <= Fraction::of(capacity, 1), "{from}-{to}: {load} of {capacity}");
        }
        assert_eq!(loads, forest.loads());
        assert_eq!(forest.algbw, forest.unit * Fraction::of(total, 1));
    }

    #[track_caller]
    fn check(g: &FlowGraph, least_height: usize, most_channels: usize) {
        let forest = all_gather(g, &ForestOptions::default()).unwrap();
        certify(g, &forest, false);
        let bound = bound::all_gather(g).unwrap().algbw;
        assert!(forest.algbw <= bound && forest.algbw >= bound * Fraction::of(99, 100));
        let found = (forest.height(), forest.channels());
        assert!(found.0 <= least_height && found.1 <= most_channels, "{found:?}");
    }

    #[test]
    fn known_machines() {
        check(&star(8, 12), 1, 1);
        check(&dgx1v(), 5, 8);
        // Two staging switches in a row, one way only at each.
        check(&duplex(4, 6, &[(0, 4, 24), (1, 4, 24), (2, 5, 24), (3, 5, 24), (4, 5, 20)]), 3, 4);
    }

    #[test]
    fn planes_share_every_hop() {
        let mut links = Vec::new();
        for v in 0..4 {
            links.extend([(v, 4, 3), (v, 5, 3)]);
        }
        let g = duplex(4, 6, &links);
        let forest = all_gather(&g, &ForestOptions::default()).unwrap();
        certify(&g, &forest, false);
        assert_eq!((forest.height(), forest.channels()), (1, 1));
        assert!(forest.trees[0].edges.iter().all(|e| e.paths.len() == 2));
    }

    #[test]
    fn a_broadcast_on_a_switch_is_low() {
        let g = star(8, 12);
        let forest = broadcast(&g, 3, &ForestOptions::default()).unwrap();
        certify(&g, &forest, false);
        assert_eq!((forest.algbw, forest.height()), (Fraction::integer(12), 2));
        let back = reduce(&g, 3, &ForestOptions::default()).unwrap();
        certify(&g, &back, true);
        assert_eq!((back.height(), back.channels()), (2, 7));
        assert!(broadcast(&g, 8, &ForestOptions::default()).is_err());
    }

    /// At least 99 % of every optimum in the bars within 32 channels, and what it took.
    #[test]
    fn bars_are_reached() {
        let mut short = Vec::new();
        for case in bars().into_iter().flatten() {
            let g = &case.graph;
            let options = ForestOptions::default();
            let optimum = bound::whole(g.ranks) / case.r_star;
            for (towards, forest) in
                [(false, all_gather(g, &options)), (true, reduce_scatter(g, &options))]
            {
                let forest = forest.unwrap();
                certify(g, &forest, towards);
                let part = (forest.algbw / optimum).to_f64();
                if part < 0.99 || forest.channels() > MAX_CHANNELS {
                    short.push((case.name.clone(), part, forest.channels()));
                }
                if !towards {
                    report(&case.name, part, &forest);
                }
            }
        }
        assert!(short.is_empty(), "{short:?}");
    }

    #[expect(clippy::print_stdout, reason = "the table is what one wants to see of this test")]
    fn report(name: &str, part: f64, forest: &Forest) {
        let (height, channels, trees) = (forest.height(), forest.channels(), forest.trees.len());
        std::println!(
            "{name:40} {part:.4} of the bound, height {height}, channels {channels}, trees {trees}"
        );
    }

    #[test]
    fn published_schedules_are_beaten() {
        for (name, graph, bar) in published("allgather").into_iter().flatten() {
            let forest = all_gather(&graph, &ForestOptions::default()).unwrap();
            certify(&graph, &forest, false);
            let rate = forest.algbw.to_f64() / 1e6;
            report(
                &name,
                (forest.algbw / bound::all_gather(&graph).unwrap().algbw).to_f64(),
                &forest,
            );
            // The figures are rounded.
            assert!(rate >= bar * 0.9999, "{name}: {rate} for {bar}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn forests_fit_and_keep_to_the_bound(g in connected_graph(7, 4), root in 0_usize..7) {
            let options = ForestOptions::default();
            let gather = all_gather(&g, &options).unwrap();
            certify(&g, &gather, false);
            let bound = bound::all_gather(&g).unwrap().algbw;
            prop_assert!(gather.algbw <= bound);
            if g.is_symmetric() {
                prop_assert!(gather.algbw >= bound * Fraction::of(99, 100), "{} of {bound}", gather.algbw);
            }
            certify(&g, &reduce_scatter(&g, &options).unwrap(), true);
            let root = root % g.ranks;
            let one = broadcast(&g, root, &options).unwrap();
            certify(&g, &one, false);
            prop_assert!(one.algbw <= bound::broadcast(&g, root).unwrap().algbw);
            certify(&g, &reduce(&g, root, &options).unwrap(), true);
        }

        #[test]
        fn names_do_not_matter(g in connected_graph(6, 3), seed in 0_u64..1000) {
            prop_assume!(g.is_symmetric());
            let (other, _) = relabelled(&g, seed);
            let options = ForestOptions::default();
            let bound = bound::all_gather(&g).unwrap().algbw;
            let near = bound * Fraction::of(99, 100);
            prop_assert!(all_gather(&other, &options).unwrap().algbw >= near);
            prop_assert_eq!(all_gather(&g, &options).unwrap(), all_gather(&g, &options).unwrap());
        }
    }
}
