//! Plans.

use std::sync::Arc;

use proto::PlanQuery;
use proto::v1::plan_service_server::PlanService;
use proto::v1::{GetPlanRequest, GetPlanResponse};
use tonic::{Request, Response, Status};

use crate::select;
use crate::state::State;
use crate::status::CallError;

#[derive(Debug)]
pub(crate) struct PlanApi {
    pub(crate) state: Arc<State>,
}

impl PlanApi {
    async fn plan(&self, request: GetPlanRequest) -> Result<GetPlanResponse, CallError> {
        let query = PlanQuery::try_from(request)?;
        let published = self.state.current().ok_or(CallError::NotReady)?;
        let present = published.generation;
        if let Some(expected) = query.expected_generation.filter(|expected| *expected != present) {
            return Err(CallError::Generation { expected, present });
        }
        let request = select::request(query, &published.topology)?;
        let plan = self.state.plans.get(&published, request).await?;
        Ok(GetPlanResponse { plan: Some(Arc::unwrap_or_clone(plan)) })
    }
}

#[tonic::async_trait]
impl PlanService for PlanApi {
    async fn get_plan(
        &self,
        request: Request<GetPlanRequest>,
    ) -> Result<Response<GetPlanResponse>, Status> {
        Ok(Response::new(self.plan(request.into_inner()).await?))
    }
}
