//! Shared memory between two processes of a host.
//!
//! Each pair of ranks shares one anonymous file (memfd), passed over their Unix socket: it has no name, so nothing is left
//! behind however a process ends, and it does not count against the size of /dev/shm. Pages cost memory once touched.
//!
//! ```text
//!   page 0      a sleeping flag for each of the two
//!   connection  head                        messages consumed so far, written by the receiver
//!               header 0, 1, ...            ready = message number + 1, written last by the sender │ tag │ data of up to 88 bytes
//!               ring                        longer data, one message after the other
//! ```
//!
//! Message `i` of a connection has header `i mod slots`. The sender may write it once `i - head < slots`; the receiver may read it once
//! `ready = i + 1`. The ring has room for as many messages of any length, so nobody says how far it is used. It is longer than
//! second-level caches: a line that the other end has read is still in its cache, and to write it takes several times longer than to write
//! one that has left it, which small places that are used again and again never do. Before a rank sleeps it raises its flag and polls once
//! more; a peer that then publishes anything sees the flag and rings the sleeper's doorbell, an eventfd.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence, fence};

use super::{Interest, LinkError, Receive, Tag, Transmit};
use crate::memory::Slot;
use crate::protocol;
use crate::streaming::{Streaming, Writing};

mod segment;

pub(crate) use segment::{Layout, Place, Segment, Side};

/// Wakes one sleeping rank.
#[derive(Debug)]
pub(crate) struct Doorbell(OwnedFd);

impl Doorbell {
    pub(crate) fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.0
    }

    fn ring(&self) {
        // Fails only when the counter is full, that is when it has been rung already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Forgets earlier rings.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl From<OwnedFd> for Doorbell {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

/// What both halves of a pair know: the memory and how to wake the other side.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) segment: Segment,
    pub(crate) side: Side,
    peer_doorbell: Doorbell,
    /// As in the group's memory: whether those who fall asleep make the others' stores visible.
    light: AtomicBool,
}

impl Pair {
    pub(crate) fn new(segment: Segment, side: Side, peer_doorbell: Doorbell) -> Self {
        Self { segment, side, peer_doorbell, light: AtomicBool::new(false) }
    }

    /// From now on publishing needs no fence of its own. Only where whoever calls [`Pair::arm`] then has every core of the group pass a
    /// fence, as [`Arena::arm`](crate::arena::Arena::arm) does.
    pub(crate) fn lighten(&self) {
        self.light.store(true, Ordering::Relaxed);
    }

    /// Says that this rank is about to sleep. It must poll all its links once more before it does.
    pub(crate) fn arm(&self) {
        let flag = self.segment.sleeping(self.side);
        protocol::arm(flag, None::<&AtomicU32>, || fence(Ordering::SeqCst));
    }

    /// This rank is awake again.
    pub(crate) fn disarm(&self) {
        protocol::disarm(self.segment.sleeping(self.side), None::<&AtomicU32>);
    }

    /// After something was published: wakes the peer where it sleeps.
    fn wake(&self) {
        // Pairs with the fence in `arm`: either the peer's last poll sees what was published, or its flag is seen here. Where the
        // sleeper sees to it, as in the group's memory, this core need not wait until the other has given up the line.
        if self.light.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        if protocol::claim(self.segment.sleeping(self.side.other())) {
            self.peer_doorbell.ring();
        }
    }
}

/// Sending half.
#[derive(Debug)]
pub(crate) struct ShmTransmit {
    pair: Arc<Pair>,
    connection: usize,
    /// Of the message that is posted next.
    next: Place,
    /// Last value of `head` seen; read again only when the slots seem full.
    consumed: u64,
    streaming: Streaming,
    writing: Option<Writing>,
}

impl ShmTransmit {
    /// `connection` is its place in the pair's layout.
    pub(crate) fn new(pair: Arc<Pair>, connection: usize) -> Self {
        let (streaming, writing) = (Streaming::default(), None);
        Self { pair, connection, next: Place::default(), consumed: 0, streaming, writing }
    }
}

impl Transmit for ShmTransmit {
    /// Room for the longest message.
    fn poll_slot(&mut self) -> Result<Option<Slot>, LinkError> {
        self.poll_slot_of(self.pair.segment.layout().slot_bytes)
    }

    /// What is done between this and [`Transmit::post`] is timed as writing.
    fn poll_slot_of(&mut self, bytes: usize) -> Result<Option<Slot>, LinkError> {
        let segment = &self.pair.segment;
        let (slots, posted) = (segment.layout().slots as u64, self.next.message);
        if posted - self.consumed == slots {
            let head = protocol::observe(segment.head(self.connection));
            if head < self.consumed || head > posted {
                return Err(LinkError::Corrupt {
                    what: "count of messages consumed",
                    expected: self.consumed,
                    found: head,
                });
            }
            if head == self.consumed {
                return Ok(None);
            }
            self.consumed = head;
        }
        let slot = segment.data(self.connection, self.next, bytes);
        self.writing = self.streaming.begin(bytes);
        Ok(Some(slot.streamed(self.streaming.on)))
    }

    fn is_memory(&self) -> bool {
        true
    }

    fn post(&mut self, tag: &Tag) -> Result<(), LinkError> {
        if let Some(writing) = self.writing.take() {
            self.streaming.end(&writing, tag.bytes as usize);
        }
        let segment = &self.pair.segment;
        let posted = self.next.message;
        segment.write_tag(self.connection, posted, tag);
        self.next = segment.layout().after(self.next, tag.bytes as usize);
        protocol::publish(segment.ready(self.connection, posted), posted + 1);
        self.pair.wake();
        Ok(())
    }

    fn is_queued(&self) -> bool {
        false
    }

    fn poll_flushed(&mut self) -> Result<bool, LinkError> {
        // The receiver reads it where it lies, even when this process has ended.
        Ok(true)
    }

    fn interest(&self) -> Interest<'_> {
        Interest::Doorbell
    }
}

/// Receiving half.
#[derive(Debug)]
pub(crate) struct ShmReceive {
    pair: Arc<Pair>,
    connection: usize,
    /// Of the message that is received next.
    next: Place,
    /// Bytes of the message that was polled last.
    bytes: usize,
}

impl ShmReceive {
    /// `connection` is its place in the pair's layout.
    pub(crate) fn new(pair: Arc<Pair>, connection: usize) -> Self {
        Self { pair, connection, next: Place::default(), bytes: 0 }
    }
}

impl Receive for ShmReceive {
    fn poll_message(&mut self, expected: &Tag) -> Result<Option<Slot>, LinkError> {
        let segment = &self.pair.segment;
        let consumed = self.next.message;
        let ready = protocol::observe(segment.ready(self.connection, consumed));
        if ready != consumed + 1 {
            // A header last was of the message one lap earlier, or of none.
            let last = (consumed + 1).saturating_sub(segment.layout().slots as u64);
            if ready != last {
                return Err(LinkError::Corrupt {
                    what: "message number",
                    expected: last,
                    found: ready,
                });
            }
            return Ok(None);
        }
        let theirs = segment.read_tag(self.connection, consumed);
        if theirs != *expected {
            return Err(LinkError::Mismatch { ours: *expected, theirs });
        }
        self.bytes = theirs.bytes as usize;
        Ok(Some(segment.data(self.connection, self.next, self.bytes)))
    }

    fn is_memory(&self) -> bool {
        true
    }

    fn release(&mut self) {
        let segment = &self.pair.segment;
        self.next = segment.layout().after(self.next, self.bytes);
        protocol::publish(segment.head(self.connection), self.next.message);
        self.pair.wake();
    }

    fn interest(&self) -> Interest<'_> {
        Interest::Doorbell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Aligned, copy};

    fn halves(slots: usize) -> (ShmTransmit, ShmReceive) {
        halves_of(Layout { connections: 1, slots, slot_bytes: 256 })
    }

    fn halves_of(layout: Layout) -> (ShmTransmit, ShmReceive) {
        let (ours, file) = Segment::create(layout).unwrap();
        let theirs = Segment::open(layout, &file).unwrap();
        let pair = |segment, side| Arc::new(Pair::new(segment, side, Doorbell::new().unwrap()));
        (
            ShmTransmit::new(pair(ours, Side::Lower), 0),
            ShmReceive::new(pair(theirs, Side::Upper), 0),
        )
    }

    fn tag(operation: u64, bytes: u32) -> Tag {
        Tag { operation, count: 10, signature: 0, bytes }
    }

    #[test]
    fn messages_arrive_in_order_and_slots_are_credits() {
        let (mut transmit, mut receive) = halves(2);
        let mut memory = Aligned::new(512);
        let mut sent = 0_u8;
        for expected in 0..20_u8 {
            while let Some(slot) = transmit.poll_slot_of(256).unwrap() {
                memory.bytes_mut()[..256].fill(sent);
                copy(slot, memory.slot(0, 256));
                transmit.post(&tag(u64::from(sent), 256)).unwrap();
                sent += 1;
            }
            assert_eq!(sent, expected + 2, "as many in flight as there are slots");
            let message = receive.poll_message(&tag(u64::from(expected), 256)).unwrap().unwrap();
            copy(memory.slot(256, 256), message);
            assert!(memory.bytes()[256..].iter().all(|b| *b == expected));
            receive.release();
        }
    }

    /// Messages of every kind in turn, as many in flight as may be: each has its own bytes when its turn comes.
    #[test]
    fn messages_of_all_lengths_keep_their_order_and_their_data() {
        const LENGTHS: [u32; 9] = [88, 0, 20_000, 1024, 89, 16_384, 1025, 8, 16_385];
        let layout = Layout { connections: 1, slots: 6, slot_bytes: 20_000 };
        let (mut transmit, mut receive) = halves_of(layout);
        let mut memory = Aligned::new(20_000);
        let of = |number: u64| LENGTHS[usize::try_from(number % 9).unwrap()];
        let byte = |number: u64| u8::try_from(number % 251).unwrap();
        let (mut sent, mut most) = (0, 0);
        for expected in 0..500_u64 {
            while let Some(slot) = transmit.poll_slot_of(of(sent) as usize).unwrap() {
                memory.bytes_mut().fill(byte(sent));
                copy(slot, memory.slot(0, of(sent) as usize));
                transmit.post(&tag(sent, of(sent))).unwrap();
                sent += 1;
            }
            most = most.max(sent - expected);
            let message = receive.poll_message(&tag(expected, of(expected))).unwrap().unwrap();
            copy(memory.slot(0, message.bytes()), message);
            assert_eq!(message.bytes(), of(expected) as usize);
            assert!(memory.bytes()[..message.bytes()].iter().all(|b| *b == byte(expected)));
            receive.release();
        }
        assert_eq!(most, 6, "as many as there are headers");
    }

    #[test]
    fn another_operation_is_an_error() {
        let (mut transmit, mut receive) = halves(2);
        assert!(receive.poll_message(&tag(0, 8)).unwrap().is_none());
        transmit.poll_slot_of(12).unwrap().unwrap();
        transmit.post(&tag(0, 12)).unwrap();
        let error = receive.poll_message(&tag(0, 8)).unwrap_err().to_string();
        assert!(error.contains("8 bytes") && error.contains("12 bytes"), "{error}");
    }

    #[test]
    fn nonsense_from_the_peer_is_an_error() {
        let (mut transmit, mut receive) = halves(2);
        receive.pair.segment.head(0).store(99, Ordering::Relaxed);
        for _ in 0..2 {
            transmit.poll_slot_of(8).unwrap().unwrap();
            transmit.post(&tag(0, 8)).unwrap();
        }
        assert!(matches!(transmit.poll_slot(), Err(LinkError::Corrupt { .. })));
        transmit.pair.segment.ready(0, 0).store(77, Ordering::Relaxed);
        assert!(matches!(receive.poll_message(&tag(0, 8)), Err(LinkError::Corrupt { .. })));
    }

    #[test]
    fn a_sleeper_is_woken_once_and_a_waking_rank_is_not() {
        let (mut transmit, receive) = halves(4);
        let rung = |pair: &Pair| rustix::io::read(&pair.peer_doorbell.0, &mut [0_u8; 8]).is_ok();
        let post = |transmit: &mut ShmTransmit| {
            transmit.poll_slot_of(8).unwrap().unwrap();
            transmit.post(&tag(0, 8)).unwrap();
            rung(&transmit.pair)
        };
        assert!(!post(&mut transmit));
        receive.pair.arm();
        assert!(post(&mut transmit));
        assert!(!post(&mut transmit));
        receive.pair.arm();
        receive.pair.disarm();
        assert!(!post(&mut transmit));
    }
}
