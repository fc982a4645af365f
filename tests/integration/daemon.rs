//! The daemon as its clients meet it: over a Unix socket, on a recorded machine.

pub(crate) mod binary;
mod events;
pub(crate) mod harness;
mod lifecycle;
mod plans;
mod standard_services;
mod topologies;
mod verdicts;
