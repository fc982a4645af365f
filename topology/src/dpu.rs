//! NICs that are computers of their own: what a host knows of the DPU behind a port.
//!
//! ```text
//!   0000:03:00.0  network function      the port that the NIC is
//!   0000:03:00.1  network function      its sibling: a second port of the card
//!   0000:03:00.2  management function   the way to the cores on the card (rshim)
//!   0000:03:02.3  virtual function      of 03:00.0
//! ```
//!
//! Models are told by PCI device ids. In DPU mode the card's own cores hold its switch, and traffic of the host's ports passes it; in NIC
//! mode the card is an adapter like others (NVIDIA's documents of BlueField call these modes of operation). Which of the two holds, no
//! file of the host tells: it is a setting in the card's firmware, and the kernel says who holds the switch to privileged callers of
//! devlink alone. On the card's own cores the network function is there in DPU mode only, so a host that is a BlueField knows.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::Serialize;

use crate::snapshot::{Nic, PciDevice};
use crate::{BusId, Snapshot};

const MELLANOX: u16 = 0x15b3;

/// Network functions by device id (PCI ID registry).
const MODELS: [(u16, &str); 6] = [
    (0xa2d2, "BlueField"),
    (0xa2d3, "BlueField"),
    (0xa2d6, "BlueField-2"),
    (0xa2d9, "BlueField-3 Lx"),
    (0xa2dc, "BlueField-3"),
    (0xa2df, "BlueField-4"),
];

/// Functions that lead to the cores on the card: auxiliary channel, and management interface of each model.
const MANAGEMENT: [u16; 6] = [0xc2d1, 0xc2d2, 0xc2d3, 0xc2d4, 0xc2d5, 0xc2d6];

/// A DPU as its host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dpu {
    /// `BlueField-3`.
    pub model: &'static str,
    /// Who holds the card's switch.
    pub mode: DpuMode,
    /// How one knows, or why not.
    pub reason: &'static str,
    /// Functions of the card that the host sees, by address.
    pub functions: Vec<DpuFunction>,
}

/// Mode of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DpuMode {
    /// The cores on the card hold its switch (embedded CPU function ownership).
    Dpu,
    /// Not known.
    Unknown,
}

/// One function of a DPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DpuFunction {
    /// Its address.
    pub bus_id: BusId,
    /// What it is.
    pub kind: DpuFunctionKind,
}

/// What a function of a DPU is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DpuFunctionKind {
    /// A port.
    Network,
    /// A share of a port, for a guest.
    Virtual,
    /// The way to the cores on the card.
    Management,
    /// Anything else the card has.
    Other,
}

/// Whether a function leads to the cores on a DPU, so that it is worth keeping though no traffic passes it.
#[must_use]
pub fn is_management(vendor: Option<u16>, device: Option<u16>) -> bool {
    vendor == Some(MELLANOX) && device.is_some_and(|device| MANAGEMENT.contains(&device))
}

fn model(device: &PciDevice) -> Option<&'static str> {
    let id = device.device.filter(|_| device.vendor == Some(MELLANOX))?;
    MODELS.iter().find(|(known, _)| *known == id).map(|(_, model)| *model)
}

/// The DPU that a NIC is a port of; `None` where it is none, or its device id is not told.
#[must_use]
pub fn of_nic(snapshot: &Snapshot, nic: &Nic) -> Option<Dpu> {
    let device = |id: BusId| snapshot.pci_devices.iter().find(|device| device.bus_id == id);
    let own = device(nic.bus_id?)?;
    let physical = device(physical_id(own)).unwrap_or(own);
    let model = model(physical).or_else(|| model(own))?;
    let slot = |id: BusId| (id.domain(), id.bus(), id.device());
    let is_of_card = |device: &&PciDevice| {
        device.vendor == Some(MELLANOX) && slot(physical_id(device)) == slot(physical_id(own))
    };
    let mut functions: Vec<DpuFunction> = snapshot
        .pci_devices
        .iter()
        .filter(is_of_card)
        .map(|device| DpuFunction { bus_id: device.bus_id, kind: kind(device) })
        .collect();
    functions.sort_by_key(|function| function.bus_id);
    let is_card_itself =
        snapshot.host.product.as_deref().is_some_and(|product| product.contains("BlueField"));
    let (mode, reason) = match is_card_itself {
        true => (DpuMode::Dpu, "this host is the DPU itself, and it has the port"),
        false => (DpuMode::Unknown, "no file of the host tells; the card's firmware settings do"),
    };
    Some(Dpu { model, mode, reason, functions })
}

/// Of a virtual function the one it is a share of, else the function itself.
fn physical_id(device: &PciDevice) -> BusId {
    device.physical_function.unwrap_or(device.bus_id)
}

fn kind(device: &PciDevice) -> DpuFunctionKind {
    if device.physical_function.is_some() {
        DpuFunctionKind::Virtual
    } else if is_management(device.vendor, device.device) {
        DpuFunctionKind::Management
    } else if model(device).is_some() {
        DpuFunctionKind::Network
    } else {
        DpuFunctionKind::Other
    }
}

impl Dpu {
    /// In words: `BlueField-3, mode unknown; functions seen: 2 network, 1 management`.
    #[must_use]
    pub fn summary(&self) -> String {
        let count = |kind| self.functions.iter().filter(|f| f.kind == kind).count();
        let kinds = [
            (DpuFunctionKind::Network, "network"),
            (DpuFunctionKind::Virtual, "virtual"),
            (DpuFunctionKind::Management, "management"),
            (DpuFunctionKind::Other, "other"),
        ];
        let counts: Vec<String> = kinds
            .into_iter()
            .map(|(kind, word)| (count(kind), word))
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        let mode = match self.mode {
            DpuMode::Dpu => "DPU mode",
            DpuMode::Unknown => "mode unknown",
        };
        format!("{}, {mode}; functions seen: {}", self.model, counts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{PciKind, Source};

    fn function(id: &str, kind: PciKind, device: u16, of: Option<&str>) -> PciDevice {
        PciDevice {
            vendor: Some(MELLANOX),
            device: Some(device),
            physical_function: of.map(|of| of.parse().unwrap()),
            ..PciDevice::new(id.parse().unwrap(), kind)
        }
    }

    fn host() -> Snapshot {
        let mut host = Snapshot::new(Source::Live);
        host.pci_devices = alloc::vec![
            function("0000:03:00.0", PciKind::Nic, 0xa2dc, None),
            function("0000:03:00.1", PciKind::Nic, 0xa2dc, None),
            function("0000:03:00.2", PciKind::Other, 0xc2d5, None),
            function("0000:03:02.3", PciKind::Nic, 0x101e, Some("0000:03:00.0")),
            // Another card, and one that is no DPU.
            function("0000:04:00.0", PciKind::Nic, 0xa2dc, None),
            function("0000:05:00.0", PciKind::Nic, 0x1021, None),
        ];
        host
    }

    fn nic(id: &str) -> Nic {
        Nic { bus_id: Some(id.parse().unwrap()), ..Nic::new("mlx5_0") }
    }

    #[test]
    fn functions_of_the_card_alone() {
        let host = host();
        for id in ["0000:03:00.0", "0000:03:00.1", "0000:03:02.3"] {
            let dpu = of_nic(&host, &nic(id)).unwrap();
            assert_eq!(
                dpu.summary(),
                "BlueField-3, mode unknown; functions seen: 2 network, 1 virtual, 1 management"
            );
        }
        let alone = of_nic(&host, &nic("0000:04:00.0")).unwrap();
        assert_eq!(alone.functions.len(), 1);
        assert_eq!(of_nic(&host, &nic("0000:05:00.0")), None);
        assert_eq!(of_nic(&host, &Nic::new("eth0")), None);
    }

    #[test]
    fn the_card_itself_knows_its_mode() {
        let mut host = host();
        host.host.product = Some("BlueField-3 DPU".into());
        assert_eq!(of_nic(&host, &nic("0000:03:00.0")).unwrap().mode, DpuMode::Dpu);
    }
}
