//! Judgement over facts: what of a host is not as it should be.
//!
//! Each rule looks at the facts alone, or compares a device with its siblings on the host; none repairs or
//! hides anything. What could not be read is never taken for good: it makes the status [`Status::Unknown`].

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::snapshot::{LinkPeer, NicRole, PciDevice, PcieLinkFacts, Snapshot};
use crate::{BusId, Finding, Gpu, Severity};

/// Verdict over a host or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Everything known is as it should be, and everything needed is known.
    Ok,
    /// Something could not be read.
    Unknown,
    /// Works, slower than it should.
    Degraded,
    /// Do not run jobs here.
    Critical,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Degraded => "degraded",
            Self::Critical => "critical",
        })
    }
}

/// The verdict that findings and faults of some hosts amount to.
#[must_use]
pub fn status(findings: &[Finding], snapshots: &[Snapshot]) -> Status {
    let worst = findings.iter().map(|finding| finding.severity).max();
    let unread = snapshots.iter().any(|snapshot| !snapshot.faults.is_empty());
    match worst {
        Some(Severity::Critical) => Status::Critical,
        Some(Severity::Degraded) => Status::Degraded,
        Some(Severity::Info) | None if unread => Status::Unknown,
        Some(Severity::Info) | None => Status::Ok,
    }
}

/// Every finding of a host; the worst first, then by component.
#[must_use]
pub fn examine(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    gpu_links_inactive(snapshot, &mut findings);
    gpu_links_fewer_than_siblings(snapshot, &mut findings);
    gpu_links_asymmetric(snapshot, &mut findings);
    pcie_width_reduced(snapshot, &mut findings);
    nic_pcie_rate_reduced(snapshot, &mut findings);
    nic_port_down(snapshot, &mut findings);
    slower_than_siblings(snapshot, &mut findings);
    numa_unknown(snapshot, &mut findings);
    findings.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.cmp(b)));
    findings
}

fn finding(
    code: &str,
    severity: Severity,
    component: String,
    evidence: String,
    fix: &str,
) -> Finding {
    Finding { code: code.into(), severity, component, evidence, fix: fix.into() }
}

fn gpu_name(gpu: &Gpu) -> String {
    match gpu.bus_id {
        Some(bus_id) => format!("GPU{} ({bus_id})", gpu.index),
        None => format!("GPU{}", gpu.index),
    }
}

fn link_total(gpu: &Gpu) -> u32 {
    gpu.links.iter().map(|links| links.count).fold(0, u32::saturating_add)
}

fn gpu_links_inactive(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    for gpu in &snapshot.gpus {
        let Some(inactive) = gpu.inactive_links.filter(|count| *count > 0) else { continue };
        let active = link_total(gpu);
        // All of them inactive is a card without its bridge as often as a dead one; siblings decide the rest.
        let severity = if active == 0 { Severity::Info } else { Severity::Degraded };
        findings.push(finding(
            "gpu-links-inactive",
            severity,
            gpu_name(gpu),
            format!("{inactive} links inactive, {active} active"),
            "reseat the NVLink bridge or the board; check nvidia-fabricmanager where there are NVSwitches; see dmesg for Xid 74",
        ));
    }
}

fn gpu_links_fewer_than_siblings(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let mut most: BTreeMap<(Option<&str>, Option<u32>), u32> = BTreeMap::new();
    for gpu in &snapshot.gpus {
        let entry = most.entry((gpu.name.as_deref(), gpu.compute_capability)).or_default();
        *entry = (*entry).max(link_total(gpu));
    }
    for gpu in &snapshot.gpus {
        let expected =
            most.get(&(gpu.name.as_deref(), gpu.compute_capability)).copied().unwrap_or(0);
        let total = link_total(gpu);
        // Bridged pairs beside single cards are ordinary. So a GPU with no link at all counts only where every one of at
        // least three siblings has all of them.
        let same = |other: &&Gpu| {
            other.index != gpu.index
                && (&other.name, other.compute_capability) == (&gpu.name, gpu.compute_capability)
        };
        let siblings: Vec<u32> = snapshot.gpus.iter().filter(same).map(link_total).collect();
        let alone = siblings.len() >= 3 && siblings.iter().all(|links| *links == expected);
        if (1..expected).contains(&total) || (total == 0 && expected > 0 && alone) {
            findings.push(finding(
                "gpu-links-fewer-than-siblings",
                Severity::Degraded,
                gpu_name(gpu),
                format!("{total} active links, its siblings on this host have {expected}"),
                "reset the GPU or reboot the host; if links stay down, have the board serviced",
            ));
        }
    }
}

fn gpu_links_asymmetric(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let mut counts: BTreeMap<(BusId, BusId), u32> = BTreeMap::new();
    let present: Vec<BusId> = snapshot.gpus.iter().filter_map(|gpu| gpu.bus_id).collect();
    for gpu in &snapshot.gpus {
        for links in &gpu.links {
            if let (Some(from), LinkPeer::Gpu(to)) = (gpu.bus_id, &links.peer) {
                *counts.entry((from, *to)).or_default() += links.count;
            }
        }
    }
    for ((from, to), count) in &counts {
        let back = counts.get(&(*to, *from)).copied().unwrap_or(0);
        if back < *count && present.contains(to) {
            findings.push(finding(
                "gpu-links-asymmetric",
                Severity::Degraded,
                format!("{from} to {to}"),
                format!("{count} links one way, {back} the other"),
                "a link trained on one side only, or a wrong topology file: compare with nvidia-smi nvlink -s",
            ));
        }
    }
}

fn capable_width(link: &PcieLinkFacts) -> Option<u8> {
    [link.device_capable, link.slot_capable]
        .iter()
        .flatten()
        .map(|l| l.width)
        .filter(|w| *w > 0)
        .min()
}

fn pcie_width_reduced(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    for device in &snapshot.pci_devices {
        let trained = device.link.trained.map(|l| l.width).filter(|w| *w > 0);
        if let (Some(trained), Some(capable)) = (trained, capable_width(&device.link))
            && trained < capable
        {
            findings.push(finding(
                "pcie-width-reduced",
                Severity::Degraded,
                device.bus_id.to_string(),
                format!("trained x{trained}, both ends can do x{capable}"),
                "reseat the card or its riser; a link never narrows to save power",
            ));
        }
    }
}

/// For NICs alone: a GPU's link slows down when idle, a NIC's does not.
fn nic_pcie_rate_reduced(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let nics: Vec<BusId> = snapshot.nics.iter().filter_map(|nic| nic.bus_id).collect();
    for device in snapshot.pci_devices.iter().filter(|device| nics.contains(&device.bus_id)) {
        let capable = [device.link.device_capable, device.link.slot_capable];
        let capable = capable.iter().flatten().map(|l| l.mtps).filter(|m| *m > 0).min();
        let trained = device.link.trained.map(|l| l.mtps).filter(|m| *m > 0);
        if let (Some(trained), Some(capable)) = (trained, capable)
            && trained < capable
        {
            findings.push(finding(
                "nic-pcie-rate-reduced",
                Severity::Degraded,
                device.bus_id.to_string(),
                format!("trained at {trained} MT/s, both ends can do {capable} MT/s"),
                "reseat the card; check the slot's speed setting in firmware",
            ));
        }
    }
}

fn nic_port_down(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    for nic in
        snapshot.nics.iter().filter(|nic| nic.up == Some(false) && nic.role != NicRole::Other)
    {
        findings.push(finding(
            "nic-port-down",
            Severity::Degraded,
            nic.name.clone(),
            format!("port {} is down", nic.port.unwrap_or(1)),
            "check cable, switch port and, on InfiniBand, the subnet manager",
        ));
    }
}

/// A NIC or GPU whose PCIe link carries less than that of its siblings of the same model.
fn slower_than_siblings(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    let gpus: Vec<BusId> = snapshot.gpus.iter().filter_map(|gpu| gpu.bus_id).collect();
    let nics: Vec<BusId> = snapshot.nics.iter().filter_map(|nic| nic.bus_id).collect();
    let lanes = |link: &PcieLinkFacts| match link.usable() {
        (Some(mtps), Some(width)) => Some(u64::from(mtps) * u64::from(width)),
        _ => None,
    };
    for (code, members) in [("gpu-slower-than-siblings", gpus), ("nic-slower-than-siblings", nics)]
    {
        let devices =
            || snapshot.pci_devices.iter().filter(|device| members.contains(&device.bus_id));
        for device in devices() {
            let same =
                |other: &&PciDevice| (other.vendor, other.device) == (device.vendor, device.device);
            let most = devices().filter(same).filter_map(|other| lanes(&other.link)).max();
            if let (Some(own), Some(most)) = (lanes(&device.link), most)
                && own < most
            {
                findings.push(finding(
                    code,
                    Severity::Degraded,
                    device.bus_id.to_string(),
                    format!(
                        "its PCIe link carries {} % of what its siblings' carry",
                        own * 100 / most
                    ),
                    "move the card to a full slot, or reseat it",
                ));
            }
        }
    }
}

fn numa_unknown(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    if snapshot.numa_nodes.len() < 2 {
        return;
    }
    let of_device = |bus_id: Option<BusId>| {
        let mut at = bus_id;
        for _ in 0..=snapshot.pci_devices.len() {
            let device = snapshot.pci_devices.iter().find(|device| Some(device.bus_id) == at)?;
            if device.numa_node.is_some() {
                return device.numa_node;
            }
            at = device.parent;
        }
        None
    };
    let gpus = snapshot.gpus.iter().map(|gpu| (gpu_name(gpu), gpu.numa_node, gpu.bus_id));
    let nics = snapshot.nics.iter().map(|nic| (nic.name.clone(), nic.numa_node, nic.bus_id));
    for (name, stated, bus_id) in gpus.chain(nics) {
        if stated.is_none() && of_device(bus_id).is_none() {
            findings.push(finding(
                "numa-node-unknown",
                Severity::Degraded,
                name,
                format!(
                    "no source tells its NUMA node; the host has {}",
                    snapshot.numa_nodes.len()
                ),
                "update firmware, or pass the NUMA layout through to the virtual machine",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{FaultKind, GpuLinkKind, GpuLinks, NumaNode, PciKind, PcieLink};
    use crate::{Fault, GpuIndex, Nic, Source};

    fn gpu(index: u32, links: &[(&str, u32)]) -> Gpu {
        let json = serde_json::json!({ "index": index, "bus_id": format!("0{}:00.0", index + 1), "compute_capability": 80 });
        let links = links
            .iter()
            .map(|(peer, count)| GpuLinks {
                kind: GpuLinkKind::NvLink,
                peer: peer.parse().map_or(LinkPeer::Switch(None), LinkPeer::Gpu),
                count: *count,
                rate: None,
            })
            .collect();
        Gpu { links, ..serde_json::from_value(json).unwrap() }
    }

    fn nic(name: &str, at: &str, up: bool) -> Nic {
        serde_json::from_value(
            serde_json::json!({ "name": name, "bus_id": at, "up": up, "numa_node": 0 }),
        )
        .unwrap()
    }

    fn pci(at: &str, trained: (u32, u8), capable: (u32, u8)) -> PciDevice {
        let link = |(mtps, width)| Some(PcieLink { mtps, width });
        PciDevice {
            vendor: Some(0x15b3),
            device: Some(0x1021),
            numa_node: Some(0),
            link: PcieLinkFacts {
                trained: link(trained),
                device_capable: link(capable),
                slot_capable: None,
                trained_total: None,
            },
            ..PciDevice::new(at.parse().unwrap(), PciKind::Nic)
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Snapshot), expect: &[(&str, &str)], status_expected: Status) {
        let mut snapshot = Snapshot::new(Source::Live);
        change(&mut snapshot);
        let findings = examine(&snapshot);
        let found: Vec<(&str, &str)> =
            findings.iter().map(|f| (f.code.as_str(), f.component.as_str())).collect();
        assert_eq!(found, expect);
        assert_eq!(status(&findings, &[snapshot]), status_expected);
    }

    #[test]
    fn a_healthy_host_has_none() {
        check(
            |s| s.gpus = [gpu(0, &[("02:00.0", 4)]), gpu(1, &[("01:00.0", 4)])].into(),
            &[],
            Status::Ok,
        );
    }

    #[test]
    fn links() {
        let expect = [
            ("gpu-links-asymmetric", "0000:01:00.0 to 0000:02:00.0"),
            ("gpu-links-fewer-than-siblings", "GPU1 (0000:02:00.0)"),
        ];
        check(
            |s| s.gpus = [gpu(0, &[("02:00.0", 4)]), gpu(1, &[("01:00.0", 3)])].into(),
            &expect,
            Status::Degraded,
        );
        let four = |s: &mut Snapshot| {
            s.gpus = (0..4).map(|i| gpu(i, if i == 2 { &[] } else { &[("switch", 12)] })).collect()
        };
        check(four, &[("gpu-links-fewer-than-siblings", "GPU2 (0000:03:00.0)")], Status::Degraded);
        // A single card beside a bridged pair has lost nothing.
        check(|s| s.gpus = [gpu(0, &[("switch", 4)]), gpu(1, &[])].into(), &[], Status::Ok);
        let inactive = |s: &mut Snapshot| {
            s.gpus = [Gpu { inactive_links: Some(2), ..gpu(0, &[("switch", 10)]) }].into()
        };
        check(inactive, &[("gpu-links-inactive", "GPU0 (0000:01:00.0)")], Status::Degraded);
    }

    #[test]
    fn pcie() {
        let half = |s: &mut Snapshot| {
            s.pci_devices =
                [pci("0a:00.0", (16000, 8), (16000, 16)), pci("0b:00.0", (16000, 16), (16000, 16))]
                    .into();
            s.nics = [nic("mlx5_0", "0a:00.0", true), nic("mlx5_1", "0b:00.0", true)].into();
        };
        check(
            half,
            &[("nic-slower-than-siblings", "0000:0a:00.0"), ("pcie-width-reduced", "0000:0a:00.0")],
            Status::Degraded,
        );
        let slow = |s: &mut Snapshot| {
            s.pci_devices = [pci("0a:00.0", (8000, 16), (16000, 16))].into();
            s.nics = [nic("mlx5_0", "0a:00.0", true)].into();
        };
        check(slow, &[("nic-pcie-rate-reduced", "0000:0a:00.0")], Status::Degraded);
        // The same on a GPU is an idle link.
        check(
            |s| s.pci_devices = [pci("0a:00.0", (2500, 16), (16000, 16))].into(),
            &[],
            Status::Ok,
        );
    }

    #[test]
    fn nics() {
        check(
            |s| s.nics = [nic("mlx5_0", "0a:00.0", false)].into(),
            &[("nic-port-down", "mlx5_0")],
            Status::Degraded,
        );
    }

    #[test]
    fn numa() {
        let node =
            |id| -> NumaNode { serde_json::from_value(serde_json::json!({ "id": id })).unwrap() };
        let two = |s: &mut Snapshot| {
            s.numa_nodes = [node(0), node(1)].into();
            s.gpus = [Gpu { index: GpuIndex(0), ..gpu(0, &[]) }].into();
        };
        check(two, &[("numa-node-unknown", "GPU0 (0000:01:00.0)")], Status::Degraded);
    }

    #[test]
    fn what_could_not_be_read_is_never_ok() {
        let fault = Fault::new("nvml", "nvmlInit", FaultKind::TimedOut, "timed out");
        check(|s| s.faults.push(fault), &[], Status::Unknown);
    }
}
