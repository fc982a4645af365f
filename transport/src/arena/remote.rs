//! Another rank's buffer: in the shared mapping, or in its own memory where the kernel lets one process read another's.
//!
//! A rank's own memory is read and never written by others: one that has given an operation up, and freed or used its buffer
//! again, cannot keep a slower rank, one that was stopped for a while say, from going on with it.
#![expect(unsafe_code, reason = "system calls that copy between processes")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Arena, Word};
use crate::link::LinkError;
use crate::memory::{LONG_COPY, MemoryKey, Slot, aliases, copy};

/// Yields between two looks at what else may have happened.
const LOOK: u32 = 64;

/// Where another rank's buffer is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Remote {
    /// In the mapping, or this rank's own.
    Here(Slot),
    /// In another process.
    There { process: i32, address: u64 },
}

impl Remote {
    /// `dst = ` the bytes from `start` on.
    pub(crate) fn read(self, start: usize, dst: Slot) -> Result<(), LinkError> {
        match self {
            Self::Here(slot) => copy(dst, slot.part(start, dst.bytes())),
            Self::There { process, address } => {
                transfer(process, address, start, dst)?;
            }
        }
        Ok(())
    }
}

/// All of it, or an error.
fn transfer(process: i32, address: u64, start: usize, near: Slot) -> Result<(), LinkError> {
    let far = usize::try_from(address).unwrap_or(0).wrapping_add(start);
    if near.bytes() >= LONG_COPY && aliases(near.address().addr().get(), far) {
        return by_way_of(process, far, near);
    }
    transfer_straight(process, far, near)
}

/// All of it, through memory half a page away from either side's place in its page, which is faster than the kernel's copy at a
/// distance that [`aliases`] finds.
fn by_way_of(process: i32, far: usize, near: Slot) -> Result<(), LinkError> {
    const BYTES: usize = 32 << 10;
    let mut memory = MaybeUninit::<[u8; BYTES + 2 * 4096]>::uninit();
    let base = NonNull::from(&mut memory).cast::<u8>();
    let wanted = (near.address().addr().get() + 2048) % 4096;
    let offset = (wanted + 4096 - base.addr().get() % 4096) % 4096;
    // SAFETY: On this stack, written before it is read, and used in here alone.
    let all = unsafe { Slot::new(base, BYTES + 2 * 4096, MemoryKey::default()) };
    let mut done = 0;
    while done < near.bytes() {
        let bytes = BYTES.min(near.bytes() - done);
        let (part, way) = (near.part(done, bytes), all.part(offset, bytes));
        transfer_straight(process, far.wrapping_add(done), way)?;
        copy(part, way);
        done += bytes;
    }
    Ok(())
}

fn transfer_straight(process: i32, far: usize, near: Slot) -> Result<(), LinkError> {
    let mut done = 0;
    while done < near.bytes() {
        let part = near.part(done, near.bytes() - done);
        let near = libc::iovec { iov_base: part.address().as_ptr().cast(), iov_len: part.bytes() };
        let far = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(far.wrapping_add(done)),
            iov_len: part.bytes(),
        };
        // SAFETY: The near part is valid for its length; the far one is checked by the kernel.
        let bytes =
            unsafe { libc::process_vm_readv(process, &raw const near, 1, &raw const far, 1, 0) };
        match usize::try_from(bytes) {
            Ok(0) => return Err(LinkError::Closed),
            Ok(bytes) => done += bytes,
            Err(_) => {
                let error = io::Error::last_os_error();
                return Err(match error.raw_os_error() {
                    Some(libc::ESRCH) => LinkError::Closed,
                    _ => LinkError::Io(error),
                });
            }
        }
    }
    Ok(())
}

/// Why ranks did not find out what they may do to each other.
#[derive(Debug)]
pub(crate) enum Unanswered<E> {
    /// That rank says nothing.
    Silent(usize),
    /// What the caller found meanwhile.
    Stopped(E),
}

/// Whether every rank can read every other's memory, as all find out together: each reads a random number of each other.
///
/// # Errors
/// Where one of them does not answer in time, or `look`, which is called now and then, finds a reason to stop.
pub(crate) fn probe<E>(
    arena: &Arena,
    allowed: bool,
    limit: Duration,
    mut look: impl FnMut() -> Result<(), E>,
) -> Result<bool, Unanswered<E>> {
    let nonce = Box::new(random());
    let address = std::ptr::from_ref(&*nonce).addr() as u64;
    let say = |word, value| arena.say(word, value);
    say(Word::Process, u64::from(std::process::id()));
    say(Word::Address, address);
    say(Word::Nonce, *nonce);
    let deadline = Instant::now() + limit;
    let others = || (0..arena.ranks()).filter(|rank| *rank != arena.own);
    // Nothing is published as zero.
    let mut heard = |rank: usize, word: Word| {
        let word = arena.word(rank, word);
        let mut looks = 0_u32;
        while word.load(Ordering::Acquire) == 0 {
            looks += 1;
            if looks.is_multiple_of(LOOK) {
                look().map_err(Unanswered::Stopped)?;
                if Instant::now() > deadline {
                    return Err(Unanswered::Silent(rank));
                }
            }
            std::thread::yield_now();
        }
        Ok(word.load(Ordering::Acquire))
    };
    let mut can = allowed;
    for rank in others() {
        let nonce = heard(rank, Word::Nonce)?;
        let (process, address) = (heard(rank, Word::Process)?, heard(rank, Word::Address)?);
        can = can && reads(i32::try_from(process).unwrap_or(-1), address, nonce);
    }
    let mut fences = can_fence_others();
    say(Word::Verdict, 1 + if can { 2 } else { 0 } + if fences { 4 } else { 0 });
    for rank in others() {
        let verdict = heard(rank, Word::Verdict)?;
        can &= verdict & 2 != 0;
        fences &= verdict & 4 != 0;
    }
    drop(nonce);
    if fences {
        arena.lighten();
    }
    Ok(can)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: Takes numbers alone and touches no memory of this process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers this process among those that [`fence_others`] of any process reaches; whether the kernel can.
fn can_fence_others() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
        && membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

/// Makes every thread of registered processes that runs now pass a full fence.
pub(super) fn fence_others() {
    // It worked when the group was made.
    let _ = membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

fn reads(process: i32, address: u64, nonce: u64) -> bool {
    let mut found = [0_u64];
    let slot = crate::memory::caller_mut(&mut found);
    let there = Remote::There { process, address };
    there.read(0, slot).is_ok() && found == [nonce]
}

/// Not zero.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() | 1
}
