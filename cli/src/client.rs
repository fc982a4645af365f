//! Asking the daemon.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::v1::status_service_client::StatusServiceClient;
use proto::{PlanQuery, Published, v1};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use topology::Plan;

use crate::exit::{Exit, Failure};

/// A daemon on this host answers what it is in milliseconds, whatever else it does.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// A cold plan of a large job takes longer.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Largest message taken: a plan of a thousand ranks is about 25 MiB.
pub(crate) const MOST_BYTES: usize = 64 << 20;

/// The daemon's topology; `None` where no socket was named and no daemon runs, which is ordinary. One that runs and cannot answer is an
/// error: what this process would find in its place might be another machine.
pub(crate) fn topology(socket: Option<&Path>) -> Result<Option<Published>, Failure> {
    let path = socket.map_or_else(|| PathBuf::from(proto::DEFAULT_SOCKET), Path::to_path_buf);
    if socket.is_none() && std::os::unix::net::UnixStream::connect(&path).is_err() {
        return Ok(None);
    }
    let answer = block_on(&path, async |channel| {
        let mut client = v1::topology_service_client::TopologyServiceClient::new(channel)
            .max_decoding_message_size(MOST_BYTES);
        client.get_topology(v1::GetTopologyRequest {}).await
    });
    match answer {
        Err(error) => Err(error),
        Ok(response) => {
            let published = response
                .topology
                .ok_or_else(|| Failure::internal("the daemon answered without a topology"))?;
            Published::try_from(published).map(Some).map_err(Failure::internal)
        }
    }
}

/// A plan made by the daemon.
pub(crate) fn plan(socket: &Path, query: &PlanQuery) -> Result<Plan, Failure> {
    let request = v1::GetPlanRequest::from(query);
    let response = block_on(socket, async |channel| {
        let mut client = v1::plan_service_client::PlanServiceClient::new(channel)
            .max_decoding_message_size(MOST_BYTES);
        client.get_plan(request).await
    })?;
    let plan =
        response.plan.ok_or_else(|| Failure::internal("the daemon answered without a plan"))?;
    Plan::try_from(plan).map_err(Failure::internal)
}

/// Version and state of the daemon.
pub(crate) fn status(
    socket: &Path,
) -> Result<(v1::GetBuildInfoResponse, v1::GetStatusResponse), Failure> {
    runtime()?.block_on(async {
        let (channel, build) = connect(socket).await?;
        let mut client = StatusServiceClient::new(channel);
        let status = within(ANSWER_LIMIT, socket, client.get_status(v1::GetStatusRequest {}));
        Ok((build, status.await?))
    })
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::internal)
}

fn block_on<T>(
    socket: &Path,
    call: impl AsyncFnOnce(Channel) -> Result<tonic::Response<T>, tonic::Status>,
) -> Result<T, Failure> {
    runtime()?.block_on(async {
        let (channel, _) = connect(socket).await?;
        within(CALL_LIMIT, socket, call(channel)).await
    })
}

/// The answer to a call that may take so long.
async fn within<T>(
    limit: Duration,
    socket: &Path,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner).map_err(|status| refused(&status)),
        Err(_) => Err(Failure::new(
            Exit::DaemonUnreachable,
            format!("the daemon at {} is not done within {limit:?}", socket.display()),
        )),
    }
}

/// A connection to a daemon that answers, and what it is. One that is stopped or hangs takes connections and says nothing: that is
/// found out before anything is asked that may rightly take long.
pub(crate) async fn connect(socket: &Path) -> Result<(Channel, v1::GetBuildInfoResponse), Failure> {
    let unreachable = |error: &dyn std::fmt::Display| {
        Failure::new(
            Exit::DaemonUnreachable,
            format!("no daemon answers at {}: {error}", socket.display()),
        )
    };
    let answer = async {
        // Connecting by hand first gives the operating system's own words where that fails.
        drop(UnixStream::connect(socket).await.map_err(|error| unreachable(&error))?);
        let absolute = std::path::absolute(socket).map_err(|error| unreachable(&error))?;
        let endpoint = Endpoint::from_shared(format!("unix://{}", absolute.display()))
            .map_err(|error| unreachable(&error))?;
        let channel = endpoint.connect().await.map_err(|error| unreachable(&error))?;
        let build = StatusServiceClient::new(channel.clone())
            .get_build_info(v1::GetBuildInfoRequest {})
            .await
            .map_err(|status| refused(&status))?;
        Ok::<_, Failure>((channel, build.into_inner()))
    };
    tokio::time::timeout(ANSWER_LIMIT, answer).await.unwrap_or_else(|_| {
        let seconds = ANSWER_LIMIT.as_secs();
        Err(unreachable(&format!(
            "it takes connections and says nothing for {seconds} s, so it hangs or is stopped"
        )))
    })
}

/// The exit code of a status: nothing to plan is 7, a request that makes no sense 2, a daemon that cannot answer now 6.
pub(crate) fn refused(status: &tonic::Status) -> Failure {
    use tonic::Code;
    let exit = match (proto::Reason::of(status), status.code()) {
        (Some(proto::Reason::NoPlan), _) => Exit::NoPlan,
        (_, Code::InvalidArgument | Code::NotFound) => Exit::Usage,
        (
            _,
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::ResourceExhausted,
        ) => Exit::DaemonUnreachable,
        // What the daemon says has no cause on this side: here the connection broke, as when the daemon is killed.
        _ if std::error::Error::source(status).is_some() => Exit::DaemonUnreachable,
        _ => Exit::Internal,
    };
    Failure::new(exit, format!("daemon: {}", status.message()))
}
