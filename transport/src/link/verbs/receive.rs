//! The receiving half.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ffi::{To, Write};
use super::line::{Done, Line, place, write_id};
use super::places::{self, LETTER, MOST, Target};
use super::registry::{Piece, RECEIVED};
use crate::link::header::{HEADER, Identity, decode};
use crate::link::{Interest, LinkError, Receive, Tag};
use crate::memory::Slot;

/// Longest time that a receiver which goes waits for the acknowledgement of what it gave back, or for a queue pair to be drained; a
/// living NIC answers within microseconds.
pub(crate) const FAREWELL: Duration = Duration::from_millis(200);

/// In what goes along with a message: it landed where it was offered a place, and its header alone is in the slot.
const LANDED: u32 = 1 << 31;

/// What goes along with a message: the lower half of its number but for a bit, which says where its data is.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is what goes along")]
pub(super) const fn number(message: u64, landed: bool) -> u32 {
    message as u32 & !LANDED | if landed { LANDED } else { 0 }
}

/// A place offered to a message.
#[derive(Debug)]
struct Offered {
    message: u64,
    place: Slot,
    key: u32,
    /// Registered as long as the message may come.
    _piece: Arc<Piece>,
}

impl Offered {
    fn target(&self) -> Target {
        Target {
            message: self.message,
            address: self.place.address().as_ptr().expose_provenance() as u64,
            // No longer than a message.
            bytes: u32::try_from(self.place.bytes()).unwrap_or(u32::MAX),
            key: self.key,
        }
    }
}

/// Receiving half.
#[derive(Debug)]
pub(crate) struct VerbsReceive {
    line: Line,
    identity: Identity,
    slots: usize,
    slot_bytes: usize,
    /// Messages that came by each pair.
    arrived: Vec<u64>,
    /// By slot: the message that came last is where it was offered a place.
    landed: Vec<bool>,
    consumed: u64,
    /// Places of messages that are not released, in their order; how many of them, at the end, the sender was not told of.
    offered: VecDeque<Offered>,
    untold: usize,
    /// How many messages consumed the sender was told of.
    told: u64,
    /// Credits and letters sent, how many of them the last signalled one covers, and how many are complete.
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
            landed: vec![false; slots],
            consumed,
            offered: VecDeque::new(),
            untold: 0,
            told,
            credits,
            signalled,
            completed,
        }
    }

    fn poll(&mut self) -> bool {
        let Self { line, arrived, landed, completed, slots, .. } = self;
        let pairs = arrived.len() as u64;
        line.poll(|line, done| match done {
            Done::Written { upto, .. } => *completed = upto.max(*completed),
            Done::Arrived { receive, immediate, .. } => {
                let Some(arrived) = arrived.get_mut(receive.pair) else { return };
                let message = *arrived * pairs + receive.pair as u64;
                let expected = number(message, immediate & LANDED != 0);
                if expected != immediate {
                    line.corrupt("message number", expected.into(), immediate);
                }
                landed[slot(message, *slots)] = immediate & LANDED != 0;
                *arrived += 1;
                line.receive_again(receive, false);
            }
        })
    }

    fn has_arrived(&self) -> bool {
        let pairs = self.arrived.len() as u64;
        let pair = usize::try_from(self.consumed % pairs).unwrap_or(0);
        self.arrived[pair] > self.consumed / pairs
    }

    /// Tells the sender what was consumed and which places are offered, where there is room for that among what is not yet acknowledged.
    fn tell(&mut self) {
        let room = 2 * self.slots as u64 + 2;
        while (self.told != self.consumed || self.untold > 0)
            && self.line.failed.is_none()
            && self.credits - self.completed < room
        {
            // The places before the credit: with it, the sender goes on.
            let places = self.untold.min(MOST);
            self.untold -= places;
            if self.untold == 0 {
                self.told = self.consumed;
            }
            self.credits += 1;
            let every = self.slots as u64;
            // The last one, as far as is known, too: who leaves has heard then that it came, and need not ask an end that has left.
            let signalled = self.completed + 1 == self.credits
                || self.credits.is_multiple_of(every)
                || !self.has_arrived();
            let letter = (places > 0).then(|| self.letter(places));
            self.credit(signalled, letter);
        }
    }

    /// Writes down the places that are told of next; where, and how many bytes.
    fn letter(&mut self, places: usize) -> (usize, u32) {
        let first = self.offered.len() - self.untold - places;
        let targets = self.offered.range(first..first + places).map(Offered::target);
        // Nothing that a NIC may still have to read is written over: fewer are under way than there is memory for.
        let at = usize::try_from(self.credits % places::receives(self.slots) as u64).unwrap_or(0);
        let start = self.line.letter(at);
        let bytes =
            places::write(targets, &mut self.line.region.bytes_mut()[start..start + LETTER]);
        (start, u32::try_from(bytes).unwrap_or(0))
    }

    /// The number of messages consumed that the sender may know of, by the first pair, with a letter or without.
    fn credit(&mut self, signalled: bool, letter: Option<(usize, u32)>) {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is what goes along")]
        let immediate = Some(self.told as u32);
        let most_inline = self.line.pairs[0].most_inline;
        let inline = letter.is_some_and(|(_, bytes)| bytes as usize <= most_inline);
        let to = if letter.is_some() { To::Receive } else { self.remote() };
        self.write(Write { inline, immediate, from: letter, to, ..self.nothing(signalled) });
    }

    const fn remote(&self) -> To {
        let (address, key) = self.line.remote;
        To::Memory { address, key }
    }

    /// An empty write, complete with all credits.
    const fn nothing(&self, signalled: bool) -> Write {
        Write {
            id: write_id(0, self.credits),
            signalled,
            inline: false,
            immediate: None,
            from: None,
            lent: None,
            to: self.remote(),
        }
    }

    fn write(&mut self, write: Write) {
        let result = self.line.pairs[0].post_write(&self.line.region, &write);
        self.line.posted(result);
        if write.signalled {
            self.signalled = self.credits;
        }
    }

    /// Where a message is: where it was offered a place, or in its slot.
    fn data(&mut self, bytes: usize) -> Result<Slot, LinkError> {
        if !self.landed[slot(self.consumed, self.slots)] {
            let start = place(self.consumed, self.slots, self.slot_bytes);
            return Ok(self.line.region.slot(start + HEADER, bytes));
        }
        let found = self.offered.front().filter(|place| place.message == self.consumed);
        match found.map(|offered| offered.place) {
            Some(place) if place.bytes() == bytes => Ok(place),
            other => {
                let (expected, found) = (bytes as u64, other.map_or(0, Slot::bytes) as u64);
                Err(LinkError::Corrupt { what: "length of a message's place", expected, found })
            }
        }
    }
}

/// The slot of a message.
fn slot(message: u64, slots: usize) -> usize {
    // The remainder is below `slots`, a usize.
    usize::try_from(message % slots as u64).unwrap_or(0)
}

impl Receive for VerbsReceive {
    fn poll_message(&mut self, expected: &Tag) -> Result<Option<Slot>, LinkError> {
        if self.told != self.consumed {
            self.poll();
            self.tell();
        }
        if !self.has_arrived() {
            self.poll();
            self.tell();
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
        self.data(expected.bytes as usize).map(Some)
    }

    fn release(&mut self) {
        RECEIVED.add(self.landed[slot(self.consumed, self.slots)]);
        self.consumed += 1;
        while self.offered.pop_front_if(|place| place.message < self.consumed).is_some() {}
        self.untold = self.untold.min(self.offered.len());
        self.tell();
    }

    fn holds(&self, buffer: Slot) -> bool {
        self.line.holds(buffer)
    }

    fn register(&mut self, memory: Slot) -> Result<(), String> {
        self.line.register(memory)
    }

    fn window(&self) -> usize {
        self.slots
    }

    fn offer(&mut self, ahead: usize, place: Slot) {
        let message = self.consumed + ahead as u64;
        if let Some((key, piece)) = self.line.land(place) {
            self.offered.push_back(Offered { message, place, key, _piece: piece });
            self.untold += 1;
        }
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

    fn close(&mut self) {
        self.line.close(self.slots * self.arrived.len(), FAREWELL);
        self.offered.clear();
        self.untold = 0;
    }

    fn leave(&mut self) -> bool {
        self.tell();
        if self.signalled < self.credits && self.line.failed.is_none() {
            self.write(self.nothing(true));
        }
        self.poll();
        self.completed == self.credits || self.line.failed.is_some()
    }

    fn forget(&mut self) {
        self.line.fail("the peer has left".to_owned(), false);
    }
}

impl Drop for VerbsReceive {
    /// The sender has to hear of what was consumed, else it would wait for the acknowledgement of a NIC that has forgotten it.
    fn drop(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        while !self.leave() && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_beside_the_number_says_where_a_message_is() {
        assert_eq!(number(5, false), 5);
        assert_eq!(number(5, true), 5 | LANDED);
        // Numbers go on beyond what goes along.
        assert_eq!(number((7 << 31) + 3, false), 3);
        assert_eq!(number(u64::MAX, false), !LANDED);
    }
}
