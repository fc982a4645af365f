//! Operations in flight.

use std::sync::Arc;
use std::time::Duration;

use transport::{Driver, Path, Pending};

use crate::error::{Error, Status, borrow_mut, give, guard, take};

/// What an operation took.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Total data of the collective, as nccl-tests counts it.
    pub bytes: u64,
    /// From call to end on this rank.
    pub nanoseconds: u64,
    /// The way it took: 0 the plan's channels, 1 a slot of each rank in shared memory, 2 straight from and to the ranks'
    /// buffers, 3 round by round through a stage of each rank in shared memory.
    pub path: u32,
    /// Channels of the plan it ran on; 0 where it took another way.
    pub channels: u32,
    /// Steps this rank did.
    pub steps: u64,
    /// Times this rank slept.
    pub sleeps: u64,
    /// How long messages of this rank waited for the group's bandwidth budget, in nanoseconds.
    pub held: u64,
}

impl From<transport::Stats> for Stats {
    fn from(stats: transport::Stats) -> Self {
        Self {
            bytes: stats.bytes,
            nanoseconds: u64::try_from(stats.elapsed.as_nanos()).unwrap_or(u64::MAX),
            path: match stats.path {
                Path::Flat => 1,
                Path::Direct => 2,
                Path::Staged => 3,
                _ => 0,
            },
            channels: u32::try_from(stats.channels).unwrap_or(u32::MAX),
            steps: stats.steps as u64,
            sleeps: stats.sleeps,
            held: u64::try_from(stats.held.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// An operation that was started. Its buffers must stay until it is done, has failed, or is freed.
#[derive(Debug)]
pub struct OperationHandle {
    driver: Arc<Driver>,
    pending: Option<Pending<()>>,
    stats: Stats,
}

impl OperationHandle {
    pub(crate) fn new(driver: &Arc<Driver>, pending: Pending<()>) -> Self {
        Self { driver: Arc::clone(driver), pending: Some(pending), stats: Stats::default() }
    }

    /// Waits, at most for `limit`; whether it is done.
    fn finish(&mut self, limit: Option<Duration>) -> Result<bool, Error> {
        let Some(pending) = self.pending.take() else { return Ok(true) };
        let driver = Arc::clone(&self.driver);
        let (left, result) = driver.with(|communicator| {
            if let Some(limit) = limit {
                match communicator.wait_for(&pending, limit) {
                    Ok(true) => {}
                    Ok(false) => return (Some(pending), Ok(None)),
                    Err(error) => return (None, Err(error)),
                }
            }
            (None, communicator.wait(pending).map(|((), stats)| Some(stats)))
        });
        self.pending = left;
        let done = result?;
        if let Some(stats) = done {
            self.stats = stats.into();
        }
        Ok(done.is_some())
    }
}

/// Waits until an operation is done, at most for so many milliseconds, or without limit where `limit_ms` is negative:
/// TOPOD_STATUS_NOT_DONE where it is not done by then. With 0 it moves everything in flight and returns at once. `stats` may
/// be null.
///
/// # Safety
/// `operation` is one that no other thread uses, `stats` is null or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_wait(
    operation: *mut OperationHandle,
    limit_ms: i64,
    stats: *mut Stats,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let operation = unsafe { borrow_mut(operation, "the operation") }?;
        let limit = u64::try_from(limit_ms).ok().map(Duration::from_millis);
        if !operation.finish(limit)? {
            return Err(Error::new(Status::NotDone, "the operation is not done yet"));
        }
        // SAFETY: By the caller's word.
        unsafe { give(stats, operation.stats) };
        Ok(())
    })
}

/// Frees an operation; null is nothing. One that is not done is waited for first, for the sake of its buffers and of the
/// other ranks.
///
/// # Safety
/// An operation that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_operation_free(operation: *mut OperationHandle) {
    guard(|| {
        // SAFETY: By the caller's word.
        if let Some(mut operation) = unsafe { take(operation) } {
            operation.finish(None)?;
        }
        Ok(())
    });
}
