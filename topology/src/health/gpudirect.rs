//! GPUDirect RDMA: whether a NIC reaches a GPU's memory itself, over which way, and if not, why.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::Examination;
use super::device::{Devices, component, nic_name};
use crate::Severity;
use crate::snapshot::{Gpu, GpuDirectFacts, Nic, Snapshot};
use crate::words::some_of;

/// The way a NIC reaches GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuDirectPath {
    /// Memory registered by a kernel module of the GPU driver.
    Peermem,
    /// Memory exported as DMA-BUF.
    DmaBuf,
    /// Possible, by a way that the source does not tell.
    Unnamed,
}

/// Whether a pair of GPU and NIC can do GPUDirect RDMA, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuDirect {
    /// Yes, so.
    Open(GpuDirectPath),
    /// No, for this reason.
    Closed(String),
    /// Not known, for want of this.
    Unknown(&'static str),
}

/// Whether this NIC reaches this GPU's memory itself.
#[must_use]
pub fn gpudirect(snapshot: &Snapshot, gpu: &Gpu, nic: &Nic) -> GpuDirect {
    let stated = [(gpu.gdr, "the GPU"), (nic.gdr, "the NIC")];
    let Some(facts) = &snapshot.host.gpudirect else {
        return match stated {
            [(Some(true), _), (Some(true), _)] => GpuDirect::Open(GpuDirectPath::Unnamed),
            [(Some(false), _), _] => GpuDirect::Closed("the source states so for the GPU".into()),
            [_, (Some(false), _)] => GpuDirect::Closed("the source states so for the NIC".into()),
            _ => GpuDirect::Unknown("what the kernel offers was not read"),
        };
    };
    if nic.port.is_none() {
        return GpuDirect::Closed("the NIC has no RDMA".into());
    }
    kernel(facts)
}

fn kernel(facts: &GpuDirectFacts) -> GpuDirect {
    let GpuDirectFacts { peermem_loaded, peermem_registered, dma_buf_driver, .. } = *facts;
    let (dma_buf_kernel, p2pdma) = (facts.dma_buf_kernel, facts.p2pdma);
    if peermem_registered == Some(true) {
        return GpuDirect::Open(GpuDirectPath::Peermem);
    }
    // The driver maps its own memory; the kernel option is needed where it is known to be off.
    if dma_buf_driver == Some(true) && dma_buf_kernel == Some(true) && p2pdma != Some(false) {
        return GpuDirect::Open(GpuDirectPath::DmaBuf);
    }
    let peermem = match (peermem_loaded, peermem_registered) {
        (Some(true), Some(false)) => {
            "the peer memory module is loaded and not registered with the RDMA stack"
        }
        (Some(false), _) => "no peer memory module is loaded",
        _ => return GpuDirect::Unknown("the kernel's modules were not read"),
    };
    let dma_buf = match (dma_buf_driver, dma_buf_kernel, p2pdma) {
        (Some(false), ..) => "the GPU driver is not of the kind that exports DMA-BUF",
        (_, Some(false), _) => "the kernel is too old for DMA-BUF in its RDMA stack",
        (_, _, Some(false)) => "the kernel was built without CONFIG_PCI_P2PDMA",
        _ => return GpuDirect::Unknown("driver flavour or kernel release is not known"),
    };
    GpuDirect::Closed(format!("{peermem}, and {dma_buf}"))
}

pub(super) fn examine(devices: &Devices<'_>, found: &mut Examination) {
    const CODE: &str = "gpudirect-not-possible";
    let mut closed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut unknown: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    for (nic, _) in devices.fabric_nics() {
        for gpu in &devices.snapshot.gpus {
            let name = nic_name(nic);
            let of_reason = match gpudirect(devices.snapshot, gpu, nic) {
                GpuDirect::Open(_) => continue,
                // A port without RDMA never could.
                GpuDirect::Closed(_) if nic.port.is_none() => continue,
                GpuDirect::Closed(reason) => closed.entry(reason).or_default(),
                GpuDirect::Unknown(missing) => unknown.entry(missing).or_default(),
            };
            if !of_reason.contains(&name) {
                of_reason.push(name);
            }
        }
    }
    for (reason, nics) in closed {
        found.finding(
            CODE,
            Severity::Degraded,
            component("NICs", &nics),
            format!("{reason}; concerns {}", some_of(&nics)),
            "modprobe nvidia_peermem (with the NIC maker's RDMA stack), or install the GPU driver's open kernel modules on a kernel from 5.12 on",
        );
    }
    for (missing, nics) in unknown {
        found.unchecked(CODE, component("NICs", &nics), missing);
    }
}
