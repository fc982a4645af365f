//! The table form: nvidia-smi's matrix, so that people can compare by eye, then what it does not say.

use std::collections::BTreeSet;
use std::fmt::Write;

use topology::{HostId, LinkKind, PathType, Topology, VertexId, VertexKind, dpu, health};

use super::document::{cpus_of, numa_node};

pub(super) fn render(topology: &Topology) -> String {
    let mut text = String::new();
    let several = topology.hosts().len() > 1;
    let mut classes = BTreeSet::new();
    for host in (0..).zip(topology.hosts()).map(|(host, _)| HostId(host)) {
        if several {
            let _ = writeln!(text, "Host {host}");
        }
        text.push_str(&matrix(topology, host, &mut classes));
        text.push('\n');
    }
    legend(&mut text, &classes);
    for host in (0..).zip(topology.hosts()).map(|(host, _)| HostId(host)) {
        nic_legend(&mut text, topology, host, several);
    }
    link_graph(&mut text, topology);
    notes(&mut text, topology);
    text
}

fn matrix(topology: &Topology, host: HostId, classes: &mut BTreeSet<PathType>) -> String {
    let matrix = topology.matrix(host);
    let devices = topology.matrix_devices(host);
    let mut rows = vec![
        std::iter::once(String::new()).chain(matrix.devices.iter().cloned()).collect::<Vec<_>>(),
    ];
    rows[0].extend(["CPU Affinity", "NUMA Affinity"].map(str::to_owned));
    for (name, cells) in matrix.devices.iter().zip(&matrix.cells) {
        classes.extend(cells.iter().flatten().map(|cell| cell.class));
        let mut row = vec![name.clone()];
        row.extend(
            cells.iter().map(|cell| cell.map_or_else(|| "?".into(), |cell| cell.to_string())),
        );
        let gpu = devices
            .iter()
            .find(|(device, id)| device == name && is_gpu(topology, *id))
            .map(|(_, id)| *id);
        if let Some(gpu) = gpu {
            let (cpus, numa) = affinity(topology, host, gpu);
            row.extend([cpus, numa]);
        }
        rows.push(row);
    }
    crate::output::table(&rows)
}

fn is_gpu(topology: &Topology, id: VertexId) -> bool {
    matches!(topology.vertex(id).kind, VertexKind::Gpu { .. })
}

fn affinity(topology: &Topology, host: HostId, gpu: VertexId) -> (String, String) {
    let VertexKind::Gpu { index } = topology.vertex(gpu).kind else {
        return (String::new(), String::new());
    };
    let facts = topology.hosts()[host.index()].gpus.iter().find(|facts| facts.index == index);
    let numa = facts.and_then(|facts| facts.numa_node).or_else(|| numa_node(topology, Some(gpu)));
    let cpus = facts.and_then(|facts| facts.cpus.clone()).or_else(|| cpus_of(topology, host, numa));
    let or_unknown =
        |text: Option<String>| text.filter(|t| !t.is_empty()).unwrap_or_else(|| "N/A".into());
    (or_unknown(cpus.map(|c| c.to_string())), or_unknown(numa.map(|n| n.to_string())))
}

fn legend(text: &mut String, classes: &BTreeSet<PathType>) {
    text.push_str("Legend:\n");
    for class in classes.iter().rev() {
        let word = match class {
            PathType::Loc => "X",
            PathType::Nvl => "NV#",
            other => other.as_str(),
        };
        let meaning = if *class == PathType::Nvl {
            "connected by # bonded NVLinks or xGMI links"
        } else {
            class.meaning()
        };
        let _ = writeln!(text, "  {word:4} = {meaning}");
    }
}

fn nic_legend(text: &mut String, topology: &Topology, host: HostId, several: bool) {
    let nics = &topology.hosts()[host.index()].nics;
    if nics.is_empty() {
        return;
    }
    let of = if several { format!(" of host {host}") } else { String::new() };
    let _ = writeln!(text, "\nNIC legend{of}:");
    for (index, nic) in nics.iter().enumerate() {
        let rate = nic.mbit.map(|mbit| format!(", {} Gbit/s", mbit / 1000)).unwrap_or_default();
        let state = if nic.up == Some(false) { ", down" } else { "" };
        let card = dpu::of_nic(&topology.hosts()[host.index()], nic);
        let card = card.map(|dpu| format!(", {}", dpu.summary())).unwrap_or_default();
        let _ = writeln!(text, "  NIC{index}: {}{rate}{state}{card}", nic.name);
    }
}

/// A link graph has no PCIe tree and so no classes worth a matrix; its links are listed.
fn link_graph(text: &mut String, topology: &Topology) {
    let graph = topology.graph();
    let links = graph.edge_indices().filter(|link| topology.link(*link).kind == LinkKind::Abstract);
    let rows: Vec<Vec<String>> = links
        .filter_map(|link| {
            let (from, to) = graph.edge_endpoints(link)?;
            let name = |id| topology.vertex(id).name.clone();
            Some(vec![
                format!("  {}", name(from)),
                "->".into(),
                name(to),
                topology.link(link).bandwidth.to_string(),
            ])
        })
        .collect();
    if !rows.is_empty() {
        text.push_str("\nLinks:\n");
        text.push_str(&crate::output::table(&rows));
    }
}

fn notes(text: &mut String, topology: &Topology) {
    let findings: Vec<_> = topology.hosts().iter().flat_map(health::examine).collect();
    if !findings.is_empty() {
        text.push_str("\nFindings:\n");
        for finding in findings {
            let _ = writeln!(
                text,
                "  {} {}: {}: {}",
                finding.severity, finding.code, finding.component, finding.evidence
            );
        }
    }
    let faults: Vec<_> = topology.hosts().iter().flat_map(|host| &host.faults).collect();
    if !faults.is_empty() {
        text.push_str("\nNot read:\n");
        for fault in faults {
            let _ = writeln!(text, "  {}: {}: {}", fault.probe, fault.place, fault.error);
        }
    }
    if !topology.assumptions().is_empty() {
        text.push_str("\nAssumed:\n");
        for assumption in topology.assumptions() {
            let _ = writeln!(text, "  {assumption}");
        }
    }
}
