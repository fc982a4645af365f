//! Requests for plans.

use topology::{Collective, GpuIndex};

use super::enums::{required_each, some};
use super::{WireError, bus_id, each, present, to_each};
use crate::query::{GpuSelector, JobMember, PlanQuery};
use crate::v1;

/// Bytes of a job's name; the daemon keeps it.
const LONGEST_JOB: usize = 128;

impl From<&PlanQuery> for v1::GetPlanRequest {
    fn from(query: &PlanQuery) -> Self {
        let number = |collective: &Collective| v1::Collective::from(*collective).into();
        Self {
            gpus: to_each(&query.gpus),
            collectives: query.collectives.iter().map(number).collect(),
            size_bytes: query.size_bytes,
            links: v1::LinkPolicy::from(query.links).into(),
            expected_generation: query.expected_generation.map(|generation| generation.0),
            member: query.member.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<v1::GetPlanRequest> for PlanQuery {
    type Error = WireError;

    fn try_from(wire: v1::GetPlanRequest) -> Result<Self, WireError> {
        Ok(Self {
            gpus: each(wire.gpus)?,
            collectives: required_each("GetPlanRequest.collectives", &wire.collectives)?,
            size_bytes: wire.size_bytes,
            links: some("GetPlanRequest.links", wire.links)?.unwrap_or_default(),
            expected_generation: wire.expected_generation.map(topology::Generation),
            member: wire.member.map(TryInto::try_into).transpose()?,
        })
    }
}

impl From<&JobMember> for v1::JobMember {
    fn from(member: &JobMember) -> Self {
        Self { job: member.job.clone(), rank: member.rank, ranks_here: member.ranks_here }
    }
}

impl TryFrom<v1::JobMember> for JobMember {
    type Error = WireError;

    fn try_from(wire: v1::JobMember) -> Result<Self, WireError> {
        if wire.job.is_empty() {
            return Err(WireError::Missing { field: "JobMember.job" });
        }
        if wire.job.len() > LONGEST_JOB {
            return Err(WireError::TooLong { field: "JobMember.job", most: LONGEST_JOB });
        }
        Ok(Self { job: wire.job, rank: wire.rank, ranks_here: wire.ranks_here })
    }
}

impl From<&GpuSelector> for v1::GpuSelector {
    fn from(selector: &GpuSelector) -> Self {
        use v1::gpu_selector::Selector;
        let selector = match selector {
            GpuSelector::Index(index) => Selector::Index(index.0),
            GpuSelector::Uuid(uuid) => Selector::Uuid(uuid.clone()),
            GpuSelector::BusId(id) => Selector::BusId(id.to_string()),
        };
        Self { selector: Some(selector) }
    }
}

impl TryFrom<v1::GpuSelector> for GpuSelector {
    type Error = WireError;

    fn try_from(wire: v1::GpuSelector) -> Result<Self, WireError> {
        use v1::gpu_selector::Selector;
        Ok(match present("GpuSelector.selector", wire.selector)? {
            Selector::Index(index) => Self::Index(GpuIndex(index)),
            Selector::Uuid(uuid) => Self::Uuid(uuid),
            Selector::BusId(id) => Self::BusId(bus_id("GpuSelector.bus_id", &id)?),
        })
    }
}
