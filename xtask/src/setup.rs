//! Debian packages that tests use and a fresh machine lacks.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::workspace_root;

/// A command some tests start, and the package it is in. Without it they are skipped, with the reason.
const WANTED: [(&str, &str); 18] = [
    ("systemd-analyze", "systemd"),
    ("python3", "python3"),
    // The command stands for the library, which has none.
    ("f2py3", "python3-numpy"),
    ("mpirun", "openmpi-bin"),
    ("ip", "iproute2"),
    // Builds the CUDA kernels for the host.
    ("g++", "g++"),
    ("munged", "munge"),
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("srun", "slurm-client"),
    ("valgrind", "valgrind"),
    ("ibsim", "ibsim-utils"),
    ("ibnetdiscover", "infiniband-diags"),
    ("prometheus", "prometheus"),
    ("faketime", "faketime"),
    ("dpkg-deb", "dpkg"),
    ("strip", "binutils"),
    ("mmdebstrap", "mmdebstrap"),
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

/// NVIDIA's run-time compiler and assembler, which the tests of the CUDA kernels use: version 12, the last that knows compute
/// capability 7.0.
const CUDA: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.9.*", "nvidia-cuda-nvcc-cu12==12.9.*"];

/// Puts them below `target/cuda`, from a Python index; says what is skipped where that is not possible.
pub(crate) fn cuda() {
    let folder = workspace_root().join("target/cuda");
    if folder.join("nvidia").is_dir() {
        return;
    }
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]);
    command.arg("--target").arg(&folder).args(CUDA).stdin(Stdio::null()).stderr(Stdio::null());
    if command.status().is_ok_and(|status| status.success()) {
        println!("ci: installed NVIDIA's compiler and assembler below {}", folder.display());
    } else {
        println!("ci: without pip and {}, the CUDA kernels are not assembled", CUDA.join(" "));
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
