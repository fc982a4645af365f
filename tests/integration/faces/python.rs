//! The Python module: its example, its stub, and every collective against NumPy.

use std::process::Command;

use super::{example, lines, python, run_ranks};

#[track_caller]
fn check(script: &str, ranks: u32) {
    let Some((python, folder)) = python() else { return };
    let outputs = run_ranks(ranks, |_| {
        let mut command = Command::new(&python);
        command.arg(example(script)).env("PYTHONPATH", folder.path());
        // NumPy's own threads would take the ranks' cores.
        command.env("OPENBLAS_NUM_THREADS", "1").env_remove("TOPOD_SOCKET");
        command
    });
    for (rank, output) in outputs.iter().enumerate() {
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
