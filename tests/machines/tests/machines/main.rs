//! Machines written out: tree, scenario and snapshot say the same, and what is publicly known of each is what
//! comes out.

mod fixture;
mod levels;
mod library;
mod lowered;
mod nccl_model;
mod scenario_text;
mod snapshot;
mod tree;
