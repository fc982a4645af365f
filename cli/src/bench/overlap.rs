//! How much of an operation hides behind work: the operation alone, work alone of about that length, and both at once.
//!
//! ```text
//!   operation  |-------|
//!   work               |-------|          one after the other
//!   both       |--------|                 hidden: what both take less than the two, as a share of the operation
//! ```
//!
//! The work is arithmetic in the first-level cache, in slices; between two of them the rank moves what is in flight, as a
//! program without a progress thread would.

use std::hint::black_box;
use std::time::{Duration, Instant};

use topology::Collective;
use transport::{Communicator, Pending, ReduceOp, TransportError};

use super::values::Value;

/// Slices of the work.
const SLICES: u32 = 64;
/// Measurements; the result is the median.
const ROUNDS: usize = 15;

/// Whether a collective can be started and waited for later.
pub(crate) const fn can(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::AllReduce
            | Collective::AllGather
            | Collective::ReduceScatter
            | Collective::Broadcast
    )
}

/// Arithmetic that the compiler cannot leave out: so many passes over a small array.
fn work(passes: u64) -> f64 {
    let mut values = [1.0_f64; 64];
    for _ in 0..passes {
        for value in &mut values {
            *value = value.mul_add(0.999_999, 1e-6);
        }
        black_box(&mut values);
    }
    values[0]
}

/// Passes of work that take about so long.
fn passes_of(wanted: Duration) -> u64 {
    let mut passes = 64;
    loop {
        let start = Instant::now();
        black_box(work(passes));
        let took = start.elapsed();
        if took >= wanted.min(Duration::from_millis(20)) && !took.is_zero() {
            let scale = wanted.as_secs_f64() / took.as_secs_f64();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a positive number of passes, far below the largest"
            )]
            return ((passes as f64 * scale) as u64).max(1);
        }
        passes *= 2;
    }
}

fn start<T: Value>(
    communicator: &mut Communicator,
    collective: Collective,
    op: ReduceOp,
    buffer: Vec<T>,
) -> Result<Pending<Vec<T>>, TransportError> {
    match collective {
        Collective::AllGather => communicator.start_all_gather(buffer),
        Collective::ReduceScatter => communicator.start_reduce_scatter(buffer, op),
        Collective::Broadcast => communicator.start_broadcast(buffer, super::rank::ROOT),
        _ => communicator.start_all_reduce(buffer, op),
    }
}

/// The share of an operation on `count` elements that is hidden, of the slowest rank: 0 is none, 1 all.
pub(crate) fn hidden<T: Value>(
    communicator: &mut Communicator,
    collective: Collective,
    op: ReduceOp,
    count: usize,
) -> Result<f64, TransportError> {
    let mut buffer = vec![T::default(); count];
    let mut alone = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        communicator.barrier()?;
        let begun = Instant::now();
        let pending = start(communicator, collective, op, buffer)?;
        buffer = communicator.wait(pending)?.0;
        alone.push(begun.elapsed().as_secs_f64());
    }
    let operation = slowest(communicator, &mut alone)?;
    let passes = passes_of(Duration::from_secs_f64(operation)).div_ceil(SLICES.into());
    let (mut working, mut both) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS {
        communicator.barrier()?;
        let begun = Instant::now();
        for _ in 0..SLICES {
            black_box(work(passes));
        }
        working.push(begun.elapsed().as_secs_f64());
        communicator.barrier()?;
        let begun = Instant::now();
        let pending = start(communicator, collective, op, buffer)?;
        for _ in 0..SLICES {
            black_box(work(passes));
            communicator.progress()?;
        }
        buffer = communicator.wait(pending)?.0;
        both.push(begun.elapsed().as_secs_f64());
    }
    let working = slowest(communicator, &mut working)?;
    let both = slowest(communicator, &mut both)?;
    Ok(((operation + working - both) / operation).clamp(0.0, 1.0))
}

/// The median over rounds of the slowest rank's time in seconds.
fn slowest(communicator: &mut Communicator, times: &mut [f64]) -> Result<f64, TransportError> {
    communicator.all_reduce(times, ReduceOp::Max)?;
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[times.len() / 2].max(1e-9))
}
