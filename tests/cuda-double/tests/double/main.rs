//! The rules of the driver, as its header and reference have them, held against the double: raw calls, the binding that the
//! transport uses, and two processes.
#![expect(clippy::print_stdout, reason = "a skipped test says so")]
#![expect(unsafe_code, reason = "calls the symbols of a library")]

mod binding;
mod contexts;
mod copies;
mod devices;
mod faults;
mod kernels;
mod processes;
mod raw;
mod streams;
