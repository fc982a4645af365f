//! One rank of a benchmark.

use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use half::{bf16, f16};
use topology::formats::plan_json;
use topology::{Collective, Plan, Rank};
use transport::{
    Communicator, ElementType, Options, Path, Paths, ReduceOp, Rendezvous, SharedBuffer, Stats,
    Transport, TransportError,
};

use super::job::{Job, Link, Measured, Outcome};
use super::values::{Value, Values};
use crate::exit::{Exit, Failure};
use crate::output;

/// Batches of operations per size; the result is the median over them.
const BATCHES: usize = 20;
/// Batches where there is no time for more.
const FEWEST_BATCHES: f64 = 5.0;
/// Most operations of a batch.
const MOST_OPERATIONS: f64 = 2000.0;
/// Bytes that the buffers of cold operations rotate over: more than caches hold.
const COLD_BYTES: usize = 64 << 20;
/// Operations timed cold.
const COLD_OPERATIONS: usize = 100;
/// The root of collectives that have one.
pub(super) const ROOT: Rank = Rank(0);

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
    let largest = job.sizes.iter().copied().max().unwrap_or(0).max(COLD_BYTES as u64);
    let mut base = Options::default();
    // Stdout is for the result.
    base.set("debug_file", "/dev/stderr").map_err(|error| error.to_string())?;
    base.set_from_environment().map_err(|error| error.to_string())?;
    if let Some(protocols) = &job.protocol {
        base.set("proto", protocols).map_err(|error| error.to_string())?;
    }
    let mut options = Options {
        timeout,
        join_timeout: timeout,
        transport: match job.transport {
            Link::Auto => Transport::Auto,
            Link::Shm => Transport::Shm,
            Link::Tcp => Transport::Tcp,
            Link::Verbs => Transport::Verbs,
        },
        paths: if job.by_plan { Paths::Plan } else { Paths::Auto },
        pin: job.pin,
        // The benchmark has its own clock.
        timed: false,
        // Input and output, and what rounding to pages takes.
        heap_bytes: usize::try_from(2 * largest).unwrap_or(usize::MAX / 2) + (1 << 20),
        // What fits the host was found before the ranks were started.
        memory_bytes: usize::MAX,
        // Ranks agree on the times by all-reduce.
        collectives: vec![Collective::AllReduce, job.collective],
        report: job.report.clone().or_else(|| base.report.clone()),
        ..base
    };
    transport_daemon::attach(&mut options);
    let element: ElementType = job.element.parse().map_err(|e| format!("{e}"))?;
    let op: ReduceOp = job.op.parse().map_err(|e| format!("{e}"))?;
    let mut communicator = Communicator::new(plan, Rank(job.rank), rendezvous, options)
        .map_err(|error| chain(&error))?;
    let mut bench = Bench { job, op, communicator: &mut communicator };
    let measured = match element {
        ElementType::F32 => bench.all_sizes::<f32>(),
        ElementType::F64 => bench.all_sizes::<f64>(),
        ElementType::F16 => bench.all_sizes::<f16>(),
        ElementType::Bf16 => bench.all_sizes::<bf16>(),
        ElementType::I8 => bench.all_sizes::<i8>(),
        ElementType::I32 => bench.all_sizes::<i32>(),
        ElementType::I64 => bench.all_sizes::<i64>(),
        ElementType::U8 => bench.all_sizes::<u8>(),
    };
    measured.map_err(|error| chain(&error))
}

/// A buffer of either kind.
enum Buffer<T> {
    Private(Vec<T>),
    Shared(SharedBuffer<T>),
}

impl<T: Value> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Private(data) => data,
            Self::Shared(data) => data,
        }
    }
}

impl<T: Value> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Private(data) => data,
            Self::Shared(data) => data,
        }
    }
}

struct Bench<'a> {
    job: &'a Job,
    op: ReduceOp,
    communicator: &'a mut Communicator,
}

impl Bench<'_> {
    fn all_sizes<T: Value>(&mut self) -> Result<Vec<Measured>, TransportError> {
        let sizes =
            if self.job.collective == Collective::Barrier { &[0][..] } else { &self.job.sizes[..] };
        let Some(most) = self.job.most_time_ms else {
            let all = sizes.iter().map(|bytes| self.size::<T>(*bytes, f64::INFINITY));
            return all.map(|found| Ok(found?.0)).collect();
        };
        let most = f64::from(most) / 1e3;
        let start = Instant::now();
        let mut all = Vec::new();
        // Of the size before: its bytes, and seconds beside those that were timed: checks, first operations.
        let mut before: Option<(u64, f64)> = None;
        for (at, &bytes) in sizes.iter().enumerate() {
            let beside = before.map_or(0.0, |(less, beside)| beside * bytes as f64 / less as f64);
            // Every rank must measure the same sizes as long.
            let mut agreed = [start.elapsed().as_secs_f64(), beside];
            self.communicator.all_reduce(&mut agreed, ReduceOp::Max)?;
            let left = most - agreed[0] - agreed[1];
            if left <= 0.0 && at > 0 {
                break;
            }
            let begun = Instant::now();
            let share = left.max(0.0) / (sizes.len() - at) as f64;
            let (measured, timed) = self.size::<T>(bytes, share)?;
            before = Some((bytes.max(1), (begun.elapsed().as_secs_f64() - timed).max(0.0)));
            all.push(measured);
        }
        Ok(all)
    }

    fn buffer<T: Value>(&self, length: usize) -> Result<Buffer<T>, TransportError> {
        let mut buffer = if self.job.shared {
            Buffer::Shared(self.communicator.allocate(length)?)
        } else {
            Buffer::Private(vec![T::default(); length])
        };
        // No page is first mapped while the clock runs.
        buffer.fill(T::default());
        Ok(buffer)
    }

    /// One size, in about that many seconds at most; and the seconds that were timed.
    fn size<T: Value>(&mut self, bytes: u64, most: f64) -> Result<(Measured, f64), TransportError> {
        let (ranks, rank) = (self.communicator.ranks(), self.communicator.rank().index());
        let mut count = usize::try_from(bytes).unwrap_or(usize::MAX) / size_of::<T>();
        if self.job.collective == Collective::AllToAll {
            count = (count / ranks).max(1) * ranks;
        }
        let places =
            if self.job.cold { (COLD_BYTES / size_of::<T>() / count.max(1)).max(1) } else { 1 };
        let mut input = self.buffer::<T>(count * places)?;
        let mut output = self.buffer::<T>(if self.job.in_place { 0 } else { count * places })?;
        let (collective, op) = (self.job.collective, self.op);
        let values = Values { collective, op, ranks, rank, count };
        let mut wrong = self.checked(&values, &mut input, &mut output)?;
        let place = |at: usize| (at % places) * count..(at % places + 1) * count;
        let in_place = self.job.in_place;
        let out = |at: usize| if in_place { 0..0 } else { place(at) };
        input.fill(T::default());
        let mut path = "";
        let mut slowest = 0_f64;
        for at in 0..self.job.warm_up.max(1) as usize {
            let start = Instant::now();
            path = self
                .once(&mut input[place(at)], &mut output[out(at)], count)?
                .map_or("plan", |stats| stats.path.as_str());
            slowest = start.elapsed().as_secs_f64();
        }
        // Every rank must do as many operations: they agree on the slowest rank's last one.
        let mut agreed = [slowest];
        self.communicator.all_reduce(&mut agreed, ReduceOp::Max)?;
        let each = agreed[0].max(1e-8);
        let wanted = (f64::from(self.job.min_time_ms) / 1000.0).min(most) / each;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between the bounds, both small and positive"
        )]
        let (batches, operations) = if self.job.cold {
            (COLD_OPERATIONS, 1)
        } else {
            let batches = (most / each).clamp(FEWEST_BATCHES, BATCHES as f64);
            let operations = (wanted / batches).clamp(1.0, MOST_OPERATIONS);
            (batches as usize, operations as usize)
        };
        let mut times = Vec::with_capacity(batches);
        for batch in 0..batches {
            self.communicator.barrier()?;
            let start = Instant::now();
            for _ in 0..operations {
                self.once(&mut input[place(batch)], &mut output[out(batch)], count)?;
            }
            times.push(start.elapsed().as_secs_f64() * 1e9 / operations as f64);
        }
        self.communicator.all_reduce(&mut times, ReduceOp::Max)?;
        let timed = times.iter().sum::<f64>() * operations as f64 / 1e9;
        wrong += self.checked(&values, &mut input, &mut output)?;
        let hidden = self
            .job
            .overlap
            .then(|| super::overlap::hidden::<T>(self.communicator, collective, op, count));
        let hidden = hidden.transpose()?;
        let mut all_wrong = [i64::try_from(wrong).unwrap_or(i64::MAX)];
        self.communicator.all_reduce(&mut all_wrong, ReduceOp::Sum)?;
        let measured = Measured {
            bytes: (count * size_of::<T>()) as u64,
            path: path.to_owned(),
            algorithm: (path == Path::Plan.as_str())
                .then(|| super::report::algorithm(self.communicator.plan(), collective, bytes))
                .flatten(),
            batches: times,
            operations: (batches * operations) as u64,
            wrong: u64::try_from(all_wrong[0]).unwrap_or(u64::MAX),
            hidden,
        };
        Ok((measured, timed))
    }

    /// One operation on fresh data; how many elements of its result are wrong here.
    fn checked<T: Value>(
        &mut self,
        values: &Values,
        input: &mut Buffer<T>,
        output: &mut Buffer<T>,
    ) -> Result<u64, TransportError> {
        let count = values.count;
        values.fill(&mut input[..count]);
        let out = count.min(output.len());
        output[..out].fill(T::of(101.0));
        self.once(&mut input[..count], &mut output[..out], count)?;
        let collective = self.job.collective;
        let rooted = matches!(collective, Collective::Reduce | Collective::Gather);
        if rooted && self.communicator.rank() != ROOT {
            return Ok(0);
        }
        let shard = transport::schedule::shard(count, self.communicator.rank(), values.ranks);
        let sharded = matches!(collective, Collective::ReduceScatter | Collective::Scatter);
        let result = if self.job.in_place { &input[..count] } else { &output[..out] };
        Ok(match (sharded, self.job.in_place) {
            (true, true) => values.wrong(&result[shard.clone()], shard.start),
            (true, false) => values.wrong(&result[..shard.len()], shard.start),
            (false, _) => values.wrong(result, 0),
        })
    }

    /// One operation; `output` is empty in place.
    fn once<T: Value>(
        &mut self,
        input: &mut [T],
        output: &mut [T],
        count: usize,
    ) -> Result<Option<Stats>, TransportError> {
        let (op, in_place) = (self.op, self.job.in_place);
        let communicator = &mut *self.communicator;
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        // Not for collectives that have none: the division would show in the smallest times.
        let shard = || transport::schedule::shard(count, rank, ranks);
        let stats = match self.job.collective {
            Collective::AllReduce if in_place => communicator.all_reduce(input, op)?,
            Collective::AllReduce => communicator.all_reduce_into(input, output, op)?,
            Collective::AllGather if in_place => communicator.all_gather_in_place(input)?,
            Collective::AllGather => communicator.all_gather(&input[shard()], output)?,
            Collective::ReduceScatter if in_place => {
                communicator.reduce_scatter_in_place(input, op)?
            }
            Collective::ReduceScatter => {
                communicator.reduce_scatter(input, &mut output[..shard().len()], op)?
            }
            Collective::Broadcast if in_place => communicator.broadcast(input, ROOT)?,
            Collective::Broadcast => {
                // The root's own copy is part of it, as in nccl-tests.
                if communicator.rank() == ROOT {
                    output.copy_from_slice(input);
                }
                communicator.broadcast(output, ROOT)?
            }
            Collective::Reduce if in_place => communicator.reduce_in_place(input, op, ROOT)?,
            Collective::Reduce => communicator.reduce(input, output, op, ROOT)?,
            Collective::AllToAll => communicator.all_to_all(input, output)?,
            Collective::Gather if in_place => communicator.gather_in_place(input, ROOT)?,
            Collective::Gather => communicator.gather(&input[shard()], output, count, ROOT)?,
            Collective::Scatter if in_place => communicator.scatter_in_place(input, ROOT)?,
            Collective::Scatter => {
                communicator.scatter(input, &mut output[..shard().len()], count, ROOT)?
            }
            Collective::Barrier => communicator.barrier()?,
            Collective::SendRecv if self.job.ping_pong => {
                let other = Rank(1 - communicator.rank().0.min(1));
                if communicator.rank() == ROOT {
                    communicator.send(input, other)?;
                    communicator.receive(output, other)?
                } else {
                    communicator.receive(output, other)?;
                    communicator.send(input, other)?
                }
            }
            Collective::SendRecv => {
                // Everybody to the next, from the one before.
                let ranks = u32::try_from(communicator.ranks()).unwrap_or(u32::MAX);
                let own = communicator.rank().0;
                let (next, before) = (Rank((own + 1) % ranks), Rank((own + ranks - 1) % ranks));
                communicator.exchange(input, next, output, before)?
            }
        };
        Ok(Some(stats))
    }
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
