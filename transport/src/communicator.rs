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

use crate::arena::{SharedBuffer, Word};
use crate::control::{Control, Notice};
use crate::element::Element;
use crate::error::{ConnectError, Culprit, Failure, StepName, TransportError};
use crate::executor::{Broken, Buffers, Compiled, Links, Operation, Progress, StepDone};
use crate::kernel::Kernel;
use crate::link::{LinkError, Tag, signature};
use crate::memory::{Aligned, Slot};
use crate::mesh::{Listeners, Mesh};
use crate::rendezvous::{Group, Join, Rendezvous, meet};
use crate::schedule::{
    MIN_SLOTS, ScheduleError, Sizing, connections, schedule, schedule_uneven, send_recv,
};
use crate::shared::{Advance, Direct, Flat, Shared, Work, fits};
use crate::waiter::{Pause, Waiter};

mod collectives;
mod groups;
mod options;
mod pending;
mod point_to_point;
#[cfg(test)]
mod tests;

pub use options::{Options, Path, Paths, Stats, Transport};
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
    group: Group,
    /// Groups made of this one.
    splits: u64,
    options: Options,
    links: Links,
    control: Control,
    waiter: Waiter,
    /// Where all ranks share a host.
    shared: Option<Shared>,
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
    finished: Vec<Finished>,
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
    fn key(&self) -> ProgramKey {
        ProgramKey {
            collective: self.collective,
            root: self.root,
            receiver: self.receiver,
            count: self.count,
            element_bytes: self.kernel.element_bytes(),
            blocks: self.blocks.clone(),
        }
    }

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

/// How an operation is done.
enum Task {
    Plan { operation: Operation, scratch: Aligned, channels: usize, steps: usize },
    Flat(Flat),
    Direct(Direct),
}

/// An operation in flight.
struct Active {
    ticket: u64,
    task: Task,
    work: Work,
    receiver: Option<Rank>,
    result: Option<Slot>,
    owned: Option<Owned>,
    start: Option<Instant>,
    sleeps: u64,
    /// The rank it waits for, where that is not the plan's affair.
    waits: Option<usize>,
}

impl Active {
    fn key(&self) -> ProgramKey {
        ProgramKey {
            collective: self.work.collective,
            root: self.work.root,
            receiver: self.receiver,
            count: self.work.count,
            element_bytes: self.work.kernel.element_bytes(),
            blocks: self.work.blocks.clone(),
        }
    }

    /// Where it is, in shared memory.
    fn step_name(&self, ranks: usize) -> Option<StepName> {
        let (step, of) = match &self.task {
            Task::Plan { .. } => return None,
            Task::Flat(flat) => (flat.step(), Flat::STEPS),
            Task::Direct(direct) => (direct.step(), direct.steps(ranks)),
        };
        Some(StepName {
            operation: self.work.tag.operation,
            collective: self.work.collective,
            channel: StepName::SHARED,
            connection: 0,
            step,
            of,
        })
    }

    fn waits_for(&self, links: &Links, ranks: usize) -> Option<(Rank, StepName)> {
        if let Task::Plan { operation, .. } = &self.task {
            return operation.waits_for(links);
        }
        let rank = Rank(u32::try_from(self.waits?).unwrap_or(u32::MAX));
        Some((rank, self.step_name(ranks)?))
    }
}

/// An operation that is done.
struct Finished {
    ticket: u64,
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
        check(plan, rank, &options)?;
        let listeners = Listeners::open(rendezvous.is_local())
            .map_err(|source| ConnectError::Local { what: "listen for peers", source })?;
        let own = Join::new(rank, claims(plan, &options), listeners.reach.clone());
        let group = meet(rendezvous, plan.ranks.len(), &own, options.join_timeout)?;
        Self::connect(plan, rank, group, options, listeners)
    }

    /// Connects to the peers of a group that has met.
    fn connect(
        plan: &Plan,
        rank: Rank,
        group: Group,
        options: Options,
        listeners: Listeners,
    ) -> Result<Self, ConnectError> {
        check(plan, rank, &options)?;
        let ranks = plan.ranks.len();
        let wanted = connections(plan, &options.collectives);
        let generation = plan.topology.generation.0;
        let mesh = crate::mesh::connect(rank, &group, generation, &wanted, &options, listeners)?;
        let Mesh { control, transmit, receive, pairs, doorbell, arena } = mesh;
        let shared = arena.map(|(arena, crosses)| Shared::new(arena, crosses));
        let host = &group.members[rank.index()].reach.host;
        let here = group.members.iter().filter(|m| m.reach.host.boot == host.boot).count();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if options.pin {
            let before = group.members.iter().take(rank.index());
            let place = before.filter(|m| m.reach.host.boot == host.boot).count();
            crate::pin::spread(place, here)
                .map_err(|source| ConnectError::Local { what: "bind to a core", source })?;
        }
        Ok(Self {
            plan: plan.clone(),
            rank,
            group,
            splits: 0,
            patience: Patience::new(options.timeout),
            options,
            links: Links { transmit, receive },
            control,
            waiter: Waiter::new(
                doorbell,
                pairs,
                shared.as_ref().map(|shared| Arc::clone(&shared.arena)),
                here > cores,
            ),
            shared,
            scratch: Vec::new(),
            programs: HashMap::new(),
            operations: 0,
            tickets: 0,
            sent: vec![0; ranks],
            received: vec![0; ranks],
            barriers: 0,
            active: Vec::new(),
            finished: Vec::new(),
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

    /// A buffer of zeros that operations use where it lies, if all ranks share a host; else an ordinary one.
    ///
    /// # Errors
    /// [`TransportError::NoMemory`] where the host has none left, or [`Options::heap_bytes`] are taken.
    pub fn allocate<T: Element>(&self, length: usize) -> Result<SharedBuffer<T>, TransportError> {
        let Some(shared) = &self.shared else { return Ok(SharedBuffer::private(length)) };
        SharedBuffer::shared(&shared.arena, &shared.heap, length).map_err(|error| {
            let bytes = length.saturating_mul(size_of::<T>());
            TransportError::NoMemory { bytes, cause: error.to_string() }
        })
    }

    /// Whether ranks of this group copy straight from each other's private memory.
    #[must_use]
    pub fn crosses_memory(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.crosses)
    }

    /// Why the communicator is of no further use, if so.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_deref()
    }

    /// Starts an operation.
    fn start(&mut self, request: Request, owned: Option<Owned>) -> Result<u64, TransportError> {
        if let Some(failure) = &self.failure {
            return Err(TransportError::Unusable(failure.clone()));
        }
        let (start, sleeps) = (self.now(), self.waiter.sleeps);
        let ticket = self.tickets;
        let by_plan = !self.takes_shared(&request)?;
        // What the plan cannot carry is refused before it takes a number.
        let program = by_plan.then(|| self.program(&request.key())).transpose()?;
        self.tickets += 1;
        let (receiver, result) = (request.receiver, request.result);
        let work = self.work(request);
        let task = match (program, &mut self.shared) {
            (None, Some(shared)) if small(&work, shared) => Task::Flat(Flat::new(shared)),
            (None, Some(shared)) => Task::Direct(Direct::new(shared)),
            (Some(program), _) => self.by_plan(program, &work, ticket),
            (None, None) => unreachable!("nothing takes shared memory that is not there"),
        };
        let waits = None;
        let active = Active { ticket, task, work, receiver, result, owned, start, sleeps, waits };
        self.active.push(active);
        Ok(ticket)
    }

    /// Whether an operation goes through memory the whole group shares.
    fn takes_shared(&self, request: &Request) -> Result<bool, TransportError> {
        let collective = request.collective;
        if self.shared.is_none() || collective == Collective::SendRecv {
            return Ok(false);
        }
        let ranks = self.plan.ranks.len();
        if let Some(root) = request.root
            && root.index() >= ranks
        {
            return Err(ScheduleError::Root { collective, ranks }.into());
        }
        if collective == Collective::AllToAll && request.blocks.is_none() {
            let count = request.count;
            if !count.is_multiple_of(ranks) {
                return Err(ScheduleError::Uneven { count, ranks }.into());
            }
        }
        if collective == Collective::Barrier || self.options.collectives.contains(&collective) {
            Ok(true)
        } else {
            Err(TransportError::NotConnected(collective))
        }
    }

    /// The request with its number.
    fn work(&mut self, request: Request) -> Work {
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
        let Request { collective, root, count, blocks, kernel, input, output, .. } = request;
        Work { collective, root, count, blocks, kernel, input, output, tag }
    }

    fn by_plan(&mut self, program: Arc<Compiled>, work: &Work, ticket: u64) -> Task {
        let bytes = program.scratch * work.kernel.element_bytes();
        let mut scratch = self.take_scratch(bytes);
        let buffers =
            Buffers { input: work.input, output: work.output, scratch: scratch.slot(0, bytes) };
        let (channels, steps) = (program.channels, program.steps);
        let (kernel, tag, collective) = (work.kernel, work.tag, work.collective);
        let links = &mut self.links;
        let operation = Operation::new(program, buffers, kernel, tag, collective, ticket, links);
        Task::Plan { operation, scratch, channels, steps }
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
        let start = self.now();
        let ticket = if self.is_small(&request)? {
            match self.at_once(request, start)? {
                Ok(stats) => return Ok(stats),
                Err(ticket) => ticket,
            }
        } else {
            self.start(request, None)?
        };
        // Usually nothing else is in flight, and all there is to do is to finish this one.
        self.complete(ticket, None)?;
        let finished = self.finished.pop_if(|finished| finished.ticket == ticket);
        let finished = finished.or_else(|| self.take_finished(ticket));
        Ok(finished.expect("what is complete is finished").stats)
    }

    fn now(&self) -> Option<Instant> {
        self.options.timed.then(Instant::now)
    }

    /// Whether an operation can be done at once, with nothing else to look after.
    fn is_small(&self, request: &Request) -> Result<bool, TransportError> {
        let idle = self.active.is_empty() && self.failure.is_none();
        if !idle || self.options.on_step.is_some() || !self.takes_shared(request)? {
            return Ok(false);
        }
        let (size, ranks) = (request.kernel.element_bytes(), self.plan.ranks.len());
        Ok(fits(request.collective, request.count, size, ranks, request.blocks.as_ref()))
    }

    /// A small operation without ado; where others keep it waiting, its ticket among those in flight.
    fn at_once(
        &mut self,
        request: Request,
        start: Option<Instant>,
    ) -> Result<Result<Stats, u64>, TransportError> {
        let (receiver, result) = (request.receiver, request.result);
        let work = self.work(request);
        let Some(shared) = &mut self.shared else {
            unreachable!("nothing takes shared memory that is not there")
        };
        let mut flat = Flat::new(shared);
        let error = loop {
            match flat.progress(&work, shared) {
                Ok(Advance::Done) => {
                    self.waiter.moved();
                    let stats = Stats {
                        elapsed: start.map_or(Duration::ZERO, |start| start.elapsed()),
                        bytes: (work.count * work.kernel.element_bytes()) as u64,
                        path: Path::Flat,
                        channels: 0,
                        steps: Flat::STEPS,
                        sleeps: 0,
                    };
                    return Ok(Ok(stats));
                }
                Ok(Advance::Moved) => self.waiter.moved(),
                Ok(_) if self.waiter.idle() == Pause::Again => {}
                Ok(_) => break None,
                Err(error) => break Some(error),
            }
        };
        let ticket = self.tickets;
        self.tickets += 1;
        let sleeps = self.waiter.sleeps;
        let (task, owned, waits) = (Task::Flat(flat), None, None);
        let active = Active { ticket, task, work, receiver, result, owned, start, sleeps, waits };
        if let Some((peer, error)) = error {
            let step = active.step_name(self.plan.ranks.len()).expect("it is in shared memory");
            let failure = self.blame(Broken { peer, step, error });
            return Err(self.broke(failure));
        }
        self.active.push(active);
        Ok(Err(ticket))
    }

    fn take_finished(&mut self, ticket: u64) -> Option<Finished> {
        let at = self.finished.iter().position(|finished| finished.ticket == ticket)?;
        Some(self.finished.swap_remove(at))
    }

    fn is_finished(&self, ticket: u64) -> bool {
        self.finished.iter().any(|finished| finished.ticket == ticket)
    }

    /// Moves everything in flight as far as it goes; whether anything moved.
    fn advance(&mut self) -> Result<bool, Box<Failure>> {
        let mut moved = false;
        let mut at = 0;
        while at < self.active.len() {
            match self.advance_one(at)? {
                Advance::Done => {
                    let active = self.active.remove(at);
                    self.finish(active);
                    moved = true;
                }
                // Those that share no memory of their own carry on here; those already moving go first.
                Advance::Elsewhere => {
                    let (key, ticket) = (self.active[at].key(), self.active[at].ticket);
                    let program = self
                        .program(&key)
                        .map_err(|error| self.link_failure(self.rank, error.to_string(), None))?;
                    let work = self.active[at].work.clone();
                    self.active[at].task = self.by_plan(program, &work, ticket);
                    moved = true;
                }
                Advance::Moved => {
                    moved = true;
                    at += 1;
                }
                Advance::Waits(_) | Advance::Turn => at += 1,
            }
        }
        if moved {
            self.waiter.moved();
            self.patience.renew();
        }
        Ok(moved)
    }

    /// Moves one operation as far as it goes.
    fn advance_one(&mut self, at: usize) -> Result<Advance, Box<Failure>> {
        let active = &mut self.active[at];
        let advanced = match (&mut active.task, &mut self.shared) {
            (Task::Plan { operation, .. }, _) => {
                let progress = operation.progress(&mut self.links, &mut self.options.on_step);
                return match progress {
                    Ok(Progress::Done) => Ok(Advance::Done),
                    Ok(Progress::Moved) => Ok(Advance::Moved),
                    Ok(Progress::Blocked) => Ok(Advance::Turn),
                    Err(broken) => Err(self.blame(broken)),
                };
            }
            (Task::Flat(flat), Some(shared)) => flat.progress(&active.work, shared),
            (Task::Direct(direct), Some(shared)) => direct.progress(&active.work, shared),
            (_, None) => unreachable!("operations in shared memory where there is none"),
        };
        let ranks = self.plan.ranks.len();
        active.waits = match &advanced {
            Ok(Advance::Waits(rank)) => Some(*rank),
            _ => None,
        };
        match advanced {
            Ok(advance) => {
                if matches!(advance, Advance::Moved | Advance::Done)
                    && let Some(hook) = &mut self.options.on_step
                    && let Some(step) = active.step_name(ranks)
                {
                    let (done, of) = (step.step, step.of);
                    hook(&StepDone { step, done, of });
                }
                Ok(advance)
            }
            Err((peer, error)) => {
                let step = active.step_name(ranks).expect("it is in shared memory");
                Err(self.blame(Broken { peer, step, error }))
            }
        }
    }

    fn finish(&mut self, active: Active) {
        let Active { ticket, task, work, result, owned, start, sleeps, .. } = active;
        let (path, channels, steps) = match task {
            Task::Plan { scratch, channels, steps, .. } => {
                // The other ways do this where they combine.
                if let Some(result) = result {
                    work.kernel.finish(result, self.plan.ranks.len());
                }
                if !scratch.is_empty() {
                    self.scratch.push(scratch);
                }
                (Path::Plan, channels, steps)
            }
            Task::Flat(flat) => (Path::Flat, 0, flat.step()),
            Task::Direct(direct) => (Path::Direct, 0, direct.step()),
        };
        let stats = Stats {
            elapsed: start.map_or(Duration::ZERO, |start| start.elapsed()),
            bytes: (work.count * work.kernel.element_bytes()) as u64,
            path,
            channels,
            steps,
            sleeps: self.waiter.sleeps - sleeps,
        };
        self.finished.push(Finished { ticket, stats, owned });
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
        self.drive(|this| this.is_finished(ticket), deadline).map_err(|failure| self.broke(failure))
    }

    /// Ends the group: everything in flight is given up, and the peers are told.
    fn broke(&mut self, failure: Box<Failure>) -> TransportError {
        tracing::error!(rank = %self.rank, %failure, "operation failed");
        self.control.fail(&failure);
        if let Some(shared) = &self.shared {
            // Before anyone can write the buffers that others read.
            shared.arena.say(Word::Aborted, 1);
        }
        self.failure = Some(failure.clone());
        self.active.clear();
        TransportError::Failed(failure)
    }

    fn program(&mut self, key: &ProgramKey) -> Result<Arc<Compiled>, TransportError> {
        if let Some(program) = self.programs.get(key) {
            return Ok(Arc::clone(program));
        }
        let program = Compiled::new(self.rank, self.lower(key)?, &self.links)
            .map(Arc::new)
            .ok_or(TransportError::NotConnected(key.collective))?;
        if self.programs.len() >= KEPT_PROGRAMS {
            self.programs.clear();
        }
        self.programs.insert(key.clone(), Arc::clone(&program));
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
                let interests = self.active.iter().flat_map(|active| match &active.task {
                    Task::Plan { operation, .. } => Some(operation.interests(links)),
                    Task::Flat(_) | Task::Direct(_) => None,
                });
                let interests = interests.flatten();
                self.waiter.sleep(self.control.descriptors(), interests, limit);
            }
            self.look()?;
        }
    }

    /// Looks after peers while nothing moves: hears of failures, says that this rank waits, gives up in the end.
    fn look(&mut self) -> Result<(), Box<Failure>> {
        let ranks = self.plan.ranks.len();
        let waits_for = self.active.iter().find_map(|a| a.waits_for(&self.links, ranks));
        let step = || waits_for.as_ref().map(|(_, step)| step.clone());
        match self.control.listen() {
            Some(Notice::Told(failure)) => return Err(Box::new(failure)),
            Some(Notice::Lost { culprit, cause }) => return Err(self.lost(culprit, cause, step())),
            None => {}
        }
        if let Some(failure) = self.passed_by() {
            return Err(failure);
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

    /// A rank that this one waits for in shared memory, and that is already through with another operation of that number.
    fn passed_by(&self) -> Option<Box<Failure>> {
        let shared = self.shared.as_ref()?;
        self.active.iter().find_map(|active| {
            let number = match &active.task {
                Task::Plan { .. } => return None,
                Task::Flat(flat) => flat.number(),
                Task::Direct(direct) => direct.number(),
            };
            let rank = active.waits.filter(|rank| shared.passed_by(*rank, number))?;
            Some(Box::new(Failure::OperationMismatch {
                culprit: self.control.culprit(Rank(u32::try_from(rank).unwrap_or(u32::MAX))),
                ours: active.work.tag.to_string(),
                theirs: "another operation in its place".to_owned(),
                step: active.step_name(self.plan.ranks.len()),
                reported_by: self.rank,
            }))
        })
    }

    fn link_failure(&self, rank: Rank, cause: String, step: Option<StepName>) -> Box<Failure> {
        let culprit = self.control.culprit(rank);
        Box::new(Failure::Link { culprit, cause, step, reported_by: self.rank })
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
            // The memory of a process that ends is gone a moment before its sockets close.
            error @ (LinkError::Closed | LinkError::Io(_)) => {
                if let Some(failure) = self.told_or_lost(peer, &step) {
                    return failure;
                }
                let cause = match error {
                    LinkError::Io(error) => {
                        return self.link_failure(peer, error.to_string(), Some(step));
                    }
                    _ if self.control.has_left(peer) => "it left the group",
                    _ => "it closed the connection",
                };
                self.lost(culprit, cause.to_owned(), Some(step))
            }
            LinkError::Mismatch { ours, theirs } => Box::new(Failure::OperationMismatch {
                culprit,
                ours: ours.to_string(),
                theirs: theirs.to_string(),
                step: Some(step),
                reported_by: self.rank,
            }),
            error @ LinkError::Corrupt { .. } => {
                self.link_failure(peer, error.to_string(), Some(step))
            }
        }
    }

    /// What the control connections say of a failure at `step`, within half a second; nothing once `peer` has left as it should.
    fn told_or_lost(&mut self, peer: Rank, step: &StepName) -> Option<Box<Failure>> {
        let deadline = Instant::now() + self.options.timeout.min(Duration::from_secs(1)) / 2;
        while let Some(left) = crate::frame::remaining(deadline) {
            match self.control.listen() {
                Some(Notice::Told(failure)) => return Some(Box::new(failure)),
                Some(Notice::Lost { culprit, cause }) => {
                    return Some(self.lost(culprit, cause, Some(step.clone())));
                }
                None if self.control.has_left(peer) => break,
                None => {}
            }
            let descriptors = self.control.descriptors();
            self.waiter.sleep(descriptors, std::iter::empty(), left);
        }
        None
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

/// Refuses nonsense before anything is sent.
fn check(plan: &Plan, rank: Rank, options: &Options) -> Result<(), ConnectError> {
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
    Ok(())
}

/// Whether slots of the group's memory hold it.
fn small(work: &Work, shared: &Shared) -> bool {
    let ranks = shared.arena.ranks();
    let size = work.kernel.element_bytes();
    fits(work.collective, work.count, size, ranks, work.blocks.as_ref())
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
        ("paths", format!("{:?} with heaps of {} bytes", options.paths, options.heap_bytes)),
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
