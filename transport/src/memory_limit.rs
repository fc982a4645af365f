//! What the memory allows: the figure every measured bandwidth is printed beside.
//!
//! An all-reduce of `S` bytes on `n` ranks of one host must read every rank's buffer once and write it once. The least
//! that any program does for that is the fused pass `sum = a + b; a = sum; b = sum` over `n * S` bytes in pairs, so
//! `T >= n * S / rate`, with the rate measured here on as many cores as the ranks may use.

use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Measured in one run, for one size.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct MemoryLimit {
    /// Bytes the fused pass goes over per second, all threads together (each read once and written once).
    pub bytes_per_second: f64,
    /// Threads that measured: ranks, or cores where those are fewer.
    pub threads: usize,
    /// Least time of an all-reduce of this size on this many ranks.
    pub all_reduce: Duration,
}

/// Measures for `ranks` ranks with buffers of `bytes` bytes each: best of several passes over as much memory as they have,
/// within about 50 ms for buffers that fit caches.
#[must_use]
pub fn memory_limit(ranks: u32, bytes: usize) -> MemoryLimit {
    let ranks = usize::try_from(ranks.max(1)).unwrap_or(1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = ranks.min(cores);
    let total = ranks.saturating_mul(bytes).max(threads * 2 * 64);
    // Each thread has its part of all ranks' buffers, as pairs of halves.
    let half = (total / threads / 2).next_multiple_of(64);
    let passes = ((64 << 20) / half.max(1)).clamp(3, 200);
    let barrier = Barrier::new(threads);
    let rounds: Vec<Vec<Duration>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| measure(half, passes, &barrier))).collect();
        workers.into_iter().map(|w| w.join().unwrap_or_default()).collect()
    });
    // A pass is over when its slowest thread is.
    let best = (0..passes)
        .filter_map(|pass| rounds.iter().filter_map(|r| r.get(pass)).max())
        .min()
        .copied()
        .unwrap_or(Duration::MAX)
        .max(Duration::from_nanos(1));
    let bytes_per_second = (threads * 2 * half) as f64 / best.as_secs_f64();
    MemoryLimit {
        bytes_per_second,
        threads,
        all_reduce: Duration::from_secs_f64((ranks * bytes) as f64 / bytes_per_second),
    }
}

fn measure(half: usize, passes: usize, barrier: &Barrier) -> Vec<Duration> {
    // Written before, so that no page is first mapped while the clock runs.
    let (mut a, mut b) = (vec![1_f32; half / 4], vec![-1_f32; half / 4]);
    let mut times = Vec::with_capacity(passes);
    for _ in 0..passes {
        barrier.wait();
        let start = Instant::now();
        for (a, b) in a.iter_mut().zip(&mut b) {
            let sum = *a + *b;
            *a = sum;
            *b = sum;
        }
        times.push(start.elapsed());
        std::hint::black_box((&a, &b));
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_grows_with_the_data() {
        let (small, large) = (memory_limit(2, 1 << 16), memory_limit(8, 1 << 20));
        assert!(
            small.bytes_per_second > 1e8 && large.bytes_per_second > 1e8,
            "{small:?} {large:?}"
        );
        assert!(small.all_reduce < large.all_reduce);
        assert!(memory_limit(1, 0).all_reduce.is_zero());
    }
}
