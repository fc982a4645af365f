//! The package in a Debian that boots: a real systemd starts the unit that is shipped, ends it and starts it again.
//!
//! ```text
//!   Debian with systemd ── dpkg -i topod.deb ──▶ archive ─▶ QEMU ─▶ systemd ─┬─ topod.service
//!                                                                           └─ trial.service ─ trial.sh ─▶ @trial ...   on the serial line
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::package::{debian, package, run};
use crate::daemon::harness::{machine, record};
use crate::emulated::{Machine, kernel, pack};

/// What the script says begins so.
const MARK: &str = "@trial ";

/// Starts the script once topod is up; all it says goes to the serial line.
const TRIAL: &str = "[Unit]\nDescription=Trial\nAfter=topod.service\nWants=topod.service\n\
    [Service]\nType=oneshot\nTimeoutStartSec=infinity\nExecStart=/bin/sh /trial.sh\nStandardOutput=tty\nStandardError=tty\nTTYPath=/dev/ttyS0\n\
    [Install]\nWantedBy=multi-user.target\n";

const CONFIG: &str = "source = \"/four.json\"\nmetrics = \"127.0.0.1:9835\"\n";

/// The file system of the machine, packed; `None` where something is missing, which is told.
fn archive(folder: &Path) -> Option<PathBuf> {
    let debian = debian("debian-systemd.tar", "libgcc-s1,systemd")?;
    let root = folder.join("root");
    fs::create_dir(&root).unwrap();
    run(Command::new("tar").arg("-xf").arg(debian).arg("-C").arg(&root));
    fs::copy(package(), root.join("topod.deb")).unwrap();
    let inside = |args: &[&str]| {
        let mut chroot = Command::new("chroot");
        chroot.arg(&root).args(args).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        run(&mut chroot);
    };
    inside(&["dpkg", "-i", "/topod.deb"]);
    record(&root.join("four.json"), &machine(4, 20));
    record(&root.join("eight.json"), &machine(8, 20));
    let write = |at: &str, text: &str| fs::write(root.join(at), text).unwrap();
    write("etc/topod/topod.toml", CONFIG);
    write("trial.sh", include_str!("trial.sh"));
    write("usr/lib/systemd/system/trial.service", TRIAL);
    inside(&["systemctl", "enable", "trial.service"]);
    // No devices are waited for, and nobody logs in.
    inside(&[
        "systemctl",
        "mask",
        "systemd-udevd.service",
        "getty.target",
        "serial-getty@ttyS0.service",
    ]);
    // It is in memory, so what is not needed is left out.
    for name in [
        "topod.deb",
        "usr/share/doc",
        "usr/share/locale",
        "usr/share/man",
        "var/lib/apt",
        "var/cache",
    ] {
        let path = root.join(name);
        drop(if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) });
    }
    std::os::unix::fs::symlink("usr/lib/systemd/systemd", root.join("init")).unwrap();
    let packed = folder.join("archive");
    pack(&root, &packed).expect("cpio is there");
    fs::remove_dir_all(root).unwrap();
    Some(packed)
}

/// The facts that begin with a word, without it.
fn told<'a>(facts: &'a [String], word: &str) -> Vec<&'a str> {
    facts.iter().filter_map(|fact| fact.strip_prefix(word)?.strip_prefix(' ')).collect()
}

#[test]
fn systemd_runs_the_unit_as_it_is_shipped() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root may change its root");
        return;
    }
    let kernel = match kernel() {
        Ok((_, kernel)) => kernel,
        Err(why) => {
            println!("skipped: no machine can be emulated: {why}");
            return;
        }
    };
    if !super::found("mmdebstrap", "mmdebstrap") || !super::found("strip", "binutils") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(archive) = archive(folder.path()) else { return };
    let machine = Machine::boot((&kernel, &archive), 1536, "systemd.show_status=0", &[]);
    let said = machine.said();
    let facts: Vec<String> = said
        .iter()
        .filter_map(|line| Some(line.split_once(MARK)?.1.trim_end().to_owned()))
        .collect();
    assert_eq!(facts.last().map(String::as_str), Some("end"), "{said:#?}");
    let check = |word: &str, expected: &[&str]| {
        assert_eq!(told(&facts, word), expected, "{word}: {facts:#?}");
    };
    check("started", &["state=active/running type=notify restarts=0"]);
    let words = told(&facts, "status");
    assert!(words[0].starts_with("4 GPUs, ") && words[0].contains("generation 1"), "{words:?}");
    assert!(words[1].starts_with("8 GPUs, ") && words[1].contains("generation 2"), "{words:?}");

    // Who it runs as, and what it may.
    let process = told(&facts, "process");
    for line in [
        "CapEff: 0000000000000000",
        "CapBnd: 0000000000000000",
        "NoNewPrivs: 1",
        "Seccomp: 2",
        "user topod",
    ] {
        assert!(process.contains(&line), "no {line} in {process:?}");
    }
    check("socket", &["topod:topod 660"]);
    check("stranger", &["6"]);
    check("member", &["0"]);
    let metrics: u32 = told(&facts, "metrics")[0].parse().expect("a number");
    assert!(metrics > 20, "{metrics} lines of metrics");

    // The journal has fields for programs, and the same in words for people.
    let journal: Vec<serde_json::Value> = told(&facts, "journal")
        .into_iter()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let published = journal
        .iter()
        .find(|entry| entry["MESSAGE_ID"] == daemon::logging::message_id::PUBLISHED)
        .unwrap_or_else(|| panic!("{facts:#?}"));
    assert_eq!((&published["GENERATION"], &published["PRIORITY"]), (&"1".into(), &"5".into()));
    assert!(
        published["MESSAGE"].as_str().is_some_and(|text| text.contains("generation=1")),
        "{published}"
    );

    check("reload", &["0"]);
    check("reloaded", &["pid=same state=active"]);
    // After the reload, and after each of its ends.
    let served: Vec<serde_json::Value> = told(&facts, "served")
        .into_iter()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let summary: Vec<(u64, u64)> = served
        .iter()
        .map(|status| (status["gpus"].as_u64().unwrap(), status["generation"].as_u64().unwrap()))
        .collect();
    assert_eq!(summary, [(4, 1), (8, 2), (8, 2), (8, 2)], "{facts:#?}");
    check("killed", &["state=active restarts=1"]);
    check("hung", &["state=active restarts=2"]);
    assert!(told(&facts, "watchdog").iter().any(|line| line.contains("'watchdog'")), "{facts:#?}");

    check("mistaken", &["state=active"]);
    check("restart", &["1"]);
    assert!(
        told(&facts, "mistake").iter().any(|line| line.contains("topod.toml:3:")),
        "{facts:#?}"
    );
    check("mended", &["0"]);

    check("listening", &["0"]);
    check("waiting", &["inactive topod:topod 660"]);
    check("activated", &["active"]);
    check("kept", &["0"]);
    check("stopped", &["success inactive", "success inactive"]);
    check("failed", &[]);
}
