//! `topoctl status` and `watch` against daemons that are well, stopped, gone.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

use crate::daemon::binary::Topod;
use crate::daemon::harness::{Place, machine, record};

pub(super) struct Answer(Output);

impl Answer {
    pub(super) fn code(&self) -> Option<i32> {
        self.0.status.code()
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.0.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn error(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}{}", self.code(), String::from_utf8_lossy(&self.0.stdout), self.error())
    }
}

fn command(place: &Place, args: &[&str]) -> Command {
    let mut command = Command::new(crate::programs::topoctl());
    command.args(args).env("TOPOD_SOCKET", place.socket());
    command
}

pub(super) fn topoctl(place: &Place, args: &[&str]) -> Answer {
    Answer(command(place, args).output().unwrap())
}

#[tokio::test]
async fn a_stopped_daemon_is_told_from_a_slow_one() {
    let place = Place::new();
    record(&place.machine(), &machine(2, 20));
    let topod = Topod::start(&place);
    place.notification("READY=1").await;
    assert_eq!(topoctl(&place, &["status"]).code(), Some(0));

    topod.signal(Signal::STOP);
    waitid(WaitId::Pid(topod.pid()), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT).unwrap();
    let begin = Instant::now();
    let answer = topoctl(&place, &["status"]);
    assert_eq!(answer.code(), Some(6), "{answer:?}");
    assert!(answer.error().contains("says nothing for 3 s"), "{answer:?}");
    // Not the half minute that a plan may take; ample, for the machine may be busy.
    assert!(begin.elapsed().as_secs() < 20);
    topod.signal(Signal::CONT);
    assert_eq!(topoctl(&place, &["status"]).code(), Some(0));
    topod.signal(Signal::TERM);
    topod.wait();
    assert_eq!(topoctl(&place, &["status"]).code(), Some(6));
    assert_eq!(topoctl(&place, &["watch"]).code(), Some(6));
}

#[tokio::test]
async fn a_failed_reading_shows_in_status() {
    let place = Place::new();
    record(&place.machine(), &machine(2, 20));
    let topod = Topod::start(&place);
    place.notification("READY=1").await;
    let well = topoctl(&place, &["status", "-o", "json"]).json();
    assert_eq!((&well["readings"], &well["failed_readings"]), (&1.into(), &0.into()));
    assert!(well["health"].is_string(), "{well}");

    std::fs::write(place.machine(), "no machine").unwrap();
    topod.signal(Signal::HUP);
    place.notification("RELOADING=1").await;
    place.notification("READY=1").await;
    let answer = topoctl(&place, &["status", "-o", "json"]);
    assert_eq!(answer.code(), Some(5), "{answer:?}");
    let status = answer.json();
    assert!(status["last_error"].as_str().unwrap().contains("machine.json"), "{status}");
    assert_eq!((&status["generation"], &status["failed_readings"]), (&1.into(), &1.into()));
    assert!(status["last_success_age_ms"].is_u64());
    topod.signal(Signal::TERM);
    topod.wait();
}

#[tokio::test]
async fn watch_prints_what_happens_and_outlives_the_daemon() {
    let place = Place::new();
    record(&place.machine(), &machine(3, 20));
    let topod = Topod::start(&place);
    place.notification("READY=1").await;
    let mut watching = command(&place, &["watch", "-o", "json", "--reconnect"]);
    let mut watching = watching.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next = || -> serde_json::Value {
        serde_json::from_str(&lines.next().expect("a line").unwrap()).unwrap()
    };
    let mut first = [next(), next()];
    first.sort_by_key(|line| line["event"].to_string());
    assert_eq!(first[0]["event"], "health");
    assert!(first[0]["status"].is_string());
    assert_eq!((&first[1]["event"], &first[1]["gpus"]), (&"topology".into(), &3.into()));

    let mut down = machine(3, 20);
    down.nics[0].up = Some(false);
    record(&place.machine(), &down);
    topod.signal(Signal::HUP);
    let mut changed = [next(), next()];
    changed.sort_by_key(|line| line["event"].to_string());
    assert_eq!(changed[0]["changed"], serde_json::json!(["mlx5_0"]));
    assert_eq!(changed[1]["appeared"], serde_json::json!(["nic-port-down mlx5_0"]));

    topod.signal(Signal::KILL);
    topod.wait();
    assert_eq!(next()["event"], "lost");
    // Another run without kept state: what was followed is of no use.
    let topod = Topod::start(&place);
    let mut again = vec![next()];
    while again.last().unwrap()["event"] == "lost" {
        again = vec![next()];
    }
    again.extend([next(), next()]);
    let events: Vec<&str> = again.iter().map(|line| line["event"].as_str().unwrap()).collect();
    for event in ["resync", "topology", "health"] {
        assert!(events.contains(&event), "{events:?}");
    }
    watching.kill().unwrap();
    watching.wait().unwrap();
    topod.signal(Signal::TERM);
    topod.wait();
}
