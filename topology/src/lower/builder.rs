//! Collects vertices and links in any order; makes the sorted, fingerprinted graph.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use petgraph::graph::DiGraph;
use sha2::{Digest, Sha256};

use super::LowerError;
use super::network::Wiring;
use crate::rates::{self, Rate};
use crate::snapshot::{Nic, PcieLinkFacts};
use crate::{
    Bandwidth, BusId, CpuModel, HostId, Link, LinkKind, RateModel, Snapshot, Topology, Vertex,
    VertexId, VertexKind,
};

/// Place of a vertex while building.
pub(crate) type Place = usize;

#[derive(Debug)]
pub(super) struct Builder<'a> {
    pub(super) rates: RateModel,
    several_hosts: bool,
    pub(super) vertices: Vec<Vertex>,
    links: Vec<(Place, Place, Link)>,
    pub(super) by_name: BTreeMap<String, Place>,
    pub(super) assumptions: BTreeSet<String>,
    pub(super) wiring: Option<Wiring<'a>>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(rates: RateModel, several_hosts: bool, wiring: Option<Wiring<'a>>) -> Self {
        Self {
            rates,
            several_hosts,
            wiring,
            vertices: Vec::new(),
            links: Vec::new(),
            by_name: BTreeMap::new(),
            assumptions: BTreeSet::new(),
        }
    }

    /// A new vertex; refused where the host has one of that name.
    pub(super) fn add(
        &mut self,
        host: Option<HostId>,
        name: &str,
        kind: VertexKind,
        bus_id: Option<BusId>,
    ) -> Result<Place, String> {
        let name = match host {
            Some(host) if self.several_hosts => format!("{host}:{name}"),
            _ => name.into(),
        };
        let place = self.vertices.len();
        if self.by_name.insert(name.clone(), place).is_some() {
            return Err(format!("two devices are named {name}"));
        }
        self.vertices.push(Vertex { name, host, kind, bus_id });
        Ok(place)
    }

    /// One direction.
    pub(super) fn link(&mut self, from: Place, to: Place, link: Link) {
        self.links.push((from, to, link));
    }

    /// Both directions alike.
    pub(super) fn link_both(&mut self, a: Place, b: Place, kind: LinkKind, bandwidth: Bandwidth) {
        let link = Link { kind, bandwidth, count: 1, host_bridge: None };
        self.links.push((a, b, link.clone()));
        self.links.push((b, a, link));
    }

    pub(super) fn assume(&mut self, host: HostId, what: &str) {
        self.assumptions.insert(if self.several_hosts {
            format!("host {host}: {what}")
        } else {
            what.into()
        });
    }

    /// The bandwidth of a rate; its assumption, if any, noted for `of`.
    pub(super) fn take(&mut self, host: HostId, of: &str, rate: Rate) -> Bandwidth {
        if let Some(what) = rate.assumed {
            self.assume(host, &format!("{of}: {what} assumed"));
        }
        rate.bandwidth
    }

    /// A PCIe link between a device and what is above it.
    pub(super) fn pcie(
        &mut self,
        host: HostId,
        below: (Place, &str),
        above: Place,
        facts: &PcieLinkFacts,
        host_bridge: Option<String>,
    ) {
        let rate = match (facts.usable(), facts.trained_total) {
            ((None, None), Some(total)) => rates::pcie_total(total, self.rates),
            ((mtps, width), _) => rates::pcie(mtps, width, self.rates),
        };
        let bandwidth = self.take(host, below.1, rate);
        let link = Link { kind: LinkKind::Pcie, bandwidth, count: 1, host_bridge };
        self.links.push((below.0, above, link.clone()));
        self.links.push((above, below.0, link));
    }

    /// Links between every two NUMA nodes of a host, each pair at the lesser rate of its ends.
    pub(super) fn sockets(&mut self, host: HostId, nodes: &[(Place, CpuModel)]) {
        for (i, (a, cpu_a)) in nodes.iter().enumerate() {
            for (b, cpu_b) in &nodes[i + 1..] {
                let of = "link between NUMA nodes";
                let rate_a = self.take(host, of, rates::socket(cpu_a, self.rates));
                let rate_b = self.take(host, of, rates::socket(cpu_b, self.rates));
                self.link_both(*a, *b, LinkKind::Socket, rate_a.min(rate_b));
            }
        }
    }

    /// A NIC port with its way to the fabric; the caller links it to its host.
    pub(super) fn nic(&mut self, host: HostId, index: usize, nic: &Nic) -> Result<Place, String> {
        let number = u32::try_from(index).map_err(|_| String::from("too many NICs"))?;
        // Two ports of one device have one name; the port tells them apart.
        let name = match nic.port {
            Some(port) if port != 1 && self.has(host, &nic.name) => format!("{}:{port}", nic.name),
            _ => nic.name.clone(),
        };
        let place = self.add(Some(host), &name, VertexKind::Nic { index: number }, nic.bus_id)?;
        if nic.up == Some(false) {
            self.assume(host, &format!("{name}: port is down, no way to the network"));
            return Ok(place);
        }
        let Some((fabric, there)) = self.meeting_point(host, index)? else { return Ok(place) };
        let mbit = match (nic.mbit, there) {
            (Some(here), Some(there)) if here != there => {
                self.assume(host, &format!(
                    "{name}: {here} Mbit/s by the host and {there} by the network's file, the lesser taken"
                ));
                Some(here.min(there))
            }
            (here, there) => here.or(there),
        };
        let bandwidth = self.take(host, &name, rates::nic(mbit));
        self.link_both(place, fabric, LinkKind::Net, bandwidth);
        Ok(place)
    }

    fn has(&self, host: HostId, name: &str) -> bool {
        if self.several_hosts {
            self.by_name.contains_key(&format!("{host}:{name}"))
        } else {
            self.by_name.contains_key(name)
        }
    }

    /// The topology, in its final order.
    pub(super) fn finish(mut self, hosts: &[Snapshot]) -> Result<Topology, LowerError> {
        self.join_leaves().map_err(|reason| LowerError { host: 0, reason })?;
        Ok(Topology::assemble(
            sorted(self.vertices, self.links),
            hosts.to_vec(),
            self.rates,
            self.assumptions.into_iter().collect(),
        ))
    }
}

/// The graph with its vertices in their final order, and parallel links of one kind merged.
pub(crate) fn sorted(
    vertices: Vec<Vertex>,
    links: Vec<(Place, Place, Link)>,
) -> DiGraph<Vertex, Link, u32> {
    let mut order: Vec<Place> = (0..vertices.len()).collect();
    order.sort_by(|a, b| sort_key(&vertices[*a]).cmp(&sort_key(&vertices[*b])));
    let mut new_place = alloc::vec![0_usize; order.len()];
    for (new, old) in order.iter().enumerate() {
        new_place[*old] = new;
    }
    let mut graph = DiGraph::with_capacity(vertices.len(), links.len());
    let mut vertices: Vec<Option<Vertex>> = vertices.into_iter().map(Some).collect();
    for old in &order {
        if let Some(vertex) = vertices[*old].take() {
            graph.add_node(vertex);
        }
    }
    let mut merged: BTreeMap<(usize, usize, LinkKind), Link> = BTreeMap::new();
    for (from, to, link) in links {
        if link.bandwidth.is_zero() || from == to {
            continue;
        }
        let key = (new_place[from], new_place[to], link.kind);
        if let Some(known) = merged.get_mut(&key) {
            known.bandwidth = known.bandwidth + link.bandwidth;
            known.count += link.count;
        } else {
            merged.insert(key, link);
        }
    }
    for ((from, to, _), link) in merged {
        graph.add_edge(VertexId::new(from), VertexId::new(to), link);
    }
    graph
}

/// Order of vertices: by host (the fabric last), then kind, then number, address, name.
fn sort_key(vertex: &Vertex) -> (u64, u8, u64, Option<BusId>, &str) {
    let (kind, number) = match &vertex.kind {
        VertexKind::Gpu { index } => (0, u64::from(index.0)),
        VertexKind::NvSwitch => (1, 0),
        VertexKind::Switch => (2, 0),
        VertexKind::PcieSwitch => (3, 0),
        VertexKind::NumaNode { id, .. } => (4, id.map_or(u64::MAX, u64::from)),
        VertexKind::NicCard => (5, 0),
        VertexKind::Nic { index } => (6, u64::from(*index)),
        VertexKind::Fabric => (7, 0),
    };
    (vertex.host.map_or(u64::MAX, |h| u64::from(h.0)), kind, number, vertex.bus_id, &vertex.name)
}

/// SHA-256 over the graph as text, hexadecimal.
pub(super) fn fingerprint(graph: &DiGraph<Vertex, Link, u32>) -> String {
    let mut text = String::new();
    for vertex in graph.node_weights() {
        let kind = match &vertex.kind {
            VertexKind::Gpu { .. } => "gpu",
            VertexKind::NvSwitch => "nvswitch",
            VertexKind::Switch => "switch",
            VertexKind::PcieSwitch => "pcie",
            VertexKind::NumaNode { .. } => "numa",
            VertexKind::NicCard => "card",
            VertexKind::Nic { .. } => "nic",
            VertexKind::Fabric => "fabric",
        };
        // Writing to a String cannot fail.
        let _ =
            writeln!(text, "v {} {kind} {:?}", vertex.name, vertex.bus_id.map(|id| id.to_string()));
    }
    for edge in graph.raw_edges() {
        let link = &edge.weight;
        let _ = writeln!(
            text,
            "l {} {} {} {} {}",
            edge.source().index(),
            edge.target().index(),
            link.kind,
            link.count,
            link.bandwidth.kbps()
        );
    }
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

impl Topology {
    /// A topology over a graph whose vertices are in their final order.
    pub(crate) fn assemble(
        graph: DiGraph<Vertex, Link, u32>,
        hosts: Vec<Snapshot>,
        rates: RateModel,
        assumptions: Vec<String>,
    ) -> Self {
        let of_kind = |wanted: fn(&VertexKind) -> bool| {
            graph.node_indices().filter(|id| wanted(&graph[*id].kind)).collect()
        };
        Self {
            gpus: of_kind(|kind| matches!(kind, VertexKind::Gpu { .. })),
            nics: of_kind(|kind| matches!(kind, VertexKind::Nic { .. })),
            by_name: graph.node_indices().map(|id| (graph[id].name.clone(), id)).collect(),
            fingerprint: fingerprint(&graph),
            graph,
            hosts,
            rates,
            assumptions,
            changes: Vec::new(),
        }
    }
}
