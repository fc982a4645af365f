//! Collectives on device memory, along a plan.
//!
//! ```text
//!   plan ── transport::schedule ──▶ lanes of steps ── order ──▶ executor ──▶ streams: copies, kernels, waits for words
//!   host's group ── meet ──▶ who reaches whom, memory by pointer or handle, pinned words and slots       │
//!                └─ watch ◀── ends, failures, silent ranks; poisons words so that streams run out ◀──────┘
//!   kernels.cu ── NVRTC, for the GPU at hand ──▶ PTX ── driver ──▶ one function per element type and operation
//!   flagged.cu ──┘  where LL or LL128 are asked for                one per element type and protocol
//!       └──────── the host's C++ compiler ──────▶ the same functions over host memory: the tests
//! ```
//!
//! An operation is enqueued after the caller's stream, which waits for it; nothing on that way waits for the device. Ranks of one host,
//! threads or processes, wait for each other by words in pinned memory (`cuStreamWaitValue32`): a message goes straight into the
//! receiver's memory where its device can be reached, else through pinned memory of the host; between hosts it goes through pinned
//! memory and the links of the host's group or, where that is asked for ([`Options::gpu_direct`]) and possible, NICs read and write the
//! devices' memory themselves. [`Communicator::links`] says which, and why.
//!
//! # Small messages
//!
//! By copies, a message takes some four calls of the driver. Where LL or LL128 are asked for ([`Options::protocols`], or `NCCL_PROTO` and
//! `TOPOD_PROTO` by the host's settings) and the plan or the caller chooses them for a size, a rank's whole part of an operation, every
//! collective along whatever the plan's schedule is, is one launch between two events: blocks do the schedule's lanes, and data travels with
//! its flag straight into slots in the receiver's memory.
//!
//! - **Off by default**, until a GPU has shown them: the order of stores within a kernel cannot be proved by a double. `topod-gpu-check` runs every
//!   collective by each and compares every element.
//! - What cannot be goes by copies, on all ranks alike, and [`Communicator::why_not`] and [`Communicator::by_copies`] say why: ranks on
//!   several hosts, memory that is not written directly (each way), kernels that are missing, devices without cooperative launches, two ranks
//!   of one process on one device; for LL128 where no NVLink is known (by the driver's word on native atomic operations between two
//!   devices; a device's own memory counts as well) or before sm_70; schedules that do not fit into a launch's 4096 bytes of parameters.
//! - **Free of deadlock**: a launch is cooperative, so all its blocks are on the device or none; groups with several priorities take a part of
//!   the device for each. Kernels of processes that share a device take turns on it, slowly.
//! - **Ends**: whoever polls looks at a word in the host's memory, too, which the rank's watch sets when the group fails; then nothing is sent or
//!   written any more, so no rank takes for a result what never came.
//! - **Numbers**: a flag is a message's number on its connection. LL's begin again after 2^31 messages; the last before that leave their slots
//!   cleared, so no old flag looks new. LL128's have 64 bits. A slot is free once a credit, which the receiver writes to the sender's
//!   memory, says so; credits wrap and are compared by differences. All begin shortly before they wrap, so every group does.
//!
//! Graphs of the driver (capture and `cuGraphLaunch`) are not used: where launch cost dominates, one launch an operation leaves nothing to replay,
//! and a graph fixes the numbers of messages, which differ from one operation to the next.
//!
//! Where `NVTX_INJECTION64_PATH` names a profiler's library, as Nsight Systems sets it, every operation is a range named by its collective,
//! in the domain `topod`. No profiler has shown one yet: a tool written for the tests has.
//!
//! NVRTC and the driver are found at run time (`TOPOD_CUDA_LIBRARY` names another libcuda); a host without them is an ordinary host.
//!
//! The driver is called by declarations of this crate's own (`ffi`), not by cudarc, which compiles the kernels alone: cudarc 0.19 panics
//! where the library or a symbol is missing, takes the toolkit's stub (`libcuda.so`) before the driver (`libcuda.so.1`), and has results
//! as an enumeration, so that a code newer than its list is undefined behaviour.
//!
//! # What was verified, on what
//!
//! **No GPU has run any of this yet.** The kernels compile and assemble for compute capabilities 7.0 to 12.0, and their arithmetic is checked
//! on a host. Everything else runs over a double of libcuda that was written from the public headers by somebody who did not see this code:
//! every collective, element type and operation among 1 to 8 ranks, in and out of place, as threads and as processes, through peers' memory,
//! the host's, and between pretended hosts; along rings and trees and in every kind of rounds a plan can name; what is lost, refused, silent
//! or killed. NVRTC's own output is loaded there, but the double runs the host's build of the kernels under its names. So it does with LL and
//! LL128, a thread a block, among 1 to 8 ranks: that flags, slots, credits and ends fit together, not that a GPU's stores stay whole.
//!
//! GPUDirect RDMA goes over that double and one of libibverbs together: by DMA-BUF and by a peer memory module, with one end or both, refused, and
//! with devices and NICs that fail. **No GPU and no NIC have run it**: when a NIC's writes become visible to kernels is what the reference
//! says, which no double can show. It is off unless it is asked for.
//!
//! What a double cannot show, and a run on hardware must: that words and data become visible in the order the reference promises, over NVLink
//! and PCIe; how streams share the hardware's queues (the order of enqueuing is chosen so that any sharing is free of deadlock); every rate. To
//! try: the groups of this crate's tests (`cargo test -p transport-cuda`) without `TOPOD_CUDA_LIBRARY`, first ranks that share one GPU, then a
//! GPU each, with `compute-sanitizer`; then rates against the plan's.
//!
//! # What there is not
//!
//! - LL and LL128 by default, or between hosts. By copies a message takes some four calls of the driver, so large slots
//!   ([`Options::slot_bytes`]) are better, and small operations cost as many calls as they have messages.
//! - A kernel that lives longer than its operation.
//! - A budget of bytes a second on one host: devices copy as fast as they can, to each other and through memory of the host, for no
//!   host stands between. What goes to other hosts is held to it, for the host carries that. Budgets of memory hold everywhere.
//! - Links are not encrypted, be they NVLink, PCIe, or memory of the host.

mod buffer;
mod call;
mod collectives;
mod communicator;
mod context;
mod device;
mod error;
mod executor;
mod ffi;
mod flagged;
mod fusion;
mod gpu_direct;
mod ipc;
mod kernels;
mod meet;
mod network;
mod nvtx;
mod objects;
mod order;
mod program;
mod protocols;
mod region;
mod segment;
mod stream;
mod watch;
mod wire;

pub use buffer::{Buffer, Memory};
pub use communicator::{Communicator, Options, Pending};
pub use context::Context;
pub use device::Device;
pub use error::{CudaError, DriverError, NoDriver};
pub use flagged::{FLAGGED_PARAMETERS, flagged_name, flagged_names};
pub use kernels::Image;
pub use objects::{Objects, objects};
pub use stream::Stream;
pub use wire::{Link, Way};

use cudarc::nvrtc::{self, CompileOptions, Ptx};
use transport::{ElementType, ReduceOp};

/// The kernels, in CUDA C++.
pub const SOURCE: &str = include_str!("kernels.cu");

/// The kernels of messages that travel with their flags, which follow [`SOURCE`] in one text.
pub const FLAGGED_SOURCE: &str = include_str!("flagged.cu");

/// Most places one launch reads; more are folded in turns.
pub const SOURCES: usize = 16;

/// Threads of a block; what the kernels' launch bounds promise.
pub const THREADS: u32 = 512;

/// Compute capabilities the kernels are held to, times ten: Volta, Ampere, Ampere without full double precision, Ada, Hopper and
/// the two of Blackwell.
pub const CAPABILITIES: [u32; 7] = [70, 80, 86, 89, 90, 100, 120];

/// Why there is no kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// libnvrtc is not on this host.
    #[error(
        "libnvrtc is not found: install CUDA's run-time compiler, or name its folder in LD_LIBRARY_PATH"
    )]
    NoCompiler,
    /// The compiler refused.
    #[error("NVRTC for {architecture}: {log}")]
    Refused {
        /// As in `compute_90`.
        architecture: String,
        /// What it said.
        log: String,
    },
}

/// The name of the function that folds elements by an operation; `None` where the operation does not combine such elements. An
/// average is a sum that is divided.
#[must_use]
pub fn name(element: ElementType, op: ReduceOp) -> Option<String> {
    let op_name = if op == ReduceOp::Avg { ReduceOp::Sum } else { op };
    op.combines(element).then(|| format!("topod_fold_{}_{}", element.as_str(), op_name.as_str()))
}

/// Names of all functions of [`SOURCE`], each once.
#[must_use]
pub fn names() -> Vec<String> {
    let pairs = ElementType::ALL.into_iter().flat_map(|e| ReduceOp::ALL.map(|op| (e, op)));
    pairs.filter(|(_, op)| *op != ReduceOp::Avg).filter_map(|(e, op)| name(e, op)).collect()
}

/// Compiles all kernels for a compute capability times ten, as in 90.
///
/// # Errors
/// Where NVRTC is missing or refuses.
pub fn compile(capability: u32) -> Result<Ptx, CompileError> {
    compile_source(capability, &[SOURCE, FLAGGED_SOURCE].concat())
}

/// Compiles the reductions alone, in a part of the time.
pub(crate) fn compile_reductions(capability: u32) -> Result<Ptx, CompileError> {
    compile_source(capability, SOURCE)
}

fn compile_source(capability: u32, source: &str) -> Result<Ptx, CompileError> {
    if !is_here() {
        return Err(CompileError::NoCompiler);
    }
    let architecture = format!("compute_{capability}");
    let options = CompileOptions {
        // One result wherever it runs: no product is fused into a sum, no denormal flushed, divisions exact.
        fmad: Some(false),
        ftz: Some(false),
        prec_div: Some(true),
        options: vec![format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()],
        ..CompileOptions::default()
    };
    nvrtc::compile_ptx_with_opts(source, options).map_err(|error| CompileError::Refused {
        architecture,
        log: match error {
            nvrtc::CompileError::CompileError { log, .. } => log.to_string_lossy().into_owned(),
            other => other.to_string(),
        },
    })
}

/// Whether NVRTC can be loaded.
#[must_use]
#[expect(
    unsafe_code,
    reason = "cudarc marks the look for a library unsafe, for it runs the library's initialisers"
)]
pub fn is_here() -> bool {
    // SAFETY: The initialisers of CUDA's compiler, if it is there, do nothing but set up the library.
    unsafe { nvrtc::sys::is_culib_present() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_has_one_function() {
        let names = names();
        assert_eq!(names.len(), 4 * 4 + 4 * 6);
        assert!(names.contains(&"topod_fold_bf16_max".to_owned()));
        assert_eq!(name(ElementType::F32, ReduceOp::And), None);
        assert_eq!(name(ElementType::I8, ReduceOp::Avg).as_deref(), Some("topod_fold_i8_sum"));
        for name in names {
            let short = name.strip_prefix("topod_").unwrap();
            let (_, op) = short.rsplit_once('_').unwrap();
            assert!(SOURCE.contains(&format!("KERNEL(fold_##name##_{op}, ")), "{name}");
        }
    }
}
