//! The linear program over rings: rows are edges, columns rings, new rings priced by the rows' duals.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use super::{Column, Rated, RingOptions};
use crate::flow_graph::FlowGraph;
use crate::routes::Adjacency;
use crate::simplex::{LinearProgram, Optimum, Relation, nearest_fraction};

/// Columns in a basis are at most as many as rows; this bounds the denominators looked for.
const MAX_DENOMINATOR: u64 = 5040;
/// Pivots per solve.
const MAX_PIVOTS: u64 = 20_000;
/// Rounds of pricing.
const MAX_ROUNDS: usize = 400;
/// Duals become integer weights with this scale; a ring that gains costs less than it.
const SCALE: f64 = (1_u64 << 40) as f64;
/// A ring has to gain more than this part to be worth a column.
const GAIN: f64 = 1e-7;

/// Maximise the sum of rates; the load of every edge at most its capacity.
pub(super) struct RingProgram<'g> {
    graph: &'g FlowGraph,
    /// Capacities are divided by it, so that the program's figures are near 1.
    unit: u64,
    program: LinearProgram,
    columns: Vec<Column>,
}

impl<'g> RingProgram<'g> {
    pub(super) fn new(graph: &'g FlowGraph, seeds: Vec<Column>) -> Self {
        let unit = graph.edges.iter().map(|e| e.capacity).max().unwrap_or(1);
        let rows = graph.edges.iter().map(|e| (Relation::Le, ratio(e.capacity, unit)));
        let mut program =
            Self { graph, unit, program: LinearProgram::new(rows), columns: Vec::new() };
        for seed in seeds {
            program.add(seed);
        }
        program
    }

    fn add(&mut self, column: Column) {
        let entries = column.usage();
        #[expect(
            clippy::cast_precision_loss,
            reason = "multiplicities are below the number of ranks"
        )]
        self.program.add_column(1.0, entries.into_iter().map(|(edge, times)| (edge, times as f64)));
        self.columns.push(column);
    }

    /// Solves, prices, adds, until no ring gains, `ceiling` is reached or the budget is spent.
    pub(super) fn solve(
        &mut self,
        adjacency: &Adjacency,
        options: &RingOptions,
        ceiling: Fraction,
        steps: &mut u64,
    ) -> Option<Rated> {
        let rows = self.graph.edges.len() as u64;
        let mut optimum = self.maximise(steps)?;
        let reached = ceiling.to_f64() / ratio(self.unit, 1);
        for _ in 0..MAX_ROUNDS {
            if optimum.objective >= reached * (1.0 - GAIN) || *steps >= options.max_steps {
                break;
            }
            let weights: Vec<u64> = optimum.dual.iter().map(|dual| weight(*dual)).collect();
            let priced = Column::cheapest(self.graph, adjacency, &weights, options, steps);
            let Some((cost, column)) = priced else { break };
            if ratio(cost, 1) >= SCALE * (1.0 - GAIN) || self.columns.contains(&column) {
                break;
            }
            self.add(column);
            optimum = self.maximise(steps)?;
            *steps += rows;
        }
        Some(self.exact(&optimum, options))
    }

    fn maximise(&mut self, steps: &mut u64) -> Option<Optimum> {
        let optimum = self.program.maximise(MAX_PIVOTS).ok()?;
        let rows = self.graph.edges.len() as u64;
        *steps += (optimum.pivots + 3) * rows * rows;
        Some(optimum)
    }

    /// Exact rates near the solution's, kept within every capacity, at most `max_rings` orders.
    fn exact(&self, optimum: &Optimum, options: &RingOptions) -> Rated {
        let common = self.graph.edges.iter().fold(0, |g, e| num_integer::gcd(g, e.capacity));
        let common = common.max(1);
        let scale = ratio(self.unit, common);
        let unit = Fraction::integer(i128::from(common));
        let mut rates: Vec<(usize, Fraction)> = optimum
            .primal
            .iter()
            .enumerate()
            .map(|(i, x)| (i, nearest_fraction(x * scale, MAX_DENOMINATOR) * unit))
            .filter(|(_, rate)| *rate > Fraction::ZERO)
            .collect();
        // Largest first, so that what the limits cut off is the least.
        rates.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| self.columns[a.0].cmp(&self.columns[b.0])));
        let mut left: Vec<Fraction> =
            self.graph.edges.iter().map(|e| Fraction::integer(i128::from(e.capacity))).collect();
        let mut orders: BTreeMap<&[usize], ()> = BTreeMap::new();
        let mut chosen: Vec<usize> = Vec::new();
        for (i, _) in &rates {
            let order = self.columns[*i].order.as_slice();
            if orders.contains_key(order) || orders.len() < options.max_rings {
                orders.insert(order, ());
                chosen.push(*i);
            }
        }
        let mut given: Vec<Fraction> = vec![Fraction::ZERO; self.columns.len()];
        let wanted: BTreeMap<usize, Fraction> = rates.iter().copied().collect();
        // First what the program says, then whatever rounding or dropped rings left over.
        for top_up in [false, true] {
            for &i in &chosen {
                let usage = self.columns[i].usage();
                let fits = usage
                    .iter()
                    .filter_map(|(&edge, &times)| {
                        left[edge].checked_div(Fraction::integer(i128::from(times)))
                    })
                    .min()
                    .unwrap_or(Fraction::ZERO);
                let rate = if top_up { fits } else { fits.min(wanted[&i]) };
                for (edge, times) in usage {
                    left[edge] = left[edge] - rate * Fraction::integer(i128::from(times));
                }
                given[i] = given[i] + rate;
            }
        }
        let columns = chosen
            .into_iter()
            .filter(|i| given[*i] > Fraction::ZERO)
            .map(|i| (self.columns[i].clone(), given[i]))
            .collect();
        Rated::new(columns)
    }
}

fn weight(dual: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "duals lie between 0 and about 1, and the cast saturates"
    )]
    let weight = (dual.max(0.0) * SCALE) as u64;
    weight.min(1 << 50)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "steers the search only; results are exact fractions"
)]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}
