//! Debian packages that tests use and a fresh machine lacks.

use std::path::Path;
use std::process::{Command, Stdio};

/// A command some tests start, and the package it is in. Without it they are skipped, with the reason.
const WANTED: [(&str, &str); 5] = [
    ("systemd-analyze", "systemd"),
    ("python3", "python3"),
    // The command stands for the library, which has none.
    ("f2py3", "python3-numpy"),
    ("mpirun", "openmpi-bin"),
    ("ip", "iproute2"),
];

/// Installs what is missing where that is possible; says what is skipped where it is not.
pub(crate) fn run() {
    let missing: Vec<&str> =
        WANTED.iter().filter(|(command, _)| !found(command)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return;
    }
    let names = missing.join(" ");
    match add(&missing) {
        Ok(()) => println!("ci: installed {names}"),
        Err(_) => println!("ci: without {names}, the tests that use it are skipped"),
    }
}

/// Sees to it that a command is there, by packages where it is not.
///
/// # Errors
/// Where it is not, and cannot be installed.
pub(crate) fn provide(command: &str, packages: &[&str]) -> Result<(), String> {
    if found(command) {
        return Ok(());
    }
    add(packages)?;
    if found(command) { Ok(()) } else { Err(format!("no {command} in {}", packages.join(" "))) }
}

/// Installs packages.
///
/// # Errors
/// Where that is not possible.
pub(crate) fn add(packages: &[&str]) -> Result<(), String> {
    let possible = rustix::process::getuid().is_root() && found("apt-get");
    // The package lists of a fresh machine may be empty or old: get them only if it fails without.
    if possible && (install(packages) || (apt_get(&["update"]) && install(packages))) {
        Ok(())
    } else {
        Err(format!("{} cannot be installed", packages.join(" ")))
    }
}

fn found(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| Path::new(&folder).join(command).is_file())
}

fn install(packages: &[&str]) -> bool {
    apt_get(&[&["install", "-y", "--no-install-recommends"], packages].concat())
}

fn apt_get(arguments: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
