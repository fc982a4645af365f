//! The search for a forest: scales one after the other, at each of them switches off, trees packed and then packed lower.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use super::scale::{Instance, Scale};
use super::{Forest, ForestError, ForestOptions, NEAR, Tree, TreeEdge, TreePath};
use crate::bound::{BoundError, bottleneck, count};
use crate::flow_graph::FlowGraph;
use crate::max_flow::scaled;
use crate::packing::{PackError, PackOptions, PackedTree, pack};
use crate::splitting::{LogicalGraph, Reduction, balanced, remove_switches};

/// Coarse scales tried.
const MAX_COARSE: u64 = 8;
/// Orders of growth tried per height.
const ORDERS: u64 = 4;
/// Height at which no other scale is tried: the only lower forests are stars, which a coarse scale finds at once.
const LOW: usize = 2;
/// Trees times ranks beyond which no second scale is packed once one is good enough.
const LARGE: u64 = 3000;
/// Units of one root's weight beyond which an exact scale comes last: capacities that need so many hardly ever part into few trees, and coarse
/// ones of so few trees come within a hundredth mostly.
const MANY: u64 = 1024;
/// Coarse scales to fall back on, in order, where the finer ones need too many trees.
const FALLBACK: [u64; 8] = [32, 24, 16, 12, 8, 4, 2, 1];

pub(super) struct Search<'a> {
    options: &'a ForestOptions,
    reduction: Reduction,
    /// The reduction's graph, with switches balanced.
    instance: Instance<'a>,
    /// Least height that any trees can have.
    least_height: usize,
    /// Rate that a forest must reach to be considered.
    near: Fraction,
    steps: u64,
}

/// A way to cut capacities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cutting {
    /// So many trees for each unit of weight, capacities rounded down.
    Coarse(u64),
    /// As many as it takes to reach the best.
    Exact(u64),
    /// The same, every unit in so many pieces.
    Finer(u64),
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
    pub(super) fn new(
        graph: &FlowGraph,
        weights: &'a [u64],
        best: Fraction,
        options: &'a ForestOptions,
    ) -> Result<Self, ForestError> {
        // On the graph as it is, so that a cut in an error names its edges.
        let ratio = bottleneck(graph, weights)?.ratio;
        let reduction = Reduction::new(graph);
        let least_height = least_height(&reduction.graph, weights);
        let instance = Instance::new(reduction.graph.clone(), weights, ratio);
        let part = Fraction::of(NEAR.0, NEAR.1);
        let reach = instance.reach();
        let near = if best.is_zero() { reach * part } else { reach.min(best * part) };
        Ok(Self { options, reduction, instance, least_height, near, steps: options.steps })
    }

    pub(super) fn run(mut self) -> Result<Forest, ForestError> {
        let mut best: Option<Found> = None;
        let mut error = ForestError::Bound(BoundError::TooLarge);
        let exact = self.instance.exact_scale();
        let whole = exact.as_ref().map_or(u64::MAX, |scale| self.instance.trees_per_root(scale));
        // One root on a switch: finer cuts let every rank take part at once, which makes trees low.
        let roots = count(self.instance.weights.iter().filter(|&&w| w > 0).count());
        let others = count(self.instance.weights.len() - 1);
        let coarse = if whole > 1 { MAX_COARSE.min(whole - 1) } else { 0 };
        let mut cuts: Vec<Cutting> = (1..=coarse).map(Cutting::Coarse).collect();
        let last = roots == 1 && whole > MANY;
        if (self.options.thorough && !last) || whole <= MAX_COARSE {
            cuts.push(Cutting::Exact(whole));
        }
        if roots == 1 {
            let finer = others.min(count(self.options.max_trees) / whole.max(1)).min(MAX_COARSE);
            cuts.extend((finer > 1).then_some(Cutting::Finer(finer)));
        }
        for cutting in cuts {
            // Once there is a good one, only lower ones are of interest.
            let good = best.as_ref().filter(|found| found.algbw >= self.near).map(|f| f.height);
            if good.is_some() && (!self.options.thorough || self.steps == 0) {
                break;
            }
            let (Cutting::Coarse(k) | Cutting::Exact(k) | Cutting::Finer(k)) = cutting;
            if let Some(height) = good
                && (height <= self.least_height.max(LOW)
                    || k.saturating_mul(roots * others) > LARGE)
            {
                continue;
            }
            let scale = match cutting {
                Cutting::Coarse(k) => {
                    let total = self.instance.total() * self.instance.unit;
                    self.instance.coarse_scale(k, total * Fraction::of(k, 1) / self.near)
                }
                Cutting::Exact(_) => exact.clone(),
                Cutting::Finer(factor) => exact.as_ref().and_then(|scale| scale.finer(factor)),
            };
            let Some(scale) = scale else { continue };
            let wanted = good.map_or(Wanted::Near, Wanted::Lower);
            match self.solve(&scale, wanted) {
                Ok(found) => self.keep(&mut best, found),
                Err(e) => error = e,
            }
        }
        let mut tried = 0;
        for (k, known) in self.fallback(roots == 1, best.as_ref()) {
            // No scale reached it within the limit of trees: take the best there is.
            let enough = |found: &Found| found.algbw >= self.near * Fraction::of(NEAR.0, NEAR.1);
            if best.as_ref().is_some_and(enough) || tried == FALLBACK.len() {
                break;
            }
            let Some(scale) = known.or_else(|| self.fallback_scale(k)) else { continue };
            let rate = self.rate_of(k, &scale);
            if best.as_ref().is_some_and(|found| found.algbw >= rate) {
                continue;
            }
            tried += 1;
            match self.solve(&scale, Wanted::Any) {
                Ok(found) => self.keep(&mut best, found),
                Err(e) => error = e,
            }
        }
        if last
            && self.options.thorough
            && best.as_ref().is_none_or(|found| found.algbw < self.near)
            && let Some(scale) = &exact
        {
            match self.solve(scale, Wanted::Near) {
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

    /// Scales to fall back on, in order. Trees of one root are few at any scale, so all are looked at there, and the fastest come first; else
    /// some, and each is made when its turn comes.
    fn fallback(&mut self, one_root: bool, best: Option<&Found>) -> Vec<(u64, Option<Scale>)> {
        let most = count(self.options.max_trees);
        let enough = |found: &Found| found.algbw >= self.near * Fraction::of(NEAR.0, NEAR.1);
        if !self.options.thorough || best.is_some_and(enough) {
            return Vec::new();
        }
        if !one_root {
            return FALLBACK.into_iter().filter(|k| *k <= most).map(|k| (k, None)).collect();
        }
        let mut scales = Vec::new();
        for k in (1..=most).rev() {
            scales.extend(self.fallback_scale(k).map(|scale| (self.rate_of(k, &scale), k, scale)));
        }
        // Where rates are equal, fewer trees.
        scales.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        scales.into_iter().map(|(_, k, scale)| (k, Some(scale))).collect()
    }

    /// The best scale with k trees for each unit of weight.
    fn fallback_scale(&mut self, k: u64) -> Option<Scale> {
        let limit = self.instance.ratio * Fraction::of(k, 1) + self.instance.coarsest_step();
        self.instance.coarse_scale(k, limit)
    }

    /// Total data per second that trees of such a scale carry.
    fn rate_of(&self, k: u64, scale: &Scale) -> Fraction {
        scale.unit * self.instance.total() * Fraction::of(k, 1)
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

    /// Trees at a scale, as low as the budget allows.
    fn solve(&mut self, scale: &Scale, wanted: Wanted) -> Result<Found, ForestError> {
        // The first solution is not to fail for want of steps: give it what it needs on top.
        let n = count(self.instance.weights.len());
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
