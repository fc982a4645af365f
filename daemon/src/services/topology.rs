//! The topology: once, or again after every change; its paths; and as files of others.

use std::sync::Arc;

use prost::Message as _;
use prost::bytes::Bytes;
use proto::v1;
use proto::v1::topology_service_server::TopologyService;
use proto::v1::watch_topology_response::Event as Told;
use tonic::codegen::BoxStream;
use tonic::codegen::tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};
use topology::nccl_topo::TopoFile;
use topology::{Snapshot, Topology, VertexId, explain, formats};

use super::count;
use crate::feed::{self, Event, Wish};
use crate::state::{Published, State};
use crate::status::CallError;

#[derive(Debug)]
pub(crate) struct TopologyApi {
    pub(crate) state: Arc<State>,
}

impl TopologyApi {
    /// The messages of a watch, as they are sent.
    pub(super) fn watch(
        &self,
        request: v1::WatchTopologyRequest,
    ) -> impl Stream<Item = Result<Bytes, Status>> + Send + use<> {
        let fingerprint = request.resume_fingerprint;
        let wish = Wish {
            changes: request.changes,
            resume: request.resume_generation.map(|generation| (generation, fingerprint)),
        };
        fn identity(published: &Published) -> &str {
            published.topology.fingerprint()
        }
        feed::follow(self.state.topologies(), wish, identity, sent)
    }

    fn published(&self) -> Result<Arc<Published>, CallError> {
        self.state.current().ok_or(CallError::NotReady)
    }

    /// What is computed of what is published, where it holds up no other call.
    async fn compute<T: Send + 'static>(
        &self,
        of: impl FnOnce(&Published) -> Result<T, CallError> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let published = self.published()?;
        let computed = self.state.plans.work(move || of(&published)).await;
        Ok(Response::new(computed.map_err(CallError::from)??))
    }
}

fn explain_path(
    published: &Published,
    request: &v1::ExplainPathRequest,
) -> Result<v1::ExplainPathResponse, CallError> {
    let topology = &published.topology;
    let find = |name: &str| {
        let found = topology.find_device(name);
        found.ok_or_else(|| CallError::UnknownDevice { name: name.into() })
    };
    let explained = explain::path(topology, find(&request.from)?, find(&request.to)?);
    let name = |id: VertexId| topology.vertex(id).name.clone();
    let hops = explained.hops.iter().map(|hop| v1::PathHop {
        from: name(hop.from),
        to: name(hop.to),
        kind: hop.kind.to_string(),
        links: hop.links,
        rate_kbytes_per_second: hop.bandwidth.kbps(),
        bus_id: hop.bus_id.map(|id| id.to_string()),
        trained: hop.trained.map(Into::into),
        capable: hop.capable.map(Into::into),
    });
    Ok(v1::ExplainPathResponse {
        generation: published.generation.0,
        from: name(explained.from),
        to: name(explained.to),
        class: v1::PathType::from(explained.path.class).into(),
        links: explained.path.links,
        meaning: explained.path.class.meaning().into(),
        rate_kbytes_per_second: explained.path.bottleneck.kbps(),
        hops: hops.collect(),
        limiting_hop: explained.limiting_hop.map(count),
        common_ancestor: explained.common_ancestor.map(name),
        why_not_better: explained.why_not_better,
        assumptions: topology.assumptions().to_vec(),
    })
}

fn export(
    published: &Published,
    format: v1::TopologyFormat,
) -> Result<v1::ExportTopologyResponse, CallError> {
    let (text, notes) = match format {
        v1::TopologyFormat::Unspecified => {
            let field = "ExportTopologyRequest.format";
            return Err(proto::WireError::Missing { field }.into());
        }
        v1::TopologyFormat::Snapshot => {
            (formats::write_snapshot(one_host(&published.topology)?), vec![])
        }
        v1::TopologyFormat::NcclTopo => {
            let file = TopoFile::of_host(one_host(&published.topology)?);
            let not = |error: &dyn ToString| CallError::NotExportable { reason: error.to_string() };
            let mut file = file.map_err(|error| not(&error))?;
            file.fit();
            (file.write(), file.notes().to_vec())
        }
    };
    Ok(v1::ExportTopologyResponse { generation: published.generation.0, text, notes })
}

fn one_host(topology: &Topology) -> Result<&Snapshot, CallError> {
    match topology.hosts() {
        [host] => Ok(host),
        hosts => Err(CallError::NotExportable {
            reason: format!("the format holds one host, and there are {}", hosts.len()),
        }),
    }
}

#[tonic::async_trait]
impl TopologyService for TopologyApi {
    async fn get_topology(
        &self,
        _: Request<v1::GetTopologyRequest>,
    ) -> Result<Response<v1::GetTopologyResponse>, Status> {
        let topology = Some(self.published()?.wire.clone());
        Ok(Response::new(v1::GetTopologyResponse { topology }))
    }

    type WatchTopologyStream = BoxStream<v1::WatchTopologyResponse>;

    async fn watch_topology(
        &self,
        request: Request<v1::WatchTopologyRequest>,
    ) -> Result<Response<Self::WatchTopologyStream>, Status> {
        let decode = |bytes: Bytes| {
            let message = v1::WatchTopologyResponse::decode(bytes);
            message.map_err(|error| Status::internal(error.to_string()))
        };
        let messages = self.watch(request.into_inner()).map(move |sent| sent.and_then(decode));
        Ok(Response::new(Box::pin(messages)))
    }

    async fn explain_path(
        &self,
        request: Request<v1::ExplainPathRequest>,
    ) -> Result<Response<v1::ExplainPathResponse>, Status> {
        self.compute(move |published| explain_path(published, request.get_ref())).await
    }

    async fn export_topology(
        &self,
        request: Request<v1::ExportTopologyRequest>,
    ) -> Result<Response<v1::ExportTopologyResponse>, Status> {
        self.compute(move |published| export(published, request.get_ref().format())).await
    }
}

/// What everyone is told is made for the first who is.
fn sent(event: Event<Published>) -> Bytes {
    let told = match event {
        Event::Whole(published) => {
            let whole = || encode(Told::Topology(published.wire.clone()));
            return published.sent.get_or_init(whole).clone();
        }
        Event::Changes(step) => {
            return step.sent.get_or_init(|| encode(Told::Changes(step.changes.clone()))).clone();
        }
        Event::Resync(generation) => Told::Resync(v1::Resync { generation }),
        Event::Heartbeat(published) => Told::Heartbeat(v1::Heartbeat {
            generation: published.as_ref().map_or(0, |published| published.generation.0),
            fingerprint: published.map_or_else(String::new, |p| p.topology.fingerprint().into()),
        }),
    };
    encode(told)
}

fn encode(told: Told) -> Bytes {
    v1::WatchTopologyResponse { event: Some(told) }.encode_to_vec().into()
}
