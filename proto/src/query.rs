//! What a client asks a daemon to plan.

use topology::plan::LinkPolicy;
use topology::{BusId, Collective, Generation, GpuIndex, PlanRequest};

/// A request for a plan, its GPUs named in the client's way. A [`PlanRequest`] knows indices alone: which index a
/// UUID has is for the daemon to say, since a client in a container may count other GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanQuery {
    /// In rank order; empty is all.
    pub gpus: Vec<GpuSelector>,
    /// Empty is every collective the planner knows.
    pub collectives: Vec<Collective>,
    /// Expected size of an operation in bytes.
    pub size_bytes: Option<u64>,
    /// Which links count.
    pub links: LinkPolicy,
    /// Refuse a plan of any other generation.
    pub expected_generation: Option<Generation>,
    /// Who asks.
    pub member: Option<JobMember>,
}

/// One rank of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobMember {
    /// The job's name for this start of it.
    pub job: String,
    /// The rank.
    pub rank: u32,
    /// How many ranks of the job run on the daemon's host; 0 is unknown.
    pub ranks_here: u32,
}

/// One way to name a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GpuSelector {
    /// NVML index, or place in a link graph.
    Index(GpuIndex),
    /// UUID.
    Uuid(String),
    /// PCI address.
    BusId(BusId),
}

impl From<&PlanRequest> for PlanQuery {
    fn from(request: &PlanRequest) -> Self {
        Self {
            gpus: request.gpus.iter().flatten().map(|index| GpuSelector::Index(*index)).collect(),
            collectives: request.collectives.clone(),
            size_bytes: request.size_bytes,
            links: request.links,
            expected_generation: None,
            member: None,
        }
    }
}
