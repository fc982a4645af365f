//! The double's own controls.

use std::ffi::{CStr, c_char, c_int};

use super::number;
use crate::engine::with;
use crate::errno::Errno;
use crate::{fault, report};

/// Replaces the faults in force; none for a null or an empty text. What is to happen at once has happened when it returns.
#[unsafe(no_mangle)]
pub extern "C" fn topodVerbsDoubleSetFaults(faults: *const c_char) -> c_int {
    let text = if faults.is_null() {
        c""
    } else {
        // SAFETY: not null, and the caller promises a terminated text that outlasts the call.
        unsafe { CStr::from_ptr(faults) }
    };
    let parsed = fault::parse(&text.to_string_lossy()).map_err(|why| {
        report::complain(&why);
        Errno::INVALID
    });
    number(parsed.and_then(|faults| {
        with(|fabric| {
            fabric.replace_faults(faults);
            Ok(())
        })
    }))
}

/// Writes what would be reported at exit; an error where there is no room for it.
#[unsafe(no_mangle)]
pub extern "C" fn topodVerbsDoubleReport(into: *mut c_char, room: usize) -> c_int {
    number(with(|fabric| {
        let text = report::text(fabric);
        if text.len() >= room {
            return Err(Errno::INVALID);
        }
        for (index, byte) in text.bytes().chain([0]).enumerate() {
            super::write(into.wrapping_add(index), c_char::from_ne_bytes([byte]))?;
        }
        Ok(())
    }))
}
