//! What the starting process tells a rank, and what the rank tells back: JSON on stdin and stdout.

use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Plan JSON; every rank compares its digest with the others'.
    pub(crate) plan: String,
    pub(crate) rank: u32,
    pub(crate) rendezvous: String,
    pub(crate) sizes: Vec<u64>,
    pub(crate) transport: Link,
    pub(crate) timeout_s: u32,
    pub(crate) min_time_ms: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Link {
    Shm,
    Tcp,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Done(Vec<Measured>),
    Failed(String),
}

/// One size on one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) bytes: u64,
    /// Call and return of each operation, in nanoseconds of the host's monotonic clock.
    pub(crate) operations: Vec<(u64, u64)>,
    /// Elements that were not what they should be, over all operations.
    pub(crate) wrong: u64,
}
