//! What a host does to a daemon: a full disk, a clock that jumps, a journal.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use rustix::process::Signal;

use super::{found, may_mount};
use crate::daemon::binary::{Topod, command};
use crate::daemon::harness::{Place, machine, record};

/// The same command in a mount namespace of its own, after `prepare`, a line of shell.
fn apart(command: &Command, prepare: &str) -> Command {
    let mut apart = Command::new("unshare");
    apart.args(["--mount", "sh", "-c", &format!("{prepare} && exec \"$@\""), "sh"]);
    apart.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => apart.env(name, value),
            None => apart.env_remove(name),
        };
    }
    apart.stderr(std::process::Stdio::piped());
    apart
}

#[tokio::test]
async fn a_full_disk_is_told_and_outlived() {
    if !may_mount() {
        return;
    }
    let place = Place::new();
    record(&place.machine(), &machine(4, 20));
    let state = place.path("state");
    fs::create_dir(&state).unwrap();
    let mut daemon = command(&place);
    daemon.arg("--state").arg(&state);
    let folder = state.display();
    // One page, and it is taken.
    let prepare = format!(
        "mount -t tmpfs -o size=4k tmpfs {folder} && head -c 4096 /dev/zero > {folder}/taken"
    );
    let topod = Topod::spawn(&mut apart(&daemon, &prepare));
    place.notification("READY=1").await;
    let status = super::tool::topoctl(&place, &["status", "-o", "json"]).json();
    let warnings = status["warnings"].to_string();
    assert!(
        warnings.contains("state: cannot write") && warnings.contains("No space left"),
        "{status}"
    );

    // It goes on, and so do its generations.
    record(&place.machine(), &machine(3, 20));
    topod.signal(Signal::HUP);
    place.notification("STATUS=3 GPUs, 1 NICs, 0 faults, generation 2").await;
    topod.signal(Signal::TERM);
    let output = topod.wait();
    assert!(output.status.success());
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("the state is not kept"), "{log}");
}

/// The wall clock steps ten years on and twenty back. Nothing here measures time by it.
#[tokio::test]
async fn a_clock_that_jumps_changes_nothing() {
    if !found("faketime", "faketime") {
        return;
    }
    let library =
        format!("/usr/lib/{}-linux-gnu/faketime/libfaketime.so.1", std::env::consts::ARCH);
    let place = Place::new();
    record(&place.machine(), &machine(4, 20));
    let clock = place.path("clock");
    fs::write(&clock, "+0").unwrap();
    let mut daemon = command(&place);
    daemon.args(["--poll", "1"]).env("LD_PRELOAD", &library);
    daemon.env("FAKETIME_TIMESTAMP_FILE", &clock).env("FAKETIME_NO_CACHE", "1");
    daemon.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
    let topod = Topod::spawn(&mut daemon);
    place.notification("READY=1").await;
    for (gpus, jump) in [(3, "+10y"), (2, "-10y"), (4, "+0")] {
        fs::write(&clock, jump).unwrap();
        record(&place.machine(), &machine(gpus, 20));
        place.notification(&format!("STATUS={gpus} GPUs")).await;
        let status = super::tool::topoctl(&place, &["status", "-o", "json"]).json();
        let age = status["last_success_age_ms"].as_u64().unwrap();
        assert!(age < 60_000, "{status}");
    }
    topod.signal(Signal::TERM);
    let output = topod.wait();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !log.contains("panicked"), "{log}");
}

/// Fields in the journal, by the protocol that journald takes.
#[tokio::test]
async fn the_journal_gets_fields() {
    if !may_mount() {
        return;
    }
    let place = Place::new();
    record(&place.machine(), &machine(4, 20));
    let folder = place.path("journal");
    fs::create_dir(&folder).unwrap();
    let journal = UnixDatagram::bind(folder.join("socket")).unwrap();
    journal.set_nonblocking(true).unwrap();
    let journal = tokio::net::UnixDatagram::from_std(journal).unwrap();
    // Stderr is a file whose device and inode the variable names, as the service manager's stream would be.
    let stream = fs::File::create(place.path("stderr")).unwrap();
    let found = rustix::fs::fstat(&stream).unwrap();
    let mut daemon = command(&place);
    daemon.env("JOURNAL_STREAM", format!("{}:{}", found.st_dev, found.st_ino));
    let prepare = format!(
        "mkdir -p /run/systemd/journal && mount --bind {} /run/systemd/journal",
        folder.display()
    );
    let topod = Topod::spawn(apart(&daemon, &prepare).stderr(stream));
    place.notification("READY=1").await;
    let mut entry = String::new();
    while !entry.contains("published") {
        let mut buffer = vec![0; 65536];
        let length = journal.recv(&mut buffer).await.unwrap();
        entry = String::from_utf8_lossy(&buffer[..length]).into_owned();
    }
    let has = |text: &str| assert!(entry.contains(text), "no {text} in {entry:?}");
    for name in ["PRIORITY", "SYSLOG_IDENTIFIER", "MESSAGE_ID", "GENERATION", "GPUS", "CODE_FILE"] {
        has(name);
    }
    has(daemon::logging::message_id::PUBLISHED);
    topod.signal(Signal::TERM);
    topod.wait();
    assert_eq!(fs::read_to_string(place.path("stderr")).unwrap(), "");
}
