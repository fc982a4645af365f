//! The Debian package: what is in it, and a daemon run from it where nothing else is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::OnceLock;

use super::found;
use crate::daemon::harness::{machine, record};

#[track_caller]
pub(super) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (told, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{told}{error}", output.status);
    output
}

/// The package of the programs under test, made once.
pub(super) fn package() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let build = || {
        let folder = tempfile::tempdir().unwrap();
        let programs = crate::programs::topod().parent().unwrap();
        let mut deb = Command::new(crate::programs::xtask());
        let output = run(deb.arg("deb").arg(programs).arg(folder.path()));
        let told = String::from_utf8_lossy(&output.stdout);
        let path = told.trim().strip_prefix("deb: ").expect("the path is told").into();
        (folder, path)
    };
    &BUILT.get_or_init(build).1
}

/// A Debian that has what is essential and the packages named, as a file of that name that is kept between runs.
pub(super) fn debian(name: &str, packages: &str) -> Option<PathBuf> {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if kept.exists() {
        return Some(kept);
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let new = kept.with_extension("new.tar");
    let made = Command::new("mmdebstrap")
        .args(["--variant=essential", "--quiet"])
        .arg(format!("--include={packages}"))
        .arg(suite.unwrap_or("stable"))
        .arg(&new)
        .output();
    match made {
        Ok(output) if output.status.success() => {
            fs::rename(new, &kept).unwrap();
            Some(kept)
        }
        Ok(output) => {
            println!("skipped: no Debian can be had: {}", String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(error) => {
            println!("skipped: mmdebstrap: {error}");
            None
        }
    }
}

#[test]
fn the_package_holds_what_belongs_together() {
    if !found("dpkg-deb", "dpkg") || !found("strip", "binutils") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    run(Command::new("dpkg-deb").arg("-x").arg(package()).arg(&root));
    for path in [
        "usr/bin/topod",
        "usr/bin/topoctl",
        "usr/lib/systemd/system/topod.service",
        "usr/lib/systemd/system/topod.socket",
        "usr/lib/sysusers.d/topod.conf",
        "etc/topod/topod.toml",
        "usr/share/man/man8/topod.8.gz",
        "usr/share/man/man1/topoctl-plan.1.gz",
        "usr/share/man/man5/topod.toml.5.gz",
        "usr/share/doc/topod/examples/topod.rules.yml",
    ] {
        assert!(root.join(path).is_file(), "there is no {path}");
    }
    // What NCCL_TUNER_PLUGIN=topod loads, with the tables NCCL looks for, which stripping must leave.
    let plugin = format!("usr/lib/{}-linux-gnu/libnccl-tuner-topod.so", std::env::consts::ARCH);
    let told = run(Command::new("nm").args(["-D", "--defined-only"]).arg(root.join(plugin)));
    let symbols = String::from_utf8_lossy(&told.stdout).into_owned();
    for version in 2..=6 {
        let name = format!("ncclTunerPlugin_v{version}");
        assert!(symbols.lines().any(|line| line.ends_with(&name)), "no {name} in {symbols}");
    }
    // The unit starts what is installed, and both are taken by who reads them.
    if found("systemd-analyze", "systemd") {
        let mut analyze = Command::new("systemd-analyze");
        analyze.arg(format!("--root={}", root.display())).args(["verify", "--man=no"]);
        analyze.args(["topod.service", "topod.socket"]);
        let output = analyze.output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        // The root holds the package alone, not what every system has.
        let absent = ["sysinit.target not found.", "/bin/sh is not executable"];
        let ours = complaints.lines().filter(|line| {
            line.contains("topod") && !absent.iter().any(|words| line.contains(words))
        });
        assert_eq!(ours.collect::<Vec<_>>(), Vec::<&str>::new());
    }
    let completions = root.join("usr/share/bash-completion/completions/topoctl");
    let script = format!(". {} && complete -p topoctl", completions.display());
    let told = run(Command::new("bash").args(["-c", &script]));
    assert!(String::from_utf8_lossy(&told.stdout).contains("_topoctl"));
    if found("man", "man-db") {
        for section in ["man1", "man5", "man8"] {
            for page in fs::read_dir(root.join("usr/share/man").join(section)).unwrap() {
                let page = page.unwrap().path();
                let mut man = Command::new("man");
                man.args(["--warnings=w", "-E", "UTF-8", "-l", "-Tutf8", "-Z"]).arg(&page);
                let complaints = run(&mut man).stderr;
                assert!(
                    complaints.is_empty(),
                    "{}: {}",
                    page.display(),
                    String::from_utf8_lossy(&complaints)
                );
            }
        }
    }
}

/// Ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn it_runs_in_a_clean_debian() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root may change its root");
        return;
    }
    if !found("mmdebstrap", "mmdebstrap") || !found("strip", "binutils") {
        return;
    }
    let Some(debian) = debian("debian.tar", "libgcc-s1,systemd-standalone-sysusers") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir(&root).unwrap();
    run(Command::new("tar").arg("-xf").arg(debian).arg("-C").arg(&root));
    fs::copy(package(), root.join("topod.deb")).unwrap();
    let inside = |args: &[&str]| {
        let mut chroot = Command::new("chroot");
        chroot.arg(&root).args(args).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        chroot
    };
    let as_topod = |args: &[&str]| {
        let mut chroot = Command::new("chroot");
        chroot.args(["--userspec=topod:topod"]).arg(&root).args(args);
        chroot.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        chroot
    };
    run(&mut inside(&["dpkg", "-i", "/topod.deb"]));
    run(&mut inside(&["id", "topod"]));
    run(&mut inside(&["topod", "--check-config", "--socket", "/tmp/topod.sock"]));

    // What systemd makes at the start.
    for made in ["run/topod", "var/lib/topod"] {
        fs::create_dir_all(root.join(made)).unwrap();
        run(&mut inside(&["chown", "topod:topod", &format!("/{made}")]));
    }
    record(&root.join("machine.json"), &machine(4, 20));
    let mut daemon = as_topod(&["topod", "--source", "/machine.json", "--state", "/var/lib/topod"]);
    let daemon = Ends(daemon.spawn().unwrap());
    let socket = root.join("run/topod/topod.sock");
    let begin = std::time::Instant::now();
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        assert!(begin.elapsed() < crate::daemon::harness::PATIENCE, "it never listens");
        std::thread::yield_now();
    }
    // It listens before it has read the machine, and says that it cannot answer yet.
    let mut plan = as_topod(&["topoctl", "plan", "-o", "json"]);
    while plan.output().unwrap().status.code() == Some(6) {
        assert!(begin.elapsed() < crate::daemon::harness::PATIENCE, "it never reads the machine");
    }
    let told = run(&mut plan);
    let plan: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(plan["ranks"].as_array().unwrap().len(), 4);
    run(&mut as_topod(&["topoctl", "status"]));
    drop(daemon);

    // Removed and installed again it is enabled again; what an administrator has disabled is not.
    let link = root.join("etc/systemd/system/multi-user.target.wants/topod.service");
    let there = || fs::symlink_metadata(&link).is_ok();
    assert!(there(), "the installation enables it");
    let remove = ["dpkg", "--remove", "topod"];
    let install = ["dpkg", "-i", "/topod.deb"];
    run(&mut inside(&remove));
    run(&mut inside(&install));
    assert!(there(), "it was enabled before the removal");
    fs::remove_file(&link).unwrap();
    run(&mut inside(&install));
    assert!(!there(), "an upgrade leaves it disabled");
    run(&mut inside(&remove));
    run(&mut inside(&install));
    assert!(!there(), "so does an installation after a removal");

    run(&mut inside(&["dpkg", "--purge", "topod"]));
    for gone in ["usr/bin/topod", "etc/topod", "var/lib/topod", "etc/systemd/system/topod.service"]
    {
        assert!(fs::symlink_metadata(root.join(gone)).is_err(), "{gone} is left");
    }
}
