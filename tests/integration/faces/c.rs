//! The C example, compiled against the header and either form of the library.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{example, lines, run_ranks};

/// Compiles the example against the shared or the static library.
fn compile(folder: &Path, form: &str) -> PathBuf {
    let libraries = crate::programs::c_library();
    let wanted = libraries.iter().find(|path| path.extension().is_some_and(|e| e == form));
    let library = wanted.unwrap_or_else(|| panic!("no .{form} among {libraries:?}"));
    let program = folder.join(format!("average-{form}"));
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(example("c/include"))
        .arg(example("c/examples/average.c"))
        .arg(library)
        .args(["-lm", "-lpthread", "-ldl", "-o"])
        .arg(&program)
        .output()
        .expect("a C compiler, which Rust links with");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

#[track_caller]
fn check(program: &Path, ranks: u32) {
    let libraries = crate::programs::c_library()[0].parent().unwrap();
    let outputs = run_ranks(ranks, |_| {
        let mut command = Command::new(program);
        command.arg(ranks.to_string()).env("LD_LIBRARY_PATH", libraries).env_remove("TOPOD_SOCKET");
        command
    });
    for (rank, output) in outputs.iter().enumerate() {
        let average = f64::from(ranks - 1) / 2.0;
        let averages = format!("{average} {} {}", average + 10.0, average + 20.0);
        let wanted =
            [format!("rank {rank} of {ranks}: average {averages}"), format!("rank {rank}: done")];
        assert_eq!(lines(output), wanted);
    }
}

#[test]
fn the_example_runs_with_two_to_four_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), "so");
    for ranks in 2..=4 {
        check(&program, ranks);
    }
}

#[test]
fn it_links_statically() {
    let folder = tempfile::tempdir().unwrap();
    check(&compile(folder.path(), "a"), 2);
}
