//! The services of `topod.v1`: they read what is published and decide nothing.

mod encoded;
mod health;
mod plan;
mod report;
mod status;
mod topology;

pub(crate) use encoded::PlanServer;
pub(crate) use health::HealthApi;
pub(crate) use plan::PlanApi;
pub(crate) use report::ReportApi;
pub(crate) use status::StatusApi;
pub(crate) use topology::TopologyApi;

use tonic::Status;
use tonic::codegen::{BoxStream, tokio_stream::Stream};

/// The answer to a watch.
fn stream<M>(messages: impl Stream<Item = Result<M, Status>> + Send + 'static) -> BoxStream<M> {
    Box::pin(messages)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
