//! Lowering of hosts whose devices and PCIe tree are known.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::builder::{Builder, Place};
use crate::rates;
use crate::snapshot::{GpuLinks, LinkPeer, NumaNode, PciDevice, PciKind, PcieLinkFacts};
use crate::{Bandwidth, BusId, CpuModel, Gpu, HostId, Link, LinkKind, Snapshot, VertexKind};

/// Deeper trees are loops or nonsense; PCIe itself allows 256 buses.
const MOST_LEVELS: usize = 256;

struct Host<'a> {
    id: HostId,
    pci: BTreeMap<BusId, &'a PciDevice>,
    numa: BTreeMap<Option<u32>, Place>,
    numa_nodes: BTreeMap<u32, &'a NumaNode>,
    switches: BTreeMap<BusId, Place>,
}

/// What is above a device: a vertex, and the host bridge on the way where it is a NUMA node.
struct Above {
    place: Place,
    host_bridge: Option<String>,
}

pub(super) fn lower(
    builder: &mut Builder<'_>,
    id: HostId,
    snapshot: &Snapshot,
) -> Result<(), String> {
    let mut pci = BTreeMap::new();
    for device in &snapshot.pci_devices {
        if pci.insert(device.bus_id, device).is_some() {
            return Err(format!("PCI function {} is listed twice", device.bus_id));
        }
    }
    let numa_nodes = snapshot.numa_nodes.iter().map(|n| (n.id, n)).collect();
    let mut host = Host { id, pci, numa: BTreeMap::new(), numa_nodes, switches: BTreeMap::new() };
    for node in &snapshot.numa_nodes {
        host.numa_vertex(builder, Some(node.id))?;
    }
    let gpus = add_gpus(builder, &mut host, &snapshot.gpus)?;
    add_nics(builder, &mut host, snapshot)?;
    add_gpu_links(builder, &mut host, &snapshot.gpus, &gpus)?;
    let nodes: Vec<(Place, CpuModel)> =
        host.numa.iter().map(|(node, place)| (*place, host.cpu(*node))).collect();
    builder.sockets(id, &nodes);
    Ok(())
}

fn add_gpus(
    builder: &mut Builder<'_>,
    host: &mut Host<'_>,
    gpus: &[Gpu],
) -> Result<Vec<Place>, String> {
    let mut places = Vec::with_capacity(gpus.len());
    for gpu in gpus {
        let name = format!("GPU{}", gpu.index);
        let place =
            builder.add(Some(host.id), &name, VertexKind::Gpu { index: gpu.index }, gpu.bus_id)?;
        let device = gpu.bus_id.and_then(|id| host.pci.get(&id).copied());
        let facts = device.map(|d| d.link).unwrap_or_default();
        let above = host.above(builder, device, gpu.numa_node, &name)?;
        builder.pcie(host.id, (place, &name), above.place, &facts, above.host_bridge);
        places.push(place);
    }
    Ok(places)
}

/// NIC ports. Ports of one card share its PCIe link, so a card with several gets a vertex of its own.
fn add_nics(
    builder: &mut Builder<'_>,
    host: &mut Host<'_>,
    snapshot: &Snapshot,
) -> Result<(), String> {
    let card_of = |id: BusId| (id.domain(), id.bus(), id.device());
    let mut ports_of_card: BTreeMap<_, usize> = BTreeMap::new();
    for id in snapshot.nics.iter().filter_map(|n| n.bus_id) {
        *ports_of_card.entry(card_of(id)).or_default() += 1;
    }
    let mut cards: BTreeMap<(u32, u8, u8), Place> = BTreeMap::new();
    for (index, nic) in snapshot.nics.iter().enumerate() {
        let place = builder.nic(host.id, index, nic)?;
        let device = nic.bus_id.and_then(|id| host.pci.get(&id).copied());
        let Some(bus_id) = nic.bus_id else {
            // No PCI function: a virtual interface, as fast as it says towards its CPU.
            let above = host.above(builder, None, nic.numa_node, &nic.name)?;
            let bandwidth = builder.take(host.id, &nic.name, rates::nic(nic.mbit));
            builder.link_both(place, above.place, LinkKind::Pcie, bandwidth);
            continue;
        };
        let facts = device.map(|d| d.link).unwrap_or_default();
        if ports_of_card[&card_of(bus_id)] == 1 {
            let above = host.above(builder, device, nic.numa_node, &nic.name)?;
            builder.pcie(host.id, (place, &nic.name), above.place, &facts, above.host_bridge);
            continue;
        }
        let card = match cards.get(&card_of(bus_id)) {
            Some(card) => *card,
            None => {
                // A port that nobody named bears its address.
                let unnamed = snapshot.nics.iter().any(|nic| nic.name == bus_id.to_string());
                let name = if unnamed { format!("{bus_id} card") } else { bus_id.to_string() };
                let card = builder.add(Some(host.id), &name, VertexKind::NicCard, Some(bus_id))?;
                let above = host.above(builder, device, nic.numa_node, &name)?;
                builder.pcie(host.id, (card, &name), above.place, &facts, above.host_bridge);
                cards.insert(card_of(bus_id), card);
                card
            }
        };
        let bandwidth = builder.take(host.id, &nic.name, rates::nic(nic.mbit));
        builder.link_both(place, card, LinkKind::Pcie, bandwidth);
    }
    Ok(())
}

fn add_gpu_links(
    builder: &mut Builder<'_>,
    host: &mut Host<'_>,
    gpus: &[Gpu],
    places: &[Place],
) -> Result<(), String> {
    let by_bus_id: BTreeMap<BusId, Place> =
        gpus.iter().zip(places).filter_map(|(gpu, place)| Some((gpu.bus_id?, *place))).collect();
    let mut nvswitch = None;
    for (gpu, place) in gpus.iter().zip(places) {
        for links in &gpu.links {
            let bandwidth = links_rate(builder, host.id, gpu, links);
            let kind = match links.kind {
                crate::snapshot::GpuLinkKind::NvLink => LinkKind::NvLink,
                crate::snapshot::GpuLinkKind::Xgmi => LinkKind::Xgmi,
            };
            let link = Link { kind, bandwidth, count: links.count, host_bridge: None };
            match &links.peer {
                // Directed: the peer lists its own side.
                LinkPeer::Gpu(peer) => match by_bus_id.get(peer) {
                    Some(peer) => builder.link(*place, *peer, link),
                    None => builder.assume(
                        host.id,
                        &format!(
                            "GPU{}: links to {peer}, which is no GPU of this host, left out",
                            gpu.index
                        ),
                    ),
                },
                LinkPeer::Switch(_) => {
                    let switch = match nvswitch {
                        Some(switch) => switch,
                        None => *nvswitch.insert(builder.add(
                            Some(host.id),
                            "nvs0",
                            VertexKind::NvSwitch,
                            None,
                        )?),
                    };
                    builder.link(*place, switch, link.clone());
                    builder.link(switch, *place, link);
                }
                LinkPeer::Cpu(_) => {
                    let device = gpu.bus_id.and_then(|id| host.pci.get(&id).copied());
                    let node = host.numa_of(device, gpu.numa_node);
                    let numa = host.numa_vertex(builder, node)?;
                    builder.link(*place, numa, link.clone());
                    builder.link(numa, *place, link);
                }
                LinkPeer::Unknown => builder.assume(
                    host.id,
                    &format!(
                        "GPU{}: {} links to an unknown device left out",
                        gpu.index, links.count
                    ),
                ),
            }
        }
        if let Some(c2c) = gpu.c2c {
            let device = gpu.bus_id.and_then(|id| host.pci.get(&id).copied());
            let node = host.numa_of(device, gpu.numa_node);
            let numa = host.numa_vertex(builder, node)?;
            let link = Link {
                kind: LinkKind::C2c,
                bandwidth: c2c.rate * u64::from(c2c.count),
                count: c2c.count,
                host_bridge: None,
            };
            builder.link(*place, numa, link.clone());
            builder.link(numa, *place, link);
        }
    }
    Ok(())
}

fn links_rate(builder: &mut Builder<'_>, host: HostId, gpu: &Gpu, links: &GpuLinks) -> Bandwidth {
    let rate = rates::gpu_link(links.kind, gpu.into(), links.rate, builder.rates);
    builder.take(host, "GPU links", rate) * u64::from(links.count)
}

impl<'a> Host<'a> {
    fn cpu(&self, node: Option<u32>) -> CpuModel {
        let of = |node: &NumaNode| node.cpu.clone();
        node.and_then(|id| self.numa_nodes.get(&id).copied().map(of))
            // Devices of unknown place sit on the host's own kind of processor.
            .or_else(|| self.numa_nodes.values().next().copied().map(of))
            .unwrap_or_default()
    }

    fn numa_vertex(
        &mut self,
        builder: &mut Builder<'_>,
        node: Option<u32>,
    ) -> Result<Place, String> {
        if let Some(place) = self.numa.get(&node) {
            return Ok(*place);
        }
        let name = node.map_or_else(|| "numa-unknown".into(), |id| format!("numa{id}"));
        let place = builder.add(
            Some(self.id),
            &name,
            VertexKind::NumaNode { id: node, cpu: self.cpu(node) },
            None,
        )?;
        self.numa.insert(node, place);
        Ok(place)
    }

    /// The NUMA node a device hangs below: its own word, else its nearest ancestor's, else the host's only node.
    fn numa_of(&self, device: Option<&'a PciDevice>, stated: Option<u32>) -> Option<u32> {
        let mut ancestor = device;
        let mut levels = 0;
        while let Some(at) = ancestor.filter(|_| levels < MOST_LEVELS) {
            if at.parent.is_none() || at.numa_node.is_some() {
                if let Some(node) = at.numa_node {
                    return Some(node);
                }
                break;
            }
            ancestor = at.parent.and_then(|p| self.pci.get(&p).copied());
            levels += 1;
        }
        let only = || {
            (self.numa_nodes.len() == 1).then(|| self.numa_nodes.keys().next().copied()).flatten()
        };
        stated.or_else(only)
    }

    /// The vertex above a device, with every switch on the way made.
    fn above(
        &mut self,
        builder: &mut Builder<'_>,
        device: Option<&'a PciDevice>,
        stated_node: Option<u32>,
        name: &str,
    ) -> Result<Above, String> {
        let Some(device) = device else {
            let node = self.numa_of(None, stated_node);
            if node.is_none() {
                builder.assume(
                    self.id,
                    &format!("{name}: NUMA node unknown, taken as remote from every other"),
                );
            } else if stated_node.is_none() {
                builder.assume(
                    self.id,
                    &format!("{name}: NUMA node not told, the host's only one assumed"),
                );
            }
            return Ok(Above { place: self.numa_vertex(builder, node)?, host_bridge: None });
        };
        let mut at = device;
        for _ in 0..MOST_LEVELS {
            let Some(parent) = at.parent else {
                let node = self.numa_of(Some(device), stated_node);
                if node.is_none() {
                    builder.assume(
                        self.id,
                        &format!("{name}: NUMA node unknown, taken as remote from every other"),
                    );
                }
                return Ok(Above {
                    place: self.numa_vertex(builder, node)?,
                    host_bridge: at.host_bridge.clone(),
                });
            };
            let parent = *self.pci.get(&parent).ok_or_else(|| {
                format!("PCI function {} is below {parent}, which is not listed", at.bus_id)
            })?;
            if parent.kind == PciKind::Switch {
                return Ok(Above {
                    place: self.switch(builder, parent, stated_node)?,
                    host_bridge: None,
                });
            }
            at = parent;
        }
        Err(format!("PCI function {} has more than {MOST_LEVELS} bridges above it", device.bus_id))
    }

    fn switch(
        &mut self,
        builder: &mut Builder<'_>,
        device: &'a PciDevice,
        stated_node: Option<u32>,
    ) -> Result<Place, String> {
        // Iterative up the tree, so that a hostile input cannot exhaust the stack.
        let mut chain = Vec::new();
        let mut at = Some(device);
        while let Some(switch) = at {
            if self.switches.contains_key(&switch.bus_id) {
                break;
            }
            if chain.len() > MOST_LEVELS {
                return Err(format!(
                    "PCI function {} has more than {MOST_LEVELS} bridges above it",
                    device.bus_id
                ));
            }
            chain.push(switch);
            at = self.next_switch(switch)?;
        }
        for switch in chain.iter().rev() {
            let name = switch.bus_id.to_string();
            let place =
                builder.add(Some(self.id), &name, VertexKind::PcieSwitch, Some(switch.bus_id))?;
            // Its own parent switch, if any, has been made by now, so this does not come back here.
            let above = match self.next_switch(switch)? {
                Some(next) => Above { place: self.switches[&next.bus_id], host_bridge: None },
                None => self.above(builder, Some(*switch), stated_node, &name)?,
            };
            let facts: PcieLinkFacts = switch.link;
            builder.pcie(self.id, (place, &name), above.place, &facts, above.host_bridge);
            self.switches.insert(switch.bus_id, place);
        }
        self.switches
            .get(&device.bus_id)
            .copied()
            .ok_or_else(|| format!("PCI switch {} is below itself", device.bus_id))
    }

    /// The nearest switch above a function, ports and root ports passed over.
    fn next_switch(&self, device: &PciDevice) -> Result<Option<&'a PciDevice>, String> {
        let mut at = device.parent;
        for _ in 0..MOST_LEVELS {
            let Some(id) = at else { return Ok(None) };
            let parent = *self.pci.get(&id).ok_or_else(|| {
                format!("PCI function {} is below {id}, which is not listed", device.bus_id)
            })?;
            if parent.kind == PciKind::Switch {
                return Ok(Some(parent));
            }
            at = parent.parent;
        }
        Err(format!("PCI function {} has more than {MOST_LEVELS} bridges above it", device.bus_id))
    }
}
