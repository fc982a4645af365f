//! Under a service manager: configuration, watchdog, reload.

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use crate::daemon::binary::{Topod, command};
use crate::daemon::harness::{Place, machine, record};

fn check_config(text: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("topod.toml");
    fs::write(&path, text).unwrap();
    let output = Command::new(crate::programs::topod())
        .args(["--check-config", "--config", path.to_str().unwrap()])
        .args(["--socket", folder.path().join("s").to_str().unwrap()])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).replace(path.to_str().unwrap(), "FILE");
    (output.status.code(), error)
}

#[test]
fn the_configuration_is_checked_without_a_start() {
    assert_eq!(
        check_config("rates = 'nominal'"),
        (Some(0), "topod: the configuration is valid\n".into())
    );
    let (code, error) = check_config("\n[limits]\nstreams = 'many'");
    assert_eq!(code, Some(2));
    assert!(error.starts_with("topod: FILE:3:11: invalid type: string \"many\""), "{error}");
}

/// The file that is installed says what happens without it.
#[test]
fn the_installed_configuration_is_the_default() {
    let text = fs::read_to_string(crate::workspace_root().join("deploy/topod.toml")).unwrap();
    assert_eq!(check_config(&text).0, Some(0));
    // Every setting is there, as a comment with its default; taken in, each is valid.
    let settings = text.lines().filter(|line| line.starts_with('#') && !line.starts_with("# "));
    let settings: Vec<&str> = settings.map(|line| &line[1..]).collect();
    let names: Vec<&str> =
        settings.iter().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    for name in [
        "socket",
        "rates",
        "poll_seconds",
        "events",
        "metrics",
        "metrics_textfile",
        "log",
        "streams",
        "listen",
    ] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    let without_files: Vec<&str> = settings
        .into_iter()
        .take_while(|line| !line.starts_with("[tcp]"))
        .filter(|line| {
            !["source", "sysfs_root", "nvml", "metrics_textfile", "state"]
                .iter()
                .any(|name| line.starts_with(name))
        })
        .collect();
    let (code, error) = check_config(&without_files.join("\n"));
    assert_eq!(code, Some(0), "{error}");
}

#[tokio::test]
async fn the_main_loop_feeds_the_watchdog() {
    let place = Place::new();
    record(&place.machine(), &machine(2, 20));
    let topod = Topod::spawn(command(&place).env("WATCHDOG_USEC", "20000"));
    place.notification("READY=1").await;
    for _ in 0..3 {
        place.notification("WATCHDOG=1").await;
    }
    topod.signal(Signal::TERM);
    place.notification("STOPPING=1").await;
    assert!(topod.wait().status.success());

    // Meant for another process.
    let topod = Topod::spawn(command(&place).env("WATCHDOG_USEC", "1").env("WATCHDOG_PID", "1"));
    let first = place.notification("").await;
    assert!(first.contains("READY=1"), "{first}");
    topod.signal(Signal::TERM);
    assert!(topod.wait().status.success());
}

#[tokio::test]
async fn a_reload_takes_the_configuration_anew() {
    let place = Place::new();
    record(&place.machine(), &machine(4, 20));
    let config = place.path("topod.toml");
    fs::write(&config, "rates = 'effective'").unwrap();
    let topod = Topod::spawn(command(&place).env("TOPOD_CONFIG", &config));
    place.notification("READY=1").await;

    fs::write(&config, "rates = 'nominal'\npoll_seconds = 7\nevents = 'none'").unwrap();
    topod.signal(Signal::HUP);
    let reloading = place.notification("RELOADING=1").await;
    assert!(reloading.lines().any(|line| line.starts_with("MONOTONIC_USEC=")), "{reloading}");
    let ready = place.notification("READY=1").await;
    assert!(ready.contains("generation 2"), "other rates are another topology: {ready}");

    // What is no configuration changes nothing, and is told.
    fs::write(&config, "rates = 'fast'").unwrap();
    topod.signal(Signal::HUP);
    place.notification("RELOADING=1").await;
    let ready = place.notification("READY=1").await;
    assert!(ready.contains("generation 2"), "{ready}");
    let status = super::tool::topoctl(&place, &["status", "-o", "json"]);
    let warnings = status.json()["warnings"].to_string();
    assert!(warnings.contains("topod.toml:1:9"), "{warnings}");

    topod.signal(Signal::TERM);
    let log = String::from_utf8_lossy(&topod.wait().stderr).into_owned();
    assert!(log.contains("events changes with the next start"), "{log}");
}
