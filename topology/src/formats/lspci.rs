//! `lspci -vv` (or `-vvv`) and `lspci -tv` of a whole host.
//!
//! ```text
//!   15:01.0 PCI bridge: Intel …             -vv: a block per function; the buses of the bridges make the tree
//!           NUMA node: 0
//!           Bus: primary=15, secondary=16, subordinate=1c
//!           LnkCap: Port #8, Speed 32GT/s, Width x16
//!           LnkSta: Speed 32GT/s, Width x16
//!
//!   -+-[0000:15]-+-00.0  Intel …            -tv: the tree drawn; what a device is, its name alone tells
//!    |           \-01.0-[16-1c]----00.0-[17-1c]--+-00.0-[18]----00.0  NVIDIA …
//! ```
//!
//! Both lack the GPUs' numbers, NVLinks and the NICs' names and rates, which faults say. A list without the bridges
//! (`lspci`, `lspci -s`) tells no tree and is refused.

mod tree;
mod verbose;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::ReadError;
use super::pci_tree::{Tree, compute_capability};
use super::text::fault;
use crate::snapshot::{Gpu, LinkLayer, Nic, NumaNode, Source};
use crate::words::some_of;
use crate::{BusId, GpuIndex, Snapshot};

pub(super) use tree::is_tree_line;

const FORMAT: &str = "lspci output";
const READER: &str = "lspci";

/// What was read of a host, and what the form cannot tell.
struct Listing {
    tree: Tree,
    /// Product names.
    names: Vec<(BusId, String)>,
    line: usize,
    missing: Vec<&'static str>,
}

/// Whether a text is a listing with its tree.
pub(super) fn is_in(text: &str) -> bool {
    verbose::is_in(text) || tree::is_in(text)
}

/// Whether a line begins the block of a function, or is its only line.
pub(super) fn is_device_line(line: &str) -> bool {
    verbose::device_line(line).is_some()
}

pub(super) fn read(text: &str) -> Result<Snapshot, ReadError> {
    let listing = if verbose::is_in(text) { verbose::read(text)? } else { tree::read(text)? };
    let mut snapshot = Snapshot::new(Source::Lspci);
    snapshot.pci_devices = listing.tree.devices();
    let name =
        |id: BusId| listing.names.iter().find(|(of, _)| *of == id).map(|(_, name)| name.clone());
    let functions = &listing.tree.0;
    let gpus = functions.iter().filter(|(_, function)| function.is_gpu());
    for (index, (id, function)) in (0..).zip(gpus) {
        snapshot.gpus.push(Gpu {
            bus_id: Some(*id),
            name: name(*id),
            compute_capability: compute_capability(function.vendor, function.device),
            numa_node: function.numa_node,
            ..Gpu::new(GpuIndex(index))
        });
    }
    for (id, function) in functions.iter().filter(|(_, function)| function.is_nic()) {
        let link_layer = match function.class.map(|class| class >> 8) {
            Some(0x02_07 | 0x0c_06) => Some(LinkLayer::Infiniband),
            Some(0x02_00) => Some(LinkLayer::Ethernet),
            _ => None,
        };
        let nic = Nic {
            bus_id: Some(*id),
            numa_node: function.numa_node,
            link_layer,
            ..Nic::new(id.to_string())
        };
        snapshot.nics.push(nic);
    }
    let mut nodes: Vec<u32> =
        functions.values().filter_map(|function| function.numa_node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    snapshot.numa_nodes = nodes.into_iter().map(NumaNode::new).collect();
    let mut missing = |error: &str| snapshot.faults.push(fault(READER, listing.line, error.into()));
    if functions.values().any(super::pci_tree::Function::is_gpu) {
        missing("the driver's numbers of the GPUs are not told: numbered by PCI address");
        missing("NVLinks and xGMI links are not told");
    }
    if functions.values().any(super::pci_tree::Function::is_nic) {
        missing("names and rates of NIC ports are not told");
    }
    for what in &listing.missing {
        missing(what);
    }
    let no_node: Vec<String> = snapshot
        .gpus
        .iter()
        .filter(|gpu| gpu.numa_node.is_none())
        .filter_map(|gpu| gpu.bus_id.map(|id| id.to_string()))
        .collect();
    if !no_node.is_empty() {
        let error = format!("NUMA node not told: {}", some_of(&no_node));
        snapshot.faults.push(fault(READER, listing.line, error));
    }
    Ok(snapshot)
}

#[cfg(test)]
mod tests;
