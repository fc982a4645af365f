//! Messages between hosts: through pinned memory of both, and the host's links between them (sockets or RDMA, as the host's group has
//! them). GPUDirect RDMA is not used: the NIC reads and writes the host's memory alone.
//!
//! ```text
//!   device ── stream ──▶ slot, posted ── this ──▶ host's link ── this ──▶ slot, posted ── stream ──▶ device
//! ```
//!
//! Between two ranks messages of all connections go in one order, that in which the sender enqueues them: both ends know it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use topology::Rank;
use transport::{Communicator as Group, Pending, TransportError};

use crate::segment::{Segment, Word};
use crate::wire::in_word;

/// Messages to one rank that are on their way at once.
const AHEAD: usize = 8;

/// One message that a stream posts or waits for.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) peer: Rank,
    pub(crate) outward: bool,
    /// Of those that come in: when it was sent, among those of its operation from the peer.
    pub(crate) turn: u32,
    pub(crate) posted: Word,
    pub(crate) consumed: Word,
    /// Its number on its connection.
    pub(crate) number: u64,
    /// Of its slot, among the slots of the segment.
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

/// A message that the host's links bring, and the slot it is for.
type Awaited = (Message, Pending<Vec<u8>>);

#[derive(Debug)]
pub(crate) struct Network {
    segment: Arc<Segment>,
    slots: u64,
    to: BTreeMap<Rank, VecDeque<Message>>,
    from: BTreeMap<Rank, VecDeque<Message>>,
    sent: BTreeMap<Rank, VecDeque<Pending<Vec<u8>>>>,
    awaited: BTreeMap<Rank, VecDeque<Awaited>>,
}

impl Network {
    pub(crate) fn new(segment: Arc<Segment>, slots: usize) -> Self {
        Self {
            segment,
            slots: slots as u64,
            to: BTreeMap::new(),
            from: BTreeMap::new(),
            sent: BTreeMap::new(),
            awaited: BTreeMap::new(),
        }
    }

    /// Those of one operation, as they were enqueued.
    pub(crate) fn expect(&mut self, mut messages: Vec<Message>) {
        messages.sort_by_key(|message| message.turn);
        for message in messages {
            let queues = if message.outward { &mut self.to } else { &mut self.from };
            queues.entry(message.peer).or_default().push_back(message);
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        let any =
            |queues: &BTreeMap<Rank, VecDeque<Message>>| queues.values().any(|q| !q.is_empty());
        any(&self.to)
            || any(&self.from)
            || self.sent.values().any(|queue| !queue.is_empty())
            || self.awaited.values().any(|queue| !queue.is_empty())
    }

    /// Moves what can move.
    pub(crate) fn progress(&mut self, group: &mut Group) -> Result<(), TransportError> {
        for (peer, queue) in &mut self.to {
            let sent = self.sent.entry(*peer).or_default();
            while sent.len() < AHEAD
                && queue.front().is_some_and(|m| m.posted.is_at_least(in_word(m.number + 1)))
                && let Some(message) = queue.pop_front()
            {
                let data = self.segment.taken(message.start, message.bytes);
                message.consumed.set(in_word(message.number + 1));
                sent.push_back(group.start_send(data, *peer)?);
            }
        }
        for (peer, queue) in &mut self.from {
            let awaited = self.awaited.entry(*peer).or_default();
            let free = |m: &Message| m.consumed.is_at_least(in_word(m.number + 1 - self.slots));
            while awaited.len() < AHEAD
                && queue.front().is_some_and(free)
                && let Some(message) = queue.pop_front()
            {
                let pending = group.start_receive(vec![0_u8; message.bytes], *peer)?;
                awaited.push_back((message, pending));
            }
        }
        for sent in self.sent.values_mut() {
            while let Some(pending) = sent.pop_front() {
                if !group.test(&pending)? {
                    sent.push_front(pending);
                    break;
                }
                group.wait(pending)?;
            }
        }
        for awaited in self.awaited.values_mut() {
            while let Some((message, pending)) = awaited.pop_front() {
                if !group.test(&pending)? {
                    awaited.push_front((message, pending));
                    break;
                }
                let (data, _) = group.wait(pending)?;
                self.segment.fill(message.start, &data);
                message.posted.set(in_word(message.number + 1));
            }
        }
        Ok(())
    }
}
