//! RDMA over InfiniBand and RoCE: reliable connections by libibverbs.
//!
//! ```text
//!   sender                                             receiver
//!   region of slots  ── write, number of message ──▶   region of slots; one receive posted per slot
//!   credits          ◀── empty write, number consumed ─   release
//! ```
//!
//! A message is a frame as on TCP (header of 64 bytes, then data), written into the slot of the receiver's memory in which it is
//! consumed; the number that goes along ends one receive, and that completion is how the receiver learns of it. There is a receive for
//! every slot, and a slot is written only once the receiver has given it back, so a receiver is never "not ready". Frames that fit
//! go inline. Messages take turns over a connection's queue pairs; each pair is signalled when it was idle and every few messages;
//! whoever waits for the last one adds an empty signalled write. A connection is flushed once its messages are acknowledged, or the
//! receiver has given their slots back: what a peer that leaves has consumed needs no acknowledgement of its NIC any more.
//!
//! Both ends poll; before a rank sleeps it asks for an event and polls once more. Nothing is encrypted.
//!
//! **libibverbs is loaded at run time** (`ffi`): programs start without it, and a build needs neither it nor a C compiler. The crates for
//! it are not used: both generate their bindings at build time, with cmake and clang (build dependencies `cmake` and `bindgen` of
//! `ibverbs-sys` 0.3 and of `rdma-mummy-sys` 0.2, on which `ibverbs` 0.9 and `sideway` 0.4 stand), and a program with the first is linked
//! with the library, so it does not start where that is missing. What is used here is some twenty functions and fifteen structures, which
//! a test compares with the header.
//!
//! Data goes through slots, which are registered once. Where it lies in a buffer of `Communicator::allocate` (`registry`), copies are spared:
//!
//! - the sender's, where the data lasts (`executor::lasting`): the NIC puts header and data together;
//! - the receiver's, where nothing of the operation touches the place before the message (`executor::landing`): the receiver tells the
//!   sender of it ahead (`places`), which then writes the data there and the header alone into the slot.
//!
//! Peers may write such a buffer only by a key they are told, which is given for messages that the operation waits for. An operation ends
//! when they have all come; a group that fails takes its queue pairs down and lets the NIC finish what it had begun before any call
//! returns, so **nothing is written into callers' memory once an operation has ended**.
//!
//! A channel uses the ports that the plan names for its hops (`schedule::rails`). Where it names none, channels take turns over the ports
//! of a rank: the n-th channel uses the n-th port (modulo their number) at both ends, so hosts whose ports have the same names in the
//! same order stay on their rails.

mod end;
mod events;
mod ffi;
mod gid;
mod line;
mod nic;
mod places;
mod receive;
mod registry;
mod status;
mod transmit;

pub(crate) use end::{Answer, End, Offer};
pub(crate) use nic::{Nics, Port, against};
pub(crate) use receive::FAREWELL;
pub(crate) use registry::{Piece, Registry};

/// Objects of the NICs that this process has now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerbsObjects {
    /// Ends of connections.
    pub queue_pairs: u64,
    /// Registered pieces of memory.
    pub regions: u64,
    /// Completion queues.
    pub completion_queues: u64,
}

/// What this process has made and not destroyed; nothing once its communicators are dropped.
#[must_use]
pub fn verbs_objects() -> VerbsObjects {
    let (queue_pairs, regions, completion_queues) = ffi::counts();
    VerbsObjects { queue_pairs, regions, completion_queues }
}

/// Messages that this process has sent and received over verbs links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerbsMessages {
    /// All.
    pub sent: u64,
    /// Those of them whose data a NIC read where the caller has it; that of the others was copied first.
    pub lent: u64,
    /// Messages that this process has received.
    pub received: u64,
    /// Those of them whose data a NIC wrote where the caller wants it; that of the others was copied there.
    pub landed: u64,
}

/// What this process has sent and received since it began.
#[must_use]
pub fn verbs_messages() -> VerbsMessages {
    let ((sent, lent), (received, landed)) = registry::counts();
    VerbsMessages { sent, lent, received, landed }
}
