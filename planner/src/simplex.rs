//! A small linear programming solver: revised simplex with an explicit inverse of the basis.
//!
//! ```text
//!   maximise  Σ profit_j · x_j     subject to   Σ_j a_ij · x_j  (≤ | = | ≥)  b_i,    x ≥ 0
//! ```
//!
//! It works in `f64`. An exact tableau over 128-bit fractions overflows at a few dozen rows, and bignums cost a
//! hundred times as much; what a plan needs is not an exact solver but an exact *result*. So callers take from the
//! optimum only *which* shares or lengths to use, turn them into fractions with [`nearest_fraction`], and recompute the
//! value they claim from those in integers: a rounding error can then make a plan a little worse, never wrong.
//! Only `+ - * /` and comparisons are used, which IEEE 754 fixes bit by bit, so equal programs give equal results on
//! every host.
//!
//! Columns may be added after a solve; the next solve starts from the last basis. That is column generation:
//! price new columns with [`Optimum::dual`], add those with positive reduced profit, solve again.

use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

/// How the left side of a row relates to its right side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// At most.
    Le,
    /// Equal.
    Eq,
    /// At least.
    Ge,
}

/// A linear program in the making, and the basis of its last solve.
///
/// Coefficients should be scaled to about 1: the tolerances are absolute.
#[derive(Clone, Debug)]
pub struct LinearProgram {
    rows: Vec<Row>,
    columns: Vec<Column>,
    /// By row, the columns that have it and their coefficients: what `columns` says, for pricing.
    of_row: Vec<Vec<(usize, f64)>>,
    basis: Vec<Basic>,
    /// Inverse of the basis, row-major.
    inverse: Vec<f64>,
    values: Vec<f64>,
    /// Whether the inverse was computed from this basis afresh, not updated pivot by pivot.
    fresh: bool,
}

/// The solution of a [`LinearProgram`].
#[derive(Clone, Debug, PartialEq)]
pub struct Optimum {
    /// Σ profit · x.
    pub objective: f64,
    /// By column.
    pub primal: Vec<f64>,
    /// By row, the gain in the objective per unit of its right side: ≥ 0 for `Le`, ≤ 0 for `Ge`, any for `Eq`.
    pub dual: Vec<f64>,
    /// Pivots this solve took.
    pub pivots: u64,
}

/// Why there is no optimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LpError {
    /// No x meets all rows.
    #[error("the linear program has no solution")]
    Infeasible,
    /// The objective grows without limit.
    #[error("the linear program is unbounded")]
    Unbounded,
    /// The budget ran out.
    #[error("the linear program was not solved within its budget of pivots")]
    OutOfPivots,
}

#[derive(Clone, Debug)]
struct Row {
    /// Right side, made ≥ 0.
    rhs: f64,
    /// -1 where the row was turned round to make it so.
    sign: f64,
    /// Coefficient of its slack after turning: 1, -1, or 0 for an equality.
    slack: f64,
}

#[derive(Clone, Debug)]
struct Column {
    profit: f64,
    /// Already multiplied by the rows' signs.
    entries: Vec<(usize, f64)>,
}

/// What is basic in a row's place. The order is the one Bland's rule goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Basic {
    Slack(usize),
    Column(usize),
    Artificial(usize),
}

/// Below it a reduced profit counts as zero.
const PRICE_TOLERANCE: f64 = 1e-9;
/// Below it a pivot element counts as zero.
const PIVOT_TOLERANCE: f64 = 1e-9;
/// Below it an artificial variable counts as gone.
const FEASIBLE_TOLERANCE: f64 = 1e-7;

impl LinearProgram {
    /// A program with these rows and no columns yet.
    #[must_use]
    pub fn new(rows: impl IntoIterator<Item = (Relation, f64)>) -> Self {
        let rows: Vec<Row> = rows
            .into_iter()
            .map(|(relation, rhs)| {
                let sign = if rhs < 0.0 { -1.0 } else { 1.0 };
                let slack = match relation {
                    Relation::Le => sign,
                    Relation::Eq => 0.0,
                    Relation::Ge => -sign,
                };
                Row { rhs: rhs * sign, sign, slack }
            })
            .collect();
        let basis: Vec<Basic> = rows
            .iter()
            .enumerate()
            .map(|(i, row)| if row.slack > 0.0 { Basic::Slack(i) } else { Basic::Artificial(i) })
            .collect();
        let m = rows.len();
        let mut inverse = vec![0.0; m * m];
        for i in 0..m {
            inverse[i * m + i] = 1.0;
        }
        let values = rows.iter().map(|row| row.rhs).collect();
        // Slacks with -1 are not in the basis: it is the identity.
        let of_row = vec![Vec::new(); m];
        Self { rows, columns: Vec::new(), of_row, basis, inverse, values, fresh: true }
    }

    /// Adds a variable x ≥ 0 and returns its index. A row may be named twice; its coefficients add up.
    ///
    /// # Panics
    /// Where an entry names a row that does not exist.
    pub fn add_column(
        &mut self,
        profit: f64,
        entries: impl IntoIterator<Item = (usize, f64)>,
    ) -> usize {
        let mut entries: Vec<(usize, f64)> =
            entries.into_iter().map(|(i, a)| (i, a * self.rows[i].sign)).collect();
        // In order of rows, so that sums over rows and over entries round alike.
        entries.sort_by_key(|entry| entry.0);
        for &(i, a) in &entries {
            self.of_row[i].push((self.columns.len(), a));
        }
        self.columns.push(Column { profit, entries });
        self.columns.len() - 1
    }

    /// How many columns it has.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// Maximises, starting from the last basis.
    ///
    /// # Errors
    /// [`LpError`]; the program can be used further after each of them.
    pub fn maximise(&mut self, max_pivots: u64) -> Result<Optimum, LpError> {
        let mut pivots = 0;
        self.refactor();
        if self.infeasibility() > FEASIBLE_TOLERANCE {
            self.climb(Phase::Feasibility, max_pivots, &mut pivots)?;
            self.refactor();
            if self.infeasibility() > FEASIBLE_TOLERANCE {
                return Err(LpError::Infeasible);
            }
        }
        // A second climb from a fresh inverse corrects what rounding hid in the first.
        for _ in 0..2 {
            self.climb(Phase::Profit, max_pivots, &mut pivots)?;
            if self.fresh {
                break;
            }
            self.refactor();
        }
        let mut primal = vec![0.0; self.columns.len()];
        for (&basic, &value) in self.basis.iter().zip(&self.values) {
            if let Basic::Column(j) = basic {
                primal[j] = if value > 0.0 { value } else { 0.0 };
            }
        }
        let objective = self.columns.iter().zip(&primal).map(|(c, x)| c.profit * x).sum();
        let mut dual = self.prices(Phase::Profit);
        for (y, row) in dual.iter_mut().zip(&self.rows) {
            *y *= row.sign;
        }
        Ok(Optimum { objective, primal, dual, pivots })
    }

    fn infeasibility(&self) -> f64 {
        let artificial = |b: &Basic| matches!(b, Basic::Artificial(_));
        self.basis
            .iter()
            .zip(&self.values)
            .filter(|(b, _)| artificial(b))
            .map(|(_, v)| v.abs())
            .sum()
    }

    fn profit(&self, phase: Phase, basic: Basic) -> f64 {
        match (phase, basic) {
            (Phase::Feasibility, Basic::Artificial(_)) => -1.0,
            (Phase::Profit, Basic::Column(j)) => self.columns[j].profit,
            _ => 0.0,
        }
    }

    /// Simplex multipliers: profits of the basis times its inverse.
    fn prices(&self, phase: Phase) -> Vec<f64> {
        let m = self.rows.len();
        let mut y = vec![0.0; m];
        for (i, &basic) in self.basis.iter().enumerate() {
            let profit = self.profit(phase, basic);
            if profit != 0.0 {
                for (y, b) in y.iter_mut().zip(&self.inverse[i * m..(i + 1) * m]) {
                    *y += profit * b;
                }
            }
        }
        y
    }

    /// What each column gains at these prices. Rows without a price, which are most where few are tight, are passed over.
    fn reduced_profits(&self, phase: Phase, prices: &[f64], reduced: &mut [f64]) {
        for (j, profit) in reduced.iter_mut().enumerate() {
            *profit = self.profit(phase, Basic::Column(j));
        }
        for (&price, columns) in prices.iter().zip(&self.of_row) {
            if price != 0.0 {
                columns.iter().for_each(|&(j, a)| reduced[j] -= price * a);
            }
        }
    }

    fn entries(&self, basic: Basic, mut visit: impl FnMut(usize, f64)) {
        match basic {
            Basic::Slack(i) => visit(i, self.rows[i].slack),
            Basic::Artificial(i) => visit(i, 1.0),
            Basic::Column(j) => self.columns[j].entries.iter().for_each(|&(i, a)| visit(i, a)),
        }
    }

    /// What one unit of `entering` takes from each basic variable: row by row of the inverse, as it lies in memory.
    fn direction(&self, entering: Basic, direction: &mut [f64]) {
        let m = self.rows.len();
        let slack;
        let entries = match entering {
            Basic::Column(j) => self.columns[j].entries.as_slice(),
            Basic::Slack(i) => {
                slack = [(i, self.rows[i].slack)];
                &slack
            }
            Basic::Artificial(i) => {
                slack = [(i, 1.0)];
                &slack
            }
        };
        for (d, row) in direction.iter_mut().zip(self.inverse.chunks_exact(m.max(1))) {
            *d = entries.iter().fold(0.0, |sum, &(k, a)| sum + row[k] * a);
        }
    }

    fn climb(&mut self, phase: Phase, max_pivots: u64, pivots: &mut u64) -> Result<(), LpError> {
        let m = self.rows.len();
        let mut idle = 0;
        let mut since_refactor = 0;
        let mut direction = vec![0.0; m];
        let mut reduced = vec![0.0; self.columns.len()];
        // Artificial variables never come back, so they need no mark.
        let mut column_basic = vec![false; self.columns.len()];
        let mut slack_basic = vec![false; m];
        for &basic in &self.basis {
            match basic {
                Basic::Slack(i) => slack_basic[i] = true,
                Basic::Column(j) => column_basic[j] = true,
                Basic::Artificial(_) => {}
            }
        }
        loop {
            // Bland's rule ends every cycle; Dantzig's is faster while there is progress.
            let bland = idle > 2 * m + 20;
            let y = self.prices(phase);
            let mut entering = None;
            let mut best = PRICE_TOLERANCE;
            self.reduced_profits(phase, &y, &mut reduced);
            let slacks = (0..m).filter(|&i| self.rows[i].slack != 0.0 && !slack_basic[i]);
            let slacks = slacks.map(|i| (Basic::Slack(i), -(y[i] * self.rows[i].slack)));
            let columns = reduced.iter().enumerate().filter(|(j, _)| !column_basic[*j]);
            let columns = columns.map(|(j, &profit)| (Basic::Column(j), profit));
            for (candidate, profit) in slacks.chain(columns) {
                if profit > best {
                    best = profit;
                    entering = Some(candidate);
                    if bland {
                        break;
                    }
                }
            }
            let Some(entering) = entering else { return Ok(()) };
            if *pivots >= max_pivots {
                return Err(LpError::OutOfPivots);
            }

            self.direction(entering, &mut direction);
            let Some(leaving) = self.ratio_test(&direction, phase, bland) else {
                return match phase {
                    Phase::Feasibility => Err(LpError::Infeasible),
                    Phase::Profit => Err(LpError::Unbounded),
                };
            };
            match self.basis[leaving] {
                Basic::Slack(i) => slack_basic[i] = false,
                Basic::Column(j) => column_basic[j] = false,
                Basic::Artificial(_) => {}
            }
            match entering {
                Basic::Slack(i) => slack_basic[i] = true,
                Basic::Column(j) => column_basic[j] = true,
                Basic::Artificial(_) => {}
            }
            let step = self.pivot(leaving, entering, &direction);
            idle = if step * best > 1e-12 { 0 } else { idle + 1 };
            *pivots += 1;
            since_refactor += 1;
            if since_refactor > m.max(100) {
                self.refactor();
                since_refactor = 0;
            }
        }
    }

    /// The row that leaves: the least ratio, among near ties the largest pivot (with Bland's rule the least variable).
    fn ratio_test(&self, direction: &[f64], phase: Phase, bland: bool) -> Option<usize> {
        let mut leaving: Option<usize> = None;
        let mut least = f64::INFINITY;
        for (i, &d) in direction.iter().enumerate() {
            let artificial = matches!(self.basis[i], Basic::Artificial(_));
            // Once feasible an artificial variable must stay at zero, so any movement drives it out.
            let pinned = artificial && matches!(phase, Phase::Profit) && d.abs() > PIVOT_TOLERANCE;
            if d <= PIVOT_TOLERANCE && !pinned {
                continue;
            }
            let value = if self.values[i] > 0.0 { self.values[i] } else { 0.0 };
            let ratio = if pinned { 0.0 } else { value / d };
            let better = match leaving {
                None => true,
                Some(other) if (ratio - least).abs() <= 1e-12 => {
                    if bland {
                        self.basis[i] < self.basis[other]
                    } else {
                        d.abs() > direction[other].abs()
                    }
                }
                Some(_) => ratio < least,
            };
            if better {
                least = ratio;
                leaving = Some(i);
            }
        }
        leaving
    }

    /// Makes `entering` basic in row `leaving`; returns by how much it grew.
    fn pivot(&mut self, leaving: usize, entering: Basic, direction: &[f64]) -> f64 {
        let m = self.rows.len();
        let pivot = direction[leaving];
        let step = self.values[leaving] / pivot;
        let row = &mut self.inverse[leaving * m..(leaving + 1) * m];
        for r in row.iter_mut() {
            *r /= pivot;
        }
        let eliminator = Eliminator::new(row, 0);
        for (i, other) in self.inverse.chunks_exact_mut(m).enumerate() {
            if i != leaving && direction[i] != 0.0 {
                eliminator.subtract(direction[i], other);
            }
        }
        for (value, &d) in self.values.iter_mut().zip(direction) {
            *value -= step * d;
        }
        self.values[leaving] = step;
        self.basis[leaving] = entering;
        self.fresh = false;
        step
    }

    /// Inverts the basis afresh by Gauss-Jordan elimination with row pivoting, unless it is so already.
    fn refactor(&mut self) {
        if self.fresh {
            return;
        }
        let m = self.rows.len();
        // Each row holds the matrix and, behind it, the inverse in the making.
        let width = 2 * m;
        let mut table = vec![0.0; m * width];
        for (k, &basic) in self.basis.iter().enumerate() {
            self.entries(basic, |i, a| table[i * width + k] += a);
        }
        for i in 0..m {
            table[i * width + m + i] = 1.0;
        }
        // Where each row lies: rows change places by name only.
        let mut at: Vec<usize> = (0..m).collect();
        let mut others: Vec<usize> = Vec::with_capacity(m);
        for k in 0..m {
            let size = |row: usize| table[row * width + k].abs();
            let mut largest = k;
            for i in k + 1..m {
                if size(at[i]) > size(at[largest]) {
                    largest = i;
                }
            }
            if size(at[largest]) < 1e-14 {
                // Never reached from a basis that pivots of sufficient size made; keep the updated inverse then.
                return;
            }
            at.swap(k, largest);
            let chosen = &mut table[at[k] * width..(at[k] + 1) * width];
            let pivot = chosen[k];
            if pivot != 1.0 {
                chosen[k..].iter_mut().for_each(|x| *x /= pivot);
            }
            // Slacks have one entry, and nothing to eliminate.
            others.clear();
            others.extend((0..m).filter(|&i| i != at[k] && table[i * width + k] != 0.0));
            if others.is_empty() {
                continue;
            }
            let eliminator = Eliminator::new(&table[at[k] * width..(at[k] + 1) * width], k);
            for &i in &others {
                let other = &mut table[i * width..(i + 1) * width];
                eliminator.subtract(other[k], other);
            }
        }
        for (i, &row) in at.iter().enumerate() {
            let row = &table[row * width + m..(row + 1) * width];
            self.inverse[i * m..(i + 1) * m].copy_from_slice(row);
            self.values[i] = row.iter().zip(&self.rows).map(|(b, r)| b * r.rhs).sum();
        }
        self.fresh = true;
    }
}

/// A row to be subtracted from others. Bases are mostly slacks, so rows are mostly zeros, which are passed over: subtracting them changes nothing.
struct Eliminator {
    first: usize,
    row: Vec<f64>,
    /// Places that are not zero, where these are few.
    filled: Option<Vec<usize>>,
}

impl Eliminator {
    /// Of the row from place `first` on.
    fn new(row: &[f64], first: usize) -> Self {
        let row = row[first..].to_vec();
        let filled: Vec<usize> = (0..row.len()).filter(|&i| row[i] != 0.0).collect();
        // Beyond that going through all is faster, several at a time.
        let few = filled.len() * 4 < row.len();
        Self { first, row, filled: few.then_some(filled) }
    }

    fn subtract(&self, factor: f64, from: &mut [f64]) {
        let from = &mut from[self.first..];
        match &self.filled {
            Some(filled) => filled.iter().for_each(|&i| from[i] -= factor * self.row[i]),
            None => from.iter_mut().zip(&self.row).for_each(|(o, r)| *o -= factor * r),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Drive the artificial variables to zero.
    Feasibility,
    /// Maximise the profit.
    Profit,
}

/// The fraction nearest to `x` with a denominator of at most `max_denominator`, by continued fractions.
///
/// `x` must be finite and below 2^62 in size, as shares, rates and lengths are.
#[must_use]
pub fn nearest_fraction(x: f64, max_denominator: u64) -> Fraction {
    if !x.is_finite() || x == 0.0 {
        return Fraction::ZERO;
    }
    let limit = i128::from(max_denominator.max(1));
    let (mut p0, mut q0, mut p1, mut q1) = (0_i128, 1_i128, 1_i128, 0_i128);
    let mut rest = x.abs();
    for _ in 0..64 {
        let whole = truncate(rest);
        let (p2, q2) = (p0 + whole * p1, q0 + whole * q1);
        if q2 > limit {
            // The best semiconvergent may still be nearer than the last convergent.
            let fit = (limit - q0) / q1;
            let semi = (p0 + fit * p1, q0 + fit * q1);
            if distance(x.abs(), semi) < distance(x.abs(), (p1, q1)) {
                (p1, q1) = semi;
            }
            break;
        }
        (p0, q0, p1, q1) = (p1, q1, p2, q2);
        let part = rest - to_f64(whole);
        if part < 1e-9 {
            break;
        }
        rest = 1.0 / part;
    }
    Fraction::new(if x < 0.0 { -p1 } else { p1 }, q1).unwrap_or(Fraction::ZERO)
}

fn distance(x: f64, (p, q): (i128, i128)) -> f64 {
    (x - to_f64(p) / to_f64(q)).abs()
}

#[expect(clippy::cast_possible_truncation, reason = "the integer part is what is wanted")]
fn truncate(x: f64) -> i128 {
    x as i128
}

#[expect(clippy::cast_precision_loss, reason = "only to compare approximations")]
fn to_f64(x: i128) -> f64 {
    x as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Rows<'a> = &'a [(&'a [f64], Relation, f64)];

    fn program(profits: &[f64], rows: Rows<'_>) -> LinearProgram {
        let mut lp = LinearProgram::new(rows.iter().map(|&(_, relation, rhs)| (relation, rhs)));
        for (j, &profit) in profits.iter().enumerate() {
            lp.add_column(profit, rows.iter().enumerate().map(|(i, row)| (i, row.0[j])));
        }
        lp
    }

    #[track_caller]
    fn check(profits: &[f64], rows: Rows<'_>, expect: Result<f64, LpError>) {
        let found = program(profits, rows).maximise(1000);
        match (&found, expect) {
            (Ok(optimum), Ok(objective)) => {
                assert!((optimum.objective - objective).abs() < 1e-9, "{optimum:?}");
                certify(profits, rows, optimum);
            }
            _ => assert_eq!(found.map(|o| o.objective), expect),
        }
    }

    /// Primal feasible, dual feasible, equal values: optimal, whatever path led there.
    #[track_caller]
    fn certify(profits: &[f64], rows: Rows<'_>, optimum: &Optimum) {
        let eps = 1e-7;
        let mut dual_value = 0.0;
        for ((a, relation, rhs), y) in rows.iter().zip(&optimum.dual) {
            let left: f64 = a.iter().zip(&optimum.primal).map(|(a, x)| a * x).sum();
            match relation {
                Relation::Le => assert!(left <= rhs + eps && *y >= -eps),
                Relation::Ge => assert!(left >= rhs - eps && *y <= eps),
                Relation::Eq => assert!((left - rhs).abs() <= eps),
            }
            dual_value += rhs * y;
        }
        for (j, profit) in profits.iter().enumerate() {
            assert!(optimum.primal[j] >= 0.0);
            let paid: f64 = rows.iter().zip(&optimum.dual).map(|(row, y)| row.0[j] * y).sum();
            assert!(paid >= profit - eps, "column {j} still pays");
        }
        assert!((dual_value - optimum.objective).abs() <= eps * (1.0 + dual_value.abs()));
    }

    #[test]
    fn small_programs() {
        use Relation::{Eq, Ge, Le};
        check(
            &[3.0, 5.0],
            &[(&[1.0, 0.0], Le, 4.0), (&[0.0, 2.0], Le, 12.0), (&[3.0, 2.0], Le, 18.0)],
            Ok(36.0),
        );
        check(&[1.0, 1.0], &[(&[1.0, 2.0], Eq, 4.0), (&[1.0, 0.0], Le, 3.0)], Ok(3.5));
        check(&[-1.0, -1.0], &[(&[1.0, 2.0], Ge, 4.0), (&[3.0, 1.0], Ge, 6.0)], Ok(-2.8));
        check(&[-1.0], &[(&[-1.0], Le, -3.0)], Ok(-3.0));
        check(&[1.0], &[(&[1.0], Le, 1.0), (&[1.0], Ge, 2.0)], Err(LpError::Infeasible));
        check(&[1.0, 0.0], &[(&[-1.0, 1.0], Le, 1.0)], Err(LpError::Unbounded));
        check(&[1.0], &[(&[0.0], Eq, 0.0), (&[1.0], Le, 2.0)], Ok(2.0));
        check(&[], &[], Ok(0.0));
    }

    /// Beale's example, on which Dantzig's rule alone goes round for ever.
    #[test]
    fn cycling_ends() {
        use Relation::Le;
        check(
            &[0.75, -150.0, 0.02, -6.0],
            &[
                (&[0.25, -60.0, -0.04, 9.0], Le, 0.0),
                (&[0.5, -90.0, -0.02, 3.0], Le, 0.0),
                (&[0.0, 0.0, 1.0, 0.0], Le, 1.0),
            ],
            Ok(0.05),
        );
    }

    #[test]
    fn columns_can_be_added_after_a_solve() {
        let mut lp = LinearProgram::new([(Relation::Le, 2.0), (Relation::Le, 3.0)]);
        lp.add_column(1.0, [(0, 1.0), (1, 1.0)]);
        assert_eq!(lp.maximise(10).unwrap().objective, 2.0);
        lp.add_column(1.0, [(1, 1.0)]);
        let optimum = lp.maximise(10).unwrap();
        assert_eq!((optimum.objective, optimum.pivots), (3.0, 1));
        assert_eq!(lp.columns(), 2);
    }

    #[test]
    fn pivots_are_budgeted() {
        let mut lp = LinearProgram::new([(Relation::Le, 2.0)]);
        lp.add_column(1.0, [(0, 1.0)]);
        assert_eq!(lp.maximise(0), Err(LpError::OutOfPivots));
    }

    #[test]
    fn fractions() {
        for (x, limit, p, q) in [
            (0.5, 10, 1, 2),
            (1.0 / 3.0, 10, 1, 3),
            (-0.75, 10, -3, 4),
            (core::f64::consts::PI, 10, 22, 7),
            (core::f64::consts::PI, 1000, 355, 113),
            (core::f64::consts::PI, 100, 311, 99),
            (171.428_571_428_571, 100, 1200, 7),
            (0.0, 1, 0, 1),
            (2.6, 1, 3, 1),
        ] {
            assert_eq!(nearest_fraction(x, limit), Fraction::new(p, q).unwrap(), "{x}");
        }
    }

    proptest! {
        /// Against its own certificate, on packing programs as the ring and tree packings make them.
        #[test]
        fn packing_programs_are_certified(
            seed in proptest::collection::vec(proptest::collection::vec(0_u8..3, 6), 1..20),
            caps in proptest::collection::vec(0_u8..20, 6),
        ) {
            let profits = vec![1.0; seed.len()];
            let matrix: Vec<Vec<f64>> =
                (0..6).map(|i| seed.iter().map(|c| f64::from(c[i])).collect()).collect();
            // One row over all keeps the program bounded where a column is empty.
            let ones = vec![1.0; seed.len()];
            let mut rows: Vec<(&[f64], Relation, f64)> = matrix
                .iter()
                .zip(&caps)
                .map(|(a, &b)| (a.as_slice(), Relation::Le, f64::from(b)))
                .collect();
            rows.push((&ones, Relation::Le, 100.0));
            let optimum = program(&profits, &rows).maximise(10_000).unwrap();
            certify(&profits, &rows, &optimum);
        }

        #[test]
        fn mixed_programs_are_certified_or_refused(
            matrix in proptest::collection::vec((proptest::collection::vec(-4_i8..5, 5), 0_u8..3, -9_i8..10), 1..8),
            profits in proptest::collection::vec(-5_i8..6, 5),
        ) {
            let dense: Vec<(Vec<f64>, Relation, f64)> = matrix
                .iter()
                .map(|(a, r, b)| {
                    let relation = [Relation::Le, Relation::Eq, Relation::Ge][usize::from(*r)];
                    (a.iter().map(|&a| f64::from(a)).collect(), relation, f64::from(*b))
                })
                .collect();
            let rows: Vec<(&[f64], Relation, f64)> =
                dense.iter().map(|(a, r, b)| (a.as_slice(), *r, *b)).collect();
            let profits: Vec<f64> = profits.iter().map(|&p| f64::from(p)).collect();
            match program(&profits, &rows).maximise(10_000) {
                Ok(optimum) => certify(&profits, &rows, &optimum),
                Err(error) => prop_assert_ne!(error, LpError::OutOfPivots),
            }
        }
    }
}
