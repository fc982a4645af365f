//! What a schedule can do wrong, and where.

use core::fmt;

use topology::schedule::{Buffer, Slice, StepRef};
use topology::{Collective, Rank};

use super::Placement;

/// A step of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct At {
    /// Whose program.
    pub rank: Rank,
    /// Place in [`Program::lanes`](topology::schedule::Program::lanes).
    pub lane: usize,
    /// Place in [`Lane::steps`](topology::schedule::Lane::steps).
    pub step: usize,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, lane {}, step {}", self.rank, self.lane, self.step)
    }
}

/// One stream of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection {
    /// Sender.
    pub from: Rank,
    /// Receiver.
    pub to: Rank,
    /// [`Lane::channel`](topology::schedule::Lane::channel).
    pub channel: u32,
    /// [`Lane::connection`](topology::schedule::Lane::connection).
    pub connection: u32,
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, channel, connection } = self;
        write!(f, "{from} -> {to}, channel {channel}, connection {connection}")
    }
}

/// What a step that never runs waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// The message of its place on the connection.
    Message(Connection),
    /// The receiver to take an earlier message, so that a slot is free.
    Slot(Connection),
    /// A step of another lane of its rank.
    After(StepRef),
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(connection) => write!(f, "a message on {connection}"),
            Self::Slot(connection) => write!(f, "a free slot on {connection}"),
            Self::After(step) => write!(f, "lane {}, step {}", step.lane, step.step),
        }
    }
}

/// The first thing found wrong with a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleViolation {
    /// No ranks.
    #[error("the schedule has no ranks")]
    NoRanks,
    /// The collective has a root and the schedule none, or one that is no rank.
    #[error("{collective} needs a root among the ranks")]
    Root {
        /// The collective.
        collective: Collective,
    },
    /// All-to-all cuts the data in equal blocks.
    #[error("{count} elements cannot be cut in {ranks} equal blocks")]
    Blocks {
        /// Elements.
        count: usize,
        /// Ranks.
        ranks: usize,
    },
    /// Send-receive has one receiver.
    #[error("{receivers} ranks write their output, send-recv has one receiver")]
    Receivers {
        /// Ranks other than the root that write their output.
        receivers: usize,
    },
    /// A peer that is no other rank.
    #[error("rank {rank}, lane {lane}: {peer} is no other rank")]
    Peer {
        /// Whose lane.
        rank: Rank,
        /// Place of the lane.
        lane: usize,
        /// The peer named.
        peer: Rank,
    },
    /// A step needs a peer that its lane does not have.
    #[error("{at}: the lane names no peer to {}", if *.sends { "send to" } else { "receive from" })]
    NoPeer {
        /// The step.
        at: At,
        /// Whether it sends.
        sends: bool,
    },
    /// Two lanes on the same end of a connection, so that the order of messages is open.
    #[error("{connection}: two lanes {}", if *.sends { "send" } else { "receive" })]
    Shared {
        /// The connection.
        connection: Connection,
        /// Which end.
        sends: bool,
    },
    /// Sends and receives do not pair up.
    #[error("{connection}: {sends} sends, {receives} receives")]
    Unmatched {
        /// The connection.
        connection: Connection,
        /// Sends on it.
        sends: usize,
        /// Receives on it.
        receives: usize,
    },
    /// A message of another length than its receiver takes.
    #[error("{at}: the message has {sent} elements, {taken} are taken")]
    Length {
        /// The receiving step.
        at: At,
        /// Elements sent.
        sent: usize,
        /// Elements taken.
        taken: usize,
    },
    /// `after` names no step of another lane.
    #[error("{at}: there is no step {} of another lane {}", .after.step, .after.lane)]
    After {
        /// The step.
        at: At,
        /// What it names.
        after: StepRef,
    },
    /// Source and destination differ in length.
    #[error("{at}: {from} elements go into {into}")]
    Counts {
        /// The step.
        at: At,
        /// Of the source.
        from: usize,
        /// Of the destination.
        into: usize,
    },
    /// A slice beyond its buffer.
    #[error("{at}: elements {} + {} of {:?} are outside its {size}", .slice.offset, .slice.count, .slice.buffer)]
    Bounds {
        /// The step.
        at: At,
        /// The slice.
        slice: Slice,
        /// Elements of the buffer.
        size: usize,
    },
    /// Only the caller writes the input.
    #[error("{at}: the input is written")]
    WritesInput {
        /// The step.
        at: At,
    },
    /// Source and destination overlap and are not the same.
    #[error("{at} ({placement}): source and destination overlap")]
    Overlap {
        /// The step.
        at: At,
        /// Where the caller's buffers are.
        placement: Placement,
    },
    /// Nobody can go on.
    #[error("deadlock with {slots} slots: {at} waits for {waits}")]
    Deadlock {
        /// Slots per connection.
        slots: usize,
        /// A step that never runs though all before it in its lane do.
        at: At,
        /// What it waits for.
        waits: Waits,
    },
    /// Data is read that nobody wrote.
    #[error("{at} ({placement}): reads element {element} of {buffer:?}, which nothing has written")]
    Unwritten {
        /// The step.
        at: At,
        /// Where the caller's buffers are.
        placement: Placement,
        /// The buffer as the step names it.
        buffer: Buffer,
        /// First such element.
        element: usize,
    },
    /// One rank's data comes into a sum twice.
    #[error("{at} ({placement}): the data of rank {of} is in the sum twice")]
    Twice {
        /// The step that adds it the second time.
        at: At,
        /// Where the caller's buffers are.
        placement: Placement,
        /// Whose data.
        of: Rank,
    },
    /// Two steps of one rank touch the same memory in an order that is left to chance, and one writes.
    #[error(
        "{first} and {second} ({placement}): both touch element {element} of {buffer:?}, in no order"
    )]
    Race {
        /// One step.
        first: At,
        /// The other.
        second: At,
        /// Where the caller's buffers are.
        placement: Placement,
        /// The buffer as `first` names it.
        buffer: Buffer,
        /// First element of the buffer that both touch.
        element: usize,
    },
    /// The output is not what the collective asks for.
    #[error("rank {rank} ({placement}): element {element} of the output is {found}")]
    Output {
        /// Whose output.
        rank: Rank,
        /// Where the caller's buffers are.
        placement: Placement,
        /// First wrong element.
        element: usize,
        /// What is there.
        found: Wrong,
    },
    /// A rank may leave a barrier before another came.
    #[error("rank {rank} may leave the barrier before rank {other} came")]
    Barrier {
        /// Who leaves.
        rank: Rank,
        /// Who has not come.
        other: Rank,
    },
}

/// Why an element of the output is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Nothing wrote it.
    Unwritten,
    /// Data of that rank is missing.
    Missing(Rank),
    /// Data of that rank does not belong there.
    Foreign(Rank),
    /// Another element of that rank's data is there.
    Shifted(Rank),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unwritten => f.write_str("never written"),
            Self::Missing(rank) => write!(f, "without the data of rank {rank}"),
            Self::Foreign(rank) => {
                write!(f, "with data of rank {rank}, which does not belong there")
            }
            Self::Shifted(rank) => write!(f, "with another element of rank {rank}"),
        }
    }
}
