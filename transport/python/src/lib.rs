//! The transport for Python: module `topod`.
//!
//! Arrays come by the buffer protocol: NumPy arrays, `array.array`, `bytearray`, memoryviews of any of them. They are used where
//! they lie, and kept as long as an operation uses them. The interpreter's lock is free while an operation runs.
#![expect(unsafe_code, reason = "PyO3's macros, and memory that Python lends by address")]

mod argument;
mod buffer;
mod communicator;
mod error;
mod operation;
mod plan;

use pyo3::prelude::*;

/// Collectives between processes, along the plan of a topod.
#[pymodule]
mod topod {
    #[pymodule_export]
    use crate::buffer::Buffer;
    #[pymodule_export]
    use crate::communicator::Communicator;
    #[pymodule_export]
    use crate::error::{ConnectError, DaemonError, Error, FailedError, MissingError};
    #[pymodule_export]
    use crate::operation::{Operation, Stats};
    #[pymodule_export]
    use crate::plan::Plan;

    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
