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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            super::any(&bytes);
            super::nccl_topology_xml(&bytes);
            super::topo_m(&bytes);
            super::link_graph_json(&bytes);
            super::snapshot(&bytes);
        }

        #[test]
        fn any_text(text in "\\PC{0,200}") {
            super::any(text.as_bytes());
            super::nccl_topology_xml(text.as_bytes());
            super::topo_m(text.as_bytes());
        }

        /// JSON of the right keys and the wrong everything else.
        #[test]
        fn json_like(pieces in proptest::collection::vec(proptest::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"source\"", "\"live\"", "\"schema_version\"", "1", "\"gpus\"", "\"links\"",
            "\"switches\"", "\"0\"", "25.5", "-1", "null", "\"faults\"", "\"matrix\"", "\"name\"", "1e400", "\"\\u0000\"",
        ]), 0..40)) {
            let text = pieces.concat();
            super::any(text.as_bytes());
            super::any(alloc::format!("{{{text}}}").as_bytes());
            super::link_graph_json(text.as_bytes());
        }
    }
}
