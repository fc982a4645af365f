//! Connections between devices: where the slots are, and the words by which their ends wait for each other.
//!
//! ```text
//!   sender    wait consumed > n - slots    write slot n % slots    posted = n + 1
//!   receiver  wait posted > n              read it                 consumed = n + 1
//! ```
//!
//! Messages are counted for the life of the group, in words of 32 bits that wrap. They begin shortly before that, so that every group
//! wraps, not only one that runs for a week.

use topology::Rank;
use transport::schedule::ConnectionId;

use crate::ffi::Address;
use crate::segment::Word;

/// One end of a connection for messages with flags of one protocol, which has slots and numbers of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flagged {
    /// Where the first slot lies for this device.
    pub(crate) slots: Address,
    /// Where the receiver says how many were consumed: in the sender's memory.
    pub(crate) credit: Address,
    /// The number of the next message to be enqueued here.
    pub(crate) next: u64,
}

/// The number of the first message.
pub(crate) const FIRST: u64 = (1 << 32) - 64;

/// What the words say of a number of messages.
#[expect(clippy::cast_possible_truncation, reason = "the words wrap, and comparisons with them do")]
pub(crate) const fn in_word(messages: u64) -> u32 {
    messages as u32
}

/// How bytes travel from one device to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Way {
    /// Straight into the other device's memory: NVLink or PCIe.
    Peer,
    /// Through pinned memory of the host.
    Staged,
    /// Through pinned memory of both hosts and the host's links between them.
    Network,
    /// From the device's own memory by a NIC: GPUDirect RDMA.
    GpuDirect,
}

impl Way {
    /// The word in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Staged => "staged",
            Self::Network => "network",
            Self::GpuDirect => "gpu-direct",
        }
    }
}

/// How this rank sends to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The other.
    pub peer: Rank,
    /// How.
    pub way: Way,
    /// Why not straight into its memory; empty where it is so.
    pub why: String,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) id: ConnectionId,
    /// Where the first slot lies for this device.
    pub(crate) slots: Address,
    /// Where its slots begin among those that the host's links carry, where they do.
    pub(crate) network: Option<usize>,
    /// How many messages were posted.
    pub(crate) posted: Word,
    /// How many of them were consumed.
    pub(crate) consumed: Word,
    /// The number of the next message to be enqueued here.
    pub(crate) next: u64,
    /// By [`PROTOCOLS`](crate::flagged::PROTOCOLS), where they may be used.
    pub(crate) flagged: Option<[Flagged; 2]>,
}

/// All ends, each list sorted by connection.
#[derive(Debug, Default)]
pub(crate) struct Wires {
    pub(crate) transmit: Vec<Wire>,
    pub(crate) receive: Vec<Wire>,
}

pub(crate) fn find(wires: &[Wire], id: ConnectionId) -> Option<usize> {
    wires.binary_search_by_key(&id, |wire| wire.id).ok()
}

impl Wires {
    pub(crate) fn add(&mut self, own: Rank, wire: Wire) {
        if wire.id.from == own { self.transmit.push(wire) } else { self.receive.push(wire) }
    }

    pub(crate) fn sort(&mut self) {
        self.transmit.sort_by_key(|wire| wire.id);
        self.receive.sort_by_key(|wire| wire.id);
    }
}
