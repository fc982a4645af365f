//! The services of `topod.v1`: they read what is published and decide nothing.

mod plan;
mod status;
mod topology;

pub(crate) use plan::PlanApi;
pub(crate) use status::StatusApi;
pub(crate) use topology::TopologyApi;
