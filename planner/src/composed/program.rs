//! The linear program over trees: which of them, at which rates, fill the links best.
//!
//! ```text
//!   rows       a pool for each orbit of pools, and for shards of equal size a root for each orbit of roots
//!   columns    a tree from one root; it stands for its images from all roots of the orbit
//!   prices     say what a link is worth; the cheapest tree at these prices is the next column
//! ```
//!
//! Prices prove a bound at the same time: whatever is sent, a shard reaches every rank by hops that contain a spanning tree, so
//! it takes at least the cheapest tree's worth of links, of which there is only so much. Prices are rounded to integers for that, so the bound
//! is exact whatever the program's rounding.
//!
//! An all-reduce need not run along trees: ranks may exchange sums in any order. For every element, though, and any p groups of the ranks, the first
//! group that holds the whole sum has heard of p-1 others, and p-1 others hear of it later: 2(p-1) hops from group to group, whoever
//! sends them. Let price t divide the ranks in p(t) groups that hops cheaper than t join. A hop from u to v costs at least
//! as much as the range of t in which it leads from group to group, so
//!
//! ```text
//!   worth of links for an element  ≥  ∫ 2 (p(t) - 1) dt  =  2 · the cheapest spanning tree of min(cost(u, v), cost(v, u))
//! ```
//!
//! Where every way has an equal way back that is what the best trees up and down cost, so what trees reach is the best there is.

use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use super::arborescence::{HopCosts, depths};
use crate::bound::count;
use crate::flow_graph::FlowEdge;
use crate::network::Network;
use crate::routes::{Adjacency, Routes};
use crate::simplex::{LinearProgram, Relation};
use crate::symmetry::Symmetry;
use crate::units::{float, simple_multiples, to_units};

/// What trees are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// Every root spreads as much as any other.
    EqualShards,
    /// Data is reduced to a root and spread from it; what all roots do together counts.
    ReduceAndSpread,
}

impl Aim {
    /// Whether each root has to spread what the others do, rather than all together as much as they can.
    pub(super) fn is_even(self) -> bool {
        self != Self::ReduceAndSpread
    }
}

/// A hop with the nodes it passes, both ends among them.
pub(super) type Path = Vec<usize>;

/// A tree and what it takes.
#[derive(Clone, Debug)]
pub(super) struct Column {
    /// Place of its root among the program's roots.
    pub(super) root: usize,
    /// From the root, parents first.
    pub(super) down: Vec<Path>,
    /// Towards the root, children first; empty unless reduced.
    pub(super) up: Vec<Path>,
    pub(super) height: usize,
    /// By orbit of pools, how often its images together cross a pool.
    pub(super) usage: Vec<(usize, u64)>,
}

/// Rates of columns.
#[derive(Clone, Debug)]
pub(super) struct Mixture {
    pub(super) columns: Vec<Column>,
    /// By column, in no particular unit.
    pub(super) rates: Vec<f64>,
    /// No trees reach more, per root for equal shards, over all roots of a kind else.
    pub(super) ceiling: Option<Fraction>,
    /// Nor does anything else, and the edges whose prices prove it.
    pub(super) proof: Option<(Fraction, Vec<FlowEdge>)>,
}

pub(super) struct Program<'a> {
    pub(super) network: &'a Network,
    pub(super) symmetry: &'a Symmetry,
    /// Turns ways round, where reducing mirrors spreading.
    pub(super) mirror: Option<&'a [usize]>,
    pub(super) aim: Aim,
    roots: Vec<usize>,
    adjacency: Adjacency,
    orbit_of: Vec<usize>,
    /// How many pools of an orbit the images of one use of it are spread over, and what each has.
    orbits: Vec<(u64, u64)>,
    inverses: Vec<Vec<usize>>,
    columns: Vec<Column>,
    /// On what trees reach.
    bound: Option<Fraction>,
    /// On what any schedule reaches, and by orbit the prices that prove it.
    proof: Option<(Fraction, Vec<u64>)>,
}

/// Rounds of adding trees.
const MAX_ROUNDS: usize = 90;
/// Rounds after which a mixture within [`CLOSE`] of the bound is good enough.
const SOME_ROUNDS: usize = 10;
/// Pivots of one solve.
const MAX_PIVOTS: u64 = 4_000;
/// Largest integer price.
const PRICE_GRID: f64 = (1_u32 << 20) as f64;
/// Prices are tried as multiples of the least, down to such a part of it.
const MOST_MULTIPLE: u32 = 60;
/// Part of the bound at which the search for better trees ends, early and late.
const EXACT: f64 = 1.0 - 1e-9;
const CLOSE: f64 = 0.998;
/// Part of the best rate that is given up for lower trees.
const GIVEN_UP: f64 = 0.996;

impl<'a> Program<'a> {
    pub(super) fn new(
        network: &'a Network,
        symmetry: &'a Symmetry,
        mirror: Option<&'a [usize]>,
        aim: Aim,
    ) -> Self {
        let (orbit_of, sizes) = symmetry.pool_orbits(network);
        let mut orbits = vec![(1, 0); sizes.len()];
        for (pool, &orbit) in orbit_of.iter().enumerate() {
            orbits[orbit] = (count(symmetry.order() / sizes[orbit]), network.capacity[pool]);
        }
        let inverses = symmetry.elements.iter().map(|element| inverse(element)).collect();
        let adjacency = Adjacency::new(&network.graph);
        let roots = symmetry.representatives.clone();
        Self {
            network,
            symmetry,
            mirror,
            aim,
            roots,
            adjacency,
            orbit_of,
            orbits,
            inverses,
            columns: Vec::new(),
            bound: None,
            proof: None,
        }
    }

    /// One rank of each orbit.
    pub(super) fn roots(&self) -> &[usize] {
        &self.roots
    }

    /// Capacity and use of each orbit's pools by these whole numbers of trees.
    pub(super) fn loads(&self, columns: &[Column], weights: &[u64]) -> Vec<(u64, u128)> {
        let mut loads: Vec<(u64, u128)> = self.orbits.iter().map(|o| (o.1, 0)).collect();
        for (column, &weight) in columns.iter().zip(weights) {
            for &(orbit, times) in &column.usage {
                loads[orbit].1 += u128::from(times) * u128::from(weight);
            }
        }
        loads
    }

    /// The best mixture of trees within a budget; `enough` is a rate known to be the best possible.
    pub(super) fn solve(mut self, enough: Option<f64>) -> Option<(Self, Mixture)> {
        let scale = self.scale();
        let even: Vec<f64> = self.orbits.iter().map(|o| scale / float(o.1)).collect();
        let mut lp = self.program(scale, None);
        self.price(&even, None, &mut lp)?;
        let mut best: Option<f64> = None;
        for round in 0..MAX_ROUNDS {
            let Ok(optimum) = lp.maximise(MAX_PIVOTS) else { break };
            best = Some(optimum.objective);
            let upper = [enough.map(|e| e / scale), self.bound.map(|b| b.to_f64() / scale)];
            let upper = upper.into_iter().flatten().fold(f64::INFINITY, f64::min);
            let part = if round < SOME_ROUNDS { EXACT } else { CLOSE };
            if optimum.objective >= upper * part {
                break;
            }
            let (links, roots) = optimum.dual.split_at(self.orbits.len());
            if !self.price(links, Some(roots), &mut lp)? {
                break;
            }
        }
        let best = best?;
        let rates = self.lowest(best, scale)?;
        let columns = core::mem::take(&mut self.columns);
        let proof = self.proof.as_ref().map(|(bound, prices)| (*bound, self.limits(prices)));
        let ceiling = self.bound;
        Some((self, Mixture { columns, rates, ceiling, proof }))
    }

    /// The edges with a price, or whose mirror images have one where reducing mirrors spreading.
    fn limits(&self, prices: &[u64]) -> Vec<FlowEdge> {
        let graph = &self.network.graph;
        let price = |edge: usize| prices[self.orbit_of[self.network.pool_of[edge]]];
        let mirror = self.mirror.filter(|_| self.aim == Aim::ReduceAndSpread);
        let priced = |(i, e): &(usize, &FlowEdge)| {
            let back = mirror.and_then(|m| self.network.edge(m[e.to], m[e.from]));
            price(*i) > 0 || back.is_some_and(|back| price(back) > 0)
        };
        graph.edges.iter().enumerate().filter(priced).map(|(_, e)| *e).collect()
    }

    /// A capacity that makes the program's numbers about 1.
    fn scale(&self) -> f64 {
        let graph = &self.network.graph;
        let mut entering = vec![0_u64; graph.nodes];
        graph.edges.iter().for_each(|e| entering[e.to] = entering[e.to].saturating_add(e.capacity));
        let least = entering[..graph.ranks].iter().copied().min().unwrap_or(1).max(1);
        match self.aim {
            Aim::EqualShards => float(least) / float(count(graph.ranks)),
            _ => float(least) / float(count(self.symmetry.order())),
        }
    }

    /// Rows of pools, then of roots; the columns known. With `rate` given the program asks for the lowest trees of that rate.
    fn program(&self, scale: f64, rate: Option<f64>) -> LinearProgram {
        let pools = self.orbits.iter().map(|o| (Relation::Le, float(o.1) / scale));
        let roots = match (self.aim.is_even(), rate) {
            (true, None) => vec![(Relation::Le, 0.0); self.roots().len()],
            (true, Some(rate)) => vec![(Relation::Ge, rate); self.roots().len()],
            (false, None) => Vec::new(),
            (false, Some(rate)) => vec![(Relation::Ge, rate)],
        };
        let mut lp = LinearProgram::new(pools.chain(roots));
        if self.aim.is_even() && rate.is_none() {
            let first = self.orbits.len();
            lp.add_column(1.0, (0..self.roots().len()).map(|i| (first + i, 1.0)));
        }
        for column in &self.columns {
            self.add_to(&mut lp, column, rate.is_some());
        }
        lp
    }

    fn add_to(&self, lp: &mut LinearProgram, column: &Column, low: bool) {
        let used = column.usage.iter().map(|&(orbit, times)| (orbit, float(times)));
        let first = self.orbits.len();
        let height = float(count(column.height));
        let (profit, root) = match (self.aim.is_even(), low) {
            (true, false) => (0.0, Some((first + column.root, -1.0))),
            (true, true) => (-height, Some((first + column.root, 1.0))),
            (false, false) => (1.0, None),
            (false, true) => (-height, Some((first, 1.0))),
        };
        lp.add_column(profit, used.chain(root));
    }

    /// Adds the cheapest trees at these prices of links (and of roots) that would pay; whether there were any.
    fn price(
        &mut self,
        links: &[f64],
        roots: Option<&[f64]>,
        lp: &mut LinearProgram,
    ) -> Option<bool> {
        let largest = links.iter().copied().fold(0.0, f64::max);
        let whole: Vec<u64> = links.iter().map(|y| to_units(y / largest * PRICE_GRID)).collect();
        let closure = Closure::new(self, &whole);
        let mut added = false;
        let mut all = true;
        let mut least = Vec::with_capacity(self.roots().len());
        for i in 0..self.roots().len() {
            let worth = match roots {
                None => f64::INFINITY,
                Some(roots) if self.aim.is_even() => -roots[i],
                Some(_) => 1.0,
            };
            let cost = |column: &Column| -> f64 {
                column.usage.iter().map(|&(orbit, times)| links[orbit] * float(times)).sum()
            };
            let pays = |column: &Column| {
                let worth = worth.abs();
                worth.is_infinite() || cost(column) < worth - 1e-9 * (1.0 + worth)
            };
            let grown = self.column(&closure, i, HopCosts::grown)?;
            let found = if pays(&grown.0) {
                all = false;
                grown
            } else {
                self.column(&closure, i, HopCosts::cheapest)?
            };
            least.push(found.1);
            if pays(&found.0) {
                self.add_to(lp, &found.0, false);
                self.columns.push(found.0);
                added = true;
            }
        }
        if all {
            let any = closure.any_schedule();
            self.prove(&whole, &least, any);
            if let Some(prices) = simple_multiples(links, MOST_MULTIPLE) {
                self.proved_by(&prices)?;
            }
        }
        Some(added)
    }

    /// The bounds that integer prices prove, by the cheapest trees' costs and by what `any` schedule of an all-reduce costs.
    fn prove(&mut self, prices: &[u64], least: &[u64], any: u64) {
        let worth = prices.iter().zip(&self.orbits).try_fold(0_i128, |sum, (&y, o)| {
            sum.checked_add(i128::from(y).checked_mul(i128::from(o.1))?)
        });
        let (trees, any) = match self.aim {
            Aim::EqualShards => {
                let all = least.iter().map(|&c| i128::from(c)).sum();
                (all, all)
            }
            Aim::ReduceAndSpread => {
                let cheapest = least.iter().map(|&c| i128::from(c)).min().unwrap_or(0);
                (cheapest, i128::from(any))
            }
        };
        let of = |cost: i128| worth.and_then(|worth| Fraction::new(worth, cost));
        if let Some(proved) = of(trees)
            && self.bound.is_none_or(|known| proved < known)
        {
            self.bound = Some(proved);
        }
        if let Some(proved) = of(any)
            && self.proof.as_ref().is_none_or(|(known, _)| proved < *known)
        {
            self.proof = Some((proved, prices.to_vec()));
        }
    }

    fn proved_by(&mut self, prices: &[u64]) -> Option<()> {
        let closure = Closure::new(self, prices);
        let mut least = Vec::with_capacity(self.roots().len());
        for i in 0..self.roots().len() {
            least.push(self.column(&closure, i, HopCosts::cheapest)?.1);
        }
        let any = closure.any_schedule();
        self.prove(prices, &least, any);
        Some(())
    }

    /// A tree from root `i` by `how`, and what it costs in integer prices.
    fn column(
        &self,
        closure: &Closure<'_>,
        i: usize,
        how: impl Fn(&HopCosts, usize) -> Option<Vec<Option<usize>>>,
    ) -> Option<(Column, u64)> {
        let root = self.roots()[i];
        let parents = how(&closure.costs, root)?;
        let mut cost = closure.costs.total(&parents);
        let mut height = tree_height(root, &parents);
        let down = closure.paths(self, root, &parents, false)?;
        let mut up = Vec::new();
        if self.aim == Aim::ReduceAndSpread {
            up = match (self.mirror, &closure.turned) {
                (Some(mirror), _) => mirrored(&down, mirror),
                (None, Some(turned)) => {
                    let parents = how(turned, root)?;
                    cost += turned.total(&parents);
                    height = height.max(tree_height(root, &parents));
                    closure.paths(self, root, &parents, true)?
                }
                (None, None) => return None,
            };
        }
        let mut usage = vec![0_u64; self.orbits.len()];
        for hop in down.iter().chain(&up).flat_map(|path| path.windows(2)) {
            let edge = self.network.edge(hop[0], hop[1])?;
            let orbit = self.orbit_of[self.network.pool_of[edge]];
            usage[orbit] += self.orbits[orbit].0;
        }
        let usage = usage.into_iter().enumerate().filter(|u| u.1 > 0).collect();
        Some((Column { root: i, down, up, height, usage }, cost))
    }

    /// Rates of the columns such that trees are low and the rate is as good as the best, or all but.
    fn lowest(&self, best: f64, scale: f64) -> Option<Vec<f64>> {
        let mut found: Option<(usize, Vec<f64>)> = None;
        for part in [1.0 - 1e-9, GIVEN_UP] {
            let Ok(optimum) = self.program(scale, Some(best * part)).maximise(MAX_PIVOTS) else {
                continue;
            };
            let used = self.columns.iter().zip(&optimum.primal).filter(|(_, x)| **x > 1e-9);
            let height = used.map(|(column, _)| column.height).max()?;
            if found.as_ref().is_none_or(|(known, _)| height < *known) {
                found = Some((height, optimum.primal));
            }
        }
        found.map(|(_, rates)| rates)
    }
}

/// Costs and ways of all hops at some prices.
struct Closure<'a> {
    network: &'a Network,
    routes: Routes,
    costs: HopCosts,
    /// For hops turned round, where reducing does not mirror spreading.
    turned: Option<HopCosts>,
}

impl<'a> Closure<'a> {
    fn new(program: &Program<'a>, prices: &[u64]) -> Self {
        let network = program.network;
        let price = |edge: usize| {
            let orbit = program.orbit_of[network.pool_of[edge]];
            prices[orbit] * program.orbits[orbit].0
        };
        let mirrored = program.mirror.filter(|_| program.aim == Aim::ReduceAndSpread);
        let weights: Vec<u64> = (0..network.graph.edges.len())
            .map(|edge| {
                let e = network.graph.edges[edge];
                let back = mirrored.and_then(|m| network.edge(m[e.to], m[e.from]));
                price(edge) + back.map_or(0, price)
            })
            .collect();
        let ranks = network.graph.ranks;
        let mut routes = Routes::none(&network.graph);
        let mut costs = HopCosts::new(ranks);
        for &rank in &program.symmetry.representatives {
            routes.search(&network.graph, &program.adjacency, &weights, false, rank);
            for element in &program.symmetry.elements {
                for to in (0..ranks).filter(|&to| to != rank) {
                    costs.set(element[rank], element[to], routes.cost(rank, to));
                }
            }
        }
        let both = program.aim == Aim::ReduceAndSpread && mirrored.is_none();
        let turned = both.then(|| costs.turned());
        Self { network, routes, costs, turned }
    }

    /// What links an element of an all-reduce takes at least, by whatever schedule.
    fn any_schedule(&self) -> u64 {
        // Where reducing mirrors spreading, prices of both directions are in one already.
        let passes = if self.turned.is_some() { 2 } else { 1 };
        passes * self.costs.cheapest_undirected()
    }

    /// The hops of a tree in data order.
    fn paths(
        &self,
        program: &Program<'_>,
        root: usize,
        parents: &[Option<usize>],
        towards: bool,
    ) -> Option<Vec<Path>> {
        let depth = depths(root, parents);
        let mut order: Vec<usize> = (0..parents.len()).filter(|&v| v != root).collect();
        order.sort_unstable_by_key(|&v| (depth[v], v));
        if towards {
            order.reverse();
        }
        order
            .into_iter()
            .map(|v| {
                let up = parents[v]?;
                if towards { self.path(program, v, up) } else { self.path(program, up, v) }
            })
            .collect()
    }

    fn path(&self, program: &Program<'_>, from: usize, to: usize) -> Option<Path> {
        let (representative, by) = program.symmetry.from[from];
        let rank = program.symmetry.representatives[representative];
        let element = &program.symmetry.elements[by];
        let edges = self.routes.way(&self.network.graph, rank, program.inverses[by][to])?;
        let heads = edges.iter().map(|&edge| element[self.network.graph.edges[edge].to]);
        Some([from].into_iter().chain(heads).collect())
    }
}

/// The hops of a tree in the mirror, towards its root.
pub(super) fn mirrored(down: &[Path], mirror: &[usize]) -> Vec<Path> {
    down.iter().rev().map(|path| path.iter().rev().map(|&v| mirror[v]).collect()).collect()
}

fn tree_height(root: usize, parents: &[Option<usize>]) -> usize {
    depths(root, parents).into_iter().max().unwrap_or(0)
}

fn inverse(element: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; element.len()];
    element.iter().enumerate().for_each(|(x, &y)| inverse[y] = x);
    inverse
}
