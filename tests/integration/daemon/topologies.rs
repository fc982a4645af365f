//! Topologies: got, watched, resumed.

use std::time::Duration;

use proto::{Published, Reason, WatchEvent, v1};
use tokio::time::timeout;
use tonic::{Code, Streaming};
use topology::{Generation, RateModel, lower};

use super::harness::{Daemon, PATIENCE, Place, check_refused, machine, record, run};

async fn watch(
    daemon: &Daemon,
    resume_generation: Option<u64>,
    resume_fingerprint: Option<&str>,
) -> Streaming<v1::WatchTopologyResponse> {
    let request = v1::WatchTopologyRequest {
        resume_generation,
        resume_fingerprint: resume_fingerprint.map(Into::into),
    };
    daemon.topologies().watch_topology(request).await.unwrap().into_inner()
}

async fn next(stream: &mut Streaming<v1::WatchTopologyResponse>) -> WatchEvent {
    let message = timeout(PATIENCE, stream.message()).await.expect("a message").unwrap();
    message.expect("the stream goes on").try_into().unwrap()
}

async fn next_topology(stream: &mut Streaming<v1::WatchTopologyResponse>) -> Published {
    match next(stream).await {
        WatchEvent::Topology(published) => published,
        heartbeat @ WatchEvent::Heartbeat { .. } => panic!("{heartbeat:?}"),
    }
}

#[tokio::test]
async fn a_client_makes_the_daemons_graph() {
    let daemon = Daemon::start().await;
    let response = daemon.topologies().get_topology(v1::GetTopologyRequest {}).await.unwrap();
    let published = Published::try_from(response.into_inner()).unwrap();
    assert_eq!(published.generation, Generation(1));
    assert_eq!(published.hosts, [machine(4, 20)]);

    let here = lower(&[machine(4, 20)], RateModel::Effective).unwrap();
    let replayed = published.replay().unwrap();
    assert_eq!(replayed.fingerprint(), here.fingerprint());
    assert_eq!(replayed.gpus().len(), 4);

    let altered = Published { fingerprint: "another".into(), ..published };
    assert!(altered.replay().unwrap_err().to_string().contains("different versions"));
}

#[tokio::test]
async fn a_watcher_sees_every_change_and_nothing_else() {
    let daemon = Daemon::start().await;
    let mut stream = watch(&daemon, None, None).await;
    assert_eq!(next_topology(&mut stream).await.generation, Generation(1));

    daemon.reload(&machine(4, 25)).await;
    let changed = next_topology(&mut stream).await;
    assert_eq!((changed.generation, &changed.hosts[0]), (Generation(2), &machine(4, 25)));

    // The same machine again is no change: the next thing to see is generation 3.
    daemon.reload(&machine(4, 25)).await;
    daemon.reload(&machine(3, 25)).await;
    let changed = next_topology(&mut stream).await;
    assert_eq!((changed.generation, changed.hosts[0].gpus.len()), (Generation(3), 3));
}

#[tokio::test]
async fn a_stream_is_resumed_by_generation() {
    let daemon = Daemon::start().await;
    daemon.reload(&machine(4, 25)).await;
    daemon.place.notification("STATUS=4 GPUs, 1 NICs, 0 faults, generation 2").await;
    let published = next_topology(&mut watch(&daemon, None, None).await).await;
    let fingerprint = published.fingerprint.as_str();

    let beat = WatchEvent::Heartbeat {
        generation: Generation(2),
        fingerprint: published.fingerprint.clone(),
    };
    assert_eq!(next(&mut watch(&daemon, Some(2), None).await).await, beat);
    let mut resumed = watch(&daemon, Some(2), Some(fingerprint)).await;
    assert_eq!(next(&mut resumed).await, beat);

    assert_eq!(next_topology(&mut watch(&daemon, Some(1), None).await).await, published);
    // Generation 2 of another run of the daemon.
    let mut other = watch(&daemon, Some(2), Some("another")).await;
    assert_eq!(next_topology(&mut other).await, published);
    assert_eq!(next_topology(&mut watch(&daemon, Some(7), None).await).await, published);

    daemon.reload(&machine(4, 20)).await;
    assert_eq!(next_topology(&mut resumed).await.generation, Generation(3));
}

#[tokio::test]
async fn a_silent_stream_beats() {
    let place = Place::new();
    record(&place.machine(), &machine(2, 20));
    let mut config = place.config();
    config.heartbeat = Duration::from_millis(5);
    let daemon = Daemon::start_with(place, config).await;
    let mut stream = watch(&daemon, None, None).await;
    next_topology(&mut stream).await;
    for _ in 0..3 {
        let event = next(&mut stream).await;
        assert!(matches!(event, WatchEvent::Heartbeat { generation: Generation(1), .. }));
    }
}

#[tokio::test]
async fn before_the_first_topology() {
    let place = Place::new();
    // Reading a FIFO takes until somebody writes.
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, place.machine(), rustix::fs::FileType::Fifo, mode, 0)
        .unwrap();
    let (signals, task) = run(&place, place.config());
    let listening = async {
        while !place.socket().exists() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, listening).await.expect("a socket");
    let channel = place.channel().await;

    let mut topologies = v1::topology_service_client::TopologyServiceClient::new(channel.clone());
    let got = topologies.get_topology(v1::GetTopologyRequest {}).await;
    check_refused(got, Code::Unavailable, Reason::TopologyNotReady);
    let mut plans = v1::plan_service_client::PlanServiceClient::new(channel.clone());
    let got = plans.get_plan(v1::GetPlanRequest::default()).await;
    check_refused(got, Code::Unavailable, Reason::TopologyNotReady);
    let mut statuses = v1::status_service_client::StatusServiceClient::new(channel.clone());
    let status = statuses.get_status(v1::GetStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.published, None);

    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    let request = tonic_health::pb::HealthCheckRequest { service: String::new() };
    let mut watched = health.watch(request).await.unwrap().into_inner();
    let mut serving = async || watched.message().await.unwrap().unwrap().status();
    use tonic_health::pb::health_check_response::ServingStatus;
    assert_eq!(serving().await, ServingStatus::NotServing);

    let mut stream =
        topologies.watch_topology(v1::WatchTopologyRequest::default()).await.unwrap().into_inner();
    let machine_file = place.machine();
    tokio::task::spawn_blocking(move || record(&machine_file, &machine(2, 20))).await.unwrap();
    assert_eq!(next_topology(&mut stream).await.generation, Generation(1));
    assert_eq!(serving().await, ServingStatus::Serving);

    signals.send(daemon::Signal::Terminate).await.unwrap();
    timeout(PATIENCE, task).await.unwrap().unwrap().unwrap();
}
