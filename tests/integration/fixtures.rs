//! Machines through the real probe: the facts their descriptions promise, recorded, replayed, and checked against a
//! table that was written before the checker ran.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use daemon::probe::{NvmlChoice, ProbeConfig, TimeLimits, probe, probe_and_record};
use machines::{Deviation, Machine, catalogue, install_nvml_double};
use topology::health::{Examination, judge};
use topology::{Snapshot, formats};

fn folder() -> PathBuf {
    crate::workspace_root().join("tests/fixtures/machines")
}

/// A machine written out, removed when dropped.
struct Written {
    dir: tempfile::TempDir,
    config: ProbeConfig,
}

fn write(machine: &Machine) -> Written {
    let dir = tempfile::tempdir().unwrap();
    let paths = machine.write(dir.path()).unwrap();
    let library = install_nvml_double(dir.path()).unwrap();
    let limits = TimeLimits { files: Duration::from_secs(300), nvml: Duration::from_secs(300) };
    let config = ProbeConfig {
        root: paths.root,
        nvml: NvmlChoice::Library(library),
        nvml_program: None,
        limits,
    };
    Written { dir, config }
}

/// What the table says, by name: status, then sorted lines.
fn expected() -> BTreeMap<String, (String, Vec<String>)> {
    let text = fs::read_to_string(folder().join("EXPECTED")).unwrap();
    let mut all: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        match line.strip_prefix("  ") {
            Some(finding) => all.get_mut(&name).expect("a machine above").1.push(finding.into()),
            None => {
                let (machine, status) = line.split_once(' ').expect("a name and a status");
                name = machine.into();
                let twice = all.insert(name.clone(), (status.into(), Vec::new()));
                assert!(twice.is_none(), "{name} stands twice in the table");
            }
        }
    }
    all
}

fn words(found: &Examination) -> Vec<String> {
    let findings =
        found.findings.iter().map(|f| format!("{} {} {}", f.severity, f.code, f.component));
    let unchecked = found.unchecked.iter().map(|u| format!("unchecked {} {}", u.code, u.component));
    let mut words: Vec<String> = findings.chain(unchecked).collect();
    words.sort();
    words
}

#[track_caller]
fn check(name: &str, snapshot: &Snapshot) {
    let table = expected();
    let (status, findings) =
        table.get(name).unwrap_or_else(|| panic!("{name} is not in the table"));
    let found = judge(snapshot);
    let mut findings = findings.clone();
    findings.sort();
    assert_eq!(words(&found), findings, "{name}: {:#?} {:#?}", found.findings, snapshot.faults);
    assert_eq!(&found.status().to_string(), status, "{name}");
}

/// Without the reasons of roles, which descriptions do not word.
fn without_reasons(mut snapshot: Snapshot) -> Snapshot {
    snapshot.nics.iter_mut().for_each(|nic| nic.role_reason = None);
    snapshot
}

/// The probe finds what the description says; the fixture is what the probe finds; findings are those of the table.
/// `TOPOD_BLESS=1` writes the fixtures anew.
#[test]
fn every_machine_as_its_maker_meant_it() {
    for machine in catalogue::all() {
        let name = machine.name;
        let written = write(&machine);
        let (snapshot, recording) = probe_and_record(&written.config);
        assert!(snapshot.nics.iter().all(|nic| nic.role_reason.is_some()), "{name}");
        let (found, promised) = (without_reasons(snapshot.clone()), machine.snapshot());
        assert_eq!(found.host, promised.host, "{name}");
        assert_eq!(found.pci_devices, promised.pci_devices, "{name}");
        assert_eq!(found.gpus, promised.gpus, "{name}");
        assert_eq!(found.nics, promised.nics, "{name}");
        assert_eq!(found, promised, "{name}");

        let path = folder().join(format!("{name}.json"));
        let text = serde_json::to_string(&snapshot).unwrap() + "\n";
        if std::env::var_os("TOPOD_BLESS").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let fixture = fs::read_to_string(&path).unwrap_or_default();
        assert!(fixture == text, "{} is out of step: run with TOPOD_BLESS=1", path.display());
        let read = formats::read(text.as_bytes()).unwrap();
        assert!(read == std::slice::from_ref(&snapshot), "{name}");
        check(name, &snapshot);

        // The files that were read lead to the same facts, but for those of the driver's library.
        let replayed = replay(&recording, &written.config);
        assert_eq!(replayed, snapshot, "{name}");
    }
}

/// The recorded files below a new root, with the driver of old.
fn replay(recording: &daemon::probe::Recording, config: &ProbeConfig) -> Snapshot {
    use daemon::probe::Recorded;
    let root = tempfile::tempdir().unwrap();
    for (path, entry) in &recording.entries {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match entry {
            Recorded::Directory => fs::create_dir_all(path).unwrap(),
            Recorded::File(bytes) => fs::write(path, bytes).unwrap(),
            Recorded::Link(target) => std::os::unix::fs::symlink(target, path).unwrap(),
        }
    }
    probe(&ProbeConfig { root: root.path().into(), ..config.clone() })
}

fn topoctl(arguments: &[&str], sources: &[(&str, &Path)]) -> Vec<u8> {
    let mut command = Command::new(crate::programs::topoctl());
    command.args(arguments).env_remove("TOPOD_SOCKET");
    for (name, path) in sources {
        command.arg(name).arg(path);
    }
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {} {stderr}", output.status);
    output.stdout
}

/// `show` on the machine, on its snapshot and on its archive are the same, byte for byte; the archive names nobody.
#[test]
fn snapshot_then_replay_shows_the_same() {
    for machine in catalogue::all() {
        let written = write(&machine);
        let NvmlChoice::Library(library) = &written.config.nvml else { panic!("no library") };
        let here = [("--sysfs-root", written.config.root.as_path()), ("--nvml", library.as_path())];
        let live = topoctl(&["show", "-o", "json"], &here);
        for (file, raw) in [("facts.json", false), ("machine.tar", true), ("machine.tar.gz", true)]
        {
            let file = written.dir.path().join(file);
            let verb = if raw { &["snapshot", "--raw"][..] } else { &["snapshot"] };
            topoctl(verb, &[here[0], here[1], ("-o", &file)]);
            let replayed = topoctl(&["show", "-o", "json"], &[("--from", &file)]);
            assert!(live == replayed, "{}: {}", machine.name, file.display());
            let bytes = fs::read(&file).unwrap();
            for secret in [&b"BOOT_IMAGE"[..], b"02:00:00:00:", b"0200:00ff:fe00"] {
                let told = bytes.windows(secret.len()).any(|window| window == secret);
                assert!(!told, "{}: {:?}", file.display(), String::from_utf8_lossy(secret));
            }
        }
    }
}

/// One thing wrong at a time.
#[test]
fn machines_with_something_wrong() {
    let half = Deviation::HalfWidth { nic: "mlx5_3".into() };
    let changes = [
        ("dgx1v+link_down", machines::dgx1v(), Deviation::NvLinkDown { gpu: 2, link: 1 }),
        ("dgx1v+idle", machines::dgx1v(), Deviation::Idle),
        ("dgx1v+gpu_lost", machines::dgx1v(), Deviation::GpuLost { gpu: 5 }),
        ("dgx1v+gpu_denied", machines::dgx1v(), Deviation::GpuDenied { gpu: 5 }),
        ("dgx1v+peer_denied", machines::dgx1v(), Deviation::PeerAccessDenied { a: 0, b: 3 }),
        ("dgx_a100+no_peermem", machines::dgx_a100(), Deviation::NoPeermem),
        ("dgx_h100+half_width", machines::dgx_h100(), half),
        ("dgx_h100+port_down", machines::dgx_h100(), Deviation::PortDown { nic: "mlx5_5".into() }),
        ("dgx_h100+unprivileged", machines::dgx_h100(), Deviation::Unprivileged),
    ];
    for (name, machine, deviation) in changes {
        let written = write(&machine.with(deviation));
        check(name, &probe(&written.config));
    }
}

/// The table has no line too many.
#[test]
fn every_line_of_the_table_is_checked() {
    let machines: Vec<String> = catalogue::all().iter().map(|m| m.name.to_owned()).collect();
    let plain: Vec<String> = expected().into_keys().filter(|name| !name.contains('+')).collect();
    let mut sorted = machines;
    sorted.sort();
    assert_eq!(plain, sorted);
    assert!(plain.len() >= 12);
}
