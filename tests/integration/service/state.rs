//! State on disk: whenever the daemon dies, the next one starts with what was published, or with what was before it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::daemon::binary::{Topod, command};
use crate::daemon::harness::{Place, machine, record};

/// Deaths in an ordinary run. By hand: `TOPOD_DEATHS=500 cargo test -p tests --test integration killed_at_any`.
const DEATHS: u32 = 20;

fn with_state(place: &Place) -> Command {
    let state = place.path("state");
    fs::create_dir_all(&state).unwrap();
    let mut command = command(place);
    command.arg("--state").arg(state);
    command
}

/// The generation that a status names.
fn generation(status: &str) -> u64 {
    let (_, rest) = status.split_once("generation ").expect("the status names the generation");
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[tokio::test]
async fn generations_go_on_after_a_restart() {
    let place = Place::new();
    record(&place.machine(), &machine(4, 20));
    for expect in [1, 1] {
        let topod = Topod::spawn(&mut with_state(&place));
        assert_eq!(generation(&place.notification("READY=1").await), expect);
        topod.signal(Signal::TERM);
        assert!(topod.wait().status.success());
    }
    record(&place.machine(), &machine(3, 20));
    let topod = Topod::spawn(&mut with_state(&place));
    assert_eq!(generation(&place.notification("READY=1").await), 2);
    topod.signal(Signal::TERM);
    topod.wait();

    // What a disk made of it is put aside and told of.
    fs::write(place.path("state/state"), "00000000\n{}").unwrap();
    let topod = Topod::spawn(&mut with_state(&place));
    assert_eq!(generation(&place.notification("READY=1").await), 1);
    topod.signal(Signal::TERM);
    let log = String::from_utf8_lossy(&topod.wait().stderr).into_owned();
    assert!(log.contains("damaged: its checksum"), "{log}");
    assert!(place.path("state/state.unusable").exists());
}

/// Kills a daemon that publishes as fast as it can, at instants spread over its writing, and starts it again: what was seen is never
/// taken back.
#[tokio::test]
async fn killed_at_any_instant_it_starts_with_valid_state() {
    let deaths = std::env::var("TOPOD_DEATHS").map_or(DEATHS, |deaths| deaths.parse().unwrap());
    let place = Place::new();
    // A number for each death, so that instants differ and a run can be had again.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next_random = |most: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % most
    };
    let mut seen = 0;
    let mut gbps = 20;
    record(&place.machine(), &machine(4, gbps));
    for death in 0..deaths {
        let (topod, ready) = Topod::spawn(&mut with_state(&place)).ready(&place).await;
        let started = generation(&ready);
        assert!(started >= seen, "death {death}: generation {started} after {seen} was seen");
        seen = started;
        let dies = Instant::now() + Duration::from_micros(next_random(60_000));
        while Instant::now() < dies {
            gbps = 20 + (gbps + 1) % 20;
            replace(&place.machine(), gbps);
            topod.signal(Signal::HUP);
            let news = tokio::time::timeout_at(dies.into(), place.notification("READY=1"));
            if let Ok(news) = news.await {
                seen = generation(&news);
            }
        }
        topod.signal(Signal::KILL);
        let log = String::from_utf8_lossy(&topod.wait().stderr).into_owned();
        assert!(!log.contains("damaged") && !log.contains("panicked"), "death {death}: {log}");
        // What the dead daemon said in its last moments was seen too.
        while let Some(news) = place.heard() {
            if news.contains("READY=1") {
                seen = seen.max(generation(&news));
            }
        }
    }
    println!("{deaths} deaths, generation {seen} at the end");
    assert!(seen > 1);
}

/// As an editor does: a daemon that reads finds the one or the other.
fn replace(machine_file: &Path, gbps: u64) {
    let new = machine_file.with_extension("new");
    record(&new, &machine(4, gbps));
    fs::rename(new, machine_file).unwrap();
}
