//! A group of ranks that execute collectives along a plan.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use topology::formats::plan_json;
use topology::schedule::{Blocks, Program};
use topology::{Collective, Plan, Rank};

use crate::control::{Control, Notice};
use crate::error::{ConnectError, Culprit, Failure, StepName, TransportError};
use crate::executor::{Broken, Buffers, Compiled, Links, Operation, Progress};
use crate::kernel::Kernel;
use crate::link::{LinkError, Tag, signature};
use crate::memory::{Aligned, Slot};
use crate::mesh::{Listeners, Mesh};
use crate::rendezvous::{Join, Rendezvous, meet};
use crate::schedule::{
    MIN_SLOTS, ScheduleError, Sizing, connections, schedule, schedule_uneven, send_recv,
};
use crate::waiter::{Pause, Waiter};

mod collectives;
mod options;
mod pending;
mod point_to_point;
#[cfg(test)]
mod tests;

pub use options::{Options, Stats, Transport};
pub use pending::Pending;

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
    links: Links,
    control: Control,
    waiter: Waiter,
    /// Scratch memory no operation uses now.
    scratch: Vec<Aligned>,
    programs: HashMap<ProgramKey, Arc<Compiled>>,
    /// Collectives started; their number on every rank.
    operations: u64,
    /// Everything started; what tells operations of this rank apart.
    tickets: u64,
    /// Messages sent to and received from each rank.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Monitored barriers begun.
    barriers: u64,
    /// In the order in which they were started.
    active: Vec<Active>,
    /// Done and not yet asked for.
    finished: HashMap<u64, Finished>,
    patience: Patience,
    failure: Option<Box<Failure>>,
}

/// What makes two operations run the same program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProgramKey {
    collective: Collective,
    /// The sender for send-receive.
    root: Option<Rank>,
    receiver: Option<Rank>,
    count: usize,
    element_bytes: usize,
    blocks: Option<Blocks>,
}

/// An operation to start. The slots stay valid until it has finished or failed.
#[derive(Debug)]
struct Request {
    collective: Collective,
    /// The sender for send-receive.
    root: Option<Rank>,
    receiver: Option<Rank>,
    /// As in [`topology::schedule::Schedule::count`].
    count: usize,
    blocks: Option<Blocks>,
    kernel: Kernel,
    input: Slot,
    output: Slot,
    /// What is left to finish on this rank once everything has arrived.
    result: Option<Slot>,
}

impl Request {
    fn new(
        collective: Collective,
        count: usize,
        kernel: Kernel,
        input: Slot,
        output: Slot,
    ) -> Self {
        let (root, receiver, blocks, result) = (None, None, None, None);
        Self { collective, root, receiver, count, blocks, kernel, input, output, result }
    }
}

/// Buffers that an operation in flight owns.
type Owned = Box<dyn Any + Send>;

/// An operation in flight.
struct Active {
    ticket: u64,
    task: Operation,
    request: Request,
    scratch: Aligned,
    owned: Option<Owned>,
    start: Instant,
    sleeps: u64,
    channels: usize,
    steps: usize,
}

/// An operation that is done.
struct Finished {
    stats: Stats,
    owned: Option<Owned>,
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
        Sizing::new(1, options.slot_bytes)?;
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
            patience: Patience::new(options.timeout),
            options,
            links: Links { transmit, receive },
            control,
            waiter: Waiter::new(doorbell, pairs, here > cores),
            scratch: Vec::new(),
            programs: HashMap::new(),
            operations: 0,
            tickets: 0,
            sent: vec![0; ranks],
            received: vec![0; ranks],
            barriers: 0,
            active: Vec::new(),
            finished: HashMap::new(),
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

    /// Starts an operation and moves it as far as it goes.
    fn start(&mut self, request: Request, owned: Option<Owned>) -> Result<u64, TransportError> {
        if let Some(failure) = &self.failure {
            return Err(TransportError::Unusable(failure.clone()));
        }
        let (start, sleeps) = (Instant::now(), self.waiter.sleeps);
        let program = self.program(&request)?;
        let bytes = program.scratch * request.kernel.element_bytes();
        let mut scratch = self.take_scratch(bytes);
        let buffers = Buffers {
            input: request.input,
            output: request.output,
            scratch: scratch.slot(0, bytes),
        };
        let tag = Tag {
            operation: self.number(&request),
            count: request.count as u64,
            signature: signature(
                request.collective,
                request.root,
                request.kernel.element,
                request.kernel.op,
            ),
            bytes: 0,
        };
        let ticket = self.tickets;
        self.tickets += 1;
        let (channels, steps) = (program.channels, program.steps);
        let (kernel, collective) = (request.kernel, request.collective);
        let links = &mut self.links;
        let task = Operation::new(program, buffers, kernel, tag, collective, ticket, links);
        let active =
            Active { ticket, task, request, scratch, owned, start, sleeps, channels, steps };
        self.active.push(active);
        Ok(ticket)
    }

    /// The number both ends know an operation by: collectives are counted by all, messages by their two ranks.
    fn number(&mut self, request: &Request) -> u64 {
        let counter = match (request.collective, request.root, request.receiver) {
            (Collective::SendRecv, Some(from), Some(to)) if from == self.rank => {
                &mut self.sent[to.index()]
            }
            (Collective::SendRecv, Some(from), _) => &mut self.received[from.index()],
            _ => &mut self.operations,
        };
        let number = *counter;
        *counter += 1;
        number
    }

    fn take_scratch(&mut self, bytes: usize) -> Aligned {
        if bytes == 0 {
            return Aligned::new(0);
        }
        let fits = self.scratch.iter().position(|memory| memory.bytes().len() >= bytes);
        fits.map_or_else(|| Aligned::new(bytes), |at| self.scratch.swap_remove(at))
    }

    /// Runs an operation on buffers that are borrowed for the whole call.
    fn operate(&mut self, request: Request) -> Result<Stats, TransportError> {
        let ticket = self.start(request, None)?;
        self.complete(ticket, None)?;
        let finished = self.finished.remove(&ticket).expect("what is complete is finished");
        Ok(finished.stats)
    }

    /// Moves everything in flight as far as it goes; whether anything moved.
    fn advance(&mut self) -> Result<bool, Box<Failure>> {
        let mut moved = false;
        let mut at = 0;
        while let Some(active) = self.active.get_mut(at) {
            match active.task.progress(&mut self.links, &mut self.options.on_step) {
                Ok(Progress::Done) => {
                    let active = self.active.remove(at);
                    self.finish(active);
                    moved = true;
                }
                Ok(progress) => {
                    moved |= progress == Progress::Moved;
                    at += 1;
                }
                Err(broken) => return Err(self.blame(broken)),
            }
        }
        if moved {
            self.waiter.moved();
            self.patience.renew();
        }
        Ok(moved)
    }

    fn finish(&mut self, active: Active) {
        let Active { ticket, request, scratch, owned, start, sleeps, channels, steps, .. } = active;
        if let Some(result) = request.result {
            request.kernel.finish(result, self.plan.ranks.len());
        }
        if !scratch.is_empty() {
            self.scratch.push(scratch);
        }
        let stats = Stats {
            elapsed: start.elapsed(),
            bytes: (request.count * request.kernel.element_bytes()) as u64,
            channels,
            steps,
            sleeps: self.waiter.sleeps - sleeps,
        };
        self.finished.insert(ticket, Finished { stats, owned });
    }

    /// Drives everything in flight and waits by turns, until one operation is done or `limit` has passed; whether it is done.
    fn complete(&mut self, ticket: u64, limit: Option<Duration>) -> Result<bool, TransportError> {
        if let Some(failure) = &self.failure {
            return Err(TransportError::Unusable(failure.clone()));
        }
        let deadline = limit.map(|limit| Instant::now() + limit);
        // A test between two stretches of work does not begin a new wait.
        if limit != Some(Duration::ZERO) {
            self.patience.renew();
        }
        self.drive(|this| this.finished.contains_key(&ticket), deadline)
            .map_err(|failure| self.broke(failure))
    }

    /// Ends the group: everything in flight is given up, and the peers are told.
    fn broke(&mut self, failure: Box<Failure>) -> TransportError {
        tracing::error!(rank = %self.rank, %failure, "operation failed");
        self.control.fail(&failure);
        self.failure = Some(failure.clone());
        self.active.clear();
        TransportError::Failed(failure)
    }

    fn program(&mut self, request: &Request) -> Result<Arc<Compiled>, TransportError> {
        let Request { collective, root, receiver, count, .. } = *request;
        let element_bytes = request.kernel.element_bytes();
        let blocks = request.blocks.clone();
        let key = ProgramKey { collective, root, receiver, count, element_bytes, blocks };
        if let Some(program) = self.programs.get(&key) {
            return Ok(Arc::clone(program));
        }
        let program = Compiled::new(self.rank, self.lower(&key)?, &self.links)
            .map(Arc::new)
            .ok_or(TransportError::NotConnected(collective))?;
        if self.programs.len() >= KEPT_PROGRAMS {
            self.programs.clear();
        }
        self.programs.insert(key, Arc::clone(&program));
        Ok(program)
    }

    fn sizing(&self, element_bytes: usize) -> Sizing {
        Sizing::new(element_bytes, self.options.slot_bytes)
            .expect("slots were found large enough for a line, and elements are smaller")
    }

    /// This rank's part of the schedule.
    fn lower(&self, key: &ProgramKey) -> Result<Program, ScheduleError> {
        let sizing = self.sizing(key.element_bytes);
        let mut made = match (&key.blocks, key.root, key.receiver) {
            (Some(blocks), ..) => schedule_uneven(&self.plan, blocks, sizing)?,
            (None, Some(from), Some(to)) => {
                send_recv(self.plan.ranks.len(), from, to, key.count, sizing)
            }
            // Nobody has the sum of all before everybody came.
            _ if key.collective == Collective::Barrier => {
                schedule(&self.plan, Collective::AllReduce, None, 1, sizing)?
            }
            _ => schedule(&self.plan, key.collective, key.root, key.count, sizing)?,
        };
        Ok(std::mem::take(&mut made.programs[self.rank.index()]))
    }

    /// Moves and waits by turns until `done` or the deadline; whether it is done.
    fn drive(
        &mut self,
        done: impl Fn(&Self) -> bool,
        deadline: Option<Instant>,
    ) -> Result<bool, Box<Failure>> {
        loop {
            let moved = self.advance()?;
            if done(self) {
                return Ok(true);
            }
            if moved {
                continue;
            }
            if deadline.is_some_and(|at| at <= Instant::now()) {
                self.look()?;
                return Ok(false);
            }
            let pause = self.waiter.idle();
            if pause == Pause::Again {
                continue;
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if pause == Pause::Sleep {
                let (links, limit) = (&self.links, self.patience.interval);
                let limit = left.map_or(limit, |left| left.min(limit));
                let interests = self.active.iter().flat_map(|a| a.task.interests(links));
                self.waiter.sleep(self.control.descriptors(), interests, limit);
            }
            self.look()?;
        }
    }

    /// Looks after peers while nothing moves: hears of failures, says that this rank waits, gives up in the end.
    fn look(&mut self) -> Result<(), Box<Failure>> {
        let waits_for = self.active.iter().find_map(|active| active.task.waits_for(&self.links));
        let step = || waits_for.as_ref().map(|(_, step)| step.clone());
        match self.control.listen() {
            Some(Notice::Told(failure)) => return Err(Box::new(failure)),
            Some(Notice::Lost { culprit, cause }) => return Err(self.lost(culprit, cause, step())),
            None => {}
        }
        let waited = self.patience.waited();
        let Some((peer, _)) = &waits_for else { return Ok(()) };
        let interval = self.patience.interval;
        if self.control.has_left(*peer) && waited >= interval {
            let cause = "it left the group".to_owned();
            return Err(self.lost(self.control.culprit(*peer), cause, step()));
        }
        let suspect = self.control.suspect(*peer, 3 * interval);
        if waited >= self.options.timeout {
            return Err(Box::new(Failure::Timeout {
                culprit: self.control.culprit(suspect),
                waited: self.options.timeout,
                step: step(),
                reported_by: self.rank,
            }));
        }
        if waited >= interval && self.patience.should_say(suspect) {
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
