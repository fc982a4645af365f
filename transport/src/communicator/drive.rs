//! Driving operations: everything in flight moves as far as it goes, and the rank waits by turns.

use std::time::{Duration, Instant};

use topology::{Collective, Rank};

use super::operation::{Active, Finished, Task};
use super::{Communicator, Path, Stats};
use crate::error::{Failure, TransportError};
use crate::executor::{Broken, Links, Progress, StepDone};
use crate::link::Interest;
use crate::observe::{Done, Ended, Outcome};
use crate::pace::Pace;
use crate::shared::Advance;
use crate::waiter::Pause;

impl Communicator {
    pub(super) fn take_finished(&mut self, ticket: u64) -> Option<Finished> {
        let at = self.finished.iter().position(|finished| finished.ticket == ticket)?;
        Some(self.finished.swap_remove(at))
    }

    fn is_finished(&self, ticket: u64) -> bool {
        self.finished.iter().any(|finished| finished.ticket == ticket)
    }

    /// Moves everything in flight as far as it goes; whether anything moved.
    pub(super) fn advance(&mut self) -> Result<bool, Box<Failure>> {
        if let Some(pace) = &mut self.pace {
            pace.tick();
        }
        let (mut moved, mut trickled) = (false, false);
        let mut mover = 0;
        let mut at = 0;
        while at < self.active.len() {
            let priority = self.active[at].priority;
            // What moves keeps what is lower from its turn. What waits does not, or two ranks might wait for each other's lower ones.
            if moved && priority < mover {
                break;
            }
            let advanced = self.advance_one(at)?;
            if !matches!(advanced, Advance::Waits(_) | Advance::Turn) {
                mover = priority;
            }
            match advanced {
                Advance::Done => {
                    let active = self.active.remove(at);
                    self.finish(active);
                    moved = true;
                }
                Advance::Trickled => {
                    trickled = true;
                    at += 1;
                }
                Advance::Moved => {
                    moved = true;
                    at += 1;
                }
                Advance::Waits(_) | Advance::Turn => at += 1,
            }
        }
        if moved {
            self.patience.renew();
        } else if trickled {
            self.patience.trickle();
        }
        if moved || trickled {
            self.waiter.moved();
        }
        Ok(moved || trickled)
    }

    /// Moves one operation as far as it goes.
    fn advance_one(&mut self, at: usize) -> Result<Advance, Box<Failure>> {
        let alone = self.active.len() == 1 && self.options.on_step.is_none();
        let active = &mut self.active[at];
        let advanced = match (&mut active.task, &mut self.shared) {
            (Task::Plan { operation, .. }, _) => {
                let progress =
                    operation.progress(&mut self.links, &mut self.pace, &mut self.options.on_step);
                return match progress {
                    Ok(Progress::Done) => Ok(Advance::Done),
                    Ok(Progress::Moved) => Ok(Advance::Moved),
                    Ok(Progress::Trickled) => Ok(Advance::Trickled),
                    Ok(Progress::Blocked) => Ok(Advance::Turn),
                    Err(broken) => Err(self.blame(broken)),
                };
            }
            (Task::Flat(flat), Some(shared)) => flat.progress(&active.work, shared),
            (Task::Direct(direct), Some(shared)) if alone => direct.finish(&active.work, shared),
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
        let Active { ticket, task, work, result, owned, start, sleeps, held, .. } = active;
        let (path, channels, steps) = match task {
            Task::Plan { scratch, channels, steps, .. } => {
                // The other ways do this where they combine.
                if let Some(result) = result {
                    work.kernel.finish(result, self.plan.ranks.len());
                }
                self.scratch.give_back(scratch);
                (Path::Plan, channels, steps)
            }
            Task::Flat(flat) => (Path::Flat, 0, flat.step()),
            Task::Direct(direct) => (direct.path(), 0, direct.step()),
        };
        let stats = Stats {
            elapsed: start.map_or(Duration::ZERO, |start| start.elapsed()),
            bytes: (work.count * work.kernel.element_bytes()) as u64,
            path,
            channels,
            steps,
            sleeps: self.waiter.sleeps - sleeps,
            held: self.held().saturating_sub(held),
        };
        if let (Some(observer), Some(start)) = (&mut self.observer, start) {
            let (collective, number) = (work.collective, work.tag.operation);
            observer.record(Done { collective, number, start, stats });
        }
        let teller = match work.collective {
            Collective::SendRecv => work.root.unwrap_or(Rank(0)),
            _ => Rank(0),
        };
        if teller == self.rank {
            let (bytes, elapsed) = (stats.bytes, stats.elapsed);
            self.tell(&Ended {
                collective: work.collective,
                outcome: Outcome::Done,
                bytes,
                elapsed,
            });
        }
        self.finished.push(Finished { ticket, stats, owned });
    }

    pub(super) fn tell(&mut self, ended: &Ended) {
        // What the group does to find who is late is nobody's.
        if self.observer.as_ref().is_some_and(|observer| observer.paused) {
            return;
        }
        if let Some(hook) = &mut self.options.on_end {
            hook(ended);
        }
    }

    /// Drives everything in flight and waits by turns, until one operation is done or `limit` has passed; whether it is done.
    pub(super) fn complete(
        &mut self,
        ticket: u64,
        limit: Option<Duration>,
    ) -> Result<bool, TransportError> {
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

    /// Looks after what was sent: a NIC may have failed to bring it, which nothing that is waited for would show.
    pub(super) fn check(&mut self) -> Result<(), Box<Failure>> {
        let operations = self.active.iter().filter_map(|active| match &active.task {
            Task::Plan { operation, .. } => Some(operation),
            Task::Flat(_) | Task::Direct(_) => None,
        });
        let broken =
            operations.map(|operation| operation.check(&mut self.links)).find_map(Result::err);
        broken.map_or(Ok(()), |broken| Err(self.blame(broken)))
    }

    /// Says to the links that are waited for that this rank is about to sleep; whether one can move already.
    pub(super) fn arm(&mut self) -> bool {
        let mut any = false;
        for active in &self.active {
            if let Task::Plan { operation, .. } = &active.task {
                any |= operation.arm(&mut self.links);
            }
        }
        any
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
            if pause == Pause::Sleep && !self.arm() {
                let (links, limit) = (&self.links, self.patience.interval);
                let paid = self.pace.as_ref().and_then(Pace::wait).unwrap_or(limit);
                let limit = left.map_or(limit, |left| left.min(limit)).min(paid);
                let interests = interests(&self.active, links);
                self.waiter.sleep(self.control.descriptors(), interests, limit);
            }
            self.check()?;
            self.look()?;
        }
    }
}

/// What operations in flight sleep on.
pub(super) fn interests<'a>(
    active: &'a [Active],
    links: &'a Links,
) -> impl Iterator<Item = Interest<'a>> {
    let of_operation = |active: &'a Active| match &active.task {
        Task::Plan { operation, .. } => Some(operation.interests(links)),
        Task::Flat(_) | Task::Direct(_) => None,
    };
    active.iter().filter_map(of_operation).flatten()
}
