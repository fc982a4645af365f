//! Facts of hosts, functions, GPUs and ports beyond their place and rate.

use topology::snapshot::{
    Acs, Bond, BondMember, CpuTopology, Gid, GpuDirectFacts, GpuFabric, HostFacts, HostIdentity,
    Imex, IommuGroup, LinkErrors, PeerAccess, PeerStatus, PortCounters, ProcessLimits,
};
use topology::{CpuList, GpuIndex};

use super::enums::{required, some};
use super::{WireError, narrow_u16, some_cpus, to_each};
use crate::v1;

/// A message whose fields have the names and types of the domain's.
macro_rules! alike {
    ($($name:ident { $($field:ident),+ $(,)? })+) => {$(
        impl From<&$name> for v1::$name {
            fn from(value: &$name) -> Self {
                Self { $($field: value.$field.clone()),+ }
            }
        }

        impl From<v1::$name> for $name {
            fn from(wire: v1::$name) -> Self {
                Self { $($field: wire.$field),+ }
            }
        }
    )+};
}

alike! {
    GpuDirectFacts {
        peermem_loaded, peermem_registered, dma_buf_driver, dma_buf_kernel, p2pdma,
    }
    Imex { channels, peers, service_masked }
    HostIdentity { host, ipc_namespace, pid_namespace, shared_memory }
    LinkErrors { link, replay, recovery, crc }
    PortCounters { link_downed, link_error_recovery, symbol_errors, receive_errors }
    BondMember { name, up, mbit }
}

impl From<&HostFacts> for v1::HostFacts {
    fn from(host: &HostFacts) -> Self {
        let flags = |words: &Vec<String>| v1::KernelFlags { words: words.clone() };
        Self {
            vendor: host.vendor.clone(),
            product: host.product.clone(),
            hypervisor: host.hypervisor,
            kernel: host.kernel.clone(),
            kernel_flags: host.kernel_flags.as_ref().map(flags),
            iommu: host.iommu,
            driver: host.driver.clone(),
            gpudirect: host.gpudirect.as_ref().map(Into::into),
            confidential: host.confidential,
            imex: host.imex.as_ref().map(Into::into),
            cpus: host.cpus.as_ref().map(Into::into),
            limits: host.limits.as_ref().map(Into::into),
            identity: host.identity.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<v1::HostFacts> for HostFacts {
    type Error = WireError;

    fn try_from(wire: v1::HostFacts) -> Result<Self, WireError> {
        Ok(Self {
            vendor: wire.vendor,
            product: wire.product,
            hypervisor: wire.hypervisor,
            kernel: wire.kernel,
            kernel_flags: wire.kernel_flags.map(|flags| flags.words),
            iommu: wire.iommu,
            driver: wire.driver,
            gpudirect: wire.gpudirect.map(GpuDirectFacts::from),
            confidential: wire.confidential,
            imex: wire.imex.map(Imex::from),
            cpus: wire.cpus.map(CpuTopology::try_from).transpose()?,
            limits: wire.limits.map(ProcessLimits::try_from).transpose()?,
            identity: wire.identity.map(HostIdentity::from),
        })
    }
}

impl From<&CpuTopology> for v1::CpuTopology {
    fn from(cpus: &CpuTopology) -> Self {
        Self {
            packages: cpus.packages.iter().map(|(id, cpus)| (*id, cpus.to_string())).collect(),
            l3: cpus.l3.iter().map(ToString::to_string).collect(),
            cores: cpus.cores.iter().map(ToString::to_string).collect(),
        }
    }
}

impl TryFrom<v1::CpuTopology> for CpuTopology {
    type Error = WireError;

    fn try_from(wire: v1::CpuTopology) -> Result<Self, WireError> {
        let list = |field, text: &str| -> Result<CpuList, WireError> {
            text.parse().map_err(|source| WireError::CpuList { field, source })
        };
        let lists = |field, texts: Vec<String>| -> Result<Vec<CpuList>, WireError> {
            texts.iter().map(|text| list(field, text)).collect()
        };
        let packages = wire.packages.into_iter();
        Ok(Self {
            packages: packages
                .map(|(id, text)| Ok((id, list("CpuTopology.packages", &text)?)))
                .collect::<Result<_, WireError>>()?,
            l3: lists("CpuTopology.l3", wire.l3)?,
            cores: lists("CpuTopology.cores", wire.cores)?,
        })
    }
}

impl From<&ProcessLimits> for v1::ProcessLimits {
    fn from(limits: &ProcessLimits) -> Self {
        Self {
            cpus: limits.cpus.as_ref().map(ToString::to_string),
            numa_nodes: limits.numa_nodes.as_ref().map(ToString::to_string),
            memory_bytes: limits.memory_bytes,
            millicpus: limits.millicpus,
        }
    }
}

impl TryFrom<v1::ProcessLimits> for ProcessLimits {
    type Error = WireError;

    fn try_from(wire: v1::ProcessLimits) -> Result<Self, WireError> {
        Ok(Self {
            cpus: some_cpus("ProcessLimits.cpus", wire.cpus.as_deref())?,
            numa_nodes: some_cpus("ProcessLimits.numa_nodes", wire.numa_nodes.as_deref())?,
            memory_bytes: wire.memory_bytes,
            millicpus: wire.millicpus,
        })
    }
}

impl From<Acs> for v1::Acs {
    fn from(acs: Acs) -> Self {
        Self { supported: acs.supported.into(), enabled: acs.enabled.into() }
    }
}

impl TryFrom<v1::Acs> for Acs {
    type Error = WireError;

    fn try_from(wire: v1::Acs) -> Result<Self, WireError> {
        Ok(Self {
            supported: narrow_u16("Acs.supported", wire.supported)?,
            enabled: narrow_u16("Acs.enabled", wire.enabled)?,
        })
    }
}

impl From<IommuGroup> for v1::IommuGroup {
    fn from(iommu: IommuGroup) -> Self {
        let domain = iommu.domain.map_or(v1::IommuDomain::Unspecified, Into::into);
        Self { group: iommu.group, domain: domain.into() }
    }
}

impl TryFrom<v1::IommuGroup> for IommuGroup {
    type Error = WireError;

    fn try_from(wire: v1::IommuGroup) -> Result<Self, WireError> {
        Ok(Self { group: wire.group, domain: some("IommuGroup.domain", wire.domain)? })
    }
}

impl From<&PeerAccess> for v1::PeerAccess {
    fn from(access: &PeerAccess) -> Self {
        let wire = |status: Option<PeerStatus>| {
            status.map_or(v1::PeerStatus::Unspecified, Into::into).into()
        };
        Self {
            peer: access.peer.0,
            read: wire(access.read),
            write: wire(access.write),
            nvlink: wire(access.nvlink),
            atomics: wire(access.atomics),
            pcie: wire(access.pcie),
        }
    }
}

impl TryFrom<v1::PeerAccess> for PeerAccess {
    type Error = WireError;

    fn try_from(wire: v1::PeerAccess) -> Result<Self, WireError> {
        Ok(Self {
            peer: GpuIndex(wire.peer),
            read: some("PeerAccess.read", wire.read)?,
            write: some("PeerAccess.write", wire.write)?,
            nvlink: some("PeerAccess.nvlink", wire.nvlink)?,
            atomics: some("PeerAccess.atomics", wire.atomics)?,
            pcie: some("PeerAccess.pcie", wire.pcie)?,
        })
    }
}

impl From<&GpuFabric> for v1::GpuFabric {
    fn from(fabric: &GpuFabric) -> Self {
        Self {
            state: v1::FabricState::from(fabric.state).into(),
            status: fabric.status,
            cluster: fabric.cluster.clone(),
            clique: fabric.clique,
            health_mask: fabric.health_mask,
            health: fabric.health.map_or(v1::FabricHealth::Unspecified, Into::into).into(),
        }
    }
}

impl TryFrom<v1::GpuFabric> for GpuFabric {
    type Error = WireError;

    fn try_from(wire: v1::GpuFabric) -> Result<Self, WireError> {
        Ok(Self {
            state: required("GpuFabric.state", wire.state)?,
            status: wire.status,
            cluster: wire.cluster,
            clique: wire.clique,
            health_mask: wire.health_mask,
            health: some("GpuFabric.health", wire.health)?,
        })
    }
}

impl From<&Gid> for v1::Gid {
    fn from(gid: &Gid) -> Self {
        Self {
            index: gid.index,
            kind: v1::GidKind::from(gid.kind).into(),
            scope: v1::GidScope::from(gid.scope).into(),
            netdev: gid.netdev.clone(),
        }
    }
}

impl TryFrom<v1::Gid> for Gid {
    type Error = WireError;

    fn try_from(wire: v1::Gid) -> Result<Self, WireError> {
        Ok(Self {
            index: wire.index,
            kind: required("Gid.kind", wire.kind)?,
            scope: required("Gid.scope", wire.scope)?,
            netdev: wire.netdev,
        })
    }
}

impl From<&Bond> for v1::Bond {
    fn from(bond: &Bond) -> Self {
        Self { name: bond.name.clone(), mode: bond.mode.clone(), members: to_each(&bond.members) }
    }
}

impl From<v1::Bond> for Bond {
    fn from(wire: v1::Bond) -> Self {
        let members = wire.members.into_iter().map(BondMember::from).collect();
        Self { name: wire.name, mode: wire.mode, members }
    }
}
