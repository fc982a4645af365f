//! The devices of this process.

use topology::BusId;

use crate::error::{CudaError, DriverError};
use crate::ffi::{Driver, attribute};

/// A GPU as CUDA sees it.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub(crate) driver: &'static Driver,
    pub(crate) raw: i32,
    bus_id: BusId,
    capability: u32,
    multiprocessors: u32,
}

impl Device {
    /// How many this process sees; 0 without CUDA is an error that says why.
    ///
    /// # Errors
    /// Where there is no driver, or it refuses.
    pub fn count() -> Result<usize, CudaError> {
        let devices = match Driver::get() {
            Err(crate::NoDriver::NoDevice) => 0,
            driver => driver?.devices()?,
        };
        Ok(usize::try_from(devices).unwrap_or(0))
    }

    /// The driver's version of CUDA, as in 12080 for 12.8.
    ///
    /// # Errors
    /// Where there is no driver, or it refuses.
    pub fn cuda_version() -> Result<i32, CudaError> {
        Ok(Driver::get()?.cuda_version()?)
    }

    /// By its number among those this process sees, which `CUDA_VISIBLE_DEVICES` chooses and orders.
    ///
    /// # Errors
    /// Where there is no driver or no such device.
    pub fn by_ordinal(ordinal: usize) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        let raw = driver.device(i32::try_from(ordinal).unwrap_or(i32::MAX))?;
        Self::of(driver, raw)
    }

    /// By its PCI address.
    ///
    /// # Errors
    /// Where there is no driver, or this process sees no such device.
    pub fn by_bus_id(bus_id: BusId) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        let raw = driver.device_at(&bus_id.to_string()).map_err(|error| error.on(bus_id))?;
        Self::of(driver, raw)
    }

    fn of(driver: &'static Driver, raw: i32) -> Result<Self, CudaError> {
        let text = driver.bus_id(raw)?;
        let bus_id = text.parse::<BusId>().map_err(|error| DriverError {
            call: "cuDeviceGetPCIBusId",
            device: None,
            code: 0,
            name: error.to_string(),
            words: String::new(),
        })?;
        let value = |which| -> Result<u32, CudaError> {
            let value = driver.attribute(which, raw).map_err(|error| error.on(bus_id))?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        if value(attribute::UNIFIED_ADDRESSING)? == 0 {
            let why = "has no unified addressing, by which one address names memory of any device";
            return Err(CudaError::Device { device: bus_id, why });
        }
        let capability =
            value(attribute::CAPABILITY_MAJOR)? * 10 + value(attribute::CAPABILITY_MINOR)?;
        let multiprocessors = value(attribute::MULTIPROCESSOR_COUNT)?.max(1);
        Ok(Self { driver, raw, bus_id, capability, multiprocessors })
    }

    /// Its PCI address.
    #[must_use]
    pub const fn bus_id(&self) -> BusId {
        self.bus_id
    }

    /// Its name.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn name(&self) -> Result<String, CudaError> {
        Ok(self.driver.name(self.raw).map_err(|error| error.on(self.bus_id))?)
    }

    /// Compute capability times ten, as in 90.
    #[must_use]
    pub const fn capability(&self) -> u32 {
        self.capability
    }

    /// Streaming multiprocessors.
    #[must_use]
    pub const fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Whether all blocks of a launch can be promised to be there at once.
    pub(crate) fn launches_together(&self) -> Result<bool, CudaError> {
        let value = self.driver.attribute(attribute::COOPERATIVE_LAUNCH, self.raw);
        Ok(value.map_err(|error| error.on(self.bus_id))? != 0)
    }

    /// Whether NVLink joins it to another, as far as the driver says: by atomic operations that are the link's own.
    pub(crate) fn has_nvlink_to(&self, other: &Self) -> Result<bool, CudaError> {
        let native = self.driver.has_native_atomics(self.raw, other.raw);
        Ok(native.map_err(|error| error.on(self.bus_id))?)
    }

    /// Whether it can reach another's memory.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn reaches(&self, other: &Self) -> Result<bool, CudaError> {
        Ok(self.driver.reaches(self.raw, other.raw).map_err(|error| error.on(self.bus_id))?)
    }
}
