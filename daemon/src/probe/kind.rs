//! What kind of function each is, by class code and place in the tree.
//!
//! ```text
//!   host bridge ── RootPort ── Gpu                       a link joins two chips
//!               └─ RootPort ── Switch ┬─ SwitchPort ── Gpu
//!                                     └─ SwitchPort ── Switch ┬─ ...
//! ```
//!
//! The port type is also in the PCIe capability, past the 64 bytes of configuration space that everyone may read;
//! the place says the same to all: below a root port or a switch's downstream port comes an upstream port or an
//! endpoint, below an upstream port come downstream ports.

use std::collections::{BTreeMap, BTreeSet};

use topology::BusId;
use topology::snapshot::PciKind;

use super::pci::PciFunction;

/// PCI vendor id of NVIDIA.
pub(super) const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;
const INTEL: u16 = 0x8086;

/// Vendors whose display functions are not for computing: board controllers (ASPEED, Matrox) and the displays of
/// virtual machines (Cirrus, QEMU, Red Hat, virtio, VMware, VirtualBox, Hyper-V).
const DISPLAY_ONLY: [u16; 9] =
    [0x1a03, 0x102b, 0x1013, 0x1234, 0x1b36, 0x1af4, 0x15ad, 0x80ee, 0x1414];

/// Class and subclass, the upper 16 bits of the class code.
mod class {
    pub(super) const NETWORK: u32 = 0x02;
    pub(super) const DISPLAY: u32 = 0x03;
    pub(super) const VGA: u32 = 0x0300;
    pub(super) const HOST_BRIDGE: u32 = 0x0600;
    pub(super) const PCI_BRIDGE: u32 = 0x0604;
    pub(super) const OTHER_BRIDGE: u32 = 0x0680;
    pub(super) const INFINIBAND: u32 = 0x0c06;
    pub(super) const ACCELERATOR: u32 = 0x1200;
}

/// Whether a function is a GPU that computes.
pub(super) fn is_gpu(function: &PciFunction) -> bool {
    let (Some(code), Some(vendor)) = (function.class, function.vendor) else { return false };
    let class = code >> 8;
    // A virtual function of a GPU is a part that a guest gets, not another GPU of the host.
    if function.is_virtual || DISPLAY_ONLY.contains(&vendor) {
        return false;
    }
    match vendor {
        NVIDIA => class >> 8 == class::DISPLAY,
        AMD => class >> 8 == class::DISPLAY || class == class::ACCELERATOR,
        // A VGA function on the root bus is part of the processor.
        INTEL => class >> 8 == class::DISPLAY && (class != class::VGA || function.parent.is_some()),
        _ => class >> 8 == class::DISPLAY && class != class::VGA,
    }
}

/// Whether a function is an NVSwitch.
pub(super) fn is_nvswitch(function: &PciFunction) -> bool {
    function.vendor == Some(NVIDIA)
        && function.class.map(|class| class >> 8) == Some(class::OTHER_BRIDGE)
}

/// Whether a function is a NIC, virtual ones aside.
pub(super) fn is_nic(function: &PciFunction) -> bool {
    let class = function.class.map(|class| class >> 8);
    let nic = class.is_some_and(|class| class >> 8 == class::NETWORK || class == class::INFINIBAND);
    nic && !function.is_virtual
}

/// The kind of each function in `kept`; those in `nics` hold a port that was found.
pub(super) fn kinds(
    functions: &BTreeMap<BusId, PciFunction>,
    kept: &BTreeSet<BusId>,
    nics: &BTreeSet<BusId>,
) -> BTreeMap<BusId, PciKind> {
    let parents: BTreeSet<BusId> =
        kept.iter().filter_map(|bus_id| functions.get(bus_id)?.parent).collect();
    let mut kinds = BTreeMap::new();
    for bus_id in kept {
        kind(*bus_id, functions, &parents, nics, &mut kinds);
    }
    kinds
}

fn kind(
    bus_id: BusId,
    functions: &BTreeMap<BusId, PciFunction>,
    parents: &BTreeSet<BusId>,
    nics: &BTreeSet<BusId>,
    kinds: &mut BTreeMap<BusId, PciKind>,
) -> PciKind {
    if let Some(kind) = kinds.get(&bus_id) {
        return *kind;
    }
    let Some(function) = functions.get(&bus_id) else { return PciKind::Other };
    let class = function.class.map(|class| class >> 8);
    let bridge = class == Some(class::PCI_BRIDGE)
        || parents.contains(&bus_id) && class != Some(class::HOST_BRIDGE);
    let found = if is_gpu(function) {
        PciKind::Gpu
    } else if is_nvswitch(function) {
        PciKind::NvSwitch
    } else if is_nic(function) || nics.contains(&bus_id) {
        PciKind::Nic
    } else if bridge {
        // Parents lie in the directories above, so they cannot run in a circle.
        match function.parent.map(|parent| kind(parent, functions, parents, nics, kinds)) {
            None => PciKind::RootPort,
            Some(PciKind::Switch) => PciKind::SwitchPort,
            Some(_) => PciKind::Switch,
        }
    } else {
        PciKind::Other
    };
    kinds.insert(bus_id, found);
    found
}

/// Whether the link files of a function of this kind are about the link below it; else they are about the one
/// above.
pub(super) fn links_below(kind: PciKind) -> bool {
    matches!(kind, PciKind::RootPort | PciKind::SwitchPort)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(class: u32, vendor: u16, parent: bool, expect: bool) {
        let parent = parent.then(|| "00:01.0".parse().unwrap());
        let function = PciFunction {
            class: Some(class),
            vendor: Some(vendor),
            parent,
            ..PciFunction::default()
        };
        assert_eq!(is_gpu(&function), expect, "{vendor:04x} {class:06x}");
        assert!(!is_gpu(&PciFunction { is_virtual: true, ..function }));
    }

    #[test]
    fn gpus() {
        check(0x030200, NVIDIA, true, true);
        check(0x030000, NVIDIA, true, true);
        check(0x040300, NVIDIA, true, false);
        check(0x068000, NVIDIA, true, false);
        check(0x120000, AMD, true, true);
        check(0x038000, AMD, true, true);
        check(0x030000, INTEL, false, false);
        check(0x030000, INTEL, true, true);
        check(0x038000, INTEL, true, true);
        check(0x030000, 0x1a03, true, false);
        check(0x038000, 0x1af4, false, false);
        check(0x030200, 0x9999, true, true);
    }
}
