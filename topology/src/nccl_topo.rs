//! NCCL's topology file (`NCCL_TOPO_FILE`): a host's facts in the form that stock NCCL loads.
//!
//! ```text
//!   of a host                               for a guest on that host
//!   <system version="1">                    <system version="1">
//!     <cpu numaid …>                          <cpu numaid …>
//!       <pci> a whole switch                    <pci busid="ffff:ff:01.0"> a switch the guest cannot see
//!         <pci><gpu><nvlink/></gpu></pci>         <pci busid="(the guest's)" class link_speed link_width/>
//!         <pci><nic><net/></nic></pci>
//! ```
//!
//! NCCL loads the file first and then adds, per rank, its own GPU and all NICs, by address; what the file states is not
//! detected again (`src/graph/xml.cc`). So a file for a guest holds the tree alone: processors, switches, and where each
//! function of the guest lies, with GPUs and NICs left for NCCL to fill in (the recipe of NVIDIA/nccl-tests#86, and the
//! form of the files that clouds publish). Root ports and a switch's downstream ports have no place in NCCL's model.
//!
//! The parser's table has 256 places for elements, and each rank adds its own; see [`TopoFile::fit`]. Written is the
//! narrow dialect of [`nccl_dialect`](crate::nccl_dialect).

use alloc::borrow::ToOwned as _;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::nccl_dialect::{LONGEST_VALUE, MOST_TOPOLOGY_ELEMENTS};
use crate::snapshot::{
    Gpu, GpuLinkKind, LinkPeer, Nic, NicRole, NumaNode, PciDevice, PciKind, Snapshot,
};
use crate::words::some_of;
use crate::{BusId, CpuArch, CpuList};

mod element;
mod guest;
#[cfg(test)]
mod tests;

use element::Element;

pub use guest::{GuestMap, InvalidGuestMap};

/// Elements from which a file is near the parser's limit: each rank adds its GPU and every NIC that the file lacks.
pub const MANY_ELEMENTS: usize = 200;

/// Address that NCCL itself writes for the other end of a link which the driver does not show.
const HIDDEN: &str = "fffffff:ffff:ff";

/// A topology file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopoFile {
    system: Element,
    notes: Vec<String>,
}

/// Why a host cannot be written as a topology file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopoError {
    /// The source tells no addresses.
    #[error(
        "no GPU has a PCI address: the source does not tell them, and NCCL knows devices by address"
    )]
    NoAddresses,
    /// A value needs characters that the dialect cannot write.
    #[error(
        "{attribute} '{value}' cannot be written: the dialect has no entities, and values end at 253 bytes"
    )]
    Unwritable {
        /// The attribute.
        attribute: &'static str,
        /// Its value.
        value: String,
    },
    /// The map names what the host or the guest does not have.
    #[error("map of addresses: {0}")]
    Map(String),
}

impl TopoFile {
    /// The tree of a host with its GPUs, links and NICs, as complete as NCCL's own dump.
    ///
    /// # Errors
    /// Where the source tells no addresses, or a name cannot be written.
    pub fn of_host(snapshot: &Snapshot) -> Result<Self, TopoError> {
        let tree = Tree::new(snapshot);
        let mut file = tree.file(&tree.ends()?, &mut |end| end.device.bus_id.to_string())?;
        file.fill(snapshot, &tree);
        file.system.check()?;
        Ok(file)
    }

    /// The tree for a guest that was given some devices of the host. With the guest's own facts every address of the map
    /// is looked up there, and CPU masks are the guest's.
    ///
    /// # Errors
    /// Where the map names a device that one of them does not have, or of another kind.
    pub fn for_guest(
        host: &Snapshot,
        map: &GuestMap,
        guest: Option<&Snapshot>,
    ) -> Result<Self, TopoError> {
        guest::file(host, map, guest)
    }

    /// Elements, as NCCL's parser counts them.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.system.count()
    }

    /// What was assumed, left out or could not be told, in words.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Drops what NCCL finds out by itself until the file is well within the limit of its parser, and notes it: first
    /// NVLinks, of which each rank then asks the driver, then NICs, which each rank adds.
    pub fn fit(&mut self) {
        for (name, what) in [
            (
                "nvlink",
                "links of GPUs are left out: NCCL asks the driver for those of each rank's own",
            ),
            ("nic", "NICs are left out but for their place: NCCL adds them"),
        ] {
            if self.elements() <= MANY_ELEMENTS {
                return;
            }
            let before = self.elements();
            self.system.retain(&|element| element.name != name);
            if self.elements() < before {
                self.notes
                    .push(format!("{before} elements of at most {MOST_TOPOLOGY_ELEMENTS}: {what}"));
            }
        }
    }

    /// The text.
    #[must_use]
    pub fn write(&self) -> String {
        let mut text = String::new();
        self.system.write(0, &mut text);
        text
    }

    /// Fills in what hangs at the devices of a host.
    fn fill(&mut self, snapshot: &Snapshot, tree: &Tree<'_>) {
        let xgmi = snapshot
            .gpus
            .iter()
            .any(|gpu| gpu.links.iter().any(|links| links.kind == GpuLinkKind::Xgmi));
        // RCCL numbers its form 2.
        self.system.attributes = [("version", if xgmi { "2" } else { "1" }.to_owned())].into();
        let mut net = 0_u32;
        fill_below(&mut self.system, &mut |bus_id| {
            let gpu = snapshot.gpus.iter().find(|gpu| gpu.bus_id == Some(bus_id));
            if let Some(gpu) = gpu {
                return Some(gpu_element(gpu, tree));
            }
            let mut nic = Element::new("nic");
            for port in tree.ports.get(&bus_id).into_iter().flatten() {
                nic.children.push(net_element(port, net));
                net += 1;
            }
            (!nic.children.is_empty()).then_some(nic)
        });
    }
}

fn fill_below(element: &mut Element, content: &mut dyn FnMut(BusId) -> Option<Element>) {
    for child in &mut element.children {
        fill_below(child, content);
    }
    let bus_id = element.attribute("busid").and_then(|text| text.parse().ok());
    if element.name == "pci" && element.children.is_empty() {
        element.children.extend(bus_id.and_then(content));
    }
}

fn gpu_element(gpu: &Gpu, tree: &Tree<'_>) -> Element {
    let mut element = Element::new("gpu")
        .with("dev", gpu.index.to_string())
        .with_some("sm", gpu.compute_capability)
        .with_some("gcn", gpu.gfx.clone())
        .with_some("mlopart", gpu.part);
    for links in &gpu.links {
        let (target, class) = match &links.peer {
            LinkPeer::Gpu(id) => (id.to_string(), tree.class_of(*id).unwrap_or(0x03_02_00)),
            LinkPeer::Switch(id) => (named(*id), 0x06_80_00),
            LinkPeer::Cpu(id) => (named(*id), 0x06_80_01),
            // NCCL has no word for it.
            LinkPeer::Unknown => continue,
        };
        let name = match links.kind {
            GpuLinkKind::NvLink => "nvlink",
            GpuLinkKind::Xgmi => "xgmi",
        };
        element.children.push(
            Element::new(name)
                .with("target", target)
                .with("count", links.count.to_string())
                .with("tclass", format!("{class:#08x}")),
        );
    }
    if let Some(c2c) = gpu.c2c {
        element.children.push(
            Element::new("c2c")
                .with("bw", (c2c.rate.kbps() / 1000).to_string())
                .with("count", c2c.count.to_string()),
        );
    }
    element
}

fn named(id: Option<BusId>) -> String {
    id.map_or_else(|| HIDDEN.into(), |id| id.to_string())
}

fn net_element(nic: &Nic, dev: u32) -> Element {
    Element::new("net")
        .with("name", nic.name.clone())
        .with("dev", dev.to_string())
        // What the file states goes before what NCCL's plugin finds, so only what is known is stated.
        .with_some("speed", nic.mbit)
        .with_some("port", nic.port)
        .with_some("rail", nic.rail.map(|rail| rail.0))
        .with_some("plane", nic.plane)
}

/// A device to write, with the switches above it.
struct End<'a> {
    device: &'a PciDevice,
    /// From the host bridge down.
    switches: Vec<&'a PciDevice>,
    numa_node: Option<u32>,
}

/// A host's functions and ports by address.
struct Tree<'a> {
    snapshot: &'a Snapshot,
    functions: BTreeMap<BusId, &'a PciDevice>,
    /// Those for traffic between GPUs, and those of which one does not know.
    ports: BTreeMap<BusId, Vec<&'a Nic>>,
}

impl<'a> Tree<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let functions = snapshot.pci_devices.iter().map(|device| (device.bus_id, device)).collect();
        let mut ports: BTreeMap<BusId, Vec<&Nic>> = BTreeMap::new();
        for nic in snapshot.nics.iter().filter(|nic| nic.role != NicRole::Other) {
            if let Some(bus_id) = nic.bus_id {
                ports.entry(bus_id).or_default().push(nic);
            }
        }
        Self { snapshot, functions, ports }
    }

    fn class_of(&self, bus_id: BusId) -> Option<u32> {
        self.functions.get(&bus_id)?.class
    }

    /// Every GPU and NIC that is written.
    fn ends(&self) -> Result<Vec<End<'a>>, TopoError> {
        let gpus: BTreeSet<BusId> =
            self.snapshot.gpus.iter().filter_map(|gpu| gpu.bus_id).collect();
        if gpus.is_empty() {
            return Err(TopoError::NoAddresses);
        }
        let all: BTreeSet<BusId> = gpus.into_iter().chain(self.ports.keys().copied()).collect();
        Ok(all.into_iter().filter_map(|bus_id| self.end(bus_id)).collect())
    }

    fn end(&self, bus_id: BusId) -> Option<End<'a>> {
        let device = *self.functions.get(&bus_id)?;
        let mut switches = Vec::new();
        let mut numa_node = self
            .snapshot
            .gpus
            .iter()
            .find(|gpu| gpu.bus_id == Some(bus_id))
            .and_then(|gpu| gpu.numa_node)
            .or_else(|| self.ports.get(&bus_id)?.iter().find_map(|nic| nic.numa_node))
            .or(device.numa_node);
        let mut seen = BTreeSet::from([bus_id]);
        let mut next = device.parent;
        while let Some(above) =
            next.filter(|id| seen.insert(*id)).and_then(|id| self.functions.get(&id))
        {
            if above.kind == PciKind::Switch {
                switches.push(*above);
            }
            numa_node = numa_node.or(above.numa_node);
            next = above.parent;
        }
        switches.reverse();
        Some(End { device, switches, numa_node })
    }

    /// The tree above some devices; `address` says what each is called in the file.
    fn file(
        &self,
        ends: &[End<'a>],
        address: &mut dyn FnMut(&End<'a>) -> String,
    ) -> Result<TopoFile, TopoError> {
        let mut assumed = BTreeSet::new();
        let mut cpus: BTreeMap<Option<u32>, Vec<Branch<'a>>> = BTreeMap::new();
        // All below one switch hang at one processor, whatever each of them says.
        let mut node_of: BTreeMap<BusId, Option<u32>> = BTreeMap::new();
        for end in ends {
            let top = end.switches.first().map_or(end.device.bus_id, |switch| switch.bus_id);
            let node = node_of.entry(top).or_insert(end.numa_node);
            *node = node.or(end.numa_node);
        }
        for end in ends {
            let top = end.switches.first().map_or(end.device.bus_id, |switch| switch.bus_id);
            let node = node_of.get(&top).copied().flatten();
            let mut branches = cpus.entry(node).or_default();
            for switch in &end.switches {
                let at = branches.iter().position(|branch| branch.device.bus_id == switch.bus_id);
                let at = at.unwrap_or_else(|| {
                    branches.push(Branch::new(switch, switch.bus_id.to_string()));
                    branches.len() - 1
                });
                branches = &mut branches[at].below;
            }
            branches.push(Branch::new(end.device, address(end)));
        }
        let mut system = Element::new("system").with("version", "1");
        for (node, branches) in cpus {
            let mut cpu = self.cpu(node);
            cpu.children.extend(branches.iter().map(|branch| branch.element(&mut assumed)));
            system.children.push(cpu);
        }
        let mut notes = Vec::new();
        if !assumed.is_empty() {
            notes.push(format!(
                "PCIe Gen3 x16 written where the link is not known: {}",
                some_of(&assumed.iter().map(ToString::to_string).collect::<Vec<_>>())
            ));
        }
        Ok(TopoFile { system, notes })
    }

    fn cpu(&self, node: Option<u32>) -> Element {
        let facts = self.snapshot.numa_nodes.iter().find(|numa| Some(numa.id) == node);
        // The kernel's word for a node that nobody knows.
        let numa = node.map_or_else(|| "-1".into(), |node| node.to_string());
        let element = Element::new("cpu").with("numaid", numa);
        let Some(NumaNode { cpus, cpu, .. }) = facts else { return element };
        element
            .with_some("affinity", cpus.as_ref().and_then(affinity))
            .with_some(
                "arch",
                cpu.arch.map(|arch| match arch {
                    CpuArch::X86_64 => "x86_64",
                    CpuArch::Arm64 => "arm64",
                    CpuArch::Ppc64 => "ppc64",
                }),
            )
            .with_some("vendor", cpu.vendor.clone())
            .with_some("familyid", cpu.family)
            .with_some("modelid", cpu.model)
    }
}

/// A mask that fits; NCCL reads it from the kernel where the file has none.
fn affinity(cpus: &CpuList) -> Option<String> {
    Some(cpus.to_mask()).filter(|mask| !cpus.is_empty() && mask.len() <= LONGEST_VALUE)
}

/// A function with those below it.
struct Branch<'a> {
    device: &'a PciDevice,
    address: String,
    below: Vec<Self>,
}

impl<'a> Branch<'a> {
    fn new(device: &'a PciDevice, address: String) -> Self {
        Self { device, address, below: Vec::new() }
    }

    fn element(&self, assumed: &mut BTreeSet<BusId>) -> Element {
        let (mtps, width) = self.device.link.usable();
        if mtps.is_none() || width.is_none() {
            assumed.insert(self.device.bus_id);
        }
        let id = |id: u16| format!("{id:#06x}");
        let class = self.device.class.unwrap_or(match self.device.kind {
            PciKind::Gpu => 0x03_02_00,
            PciKind::Nic => 0x02_00_00,
            _ => 0x06_04_00,
        });
        let mut element = Element::new("pci")
            .with("busid", self.address.clone())
            .with("class", format!("{class:#08x}"))
            .with_some("vendor", self.device.vendor.map(id))
            .with_some("device", self.device.device.map(id))
            .with("link_speed", link_speed(mtps.unwrap_or(8_000)))
            .with("link_width", width.unwrap_or(16).to_string());
        element.children = self.below.iter().map(|branch| branch.element(assumed)).collect();
        element
    }
}

/// Body of the fuzz target of maps: any text is read, or refused with its line.
pub fn fuzz_map(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(error) = text.parse::<GuestMap>() {
        assert!(error.line > 0 && error.line <= text.lines().count(), "{error}");
    }
}

/// A rate in the words of the kernel that NCCL knows (`kvDictPciGen`); faster ones count as the fastest of those.
fn link_speed(mtps: u32) -> &'static str {
    match mtps {
        64_000.. => "64.0 GT/s PCIe",
        32_000.. => "32.0 GT/s PCIe",
        16_000.. => "16.0 GT/s PCIe",
        8_000.. => "8.0 GT/s PCIe",
        5_000.. => "5.0 GT/s PCIe",
        _ => "2.5 GT/s PCIe",
    }
}
