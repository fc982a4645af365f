//! The rules of the verbs, as their header, manual pages and specification have them, held against the double: by its symbols and tables,
//! and by a program that a C compiler makes of the header.
#![expect(clippy::print_stdout, reason = "a skipped test says so")]
#![expect(unsafe_code, reason = "calls the symbols of a library")]

#[path = "../../src/abi.rs"]
mod abi;
mod device_memory;
mod devices;
mod errors;
mod events;
mod faults;
mod header;
mod messages;
mod raw;
mod states;
