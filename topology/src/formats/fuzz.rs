//! Bodies of the fuzz targets. They hold for any bytes, so the test suite runs them too.

use super::{link_graph, nccl_xml, read, snapshot_json, topo_matrix, write_snapshot};
use crate::Snapshot;
use alloc::string::String;
use alloc::vec::Vec;

/// The reader of all formats.
pub fn any(bytes: &[u8]) {
    sound(read(bytes).unwrap_or_default());
}

/// NCCL topology XML, without the recognition before it.
pub fn nccl_topology_xml(bytes: &[u8]) {
    sound(nccl_xml::read(&String::from_utf8_lossy(bytes)).unwrap_or_default());
}

/// `nvidia-smi topo -m` text.
pub fn topo_m(bytes: &[u8]) {
    sound(topo_matrix::read(&String::from_utf8_lossy(bytes)).into_iter().collect());
}

/// Link graph JSON.
pub fn link_graph_json(bytes: &[u8]) {
    sound(link_graph::read(&String::from_utf8_lossy(bytes)).into_iter().collect());
}

/// The snapshot's own JSON.
pub fn snapshot(bytes: &[u8]) {
    sound(snapshot_json::read(&String::from_utf8_lossy(bytes)).unwrap_or_default());
}

/// What is read is consistent, and survives being written and read again.
fn sound(hosts: Vec<Snapshot>) {
    for host in hosts {
        if let Err(reason) = snapshot_json::validate(&host) {
            panic!("a reader made an inconsistent snapshot: {reason}");
        }
        let text = write_snapshot(&host);
        let again = read(text.as_bytes());
        assert_eq!(again.as_deref(), Ok(&[host][..]), "written and read again");
    }
}
