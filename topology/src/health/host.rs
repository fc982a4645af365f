//! The host as a whole: GPUs that are gone, flat trees, advice by processor.

use alloc::format;

use super::Examination;
use super::device::Devices;
use crate::Severity;
use crate::snapshot::{FaultKind, LinkLayer, PciKind};

pub(super) fn examine(devices: &Devices<'_>, found: &mut Examination) {
    lost(devices, found);
    flat(devices, found);
    relaxed_ordering(devices, found);
}

/// A device that fell off the bus. Others that could not be read leave the verdict unknown.
fn lost(devices: &Devices<'_>, found: &mut Examination) {
    for fault in &devices.snapshot.faults {
        if fault.kind == FaultKind::Lost {
            found.finding(
                "gpu-lost",
                Severity::Critical,
                fault.place.clone(),
                fault.error.clone(),
                "see dmesg for Xid 79; reset the GPU or reboot; if it comes back, have the board serviced",
            );
        }
    }
}

/// In a guest whose every device is on the root bus, distances are invented by whoever looks at them.
fn flat(devices: &Devices<'_>, found: &mut Examination) {
    let snapshot = devices.snapshot;
    let ends =
        |kind: PciKind| snapshot.pci_devices.iter().filter(move |device| device.kind == kind);
    let count = ends(PciKind::Gpu).count() + ends(PciKind::Nic).count();
    let on_the_root_bus = ends(PciKind::Gpu).chain(ends(PciKind::Nic)).all(|d| d.parent.is_none());
    if devices.is_virtual_machine()
        && count > 1
        && ends(PciKind::Gpu).count() > 0
        && on_the_root_bus
    {
        found.finding(
            "vm-flat-pci",
            Severity::Info,
            "host",
            format!("a virtual machine with all {count} GPUs and NICs on the root bus: their distances are not known"),
            "give jobs a file made on the host below, with the guest's addresses: topoctl export --format nccl-topo --for-vm --map PAIRS, then NCCL_TOPO_FILE",
        );
    }
}

/// Processors on which PCIe writes need relaxed ordering for their full rate (openucx/ucx#10955).
fn relaxed_ordering(devices: &Devices<'_>, found: &mut Examination) {
    let amd = |vendor: &Option<_>| vendor.as_deref() == Some("AuthenticAMD");
    let snapshot = devices.snapshot;
    let infiniband = devices.fabric_nics().any(|(nic, _)| {
        nic.port.is_some()
            && matches!(nic.link_layer, Some(LinkLayer::Infiniband | LinkLayer::Ethernet))
    });
    let vendors = snapshot.numa_nodes.iter().map(|node| &node.cpu.vendor);
    if infiniband && !snapshot.gpus.is_empty() && vendors.clone().any(amd) {
        let family = snapshot.numa_nodes.iter().find_map(|node| node.cpu.family);
        found.finding(
            "relaxed-ordering-advised",
            Severity::Info,
            "host",
            format!(
                "AMD processor{}: NIC transfers reach their rate with PCIe relaxed ordering alone",
                family.map(|family| format!(" of family {family}")).unwrap_or_default()
            ),
            "leave NCCL_IB_PCI_RELAXED_ORDERING at 2 or set 1; set UCX_IB_PCI_RELAXED_ORDERING=on; PCI_WR_ORDERING per_mkey in the NIC's firmware settings",
        );
    }
}
