//! A real program: data-parallel training in NumPy, started by Open MPI's mpirun, ranks on two hosts (network namespaces), with
//! the plan of a running topod. Its losses must be those of one process.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::{example, lines, python};
use crate::daemon::harness::{Place, machine, record};
use crate::hosts::{FIRST, Hosts};

const RANKS: u32 = 4;

/// Kills topod however the test ends.
struct Topod(std::process::Child);

impl Drop for Topod {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn losses(output: &Output) -> Vec<f64> {
    let lines = lines(output);
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    let told: Value = serde_json::from_str(line).unwrap();
    assert_eq!(told["ranks"], RANKS);
    told["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
}

fn alone(python: &Path, more: &[&str]) -> Vec<f64> {
    let output = Command::new(python)
        .arg(example("python/examples/train.py"))
        .args(["--shards", &RANKS.to_string()])
        .args(more)
        .env("OPENBLAS_NUM_THREADS", "1")
        .output()
        .unwrap();
    losses(&output)
}

#[tokio::test]
async fn training_under_mpirun_on_two_hosts_loses_as_one_process_does() {
    let Some((python, folder)) = python() else { return };
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("skipped: there is no mpirun");
        return;
    }
    let Some(hosts) = Hosts::new() else { return };
    let place = Place::new();
    record(&place.machine(), &machine(RANKS, 20));
    let mut topod = Command::new(crate::programs::topod());
    topod.arg("--socket").arg(place.socket()).arg("--source").arg(place.machine());
    topod.env("NOTIFY_SOCKET", place.notify()).stderr(Stdio::null());
    let _topod = Topod(topod.spawn().unwrap());
    place.notification("READY=1").await;

    let [a, b] = hosts.names();
    let job = |more: &[&str]| {
        // The first half of the ranks on the one host, the second on the other.
        let rank = format!(
            "if [ $OMPI_COMM_WORLD_RANK -lt {} ]; then host={a}; else host={b}; fi; exec ip netns exec $host \"$@\"",
            RANKS / 2
        );
        let output = Command::new("mpirun")
            .args(["--allow-run-as-root", "--oversubscribe", "-np", &RANKS.to_string()])
            .args(["sh", "-c", &rank, "rank"])
            .arg(&python)
            .arg(example("python/examples/train.py"))
            .args(more)
            .env("PYTHONPATH", folder.path())
            .env("TOPOD_SOCKET", place.socket())
            .env("MASTER_ADDR", FIRST)
            // Nobody else is in the namespace.
            .env("MASTER_PORT", "29500")
            .env("OPENBLAS_NUM_THREADS", "1")
            .output()
            .unwrap();
        losses(&output)
    };

    let (ours, reference) = (job(&[]), alone(&python, &[]));
    assert_eq!(ours.len(), 60);
    assert!(ours[59] < ours[0] / 2.0, "it learns: {} to {}", ours[0], ours[59]);
    let bits = |losses: &[f64]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&ours), bits(&reference), "bit for bit");

    // Without rounding the order of addition shows, in the last places.
    let (ours, reference) = (job(&["--unrounded"]), alone(&python, &["--unrounded"]));
    for (ours, reference) in ours.iter().zip(&reference) {
        assert!((ours - reference).abs() <= 1e-9 * reference, "{ours} and {reference}");
    }
}
