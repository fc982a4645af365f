//! Calls whose answers are bytes already, beside the generated services.
//!
//! A plan and a topology have thousands of small parts. Making a message of one, and bytes of the message, for each of the ranks that ask for
//! the same plan at the start of a job, or for each of a thousand watchers of the same change, would take a hundred times longer than copying
//! the bytes. So plans are kept as they are sent, and what a watch says is made once.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};

use prost::Message;
use prost::bytes::{BufMut as _, Bytes};
use proto::v1;
use proto::v1::plan_service_server::PlanServiceServer;
use proto::v1::topology_service_server::TopologyServiceServer;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::codegen::{Body, BoxFuture, BoxStream, Service, StdError, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstDecoder;

use super::{PlanApi, TopologyApi};

const GET_PLAN: &str = "/topod.v1.PlanService/GetPlan";
const WATCH_TOPOLOGY: &str = "/topod.v1.TopologyService/WatchTopology";

/// A generated service, one call of which is answered here.
#[derive(Debug)]
pub(crate) struct Encoded<A, S> {
    api: Arc<A>,
    others: S,
    request_bytes: usize,
}

// Not derived: the api itself is shared.
impl<A, S: Clone> Clone for Encoded<A, S> {
    fn clone(&self) -> Self {
        let (api, others) = (Arc::clone(&self.api), self.others.clone());
        Self { api, others, request_bytes: self.request_bytes }
    }
}

/// The plan service.
pub(crate) type PlanServer = Encoded<PlanApi, PlanServiceServer<PlanApi>>;

/// The topology service.
pub(crate) type TopologyServer = Encoded<TopologyApi, TopologyServiceServer<TopologyApi>>;

impl PlanServer {
    pub(crate) fn new(api: PlanApi, request_bytes: usize) -> Self {
        let api = Arc::new(api);
        let others = PlanServiceServer::from_arc(Arc::clone(&api));
        Self { api, others: others.max_decoding_message_size(request_bytes), request_bytes }
    }
}

impl TopologyServer {
    pub(crate) fn new(api: TopologyApi, request_bytes: usize) -> Self {
        let api = Arc::new(api);
        let others = TopologyServiceServer::from_arc(Arc::clone(&api));
        Self { api, others: others.max_decoding_message_size(request_bytes), request_bytes }
    }
}

impl<A, S: NamedService> NamedService for Encoded<A, S> {
    const NAME: &'static str = S::NAME;
}

type Answer = BoxFuture<http::Response<tonic::body::Body>, Infallible>;

impl<B> Service<http::Request<B>> for PlanServer
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Answer {
        if request.uri().path() != GET_PLAN {
            return self.others.call(request);
        }
        let (api, most) = (Arc::clone(&self.api), self.request_bytes);
        Box::pin(async move { Ok(grpc(most).unary(GetPlan(api), request).await) })
    }
}

impl<B> Service<http::Request<B>> for TopologyServer
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Answer {
        if request.uri().path() != WATCH_TOPOLOGY {
            return self.others.call(request);
        }
        let (api, most) = (Arc::clone(&self.api), self.request_bytes);
        Box::pin(async move { Ok(grpc(most).server_streaming(WatchTopology(api), request).await) })
    }
}

fn grpc<T: Message + Default + Send + 'static>(most: usize) -> Grpc<BytesCodec<T>> {
    Grpc::new(BytesCodec(PhantomData)).apply_max_message_size_config(Some(most), None)
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

struct WatchTopology(Arc<TopologyApi>);

impl ServerStreamingService<v1::WatchTopologyRequest> for WatchTopology {
    type Response = Bytes;
    type ResponseStream = BoxStream<Bytes>;
    type Future = std::future::Ready<Result<Response<BoxStream<Bytes>>, Status>>;

    fn call(&mut self, request: Request<v1::WatchTopologyRequest>) -> Self::Future {
        let messages = self.0.watch(request.into_inner());
        std::future::ready(Ok(Response::new(Box::pin(messages))))
    }
}

/// Requests are messages, answers are bytes.
struct BytesCodec<T>(PhantomData<fn() -> T>);

impl<T> fmt::Debug for BytesCodec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BytesCodec").finish()
    }
}

impl<T: Message + Default + Send + 'static> Codec for BytesCodec<T> {
    type Encode = Bytes;
    type Decode = T;
    type Encoder = BytesEncoder;
    type Decoder = ProstDecoder<T>;

    fn encoder(&mut self) -> BytesEncoder {
        BytesEncoder
    }

    fn decoder(&mut self) -> ProstDecoder<T> {
        ProstDecoder::default()
    }
}

#[derive(Debug)]
struct BytesEncoder;

impl Encoder for BytesEncoder {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}
