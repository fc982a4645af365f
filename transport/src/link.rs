//! Connections between two ranks: the one place that knows how bytes travel.
//!
//! A connection runs in one direction and has a few slots. The sending half hands out the next free slot, the executor
//! computes straight into it, `post` sends it off; the receiving half shows the next message where it lies, the executor
//! computes straight from it, `release` gives the slot back. Nothing is allocated or locked per message.
//!
//! ```text
//!   Transmit   poll_slot ──▶ (executor writes) ──▶ post ──▶ poll_flushed
//!   Receive    (offer ──▶) poll_message ──▶ (executor reads) ──▶ release
//! ```
//!
//! All calls return at once. A waiter polls, or sleeps until [`Interest`]'s descriptor or its own doorbell says that polling
//! again is worth it: sockets and completion channels are descriptors, peers in shared memory ring the doorbell. Links with
//! registered memory put their key on every [`Slot`]; links to devices hand out slots of another
//! [`Space`](crate::memory::Space), which the executor gives to that space's kernels.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};
use topology::{Collective, Rank};

use crate::element::{ElementType, ReduceOp};
use crate::memory::Slot;

pub(crate) mod header;
pub(crate) mod paired;
pub(crate) mod shm;
pub(crate) mod striped;
pub(crate) mod tcp;
pub(crate) mod verbs;

/// How bytes travel between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LinkKind {
    /// Shared memory of one host.
    Shm,
    /// A TCP connection.
    Tcp,
    /// RDMA: InfiniBand or RoCE.
    Verbs,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
        })
    }
}

/// What the two ends of a message must agree on: which operation it belongs to, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Tag {
    /// Number of the operation within its communicator.
    pub(crate) operation: u64,
    /// Elements of the operation's total data.
    pub(crate) count: u64,
    /// [`signature`] of the operation.
    pub(crate) signature: u64,
    /// Of this message.
    pub(crate) bytes: u32,
}

/// Collective, element type, reduction and root in one word.
pub(crate) fn signature(
    collective: Collective,
    root: Option<Rank>,
    element: ElementType,
    op: Option<ReduceOp>,
) -> u64 {
    // The places in their lists of all, which a test compares: a search would show in the smallest operations.
    let (collective, element) = (collective as u64, element as u64);
    let op = op.map_or(0, |op| 1 + op as u64);
    collective | element << 8 | op << 16 | u64::from(root.map_or(u32::MAX, |r| r.0)) << 32
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let byte = |shift: u32| usize::from(self.signature.to_le_bytes()[shift as usize / 8]);
        match Collective::ALL.get(byte(0)) {
            Some(collective) => write!(f, "{collective}")?,
            None => write!(f, "operation of kind {}", byte(0))?,
        }
        write!(f, " number {} of {} elements (", self.operation, self.count)?;
        match ElementType::ALL.get(byte(8)) {
            Some(element) => write!(f, "{element}")?,
            None => write!(f, "elements of kind {}", byte(8))?,
        }
        match byte(16).checked_sub(1).map(|op| ReduceOp::ALL.get(op)) {
            None => {}
            Some(Some(op)) => write!(f, ", {op}")?,
            Some(None) => write!(f, ", combined by {}", byte(16))?,
        }
        write!(f, ")")?;
        let root = self.signature >> 32;
        if root != u64::from(u32::MAX) {
            write!(f, " with root {root}")?;
        }
        write!(f, ", message of {} bytes", self.bytes)
    }
}

/// Why a link does not work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// The other end is gone.
    #[error("the connection was closed")]
    Closed,
    /// The system says so.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What arrived is not of this protocol, session, generation or connection.
    #[error("{what} is {found:#x}, not {expected:#x}")]
    Corrupt { what: &'static str, expected: u64, found: u64 },
    /// A NIC says so: which, towards which, and what.
    #[error("{words}")]
    Nic {
        words: String,
        /// It is the cause. Else it may be what another failure led to: the peer's end was taken down, or its NIC is silent.
        cause: bool,
    },
    /// The peer runs another operation.
    #[error("this rank runs {ours}, the peer {theirs}")]
    Mismatch { ours: Tag, theirs: Tag },
}

/// What to sleep on until a half can move again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Interest<'a> {
    /// The peer rings this rank's doorbell.
    Doorbell,
    /// The descriptor becomes readable.
    Readable(BorrowedFd<'a>),
    /// The descriptor becomes writable.
    Writable(BorrowedFd<'a>),
    /// One of the descriptors becomes readable.
    Either(BorrowedFd<'a>, BorrowedFd<'a>),
}

/// What can be made to go wrong, to see how it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
#[non_exhaustive]
pub enum Fault {
    /// The peer's memory is named by a key it never gave.
    WrongKey,
    /// Queue pairs are put into their state of error.
    Flush,
}

/// Sending half of a connection.
pub(crate) trait Transmit: Send + fmt::Debug {
    /// The next free slot, the same one until it is posted; `None` while all are in flight.
    fn poll_slot(&mut self) -> Result<Option<Slot>, LinkError>;
    /// The same for a message of exactly so many bytes, of links that keep short messages elsewhere than long ones.
    fn poll_slot_of(&mut self, _bytes: usize) -> Result<Option<Slot>, LinkError> {
        self.poll_slot()
    }
    /// Whether both ends work on the same memory: what is posted needs nobody to move it.
    fn is_memory(&self) -> bool {
        false
    }
    /// Sends the first `tag.bytes` bytes of the slot [`Transmit::poll_slot`] returned.
    fn post(&mut self, tag: &Tag) -> Result<(), LinkError>;
    /// Whether data of a buffer can be lent at all.
    fn holds(&self, _buffer: Slot) -> bool {
        false
    }
    /// Whether the message that is posted next is sent from where its data lies, or will lie when it is posted; the slot's place for
    /// it is then left alone. Where `lasts`, nobody writes the data until the connection is flushed, or the message is known to be
    /// consumed; else somebody may once posting it has returned.
    fn lend(&mut self, _data: Slot, _lasts: bool) -> bool {
        false
    }
    /// Has what carries the link's messages read and write memory of a device; or why it cannot.
    fn register(&mut self, _memory: Slot) -> Result<(), String> {
        Err("no NIC carries this link".to_owned())
    }
    /// Whether the receiver has said where the next message goes in its own memory; or it is for no such place.
    fn has_place(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }
    /// Whether posted messages wait in this process to be moved by [`Transmit::poll_flushed`].
    fn is_queued(&self) -> bool;
    /// Moves what is queued; `true` when every posted message has left this process.
    fn poll_flushed(&mut self) -> Result<bool, LinkError>;
    /// What to sleep on while it cannot move.
    fn interest(&self) -> Interest<'_>;
    /// Says that this rank is about to sleep, to whatever makes [`Interest`]'s descriptor ready; whether it can move already.
    fn arm(&mut self) -> bool {
        false
    }
    /// Whether what was posted still arrives, as far as is known without sending more.
    fn check(&mut self) -> Result<(), LinkError> {
        Ok(())
    }
    /// The group has failed: what was lent is no longer read.
    fn close(&mut self) {}
    /// For tests of links on real devices.
    fn provoke(&mut self, _fault: Fault) {}
    /// Bytes that have moved so far, of messages that are not whole yet too; 0 where messages move as a whole.
    fn moved(&self) -> u64 {
        0
    }
}

/// Receiving half of a connection.
pub(crate) trait Receive: Send + fmt::Debug {
    /// Says where the data of the next message goes, so that it may be put there at once: [`Receive::poll_message`] then shows that
    /// place. Said before every poll of a message that is copied as it is; the place may be written from the first on.
    fn land(&mut self, _place: Slot) {}
    /// The next message, the same one until it is released; it must be the one described by `expected`.
    fn poll_message(&mut self, expected: &Tag) -> Result<Option<Slot>, LinkError>;
    /// Gives the slot of the message back.
    fn release(&mut self);
    /// As [`Transmit::is_memory`].
    fn is_memory(&self) -> bool {
        false
    }
    /// Whether messages can come straight into a buffer.
    fn holds(&self, _buffer: Slot) -> bool {
        false
    }
    /// As [`Transmit::register`].
    fn register(&mut self, _memory: Slot) -> Result<(), String> {
        Err("no NIC carries this link".to_owned())
    }
    /// How many messages after the next one may be offered a place.
    fn window(&self) -> usize {
        0
    }
    /// Offers a place to the message that is so many after the next one, which is as long: it comes there or into memory of the link.
    /// Until it is released nobody else reads or writes the place. Messages are offered theirs in their order.
    fn offer(&mut self, _ahead: usize, _place: Slot) {}
    /// The group has failed: nothing comes into a place that was offered once this returns.
    fn close(&mut self) {}
    /// Before this rank leaves: tells the sender what it has to know. Whether it has heard; called until it has.
    fn leave(&mut self) -> bool {
        true
    }
    /// The sender has left: it hears nothing any more.
    fn forget(&mut self) {}
    /// What to sleep on while there is no message.
    fn interest(&self) -> Interest<'_>;
    /// Says that this rank is about to sleep, to whatever makes [`Interest`]'s descriptor ready; whether it can move already.
    fn arm(&mut self) -> bool {
        false
    }
    /// As [`Transmit::moved`].
    fn moved(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_places_in_lists() {
        assert!(Collective::ALL.iter().enumerate().all(|(at, c)| *c as usize == at));
        assert!(ElementType::ALL.iter().enumerate().all(|(at, e)| *e as usize == at));
        assert!(ReduceOp::ALL.iter().enumerate().all(|(at, o)| *o as usize == at));
        let signature =
            signature(Collective::Reduce, Some(Rank(3)), ElementType::Bf16, Some(ReduceOp::Max));
        let tag = Tag { operation: 1, count: 2, signature, bytes: 4 };
        assert_eq!(
            tag.to_string(),
            "reduce number 1 of 2 elements (bf16, max) with root 3, message of 4 bytes"
        );
    }
}
