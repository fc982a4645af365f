//! Messages between two ranks whose data lies in memory of a device, which NICs read and write themselves.

use std::sync::Arc;

use topology::Rank;

use super::operation::Request;
use super::{Communicator, Pending};
use crate::element::ElementType;
use crate::error::TransportError;
use crate::kernel::Kernel;
use crate::link::verbs::Piece;
use crate::memory::{Slot, caller, caller_mut};

/// Memory of a device that was [adopted](Communicator::adopt).
#[derive(Clone, Debug)]
pub struct DeviceMemory(Arc<Piece>);

impl DeviceMemory {
    pub(super) const fn new(piece: Arc<Piece>) -> Self {
        Self(piece)
    }

    /// The part from `start` of `bytes` bytes.
    ///
    /// # Panics
    /// Where that is not inside.
    #[must_use]
    pub fn part(&self, start: usize, bytes: usize) -> DevicePart {
        DevicePart { slot: self.0.whole().part(start, bytes), _memory: Arc::clone(&self.0) }
    }
}

/// A run of a device's memory.
#[derive(Clone, Debug)]
pub struct DevicePart {
    slot: Slot,
    _memory: Arc<Piece>,
}

/// The data of a message.
#[derive(Debug)]
#[non_exhaustive]
pub enum Carried {
    /// The host's.
    Host(Vec<u8>),
    /// A device's: on the way to or from the NIC it is never the host's.
    Device(DevicePart),
}

impl Communicator {
    /// Has the NICs by which this rank and another reach each other read and write memory of a device; or why they cannot.
    ///
    /// # Errors
    /// In words: no NIC joins the two, or one refuses the memory.
    pub fn carries(&mut self, memory: &DeviceMemory, peer: Rank) -> Result<(), String> {
        let whole = memory.0.whole();
        let mut any = false;
        for half in self.links.transmit.iter_mut().filter(|half| half.id.to == peer) {
            half.link.register(whole)?;
            any = true;
        }
        for half in self.links.receive.iter_mut().filter(|half| half.id.from == peer) {
            half.link.register(whole)?;
            any = true;
        }
        if any { Ok(()) } else { Err("no connection joins the two ranks".to_owned()) }
    }

    /// Starts sending bytes to a rank, which receives as many by [`Communicator::start_receive_carried`], or
    /// [`Communicator::start_receive`] of bytes. Those of a device do not change until it is done.
    ///
    /// `placed`: the receiver has its bytes in a device's memory. This rank must know, for it waits then until it has heard where they go.
    ///
    /// # Errors
    /// As [`Communicator::start_send`].
    pub fn start_send_carried(
        &mut self,
        data: Carried,
        to: Rank,
        placed: bool,
    ) -> Result<Pending<Carried>, TransportError> {
        let slot = match &data {
            Carried::Host(bytes) => caller(bytes),
            Carried::Device(part) => part.slot,
        };
        let request = self.carried(self.rank(), to, slot)?;
        self.start_owned(Request { placed, ..request }, data)
    }

    /// Starts receiving bytes from a rank.
    ///
    /// # Errors
    /// As [`Communicator::start_receive`].
    pub fn start_receive_carried(
        &mut self,
        mut data: Carried,
        from: Rank,
    ) -> Result<Pending<Carried>, TransportError> {
        let slot = match &mut data {
            Carried::Host(bytes) => caller_mut(bytes),
            Carried::Device(part) => part.slot,
        };
        let request = self.carried(from, self.rank(), slot)?;
        self.start_owned(request, data)
    }

    fn carried(&self, from: Rank, to: Rank, data: Slot) -> Result<Request, TransportError> {
        let request = self.message_of(ElementType::U8, from, to, data.bytes(), data)?;
        let kernel = Kernel::moving(ElementType::U8).in_space(data.space);
        Ok(Request { kernel, ..request })
    }
}
