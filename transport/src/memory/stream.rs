//! Copies that go past the caches: the lines that are written are in no core's cache afterwards, and whoever holds one gives it up without
//! being asked for its data.
#![expect(unsafe_code, reason = "stores that go past the caches have no safe form")]

use super::{LINE, Slot};

/// Copies shorter than this go through the caches in any case: what waiting for the stores takes is not gained.
pub(crate) const LEAST_BYTES: usize = 1024;

/// Whether [`copy`] goes past the caches here.
pub(crate) const STREAMS: bool = cfg!(target_arch = "x86_64");

/// `dst = src` for places that do not overlap, of which `dst` begins a cache line. What is published after it is seen after it.
#[cfg(target_arch = "x86_64")]
pub(super) fn copy(dst: Slot, src: Slot) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    assert_eq!(dst.bytes(), src.bytes());
    let lines = src.bytes() / LINE;
    let to = dst.address().cast::<[__m128i; 4]>().as_ptr();
    let from = src.address().cast::<[__m128i; 4]>().as_ptr();
    for line in 0..lines {
        // SAFETY: One of the whole lines that both have, `dst`'s aligned to one, as the caller found; the processor has the instructions, as
        // every one of this architecture does. (No slots here: their checks would take longer than the copy.)
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one copy of a line")]
        unsafe {
            let (to, from) = (to.add(line).cast::<__m128i>(), from.add(line).cast::<__m128i>());
            let first = _mm_loadu_si128(from);
            let second = _mm_loadu_si128(from.add(1));
            let third = _mm_loadu_si128(from.add(2));
            let fourth = _mm_loadu_si128(from.add(3));
            _mm_stream_si128(to, first);
            _mm_stream_si128(to.add(1), second);
            _mm_stream_si128(to.add(2), third);
            _mm_stream_si128(to.add(3), fourth);
        }
    }
    let (start, rest) = (lines * LINE, src.bytes() % LINE);
    let (to, from) = (dst.part(start, rest).address(), src.part(start, rest).address());
    // SAFETY: What is left of each; the caller found that they are apart.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), rest) }
    // Such stores are ordered with nothing else, not even by a release.
    // SAFETY: Touches no memory; every processor of this architecture has the instruction.
    unsafe { _mm_sfence() }
}

/// As there is none here, the ordinary copy.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn copy(dst: Slot, src: Slot) {
    // SAFETY: Both are valid for their length by their constructor; the caller found that they are apart.
    unsafe {
        std::ptr::copy_nonoverlapping(src.address().as_ptr(), dst.address().as_ptr(), src.bytes());
    }
}
