//! The program itself, as a service manager starts and ends it.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::harness::{Place, machine, record};

/// On a recorded machine; the best of some starts, since the machine the tests run on may be busy.
const START_LIMIT: Duration = Duration::from_millis(100);
const STARTS: usize = 20;

pub(crate) fn command(place: &Place) -> Command {
    let mut command = Command::new(crate::programs::topod());
    command.args(["--socket", place.socket().to_str().unwrap()]);
    command.args(["--source", place.machine().to_str().unwrap()]);
    // Peers are logged for whoever asks.
    command.env("TOPOD_LOG", "info,daemon=debug");
    command.env("NOTIFY_SOCKET", place.notify()).stderr(Stdio::piped());
    command
}

/// A child that does not outlive a failing test.
pub(crate) struct Topod(Option<Child>);

impl Topod {
    pub(crate) fn start(place: &Place) -> Self {
        Self::spawn(&mut command(place))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.0.as_ref().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// What it says once it is ready. One that ends before that is told at once, with its log.
    pub(crate) async fn ready(mut self, place: &Place) -> (Self, String) {
        let pid = self.pid();
        // Looked at, not taken: its output is waited for below or by whoever has it.
        let ends = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let ended = tokio::task::spawn_blocking(move || waitid(WaitId::Pid(pid), ends));
        tokio::select! {
            biased;
            ready = place.notification("READY=1") => return (self, ready),
            ended = ended => drop(ended.unwrap()),
        }
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        panic!(
            "{} before it was ready: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }

    pub(crate) fn wait(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Topod {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

#[tokio::test]
async fn signals_reload_and_end_it() {
    let place = Place::new();
    record(&place.machine(), &machine(4, 20));
    let topod = Topod::start(&place);
    let ready = place.notification("READY=1").await;
    assert!(ready.contains("STATUS=4 GPUs, 1 NICs, 0 faults, generation 1"), "{ready}");
    drop(place.channel().await);

    record(&place.machine(), &machine(4, 25));
    topod.signal(Signal::HUP);
    place.notification("STATUS=4 GPUs, 1 NICs, 0 faults, generation 2").await;

    topod.signal(Signal::TERM);
    let output = topod.wait();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(!place.socket().exists());
    let uid = rustix::process::getuid().as_raw();
    let pid = std::process::id();
    let peer = log.lines().find(|line| line.contains("connected")).expect("the peer is logged");
    assert!(peer.contains(&format!("uid {uid} ")), "{peer}");
    assert!(peer.contains(&format!("pid {pid}")), "{peer}");
}

#[tokio::test]
async fn it_starts_in_no_time() {
    let place = Place::new();
    record(&place.machine(), &machine(8, 20));
    crate::programs::topod();
    let mut best = Duration::MAX;
    for _ in 0..STARTS {
        let start = Instant::now();
        let topod = Topod::start(&place);
        place.notification("READY=1").await;
        best = best.min(start.elapsed());
        topod.signal(Signal::TERM);
        assert!(topod.wait().status.success());
        if best < START_LIMIT {
            break;
        }
    }
    println!("started in {best:?}");
    assert!(best < START_LIMIT, "started in {best:?} at best");
}

#[test]
fn what_makes_no_sense_ends_it_before_it_listens() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("topod.sock");
    let output = Command::new(crate::programs::topod())
        .args(["--socket", socket.to_str().unwrap(), "--source", "/nowhere"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.starts_with("topod: --source /nowhere: No such file"), "{error}");
    assert!(!socket.exists());
}
