//! A test double of NVML, the NVIDIA Management Library: its C symbols, answered from a scenario file.
//!
//! ```text
//!   nvml-wrapper ──dlopen──▶ C symbols (ffi) ──▶ faults of the scenario (session) ──▶ answers (answer)
//!                                                 return, hang, delay, abort
//! ```
//!
//! Written from NVIDIA's public headers and reference alone, never from the code that it tests. README.md beside
//! this crate says how to write a scenario and what is and is not faithful.

mod answer;
mod ffi;
mod session;
