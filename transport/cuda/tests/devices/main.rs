//! Groups on devices that are a double of CUDA's driver: every collective against plain arithmetic, ranks as threads and as processes,
//! and what happens when a device, a peer or the driver fails.
//!
//! The double is a library of its own, built from the public headers by somebody who did not see this crate. What it cannot show is what
//! hardware does by itself: the order in which memory becomes visible between devices, how streams share queues, and how fast anything is.
#![expect(clippy::print_stdout, reason = "a skipped test says so, and children tell their parent")]

mod collectives;
mod double;
mod faults;
mod flagged;
mod gpu_direct;
mod group;
mod number;
mod nvrtc;
mod nvtx;
mod objects;
#[path = "../packages/mod.rs"]
mod packages;
mod processes;
mod rounds;
