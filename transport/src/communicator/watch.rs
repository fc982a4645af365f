//! Looking after the peers: who is lost, who is silent, whose fault a broken link is.

use std::time::{Duration, Instant};

use topology::Rank;

use super::Communicator;
use super::operation::{Active, Task};
use crate::arena::Word;
use crate::control::Notice;
use crate::error::{Culprit, Failure, StepName, TransportError};
use crate::executor::Broken;
use crate::link::LinkError;
use crate::observe::Ended;

impl Communicator {
    /// Looks after peers while nothing moves: hears of failures, says that this rank waits, gives up in the end.
    pub(super) fn look(&mut self) -> Result<(), Box<Failure>> {
        let ranks = self.plan.ranks.len();
        let waits_for = self.active.iter().find_map(|a| a.waits_for(&self.links, ranks));
        let step = || waits_for.as_ref().map(|(_, step)| step.clone());
        match self.control.listen() {
            Some(Notice::Told(failure)) => return Err(Box::new(failure)),
            Some(Notice::Lost { culprit, cause }) => return Err(self.lost(culprit, cause, step())),
            None => {}
        }
        if let Some(failure) = self.passed_by().or_else(|| self.at_odds()) {
            return Err(failure);
        }
        let Some((peer, _)) = &waits_for else { return Ok(()) };
        let interval = self.patience.interval;
        // A message that comes in pieces keeps those waiting who wait for what is made of it: they hear of it, and say so in turn.
        if self.control.heard_moving(*peer) {
            self.patience.trickle();
        }
        let waited = self.patience.waited();
        if waited < interval && self.patience.should_say_moving() {
            self.control.moves();
        }
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
            let doing = self.active.iter().find_map(Active::doing);
            self.control.wait_for(suspect, doing);
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

    /// A rank that waits in another collective in the place of one of this rank's.
    fn at_odds(&self) -> Option<Box<Failure>> {
        self.active.iter().find_map(|active| {
            let ours = active.doing()?;
            let (rank, theirs) = self.control.differs(&ours)?;
            Some(Box::new(Failure::OperationMismatch {
                culprit: self.control.culprit(rank),
                ours: ours.to_string(),
                theirs: theirs.to_string(),
                step: active.step_name(self.plan.ranks.len()),
                reported_by: self.rank,
            }))
        })
    }

    /// Ends the group: everything in flight is given up, and the peers are told.
    pub(super) fn broke(&mut self, failure: Box<Failure>) -> TransportError {
        tracing::error!(rank = %self.rank, %failure, "operation failed");
        self.control.fail(&failure);
        // Nothing is written into callers' memory, or read from it, once they are told.
        self.links.transmit.iter_mut().for_each(|half| half.link.close());
        self.links.receive.iter_mut().for_each(|half| half.link.close());
        if let Some(registry) = &self.registry {
            registry.end();
        }
        if let Some(shared) = &self.shared {
            // Before anyone can write the buffers that others read.
            shared.arena.say(Word::Aborted, 1);
        }
        self.failure = Some(failure.clone());
        let given_up = std::mem::take(&mut self.active);
        let (outcome, noticed_by) = failure.end();
        let told = if noticed_by == self.rank { &given_up[..] } else { &[] };
        for active in told {
            let work = &active.work;
            self.tell(&Ended {
                collective: work.collective,
                outcome,
                bytes: (work.count * work.kernel.element_bytes()) as u64,
                elapsed: active.start.map_or(Duration::ZERO, |start| start.elapsed()),
            });
        }
        TransportError::Failed(failure)
    }

    pub(super) fn link_failure(
        &self,
        rank: Rank,
        cause: String,
        step: Option<StepName>,
    ) -> Box<Failure> {
        let culprit = self.control.culprit(rank);
        Box::new(Failure::Link { culprit, cause, step, reported_by: self.rank })
    }

    pub(super) fn lost(
        &self,
        culprit: Culprit,
        cause: String,
        step: Option<StepName>,
    ) -> Box<Failure> {
        Box::new(Failure::PeerLost { culprit, cause, step, reported_by: self.rank })
    }

    /// Whose fault a broken link is. A peer that closed it may only have passed on what another rank did: its word, or its
    /// end, is on the control connection.
    pub(super) fn blame(&mut self, broken: Broken) -> Box<Failure> {
        let Broken { peer, step, error } = broken;
        let culprit = self.control.culprit(peer);
        match error {
            LinkError::Nic { words, cause: true } => self.link_failure(peer, words, Some(step)),
            // The memory of a process that ends is gone a moment before its sockets close.
            error @ (LinkError::Closed | LinkError::Io(_) | LinkError::Nic { .. }) => {
                if let Some(failure) = self.told_or_lost(peer, &step) {
                    return failure;
                }
                let cause = match error {
                    LinkError::Io(_) | LinkError::Nic { .. } => {
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

    /// What the control connections say of a failure at `step`; nothing once `peer` has left as it should. A process that ends gives
    /// up its memory first and closes its sockets last, and on a busy host with much memory seconds may lie between, so this waits
    /// for half the time limit. (Where a link breaks and nobody ended, the error is that much later, and right.)
    fn told_or_lost(&mut self, peer: Rank, step: &StepName) -> Option<Box<Failure>> {
        let deadline = Instant::now() + self.options.timeout / 2;
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

/// How long nothing has moved, and what was said about it.
#[derive(Debug)]
pub(super) struct Patience {
    /// Between two signs of life; a rank is silent after three.
    pub(super) interval: Duration,
    since: Option<Instant>,
    /// Since when no step was done, whatever came in pieces; or since that was said last.
    no_step: Option<Instant>,
    said: Option<(Instant, Rank)>,
    /// When the devices that carry links were last listened to by one that does not sleep.
    listened: Option<Instant>,
}

/// Between two of those times: far less than a NIC sends again, and a call of the system each.
const LISTEN: Duration = Duration::from_millis(10);

impl Patience {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { interval: timeout / 16, since: None, no_step: None, said: None, listened: None }
    }

    pub(super) fn renew(&mut self) {
        (self.since, self.no_step) = (None, None);
    }

    /// Whether it is time to hear what devices say beside completions.
    pub(super) fn should_listen(&mut self) -> bool {
        let due = self.listened.is_none_or(|at| at.elapsed() >= LISTEN);
        if due {
            self.listened = Some(Instant::now());
        }
        due
    }

    /// A part of a message moved, here or where this rank waits for.
    pub(super) fn trickle(&mut self) {
        self.since = None;
        self.no_step.get_or_insert_with(Instant::now);
    }

    /// Whether it is time to say that messages move, though none is whole yet.
    fn should_say_moving(&mut self) -> bool {
        let due = self.no_step.is_some_and(|since| since.elapsed() >= self.interval);
        if due {
            self.no_step = Some(Instant::now());
        }
        due
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_renew_patience_and_are_told_of() {
        let mut short = Patience::new(Duration::ZERO);
        assert!(!short.should_say_moving(), "nothing came in pieces");
        short.waited();
        short.trickle();
        assert!(short.since.is_none() && short.should_say_moving());
        short.renew();
        assert!(!short.should_say_moving(), "a whole step was done");
        let mut long = Patience::new(Duration::from_secs(1 << 20));
        long.trickle();
        assert!(!long.should_say_moving(), "not before the interval is over");
    }
}
