//! Executes a plan: schedules (pure), and the links, memory and processes that run them.
#![deny(unsafe_code)]

pub mod schedule;
pub mod testing;
