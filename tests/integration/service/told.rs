//! What groups of ranks tell the daemon of their operations, as its metrics count them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use daemon::{Config, MetricsAddress};
use topology::Rank;
use transport::even::ring_plan;
use transport::{Communicator, Options, ReduceOp, Rendezvous};

use super::metrics::{free, page};
use super::tool::topoctl;
use crate::daemon::harness::{Daemon, Place, machine, record};

/// Two ranks that do this many operations; then rank 1 leaves, and rank 0 begins another.
fn work(folder: &Path, socket: &str, operations: usize) {
    let rendezvous: Rendezvous =
        format!("file://{}", folder.join("meet").display()).parse().unwrap();
    let plan = ring_plan(2, 1);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (plan, rendezvous) = (&plan, &rendezvous);
            scope.spawn(move || {
                let mut options = Options {
                    timeout: Duration::from_secs(60),
                    report: Some(socket.to_owned()),
                    ..Options::for_all()
                };
                transport_daemon::attach(&mut options);
                let mut group = Communicator::new(plan, Rank(rank), rendezvous, options).unwrap();
                for _ in 0..operations {
                    group.all_reduce(&mut [1.0_f32; 256], ReduceOp::Sum).unwrap();
                }
                group.broadcast(&mut [7_u8; 100], Rank(1)).unwrap();
                if rank == 0 {
                    group.all_reduce(&mut [1.0_f32; 256], ReduceOp::Sum).unwrap_err();
                }
            });
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_tell_how_their_operations_end() {
    let place = Place::new();
    record(&place.machine(), &machine(2, 20));
    let address = free();
    let config = Config { metrics: Some(MetricsAddress::Loopback(address)), ..place.config() };
    let daemon = Daemon::start_with(place, config).await;
    let (folder, socket) = (daemon.place.path("."), daemon.place.socket().display().to_string());
    let of = socket.clone();
    tokio::task::spawn_blocking(move || work(&folder, &of, 2500)).await.unwrap();
    let found = page(address).await;
    for line in [
        "topod_collectives_total{collective=\"all-reduce\",outcome=\"ok\"} 2500",
        "topod_collectives_total{collective=\"all-reduce\",outcome=\"failed\"} 1",
        "topod_collectives_total{collective=\"broadcast\",outcome=\"ok\"} 1",
        // What came to its end, once for each operation.
        "topod_collective_bytes_total{collective=\"all-reduce\"} 2560000",
    ] {
        assert!(found.lines().any(|other| other == line), "no {line} in\n{found}");
    }

    // And the benchmark, when it is asked to.
    let plan: PathBuf = daemon.place.machine();
    let place = &daemon.place;
    let from = plan.display().to_string();
    let args = ["bench", "broadcast", "--ranks", "2", "--sizes", "1K", "--min-time", "1"];
    let args = [&args[..], &["--report", "--from", &from]].concat();
    let answer = tokio::task::block_in_place(|| topoctl(place, &args));
    assert_eq!(answer.code(), Some(0), "{answer:?}");
    let found = page(address).await;
    let told = found.lines().find_map(|line| {
        line.strip_prefix("topod_collectives_total{collective=\"broadcast\",outcome=\"ok\"} ")
    });
    let told: u64 = told.unwrap().parse().unwrap();
    assert!(told > 20, "{told} broadcasts, of twenty batches at least");
    let (ended, _) = daemon.stop().await;
    ended.unwrap();
}
