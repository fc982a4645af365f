//! The receiving half.

use std::time::{Duration, Instant};

use super::ffi::Write;
use super::line::{Done, Line, place, write_id};
use crate::link::header::{HEADER, Identity, decode};
use crate::link::{Interest, LinkError, Receive, Tag};
use crate::memory::Slot;

/// Longest time that a receiver which goes waits for the acknowledgement of what it gave back; a living peer's NIC answers within
/// microseconds.
const FAREWELL: Duration = Duration::from_millis(200);

/// Receiving half.
#[derive(Debug)]
pub(crate) struct VerbsReceive {
    line: Line,
    identity: Identity,
    slots: usize,
    slot_bytes: usize,
    /// Messages that came by each pair.
    arrived: Vec<u64>,
    consumed: u64,
    /// How many of them the sender was told of.
    told: u64,
    /// Credits sent, how many of them the last signalled one covers, and how many are complete.
    credits: u64,
    signalled: u64,
    completed: u64,
}

impl VerbsReceive {
    /// By a line that is connected.
    pub(super) fn new(line: Line, identity: Identity, slots: usize, slot_bytes: usize) -> Self {
        let arrived = vec![0; line.pairs.len()];
        let (consumed, told, credits, signalled, completed) = (0, 0, 0, 0, 0);
        Self {
            line,
            identity,
            slots,
            slot_bytes,
            arrived,
            consumed,
            told,
            credits,
            signalled,
            completed,
        }
    }

    fn poll(&mut self) -> bool {
        let Self { line, arrived, completed, .. } = self;
        let pairs = arrived.len() as u64;
        line.poll(|line, done| match done {
            Done::Written { upto, .. } => *completed = upto.max(*completed),
            Done::Arrived { pair, immediate } => {
                let Some(arrived) = arrived.get_mut(pair) else { return };
                let number = *arrived * pairs + pair as u64;
                #[expect(clippy::cast_possible_truncation, reason = "the lower half goes along")]
                if number as u32 != immediate {
                    line.corrupt("message number", number, immediate);
                }
                *arrived += 1;
                line.receive_again(pair);
            }
        })
    }

    fn has_arrived(&self) -> bool {
        let pairs = self.arrived.len() as u64;
        let pair = usize::try_from(self.consumed % pairs).unwrap_or(0);
        self.arrived[pair] > self.consumed / pairs
    }

    /// Tells the sender what was consumed, where there is room for that among what is not yet acknowledged.
    fn tell(&mut self) {
        if self.told == self.consumed || self.line.failed.is_some() {
            return;
        }
        let room = 2 * self.slots as u64 + 2;
        if self.credits - self.completed >= room {
            return;
        }
        self.credits += 1;
        let every = self.slots as u64;
        // The last one, as far as is known, too: who leaves has heard then that it came, and need not ask an end that has left.
        let signalled = self.completed + 1 == self.credits
            || self.credits.is_multiple_of(every)
            || !self.has_arrived();
        self.empty(signalled, true);
        self.told = self.consumed;
    }

    /// An empty write by the first pair, with or without the number of messages consumed.
    fn empty(&mut self, signalled: bool, credit: bool) {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is what goes along")]
        let consumed = self.consumed as u32;
        let (to, rkey) = self.line.remote;
        let immediate = credit.then_some(consumed);
        let id = write_id(0, self.credits);
        let write =
            Write { id, signalled, inline: false, immediate, from: None, lent: None, to, rkey };
        let result = self.line.pairs[0].post_write(&self.line.region, &write);
        self.line.posted(result);
        if signalled {
            self.signalled = self.credits;
        }
    }
}

impl Receive for VerbsReceive {
    fn poll_message(&mut self, expected: &Tag) -> Result<Option<Slot>, LinkError> {
        if self.told != self.consumed {
            self.poll();
            self.tell();
        }
        if !self.has_arrived() {
            self.poll();
            if !self.has_arrived() {
                self.line.check()?;
                return Ok(None);
            }
        }
        let start = place(self.consumed, self.slots, self.slot_bytes);
        let header = self.line.region.bytes()[start..].first_chunk().expect("a slot has a header");
        let theirs = decode(&self.identity, self.consumed, header)?;
        if theirs != *expected {
            return Err(LinkError::Mismatch { ours: *expected, theirs });
        }
        Ok(Some(self.line.region.slot(start + HEADER, expected.bytes as usize)))
    }

    fn release(&mut self) {
        self.consumed += 1;
        self.tell();
    }

    fn interest(&self) -> Interest<'_> {
        self.line.interest()
    }

    fn arm(&mut self) -> bool {
        let failed = self.line.failed.is_some();
        self.line.arm();
        // A failure of before has been seen.
        self.poll() || self.line.failed.is_some() != failed
    }
}

impl Drop for VerbsReceive {
    /// The sender has to hear of what was consumed, else it would wait for the acknowledgement of a NIC that has forgotten it.
    fn drop(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        self.tell();
        if self.signalled < self.credits {
            self.empty(true, false);
        }
        while self.completed < self.credits
            && self.line.failed.is_none()
            && Instant::now() < deadline
        {
            if !self.poll() {
                std::thread::yield_now();
            }
        }
    }
}
