//! PCI configuration space, as far as topology needs it.
//!
//! Layout as in the PCI Express base specification: a type 0 or 1 header, the PCI Express capability at 0x40,
//! and for ports that have it the Access Control Services capability at 0x100.

use crate::machine::{Function, FunctionKind, PortLink};

/// What an unprivileged reader sees.
const HEADER_BYTES: usize = 64;
/// Without PCI Express.
const CONVENTIONAL_BYTES: usize = 256;
const EXPRESS_BYTES: usize = 4096;

const EXPRESS_CAPABILITY: usize = 0x40;
const ACS_CAPABILITY: usize = 0x100;
/// Source validation, translation blocking, request and completion redirect, upstream forwarding.
const ACS_SUPPORTED: u16 = 0x1f;

/// Bus numbers behind a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buses {
    pub(crate) secondary: u8,
    pub(crate) subordinate: u8,
}

/// The bytes of a function's `config` file.
pub(crate) fn bytes(function: &Function, buses: Option<Buses>, privileged: bool) -> Vec<u8> {
    let length = if function.link.is_some() { EXPRESS_BYTES } else { CONVENTIONAL_BYTES };
    let mut space = vec![0; length];
    let ids = function.ids;
    put16(&mut space, 0x00, ids.vendor);
    put16(&mut space, 0x02, ids.device);
    // Memory space and bus mastering enabled.
    put16(&mut space, 0x04, 0x0006);
    space[0x09..0x0c].copy_from_slice(&ids.class.to_le_bytes()[..3]);
    match buses {
        Some(buses) => {
            space[0x0e] = 1;
            space[0x18..0x1b].copy_from_slice(&[
                function.bus_id.bus(),
                buses.secondary,
                buses.subordinate,
            ]);
        }
        None => {
            put16(&mut space, 0x2c, ids.subsystem_vendor);
            put16(&mut space, 0x2e, ids.subsystem_device);
        }
    }
    if let Some(link) = function.link {
        // Status: there is a list of capabilities.
        put16(&mut space, 0x06, 0x0010);
        space[0x34] = 0x40;
        express(&mut space, function.kind, link);
        if let Some(control) = function.acs {
            space[ACS_CAPABILITY..ACS_CAPABILITY + 4]
                .copy_from_slice(&0x0001_000d_u32.to_le_bytes());
            put16(&mut space, ACS_CAPABILITY + 4, ACS_SUPPORTED);
            put16(&mut space, ACS_CAPABILITY + 6, control);
        }
    }
    if !privileged {
        space.truncate(HEADER_BYTES);
    }
    space
}

fn express(space: &mut [u8], kind: FunctionKind, link: PortLink) {
    let port_type = match kind {
        FunctionKind::Endpoint => 0,
        FunctionKind::RootPort => 4,
        FunctionKind::UpstreamPort => 5,
        FunctionKind::DownstreamPort => 6,
    };
    let code = |mtps: u32| {
        [2_500, 5_000, 8_000, 16_000, 32_000, 64_000].iter().position(|rate| *rate == mtps)
    };
    let speed = |mtps: u32| code(mtps).and_then(|code| u16::try_from(code + 1).ok()).unwrap_or(0);
    let field = |mtps, width: u8| speed(mtps) | u16::from(width) << 4;
    put16(space, EXPRESS_CAPABILITY, 0x0010);
    // Version 2 of the capability.
    put16(space, EXPRESS_CAPABILITY + 0x02, 2 | port_type << 4);
    put16(space, EXPRESS_CAPABILITY + 0x0c, field(link.max.mtps, link.max.width));
    put16(space, EXPRESS_CAPABILITY + 0x12, field(link.trained.mtps, link.trained.width));
    // Supported speeds: a bit for each generation up to the best.
    let vector = (1..=speed(link.max.mtps)).fold(0, |vector, generation| vector | 1 << generation);
    put16(space, EXPRESS_CAPABILITY + 0x2c, vector);
}

fn put16(space: &mut [u8], at: usize, value: u16) {
    space[at..at + 2].copy_from_slice(&value.to_le_bytes());
}
