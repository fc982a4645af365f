//! Arrays as arguments: what they hold, and where.

use std::ffi::CStr;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use transport::{ElementType, Place};

/// An array that Python lends. It keeps it as long as this lives, and refuses to resize it.
#[derive(Debug)]
pub(crate) struct Argument {
    buffer: PyUntypedBuffer,
    pub(crate) element: ElementType,
    pub(crate) count: usize,
}

impl Argument {
    /// An array to read. `dtype` names the element type where the array's own cannot be told ("bf16" in an array of uint16).
    pub(crate) fn read(object: &Bound<'_, PyAny>, dtype: Option<&str>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            let words = "the array is not contiguous in memory: pass numpy.ascontiguousarray of it";
            return Err(PyValueError::new_err(words));
        }
        let element = match dtype {
            Some(name) => {
                name.parse().map_err(|error| PyValueError::new_err(format!("{error}")))?
            }
            None => element(buffer.format(), buffer.item_size())?,
        };
        if element.bytes() != buffer.item_size() {
            let words = format!(
                "elements of {} bytes are no {element}, which has {}",
                buffer.item_size(),
                element.bytes()
            );
            return Err(PyTypeError::new_err(words));
        }
        let count = buffer.item_count();
        let argument = Self { buffer, element, count };
        argument.part(0, count)?;
        Ok(argument)
    }

    /// An array to write, of the element type of another.
    pub(crate) fn write(object: &Bound<'_, PyAny>, dtype: Option<&str>) -> PyResult<Self> {
        let argument = Self::read(object, dtype)?;
        if argument.buffer.readonly() {
            return Err(PyTypeError::new_err("the array is read-only"));
        }
        Ok(argument)
    }

    /// Refuses two arrays of different element types.
    pub(crate) fn same_type(&self, other: &Self) -> PyResult<()> {
        if self.element == other.element {
            return Ok(());
        }
        let words = format!("one array holds {}, the other {}", self.element, other.element);
        Err(PyTypeError::new_err(words))
    }

    /// Where it is.
    pub(crate) fn place(&self) -> PyResult<Place> {
        self.part(0, self.count)
    }

    /// Where a part of it is.
    fn part(&self, first: usize, count: usize) -> PyResult<Place> {
        let start = self.buffer.buf_ptr().cast::<u8>().wrapping_add(first * self.element.bytes());
        Place::new(start, count, self.element)
            .ok_or_else(|| PyValueError::new_err("the array is not aligned to its elements"))
    }
}

/// The element type of a format of Python's struct module, as NumPy gives it.
fn element(format: &CStr, size: usize) -> PyResult<ElementType> {
    let text = format.to_string_lossy();
    // Byte orders that are this processor's.
    let native = ['@', '=', if cfg!(target_endian = "little") { '<' } else { '>' }];
    let letter = text.strip_prefix(native).unwrap_or(&text);
    Ok(match (letter, size) {
        ("f", 4) => ElementType::F32,
        ("d", 8) => ElementType::F64,
        ("e", 2) => ElementType::F16,
        ("b", 1) => ElementType::I8,
        ("B" | "?" | "c", 1) => ElementType::U8,
        ("i" | "l", 4) => ElementType::I32,
        ("l" | "q" | "n", 8) => ElementType::I64,
        _ => {
            let words = format!(
                "elements of format '{text}' have no element type: there are float16, float32, float64, int8, uint8, int32 \
                 and int64, and bf16 by dtype='bf16' on an array of uint16"
            );
            return Err(PyTypeError::new_err(words));
        }
    })
}
