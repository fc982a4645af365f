//! Link rates by kind and generation: one table, each figure with its source.
//!
//! *Effective* figures are those of NCCL 2.30 (`src/graph/topo.h`, `src/graph/xml.cc`), so that bounds and
//! plans can be compared with what NCCL's own search finds. *Nominal* figures are wire rates from the
//! standards and vendors' data sheets. *Measured* starts from effective and corrects what is known to be off.

use crate::snapshot::{GpuLinkKind, PcieLink};
use crate::{Bandwidth, CpuArch, CpuModel, Gpu, RateModel};

/// A rate, and what had to be assumed to name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Per direction.
    pub bandwidth: Bandwidth,
    /// The default taken where the facts did not tell.
    pub assumed: Option<&'static str>,
}

const fn told(kbps: u64) -> Rate {
    Rate { bandwidth: Bandwidth::from_kbps(kbps), assumed: None }
}

const fn assumed(kbps: u64, what: &'static str) -> Rate {
    Rate { bandwidth: Bandwidth::from_kbps(kbps), assumed: Some(what) }
}

/// What decides the rate of a GPU's links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuArch<'a> {
    /// Ten times NVIDIA's compute capability: 90 for 9.0.
    pub compute_capability: Option<u32>,
    /// AMD's name of the architecture: `gfx942`.
    pub gfx: Option<&'a str>,
}

impl<'a> From<&'a Gpu> for GpuArch<'a> {
    fn from(gpu: &'a Gpu) -> Self {
        Self { compute_capability: gpu.compute_capability, gfx: gpu.gfx.as_deref() }
    }
}

/// One NVLink or xGMI link of a GPU.
///
/// `stated` is the rate the source itself gives, a wire rate, used under [`RateModel::Nominal`].
#[must_use]
pub fn gpu_link(
    kind: GpuLinkKind,
    arch: GpuArch<'_>,
    stated: Option<Bandwidth>,
    model: RateModel,
) -> Rate {
    if let (RateModel::Nominal, Some(bandwidth)) = (model, stated) {
        return Rate { bandwidth, assumed: None };
    }
    match (kind, arch.compute_capability, model == RateModel::Nominal) {
        (GpuLinkKind::Xgmi, _, nominal) => xgmi(arch.gfx, nominal),
        (GpuLinkKind::NvLink, Some(cc), false) => told(match cc {
            100.. => 40_100_000,
            90.. => 20_600_000,
            86 => 12_000_000,
            70.. => 20_000_000,
            _ => 18_000_000,
        }),
        // NVLink 1 to 5: 20, 25, 25, 25, 50 GB/s per link; the GA102 boards' links are 14.0625.
        (GpuLinkKind::NvLink, Some(cc), true) => told(match cc {
            100.. => 50_000_000,
            86 => 14_062_500,
            70.. => 25_000_000,
            _ => 20_000_000,
        }),
        (GpuLinkKind::NvLink, None, false) => {
            assumed(20_000_000, "NVLink rate of a V100 or A100 (20 GB/s a link effective)")
        }
        (GpuLinkKind::NvLink, None, true) => {
            assumed(25_000_000, "NVLink 2 to 4 rate (25 GB/s a link)")
        }
    }
}

/// Effective rates are RCCL's (`src/graph/topo.h`: Vega, MI200, gfx94x, gfx95x). Wire rates are those of 16 lanes at the transfer rate of
/// the generation: 23 GT/s on MI50 to MI100, 25 on MI200 (AMD's pages on the architecture of MI100 and MI250), 32 from MI300 on (the
/// kernel's `amdgpu_xgmi.h`).
fn xgmi(gfx: Option<&str>, nominal: bool) -> Rate {
    let rates = match gfx {
        Some(gfx) if gfx.starts_with("gfx94") || gfx.starts_with("gfx95") => Some((48, 64)),
        Some("gfx90a") => Some((36, 50)),
        Some(gfx) if gfx.starts_with("gfx90") => Some((24, 46)),
        _ => None,
    };
    match (rates, nominal) {
        (Some((effective, _)), false) => told(effective * 1_000_000),
        (Some((_, wire)), true) => told(wire * 1_000_000),
        (None, false) => assumed(36_000_000, "xGMI link rate of an MI200 (36 GB/s effective)"),
        (None, true) => assumed(50_000_000, "xGMI link rate of an MI200 (50 GB/s)"),
    }
}

/// A PCIe link of which rate and width are known, or one of them, or neither.
#[must_use]
pub fn pcie(mtps: Option<u32>, width: Option<u8>, model: RateModel) -> Rate {
    let assumption = match (mtps, width) {
        (Some(_), Some(_)) => None,
        (Some(_), None) => Some("PCIe width x16"),
        (None, Some(_)) => Some("PCIe rate 8 GT/s (Gen3)"),
        (None, None) => Some("PCIe Gen3 x16"),
    };
    let link = PcieLink { mtps: mtps.unwrap_or(8000), width: width.unwrap_or(16) };
    let per_lane = if model == RateModel::Nominal {
        lane_nominal_kbps(link.mtps)
    } else {
        lane_effective_kbps(link.mtps)
    };
    Rate { bandwidth: Bandwidth::from_kbps(per_lane * u64::from(link.width)), assumed: assumption }
}

/// A PCIe link of which only the wire rate of all its lanes is known, as trained when it was read.
#[must_use]
pub fn pcie_total(total: Bandwidth, model: RateModel) -> Rate {
    // Effective and wire rate of a lane have one ratio within each line code; 8b/10b rates are multiples of 250 MB/s.
    let mtps = if total.kbps().is_multiple_of(250_000) { 5000 } else { 8000 };
    let (effective, nominal) = (lane_effective_kbps(mtps), lane_nominal_kbps(mtps));
    let kbps = match model {
        RateModel::Nominal => total.kbps(),
        // To the MB/s: sources round the total to six digits.
        RateModel::Effective | RateModel::Measured => {
            (total.kbps().saturating_mul(effective) / nominal).saturating_add(500) / 1000 * 1000
        }
    };
    assumed(kbps, "PCIe rate as trained when recorded")
}

/// NCCL's `kvDictPciGen` (hundreds of Mbit/s per lane: 15, 30, 60, 120, 240, 480) over its divisor of 80.
fn lane_effective_kbps(mtps: u32) -> u64 {
    let hundreds_of_mbit = match mtps {
        64_000.. => 480,
        32_000.. => 240,
        16_000.. => 120,
        8_000.. => 60,
        5_000.. => 30,
        _ => 15,
    };
    hundreds_of_mbit * 12_500
}

/// Line code only: 8b/10b to Gen2, 128b/130b to Gen5, 242 of 256 bytes of a Gen6 flit.
fn lane_nominal_kbps(mtps: u32) -> u64 {
    let raw = u64::from(mtps) * 125;
    match mtps {
        64_000.. => raw * 242 / 256,
        8_000.. => raw * 128 / 130,
        _ => raw * 8 / 10,
    }
}

/// The link between two NUMA nodes with this processor.
#[must_use]
pub fn socket(cpu: &CpuModel, model: RateModel) -> Rate {
    let better = model != RateModel::Effective;
    let vendor = cpu.vendor.as_deref().unwrap_or_default();
    match cpu.arch {
        Some(CpuArch::Ppc64) => told(32_000_000),
        Some(CpuArch::Arm64) => told(6_000_000),
        Some(CpuArch::X86_64) | None => match vendor {
            "GenuineIntel" => match cpu.model {
                // Skylake-SP from 0x55, Sapphire Rapids from 0x8f, Emerald Rapids from 0xcf; NCCL counts
                // Granite Rapids and Sierra Forest (0xad to 0xaf) with Sapphire Rapids.
                Some(0xcf..) => told(40_000_000),
                Some(0xad..=0xaf) if better => told(40_000_000),
                Some(0x8f..) => told(22_000_000),
                Some(0x55..) => told(10_000_000),
                Some(_) => told(6_000_000),
                None => assumed(6_000_000, "socket link of an Intel Broadwell (6 GB/s)"),
            },
            "AuthenticAMD" => match cpu.family {
                // Zen 1 and 2 are family 23, Zen 3 and 4 are 25, Zen 5 is 26 (0x17, 0x19, 0x1a); NCCL 2.30 has 16 for all.
                Some(25) if better => told(24_000_000),
                Some(26..) if better => told(32_000_000),
                _ => told(16_000_000),
            },
            // NCCL: Zhaoxin 6, its Yongfeng (model 0x5b) 9.
            "  Shanghai  " | "Shanghai" | "CentaurHauls" => {
                told(if cpu.model == Some(0x5b) { 9_000_000 } else { 6_000_000 })
            }
            _ => assumed(6_000_000, "socket link of 6 GB/s (unknown processor)"),
        },
    }
}

/// A NIC port's way to the network.
#[must_use]
pub fn nic(mbit: Option<u64>) -> Rate {
    match mbit {
        Some(mbit) if mbit > 0 => Rate { bandwidth: Bandwidth::from_mbit(mbit), assumed: None },
        // NCCL's default for a NIC that states no speed.
        _ => assumed(1_250_000, "NIC rate 10 Gbit/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rate: Rate, gbps: &str, assumption: bool) {
        assert_eq!(rate.bandwidth.display_gbps(), gbps);
        assert_eq!(rate.assumed.is_some(), assumption);
    }

    #[test]
    fn pcie_in_one_figure() {
        let total = |kbps, model| pcie_total(Bandwidth::from_kbps(kbps), model);
        // Gen3 x16 or Gen4 x8: 12 GB/s as NCCL counts either.
        check(total(15_753_846, RateModel::Effective), "12", true);
        check(total(15_753_846, RateModel::Nominal), "15.753846", true);
        check(total(4_000_000, RateModel::Effective), "3", true);
    }

    #[test]
    fn nvlink() {
        let nvlink = |compute_capability, model| {
            let arch = GpuArch { compute_capability, gfx: None };
            gpu_link(GpuLinkKind::NvLink, arch, None, model)
        };
        check(nvlink(Some(60), RateModel::Effective), "18", false);
        check(nvlink(Some(70), RateModel::Effective), "20", false);
        check(nvlink(Some(80), RateModel::Effective), "20", false);
        check(nvlink(Some(86), RateModel::Effective), "12", false);
        check(nvlink(Some(90), RateModel::Effective), "20.6", false);
        check(nvlink(Some(103), RateModel::Effective), "40.1", false);
        check(nvlink(Some(70), RateModel::Nominal), "25", false);
        check(nvlink(None, RateModel::Effective), "20", true);
    }

    #[test]
    fn xgmi_by_architecture() {
        let xgmi = |gfx, model| {
            gpu_link(GpuLinkKind::Xgmi, GpuArch { compute_capability: None, gfx }, None, model)
        };
        check(xgmi(Some("gfx942"), RateModel::Effective), "48", false);
        check(xgmi(Some("gfx950"), RateModel::Nominal), "64", false);
        check(xgmi(Some("gfx90a"), RateModel::Effective), "36", false);
        check(xgmi(Some("gfx908"), RateModel::Nominal), "46", false);
        check(xgmi(Some("gfx1100"), RateModel::Effective), "36", true);
        check(xgmi(None, RateModel::Nominal), "50", true);
    }

    #[test]
    fn pcie_links() {
        check(pcie(Some(8000), Some(16), RateModel::Effective), "12", false);
        check(pcie(Some(16000), Some(8), RateModel::Effective), "12", false);
        check(pcie(Some(32000), Some(16), RateModel::Effective), "48", false);
        check(pcie(None, None, RateModel::Effective), "12", true);
        check(pcie(Some(16000), Some(16), RateModel::Nominal), "31.50768", false);
    }

    #[test]
    fn sockets() {
        let cpu = |vendor: &str, family, model| CpuModel {
            arch: Some(CpuArch::X86_64),
            vendor: Some(vendor.into()),
            family: Some(family),
            model: Some(model),
        };
        check(socket(&cpu("GenuineIntel", 6, 79), RateModel::Effective), "6", false);
        check(socket(&cpu("GenuineIntel", 6, 85), RateModel::Effective), "10", false);
        check(socket(&cpu("GenuineIntel", 6, 143), RateModel::Effective), "22", false);
        check(socket(&cpu("GenuineIntel", 6, 0xad), RateModel::Measured), "40", false);
        check(socket(&cpu("AuthenticAMD", 25, 1), RateModel::Effective), "16", false);
        check(socket(&cpu("AuthenticAMD", 25, 1), RateModel::Measured), "24", false);
        check(socket(&CpuModel::default(), RateModel::Effective), "6", true);
    }

    #[test]
    fn nics() {
        check(nic(Some(100_000)), "12.5", false);
        check(nic(None), "1.25", true);
        check(nic(Some(0)), "1.25", true);
    }
}
