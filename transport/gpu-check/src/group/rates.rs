//! How long collectives take, and rates as nccl-tests defines them (its doc/PERFORMANCE.md).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use topology::Collective;

use crate::measure::median_and_best;

/// What one rank measured of an operation at one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Timed {
    pub(crate) collective: Collective,
    /// Of the whole, as nccl-tests counts: an all-gather's output, a reduce-scatter's input.
    pub(crate) bytes: usize,
    /// Of one operation, on the mean of a batch; a batch an entry.
    pub(crate) microseconds: Vec<f64>,
}

/// One operation at one size, over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Rate {
    pub(crate) collective: Collective,
    pub(crate) ranks: u32,
    pub(crate) bytes: usize,
    /// Of the slowest rank, in the median of batches.
    pub(crate) median_microseconds: f64,
    pub(crate) algbw_gb_per_s: f64,
    pub(crate) busbw_gb_per_s: f64,
}

/// Sizes in bytes, ascending.
pub(crate) fn sizes(quick: bool) -> &'static [usize] {
    if quick { &[4 << 10, 256 << 10] } else { &[1 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20] }
}

/// Batches, and operations in each.
pub(crate) fn batches(bytes: usize, quick: bool) -> (usize, u32) {
    if quick {
        return (2, 2);
    }
    (5, u32::try_from((64 << 20) / bytes.max(1)).unwrap_or(1).clamp(3, 50))
}

/// What every rank measured of the same batches.
pub(crate) fn merged(of_ranks: &[Vec<Timed>], ranks: u32) -> Vec<Rate> {
    let mut all: BTreeMap<(Collective, usize), Vec<&[f64]>> = BTreeMap::new();
    for timed in of_ranks.iter().flatten() {
        all.entry((timed.collective, timed.bytes)).or_default().push(&timed.microseconds);
    }
    let complete = all.into_iter().filter(|(_, each)| each.len() == ranks as usize);
    let rates = complete.map(|((collective, bytes), each)| {
        let batches = each.iter().map(|batches| batches.len()).min().unwrap_or(0);
        let slowest = |batch: usize| each.iter().map(|one| one[batch]).fold(0.0, f64::max);
        let (median, _) = median_and_best((0..batches).map(slowest).collect());
        // Bytes in a microsecond are megabytes in a second.
        let algbw = if median > 0.0 { bytes as f64 / median / 1000.0 } else { 0.0 };
        Rate {
            collective,
            ranks,
            bytes,
            median_microseconds: median,
            algbw_gb_per_s: algbw,
            busbw_gb_per_s: algbw * collective.busbw_factor(ranks),
        }
    });
    rates.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_counts_and_incomplete_ones_do_not() {
        let timed = |bytes, microseconds: &[f64]| Timed {
            collective: Collective::AllReduce,
            bytes,
            microseconds: microseconds.to_vec(),
        };
        let one = vec![timed(1000, &[1.0, 9.0, 2.0]), timed(5, &[1.0])];
        let two = vec![timed(1000, &[3.0, 1.0, 4.0])];
        let rates = merged(&[one, two], 2);
        assert_eq!(rates.len(), 1, "{rates:?}");
        // Batches took 3, 9 and 4; a kilobyte in 4 us is a quarter of a gigabyte in a second, and twice 1/2 of it is on the bus.
        assert!((rates[0].median_microseconds - 4.0).abs() < 1e-9);
        assert!((rates[0].algbw_gb_per_s - 0.25).abs() < 1e-9);
        assert!((rates[0].busbw_gb_per_s - 0.25).abs() < 1e-9);
    }
}
