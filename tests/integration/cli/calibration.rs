//! `topoctl bench --calibrate`, and what takes its figures.

use std::fs;

use topology::Collective;
use topology::calibration::{self, Calibration, HostLink, LinkFit, Point, SCHEMA_VERSION};

use super::{PAIR, check, topoctl};

/// A file of a link of this kind, one nanosecond a byte.
fn figures(link: HostLink) -> String {
    let point = |bytes: u64| Point {
        bytes,
        one_way_ns: 300.0 + bytes as f64,
        exchange_ns: 300.0 + bytes as f64,
    };
    calibration::write(&Calibration {
        schema_version: SCHEMA_VERSION,
        cpu: "Model".into(),
        cores: 2,
        links: vec![LinkFit {
            link,
            alpha_ns: 300.0,
            gbps: 1.0,
            duplex_gbps: 1.0,
            points: [8, 1 << 10, 1 << 20, 1 << 26].map(point).to_vec(),
            shared: Vec::new(),
        }],
        operations: Vec::new(),
    })
}

/// All-to-all has no form in place, and none of it is wrong for that.
#[test]
fn what_is_measured_is_written_and_planned_by() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("figures.json");
    let file = path.display().to_string();
    let arguments = ["bench", "--calibrate", &file, "--ranks", "2", "--from", "-"];
    let arguments = [&arguments[..], &["--only", "all-to-all"]].concat();
    let Some(shown) = calibrated(&arguments) else { return };
    assert!(shown.contains("shared memory: alpha"), "{shown}");
    let found = calibration::read(&fs::read(&path).unwrap()).unwrap();
    let fit = found.link(HostLink::Shm).unwrap();
    // Sizes are measured as far as there is time, which on a busy machine is not far; a line takes two.
    assert!(fit.points.len() >= 2, "{shown}");
    assert!(fit.shared.is_empty(), "two GPUs have no circle of four");
    let measured: Vec<Collective> = found.operations.iter().map(|of| of.collective).collect();
    assert_eq!(measured, [Collective::AllToAll]);
    assert!(!found.operations[0].factors.is_empty(), "{shown}");
    let plan = ["plan", "--from", "-", "--rates", "measured", "--calibration", &file];
    assert!(check(&plan, PAIR, 0).contains("as calibrated"));
}

/// What is printed of a calibration. Where others have kept the cores busy each time, it says that and is right to.
fn calibrated(arguments: &[&str]) -> Option<String> {
    for _ in 0..3 {
        let output = topoctl(arguments, PAIR);
        if output.status.success() {
            return Some(String::from_utf8(output.stdout).unwrap());
        }
        let why = String::from_utf8(output.stderr).unwrap();
        assert!(why.contains("it takes cores on which nothing else runs"), "{why}");
    }
    println!("skipped: this machine is too busy to measure its links");
    None
}

#[test]
fn figures_that_cannot_serve_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, link| {
        let path = folder.path().join(name);
        fs::write(&path, figures(link)).unwrap();
        path.display().to_string()
    };
    let says = |arguments: &[&str]| {
        let output = topoctl(arguments, PAIR);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let (shm, tcp) = (file("shm", HostLink::Shm), file("tcp", HostLink::Tcp));
    let plan = ["plan", "--from", "-", "--rates", "measured", "--calibration"];
    check(&[&plan[..], &[shm.as_str()]].concat(), PAIR, 0);
    let why = says(&[&plan[..], &[tcp.as_str()]].concat());
    assert!(why.contains("shared memory was not measured"), "{why}");
    // Before anything is measured, and what was there stays there.
    let why = says(&["bench", "--calibrate", "/no/such/folder/x", "--ranks", "2", "--from", "-"]);
    assert!(why.contains("/no/such/folder/x"), "{why}");
    let why = says(&["bench", "--calibrate", &shm, "--ranks", "9", "--from", "/no/such/file"]);
    assert!(why.contains("/no/such/file"), "{why}");
    assert_eq!(fs::read_to_string(&shm).unwrap(), figures(HostLink::Shm));
}
