//! A GPU's registration with the NVLink fabric.

use alloc::string::String;

use serde::{Deserialize, Serialize};

/// What NVML tells of the fabric a GPU is in (`nvmlGpuFabricInfo`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuFabric {
    /// How far registration is.
    pub state: FabricState,
    /// Outcome of the registration as an NVML return code, 0 is success; means something once completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u32>,
    /// UUID of the cluster; `None` where it is all zeros, which H100 boards without a rack fabric say too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Clique within the cluster, as told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clique: Option<u32>,
    /// Two bits for each of four conditions; `None` where the driver is too old to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_mask: Option<u32>,
    /// Summary of the mask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<FabricHealth>,
}

/// `nvmlGpuFabricState_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricState {
    /// The board takes part in none.
    NotSupported,
    /// The fabric manager has not begun.
    NotStarted,
    /// The fabric manager is at it.
    InProgress,
    /// Done; whether well, the status tells.
    Completed,
}

/// NVML's summary of a fabric's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricHealth {
    /// All is well.
    Healthy,
    /// Do not use it.
    Unhealthy,
    /// Works with less bandwidth.
    LimitedCapacity,
}

/// One condition of the health mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FabricCondition {
    /// Fewer links than the board has.
    DegradedBandwidth,
    /// A route is being recovered.
    RouteRecovery,
    /// A route is not healthy.
    RouteUnhealthy,
    /// Access timed out and is being recovered.
    AccessTimeoutRecovery,
}

impl FabricCondition {
    /// Every condition with the place of its two bits (`NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_*`).
    pub const ALL: [(Self, u32, &'static str); 4] = [
        (Self::DegradedBandwidth, 0, "degraded bandwidth"),
        (Self::RouteRecovery, 2, "route recovery in progress"),
        (Self::RouteUnhealthy, 4, "route unhealthy"),
        (Self::AccessTimeoutRecovery, 6, "access timeout recovery in progress"),
    ];
}

/// Clique ids that stand for none: seen on boards whose fabric is not set up (32766), and all bits.
const NO_CLIQUE: [u32; 2] = [32_766, u32::MAX];

impl GpuFabric {
    /// The NVLink domain the GPU is in: cluster and clique together, since cliques of different racks have the same
    /// numbers. `None` is unknown, and never equal to another unknown. State "completed" alone proves no fabric.
    #[must_use]
    pub fn domain(&self) -> Option<(&str, u32)> {
        let registered = self.state == FabricState::Completed && self.status == Some(0);
        let clique = self.clique.filter(|clique| !NO_CLIQUE.contains(clique))?;
        self.cluster.as_deref().filter(|_| registered).map(|cluster| (cluster, clique))
    }

    /// The conditions of the mask that are true (1); 2 is false, 0 is not supported. None where there is no mask.
    pub fn conditions(&self) -> impl Iterator<Item = (FabricCondition, &'static str)> {
        let mask = self.health_mask.unwrap_or(0);
        let set = move |shift: u32| mask >> shift & 3 == 1;
        FabricCondition::ALL
            .into_iter()
            .filter(move |(_, shift, _)| set(*shift))
            .map(|(condition, _, words)| (condition, words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn fabric(cluster: Option<&str>, clique: u32) -> GpuFabric {
        GpuFabric {
            state: FabricState::Completed,
            status: Some(0),
            cluster: cluster.map(Into::into),
            clique: Some(clique),
            health_mask: None,
            health: None,
        }
    }

    #[test]
    fn a_domain_needs_proof() {
        assert_eq!(fabric(Some("c"), 7).domain(), Some(("c", 7)));
        assert_eq!(fabric(None, 7).domain(), None);
        assert_eq!(fabric(Some("c"), 32_766).domain(), None);
        let unfinished = GpuFabric { state: FabricState::InProgress, ..fabric(Some("c"), 7) };
        assert_eq!(unfinished.domain(), None);
        let failed = GpuFabric { status: Some(999), ..fabric(Some("c"), 7) };
        assert_eq!(failed.domain(), None);
    }

    #[test]
    fn conditions_of_a_mask() {
        let of = |mask| {
            let fabric = GpuFabric { health_mask: mask, ..fabric(None, 0) };
            fabric.conditions().map(|(condition, _)| condition).collect::<Vec<_>>()
        };
        assert_eq!(of(None), []);
        // All four are known to be false, as the mask of a healthy rack.
        assert_eq!(of(Some(0xaa)), []);
        assert_eq!(of(Some(0xa9)), [FabricCondition::DegradedBandwidth]);
        assert_eq!(of(Some(0x9a)), [FabricCondition::RouteUnhealthy]);
    }
}
