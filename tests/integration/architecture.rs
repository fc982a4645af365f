//! The cut of the workspace, held by comparing `cargo metadata` with the tables below.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// What each part of the product may know of the others. What is absent is the point: the transport cannot plan, the
/// planner cannot talk, and the vocabulary depends on nothing of ours.
const MAY_USE: [(&str, &[&str]); 12] = [
    ("topology", &[]),
    ("planner", &["topology"]),
    ("proto", &["topology"]),
    ("transport", &["topology"]),
    // What a job asks of the daemon, and the faces for other languages, which it loads.
    ("transport-daemon", &["proto", "topology", "transport"]),
    ("transport-c", &["topology", "transport", "transport-daemon"]),
    ("transport-cuda", &["topology", "transport"]),
    ("transport-python", &["topology", "transport", "transport-daemon"]),
    // What NCCL loads into a job: as little as can be.
    ("transport-tuner", &["topology"]),
    ("daemon", &["planner", "proto", "topology"]),
    // A program of its own, for a host with a GPU: it asks the probe and runs the kernels.
    ("gpu-check", &["daemon", "topology", "transport", "transport-cuda"]),
    ("cli", &["daemon", "planner", "proto", "topology", "transport", "transport-daemon"]),
];

/// Members that are no part of the product: they may use what they need, and nothing of the product may use them.
const AROUND: [&str; 6] =
    ["cuda-double", "machines", "nvml-double", "tests", "verbs-double", "xtask"];

/// The pure crates, and the only crates from outside they may use. `no_std` keeps IO, clocks, environment, threads and
/// hash order out of their own code; this list keeps them out of what they call.
const PURE: [(&str, &[&str]); 2] = [
    (
        "topology",
        &[
            "num-integer",
            "num-rational",
            "num-traits",
            "petgraph",
            "roxmltree",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
        ],
    ),
    ("planner", &["num-integer", "num-rational", "num-traits", "petgraph", "serde", "thiserror"]),
];

fn metadata() -> Metadata {
    let manifest = crate::workspace_root().join("Cargo.toml");
    MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .expect("cargo metadata of this workspace")
}

/// Names of what `package` depends on when it is built for use: tests may use more.
fn built_with(package: &Package) -> BTreeSet<&str> {
    let used = package.dependencies.iter();
    used.filter(|used| used.kind != DependencyKind::Development)
        .map(|used| used.name.as_str())
        .collect()
}

fn root_source(package: &Package) -> String {
    let library = package.targets.iter().find(|target| target.is_lib());
    let library = library.unwrap_or_else(|| panic!("{} has no library", package.name));
    fs::read_to_string(&library.src_path).expect("the root of a library is there")
}

#[test]
fn dependencies_run_one_way() {
    let metadata = metadata();
    let members = metadata.workspace_packages();
    let names: BTreeSet<&str> = members.iter().map(|package| package.name.as_str()).collect();
    let known: BTreeSet<&str> = MAY_USE.iter().map(|(name, _)| *name).chain(AROUND).collect();
    let unplaced: Vec<&&str> = names.difference(&known).collect();
    assert!(unplaced.is_empty(), "{unplaced:?} need their place in the tables of this test");

    let may_use: BTreeMap<&str, &[&str]> = MAY_USE.into_iter().collect();
    for package in members {
        let Some(allowed) = may_use.get(package.name.as_str()) else { continue };
        for used in built_with(package).intersection(&names) {
            assert!(allowed.contains(used), "{} must not know {used}", package.name);
        }
    }
}

#[test]
fn pure_crates_use_pure_crates() {
    let metadata = metadata();
    for (name, allowed) in PURE {
        let members = metadata.workspace_packages();
        let package = members.iter().find(|package| package.name == name).expect("a member");
        for used in &package.dependencies {
            let ours = used.path.is_some();
            if ours || used.kind == DependencyKind::Development {
                continue;
            }
            assert!(
                allowed.contains(&used.name.as_str()),
                "{name} must not use {}: is it pure? then list it here",
                used.name
            );
            assert!(
                !used.uses_default_features,
                "{name} takes {} with its default features, which may need std",
                used.name
            );
        }
        let source = root_source(package);
        for attribute in ["#![cfg_attr(not(test), no_std)]", "#![forbid(unsafe_code)]"] {
            assert!(source.contains(attribute), "{name} lacks {attribute}");
        }
    }
}

#[test]
fn every_crate_takes_the_workspaces_lints() {
    for package in metadata().workspace_packages() {
        let manifest = fs::read_to_string(&package.manifest_path).expect("a manifest is there");
        let lines: Vec<&str> = manifest.lines().map(str::trim).collect();
        let takes = lines.windows(2).any(|pair| pair == ["[lints]", "workspace = true"]);
        assert!(takes, "{} lacks [lints] workspace = true", package.name);
    }
}

#[test]
fn a_build_needs_no_build_script() {
    for package in metadata().workspace_packages() {
        let script = package.targets.iter().find(|target| target.is_custom_build());
        assert!(script.is_none(), "{} has a build script", package.name);
    }
}
