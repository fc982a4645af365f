//! Ranges that profilers show: NVTX, as a tool asks for it by `NVTX_INJECTION64_PATH`, which names the tool's library.
//!
//! NVTX is headers alone: what they do is to load that library at the first call and to let it fill tables of functions. This does the
//! same without the headers, as their comments describe it (nvtxDetail/nvtxInit.h, load sequence version 2, and nvtxTypes.h). Without the
//! variable nothing is loaded, and a range costs one look at a word.
//!
//! ```text
//!   domain topod   all-reduce, broadcast, ...   around the calls that enqueue it; the payload is its bytes
//! ```
//!
//! A range covers what a rank enqueues, not what its device does meanwhile: tools put it over the work that was enqueued in it.

mod ffi;

use crate::call::Call;

/// A range, which ends when this is dropped, on the same thread.
#[derive(Debug)]
#[must_use = "the range ends when this is dropped"]
pub(crate) struct Range(Option<&'static ffi::Tool>);

/// Begins the range of an operation.
pub(crate) fn range(call: &Call) -> Range {
    let tool = ffi::tool();
    if let Some(tool) = tool {
        let bytes = call.count.saturating_mul(call.element.bytes());
        tool.push(call.collective.as_str(), bytes as u64);
    }
    Range(tool)
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(tool) = self.0 {
            tool.pop();
        }
    }
}
