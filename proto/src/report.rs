//! What a job tells of a collective it ran.

use std::time::Duration;

use topology::Collective;

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationReport {
    /// What it was.
    pub collective: Collective,
    /// How it ended.
    pub outcome: OperationOutcome,
    /// The collective's total data in bytes.
    pub bytes: u64,
    /// From its first rank's start to its end.
    pub duration: Duration,
    /// What the plan predicts for this size.
    pub predicted: Option<Duration>,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperationOutcome {
    /// Every rank has its result.
    Ok,
    /// Given up after its limit of time.
    Timeout,
    /// Ended by an error.
    Failed,
}

impl OperationOutcome {
    /// Every outcome.
    pub const ALL: [Self; 3] = [Self::Ok, Self::Timeout, Self::Failed];

    /// The word in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Timeout => "timeout",
            Self::Failed => "failed",
        }
    }
}
