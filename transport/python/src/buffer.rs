//! Registered memory as a Python object.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::prelude::*;
use transport::SharedBuffer;

/// Zeroed memory that operations use where it lies, where all ranks share a host: `numpy.frombuffer` makes an array of it.
#[pyclass(frozen, module = "topod")]
#[derive(Debug)]
pub(crate) struct Buffer {
    /// Of doubles, so that ordinary memory is aligned for every element type, too.
    memory: SharedBuffer<f64>,
    bytes: usize,
}

impl Buffer {
    pub(crate) const fn new(memory: SharedBuffer<f64>, bytes: usize) -> Self {
        Self { memory, bytes }
    }
}

#[pymethods]
impl Buffer {
    /// Whether other ranks reach it where it lies.
    #[getter]
    const fn shared(&self) -> bool {
        self.memory.is_shared()
    }

    fn __len__(&self) -> usize {
        self.bytes
    }

    /// Lends the memory; the object lives as long as it is lent.
    ///
    /// # Safety
    /// `view` is Python's to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let buffer = slf.get();
        // Written through the address alone: nobody holds a slice of it.
        let address = buffer.memory.as_ptr().cast_mut().cast();
        let bytes = isize::try_from(buffer.bytes)?;
        // SAFETY: Python's view; the memory lives as long as the object, to which the view adds a reference.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, bytes, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
