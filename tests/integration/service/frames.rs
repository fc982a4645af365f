//! Clients that speak nonsense, too much, or too slowly.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use daemon::Limits;
use proto::{Reason, v1};
use tokio::time::timeout;
use tonic::Code;

use crate::daemon::harness::{Daemon, PATIENCE, Place, check_refused, machine, record};

/// Connections of an ordinary run. By hand: `TOPOD_FRAMES=100000 cargo test -p tests --test integration malformed_frames`.
const CONNECTIONS: u32 = 300;

/// The preface, settings, and a request for status: what a client sends at first, which the daemon answers.
fn valid() -> Vec<u8> {
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
        (":path", "/topod.v1.StatusService/GetStatus"),
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
    // An empty message.
    frame(0, 1, 1, &[0, 0, 0, 0, 0]);
    bytes
}

#[tokio::test]
async fn malformed_frames_hurt_nobody_else() {
    let connections = std::env::var("TOPOD_FRAMES").map_or(CONNECTIONS, |n| n.parse().unwrap());
    let daemon = Daemon::start().await;
    let socket = daemon.place.socket();
    let speak = move || {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |most: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random % u64::try_from(most).unwrap()).unwrap()
        };
        let mut answered = 0;
        for connection in 0..connections {
            let mut bytes = valid();
            // Every tenth as it should be, to know that it is nonsense that makes the difference.
            if connection % 10 != 0 {
                // Beyond the preface, mostly: without it nothing further is looked at.
                let start = if next(8) == 0 { 0 } else { 24 };
                for _ in 0..=next(6) {
                    let place = start + next(bytes.len() - start);
                    bytes[place] = u8::try_from(next(256)).unwrap();
                }
                if next(3) == 0 {
                    bytes.truncate(start + next(bytes.len() - start));
                }
            }
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            drop(stream.write_all(&bytes));
            let mut answer = [0; 4096];
            let mut length = 0;
            while length < answer.len() {
                match stream.read(&mut answer[length..]) {
                    Ok(0) | Err(_) => break,
                    Ok(more) => length += more,
                }
                // The message's length and the generation: enough to know an answer by.
                if answer[..length].windows(11).any(|bytes| bytes == b"grpc-status") {
                    break;
                }
            }
            answered += u32::from(length > 60);
        }
        answered
    };
    let answered = tokio::task::spawn_blocking(speak).await.unwrap();
    println!("{answered} of {connections} connections were answered at length");
    assert!(answered > 0, "some were as they should be");
    assert_eq!(daemon.status().await.published.unwrap().generation, 1);
    let (ended, _) = daemon.stop().await;
    ended.unwrap();
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
