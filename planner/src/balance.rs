//! What switches can forward at most where more can enter than leave, or the other way round.
//!
//! A cut bound lets a switch with one thin way in and two wide ways out fill both ways out at once. A switch that only forwards
//! cannot; its real traffic enters and leaves in equal amounts. So the best all-gather is that of the best capacities x ≤ b
//! that are balanced at every switch:
//!
//! ```text
//!   max λ    λ·w(S) ≤ x(leaving S)  for every S that misses a rank,    x(into s) = x(out of s) at switches,    x ≤ b
//! ```
//!
//! The program is solved by its dual, which has a row per edge and gains a column per cut that is found to be violated. Any dual
//! solution proves a bound; so it is rounded to integers and the bound computed from those exactly.

use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use crate::bound::{Cut, SourceNetwork};
use crate::flow_graph::{FlowEdge, FlowGraph};
use crate::served::Served;
use crate::simplex::{LinearProgram, Relation};

/// The best balanced capacities.
#[derive(Clone, Debug)]
pub(crate) struct Balanced {
    /// No all-gather takes less time per unit of weight than this.
    pub(crate) ratio: Fraction,
    /// The cuts that together prove it.
    pub(crate) cuts: Vec<Cut>,
    /// Capacities near the best, by edge, in parts of [`GRID`] of the largest capacity.
    pub(crate) shares: Vec<u64>,
}

/// Steps of a rounded capacity: fine enough that rounding loses a millionth.
pub(crate) const GRID: u32 = 1 << 24;
/// Edges beyond which the program is left alone.
pub(crate) const MAX_EDGES: usize = 400;
/// Rounds of adding cuts.
const MAX_ROUNDS: usize = 60;
/// Pivots over all rounds.
const MAX_PIVOTS: u64 = 20_000;
/// Steps of a rounded dual variable.
const DUAL_GRID: f64 = (1_u32 << 20) as f64;

/// Whether as much can enter every switch as can leave it. Then cuts alone tell the optimum.
pub(crate) fn is_balanced(graph: &FlowGraph) -> bool {
    graph.surplus()[graph.ranks..].iter().all(|&surplus| surplus == 0)
}

/// Bounds the all-gather of `weights` with balanced switches; `None` where the program is too large or was not solved.
pub(crate) fn balance(graph: &FlowGraph, weights: &[u64]) -> Option<Balanced> {
    if graph.edges.len() > MAX_EDGES {
        return None;
    }
    Program::new(graph, weights).solve()
}

struct Program<'a> {
    graph: &'a FlowGraph,
    weights: &'a [u64],
    /// In units of the largest.
    caps: Vec<f64>,
    lp: LinearProgram,
    network: SourceNetwork,
    /// Node sets with their column.
    cuts: Vec<(Vec<bool>, usize)>,
    /// Columns of each switch's price, positive and negative part.
    prices: Vec<(usize, usize)>,
    total: f64,
}

impl<'a> Program<'a> {
    fn new(graph: &'a FlowGraph, weights: &'a [u64]) -> Self {
        let largest = graph.edges.iter().map(|e| e.capacity).max().unwrap_or(1);
        let caps: Vec<f64> =
            graph.edges.iter().map(|e| Fraction::of(e.capacity, largest).to_f64()).collect();
        let edges = caps.len();
        // One row per edge: what cuts ask of it, less what its switches' prices give back, is paid for; and the cuts' weights add up to 1.
        let rows = (0..edges).map(|_| (Relation::Le, 0.0)).chain([(Relation::Ge, 1.0)]);
        let mut lp = LinearProgram::new(rows);
        for (i, &c) in caps.iter().enumerate() {
            lp.add_column(-c, [(i, -1.0)]);
        }
        let mut prices = Vec::new();
        for switch in graph.ranks..graph.nodes {
            let sign =
                |e: &FlowEdge| f64::from(i8::from(e.to == switch) - i8::from(e.from == switch));
            let entries: Vec<(usize, f64)> = graph
                .edges
                .iter()
                .enumerate()
                .filter(|(_, e)| e.from == switch || e.to == switch)
                .map(|(i, e)| (i, sign(e)))
                .collect();
            let positive = lp.add_column(0.0, entries.iter().copied());
            let negative = lp.add_column(0.0, entries.iter().map(|&(i, a)| (i, -a)));
            prices.push((positive, negative));
        }
        let total = Fraction::of(weights.iter().sum(), 1).to_f64();
        let network = SourceNetwork::new(graph);
        let mut program =
            Self { graph, weights, caps, lp, network, cuts: Vec::new(), prices, total };
        for v in 0..graph.ranks {
            for inside in [true, false] {
                program.add((0..graph.nodes).map(|x| (x == v) == inside).collect());
            }
        }
        program
    }

    fn weight(&self, side: &[bool]) -> u64 {
        side.iter().zip(self.weights).filter(|(inside, _)| **inside).map(|(_, w)| w).sum()
    }

    /// Adds a cut; whether it is new.
    fn add(&mut self, side: Vec<bool>) -> bool {
        let weight = self.weight(&side);
        if weight == 0 || self.cuts.iter().any(|(other, _)| *other == side) {
            return false;
        }
        let crossing =
            self.graph.edges.iter().enumerate().filter(|(_, e)| side[e.from] && !side[e.to]);
        let share = Fraction::of(weight, 1).to_f64() / self.total;
        let entries: Vec<(usize, f64)> =
            crossing.map(|(i, _)| (i, 1.0)).chain([(self.caps.len(), share)]).collect();
        let column = self.lp.add_column(0.0, entries);
        self.cuts.push((side, column));
        true
    }

    fn solve(mut self) -> Option<Balanced> {
        let edges = self.caps.len();
        let mut pivots = MAX_PIVOTS;
        for _ in 0..MAX_ROUNDS {
            let optimum = self.lp.maximise(pivots).ok()?;
            pivots -= optimum.pivots;
            let x = &optimum.dual[..edges];
            // The objective is minus the rate at which all data goes round once.
            let rate = -optimum.objective;
            let mut found = false;
            for side in self.violated(x, rate) {
                found |= self.add(side);
            }
            if !found {
                return self.certified(&optimum.primal, x);
            }
        }
        None
    }

    /// A minimum cut per rank that cannot be sent everything over capacities `x` at this rate.
    fn violated(&mut self, x: &[f64], rate: f64) -> Vec<Vec<bool>> {
        /// Units of the rounded network.
        const UNITS: f64 = (1_u64 << 36) as f64;
        let net = &mut self.network;
        for (&id, &x) in net.edges.iter().zip(x) {
            net.network.set_capacity(id, to_units(x * UNITS) + 1);
        }
        let mut supply = 0;
        for (&id, &weight) in net.supplies.iter().zip(self.weights) {
            let units = to_units(Fraction::of(weight, 1).to_f64() / self.total * rate * UNITS);
            net.network.set_capacity(id, units);
            supply += units;
        }
        let enough = supply - supply / 10_000_000;
        let mut served = Served::new(&net.network, net.source, enough);
        let mut sides = Vec::new();
        for v in 0..self.graph.ranks {
            if served.shortage(&mut net.network, v).is_some() {
                let mut side = served.side(&mut net.network);
                side.truncate(self.graph.nodes);
                if !sides.contains(&side) {
                    sides.push(side);
                }
            }
        }
        sides
    }

    fn certified(&self, primal: &[f64], x: &[f64]) -> Option<Balanced> {
        let largest = primal.iter().copied().fold(0.0, f64::max);
        let whole = |column: usize| i128::from(to_units(primal[column] / largest * DUAL_GRID));
        let price = |node: usize| -> i128 {
            let columns = node.checked_sub(self.graph.ranks).map(|s| self.prices[s]);
            columns.map_or(0, |(positive, negative)| whole(positive) - whole(negative))
        };
        let mut asked = vec![0_i128; self.caps.len()];
        let mut weight = 0_i128;
        let mut cuts = Vec::new();
        for (side, column) in &self.cuts {
            let times = whole(*column);
            if times == 0 {
                continue;
            }
            for (sum, e) in asked.iter_mut().zip(&self.graph.edges) {
                if side[e.from] && !side[e.to] {
                    *sum += times;
                }
            }
            weight += times * i128::from(self.weight(side));
            cuts.push(Cut::leaving(self.graph, side));
        }
        let mut paid = 0_i128;
        for (sum, e) in asked.iter().zip(&self.graph.edges) {
            let due = (sum + price(e.to) - price(e.from)).max(0);
            paid = paid.checked_add(due.checked_mul(i128::from(e.capacity))?)?;
        }
        let shares = x.iter().map(|&x| to_units(x * f64::from(GRID)).max(0).unsigned_abs());
        Some(Balanced { ratio: Fraction::new(weight, paid)?, cuts, shares: shares.collect() })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "values are scaled below 2^50")]
fn to_units(x: f64) -> i64 {
    (x + 0.5) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::{all_gather, bottleneck};
    use crate::forest::{ForestOptions, all_gather as pack};
    use crate::test_graphs::{connected_graph, graph, star};
    use proptest::prelude::*;

    /// Four GPUs behind one staging memory that could feed them all at once but is fed by a thin link.
    fn staged() -> FlowGraph {
        let mut edges = vec![(4, 5, 30)];
        for v in 0..4 {
            edges.extend([(v, 4, 24), (5, v, 24)]);
        }
        graph(4, 6, &edges)
    }

    #[test]
    fn a_thin_way_in_limits_all_ways_out() {
        let g = staged();
        assert!(!is_balanced(&g) && is_balanced(&star(4, 3)));
        // A cut alone says 8 per rank; but 30 in all, each rank to three others, is 2.5 per rank.
        assert_eq!(bottleneck(&g, &[1; 4]).unwrap().ratio, Fraction::of(1, 8));
        let found = balance(&g, &[1; 4]).unwrap();
        assert!((found.ratio.to_f64() - 0.4).abs() < 1e-5, "{}", found.ratio);
        assert!(found.cuts.len() > 1);
        let bound = all_gather(&g).unwrap().algbw;
        let forest = pack(&g, &ForestOptions::default()).unwrap();
        assert!((bound.to_f64() - 10.0).abs() < 1e-3, "{bound}");
        assert!(forest.algbw <= bound && forest.algbw.to_f64() > 9.9, "{}", forest.algbw);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn never_looser_than_a_cut_and_exact_where_balanced(g in connected_graph(5, 4)) {
            let weights = vec![1; g.ranks];
            let cut = bottleneck(&g, &weights).unwrap().ratio;
            if let Some(found) = balance(&g, &weights) {
                prop_assert!(found.ratio.to_f64() >= cut.to_f64() * (1.0 - 1e-4));
                if is_balanced(&g) {
                    prop_assert!(found.ratio <= cut);
                }
                // What a plan reaches never exceeds the bound.
                let forest = pack(&g, &ForestOptions::default()).unwrap();
                prop_assert!(forest.algbw <= all_gather(&g).unwrap().algbw);
            }
        }
    }
}
