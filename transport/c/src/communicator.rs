//! Communicators, and the memory they register.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use topology::Rank;
use transport::{Communicator, Driver, Rendezvous, SharedBuffer};

use crate::error::{Error, Status, borrow, give, give_handle, guard, take, text};
use crate::options::OptionsHandle;
use crate::plan::PlanHandle;

/// The rank to give where the rendezvous is env://: the launcher's variables say it.
pub const TOPOD_RANK_OF_LAUNCHER: u32 = u32::MAX;

/// One rank's part of a group.
///
/// Operations are collective: every rank calls the same ones in the same order. When one fails, it fails on every rank, and
/// the communicator is of no further use.
#[derive(Debug)]
pub struct CommunicatorHandle {
    pub(crate) driver: Arc<Driver>,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// Registered buffers by address.
    buffers: Mutex<HashMap<usize, SharedBuffer<f64>>>,
}

impl CommunicatorHandle {
    pub(crate) fn new(made: Communicator, progress_thread: bool) -> Result<Self, Error> {
        let rank = made.rank().0;
        let ranks = u32::try_from(made.ranks()).unwrap_or(u32::MAX);
        let driver = Driver::new(made, progress_thread)
            .map_err(|error| Error::new(Status::Internal, format!("a progress thread: {error}")))?;
        Ok(Self { driver: Arc::new(driver), rank, ranks, buffers: Mutex::default() })
    }
}

/// Meets the other ranks of the plan and connects to the peers it names. `rendezvous` is "env://" (MASTER_ADDR, MASTER_PORT, and
/// the rank from torchrun's, mpirun's or srun's variables), "tcp://HOST:PORT" (rank 0 listens there) or "file://PATH".
/// `options` may be null.
///
/// # Safety
/// `plan` is a plan, `rendezvous` a string, `options` null or options, `communicator` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_communicator_create(
    plan: *const PlanHandle,
    rank: u32,
    rendezvous: *const c_char,
    options: *const OptionsHandle,
    communicator: *mut *mut CommunicatorHandle,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let plan = unsafe { borrow(plan, "the plan") }?;
        // SAFETY: By the caller's word.
        let place = unsafe { text(rendezvous, "rendezvous") }?;
        // SAFETY: By the caller's word.
        let options = unsafe { options.as_ref() };
        let place: Rendezvous =
            place.parse().map_err(|error| Error::invalid(format!("{error}")))?;
        let rank = match (rank, place.own_place()) {
            (TOPOD_RANK_OF_LAUNCHER, Some(own)) => own.rank,
            (TOPOD_RANK_OF_LAUNCHER, None) => {
                return Err(Error::invalid("only env:// says which rank this is"));
            }
            (rank, _) => Rank(rank),
        };
        let ranks = plan.0.ranks.len();
        if let Some(own) = place.own_place().filter(|own| own.ranks as usize != ranks) {
            let launched = own.ranks;
            let words = format!("the launcher started {launched} ranks and the plan has {ranks}");
            return Err(Error::invalid(words));
        }
        let made = Communicator::new(&plan.0, rank, &place, OptionsHandle::make(options)?)?;
        let handle = CommunicatorHandle::new(made, options.is_some_and(|o| o.progress_thread))?;
        // SAFETY: By the caller's word.
        unsafe { give_handle(communicator, handle) }
    })
}

/// Leaves the group, frees its registered buffers; null is nothing. Operations that were started keep the group until they
/// are freed, too.
///
/// # Safety
/// A communicator that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_communicator_free(communicator: *mut CommunicatorHandle) {
    guard(|| {
        // SAFETY: By the caller's word.
        drop(unsafe { take(communicator) });
        Ok(())
    });
}

/// Writes this rank and the number of ranks; either may be null.
///
/// # Safety
/// `communicator` is one, `rank` and `ranks` are null or have room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_communicator_place(
    communicator: *const CommunicatorHandle,
    rank: *mut u32,
    ranks: *mut u32,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let handle = unsafe { borrow(communicator, "the communicator") }?;
        // SAFETY: By the caller's word.
        unsafe { give(rank, handle.rank) };
        // SAFETY: By the caller's word.
        unsafe { give(ranks, handle.ranks) };
        Ok(())
    })
}

/// Writes the rank's part of `count` elements cut into shards, as the collectives that gather and scatter cut them: equal
/// parts where the number of ranks divides `count`, else parts that differ by one element.
///
/// # Safety
/// `communicator` is one, `first` and `length` are null or have room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_shard(
    communicator: *const CommunicatorHandle,
    count: usize,
    rank: u32,
    first: *mut usize,
    length: *mut usize,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let handle = unsafe { borrow(communicator, "the communicator") }?;
        if rank >= handle.ranks {
            return Err(Error::invalid(format!("rank {rank} is none of {}", handle.ranks)));
        }
        let shard = transport::schedule::shard(count, Rank(rank), handle.ranks as usize);
        // SAFETY: By the caller's word.
        unsafe { give(first, shard.start) };
        // SAFETY: By the caller's word.
        unsafe { give(length, shard.len()) };
        Ok(())
    })
}

/// Gives operations that are started from now on a priority, from 0 up to one less than the setting `priorities`. Every rank calls it at
/// the same place among its operations. Those of a higher priority pass lower ones that are in flight.
///
/// # Safety
/// `communicator` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_set_priority(
    communicator: *const CommunicatorHandle,
    priority: u32,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let handle = unsafe { borrow(communicator, "the communicator") }?;
        Ok(handle.driver.with(|communicator| communicator.set_priority(priority))?)
    })
}

/// Returns once every rank has called it.
///
/// # Safety
/// `communicator` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_barrier(communicator: *const CommunicatorHandle) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let handle = unsafe { borrow(communicator, "the communicator") }?;
        handle.driver.with(Communicator::barrier)?;
        Ok(())
    })
}

/// A barrier that says who does not come within so many milliseconds: TOPOD_STATUS_MISSING on every rank that called, and the
/// words name the others. The group remains usable.
///
/// # Safety
/// `communicator` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_monitored_barrier(
    communicator: *const CommunicatorHandle,
    limit_ms: u64,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let handle = unsafe { borrow(communicator, "the communicator") }?;
        let limit = Duration::from_millis(limit_ms);
        Ok(handle.driver.with(|communicator| communicator.monitored_barrier(limit))?)
    })
}

/// Zeroed memory that operations of this group use where it lies, where all ranks share a host; that NICs send from where it
/// lies, where verbs links join them; else ordinary memory.
/// Aligned for every element type.
///
/// # Safety
/// `communicator` is one, `memory` has room for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_allocate(
    communicator: *const CommunicatorHandle,
    bytes: usize,
    memory: *mut *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let handle = unsafe { borrow(communicator, "the communicator") }?;
        if memory.is_null() {
            return Err(Error::invalid("there is no place for the address"));
        }
        // Of doubles, so that ordinary memory is aligned for every element type, too.
        let count = bytes.div_ceil(8).max(1);
        let mut buffer = handle.driver.with(|communicator| communicator.allocate::<f64>(count))?;
        let address = buffer.as_mut_ptr();
        let mut buffers = handle.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.insert(address.addr(), buffer);
        // SAFETY: By the caller's word.
        unsafe { give(memory, address.cast()) };
        Ok(())
    })
}

/// Gives back what topod_allocate gave; null is nothing. No operation may be using it.
///
/// # Safety
/// `communicator` is the one that allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_release(
    communicator: *const CommunicatorHandle,
    memory: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let handle = unsafe { borrow(communicator, "the communicator") }?;
        let mut buffers = handle.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if !memory.is_null() && buffers.remove(&memory.addr()).is_none() {
            return Err(Error::invalid("the memory is none that this communicator allocated"));
        }
        Ok(())
    })
}
