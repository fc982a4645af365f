//! Facts.

use topology::matrix::{Cell, Matrix};
use topology::snapshot::{
    Acs, Bond, C2c, Fault, Gpu, GpuFabric, GpuLinks, HostFacts, IommuGroup, LinkErrors, LinkGraph,
    LinkPeer, Nic, NumaNode, PciDevice, PcieLink, PcieLinkFacts, PortCounters, SCHEMA_VERSION,
};
use topology::{Bandwidth, CpuModel, GpuIndex, PathType, Rail, Snapshot};

use super::enums::{required, some};
use super::{
    WireError, bus_id, each, narrow_u8, narrow_u16, present, some_bus_id, some_cpus, to_each,
};
use crate::v1;

impl From<&Snapshot> for v1::Snapshot {
    fn from(snapshot: &Snapshot) -> Self {
        Self {
            schema_version: snapshot.schema_version,
            source: v1::Source::from(snapshot.source).into(),
            host: Some((&snapshot.host).into()),
            numa_nodes: to_each(&snapshot.numa_nodes),
            pci_devices: to_each(&snapshot.pci_devices),
            pci_links: snapshot
                .pci_links
                .iter()
                .map(|(a, b)| v1::PciLink { a: a.to_string(), b: b.to_string() })
                .collect(),
            gpus: to_each(&snapshot.gpus),
            nics: to_each(&snapshot.nics),
            matrix: snapshot.matrix.as_ref().map(Into::into),
            link_graph: snapshot.link_graph.as_ref().map(Into::into),
            faults: to_each(&snapshot.faults),
        }
    }
}

impl TryFrom<v1::Snapshot> for Snapshot {
    type Error = WireError;

    fn try_from(wire: v1::Snapshot) -> Result<Self, WireError> {
        if wire.schema_version > SCHEMA_VERSION {
            return Err(WireError::SchemaVersion {
                found: wire.schema_version,
                known: SCHEMA_VERSION,
            });
        }
        Ok(Self {
            schema_version: wire.schema_version,
            source: required("Snapshot.source", wire.source)?,
            host: wire.host.map(HostFacts::try_from).transpose()?.unwrap_or_default(),
            numa_nodes: each(wire.numa_nodes)?,
            pci_devices: each(wire.pci_devices)?,
            pci_links: wire
                .pci_links
                .iter()
                .map(|link| Ok((bus_id("PciLink.a", &link.a)?, bus_id("PciLink.b", &link.b)?)))
                .collect::<Result<_, WireError>>()?,
            gpus: each(wire.gpus)?,
            nics: each(wire.nics)?,
            matrix: wire.matrix.map(Matrix::try_from).transpose()?,
            link_graph: wire.link_graph.map(LinkGraph::from),
            faults: each(wire.faults)?,
        })
    }
}

impl From<&NumaNode> for v1::NumaNode {
    fn from(node: &NumaNode) -> Self {
        Self {
            id: node.id,
            cpus: node.cpus.as_ref().map(ToString::to_string),
            memory_bytes: node.memory_bytes,
            distances: node.distances.clone(),
            cpu: Some((&node.cpu).into()),
        }
    }
}

impl TryFrom<v1::NumaNode> for NumaNode {
    type Error = WireError;

    fn try_from(wire: v1::NumaNode) -> Result<Self, WireError> {
        Ok(Self {
            id: wire.id,
            cpus: some_cpus("NumaNode.cpus", wire.cpus.as_deref())?,
            memory_bytes: wire.memory_bytes,
            distances: wire.distances,
            cpu: wire.cpu.map(CpuModel::try_from).transpose()?.unwrap_or_default(),
        })
    }
}

impl From<&CpuModel> for v1::CpuModel {
    fn from(cpu: &CpuModel) -> Self {
        Self {
            arch: cpu.arch.map_or(v1::CpuArch::Unspecified, Into::into).into(),
            vendor: cpu.vendor.clone(),
            family: cpu.family,
            model: cpu.model,
        }
    }
}

impl TryFrom<v1::CpuModel> for CpuModel {
    type Error = WireError;

    fn try_from(wire: v1::CpuModel) -> Result<Self, WireError> {
        Ok(Self {
            arch: some("CpuModel.arch", wire.arch)?,
            vendor: wire.vendor,
            family: wire.family,
            model: wire.model,
        })
    }
}

impl From<&PciDevice> for v1::PciDevice {
    fn from(device: &PciDevice) -> Self {
        Self {
            bus_id: device.bus_id.to_string(),
            parent: device.parent.map(|id| id.to_string()),
            host_bridge: device.host_bridge.clone(),
            kind: v1::PciKind::from(device.kind).into(),
            class: device.class,
            vendor: device.vendor.map(u32::from),
            device: device.device.map(u32::from),
            numa_node: device.numa_node,
            link: Some((&device.link).into()),
            acs: device.acs.map(Into::into),
            iommu: device.iommu.map(Into::into),
            suspended: device.suspended,
            driver: device.driver.clone(),
            physical_function: device.physical_function.map(|id| id.to_string()),
        }
    }
}

impl TryFrom<v1::PciDevice> for PciDevice {
    type Error = WireError;

    fn try_from(wire: v1::PciDevice) -> Result<Self, WireError> {
        Ok(Self {
            bus_id: bus_id("PciDevice.bus_id", &wire.bus_id)?,
            parent: some_bus_id("PciDevice.parent", wire.parent.as_deref())?,
            host_bridge: wire.host_bridge,
            kind: required("PciDevice.kind", wire.kind)?,
            class: wire.class,
            vendor: wire.vendor.map(|v| narrow_u16("PciDevice.vendor", v)).transpose()?,
            device: wire.device.map(|v| narrow_u16("PciDevice.device", v)).transpose()?,
            numa_node: wire.numa_node,
            link: wire.link.map(PcieLinkFacts::try_from).transpose()?.unwrap_or_default(),
            acs: wire.acs.map(Acs::try_from).transpose()?,
            iommu: wire.iommu.map(IommuGroup::try_from).transpose()?,
            suspended: wire.suspended,
            driver: wire.driver,
            physical_function: some_bus_id(
                "PciDevice.physical_function",
                wire.physical_function.as_deref(),
            )?,
        })
    }
}

impl From<&PcieLinkFacts> for v1::PcieLinkFacts {
    fn from(facts: &PcieLinkFacts) -> Self {
        Self {
            trained: facts.trained.map(Into::into),
            device_capable: facts.device_capable.map(Into::into),
            slot_capable: facts.slot_capable.map(Into::into),
            trained_total_kbytes_per_second: facts.trained_total.map(Bandwidth::kbps),
        }
    }
}

impl TryFrom<v1::PcieLinkFacts> for PcieLinkFacts {
    type Error = WireError;

    fn try_from(wire: v1::PcieLinkFacts) -> Result<Self, WireError> {
        Ok(Self {
            trained: wire.trained.map(PcieLink::try_from).transpose()?,
            device_capable: wire.device_capable.map(PcieLink::try_from).transpose()?,
            slot_capable: wire.slot_capable.map(PcieLink::try_from).transpose()?,
            trained_total: wire.trained_total_kbytes_per_second.map(Bandwidth::from_kbps),
        })
    }
}

impl From<PcieLink> for v1::PcieLink {
    fn from(link: PcieLink) -> Self {
        Self { mtps: link.mtps, width: link.width.into() }
    }
}

impl TryFrom<v1::PcieLink> for PcieLink {
    type Error = WireError;

    fn try_from(wire: v1::PcieLink) -> Result<Self, WireError> {
        Ok(Self { mtps: wire.mtps, width: narrow_u8("PcieLink.width", wire.width)? })
    }
}

impl From<&Gpu> for v1::Gpu {
    fn from(gpu: &Gpu) -> Self {
        Self {
            index: gpu.index.0,
            bus_id: gpu.bus_id.map(|id| id.to_string()),
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            compute_capability: gpu.compute_capability,
            memory_bytes: gpu.memory_bytes,
            numa_node: gpu.numa_node,
            cpus: gpu.cpus.as_ref().map(ToString::to_string),
            part: gpu.part,
            links: to_each(&gpu.links),
            inactive_links: gpu.inactive_links,
            c2c: gpu.c2c.map(Into::into),
            gdr: gpu.gdr,
            mig: gpu.mig,
            minor: gpu.minor,
            memory_node: gpu.memory_node,
            gfx: gpu.gfx.clone(),
            partition: gpu.partition.clone(),
            peers: to_each(&gpu.peers),
            fabric: gpu.fabric.as_ref().map(Into::into),
            link_errors: to_each(&gpu.link_errors),
        }
    }
}

impl TryFrom<v1::Gpu> for Gpu {
    type Error = WireError;

    fn try_from(wire: v1::Gpu) -> Result<Self, WireError> {
        Ok(Self {
            index: GpuIndex(wire.index),
            bus_id: some_bus_id("Gpu.bus_id", wire.bus_id.as_deref())?,
            uuid: wire.uuid,
            name: wire.name,
            compute_capability: wire.compute_capability,
            memory_bytes: wire.memory_bytes,
            numa_node: wire.numa_node,
            cpus: some_cpus("Gpu.cpus", wire.cpus.as_deref())?,
            part: wire.part,
            links: each(wire.links)?,
            inactive_links: wire.inactive_links,
            c2c: wire.c2c.map(C2c::from),
            gdr: wire.gdr,
            mig: wire.mig,
            minor: wire.minor,
            memory_node: wire.memory_node,
            gfx: wire.gfx,
            partition: wire.partition,
            peers: each(wire.peers)?,
            fabric: wire.fabric.map(GpuFabric::try_from).transpose()?,
            link_errors: wire.link_errors.into_iter().map(LinkErrors::from).collect(),
        })
    }
}

impl From<&GpuLinks> for v1::GpuLinks {
    fn from(links: &GpuLinks) -> Self {
        Self {
            kind: v1::GpuLinkKind::from(links.kind).into(),
            peer: Some((&links.peer).into()),
            count: links.count,
            rate_kbytes_per_second: links.rate.map(Bandwidth::kbps),
        }
    }
}

impl TryFrom<v1::GpuLinks> for GpuLinks {
    type Error = WireError;

    fn try_from(wire: v1::GpuLinks) -> Result<Self, WireError> {
        Ok(Self {
            kind: required("GpuLinks.kind", wire.kind)?,
            peer: present("GpuLinks.peer", wire.peer)?.try_into()?,
            count: wire.count,
            rate: wire.rate_kbytes_per_second.map(Bandwidth::from_kbps),
        })
    }
}

impl From<&LinkPeer> for v1::LinkPeer {
    fn from(peer: &LinkPeer) -> Self {
        use v1::link_peer::Peer;
        let device = |id: &Option<topology::BusId>| v1::LinkPeerDevice {
            bus_id: id.map(|id| id.to_string()),
        };
        let peer = match peer {
            LinkPeer::Gpu(id) => Peer::Gpu(id.to_string()),
            LinkPeer::Switch(id) => Peer::Switch(device(id)),
            LinkPeer::Cpu(id) => Peer::Cpu(device(id)),
            LinkPeer::Unknown => Peer::Unknown(v1::LinkPeerUnknown {}),
        };
        Self { peer: Some(peer) }
    }
}

impl TryFrom<v1::LinkPeer> for LinkPeer {
    type Error = WireError;

    fn try_from(wire: v1::LinkPeer) -> Result<Self, WireError> {
        use v1::link_peer::Peer;
        Ok(match present("LinkPeer.peer", wire.peer)? {
            Peer::Gpu(id) => Self::Gpu(bus_id("LinkPeer.gpu", &id)?),
            Peer::Switch(device) => {
                Self::Switch(some_bus_id("LinkPeer.switch", device.bus_id.as_deref())?)
            }
            Peer::Cpu(device) => Self::Cpu(some_bus_id("LinkPeer.cpu", device.bus_id.as_deref())?),
            Peer::Unknown(_) => Self::Unknown,
        })
    }
}

impl From<C2c> for v1::C2c {
    fn from(c2c: C2c) -> Self {
        Self { count: c2c.count, rate_kbytes_per_second: c2c.rate.kbps() }
    }
}

impl From<v1::C2c> for C2c {
    fn from(wire: v1::C2c) -> Self {
        Self { count: wire.count, rate: Bandwidth::from_kbps(wire.rate_kbytes_per_second) }
    }
}

impl From<&Nic> for v1::Nic {
    fn from(nic: &Nic) -> Self {
        Self {
            name: nic.name.clone(),
            bus_id: nic.bus_id.map(|id| id.to_string()),
            numa_node: nic.numa_node,
            port: nic.port,
            mbit: nic.mbit,
            link_layer: nic.link_layer.map_or(v1::LinkLayer::Unspecified, Into::into).into(),
            up: nic.up,
            gdr: nic.gdr,
            rail: nic.rail.map(|rail| rail.0),
            plane: nic.plane,
            interfaces: nic.interfaces.iter().map(|i| v1::NetInterface::from(*i).into()).collect(),
            role: v1::NicRole::from(nic.role).into(),
            role_reason: nic.role_reason.clone(),
            netdevs: nic.netdevs.clone(),
            lanes: nic.lanes.map(u32::from),
            phys_state: nic.phys_state.clone(),
            card: nic.card,
            node: nic.node,
            firmware: nic.firmware.clone(),
            board: nic.board.clone(),
            gids: nic.gids.as_ref().map(|gids| v1::GidTable { entries: to_each(gids) }),
            counters: nic.counters.as_ref().map(Into::into),
            bond: nic.bond.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<v1::Nic> for Nic {
    type Error = WireError;

    fn try_from(wire: v1::Nic) -> Result<Self, WireError> {
        Ok(Self {
            name: wire.name,
            bus_id: some_bus_id("Nic.bus_id", wire.bus_id.as_deref())?,
            numa_node: wire.numa_node,
            port: wire.port,
            mbit: wire.mbit,
            link_layer: some("Nic.link_layer", wire.link_layer)?,
            up: wire.up,
            gdr: wire.gdr,
            rail: wire.rail.map(Rail),
            plane: wire.plane,
            interfaces: wire
                .interfaces
                .into_iter()
                .map(|interface| required("Nic.interfaces", interface))
                .collect::<Result<_, _>>()?,
            role: required("Nic.role", wire.role)?,
            role_reason: wire.role_reason,
            netdevs: wire.netdevs,
            lanes: wire.lanes.map(|lanes| narrow_u8("Nic.lanes", lanes)).transpose()?,
            phys_state: wire.phys_state,
            card: wire.card,
            node: wire.node,
            firmware: wire.firmware,
            board: wire.board,
            gids: wire.gids.map(|gids| each(gids.entries)).transpose()?,
            counters: wire.counters.map(PortCounters::from),
            bond: wire.bond.map(Bond::from),
        })
    }
}

impl From<&Matrix> for v1::Matrix {
    fn from(matrix: &Matrix) -> Self {
        let row = |cells: &Vec<Option<Cell>>| v1::MatrixRow {
            cells: cells.iter().map(|cell| (*cell).into()).collect(),
        };
        Self { devices: matrix.devices.clone(), rows: matrix.cells.iter().map(row).collect() }
    }
}

impl TryFrom<v1::Matrix> for Matrix {
    type Error = WireError;

    fn try_from(wire: v1::Matrix) -> Result<Self, WireError> {
        let devices = wire.devices.len();
        if wire.rows.len() != devices || wire.rows.iter().any(|row| row.cells.len() != devices) {
            return Err(WireError::NotSquare { devices });
        }
        let cells = wire
            .rows
            .into_iter()
            .map(|row| row.cells.into_iter().map(cell).collect())
            .collect::<Result<_, _>>()?;
        Ok(Self { devices: wire.devices, cells })
    }
}

impl From<Option<Cell>> for v1::MatrixCell {
    fn from(cell: Option<Cell>) -> Self {
        Self {
            class: cell.map_or(v1::PathType::Unspecified, |cell| cell.class.into()).into(),
            links: cell.map_or(0, |cell| cell.links),
        }
    }
}

fn cell(wire: v1::MatrixCell) -> Result<Option<Cell>, WireError> {
    let class = some::<PathType>("MatrixCell.class", wire.class)?;
    Ok(class.map(|class| Cell { class, links: wire.links }))
}

impl From<&LinkGraph> for v1::LinkGraph {
    fn from(graph: &LinkGraph) -> Self {
        let link = |(from, to, rate): &(String, String, Bandwidth)| v1::GraphLink {
            from: from.clone(),
            to: to.clone(),
            rate_kbytes_per_second: rate.kbps(),
        };
        Self {
            name: graph.name.clone(),
            gpus: graph.gpus.clone(),
            switches: graph.switches.clone(),
            links: graph.links.iter().map(link).collect(),
        }
    }
}

impl From<v1::LinkGraph> for LinkGraph {
    fn from(wire: v1::LinkGraph) -> Self {
        let link = |link: v1::GraphLink| {
            (link.from, link.to, Bandwidth::from_kbps(link.rate_kbytes_per_second))
        };
        Self {
            name: wire.name,
            gpus: wire.gpus,
            switches: wire.switches,
            links: wire.links.into_iter().map(link).collect(),
        }
    }
}

impl From<&Fault> for v1::Fault {
    fn from(fault: &Fault) -> Self {
        Self {
            probe: fault.probe.clone(),
            place: fault.place.clone(),
            error: fault.error.clone(),
            at_unix_ms: fault.at_unix_ms,
            kind: v1::FaultKind::from(fault.kind).into(),
        }
    }
}

impl TryFrom<v1::Fault> for Fault {
    type Error = WireError;

    fn try_from(wire: v1::Fault) -> Result<Self, WireError> {
        Ok(Self {
            probe: wire.probe,
            place: wire.place,
            // A peer of before there were kinds tells none.
            kind: some("Fault.kind", wire.kind)?.unwrap_or_default(),
            error: wire.error,
            at_unix_ms: wire.at_unix_ms,
        })
    }
}
