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
/// Words of a slot's header: ready, operation, count, signature, bytes.
const TAG_WORDS: usize = 4;

/// What the two sides must agree on to find anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    pub(crate) connections: usize,
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
}

impl Layout {
    fn slot_stride(self) -> usize {
        LINE + self.slot_bytes.next_multiple_of(LINE)
    }

    fn connection_stride(self) -> usize {
        (LINE + self.slots * self.slot_stride()).next_multiple_of(PAGE)
    }

    fn bytes(self) -> usize {
        PAGE + self.connections * self.connection_stride()
    }

    fn connection(self, connection: usize) -> usize {
        assert!(connection < self.connections);
        PAGE + connection * self.connection_stride()
    }

    fn slot(self, connection: usize, message: u64) -> usize {
        // The remainder is below `slots`, a usize.
        let slot = usize::try_from(message % self.slots as u64).unwrap_or(0);
        self.connection(connection) + LINE + slot * self.slot_stride()
    }
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
        self.word(self.layout.slot(connection, message))
    }

    /// The data of a message's slot.
    pub(crate) fn data(&self, connection: usize, message: u64) -> Slot {
        let offset = self.layout.slot(connection, message) + LINE;
        let address = self.at(offset, self.layout.slot_bytes);
        let key = MemoryKey(offset as u64);
        // SAFETY: Inside the mapping, which the link keeps; the protocol of `ready` and `head` gives each slot to one side at a time.
        unsafe { Slot::new(address, self.layout.slot_bytes, key) }
    }

    /// Only before `ready` is stored.
    pub(crate) fn write_tag(&self, connection: usize, message: u64, tag: &Tag) {
        use std::sync::atomic::Ordering::Relaxed;
        let base = self.layout.slot(connection, message);
        let words: [u64; TAG_WORDS] =
            [tag.operation, tag.count, tag.signature, u64::from(tag.bytes)];
        for (offset, word) in (base + 8..).step_by(8).zip(words) {
            self.word(offset).store(word, Relaxed);
        }
    }

    /// Only after `ready` was loaded. A length no slot has is cut to the slot's.
    pub(crate) fn read_tag(&self, connection: usize, message: u64) -> Tag {
        use std::sync::atomic::Ordering::Relaxed;
        let base = self.layout.slot(connection, message);
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
