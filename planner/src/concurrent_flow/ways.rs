//! From rates of trees to ways of pairs: shares that are whole parts of a pair's data, and the images of all ways.
//!
//! Rates are rounded to multiples of 1/d, for the least d that costs next to nothing; what the rounded shares reach is
//! then counted in integers, so it is a fact and not an estimate.

use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use super::program::Program;
use crate::pairs::Pair;
use crate::rings::Way;
use crate::units::{float, to_units};

/// Whole parts by column.
#[derive(Clone, Debug)]
pub(super) struct Rounded {
    weights: Vec<u64>,
    /// Parts of a pair's data: the weights of a source's columns add up to it.
    parts: u64,
    /// Rate per pair.
    pub(super) rate: Fraction,
}

/// Numbers of parts tried where there is no exact one.
const PARTS: [u64; 17] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64, 128, 512, 2048, 1 << 14];
/// Largest exact number of parts looked for.
const MAX_EXACT: u64 = 512;
/// Part of the rate that may be lost in rounding for fewer parts.
const ROUNDED: (u64, u64) = (999, 1000);
/// Shares below it are left out.
const NOTHING: f64 = 1e-7;

impl Rounded {
    /// The coarsest that keeps the rate, all but a thousandth; `None` where nothing was found.
    pub(super) fn best(program: &Program<'_>, rates: &[f64]) -> Option<Self> {
        let shares = shares(program, rates)?;
        let near = |d: &u64| {
            let whole = |s: f64| (s * float(*d) - float(to_units(s * float(*d)))).abs() < 1e-5;
            shares.iter().all(|&s| whole(s))
        };
        let exact = (1..=MAX_EXACT).find(near);
        let candidates = exact.into_iter().chain(PARTS);
        let made: Vec<Self> = candidates.filter_map(|d| Self::at(program, &shares, d)).collect();
        let most = made.iter().map(|r| r.rate).max()?;
        if exact.is_some()
            && let Some(first) = made.first()
            && first.rate == most
        {
            return made.into_iter().next();
        }
        let enough = most * Fraction::of(ROUNDED.0, ROUNDED.1);
        made.into_iter().filter(|r| r.rate >= enough).min_by_key(|r| r.parts)
    }

    fn at(program: &Program<'_>, shares: &[f64], parts: u64) -> Option<Self> {
        let mut weights: Vec<u64> = shares.iter().map(|s| to_units(s * float(parts))).collect();
        for source in 0..program.sources().len() {
            level(program, &mut weights, shares, source, parts)?;
        }
        let rate = program
            .loads(&weights)
            .into_iter()
            .filter(|load| load.1 > 0)
            .map(|(capacity, load)| {
                let capacity = i128::from(capacity).checked_mul(i128::from(parts))?;
                Fraction::new(capacity, i128::try_from(load).ok()?)
            })
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .min()?;
        Some(Self { weights, parts, rate })
    }

    /// The ways of all pairs, by sender, then receiver.
    pub(super) fn pairs(&self, program: &Program<'_>) -> Vec<Pair> {
        let symmetry = program.symmetry;
        let ranks = program.network.graph.ranks;
        let mut pairs = Vec::with_capacity(ranks * (ranks - 1));
        for (place, &source) in program.sources().iter().enumerate() {
            for to in (0..ranks).filter(|&to| to != source) {
                let mut ways: Vec<(Vec<usize>, u64)> = program
                    .columns
                    .iter()
                    .zip(&self.weights)
                    .filter(|(column, weight)| column.source == place && **weight > 0)
                    .map(|(column, &weight)| (program.way(column, to), weight))
                    .collect();
                ways.sort_unstable();
                ways.dedup_by(|later, first| {
                    let same = later.0 == first.0;
                    if same {
                        first.1 += later.1;
                    }
                    same
                });
                for element in &symmetry.elements {
                    let ways = ways.iter().flat_map(|(way, weight)| {
                        let image: Vec<usize> = way.iter().map(|&node| element[node]).collect();
                        let part = Fraction::of(*weight, self.parts);
                        program
                            .network
                            .expand(&image)
                            .into_iter()
                            .map(move |path| Way { via: path.via, share: path.share * part })
                    });
                    let mut ways: Vec<Way> = ways.collect();
                    ways.sort_unstable_by(|a, b| a.via.cmp(&b.via));
                    pairs.push(Pair { from: element[source], to: element[to], ways });
                }
            }
        }
        pairs.sort_unstable_by_key(|pair| (pair.from, pair.to));
        pairs
    }
}

/// By column, its part of what its source sends; `None` where a source sends nothing.
fn shares(program: &Program<'_>, rates: &[f64]) -> Option<Vec<f64>> {
    let sums = |rates: &[f64]| {
        let mut sums = vec![0.0; program.sources().len()];
        for (column, rate) in program.columns.iter().zip(rates) {
            sums[column.source] += rate;
        }
        sums
    };
    let all = sums(rates);
    let kept: Vec<f64> = program
        .columns
        .iter()
        .zip(rates)
        .map(|(column, &rate)| if rate > NOTHING * all[column.source] { rate } else { 0.0 })
        .collect();
    let all = sums(&kept);
    if all.iter().any(|&sum| sum <= 0.0) {
        return None;
    }
    Some(program.columns.iter().zip(&kept).map(|(c, rate)| rate / all[c.source]).collect())
}

/// Makes the weights of a source's columns add up to `total`, changing those that rounding moved most the other way.
fn level(
    program: &Program<'_>,
    weights: &mut [u64],
    shares: &[f64],
    source: usize,
    total: u64,
) -> Option<()> {
    let own: Vec<usize> = (0..weights.len())
        .filter(|&j| program.columns[j].source == source && shares[j] > 0.0)
        .collect();
    let excess = |weights: &[u64], j: usize| float(weights[j]) - shares[j] * float(total);
    loop {
        let sum: u64 = own.iter().map(|&j| weights[j]).sum();
        let by_excess = |a: &&usize, b: &&usize| {
            excess(weights, **a).total_cmp(&excess(weights, **b)).then(b.cmp(a))
        };
        match sum.cmp(&total) {
            core::cmp::Ordering::Equal => return Some(()),
            core::cmp::Ordering::Less => {
                let least = *own.iter().min_by(by_excess)?;
                weights[least] += 1;
            }
            core::cmp::Ordering::Greater => {
                let most = *own.iter().filter(|&&j| weights[j] > 0).max_by(by_excess)?;
                weights[most] -= 1;
            }
        }
    }
}
