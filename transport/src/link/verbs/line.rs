//! What both halves of a connection have: queue pairs, memory, completions, and what went wrong.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::events::{Place, Trouble, Watch};
use super::ffi::{Completion, Lent, Pair, Queue, Region};
use super::gid::Gid;
use super::nic::Nic;
use super::places::LETTER;
use super::registry::Piece;
use super::status;
use crate::link::header::HEADER;
use crate::link::{Interest, LinkError};
use crate::memory::Slot;

/// Completions taken at once.
const BATCH: usize = 16;

/// What a piece of work is, as its completion tells it: receives have the uppermost bit; then the pair, of writes how many of that
/// pair's are complete with it, and of receives which of the pair's it is.
const RECEIVE: u64 = 1 << 63;
const PAIR_SHIFT: u32 = 48;
const LOWER: u64 = (1 << PAIR_SHIFT) - 1;

const fn receive_id(pair: usize, number: usize) -> u64 {
    RECEIVE | (pair as u64) << PAIR_SHIFT | number as u64 & LOWER
}

pub(super) const fn write_id(pair: usize, upto: u64) -> u64 {
    (pair as u64) << PAIR_SHIFT | upto & LOWER
}

/// What was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// Writes of a pair, up to this one.
    Written { pair: usize, upto: u64 },
    /// A message that came by a pair, and what it brought.
    Arrived { receive: Posted, immediate: u32, letter: Option<usize> },
}

/// A receive: which pair's, and which of those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Posted {
    pub(super) pair: usize,
    number: usize,
}

impl Done {
    fn of(completion: &Completion) -> Self {
        let id = completion.wr_id;
        let pair = usize::try_from((id & !RECEIVE) >> PAIR_SHIFT).unwrap_or(0);
        if id & RECEIVE == 0 {
            Self::Written { pair, upto: id & LOWER }
        } else {
            let receive = Posted { pair, number: usize::try_from(id & LOWER).unwrap_or(0) };
            let (immediate, letter) = (completion.immediate(), completion.received());
            Self::Arrived { receive, immediate, letter }
        }
    }
}

/// What both halves have.
#[derive(Debug)]
pub(super) struct Line {
    // In the order in which they are destroyed.
    pub(super) pairs: Vec<Pair>,
    pub(super) region: Region,
    /// Where letters begin in it: those that come, or those that go.
    pub(super) letters: usize,
    pub(super) queue: Arc<Queue>,
    /// Both ends in words.
    pub(super) words: String,
    /// The peer's memory: address and key.
    pub(super) remote: (u64, u32),
    /// Why it is of no further use, and whether that is the cause, as for [`LinkError::Nic`].
    pub(super) failed: Option<(String, bool)>,
    nic: Arc<Nic>,
    /// The entry of the NIC's table by which it speaks, once connected.
    pub(super) gid: Option<Gid>,
    /// How long nothing may move while the NIC is suspected, and since when nothing does.
    grace: Duration,
    stalled: Option<Instant>,
}

impl Line {
    pub(super) fn new(
        pairs: Vec<Pair>,
        (region, letters): (Region, usize),
        queue: Arc<Queue>,
        nic: Arc<Nic>,
        grace: Duration,
    ) -> Self {
        let (words, remote, failed) = (String::new(), (0, 0), None);
        let (gid, stalled) = (None, None);
        Self { pairs, region, letters, queue, words, remote, failed, nic, gid, grace, stalled }
    }

    /// Asks something about this connection of what the device says.
    fn ask<T>(&self, question: impl FnOnce(&Watch, &Place<'_>) -> T) -> T {
        let pairs: Vec<u32> = self.pairs.iter().map(|pair| pair.number).collect();
        let (port, gid, queue) = (self.nic.port, self.gid, self.queue.address());
        question(&self.nic.watch, &Place { port, gid, pairs: &pairs, queue })
    }

    /// Listens to what the device says. A NIC that is only suspected ends the connection where nothing has moved for a while.
    fn listen(&mut self) {
        match self.ask(Watch::against) {
            None => self.stalled = None,
            Some(Trouble::Failed(why, cause)) => self.fail(why, cause),
            Some(Trouble::Suspected(why)) => {
                let since = *self.stalled.get_or_insert_with(Instant::now);
                if since.elapsed() >= self.grace {
                    self.fail(format!("{why}, and nothing moves"), true);
                }
            }
        }
    }

    /// Whether data lies in a buffer that may be lent.
    pub(super) fn holds(&self, data: Slot) -> bool {
        self.nic.registry.holds(data)
    }

    /// Data as the NIC reads it where it lies.
    pub(super) fn lend(&self, data: Slot) -> Option<(Lent, Arc<Piece>)> {
        self.nic.registry.lend(data, &self.nic.domain)
    }

    /// Has the NIC read and write memory of a device.
    pub(super) fn register(&self, memory: Slot) -> Result<(), String> {
        self.nic.registry.register(memory, &self.nic.domain)
    }

    /// Where the NIC may have a peer write data, in a buffer that may be lent.
    pub(super) fn land(&self, data: Slot) -> Option<(u32, Arc<Piece>)> {
        self.nic.registry.land(data, &self.nic.domain)
    }

    /// What a rank that waits for it sleeps on: its completions, and what the device says.
    pub(super) fn interest(&self) -> Interest<'_> {
        Interest::Either(self.queue.descriptor(), self.nic.watch.descriptor())
    }

    /// Takes what is complete; whether there was anything.
    pub(super) fn poll(&mut self, mut each: impl FnMut(&mut Self, Done)) -> bool {
        let mut any = false;
        loop {
            let mut batch = [Completion::default(); BATCH];
            let found = match self.queue.poll(&mut batch) {
                Ok(found) => found,
                Err(error) => {
                    self.fail(error.to_string(), true);
                    return true;
                }
            };
            for completion in &batch[..found] {
                any = true;
                self.stalled = None;
                if completion.status == 0 {
                    each(self, Done::of(completion));
                } else {
                    let Completion { status, qp_num, vendor_err, .. } = completion;
                    let words = status::words(*status);
                    let words =
                        format!("{words}, queue pair {qp_num}, vendor error {vendor_err:#x}");
                    self.fail(words, status::is_cause(*status));
                }
            }
            if found < BATCH {
                return any;
            }
        }
    }

    /// Keeps what came first; what may be a consequence gives way to a cause.
    pub(super) fn fail(&mut self, why: String, cause: bool) {
        if self.failed.as_ref().is_none_or(|(_, known)| cause && !*known) {
            self.failed = Some((why, cause));
        }
    }

    pub(super) fn corrupt(&mut self, what: &str, expected: u64, found: u32) {
        self.fail(format!("{what} is {found:#x}, not {expected:#x}"), true);
    }

    pub(super) fn posted(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.fail(format!("the NIC takes no more work: {error}"), false);
        }
    }

    pub(super) fn check(&self) -> Result<(), LinkError> {
        match &self.failed {
            None => Ok(()),
            Some((why, cause)) => {
                let mut words = format!("{}: {why}", self.words);
                // What the device says may explain it, and then this end is the one that knows: the other hears nothing but silence.
                let (also, explains) = match self.ask(Watch::explain) {
                    None => (None, false),
                    Some(Trouble::Suspected(also)) => (Some(also), true),
                    Some(Trouble::Failed(also, cause)) => (Some(also), cause),
                };
                if let Some(also) = also
                    && !words.contains(&also)
                {
                    words = format!("{words}; {also}");
                }
                Err(LinkError::Nic { words, cause: *cause || explains })
            }
        }
    }

    /// Posts the first receives of a pair: before the peer can send. Those of an end that sends have memory for a letter each.
    pub(super) fn receive_first(&self, pair: usize, count: usize, letters: bool) -> io::Result<()> {
        (0..count).try_for_each(|number| self.receive(Posted { pair, number }, letters))
    }

    fn receive(&self, receive: Posted, letters: bool) -> io::Result<()> {
        let Posted { pair, number } = receive;
        let Some(at) = self.pairs.get(pair) else {
            return Err(io::Error::other("a completion of no queue pair"));
        };
        let into = letters.then(|| (&self.region, self.letter(number), LETTER));
        at.post_receive(receive_id(pair, number), into)
    }

    /// Where a letter begins.
    pub(super) const fn letter(&self, number: usize) -> usize {
        self.letters + number * LETTER
    }

    /// What came into the memory of a receive.
    pub(super) fn read(&self, receive: Posted, bytes: usize) -> Option<&[u8]> {
        let start = self.letter(receive.number);
        self.region.bytes().get(start..start + bytes.min(LETTER))
    }

    pub(super) fn receive_again(&mut self, receive: Posted, letters: bool) {
        let result = self.receive(receive, letters);
        self.posted(result);
    }

    /// Has the NIC take no more of what the peer sends, and waits until all that it had taken is where it belongs: each receive that
    /// is posted, `receives` of them, ends after what the NIC has written before.
    pub(super) fn close(&mut self, receives: usize, limit: Duration) {
        for pair in &self.pairs {
            if let Err(error) = pair.fail() {
                tracing::debug!(target: "topod::net", %error, "cannot fail a queue pair");
            }
        }
        self.fail("the group has ended".to_owned(), false);
        let (deadline, mut left) = (Instant::now() + limit, receives);
        while left > 0 && Instant::now() < deadline {
            let mut batch = [Completion::default(); BATCH];
            let Ok(found) = self.queue.poll(&mut batch) else { return };
            let ended = batch[..found].iter().filter(|completion| completion.wr_id & RECEIVE != 0);
            left = left.saturating_sub(ended.count());
            if found == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Asks for an event at the next completion, and hears what the device has said.
    pub(super) fn arm(&mut self) {
        self.listen();
        if let Err(error) = self.queue.arm() {
            self.fail(format!("the completion queue gives no events: {error}"), true);
        }
    }
}

/// Where a message's frame begins in either end's memory.
pub(super) fn place(message: u64, slots: usize, slot_bytes: usize) -> usize {
    // The remainder is below `slots`, a usize.
    let slot = usize::try_from(message % slots as u64).unwrap_or(0);
    slot * (HEADER + slot_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_known_by_its_number() {
        let done = |wr_id| {
            let mut completion = Completion::default();
            completion.wr_id = wr_id;
            Done::of(&completion)
        };
        assert_eq!(done(write_id(127, 5)), Done::Written { pair: 127, upto: 5 });
        for (pair, number) in [(127, 0), (0, 0), (5, 77)] {
            let receive = Posted { pair, number };
            let arrived = Done::Arrived { receive, immediate: 0, letter: None };
            assert_eq!(done(receive_id(pair, number)), arrived);
        }
    }

    #[test]
    fn messages_lie_one_after_another() {
        assert_eq!((place(0, 3, 128), place(2, 3, 128), place(3, 3, 128)), (0, 384, 0));
    }
}
