//! Allocations of other processes that are open here.

use std::collections::BTreeMap;
use std::sync::Arc;

use topology::Rank;

use crate::context::Context;
use crate::error::CudaError;
use crate::ffi::{Address, IpcHandle};
use crate::objects::{self, Kind};

/// Each opened once, by whose it is and where it begins there, and closed at the end: the driver opens an allocation once in a context.
#[derive(Debug)]
pub(crate) struct Opened {
    context: Arc<Context>,
    at: BTreeMap<(Rank, Address), Address>,
}

impl Opened {
    pub(crate) const fn new(context: Arc<Context>) -> Self {
        Self { context, at: BTreeMap::new() }
    }

    /// Where the allocation lies here.
    pub(crate) fn open(
        &mut self,
        peer: Rank,
        base: Address,
        handle: IpcHandle,
    ) -> Result<Address, CudaError> {
        if let Some(address) = self.at.get(&(peer, base)) {
            return Ok(*address);
        }
        let address = self.context.with(|driver| driver.open(handle))?;
        objects::made(Kind::Opened);
        self.at.insert((peer, base), address);
        Ok(address)
    }

    /// Closes all; their owners may free them then.
    pub(crate) fn close(&mut self) {
        for address in std::mem::take(&mut self.at).into_values() {
            objects::gone(Kind::Opened, self.context.with(|driver| driver.close(address)));
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.close();
    }
}
