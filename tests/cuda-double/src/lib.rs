//! A test double of libcuda.so.1, the CUDA driver: its C symbols over shared memory and threads.
//!
//! ```text
//!   cudarc ──dlopen──▶ C symbols (ffi) ──▶ contexts ──▶ streams: a queue and a thread each ──▶ copies, kernels, flags
//!                                             │                                                   │
//!                                          faults                   memory: device addresses that no host may touch,
//!                                                                   and beside them the double's own way to the bytes
//! ```
//!
//! Device memory lies in files without a name, so that other processes can map it by a handle. A stream is a thread, so two
//! streams are ordered by events and flags alone, as on a GPU. Kernels are the host's build of the same source.
//!
//! Written from NVIDIA's public headers and reference alone, by someone who had not seen the code that it tests. README.md
//! beside this crate says how to configure it, and what is and is not faithful.

mod code;
mod config;
mod context;
mod device;
mod driver;
mod event;
mod fault;
mod ffi;
mod ipc;
mod kernel;
mod memory;
mod ptx;
mod report;
mod stream;
