//! The clean graph of one or several hosts: what is connected to what, at which rate.
//!
//! ```text
//!   GPU0 ══ NVLink ══ GPU1          GPU0 ═╗         ╔═ GPU1
//!     │                 │                 nvs0 (NVSwitch)
//!   0000:01:00.0 (PCIe switch) ── mlx5_0 ── fabric
//!     │
//!   numa0 ──── socket link ──── numa1
//! ```
//!
//! A [`Topology`] is made once, by [`lower`](crate::lower), and never changed. Vertices are sorted, so
//! equal facts give equal graphs in whatever order they were found, and the fingerprint tells them apart.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use petgraph::Direction;
use petgraph::graph::{DiGraph, EdgeIndex, NodeIndex};
use petgraph::visit::EdgeRef;
use serde::{Deserialize, Serialize};

use crate::{Bandwidth, BusId, CpuModel, GpuIndex, HostId, Snapshot, UnknownName};

/// A vertex of a [`Topology`].
pub type VertexId = NodeIndex<u32>;
/// A directed link of a [`Topology`].
pub type LinkId = EdgeIndex<u32>;

/// Something data passes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vertex {
    /// Unique in the topology: `GPU0`, `nvs0`, a PCIe switch's address, a NIC's name, `numa0`, `fabric`; a link
    /// graph's own names. With several hosts prefixed `HOST:`.
    pub name: String,
    /// Its host; the fabric belongs to none.
    pub host: Option<HostId>,
    /// What it is.
    pub kind: VertexKind,
    /// PCI address where it has one.
    pub bus_id: Option<BusId>,
}

/// What a vertex is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VertexKind {
    /// A GPU: the only kind that holds data of a collective.
    Gpu {
        /// NVML index, or place in a link graph.
        index: GpuIndex,
    },
    /// The NVSwitches of a host, or one plane of them.
    NvSwitch,
    /// A PCIe switch.
    PcieSwitch,
    /// A NUMA node with its host bridges.
    NumaNode {
        /// The kernel's number; `None` for devices whose node is unknown.
        id: Option<u32>,
        /// The processor.
        cpu: CpuModel,
    },
    /// A NIC with several ports, which share its PCIe link.
    NicCard,
    /// A NIC port.
    Nic {
        /// Place in the host's list: `NIC0` is 0.
        index: u32,
    },
    /// A network that all its NICs meet in.
    Fabric,
    /// A switch of a link graph.
    Switch,
}

/// A directed link, or several equal ones in parallel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Technology.
    pub kind: LinkKind,
    /// Of all parallel links together, this direction.
    pub bandwidth: Bandwidth,
    /// Parallel links.
    pub count: u32,
    /// Host bridge at the upper end of a PCIe link to a NUMA node, where known: two of them on one node make a path `Node`.
    pub host_bridge: Option<String>,
}

/// Technology of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkKind {
    /// NVLink.
    NvLink,
    /// xGMI between GPUs.
    Xgmi,
    /// Chip to chip, CPU to GPU.
    C2c,
    /// PCIe.
    Pcie,
    /// Between NUMA nodes.
    Socket,
    /// NIC to fabric.
    Net,
    /// An edge of a link graph.
    Abstract,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NvLink => "NVLink",
            Self::Xgmi => "xGMI",
            Self::C2c => "C2C",
            Self::Pcie => "PCIe",
            Self::Socket => "socket link",
            Self::Net => "network",
            Self::Abstract => "link",
        })
    }
}

/// Whose link rates a topology carries.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum RateModel {
    /// What NCCL's model expects a link to carry.
    #[default]
    Effective,
    /// Wire rates.
    Nominal,
    /// Effective rates with the corrections measurements brought.
    Measured,
}

impl RateModel {
    /// The word on command lines and in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Effective => "effective",
            Self::Nominal => "nominal",
            Self::Measured => "measured",
        }
    }
}

impl fmt::Display for RateModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for RateModel {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        [Self::Effective, Self::Nominal, Self::Measured]
            .into_iter()
            .find(|model| model.as_str() == text)
            .ok_or_else(|| UnknownName {
                what: "rate model",
                text: text.into(),
                known: "effective, nominal, measured".into(),
            })
    }
}

/// One or several hosts as one graph. Immutable; see the module's documentation.
#[derive(Clone, Debug)]
pub struct Topology {
    pub(crate) graph: DiGraph<Vertex, Link, u32>,
    pub(crate) hosts: Vec<Snapshot>,
    pub(crate) rates: RateModel,
    pub(crate) assumptions: Vec<String>,
    pub(crate) changes: Vec<String>,
    pub(crate) gpus: Vec<VertexId>,
    pub(crate) nics: Vec<VertexId>,
    pub(crate) by_name: BTreeMap<String, VertexId>,
    pub(crate) fingerprint: String,
}

impl Topology {
    /// The facts of each host, by [`HostId`].
    #[must_use]
    pub fn hosts(&self) -> &[Snapshot] {
        &self.hosts
    }

    /// Whose rates the links carry.
    #[must_use]
    pub fn rates(&self) -> RateModel {
        self.rates
    }

    /// Defaults taken where the facts did not tell; sorted, each once.
    #[must_use]
    pub fn assumptions(&self) -> &[String] {
        &self.assumptions
    }

    /// Changes made in thought, in order, as [`what_if`](crate::what_if) takes them; empty for a machine as it is.
    #[must_use]
    pub fn changes(&self) -> &[String] {
        &self.changes
    }

    /// GPUs by host, then index.
    #[must_use]
    pub fn gpus(&self) -> &[VertexId] {
        &self.gpus
    }

    /// NICs by host, then place in the host's list.
    #[must_use]
    pub fn nics(&self) -> &[VertexId] {
        &self.nics
    }

    /// SHA-256 over vertices and links (not over facts that do not matter for planning), hexadecimal.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The graph, for algorithms of petgraph.
    #[must_use]
    pub fn graph(&self) -> &DiGraph<Vertex, Link, u32> {
        &self.graph
    }

    /// A vertex.
    #[must_use]
    pub fn vertex(&self, id: VertexId) -> &Vertex {
        &self.graph[id]
    }

    /// A link.
    #[must_use]
    pub fn link(&self, id: LinkId) -> &Link {
        &self.graph[id]
    }

    /// The GPU of a host with that index.
    #[must_use]
    pub fn gpu(&self, host: HostId, index: GpuIndex) -> Option<VertexId> {
        let key = |id: &VertexId| match self.graph[*id] {
            Vertex { host: Some(host), kind: VertexKind::Gpu { index }, .. } => Some((host, index)),
            _ => None,
        };
        let place = self.gpus.binary_search_by_key(&Some((host, index)), key).ok()?;
        self.gpus.get(place).copied()
    }

    /// The vertex of that exact name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<VertexId> {
        self.by_name.get(name).copied()
    }

    /// The vertex a person means by `name`: its exact name, `GPU3`, `NIC1` (place in the list), or a PCI address in any spelling.
    #[must_use]
    pub fn find_device(&self, name: &str) -> Option<VertexId> {
        let (host, local) = match name.split_once(':') {
            Some((host, local)) if self.hosts.len() > 1 => (HostId(host.parse().ok()?), local),
            _ => (HostId(0), name),
        };
        let number = |prefix: &str| {
            local
                .get(..3)
                .filter(|p| p.eq_ignore_ascii_case(prefix))
                .and_then(|_| local[3..].parse::<u32>().ok())
        };
        let of_host = |id: &&VertexId| self.graph[**id].host == Some(host);
        self.find(name)
            .or_else(|| self.gpu(host, GpuIndex(number("GPU")?)))
            .or_else(|| {
                let wanted = number("NIC")?;
                self.nics.iter().filter(of_host).find(|id| matches!(self.graph[**id].kind, VertexKind::Nic { index } if index == wanted)).copied()
            })
            .or_else(|| {
                let wanted: BusId = local.parse().ok()?;
                self.graph.node_indices().find(|id| self.graph[*id].host == Some(host) && self.graph[*id].bus_id == Some(wanted))
            })
    }

    /// Links that leave `id`: link, far end; by far end, then link.
    #[must_use]
    pub fn links_from(&self, id: VertexId) -> Vec<(LinkId, VertexId)> {
        let mut links: Vec<_> = self
            .graph
            .edges_directed(id, Direction::Outgoing)
            .map(|e| (e.id(), e.target()))
            .collect();
        links.sort_unstable_by_key(|(link, to)| (*to, *link));
        links
    }

    /// Links from one vertex to another; usually one.
    #[must_use]
    pub fn links_between(&self, from: VertexId, to: VertexId) -> Vec<LinkId> {
        let mut links: Vec<_> = self.graph.edges_connecting(from, to).map(|e| e.id()).collect();
        links.sort_unstable();
        links
    }
}
