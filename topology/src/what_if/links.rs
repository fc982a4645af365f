//! Changes of the links between two devices.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::names::{Ends, links_of, name};
use super::words::Amount;
use super::{Draft, kind_between, pcie_depth};
use crate::{Bandwidth, Link, LinkId, LinkKind, Topology, VertexId, rates};

/// Takes away every link in the directions meant, or `count` of the parallel ones.
pub(super) fn remove(topology: &Topology, ends: Ends, count: Option<u32>) -> Result<Draft, String> {
    let mut draft = Draft::of(topology);
    let mut gone = false;
    for (from, to) in ends.directions() {
        let between = |from_at: usize, to_at: usize| (from_at, to_at) == (from.index(), to.index());
        let Some(count) = count else {
            let before = draft.links.len();
            draft.links.retain(|(a, b, _)| !between(*a, *b));
            gone |= draft.links.len() < before;
            continue;
        };
        let Some(kind) = fastest(topology, from, to) else { continue };
        for (a, b, link) in &mut draft.links {
            if between(*a, *b) && link.kind == kind {
                if link.count < count || (kind == LinkKind::Pcie && count > 1) {
                    return Err(format!(
                        "{} has {} {kind} to {}, not {count}",
                        name(topology, from),
                        link.count,
                        name(topology, to)
                    ));
                }
                *link = scaled(link, link.count - count);
                gone = true;
            }
        }
    }
    if gone { Ok(draft) } else { Err(no_link(topology, ends)) }
}

/// Gives the fastest links in the directions meant another count or rate.
pub(super) fn set(topology: &Topology, ends: Ends, amount: Amount) -> Result<Draft, String> {
    let mut draft = Draft::of(topology);
    let mut found = false;
    for (from, to) in ends.directions() {
        let Some(id) = fastest_link(topology, from, to) else { continue };
        draft.links[id.index()].2 = changed(topology, id, amount)?;
        found = true;
    }
    if found { Ok(draft) } else { Err(no_link(topology, ends)) }
}

/// As [`set`], refused where nothing becomes slower or something faster.
pub(super) fn slow(topology: &Topology, ends: Ends, amount: Amount) -> Result<Draft, String> {
    let draft = set(topology, ends, amount)?;
    for (from, to) in ends.directions() {
        let Some(id) = fastest_link(topology, from, to) else { continue };
        let (now, then) = (topology.link(id).bandwidth, draft.links[id.index()].2.bandwidth);
        if then >= now {
            return Err(format!(
                "{} to {} carries {now} now, so {then} would not be slower",
                name(topology, from),
                name(topology, to)
            ));
        }
    }
    Ok(draft)
}

/// Adds links like those there, or one of a given rate.
pub(super) fn add(
    topology: &Topology,
    ends: Ends,
    amount: Option<Amount>,
) -> Result<Draft, String> {
    let (a, b) = (topology.vertex(ends.a), topology.vertex(ends.b));
    if let (Some(host), Some(other)) = (a.host, b.host)
        && host != other
    {
        return Err(format!(
            "{} is on host {host}, {} on host {other}: only the network joins hosts",
            a.name, b.name
        ));
    }
    let mut draft = Draft::of(topology);
    for (from, to) in ends.directions() {
        let there = fastest(topology, from, to).or_else(|| fastest(topology, to, from));
        let Some(kind) = there.or_else(|| kind_between(topology, &a.kind, &b.kind)) else {
            return Err(format!(
                "no link can join {} and {}; the links of {} are {}",
                a.name,
                b.name,
                a.name,
                links_of(topology, ends.a)
            ));
        };
        let (count, bandwidth) = match amount {
            Some(Amount::Rate(rate)) => (1, rate),
            more => {
                let count = if let Some(Amount::Count(count)) = more { count } else { 1 };
                let one = like(topology, from, to, kind).ok_or_else(|| {
                    format!(
                        "how fast it is cannot be told from other {kind}s: say 'add {}-{} 25GB/s'",
                        a.name, b.name
                    )
                })?;
                (count, one * u64::from(count))
            }
        };
        let link = Link { kind, bandwidth, count, host_bridge: None };
        draft.links.push((from.index(), to.index(), link));
    }
    Ok(draft)
}

/// The rate of one link of that kind: of those there, else the least of those that end at either device, else of all.
fn like(topology: &Topology, from: VertexId, to: VertexId, kind: LinkKind) -> Option<Bandwidth> {
    let graph = topology.graph();
    let one = |id: LinkId| {
        let link = topology.link(id);
        Bandwidth::from_kbps(link.bandwidth.kbps() / u64::from(link.count.max(1)))
    };
    let of_kind: Vec<(LinkId, (VertexId, VertexId))> = graph
        .edge_indices()
        .filter(|id| topology.link(*id).kind == kind)
        .filter_map(|id| Some((id, graph.edge_endpoints(id)?)))
        .collect();
    let least = |wanted: &dyn Fn(VertexId, VertexId) -> bool| {
        let fitting = of_kind.iter().filter(|(_, (a, b))| wanted(*a, *b));
        fitting.map(|(id, _)| one(*id)).min()
    };
    least(&|a, b| (a, b) == (from, to) || (a, b) == (to, from))
        .or_else(|| least(&|a, b| [a, b].iter().any(|end| *end == from || *end == to)))
        .or_else(|| least(&|_, _| true))
}

/// The link with another count or rate.
pub(super) fn changed(topology: &Topology, id: LinkId, amount: Amount) -> Result<Link, String> {
    let link = topology.link(id);
    match amount {
        Amount::Rate(bandwidth) => Ok(Link { bandwidth, ..link.clone() }),
        Amount::Count(lanes) if link.kind == LinkKind::Pcie => {
            Ok(Link { bandwidth: lanes_of(topology, id, lanes)?, ..link.clone() })
        }
        Amount::Count(count) => Ok(scaled(link, count)),
    }
}

/// What so many PCIe lanes carry at the rate the device is known to have.
fn lanes_of(topology: &Topology, id: LinkId, lanes: u32) -> Result<Bandwidth, String> {
    let width = u8::try_from(lanes)
        .ok()
        .filter(|lanes| [1, 2, 4, 8, 12, 16, 32].contains(lanes))
        .ok_or_else(|| format!("x{lanes} is no width that PCIe has"))?;
    let unknown = || String::from("how fast a lane of it is was not recorded: give a rate");
    let (from, to) = topology.graph().edge_endpoints(id).ok_or_else(unknown)?;
    let deeper = |id: &VertexId| pcie_depth(topology, *id);
    let lower = [from, to].into_iter().max_by_key(deeper).ok_or_else(unknown)?;
    let vertex = topology.vertex(lower);
    let facts = vertex.host.and_then(|host| topology.hosts().get(host.index()));
    let device = facts.and_then(|facts| {
        facts.pci_devices.iter().find(|device| Some(device.bus_id) == vertex.bus_id)
    });
    let (mtps, _) = device.map(|device| device.link.usable()).unwrap_or_default();
    Ok(rates::pcie(Some(mtps.ok_or_else(unknown)?), Some(width), topology.rates()).bandwidth)
}

/// So many of the parallel links, each as fast as now; none of them is no link, which lowering drops.
fn scaled(link: &Link, count: u32) -> Link {
    let kbps =
        u128::from(link.bandwidth.kbps()) * u128::from(count) / u128::from(link.count.max(1));
    let bandwidth = Bandwidth::from_kbps(u64::try_from(kbps).unwrap_or(u64::MAX));
    Link { bandwidth, count, ..link.clone() }
}

/// The best technology of the links from one device to another.
fn fastest(topology: &Topology, from: VertexId, to: VertexId) -> Option<LinkKind> {
    fastest_link(topology, from, to).map(|id| topology.link(id).kind)
}

fn fastest_link(topology: &Topology, from: VertexId, to: VertexId) -> Option<LinkId> {
    let links = topology.links_between(from, to).into_iter();
    links.min_by_key(|id| topology.link(*id).kind)
}

fn no_link(topology: &Topology, ends: Ends) -> String {
    let path = topology.path(ends.a, ends.b);
    let (a, b) = (name(topology, ends.a), name(topology, ends.b));
    let mut way = String::new();
    if path.hops.len() > 1 {
        way = format!(" directly; the way is {a}");
        for hop in &path.hops {
            way = format!("{way} - {}", name(topology, hop.to));
        }
    }
    format!("no link joins {a} and {b}{way}; the links of {a} are {}", links_of(topology, ends.a))
}
