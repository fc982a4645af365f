//! The gRPC server: services, health and reflection on one listener.

use std::sync::Arc;
use std::time::Duration;

use proto::v1::plan_service_server::PlanServiceServer;
use proto::v1::status_service_server::StatusServiceServer;
use proto::v1::topology_service_server::TopologyServiceServer;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::server::NamedService as _;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tonic_reflection::server::Builder as Reflection;

use crate::accept;
use crate::services::{PlanApi, StatusApi, TopologyApi};
use crate::state::State;

/// A peer that does not answer pings for this long is gone.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Streams one connection may have open.
const MOST_STREAMS: u32 = 256;

type Topologies = TopologyServiceServer<TopologyApi>;
type PlansServer = PlanServiceServer<PlanApi>;
type Statuses = StatusServiceServer<StatusApi>;

/// Names in the health service that depend on a topology; the empty one is the server as a whole.
const NEED_A_TOPOLOGY: [&str; 3] = ["", Topologies::NAME, PlansServer::NAME];

/// A running server.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) task: JoinHandle<Result<(), tonic::transport::Error>>,
    stop: Option<oneshot::Sender<()>>,
    health: HealthReporter,
}

/// The services cannot be put together.
#[derive(Debug, thiserror::Error)]
#[error("the descriptors for reflection are not valid")]
pub(crate) struct ReflectionError(#[from] tonic_reflection::server::Error);

/// Serves on `listener` until stopped.
pub(crate) async fn start(
    listener: UnixListener,
    state: Arc<State>,
    heartbeat: Duration,
) -> Result<Running, ReflectionError> {
    let (health, health_service) = tonic_health::server::health_reporter();
    for name in NEED_A_TOPOLOGY {
        health.set_service_status(name, ServingStatus::NotServing).await;
    }
    health.set_service_status(Statuses::NAME, ServingStatus::Serving).await;

    let reflection = || {
        Reflection::configure()
            .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let connections = accept::connections(listener, state.closing());
    let router = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .max_concurrent_streams(MOST_STREAMS)
        .add_service(Topologies::new(TopologyApi { state: Arc::clone(&state), heartbeat }))
        .add_service(PlansServer::new(PlanApi { state: Arc::clone(&state) }))
        .add_service(Statuses::new(StatusApi { state }))
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    let serving = router.serve_with_incoming_shutdown(connections, async {
        // Dropping the sender stops as well.
        let _ = stopped.await;
    });
    Ok(Running { task: tokio::spawn(serving), stop: Some(stop), health })
}

impl Running {
    /// A topology is published: what depends on one serves.
    pub(crate) async fn set_serving(&self) {
        for name in NEED_A_TOPOLOGY {
            self.health.set_service_status(name, ServingStatus::Serving).await;
        }
    }

    /// Takes no more connections and no more requests. Health says so, and its watches end.
    pub(crate) async fn stop(&mut self) {
        for name in NEED_A_TOPOLOGY.into_iter().chain([Statuses::NAME]) {
            self.health.set_service_status(name, ServingStatus::NotServing).await;
            self.health.clear_service_status(name).await;
        }
        self.stop.take();
    }
}
