//! What stands between PCI functions that would reach each other without the CPU.

use serde::{Deserialize, Serialize};

use crate::GpuIndex;

/// Access Control Services of a port, two registers of its extended capability 0x000d (PCI Express base
/// specification, 7.7.11). A function whose configuration space was read and has no such capability supports
/// nothing: both are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acs {
    /// Bits it supports.
    pub supported: u16,
    /// Bits that are on.
    pub enabled: u16,
}

impl Acs {
    /// Source validation.
    pub const SOURCE_VALIDATION: u16 = 1 << 0;
    /// Peer-to-peer requests go to the root complex.
    pub const REQUEST_REDIRECT: u16 = 1 << 2;
    /// Peer-to-peer completions go to the root complex.
    pub const COMPLETION_REDIRECT: u16 = 1 << 3;
    /// Requests from below that aim back below are forwarded up.
    pub const UPSTREAM_FORWARDING: u16 = 1 << 4;

    /// Whether traffic between peers takes the way over the root complex.
    #[must_use]
    pub const fn redirects(self) -> bool {
        self.enabled & (Self::REQUEST_REDIRECT | Self::COMPLETION_REDIRECT) != 0
    }
}

/// The IOMMU group of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IommuGroup {
    /// The kernel's number. Members of one group are not isolated from each other.
    pub group: u32,
    /// Kind of its default domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<IommuDomain>,
}

/// Kind of an IOMMU domain, as the kernel's `type` file of a group words it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IommuDomain {
    /// Addresses pass as they are.
    Identity,
    /// Addresses are translated.
    Dma,
    /// Addresses are translated, and mappings torn down lazily.
    DmaFq,
    /// A driver such as vfio manages it.
    Unmanaged,
    /// No address passes.
    Blocked,
}

/// What the driver says of one GPU's access to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerAccess {
    /// The other GPU.
    pub peer: GpuIndex,
    /// Reading its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<PeerStatus>,
    /// Writing its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<PeerStatus>,
    /// Over NVLink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<PeerStatus>,
    /// Atomic operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub atomics: Option<PeerStatus>,
    /// Over PCIe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PeerStatus>,
}

/// `nvmlGpuP2PStatus_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerStatus {
    /// Works.
    Ok,
    /// The chipset does not support it.
    ChipsetNotSupported,
    /// The GPU does not support it.
    GpuNotSupported,
    /// The way between the root complexes does not support it.
    TopologyNotSupported,
    /// Turned off by an option of the driver.
    DisabledByRegkey,
    /// Not supported.
    NotSupported,
    /// The driver does not know.
    Unknown,
}

impl PeerStatus {
    /// The status in words, as evidence.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Ok => "works",
            Self::ChipsetNotSupported => "the chipset does not support it",
            Self::GpuNotSupported => "the GPU does not support it",
            Self::TopologyNotSupported => "the root complexes between them do not forward it",
            Self::DisabledByRegkey => "a driver option turns it off",
            Self::NotSupported => "not supported",
            Self::Unknown => "the driver does not know",
        }
    }
}
