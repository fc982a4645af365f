//! To be written.
pub mod probe;
