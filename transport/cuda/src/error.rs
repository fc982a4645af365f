//! What can go wrong on the way to a device and on it.

use std::time::Duration;

use topology::{BusId, Rank};
use transport::schedule::{InvalidSizing, ScheduleError};
use transport::{ConnectError, ElementType, Failure, ReduceOp, TransportError};

use crate::CompileError;

/// A call that CUDA's driver refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}{}: {name}{}", device.map(|id| format!(" on {id}")).unwrap_or_default(), in_words(words))]
pub struct DriverError {
    /// The function, as the library exports it.
    pub call: &'static str,
    /// On which device, where it was for one.
    pub device: Option<BusId>,
    /// The `CUresult`.
    pub code: u32,
    /// CUDA's name for it.
    pub name: String,
    /// CUDA's words for it; empty where it has none.
    pub words: String,
}

fn in_words(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(" ({words})") }
}

impl DriverError {
    /// The same with the device it was for.
    pub(crate) fn on(self, device: BusId) -> Self {
        Self { device: self.device.or(Some(device)), ..self }
    }
}

/// Why this process has no CUDA. That is an ordinary state of a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoDriver {
    /// The library cannot be loaded.
    #[error("CUDA's driver is not found: {library}: {cause}")]
    NotFound {
        /// What was looked for.
        library: String,
        /// What the loader said.
        cause: String,
    },
    /// A function is missing.
    #[error("CUDA's driver ({library}) is too old: it has no {missing}")]
    Old {
        /// Which library.
        library: String,
        /// The first function that is missing.
        missing: &'static str,
    },
    /// The driver is there and finds no device.
    #[error("CUDA's driver finds no device")]
    NoDevice,
    /// The driver does not start.
    #[error("CUDA's driver does not start: {0}")]
    Refused(DriverError),
}

/// Why something on device memory was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// This process has no CUDA.
    #[error(transparent)]
    NoDriver(#[from] NoDriver),
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The device cannot do what operations need.
    #[error("device {device} {why}")]
    Device {
        /// Which.
        device: BusId,
        /// What is wrong.
        why: &'static str,
    },
    /// The plan does not say which device a rank is.
    #[error("the plan says no PCI address for rank {rank}; name a device")]
    NoAddress {
        /// Which rank.
        rank: Rank,
    },
    /// There are no kernels, and the operation combines elements.
    #[error("no kernels for this device: {0}")]
    Kernels(String),
    /// The ranks did not come together.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A rank could not set up its part.
    #[error("rank {rank}: {cause}")]
    Peer {
        /// Which.
        rank: Rank,
        /// What it said.
        cause: String,
    },
    /// Two ranks do not hold the same.
    #[error("rank {a} has {what} {a_value}, rank {b} has {b_value}")]
    Differs {
        /// Of what.
        what: String,
        /// One rank.
        a: Rank,
        /// What it has.
        a_value: String,
        /// The other.
        b: Rank,
        /// What it has.
        b_value: String,
    },
    /// Settings out of range.
    #[error("{0}")]
    Options(&'static str),
    /// The slots are too small.
    #[error(transparent)]
    Sizing(#[from] InvalidSizing),
    /// The plan has no schedule for this; nothing was enqueued.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The communicator was made for other collectives or priorities; nothing was enqueued.
    #[error("the communicator was not made for {0}")]
    NotConnected(String),
    /// Memory of unfitting length or alignment; nothing was enqueued.
    #[error("{what} of {found} bytes, not {expected}")]
    Length {
        /// Which memory.
        what: &'static str,
        /// Needed.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// Memory that does not begin at a multiple of its elements' size; nothing was enqueued.
    #[error("{what} at {address:#x}, which is no multiple of {element_bytes}")]
    Unaligned {
        /// Which memory.
        what: &'static str,
        /// Where.
        address: u64,
        /// Of an element.
        element_bytes: usize,
    },
    /// An operation that does not combine such elements; nothing was enqueued.
    #[error("{op} does not combine elements of type {element}")]
    NotCombined {
        /// As given.
        op: ReduceOp,
        /// As given.
        element: ElementType,
    },
    /// The operation or group needs more memory than it may take; nothing was enqueued.
    #[error(
        "{needed} bytes of device and pinned memory are needed beside the callers' own, the budget is {budget}"
    )]
    Budget {
        /// Bytes.
        needed: usize,
        /// [`Options::memory_bytes`](crate::Options::memory_bytes).
        budget: usize,
    },
    /// Memory that ranks share could not be had.
    #[error("cannot {what}: {source}")]
    Local {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// The group is broken; what was in flight has ended on every rank, and what is in the buffers is nobody's result.
    #[error(transparent)]
    Failed(Box<Failure>),
    /// The host's side of the group.
    #[error(transparent)]
    Transport(TransportError),
    /// Not done within the limit of a wait; the operation goes on.
    #[error("not done within {0:?}")]
    NotYet(Duration),
}

impl From<TransportError> for CudaError {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::Failed(failure) | TransportError::Unusable(failure) => {
                Self::Failed(failure)
            }
            other => Self::Transport(other),
        }
    }
}

impl From<CompileError> for CudaError {
    fn from(error: CompileError) -> Self {
        Self::Kernels(error.to_string())
    }
}
