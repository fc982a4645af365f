//! What was read of one host, before any judgement.
//!
//! A snapshot holds facts, each optional, and a [`Fault`] for each fact that could not be read. It is
//! the one thing probes and format readers make, the one thing recorded, and the one thing
//! [`lower`](crate::lower) takes; so every later stage can be replayed from a file.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::cpu_list::CpuList;
use crate::matrix::Matrix;
use crate::{Bandwidth, BusId, GpuIndex, Rail};

mod access;
mod fabric;
mod fault;
mod host;
mod port;

pub use access::{Acs, IommuDomain, IommuGroup, PeerAccess, PeerStatus};
pub use fabric::{FabricCondition, FabricHealth, FabricState, GpuFabric};
pub use fault::{Fault, FaultKind};
pub use host::{CpuTopology, GpuDirectFacts, HostFacts, HostIdentity, Imex, ProcessLimits};
pub use port::{Bond, BondMember, Gid, GidKind, GidScope, PortCounters};

/// Version of the JSON form. Readers refuse a newer one by name; fields are only ever added within one.
pub const SCHEMA_VERSION: u32 = 1;

/// Facts of one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// [`SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Where the facts come from.
    pub source: Source,
    /// The host as a whole.
    #[serde(default)]
    pub host: HostFacts,
    /// By id.
    #[serde(default)]
    pub numa_nodes: Vec<NumaNode>,
    /// Every PCI function on the way from a GPU or NIC to its host bridge, and those devices themselves; by address.
    #[serde(default)]
    pub pci_devices: Vec<PciDevice>,
    /// Direct links between PCIe switches neither of which is above the other, the lesser address first; by address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pci_links: Vec<(BusId, BusId)>,
    /// By index.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// In the source's order.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// Path classes the source states without saying how they come about (`nvidia-smi topo -m`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<Matrix>,
    /// A bare graph of rates; then no other device list is filled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_graph: Option<LinkGraph>,
    /// What could not be read.
    #[serde(default)]
    pub faults: Vec<Fault>,
}

/// Kind of input a snapshot was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Probed on the host itself, or from a recorded device tree by the same code.
    Live,
    /// NCCL topology XML.
    NcclXml,
    /// `nvidia-smi topo -m` text.
    TopoMatrix,
    /// Link graph JSON.
    LinkGraph,
    /// hwloc's XML.
    HwlocXml,
    /// `nvidia-smi -q -x`.
    NvidiaSmiXml,
    /// `rocm-smi --showtopo` or `amd-smi topology`.
    RocmTopo,
    /// `lspci -vv` or `lspci -tv`.
    Lspci,
}

impl Source {
    /// The word in JSON output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::NcclXml => "nccl-xml",
            Self::TopoMatrix => "topo-matrix",
            Self::LinkGraph => "link-graph",
            Self::HwlocXml => "hwloc-xml",
            Self::NvidiaSmiXml => "nvidia-smi-xml",
            Self::RocmTopo => "rocm-topo",
            Self::Lspci => "lspci",
        }
    }
}

/// A NUMA node: CPUs, memory, or both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// The kernel's number.
    pub id: u32,
    /// CPUs of the node; `None` where not told, empty where it has memory alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    /// Memory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Distance (ACPI SLIT units, 10 is local) to node of each id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub distances: BTreeMap<u32, u32>,
    /// The processor; decides the rate of the link between nodes.
    #[serde(default)]
    pub cpu: CpuModel,
}

/// A processor model as CPUID or the device tree states it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CpuModel {
    /// Architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<CpuArch>,
    /// Vendor string: `GenuineIntel`, `AuthenticAMD`, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// CPUID family, as displayed by the kernel (base plus extended).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<u32>,
    /// CPUID model, as displayed by the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<u32>,
}

/// Processor architecture, in NCCL's spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CpuArch {
    /// 64-bit x86.
    #[serde(rename = "x86_64")]
    X86_64,
    /// 64-bit Arm.
    #[serde(rename = "arm64")]
    Arm64,
    /// 64-bit POWER.
    #[serde(rename = "ppc64")]
    Ppc64,
}

/// One PCI function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PciDevice {
    /// Its address.
    pub bus_id: BusId,
    /// The bridge above it; `None` directly below a host bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<BusId>,
    /// The host bridge (sysfs `pci0000:17`), set where `parent` is `None` and the source tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_bridge: Option<String>,
    /// What kind of function.
    pub kind: PciKind,
    /// 24-bit class code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<u32>,
    /// Vendor id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<u16>,
    /// Device id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<u16>,
    /// NUMA node; `None` where the source says -1 or nothing, which is unknown and not node 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// The link towards its parent.
    #[serde(default)]
    pub link: PcieLinkFacts,
    /// Access control of a bridge. `None` is unknown: the bytes beyond the first 64 need privilege.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acs: Option<Acs>,
    /// The IOMMU group it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu: Option<IommuGroup>,
    /// Whether runtime power management has put it to sleep, so that what its link trained to says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
    /// The kernel driver that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The physical function it is a virtual function of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_function: Option<BusId>,
}

/// Kind of a PCI function, by class code and place in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PciKind {
    /// A bridge of the root complex.
    RootPort,
    /// A PCIe switch: its upstream port stands for the whole.
    Switch,
    /// A downstream port of the switch that is its parent.
    SwitchPort,
    /// A GPU.
    Gpu,
    /// A NIC.
    Nic,
    /// An NVSwitch.
    NvSwitch,
    /// Anything else.
    Other,
}

/// A PCIe link at one rate and width; a half that is not known is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieLink {
    /// Transfer rate per lane in MT/s: 2500, 5000, 8000, 16000, 32000, 64000.
    pub mtps: u32,
    /// Lanes.
    pub width: u8,
}

/// What is known of the link between a PCI function and the port above it. Capability and training
/// are separate facts: an idle GPU trains down to Gen1, a NIC in a bad slot to half width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PcieLinkFacts {
    /// As trained when read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trained: Option<PcieLink>,
    /// What the function itself can do (in NCCL XML: the lesser of both ends).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_capable: Option<PcieLink>,
    /// What the port above can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot_capable: Option<PcieLink>,
    /// What the link carries as trained, where a source tells no more than rate and width in one figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trained_total: Option<Bandwidth>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// NVML's number.
    pub index: GpuIndex,
    /// PCI address; a matrix does not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<BusId>,
    /// `GPU-...`, stable across reboots and renumbering.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Product name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Compute capability times ten: 70 for 7.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<u32>,
    /// Memory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// NUMA node of its CPU side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// CPUs near it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    /// Which part of a GPU that is listed as several this is (NCCL's `mlopart`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// Active direct links, grouped by peer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<GpuLinks>,
    /// Links that are present and not active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inactive_links: Option<u32>,
    /// Chip-to-chip link to the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub c2c: Option<C2c>,
    /// Whether it takes part in GPUDirect RDMA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gdr: Option<bool>,
    /// Whether MIG mode is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    /// Number of its device file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// NUMA node that its own memory forms, on coherent boards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_node: Option<u32>,
    /// AMD's name of the architecture: `gfx942`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gfx: Option<String>,
    /// AMD's mode of dividing the board: `SPX`, `CPX`; `SPX/NPS1` with that of its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// What the driver says of access to each other GPU, by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerAccess>,
    /// Registration with the NVLink fabric; `None` where the driver does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<GpuFabric>,
    /// Links with errors, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub link_errors: Vec<LinkErrors>,
}

/// Error counters of one link of a GPU since the driver started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkErrors {
    /// The link's number.
    pub link: u32,
    /// Data link replays.
    #[serde(default)]
    pub replay: u64,
    /// Data link recoveries: the link was down and came back.
    #[serde(default)]
    pub recovery: u64,
    /// Flits with a wrong checksum.
    #[serde(default)]
    pub crc: u64,
}

/// Equal links from one GPU to one peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuLinks {
    /// NVLink or xGMI.
    pub kind: GpuLinkKind,
    /// The other end.
    pub peer: LinkPeer,
    /// How many.
    pub count: u32,
    /// Per direction and link, where the source tells; else by GPU generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Bandwidth>,
}

/// Kind of a direct GPU link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuLinkKind {
    /// NVIDIA NVLink.
    NvLink,
    /// AMD xGMI (Infinity Fabric).
    Xgmi,
}

/// The other end of a GPU link.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkPeer {
    /// A GPU.
    Gpu(BusId),
    /// The NVSwitches of the host (or of the rack), as a whole or one chip of them.
    Switch(Option<BusId>),
    /// A CPU (POWER9).
    Cpu(Option<BusId>),
    /// Something the source does not name.
    Unknown,
}

/// Chip-to-chip links of one GPU, both figures in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct C2c {
    /// Links.
    pub count: u32,
    /// Per direction, each link.
    pub rate: Bandwidth,
}

/// One port of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// RDMA device name (`mlx5_0`), or the network interface where there is none.
    pub name: String,
    /// PCI address; `None` where the source does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<BusId>,
    /// NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Port number, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u32>,
    /// Line rate in Mbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbit: Option<u64>,
    /// InfiniBand, Ethernet (RoCE or plain).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<LinkLayer>,
    /// Whether the port is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
    /// Whether it can reach GPU memory itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gdr: Option<bool>,
    /// Rail: ports of one rail share a leaf switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<Rail>,
    /// Plane within the rail: ports of different planes never meet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plane: Option<u32>,
    /// Interfaces of NCCL's network plugin that list the port besides the ordinary one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<NetInterface>,
    /// What it is for.
    #[serde(default)]
    pub role: NicRole,
    /// Why it is taken to be for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role_reason: Option<String>,
    /// Its network interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub netdevs: Vec<String>,
    /// Lanes of its network link in use, of InfiniBand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<u8>,
    /// State of the physical link, in the kernel's word: `LinkUp`, `Polling`, `Disabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phys_state: Option<String>,
    /// Which card: devices with the same system image GUID have the same number, from 0 in order of names. The GUID
    /// itself is not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<u32>,
    /// Which node on the fabric: devices with the same node GUID have the same number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// Firmware version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Board id, which tells an NVSwitch's own port from a card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board: Option<String>,
    /// Table of global identifiers, by index; `None` where it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gids: Option<Vec<Gid>>,
    /// Error counters; `None` where they were not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<PortCounters>,
    /// The bond that it is, or that its interfaces are legs of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bond: Option<Bond>,
}

/// An interface of NCCL's network plugin beside the ordinary one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetInterface {
    /// Transfers that GPUs start themselves.
    Gin,
    /// One-sided transfers.
    Rma,
}

/// Link layer of a NIC port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkLayer {
    /// InfiniBand.
    Infiniband,
    /// Ethernet.
    Ethernet,
}

/// What a NIC is for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum NicRole {
    /// Traffic between GPUs.
    Fabric,
    /// Storage, front end, management, a virtual function or an NVSwitch's own port: not for collectives.
    Other,
    /// Not determined.
    #[default]
    Unknown,
}

/// A directed graph of rates, any fabric in its barest form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkGraph {
    /// The file's own name for it.
    pub name: String,
    /// In rank order.
    pub gpus: Vec<String>,
    /// Forward only.
    pub switches: Vec<String>,
    /// From, to, rate; parallel links are kept apart.
    pub links: Vec<(String, String, Bandwidth)>,
}

impl Snapshot {
    /// An empty snapshot of the present schema.
    #[must_use]
    pub fn new(source: Source) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            source,
            host: HostFacts::default(),
            numa_nodes: Vec::new(),
            pci_devices: Vec::new(),
            pci_links: Vec::new(),
            gpus: Vec::new(),
            nics: Vec::new(),
            matrix: None,
            link_graph: None,
            faults: Vec::new(),
        }
    }
}

impl NumaNode {
    /// A node of which only the number is known.
    #[must_use]
    pub fn new(id: u32) -> Self {
        Self {
            id,
            cpus: None,
            memory_bytes: None,
            distances: BTreeMap::new(),
            cpu: CpuModel::default(),
        }
    }

    /// Whether it has memory and no CPU, so that nothing can be bound there.
    #[must_use]
    pub fn is_memory_only(&self) -> bool {
        self.cpus.as_ref().is_some_and(CpuList::is_empty)
    }
}

impl PciDevice {
    /// A function of which only place and kind are known.
    #[must_use]
    pub fn new(bus_id: BusId, kind: PciKind) -> Self {
        Self {
            bus_id,
            parent: None,
            host_bridge: None,
            kind,
            class: None,
            vendor: None,
            device: None,
            numa_node: None,
            link: PcieLinkFacts::default(),
            acs: None,
            iommu: None,
            suspended: None,
            driver: None,
            physical_function: None,
        }
    }
}

impl Gpu {
    /// A GPU of which only the number is known.
    #[must_use]
    pub fn new(index: GpuIndex) -> Self {
        Self {
            index,
            bus_id: None,
            uuid: None,
            name: None,
            compute_capability: None,
            memory_bytes: None,
            numa_node: None,
            cpus: None,
            part: None,
            links: Vec::new(),
            inactive_links: None,
            c2c: None,
            gdr: None,
            mig: None,
            minor: None,
            memory_node: None,
            gfx: None,
            partition: None,
            peers: Vec::new(),
            fabric: None,
            link_errors: Vec::new(),
        }
    }
}

impl Nic {
    /// A port of which only the name is known.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            bus_id: None,
            numa_node: None,
            port: None,
            mbit: None,
            link_layer: None,
            up: None,
            gdr: None,
            rail: None,
            plane: None,
            interfaces: Vec::new(),
            role: NicRole::Unknown,
            role_reason: None,
            netdevs: Vec::new(),
            lanes: None,
            phys_state: None,
            card: None,
            node: None,
            firmware: None,
            board: None,
            gids: None,
            counters: None,
            bond: None,
        }
    }
}

impl PcieLinkFacts {
    /// What the link carries under load: the lesser capability of both ends, and the trained width where
    /// that is less (a link down-shifts its speed when idle, never its width). Each half `None` where unknown.
    #[must_use]
    pub fn usable(&self) -> (Option<u32>, Option<u8>) {
        let capable = [self.device_capable, self.slot_capable];
        let rate = |links: &[Option<PcieLink>]| {
            links.iter().flatten().map(|l| l.mtps).filter(|m| *m > 0).min()
        };
        let mtps = rate(&capable).or_else(|| rate(&[self.trained]));
        let width = capable
            .iter()
            .chain([&self.trained])
            .flatten()
            .map(|l| l.width)
            .filter(|w| *w > 0)
            .min();
        (mtps, width)
    }
}
