//! `topoctl explain A B`: the path hop by hop, what limits it, and why it is no better.

use std::fmt::Write;

use serde::Serialize;
use topology::snapshot::PcieLink;
use topology::{BusId, Path, PathType, Topology, VertexId, explain};

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
    let explained = explain::path(topology, from, to);
    let name = |id: VertexId| topology.vertex(id).name.clone();
    let hops = explained.hops.iter().map(|hop| HopRow {
        from: name(hop.from),
        to: name(hop.to),
        kind: hop.kind.to_string(),
        links: hop.links,
        gbps: hop.bandwidth.gbps(),
        now: hop.trained.map(pcie),
        capable: hop.capable.map(pcie),
        bus_id: hop.bus_id,
    });
    Explanation {
        schema_version: 1,
        from: name(from),
        to: name(to),
        class: class(&explained.path),
        meaning: explained.path.class.meaning(),
        bottleneck_gbps: explained.path.bottleneck.gbps(),
        hops: hops.collect(),
        limiting_hop: explained.limiting_hop,
        common_ancestor: explained.common_ancestor.map(name),
        why_not_better: explained.why_not_better,
        what_if: None,
        assumptions: topology.assumptions().to_vec(),
    }
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
