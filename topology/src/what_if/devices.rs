//! Changes of whole devices.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::links::changed;
use super::names::{links_of, name};
use super::words::{Amount, NewKind};
use super::{Draft, kind_between, pcie_depth};
use crate::{Bandwidth, GpuIndex, HostId, Link, LinkKind, Topology, Vertex, VertexId, VertexKind};

/// Takes away a device with its links. What hangs below it stays, without the way up.
pub(super) fn remove(topology: &Topology, device: VertexId) -> Draft {
    let mut draft = Draft::of(topology);
    draft.vertices[device.index()] = None;
    draft
}

/// Lets no link of a device carry more than an amount.
pub(super) fn slow(topology: &Topology, device: VertexId, amount: Amount) -> Result<Draft, String> {
    let mut draft = Draft::of(topology);
    let mut slower = false;
    for id in topology.graph().edge_indices() {
        let ends = topology.graph().edge_endpoints(id);
        if !ends.is_some_and(|(from, to)| from == device || to == device) {
            continue;
        }
        let link = topology.link(id);
        if matches!(amount, Amount::Count(_)) && link.kind == LinkKind::Net {
            continue;
        }
        let then = changed(topology, id, amount)?;
        if then.bandwidth < link.bandwidth {
            draft.links[id.index()].2 = then;
            slower = true;
        }
    }
    if slower {
        return Ok(draft);
    }
    let rates = topology
        .links_from(device)
        .into_iter()
        .map(|(link, to)| format!("{} to {}", topology.link(link).bandwidth, name(topology, to)));
    let rates: Vec<String> = rates.collect();
    Err(format!(
        "no link of {} becomes slower; it has {}",
        name(topology, device),
        if rates.is_empty() { "none".into() } else { rates.join(", ") }
    ))
}

/// A new GPU or NIC on `to`.
pub(super) fn add(
    topology: &Topology,
    kind: NewKind,
    new: &str,
    to: VertexId,
    rate: Option<Bandwidth>,
) -> Result<Draft, String> {
    let parent = topology.vertex(to);
    let host = parent.host.ok_or_else(|| {
        format!("{} belongs to no host: name a switch or NUMA node of one", parent.name)
    })?;
    let several = topology.hosts().len() > 1;
    let full = if several { format!("{host}:{new}") } else { new.to_owned() };
    if topology.find(&full).is_some() || topology.find_device(&full).is_some() {
        return Err(format!("there is a device '{full}' already"));
    }
    // A device taken away leaves its facts; a new one must not be taken for it.
    let facts = topology.hosts().get(host.index());
    let facts = facts.map_or((0, 0), |facts| (facts.gpus.len(), facts.nics.len()));
    let vertex_kind = match kind {
        NewKind::Gpu => {
            VertexKind::Gpu { index: GpuIndex(next(topology, host, facts.0, gpu_index)) }
        }
        NewKind::Nic => VertexKind::Nic { index: next(topology, host, facts.1, nic_index) },
    };
    let link_kind = match (kind, &parent.kind) {
        (
            NewKind::Nic,
            VertexKind::PcieSwitch | VertexKind::NumaNode { .. } | VertexKind::NicCard,
        )
        | (
            NewKind::Gpu,
            VertexKind::PcieSwitch
            | VertexKind::NumaNode { .. }
            | VertexKind::NvSwitch
            | VertexKind::Switch,
        ) => kind_between(topology, &vertex_kind, &parent.kind),
        _ => None,
    };
    let Some(link_kind) = link_kind else {
        return Err(format!(
            "nothing new hangs on {}; PCIe switches and NUMA nodes are {}",
            parent.name,
            parents(topology)
        ));
    };
    let mut draft = Draft::of(topology);
    let sibling = sibling(topology, host, to, &vertex_kind);
    // As the sibling is joined with the same parent, else as it is joined with any.
    let rate_of = |sibling: VertexId, kind: LinkKind| {
        let there = topology.links_between(sibling, to).into_iter();
        let back = topology.links_between(to, sibling).into_iter();
        let any = topology.links_from(sibling).into_iter().map(|(id, _)| id);
        let mut links = there.chain(back).chain(any).map(|id| topology.link(id));
        links.find(|link| link.kind == kind).cloned()
    };
    let link = |kind: LinkKind| -> Result<Link, String> {
        if let Some(bandwidth) = rate {
            return Ok(Link { kind, bandwidth, count: 1, host_bridge: None });
        }
        let like = sibling.and_then(|sibling| rate_of(sibling, kind));
        let like = like.ok_or_else(|| {
            format!(
                "there is none like it to tell how fast it is: say 'add ... {new} to {} 25GB/s'",
                parent.name
            )
        })?;
        Ok(Link { host_bridge: None, ..like })
    };
    let place =
        draft.add_vertex(Vertex { name: full, host: Some(host), kind: vertex_kind, bus_id: None });
    draft.add_both(place, to.index(), &link(link_kind)?);
    if kind == NewKind::Nic {
        let is_fabric = |id: &VertexId| topology.vertex(*id).kind == VertexKind::Fabric;
        // At the switch of the NIC that it is like.
        let of_sibling = sibling.into_iter().flat_map(|sibling| topology.links_from(sibling));
        let fabric = of_sibling.map(|(_, to)| to).chain(topology.graph().node_indices());
        let fabric = match fabric.into_iter().find(is_fabric) {
            Some(fabric) => fabric.index(),
            None => draft.add_vertex(Vertex {
                name: "fabric".into(),
                host: None,
                kind: VertexKind::Fabric,
                bus_id: None,
            }),
        };
        draft.add_both(place, fabric, &link(LinkKind::Net)?);
    }
    Ok(draft)
}

fn gpu_index(kind: &VertexKind) -> Option<u32> {
    if let VertexKind::Gpu { index } = kind { Some(index.0) } else { None }
}

fn nic_index(kind: &VertexKind) -> Option<u32> {
    if let VertexKind::Nic { index } = kind { Some(*index) } else { None }
}

/// The first number after those of the host's devices and of `known` facts.
fn next(
    topology: &Topology,
    host: HostId,
    known: usize,
    index: fn(&VertexKind) -> Option<u32>,
) -> u32 {
    let used = topology
        .graph()
        .node_weights()
        .filter(|vertex| vertex.host == Some(host))
        .filter_map(|vertex| index(&vertex.kind));
    used.map(|number| number.saturating_add(1)).chain(u32::try_from(known).ok()).max().unwrap_or(0)
}

/// A device of the same kind to be like: on the same parent where there is one, else the host's first.
fn sibling(
    topology: &Topology,
    host: HostId,
    parent: VertexId,
    kind: &VertexKind,
) -> Option<VertexId> {
    let like = |id: &VertexId| {
        let other = topology.vertex(*id);
        other.host == Some(host)
            && core::mem::discriminant(&other.kind) == core::mem::discriminant(kind)
    };
    let beside = topology.links_from(parent).into_iter().map(|(_, id)| id).find(like);
    beside.or_else(|| topology.graph().node_indices().find(like))
}

/// Hangs a device below another PCIe switch or NUMA node of its host.
pub(super) fn relocate(
    topology: &Topology,
    device: VertexId,
    parent: VertexId,
) -> Result<Draft, String> {
    let (what, to) = (topology.vertex(device), topology.vertex(parent));
    if !matches!(to.kind, VertexKind::PcieSwitch | VertexKind::NumaNode { .. }) {
        return Err(format!(
            "{} is no place for a device; PCIe switches and NUMA nodes are {}",
            to.name,
            parents(topology)
        ));
    }
    if what.host != to.host || what.host.is_none() {
        return Err(format!("{} and {} are not of one host", what.name, to.name));
    }
    let depth = pcie_depth(topology, device);
    let upward = topology.links_from(device).into_iter().find(|(link, above)| {
        topology.link(*link).kind == LinkKind::Pcie
            && depth.is_some()
            && pcie_depth(topology, *above) < depth
    });
    let Some((link, above)) = upward else {
        return Err(format!(
            "{} hangs below nothing; its links are {}",
            what.name,
            links_of(topology, device)
        ));
    };
    if above == parent {
        return Err(format!("{} is below {} already", what.name, to.name));
    }
    let mut draft = Draft::of(topology);
    let ends = (device.index(), above.index());
    draft.links.retain(|(a, b, link)| {
        link.kind != LinkKind::Pcie || ((*a, *b) != ends && (*b, *a) != ends)
    });
    let same = Link { host_bridge: None, ..topology.link(link).clone() };
    draft.add_both(device.index(), parent.index(), &same);
    if below_itself(&draft, topology, device, parent) {
        return Err(format!("{} is below {} itself", to.name, what.name));
    }
    Ok(draft)
}

/// Whether, without the new link, the parent still hangs below the device.
fn below_itself(draft: &Draft, topology: &Topology, device: VertexId, parent: VertexId) -> bool {
    let mut seen = Vec::from([parent.index()]);
    let mut front = seen.clone();
    while let Some(here) = front.pop() {
        for (from, to, link) in &draft.links {
            let new = [*from, *to] == [parent.index(), device.index()];
            if *from == here && link.kind == LinkKind::Pcie && !new && !seen.contains(to) {
                seen.push(*to);
                front.push(*to);
            }
        }
    }
    let numa = |place: &usize| {
        matches!(topology.vertex(VertexId::new(*place)).kind, VertexKind::NumaNode { .. })
    };
    seen.contains(&device.index()) || !seen.iter().any(numa)
}

fn parents(topology: &Topology) -> String {
    let names: Vec<&str> = topology
        .graph()
        .node_weights()
        .filter(|v| matches!(v.kind, VertexKind::PcieSwitch | VertexKind::NumaNode { .. }))
        .map(|v| v.name.as_str())
        .collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}
