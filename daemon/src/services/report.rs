//! Results of operations, for the metrics.

use std::sync::Arc;

use proto::v1::report_service_server::ReportService;
use proto::{OperationReport, v1};
use tonic::{Request, Response, Status};

use crate::state::State;
use crate::status::CallError;

#[derive(Debug)]
pub(crate) struct ReportApi {
    pub(crate) state: Arc<State>,
}

#[tonic::async_trait]
impl ReportService for ReportApi {
    async fn report_operations(
        &self,
        request: Request<v1::ReportOperationsRequest>,
    ) -> Result<Response<v1::ReportOperationsResponse>, Status> {
        let reports = Vec::<OperationReport>::try_from(request.into_inner());
        for report in reports.map_err(CallError::from)? {
            self.state.metrics.operation(&report);
        }
        Ok(Response::new(v1::ReportOperationsResponse {}))
    }
}
