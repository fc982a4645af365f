//! Send and receive: straight between two ranks, whatever the plan.

use std::time::Instant;

use topology::{Collective, Rank};

use super::drive::interests;
use super::operation::Request;
use super::{Communicator, Pending, Stats};
use crate::element::{Element, ElementType};
use crate::error::{Failure, TransportError};
use crate::kernel::Kernel;
use crate::link::{LinkError, Receive, Tag, signature};
use crate::memory::{Slot, caller, caller_mut};
use crate::mesh::Half;
use crate::schedule::{ConnectionId, SEND_RECV, first_message};
use crate::waiter::Pause;

impl Communicator {
    /// Sends to one rank, which receives as many elements of the same type; messages between two ranks arrive in order.
    /// The communicator must have been made for [`Collective::SendRecv`].
    ///
    /// Returns once the buffer may be written again: the message may still be on its way.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; and where there is no such other rank.
    pub fn send<T: Element>(&mut self, data: &[T], to: Rank) -> Result<Stats, TransportError> {
        let request = self.message::<T>(self.rank(), to, data.len(), caller(data))?;
        self.operate(request)
    }

    /// Receives from one rank.
    ///
    /// # Errors
    /// As [`Communicator::send`]; where the message is of another length or type, the group fails.
    pub fn receive<T: Element>(
        &mut self,
        data: &mut [T],
        from: Rank,
    ) -> Result<Stats, TransportError> {
        let request = self.message::<T>(from, self.rank(), data.len(), caller_mut(data))?;
        self.operate(request)
    }

    /// Sends to one rank and receives from another, or the same, at once.
    ///
    /// # Errors
    /// As [`Communicator::send`] and [`Communicator::receive`].
    pub fn exchange<T: Element>(
        &mut self,
        data: &[T],
        to: Rank,
        received: &mut [T],
        from: Rank,
    ) -> Result<Stats, TransportError> {
        let own = self.rank();
        let out = self.message::<T>(own, to, data.len(), caller(data))?;
        let inward = self.message::<T>(from, own, received.len(), caller_mut(received))?;
        let sent = if self.send_at_once(&out) { None } else { Some(self.start(out, None)?) };
        // Neither is left in flight when this returns: what ends one, ends the group.
        let stats = self.operate(inward)?;
        if let Some(sent) = sent {
            self.complete(sent, None)?;
            self.take_finished(sent);
        }
        Ok(stats)
    }

    /// Starts a [`Communicator::send`] of a buffer that is given back when it is done.
    ///
    /// # Errors
    /// As [`Communicator::send`], for what is found before anything is sent.
    pub fn start_send<T: Element>(
        &mut self,
        data: Vec<T>,
        to: Rank,
    ) -> Result<Pending<Vec<T>>, TransportError> {
        let request = self.message::<T>(self.rank(), to, data.len(), caller(&data))?;
        self.start_owned(request, data)
    }

    /// Starts a [`Communicator::receive`] into a buffer that is given back when it is done.
    ///
    /// # Errors
    /// As [`Communicator::send`], for what is found before anything is received.
    pub fn start_receive<T: Element>(
        &mut self,
        mut data: Vec<T>,
        from: Rank,
    ) -> Result<Pending<Vec<T>>, TransportError> {
        let whole = caller_mut(&mut data);
        let request = self.message::<T>(from, self.rank(), data.len(), whole)?;
        self.start_owned(request, data)
    }

    /// Receives from whichever rank sends first, of several the lowest; who it was. Receives that were started from one rank
    /// must be done before.
    ///
    /// # Errors
    /// As [`Communicator::receive`]. Where nobody sends for the time limit, the group fails and names the lowest other rank.
    pub fn receive_any<T: Element>(&mut self, data: &mut [T]) -> Result<Rank, TransportError> {
        self.receive_any_of(T::TYPE, data.len(), caller_mut(data))
    }

    pub(super) fn receive_any_of(
        &mut self,
        element: ElementType,
        count: usize,
        data: Slot,
    ) -> Result<Rank, TransportError> {
        if let Some(failure) = &self.failure {
            return Err(TransportError::Unusable(failure.clone()));
        }
        if !self.links.receive.iter().any(|half| half.id.channel == SEND_RECV) {
            return Err(TransportError::NotConnected(Collective::SendRecv));
        }
        let found = self.first_sender(element, count);
        let from = found.map_err(|failure| self.broke(failure))?;
        let request = self.message_of(element, from, self.rank(), count, data)?;
        self.operate(request)?;
        Ok(from)
    }

    /// Waits for the first message of any rank.
    fn first_sender(&mut self, element: ElementType, count: usize) -> Result<Rank, Box<Failure>> {
        let size = element.bytes();
        let bytes = first_message(count, self.sizing(size)) * size;
        let start = Instant::now();
        let priority = self.priority;
        let hears = |id: ConnectionId| id.channel == SEND_RECV && id.priority() == priority;
        loop {
            for at in 0..self.links.receive.len() {
                let id = self.links.receive[at].id;
                let half = &mut self.links.receive[at];
                if !hears(id) || !half.turns.is_empty() {
                    continue;
                }
                let tag = Tag {
                    operation: self.received[id.from.index()],
                    count: count as u64,
                    signature: signature(Collective::SendRecv, Some(id.from), element, None),
                    bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                };
                match half.link.poll_message(&tag) {
                    Ok(Some(_)) => return Ok(id.from),
                    // Of another length, or closed: the receive that follows finds the same and names the step.
                    Err(LinkError::Mismatch { .. }) => return Ok(id.from),
                    // A rank that left can still be one of those that do not send.
                    Ok(None) | Err(LinkError::Closed | LinkError::Nic { cause: false, .. }) => {}
                    Err(_) => return Ok(id.from),
                }
            }
            if self.advance()? {
                continue;
            }
            match self.waiter.idle() {
                Pause::Again => continue,
                Pause::Look => {}
                Pause::Sleep => {
                    let any = |half: &Half<dyn Receive>| hears(half.id);
                    let halves = self.links.receive.iter_mut().filter(|half| any(half));
                    let mut moves = false;
                    for half in halves {
                        moves |= half.link.arm();
                    }
                    if !self.arm() && !moves {
                        let halves = self.links.receive.iter().filter(|half| any(half));
                        let messages = halves.map(|half| half.link.interest());
                        let interests = messages.chain(interests(&self.active, &self.links));
                        let limit = self.patience.interval;
                        self.waiter.sleep(self.control.descriptors(), interests, limit);
                    }
                }
            }
            self.check()?;
            self.look()?;
            if start.elapsed() >= self.options.timeout {
                let other = if self.rank() == Rank(0) { Rank(1) } else { Rank(0) };
                return Err(Box::new(Failure::Timeout {
                    culprit: self.control.culprit(other),
                    waited: self.options.timeout,
                    step: None,
                    reported_by: self.rank(),
                }));
            }
        }
    }

    fn message<T: Element>(
        &self,
        from: Rank,
        to: Rank,
        count: usize,
        data: Slot,
    ) -> Result<Request, TransportError> {
        self.message_of(T::TYPE, from, to, count, data)
    }

    pub(super) fn message_of(
        &self,
        element: ElementType,
        from: Rank,
        to: Rank,
        count: usize,
        data: Slot,
    ) -> Result<Request, TransportError> {
        let peer = if from == self.rank() { to } else { from };
        let ranks = self.ranks();
        if peer == self.rank() || peer.index() >= ranks {
            return Err(TransportError::NoPeer { peer, ranks });
        }
        let kernel = Kernel::moving(element);
        let request = Request::new(Collective::SendRecv, count, kernel, data, data);
        Ok(Request { root: Some(from), receiver: Some(to), ..request })
    }
}
