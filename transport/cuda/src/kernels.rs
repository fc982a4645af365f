//! The kernels on a device.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use transport::{ElementType, ReduceOp};

use crate::context::Context;
use crate::error::{CudaError, DriverError};
use crate::ffi::{Address, Driver, Fold, Handle};
use crate::objects::{self, Kind};
use crate::{SOURCES, THREADS, compile, name, names};

/// Where the kernels come from.
#[derive(Clone, Debug, Default)]
pub enum Image {
    /// Compiled by NVRTC for the device at hand, once in a process for each compute capability. Without NVRTC, operations that combine
    /// elements are refused and the others go.
    #[default]
    Compile,
    /// PTX, or a cubin for the device, of [`SOURCE`](crate::SOURCE); for hosts without NVRTC.
    Given(Vec<u8>),
}

/// The kernels, loaded.
#[derive(Debug)]
pub(crate) struct Kernels {
    context: Arc<Context>,
    module: Handle,
    functions: BTreeMap<String, Handle>,
}

impl Kernels {
    pub(crate) fn load(context: &Arc<Context>, image: &Image) -> Result<Self, CudaError> {
        let image = match image {
            Image::Given(image) => image.clone(),
            Image::Compile => compiled(context.device().capability())?,
        };
        let module = context.with(|driver| driver.load_module(&image))?;
        objects::made(Kind::Module);
        let mut made = Self { context: Arc::clone(context), module, functions: BTreeMap::new() };
        for name in names() {
            let function = context.with(|driver| driver.function(module, &name))?;
            made.functions.insert(name, function);
        }
        Ok(made)
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
fn compiled(capability: u32) -> Result<Vec<u8>, CudaError> {
    static MADE: Mutex<BTreeMap<u32, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(ptx) = made.get(&capability) {
        return Ok(ptx.clone());
    }
    let ptx = compile(capability)?.to_src().into_bytes();
    made.insert(capability, ptx.clone());
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
