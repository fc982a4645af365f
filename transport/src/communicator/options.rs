//! What a communicator is told, and what an operation tells.

use std::fmt;
use std::time::Duration;

use topology::Collective;

use crate::executor::StepHook;

/// Which links may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Shared memory within a host, TCP between hosts.
    #[default]
    Auto,
    /// Shared memory alone; refused where a peer shares none.
    Shm,
    /// TCP alone.
    Tcp,
}

impl Transport {
    /// The word on command lines.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

/// Settings of a communicator. All but the hook and the time limits must be equal on every rank.
pub struct Options {
    /// Longest time an operation goes without progress before the silent rank is named.
    pub timeout: Duration,
    /// Longest time for all ranks to come together.
    pub join_timeout: Duration,
    /// Which links.
    pub transport: Transport,
    /// Messages in flight per connection.
    pub slots: usize,
    /// Longest message in bytes.
    pub slot_bytes: usize,
    /// What will be asked for; connections are made for these.
    pub collectives: Vec<Collective>,
    /// Called after every step.
    pub on_step: Option<StepHook>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            join_timeout: Duration::from_secs(60),
            transport: Transport::Auto,
            // 4 slots of 128 KiB were fastest for private buffers in shared memory (measured on two cores with 1.25 MiB of
            // second-level cache each): the slots of a connection stay in cache between the two ends.
            slots: 4,
            slot_bytes: 128 << 10,
            collectives: vec![Collective::AllReduce],
            on_step: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("timeout", &self.timeout)
            .field("join_timeout", &self.join_timeout)
            .field("transport", &self.transport)
            .field("slots", &self.slots)
            .field("slot_bytes", &self.slot_bytes)
            .field("collectives", &self.collectives)
            .finish_non_exhaustive()
    }
}

/// What an operation took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// From call to return on this rank.
    pub elapsed: Duration,
    /// Total data of the collective in bytes, as nccl-tests counts it.
    pub bytes: u64,
    /// Channels of the plan it ran on.
    pub channels: usize,
    /// Steps this rank did.
    pub steps: usize,
    /// Times this rank slept.
    pub sleeps: u64,
}
