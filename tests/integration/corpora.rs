//! What fuzzing found worth keeping runs through the bodies of its targets.
//!
//! `fuzz/seeds/TARGET/` holds inputs that reach some code no other of them does; each is a file of its bytes.

use std::collections::BTreeSet;
use std::fs;

/// What a target does with an input; it must not panic.
type Body = fn(&[u8]);

/// Targets with the functions they are made of.
const TARGETS: [(&str, Body); 19] = [
    ("any", topology::formats::fuzz::any),
    ("archive", daemon::recorded::fuzz_archive),
    ("fabric", topology::fabric::fuzz::fabric),
    ("hwloc_xml", topology::formats::fuzz::hwloc_xml),
    ("link_graph_json", topology::formats::fuzz::link_graph_json),
    ("lspci", topology::formats::fuzz::lspci),
    ("msccl", topology::msccl::fuzz),
    ("nccl_conf", topology::nccl_conf::fuzz),
    ("nccl_graph", topology::nccl_graph::fuzz),
    ("nccl_log", topology::nccl_log::fuzz),
    ("nccl_map", topology::nccl_topo::fuzz_map),
    ("nccl_topology_xml", topology::formats::fuzz::nccl_topology_xml),
    ("nccl_tuner", topology::nccl_tuner::fuzz),
    ("nvidia_smi_xml", topology::formats::fuzz::nvidia_smi_xml),
    ("plan_json", topology::formats::plan_json::fuzz),
    ("probe_files", |bytes| daemon::probe::fuzz_probe_files(&String::from_utf8_lossy(bytes))),
    ("rocm_topo", topology::formats::fuzz::rocm_topo),
    ("snapshot", topology::formats::fuzz::snapshot),
    ("topo_m", topology::formats::fuzz::topo_m),
];

#[test]
fn every_corpus_replays() {
    let root = crate::workspace_root().join("fuzz");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let listed: BTreeSet<&str> = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""))
        .collect();
    let known: BTreeSet<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, known, "targets of fuzz/Cargo.toml, and those whose corpora replay here");
    for (name, body) in TARGETS {
        let mut files: Vec<_> = fs::read_dir(root.join("seeds").join(name))
            .unwrap_or_else(|error| panic!("no corpus of {name}: {error}"))
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "the corpus of {name} is empty");
        println!("{name}: {} inputs", files.len());
        for file in files {
            println!("{}", file.display());
            body(&fs::read(&file).unwrap());
        }
    }
}
