//! Clients that speak nonsense, too much, or too slowly.

use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use daemon::Limits;
use prost::Message as _;
use proto::{Reason, v1};
use rustix::process::Signal;
use tokio::time::timeout;
use tonic::Code;

use crate::daemon::binary::Topod;
use crate::daemon::harness::{Daemon, PATIENCE, Place, check_refused, gpu_uuid, machine, record};

/// Connections of an ordinary run. By hand: `TOPOD_FRAMES=100000 cargo test -p tests --test integration malformed_frames`.
const CONNECTIONS: u32 = 300;

/// Requests of every kind that a client may begin with: their paths, and the messages.
fn requests() -> Vec<(&'static str, Vec<u8>)> {
    use v1::gpu_selector::Selector;

    let gpu = |selector| v1::GpuSelector { selector: Some(selector) };
    let plan = v1::GetPlanRequest {
        gpus: vec![
            gpu(Selector::Index(0)),
            gpu(Selector::Uuid(gpu_uuid(1))),
            gpu(Selector::BusId("0000:12:00.0".into())),
        ],
        collectives: vec![v1::Collective::AllReduce.into(), v1::Collective::Broadcast.into()],
        size_bytes: Some(1 << 20),
        expected_generation: Some(1),
        member: Some(v1::JobMember { job: "job.0".into(), rank: 1, ranks_here: 3 }),
        ..Default::default()
    };
    let operation = v1::OperationReport {
        collective: v1::Collective::AllGather.into(),
        outcome: v1::OperationOutcome::Ok.into(),
        bytes: 1 << 20,
        ..Default::default()
    };
    let report = v1::ReportOperationsRequest { operations: vec![operation; 3] };
    let watch = v1::WatchTopologyRequest {
        resume_generation: Some(1),
        resume_fingerprint: Some("0123456789abcdef".into()),
        changes: true,
    };
    let select = v1::SelectGpusRequest { count: 2, ..Default::default() };
    let path = v1::ExplainPathRequest { from: "GPU0".into(), to: "mlx5_0".into() };
    vec![
        ("/topod.v1.StatusService/GetStatus", vec![]),
        ("/topod.v1.PlanService/GetPlan", plan.encode_to_vec()),
        (
            "/topod.v1.PlanService/ExportPlan",
            v1::ExportPlanRequest { plan: Some(plan), format: 1 }.encode_to_vec(),
        ),
        ("/topod.v1.PlanService/SelectGpus", select.encode_to_vec()),
        ("/topod.v1.ReportService/ReportOperations", report.encode_to_vec()),
        ("/topod.v1.TopologyService/WatchTopology", watch.encode_to_vec()),
        ("/topod.v1.TopologyService/ExplainPath", path.encode_to_vec()),
    ]
}

/// The preface, settings, and a request: what a client sends at first, which the daemon answers. And where the message is in it.
fn session(path: &str, message: &[u8]) -> (Vec<u8>, Range<usize>) {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        bytes.extend_from_slice(&length[1..]);
        bytes.extend_from_slice(&[kind, flags]);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(payload);
    };
    frame(4, 0, 0, &[]);
    // HPACK without indexing: literal names and values.
    let mut headers = vec![0x83, 0x86];
    for (name, value) in [
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        headers.push(0);
        headers.push(u8::try_from(name.len()).unwrap());
        headers.extend_from_slice(name.as_bytes());
        headers.push(u8::try_from(value.len()).unwrap());
        headers.extend_from_slice(value.as_bytes());
    }
    frame(1, 4, 1, &headers);
    let mut data = vec![0];
    data.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    data.extend_from_slice(message);
    frame(0, 1, 1, &data);
    let end = bytes.len();
    (bytes, end - message.len()..end)
}

/// A sequence of numbers that is the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(most).unwrap()).unwrap()
    }

    /// Changes bytes in a part of a session, and cuts, repeats or swaps parts of it.
    fn mutate(&mut self, bytes: &mut Vec<u8>, part: Range<usize>) {
        for _ in 0..=self.below(6) {
            let place = part.start + self.below(part.len());
            bytes[place] = match self.below(4) {
                0 => bytes[place] ^ 1 << self.below(8),
                1 => 0xff,
                2 => 0,
                _ => u8::try_from(self.below(256)).unwrap(),
            };
        }
        let (one, other) =
            (part.start + self.below(part.len()), part.start + self.below(part.len()));
        let (first, last) = (one.min(other), one.max(other));
        match self.below(8) {
            0 => bytes.truncate(first),
            1 => drop(bytes.drain(first..last)),
            2 => {
                let again = bytes[first..last].to_vec();
                bytes.splice(last..last, again);
            }
            3 => bytes.extend_from_within(first..),
            _ => {}
        }
    }
}

/// Connections by the daemon's first answer to them.
#[derive(Debug, Default)]
struct Answered {
    valid: u32,
    malformed: u32,
}

fn speak(socket: &Path, connections: u32) -> Answered {
    const PREFACE: usize = 24;

    let requests = requests();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut answered = Answered::default();
    for connection in 0..connections {
        let (path, message) = &requests[random.below(requests.len())];
        let (mut bytes, inside) = session(path, message);
        // Every tenth as it should be, to know that it is nonsense that makes the difference.
        let valid = connection % 10 == 0;
        if !valid {
            let part = match random.below(8) {
                0 => 0..bytes.len(),
                // The message alone, in frames that are in order.
                1..4 if !inside.is_empty() => inside,
                // Beyond the preface: without it nothing further is looked at.
                _ => PREFACE..bytes.len(),
            };
            random.mutate(&mut bytes, part);
        }
        let mut stream = UnixStream::connect(socket).unwrap();
        // A valid request has an answer; nonsense may have none.
        let patience = if valid { PATIENCE } else { Duration::from_millis(20) };
        stream.set_read_timeout(Some(patience)).unwrap();
        drop(stream.write_all(&bytes));
        let mut answer = [0; 4096];
        let mut length = 0;
        let mut told = false;
        while !told && length < answer.len() {
            match stream.read(&mut answer[length..]) {
                Ok(0) | Err(_) => break,
                Ok(more) => length += more,
            }
            // HEADERS (1) of stream 1: a response has begun.
            told = answer[..length]
                .windows(9)
                .any(|frame| frame[3] == 1 && frame[5..] == [0, 0, 0, 1]);
        }
        let count = if valid { &mut answered.valid } else { &mut answered.malformed };
        *count += u32::from(told);
    }
    answered
}

#[tokio::test]
async fn malformed_frames_hurt_nobody_else() {
    let connections = std::env::var("TOPOD_FRAMES").map_or(CONNECTIONS, |n| n.parse().unwrap());
    let place = Place::new();
    record(&place.machine(), &machine(4, 20));
    let (topod, _) = Topod::start(&place).ready(&place).await;
    let socket = place.socket();
    let answered = tokio::task::spawn_blocking(move || speak(&socket, connections)).await.unwrap();
    println!("of {connections} connections were answered: {answered:?}");
    assert_eq!(answered.valid, connections.div_ceil(10), "what is as it should be is answered");
    let mut client = v1::status_service_client::StatusServiceClient::new(place.channel().await);
    let status = client.get_status(v1::GetStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.published.unwrap().generation, 1);
    topod.signal(Signal::TERM);
    let output = topod.wait();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !log.contains("panicked"), "{log}");
}

async fn limited(limits: Limits) -> Daemon {
    let place = Place::new();
    record(&place.machine(), &machine(4, 20));
    let mut config = place.config();
    config.limits = limits;
    Daemon::start_with(place, config).await
}

#[tokio::test]
async fn one_connection_makes_so_many_calls_a_second() {
    let daemon = limited(Limits { calls_per_second: 1, ..Limits::default() }).await;
    let mut client = v1::status_service_client::StatusServiceClient::new(daemon.channel());
    let mut refused = None;
    for _ in 0..100 {
        if let Err(status) = client.get_status(v1::GetStatusRequest {}).await {
            refused = Some(status);
            break;
        }
    }
    let refused: Result<(), _> = Err(refused.expect("a hundred at once are too many"));
    check_refused(refused, Code::ResourceExhausted, Reason::RateLimited);
    // Another connection has a rate of its own.
    let channel = daemon.place.channel().await;
    let mut client = v1::status_service_client::StatusServiceClient::new(channel);
    client.get_status(v1::GetStatusRequest {}).await.unwrap();
}

#[tokio::test]
async fn requests_have_a_size() {
    let daemon = limited(Limits { request_bytes: 1000, ..Limits::default() }).await;
    let gpus = vec![v1::GpuSelector::default(); 1000];
    let large = v1::GetPlanRequest { gpus, ..Default::default() };
    let refused = daemon.plans().get_plan(large).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    let operations = vec![v1::OperationReport { bytes: 1, ..Default::default() }; 1000];
    let large = v1::ReportOperationsRequest { operations };
    let refused = daemon.reports().report_operations(large).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
}

#[tokio::test]
async fn there_are_so_many_connections() {
    let daemon = limited(Limits { connections: 3, ..Limits::default() }).await;
    let held: Vec<UnixStream> =
        (0..8).map(|_| UnixStream::connect(daemon.place.socket()).unwrap()).collect();
    // The daemon's own client has one, two more are taken, and the rest sees an end.
    let ended = tokio::task::spawn_blocking(move || {
        let mut ended = 0;
        for mut stream in &held {
            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let mut byte = [0];
            ended += u32::from(matches!(stream.read(&mut byte), Ok(0)));
        }
        (ended, held)
    });
    let (ended, held) = ended.await.unwrap();
    assert_eq!(ended, 6);
    drop(held);
    daemon.status().await;
}

/// A watcher that does not read, while topologies change: the others see every one, and it gets the latest when it reads again.
#[tokio::test]
async fn a_slow_watcher_holds_up_nobody() {
    let daemon = Daemon::start().await;
    let request = || v1::WatchTopologyRequest { changes: true, ..Default::default() };
    let slow_channel = daemon.place.channel().await;
    let mut slow = v1::topology_service_client::TopologyServiceClient::new(slow_channel)
        .watch_topology(request())
        .await
        .unwrap()
        .into_inner();
    let mut quick = daemon.topologies().watch_topology(request()).await.unwrap().into_inner();
    let changes = 40;
    for change in 0..=changes {
        if change > 0 {
            daemon.reload(&machine(4, 20 + change)).await;
        }
        let message = timeout(PATIENCE, quick.message()).await.unwrap().unwrap().unwrap();
        use v1::watch_topology_response::Event;
        let generation = match message.event.unwrap() {
            Event::Topology(topology) => topology.generation,
            Event::Changes(changes) => changes.generation,
            other => panic!("{other:?}"),
        };
        assert_eq!(generation, change + 1);
        // Nobody else reads what the daemon tells its manager.
        while daemon.place.heard().is_some() {}
    }
    let mut generation = 0;
    while generation < changes + 1 {
        use v1::watch_topology_response::Event;
        let message = timeout(PATIENCE, slow.message()).await.unwrap().unwrap().unwrap();
        generation = match message.event.unwrap() {
            Event::Topology(topology) => topology.generation,
            Event::Changes(changes) => changes.generation,
            Event::Resync(_) | Event::Heartbeat(_) => generation,
        };
    }
}
