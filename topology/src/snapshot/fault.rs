//! Facts that could not be read.

use alloc::string::String;
use core::fmt;

use serde::{Deserialize, Serialize};

/// A fact that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The probe or reader.
    pub probe: String,
    /// The file, call or place in the input.
    pub place: String,
    /// What kind of failure.
    #[serde(default)]
    pub kind: FaultKind,
    /// What went wrong, in words.
    pub error: String,
    /// Unix time in milliseconds, where a clock was at hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_unix_ms: Option<u64>,
}

/// Why a fact could not be read.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// Permissions or a cgroup forbid it.
    Denied,
    /// The device fell off the bus, or waits for a reset.
    Lost,
    /// There is no such file, call or device.
    Absent,
    /// No answer in time.
    TimedOut,
    /// There, and reading it failed.
    #[default]
    Unreadable,
    /// Read, and it makes no sense.
    Malformed,
}

impl FaultKind {
    /// The word in JSON output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Lost => "lost",
            Self::Absent => "absent",
            Self::TimedOut => "timed-out",
            Self::Unreadable => "unreadable",
            Self::Malformed => "malformed",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Fault {
    /// A fault without a time.
    #[must_use]
    pub fn new(
        probe: impl Into<String>,
        place: impl Into<String>,
        kind: FaultKind,
        error: impl Into<String>,
    ) -> Self {
        Self {
            probe: probe.into(),
            place: place.into(),
            kind,
            error: error.into(),
            at_unix_ms: None,
        }
    }
}
