//! The plan service with one shortcut: plans are kept as they are sent, and are sent as they are kept.
//!
//! A plan has thousands of small parts. Making a message of it and bytes of the message for each of the ranks that ask for the same plan
//! at the start of a job would take a hundred times longer than copying the bytes.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use prost::Message as _;
use prost::bytes::{BufMut as _, Bytes};
use proto::v1;
use proto::v1::plan_service_server::PlanServiceServer;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};

use super::PlanApi;

const GET_PLAN: &str = "/topod.v1.PlanService/GetPlan";

/// The plan service.
#[derive(Clone, Debug)]
pub(crate) struct PlanServer {
    api: Arc<PlanApi>,
    others: PlanServiceServer<PlanApi>,
    request_bytes: usize,
}

impl PlanServer {
    pub(crate) fn new(api: PlanApi, request_bytes: usize) -> Self {
        let api = Arc::new(api);
        let others =
            PlanServiceServer::from_arc(Arc::clone(&api)).max_decoding_message_size(request_bytes);
        Self { api, others, request_bytes }
    }
}

impl NamedService for PlanServer {
    const NAME: &'static str = PlanServiceServer::<PlanApi>::NAME;
}

impl<B> Service<http::Request<B>> for PlanServer
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        if request.uri().path() != GET_PLAN {
            return self.others.call(request);
        }
        let (api, most) = (Arc::clone(&self.api), self.request_bytes);
        Box::pin(async move {
            let mut grpc = Grpc::new(PlanCodec).apply_max_message_size_config(Some(most), None);
            Ok(grpc.unary(GetPlan(api), request).await)
        })
    }
}

struct GetPlan(Arc<PlanApi>);

impl UnaryService<v1::GetPlanRequest> for GetPlan {
    type Response = Bytes;
    type Future = BoxFuture<Response<Bytes>, Status>;

    fn call(&mut self, request: Request<v1::GetPlanRequest>) -> Self::Future {
        let api = Arc::clone(&self.0);
        Box::pin(async move { Ok(Response::new(api.response(request.into_inner()).await?)) })
    }
}

/// Requests are messages, answers are bytes already.
#[derive(Clone, Copy, Debug)]
struct PlanCodec;

impl Codec for PlanCodec {
    type Encode = Bytes;
    type Decode = v1::GetPlanRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for PlanCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for PlanCodec {
    type Item = v1::GetPlanRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let decoded = v1::GetPlanRequest::decode(buffer);
        decoded.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
