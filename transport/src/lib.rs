//! Executes a plan: schedules (pure), and the links, memory and processes that run them.
#![deny(unsafe_code)]

pub mod error;
pub mod rendezvous;
pub mod schedule;
pub mod testing;

mod frame;
mod host;
mod link;
mod memory;
