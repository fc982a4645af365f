//! Reductions on device memory.
//!
//! ```text
//!   kernels.cu ── NVRTC, for the GPU at hand ──▶ PTX ── driver ──▶ one function per element type and operation
//!       └──────── the host's C++ compiler ──────▶ the same functions over host memory: the tests of the arithmetic
//! ```
//!
//! NVRTC and the driver are found at run time; a host without them is an ordinary host. **No GPU has run these kernels yet**: they
//! compile and assemble for compute capabilities 7.0 to 12.0, and their arithmetic is checked on a host.

use cudarc::nvrtc::{self, CompileOptions, Ptx};
use transport::{ElementType, ReduceOp};

/// The kernels, in CUDA C++.
pub const SOURCE: &str = include_str!("kernels.cu");

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

/// Names of all functions in the source, each once.
#[must_use]
pub fn names() -> Vec<String> {
    let pairs = ElementType::ALL.into_iter().flat_map(|e| ReduceOp::ALL.map(|op| (e, op)));
    pairs.filter(|(_, op)| *op != ReduceOp::Avg).filter_map(|(e, op)| name(e, op)).collect()
}

/// Compiles the kernels for a compute capability times ten, as in 90.
///
/// # Errors
/// Where NVRTC is missing or refuses.
pub fn compile(capability: u32) -> Result<Ptx, CompileError> {
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
    nvrtc::compile_ptx_with_opts(SOURCE, options).map_err(|error| CompileError::Refused {
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
