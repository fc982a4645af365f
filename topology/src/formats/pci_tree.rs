//! PCI functions as a reader finds them, made to the tree that a snapshot holds.
//!
//! Kinds follow from class, vendor and place, as the live probe has them: below the host bridge come root ports, below
//! those a switch's upstream port, below that its downstream ports. Kept are GPUs, NICs, NVSwitches, the
//! functions that lead to DPUs, and what is on their way to the host bridge.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use crate::snapshot::{PciDevice, PciKind, PcieLink, PcieLinkFacts};
use crate::{Bandwidth, BusId, dpu};

const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;

/// Display functions of AMD that are servers' console graphics: ES1000, RN50, Rage XL, Radeon 7000 (PCI ID registry).
const CONSOLE_GRAPHICS: [u16; 6] = [0x515e, 0x5969, 0x4752, 0x4753, 0x5159, 0x5955];

/// What a function is, where the source tells no class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guess {
    Gpu,
    Nic,
}

/// One function as found.
#[derive(Clone, Debug, Default)]
pub(super) struct Function {
    pub(super) parent: Option<BusId>,
    pub(super) host_bridge: Option<String>,
    /// 24 bits.
    pub(super) class: Option<u32>,
    pub(super) vendor: Option<u16>,
    pub(super) device: Option<u16>,
    pub(super) numa_node: Option<u32>,
    pub(super) guess: Option<Guess>,
    /// What the source calls a bridge to another bus.
    pub(super) is_bridge: bool,
    /// Of the function's own link: for a root port or a downstream port the one below it.
    pub(super) trained: Option<PcieLink>,
    pub(super) capable: Option<PcieLink>,
    /// Rate and width in one figure, as trained.
    pub(super) trained_total: Option<Bandwidth>,
}

impl Function {
    /// Class and subclass.
    fn class16(&self) -> u32 {
        self.class.unwrap_or(0) >> 8
    }

    pub(super) fn is_gpu(&self) -> bool {
        if let Some(guess) = self.guess {
            return guess == Guess::Gpu;
        }
        let display = self.class16() >> 8 == 0x03;
        match self.vendor {
            Some(NVIDIA) => display,
            Some(AMD) => {
                let console = self.device.is_some_and(|device| CONSOLE_GRAPHICS.contains(&device));
                display && !console || self.class16() == 0x12_00
            }
            _ => false,
        }
    }

    pub(super) fn is_nic(&self) -> bool {
        self.guess == Some(Guess::Nic) || self.class16() >> 8 == 0x02 || self.class16() == 0x0c_06
    }

    fn is_nvswitch(&self) -> bool {
        self.vendor == Some(NVIDIA) && self.class16() == 0x06_80
    }

    fn is_kept(&self) -> bool {
        self.is_gpu()
            || self.is_nic()
            || self.is_nvswitch()
            || dpu::is_management(self.vendor, self.device)
    }
}

/// All functions of a host.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree(pub(super) BTreeMap<BusId, Function>);

impl Tree {
    /// The functions worth keeping, with their kinds and links. A parent that is not there or leads back in a circle
    /// counts as none.
    pub(super) fn devices(&self) -> Vec<PciDevice> {
        let mut kinds = BTreeMap::new();
        for (id, function) in &self.0 {
            if function.is_kept() {
                self.settle(*id, &mut kinds);
            }
        }
        kinds
            .iter()
            .filter_map(|(id, (kind, parent))| self.device(*id, *kind, *parent, &kinds))
            .collect()
    }

    /// Kind and parent of a function and of all above it.
    fn settle(&self, id: BusId, kinds: &mut BTreeMap<BusId, (PciKind, Option<BusId>)>) {
        let mut way = Vec::new();
        let mut seen = BTreeSet::new();
        let mut at = Some(id);
        while let Some(here) = at {
            if kinds.contains_key(&here) || !seen.insert(here) {
                break;
            }
            way.push(here);
            at = self
                .0
                .get(&here)
                .and_then(|f| f.parent)
                .filter(|parent| self.0.contains_key(parent));
        }
        // From the host bridge down: the kind of a bridge depends on the one above.
        while let Some(here) = way.pop() {
            let Some(function) = self.0.get(&here) else { continue };
            let parent = function.parent.filter(|parent| kinds.contains_key(parent));
            let above = parent.and_then(|parent| kinds.get(&parent)).map(|(kind, _)| *kind);
            let kind = if function.is_gpu() {
                PciKind::Gpu
            } else if function.is_nvswitch() {
                PciKind::NvSwitch
            } else if function.is_nic() {
                PciKind::Nic
            } else if function.is_bridge || here != id {
                match above {
                    None => PciKind::RootPort,
                    Some(PciKind::Switch) => PciKind::SwitchPort,
                    Some(_) => PciKind::Switch,
                }
            } else {
                PciKind::Other
            };
            kinds.insert(here, (kind, parent));
        }
    }

    fn device(
        &self,
        id: BusId,
        kind: PciKind,
        parent: Option<BusId>,
        kinds: &BTreeMap<BusId, (PciKind, Option<BusId>)>,
    ) -> Option<PciDevice> {
        let function = self.0.get(&id)?;
        let is_port = |kind: PciKind| matches!(kind, PciKind::RootPort | PciKind::SwitchPort);
        let port = parent.filter(|id| kinds.get(id).is_some_and(|(kind, _)| is_port(*kind)));
        let port = port.and_then(|id| self.0.get(&id));
        let link = if is_port(kind) {
            // Its own link is the one below it, which the device there states.
            PcieLinkFacts::default()
        } else {
            let totals = [function.trained_total, port.and_then(|port| port.trained_total)];
            PcieLinkFacts {
                trained: function.trained,
                device_capable: function.capable,
                slot_capable: port.and_then(|port| port.capable),
                trained_total: totals.into_iter().flatten().min(),
            }
        };
        Some(PciDevice {
            parent,
            host_bridge: if parent.is_none() { function.host_bridge.clone() } else { None },
            class: function.class,
            vendor: function.vendor,
            device: function.device,
            numa_node: function.numa_node,
            link,
            ..PciDevice::new(id, kind)
        })
    }
}

/// The next address after a stated one that nothing has: some sources list functions under one address, and here an
/// address names one function.
pub(super) fn free_address(stated: BusId, used: impl Fn(BusId) -> bool) -> Option<BusId> {
    (stated.device()..32)
        .flat_map(|device| (0..8).map(move |function| (device, function)))
        .filter_map(|(device, function)| {
            BusId::new(stated.domain(), stated.bus(), device, function)
        })
        .find(|id| !used(*id))
}

/// Compute capability times ten of an NVIDIA GPU by its PCI device id: blocks of ids belong to one chip each (PCI ID
/// registry and the list of products in NVIDIA's open kernel modules, `g_nv_name_released.h`: GP100, GP10x, GV100, Turing, GA100,
/// GA10x, GH100, AD10x, GB100, GB110, GB20x). It decides the generation of NVLink, and so its rate.
pub(super) fn compute_capability(vendor: Option<u16>, device: Option<u16>) -> Option<u32> {
    if vendor != Some(NVIDIA) {
        return None;
    }
    match device? {
        0x15f0..=0x15ff => Some(60),
        0x1b00..=0x1d7f => Some(61),
        0x1d80..=0x1dff => Some(70),
        0x1e00..=0x1fff | 0x2180..=0x21ff => Some(75),
        0x2080..=0x20ff => Some(80),
        0x2200..=0x22ff | 0x2400..=0x25ff => Some(86),
        0x2300..=0x23ff => Some(90),
        0x2600..=0x28ff => Some(89),
        0x2900..=0x29ff => Some(100),
        0x3180..=0x31ff => Some(103),
        0x2b00..=0x2fff => Some(120),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> BusId {
        text.parse().unwrap()
    }

    fn function(class: u32, vendor: u16, parent: Option<&str>) -> Function {
        Function {
            class: Some(class),
            vendor: Some(vendor),
            parent: parent.map(id),
            is_bridge: class >> 8 == 0x06_04,
            ..Function::default()
        }
    }

    #[test]
    fn kinds_follow_from_the_place() {
        let bridge = 0x06_04_00;
        let tree = Tree(BTreeMap::from([
            (id("00:01.0"), function(bridge, 0x8086, None)),
            (id("01:00.0"), function(bridge, 0x1000, Some("00:01.0"))),
            (id("02:00.0"), function(bridge, 0x1000, Some("01:00.0"))),
            (id("03:00.0"), function(0x03_02_00, NVIDIA, Some("02:00.0"))),
            (id("02:01.0"), function(bridge, 0x1000, Some("01:00.0"))),
            (id("04:00.0"), function(bridge, 0x10b5, Some("02:01.0"))),
            (id("05:00.0"), function(bridge, 0x10b5, Some("04:00.0"))),
            (id("06:00.0"), function(0x02_07_00, 0x15b3, Some("05:00.0"))),
            (id("00:02.0"), function(bridge, 0x8086, None)),
            (id("07:00.0"), function(0x01_08_02, 0x144d, Some("00:02.0"))),
        ]));
        let kinds: Vec<(BusId, PciKind)> =
            tree.devices().into_iter().map(|device| (device.bus_id, device.kind)).collect();
        assert_eq!(
            kinds,
            [
                (id("00:01.0"), PciKind::RootPort),
                (id("01:00.0"), PciKind::Switch),
                (id("02:00.0"), PciKind::SwitchPort),
                (id("02:01.0"), PciKind::SwitchPort),
                (id("03:00.0"), PciKind::Gpu),
                (id("04:00.0"), PciKind::Switch),
                (id("05:00.0"), PciKind::SwitchPort),
                (id("06:00.0"), PciKind::Nic),
            ]
        );
    }

    #[test]
    fn a_circle_or_a_missing_parent_ends_the_way_up() {
        let mut gpu = function(0x03_02_00, NVIDIA, Some("02:00.0"));
        gpu.trained_total = Some(Bandwidth::from_mbps(8));
        let tree = Tree(BTreeMap::from([
            (id("01:00.0"), function(0x06_04_00, 1, Some("02:00.0"))),
            (id("02:00.0"), function(0x06_04_00, 1, Some("01:00.0"))),
            (id("03:00.0"), gpu),
            (id("04:00.0"), function(0x03_02_00, NVIDIA, Some("09:00.0"))),
        ]));
        let devices = tree.devices();
        assert_eq!(devices.len(), 4);
        let roots = devices.iter().filter(|device| device.parent.is_none()).count();
        assert_eq!(roots, 2);
    }

    #[test]
    fn gpus_by_vendor() {
        let check = |class, vendor, device, expect| {
            let function = Function { device: Some(device), ..function(class, vendor, None) };
            assert_eq!(function.is_gpu(), expect, "{vendor:04x}:{device:04x} {class:06x}");
        };
        check(0x03_02_00, NVIDIA, 0x2330, true);
        check(0x03_00_00, NVIDIA, 0x2684, true);
        check(0x06_80_00, NVIDIA, 0x22a3, false);
        check(0x12_00_00, AMD, 0x74a1, true);
        check(0x03_80_00, AMD, 0x66a1, true);
        check(0x03_00_00, AMD, 0x515e, false);
        check(0x03_00_00, 0x1a03, 0x2000, false);
        check(0x03_00_00, 0x8086, 0x0d26, false);
    }

    #[test]
    fn capabilities_by_device_id() {
        for (device, expect) in [
            (0x15f9, Some(60)),
            (0x1db1, Some(70)),
            (0x1eb8, Some(75)),
            (0x20b2, Some(80)),
            (0x2235, Some(86)),
            (0x2237, Some(86)),
            (0x2330, Some(90)),
            (0x2684, Some(89)),
            (0x2901, Some(100)),
            (0x2bb1, Some(120)),
            (0x06d2, None),
        ] {
            assert_eq!(compute_capability(Some(NVIDIA), Some(device)), expect, "{device:04x}");
        }
        assert_eq!(compute_capability(Some(AMD), Some(0x2330)), None);
        assert_eq!(compute_capability(Some(NVIDIA), None), None);
    }
}
