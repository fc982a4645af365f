//! What the starting process tells a rank, and what the rank tells back: JSON on stdin and stdout.

use serde::{Deserialize, Serialize};
use topology::{Algorithm, Collective};

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Plan JSON; every rank compares its digest with the others'.
    pub(crate) plan: String,
    pub(crate) rank: u32,
    pub(crate) rendezvous: String,
    pub(crate) sizes: Vec<u64>,
    pub(crate) transport: Link,
    /// As [`transport::Options::set`] takes `proto`.
    pub(crate) protocol: Option<String>,
    pub(crate) timeout_s: u32,
    /// Least time for each size.
    pub(crate) min_time_ms: u32,
    /// Most time for all sizes together, if any: sizes that would go beyond it are left out.
    pub(crate) most_time_ms: Option<u32>,
    pub(crate) warm_up: u32,
    pub(crate) collective: Collective,
    /// As [`transport::ElementType`] is spelled.
    pub(crate) element: String,
    /// As [`transport::ReduceOp`] is spelled.
    pub(crate) op: String,
    pub(crate) in_place: bool,
    pub(crate) cold: bool,
    /// Registered buffers.
    pub(crate) shared: bool,
    /// Along the plan's channels even where all ranks share a host.
    pub(crate) by_plan: bool,
    pub(crate) pin: bool,
    /// Whether it is measured how much hides behind work.
    pub(crate) overlap: bool,
    /// Of send-recv among two: one after the other instead of both at once; a time is that of both.
    pub(crate) ping_pong: bool,
    /// As [`transport::Options::report`].
    pub(crate) report: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Link {
    Auto,
    Shm,
    Tcp,
    Verbs,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Done(Vec<Measured>),
    Failed(String),
}

/// One size, the same on every rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Total data of the collective, as nccl-tests counts it.
    pub(crate) bytes: u64,
    /// The way it took.
    pub(crate) path: String,
    /// Of the plan as it went, where that was its channels'.
    pub(crate) algorithm: Option<Algorithm>,
    /// Of each batch (of one operation where cold): nanoseconds an operation, of the slowest rank.
    pub(crate) batches: Vec<f64>,
    /// Operations that were timed.
    pub(crate) operations: u64,
    /// Elements that were not what they should be, over all ranks and all operations that were checked.
    pub(crate) wrong: u64,
    /// The share of the operation that hid behind work, where that was measured.
    pub(crate) hidden: Option<f64>,
}
