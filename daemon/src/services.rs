//! The services of `topod.v1`: they read what is published and decide nothing.

mod encoded;
mod health;
mod map;
mod plan;
mod report;
mod status;
mod topology;

pub(crate) use encoded::{PlanServer, TopologyServer};
pub(crate) use health::HealthApi;
pub(crate) use plan::PlanApi;
pub(crate) use report::ReportApi;
pub(crate) use status::StatusApi;
pub(crate) use topology::TopologyApi;

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
