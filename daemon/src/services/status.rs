//! The daemon itself.

use std::sync::Arc;
use std::time::Duration;

use proto::v1;
use proto::v1::status_service_server::StatusService;
use tonic::{Request, Response, Status};
use topology::snapshot::SCHEMA_VERSION;

use super::count;
use crate::state::{Published, State};

#[derive(Debug)]
pub(crate) struct StatusApi {
    pub(crate) state: Arc<State>,
}

#[tonic::async_trait]
impl StatusService for StatusApi {
    async fn get_build_info(
        &self,
        _: Request<v1::GetBuildInfoRequest>,
    ) -> Result<Response<v1::GetBuildInfoResponse>, Status> {
        Ok(Response::new(v1::GetBuildInfoResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            snapshot_schema_version: SCHEMA_VERSION,
            arch: std::env::consts::ARCH.into(),
        }))
    }

    async fn get_status(
        &self,
        _: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        let state = &self.state;
        let (readings, failed_readings) = state.readings();
        let age = state.last_success().map(|(at, _)| milliseconds(at.elapsed()));
        let health = state.verdict().map_or(v1::HealthStatus::Unspecified, |v| v.report.status());
        Ok(Response::new(v1::GetStatusResponse {
            published: state.current().map(|published| in_numbers(&published)),
            uptime_ms: milliseconds(state.started().elapsed()),
            cached_plans: count(state.plans.len()),
            prepared_plans: count(state.plans.prepared()),
            last_error: state.last_error(),
            readings,
            failed_readings,
            last_success_age_ms: age,
            health: health.into(),
            watchers: state.watchers(),
            warnings: state.warnings(),
        }))
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn in_numbers(published: &Published) -> v1::PublishedStatus {
    let topology = &published.topology;
    let hosts = topology.hosts();
    v1::PublishedStatus {
        generation: published.generation.0,
        fingerprint: topology.fingerprint().into(),
        source: hosts.first().map_or(v1::Source::Unspecified, |host| host.source.into()).into(),
        rates: v1::RateModel::from(topology.rates()).into(),
        hosts: count(hosts.len()),
        gpus: count(topology.gpus().len()),
        nics: count(topology.nics().len()),
        faults: count(hosts.iter().map(|host| host.faults.len()).sum()),
    }
}
