//! The path between two devices, explained: hop by hop, what limits it, where it turns, and why it is no better.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::snapshot::{PciDevice, PcieLink};
use crate::{Bandwidth, BusId, Link, LinkKind, Path, PathType, Topology, VertexId, VertexKind};

/// A path with what makes it what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathExplained {
    /// First device.
    pub from: VertexId,
    /// Last device.
    pub to: VertexId,
    /// The path itself.
    pub path: Path,
    /// Its hops, in order.
    pub hops: Vec<HopExplained>,
    /// Place of the narrowest hop; the first of equal ones.
    pub limiting_hop: Option<usize>,
    /// Where the ways up from both devices meet; on a path of PCIe alone.
    pub common_ancestor: Option<VertexId>,
    /// In words.
    pub why_not_better: Vec<String>,
}

/// One hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopExplained {
    /// The vertex it leaves.
    pub from: VertexId,
    /// The vertex it enters.
    pub to: VertexId,
    /// Kind of link.
    pub kind: LinkKind,
    /// Parallel links.
    pub links: u32,
    /// All of them together.
    pub bandwidth: Bandwidth,
    /// PCIe only: the function whose link it is.
    pub bus_id: Option<BusId>,
    /// PCIe only: as trained.
    pub trained: Option<PcieLink>,
    /// PCIe only: what both ends can do.
    pub capable: Option<PcieLink>,
}

/// Explains the path from one device to another.
#[must_use]
pub fn path(topology: &Topology, from: VertexId, to: VertexId) -> PathExplained {
    let path = topology.path(from, to);
    let mut at = from;
    let mut hops = Vec::new();
    for hop in &path.hops {
        let link = topology.link(hop.link);
        let device = lower_end(topology, at, hop.to, link);
        hops.push(HopExplained {
            from: at,
            to: hop.to,
            kind: link.kind,
            links: link.count,
            bandwidth: link.bandwidth,
            bus_id: device.map(|device| device.bus_id),
            trained: device.and_then(|device| device.link.trained),
            capable: device.and_then(capable),
        });
        at = hop.to;
    }
    let limiting = path.limiting_hop(topology);
    PathExplained {
        from,
        to,
        limiting_hop: limiting.and_then(|hop| path.hops.iter().position(|other| *other == hop)),
        common_ancestor: common_ancestor(topology, from, &path),
        why_not_better: why_not_better(topology, from, to, &path),
        hops,
        path,
    }
}

/// The PCI function whose link this hop is: the one farther from the root.
fn lower_end<'a>(
    topology: &'a Topology,
    a: VertexId,
    b: VertexId,
    link: &Link,
) -> Option<&'a PciDevice> {
    if link.kind != LinkKind::Pcie {
        return None;
    }
    let depth =
        |id: VertexId| topology.numa_of(id).map_or(0, |numa| topology.path(id, numa).hops.len());
    let lower = if depth(a) >= depth(b) { a } else { b };
    let vertex = topology.vertex(lower);
    let snapshot = topology.hosts().get(vertex.host?.index())?;
    snapshot.pci_devices.iter().find(|device| Some(device.bus_id) == vertex.bus_id)
}

fn capable(device: &PciDevice) -> Option<PcieLink> {
    let ends = [device.link.device_capable, device.link.slot_capable];
    let least = |of: fn(&PcieLink) -> u32| ends.iter().flatten().map(of).filter(|v| *v > 0).min();
    Some(PcieLink {
        mtps: least(|l| l.mtps)?,
        width: u8::try_from(least(|l| u32::from(l.width))?).ok()?,
    })
}

/// The highest vertex of the way: the switch or NUMA node where both sides meet.
fn common_ancestor(topology: &Topology, from: VertexId, path: &Path) -> Option<VertexId> {
    let on_tree = path.hops.iter().all(|hop| topology.link(hop.link).kind == LinkKind::Pcie);
    if !on_tree || path.hops.is_empty() {
        return None;
    }
    let height =
        |id: &VertexId| topology.numa_of(*id).map_or(0, |numa| topology.path(*id, numa).hops.len());
    core::iter::once(from).chain(path.hops.iter().map(|hop| hop.to)).min_by_key(height)
}

fn why_not_better(topology: &Topology, from: VertexId, to: VertexId, path: &Path) -> Vec<String> {
    let mut reasons = Vec::new();
    if path.class <= PathType::Nvl {
        return reasons;
    }
    let name = |id: VertexId| topology.vertex(id).name.as_str();
    let gpus =
        [from, to].iter().all(|id| matches!(topology.vertex(*id).kind, VertexKind::Gpu { .. }));
    if gpus {
        let peers = |id: VertexId| -> Vec<VertexId> {
            let links = topology.links_from(id).into_iter();
            links
                .filter(|(link, _)| {
                    matches!(topology.link(*link).kind, LinkKind::NvLink | LinkKind::Xgmi)
                })
                .map(|(_, peer)| peer)
                .collect()
        };
        for id in [from, to] {
            let peers = peers(id);
            let list: Vec<&str> = peers.iter().map(|peer| name(*peer)).collect();
            reasons.push(if list.is_empty() {
                format!("{} has no NVLink or xGMI", name(id))
            } else {
                format!("the NVLinks of {} go to {}", name(id), list.join(", "))
            });
        }
        let rate = |a, b| {
            let nvlinks = topology
                .links_between(a, b)
                .into_iter()
                .filter(|l| matches!(topology.link(*l).kind, LinkKind::NvLink | LinkKind::Xgmi));
            nvlinks.map(|l| topology.link(l).bandwidth).sum::<Bandwidth>()
        };
        let relays = peers(from)
            .into_iter()
            .filter(|relay| matches!(topology.vertex(*relay).kind, VertexKind::Gpu { .. }));
        let best = relays
            .map(|relay| (rate(from, relay).min(rate(relay, to)), relay))
            .filter(|(rate, _)| !rate.is_zero());
        if let Some((rate, relay)) = best.max_by_key(|(rate, relay)| (*rate, Reverse(*relay))) {
            reasons.push(format!(
                "NVLink through {} would carry {rate} (NVB); a plan's rings and trees go that way",
                name(relay)
            ));
        }
    }
    let node = |id| topology.numa_of(id).map(name);
    match path.class {
        PathType::Sys => {
            if let (Some(a), Some(b)) = (node(from), node(to)) {
                reasons.push(format!("{} is on {a}, {} on {b}", name(from), name(to)));
            }
        }
        PathType::Node => {
            reasons.push("they are below different host bridges of one NUMA node".into())
        }
        PathType::Phb => reasons.push("they share a host bridge, but no PCIe switch".into()),
        PathType::Pxb => reasons.push("they share a PCIe switch, but not the nearest one".into()),
        PathType::Net => reasons.push("they are on different hosts".into()),
        PathType::Dis => reasons.push("no link of any kind joins them".into()),
        _ => {}
    }
    reasons
}
