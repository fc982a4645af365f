//! From a [`Topology`](topology::Topology) and a request to a [`Plan`](topology::Plan). Pure: no IO, no clock, no randomness; budgets count steps.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod advice;
pub mod assemble;
mod balance;
pub mod bound;
pub mod bounded_search;
pub mod calibrated;
pub mod change;
pub mod check;
pub mod composed;
pub mod concurrent_flow;
pub mod cost;
pub mod fleet;
pub mod flow_graph;
pub mod forest;
pub mod groups;
pub mod job;
pub mod map;
pub mod max_flow;
pub mod model;
pub mod network;
pub mod packing;
pub mod pairs;
pub mod plan_error;
pub mod report;
pub mod rings;
pub mod rounds;
mod routes;
pub mod select;
mod served;
pub mod simplex;
pub mod simulate;
pub mod single_source;
pub mod skewed;
pub mod splitting;
mod symmetry;
pub mod trees;
mod units;
pub mod weighted;
pub mod why;

pub use assemble::{plan, plan_calibrated};
pub use plan_error::PlanError;

#[cfg(test)]
mod test_graphs;
#[cfg(test)]
mod test_hosts;
