//! Operations in flight: started now, waited for later.

use std::marker::PhantomData;
use std::time::Duration;

use super::{Communicator, Stats};
use crate::error::TransportError;

/// An operation in flight that owns its buffer `B`.
///
/// It moves whenever the communicator does anything: waits for it or for another, tests, runs a blocking operation.
/// Operations may be waited for in any order. A dropped one runs to its end all the same, for the other ranks' sake.
#[derive(Debug)]
#[must_use = "the buffer comes back from `Communicator::wait`"]
pub struct Pending<B> {
    ticket: u64,
    buffer: PhantomData<fn() -> B>,
}

impl<B> Pending<B> {
    pub(super) const fn new(ticket: u64) -> Self {
        Self { ticket, buffer: PhantomData }
    }
}

impl Communicator {
    /// Operations that were started and are not done.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.active.len()
    }

    /// Moves everything in flight as far as it goes and returns at once; whether anything moved. Hears of failures as a wait
    /// does.
    ///
    /// # Errors
    /// [`TransportError::Failed`] where the group breaks.
    pub fn progress(&mut self) -> Result<bool, TransportError> {
        if let Some(failure) = &self.failure {
            return Err(TransportError::Unusable(failure.clone()));
        }
        let moved = self.advance().and_then(|moved| {
            if !moved {
                self.check()?;
                // What a device says beside completions is heard before a sleep, and who only calls this never sleeps.
                if self.patience.should_listen() {
                    self.arm();
                }
                self.look()?;
            }
            Ok(moved)
        });
        moved.map_err(|failure| self.broke(failure))
    }

    /// Moves everything in flight; whether this operation is done.
    ///
    /// # Errors
    /// [`TransportError::Failed`] where the group breaks.
    pub fn test<B>(&mut self, pending: &Pending<B>) -> Result<bool, TransportError> {
        self.complete(pending.ticket, Some(Duration::ZERO))
    }

    /// Waits at most `limit`; whether the operation is done.
    ///
    /// # Errors
    /// [`TransportError::Failed`] where the group breaks.
    pub fn wait_for<B>(
        &mut self,
        pending: &Pending<B>,
        limit: Duration,
    ) -> Result<bool, TransportError> {
        self.complete(pending.ticket, Some(limit))
    }

    /// Waits until the operation is done and gives its buffer back.
    ///
    /// # Errors
    /// [`TransportError::Failed`] where the group breaks.
    ///
    /// # Panics
    /// Where the operation is another communicator's.
    pub fn wait<B: 'static>(&mut self, pending: Pending<B>) -> Result<(B, Stats), TransportError> {
        self.complete(pending.ticket, None)?;
        let finished = self.take_finished(pending.ticket);
        let finished = finished.expect("what is complete is finished");
        let owned = finished.owned.expect("an operation that was started owns its buffer");
        let buffer = owned.downcast().expect("an operation of this communicator");
        Ok((*buffer, finished.stats))
    }
}
