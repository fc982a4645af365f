//! From the first to the last moment of a daemon's life.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use daemon::{BindError, RunError, Signal};
use proto::{Reason, v1};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;

use super::harness::{Daemon, PATIENCE, Place, check_refused, machine, record, run};

#[tokio::test]
async fn the_socket_is_for_owner_and_group() {
    let daemon = Daemon::start().await;
    let mode = fs::metadata(daemon.place.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);

    let (ended, place) = daemon.stop().await;
    ended.unwrap();
    assert!(!place.socket().exists());
}

#[tokio::test]
async fn a_second_daemon_leaves_the_first_alone() {
    let daemon = Daemon::start().await;
    let (_signals, second) = run(&daemon.place, daemon.place.config());
    let error = timeout(PATIENCE, second).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, RunError::Bind(BindError::InUse { .. })), "{error}");
    assert_eq!(daemon.status().await.published.unwrap().generation, 1);
}

#[tokio::test]
async fn a_dead_daemons_socket_is_replaced() {
    let place = Place::new();
    drop(std::os::unix::net::UnixListener::bind(place.socket()).unwrap());
    assert!(place.socket().exists());
    record(&place.machine(), &machine(2, 20));
    let config = place.config();
    let daemon = Daemon::start_with(place, config).await;
    assert_eq!(daemon.status().await.published.unwrap().gpus, 2);
}

#[tokio::test]
async fn nothing_to_serve_is_an_error() {
    let place = Place::new();
    fs::write(place.machine(), "no machine").unwrap();
    let (_signals, task) = run(&place, place.config());
    let error = timeout(PATIENCE, task).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, RunError::Machine(_)), "{error}");
    assert!(!place.socket().exists());
}

#[tokio::test]
async fn a_machine_that_became_unreadable_stays_as_it_was() {
    let daemon = Daemon::start().await;
    fs::write(daemon.place.machine(), "no machine").unwrap();
    daemon.signals.send(Signal::Reload).await.unwrap();
    let error = async {
        loop {
            if let Some(error) = daemon.status().await.last_error {
                return error;
            }
        }
    };
    let error = timeout(PATIENCE, error).await.expect("the error is told");
    assert!(error.contains("machine.json"), "{error}");
    assert_eq!(daemon.status().await.published.unwrap().generation, 1);

    daemon.reload(&machine(4, 25)).await;
    daemon.place.notification("STATUS=4 GPUs, 1 NICs, 0 faults, generation 2").await;
    assert_eq!(daemon.status().await.last_error, None);
}

#[tokio::test]
async fn status_says_what_is_published() {
    let daemon = Daemon::start().await;
    let published = daemon.status().await.published.unwrap();
    assert_eq!((published.hosts, published.gpus, published.nics, published.faults), (1, 4, 1, 0));
    assert_eq!(published.source(), v1::Source::Live);
    assert_eq!(published.rates(), v1::RateModel::Effective);

    let mut client = v1::status_service_client::StatusServiceClient::new(daemon.channel());
    let build = client.get_build_info(v1::GetBuildInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(build.snapshot_schema_version, topology::snapshot::SCHEMA_VERSION);
    assert_eq!(build.version, env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn watches_end_with_the_daemon() {
    let daemon = Daemon::start().await;
    let mut client = daemon.topologies();
    let request = v1::WatchTopologyRequest::default();
    let mut stream = client.watch_topology(request).await.unwrap().into_inner();
    stream.message().await.unwrap().expect("the first topology");
    drop(client);

    let (ended, place) = daemon.stop().await;
    ended.unwrap();
    place.notification("STOPPING=1").await;
    let end = stream.message().await;
    check_refused(end, Code::Unavailable, Reason::ShuttingDown);
}

/// Opens a call that its client never ends.
async fn endless_call(
    daemon: &Daemon,
) -> mpsc::Sender<tonic_reflection::pb::v1::ServerReflectionRequest> {
    let (sender, receiver) = mpsc::channel(1);
    let mut client = ServerReflectionClient::new(daemon.channel());
    client.server_reflection_info(ReceiverStream::new(receiver)).await.unwrap();
    sender
}

#[tokio::test]
async fn a_call_that_does_not_end_is_given_up() {
    let place = Place::new();
    record(&place.machine(), &machine(2, 20));
    let mut config = place.config();
    config.drain_limit = Duration::from_millis(20);
    let daemon = Daemon::start_with(place, config).await;
    let _call = endless_call(&daemon).await;
    let (ended, place) = daemon.stop().await;
    ended.unwrap();
    assert!(!place.socket().exists());
}

#[tokio::test]
async fn asked_twice_it_ends_at_once() {
    let daemon = Daemon::start().await;
    let _call = endless_call(&daemon).await;
    daemon.signals.send(Signal::Terminate).await.unwrap();
    daemon.place.notification("STOPPING=1").await;
    // The drain limit is as long as this test's patience, so it is the second signal that ends it.
    let (ended, place) = daemon.stop().await;
    ended.unwrap();
    assert!(!place.socket().exists());
}
