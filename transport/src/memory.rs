//! Memory that steps read and write, and the copies over it.
//!
//! A [`Slot`] is a place, not a borrow: the two ends of a link share slots by protocol, not by lifetime. Device memory
//! is another [`Space`], which only links touch; a slot of registered memory already carries the key a remote end needs.
#![expect(unsafe_code, reason = "links hand out places in memory that other processes share")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::ptr::NonNull;

pub(crate) mod stream;

/// Where memory is, and so which kernels may touch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Space {
    /// Memory the processor reads and writes.
    Host,
    /// Memory of a device, which links carry and nothing here touches.
    Device,
}

/// Names registered memory to a link, which names it to its peer (a segment's offset, an rkey, an IPC handle).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct MemoryKey(pub(crate) u64);

/// A run of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    address: NonNull<u8>,
    bytes: usize,
    pub(crate) space: Space,
    #[expect(
        dead_code,
        reason = "read by links that name memory to a peer, which those of this version need not"
    )]
    key: MemoryKey,
    /// Whether copies to it go past the caches.
    streamed: bool,
}

// SAFETY: A slot is an address; whoever made it answers for what is behind it (`Slot::new`), on every thread.
unsafe impl Send for Slot {}
// SAFETY: As above: who has a reference has no more than a copy of the address.
unsafe impl Sync for Slot {}

impl Slot {
    /// # Safety
    /// `address` is valid for reads of `bytes` bytes (and for writes, where the slot will be written) until the owner
    /// takes the slot back: a sending slot when it is posted, a received one when it is released, a caller's buffer
    /// when its operation ends. Nobody else writes it in that time.
    pub(crate) unsafe fn new(address: NonNull<u8>, bytes: usize, key: MemoryKey) -> Self {
        Self { address, bytes, space: Space::Host, key, streamed: false }
    }

    /// The same place; where `streamed`, [`copy`] writes it past the caches.
    pub(crate) const fn streamed(self, streamed: bool) -> Self {
        Self { streamed, ..self }
    }

    /// A device's memory, where the device has it.
    ///
    /// # Safety
    /// As [`Slot::new`], with the device in the place of the processor.
    pub(crate) unsafe fn of_device(address: NonNull<u8>, bytes: usize) -> Self {
        Self { address, bytes, space: Space::Device, key: MemoryKey::default(), streamed: false }
    }

    /// Its length in bytes.
    pub(crate) const fn bytes(self) -> usize {
        self.bytes
    }

    pub(crate) const fn address(self) -> NonNull<u8> {
        self.address
    }

    /// The part from `start` of `bytes` bytes.
    ///
    /// # Panics
    /// Where that is not inside: schedules are checked against buffers before they run.
    pub(crate) fn part(self, start: usize, bytes: usize) -> Self {
        assert!(
            start <= self.bytes && bytes <= self.bytes - start,
            "bytes {start}..+{bytes} of a slot of {}",
            self.bytes
        );
        // SAFETY: `start` is inside the run, which is one allocation.
        let address = unsafe { self.address.add(start) };
        Self { address, bytes, ..self }
    }

    pub(crate) fn same_place(self, other: Self) -> bool {
        self.address == other.address
    }

    /// As elements to read.
    ///
    /// # Safety
    /// `T` has no invalid bit patterns, and nothing writes the slot while the slice lives.
    pub(crate) unsafe fn read<'a, T>(self) -> &'a [T] {
        let address = self.address.cast::<T>();
        assert!(address.is_aligned(), "slot aligned to its elements");
        // SAFETY: Valid and aligned; the count is rounded down to whole elements.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), self.bytes / size_of::<T>()) }
    }

    /// As elements to write.
    ///
    /// # Safety
    /// As [`Slot::read`], and nothing else reads it.
    pub(crate) unsafe fn write<'a, T>(self) -> &'a mut [T] {
        let address = self.address.cast::<T>();
        assert!(address.is_aligned(), "slot aligned to its elements");
        // SAFETY: As in `read`, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), self.bytes / size_of::<T>()) }
    }
}

/// A caller's buffer to read. The communicator drops it before the caller's borrow ends: it runs every operation to its end,
/// and no link keeps a place it did not hand out itself.
pub(crate) fn caller<T: Copy>(data: &[T]) -> Slot {
    let address = NonNull::from(data).cast::<u8>();
    // SAFETY: Valid for reads for the length of the slice, for as long as the doc above says.
    unsafe { Slot::new(address, size_of_val(data), MemoryKey::default()) }
}

/// A caller's buffer to read and write, as [`caller`].
pub(crate) fn caller_mut<T: Copy>(data: &mut [T]) -> Slot {
    let bytes = size_of_val(data);
    let address = NonNull::from(data).cast::<u8>();
    // SAFETY: Valid and exclusive for the length of the slice, for as long as the doc of `caller` says.
    unsafe { Slot::new(address, bytes, MemoryKey::default()) }
}

/// Whether a copy forwards between places would be slow: those whose distance within a page is less than a cache line. A load then
/// seems to depend on a store just before it. Buffers from an allocator lie 16 bytes into a page, so it is no rare case; on a
/// processor of AMD's Zen family such a copy of 32 KiB took 15 us where others took 4 (`rep movsb`, of the C library and of the
/// kernel alike).
pub(crate) const fn aliases(dst: usize, src: usize) -> bool {
    let ahead = dst.wrapping_sub(src) % 4096;
    0 < ahead && ahead < LINE
}

/// Copies shorter than this are not done by `rep movsb`.
pub(crate) const LONG_COPY: usize = 2048;

/// `dst = src` for places that [`aliases`] finds and that do not overlap: from the end, in pieces that are loaded whole before they
/// are stored.
fn copy_backwards(dst: Slot, src: Slot) {
    const PIECE: usize = 256;
    let mut end = src.bytes;
    while end > 0 {
        let start = end.saturating_sub(PIECE);
        let (to, from) = (dst.part(start, end - start), src.part(start, end - start));
        // SAFETY: As in `copy`, and the caller found that they are apart.
        unsafe {
            std::ptr::copy_nonoverlapping(from.address.as_ptr(), to.address.as_ptr(), end - start);
        }
        end = start;
    }
}

/// `dst = src`; nothing where both are the same place.
pub(crate) fn copy(dst: Slot, src: Slot) {
    assert_eq!(dst.bytes, src.bytes);
    let (to, from) = (dst.address.addr().get(), src.address.addr().get());
    if dst.streamed
        && src.bytes >= stream::LEAST_BYTES
        && to.is_multiple_of(LINE)
        && to.abs_diff(from) >= src.bytes
    {
        return stream::copy(dst, src);
    }
    if src.bytes >= LONG_COPY && aliases(to, from) && to.abs_diff(from) >= src.bytes {
        return copy_backwards(dst, src);
    }
    if !dst.same_place(src) {
        // SAFETY: Both are valid for their length by their constructor; `copy` allows overlap.
        unsafe { std::ptr::copy(src.address.as_ptr(), dst.address.as_ptr(), src.bytes) }
    }
}

/// `dst = src` and `next = src`, in pieces that stay in the first-level cache between the two.
pub(crate) fn copy_both(dst: Slot, next: Slot, src: Slot) {
    const PIECE: usize = 8 << 10;
    let mut at = 0;
    while at < src.bytes {
        let bytes = PIECE.min(src.bytes - at);
        let piece = src.part(at, bytes);
        copy(dst.part(at, bytes), piece);
        copy(next.part(at, bytes), piece);
        at += bytes;
    }
}

/// Writes to a socket what lies in `head` and behind it what lies in `data`, as far as the kernel takes it.
pub(crate) fn write_behind(socket: &TcpStream, head: &[u8], data: Slot) -> io::Result<usize> {
    // SAFETY: Whoever lends the place to a link lets nobody write it until the link has sent it.
    let data = unsafe { data.read::<u8>() };
    (&mut &*socket).write_vectored(&[IoSlice::new(head), IoSlice::new(data)])
}

/// Reads from a socket what belongs to `head`, and what comes behind it into `place`.
pub(crate) fn read_behind(socket: &TcpStream, head: &mut [u8], place: Slot) -> io::Result<usize> {
    // SAFETY: The step that the message is for may write the place, and no other step reads or writes it meanwhile.
    let place = unsafe { place.write::<u8>() };
    (&mut &*socket).read_vectored(&mut [IoSliceMut::new(head), IoSliceMut::new(place)])
}

const LINE: usize = 64;

/// Zeroed memory of this process, on cache line borders. Pages cost memory once touched.
#[derive(Debug)]
pub(crate) struct Aligned {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: Owns its memory like a vector does.
unsafe impl Send for Aligned {}
// SAFETY: As above.
unsafe impl Sync for Aligned {}

impl Aligned {
    /// `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.max(LINE), LINE)
            .expect("sizes come from slots and buffers that exist, far below the address space");
        // SAFETY: The size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Self { base, layout }
    }

    /// Whether it was made for nothing.
    pub(crate) const fn is_empty(&self) -> bool {
        self.layout.size() <= LINE
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: Allocated, initialised, and shared for the life of the borrow.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.layout.size()) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: As in `bytes`, and exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.layout.size()) }
    }

    /// The bytes from `start` as a slot; the owner keeps off them until it takes the slot back.
    pub(crate) fn slot(&mut self, start: usize, bytes: usize) -> Slot {
        // SAFETY: Owners of `Aligned` in this crate keep it as long as the slots they hand out.
        let all = unsafe { Slot::new(self.base, self.layout.size(), MemoryKey::default()) };
        all.part(start, bytes)
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: Allocated with this layout, freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_to_two_places() {
        for n in [0, 1, 100, 20_000] {
            let data: Vec<u8> = (0..n).map(|i| u8::try_from(i % 251).unwrap()).collect();
            let mut memory = Aligned::new(2 * n);
            let (one, two) = (memory.slot(0, n), memory.slot(n, n));
            copy_both(one, two, caller(&data));
            assert_eq!((&memory.bytes()[..n], &memory.bytes()[n..2 * n]), (&data[..], &data[..]));
        }
    }

    #[test]
    fn copies_at_any_distance() {
        let bytes: Vec<u8> = (0..60_000).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let lengths = [10, stream::LEAST_BYTES, LONG_COPY - 1, LONG_COPY, 10_007];
        for (ahead, streamed) in
            [0, 1, 16, 63, 64, 4095].into_iter().flat_map(|ahead| [(ahead, false), (ahead, true)])
        {
            for length in lengths {
                let mut memory = Aligned::new(60_000);
                memory.bytes_mut()[..60_000].copy_from_slice(&bytes);
                let base = memory.slot(0, 60_000);
                // Apart by several pages, and overlapping.
                for to in [4096 * 5 + ahead, 4096 + ahead] {
                    copy(base.part(to, length).streamed(streamed), base.part(0, length));
                    assert_eq!(
                        memory.bytes()[to..to + length],
                        bytes[..length],
                        "{ahead} {length} {streamed}"
                    );
                    memory.bytes_mut()[..60_000].copy_from_slice(&bytes);
                }
            }
        }
        assert!(aliases(16, 0) && aliases(4096 + 63, 0) && !aliases(64, 0) && !aliases(0, 16));
    }

    #[test]
    #[should_panic(expected = "of a slot of 64")]
    fn a_part_stays_inside() {
        Aligned::new(64).slot(0, 64).part(60, 8);
    }
}
