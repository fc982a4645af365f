//! A verdict for each way between GPUs.
//!
//! Software picks one of them by itself, and then tests see that one alone: with NVLink in front nobody notices that the network
//! behind it does not work, until a job spans two racks (NVIDIA/aicr#640). So each has a verdict of its own.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use super::device::{Devices, nic_name};
use super::{Examination, Status};
use crate::snapshot::{LinkLayer, Nic, NicRole, Snapshot};
use crate::{Finding, Severity};

/// A way between GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fabric {
    /// NVLink or xGMI within the host.
    GpuLinks,
    /// NVLink to other hosts of a rack.
    NvLinkRack,
    /// InfiniBand.
    Infiniband,
    /// RDMA over Ethernet.
    Roce,
    /// RDMA over a network of another kind: EFA, Slingshot.
    OtherRdma,
    /// Sockets.
    Ethernet,
}

impl Fabric {
    const ALL: [Self; 6] = [
        Self::GpuLinks,
        Self::NvLinkRack,
        Self::Infiniband,
        Self::Roce,
        Self::OtherRdma,
        Self::Ethernet,
    ];

    /// The fabric of a port.
    fn of(nic: &Nic) -> Self {
        match (nic.port.is_some(), nic.link_layer) {
            (_, Some(LinkLayer::Infiniband)) => Self::Infiniband,
            (true, Some(LinkLayer::Ethernet)) => Self::Roce,
            (true, None) => Self::OtherRdma,
            (false, _) => Self::Ethernet,
        }
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::GpuLinks => "GPU links",
            Self::NvLinkRack => "NVLink between hosts",
            Self::Infiniband => "InfiniBand",
            Self::Roce => "RoCE",
            Self::OtherRdma => "other RDMA",
            Self::Ethernet => "Ethernet without RDMA",
        })
    }
}

/// What the examination of a host says of one fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricVerdict {
    /// Which.
    pub fabric: Fabric,
    /// GPUs or ports of this host that are on it.
    pub ends: usize,
    /// By what concerns it and nothing else.
    pub status: Status,
    /// Codes of the findings and of the rules that lack a fact, without advice.
    pub codes: Vec<String>,
}

/// A verdict for each fabric that a host has ends on.
#[must_use]
pub fn fabrics(snapshot: &Snapshot, found: &Examination) -> Vec<FabricVerdict> {
    let devices = Devices::new(snapshot);
    let verdict = |fabric: Fabric| {
        let (ends, names) = ends(&devices, fabric);
        (ends > 0).then(|| one(fabric, ends, &names, snapshot, found))
    };
    Fabric::ALL.into_iter().filter_map(verdict).collect()
}

/// How many ends of the host are on a fabric, and what components of findings about them are called.
fn ends(devices: &Devices<'_>, fabric: Fabric) -> (usize, Vec<String>) {
    let snapshot = devices.snapshot;
    match fabric {
        Fabric::GpuLinks | Fabric::NvLinkRack => {
            // Links that went down altogether are still a fabric.
            let on = |gpu: &&crate::Gpu| match fabric {
                Fabric::NvLinkRack => devices.links_leave_the_host(gpu),
                _ => !gpu.links.is_empty() || gpu.inactive_links.is_some_and(|links| links > 0),
            };
            (snapshot.gpus.iter().filter(on).count(), Vec::new())
        }
        _ => {
            let ports = snapshot
                .nics
                .iter()
                .filter(|nic| nic.role != NicRole::Other && Fabric::of(nic) == fabric);
            let mut names = Vec::new();
            for nic in ports.clone() {
                names.push(nic_name(nic));
                names.extend(nic.bus_id.map(|id| id.to_string()));
                names.extend(nic.bond.as_ref().map(|bond| bond.name.clone()));
            }
            (ports.count(), names)
        }
    }
}

/// Whether something of a code and component bears on a fabric. What is about the host or several of its devices bears on all
/// it could be about.
fn concerns(fabric: Fabric, names: &[String], code: &str, component: &str) -> bool {
    let of_network = ["nic-", "bond-", "roce-", "gpudirect-"];
    let network = !matches!(fabric, Fabric::GpuLinks | Fabric::NvLinkRack);
    match code {
        "gpu-lost" => true,
        _ if code.starts_with("gpu-link") || code == "gpu-no-xgmi" => fabric == Fabric::GpuLinks,
        "peer-access-denied" => fabric == Fabric::GpuLinks,
        "fabric-clique-unknown" | "imex-no-channel" | "imex-no-peers" => {
            fabric == Fabric::NvLinkRack
        }
        _ if code.starts_with("fabric-") => !network,
        "roce-gid-missing" | "roce-gid-indices-differ" if fabric != Fabric::Roce => false,
        _ if of_network.iter().any(|theme| code.starts_with(theme)) => {
            let shared = component == "host" || component.ends_with(" NICs");
            network && (shared || names.iter().any(|name| name == component))
        }
        "pcie-width-reduced" | "pcie-rate-reduced" => {
            network && names.iter().any(|name| name == component)
        }
        _ => false,
    }
}

fn one(
    fabric: Fabric,
    ends: usize,
    names: &[String],
    snapshot: &Snapshot,
    found: &Examination,
) -> FabricVerdict {
    let bad = |finding: &&Finding| {
        finding.severity > Severity::Info
            && concerns(fabric, names, &finding.code, &finding.component)
    };
    let findings = found.findings.iter().filter(bad);
    let worst = findings.clone().map(|finding| finding.severity).max();
    let missing =
        found.unchecked.iter().filter(|rule| concerns(fabric, names, &rule.code, &rule.component));
    let probe = match fabric {
        Fabric::GpuLinks | Fabric::NvLinkRack => "nvml",
        _ => "nic",
    };
    let faulty = snapshot.faults.iter().any(|fault| fault.probe == probe);
    let status = match worst {
        Some(Severity::Critical) => Status::Critical,
        Some(Severity::Degraded) => Status::Degraded,
        _ if faulty || missing.clone().next().is_some() => Status::Unknown,
        _ => Status::Ok,
    };
    let mut codes: Vec<String> = findings
        .map(|finding| finding.code.to_string())
        .chain(missing.map(|rule| rule.code.clone()))
        .collect();
    codes.sort();
    codes.dedup();
    FabricVerdict { fabric, ends, status, codes }
}
