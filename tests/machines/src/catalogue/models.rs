//! GPU products.
//!
//! PCI ids are those of the public PCI id registry. Link rates are as `nvidia-smi nvlink --status` prints them
//! on such boards; they are signalling rates and so differ from the round figures of data sheets.

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
    gfx_target_version: None,
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
    gfx_target_version: None,
};

pub(super) static V100_SXM3: GpuModel = GpuModel {
    name: "Tesla V100-SXM3-32GB",
    device: 0x1db8,
    subsystem: 0x131d,
    class: class::CONTROLLER_3D,
    compute_capability: (7, 0),
    memory_bytes: 32_768 * MIB,
    pcie_generation: 3,
    nvlink_version: 2,
    nvlink_mbytes_per_second: 25_781,
    mig: false,
    gfx_target_version: None,
};

pub(super) static A100_SXM4: GpuModel = GpuModel {
    name: "NVIDIA A100-SXM4-40GB",
    device: 0x20b0,
    subsystem: 0x134f,
    class: class::CONTROLLER_3D,
    compute_capability: (8, 0),
    memory_bytes: 40_960 * MIB,
    pcie_generation: 4,
    nvlink_version: 4,
    nvlink_mbytes_per_second: 25_000,
    mig: true,
    gfx_target_version: None,
};

pub(super) static A100_PCIE: GpuModel = GpuModel {
    name: "NVIDIA A100-PCIE-40GB",
    device: 0x20f1,
    subsystem: 0x145f,
    class: class::CONTROLLER_3D,
    compute_capability: (8, 0),
    memory_bytes: 40_960 * MIB,
    pcie_generation: 4,
    nvlink_version: 4,
    nvlink_mbytes_per_second: 25_000,
    mig: true,
    gfx_target_version: None,
};

pub(super) static H100_SXM5: GpuModel = GpuModel {
    name: "NVIDIA H100 80GB HBM3",
    device: 0x2330,
    subsystem: 0x16c1,
    class: class::CONTROLLER_3D,
    compute_capability: (9, 0),
    memory_bytes: 81_559 * MIB,
    pcie_generation: 5,
    nvlink_version: 6,
    nvlink_mbytes_per_second: 26_562,
    mig: true,
    gfx_target_version: None,
};

/// 18 links at NVLink 5's rate; NVML prints 50 GB/s on such boards.
pub(super) static B200_SXM: GpuModel = GpuModel {
    name: "NVIDIA B200",
    device: 0x2901,
    subsystem: 0x1999,
    class: class::CONTROLLER_3D,
    compute_capability: (10, 0),
    memory_bytes: 183_359 * MIB,
    pcie_generation: 5,
    nvlink_version: 7,
    nvlink_mbytes_per_second: 50_000,
    mig: true,
    gfx_target_version: None,
};

pub(super) static GB200: GpuModel = GpuModel {
    name: "NVIDIA GB200",
    device: 0x2941,
    subsystem: 0x2046,
    class: class::CONTROLLER_3D,
    compute_capability: (10, 0),
    memory_bytes: 189_471 * MIB,
    pcie_generation: 6,
    nvlink_version: 7,
    nvlink_mbytes_per_second: 50_000,
    mig: true,
    gfx_target_version: None,
};

/// One xGMI link to each of seven others, 64 GB/s each way (AMD's data sheet).
pub(super) static MI300X: GpuModel = GpuModel {
    name: "AMD Instinct MI300X",
    device: 0x74a1,
    subsystem: 0x74a1,
    class: class::ACCELERATOR,
    compute_capability: (0, 0),
    memory_bytes: 196_592 * MIB,
    pcie_generation: 5,
    nvlink_version: 0,
    nvlink_mbytes_per_second: 64_000,
    mig: false,
    gfx_target_version: Some(90_402),
};
