//! A judgement over facts or a plan: what is wrong, how one knows, what to do.

use alloc::string::String;
use core::fmt;

use serde::{Deserialize, Serialize};

/// One thing worth telling.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Finding {
    /// Stable kebab-case name, for scripts.
    pub code: String,
    /// How bad.
    pub severity: Severity,
    /// The device, link or pair it is about.
    pub component: String,
    /// The facts it rests on.
    pub evidence: String,
    /// What to do about it.
    pub fix: String,
}

impl Finding {
    /// Of these parts.
    #[must_use]
    pub fn new(
        code: impl Into<String>,
        severity: Severity,
        component: impl Into<String>,
        evidence: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            code: code.into(),
            severity,
            component: component.into(),
            evidence: evidence.into(),
            fix: fix.into(),
        }
    }
}

/// How bad a finding is; ordered, so that the worst is `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Works, slower than it should.
    Degraded,
    /// Do not run jobs here.
    Critical,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Info => "info",
            Self::Degraded => "degraded",
            Self::Critical => "critical",
        })
    }
}
