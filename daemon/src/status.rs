//! From errors to gRPC statuses. Nothing else in the daemon chooses a code or a reason.

use planner::PlanError;
use proto::{Reason, WireError};
use tonic::{Code, Status};
use topology::Generation;

use crate::chain;
use crate::jobs::JobError;
use crate::plans::PlanFailure;
use crate::select::SelectError;

/// Why a call fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// Before the first topology.
    #[error("no topology has been published yet")]
    NotReady,
    /// While the daemon drains.
    #[error("the daemon is shutting down")]
    ShuttingDown,
    /// The client expects another generation.
    #[error("the present topology is of generation {present}, not {expected}")]
    Generation { expected: Generation, present: Generation },
    /// The request is not valid.
    #[error(transparent)]
    Request(#[from] WireError),
    /// The request names GPUs that are not there.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanFailure),
    /// The job may not have it.
    #[error(transparent)]
    Job(#[from] JobError),
    /// Nobody of that job ever asked for a plan.
    #[error("no rank of a job '{job}' has asked for a plan")]
    UnknownJob { job: String },
    /// A name that no device has.
    #[error("there is no device {name}")]
    UnknownDevice { name: String },
    /// What is asked for does not fit into the format.
    #[error("cannot be exported: {reason}")]
    NotExportable { reason: String },
    /// Fewer GPUs are free than are asked for, or none is asked for.
    #[error("no selection: {reason}")]
    NoSelection { reason: String },
    /// Sizes that make no job on these GPUs.
    #[error("no such job: {reason}")]
    NotMappable { reason: String },
    /// However ranks are placed, some cannot reach each other.
    #[error("no mapping: {reason}")]
    NoMapping { reason: String },
    /// More calls a second than a connection may have.
    #[error("this connection makes more calls a second than it may")]
    RateLimited,
}

impl CallError {
    fn code_and_reason(&self) -> (Code, Reason) {
        match self {
            Self::NotReady => (Code::Unavailable, Reason::TopologyNotReady),
            Self::ShuttingDown | Self::Plan(PlanFailure::Abandoned) => {
                (Code::Unavailable, Reason::ShuttingDown)
            }
            Self::Generation { .. } => (Code::FailedPrecondition, Reason::GenerationMismatch),
            Self::Job(JobError::Mixed { .. }) => {
                (Code::FailedPrecondition, Reason::MixedGenerations)
            }
            Self::Job(JobError::TooMany { .. }) => (Code::ResourceExhausted, Reason::Overloaded),
            Self::UnknownJob { .. } => (Code::NotFound, Reason::UnknownJob),
            Self::UnknownDevice { .. } => (Code::NotFound, Reason::UnknownDevice),
            Self::NotExportable { .. } => (Code::FailedPrecondition, Reason::NotExportable),
            Self::NoSelection { .. } | Self::NoMapping { .. } => {
                (Code::FailedPrecondition, Reason::NoPlan)
            }
            Self::RateLimited => (Code::ResourceExhausted, Reason::RateLimited),
            Self::Request(_)
            | Self::NotMappable { .. }
            | Self::Select(SelectError::Twice { .. } | SelectError::SeveralHosts { .. }) => {
                (Code::InvalidArgument, Reason::InvalidRequest)
            }
            Self::Select(SelectError::Unknown { .. }) => (Code::NotFound, Reason::UnknownGpu),
            Self::Plan(PlanFailure::Planner(error)) => match error {
                PlanError::UnknownGpu { .. } => (Code::NotFound, Reason::UnknownGpu),
                PlanError::GpuTwice { .. } => (Code::InvalidArgument, Reason::InvalidRequest),
                PlanError::NoGpu | PlanError::OneGpu { .. } | PlanError::Disconnected { .. } => {
                    (Code::FailedPrecondition, Reason::NoPlan)
                }
                PlanError::NotPlanned { .. } => (Code::Unimplemented, Reason::NoPlan),
                PlanError::Refused { .. } => (Code::Internal, Reason::PlanRejected),
            },
            Self::Plan(PlanFailure::Rejected { .. }) => (Code::Internal, Reason::PlanRejected),
            Self::Plan(PlanFailure::Panicked | PlanFailure::Kept { .. }) => {
                (Code::Internal, Reason::Internal)
            }
            Self::Plan(PlanFailure::Overloaded) => (Code::ResourceExhausted, Reason::Overloaded),
        }
    }
}

impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        let (code, reason) = error.code_and_reason();
        let metadata = match &error {
            CallError::Generation { present, .. } => vec![("generation", present.to_string())],
            CallError::Job(JobError::Mixed { present, others, .. }) => {
                vec![("generation", present.to_string()), ("others", others.to_string())]
            }
            _ => vec![],
        };
        reason.status(code, chain(&error), &metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(error: CallError, code: Code, reason: Reason, message: &str) {
        let status = Status::from(error);
        assert_eq!((status.code(), Reason::of(&status)), (code, Some(reason)));
        assert_eq!(status.message(), message);
    }

    #[test]
    fn statuses_are_stable() {
        check(
            CallError::NotReady,
            Code::Unavailable,
            Reason::TopologyNotReady,
            "no topology has been published yet",
        );
        check(
            CallError::Generation { expected: Generation(2), present: Generation(3) },
            Code::FailedPrecondition,
            Reason::GenerationMismatch,
            "the present topology is of generation 3, not 2",
        );
        check(
            WireError::Missing { field: "GpuSelector.selector" }.into(),
            Code::InvalidArgument,
            Reason::InvalidRequest,
            "GpuSelector.selector is missing",
        );
        check(
            SelectError::Unknown { name: "GPU-1".into() }.into(),
            Code::NotFound,
            Reason::UnknownGpu,
            "there is no GPU GPU-1",
        );
        check(
            PlanFailure::Planner(PlanError::NoGpu).into(),
            Code::FailedPrecondition,
            Reason::NoPlan,
            "no plan for this request: the topology has no GPU",
        );
        check(
            PlanFailure::Overloaded.into(),
            Code::ResourceExhausted,
            Reason::Overloaded,
            "64 plans are being made already",
        );
    }
}
