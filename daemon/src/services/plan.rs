//! Plans, why they are as they are, which GPUs to give, and plans as files of others.

use std::sync::Arc;
use std::time::Instant;

use planner::advice::{self, Advice};
use planner::select::{self as choose, Choice, SelectError, Selection};
use planner::why;
use prost::Message as _;
use prost::bytes::Bytes;
use proto::v1::plan_service_server::PlanService;
use proto::{PlanQuery, WireError, v1};
use tonic::{Request, Response, Status};
use topology::formats::plan_json;
use topology::plan::LinkPolicy;
use topology::{Fraction, GpuIndex, Plan, PlanRequest, Topology, nccl_graph};

use super::{count, map};
use crate::plans::{Made, PlanFailure};
use crate::select;
use crate::state::{Published, State};
use crate::status::CallError;

const GRAPH_NOTE: &str = "NCCL reads a graph file for every communicator and validates nothing: use it only where all communicators span \
    exactly these GPUs of each host";

/// A plan may take seconds, and the machine may change meanwhile: so often it is planned anew on what is published by then. A machine that
/// changes all the time gets the last of these.
const MOST_ATTEMPTS: usize = 3;

#[derive(Debug)]
pub(crate) struct PlanApi {
    pub(crate) state: Arc<State>,
}

/// A request for a plan, on the topology that answers it.
struct Asked {
    published: Arc<Published>,
    request: PlanRequest,
}

impl PlanApi {
    /// A `GetPlanResponse`, as it is sent.
    pub(crate) async fn response(&self, request: v1::GetPlanRequest) -> Result<Bytes, CallError> {
        let query = PlanQuery::try_from(request)?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let Asked { published, request } = self.ask(query.clone())?;
            let made = self.state.plans.get(&published, request).await?;
            let present = self.state.current().map(|present| present.generation);
            // A rank that got a plan of a generation that is past would keep the other ranks of its job from theirs.
            if present != Some(published.generation) && attempts < MOST_ATTEMPTS {
                continue;
            }
            if let Some(member) = &query.member {
                self.state.jobs.admit(member, published.generation, Instant::now())?;
            }
            return Ok(made.response.clone());
        }
    }

    fn ask(&self, query: PlanQuery) -> Result<Asked, CallError> {
        let published = self.state.current().ok_or(CallError::NotReady)?;
        let present = published.generation;
        if let Some(expected) = query.expected_generation.filter(|expected| *expected != present) {
            return Err(CallError::Generation { expected, present });
        }
        let request = select::request(query, &published.topology)?;
        Ok(Asked { published, request })
    }

    /// The plan that another request is about.
    async fn plan_of(
        &self,
        field: &'static str,
        request: Option<v1::GetPlanRequest>,
    ) -> Result<(Asked, Arc<Made>), CallError> {
        let query = request.ok_or(WireError::Missing { field })?;
        let asked = self.ask(PlanQuery::try_from(query)?)?;
        let made = self.state.plans.get(&asked.published, asked.request.clone()).await?;
        Ok((asked, made))
    }

    async fn explain(
        &self,
        request: v1::ExplainPlanRequest,
    ) -> Result<v1::ExplainPlanResponse, CallError> {
        let field = "ExplainPlanRequest.plan";
        let (Asked { published, request }, made) = self.plan_of(field, request.plan).await?;
        let work = move || explain(&published, &request, &made.plan()?);
        Ok(self.state.plans.work(work).await??)
    }

    async fn select(
        &self,
        request: v1::SelectGpusRequest,
    ) -> Result<v1::SelectGpusResponse, CallError> {
        let free = v1::GetPlanRequest {
            gpus: request.free,
            links: request.links,
            ..v1::GetPlanRequest::default()
        };
        let Asked { published, request: free } = self.ask(PlanQuery::try_from(free)?)?;
        let wanted = usize::try_from(request.count).unwrap_or(usize::MAX);
        let work = move || selection(&published, wanted, free.gpus.as_deref(), free.links);
        self.state.plans.work(work).await?.map_err(|error| match error {
            SelectError::Gpu(error) => PlanFailure::Planner(error).into(),
            error => CallError::NoSelection { reason: error.to_string() },
        })
    }

    async fn map(&self, request: v1::MapRanksRequest) -> Result<v1::MapRanksResponse, CallError> {
        let wish = map::Wish::new(&request)?;
        let gpus = v1::GetPlanRequest {
            gpus: request.gpus,
            links: request.links,
            ..v1::GetPlanRequest::default()
        };
        let Asked { published, request } = self.ask(PlanQuery::try_from(gpus)?)?;
        let PlanRequest { gpus, links, .. } = request;
        self.state.plans.work(move || wish.map(&published, gpus, links)).await?
    }

    async fn export(
        &self,
        request: v1::ExportPlanRequest,
    ) -> Result<v1::ExportPlanResponse, CallError> {
        let format = request.format();
        if format == v1::PlanFormat::Unspecified {
            return Err(WireError::Missing { field: "ExportPlanRequest.format" }.into());
        }
        let (asked, made) = self.plan_of("ExportPlanRequest.plan", request.plan).await?;
        self.state.plans.work(move || export(&asked.published, &made.plan()?, format)).await?
    }

    fn job(&self, job: String) -> Result<v1::GetJobResponse, CallError> {
        let present = self.state.current().ok_or(CallError::NotReady)?.generation;
        let Some(known) = self.state.jobs.known(&job, Instant::now()) else {
            return Err(CallError::UnknownJob { job });
        };
        let ranks = known.ranks.iter().map(|(rank, generation, age)| v1::JobRank {
            rank: *rank,
            generation: generation.0,
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        });
        Ok(v1::GetJobResponse {
            present_generation: present.0,
            ranks: ranks.collect(),
            ranks_here: known.ranks_here,
        })
    }
}

#[tonic::async_trait]
impl PlanService for PlanApi {
    async fn get_plan(
        &self,
        request: Request<v1::GetPlanRequest>,
    ) -> Result<Response<v1::GetPlanResponse>, Status> {
        let response = self.response(request.into_inner()).await?;
        let decoded = v1::GetPlanResponse::decode(response);
        let kept = |error: prost::DecodeError| PlanFailure::Kept { error: error.to_string() };
        Ok(Response::new(decoded.map_err(|error| CallError::from(kept(error)))?))
    }

    async fn explain_plan(
        &self,
        request: Request<v1::ExplainPlanRequest>,
    ) -> Result<Response<v1::ExplainPlanResponse>, Status> {
        Ok(Response::new(self.explain(request.into_inner()).await?))
    }

    async fn select_gpus(
        &self,
        request: Request<v1::SelectGpusRequest>,
    ) -> Result<Response<v1::SelectGpusResponse>, Status> {
        Ok(Response::new(self.select(request.into_inner()).await?))
    }

    async fn map_ranks(
        &self,
        request: Request<v1::MapRanksRequest>,
    ) -> Result<Response<v1::MapRanksResponse>, Status> {
        Ok(Response::new(self.map(request.into_inner()).await?))
    }

    async fn export_plan(
        &self,
        request: Request<v1::ExportPlanRequest>,
    ) -> Result<Response<v1::ExportPlanResponse>, Status> {
        Ok(Response::new(self.export(request.into_inner()).await?))
    }

    async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        Ok(Response::new(self.job(request.into_inner().job)?))
    }
}

fn explain(
    published: &Published,
    request: &PlanRequest,
    plan: &Plan,
) -> Result<v1::ExplainPlanResponse, PlanFailure> {
    let topology = &published.topology;
    let collectives = plan.collectives.keys().filter_map(|collective| {
        let why = why::channels(topology, plan, *collective)?;
        let link = |(from, to): (String, String)| v1::DirectedLink { from, to };
        Some(v1::ChannelsExplained {
            collective: v1::Collective::from(*collective).into(),
            pattern: v1::Pattern::from(why.pattern).into(),
            algbw_gbps: why.algbw_gbps.to_string(),
            algbw_gbps_with_one_less: why.with_one_less.map(|gbps| gbps.to_string()),
            full_links: why.full.into_iter().map(link).collect(),
            used_links: count(why.used),
        })
    });
    let collectives = collectives.collect();
    let Advice { tried, left_out, gains, .. } =
        advice::single_changes(topology, request, plan).map_err(PlanFailure::Planner)?;
    Ok(v1::ExplainPlanResponse {
        generation: published.generation.0,
        collectives,
        gains: gains.iter().map(gain).collect(),
        tried: count(tried),
        left_out: count(left_out),
    })
}

fn export(
    published: &Published,
    plan: &Plan,
    format: v1::PlanFormat,
) -> Result<v1::ExportPlanResponse, CallError> {
    let (text, notes) = match format {
        v1::PlanFormat::NcclGraph => {
            let file = nccl_graph::from_plan(&published.topology, plan)
                .map_err(|error| CallError::NotExportable { reason: error.to_string() })?;
            (nccl_graph::write(&file), vec![GRAPH_NOTE.to_owned()])
        }
        _ => (plan_json::write(plan, None), vec![]),
    };
    Ok(v1::ExportPlanResponse { generation: published.generation.0, text, notes })
}

fn gain(gain: &advice::Gain) -> v1::Gain {
    let collectives = gain.bounds.iter().map(|(collective, (before, after))| {
        let best = gain.best.get(collective);
        v1::GainOfCollective {
            collective: v1::Collective::from(*collective).into(),
            bound_before_gbps: before.to_string(),
            bound_after_gbps: after.to_string(),
            best_before_gbps: best.map(|(before, _)| before.to_string()),
            best_after_gbps: best.map(|(_, after)| after.to_string()),
        }
    });
    v1::Gain {
        changes: gain.changes.clone(),
        alike: count(gain.alike),
        collectives: collectives.collect(),
    }
}

fn selection(
    published: &Published,
    wanted: usize,
    free: Option<&[GpuIndex]>,
    links: LinkPolicy,
) -> Result<v1::SelectGpusResponse, SelectError> {
    let topology = &published.topology;
    let Selection { best, left, sets, exhaustive, alternatives, .. } =
        choose::select(topology, wanted, free, links)?;
    Ok(v1::SelectGpusResponse {
        generation: published.generation.0,
        best: Some(choice(topology, &best)),
        alternatives: alternatives.iter().map(|other| choice(topology, other)).collect(),
        left: left.iter().map(|gpu| gpu.0).collect(),
        sets,
        exhaustive,
    })
}

fn choice(topology: &Topology, choice: &Choice) -> v1::GpuChoice {
    let gpu = |index: &GpuIndex| {
        let mut gpus = topology.hosts().iter().flat_map(|host| &host.gpus);
        let facts = gpus.find(|gpu| gpu.index == *index);
        v1::SelectedGpu {
            index: index.0,
            uuid: facts.and_then(|gpu| gpu.uuid.clone()),
            bus_id: facts.and_then(|gpu| gpu.bus_id).map(|id| id.to_string()),
        }
    };
    // kB/s there, GB/s here.
    let gbps = choice.worth.all_reduce.checked_div(Fraction::of(1_000_000, 1));
    let gbps = gbps.filter(|gbps| *gbps > Fraction::ZERO);
    v1::GpuChoice {
        gpus: choice.gpus.iter().map(gpu).collect(),
        all_reduce_gbps: gbps.map(|gbps| gbps.to_string()),
        left_kbytes_per_second: choice.worth.rest.left,
        nics: choice.near_nics.clone(),
        nics_kbytes_per_second: choice.worth.rest.nics,
        numa_nodes: choice.nodes.clone(),
    }
}
