//! What is installed beside the programs, checked by those who read it.

use std::fs;
use std::process::{Command, Output};

use crate::workspace_root;

/// The unit with the path of a program that exists here, in a folder of its own.
fn unit() -> (tempfile::TempDir, std::path::PathBuf) {
    let unit = fs::read_to_string(workspace_root().join("deploy/systemd/topod.service")).unwrap();
    let program = "ExecStart=/usr/bin/topod\n";
    assert!(unit.contains(program), "the unit starts the installed program");
    let unit =
        unit.replace(program, &format!("ExecStart={}\n", crate::programs::topod().display()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("topod.service");
    fs::write(&path, unit).unwrap();
    // What it comes after, so that systemd does not miss it.
    let socket = workspace_root().join("deploy/systemd/topod.socket");
    fs::copy(socket, folder.path().join("topod.socket")).unwrap();
    (folder, path)
}

fn systemd_analyze(args: &[&str]) -> Option<Output> {
    let output = Command::new("systemd-analyze").args(args).output();
    if output.is_err() {
        println!("skipped: there is no systemd-analyze (Debian package systemd)");
    }
    output.ok()
}

#[test]
fn systemd_takes_the_unit() {
    let (_folder, path) = unit();
    let path = path.to_str().unwrap();
    let Some(output) = systemd_analyze(&["verify", "--man=no", path]) else { return };
    // Unknown keys are told on stderr alone, with exit status 0.
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{complaints}");
}

#[test]
fn the_unit_is_hardened() {
    let (_folder, path) = unit();
    let path = path.to_str().unwrap();
    // Exposure below 3.0 of 10; given in tenths.
    let args = ["security", "--offline=true", "--threshold=30", "--no-pager", path];
    let Some(output) = systemd_analyze(&args) else { return };
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
}
