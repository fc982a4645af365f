//! Messages between two ranks of one host, the short way: the caller's thread writes the message where its connection has room and the
//! receiver's reads it there, with nothing in between.
//!
//! Both ends of a connection take this way or the executor's, message by message, as each finds: what lies in the memory is the same, so
//! order, numbers and what is said of a mismatch are too. A message goes this way where nothing else is in flight on its rank, nobody is to
//! be told of it, and one place holds it whole. Whatever else is found here, no room, an error, nothing to receive for a while, changes
//! nothing, and the long way finds it again, with all that belongs to it: waiting for others, their end, time limits.

use std::time::{Duration, Instant};

use topology::{Collective, Rank};

use super::operation::Request;
use super::{Communicator, Path, Stats};
use crate::executor::Links;
use crate::link::{Tag, signature};
use crate::memory::copy;
use crate::schedule::{ConnectionId, SEND_RECV, longest_message};
use crate::waiter::Pause;

/// Looks for a message without a pause between them, as for headers of collectives.
const LOOKS: u32 = 200;

/// Where among the links those of messages are that need nobody to move them, by priority and the other rank.
#[derive(Debug)]
pub(super) struct Ways {
    ranks: usize,
    transmit: Vec<Option<usize>>,
    receive: Vec<Option<usize>>,
}

impl Ways {
    pub(super) fn new(ranks: usize, links: &Links) -> Self {
        let mut this = Self { ranks, transmit: Vec::new(), receive: Vec::new() };
        let goes = |id: ConnectionId, is_memory: bool| id.channel == SEND_RECV && is_memory;
        for (at, half) in links.transmit.iter().enumerate() {
            if goes(half.id, half.link.is_memory()) {
                let place = this.place(half.id.priority(), half.id.to);
                note(&mut this.transmit, place, at);
            }
        }
        for (at, half) in links.receive.iter().enumerate() {
            if goes(half.id, half.link.is_memory()) {
                let place = this.place(half.id.priority(), half.id.from);
                note(&mut this.receive, place, at);
            }
        }
        this
    }

    fn place(&self, priority: u32, other: Rank) -> usize {
        priority as usize * self.ranks + other.index()
    }
}

fn note(list: &mut Vec<Option<usize>>, place: usize, at: usize) {
    if list.len() <= place {
        list.resize(place + 1, None);
    }
    list[place] = Some(at);
}

impl Communicator {
    /// Sends or receives a message the short way, if it can go so; if not, nothing has changed.
    pub(super) fn message_at_once(
        &mut self,
        request: &Request,
        start: Option<Instant>,
    ) -> Option<Stats> {
        if request.collective != Collective::SendRecv {
            return None;
        }
        let done = if request.root == Some(self.rank) {
            self.send_at_once(request)
        } else {
            self.receive_at_once(request)
        };
        done.then(|| Stats {
            elapsed: start.map_or(Duration::ZERO, |start| start.elapsed()),
            bytes: request.input.bytes() as u64,
            path: Path::Plan,
            channels: 1,
            steps: 1,
            sleeps: 0,
            held: Duration::ZERO,
        })
    }

    /// Whether a message may go the short way.
    fn is_short(&self, request: &Request) -> bool {
        request.input.bytes() <= longest_message(self.options.slot_bytes())
            && self.pace.is_none()
            && self.is_unwatched()
    }

    /// Whether it was sent.
    pub(super) fn send_at_once(&mut self, request: &Request) -> bool {
        let Some(to) = request.receiver.filter(|_| self.is_short(request)) else { return false };
        let place = self.ways.place(self.priority, to);
        let Some(Some(at)) = self.ways.transmit.get(place) else { return false };
        let half = &mut self.links.transmit[*at];
        let tag = tag(request, self.sent[to.index()]);
        if !half.turns.is_empty() {
            return false;
        }
        let Ok(Some(slot)) = half.link.poll_slot_of(request.input.bytes()) else { return false };
        copy(slot, request.input);
        if half.link.post(&tag).is_err() {
            return false;
        }
        self.sent[to.index()] += 1;
        true
    }

    /// Whether it was received.
    fn receive_at_once(&mut self, request: &Request) -> bool {
        let Some(from) = request.root.filter(|_| self.is_short(request)) else { return false };
        let place = self.ways.place(self.priority, from);
        let Some(Some(at)) = self.ways.receive.get(place) else { return false };
        let half = &mut self.links.receive[*at];
        let tag = tag(request, self.received[from.index()]);
        if !half.turns.is_empty() {
            return false;
        }
        // Who shares its core with the one that is waited for lets it run first.
        let mut looks = if self.waiter.shares_core() { 1 } else { LOOKS };
        loop {
            match half.link.poll_message(&tag) {
                Ok(Some(slot)) => {
                    copy(request.output, slot);
                    half.link.release();
                    self.received[from.index()] += 1;
                    self.waiter.moved();
                    return true;
                }
                Ok(None) => {}
                Err(_) => return false,
            }
            looks = looks.saturating_sub(1);
            if looks == 0 && self.waiter.idle() != Pause::Again {
                return false;
            }
        }
    }
}

/// What both ends know a message by.
fn tag(request: &Request, operation: u64) -> Tag {
    let element = request.kernel.element;
    Tag {
        operation,
        count: request.count as u64,
        signature: signature(Collective::SendRecv, request.root, element, None),
        bytes: u32::try_from(request.input.bytes()).unwrap_or(u32::MAX),
    }
}
