//! GPU products.
//!
//! PCI ids are those of the public PCI id registry. Link rates are as `nvidia-smi nvlink --status` prints them on such boards;
//! they are signalling rates and so differ from the round figures of data sheets.

use crate::build::class;
use crate::machine::GpuModel;

const MIB: u64 = 1 << 20;

/// The NVLink 1.0 data sheet's rate; no public print of NVML's own figure was at hand.
pub(super) static P100_SXM2: GpuModel = GpuModel {
    name: "Tesla P100-SXM2-16GB",
    device: 0x15f9,
    subsystem: 0x116b,
    class: class::CONTROLLER_3D,
    compute_capability: (6, 0),
    memory_bytes: 16_280 * MIB,
    pcie_generation: 3,
    nvlink_version: 1,
    nvlink_mbytes_per_second: 20_000,
    mig: false,
};

pub(super) static V100_SXM2: GpuModel = GpuModel {
    name: "Tesla V100-SXM2-16GB",
    device: 0x1db1,
    subsystem: 0x1212,
    class: class::CONTROLLER_3D,
    compute_capability: (7, 0),
    memory_bytes: 16_384 * MIB,
    pcie_generation: 3,
    nvlink_version: 2,
    nvlink_mbytes_per_second: 25_781,
    mig: false,
};
