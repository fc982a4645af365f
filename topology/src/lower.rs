//! Facts to graph.
use alloc::string::String;

use crate::{RateModel, Snapshot, Topology};

/// Why facts make no graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("host {host}: {reason}")]
pub struct LowerError {
    /// Which snapshot, from 0.
    pub host: usize,
    /// What is wrong, in words.
    pub reason: String,
}

/// One graph of all hosts.
///
/// # Errors
/// Where the facts contradict each other.
pub fn lower(_hosts: &[Snapshot], _rates: RateModel) -> Result<Topology, LowerError> {
    Err(LowerError { host: 0, reason: "not yet written".into() })
}
