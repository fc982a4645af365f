//! The transport for C. A test holds the header, `include/topod.h`, equal to this source.
//!
//! Every function returns a status; the words to the last one that was not [`Status::Ok`] are the thread's until it calls
//! again. A panic inside ends in [`Status::Internal`], never in the caller's frames. Handles are opaque, and may be used by
//! any thread, though plans and options by one at a time.
#![expect(unsafe_code, reason = "the other side of every function here is C")]

pub mod collectives;
pub mod communicator;
pub mod error;
pub mod groups;
pub mod operation;
pub mod options;
pub mod plan;

pub use collectives::{Element, Op};
pub use communicator::CommunicatorHandle;
pub use error::Status;
pub use operation::{OperationHandle, Stats};
pub use options::OptionsHandle;
pub use plan::PlanHandle;
