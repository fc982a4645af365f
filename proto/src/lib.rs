//! The wire: package `topod.v1`, its messages, clients and servers, and their conversion to and from the vocabulary.
//!
//! ```text
//!   topology::Snapshot, Plan, ... ── From ──▶ v1::Snapshot, Plan, ... ── prost ──▶ bytes
//!                                 ◀─ TryFrom ─     (generated)
//! ```
//!
//! Wire types and domain types differ on purpose: the wire keeps its numbers for ever and must take what any peer
//! sends, the domain changes freely and holds only what is valid. They meet in [`convert`] and nowhere else: whatever
//! comes in is checked there, once, and refused with a [`WireError`] that names the field.
//!
//! The code in `generated/` is made by `cargo xtask codegen` from `topod/v1/*.proto`.
#![forbid(unsafe_code)]

pub mod convert;

mod changes;
mod published;
mod query;
mod reason;
mod report;

pub use changes::ChangesError;
pub use convert::WireError;
pub use published::{Published, ReplayError, WatchEvent};
pub use query::{GpuSelector, JobMember, PlanQuery};
pub use reason::{ERROR_DOMAIN, Reason};
pub use report::{OperationOutcome, OperationReport};

/// Messages, clients and servers of package `topod.v1`.
#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    clippy::nursery,
    unused_qualifications,
    unreachable_pub,
    missing_debug_implementations,
    reason = "generated code; what it triggers depends on the generator's version"
)]
pub mod v1 {
    include!("generated/topod.v1.rs");
}

/// Serialised file descriptors of `topod.v1`, for the reflection service.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/topod.v1.bin");

/// Where a daemon listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/topod/topod.sock";
