//! Why there is no plan.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use topology::{Collective, GpuIndex, HostId};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The topology has no GPU.
    #[error("the topology has no GPU")]
    NoGpu,
    /// A single rank has nobody to talk to.
    #[error("{gpu} is the only GPU: a plan takes at least two")]
    OneGpu {
        /// Its name.
        gpu: String,
    },
    /// The request names a GPU that a host does not have.
    #[error("host {host} has no GPU{gpu}; it has {}", names(.known))]
    UnknownGpu {
        /// NVML index.
        gpu: GpuIndex,
        /// Host.
        host: HostId,
        /// The indices it has, ascending.
        known: Vec<GpuIndex>,
    },
    /// The request names a GPU twice.
    #[error("GPU{gpu} is named twice")]
    GpuTwice {
        /// NVML index.
        gpu: GpuIndex,
    },
    /// Two GPUs that no links connect.
    #[error("no way leads from {from} to {to}")]
    Disconnected {
        /// Name of the sender.
        from: String,
        /// Name of the receiver.
        to: String,
    },
    /// A collective that is not planned as channels.
    #[error("{collective} is not planned")]
    NotPlanned {
        /// Which.
        collective: Collective,
    },
    /// A plan was made and the checker refused it, which is a defect of the planner.
    #[error("the plan for {collective} did not pass the check: {reason}")]
    Refused {
        /// Which.
        collective: Collective,
        /// What the checker said.
        reason: String,
    },
}

/// `GPU0 to GPU7`, or one by one where some are missing.
fn names(known: &[GpuIndex]) -> String {
    let in_a_row = known.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0);
    match known {
        [first, _, .., last] if in_a_row => format!("GPU{first} to GPU{last}"),
        _ => known.iter().map(|gpu| format!("GPU{gpu}")).collect::<Vec<_>>().join(", "),
    }
}
