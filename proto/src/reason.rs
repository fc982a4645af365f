//! Why a call failed, as a word that scripts and launchers can rely on.

use std::collections::HashMap;
use std::fmt;

use tonic_types::{ErrorDetails, StatusExt as _};

/// Domain of the `google.rpc.ErrorInfo` that carries a [`Reason`].
pub const ERROR_DOMAIN: &str = "topod";

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)?) => {
        /// Stable reason of an error: `ErrorInfo.reason` in the details of a gRPC status. Texts of statuses are for
        /// people and may change; these do not.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $variant),+ }

        impl Reason {
            /// Every reason.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The word on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}

reasons! {
    /// No topology has been published yet. Retry.
    TopologyNotReady = "TOPOLOGY_NOT_READY",
    /// The daemon drains. Retry, with the daemon that follows.
    ShuttingDown = "SHUTTING_DOWN",
    /// The present topology is not of the generation the client expects. Get it anew.
    GenerationMismatch = "GENERATION_MISMATCH",
    /// The request contradicts itself or the schema.
    InvalidRequest = "INVALID_REQUEST",
    /// A GPU was named that the topology does not have.
    UnknownGpu = "UNKNOWN_GPU",
    /// No plan can exist for the request on this topology.
    NoPlan = "NO_PLAN",
    /// The checker refused what the planner made: a defect.
    PlanRejected = "PLAN_REJECTED",
    /// Too many different plans are being made. Retry later.
    Overloaded = "OVERLOADED",
    /// A connection makes more calls a second than it may. Retry later.
    RateLimited = "RATE_LIMITED",
    /// Other ranks of the job have plans of another generation. Start the job anew.
    MixedGenerations = "MIXED_GENERATIONS",
    /// No rank of the job ever asked.
    UnknownJob = "UNKNOWN_JOB",
    /// A device was named that the topology does not have.
    UnknownDevice = "UNKNOWN_DEVICE",
    /// What is asked for does not fit into the format.
    NotExportable = "NOT_EXPORTABLE",
    /// A defect in the daemon.
    Internal = "INTERNAL",
}

impl Reason {
    /// A status that carries this reason, with `metadata` as its structured half.
    #[must_use]
    pub fn status(
        self,
        code: tonic::Code,
        message: impl Into<String>,
        metadata: &[(&str, String)],
    ) -> tonic::Status {
        let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
        let details = ErrorDetails::with_error_info(
            self.as_str(),
            ERROR_DOMAIN,
            metadata.collect::<HashMap<_, _>>(),
        );
        tonic::Status::with_error_details(code, message, details)
    }

    /// The reason a status from a topod carries; `None` where it carries none of ours (the connection failed, a proxy
    /// answered) or one of a later version.
    #[must_use]
    pub fn of(status: &tonic::Status) -> Option<Self> {
        let info = status.get_details_error_info()?;
        let known = || Self::ALL.iter().copied().find(|reason| reason.as_str() == info.reason);
        (info.domain == ERROR_DOMAIN).then(known).flatten()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Status};

    use super::*;

    #[test]
    fn reasons_travel_in_the_details() {
        for reason in Reason::ALL {
            let sent = reason.status(Code::Internal, "text", &[("generation", "7".into())]);
            // What a client gets is what fits into the trailers.
            let mut headers = tonic::codegen::http::HeaderMap::new();
            sent.add_header(&mut headers).unwrap();
            let got = Status::from_header_map(&headers).unwrap();
            assert_eq!(Reason::of(&got), Some(*reason));
            assert_eq!(got.get_details_error_info().unwrap().metadata["generation"], "7");
        }
    }

    #[test]
    fn other_statuses_have_none() {
        assert_eq!(Reason::of(&Status::unavailable("connection refused")), None);
        let details = ErrorDetails::with_error_info("NO_PLAN", "elsewhere", HashMap::new());
        let status = Status::with_error_details(Code::Internal, "", details);
        assert_eq!(Reason::of(&status), None);
    }
}
