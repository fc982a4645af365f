//! A group of ranks that execute collectives along a plan.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use topology::formats::plan_json;
use topology::{Collective, Plan, Rank};

use crate::control::{Control, Notice};
use crate::error::{ConnectError, Culprit, Failure, StepName, TransportError};
use crate::executor::{Broken, Buffers, Compiled, Links, Operation, Progress, StepHook};
use crate::link::{LinkError, Tag, signature};
use crate::memory::{Aligned, Kernel, SUM_F32, Slot};
use crate::mesh::{Listeners, Mesh};
use crate::rendezvous::{Join, Rendezvous, meet};
use crate::schedule::{MIN_SLOTS, Sizing, connections, schedule};
use crate::waiter::{Pause, Waiter};

#[cfg(test)]
mod tests;

/// Which links may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Shared memory within a host, TCP between hosts.
    #[default]
    Auto,
    /// Shared memory alone; refused where a peer shares none.
    Shm,
    /// TCP alone.
    Tcp,
}

impl Transport {
    /// The word on command lines.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

/// What elements are combined by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Addition.
    #[default]
    Sum,
}

/// Settings of a communicator. All but the hook and the time limits must be equal on every rank.
pub struct Options {
    /// Longest time an operation goes without progress before the silent rank is named.
    pub timeout: Duration,
    /// Longest time for all ranks to come together.
    pub join_timeout: Duration,
    /// Which links.
    pub transport: Transport,
    /// Messages in flight per connection.
    pub slots: usize,
    /// Longest message in bytes.
    pub slot_bytes: usize,
    /// What will be asked for; connections are made for these.
    pub collectives: Vec<Collective>,
    /// Called after every step.
    pub on_step: Option<StepHook>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            join_timeout: Duration::from_secs(60),
            transport: Transport::Auto,
            // 4 slots of 128 KiB were fastest for private buffers in shared memory (measured on two cores with 1.25 MiB of
            // second-level cache each): the slots of a connection stay in cache between the two ends.
            slots: 4,
            slot_bytes: 128 << 10,
            collectives: vec![Collective::AllReduce],
            on_step: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("timeout", &self.timeout)
            .field("join_timeout", &self.join_timeout)
            .field("transport", &self.transport)
            .field("slots", &self.slots)
            .field("slot_bytes", &self.slot_bytes)
            .field("collectives", &self.collectives)
            .finish_non_exhaustive()
    }
}

/// What an operation took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// From call to return on this rank.
    pub elapsed: Duration,
    /// Total data of the collective in bytes, as nccl-tests counts it.
    pub bytes: u64,
    /// Channels of the plan it ran on.
    pub channels: usize,
    /// Steps this rank did.
    pub steps: usize,
    /// Times this rank slept.
    pub sleeps: u64,
}

/// Digest of a plan: equal on ranks that hold the same.
#[must_use]
pub fn plan_digest(plan: &Plan) -> String {
    use std::fmt::Write as _;
    let digest = Sha256::digest(plan_json::write(plan, None));
    digest.iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Programs kept for operations seen before; a training step repeats a few sizes.
const KEPT_PROGRAMS: usize = 64;

/// One rank's part of a group.
///
/// Operations are collective: every rank calls the same ones in the same order. When one fails, it fails on every rank,
/// and the communicator is of no further use; make a new one without the culprit.
pub struct Communicator {
    plan: Plan,
    rank: Rank,
    options: Options,
    sizing: Sizing,
    links: Links,
    control: Control,
    waiter: Waiter,
    scratch: Aligned,
    programs: HashMap<(Collective, Option<Rank>, usize), Arc<Compiled>>,
    operations: u64,
    failure: Option<Box<Failure>>,
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank)
            .field("ranks", &self.plan.ranks.len())
            .field("operations", &self.operations)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl Communicator {
    /// Meets the other ranks of `plan` and connects to the peers it names.
    ///
    /// # Errors
    /// Where a rank never comes or holds another plan, generation or setting (named on every rank), or a connection fails.
    pub fn new(
        plan: &Plan,
        rank: Rank,
        rendezvous: &Rendezvous,
        options: Options,
    ) -> Result<Self, ConnectError> {
        let ranks = plan.ranks.len();
        if rank.index() >= ranks {
            return Err(ConnectError::NoSuchRank { rank, ranks });
        }
        if options.slots < MIN_SLOTS {
            return Err(ConnectError::Options("a connection needs at least two slots"));
        }
        if options.slot_bytes > 1 << 30 {
            return Err(ConnectError::Options("slots are at most 1 GiB"));
        }
        let sizing = Sizing::new(SUM_F32.element_bytes, options.slot_bytes)?;
        let wanted = connections(plan, &options.collectives);
        let listeners = Listeners::open(rendezvous.is_local())
            .map_err(|source| ConnectError::Local { what: "listen for peers", source })?;
        let own = Join::new(rank, claims(plan, &options), listeners.reach.clone());
        let group = meet(rendezvous, ranks, &own, options.join_timeout)?;
        let generation = plan.topology.generation.0;
        let mesh = crate::mesh::connect(rank, &group, generation, &wanted, &options, listeners)?;
        let Mesh { control, transmit, receive, pairs, doorbell } = mesh;
        let host = &own.host();
        let here = group.members.iter().filter(|m| m.reach.host.boot == host.boot).count();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            plan: plan.clone(),
            rank,
            options,
            sizing,
            links: Links { transmit, receive },
            control,
            waiter: Waiter::new(doorbell, pairs, here > cores),
            scratch: Aligned::new(0),
            programs: HashMap::new(),
            operations: 0,
            failure: None,
        })
    }

    /// This rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Ranks in the group.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.plan.ranks.len()
    }

    /// Why the communicator is of no further use, if so.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_deref()
    }

    /// Combines the buffers of all ranks, element by element; every rank gets the result in place.
    ///
    /// For one plan and size the result has the same bits on every rank and in every run.
    ///
    /// # Errors
    /// [`TransportError::Failed`] on every rank where one dies, falls silent or runs something else.
    pub fn all_reduce(
        &mut self,
        buffer: &mut [f32],
        op: ReduceOp,
    ) -> Result<Stats, TransportError> {
        let count = buffer.len();
        let whole = crate::memory::caller_mut(buffer);
        self.operate(Collective::AllReduce, None, count, kernel(op), whole, whole)
    }

    /// Combines the inputs of all ranks, element by element, into every rank's output.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; and where the two are not of one length.
    pub fn all_reduce_into(
        &mut self,
        input: &[f32],
        output: &mut [f32],
        op: ReduceOp,
    ) -> Result<Stats, TransportError> {
        let (expected, found) = (input.len(), output.len());
        if expected != found {
            return Err(TransportError::Length { what: "an output", expected, found });
        }
        let (input, output) = (crate::memory::caller(input), crate::memory::caller_mut(output));
        self.operate(Collective::AllReduce, None, expected, kernel(op), input, output)
    }

    /// Gathers every rank's shard into every rank's output, by rank.
    ///
    /// Rank `r` of `n` brings the elements `count * r / n .. count * (r + 1) / n` (rounded down) of the `count` in `output`;
    /// equal parts where `n` divides `count`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; and where `shard` is not of that length.
    pub fn all_gather(
        &mut self,
        shard: &[f32],
        output: &mut [f32],
    ) -> Result<Stats, TransportError> {
        let count = output.len();
        self.expect_shard("a shard", count, shard.len())?;
        let (shard, output) = (crate::memory::caller(shard), crate::memory::caller_mut(output));
        self.operate(Collective::AllGather, None, count, SUM_F32, shard, output)
    }

    /// Combines the inputs of all ranks, element by element, and leaves each rank its shard of the result, cut as in
    /// [`Communicator::all_gather`].
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; and where `shard` is not of that length.
    pub fn reduce_scatter(
        &mut self,
        input: &[f32],
        shard: &mut [f32],
        op: ReduceOp,
    ) -> Result<Stats, TransportError> {
        let count = input.len();
        self.expect_shard("a shard", count, shard.len())?;
        let (input, shard) = (crate::memory::caller(input), crate::memory::caller_mut(shard));
        self.operate(Collective::ReduceScatter, None, count, kernel(op), input, shard)
    }

    /// Every rank's buffer becomes that of `root`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; and where the plan has no channel with that root.
    pub fn broadcast(&mut self, buffer: &mut [f32], root: Rank) -> Result<Stats, TransportError> {
        let count = buffer.len();
        let whole = crate::memory::caller_mut(buffer);
        self.operate(Collective::Broadcast, Some(root), count, SUM_F32, whole, whole)
    }

    /// Combines the inputs of all ranks, element by element, into the output of `root`; elsewhere `output` is not
    /// written.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`]; and where the two are not of one length.
    pub fn reduce(
        &mut self,
        input: &[f32],
        output: &mut [f32],
        op: ReduceOp,
        root: Rank,
    ) -> Result<Stats, TransportError> {
        let (expected, found) = (input.len(), output.len());
        if expected != found {
            return Err(TransportError::Length { what: "an output", expected, found });
        }
        let (input, output) = (crate::memory::caller(input), crate::memory::caller_mut(output));
        self.operate(Collective::Reduce, Some(root), expected, kernel(op), input, output)
    }

    fn expect_shard(
        &self,
        what: &'static str,
        count: usize,
        found: usize,
    ) -> Result<(), TransportError> {
        let expected = crate::schedule::shard(count, self.rank, self.ranks()).len();
        if expected == found {
            Ok(())
        } else {
            Err(TransportError::Length { what, expected, found })
        }
    }

    /// Runs one operation to its end. The slots are the caller's buffers, borrowed for the whole call.
    fn operate(
        &mut self,
        collective: Collective,
        root: Option<Rank>,
        count: usize,
        kernel: Kernel,
        input: Slot,
        output: Slot,
    ) -> Result<Stats, TransportError> {
        if let Some(failure) = &self.failure {
            return Err(TransportError::Unusable(failure.clone()));
        }
        let start = Instant::now();
        let sleeps = self.waiter.sleeps;
        let program = self.program(collective, root, count)?;
        let scratch = program.scratch * kernel.element_bytes;
        if self.scratch.bytes().len() < scratch {
            self.scratch = Aligned::new(scratch);
        }
        let scratch = self.scratch.slot(0, scratch);
        let tag = Tag {
            operation: self.operations,
            count: count as u64,
            signature: signature(collective, root),
            bytes: 0,
        };
        self.operations += 1;
        let buffers = Buffers { input, output, scratch };
        let (channels, steps) = (program.channels, program.steps);
        let operation = Operation::new(program, buffers, kernel, tag, collective);
        self.drive(operation).map_err(|failure| {
            tracing::error!(rank = %self.rank, %failure, "operation failed");
            self.control.fail(&failure);
            self.failure = Some(failure.clone());
            TransportError::Failed(failure)
        })?;
        Ok(Stats {
            elapsed: start.elapsed(),
            bytes: (count * kernel.element_bytes) as u64,
            channels,
            steps,
            sleeps: self.waiter.sleeps - sleeps,
        })
    }

    fn program(
        &mut self,
        collective: Collective,
        root: Option<Rank>,
        count: usize,
    ) -> Result<Arc<Compiled>, TransportError> {
        let key = (collective, root, count);
        if let Some(program) = self.programs.get(&key) {
            return Ok(Arc::clone(program));
        }
        let mut schedule = schedule(&self.plan, collective, root, count, self.sizing)?;
        let own = std::mem::take(&mut schedule.programs[self.rank.index()]);
        let program = Compiled::new(self.rank, own, &self.links)
            .map(Arc::new)
            .ok_or(TransportError::NotConnected(collective))?;
        if self.programs.len() >= KEPT_PROGRAMS {
            self.programs.clear();
        }
        self.programs.insert(key, Arc::clone(&program));
        Ok(program)
    }

    /// Drives an operation and waits by turns.
    fn drive(&mut self, mut operation: Operation) -> Result<(), Box<Failure>> {
        let mut patience = Patience::new(self.options.timeout);
        loop {
            match operation.progress(&mut self.links, &mut self.options.on_step) {
                Ok(Progress::Done) => {
                    self.waiter.moved();
                    return Ok(());
                }
                Ok(Progress::Moved) => {
                    self.waiter.moved();
                    patience.renew();
                }
                Ok(Progress::Blocked) => match self.waiter.idle() {
                    Pause::Again => {}
                    Pause::Look => self.look(&operation, &mut patience)?,
                    Pause::Sleep => {
                        let (links, limit) = (&self.links, patience.interval);
                        let interests = operation.interests(links);
                        self.waiter.sleep(self.control.descriptors(), interests, limit);
                        self.look(&operation, &mut patience)?;
                    }
                },
                Err(broken) => return Err(self.blame(broken)),
            }
        }
    }

    /// Looks after peers while nothing moves: hears of failures, says that this rank waits, gives up in the end.
    fn look(&mut self, operation: &Operation, patience: &mut Patience) -> Result<(), Box<Failure>> {
        let waits_for = operation.waits_for(&self.links);
        let step = || waits_for.as_ref().map(|(_, step)| step.clone());
        match self.control.listen() {
            Some(Notice::Told(failure)) => return Err(Box::new(failure)),
            Some(Notice::Lost { culprit, cause }) => return Err(self.lost(culprit, cause, step())),
            None => {}
        }
        let waited = patience.waited();
        let Some((peer, _)) = &waits_for else { return Ok(()) };
        if self.control.has_left(*peer) && waited >= patience.interval {
            let cause = "it left the group".to_owned();
            return Err(self.lost(self.control.culprit(*peer), cause, step()));
        }
        let suspect = self.control.suspect(*peer, 3 * patience.interval);
        if waited >= self.options.timeout {
            return Err(Box::new(Failure::Timeout {
                culprit: self.control.culprit(suspect),
                waited: self.options.timeout,
                step: step(),
                reported_by: self.rank,
            }));
        }
        if waited >= patience.interval && patience.should_say(suspect) {
            self.control.wait_for(suspect);
        }
        Ok(())
    }

    fn lost(&self, culprit: Culprit, cause: String, step: Option<StepName>) -> Box<Failure> {
        Box::new(Failure::PeerLost { culprit, cause, step, reported_by: self.rank })
    }

    /// Whose fault a broken link is. A peer that closed it may only have passed on what another rank did: its word, or its
    /// end, is on the control connection.
    fn blame(&mut self, broken: Broken) -> Box<Failure> {
        let Broken { peer, step, error } = broken;
        let culprit = self.control.culprit(peer);
        match error {
            LinkError::Closed => {
                let deadline =
                    Instant::now() + self.options.timeout.min(Duration::from_secs(1)) / 2;
                while let Some(left) = crate::frame::remaining(deadline) {
                    match self.control.listen() {
                        Some(Notice::Told(failure)) => return Box::new(failure),
                        Some(Notice::Lost { culprit, cause }) => {
                            return self.lost(culprit, cause, Some(step));
                        }
                        None if self.control.has_left(peer) => break,
                        None => {}
                    }
                    let descriptors = self.control.descriptors();
                    self.waiter.sleep(descriptors, std::iter::empty(), left);
                }
                let left = self.control.has_left(peer);
                let cause = if left { "it left the group" } else { "it closed the connection" };
                self.lost(culprit, cause.to_owned(), Some(step))
            }
            LinkError::Mismatch { ours, theirs } => Box::new(Failure::OperationMismatch {
                culprit,
                ours: ours.to_string(),
                theirs: theirs.to_string(),
                step: Some(step),
                reported_by: self.rank,
            }),
            error @ (LinkError::Io(_) | LinkError::Corrupt { .. }) => Box::new(Failure::Link {
                culprit,
                cause: error.to_string(),
                step: Some(step),
                reported_by: self.rank,
            }),
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // After a failure the peers know already.
        if self.failure.is_none() && !std::thread::panicking() {
            self.control.leave();
        }
    }
}

fn kernel(op: ReduceOp) -> Kernel {
    match op {
        ReduceOp::Sum => SUM_F32,
    }
}

/// What must be equal on all ranks.
fn claims(plan: &Plan, options: &Options) -> Vec<(String, String)> {
    let collectives: Vec<_> = options.collectives.iter().map(|c| c.as_str()).collect();
    [
        ("number of ranks", plan.ranks.len().to_string()),
        ("generation", plan.topology.generation.to_string()),
        ("plan digest", plan_digest(plan)),
        ("transport", options.transport.as_str().to_owned()),
        ("slots", format!("{} of {} bytes", options.slots, options.slot_bytes)),
        ("collectives", collectives.join(",")),
    ]
    .map(|(what, value)| (what.to_owned(), value))
    .into()
}

/// How long nothing has moved, and what was said about it.
#[derive(Debug)]
struct Patience {
    /// Between two signs of life; a rank is silent after three.
    interval: Duration,
    since: Option<Instant>,
    said: Option<(Instant, Rank)>,
}

impl Patience {
    fn new(timeout: Duration) -> Self {
        Self { interval: timeout / 16, since: None, said: None }
    }

    fn renew(&mut self) {
        self.since = None;
    }

    fn waited(&mut self) -> Duration {
        self.since.get_or_insert_with(Instant::now).elapsed()
    }

    /// Whether it is time to name `suspect`: a new one at once, so that it travels fast along a chain of ranks that wait.
    fn should_say(&mut self, suspect: Rank) -> bool {
        let due = match self.said {
            Some((at, said)) => said != suspect || at.elapsed() >= self.interval,
            None => true,
        };
        if due {
            self.said = Some((Instant::now(), suspect));
        }
        due
    }
}
