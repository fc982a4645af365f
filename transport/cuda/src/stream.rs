//! Streams and events.

use std::sync::Arc;

use crate::context::Context;
use crate::error::CudaError;
use crate::ffi::Handle;
use crate::objects::{self, Kind};

/// Work of a device in order.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    pub(crate) raw: Handle,
    owned: bool,
}

impl Stream {
    /// One that waits for no other, the legacy default stream included.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Self::with_priority(context, 0)
    }

    /// Above the lowest priority by `above`, as far as the device goes.
    pub(crate) fn with_priority(context: &Arc<Context>, above: u32) -> Result<Self, CudaError> {
        let raw = context.with(|driver| {
            let (least, greatest) = driver.priorities()?;
            let above = i32::try_from(above).unwrap_or(i32::MAX);
            driver.create_stream(least.saturating_sub(above).max(greatest))
        })?;
        objects::made(Kind::Stream);
        Ok(Self::of(Arc::clone(context), raw, true))
    }

    pub(crate) const fn of(context: Arc<Context>, raw: Handle, owned: bool) -> Self {
        Self { context, raw, owned }
    }

    /// Whose it is.
    #[must_use]
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits until everything in it is done.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        Ok(self.context.with(|driver| driver.synchronize(self.raw))?)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned {
            let raw = self.raw;
            objects::gone(Kind::Stream, self.context.with(|driver| driver.destroy_stream(raw)));
        }
    }
}

/// A place in a stream, as it was when it was recorded last.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    pub(crate) raw: Handle,
}

impl Event {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let raw = context.with(|driver| driver.create_event())?;
        objects::made(Kind::Event);
        Ok(Self { context: Arc::clone(context), raw })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let raw = self.raw;
        objects::gone(Kind::Event, self.context.with(|driver| driver.destroy_event(raw)));
    }
}
