//! One rank of a benchmark.

use std::io::Read;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use topology::formats::plan_json;
use topology::{Plan, Rank};
use transport::{Communicator, Options, ReduceOp, Rendezvous, Transport};

use super::job::{Job, Link, Measured, Outcome};
use crate::exit::{Exit, Failure};
use crate::output;

/// Operations before the clock counts: connections fill, pages are mapped.
const WARM_UP: usize = 3;
/// Bounds of operations per size.
const OPERATIONS: (f64, f64) = (5.0, 2000.0);

pub(crate) fn run() -> Result<Exit, Failure> {
    let mut text = String::new();
    std::io::stdin().read_line(&mut text).map_err(Failure::internal)?;
    let job: Job = serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("job on stdin: {error}")))?;
    std::thread::spawn(end_with_parent);
    let measured =
        plan_json::read(job.plan.as_bytes()).map_err(|error| error.to_string()).and_then(|plan| {
            let rendezvous: Rendezvous = job
                .rendezvous
                .parse()
                .map_err(|error: transport::rendezvous::InvalidRendezvous| error.to_string())?;
            measure(&job, &plan, &rendezvous)
        });
    let (outcome, exit) = match measured {
        Ok(measured) => (Outcome::Done(measured), Exit::Ok),
        Err(error) => (Outcome::Failed(error), Exit::Internal),
    };
    output::print_json(&outcome)?;
    Ok(exit)
}

/// The starting process keeps stdin open while it lives; nobody is left to measure for once it ends.
fn end_with_parent() {
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    std::process::exit(i32::from(Exit::Internal as u8));
}

/// Meets the others and measures every size.
pub(crate) fn measure(
    job: &Job,
    plan: &Plan,
    rendezvous: &Rendezvous,
) -> Result<Vec<Measured>, String> {
    let timeout = Duration::from_secs(job.timeout_s.into());
    let options = Options {
        timeout,
        join_timeout: timeout,
        transport: match job.transport {
            Link::Shm => Transport::Shm,
            Link::Tcp => Transport::Tcp,
        },
        ..Options::default()
    };
    let mut communicator = Communicator::new(plan, Rank(job.rank), rendezvous, options)
        .map_err(|error| chain(&error))?;
    job.sizes
        .iter()
        .map(|bytes| {
            measure_size(&mut communicator, *bytes, job.min_time_ms).map_err(|error| chain(&error))
        })
        .collect()
}

fn measure_size(
    communicator: &mut Communicator,
    bytes: u64,
    min_time_ms: u32,
) -> Result<Measured, transport::TransportError> {
    let count = usize::try_from(bytes / 4).unwrap_or(usize::MAX);
    let mut buffer = vec![0_f32; count];
    let mut measured = Measured { bytes, operations: Vec::new(), wrong: 0 };
    let mut warm_up = 0.0;
    for _ in 0..WARM_UP {
        let (start, end) = operate(communicator, &mut buffer, &mut measured.wrong)?;
        warm_up = (end - start) as f64 / 1e9;
    }
    // Every rank must do as many operations: they agree on the mean of what the last one took.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a time in seconds; 24 bits of it are plenty"
    )]
    let mut agreed = [warm_up as f32];
    communicator.all_reduce(&mut agreed, ReduceOp::Sum)?;
    #[expect(clippy::cast_precision_loss, reason = "a number of ranks")]
    let mean = f64::from(agreed[0]) / communicator.ranks() as f64;
    let wanted = f64::from(min_time_ms) / 1000.0 / mean.max(1e-9);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between the bounds, both small and positive"
    )]
    let operations = wanted.clamp(OPERATIONS.0, OPERATIONS.1) as usize;
    for _ in 0..operations {
        let times = operate(communicator, &mut buffer, &mut measured.wrong)?;
        measured.operations.push(times);
    }
    Ok(measured)
}

/// One operation in place on fresh data, every element checked; when it was called and when it returned.
fn operate(
    communicator: &mut Communicator,
    buffer: &mut [f32],
    wrong: &mut u64,
) -> Result<(u64, u64), transport::TransportError> {
    let rank = communicator.rank().index();
    for (index, element) in buffer.iter_mut().enumerate() {
        *element = input(rank, index);
    }
    let start = now();
    communicator.all_reduce(buffer, ReduceOp::Sum)?;
    let end = now();
    let ranks = communicator.ranks();
    // The sum depends on the index only through its remainder, so that checking costs one comparison.
    let expected: Vec<f32> =
        (0..PERIOD).map(|index| (0..ranks).map(|rank| input(rank, index)).sum()).collect();
    *wrong += buffer
        .chunks(PERIOD)
        .map(|chunk| chunk.iter().zip(&expected).filter(|(a, b)| a != b).count() as u64)
        .sum::<u64>();
    Ok((start, end))
}

/// Elements repeat after this many; a prime, so that no chunk boundary falls together with it.
const PERIOD: usize = 1009;

/// Small whole numbers: their sums over any thousand ranks are exact in 32-bit floats.
fn input(rank: usize, index: usize) -> f32 {
    ((index % PERIOD * 7 + rank * 31) % 1021) as f32
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
