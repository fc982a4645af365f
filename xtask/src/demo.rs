//! The main job, end to end, on any machine: a daemon on a recorded machine, and what its users ask of it.

use std::fs;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The recorded machine: a DGX-1V class board with NICs.
const MACHINE: &str = "tests/fixtures/dgx1v/snapshot.json";

/// A daemon on a recorded machine is ready in a tenth of a second; more than this and it never will be.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// What a newcomer sees, in this order.
const COMMANDS: [&[&str]; 5] = [
    &["show"],
    &["plan"],
    &["explain", "GPU0", "GPU7"],
    &["bench", "all-reduce", "--ranks", "8"],
    &["status"],
];

pub(crate) fn run() -> Result<(), String> {
    let root = crate::workspace_root();
    println!("demo: building topod and topoctl");
    succeed(crate::cargo().args(["build", "--release", "-p", "daemon", "-p", "cli"]))?;
    let programs = root.join("target/release");
    let place = Place::new()?;
    let mut daemon = start(&programs.join("topod"), &root.join(MACHINE), &place)?;
    let shown = COMMANDS.iter().try_for_each(|arguments| {
        println!("\n$ topoctl {}", arguments.join(" "));
        succeed(
            Command::new(programs.join("topoctl"))
                .args(*arguments)
                .env("TOPOD_SOCKET", place.socket()),
        )
    });
    // Whatever happened, the daemon is stopped before the result is told.
    let stopped = stop(&mut daemon);
    shown
        .and(stopped)
        .inspect(|()| println!("\ndemo: topod stopped; everything ran and every element was right"))
}

/// A folder of its own for the sockets, gone at the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("topod-demo-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self(folder))
    }

    fn socket(&self) -> PathBuf {
        self.0.join("topod.sock")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A leftover in the temporary folder is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts the daemon and waits until it says that it is ready, the way systemd does.
fn start(program: &Path, machine: &Path, place: &Place) -> Result<Child, String> {
    let notify = place.0.join("notify.sock");
    let ready =
        UnixDatagram::bind(&notify).map_err(|error| format!("{}: {error}", notify.display()))?;
    ready.set_read_timeout(Some(READY_LIMIT)).map_err(|error| error.to_string())?;
    println!("\n$ topod --socket {} --source {MACHINE} &", place.socket().display());
    let mut daemon = Command::new(program)
        .arg("--socket")
        .arg(place.socket())
        .arg("--source")
        .arg(machine)
        .args(["--log", "warn"])
        .env("NOTIFY_SOCKET", &notify)
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let mut message = [0_u8; 4096];
    loop {
        let told = ready.recv(&mut message);
        match told {
            Ok(length)
                if String::from_utf8_lossy(&message[..length])
                    .lines()
                    .any(|line| line == "READY=1") =>
            {
                return Ok(daemon);
            }
            Ok(_) => {}
            Err(error) => {
                let ended = daemon
                    .try_wait()
                    .ok()
                    .flatten()
                    .map_or_else(|| "still running".into(), |status| status.to_string());
                let _ = stop(&mut daemon);
                let limit = if error.kind() == io::ErrorKind::WouldBlock {
                    format!("within {READY_LIMIT:?}")
                } else {
                    error.to_string()
                };
                return Err(format!("topod did not become ready: {limit}; {ended}"));
            }
        }
    }
}

fn stop(daemon: &mut Child) -> Result<(), String> {
    let pid = i32::try_from(daemon.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid.filter(|_| matches!(daemon.try_wait(), Ok(None))) {
        kill_process(pid, Signal::TERM).map_err(|error| format!("stopping topod: {error}"))?;
    }
    let status = daemon.wait().map_err(|error| format!("waiting for topod: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("topod ended with {status}")) }
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}")) }
}
