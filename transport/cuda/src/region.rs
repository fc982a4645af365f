//! What the memory of a device that others write is divided into. Every rank knows where everything is in every other's.
//!
//! ```text
//!   slots     of connections that come here
//!   flagged   the same for messages with flags, by protocol
//!   credits   of connections that leave from here: messages consumed, by protocol
//!   own       what this rank's kernels use by themselves, by priority
//! ```

use topology::Rank;
use transport::schedule::ConnectionId;

use crate::buffer::Buffer;
use crate::error::CudaError;
use crate::ffi::Address;
use crate::flagged::{FIRST, OWN_BYTES, slot_bytes};
use crate::meet::Setup;
use crate::wire::in_word;

/// Parts begin at multiples of it, so that wide loads find their place.
const ALIGNMENT: usize = 256;
/// A connection's credits.
const CREDITS: usize = 64;

/// A rank's.
#[derive(Debug)]
pub(crate) struct Parts {
    inbound: Vec<ConnectionId>,
    outbound: Vec<ConnectionId>,
    of_connection: usize,
    /// By protocol: where they begin, and bytes of a connection.
    flagged: [(usize, usize); 2],
    credits: usize,
    own: usize,
    bytes: usize,
}

impl Parts {
    pub(crate) fn new(setup: &Setup, rank: Rank) -> Self {
        let of = |end: fn(&ConnectionId) -> Rank| -> Vec<ConnectionId> {
            setup.connections.iter().filter(|id| end(id) == rank).copied().collect()
        };
        let (inbound, outbound) = (of(|id| id.to), of(|id| id.from));
        let of_connection = setup.slots * setup.slot_bytes;
        let mut bytes = inbound.len() * of_connection;
        let mut next = |more: usize| {
            let start = bytes.next_multiple_of(ALIGNMENT);
            // Nothing is added where nothing is asked for.
            bytes = if more == 0 { bytes } else { start + more };
            start
        };
        let data = setup.flagged;
        let flagged = [0, 1].map(|protocol| {
            let each = data.map_or(0, |data| setup.slots * slot_bytes(protocol, data));
            (next(inbound.len() * each), each)
        });
        let present = |more: usize| if data.is_some() { more } else { 0 };
        let credits = next(present(outbound.len() * CREDITS));
        let own = next(present(setup.priorities as usize * OWN_BYTES));
        Self { inbound, outbound, of_connection, flagged, credits, own, bytes }
    }

    /// Of all.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    fn place(all: &[ConnectionId], id: &ConnectionId) -> usize {
        all.iter().position(|other| other == id).unwrap_or(0)
    }

    /// Where the slots of a connection to this rank begin.
    pub(crate) fn slots(&self, id: &ConnectionId) -> Address {
        (Self::place(&self.inbound, id) * self.of_connection) as Address
    }

    /// The same for messages with flags.
    pub(crate) fn flagged(&self, id: &ConnectionId, protocol: usize) -> Address {
        let (start, each) = self.flagged[protocol];
        (start + Self::place(&self.inbound, id) * each) as Address
    }

    /// Where the credit of a connection from this rank is.
    pub(crate) fn credit(&self, id: &ConnectionId, protocol: usize) -> Address {
        (self.credits + Self::place(&self.outbound, id) * CREDITS + protocol * 4) as Address
    }

    /// Where what the kernels use by themselves begins.
    pub(crate) const fn own(&self) -> Address {
        self.own as Address
    }

    /// Makes fresh memory what it is before the first message: no flag anywhere, everything consumed.
    pub(crate) fn begin(&self, buffer: &Buffer) -> Result<(), CudaError> {
        let start = self.flagged[0].0;
        if self.bytes <= start {
            return Ok(());
        }
        let mut all = vec![0_u8; self.bytes - start];
        let first = in_word(FIRST).to_le_bytes();
        for connection in 0..self.outbound.len() {
            for protocol in 0..2 {
                let at = self.credits - start + connection * CREDITS + protocol * 4;
                all[at..at + 4].copy_from_slice(&first);
            }
        }
        buffer.write(start, &all)?;
        // A copy from memory that is not pinned may return before it has arrived; one that follows it waits.
        let mut last = [0_u8];
        buffer.read(self.bytes - 1, &mut last)
    }
}
