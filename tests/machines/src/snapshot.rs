//! The facts that a right probe of a machine finds.

use std::collections::BTreeMap;

use topology::snapshot::{
    Acs, C2c, CpuTopology, FabricHealth, FabricState, Gid, GidKind, GidScope, Gpu as GpuFacts,
    GpuDirectFacts, GpuFabric, GpuLinkKind, GpuLinks, HostFacts, Imex, IommuDomain, IommuGroup,
    LinkErrors, LinkLayer, LinkPeer, Nic as NicFacts, NumaNode as NodeFacts, PciDevice, PciKind,
    PcieLinkFacts, PeerAccess, PeerStatus, PortCounters,
};
use topology::{Bandwidth, BusId, CpuArch, CpuList, CpuModel, GpuIndex, Snapshot, Source};

use crate::build::{class, vendor};
use crate::machine::{Function, FunctionKind, Gpu, Machine, NvLinkPeer};
use crate::scenario::{Fabric, NvLinkError, P2p};

impl Machine {
    /// The facts, each where a probe of the written tree and the NVML double has a source for it. Faults played by
    /// [`crate::scenario::Fault`] are not taken into account: a probe that meets them finds less.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new(Source::Live);
        let nvidia = self.driver.as_ref().filter(|_| self.has_nvidia());
        snapshot.host = HostFacts {
            vendor: Some(self.vendor.clone()),
            product: Some(self.product.clone()),
            // Arm processors do not tell.
            hypervisor: (self.cpu.arch == CpuArch::X86_64).then_some(self.hypervisor),
            kernel: Some(self.kernel.clone()),
            kernel_flags: Some(self.kernel_flags()),
            iommu: Some(self.iommu.is_some()),
            driver: nvidia.map(|driver| driver.version.clone()),
            gpudirect: Some(GpuDirectFacts {
                peermem_loaded: Some(nvidia.is_some() && self.peermem),
                peermem_registered: Some(nvidia.is_some() && self.peermem),
                dma_buf_driver: Some(
                    nvidia.map_or_else(|| !self.has_nvidia(), |driver| driver.open),
                ),
                // Every kernel of the catalogue is newer than 5.12.
                dma_buf_kernel: Some(true),
                p2pdma: None,
            }),
            confidential: self.confidential.filter(|_| nvidia.is_some()),
            imex: self.imex_channels.map(|channels| Imex {
                channels: Some(channels),
                peers: None,
                service_masked: None,
            }),
            cpus: Some(self.cpu_facts()),
            limits: None,
            identity: None,
        };
        snapshot.numa_nodes = self.node_facts();
        snapshot.pci_devices = self.pci_facts();
        snapshot.gpus =
            (0..).zip(&self.gpus).map(|(index, gpu)| self.gpu_facts(index, gpu)).collect();
        snapshot.nics = self.nic_facts();
        snapshot
    }

    fn has_nvidia(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.model.gfx_target_version.is_none())
    }

    /// What of the command line bears on devices: everything but the image and `ro`.
    fn kernel_flags(&self) -> Vec<String> {
        let words = self.command_line.split_whitespace();
        words
            .filter(|word| !word.starts_with("BOOT_IMAGE=") && *word != "ro")
            .map(Into::into)
            .collect()
    }

    fn cpu_facts(&self) -> CpuTopology {
        let nodes: Vec<_> = self.numa_nodes.iter().filter(|node| !node.cpus.is_empty()).collect();
        let mut packages = BTreeMap::<u32, Vec<u32>>::new();
        for node in &nodes {
            packages.entry(node.package).or_default().extend(node.cpus.iter());
        }
        let all: Vec<u32> = self.all_cpus().iter().collect();
        let half = all.len() / usize::try_from(self.threads_per_core).unwrap_or(1);
        let threads =
            |core: usize| CpuList::from_cpus(all.iter().skip(core).step_by(half).copied());
        CpuTopology {
            packages: packages
                .into_iter()
                .map(|(id, cpus)| (id, CpuList::from_cpus(cpus)))
                .collect(),
            l3: nodes.iter().map(|node| node.cpus.clone()).collect(),
            cores: (0..half).map(threads).collect(),
        }
    }

    fn node_facts(&self) -> Vec<NodeFacts> {
        let node =
            |((id, node), distances): ((u32, &crate::machine::NumaNode), &Vec<u32>)| NodeFacts {
                cpus: Some(node.cpus.clone()),
                memory_bytes: Some(node.memory_bytes),
                distances: (0..).zip(distances.iter().copied()).collect(),
                cpu: match self.cpu.arch {
                    CpuArch::X86_64 => CpuModel {
                        arch: Some(CpuArch::X86_64),
                        vendor: Some(self.cpu.vendor.clone()),
                        family: Some(self.cpu.family),
                        model: Some(self.cpu.model),
                    },
                    arch => CpuModel { arch: Some(arch), ..CpuModel::default() },
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
                        acs: self.acs_facts(function),
                        iommu: self.iommu.map(|_| IommuGroup {
                            group: self.iommu_group(function.bus_id),
                            domain: self.iommu_domain(),
                        }),
                        suspended: Some(function.suspended),
                        driver: self.driver_of(function).map(Into::into),
                        ..PciDevice::new(function.bus_id, kind(function))
                    },
                );
            }
        }
        devices.into_values().collect()
    }

    /// Bytes beyond the first 64 tell, and only the privileged see them.
    fn acs_facts(&self, function: &Function) -> Option<Acs> {
        let bridge = function.kind != FunctionKind::Endpoint;
        let control = function.acs.filter(|_| function.link.is_some());
        let acs = control.map_or_else(Acs::default, |enabled| Acs { supported: 0x1f, enabled });
        (bridge && self.privileged).then_some(acs)
    }

    fn iommu_domain(&self) -> Option<IommuDomain> {
        match self.iommu? {
            "identity" => Some(IommuDomain::Identity),
            "DMA" => Some(IommuDomain::Dma),
            "DMA-FQ" => Some(IommuDomain::DmaFq),
            _ => None,
        }
    }

    fn peer_facts(&self, index: u32) -> Vec<PeerAccess> {
        let status = |status: P2p| {
            Some(match status {
                P2p::Ok => PeerStatus::Ok,
                P2p::ChipsetNotSupported => PeerStatus::ChipsetNotSupported,
                P2p::GpuNotSupported => PeerStatus::GpuNotSupported,
                P2p::TopologyNotSupported => PeerStatus::TopologyNotSupported,
                P2p::DisabledByRegkey => PeerStatus::DisabledByRegkey,
                P2p::NotSupported => PeerStatus::NotSupported,
                P2p::Unknown => PeerStatus::Unknown,
            })
        };
        let mut peers: Vec<PeerAccess> = self
            .pairs()
            .into_iter()
            .filter(|pair| pair.a == index || pair.b == index)
            .map(|pair| PeerAccess {
                peer: GpuIndex(pair.a + pair.b - index),
                read: status(pair.read),
                write: status(pair.write),
                nvlink: status(pair.nvlink),
                atomics: status(pair.atomics),
                pcie: status(pair.pci),
            })
            .collect();
        peers.sort_by_key(|access| access.peer);
        peers
    }

    /// An AMD GPU, as PCI and the compute driver tell.
    fn amd_facts(&self, index: u32, gpu: &Gpu) -> GpuFacts {
        let model = gpu.model;
        let peers = gpu.links.iter().filter(|link| link.active);
        let mut peers: Vec<BusId> = peers
            .filter_map(|link| match link.peer {
                NvLinkPeer::Gpu(peer, _) => Some(self.gpus[peer].bus_id),
                _ => None,
            })
            .collect();
        peers.sort_unstable();
        let numa_node = self.numa_node_of(gpu.bus_id);
        GpuFacts {
            bus_id: Some(gpu.bus_id),
            name: Some(model.name.to_owned()),
            memory_bytes: Some(model.memory_bytes),
            numa_node,
            cpus: numa_node.and_then(|node| self.cpus_of(node)).cloned(),
            links: peers
                .into_iter()
                .map(|peer| GpuLinks {
                    kind: GpuLinkKind::Xgmi,
                    peer: LinkPeer::Gpu(peer),
                    count: 1,
                    rate: Some(Bandwidth::from_mbps(model.nvlink_mbytes_per_second.into())),
                })
                .collect(),
            gdr: Some(true),
            gfx: Some("gfx942".to_owned()),
            partition: Some("SPX/NPS1".to_owned()),
            ..GpuFacts::new(GpuIndex(index))
        }
    }

    fn gpu_facts(&self, index: u32, gpu: &Gpu) -> GpuFacts {
        if gpu.model.gfx_target_version.is_some() {
            return self.amd_facts(index, gpu);
        }
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
            c2c: gpu
                .c2c
                .filter(|_| driver)
                .map(|(count, mbps)| C2c { count, rate: Bandwidth::from_mbps(mbps.into()) }),
            gdr: driver.then_some(self.gpudirect()),
            mig: (driver && model.mig).then_some(gpu.mig),
            minor: driver.then_some(index),
            memory_node: gpu.memory_node.filter(|_| driver),
            peers: if driver { self.peer_facts(index) } else { Vec::new() },
            fabric: gpu.fabric.as_ref().filter(|_| driver).map(fabric_facts),
            link_errors: (0..)
                .zip(&gpu.links)
                .filter(|(_, link)| driver && link.active)
                .map(|(number, link)| link_errors(number, &link.errors))
                .filter(|errors| errors.replay + errors.recovery + errors.crc > 0)
                .collect(),
            ..GpuFacts::new(GpuIndex(index))
        }
    }

    /// Whether NICs reach GPU memory, by either way.
    fn gpudirect(&self) -> bool {
        let amd = !self.has_nvidia() && !self.gpus.is_empty();
        amd || self.driver.as_ref().is_some_and(|driver| driver.open || self.peermem)
    }

    fn nic_facts(&self) -> Vec<NicFacts> {
        let with_rdma: Vec<&str> = self.nics.iter().filter_map(|nic| nic.rdma.as_deref()).collect();
        let number = |nic: &crate::machine::Nic| {
            let place = with_rdma.iter().position(|name| nic.rdma.as_deref() == Some(name));
            place.and_then(|place| u32::try_from(place).ok())
        };
        let nic = |nic: &crate::machine::Nic| NicFacts {
            netdevs: nic.netdev.clone().into_iter().collect(),
            lanes: nic.rdma.as_ref().filter(|_| nic.up).map(|_| 4),
            phys_state: nic
                .rdma
                .as_ref()
                .map(|_| if nic.up { "LinkUp" } else { "Disabled" }.to_owned()),
            // Every function has GUIDs of its own.
            card: number(nic),
            node: number(nic),
            firmware: nic.rdma.as_ref().map(|_| "28.39.1002".to_owned()),
            gids: nic.rdma.as_ref().map(|_| gid_facts(nic)),
            counters: nic.rdma.as_ref().map(|_| PortCounters {
                link_downed: Some(nic.link_downed),
                symbol_errors: Some(0),
                ..PortCounters::default()
            }),
            bus_id: Some(nic.bus_id),
            numa_node: self.numa_node_of(nic.bus_id),
            port: nic.rdma.as_ref().map(|_| 1),
            mbit: nic.mbit.filter(|_| nic.up),
            link_layer: Some(nic.link_layer),
            up: Some(nic.up),
            gdr: Some(nic.rdma.is_some() && self.gpudirect()),
            role: nic.role,
            ..NicFacts::new(nic.name())
        };
        self.nics.iter().map(nic).collect()
    }
}

fn fabric_facts(fabric: &Fabric) -> GpuFabric {
    let state = match fabric.state {
        1 => FabricState::NotStarted,
        2 => FabricState::InProgress,
        3 => FabricState::Completed,
        _ => FabricState::NotSupported,
    };
    let digits = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let uuid = &fabric.cluster_uuid;
    let groups = [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]].map(digits);
    GpuFabric {
        state,
        status: (fabric.state == 3).then_some(fabric.status.0),
        cluster: (*uuid != [0; 16]).then(|| groups.join("-")),
        clique: Some(fabric.clique_id),
        health_mask: Some(fabric.health_mask),
        health: match fabric.health_summary {
            1 => Some(FabricHealth::Healthy),
            2 => Some(FabricHealth::Unhealthy),
            3 => Some(FabricHealth::LimitedCapacity),
            _ => None,
        },
    }
}

fn link_errors(link: u32, errors: &BTreeMap<NvLinkError, u64>) -> LinkErrors {
    let count = |kind| errors.get(&kind).copied().unwrap_or(0);
    LinkErrors {
        link,
        replay: count(NvLinkError::Replay),
        recovery: count(NvLinkError::Recovery),
        crc: count(NvLinkError::CrcFlit),
    }
}

/// InfiniBand has one entry, Ethernet two protocols of two addresses.
fn gid_facts(nic: &crate::machine::Nic) -> Vec<Gid> {
    use GidKind::{IbOrRoceV1, RoceV2};
    use GidScope::{Ipv4, LinkLocal};
    let entries =
        [(IbOrRoceV1, LinkLocal), (RoceV2, LinkLocal), (IbOrRoceV1, Ipv4), (RoceV2, Ipv4)];
    let ethernet = nic.link_layer == LinkLayer::Ethernet;
    let count = if ethernet { entries.len() } else { 1 };
    let gid = |(index, (kind, scope)): (u32, (GidKind, GidScope))| Gid {
        index,
        kind,
        scope,
        netdev: nic.netdev.clone().filter(|_| ethernet),
    };
    (0..).zip(entries.into_iter().take(count)).map(gid).collect()
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
        (FunctionKind::Endpoint, vendor::NVIDIA, 0x03)
        | (FunctionKind::Endpoint, vendor::ATI, 0x12) => PciKind::Gpu,
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
