//! How finely capacities are cut before trees are packed.
//!
//! Trees have whole weights, so capacities are whole numbers of units. At the exact scale p units stand for what q shards take, p/q being the best
//! time: nothing is lost, but there can be many trees. At a coarse scale every root has k trees, and capacities are rounded down.

use alloc::vec;
use alloc::vec::Vec;

use num_integer::Integer;
use topology::Fraction;

use crate::balance::{GRID, balance, is_balanced};
use crate::bound::{SourceNetwork, bottleneck, count, supports};
use crate::flow_graph::{FlowEdge, FlowGraph};
use crate::max_flow::scaled;
use crate::served::Served;
use crate::splitting::balanced;

/// How capacities are cut: `weights[v]` units at each root, capacities in units, the rate of a unit.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    pub(super) graph: FlowGraph,
    pub(super) weights: Vec<i64>,
    pub(super) unit: Fraction,
}

/// Breakpoints looked at for one coarse scale.
const MAX_BREAKPOINTS: usize = 20_000;

/// What trees are to be packed into, not cut yet.
#[derive(Debug)]
pub(super) struct Instance<'a> {
    /// As much enters every switch as leaves it.
    pub(super) graph: FlowGraph,
    pub(super) weights: &'a [u64],
    /// Capacity of one unit of `graph`.
    pub(super) unit: Fraction,
    /// Best time per unit of weight on `graph`.
    pub(super) ratio: Fraction,
    /// Cuts that were too narrow at some scale.
    narrow: Vec<Narrow>,
}

/// What has to cross a cut, and what can.
#[derive(Clone, Debug)]
struct Narrow {
    weight: u64,
    capacities: Vec<u64>,
}

impl Narrow {
    fn new(graph: &FlowGraph, weights: &[u64], side: &[bool]) -> Self {
        let crossing = graph.edges.iter().filter(|e| side[e.from] && !side[e.to]);
        Self {
            weight: (0..graph.ranks).filter(|&v| side[v]).map(|v| weights[v]).sum(),
            capacities: crossing.map(|e| e.capacity).collect(),
        }
    }

    fn allows(&self, k: u64, u: Fraction) -> bool {
        let whole = |&b: &u64| u.numerator() * i128::from(b) / u.denominator();
        let room: i128 = self.capacities.iter().map(whole).sum();
        i128::from(k) * i128::from(self.weight) <= room
    }
}

impl<'a> Instance<'a> {
    /// `ratio` is the best time on the graph as far as cuts tell.
    pub(super) fn new(graph: FlowGraph, weights: &'a [u64], ratio: Fraction) -> Self {
        let unit = Fraction::ONE;
        let mut instance = Self { graph, weights, unit, ratio, narrow: Vec::new() };
        instance.balance();
        instance
    }

    /// All weights.
    pub(super) fn total(&self) -> Fraction {
        Fraction::of(self.weights.iter().sum(), 1)
    }

    /// Total data per second at the best time.
    pub(super) fn reach(&self) -> Fraction {
        self.total() / self.ratio * self.unit
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

    /// Capacities times p and weights times q, divided by all they have in common, where p/q is the best time.
    pub(super) fn exact_scale(&self) -> Option<Scale> {
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
    pub(super) fn trees_per_root(&self, scale: &Scale) -> u64 {
        let pairs = scale.weights.iter().zip(self.weights).filter(|(_, w)| **w > 0);
        pairs.map(|(&units, _)| units.unsigned_abs()).max().unwrap_or(1)
    }

    /// The least step of a scale that must help: one unit more on the smallest edge.
    pub(super) fn coarsest_step(&self) -> Fraction {
        let least = self.graph.edges.iter().map(|e| e.capacity).min().unwrap_or(1);
        Fraction::of(1, least)
    }

    /// The least U ≤ `limit` at which capacities ⌊U·b⌋ support k trees per unit of weight.
    pub(super) fn coarse_scale(&mut self, k: u64, limit: Fraction) -> Option<Scale> {
        let least = self.ratio * Fraction::of(k, 1);
        let mut sizes: Vec<u64> = self.graph.edges.iter().map(|e| e.capacity).collect();
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
        // Every cut found too narrow rules out what it can before another flow is tried; most scales fail by cuts of others.
        let mut from = 0;
        loop {
            from += breakpoints[from..].partition_point(|u| !self.cuts_allow(k, *u));
            let scale = self.scale_at(k, *breakpoints.get(from)?);
            let network = scale.as_ref().and_then(|s| SourceNetwork::whole(&s.graph, &s.weights));
            let (Some(scale), Some(network)) = (scale, network) else {
                // Too large to tell.
                from += 1;
                continue;
            };
            match narrow_cut(network, self.graph.ranks) {
                None => return Some(scale),
                Some(side) => self.narrow.push(Narrow::new(&self.graph, self.weights, &side)),
            }
        }
    }

    /// Whether all cuts that were ever too narrow are wide enough at ⌊U·b⌋ for k trees.
    fn cuts_allow(&self, k: u64, u: Fraction) -> bool {
        self.narrow.iter().all(|cut| cut.allows(k, u))
    }

    fn scale_at(&self, k: u64, u: Fraction) -> Option<Scale> {
        let (p, q) = (u64::try_from(u.numerator()).ok()?, u64::try_from(u.denominator()).ok()?);
        let sum = self.graph.edges.iter().try_fold(0_u64, |s, e| s.checked_add(e.capacity))?;
        scaled(sum, p)?;
        let weights = self.weights.iter().map(|&w| scaled(w, k)).collect::<Option<_>>()?;
        Some(Scale {
            graph: with_capacities(&self.graph, |c| c * p / q),
            weights,
            unit: Fraction::of(q, p) * self.unit,
        })
    }
}

/// The side of a cut that is too narrow for some rank to be sent everything, if there is one.
fn narrow_cut(mut net: SourceNetwork, ranks: usize) -> Option<Vec<bool>> {
    let mut served = Served::new(&net.network, net.source, net.supply);
    (0..ranks).find(|v| served.shortage(&mut net.network, *v).is_some())?;
    Some(served.side(&mut net.network))
}

impl Scale {
    /// The same with everything cut into `factor` pieces.
    pub(super) fn finer(&self, factor: u64) -> Option<Self> {
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

fn with_capacities(graph: &FlowGraph, capacity: impl Fn(u64) -> u64) -> FlowGraph {
    let edges = graph.edges.iter().map(|e| FlowEdge { capacity: capacity(e.capacity), ..*e });
    FlowGraph::new(graph.ranks, graph.nodes, edges)
}
