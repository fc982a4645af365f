//! Executes a plan: collectives between processes, along the channels the plan names.
//!
//! ```text
//!   Plan ── schedule (pure) ──▶ Schedule ──┐
//!                                          ├─▶ executor ──▶ links ──▶ peers
//!   Rendezvous ── who is where ──▶ mesh ───┘   one thread polls every lane; no lock or allocation per chunk
//! ```
//!
//! Where all ranks share a host they also share memory: small messages are posted in it, large ones go straight from one
//! rank's buffer to another's, and the plan's channels serve what neither can. [`Paths`] turns that off.
//!
//! The transport decides nothing the plan has decided; it only picks the link that reaches a peer. A rank that dies, falls
//! silent or holds another plan ends the operation on every rank, within a time limit and with an error that names it.

pub mod error;
pub mod even;
pub mod rendezvous;
pub mod schedule;
pub mod variables;

mod arena;
mod communicator;
mod control;
mod driver;
mod element;
mod executor;
mod frame;
mod host;
mod kernel;
mod link;
mod memory;
mod memory_limit;
mod memory_policy;
mod mesh;
mod observe;
mod pace;
mod pin;
mod protocol;
mod shared;
mod streaming;
mod survivors;
mod waiter;

pub use arena::SharedBuffer;
pub use communicator::{
    Call, Carried, Communicator, DeviceMemory, DevicePart, InvalidSetting, Options, Path, Paths,
    Pending, Place, SETTINGS, Setting, Stats, Transport, plan_digest,
};
pub use control::fuzz_messages;
pub use driver::Driver;
pub use element::{Element, ElementType, ReduceOp, UnknownWord};
pub use error::{ConnectError, Culprit, Failure, StepName, TransportError, with_causes};
pub use executor::{StepDone, StepHook};
#[doc(hidden)]
pub use link::Fault;
pub use link::LinkKind;
pub use link::header::fuzz_header;
pub use link::verbs::{VerbsMessages, VerbsObjects, verbs_messages, verbs_objects};
pub use memory_limit::{MemoryLimit, memory_limit};
pub use memory_policy::{has_memory_policy, prefer_memory};
pub use observe::{Attribution, EndHook, Ended, Late, Outcome, Totals, Trace};
pub use rendezvous::Rendezvous;
