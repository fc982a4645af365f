//! Why a fact could not be read.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};
use topology::snapshot::FaultKind;

/// The kind of failure, and words for people. A text of a kind begins with the word for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Trouble {
    pub(super) kind: FaultKind,
    text: String,
}

impl Trouble {
    /// Trouble of a kind, said with the word for it.
    pub(super) fn new(kind: FaultKind, what: impl fmt::Display) -> Self {
        let word = kind.as_str().replace('-', " ");
        Self { kind, text: format!("{word}: {what}") }
    }

    /// Trouble of a kind in words of its own.
    pub(super) fn plain(kind: FaultKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// The same with more said.
    pub(super) fn with(self, more: &str) -> Self {
        Self { text: format!("{}; {more}", self.text), ..self }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl From<&io::Error> for Trouble {
    fn from(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::new(FaultKind::Absent, "no such file"),
            io::ErrorKind::PermissionDenied => Self::new(FaultKind::Denied, "permission"),
            _ => Self::new(FaultKind::Unreadable, error),
        }
    }
}
