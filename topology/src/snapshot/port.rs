//! Facts of a NIC port beyond its place and rate.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// One entry of a port's table of global identifiers. The address itself is not recorded, only how far it reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gid {
    /// Its place in the table, what `NCCL_IB_GID_INDEX` names.
    pub index: u32,
    /// Protocol.
    pub kind: GidKind,
    /// How far its address reaches.
    pub scope: GidScope,
    /// The interface whose address it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
}

/// Protocol of a GID entry, from `gid_attrs/types`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GidKind {
    /// InfiniBand, or version 1 of RoCE: not routable over IP.
    IbOrRoceV1,
    /// Version 2 of RoCE, over UDP.
    RoceV2,
}

/// How far the address of a GID reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GidScope {
    /// `fe80::/64`: the subnet, and the default of InfiniBand.
    LinkLocal,
    /// An IPv4 address.
    Ipv4,
    /// `fc00::/7`: the site.
    UniqueLocal,
    /// Any other.
    Global,
}

impl Gid {
    /// Whether packets of this entry pass routers.
    #[must_use]
    pub fn is_routable(&self) -> bool {
        self.kind == GidKind::RoceV2 && self.scope != GidScope::LinkLocal
    }
}

/// Error counters of a port since the driver started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PortCounters {
    /// Times the link went down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_downed: Option<u64>,
    /// Times the link recovered from errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_error_recovery: Option<u64>,
    /// Symbols with errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol_errors: Option<u64>,
    /// Packets with errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_errors: Option<u64>,
}

/// A link aggregate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bond {
    /// Its interface.
    pub name: String,
    /// The kernel's word for its mode: `802.3ad`, `active-backup`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// In the kernel's order.
    pub members: Vec<BondMember>,
}

/// A leg of a bond.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BondMember {
    /// Its interface.
    pub name: String,
    /// Whether it is up (`bonding_slave/mii_status`, else `operstate`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
    /// Line rate in Mbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbit: Option<u64>,
}
