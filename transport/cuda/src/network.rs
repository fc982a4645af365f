//! Messages between hosts: through pinned memory of both, and the host's links between them (sockets or RDMA, as the host's group has
//! them); or from and to slots in device memory, which NICs read and write (`gpu_direct`). Each end has its own way.
//!
//! ```text
//!   device ── stream ──▶ slot, posted ── this ──▶ host's link ── this ──▶ slot, posted ── stream ──▶ device
//! ```
//!
//! Between two ranks messages of all connections go in one order, that in which the sender enqueues them: both ends know it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use topology::Rank;
use transport::{Carried, Communicator as Group, Failure, Pending, TransportError};

use crate::gpu_direct::Slots;
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
    /// Of its slot, among the slots for other hosts.
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

/// A message that the host's links carry.
type Carrying = (Message, Pending<Carried>);

#[derive(Debug)]
pub(crate) struct Network {
    segment: Arc<Segment>,
    /// Where slots are in device memory.
    direct: Option<Slots>,
    /// Ranks whose slots are in device memory: they take messages nowhere else.
    placed: BTreeSet<Rank>,
    slots: u64,
    to: BTreeMap<Rank, VecDeque<Message>>,
    from: BTreeMap<Rank, VecDeque<Message>>,
    sent: BTreeMap<Rank, VecDeque<Carrying>>,
    awaited: BTreeMap<Rank, VecDeque<Carrying>>,
}

impl Network {
    pub(crate) fn new(
        segment: Arc<Segment>,
        direct: Option<Slots>,
        placed: BTreeSet<Rank>,
        slots: usize,
    ) -> Self {
        Self {
            segment,
            direct,
            placed,
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
        self.begin(group)?;
        for sent in self.sent.values_mut() {
            while let Some((message, pending)) = sent.pop_front() {
                if !group.test(&pending)? {
                    sent.push_front((message, pending));
                    break;
                }
                let (data, _) = group.wait(pending)?;
                if let Carried::Device(_) = data {
                    message.consumed.set(in_word(message.number + 1));
                }
            }
        }
        let mut landed = Vec::new();
        for awaited in self.awaited.values_mut() {
            while let Some((message, pending)) = awaited.pop_front() {
                if !group.test(&pending)? {
                    awaited.push_front((message, pending));
                    break;
                }
                let (data, _) = group.wait(pending)?;
                match data {
                    Carried::Host(data) => {
                        self.segment.fill(message.start, &data);
                        message.posted.set(in_word(message.number + 1));
                    }
                    _ => landed.push(message),
                }
            }
        }
        if let Some(direct) = self.direct.as_ref().filter(|_| !landed.is_empty()) {
            // Before any stream is told of them.
            direct.flush().map_err(|error| {
                let (reported_by, step) = (group.rank(), None);
                let (culprit, cause) =
                    (group.culprit(reported_by), format!("its device failed: {error}"));
                group.give_up(Failure::PeerLost { culprit, cause, step, reported_by })
            })?;
        }
        for message in landed {
            message.posted.set(in_word(message.number + 1));
        }
        Ok(())
    }

    /// Gives the host's links what streams have posted, and slots that they have emptied.
    fn begin(&mut self, group: &mut Group) -> Result<(), TransportError> {
        let direct = self.direct.as_ref().map(|direct| &direct.memory);
        for (peer, queue) in &mut self.to {
            let sent = self.sent.entry(*peer).or_default();
            while sent.len() < AHEAD
                && queue.front().is_some_and(|m| m.posted.is_at_least(in_word(m.number + 1)))
                && let Some(message) = queue.pop_front()
            {
                let data = match direct {
                    // The slot is the NIC's until the message is sent.
                    Some(memory) => Carried::Device(memory.part(message.start, message.bytes)),
                    None => {
                        let data = self.segment.taken(message.start, message.bytes);
                        message.consumed.set(in_word(message.number + 1));
                        Carried::Host(data)
                    }
                };
                let placed = self.placed.contains(peer);
                sent.push_back((message, group.start_send_carried(data, *peer, placed)?));
            }
        }
        for (peer, queue) in &mut self.from {
            let awaited = self.awaited.entry(*peer).or_default();
            let free = |m: &Message| m.consumed.is_at_least(in_word(m.number + 1 - self.slots));
            while awaited.len() < AHEAD
                && queue.front().is_some_and(free)
                && let Some(message) = queue.pop_front()
            {
                let data = match direct {
                    Some(memory) => Carried::Device(memory.part(message.start, message.bytes)),
                    None => Carried::Host(vec![0; message.bytes]),
                };
                awaited.push_back((message, group.start_receive_carried(data, *peer)?));
            }
        }
        Ok(())
    }
}
