//! A test double of libibverbs: its C symbols over a fabric inside one process.
//!
//! ```text
//!   dlopen ──▶ C symbols, and the tables of functions   ──▶ fabric: devices, ports, keys, queue pairs, completion queues
//!              in ibv_context that the header's inline              │
//!              functions go through (ffi)                         wire: a request from the send queue to the peer's memory
//!                                                                   │
//!                                                    faults      engine: what is due later (retries, delays, ports that come back)
//! ```
//!
//! Ranks are threads of one process, each with contexts of its own on any of the devices. Written from the public header, its manual pages
//! and the known rules of the InfiniBand specification, by someone who had not seen the code that it tests. README.md beside this crate
//! says how to configure it, and what is and is not faithful.

mod abi;
mod completion;
mod config;
mod device;
mod engine;
mod errno;
mod fabric;
mod fault;
mod ffi;
mod memory;
mod queue_pair;
mod report;
mod sysfs;
mod wire;
mod words;
