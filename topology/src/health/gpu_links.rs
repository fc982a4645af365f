//! NVLink and xGMI: links missing, asymmetric, or with errors.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::Examination;
use super::device::{Devices, gpu_name};
use crate::snapshot::LinkPeer;
use crate::{BusId, Gpu, Severity};

/// Architectures of AMD boards that are sold with xGMI between all GPUs: MI100, MI200, MI300 and MI350 series.
const XGMI_ARCHITECTURES: [&str; 4] = ["gfx908", "gfx90a", "gfx94", "gfx95"];

pub(super) fn examine(devices: &Devices<'_>, found: &mut Examination) {
    inactive(devices, found);
    fewer_than_siblings(devices, found);
    asymmetric(devices, found);
    errors(devices, found);
    no_xgmi(devices, found);
}

pub(super) fn link_total(gpu: &Gpu) -> u32 {
    gpu.links.iter().map(|links| links.count).fold(0, u32::saturating_add)
}

/// GPUs that should have as many links: the same product.
fn siblings<'a>(devices: &Devices<'a>, gpu: &'a Gpu) -> impl Iterator<Item = &'a Gpu> {
    devices.snapshot.gpus.iter().filter(move |other| {
        other.index != gpu.index
            && (&other.name, other.compute_capability, &other.gfx)
                == (&gpu.name, gpu.compute_capability, &gpu.gfx)
    })
}

/// Whether a GPU without any link stands out. Bridged pairs beside single cards are ordinary, so it does only where
/// at least three siblings all have the same number of links.
fn alone(devices: &Devices<'_>, gpu: &Gpu) -> bool {
    let links: Vec<u32> = siblings(devices, gpu).map(link_total).collect();
    links.len() >= 3 && links[0] > 0 && links.iter().all(|count| *count == links[0])
}

fn inactive(devices: &Devices<'_>, found: &mut Examination) {
    const CODE: &str = "gpu-links-inactive";
    for gpu in &devices.snapshot.gpus {
        let Some(inactive) = gpu.inactive_links else {
            if devices.is_nvidia(gpu) {
                let missing = "the state of its NVLinks is not known";
                found.unchecked(CODE, gpu_name(gpu), missing);
            }
            continue;
        };
        let active = link_total(gpu);
        // A card with no bridge on it has links and expects none to be up.
        let expected = active > 0 || devices.has_nvswitch() || alone(devices, gpu);
        if inactive == 0 || !expected {
            continue;
        }
        let none_at_all = active == 0 && devices.has_nvswitch();
        found.finding(
            CODE,
            if none_at_all { Severity::Critical } else { Severity::Degraded },
            gpu_name(gpu),
            format!("{inactive} links inactive, {active} active"),
            "reseat the NVLink bridge or the board; check nvidia-fabricmanager where there are NVSwitches; see dmesg for Xid 74",
        );
    }
}

fn fewer_than_siblings(devices: &Devices<'_>, found: &mut Examination) {
    for gpu in &devices.snapshot.gpus {
        let expected = siblings(devices, gpu).map(link_total).max().unwrap_or(0);
        let total = link_total(gpu);
        if (1..expected).contains(&total) || (total == 0 && alone(devices, gpu)) {
            found.finding(
                "gpu-links-fewer-than-siblings",
                Severity::Degraded,
                gpu_name(gpu),
                format!("{total} active links, its siblings on this host have {expected}"),
                "reset the GPU or reboot the host; if links stay down, have the board serviced",
            );
        }
    }
}

fn asymmetric(devices: &Devices<'_>, found: &mut Examination) {
    let mut counts: BTreeMap<(BusId, BusId), u32> = BTreeMap::new();
    for (gpu, from) in devices.gpus() {
        for links in &gpu.links {
            if let LinkPeer::Gpu(to) = &links.peer {
                let count = counts.entry((from, *to)).or_default();
                *count = count.saturating_add(links.count);
            }
        }
    }
    for ((from, to), count) in &counts {
        let back = counts.get(&(*to, *from)).copied().unwrap_or(0);
        if back < *count && devices.gpu_at(*to).is_some() {
            found.finding(
                "gpu-links-asymmetric",
                Severity::Degraded,
                format!("{from} to {to}"),
                format!("{count} links one way, {back} the other"),
                "a link trained on one side only, or a wrong topology file: compare with nvidia-smi nvlink -s",
            );
        }
    }
}

fn errors(devices: &Devices<'_>, found: &mut Examination) {
    for gpu in &devices.snapshot.gpus {
        let words: Vec<String> = gpu
            .link_errors
            .iter()
            .map(|e| {
                format!(
                    "link {}: {} recoveries, {} replays, {} checksum errors",
                    e.link, e.recovery, e.replay, e.crc
                )
            })
            .collect();
        if !words.is_empty() {
            found.finding(
                "gpu-link-errors",
                Severity::Info,
                gpu_name(gpu),
                words.join("; "),
                "watch whether the counters grow under load; if they do, reseat the bridge or have the board serviced",
            );
        }
    }
}

/// A board that is always sold with xGMI and shows none has lost it on the way here, and a plan over PCIe would be a
/// tenth as fast (ROCm/rocm-systems#5297).
fn no_xgmi(devices: &Devices<'_>, found: &mut Examination) {
    let has_it = |gpu: &&Gpu| {
        let by_architecture = gpu.gfx.as_deref().is_some_and(|gfx| {
            XGMI_ARCHITECTURES.iter().any(|architecture| gfx.starts_with(architecture))
        });
        let by_name = gpu.name.as_deref().is_some_and(|name| {
            ["MI250", "MI300X", "MI300A", "MI325X", "MI350X", "MI355X"]
                .iter()
                .any(|product| name.contains(product))
        });
        by_architecture || by_name
    };
    let boards: Vec<&Gpu> = devices.snapshot.gpus.iter().filter(has_it).collect();
    if boards.len() < 2 || devices.is_virtual_machine() {
        return;
    }
    for gpu in boards.into_iter().filter(|gpu| link_total(gpu) == 0) {
        found.finding(
            "gpu-no-xgmi",
            Severity::Critical,
            gpu_name(gpu),
            "no xGMI link to any other GPU, which every board of this kind has",
            "check the tool or driver that reported the links, then the board: compare with rocm-smi --showtopotype",
        );
    }
}
