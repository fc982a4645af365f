//! `check` and `compare` as scripts see them: exit codes, one-line form, profiles.

use std::fs;

use topology::Snapshot;

use super::{PAIR, check, check_json};

/// A fixture's facts, changed, in a file of their own.
struct Host(tempfile::TempDir);

impl Host {
    fn new(machine: &str, change: impl FnOnce(&mut Snapshot)) -> Self {
        let path = crate::workspace_root().join(format!("tests/fixtures/machines/{machine}.json"));
        let mut snapshot = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        change(&mut snapshot);
        let host = Self(tempfile::tempdir().unwrap());
        fs::write(host.path(), serde_json::to_vec(&snapshot).unwrap()).unwrap();
        host
    }

    fn path(&self) -> String {
        self.0.path().join("host.json").display().to_string()
    }
}

#[test]
fn exit_codes_of_check() {
    let healthy = Host::new("dgx_h100", |_| {});
    let degraded = Host::new("pcie_switches", |_| {});
    let empty = Host::new("dgx_h100", |s| s.gpus.clear());
    let unread = Host::new("dgx_h100", |s| s.pci_devices.iter_mut().for_each(|d| d.acs = None));
    for (host, json, nagios, word) in [
        (&healthy, 0, 0, "OK"),
        (&degraded, 3, 1, "WARNING"),
        (&unread, 5, 3, "UNKNOWN"),
        (&empty, 5, 3, "UNKNOWN"),
    ] {
        check_json(&["check", "--from", &host.path(), "-o", "json"], "", json);
        let line = check(&["check", "--from", &host.path(), "-o", "nagios"], "", nagios);
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert!(line.starts_with(&format!("TOPOLOGY {word} - ")), "{line}");
    }
    // A gate that lets degraded hosts pass still stops those of which not all is known.
    let critical = ["--fail-on", "critical"];
    let gate = |host: &Host, exit| {
        check(&["check", "--from", &host.path(), critical[0], critical[1]], "", exit);
    };
    gate(&degraded, 0);
    gate(&unread, 5);
}

/// Data that is missing is never a pass; what a format has no words for is named.
#[test]
fn what_is_not_told_is_said() {
    let found = check_json(&["check", "--from", "-", "-o", "json"], PAIR, 0);
    assert_eq!(found["status"], "ok");
    assert!(found["not_told"].as_array().unwrap().iter().any(|theme| theme == "peer access"));
    let unread = Host::new("dgx1v", |s| s.host.iommu = None);
    let found = check_json(&["check", "--from", &unread.path(), "-o", "json"], "", 5);
    assert_eq!(found["unchecked"][0]["code"], "iommu-translates");
}

#[test]
fn check_against_a_profile() {
    let profile = Host::new("dgx_h100", |_| {});
    let same = Host::new("dgx_h100", |s| s.gpus[0].uuid = Some("GPU-another".into()));
    let slower = Host::new("dgx_h100", |s| s.nics[0].mbit = Some(100_000));
    let against = |host: &Host, exit| {
        let arguments =
            ["check", "--from", &host.path(), "--against", &profile.path(), "-o", "json"];
        check_json(&arguments, "", exit)
    };
    assert_eq!(against(&same, 0)["status"], "ok");
    let found = against(&slower, 3);
    let codes: Vec<_> = found["findings"].as_array().unwrap().iter().map(|f| &f["code"]).collect();
    assert!(codes.iter().any(|code| *code == "differs-from-profile"), "{codes:?}");
    check(&["check", "--from", &same.path(), "--against", "no/such/file"], "", 2);
}

/// The odd host of several stands out, whoever is named first (NVIDIA/nccl-tests#106).
#[test]
fn field_case_037_compare_names_the_odd_host() {
    let usual = || Host::new("dgx_h100", |_| {});
    let hosts = [Host::new("dgx_h100", |s| s.nics[3].mbit = Some(100_000)), usual(), usual()];
    let paths = hosts.each_ref().map(Host::path);
    let found = check_json(&["compare", &paths[0], &paths[1], &paths[2], "-o", "json"], "", 3);
    assert_eq!(found["reference"], paths[1].as_str());
    let counts: Vec<_> = found["hosts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|host| host["differences"].as_array().unwrap().len())
        .collect();
    assert_eq!(counts, [1, 0, 0]);
    let text = check(&["compare", &paths[1], &paths[0]], "", 3);
    assert!(text.contains("Mbit/s is 100000, the reference has 400000"), "{text}");
    check(&["compare", &paths[1], &paths[2]], "", 0);
    check(&["compare", &paths[0]], "", 2);
}

/// A device tree as a directory, and a directory that is none.
#[test]
fn sources_that_are_directories() {
    let dir = tempfile::tempdir().unwrap();
    check(&["show", "--from", &dir.path().display().to_string()], "", 2);
    fs::create_dir_all(dir.path().join("machine/sys/bus/pci/devices")).unwrap();
    let shown =
        check_json(&["show", "--from", &dir.path().display().to_string(), "-o", "json"], "", 0);
    assert_eq!(shown["source"], "live");
}
