//! Ranges as a profiler's library gets them.

use std::path::{Path, PathBuf};
use std::process::Command;

use topology::Rank;
use transport::even::full_plan;
use transport::{Element, ReduceOp};

use crate::double::{command, is_child, over, run};
use crate::group::{Guarded, group, options, stream};

/// A library that writes down what it is told; `None` where there is no C compiler.
fn tool(folder: &Path) -> Option<PathBuf> {
    let library = folder.join("libtool.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvtx/tool.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
    match compiler.arg(&library).arg(source).status() {
        Ok(status) => {
            assert!(status.success(), "the tool does not build");
            Some(library)
        }
        Err(error) => {
            println!("skipped: cc: {error}");
            None
        }
    }
}

fn operations() {
    group(
        &full_plan(2, 1),
        |_| options(),
        |made, _| {
            let mut communicator = made.unwrap();
            let stream = stream(&communicator);
            let data = Guarded::new(communicator.context(), 0, &[1.0_f32; 1000]);
            let memory = data.memory();
            let sum = ReduceOp::Sum;
            let _ = communicator.all_reduce(&memory, &memory, f32::TYPE, sum, &stream).unwrap();
            let root = Rank(1);
            let _ = communicator.broadcast(&memory, &memory, f32::TYPE, root, &stream).unwrap();
            // What is refused before it is enqueued has no range.
            let odd = memory.part(0, 3);
            communicator.all_reduce(&odd, &odd, f32::TYPE, sum, &stream).unwrap_err();
            let last = communicator.barrier(&stream).unwrap();
            communicator.wait(last).unwrap();
            assert_eq!(data.read(), [2.0; 1000]);
        },
    );
}

/// What the tool wrote, in a child over `test` with some more variables.
fn told(test: &str, variables: &[(&str, &str)], library: Option<&Path>) -> Option<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut child = command(test)?;
    child.env_remove("NVTX_INJECTION64_PATH").env("NVTX_TEST_LOG", &log);
    if let Some(library) = library {
        child.env("NVTX_INJECTION64_PATH", library);
    }
    run(child.envs(variables.iter().copied()));
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    Some(text.lines().map(str::to_owned).collect())
}

#[test]
fn ranges_are_named_by_collective() {
    let test = "nvtx::ranges_are_named_by_collective";
    if is_child(test) {
        return operations();
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = tool(folder.path()) else { return };
    let Some(mut lines) = told(test, &[], Some(&library)) else { return };
    assert_eq!(lines[..2], ["init - 3", "domain topod 0"], "once, whoever comes first");
    // Of each of two ranks: two operations and a barrier, of as many bytes.
    lines.sort();
    let expected = [
        "domain topod 0",
        "init - 3",
        "pop - 0",
        "pop - 0",
        "pop - 0",
        "pop - 0",
        "pop - 0",
        "pop - 0",
        "push all-reduce 4000",
        "push all-reduce 4000",
        "push barrier 1",
        "push barrier 1",
        "push broadcast 4000",
        "push broadcast 4000",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_tool_that_does_not_take_part_is_left_alone() {
    let test = "nvtx::a_tool_that_does_not_take_part_is_left_alone";
    if is_child(test) {
        return operations();
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = tool(folder.path()) else { return };
    let Some(lines) = told(test, &[("NVTX_TEST_REFUSE", "1")], Some(&library)) else { return };
    assert_eq!(lines, ["init - 3"]);
    // One that is not there, or is another library, holds nothing up.
    for library in ["/nowhere/libtool.so", "libc.so.6"] {
        assert_eq!(told(test, &[], Some(Path::new(library))).unwrap(), [""; 0]);
    }
}

#[test]
fn nothing_is_loaded_unless_it_is_asked_for() {
    let test = "nvtx::nothing_is_loaded_unless_it_is_asked_for";
    over(test, &[("NVTX_INJECTION64_PATH", "")], || {
        operations();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("libtool.so"));
    });
}
