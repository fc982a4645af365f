//! Access control and address translation on the ways between GPUs and NICs.
//!
//! Both matter for traffic that should not see the CPU. Access control that redirects sends it up to the root complex
//! and back, at half the rate or less, or makes it hang; translation does so for all of it. In a virtual machine
//! both are what isolates it, and not the guest's to change.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::Examination;
use super::device::{Devices, component, gpu_name, nic_name};
use crate::snapshot::{IommuDomain, PciDevice, PciKind};
use crate::words::some_of;
use crate::{BusId, Severity};

pub(super) fn examine(devices: &Devices<'_>, found: &mut Examination) {
    if devices.is_virtual_machine() {
        return;
    }
    redirects(devices, found);
    translates(devices, found);
}

/// Bridges on ways between two GPUs, or a GPU and a NIC, below one host bridge, each with one such pair.
fn bridges<'a>(devices: &Devices<'a>) -> BTreeMap<BusId, (&'a PciDevice, String)> {
    let mut gpus: Vec<(String, BusId)> =
        devices.gpus().map(|(gpu, id)| (format!("GPU{}", gpu.index), id)).collect();
    let mut nics: Vec<(String, BusId)> =
        devices.fabric_nics().map(|(nic, id)| (nic.name.clone(), id)).collect();
    gpus.sort_by_key(|(_, id)| *id);
    nics.sort_by_key(|(_, id)| *id);
    let ends: Vec<(String, BusId)> = gpus.iter().chain(&nics).cloned().collect();
    let mut bridges = BTreeMap::new();
    for (place, (gpu, gpu_id)) in gpus.iter().enumerate() {
        for (other, other_id) in &ends[place + 1..] {
            for bridge in devices.bridges_between(*gpu_id, *other_id).unwrap_or_default() {
                let pair = || (bridge, format!("{gpu} and {other}"));
                bridges.entry(bridge.bus_id).or_insert_with(pair);
            }
        }
    }
    bridges
}

fn redirects(devices: &Devices<'_>, found: &mut Examination) {
    const CODE: &str = "acs-redirects-peer-traffic";
    let (mut unread, mut on) = (Vec::new(), Vec::new());
    for (bus_id, (bridge, pair)) in bridges(devices) {
        match bridge.acs {
            Some(acs) if acs.redirects() => on.push((bus_id, acs, pair)),
            Some(_) => {}
            // The upstream port of a switch has no access control of its own.
            None if matches!(bridge.kind, PciKind::RootPort | PciKind::SwitchPort) => {
                unread.push(bus_id.to_string());
            }
            None => {}
        }
    }
    if !unread.is_empty() {
        let missing = format!(
            "ACS control was not read: {}; configuration space beyond 64 bytes needs root",
            some_of(&unread)
        );
        found.unchecked(CODE, component("bridges", &unread), missing);
    }
    for (bus_id, acs, pair) in on {
        found.finding(
            CODE,
            Severity::Degraded,
            bus_id.to_string(),
            format!("ACSCtl {:#06x}, on the way between {pair}", acs.enabled),
            "setpci -s BUSID ECAP_ACS+0x6.w=0000 at each boot, or switch ACS off in firmware",
        );
    }
}

fn translates(devices: &Devices<'_>, found: &mut Examination) {
    const CODE: &str = "iommu-translates";
    let ends = devices
        .gpus()
        .map(|(gpu, id)| (gpu_name(gpu), id))
        .chain(devices.fabric_nics().map(|(nic, id)| (nic_name(nic), id)));
    let (mut translated, mut unread) = (Vec::new(), Vec::new());
    for (name, function) in ends.filter_map(|(name, id)| Some((name, devices.function(id)?))) {
        match (function.iommu.map(|group| group.domain), devices.snapshot.host.iommu) {
            (Some(Some(IommuDomain::Dma | IommuDomain::DmaFq)), _) => translated.push(name),
            (Some(Some(_)), _) | (None, Some(false)) => {}
            (Some(None), _) | (None, Some(true) | None) => unread.push(name),
        }
    }
    if !unread.is_empty() {
        found.unchecked(CODE, component("devices", &unread), "the IOMMU domain is not known");
    }
    if !translated.is_empty() {
        let flags = devices.snapshot.host.kernel_flags.as_deref().unwrap_or_default();
        let flags: Vec<&str> =
            flags.iter().map(String::as_str).filter(|word| word.contains("iommu")).collect();
        let flags = match flags.is_empty() {
            true => "kernel command line without an iommu option".into(),
            false => format!("kernel command line: {}", flags.join(" ")),
        };
        found.finding(
            CODE,
            Severity::Degraded,
            component("devices", &translated),
            format!("IOMMU translates for {}; {flags}", some_of(&translated)),
            "boot with iommu=pt (on Arm iommu.passthrough=1), or switch the IOMMU off in firmware",
        );
    }
}
