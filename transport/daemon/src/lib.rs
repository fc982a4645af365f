//! What a job asks of the daemon on its host, and tells it.
//!
//! A launch never depends on it: a plan can as well come from a file, and nobody need hear what a job measured. Each call opens
//! a connection of its own, runs on the calling thread alone and leaves no thread behind, so it can be made from a process
//! that forks, and from a library loaded into one. A group that is to report by itself ([`attach`]) has a thread for that.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::{GpuSelector, OperationReport, PlanQuery, Reason, WireError, v1};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use topology::{GpuIndex, Plan};

mod reports;

pub use reports::attach;

/// A daemon on this host answers in milliseconds; a cold plan of a large job takes longer.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Largest message taken: a plan of a thousand ranks is about 25 MiB.
const MOST_BYTES: usize = 64 << 20;

/// Why the daemon did not help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// Nobody listens there. Ordinary where no daemon is installed.
    #[error("no daemon answers at {}: {cause}", socket.display())]
    Unreachable {
        /// Where.
        socket: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// It answered, with a refusal.
    #[error("the daemon at {} refused: {message}", socket.display())]
    Refused {
        /// Where.
        socket: PathBuf,
        /// The stable reason, if it gave one that is known here.
        reason: Option<Reason>,
        /// In words.
        message: String,
    },
    /// It answered what no daemon of this version would.
    #[error("the daemon at {} answered nonsense: {cause}", socket.display())]
    Answer {
        /// Where.
        socket: PathBuf,
        /// What is wrong.
        cause: String,
    },
}

/// Where the daemon listens: `TOPOD_SOCKET`, else the usual place.
#[must_use]
pub fn default_socket() -> PathBuf {
    std::env::var_os("TOPOD_SOCKET").map_or_else(|| proto::DEFAULT_SOCKET.into(), Into::into)
}

/// The plan for the GPUs with these indices, in rank order; for none, of all.
///
/// # Errors
/// Where no daemon answers, or it has no such plan.
pub fn plan(socket: &Path, gpus: &[u32]) -> Result<Plan, DaemonError> {
    let gpus = gpus.iter().map(|index| GpuSelector::Index(GpuIndex(*index))).collect();
    let request = v1::GetPlanRequest::from(&PlanQuery { gpus, ..PlanQuery::default() });
    let answer = call(socket, async |channel| {
        let mut client = v1::plan_service_client::PlanServiceClient::new(channel)
            .max_decoding_message_size(MOST_BYTES);
        client.get_plan(request).await
    })?;
    let nonsense = |cause: String| DaemonError::Answer { socket: socket.to_path_buf(), cause };
    let plan = answer.plan.ok_or_else(|| nonsense("no plan".to_owned()))?;
    Plan::try_from(plan).map_err(|error: WireError| nonsense(error.to_string()))
}

/// Tells the daemon how operations ended, for the metrics that operators watch. At most 1,024 at once; each operation by one of its
/// ranks.
///
/// # Errors
/// Where no daemon answers, or it takes no more at the moment. The job goes on either way.
pub fn report(socket: &Path, operations: &[OperationReport]) -> Result<(), DaemonError> {
    let operations = operations.iter().map(Into::into).collect();
    call(socket, async |channel| {
        let mut client = v1::report_service_client::ReportServiceClient::new(channel);
        client.report_operations(v1::ReportOperationsRequest { operations }).await
    })?;
    Ok(())
}

fn call<T>(
    socket: &Path,
    call: impl AsyncFnOnce(Channel) -> Result<tonic::Response<T>, tonic::Status>,
) -> Result<T, DaemonError> {
    let unreachable = |cause: &dyn std::fmt::Display| DaemonError::Unreachable {
        socket: socket.to_path_buf(),
        cause: cause.to_string(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| unreachable(&error))?;
    runtime.block_on(async {
        // Connecting by hand first gives the operating system's own words where that fails.
        drop(UnixStream::connect(socket).await.map_err(|error| unreachable(&error))?);
        let absolute = std::path::absolute(socket).map_err(|error| unreachable(&error))?;
        let endpoint = Endpoint::from_shared(format!("unix://{}", absolute.display()))
            .map_err(|error| unreachable(&error))?;
        let channel =
            endpoint.timeout(CALL_LIMIT).connect().await.map_err(|error| unreachable(&error))?;
        call(channel).await.map(tonic::Response::into_inner).map_err(|status| {
            DaemonError::Refused {
                socket: socket.to_path_buf(),
                reason: Reason::of(&status),
                message: status.message().to_owned(),
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_daemon_is_named() {
        let error = plan(Path::new("/nonexistent/topod.sock"), &[]).unwrap_err().to_string();
        let expect = "no daemon answers at /nonexistent/topod.sock: No such";
        assert!(error.starts_with(expect), "{error}");
        let error = report(Path::new("/nonexistent/topod.sock"), &[]).unwrap_err().to_string();
        assert!(error.starts_with(expect), "{error}");
    }
}
