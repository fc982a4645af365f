//! PCIe links below what both ends can do.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::ToString;

use super::Examination;
use super::device::Devices;
use crate::snapshot::{PciDevice, PciKind, PcieLink, PcieLinkFacts};
use crate::{BusId, Severity};

pub(super) fn examine(devices: &Devices<'_>, found: &mut Examination) {
    width_reduced(devices, found);
    rate_reduced(devices, found);
    slot_narrower(devices, found);
    slower_than_siblings(devices, found);
}

fn capable(link: &PcieLinkFacts) -> impl Iterator<Item = PcieLink> {
    [link.device_capable, link.slot_capable].into_iter().flatten()
}

fn width_reduced(devices: &Devices<'_>, found: &mut Examination) {
    for device in &devices.snapshot.pci_devices {
        let trained = device.link.trained.map(|l| l.width).filter(|w| *w > 0);
        let capable = capable(&device.link).map(|l| l.width).filter(|w| *w > 0).min();
        if let (Some(trained), Some(capable)) = (trained, capable)
            && trained < capable
        {
            found.finding(
                "pcie-width-reduced",
                Severity::Degraded,
                device.bus_id.to_string(),
                format!("trained x{trained}, both ends can do x{capable}"),
                "reseat the card or its riser; a link never narrows to save power",
            );
        }
    }
}

/// For NICs and switches alone: a GPU's link slows down when idle, theirs do not, unless the kernel put them to
/// sleep.
fn rate_reduced(devices: &Devices<'_>, found: &mut Examination) {
    let nics: BTreeSet<BusId> = devices.snapshot.nics.iter().filter_map(|nic| nic.bus_id).collect();
    for device in &devices.snapshot.pci_devices {
        let code = match device.kind {
            _ if device.suspended == Some(true) => continue,
            PciKind::Nic if nics.contains(&device.bus_id) => "nic-pcie-rate-reduced",
            PciKind::Switch => "pcie-rate-reduced",
            _ => continue,
        };
        let trained = device.link.trained.map(|l| l.mtps).filter(|m| *m > 0);
        let capable = capable(&device.link).map(|l| l.mtps).filter(|m| *m > 0).min();
        if let (Some(trained), Some(capable)) = (trained, capable)
            && trained < capable
        {
            found.finding(
                code,
                Severity::Degraded,
                device.bus_id.to_string(),
                format!("trained at {trained} MT/s, both ends can do {capable} MT/s"),
                "reseat the card; check the slot's speed setting in firmware",
            );
        }
    }
}

/// A card in a slot with fewer lanes works as the board was built; worth knowing all the same.
fn slot_narrower(devices: &Devices<'_>, found: &mut Examination) {
    let ends = devices.gpus().map(|(_, id)| id).chain(devices.fabric_nics().map(|(_, id)| id));
    for device in ends.filter_map(|id| devices.function(id)) {
        let (Some(own), Some(slot)) = (device.link.device_capable, device.link.slot_capable) else {
            continue;
        };
        if slot.width > 0 && slot.width < own.width {
            found.finding(
                "pcie-slot-narrower",
                Severity::Info,
                device.bus_id.to_string(),
                format!("the card can do x{}, its slot x{}", own.width, slot.width),
                "use a full slot where the board has a free one",
            );
        }
    }
}

/// A NIC or GPU whose PCIe link carries less than that of its siblings of the same model.
fn slower_than_siblings(devices: &Devices<'_>, found: &mut Examination) {
    let lanes = |link: &PcieLinkFacts| match link.usable() {
        (Some(mtps), Some(width)) => Some(u64::from(mtps) * u64::from(width)),
        _ => None,
    };
    let gpus: BTreeSet<BusId> = devices.gpus().map(|(_, id)| id).collect();
    let nics: BTreeSet<BusId> = devices.snapshot.nics.iter().filter_map(|nic| nic.bus_id).collect();
    for (code, members) in [("gpu-slower-than-siblings", gpus), ("nic-slower-than-siblings", nics)]
    {
        let of_them = || members.iter().filter_map(|id| devices.function(*id));
        for device in of_them() {
            let same =
                |other: &&PciDevice| (other.vendor, other.device) == (device.vendor, device.device);
            let most = of_them().filter(same).filter_map(|other| lanes(&other.link)).max();
            if let (Some(own), Some(most)) = (lanes(&device.link), most)
                && own < most
            {
                found.finding(
                    code,
                    Severity::Degraded,
                    device.bus_id.to_string(),
                    format!(
                        "its PCIe link carries {} % of what its siblings' carry",
                        own * 100 / most
                    ),
                    "move the card to a full slot, or reseat it",
                );
            }
        }
    }
}
