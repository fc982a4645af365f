//! The Python module: its example, its stub, and every collective against NumPy.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use super::{example, lines, python, run_ranks};

/// What each rank prints; nobody where there is no Python.
fn outputs(script: &str, ranks: u32) -> Vec<Output> {
    let Some((python, folder)) = python() else { return Vec::new() };
    run_ranks(ranks, |_| {
        let mut command = Command::new(&python);
        command.arg(example(script)).env("PYTHONPATH", folder.path());
        // NumPy's own threads would take the ranks' cores.
        command.env("OPENBLAS_NUM_THREADS", "1").env_remove("TOPOD_SOCKET");
        command
    })
}

#[track_caller]
fn check(script: &str, ranks: u32) {
    for (rank, output) in outputs(script, ranks).iter().enumerate() {
        let lines = lines(output);
        assert_eq!(lines.last().unwrap(), &format!("rank {rank}: done"), "{lines:?}");
    }
}

#[test]
fn the_example_runs() {
    check("python/examples/average.py", 3);
}

#[test]
fn every_collective_agrees_with_numpy() {
    check("python/tests/collectives.py", 2);
    check("python/tests/collectives.py", 4);
}

#[test]
fn a_group_goes_on_without_a_rank_that_was_killed() {
    for (rank, output) in outputs("python/tests/survivors.py", 3).iter().enumerate() {
        if rank == 1 {
            assert_eq!(output.status.signal(), Some(9));
        } else {
            assert_eq!(lines(output), [format!("rank {rank}: went on")]);
        }
    }
}

/// The stub names what the module has, and nothing else.
#[test]
fn the_stub_is_complete() {
    let Some((python, folder)) = python() else { return };
    let output = Command::new(&python)
        .arg(example("python/tests/stub.py"))
        .arg(example("python/topod.pyi"))
        .env("PYTHONPATH", folder.path())
        .output()
        .unwrap();
    assert_eq!(lines(&output), ["the stub is complete"]);
}
