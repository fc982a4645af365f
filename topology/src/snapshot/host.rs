//! Facts of the host as a whole.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::cpu_list::CpuList;

/// The host as a whole. Names, serial numbers and addresses are never recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostFacts {
    /// Maker from firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Product name from firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Whether the CPU reports a hypervisor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<bool>,
    /// Kernel release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Words of the kernel command line that bear on PCI, IOMMU and NUMA, in their order; the rest may name
    /// hosts and disks and is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_flags: Option<Vec<String>>,
    /// Whether the kernel runs an IOMMU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iommu: Option<bool>,
    /// GPU driver version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// What GPUDirect RDMA needs of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpudirect: Option<GpuDirectFacts>,
    /// Whether GPUs run in confidential computing mode, where they have no peers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidential: Option<bool>,
    /// What NVLink between hosts needs of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imex: Option<Imex>,
    /// CPUs by package, cache and core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuTopology>,
    /// What the reading process was allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<ProcessLimits>,
    /// Which host and which container this is, without a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<HostIdentity>,
}

/// How CPUs share packages, caches and cores. CPUs are the kernel's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CpuTopology {
    /// CPUs of each package, by its number.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<u32, CpuList>,
    /// CPUs of each third-level cache, by their first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub l3: Vec<CpuList>,
    /// Hardware threads of each core, by their first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<CpuList>,
}

/// CPUs, memory and time that cgroups and affinity leave to the reading process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessLimits {
    /// CPUs it may run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    /// NUMA nodes it may have memory of, in the form of a CPU list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_nodes: Option<CpuList>,
    /// Memory in bytes; `None` where there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// CPU time in thousandths of a CPU; `None` where there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub millicpus: Option<u64>,
}

/// What GPUDirect RDMA needs of the kernel. There are two ways: a module that registers GPU memory with the RDMA
/// stack, and DMA-BUF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuDirectFacts {
    /// Whether `nvidia_peermem`, or what it was called before, is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peermem_loaded: Option<bool>,
    /// Whether it is registered with the RDMA stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peermem_registered: Option<bool>,
    /// Whether the GPU driver exports memory as DMA-BUF: NVIDIA's open kernel modules, or amdgpu.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dma_buf_driver: Option<bool>,
    /// Whether the kernel's RDMA stack imports DMA-BUF: from 5.12 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dma_buf_kernel: Option<bool>,
    /// Whether the kernel was built for peer-to-peer DMA (`CONFIG_PCI_P2PDMA`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p2pdma: Option<bool>,
}

/// What NVLink between hosts needs: channels of the driver, and the service that imports memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Imex {
    /// Channel devices of the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
    /// Hosts in the service's list of peers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<u32>,
    /// Whether the host's own service is masked, as where each pod brings its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_masked: Option<bool>,
}

/// Which host and which container this is. Two processes reach each other through shared memory and inter-process
/// handles only where all of these agree. All are one-way digests: they compare, and tell nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostIdentity {
    /// Of machine id and boot id together: host names repeat, and the boot id is the same in all containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Of the namespace of System V and POSIX inter-process communication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipc_namespace: Option<String>,
    /// Of the namespace of process numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<String>,
    /// Of the device that `/dev/shm` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<String>,
}

impl HostIdentity {
    /// The digest of some texts, 32 hexadecimal digits: SHA-256 with a word of our own, as machine-id(5) asks of those
    /// who show what they make of it.
    #[must_use]
    pub fn digest(parts: &[&str]) -> String {
        let mut hash = Sha256::new();
        hash.update(b"topod host identity");
        for part in parts {
            // The length keeps apart what joins to the same text.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
