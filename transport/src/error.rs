//! What can go wrong while ranks meet and while an operation runs. Every error that has a culprit names it.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use topology::{Collective, Rank};

use crate::element::{ElementType, ReduceOp};
use crate::link::LinkKind;
use crate::observe::Outcome;
use crate::schedule::{InvalidSizing, ScheduleError};
use crate::variables::NoAlgorithm;

/// Where in an operation a rank was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepName {
    /// Number of the operation within its communicator.
    pub operation: u64,
    /// What it does.
    pub collective: Collective,
    /// [`channel_ids`](crate::schedule::channel_ids) number.
    pub channel: u32,
    /// Connection within the channel.
    pub connection: u32,
    /// Step of the lane, from 0.
    pub step: usize,
    /// Steps the lane has.
    pub of: usize,
}

impl StepName {
    /// Stands for the memory that all ranks of a host share, in place of a channel of the plan.
    pub const SHARED: u32 = u32::MAX - 1;
}

impl fmt::Display for StepName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, collective, channel, connection, step, of } = self;
        if *channel == Self::SHARED {
            return write!(
                f,
                "{collective} number {operation}, channel of the host's memory, step {step} of {of}"
            );
        }
        write!(
            f,
            "{collective} number {operation}, channel {channel}, connection {connection}, step {step} of {of}"
        )
    }
}

/// A rank and where it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Culprit {
    /// Its number.
    pub rank: Rank,
    /// Its host's name.
    pub host: String,
    /// How the rank that noticed reaches it, or would.
    pub link: LinkKind,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} on {} (link {})", self.rank, self.host, self.link)
    }
}

/// The step in words, for messages.
fn at(step: Option<&StepName>) -> String {
    step.map_or_else(|| "between operations".to_owned(), |step| format!("in {step}"))
}

/// Why an operation ended on every rank. What one rank notices, all are told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Failure {
    /// A rank died or left.
    #[error("{culprit} is lost: {cause}; noticed by rank {reported_by} {}", at(step.as_ref()))]
    PeerLost {
        /// Who.
        culprit: Culprit,
        /// How that showed.
        cause: String,
        /// Where the rank that noticed was.
        step: Option<StepName>,
        /// Who noticed.
        reported_by: Rank,
    },
    /// A rank lives but has not answered within the time limit.
    #[error("{culprit} did nothing for {waited:?}; noticed by rank {reported_by} {}", at(step.as_ref()))]
    Timeout {
        /// Whom everybody waits for.
        culprit: Culprit,
        /// The time limit.
        waited: Duration,
        /// Where the rank that noticed was.
        step: Option<StepName>,
        /// Who noticed.
        reported_by: Rank,
    },
    /// Two ranks are not in the same operation: other collective, root, size or order of calls.
    #[error("{culprit} runs {theirs} where rank {reported_by} runs {ours}; {}", at(step.as_ref()))]
    OperationMismatch {
        /// The sender of the unexpected message.
        culprit: Culprit,
        /// What the receiver runs.
        ours: String,
        /// What the sender runs.
        theirs: String,
        /// Where the receiver was.
        step: Option<StepName>,
        /// The receiver.
        reported_by: Rank,
    },
    /// A link carried what it must not, or the system refused.
    #[error("the link to {culprit} failed: {cause}; noticed by rank {reported_by} {}", at(step.as_ref()))]
    Link {
        /// The other end.
        culprit: Culprit,
        /// What happened.
        cause: String,
        /// Where the rank that noticed was.
        step: Option<StepName>,
        /// Who noticed.
        reported_by: Rank,
    },
}

impl Failure {
    /// The rank at fault, as far as can be told.
    #[must_use]
    pub const fn culprit(&self) -> &Culprit {
        match self {
            Self::PeerLost { culprit, .. }
            | Self::Timeout { culprit, .. }
            | Self::OperationMismatch { culprit, .. }
            | Self::Link { culprit, .. } => culprit,
        }
    }

    /// How operations in flight ended by it, and who noticed.
    pub(crate) const fn end(&self) -> (Outcome, Rank) {
        match self {
            Self::Timeout { reported_by, .. } => (Outcome::TimedOut, *reported_by),
            Self::PeerLost { reported_by, .. }
            | Self::OperationMismatch { reported_by, .. }
            | Self::Link { reported_by, .. } => (Outcome::Failed, *reported_by),
        }
    }
}

/// Why ranks did not come together. What one rank finds, rank 0 tells all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// Some never came.
    #[error("{} never came within {limit:?}", list(ranks))]
    Missing {
        /// Who.
        ranks: Vec<Rank>,
        /// The time limit.
        limit: Duration,
    },
    /// Two ranks do not hold the same.
    #[error("rank {a} on {a_host} has {what} {a_value}, rank {b} on {b_host} has {b_value}")]
    Differs {
        /// Of what: the plan, its generation, a setting.
        what: String,
        /// One rank.
        a: Rank,
        /// Its host.
        a_host: String,
        /// What it has.
        a_value: String,
        /// The other.
        b: Rank,
        /// Its host.
        b_host: String,
        /// What it has.
        b_value: String,
    },
    /// Two processes claim one rank.
    #[error("rank {rank} came twice, from {a_host} and from {b_host}")]
    Twice {
        /// Which.
        rank: Rank,
        /// First seen on.
        a_host: String,
        /// Then on.
        b_host: String,
    },
}

fn list(ranks: &[Rank]) -> String {
    let numbers: Vec<_> = ranks.iter().map(ToString::to_string).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, numbers.join(", "))
}

/// Why a communicator could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The ranks do not match, or are not all there.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// Rank 0 was not found.
    #[error("rank 0 never came within {limit:?}: {place}: {cause}")]
    NoRankZero {
        /// Where it was looked for.
        place: String,
        /// The time limit.
        limit: Duration,
        /// What the last attempt said.
        cause: String,
    },
    /// Rank 0 cannot serve the rendezvous.
    #[error("cannot serve the rendezvous at {place}: {source}")]
    Serve {
        /// Where.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// A peer was there but no connection came about.
    #[error("cannot connect to {peer}: {source}")]
    Peer {
        /// Who.
        peer: Culprit,
        /// Why.
        source: io::Error,
    },
    /// Shared memory was demanded and a peer is on another host or in another network namespace.
    #[error("rank {rank} on {host} shares no memory with rank {own}")]
    NotShared {
        /// This rank.
        own: Rank,
        /// The other.
        rank: Rank,
        /// The other's host.
        host: String,
    },
    /// This rank is not in the plan.
    #[error("rank {rank} is not in a plan of {ranks} ranks")]
    NoSuchRank {
        /// As given.
        rank: Rank,
        /// In the plan.
        ranks: usize,
    },
    /// The group that was to be split failed.
    #[error("the group to be split: {0}")]
    Parent(#[source] TransportError),
    /// The others found this rank at fault, and may have gone on without it.
    #[error("the others go on without this rank: {0}")]
    Excluded(Box<Failure>),
    /// Too few ranks of a group that failed came to make another.
    #[error(
        "only {} came; {} may live behind a cut network, so half is not enough",
        list(came),
        list(silent)
    )]
    TooFew {
        /// Who came.
        came: Vec<Rank>,
        /// Of whom it is not known whether they live.
        silent: Vec<Rank>,
    },
    /// The plan cannot be executed.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The group would take more memory than it may; nobody was met.
    #[error("the group needs {needed} bytes of memory, its budget is {budget}")]
    Budget {
        /// Bytes, of the rank that needs most.
        needed: usize,
        /// [`Options::memory_bytes`](crate::Options::memory_bytes).
        budget: usize,
    },
    /// The slots are too small.
    #[error(transparent)]
    Sizing(#[from] InvalidSizing),
    /// Too few slots, or settings out of range.
    #[error("{0}")]
    Options(&'static str),
    /// The system refused something of our own.
    #[error("cannot {what}: {source}")]
    Local {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// Why an operation did not complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The group is broken; every rank gets this, within the time limit.
    #[error(transparent)]
    Failed(Box<Failure>),
    /// An earlier operation failed; nothing was sent.
    #[error("the communicator is unusable since an earlier failure: {0}")]
    Unusable(Box<Failure>),
    /// The plan has no schedule for this; nothing was sent.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Buffers of unequal or unfitting length; nothing was sent.
    #[error("{what} of {found} elements, not {expected}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Needed.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// An operation that does not combine such elements; nothing was sent.
    #[error("{op} does not combine elements of type {element}")]
    NotCombined {
        /// As given.
        op: ReduceOp,
        /// As given.
        element: ElementType,
    },
    /// A rank to send to or receive from that is not another one of the group; nothing was sent.
    #[error("rank {peer} is not another rank of the {ranks}")]
    NoPeer {
        /// As given.
        peer: Rank,
        /// In the group.
        ranks: usize,
    },
    /// A rank of an uneven all-to-all sends another count than its receiver expects; no data was sent.
    #[error("rank {from} sends {sends} elements to rank {to}, which expects {receives}")]
    Blocks {
        /// Sender.
        from: Rank,
        /// Receiver.
        to: Rank,
        /// What the one sends.
        sends: usize,
        /// What the other expects.
        receives: usize,
    },
    /// The host has no memory left for a registered buffer, or the group's heap is full.
    #[error("no {bytes} bytes for a registered buffer: {cause}")]
    NoMemory {
        /// Asked for.
        bytes: usize,
        /// What the system said.
        cause: String,
    },
    /// The operation needs more memory than the group may take; nothing was sent, and the group is as usable as before.
    #[error(
        "the operation needs {needed} bytes of memory beside its buffers, the group's budget is {budget}"
    )]
    Budget {
        /// Bytes, with what the group took when it was made; of the rank that needs most.
        needed: usize,
        /// [`Options::memory_bytes`](crate::Options::memory_bytes).
        budget: usize,
    },
    /// Some ranks did not come to a monitored barrier. The group is as usable as before.
    #[error("{} did not come to the monitored barrier within {limit:?}", list(ranks))]
    Missing {
        /// Who.
        ranks: Vec<Rank>,
        /// The time limit.
        limit: Duration,
    },
    /// The plan has no algorithm that is allowed; nothing was sent.
    #[error(transparent)]
    NotAllowed(#[from] NoAlgorithm),
    /// The communicator was made for other collectives; nothing was sent.
    #[error("the communicator was not made for {0}")]
    NotConnected(Collective),
    /// The communicator was made for fewer priorities; nothing was sent.
    #[error("there is no priority {priority}: the communicator was made for {priorities}, from 0")]
    NoPriority {
        /// As given.
        priority: u32,
        /// How many it was made for.
        priorities: u32,
    },
}

impl From<Refusal> for ConnectError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

/// An error in words, with its causes, but for those that its words already hold.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !words.contains(&next) {
            words = format!("{words}: {next}");
        }
        cause = error.source();
    }
    words
}
