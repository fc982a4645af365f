//! Ranks of a parallel job to GPUs, as they are asked for and answered with over the wire.

use planner::fleet::Fleet;
use planner::map::{
    self, Axis, AxisReport, Job, MapError, MapRequest, MappedRank, Mapping, StepTime, ToldJob,
    ToldModel, Traffic,
};
use proto::{WireError, v1};
use topology::plan::LinkPolicy;
use topology::{Fraction, GpuIndex};

use super::count;
use crate::state::Published;
use crate::status::CallError;

/// A request, checked.
#[derive(Debug)]
pub(super) struct Wish {
    job: ToldJob,
    model: ToldModel,
    /// Bytes by axis.
    given: Vec<(Axis, u64)>,
}

impl Wish {
    /// # Errors
    /// Where an axis has no name or comes twice.
    pub(super) fn new(request: &v1::MapRanksRequest) -> Result<Self, CallError> {
        let size = |size: u32| usize::try_from(size.max(1)).unwrap_or(usize::MAX);
        let job = request.job.unwrap_or_default();
        let job = ToldJob {
            tp: size(job.tp),
            cp: size(job.cp),
            dp: job.dp.map(size),
            pp: size(job.pp),
            ep: size(job.ep),
        };
        let mut given: Vec<(Axis, u64)> = Vec::new();
        for told in &request.given {
            let axis = axis(told.axis)?;
            if given.iter().any(|(of, _)| *of == axis) {
                let reason = format!("the bytes of {} are given twice", axis.as_str());
                return Err(CallError::NotMappable { reason });
            }
            given.push((axis, told.bytes));
        }
        let model = request.model.unwrap_or_default();
        Ok(Self { job, given, model: told(&model) })
    }

    /// The mapping of the job to GPUs, by index; all where none is named. Takes as long as the search does.
    pub(super) fn map(
        &self,
        published: &Published,
        gpus: Option<Vec<GpuIndex>>,
        links: LinkPolicy,
    ) -> Result<v1::MapRanksResponse, CallError> {
        let topology = &published.topology;
        let fleet = Fleet::of(topology);
        let fleet = fleet.map_err(|error| CallError::NoMapping { reason: error.to_string() })?;
        let there = gpus.as_ref().map_or_else(|| fleet.gpus(), |g| g.len() * fleet.hosts());
        let job = self.job.on(there).map_err(refused)?;
        let (model, mut assumptions) = self.model.whole(&job);
        assumptions.extend(topology.assumptions().iter().cloned());
        let traffic = Traffic::new(&job, &model, &self.given);
        let request = MapRequest { job, traffic, gpus, links };
        let mapping = map::map(&fleet, &request).map_err(refused)?;
        Ok(v1::MapRanksResponse {
            traffic: request.traffic.sources,
            assumptions,
            ..response(published, job, mapping)
        })
    }
}

fn refused(error: MapError) -> CallError {
    match error {
        MapError::Apart(_) => CallError::NoMapping { reason: error.to_string() },
        MapError::Job(_)
        | MapError::Ranks { .. }
        | MapError::UnknownGpu { .. }
        | MapError::GpuTwice(_) => CallError::NotMappable { reason: error.to_string() },
    }
}

fn axis(number: i32) -> Result<Axis, WireError> {
    let field = "AxisBytes.axis";
    let known = v1::ParallelAxis::try_from(number);
    Ok(match known.map_err(|_| WireError::UnknownValue { field, value: number })? {
        v1::ParallelAxis::Unspecified => return Err(WireError::Missing { field }),
        v1::ParallelAxis::Tp => Axis::Tp,
        v1::ParallelAxis::Cp => Axis::Cp,
        v1::ParallelAxis::Ep => Axis::Ep,
        v1::ParallelAxis::Dp => Axis::Dp,
        v1::ParallelAxis::ExpertDp => Axis::ExpertDp,
        v1::ParallelAxis::Pp => Axis::Pp,
    })
}

fn sent_axis(axis: Axis) -> v1::ParallelAxis {
    match axis {
        Axis::Tp => v1::ParallelAxis::Tp,
        Axis::Cp => v1::ParallelAxis::Cp,
        Axis::Ep => v1::ParallelAxis::Ep,
        Axis::Dp => v1::ParallelAxis::Dp,
        Axis::ExpertDp => v1::ParallelAxis::ExpertDp,
        Axis::Pp => v1::ParallelAxis::Pp,
    }
}

fn told(model: &v1::TransformerSizes) -> ToldModel {
    ToldModel {
        hidden: model.hidden,
        sequence: model.sequence,
        layers: model.layers,
        batch: model.batch,
        microbatches: model.microbatches,
        accumulation: model.accumulation,
        element_bytes: model.element_bytes,
        vocabulary: model.vocabulary,
        experts: model.experts,
        experts_per_token: model.experts_per_token,
        tflops: model.tflops,
    }
}

fn response(published: &Published, job: Job, mapping: Mapping) -> v1::MapRanksResponse {
    let visible = mapping
        .order
        .visible
        .iter()
        .map(|gpus| v1::LocalGpus { gpus: gpus.iter().map(|gpu| gpu.0).collect() });
    let other = |other: &map::Alternative| v1::OtherOrder {
        name: other.order.clone(),
        megatron: other.megatron.clone(),
        step: Some(step(&other.step)),
    };
    v1::MapRanksResponse {
        generation: published.generation.0,
        job: Some(v1::JobSizes {
            tp: count(job.tp),
            cp: count(job.cp),
            dp: Some(count(job.dp)),
            pp: count(job.pp),
            ep: count(job.ep),
        }),
        order: Some(v1::RankOrder {
            visible: visible.collect(),
            hosts: mapping.order.hosts.iter().map(|host| count(*host)).collect(),
            name: mapping.order.name,
            megatron: mapping.order.megatron,
        }),
        ranks: mapping.ranks.iter().map(place).collect(),
        axes: mapping.axes.iter().map(cost).collect(),
        step: Some(step(&mapping.step)),
        identity: mapping.identity.as_ref().map(step),
        alternatives: mapping.alternatives.iter().map(other).collect(),
        mappings: mapping.mappings,
        exhaustive: mapping.exhaustive,
        warnings: mapping.warnings.iter().map(Into::into).collect(),
        traffic: vec![],
        assumptions: vec![],
    }
}

fn place(rank: &MappedRank) -> v1::RankPlace {
    v1::RankPlace {
        rank: count(rank.rank),
        host: count(rank.host),
        gpu: rank.gpu.0,
        bus_id: rank.bus_id.map(|id| id.to_string()),
        tp: count(rank.at.tp),
        cp: count(rank.at.cp),
        ep: count(rank.ep),
        dp: count(rank.at.dp),
        pp: count(rank.at.pp),
    }
}

fn cost(axis: &AxisReport) -> v1::AxisCost {
    // kB/s there, GB/s here.
    let gbps = |kbps: Option<Fraction>| {
        let gbps = kbps?.checked_div(Fraction::of(1_000_000, 1))?;
        Some(gbps.to_string())
    };
    let tiers = axis.tiers.iter().map(|(tier, groups)| (tier.as_str().to_owned(), count(*groups)));
    v1::AxisCost {
        axis: sent_axis(axis.operation.axis).into(),
        groups: count(axis.groups),
        members: count(axis.members),
        bytes: axis.operation.bytes,
        times: axis.operation.times,
        tier: axis.tier.as_str().into(),
        tiers: tiers.collect(),
        operation_ps: axis.operation_ps,
        latency_ps: axis.latency_ps,
        step_ps: axis.step_ps,
        exposed_ps: axis.exposed_ps,
        bottleneck: axis.bottleneck.clone(),
        alone_gbps: gbps(axis.alone_kbps),
        axis_gbps: gbps(axis.axis_kbps),
        job_gbps: gbps(axis.job_kbps),
    }
}

fn step(step: &StepTime) -> v1::StepCost {
    v1::StepCost {
        communication_ps: step.communication_ps,
        exposed_ps: step.exposed_ps,
        bubble: step.bubble.to_string(),
        bubble_ps: step.bubble_ps,
        step_ps: step.step_ps,
    }
}
