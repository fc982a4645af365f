//! Device memory.

use std::sync::Arc;

use transport::Element;

use crate::context::Context;
use crate::error::CudaError;
use crate::ffi::Address;
use crate::objects::{self, Kind};

/// An allocation, freed when the last part of it is dropped.
#[derive(Debug)]
pub struct Buffer {
    context: Arc<Context>,
    address: Address,
    bytes: usize,
}

impl Buffer {
    /// `bytes` bytes of whatever was there before.
    ///
    /// # Errors
    /// Where the device has no more.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Arc<Self>, CudaError> {
        // The driver allocates no nothing.
        let address = context.with(|driver| driver.allocate(bytes.max(1)))?;
        objects::made(Kind::Buffer);
        Ok(Arc::new(Self { context: Arc::clone(context), address, bytes }))
    }

    /// With a copy of `data`.
    ///
    /// # Errors
    /// Where the device has no more, or the driver refuses.
    pub fn of<T: Element>(context: &Arc<Context>, data: &[T]) -> Result<Arc<Self>, CudaError> {
        let made = Self::new(context, size_of_val(data))?;
        made.write(0, data)?;
        Ok(made)
    }

    /// Its length.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it is for devices.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// All of it, for operations.
    #[must_use]
    pub fn memory(self: &Arc<Self>) -> Memory {
        Memory::of(Some(Arc::clone(self)), self.address, self.bytes)
    }

    /// Copies elements in, from `start` bytes on, and returns when that is done. It is in no order with streams.
    ///
    /// # Errors
    /// Where they do not fit, or the driver refuses.
    pub fn write<T: Element>(&self, start: usize, data: &[T]) -> Result<(), CudaError> {
        self.fits(start, size_of_val(data))?;
        if !data.is_empty() {
            self.context.with(|driver| driver.write(self.address + start as u64, data))?;
        }
        Ok(())
    }

    /// Copies elements out, from `start` bytes on, and returns when that is done. It is in no order with streams.
    ///
    /// # Errors
    /// Where there are not as many, or the driver refuses.
    pub fn read<T: Element>(&self, start: usize, data: &mut [T]) -> Result<(), CudaError> {
        self.fits(start, size_of_val(data))?;
        if !data.is_empty() {
            self.context.with(|driver| driver.read(data, self.address + start as u64))?;
        }
        Ok(())
    }

    fn fits(&self, start: usize, bytes: usize) -> Result<(), CudaError> {
        match self.bytes.checked_sub(start) {
            Some(left) if bytes <= left => Ok(()),
            left => {
                let expected = left.unwrap_or(0);
                Err(CudaError::Length { what: "a part of a buffer", expected, found: bytes })
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let address = self.address;
        objects::gone(Kind::Buffer, self.context.with(|driver| driver.free(address)));
    }
}

/// A run of device memory, which operations in flight keep alive where it is a [`Buffer`]'s.
#[derive(Clone, Debug)]
pub struct Memory {
    owner: Option<Arc<Buffer>>,
    address: Address,
    bytes: usize,
}

impl Memory {
    pub(crate) const fn of(owner: Option<Arc<Buffer>>, address: Address, bytes: usize) -> Self {
        Self { owner, address, bytes }
    }

    /// Its length.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it is for devices.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The part from `start` of `bytes` bytes.
    ///
    /// # Panics
    /// Where that is not inside.
    #[must_use]
    pub fn part(&self, start: usize, bytes: usize) -> Self {
        assert!(
            start <= self.bytes && bytes <= self.bytes - start,
            "bytes {start}..+{bytes} of memory of {}",
            self.bytes
        );
        Self { owner: self.owner.clone(), address: self.address + start as u64, bytes }
    }
}
