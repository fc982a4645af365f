//! Debian packages that tests use and a fresh machine lacks.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::workspace_root;

/// A command some tests start, and the package it is in. Without it they are skipped, with the reason.
const WANTED: [(&str, &str); 23] = [
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
    // The machine with soft RoCE.
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("modprobe", "kmod"),
    // The command stands for the library; its headers and drivers come with the package below.
    ("ibv_devinfo", "ibverbs-utils"),
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

/// What verbs links are tested with: libibverbs with its header and drivers, and Debian's kernel, of which soft RoCE is a module (the
/// kernel for clouds lacks it), below `target/kernel`. Says what is skipped where that is not possible.
pub(crate) fn rdma() {
    if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
        match add(&["libibverbs-dev"]) {
            Ok(()) => println!("ci: installed libibverbs-dev"),
            Err(_) => println!("ci: without libibverbs-dev, verbs links are not tested"),
        }
    }
    let folder = workspace_root().join("target/kernel");
    if folder.join("lib/modules").is_dir() {
        return;
    }
    match kernel(&folder) {
        Ok(name) => println!("ci: unpacked {name} below {}", folder.display()),
        Err(why) => println!("ci: without a kernel, verbs links are not tested: {why}"),
    }
}

/// Gets the kernel package and unpacks it; its name. Nothing is installed.
fn kernel(folder: &Path) -> Result<String, String> {
    let output = |program: &str, arguments: &[&str], at: &Path| {
        let mut command = Command::new(program);
        let output = command.args(arguments).current_dir(at).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() {
            Ok(said(&output.stdout))
        } else {
            Err(format!("{program} {}: {}", arguments.join(" "), said(&output.stderr)))
        }
    };
    let download = tempfile::tempdir().map_err(|error| error.to_string())?;
    let depends = output("apt-cache", &["depends", "linux-image-amd64"], download.path())?;
    let mut named = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let name = named.next().ok_or("linux-image-amd64 names no kernel")?.to_owned();
    output("apt-get", &["-q", "download", &name], download.path())?;
    let mut packages = std::fs::read_dir(download.path()).into_iter().flatten().flatten();
    let package = packages.next().ok_or("apt-get downloaded nothing")?.path();
    let unpacked = download.path().join("unpacked");
    let (package, to) = (package.to_string_lossy(), unpacked.to_string_lossy());
    output("dpkg-deb", &["-x", &package, &to], download.path())?;
    // Whole or not at all: another run looks whether it is there.
    let target = folder.to_string_lossy();
    output("cp", &["-a", &format!("{to}/."), &format!("{target}.new")], Path::new("/"))?;
    output("mv", &["-T", &format!("{target}.new"), &target], Path::new("/"))?;
    Ok(name)
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
