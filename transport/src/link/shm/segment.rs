//! The memory of a pair of ranks: where each counter and slot lies in it.
#![expect(
    unsafe_code,
    reason = "counters and slots are places in a mapping that two processes share"
)]

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use memmap2::MmapRaw;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::link::Tag;
use crate::memory::{MemoryKey, Slot};

const PAGE: usize = 4096;
const LINE: usize = 64;
/// Words of a header after `ready`: operation, count, signature, bytes.
const TAG_WORDS: usize = 4;
/// Two lines, which processors fetch together.
const HEADER: usize = 2 * LINE;
/// Where in a header the data of the shortest messages begins.
const INLINE: usize = 8 * (1 + TAG_WORDS);
/// Longest message in a header.
const INLINE_BYTES: usize = HEADER - INLINE;
/// Where in a page a connection's ring begins. Callers' buffers mostly begin 0 or 16 bytes into a page, and copies are slow between places
/// that lie less than a line apart in theirs.
const RING_SHIFT: usize = 1024;

/// What the two sides must agree on to find anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    pub(crate) connections: usize,
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
}

impl Layout {
    fn connection_stride(self) -> usize {
        (self.ring() + self.ring_bytes()).next_multiple_of(PAGE)
    }

    /// Bytes from the beginning of a connection to its ring.
    fn ring(self) -> usize {
        (LINE + self.slots * HEADER).next_multiple_of(PAGE) + RING_SHIFT
    }

    /// As many of the longest messages as there are headers, and one that does not fit the rest of a lap.
    fn ring_bytes(self) -> usize {
        (self.slots + 1) * self.slot_bytes.next_multiple_of(LINE)
    }

    fn bytes(self) -> usize {
        PAGE + self.connections * self.connection_stride()
    }

    fn connection(self, connection: usize) -> usize {
        assert!(connection < self.connections);
        PAGE + connection * self.connection_stride()
    }

    fn header(self, connection: usize, message: u64) -> usize {
        // The remainder is below `slots`, a usize.
        let place = usize::try_from(message % self.slots as u64).unwrap_or(0);
        self.connection(connection) + LINE + place * HEADER
    }

    /// Where the data of a message of so many bytes lies.
    pub(crate) fn data(self, connection: usize, place: Place, bytes: usize) -> usize {
        if bytes <= INLINE_BYTES {
            return self.header(connection, place.message) + INLINE;
        }
        self.connection(connection) + self.ring() + self.start(place, bytes)
    }

    /// Where in the ring a message of so many bytes begins: in one piece.
    fn start(self, place: Place, bytes: usize) -> usize {
        if bytes > self.ring_bytes() - place.at { 0 } else { place.at }
    }

    /// The place after a message of so many bytes.
    pub(crate) fn after(self, place: Place, bytes: usize) -> Place {
        let taken = if bytes <= INLINE_BYTES { 0 } else { bytes.next_multiple_of(LINE) };
        let at = if taken == 0 { place.at } else { self.start(place, bytes) + taken };
        Place { message: place.message + 1, at }
    }

    /// Bytes of memory that a connection may come to take.
    pub(crate) fn connection_bytes(slots: usize, slot_bytes: usize) -> usize {
        let of_slot = slot_bytes.saturating_add(LINE + HEADER);
        slots.saturating_add(1).saturating_mul(of_slot).saturating_add(4 * PAGE)
    }
}

/// Which message of a connection is the next, and from where on in the ring its data may lie. Both ends count alike, each for itself, by
/// the lengths of the messages before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) message: u64,
    at: usize,
}

/// Which of the two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// The lower rank.
    Lower,
    /// The upper rank.
    Upper,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Lower => Self::Upper,
            Self::Upper => Self::Lower,
        }
    }
}

/// A mapping of the shared file.
#[derive(Debug)]
pub(crate) struct Segment {
    map: MmapRaw,
    layout: Layout,
}

impl Segment {
    /// New zeroed memory, and the file to pass to the peer. Its size is sealed, so that no peer can cut it short under a mapping.
    pub(crate) fn create(layout: Layout) -> io::Result<(Self, File)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("topod-transport", flags)?);
        file.set_len(layout.bytes() as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok((Self { map: MmapRaw::map_raw(&file)?, layout }, file))
    }

    /// Maps what a peer created.
    pub(crate) fn open(layout: Layout, file: &File) -> io::Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
        let bytes = file.metadata()?.len();
        if !sealed || bytes != layout.bytes() as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "shared memory of {bytes} bytes (sealed: {sealed}), not {}",
                    layout.bytes()
                ),
            ));
        }
        Ok(Self { map: MmapRaw::map_raw(file)?, layout })
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset + bytes <= self.map.len());
        // SAFETY: Inside the mapping, as just asserted.
        let address = unsafe { self.map.as_mut_ptr().add(offset) };
        NonNull::new(address).expect("a mapping does not start at zero")
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        let address = self.at(offset, 8).cast::<u64>();
        // SAFETY: Inside the mapping, aligned (every offset used is a multiple of 8 in a page-aligned mapping), lives as
        // long as `self`, and both processes use it as an atomic only.
        unsafe { AtomicU64::from_ptr(address.as_ptr()) }
    }

    /// Not zero while that side sleeps, or is about to.
    pub(crate) fn sleeping(&self, side: Side) -> &AtomicU32 {
        let offset = match side {
            Side::Lower => LINE,
            Side::Upper => 2 * LINE,
        };
        let address = self.at(offset, 4).cast::<u32>();
        // SAFETY: As in `word`.
        unsafe { AtomicU32::from_ptr(address.as_ptr()) }
    }

    /// Messages consumed so far.
    pub(crate) fn head(&self, connection: usize) -> &AtomicU64 {
        self.word(self.layout.connection(connection))
    }

    /// Number of the message in the slot, plus one.
    pub(crate) fn ready(&self, connection: usize, message: u64) -> &AtomicU64 {
        self.word(self.layout.header(connection, message))
    }

    /// Where the data of a message of so many bytes lies, which are no more than a slot's.
    pub(crate) fn data(&self, connection: usize, place: Place, bytes: usize) -> Slot {
        assert!(bytes <= self.layout.slot_bytes);
        let offset = self.layout.data(connection, place, bytes);
        let address = self.at(offset, bytes);
        let key = MemoryKey(offset as u64);
        // SAFETY: Inside the mapping, which the link keeps; the protocol of `ready` and `head` gives each place to one side at a time.
        unsafe { Slot::new(address, bytes, key) }
    }

    /// Only before `ready` is stored.
    pub(crate) fn write_tag(&self, connection: usize, message: u64, tag: &Tag) {
        use std::sync::atomic::Ordering::Relaxed;
        let base = self.layout.header(connection, message);
        let words: [u64; TAG_WORDS] =
            [tag.operation, tag.count, tag.signature, u64::from(tag.bytes)];
        for (offset, word) in (base + 8..).step_by(8).zip(words) {
            self.word(offset).store(word, Relaxed);
        }
    }

    /// Only after `ready` was loaded. A length no slot has is cut to the slot's.
    pub(crate) fn read_tag(&self, connection: usize, message: u64) -> Tag {
        use std::sync::atomic::Ordering::Relaxed;
        let base = self.layout.header(connection, message);
        let word = |i: usize| self.word(base + 8 * (1 + i)).load(Relaxed);
        let bytes = word(3).min(self.layout.slot_bytes as u64);
        Tag {
            operation: word(0),
            count: word(1),
            signature: word(2),
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn connections_lie_one_after_the_other() {
        let layout = Layout { connections: 2, slots: 6, slot_bytes: 40_000 };
        let mut taken = vec![(0, PAGE)];
        for connection in 0..2 {
            taken.push((layout.connection(connection), LINE));
            taken.extend((0..6).map(|message| (layout.header(connection, message), HEADER)));
            let ring = layout.data(connection, Place::default(), INLINE_BYTES + 1);
            taken.push((ring, layout.ring_bytes()));
        }
        taken.sort_unstable();
        for pair in taken.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        let (start, bytes) = taken.last().copied().unwrap();
        assert!(start + bytes <= layout.bytes());
        let third = Place { message: 3, at: 0 };
        let (header, data) = (layout.header(1, 3), layout.data(1, third, INLINE_BYTES));
        assert_eq!((data, data + INLINE_BYTES), (header + INLINE, header + HEADER));
        assert!(layout.connection_stride() <= Layout::connection_bytes(6, 40_000));
    }

    proptest! {
        /// Whatever the lengths: of as many messages in a row as there are headers, no two share a byte, and all are in the connection.
        #[test]
        fn messages_in_flight_lie_apart(
            slots in 2..7_usize,
            slot_bytes in 64..2000_usize,
            lengths in proptest::collection::vec(0..2000_usize, 0..60),
        ) {
            let layout = Layout { connections: 1, slots, slot_bytes };
            let (mut place, mut flight) = (Place::default(), Vec::new());
            for bytes in lengths.into_iter().map(|length| length % (slot_bytes + 1)) {
                let start = layout.data(0, place, bytes);
                prop_assert!(start >= PAGE && start + bytes <= layout.bytes());
                flight.push((start, bytes));
                let ahead = flight.len().saturating_sub(slots);
                for (other, length) in &flight[ahead..flight.len() - 1] {
                    let apart = start + bytes <= *other || other + length <= start;
                    prop_assert!(apart, "{:?}", &flight[ahead..]);
                }
                place = layout.after(place, bytes);
                prop_assert_eq!(place.message, flight.len() as u64);
            }
        }
    }
}
