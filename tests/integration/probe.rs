//! The probe over recorded trees of real machines, and over bytes of no machine at all.
#![expect(clippy::print_stdout, reason = "tests say what they count and what they skip")]

mod nvml;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use daemon::probe::{ProbeConfig, fuzz_probe_files, probe, recorded_root};
use proptest::prelude::*;
use topology::snapshot::PciKind;
use topology::{BusId, RateModel, Snapshot, lower};

/// Recorded trees of the corpus; empty, and said so, where there is no corpus.
fn archives() -> Vec<PathBuf> {
    let default = crate::workspace_root().join("../shared/corpus");
    let corpus = std::env::var_os("TOPOD_CORPUS").map_or(default, PathBuf::from);
    let dir = corpus.join("real/sysfs-snapshots");
    let Ok(entries) = fs::read_dir(&dir) else {
        println!("skipped: no corpus at {}", dir.display());
        return Vec::new();
    };
    let mut archives: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().is_some_and(|path| path.ends_with(".tar.bz2")))
        .collect();
    archives.sort();
    archives
}

/// What a recorder keeps by the ten thousand, and no probe reads: it would take most of the test's time.
const NOT_UNPACKED: [&str; 10] = [
    "*/memory[0-9]*",
    "*/system/cpu",
    "*/cpu[0-9]*",
    "*/cm_*",
    "*/device-tree",
    "*/msi_irqs",
    "*/power",
    "*/queues",
    "*/statistics",
    "*/hugepages",
];

/// `None`, and said so, where the system cannot unpack.
fn unpack(archive: &Path) -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir().unwrap();
    let mut tar = Command::new("tar");
    tar.args(NOT_UNPACKED.map(|pattern| format!("--exclude={pattern}")));
    match tar.arg("-xjf").arg(archive).arg("-C").arg(dir.path()).output() {
        Ok(output) if output.status.success() => Some(dir),
        Ok(output) => {
            println!("skipped {}: {}", archive.display(), String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(error) => {
            println!("skipped {}: tar: {error}", archive.display());
            None
        }
    }
}

/// Counts by other means than the probe's: the system follows the links, and no tree is built.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    numa_nodes: usize,
    gpus: usize,
    nic_functions: usize,
    nic_ports: usize,
}

fn names(dir: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn naive_counts(root: &Path) -> Counts {
    let sys = root.join("sys");
    let numbered =
        |name: &String| name.strip_prefix("node").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let functions = sys.join("bus/pci/devices");
    let of_class = |prefixes: &[&str]| -> Vec<String> {
        let class = |name: &String| read(functions.join(name).join("class"));
        let wanted = |name: &String| prefixes.iter().any(|prefix| class(name).starts_with(prefix));
        names(functions.clone()).into_iter().filter(wanted).collect()
    };
    let function_of = |path: PathBuf| -> Option<String> {
        let path = fs::canonicalize(path).ok()?;
        let is_function = |name: &&str| name.parse::<BusId>().is_ok();
        path.to_str()?.split('/').rev().find(is_function).map(Into::into)
    };
    let rdma = sys.join("class/infiniband");
    let rdma_names = names(rdma.clone());
    let rdma_functions: BTreeSet<_> =
        rdma_names.iter().filter_map(|name| function_of(rdma.join(name))).collect();
    let ports = |name: &String| names(rdma.join(name).join("ports")).len().max(1);
    let net = sys.join("class/net");
    let own = |name: &&String| {
        function_of(net.join(name)).is_some_and(|function| !rdma_functions.contains(&function))
    };
    let nvidia_or_amd = |name: &&String| {
        ["0x10de", "0x1002"].contains(&read(functions.join(name).join("vendor")).as_str())
    };
    Counts {
        numa_nodes: names(sys.join("devices/system/node")).iter().filter(|n| numbered(n)).count(),
        gpus: of_class(&["0x03", "0x12"]).iter().filter(nvidia_or_amd).count(),
        nic_functions: of_class(&["0x02", "0x0c06"]).len(),
        nic_ports: rdma_names.iter().map(ports).sum::<usize>()
            + names(net.clone()).iter().filter(own).count(),
    }
}

fn counts(snapshot: &Snapshot) -> Counts {
    Counts {
        numa_nodes: snapshot.numa_nodes.len(),
        gpus: snapshot.gpus.len(),
        nic_functions: snapshot.pci_devices.iter().filter(|d| d.kind == PciKind::Nic).count(),
        nic_ports: snapshot.nics.len(),
    }
}

#[test]
fn recorded_trees_of_real_machines() {
    for archive in archives() {
        let Some(dir) = unpack(&archive) else { return };
        let name = archive.file_name().unwrap().to_str().unwrap();
        let root = recorded_root(dir.path()).unwrap_or_else(|| panic!("{name}: no root"));
        let snapshot = probe(&ProbeConfig::recorded(&root));
        println!("{name}: {:?}, {} faults", counts(&snapshot), snapshot.faults.len());
        assert_eq!(counts(&snapshot), naive_counts(&root), "{name}");

        for fault in &snapshot.faults {
            let cut_short =
                fault.error.contains("panicked") || fault.error.starts_with("timed out");
            assert!(!cut_short, "{name}: {fault:?}");
        }
        for device in &snapshot.pci_devices {
            let above = |id| snapshot.pci_devices.iter().find(|other| other.bus_id == id);
            match device.parent {
                Some(parent) => assert!(above(parent).is_some(), "{name}: {device:?}"),
                None => assert!(device.host_bridge.is_some(), "{name}: {device:?}"),
            }
        }
        // Equal trees give equal bytes, and the facts make a graph.
        let again = probe(&ProbeConfig::recorded(&root));
        let json = |snapshot: &Snapshot| serde_json::to_string(snapshot).unwrap();
        assert_eq!(json(&snapshot), json(&again), "{name}");
        lower(&[snapshot], RateModel::Effective).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

proptest! {
    #[test]
    fn files_of_any_content(text in "\\PC{0,200}") {
        fuzz_probe_files(&text);
    }

    #[test]
    fn files_of_almost_the_right_content(
        text in "([0-9a-fx:. \n\t]|GT/s|Gb/sec|MemTotal:|processor|pci0000:|/|00000000){0,40}"
    ) {
        fuzz_probe_files(&text);
    }
}
