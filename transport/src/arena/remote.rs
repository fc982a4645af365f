//! Another rank's buffer: in the shared mapping, or in its own memory where the kernel lets one process read another's.
#![expect(unsafe_code, reason = "system calls that copy between processes")]

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Arena, Word};
use crate::link::LinkError;
use crate::memory::{Slot, copy};

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
                transfer(libc::process_vm_readv, process, address, start, dst)?;
            }
        }
        Ok(())
    }

    /// The bytes from `start` on ` = src`.
    pub(crate) fn write(self, start: usize, src: Slot) -> Result<(), LinkError> {
        match self {
            Self::Here(slot) => copy(slot.part(start, src.bytes()), src),
            Self::There { process, address } => {
                transfer(libc::process_vm_writev, process, address, start, src)?;
            }
        }
        Ok(())
    }
}

type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// All of it, or an error.
fn transfer(
    call: Call,
    process: i32,
    address: u64,
    start: usize,
    near: Slot,
) -> Result<(), LinkError> {
    let far = usize::try_from(address).unwrap_or(0).wrapping_add(start);
    let mut done = 0;
    while done < near.bytes() {
        let part = near.part(done, near.bytes() - done);
        let near = libc::iovec { iov_base: part.address().as_ptr().cast(), iov_len: part.bytes() };
        let far = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(far.wrapping_add(done)),
            iov_len: part.bytes(),
        };
        // SAFETY: The near part is valid for its length; the far one is checked by the kernel.
        let bytes = unsafe { call(process, &raw const near, 1, &raw const far, 1, 0) };
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

/// Whether every rank can read every other's memory, as all find out together: each reads a random number of each other.
/// `None` where one of them does not answer in time.
pub(crate) fn probe(arena: &Arena, allowed: bool, limit: Duration) -> Option<bool> {
    let nonce = Box::new(random());
    let address = std::ptr::from_ref(&*nonce).addr() as u64;
    let say = |word, value| arena.say(word, value);
    say(Word::Process, u64::from(std::process::id()));
    say(Word::Address, address);
    say(Word::Nonce, *nonce);
    let deadline = Instant::now() + limit;
    let others = || (0..arena.ranks()).filter(|rank| *rank != arena.own);
    // Nothing is published as zero.
    let heard = |rank: usize, word: Word| {
        let word = arena.word(rank, word);
        while word.load(Ordering::Acquire) == 0 {
            if Instant::now() > deadline {
                return None;
            }
            std::thread::yield_now();
        }
        Some(word.load(Ordering::Acquire))
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
    Some(can)
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
