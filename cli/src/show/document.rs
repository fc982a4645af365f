//! The JSON and YAML form.

use std::collections::BTreeMap;

use serde::Serialize;
use topology::dpu::{self, Dpu};
use topology::snapshot::{LinkLayer, NicRole};
use topology::{BusId, CpuList, Fault, Finding, HostId, Topology, VertexId, VertexKind, health};

#[derive(Debug, Serialize)]
pub(super) struct Document {
    schema_version: u32,
    source: &'static str,
    rates: &'static str,
    generation: u64,
    fingerprint: String,
    hosts: usize,
    gpus: Vec<GpuRow>,
    nics: Vec<NicRow>,
    /// Class by name and name; with several hosts `HOST:NAME`.
    paths: BTreeMap<String, BTreeMap<String, Option<String>>>,
    assumptions: Vec<String>,
    faults: Vec<Fault>,
    findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct GpuRow {
    host: u32,
    index: u32,
    uuid: Option<String>,
    bus_id: Option<BusId>,
    name: Option<String>,
    compute_capability: Option<u32>,
    numa: Option<u32>,
    cpus: Option<CpuList>,
}

#[derive(Debug, Serialize)]
struct NicRow {
    host: u32,
    /// As in the matrix: `NIC0`.
    label: String,
    name: String,
    bus_id: Option<BusId>,
    numa: Option<u32>,
    role: NicRole,
    port: Option<u32>,
    gbit: Option<f64>,
    link_layer: Option<LinkLayer>,
    up: Option<bool>,
    /// What is known of the computer on the card, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    dpu: Option<Dpu>,
}

impl Document {
    pub(super) fn new(topology: &Topology, generation: u64) -> Self {
        let hosts = topology.hosts();
        let mut document = Self {
            schema_version: 1,
            source: hosts.first().map_or("", |host| host.source.as_str()),
            rates: topology.rates().as_str(),
            generation,
            fingerprint: topology.fingerprint().to_owned(),
            hosts: hosts.len(),
            gpus: Vec::new(),
            nics: Vec::new(),
            paths: BTreeMap::new(),
            assumptions: topology.assumptions().to_vec(),
            faults: hosts.iter().flat_map(|host| host.faults.iter().cloned()).collect(),
            findings: hosts.iter().flat_map(health::examine).collect(),
        };
        for (host, snapshot) in (0..).zip(hosts) {
            let id = HostId(host);
            let prefix = if hosts.len() > 1 { format!("{host}:") } else { String::new() };
            let matrix = topology.matrix(id);
            for (row, cells) in matrix.devices.iter().zip(&matrix.cells) {
                let cells = matrix.devices.iter().zip(cells).map(|(column, cell)| {
                    (format!("{prefix}{column}"), cell.map(|c| c.to_string()))
                });
                document.paths.insert(format!("{prefix}{row}"), cells.collect());
            }
            let vertex_of = |wanted: &dyn Fn(&VertexKind) -> bool| {
                let of_host = |v: &&VertexId| {
                    topology.vertex(**v).host == Some(id) && wanted(&topology.vertex(**v).kind)
                };
                topology.gpus().iter().chain(topology.nics()).find(of_host).copied()
            };
            for gpu in &snapshot.gpus {
                let vertex = topology.gpu(id, gpu.index);
                let numa = gpu.numa_node.or_else(|| numa_node(topology, vertex));
                let cpus = gpu.cpus.clone().or_else(|| cpus_of(topology, id, numa));
                document.gpus.push(GpuRow {
                    host,
                    index: gpu.index.0,
                    uuid: gpu.uuid.clone(),
                    bus_id: gpu.bus_id,
                    name: gpu.name.clone(),
                    compute_capability: gpu.compute_capability,
                    numa,
                    cpus,
                });
            }
            for (index, nic) in (0_u32..).zip(&snapshot.nics) {
                let vertex =
                    vertex_of(&|kind| matches!(kind, VertexKind::Nic { index: i } if *i == index));
                document.nics.push(NicRow {
                    host,
                    label: format!("NIC{index}"),
                    name: nic.name.clone(),
                    bus_id: nic.bus_id,
                    numa: nic.numa_node.or_else(|| numa_node(topology, vertex)),
                    role: nic.role,
                    port: nic.port,
                    #[expect(
                        clippy::cast_precision_loss,
                        reason = "a NIC's rate is far below 2^53 Mbit/s"
                    )]
                    gbit: nic.mbit.map(|mbit| mbit as f64 / 1000.0),
                    link_layer: nic.link_layer,
                    up: nic.up,
                    dpu: dpu::of_nic(snapshot, nic),
                });
            }
        }
        document
    }
}

/// The node a device hangs below, unless the tree was only inferred from a matrix.
pub(super) fn numa_node(topology: &Topology, vertex: Option<VertexId>) -> Option<u32> {
    let vertex = vertex?;
    let host = topology.vertex(vertex).host?;
    if topology.hosts()[host.index()].matrix.is_some() {
        return None;
    }
    match topology.vertex(topology.numa_of(vertex)?).kind {
        VertexKind::NumaNode { id, .. } => id,
        _ => None,
    }
}

pub(super) fn cpus_of(topology: &Topology, host: HostId, numa: Option<u32>) -> Option<CpuList> {
    let snapshot = &topology.hosts()[host.index()];
    snapshot.numa_nodes.iter().find(|node| Some(node.id) == numa).and_then(|node| node.cpus.clone())
}
