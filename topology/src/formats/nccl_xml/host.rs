//! One host of an NCCL topology file: gathered in file order, ordered and cross-checked at the end.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::FORMAT;
use super::values::Target;
use crate::formats::{ReadError, pci_tree, text};
use crate::snapshot::{
    GpuLinkKind, GpuLinks, LinkPeer, NumaNode, PciDevice, PciKind, Snapshot, Source,
};
use crate::words::some_of;
use crate::{BusId, Fault, Gpu, GpuIndex, Nic};

pub(super) fn fault(line: usize, error: String) -> Fault {
    text::fault("nccl-xml", line, error)
}

/// Class codes of an NVLink's other end, upper 16 bits, and POWER's bridge to the CPU in full (`src/graph/topo.cc`).
const NVSWITCH_CLASS: u32 = 0x06_80;
const CPU_BRIDGE_CLASS: u32 = 0x06_80_01;

pub(super) struct Host {
    pub(super) first_rank: Option<i64>,
    pub(super) pci_devices: Vec<PciDevice>,
    /// The lesser address first.
    pub(super) pci_links: Vec<(BusId, BusId)>,
    pub(super) gpus: Vec<PendingGpu>,
    /// With NCCL's `dev`.
    pub(super) nics: Vec<(Option<u32>, Nic)>,
    pub(super) faults: Vec<Fault>,
    /// GPUs by class alone, without a `gpu` element.
    pub(super) untagged: Vec<BusId>,
    /// NICs by class alone, without a `net` element.
    pub(super) unnamed: Vec<BusId>,
    /// Leaves that state no class.
    pub(super) classless: Vec<BusId>,
    pub(super) no_speed: Vec<(usize, BusId)>,
    pub(super) no_width: Vec<(usize, BusId)>,
    numa_nodes: BTreeMap<u32, NumaNode>,
    claimed: BTreeMap<BusId, (usize, PciKind)>,
}

pub(super) struct PendingGpu {
    pub(super) line: usize,
    pub(super) dev: Option<GpuIndex>,
    pub(super) gpu: Gpu,
    pub(super) links: Vec<PendingLink>,
}

pub(super) struct PendingLink {
    pub(super) line: usize,
    pub(super) kind: GpuLinkKind,
    pub(super) target: Target,
    pub(super) target_class: Option<u32>,
    pub(super) count: u32,
}

impl Host {
    pub(super) fn new() -> Self {
        Self {
            first_rank: None,
            pci_devices: Vec::new(),
            pci_links: Vec::new(),
            gpus: Vec::new(),
            nics: Vec::new(),
            faults: Vec::new(),
            untagged: Vec::new(),
            unnamed: Vec::new(),
            classless: Vec::new(),
            no_speed: Vec::new(),
            no_width: Vec::new(),
            numa_nodes: BTreeMap::new(),
            claimed: BTreeMap::new(),
        }
    }

    pub(super) fn fault(&mut self, line: usize, error: String) {
        self.faults.push(fault(line, error));
    }

    /// Adds a NUMA node, or finds it said the same before.
    pub(super) fn numa_node(&mut self, node: NumaNode) -> Result<(), String> {
        match self.numa_nodes.get(&node.id) {
            Some(known) if known.cpus != node.cpus || known.cpu != node.cpu => {
                Err(format!("NUMA node {} is described twice, differently", node.id))
            }
            Some(_) => Ok(()),
            None => {
                self.numa_nodes.insert(node.id, node);
                Ok(())
            }
        }
    }

    /// The address a function is known by. NCCL keeps functions apart that state the same address, and such
    /// files exist (a switch listed once per port, a NIC with its bridge's address); an address names one
    /// function here, so a later one gets the next that is free. Never a GPU: links name GPUs by address.
    pub(super) fn claim(
        &mut self,
        stated: BusId,
        kind: PciKind,
        line: usize,
        known: &BTreeSet<BusId>,
    ) -> Result<BusId, String> {
        let Some((first, other)) = self.claimed.get(&stated).copied() else {
            self.claimed.insert(stated, (line, kind));
            return Ok(stated);
        };
        if kind == PciKind::Gpu || other == PciKind::Gpu {
            return Err(format!("{stated} is listed here and at line {first}, and one is a GPU"));
        }
        let free = pci_tree::free_address(stated, |id| {
            known.contains(&id) || self.claimed.contains_key(&id)
        })
        .ok_or_else(|| format!("{stated} is listed too often, first at line {first}"))?;
        self.fault(
            line,
            format!("{stated} is also at line {first}; this one is called {free} here"),
        );
        self.claimed.insert(free, (line, kind));
        Ok(free)
    }

    pub(super) fn finish(mut self) -> Result<Snapshot, ReadError> {
        self.aggregate();
        let mut snapshot = Snapshot::new(Source::NcclXml);
        snapshot.gpus = self.finish_gpus()?;
        snapshot.nics = self.finish_nics();
        self.pci_devices.sort_by_key(|device| device.bus_id);
        snapshot.numa_nodes = self.numa_nodes.into_values().collect();
        snapshot.pci_devices = self.pci_devices;
        // Both ends may list one link.
        self.pci_links.sort_unstable();
        self.pci_links.dedup();
        snapshot.pci_links = self.pci_links;
        snapshot.faults = self.faults;
        Ok(snapshot)
    }

    /// One fault for each thing many devices lack.
    fn aggregate(&mut self) {
        let places = |list: &[(usize, BusId)]| {
            (list.first().map_or(0, |(line, _)| *line), names(list.iter().map(|(_, id)| *id)))
        };
        if !self.no_speed.is_empty() {
            let (line, who) = places(&self.no_speed);
            self.fault(line, format!("link_speed not told, unknown: {who}"));
        }
        if !self.no_width.is_empty() {
            let (line, who) = places(&self.no_width);
            self.fault(line, format!("link_width not told, unknown: {who}"));
        }
        if !self.classless.is_empty() {
            let who = names(self.classless.iter().copied());
            self.fault(0, format!("neither class nor device told, may be a GPU or a NIC: {who}"));
        }
        if !self.untagged.is_empty() {
            let who = names(self.untagged.iter().copied());
            self.fault(0, format!("no <gpu>, a GPU by its class; its links are unknown: {who}"));
        }
        if !self.unnamed.is_empty() {
            let who = names(self.unnamed.iter().copied());
            self.fault(
                0,
                format!("no <net>, a NIC by its class; its name and speed are unknown: {who}"),
            );
        }
    }

    fn finish_gpus(&mut self) -> Result<Vec<Gpu>, ReadError> {
        let mut pending = core::mem::take(&mut self.gpus);
        pending.sort_by_key(|pending| pending.gpu.bus_id);
        let refuse = |line, reason| ReadError { format: FORMAT, line, reason };
        let mut taken: BTreeMap<GpuIndex, usize> = BTreeMap::new();
        for gpu in &pending {
            let Some(dev) = gpu.dev else { continue };
            if let Some(other) = taken.insert(dev, gpu.line) {
                let (first, line) = (other.min(gpu.line), other.max(gpu.line));
                return Err(refuse(line, format!("dev {dev} is also the GPU at line {first}")));
            }
        }
        let mut free = (0..).map(GpuIndex).filter(|index| !taken.contains_key(index));
        let mut numbered = Vec::new();
        for gpu in &mut pending {
            gpu.gpu.index = match gpu.dev {
                Some(dev) => dev,
                None => {
                    let index = free.next().unwrap_or_default();
                    numbered.extend(gpu.gpu.bus_id.map(|id| format!("{id} as {index}")));
                    index
                }
            };
        }
        if !numbered.is_empty() {
            self.fault(0, format!("dev not told, numbered by PCI address: {}", some_of(&numbered)));
        }
        let gpus: BTreeSet<BusId> = pending.iter().filter_map(|gpu| gpu.gpu.bus_id).collect();
        let mut finished = Vec::with_capacity(pending.len());
        for PendingGpu { mut gpu, links, .. } in pending {
            let mut by_peer: BTreeMap<(GpuLinkKind, Order), (LinkPeer, u32)> = BTreeMap::new();
            for link in links {
                let Some(peer) = self.peer(&gpu, &link, &gpus).map_err(|e| refuse(link.line, e))?
                else {
                    continue;
                };
                let entry = by_peer.entry((link.kind, order(&peer))).or_insert((peer, 0));
                entry.1 = entry.1.saturating_add(link.count);
            }
            gpu.links = by_peer
                .into_iter()
                .map(|((kind, _), (peer, count))| GpuLinks { kind, peer, count, rate: None })
                .collect();
            finished.push(gpu);
        }
        finished.sort_by_key(|gpu| gpu.index);
        Ok(finished)
    }

    /// The other end of a link, by its class where stated, else by what the file says of the address. `None`
    /// for a link of a GPU to itself: published files have such, and NCCL makes nothing of them.
    fn peer(
        &mut self,
        gpu: &Gpu,
        link: &PendingLink,
        gpus: &BTreeSet<BusId>,
    ) -> Result<Option<LinkPeer>, String> {
        let class = link.target_class;
        let is_cpu = class == Some(CPU_BRIDGE_CLASS);
        let is_switch = !is_cpu && class.is_some_and(|class| class >> 8 == NVSWITCH_CLASS);
        let is_gpu = class.is_some_and(|class| matches!(class >> 16, 0x03 | 0x12));
        let target = match link.target {
            Target::Hidden if is_cpu => return Ok(Some(LinkPeer::Cpu(None))),
            Target::Hidden => return Ok(Some(LinkPeer::Switch(None))),
            Target::Device(target) => target,
        };
        if gpu.bus_id == Some(target) {
            self.fault(link.line, format!("link of {target} to itself, left out"));
            return Ok(None);
        }
        let listed = self.claimed.get(&target).map(|(line, kind)| (*line, *kind));
        match listed {
            Some(_) if gpus.contains(&target) => {
                if is_switch || is_cpu {
                    return Err(format!(
                        "target {target} is a GPU of this file, not what tclass says"
                    ));
                }
                Ok(Some(LinkPeer::Gpu(target)))
            }
            _ if is_cpu => Ok(Some(LinkPeer::Cpu(Some(target)))),
            _ if is_switch => Ok(Some(LinkPeer::Switch(Some(target)))),
            Some((_, PciKind::NvSwitch)) if class.is_none() => {
                Ok(Some(LinkPeer::Switch(Some(target))))
            }
            Some((line, _)) => Err(format!("target {target} (line {line}) is no GPU")),
            // A dump of a communicator over some of the GPUs keeps the links to the others.
            None if is_gpu => {
                let error = format!("link to {target}, a GPU that this file does not list");
                self.fault(link.line, error);
                Ok(Some(LinkPeer::Gpu(target)))
            }
            None => Err(format!(
                "target {target} is not in the file, and no tclass says what it is (0x068000 is an NVSwitch)"
            )),
        }
    }

    fn finish_nics(&mut self) -> Vec<Nic> {
        let mut nics = core::mem::take(&mut self.nics);
        // Those without a number last, by address; the sort keeps file order among equals.
        nics.sort_by_key(|(dev, nic)| {
            (dev.is_none(), *dev, if dev.is_none() { nic.bus_id } else { None })
        });
        for pair in nics.windows(2) {
            if let [(Some(a), first), (Some(b), second)] = pair
                && a == b
            {
                let error = format!("{} and {} both have dev {a}", first.name, second.name);
                self.faults.push(fault(0, error));
            }
        }
        nics.into_iter().map(|(_, nic)| nic).collect()
    }
}

/// GPUs first, by address, then switches and CPUs.
type Order = (u8, Option<BusId>);

fn order(peer: &LinkPeer) -> Order {
    match peer {
        LinkPeer::Gpu(id) => (0, Some(*id)),
        LinkPeer::Switch(id) => (1, *id),
        LinkPeer::Cpu(id) => (2, *id),
        LinkPeer::Unknown => (3, None),
    }
}

/// Addresses in a message; the first few where there are many.
fn names(ids: impl Iterator<Item = BusId>) -> String {
    some_of(&ids.map(|id| id.to_string()).collect::<Vec<_>>())
}
