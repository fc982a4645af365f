//! Starting operations: which way each takes, and what it needs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use topology::Collective;
use topology::schedule::Program;

use super::operation::{Active, Owned, ProgramKey, Request, Task};
use super::{Communicator, Path, Stats};
use crate::error::TransportError;
use crate::executor::{Broken, Buffers, Compiled, Operation};
use crate::link::{Tag, signature};
use crate::pace::Pace;
use crate::schedule::{ScheduleError, Sizing, schedule, schedule_uneven, send_recv};
use crate::shared::{Advance, Direct, Flat, Shared, Work, fits};
use crate::waiter::Pause;

/// Programs kept for operations seen before; a training step repeats a few sizes.
const KEPT_PROGRAMS: usize = 64;

impl Communicator {
    /// Starts an operation.
    pub(super) fn start(
        &mut self,
        request: Request,
        owned: Option<Owned>,
    ) -> Result<u64, TransportError> {
        if let Some(failure) = &self.failure {
            return Err(TransportError::Unusable(failure.clone()));
        }
        let (start, sleeps) = (self.now(), self.waiter.sleeps);
        let (held, priority) = (self.held(), self.priority);
        let ticket = self.tickets;
        let by_plan = !self.takes_shared(&request)?;
        // What the plan cannot carry is refused before it takes a number.
        let program = by_plan.then(|| self.program(&request.key(priority))).transpose()?;
        if let Some(program) = &program {
            self.afford(program.most_scratch * request.kernel.element_bytes())?;
        }
        self.tickets += 1;
        let (result, placed) = (request.result, request.placed);
        let work = self.work(request);
        let flat = self.options.choice.flat(work.collective);
        let mut task = match (program, &mut self.shared) {
            (None, Some(shared)) if flat && small(&work, shared) => Task::Flat(Flat::new(shared)),
            (None, Some(shared)) => Task::Direct(Direct::new(shared)),
            (Some(program), _) => self.by_plan(program, &work, ticket),
            (None, None) => unreachable!("nothing takes shared memory that is not there"),
        };
        if let Task::Plan { operation, .. } = &mut task {
            operation.placed = placed;
        }
        let waits = None;
        let active =
            Active { ticket, priority, task, work, result, owned, start, sleeps, held, waits };
        // Those of higher priority go first, and of one priority those that were started first.
        let place = self.active.partition_point(|other| other.priority >= priority);
        self.active.insert(place, active);
        Ok(ticket)
    }

    /// How long messages of this rank have waited for the budget of bytes a second, in all.
    #[must_use]
    pub fn held(&self) -> Duration {
        self.pace.as_ref().map_or(Duration::ZERO, Pace::held)
    }

    /// Whether an operation goes through memory the whole group shares.
    fn takes_shared(&self, request: &Request) -> Result<bool, TransportError> {
        let collective = request.collective;
        if let Some(forbidden) = self.forbidden.get(&collective) {
            return Err(forbidden.clone().into());
        }
        if self.shared.is_none() || collective == Collective::SendRecv {
            return Ok(false);
        }
        // There operations go in one order, and nothing is counted.
        if self.priority > 0 || self.pace.is_some() {
            return Ok(false);
        }
        if self.options.choice.by_plan(collective) {
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

    pub(super) fn by_plan(&mut self, program: Arc<Compiled>, work: &Work, ticket: u64) -> Task {
        let bytes = program.scratch * work.kernel.element_bytes();
        let mut scratch = self.scratch.take(bytes);
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

    /// Runs an operation on buffers that are borrowed for the whole call.
    pub(super) fn operate(&mut self, request: Request) -> Result<Stats, TransportError> {
        let start = self.now();
        if let Some(stats) = self.message_at_once(&request, start) {
            return Ok(stats);
        }
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
        let timed = self.options.timed || self.observer.is_some() || self.options.on_end.is_some();
        timed.then(Instant::now)
    }

    /// Whether an operation can be done at once, with nothing else to look after.
    fn is_small(&self, request: &Request) -> Result<bool, TransportError> {
        let flat = self.options.choice.flat(request.collective);
        if !self.is_unwatched() || !flat || !self.takes_shared(request)? {
            return Ok(false);
        }
        let (size, ranks) = (request.kernel.element_bytes(), self.plan.ranks.len());
        Ok(fits(request.collective, request.count, size, ranks, request.blocks.as_ref()))
    }

    /// Whether nothing is in flight, and nobody is to be told of what is done.
    pub(super) fn is_unwatched(&self) -> bool {
        let options = &self.options;
        let hooked = options.on_step.is_some() || options.on_end.is_some();
        self.active.is_empty() && self.failure.is_none() && !hooked && self.observer.is_none()
    }

    /// A small operation without ado; where others keep it waiting, its ticket among those in flight.
    fn at_once(
        &mut self,
        request: Request,
        start: Option<Instant>,
    ) -> Result<Result<Stats, u64>, TransportError> {
        let result = request.result;
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
                        held: Duration::ZERO,
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
        let (held, priority) = (Duration::ZERO, self.priority);
        let active =
            Active { ticket, priority, task, work, result, owned, start, sleeps, held, waits };
        if let Some((peer, error)) = error {
            let step = active.step_name(self.plan.ranks.len()).expect("it is in shared memory");
            let failure = self.blame(Broken { peer, step, error });
            return Err(self.broke(failure));
        }
        self.active.push(active);
        Ok(Err(ticket))
    }

    pub(super) fn program(&mut self, key: &ProgramKey) -> Result<Arc<Compiled>, TransportError> {
        if let Some(program) = self.programs.get(key) {
            return Ok(Arc::clone(program));
        }
        let (own, most_scratch) = self.lower(key)?;
        let program = Compiled::new(self.rank, own, most_scratch, key.priority, &self.links)
            .map(Arc::new)
            .ok_or(TransportError::NotConnected(key.collective))?;
        if self.programs.len() >= KEPT_PROGRAMS {
            self.programs.clear();
        }
        self.programs.insert(key.clone(), Arc::clone(&program));
        Ok(program)
    }

    pub(super) fn sizing(&self, element_bytes: usize) -> Sizing {
        Sizing::new(element_bytes, self.options.slot_bytes())
            .expect("slots were found large enough for a line, and elements are smaller")
    }

    /// This rank's part of the schedule, and the most scratch memory of any rank, in elements.
    fn lower(&self, key: &ProgramKey) -> Result<(Program, usize), ScheduleError> {
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
        let most = made.programs.iter().map(|program| program.scratch).max().unwrap_or(0);
        Ok((std::mem::take(&mut made.programs[self.rank.index()]), most))
    }
}

/// Whether slots of the group's memory hold it.
fn small(work: &Work, shared: &Shared) -> bool {
    let ranks = shared.arena.ranks();
    let size = work.kernel.element_bytes();
    fits(work.collective, work.count, size, ranks, work.blocks.as_ref())
}
