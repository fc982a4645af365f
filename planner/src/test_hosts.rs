//! Described hosts for tests.

use std::path::PathBuf;
use std::vec::Vec;
use std::{format, fs};

use topology::{RateModel, Snapshot, Topology, formats, lower};

/// A machine of the project's own descriptions, by name.
pub(crate) fn host(name: &str) -> Snapshot {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/machines");
    let text = fs::read(folder.join(format!("{name}.json"))).unwrap();
    formats::read(&text).unwrap().remove(0)
}

/// Hosts as one topology, at NCCL's rates.
pub(crate) fn joined(hosts: &[Snapshot]) -> Topology {
    lower(hosts, RateModel::Effective).unwrap()
}

/// So many copies of a host.
pub(crate) fn copies(name: &str, count: usize) -> Topology {
    let one = host(name);
    joined(&(0..count).map(|_| one.clone()).collect::<Vec<_>>())
}
