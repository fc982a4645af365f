//! Graphviz: one cluster per host, links of both directions drawn once.

use std::fmt::Write;

use topology::{HostId, Link, LinkKind, Topology, VertexId, VertexKind};

pub(super) fn render(topology: &Topology) -> String {
    let mut text = String::from(
        "graph topology {\n  graph [rankdir=TB, splines=true, nodesep=0.4, ranksep=0.9, fontname=\"sans-serif\"]\n  node [fontname=\"sans-serif\", fontsize=11, style=filled]\n  edge [fontname=\"sans-serif\", fontsize=9]\n",
    );
    for host in (0..).zip(topology.hosts()).map(|(host, _)| HostId(host)) {
        let _ = writeln!(
            text,
            "  subgraph cluster_host{host} {{\n    label=\"host {host}\"; color=gray70"
        );
        for id in
            topology.graph().node_indices().filter(|id| topology.vertex(*id).host == Some(host))
        {
            let _ = writeln!(text, "    {}", vertex(topology, id));
        }
        text.push_str("  }\n");
    }
    for id in topology.graph().node_indices().filter(|id| topology.vertex(*id).host.is_none()) {
        let _ = writeln!(text, "  {}", vertex(topology, id));
    }
    for (a, b, label, link) in edges(topology) {
        let (color, width, constraint) = match link.kind {
            LinkKind::NvLink | LinkKind::Xgmi => {
                ("#5b9a00", 2.0 + f64::from(link.count.min(18)) / 6.0, "false")
            }
            LinkKind::C2c => ("#00897b", 2.0, "false"),
            LinkKind::Socket => ("#c62828", 2.0, "false"),
            LinkKind::Net => ("#1565c0", 1.5, "true"),
            LinkKind::Pcie | LinkKind::Abstract => ("gray40", 1.2, "true"),
        };
        let _ = writeln!(
            text,
            "  \"{}\" -- \"{}\" [label=\"{label}\", color=\"{color}\", penwidth={width:.1}, constraint={constraint}]",
            escape(&topology.vertex(a).name),
            escape(&topology.vertex(b).name)
        );
    }
    text.push_str("}\n");
    text
}

fn vertex(topology: &Topology, id: VertexId) -> String {
    let vertex = topology.vertex(id);
    let (shape, color) = match vertex.kind {
        VertexKind::Gpu { .. } => ("box", "#c5e1a5"),
        VertexKind::NvSwitch | VertexKind::Switch => ("hexagon", "#dcedc8"),
        VertexKind::PcieSwitch | VertexKind::NicCard => ("ellipse", "#eeeeee"),
        VertexKind::NumaNode { .. } => ("box3d", "#ffe0b2"),
        VertexKind::Nic { .. } => ("box", "#bbdefb"),
        VertexKind::Fabric => ("egg", "#e3f2fd"),
    };
    format!("\"{}\" [shape={shape}, fillcolor=\"{color}\"]", escape(&vertex.name))
}

/// Every connected pair once; where the directions differ the label has both rates.
pub(super) fn edges(topology: &Topology) -> Vec<(VertexId, VertexId, String, &Link)> {
    let graph = topology.graph();
    let mut edges = Vec::new();
    for id in graph.edge_indices() {
        let Some((from, to)) = graph.edge_endpoints(id) else { continue };
        let link = topology.link(id);
        let back = topology
            .links_between(to, from)
            .into_iter()
            .map(|back| topology.link(back))
            .find(|back| back.kind == link.kind);
        // The lower vertex draws the pair; a one-way link is drawn by its sender.
        if from > to && back.is_some() {
            continue;
        }
        let count = if link.count > 1 { format!("{}x ", link.count) } else { String::new() };
        let rate = link.bandwidth.display_gbps();
        let label = match back {
            Some(back) if back.bandwidth == link.bandwidth => format!("{count}{rate}"),
            Some(back) => format!("{rate} / {}", back.bandwidth.display_gbps()),
            None => format!("{count}{rate} one way"),
        };
        edges.push((from, to, label, link));
    }
    edges
}

fn escape(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"")
}
