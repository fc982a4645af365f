//! How two devices are connected, as one word.

use core::fmt;

use serde::{Deserialize, Serialize};

/// Class of a path, best to worst, so that the worst of several is `max`.
///
/// The names are NVML's and NCCL's. `Node` is a level of NVML alone: NCCL counts two host bridges
/// of one NUMA node as `Phb`. NCCL's `src/graph/topo.h` has the order of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathType {
    /// The device itself.
    Loc,
    /// Direct NVLink or xGMI, or through NVSwitches.
    Nvl,
    /// NVLink through another GPU.
    Nvb,
    /// Chip to chip link between CPU and GPU.
    C2c,
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches, no host bridge.
    Pxb,
    /// C2C to the CPU, then PCIe to the NIC.
    P2c,
    /// To the NIC of another GPU, reached over NVLink.
    Pxn,
    /// Through a PCIe host bridge.
    Phb,
    /// Between host bridges of one NUMA node.
    Node,
    /// Across the link between NUMA nodes.
    Sys,
    /// Over the network.
    Net,
    /// Not connected.
    Dis,
}

impl PathType {
    /// Every class, best first.
    pub const ALL: [Self; 13] = [
        Self::Loc,
        Self::Nvl,
        Self::Nvb,
        Self::C2c,
        Self::Pix,
        Self::Pxb,
        Self::P2c,
        Self::Pxn,
        Self::Phb,
        Self::Node,
        Self::Sys,
        Self::Net,
        Self::Dis,
    ];

    /// The word used in matrices and messages, upper case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loc => "LOC",
            Self::Nvl => "NVL",
            Self::Nvb => "NVB",
            Self::C2c => "C2C",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::P2c => "P2C",
            Self::Pxn => "PXN",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
            Self::Net => "NET",
            Self::Dis => "DIS",
        }
    }

    /// What the class means, in one sentence; `nvidia-smi topo -m` defines the PCIe ones the same way.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Loc => "the device itself",
            Self::Nvl => "connected by NVLink or xGMI, directly or through NVSwitches",
            Self::Nvb => "over NVLink through another GPU",
            Self::C2c => "over the chip-to-chip link between CPU and GPU",
            Self::Pix => "through at most a single PCIe switch",
            Self::Pxb => "through several PCIe switches, without passing the host bridge",
            Self::P2c => "over C2C to the CPU, then PCIe",
            Self::Pxn => "over NVLink to the GPU beside the NIC",
            Self::Phb => "through a PCIe host bridge, typically the CPU",
            Self::Node => "through host bridges of one NUMA node",
            Self::Sys => "across the link between NUMA nodes (UPI, xGMI)",
            Self::Net => "over the network",
            Self::Dis => "not connected",
        }
    }
}

impl fmt::Display for PathType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_of_is_max() {
        assert!(PathType::ALL.is_sorted());
        assert_eq!(PathType::Pix.max(PathType::Sys), PathType::Sys);
        assert_eq!(PathType::Nvl.max(PathType::C2c), PathType::C2c);
    }
}
