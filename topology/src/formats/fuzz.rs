//! Bodies of the fuzz targets. They hold for any bytes, so the test suite runs them too.

use super::{
    hwloc_xml, link_graph, lspci, nccl_xml, nvidia_smi_xml, read, rocm_topo, snapshot_json,
    topo_matrix, write_snapshot,
};
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

/// hwloc's XML.
pub fn hwloc_xml(bytes: &[u8]) {
    sound(hwloc_xml::read(&String::from_utf8_lossy(bytes)).into_iter().collect());
}

/// `nvidia-smi -q -x`.
pub fn nvidia_smi_xml(bytes: &[u8]) {
    sound(nvidia_smi_xml::read(&String::from_utf8_lossy(bytes)).into_iter().collect());
}

/// Tables of `rocm-smi` and `amd-smi`.
pub fn rocm_topo(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    sound(rocm_topo::read(&text).into_iter().collect());
    sound(rocm_topo::read_json(&text).into_iter().collect());
}

/// `lspci -vv` and `lspci -tv`.
pub fn lspci(bytes: &[u8]) {
    sound(lspci::read(&String::from_utf8_lossy(bytes)).into_iter().collect());
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
            super::hwloc_xml(&bytes);
            super::nvidia_smi_xml(&bytes);
            super::rocm_topo(&bytes);
            super::lspci(&bytes);
            super::link_graph_json(&bytes);
            super::snapshot(&bytes);
        }

        #[test]
        fn any_text(text in "\\PC{0,200}") {
            super::any(text.as_bytes());
            super::nccl_topology_xml(text.as_bytes());
            super::topo_m(text.as_bytes());
            super::rocm_topo(text.as_bytes());
            super::lspci(text.as_bytes());
        }

        /// Words of the tools whose text is read, in any order.
        #[test]
        fn text_like(pieces in proptest::collection::vec(proptest::sample::select(vec![
            "GPU0", "GPU1", " ", "\n", "\t", "XGMI", "PCIE", "0", "1", "SELF", "LINK TYPE TABLE:\n", "HOPS TABLE:\n", "NUMA BW TABLE:\n",
            "50000-50000", "0-0", "GPU[0] : (Topology) Numa Affinity: 0\n", "0000:0c:00.0", "-[0000:00]-", "+-", "\\-", "00.0", "-[01]-",
            "---", "  NVIDIA Corporation X", " |  ", "01:00.0 PCI bridge: Intel (rev 1)\n", "01:00.0 3D controller: NVIDIA Corporation X\n",
            "Bus: primary=00, secondary=01, subordinate=02\n", "Bus: primary=00, secondary=01, subordinate=01\n", "LnkCap: Speed 8GT/s, Width x16\n",
        ]), 0..40)) {
            let text = pieces.concat();
            super::any(text.as_bytes());
            super::topo_m(text.as_bytes());
            super::rocm_topo(text.as_bytes());
            super::lspci(text.as_bytes());
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
