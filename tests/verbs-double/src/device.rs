//! Devices, their ports and what those are called.

use crate::abi::gid_type;
use crate::config::{Config, GidKind, LinkLayer};

/// In network order.
pub(crate) type GidBytes = [u8; 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) bytes: GidBytes,
    /// As `enum ibv_gid_type`.
    pub(crate) kind: u32,
}

#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) active: bool,
    /// 0 on Ethernet.
    pub(crate) lid: u16,
    /// The table as far as it has entries.
    pub(crate) gids: Vec<Option<Gid>>,
}

/// Length of the tables that ports tell, empty entries included.
pub(crate) const GID_TABLE: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    /// It said that it failed: nothing completes, nothing new is made.
    Fatal,
    /// It is not there any more.
    Gone,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) guid: u64,
    pub(crate) link_layer: LinkLayer,
    pub(crate) subnet: u16,
    pub(crate) ports: Vec<Port>,
    pub(crate) health: Health,
    /// Messages that left it, each counted once.
    pub(crate) messages: u64,
    /// Bytes of memory that are registered.
    pub(crate) pinned: u64,
}

/// The GUID of a device or, from 1 on, of its port: a made-up vendor's, with the modified EUI-64's middle.
fn guid(device: usize, port: u8) -> u64 {
    0x0250_c2ff_fe00_0000 | (device as u64 & 0xffff) << 8 | u64::from(port)
}

fn joined(prefix: u64, interface: u64) -> GidBytes {
    (u128::from(prefix) << 64 | u128::from(interface)).to_be_bytes()
}

const LINK_LOCAL: u64 = 0xfe80_0000_0000_0000;

fn roce_gid(kind: GidKind, device: usize, port: u8) -> Option<Gid> {
    let last = device as u64 & 0xff;
    let version = |version| if version == 1 { gid_type::ROCE_V1 } else { gid_type::ROCE_V2 };
    let (bytes, kind) = match kind {
        GidKind::Empty => return None,
        GidKind::LinkLocal(v) => (joined(LINK_LOCAL, guid(device, port)), v),
        // 10.0.PORT.(DEVICE + 1), as an IPv4-mapped address.
        GidKind::V4(v) => {
            (joined(0, 0xffff << 32 | 10 << 24 | u64::from(port) << 8 | (last + 1)), v)
        }
        GidKind::V6(v) => (joined(0xfd00_0000_0000_0000 | u64::from(port), last + 1), v),
    };
    Some(Gid { bytes, kind: version(kind) })
}

impl Device {
    pub(crate) fn new(config: &Config, number: usize) -> Self {
        let link_layer = config.link_layer(number);
        let subnet = config.subnet(number);
        let port = |port: u8| match link_layer {
            LinkLayer::InfiniBand => {
                let prefix = LINK_LOCAL | u64::from(subnet);
                let bytes = joined(prefix, guid(number, port));
                // LIDs from 1 on; 0 is reserved.
                let lid = number * usize::from(config.ports) + usize::from(port);
                Port {
                    active: true,
                    lid: u16::try_from(lid).unwrap_or(u16::MAX),
                    gids: vec![Some(Gid { bytes, kind: gid_type::IB })],
                }
            }
            LinkLayer::Ethernet => Port {
                active: true,
                lid: 0,
                gids: config.gids.iter().map(|kind| roce_gid(*kind, number, port)).collect(),
            },
        };
        Self {
            name: config.name(number),
            guid: guid(number, 0),
            link_layer,
            subnet,
            ports: (1..=config.ports).map(port).collect(),
            health: Health::Well,
            messages: 0,
            pinned: 0,
        }
    }

    /// Ports are numbered from 1.
    pub(crate) fn port(&self, number: u32) -> Option<&Port> {
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        self.ports.get(place)
    }

    pub(crate) fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(number).checked_sub(1)?)
    }
}
