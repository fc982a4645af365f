//! RDMA links over the double of libibverbs: collectives with every element checked, and what is said of NICs that fail.
#![expect(clippy::print_stdout, reason = "what a child has said is shown with its test")]

mod collectives;
mod double;
mod failures;
mod fallback;
mod group;
mod refusals;
