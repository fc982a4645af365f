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
        changes: false,
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
        other => panic!("{other:?}"),
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

#[tokio::test]
async fn changes_lead_from_one_generation_to_the_next() {
    let daemon = Daemon::start().await;
    let request = v1::WatchTopologyRequest { changes: true, ..Default::default() };
    let mut stream = daemon.topologies().watch_topology(request).await.unwrap().into_inner();
    let first = next_topology(&mut stream).await;
    let mut followed = v1::Topology::from(&first);
    let mut step = async |snapshot: &topology::Snapshot| {
        daemon.reload(snapshot).await;
        let WatchEvent::Changes(changes) = next(&mut stream).await else { panic!("no changes") };
        changes.apply_to(&mut followed).unwrap();
        let published = Published::try_from(followed.clone()).unwrap();
        published.replay().expect("what changes give is the daemon's graph");
        assert_eq!(&published.hosts[0], snapshot);
        changes
    };
    let mut down = machine(4, 20);
    down.nics[0].up = Some(false);
    let changes = step(&down).await;
    let set = changes.hosts[0].set.as_ref().unwrap();
    assert_eq!((set.nics.len(), set.gpus.len(), set.pci_devices.len()), (1, 0, 0));
    let changes = step(&machine(3, 20)).await;
    assert_eq!(changes.hosts[0].removed_gpus, [3]);
    assert_eq!(step(&machine(4, 20)).await.generation, 4);

    // A client that comes back with generation 2 is led on from there.
    let request = v1::WatchTopologyRequest {
        resume_generation: Some(2),
        resume_fingerprint: None,
        changes: true,
    };
    let mut resumed = daemon.topologies().watch_topology(request).await.unwrap().into_inner();
    for generation in [3, 4] {
        let WatchEvent::Changes(changes) = next(&mut resumed).await else { panic!("no changes") };
        assert_eq!(changes.generation, generation);
    }
    let request = v1::WatchTopologyRequest {
        resume_generation: Some(2),
        resume_fingerprint: Some("another".into()),
        changes: true,
    };
    let mut other = daemon.topologies().watch_topology(request).await.unwrap().into_inner();
    assert_eq!(next(&mut other).await, WatchEvent::Resync(Generation(4)));
    assert_eq!(next_topology(&mut other).await.generation, Generation(4));
}

#[tokio::test]
async fn paths_and_files_are_served() {
    let daemon = Daemon::start().await;
    let mut client = daemon.topologies();
    let ask = |from: &str, to: &str| v1::ExplainPathRequest { from: from.into(), to: to.into() };
    let path = client.explain_path(ask("GPU0", "mlx5_0")).await.unwrap().into_inner();
    assert_eq!((path.class(), path.generation), (v1::PathType::Phb, 1));
    assert_eq!(path.hops.len(), 2);
    assert_eq!(path.hops[0].trained.unwrap().width, 16);
    assert!(path.why_not_better[0].contains("host bridge"), "{:?}", path.why_not_better);
    let path = client.explain_path(ask("GPU0", "GPU3")).await.unwrap().into_inner();
    assert_eq!(
        (path.class(), path.links, path.rate_kbytes_per_second),
        (v1::PathType::Nvl, 1, 20_000_000)
    );
    let refused = client.explain_path(ask("GPU0", "GPU9")).await;
    check_refused(refused, Code::NotFound, Reason::UnknownDevice);

    let export = |format: v1::TopologyFormat| v1::ExportTopologyRequest { format: format.into() };
    let file = client.export_topology(export(v1::TopologyFormat::Snapshot)).await.unwrap();
    let read: topology::Snapshot = serde_json::from_str(&file.into_inner().text).unwrap();
    assert_eq!(read, machine(4, 20));
    let file = client.export_topology(export(v1::TopologyFormat::NcclTopo)).await.unwrap();
    assert!(file.into_inner().text.starts_with("<system version=\"1\">"));
    let refused = client.export_topology(export(v1::TopologyFormat::Unspecified)).await;
    check_refused(refused, Code::InvalidArgument, Reason::InvalidRequest);
}
