//! The gRPC server: services, health and reflection on all listeners.

use std::sync::Arc;
use std::time::Duration;

use proto::v1::health_service_server::HealthServiceServer;
use proto::v1::plan_service_server::PlanServiceServer;
use proto::v1::report_service_server::ReportServiceServer;
use proto::v1::status_service_server::StatusServiceServer;
use proto::v1::topology_service_server::TopologyServiceServer;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::server::NamedService as _;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;
use tonic::{Request, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tonic_reflection::server::Builder as Reflection;
use tracing::debug;

use crate::connection::{Caller, Connection};
use crate::limits::Limits;
use crate::services::{
    HealthApi, PlanApi, PlanServer, ReportApi, StatusApi, TopologyApi, TopologyServer,
};
use crate::state::State;
use crate::status::CallError;

/// A peer that does not answer pings for this long is gone.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Headers of a request. gRPC's own are some hundred bytes.
const HEADER_BYTES: u32 = 16 * 1024;

type Topologies = TopologyServiceServer<TopologyApi>;
type Verdicts = HealthServiceServer<HealthApi>;
type Plans = PlanServiceServer<PlanApi>;
type Reports = ReportServiceServer<ReportApi>;
type Statuses = StatusServiceServer<StatusApi>;

/// Names in the health service that depend on a topology; the empty one is the server as a whole.
const NEED_A_TOPOLOGY: [&str; 4] = ["", Topologies::NAME, Plans::NAME, Verdicts::NAME];

/// Those that do not.
const NEED_NOTHING: [&str; 2] = [Statuses::NAME, Reports::NAME];

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

/// Serves `connections` until stopped.
pub(crate) async fn start(
    connections: mpsc::Receiver<std::io::Result<Connection>>,
    state: Arc<State>,
    limits: &Limits,
) -> Result<Running, ReflectionError> {
    let (health, health_service) = tonic_health::server::health_reporter();
    for name in NEED_A_TOPOLOGY {
        health.set_service_status(name, ServingStatus::NotServing).await;
    }
    for name in NEED_NOTHING {
        health.set_service_status(name, ServingStatus::Serving).await;
    }

    let reflection = || {
        Reflection::configure()
            .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let most = limits.request_bytes;
    let state = || Arc::clone(&state);
    let topologies = TopologyServer::new(TopologyApi { state: state() }, most);
    let verdicts = Verdicts::new(HealthApi { state: state() });
    let reports = Reports::new(ReportApi { state: state() });
    let statuses = Statuses::new(StatusApi { state: state() });
    let (stop, stopped) = oneshot::channel::<()>();
    let router = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_max_header_list_size(HEADER_BYTES)
        .max_concurrent_streams(limits.streams)
        .timeout(Duration::from_secs(limits.call_seconds.into()))
        .layer(InterceptorLayer::new(admit))
        .add_service(topologies)
        .add_service(verdicts.max_decoding_message_size(most))
        .add_service(PlanServer::new(PlanApi { state: state() }, most))
        .add_service(reports.max_decoding_message_size(most))
        .add_service(statuses.max_decoding_message_size(most))
        .add_service(health_service.max_decoding_message_size(most))
        .add_service(reflection().build_v1()?.max_decoding_message_size(most))
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(most));
    let serving = router.serve_with_incoming_shutdown(ReceiverStream::new(connections), async {
        // Dropping the sender stops as well.
        let _ = stopped.await;
    });
    Ok(Running { task: tokio::spawn(serving), stop: Some(stop), health })
}

/// Whether a call may pass: no connection takes more than its share of the daemon's time.
fn admit(request: Request<()>) -> Result<Request<()>, Status> {
    let caller = request.extensions().get::<Arc<Caller>>();
    if let Some(caller) = caller.filter(|caller| !caller.may_call()) {
        debug!(peer = %caller.who(), "a call was refused: too many a second");
        return Err(CallError::RateLimited.into());
    }
    Ok(request)
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
        for name in NEED_A_TOPOLOGY.into_iter().chain(NEED_NOTHING) {
            self.health.set_service_status(name, ServingStatus::NotServing).await;
            self.health.clear_service_status(name).await;
        }
        self.stop.take();
    }
}
