//! Operations in memory that all ranks of the group share.
//!
//! Up to 16 KiB a rank, [`Flat`]: each posts its data in its own slot, and everyone reads what it needs. Nobody waits for
//! readers: slots are free again some operations later, and short messages need none. Beyond, [`Direct`]: ranks post where their buffers are. Registered
//! buffers lie in the mapping, and each rank reduces its shard, or fetches its data, straight from them. Private ones go through stages,
//! round by round; or, where that is wished and the kernel allows it, by its copy between processes.
//!
//! Everything is combined in the order of ranks on every way, so the result does not depend on which was taken.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use topology::schedule::Blocks;
use topology::{Collective, Rank};

use crate::arena::{Arena, Heap, Remote, Word};
use crate::kernel::Kernel;
use crate::link::{LinkError, Tag};
use crate::memory::{Aligned, Slot, copy};
use crate::streaming::Streaming;

mod direct;
mod flat;
mod staged;

pub(crate) use direct::scratch_bytes;

pub(crate) use direct::Direct;
pub(crate) use flat::{Flat, fits};

/// Looks at a header without a pause between them: about as long as the other core takes for a small message. A pause is 40 to 140
/// cycles, which are lost when the header comes just after it began.
const LOOKS: u32 = 200;

/// What this rank knows of the shared memory.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) arena: Arc<Arena>,
    pub(crate) heap: Arc<Mutex<Heap>>,
    /// Whether ranks read each other's private memory.
    pub(crate) crosses: bool,
    /// Number of the next operation.
    next: u64,
    /// Operations completed in order, and of those after them whether each is.
    completed: u64,
    later: VecDeque<bool>,
    /// Operations that every other rank has completed, as far as this rank looked.
    everywhere: u64,
    /// Up to where stages are used, counted over all laps, by operations that are over; and up to where every other rank has taken what is
    /// there, as far as this rank looked.
    used: u64,
    taken: u64,
    /// Whether this rank writes its stage and its slots past the caches.
    streaming: Streaming,
    /// Large operations started, and done: they take turns.
    large: (u64, u64),
    /// Looks at a header in a row, before the caller looks after anything else. Not where ranks share cores: there the one that
    /// is waited for has to run first.
    looks: u32,
    /// Kept, so that an operation allocates nothing.
    views: Vec<Slot>,
    places: direct::Places,
    /// Copies of parts of inputs that can only be copied; of the large operation whose turn it is.
    scratch: Aligned,
}

/// What an operation is about.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) collective: Collective,
    pub(crate) root: Option<Rank>,
    /// As in [`topology::schedule::Schedule::count`].
    pub(crate) count: usize,
    pub(crate) blocks: Option<Blocks>,
    pub(crate) kernel: Kernel,
    pub(crate) input: Slot,
    pub(crate) output: Slot,
    /// Without number and length.
    pub(crate) tag: Tag,
}

/// How far an operation got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advance {
    Done,
    Moved,
    /// Only parts of messages moved, along the plan's channels.
    Trickled,
    /// Waits for that rank.
    Waits(usize),
    /// Waits for an earlier operation of this rank.
    Turn,
}

/// A rank and what is wrong with its part.
pub(crate) type Broken = (Rank, LinkError);

impl Shared {
    pub(crate) fn new(arena: Arena, crosses: bool, oversubscribed: bool) -> Self {
        Self {
            arena: Arc::new(arena),
            heap: Arc::default(),
            crosses,
            next: 0,
            completed: 0,
            later: VecDeque::new(),
            everywhere: 0,
            used: 0,
            streaming: Streaming::default(),
            taken: 0,
            large: (0, 0),
            looks: if oversubscribed { 1 } else { LOOKS },
            views: Vec::new(),
            places: direct::Places::default(),
            scratch: Aligned::new(0),
        }
    }

    fn own(&self) -> usize {
        self.arena.own
    }

    fn ranks(&self) -> usize {
        self.arena.ranks()
    }

    /// Whether there are more ranks than cores.
    const fn shares_cores(&self) -> bool {
        self.looks == 1
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Whether what this rank needs to post an operation is free, all having completed the operation one `lap` before; else who
    /// has not.
    fn is_free(&mut self, number: u64, lap: u64) -> Result<(), usize> {
        while self.everywhere + lap <= number {
            let mut least = u64::MAX;
            for rank in (0..self.ranks()).filter(|rank| *rank != self.arena.own) {
                let completed = self.arena.word(rank, Word::Completed).load(Ordering::Acquire);
                if completed + lap <= number {
                    return Err(rank);
                }
                least = least.min(completed);
            }
            self.everywhere = least;
        }
        Ok(())
    }

    /// Puts data where others read it.
    fn put(&mut self, place: Slot, data: Slot) {
        let writing = self.streaming.begin(data.bytes());
        copy(place.streamed(self.streaming.on), data);
        if let Some(writing) = writing {
            self.streaming.end(&writing, data.bytes());
        }
    }

    /// This rank is through with an operation.
    fn complete(&mut self, number: u64) {
        if number == self.completed && self.later.is_empty() {
            self.completed += 1;
        } else {
            let at = usize::try_from(number - self.completed).unwrap_or(usize::MAX);
            if self.later.len() <= at {
                self.later.resize(at + 1, false);
            }
            self.later[at] = true;
            while self.later.front() == Some(&true) {
                self.later.pop_front();
                self.completed += 1;
            }
        }
        // Others look at this only when they have gone a whole lap of slots; that a sleeper among them is missed once in a
        // while, and naps, is cheaper than a fence in every operation.
        self.arena.mention(Word::Completed, self.completed);
    }

    /// Whether a rank has posted an operation, and the same one.
    fn heard(&self, rank: usize, number: u64, ours: &Tag) -> Result<bool, Broken> {
        let posted = self.arena.posted_soon(rank, number, self.looks);
        let Some((count, signature)) = posted else { return Ok(false) };
        if (count, signature) == (ours.count, ours.signature) {
            return Ok(true);
        }
        let theirs = Tag { count, signature, ..*ours };
        Err((id(rank), LinkError::Mismatch { ours: *ours, theirs }))
    }

    /// For a rank that was waited for in vain for a while: whether it went on to another operation.
    pub(crate) fn passed_by(&self, rank: usize, number: u64) -> bool {
        self.arena.word(rank, Word::Completed).load(Ordering::Acquire) > number
            && self.arena.posted(rank, number).is_none()
    }

    /// Where a buffer of this rank is, in words for the others.
    fn place(&self, slot: Slot) -> [u64; 2] {
        let registered = self.arena.registered(slot).map_or(0, |offset| offset as u64 + 1);
        [registered, slot.address().addr().get() as u64]
    }

    /// A buffer of another rank; `None` where it cannot be reached.
    fn remote(&self, rank: usize, place: [u64; 2], bytes: usize) -> Result<Option<Remote>, Broken> {
        let [registered, address] = place;
        if let Some(offset) = registered.checked_sub(1) {
            let slot = usize::try_from(offset)
                .ok()
                .and_then(|offset| self.arena.in_heap(rank, offset, bytes));
            let corrupt = LinkError::Corrupt {
                what: "place of a registered buffer",
                expected: 0,
                found: offset,
            };
            return slot.map(|slot| Some(Remote::Here(slot))).ok_or_else(|| (id(rank), corrupt));
        }
        let process = self.arena.word(rank, Word::Process).load(Ordering::Relaxed);
        let process = i32::try_from(process).unwrap_or(-1);
        Ok(self.crosses.then_some(Remote::There { process, address }))
    }
}

fn id(rank: usize) -> Rank {
    Rank(u32::try_from(rank).unwrap_or(u32::MAX))
}
