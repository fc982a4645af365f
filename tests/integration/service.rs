//! The daemon as a service: what its manager, its scraper, its disk and its clock do to it.

mod activation;
mod booted;
mod driver;
mod frames;
mod metrics;
mod package;
mod remote;
mod running;
mod state;
mod surroundings;
mod told;
mod tool;

use std::process::Command;

/// Whether a command is there; says what is skipped where it is not.
fn found(command: &str, package: &str) -> bool {
    let found = Command::new("which").arg(command).output().is_ok_and(|o| o.status.success());
    if !found {
        println!("skipped: there is no {command} (Debian package {package})");
    }
    found
}

/// Whether this process may make mount namespaces; says what is skipped where it may not.
fn may_mount() -> bool {
    let tried = Command::new("unshare").args(["--mount", "true"]).output();
    let may = tried.is_ok_and(|output| output.status.success());
    if !may {
        println!("skipped: mount namespaces are not allowed here");
    }
    may
}
