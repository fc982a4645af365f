//! The verdict on the machine, once or again after every change.

use std::sync::Arc;

use proto::v1;
use proto::v1::health_service_server::HealthService;
use proto::v1::watch_health_response::Event as Told;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use crate::feed::{self, Event, Wish};
use crate::state::{Judged, State};
use crate::status::CallError;

#[derive(Debug)]
pub(crate) struct HealthApi {
    pub(crate) state: Arc<State>,
}

#[tonic::async_trait]
impl HealthService for HealthApi {
    async fn get_health(
        &self,
        _: Request<v1::GetHealthRequest>,
    ) -> Result<Response<v1::GetHealthResponse>, Status> {
        let judged = self.state.verdict().ok_or(CallError::NotReady)?;
        Ok(Response::new(v1::GetHealthResponse { report: Some(judged.report.clone()) }))
    }

    type WatchHealthStream = BoxStream<v1::WatchHealthResponse>;

    async fn watch_health(
        &self,
        request: Request<v1::WatchHealthRequest>,
    ) -> Result<Response<Self::WatchHealthStream>, Status> {
        let wish = Wish { changes: request.into_inner().changes, resume: None };
        let messages = feed::follow(self.state.verdicts(), wish, |_| "", message);
        Ok(Response::new(Box::pin(messages)))
    }
}

fn message(event: Event<Judged>) -> v1::WatchHealthResponse {
    let event = match event {
        Event::Whole(judged) => Told::Report(judged.report.clone()),
        Event::Changes(step) => Told::Changes(step.changes.clone()),
        Event::Resync(sequence) => Told::Resync(v1::HealthResync { sequence }),
        Event::Heartbeat(judged) => Told::Heartbeat(v1::HealthHeartbeat {
            sequence: judged.map_or(0, |judged| judged.report.sequence),
        }),
    };
    v1::WatchHealthResponse { event: Some(event) }
}
