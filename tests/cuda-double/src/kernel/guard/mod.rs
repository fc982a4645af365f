//! What a kernel touches outside of any allocation is an illegal address, as on a device, and not the end of the process.

mod ffi;

pub(crate) use ffi::run;
