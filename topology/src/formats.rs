//! Readers of recorded machines. Pure functions over bytes; the format is recognised by content.

use alloc::string::String;
use alloc::vec::Vec;

use crate::Snapshot;

pub mod plan_json;

/// Why an input was refused: what it was taken for, where, and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{format}, line {line}: {reason}")]
pub struct ReadError {
    /// What the input was taken for: `NCCL topology XML`, ..., or `unrecognised input`.
    pub format: &'static str,
    /// Line in the input, from 1; 0 where no line can be named.
    pub line: usize,
    /// What is wrong, in words.
    pub reason: String,
}

/// Reads a recorded machine of any known format. More than one snapshot where the input holds several hosts.
///
/// # Errors
/// Where the bytes are of no known format, or contradict the format they are in.
pub fn read(_bytes: &[u8]) -> Result<Vec<Snapshot>, ReadError> {
    Err(ReadError { format: "unrecognised input", line: 0, reason: "not yet written".into() })
}
