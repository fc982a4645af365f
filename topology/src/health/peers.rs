//! Access of GPUs to each other, as the driver states it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::Examination;
use super::device::{Devices, component, gpu_name};
use crate::snapshot::{LinkPeer, PeerAccess, PeerStatus};
use crate::words::some_of;
use crate::{Gpu, GpuIndex, Severity};

pub(super) fn examine(devices: &Devices<'_>, found: &mut Examination) {
    let gpus: Vec<&Gpu> =
        devices.snapshot.gpus.iter().filter(|gpu| devices.is_nvidia(gpu)).collect();
    partitioned(&gpus, found);
    if devices.snapshot.host.confidential == Some(true) {
        found.finding(
            "confidential-computing",
            Severity::Info,
            "host",
            "GPUs run in confidential computing mode; peer access may be limited to what the driver states",
            "expect traffic between GPUs to be encrypted or to pass through host memory",
        );
    }
    let mut denied: BTreeMap<(Severity, PeerStatus), BTreeSet<String>> = BTreeMap::new();
    for gpu in &gpus {
        let others = gpus.iter().filter(|other| other.index != gpu.index);
        for other in others.filter(|other| other.mig != Some(true) && gpu.mig != Some(true)) {
            let access = gpu.peers.iter().find(|access| access.peer == other.index);
            let Some(status) = access.and_then(worst) else {
                if gpu.index < other.index {
                    let pair = pair(gpu.index, other.index);
                    found.unchecked("peer-access-denied", pair, "the driver did not tell");
                }
                continue;
            };
            let linked = linked(gpu, other);
            let nvlink = access.and_then(|access| access.nvlink).filter(|_| linked);
            let status = match nvlink {
                Some(nvlink) if status == PeerStatus::Ok => nvlink,
                _ => status,
            };
            if status != PeerStatus::Ok {
                let severity = severity(status, linked);
                denied.entry((severity, status)).or_default().insert(pair(gpu.index, other.index));
            }
        }
    }
    for ((severity, status), pairs) in denied {
        let pairs: Vec<String> = pairs.into_iter().collect();
        found.finding(
            "peer-access-denied",
            severity,
            component("GPU pairs", &pairs),
            format!("{}: {}", status.words(), some_of(&pairs)),
            fix(status),
        );
    }
}

/// The status of memory access; what is not told counts for nothing.
fn worst(access: &PeerAccess) -> Option<PeerStatus> {
    let told = [access.read, access.write];
    let bad = told.into_iter().flatten().find(|status| *status != PeerStatus::Ok);
    bad.or_else(|| told.into_iter().flatten().next())
}

/// Whether links join two GPUs, directly or through the switches both are at.
fn linked(a: &Gpu, b: &Gpu) -> bool {
    let to = |gpu: &Gpu, other: &Gpu| {
        let direct =
            |peer: &LinkPeer| matches!(peer, LinkPeer::Gpu(id) if Some(*id) == other.bus_id);
        gpu.links.iter().any(|links| direct(&links.peer))
    };
    let switched =
        |gpu: &Gpu| gpu.links.iter().any(|links| matches!(links.peer, LinkPeer::Switch(_)));
    to(a, b) || to(b, a) || (switched(a) && switched(b))
}

/// GPUs that links join must reach each other. Over PCIe many a machine cannot, and is what it was built to be;
/// but a chipset or option that forbids it can be changed.
fn severity(status: PeerStatus, linked: bool) -> Severity {
    match status {
        _ if linked => Severity::Degraded,
        PeerStatus::ChipsetNotSupported | PeerStatus::DisabledByRegkey => Severity::Degraded,
        _ => Severity::Info,
    }
}

fn fix(status: PeerStatus) -> &'static str {
    match status {
        PeerStatus::ChipsetNotSupported => {
            "check ACS and IOMMU settings and the firmware; see nvidia-smi topo -p2p r"
        }
        PeerStatus::DisabledByRegkey => {
            "remove the option from the driver's module parameters (NVreg_RegistryDwords)"
        }
        PeerStatus::TopologyNotSupported | PeerStatus::GpuNotSupported => {
            "none: traffic between these GPUs passes through host memory or NICs"
        }
        PeerStatus::NotSupported | PeerStatus::Unknown | PeerStatus::Ok => {
            "reset the GPUs; check nvidia-fabricmanager where there are NVSwitches; see nvidia-smi topo -p2p r"
        }
    }
}

fn pair(a: GpuIndex, b: GpuIndex) -> String {
    format!("GPU{}-GPU{}", a.min(b), a.max(b))
}

/// A partitioned GPU has no peers, whatever its links.
fn partitioned(gpus: &[&Gpu], found: &mut Examination) {
    for gpu in gpus.iter().filter(|gpu| gpu.mig == Some(true)) {
        found.finding(
            "mig-no-peer-access",
            Severity::Info,
            gpu_name(gpu),
            "MIG mode is on: its instances reach no other GPU",
            "use one instance a job, or switch MIG off: nvidia-smi -mig 0",
        );
    }
}
