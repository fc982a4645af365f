//! The linear program over rings: rows are edges, columns rings, new rings priced by the rows' duals.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use super::{Column, Ground, Rated, RingOptions};
use crate::flow_graph::FlowGraph;
use crate::simplex::{LinearProgram, Optimum, Relation};

/// Largest common denominator looked for; beyond it rates are rounded down to whole units of capacity.
const MAX_DENOMINATOR: u32 = 420;
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
    /// The row that limits each edge: its own, or that of an edge which always carries the same.
    row: Vec<usize>,
    /// Capacities are divided by it, so that the program's figures are near 1.
    unit: u64,
    program: LinearProgram,
    columns: Vec<Column>,
}

impl<'g> RingProgram<'g> {
    pub(super) fn new(graph: &'g FlowGraph, seeds: Vec<Column>) -> Self {
        let unit = graph.edges.iter().map(|e| e.capacity).max().unwrap_or(1);
        let (row, capacities) = rows(graph);
        let limits = capacities.iter().map(|c| (Relation::Le, ratio(*c, unit)));
        let mut program =
            Self { graph, row, unit, program: LinearProgram::new(limits), columns: Vec::new() };
        for seed in seeds {
            program.add(seed);
        }
        program
    }

    fn add(&mut self, column: Column) {
        let mut entries: BTreeMap<usize, u64> = BTreeMap::new();
        for (edge, times) in column.usage() {
            // Edges of one row carry the same, which is to be counted once.
            let row = entries.entry(self.row[edge]).or_insert(0);
            *row = (*row).max(times);
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "multiplicities are below the number of ranks"
        )]
        self.program.add_column(1.0, entries.into_iter().map(|(row, times)| (row, times as f64)));
        self.columns.push(column);
    }

    /// Solves, prices, adds, until no ring gains, `ceiling` is reached or the budget is spent.
    pub(super) fn solve(
        &mut self,
        ground: &Ground,
        options: &RingOptions,
        ceiling: Fraction,
        steps: &mut u64,
    ) -> Option<Rated> {
        let mut optimum = self.maximise(steps)?;
        let reached = ceiling.to_f64() / ratio(self.unit, 1);
        for _ in 0..MAX_ROUNDS {
            if optimum.objective >= reached * (1.0 - GAIN) || *steps >= options.max_steps {
                break;
            }
            let mut weights = vec![0; self.graph.edges.len()];
            let mut counted = vec![false; optimum.dual.len()];
            for (edge, &row) in self.row.iter().enumerate() {
                if !counted[row] {
                    counted[row] = true;
                    weights[edge] = weight(optimum.dual[row]);
                }
            }
            let priced = Column::cheapest(self.graph, ground, &weights, options, steps);
            let gaining: Vec<Column> = priced
                .into_iter()
                .filter(|(cost, _)| ratio(*cost, 1) < SCALE * (1.0 - GAIN))
                .map(|(_, column)| column)
                .filter(|column| !self.columns.contains(column))
                .collect();
            if gaining.is_empty() {
                break;
            }
            for column in gaining {
                self.add(column);
            }
            optimum = self.maximise(steps)?;
        }
        Some(self.exact(&optimum, options))
    }

    fn maximise(&mut self, steps: &mut u64) -> Option<Optimum> {
        let optimum = self.program.maximise(MAX_PIVOTS).ok()?;
        let rows = optimum.dual.len() as u64;
        // A solve inverts its basis three times.
        *steps += (optimum.pivots + 3 * rows) * rows * rows;
        Some(optimum)
    }

    /// Exact rates near the solution's, kept within every capacity, at most `max_rings` orders.
    fn exact(&self, optimum: &Optimum, options: &RingOptions) -> Rated {
        let common = self.graph.edges.iter().fold(0, |g, e| num_integer::gcd(g, e.capacity)).max(1);
        let scale = ratio(self.unit, common);
        let found: Vec<f64> = optimum.primal.iter().map(|x| x * scale).collect();
        // All rates over one denominator, so that sums stay small: the least under which all are whole, else one kB/s.
        let whole = (1..=MAX_DENOMINATOR)
            .find(|d| found.iter().all(|x| distance_to_whole(x * f64::from(*d)) < 1e-5));
        let denominator = whole.map_or_else(|| u128::from(common), u128::from);
        let per_unit = whole.map_or_else(|| ratio(common, 1), f64::from);
        // A rate of 1 below is common / denominator.
        let mut wanted: Vec<(u128, usize)> = found
            .iter()
            .enumerate()
            .map(|(i, x)| (floor(x * per_unit + 1e-4), i))
            .filter(|(rate, _)| *rate > 0)
            .collect();
        // Largest first, so that what the limits cut off is the least.
        wanted
            .sort_by(|a, b| b.0.cmp(&a.0).then_with(|| self.columns[a.1].cmp(&self.columns[b.1])));
        let mut orders: Vec<&[usize]> = Vec::new();
        wanted.retain(|(_, i)| {
            let order = self.columns[*i].order.as_slice();
            let known = orders.contains(&order);
            if !known && orders.len() < options.max_rings {
                orders.push(order);
            }
            known || orders.contains(&order)
        });
        let mut left: Vec<u128> = self
            .graph
            .edges
            .iter()
            .map(|e| u128::from(e.capacity / common) * denominator)
            .collect();
        let mut given: Vec<u128> = vec![0; wanted.len()];
        // First what the program says, then whatever rounding or dropped rings left over.
        for top_up in [false, true] {
            for (place, (rate, i)) in wanted.iter().enumerate() {
                let usage = self.columns[*i].usage();
                let fits = usage.iter().map(|(&edge, &times)| left[edge] / u128::from(times)).min();
                let fits = fits.unwrap_or(0);
                let rate = if top_up { fits } else { fits.min(*rate) };
                for (edge, times) in usage {
                    left[edge] -= rate * u128::from(times);
                }
                given[place] += rate;
            }
        }
        let unit = Fraction::integer(i128::from(common));
        let columns = wanted
            .into_iter()
            .zip(given)
            .filter(|(_, rate)| *rate > 0)
            .filter_map(|((_, i), rate)| {
                let denominator = i128::try_from(denominator).ok()?;
                let rate = Fraction::new(i128::try_from(rate).ok()?, denominator)?;
                Some((self.columns[i].clone(), rate * unit))
            })
            .collect();
        Rated::new(columns)
    }
}

/// For each edge its row, and the capacity of each row. What enters a forwarder between two neighbours on one side leaves it
/// on the other, so both edges share a row, the tighter one's.
fn rows(graph: &FlowGraph) -> (Vec<usize>, Vec<u64>) {
    let mut row: Vec<usize> = (0..graph.edges.len()).collect();
    for node in graph.ranks..graph.nodes {
        let edges = graph.edges.iter().enumerate();
        let touching: Vec<(usize, usize, bool)> = edges
            .filter(|(_, e)| e.from == node || e.to == node)
            .map(|(i, e)| if e.to == node { (i, e.from, true) } else { (i, e.to, false) })
            .collect();
        let mut neighbours: Vec<usize> = touching.iter().map(|(_, other, _)| *other).collect();
        neighbours.sort_unstable();
        neighbours.dedup();
        if neighbours.len() != 2 {
            continue;
        }
        for &(entering, from, into) in &touching {
            let leaving = touching.iter().find(|(_, to, into)| !into && *to != from);
            if let Some((leaving, ..)) = leaving.filter(|_| into) {
                let (keep, drop) = (row[entering], row[*leaving]);
                for of in row.iter_mut().filter(|of| **of == drop) {
                    *of = keep;
                }
            }
        }
    }
    let mut names = row.clone();
    names.sort_unstable();
    names.dedup();
    let mut capacities = vec![u64::MAX; names.len()];
    for (edge, of) in row.iter_mut().enumerate() {
        *of = names.binary_search(of).expect("every row has a name");
        capacities[*of] = capacities[*of].min(graph.edges[edge].capacity);
    }
    (row, capacities)
}

fn distance_to_whole(x: f64) -> f64 {
    let above = x - floor_f64(x);
    above.min(1.0 - above)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are positive and the cast saturates"
)]
fn floor(x: f64) -> u128 {
    x as u128
}

#[expect(clippy::cast_precision_loss, reason = "only the distance to it is looked at")]
fn floor_f64(x: f64) -> f64 {
    floor(x) as f64
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
