//! The kernels on a device.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use topology::Protocol;
use transport::{ElementType, ReduceOp};

use crate::context::Context;
use crate::error::{CudaError, DriverError};
use crate::ffi::{Address, Driver, Fold, Handle};
use crate::flagged::{self, flagged_name, flagged_names};
use crate::objects::{self, Kind};
use crate::{SOURCES, THREADS, compile, compile_reductions, name, names};

/// Where the kernels come from.
#[derive(Clone, Debug, Default)]
pub enum Image {
    /// Compiled by NVRTC for the device at hand, once in a process for each compute capability. Without NVRTC, operations that combine
    /// elements are refused and the others go.
    #[default]
    Compile,
    /// PTX, or a cubin for the device, of [`SOURCE`](crate::SOURCE), with [`FLAGGED_SOURCE`](crate::FLAGGED_SOURCE) behind it where LL
    /// or LL128 are wanted; for hosts without NVRTC.
    Given(Vec<u8>),
}

/// The kernels, loaded.
#[derive(Debug)]
pub(crate) struct Kernels {
    context: Arc<Context>,
    module: Handle,
    functions: BTreeMap<String, Handle>,
    /// Blocks of the functions for messages with flags that the device holds at once; or why there are none.
    pub(crate) resident: Result<u32, String>,
}

impl Kernels {
    pub(crate) fn load(
        context: &Arc<Context>,
        image: &Image,
        flagged: bool,
    ) -> Result<Self, CudaError> {
        let image = match image {
            Image::Given(image) => image.clone(),
            Image::Compile => compiled(context.device().capability(), flagged)?,
        };
        let module = context.with(|driver| driver.load_module(&image))?;
        objects::made(Kind::Module);
        let resident = Err("they were not asked for".to_owned());
        let context = Arc::clone(context);
        let mut made = Self { context, module, functions: BTreeMap::new(), resident };
        let context = Arc::clone(&made.context);
        for name in names() {
            let function = context.with(|driver| driver.function(module, &name))?;
            made.functions.insert(name, function);
        }
        if flagged {
            made.resident = made.load_flagged().map_err(|error| error.to_string());
        }
        Ok(made)
    }

    /// Those for messages with flags. Asking how many blocks fit loads them: a first launch that did so would wait for kernels that
    /// wait for this rank's.
    fn load_flagged(&mut self) -> Result<u32, DriverError> {
        let mut least = u32::MAX;
        for name in flagged_names() {
            let (function, resident) = self.context.with(|driver| {
                let function = driver.function(self.module, &name)?;
                Ok((function, driver.resident(function, flagged::THREADS)?))
            })?;
            self.functions.insert(name, function);
            least = least.min(resident);
        }
        Ok(least.saturating_mul(self.context.device().multiprocessors()))
    }

    /// The function that runs operations on such elements by a protocol, where there is one.
    pub(crate) fn flagged(&self, protocol: Protocol, element: ElementType) -> Option<Handle> {
        self.functions.get(&flagged_name(protocol, element)?).copied()
    }

    /// The function that combines such elements.
    pub(crate) fn function(&self, element: ElementType, op: ReduceOp) -> Result<Handle, CudaError> {
        let found = name(element, op).and_then(|name| self.functions.get(&name));
        found.copied().ok_or(CudaError::NotCombined { op, element })
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let module = self.module;
        objects::gone(Kind::Module, self.context.with(|driver| driver.unload(module)));
    }
}

/// PTX for a compute capability; made once.
fn compiled(capability: u32, flagged: bool) -> Result<Vec<u8>, CudaError> {
    static MADE: Mutex<BTreeMap<(u32, bool), Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(ptx) = made.get(&(capability, flagged)) {
        return Ok(ptx.clone());
    }
    // Those for messages with flags take several times as long.
    let ptx = if flagged { compile(capability) } else { compile_reductions(capability) };
    let ptx = ptx?.to_src().into_bytes();
    made.insert((capability, flagged), ptx.clone());
    Ok(ptx)
}

/// How elements are combined on a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Combine {
    pub(crate) function: Handle,
    pub(crate) element_bytes: usize,
    /// Most blocks of a launch: one for each multiprocessor.
    pub(crate) most_blocks: u32,
}

impl Combine {
    /// `target = a op b`, in this order.
    pub(crate) fn two(
        &self,
        driver: &Driver,
        stream: Handle,
        target: Address,
        (a, b): (Address, Address),
        bytes: usize,
    ) -> Result<(), DriverError> {
        self.launch(driver, stream, target, &[a, b], bytes, 0)
    }

    /// `target = target / ranks`.
    pub(crate) fn divide(
        &self,
        driver: &Driver,
        stream: Handle,
        target: Address,
        bytes: usize,
        ranks: usize,
    ) -> Result<(), DriverError> {
        let ranks = i32::try_from(ranks).unwrap_or(i32::MAX);
        self.launch(driver, stream, target, &[target], bytes, ranks)
    }

    fn launch(
        &self,
        driver: &Driver,
        stream: Handle,
        target: Address,
        from: &[Address],
        bytes: usize,
        ranks: i32,
    ) -> Result<(), DriverError> {
        if bytes == 0 {
            return Ok(());
        }
        let mut sources = [0; SOURCES];
        sources[..from.len()].copy_from_slice(from);
        let count = u32::try_from(from.len()).unwrap_or(0);
        let elements = (bytes / self.element_bytes) as u64;
        let fold = Fold { sources, count, target, elements, ranks };
        // A thread's turn is 16 bytes.
        let blocks = u32::try_from(bytes.div_ceil(16 * THREADS as usize)).unwrap_or(u32::MAX);
        driver.fold(self.function, blocks.clamp(1, self.most_blocks), stream, &fold)
    }
}
