//! AMD GPUs as the kernel's compute driver (KFD) shows them, without any library of AMD's.
//!
//! ```text
//!   sys/class/kfd/kfd/topology/nodes/N/properties             a CPU or a GPU; of a GPU its address and architecture
//!                                     io_links/M/properties   a link to another node: PCIe or xGMI, with its rate
//!                                     mem_banks/M/properties  memory
//! ```
//!
//! A divided board (CPX mode) shows a node for each part, all with the address of the board: their links are those of
//! the board, and weights, which differ by mode, decide nothing here.

use std::collections::{BTreeMap, BTreeSet};

use topology::{Bandwidth, BusId};

use super::apart::Report;
use super::root::Root;
use super::trouble::Trouble;

const NODES: &str = "sys/class/kfd/kfd/topology/nodes";

/// Types of links in `HSA_IOLINKTYPE` of the kernel's `kfd_crat.h`.
const XGMI: u64 = 11;

/// Types of memory in `HSA_MEM_HEAP_TYPE`: local memory that the host sees, and that it does not.
const LOCAL_MEMORY: [u64; 2] = [1, 2];

/// A board, as its nodes tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KfdGpu {
    /// `gfx942`.
    pub(super) gfx: Option<String>,
    pub(super) memory_bytes: Option<u64>,
    /// xGMI links to other boards with their rate, and to CPUs (`None`).
    pub(super) links: BTreeMap<Option<BusId>, Option<Bandwidth>>,
    /// Nodes the board shows; more than one where it is divided.
    pub(super) nodes: u32,
    /// The mode of dividing board and memory, from the function's own files.
    pub(super) partition: Option<String>,
    pub(super) name: Option<String>,
}

/// Tells every board.
pub(super) fn read(root: &Root, report: &Report<(BusId, KfdGpu)>) {
    // Without the driver the class does not exist, which is no fault.
    let Ok(names) = root.list(NODES) else { return };
    let mut nodes: BTreeMap<u64, Node> = BTreeMap::new();
    for name in names {
        let Ok(number) = name.parse::<u64>() else { continue };
        let place = format!("{NODES}/{name}/properties");
        match root.read(&place) {
            Ok(text) => {
                let properties = parse_properties(&text);
                nodes.insert(number, node(root, &name, &properties));
            }
            // A device control group hides the properties of a GPU that it denies.
            Err(error) => report.fault(place, Trouble::from(&error)),
        }
    }
    let mut boards: BTreeMap<BusId, KfdGpu> = BTreeMap::new();
    for node in nodes.values() {
        let Some(bus_id) = node.bus_id else { continue };
        let board = boards.entry(bus_id).or_default();
        board.nodes += 1;
        board.gfx = board.gfx.take().or_else(|| node.gfx.clone());
        board.memory_bytes = match (board.memory_bytes, node.memory_bytes) {
            (Some(a), Some(b)) => a.checked_add(b),
            (a, b) => a.or(b),
        };
        for (to, rate) in &node.links {
            let peer = nodes.get(to).and_then(|node| node.bus_id);
            // Parts of one board are joined within it.
            if peer != Some(bus_id) {
                let known = board.links.entry(peer).or_default();
                *known = (*known).max(*rate);
            }
        }
    }
    for (bus_id, mut board) in boards {
        let file = |file: &str| root.read(&format!("sys/bus/pci/devices/{bus_id}/{file}")).ok();
        let told = |text: &String| !text.is_empty();
        let modes = [file("current_compute_partition"), file("current_memory_partition")];
        let modes: Vec<String> = modes.into_iter().flatten().filter(told).collect();
        board.partition = Some(modes.join("/")).filter(told);
        board.name = file("product_name").filter(told);
        report.part((bus_id, board));
    }
}

/// One node.
#[derive(Default)]
struct Node {
    /// Of a GPU.
    bus_id: Option<BusId>,
    gfx: Option<String>,
    memory_bytes: Option<u64>,
    /// xGMI links by the node they lead to.
    links: Vec<(u64, Option<Bandwidth>)>,
}

fn node(root: &Root, name: &str, properties: &BTreeMap<&str, u64>) -> Node {
    let all = |kind: &str| -> Vec<String> {
        let dir = format!("{NODES}/{name}/{kind}");
        let entries = root.list(&dir).unwrap_or_default();
        entries.iter().filter_map(|e| root.read(&format!("{dir}/{e}/properties")).ok()).collect()
    };
    let gfx = properties.get("gfx_target_version").filter(|version| **version > 0);
    if gfx.is_none() {
        return Node::default();
    }
    let mut memory = None;
    for text in all("mem_banks") {
        let bank = parse_properties(&text);
        if bank.get("heap_type").is_some_and(|kind| LOCAL_MEMORY.contains(kind)) {
            let size = bank.get("size_in_bytes").copied().unwrap_or(0);
            memory = Some(memory.unwrap_or(0_u64).saturating_add(size));
        }
    }
    // On APUs and recent kernels links may stand in either of two directories, once each.
    let mut links = Vec::new();
    let mut seen = BTreeSet::new();
    for text in all("io_links").into_iter().chain(all("p2p_links")) {
        let link = parse_properties(&text);
        let to = link.get("node_to").copied();
        if let Some(to) = to.filter(|_| link.get("type") == Some(&XGMI))
            && seen.insert(to)
        {
            // In MB/s; 0 where the driver does not know.
            let rate =
                link.get("max_bandwidth").copied().filter(|mbps| (1..10_000_000).contains(mbps));
            links.push((to, rate.map(Bandwidth::from_mbps)));
        }
    }
    Node {
        bus_id: bus_id(properties),
        gfx: gfx.and_then(|version| gfx_name(*version)),
        memory_bytes: memory.filter(|bytes| *bytes > 0),
        links,
    }
}

/// Lines of a name and a number.
fn parse_properties(text: &str) -> BTreeMap<&str, u64> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter_map(|(name, number)| Some((name, number.trim().parse().ok()?))).collect()
}

/// Bus, device and function are in `location_id`, in the form of the PCI specification.
fn bus_id(properties: &BTreeMap<&str, u64>) -> Option<BusId> {
    let location = *properties.get("location_id")?;
    let domain = u32::try_from(properties.get("domain").copied().unwrap_or(0)).ok()?;
    let bus = u8::try_from(location >> 8).ok()?;
    let low = u8::try_from(location & 0xff).ok()?;
    BusId::new(domain, bus, low >> 3, low & 7)
}

/// `gfx942` for 90402: major, minor and stepping in two decimal digits each, the last two shown in hexadecimal.
fn gfx_name(version: u64) -> Option<String> {
    let (major, minor, stepping) = (version / 10_000, version / 100 % 100, version % 100);
    (major < 100).then(|| format!("gfx{major}{minor:x}{stepping:x}"))
}

/// Feeds the parsers of this file.
pub(super) fn fuzz(text: &str) {
    let properties = parse_properties(text);
    let _ = bus_id(&properties);
    properties.values().for_each(|version| drop(gfx_name(*version)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures() {
        let check = |version, expect: &str| assert_eq!(gfx_name(version).as_deref(), Some(expect));
        check(90_402, "gfx942");
        check(90_010, "gfx90a");
        check(90_008, "gfx908");
        check(110_000, "gfx1100");
        check(90_500, "gfx950");
        assert_eq!(gfx_name(u64::MAX), None);
    }

    #[test]
    fn addresses() {
        let check = |text: &str, expect: Option<&str>| {
            let found = bus_id(&parse_properties(text)).map(|id| id.to_string());
            assert_eq!(found.as_deref(), expect, "{text}");
        };
        check("location_id 49664\ndomain 1\n", Some("0001:c2:00.0"));
        check("location_id 49664", Some("0000:c2:00.0"));
        check("location_id 99999999", None);
        check("domain 0", None);
        check("location_id x", None);
    }
}
