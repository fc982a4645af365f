//! The primary context of a device: what the runtime and frameworks use too, so that their memory and streams are ours.

use std::sync::Arc;

use topology::BusId;

use crate::device::Device;
use crate::error::{CudaError, DriverError};
use crate::ffi::{Driver, Handle};
use crate::objects::{self, Kind};

/// A device's primary context, retained while this lives.
#[derive(Debug)]
pub struct Context {
    device: Device,
    pub(crate) raw: Handle,
}

impl Context {
    /// Retains it.
    ///
    /// # Errors
    /// Where the driver refuses: the device is lost, in exclusive use, or out of memory.
    pub fn new(device: Device) -> Result<Arc<Self>, CudaError> {
        let raw = device.driver.retain(device.raw).map_err(|error| error.on(device.bus_id()))?;
        objects::made(Kind::Context);
        Ok(Arc::new(Self { device, raw }))
    }

    /// Its device.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) const fn bus_id(&self) -> BusId {
        self.device.bus_id()
    }

    pub(crate) const fn driver(&self) -> &'static Driver {
        self.device.driver
    }

    /// Makes it the thread's current one for a few calls; what was current before is so again after them.
    pub(crate) fn with<T>(
        &self,
        calls: impl FnOnce(&'static Driver) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let driver = self.driver();
        driver.push(self.raw).map_err(|error| error.on(self.bus_id()))?;
        let outcome = calls(driver);
        let popped = driver.pop();
        let outcome = outcome.and_then(|value| popped.map(|()| value));
        outcome.map_err(|error| error.on(self.bus_id()))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        objects::gone(Kind::Context, self.driver().release(self.device.raw));
    }
}
