//! The facts that a right probe of a machine finds.

use std::collections::BTreeMap;

use topology::snapshot::{
    Gpu as GpuFacts, GpuLinkKind, GpuLinks, HostFacts, LinkPeer, Nic as NicFacts,
    NumaNode as NodeFacts, PciDevice, PciKind, PcieLinkFacts,
};
use topology::{Bandwidth, BusId, CpuArch, CpuModel, GpuIndex, Snapshot, Source};

use crate::build::{class, vendor};
use crate::machine::{Function, FunctionKind, Gpu, Machine, NvLinkPeer};

impl Machine {
    /// The facts, each where a probe of the written tree and the NVML double has a source for it. Faults played by
    /// [`crate::scenario::Fault`] are not taken into account: a probe that meets them finds less.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new(Source::Live);
        snapshot.host = HostFacts {
            product: Some(self.product.clone()),
            hypervisor: Some(self.hypervisor),
            kernel: Some(self.kernel.clone()),
            driver: self.driver.as_ref().map(|driver| driver.version.clone()),
            ..HostFacts::default()
        };
        snapshot.numa_nodes = self.node_facts();
        snapshot.pci_devices = self.pci_facts();
        snapshot.gpus =
            (0..).zip(&self.gpus).map(|(index, gpu)| self.gpu_facts(index, gpu)).collect();
        snapshot.nics = self.nic_facts();
        snapshot
    }

    fn node_facts(&self) -> Vec<NodeFacts> {
        let node =
            |((id, node), distances): ((u32, &crate::machine::NumaNode), &Vec<u32>)| NodeFacts {
                cpus: Some(node.cpus.clone()),
                memory_bytes: Some(node.memory_bytes),
                distances: (0..).zip(distances.iter().copied()).collect(),
                cpu: CpuModel {
                    arch: Some(CpuArch::X86_64),
                    vendor: Some(self.cpu.vendor.clone()),
                    family: Some(self.cpu.family),
                    model: Some(self.cpu.model),
                },
                ..NodeFacts::new(id)
            };
        (0..).zip(&self.numa_nodes).zip(&self.distances).map(node).collect()
    }

    /// GPUs, NICs and NVSwitches, and the bridges above them.
    fn pci_facts(&self) -> Vec<PciDevice> {
        let mut devices = BTreeMap::new();
        let ends: Vec<BusId> = self
            .functions()
            .into_iter()
            .map(|(_, function)| function)
            .filter(|function| {
                matches!(kind(function), PciKind::Gpu | PciKind::Nic | PciKind::NvSwitch)
            })
            .map(|function| function.bus_id)
            .collect();
        for bus_id in ends {
            let Some((bridge, path)) = self.path_to(bus_id) else { continue };
            for (depth, function) in path.iter().enumerate() {
                let parent = depth.checked_sub(1).map(|above| path[above]);
                devices.insert(
                    function.bus_id,
                    PciDevice {
                        parent: parent.map(|parent| parent.bus_id),
                        host_bridge: parent.is_none().then(|| bridge.name()),
                        class: Some(function.ids.class),
                        vendor: Some(function.ids.vendor),
                        device: Some(function.ids.device),
                        numa_node: function.numa_node,
                        link: link_facts(function, parent),
                        ..PciDevice::new(function.bus_id, kind(function))
                    },
                );
            }
        }
        devices.into_values().collect()
    }

    fn gpu_facts(&self, index: u32, gpu: &Gpu) -> GpuFacts {
        let model = gpu.model;
        let driver = self.driver.is_some();
        let (major, minor) = model.compute_capability;
        let compute_capability = u32::try_from(major * 10 + minor).ok();
        // Firmware that tells no node leaves the driver's knowledge.
        let numa_node = self.numa_node_of(gpu.bus_id).or(if driver { gpu.numa_node } else { None });
        let mut counts = BTreeMap::<Peer, u32>::new();
        for link in gpu.links.iter().filter(|link| driver && link.active) {
            let peer = match link.peer {
                NvLinkPeer::Gpu(index, _) => {
                    self.gpus.get(index).map_or(Peer::Unknown, |gpu| Peer::Gpu(gpu.bus_id))
                }
                NvLinkPeer::Switch(bus_id) => Peer::Switch(bus_id),
                NvLinkPeer::Nothing => Peer::Unknown,
            };
            *counts.entry(peer).or_default() += 1;
        }
        let inactive = gpu.links.iter().filter(|link| !link.active).count();
        GpuFacts {
            bus_id: Some(gpu.bus_id),
            uuid: driver.then(|| gpu.uuid.clone()),
            name: driver.then(|| model.name.to_owned()),
            compute_capability: compute_capability.filter(|_| driver),
            memory_bytes: driver.then_some(model.memory_bytes),
            numa_node,
            cpus: Some(
                numa_node
                    .and_then(|node| self.cpus_of(node))
                    .cloned()
                    .unwrap_or_else(|| self.all_cpus()),
            ),
            links: counts
                .into_iter()
                .map(|(peer, count)| GpuLinks {
                    kind: GpuLinkKind::NvLink,
                    peer: peer.into(),
                    count,
                    rate: Some(Bandwidth::from_mbps(model.nvlink_mbytes_per_second.into())),
                })
                .collect(),
            inactive_links: u32::try_from(inactive).ok().filter(|_| driver),
            gdr: driver.then_some(self.peermem),
            mig: (driver && model.mig).then_some(gpu.mig),
            ..GpuFacts::new(GpuIndex(index))
        }
    }

    fn nic_facts(&self) -> Vec<NicFacts> {
        let nic = |nic: &crate::machine::Nic| NicFacts {
            bus_id: Some(nic.bus_id),
            numa_node: self.numa_node_of(nic.bus_id),
            port: nic.rdma.as_ref().map(|_| 1),
            mbit: nic.mbit.filter(|_| nic.up),
            link_layer: Some(nic.link_layer),
            up: Some(nic.up),
            gdr: Some(nic.rdma.is_some() && self.driver.is_some() && self.peermem),
            role: nic.role,
            ..NicFacts::new(nic.name())
        };
        self.nics.iter().map(nic).collect()
    }
}

/// Peers in the order in which they are listed: GPUs by address, then switches by address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Peer {
    Gpu(BusId),
    Switch(BusId),
    Unknown,
}

impl From<Peer> for LinkPeer {
    fn from(peer: Peer) -> Self {
        match peer {
            Peer::Gpu(bus_id) => Self::Gpu(bus_id),
            Peer::Switch(bus_id) => Self::Switch(Some(bus_id)),
            Peer::Unknown => Self::Unknown,
        }
    }
}

fn kind(function: &Function) -> PciKind {
    match (function.kind, function.ids.vendor, function.ids.class >> 16) {
        (FunctionKind::RootPort, ..) => PciKind::RootPort,
        (FunctionKind::UpstreamPort, ..) => PciKind::Switch,
        (FunctionKind::DownstreamPort, ..) => PciKind::SwitchPort,
        (FunctionKind::Endpoint, vendor::NVIDIA, 0x03) => PciKind::Gpu,
        (FunctionKind::Endpoint, vendor::NVIDIA, _)
            if function.ids.class == class::OTHER_BRIDGE =>
        {
            PciKind::NvSwitch
        }
        (FunctionKind::Endpoint, _, 0x02) => PciKind::Nic,
        (FunctionKind::Endpoint, ..) => PciKind::Other,
    }
}

/// The link towards the parent: a root port has none, and within a switch there is none.
fn link_facts(function: &Function, parent: Option<&Function>) -> PcieLinkFacts {
    match function.kind {
        FunctionKind::RootPort | FunctionKind::DownstreamPort => PcieLinkFacts::default(),
        FunctionKind::UpstreamPort | FunctionKind::Endpoint => PcieLinkFacts {
            trained: function.link.map(|link| link.trained),
            device_capable: function.link.map(|link| link.max),
            slot_capable: parent.and_then(|parent| parent.link).map(|link| link.max),
            trained_total: None,
        },
    }
}
