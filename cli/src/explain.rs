//! `topoctl explain A B`: the path hop by hop, what limits it, and why it is no better.

use std::fmt::Write;

use serde::Serialize;
use topology::snapshot::{PciDevice, PcieLink};
use topology::{BusId, Link, LinkKind, Path, PathType, Topology, VertexId, VertexKind};

use crate::args::{ExplainArgs, TextFormat};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::source;

#[derive(Debug, Serialize)]
struct Explanation {
    schema_version: u32,
    from: String,
    to: String,
    class: String,
    meaning: &'static str,
    bottleneck_gbps: f64,
    hops: Vec<HopRow>,
    /// Index of the hop that limits; the first of equal ones.
    limiting_hop: Option<usize>,
    /// Where the ways up from both devices meet.
    common_ancestor: Option<String>,
    why_not_better: Vec<String>,
    /// With changes made in thought: the same path on the machine as it is; `None` where an end of it is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    what_if: Option<WhatIf>,
    assumptions: Vec<String>,
}

#[derive(Debug, Serialize)]
struct WhatIf {
    changes: Vec<String>,
    before: Option<Before>,
}

#[derive(Debug, Serialize)]
struct Before {
    class: String,
    bottleneck_gbps: f64,
    /// Names, from end to end.
    way: Vec<String>,
}

#[derive(Debug, Serialize)]
struct HopRow {
    from: String,
    to: String,
    kind: String,
    links: u32,
    gbps: f64,
    /// PCIe only: as trained now, and what both ends can do.
    now: Option<String>,
    capable: Option<String>,
    bus_id: Option<BusId>,
}

pub(crate) fn run(args: &ExplainArgs) -> Result<Exit, Failure> {
    let origin = source::load(&args.source)?;
    let changes = &args.what_if.what_if;
    let changed = if changes.is_empty() { None } else { Some(origin.changed(changes)?) };
    let topology = changed.as_ref().map_or(&origin.topology, |changed| &changed.topology);
    let [from, to] = [&args.a, &args.b].map(|name| {
        topology.find_device(name).ok_or_else(|| {
            let known: Vec<&str> =
                topology.graph().node_weights().map(|v| v.name.as_str()).collect();
            Failure::usage(format!("there is no device '{name}'; there are {}", known.join(", ")))
        })
    });
    let mut explanation = explain(topology, from?, to?);
    if changed.is_some() {
        let ends = [&args.a, &args.b].map(|name| origin.topology.find_device(name));
        let before = match ends {
            [Some(from), Some(to)] => Some(before(&origin.topology, from, to)),
            _ => None,
        };
        explanation.what_if = Some(WhatIf { changes: changes.clone(), before });
    }
    match args.output {
        TextFormat::Json => output::print_json(&explanation)?,
        TextFormat::Table => output::print(&render(&explanation))?,
    }
    Ok(if explanation.class == PathType::Dis.as_str() { Exit::NoPlan } else { Exit::Ok })
}

fn before(topology: &Topology, from: VertexId, to: VertexId) -> Before {
    let path = topology.path(from, to);
    let vertices = std::iter::once(from).chain(path.hops.iter().map(|hop| hop.to));
    Before {
        class: class(&path),
        bottleneck_gbps: path.bottleneck.gbps(),
        way: vertices.map(|id| topology.vertex(id).name.clone()).collect(),
    }
}

fn class(path: &Path) -> String {
    if path.class == PathType::Nvl { format!("NV{}", path.links) } else { path.class.to_string() }
}

fn explain(topology: &Topology, from: VertexId, to: VertexId) -> Explanation {
    let path = topology.path(from, to);
    let name = |id: VertexId| topology.vertex(id).name.clone();
    let mut at = from;
    let mut hops = Vec::new();
    for hop in &path.hops {
        let link = topology.link(hop.link);
        let device = lower_end(topology, at, hop.to, link);
        hops.push(HopRow {
            from: name(at),
            to: name(hop.to),
            kind: link.kind.to_string(),
            links: link.count,
            gbps: link.bandwidth.gbps(),
            now: device.and_then(|d| d.link.trained).map(pcie),
            capable: device.and_then(capable).map(pcie),
            bus_id: device.map(|d| d.bus_id),
        });
        at = hop.to;
    }
    let limiting = path.limiting_hop(topology);
    Explanation {
        schema_version: 1,
        from: name(from),
        to: name(to),
        class: class(&path),
        meaning: path.class.meaning(),
        bottleneck_gbps: path.bottleneck.gbps(),
        limiting_hop: limiting.and_then(|hop| path.hops.iter().position(|other| *other == hop)),
        common_ancestor: common_ancestor(topology, from, &path).map(name),
        why_not_better: why_not_better(topology, from, to, &path),
        hops,
        what_if: None,
        assumptions: topology.assumptions().to_vec(),
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

fn pcie(link: PcieLink) -> String {
    let generation = match link.mtps {
        64_000.. => "Gen6",
        32_000.. => "Gen5",
        16_000.. => "Gen4",
        8_000.. => "Gen3",
        5_000.. => "Gen2",
        _ => "Gen1",
    };
    format!("{generation} x{}", link.width)
}

/// The highest vertex of the way: the switch or NUMA node where both sides meet.
fn common_ancestor(topology: &Topology, from: VertexId, path: &Path) -> Option<VertexId> {
    let on_tree = path.hops.iter().all(|hop| topology.link(hop.link).kind == LinkKind::Pcie);
    if !on_tree || path.hops.is_empty() {
        return None;
    }
    let height =
        |id: &VertexId| topology.numa_of(*id).map_or(0, |numa| topology.path(*id, numa).hops.len());
    std::iter::once(from).chain(path.hops.iter().map(|hop| hop.to)).min_by_key(height)
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
            nvlinks.map(|l| topology.link(l).bandwidth).sum::<topology::Bandwidth>()
        };
        let relays = peers(from)
            .into_iter()
            .filter(|relay| matches!(topology.vertex(*relay).kind, VertexKind::Gpu { .. }));
        let best = relays
            .map(|relay| (rate(from, relay).min(rate(relay, to)), relay))
            .filter(|(rate, _)| !rate.is_zero());
        if let Some((rate, relay)) =
            best.max_by_key(|(rate, relay)| (*rate, std::cmp::Reverse(*relay)))
        {
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

fn render(explanation: &Explanation) -> String {
    let mut text = format!(
        "{} to {}: {}, {} GB/s\n  {}\n",
        explanation.from,
        explanation.to,
        explanation.class,
        explanation.bottleneck_gbps,
        explanation.meaning
    );
    if let Some(what_if) = &explanation.what_if {
        let _ = writeln!(text, "What if: {}", what_if.changes.join(", "));
        let _ = match &what_if.before {
            Some(before) => writeln!(
                text,
                "As it is: {}, {} GB/s: {}",
                before.class,
                before.bottleneck_gbps,
                before.way.join(" - ")
            ),
            None => writeln!(text, "As it is: one of the two is not there"),
        };
    }
    if !explanation.hops.is_empty() {
        let or_unknown = |text: &Option<String>, kind: &str| {
            text.clone().unwrap_or_else(|| if kind == "PCIe" { "?".into() } else { String::new() })
        };
        let mut rows =
            vec![["", "FROM", "TO", "LINK", "NOW", "CAPABLE", "GB/s"].map(str::to_owned).to_vec()];
        for (index, hop) in explanation.hops.iter().enumerate() {
            let mark = if explanation.limiting_hop == Some(index) { "*" } else { "" };
            let kind = if hop.links > 1 {
                format!("{}x {}", hop.links, hop.kind)
            } else {
                hop.kind.clone()
            };
            rows.push(vec![
                mark.to_owned(),
                hop.from.clone(),
                hop.to.clone(),
                kind,
                or_unknown(&hop.now, &hop.kind),
                or_unknown(&hop.capable, &hop.kind),
                hop.gbps.to_string(),
            ]);
        }
        text.push('\n');
        text.push_str(&output::table(&rows));
        text.push_str("\n* the first hop with the least bandwidth\n");
    }
    if let Some(ancestor) = &explanation.common_ancestor {
        let _ = writeln!(text, "Common ancestor: {ancestor}");
    }
    if !explanation.why_not_better.is_empty() {
        text.push_str("Why not better:\n");
        for reason in &explanation.why_not_better {
            let _ = writeln!(text, "  {reason}");
        }
    }
    if !explanation.assumptions.is_empty() {
        text.push_str("Assumed:\n");
        for assumption in &explanation.assumptions {
            let _ = writeln!(text, "  {assumption}");
        }
    }
    text
}
