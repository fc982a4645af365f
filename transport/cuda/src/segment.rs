//! Pinned memory that the ranks of one host share: words by which streams wait for each other, slots where devices cannot reach each
//! other's memory, and what ranks tell each other of where they are.
//!
//! ```text
//!   members   a line each: here or gone, operations enqueued, whom it waits for, whether its kernels are to end
//!   calls     per member the last CALLS operations: number, what it is
//!   words     a line each: per connection how many messages were posted, and how many consumed
//!   slots     of connections by host memory
//! ```
#![expect(unsafe_code, reason = "memory that other processes and devices write")]

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::Mode;
use rustix::shm;

use crate::context::Context;
use crate::error::{CudaError, DriverError};
use crate::ffi::Address;
use crate::objects::{self, Kind};

const LINE: usize = 64;
/// Of a member's line, after its presence, count of operations and whom it waits for.
const ABORT: usize = 20;
/// What is registered begins and ends on borders of pages.
const PAGE: usize = 4096;
/// Operations by which a rank may be ahead of another and still be compared with it.
const CALLS: usize = 64;

/// How much of what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) members: usize,
    pub(crate) words: usize,
    pub(crate) slot_bytes: usize,
}

impl Layout {
    const fn calls(self) -> usize {
        self.members * LINE
    }

    const fn words_at(self) -> usize {
        self.calls() + self.members * CALLS * 16
    }

    const fn slots_at(self) -> usize {
        (self.words_at() + self.words * LINE).next_multiple_of(PAGE)
    }

    pub(crate) const fn bytes(self) -> usize {
        (self.slots_at() + self.slot_bytes).next_multiple_of(PAGE)
    }
}

/// Whether a member is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Coming,
    Here,
    /// It has closed what it had of others' memory and will not come back.
    Gone,
}

/// The memory, mapped and registered.
#[derive(Debug)]
pub(crate) struct Segment {
    map: MmapRaw,
    layout: Layout,
    context: Arc<Context>,
    device: Address,
}

impl Segment {
    /// Makes it under a name by which others open it; who made it removes the name with [`Name`].
    pub(crate) fn create(
        name: &str,
        layout: Layout,
        context: &Arc<Context>,
    ) -> Result<(Self, Name), CudaError> {
        let failed =
            |source: io::Error| CudaError::Local { what: "make memory for the group", source };
        let flags = shm::OFlags::CREATE | shm::OFlags::EXCL | shm::OFlags::RDWR;
        let file = shm::open(name, flags, Mode::RUSR | Mode::WUSR).map_err(|e| failed(e.into()))?;
        let named = Name(name.to_owned());
        let file = File::from(file);
        // What is not there is found now, not by a signal when it is touched.
        let bytes = layout.bytes() as u64;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
            .map_err(|e| failed(e.into()))?;
        Ok((Self::map(&file, layout, context)?, named))
    }

    /// Opens what another rank made.
    pub(crate) fn open(
        name: &str,
        layout: Layout,
        context: &Arc<Context>,
    ) -> Result<Self, CudaError> {
        let failed =
            |source: io::Error| CudaError::Local { what: "open the group's memory", source };
        let file =
            shm::open(name, shm::OFlags::RDWR, Mode::empty()).map_err(|e| failed(e.into()))?;
        let file = File::from(file);
        if file.metadata().map_err(failed)?.len() != layout.bytes() as u64 {
            return Err(failed(io::Error::other("it is not as long as it must be")));
        }
        Self::map(&file, layout, context)
    }

    fn map(file: &File, layout: Layout, context: &Arc<Context>) -> Result<Self, CudaError> {
        let map = MmapOptions::new()
            .len(layout.bytes())
            .map_raw(file)
            .map_err(|source| CudaError::Local { what: "map the group's memory", source })?;
        let device = context.with(|driver| driver.register(map.as_mut_ptr(), layout.bytes()))?;
        objects::made(Kind::Registered);
        Ok(Self { map, layout, context: Arc::clone(context), device })
    }

    fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.layout.slots_at());
        // SAFETY: Inside the mapping, whose start is a page's.
        let place = unsafe { self.map.as_mut_ptr().add(at) };
        // SAFETY: Aligned, mapped as long as this lives, and only ever accessed as atomic words (by devices as the words they are).
        unsafe { &*place.cast::<AtomicU64>() }
    }

    fn short(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.layout.slots_at());
        // SAFETY: Inside the mapping, whose start is a page's.
        let place = unsafe { self.map.as_mut_ptr().add(at) };
        // SAFETY: As in `long`.
        unsafe { &*place.cast::<AtomicU32>() }
    }

    /// A word of a connection.
    pub(crate) fn word(&self, word: usize) -> &AtomicU32 {
        assert!(word < self.layout.words);
        self.short(self.layout.words_at() + word * LINE)
    }

    /// Where a word lies for the device.
    pub(crate) const fn word_address(&self, word: usize) -> Address {
        self.device + (self.layout.words_at() + word * LINE) as Address
    }

    /// Where the slots begin for the device.
    pub(crate) const fn slots_address(&self) -> Address {
        self.device + self.layout.slots_at() as Address
    }

    pub(crate) fn come(&self, member: usize) {
        self.short(member * LINE).store(1, Ordering::Release);
    }

    pub(crate) fn go(&self, member: usize) {
        self.short(member * LINE).store(2, Ordering::Release);
    }

    pub(crate) fn presence(&self, member: usize) -> Presence {
        match self.short(member * LINE).load(Ordering::Acquire) {
            0 => Presence::Coming,
            1 => Presence::Here,
            _ => Presence::Gone,
        }
    }

    /// How many collectives a member has begun to enqueue.
    pub(crate) fn enqueued(&self, member: usize) -> u64 {
        self.long(member * LINE + 8).load(Ordering::Acquire)
    }

    /// Whom a member waits for, where it has waited for a while.
    pub(crate) fn waits_for(&self, member: usize) -> Option<u32> {
        let word = self.short(member * LINE + 16).load(Ordering::Relaxed);
        word.checked_sub(1)
    }

    pub(crate) fn set_waits_for(&self, member: usize, rank: Option<u32>) {
        let word = rank.map_or(0, |rank| rank.saturating_add(1));
        self.short(member * LINE + 16).store(word, Ordering::Relaxed);
    }

    /// Where a member's kernels look whether they are to end, for the device.
    pub(crate) const fn abort_address(&self, member: usize) -> Address {
        self.device + (member * LINE + ABORT) as Address
    }

    /// Whether what a member's streams do from here on is nobody's result.
    pub(crate) fn has_aborted(&self, member: usize) -> bool {
        self.short(member * LINE + ABORT).load(Ordering::Acquire) != 0
    }

    /// Lets a member's kernels end, whatever they wait for. Before its streams are let go, so that whoever hears from these can know.
    pub(crate) fn abort(&self, member: usize) {
        self.short(member * LINE + ABORT).store(1, Ordering::Release);
    }

    fn call_at(&self, member: usize, number: u64) -> usize {
        let place = usize::try_from(number % CALLS as u64).unwrap_or(0);
        self.layout.calls() + (member * CALLS + place) * 16
    }

    /// Says which operation a member begins. Of two that differ, at least one finds that, for each says its own before it looks.
    pub(crate) fn call(&self, member: usize, number: u64, signature: u64) {
        let at = self.call_at(member, number);
        // The number last, and nothing of the old operation under the new one's.
        self.long(at).store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.long(at + 8).store(signature, Ordering::Relaxed);
        self.long(at).store(number + 1, Ordering::Release);
        self.long(member * LINE + 8).store(number + 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// What a member said of an operation, if it has come to it and is not too far ahead.
    pub(crate) fn called(&self, member: usize, number: u64) -> Option<u64> {
        let at = self.call_at(member, number);
        let said = || self.long(at).load(Ordering::Acquire) == number + 1;
        let signature = said().then(|| self.long(at + 8).load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        signature.filter(|_| said())
    }

    /// Copies into slots from `at` bytes on.
    pub(crate) fn fill(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.layout.slot_bytes);
        let place = self.layout.slots_at() + at;
        // SAFETY: Inside the mapping.
        let place = unsafe { self.map.as_mut_ptr().add(place) };
        // SAFETY: Valid for that many bytes; the protocol of the connection's words gives the slot to this side alone.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), place, data.len()) }
    }

    /// Copies out of slots.
    pub(crate) fn taken(&self, at: usize, bytes: usize) -> Vec<u8> {
        assert!(at + bytes <= self.layout.slot_bytes);
        let place = self.layout.slots_at() + at;
        let mut data = vec![0; bytes];
        // SAFETY: Inside the mapping.
        let place = unsafe { self.map.as_ptr().add(place) };
        // SAFETY: As in `fill`.
        unsafe { std::ptr::copy_nonoverlapping(place, data.as_mut_ptr(), bytes) }
        data
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let place = self.map.as_mut_ptr();
        let outcome: Result<(), DriverError> = self.context.with(|driver| driver.unregister(place));
        objects::gone(Kind::Registered, outcome);
    }
}

/// A name in the host's list of shared memory, removed when this is dropped: the memory lives on where it is mapped.
#[derive(Debug)]
pub(crate) struct Name(String);

impl Drop for Name {
    fn drop(&mut self) {
        if let Err(error) = shm::unlink(&self.0) {
            tracing::debug!(name = self.0, %error, "shared memory's name not removed");
        }
    }
}

/// A word of a connection, for this process and for its device.
#[derive(Clone, Debug)]
pub(crate) struct Word {
    segment: Arc<Segment>,
    word: usize,
    pub(crate) address: Address,
}

impl Word {
    pub(crate) fn new(segment: &Arc<Segment>, word: usize) -> Self {
        Self { segment: Arc::clone(segment), word, address: segment.word_address(word) }
    }

    /// What it says now; with it everything before it.
    pub(crate) fn value(&self) -> u32 {
        self.segment.word(self.word).load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, value: u32) {
        self.segment.word(self.word).store(value, Ordering::Release);
    }

    /// Whether a stream that waits for a value goes on: the same comparison as the device's, on through the wrap.
    pub(crate) fn is_at_least(&self, value: u32) -> bool {
        self.value().wrapping_sub(value).cast_signed() >= 0
    }
}
