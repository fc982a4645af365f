//! Memory that all ranks of a group on one host share: where small messages lie, where each rank says how far it is, and from
//! which registered buffers are taken.
//!
//! One anonymous file, made by rank 0 and passed to the others over their control streams: it has no name, so nothing is left
//! behind however a process ends, and the size of /dev/shm does not matter. What is needed in every operation is allocated
//! when the group is made; the heaps cost memory once buffers are taken from them.
//!
//! ```text
//!   page 0      how many ranks sleep
//!   board       per rank a page: operations completed │ sleeping, bell │ stage of large operations │ what others may do here
//!   headers     per rank a page of 64: number, count, signature, five words that are the payload where it is as short
//!   slots       per rank 16 of 1 KiB, 128 (4 where ranks share cores) of 16 KiB: longer payloads
//!   stages      per rank a ring of what others are to read, and of what this rank combined
//!   heaps       per rank: registered buffers
//! ```
//!
//! Every operation has a number, the same on every rank. A rank posts operation `k` in its header `k mod 64`, whose first
//! word becomes `k + 1`, written last. It may do so once every rank has completed operation `k - 64`, or `k - 16` where it needs a short
//! slot ([`Layout::lap`]).
#![expect(
    unsafe_code,
    reason = "words, slots and buffers are places in a mapping that ranks share"
)]

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
use std::time::Duration;

use memmap2::MmapRaw;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::thread::futex;

use crate::memory::{MemoryKey, Slot};
use crate::protocol;

mod heap;
mod layout;
mod remote;

pub(crate) use heap::Heap;
pub use heap::SharedBuffer;
use layout::LINE;
pub(crate) use layout::{Layout, SLOT_BYTES, WORDS};
pub(crate) use remote::{Remote, Unanswered, probe};

/// What the memory of so many ranks takes before any buffer is registered.
pub(crate) const fn fixed_bytes(ranks: usize) -> usize {
    Layout { ranks, heap_bytes: 0, crowded: false }.heaps()
}

/// A word of a rank's page on the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Operations completed, in order.
    Completed,
    /// How far it is in large operations, counted over all of them.
    Stage,
    /// Up to where on its stage, counted over all operations and laps, it has put what others are to read.
    Staged,
    /// Up to where its part of the result is whole.
    Folded,
    /// Up to where it reads nobody's stage any more.
    Taken,
    /// Process number, as it sees itself.
    Process,
    /// Address of a random number in its own memory.
    Address,
    /// That number.
    Nonce,
    /// 1, and 2 where it may read all others' memory, and 4 where it can make the others pass a fence.
    Verdict,
    /// Not zero once it has given up: its buffers may hold anything.
    Aborted,
}

/// The mapping, as one rank sees it.
#[derive(Debug)]
pub(crate) struct Arena {
    map: MmapRaw,
    file: File,
    layout: Layout,
    pub(crate) own: usize,
    /// Whether those who fall asleep make the others' stores visible, so that publishing needs no fence of its own.
    light: AtomicBool,
}

impl Arena {
    /// New memory, on rank 0. What every operation needs is allocated, so that a host without memory says so now.
    pub(crate) fn create(layout: Layout) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("topod-group", flags)?);
        file.set_len(layout.bytes() as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, layout.heaps() as u64)?;
        Self::map(layout, file, 0)
    }

    /// Maps what rank 0 made.
    pub(crate) fn open(layout: Layout, file: File, own: usize) -> io::Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if !sealed || file.metadata()?.len() != layout.bytes() as u64 {
            let what = "the group's shared memory is of another size, or could become so";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Self::map(layout, file, own)
    }

    fn map(layout: Layout, file: File, own: usize) -> io::Result<Self> {
        let map = MmapRaw::map_raw(&file)?;
        // A wish; kernels without huge pages for shared memory refuse it, and nothing depends on it.
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self { map, file, layout, own, light: AtomicBool::new(false) })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) const fn ranks(&self) -> usize {
        self.layout.ranks
    }

    /// As [`Layout::lap`].
    pub(crate) const fn lap(&self, bytes: usize) -> u64 {
        self.layout.lap(bytes)
    }

    fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset <= self.map.len() && bytes <= self.map.len() - offset);
        // SAFETY: Inside the mapping, as just asserted.
        let address = unsafe { self.map.as_mut_ptr().add(offset) };
        NonNull::new(address).expect("a mapping does not start at zero")
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        let address = self.at(offset, 8).cast::<u64>();
        // SAFETY: Inside the mapping, aligned (offsets used here are multiples of 8 in a page-aligned mapping), lives as long as
        // `self`, and every process uses it as an atomic only.
        unsafe { AtomicU64::from_ptr(address.as_ptr()) }
    }

    fn short(&self, offset: usize) -> &AtomicU32 {
        let address = self.at(offset, 4).cast::<u32>();
        // SAFETY: As in `long`, at multiples of 4.
        unsafe { AtomicU32::from_ptr(address.as_ptr()) }
    }

    /// A rank's word on the board.
    pub(crate) fn word(&self, rank: usize, word: Word) -> &AtomicU64 {
        assert!(rank < self.layout.ranks);
        let offset = match word {
            Word::Completed => 0,
            Word::Stage => 2 * LINE,
            Word::Process => 3 * LINE,
            Word::Address => 3 * LINE + 8,
            Word::Nonce => 3 * LINE + 16,
            Word::Verdict => 3 * LINE + 24,
            Word::Aborted => 4 * LINE,
            Word::Staged => 5 * LINE,
            Word::Folded => 6 * LINE,
            Word::Taken => 7 * LINE,
        };
        self.long(Layout::board(rank) + offset)
    }

    /// Word `place` of a slot's header; 0 is the number, written last.
    fn header(&self, rank: usize, number: u64, place: usize) -> &AtomicU64 {
        assert!(rank < self.layout.ranks && place < LINE / 8);
        self.long(self.layout.header(rank, number) + 8 * place)
    }

    /// The payload of this rank's or another's slot.
    pub(crate) fn payload(&self, rank: usize, number: u64, bytes: usize) -> Slot {
        assert!(rank < self.layout.ranks);
        assert!(bytes <= SLOT_BYTES);
        let start = self.layout.payload(rank, number, bytes);
        // SAFETY: Inside the mapping; the protocol of numbers says whose turn it is.
        unsafe { Slot::new(self.at(start, bytes), bytes, MemoryKey::default()) }
    }

    /// Publishes operation `number` of this rank; `words` only where there is no payload.
    pub(crate) fn post(
        &self,
        number: u64,
        count: u64,
        signature: u64,
        words: Option<[u64; WORDS]>,
    ) {
        self.header(self.own, number, 1).store(count, Ordering::Relaxed);
        self.header(self.own, number, 2).store(signature, Ordering::Relaxed);
        for (place, word) in words.into_iter().flatten().enumerate() {
            self.header(self.own, number, 3 + place).store(word, Ordering::Relaxed);
        }
        protocol::publish(self.header(self.own, number, 0), number + 1);
        self.wake();
        // The header of the next operation comes into this core's cache while this one waits for the others.
        prefetch_to_write(self.header(self.own, number + 1, 0));
    }

    /// Has the header of a rank's operation fetched, which it may have posted by now.
    pub(crate) fn expect(&self, rank: usize, number: u64) {
        prefetch_to_read(self.header(rank, number, 0));
    }

    /// Count and signature of a rank's operation `number`, once posted.
    pub(crate) fn posted(&self, rank: usize, number: u64) -> Option<(u64, u64)> {
        if protocol::observe(self.header(rank, number, 0)) != number + 1 {
            return None;
        }
        let word = |place| self.header(rank, number, place).load(Ordering::Relaxed);
        Some((word(1), word(2)))
    }

    /// As [`Arena::posted`], after looking so many times.
    pub(crate) fn posted_soon(&self, rank: usize, number: u64, looks: u32) -> Option<(u64, u64)> {
        let word = self.header(rank, number, 0);
        for _ in 0..looks {
            if word.load(Ordering::Relaxed) == number + 1 {
                break;
            }
        }
        self.posted(rank, number)
    }

    /// The words of an operation that was posted without a payload.
    pub(crate) fn words(&self, rank: usize, number: u64) -> [u64; WORDS] {
        std::array::from_fn(|place| self.header(rank, number, 3 + place).load(Ordering::Relaxed))
    }

    /// Says something new on the board.
    pub(crate) fn say(&self, word: Word, value: u64) {
        protocol::publish(self.word(self.own, word), value);
        self.wake();
    }

    /// As [`Arena::say`], and a rank that falls asleep at this moment may not be woken.
    pub(crate) fn mention(&self, word: Word, value: u64) {
        protocol::publish(self.word(self.own, word), value);
        if protocol::may_sleep(self.sleepers()) {
            self.wake_all();
        }
    }

    /// Most bytes that a rank stages in a round for one other rank, and bytes of its stage.
    pub(crate) const fn stage_bytes(&self) -> (usize, usize) {
        (self.layout.part(), self.layout.stage_bytes())
    }

    /// Part of a rank's stage.
    pub(crate) fn stage(&self, rank: usize, start: usize, bytes: usize) -> Slot {
        let stage = self.layout.stage_bytes();
        assert!(rank < self.layout.ranks && start <= stage && bytes <= stage - start);
        let start = self.layout.stage(rank) + start;
        // SAFETY: Inside the mapping; the counts of bytes say whose turn it is.
        unsafe { Slot::new(self.at(start, bytes), bytes, MemoryKey::default()) }
    }

    /// Part of a rank's heap; `None` where there is no such part.
    pub(crate) fn in_heap(&self, rank: usize, offset: usize, bytes: usize) -> Option<Slot> {
        let heap = self.layout.heap();
        if rank >= self.layout.ranks || offset > heap || bytes > heap - offset {
            return None;
        }
        let start = self.layout.heaps() + rank * heap + offset;
        // SAFETY: Inside the mapping; who may touch it when is up to the operations.
        Some(unsafe { Slot::new(self.at(start, bytes), bytes, MemoryKey::default()) })
    }

    /// Where in this rank's heap a buffer of its caller lies, if it does.
    pub(crate) fn registered(&self, slot: Slot) -> Option<usize> {
        let start = self.at(self.layout.heaps() + self.own * self.layout.heap(), 0).addr();
        let offset = slot.address().addr().get().checked_sub(start.get())?;
        (offset <= self.layout.heap() && slot.bytes() <= self.layout.heap() - offset)
            .then_some(offset)
    }

    pub(crate) const fn heap_bytes(&self) -> usize {
        self.layout.heap_bytes
    }

    /// Takes memory from the host for a part of this rank's heap.
    pub(crate) fn back(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let start = self.layout.heaps() + self.own * self.layout.heap() + offset;
        rustix::fs::fallocate(&self.file, FallocateFlags::empty(), start as u64, bytes as u64)?;
        Ok(())
    }

    /// From now on publishing is a store and no more; once all ranks have found that they can [`remote::fence_others`].
    pub(crate) fn lighten(&self) {
        self.light.store(true, Ordering::Relaxed);
    }

    /// Whether [`Arena::arm`] has every core of the group pass a fence.
    pub(crate) fn is_light(&self) -> bool {
        self.light.load(Ordering::Relaxed)
    }

    fn sleepers(&self) -> &AtomicU32 {
        self.short(0)
    }

    fn sleeping(&self, rank: usize) -> &AtomicU32 {
        self.short(Layout::board(rank) + LINE)
    }

    fn bell(&self, rank: usize) -> &AtomicU32 {
        self.short(Layout::board(rank) + LINE + 4)
    }

    /// Says that this rank is about to sleep; what its bell says now. It must poll everything once more before it does.
    pub(crate) fn arm(&self) -> u32 {
        let bell = protocol::hear(self.bell(self.own));
        protocol::arm(self.sleeping(self.own), Some(self.sleepers()), || {
            fence(Ordering::SeqCst);
            if self.is_light() {
                remote::fence_others();
            }
        });
        bell
    }

    /// This rank is awake again.
    pub(crate) fn disarm(&self) {
        protocol::disarm(self.sleeping(self.own), Some(self.sleepers()));
    }

    /// Sleeps until the bell says something else than `bell`, or for `limit`.
    pub(crate) fn sleep(&self, bell: u32, limit: Duration) {
        let limit = futex::Timespec::try_from(limit)
            .unwrap_or(futex::Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
        // Whether it rang, time is up or a signal came: the caller polls everything again.
        let _ = futex::wait(self.bell(self.own), futex::Flags::empty(), bell, Some(&limit));
    }

    /// After something was published: wakes whoever sleeps. (A rank that died asleep leaves the count too high, which costs
    /// the others a look and no more.)
    fn wake(&self) {
        // Pairs with the fences in `arm`: either the sleeper's last poll sees what was published, or its count is seen here. A
        // fence here would wait until the other core has given up the line that was written, which is most of the time a small
        // message takes; so the sleeper, who has time, makes every core of the group pass one.
        if self.is_light() {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        if protocol::may_sleep(self.sleepers()) {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        for rank in (0..self.layout.ranks).filter(|rank| *rank != self.own) {
            if protocol::claim(self.sleeping(rank)) {
                protocol::ring(self.bell(rank));
                let _ = futex::wake(self.bell(rank), futex::Flags::empty(), 1);
            }
        }
    }
}

/// Brings a line into this core's cache for writing. A hint: nothing depends on it.
fn prefetch_to_write(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Reads and writes nothing, whatever the address; processors without the instruction take it for none. (The
    // compiler's own intrinsic prefetches to read unless it is told of a processor that has this one.)
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) word, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

/// Brings a line into this core's cache for reading. A hint: nothing depends on it.
fn prefetch_to_read(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Reads and writes nothing, whatever the address.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) word, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

#[cfg(test)]
mod tests;
