//! The transport's faces for other languages: built, and used by real programs.

mod c;
mod python;
mod training;
mod tuner;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// Starts one process per rank, as torchrun does, and waits for all. None is left over where one fails.
fn run_ranks(ranks: u32, command: impl Fn(u32) -> Command) -> Vec<Output> {
    let port = free_port();
    let mut processes: Vec<Rank> = (0..ranks)
        .map(|rank| {
            let mut command = command(rank);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            Rank(Some(command.spawn().unwrap()))
        })
        .collect();
    processes
        .iter_mut()
        .map(|process| process.0.take().unwrap().wait_with_output().unwrap())
        .collect()
}

struct Rank(Option<Child>);

impl Drop for Rank {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A port nobody listens on at the moment.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// The lines of a process that must have ended well.
#[track_caller]
fn lines(output: &Output) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{error}", output.status);
    out.lines().map(str::to_owned).collect()
}

/// A Python that has NumPy, with the module in its path; says why there is none.
fn python() -> Option<(PathBuf, TempDir)> {
    let has_numpy = |python: &Path| {
        let checked = "import sys, numpy; sys.exit(sys.version_info < (3, 11))";
        let mut command = Command::new(python);
        command.args(["-c", checked]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    // The system's, then whatever the path has before it.
    let known = ["/usr/bin/python3", "python3"].map(PathBuf::from);
    let Some(python) = known.into_iter().find(|python| has_numpy(python)) else {
        println!("skipped: there is no Python 3.11 or later with NumPy");
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    fs::copy(crate::programs::python_module(), folder.path().join("topod.abi3.so")).unwrap();
    Some((python, folder))
}

fn example(path: &str) -> PathBuf {
    crate::workspace_root().join("transport").join(path)
}
