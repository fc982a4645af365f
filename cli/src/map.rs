//! `topoctl map`: which GPU each rank of a parallel job is to have, and why.

use std::fmt::Write;

use planner::fleet::Fleet;
use planner::groups::Tier;
use planner::map::{
    self, Alternative, Axis, AxisReport, Given, Job, MapError, MapRequest, MappedRank, Mapping,
    StepTime, ToldJob, ToldModel, Traffic,
};
use serde::Serialize;
use topology::plan::LinkPolicy;
use topology::{Finding, Fraction, GpuIndex, Topology};

use crate::args::{Links, MapArgs, TextFormat, TrafficArgs};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::size;
use crate::source;

mod network;

#[derive(Debug, Serialize)]
struct Document {
    schema_version: u32,
    fingerprint: String,
    rates: &'static str,
    job: JobRow,
    order: OrderRow,
    ranks: Vec<RankRow>,
    /// Ranks by pp, dp, cp, tp: what a mesh of devices takes.
    mesh: Vec<Vec<Vec<Vec<usize>>>>,
    axes: Vec<AxisRow>,
    step: StepRow,
    /// With GPUs in index order, counted as Megatron does.
    identity: Option<StepRow>,
    alternatives: Vec<AlternativeRow>,
    /// Mappings looked at, and whether those are all there are.
    mappings: u64,
    exhaustive: bool,
    traffic: Vec<String>,
    warnings: Vec<Finding>,
    /// With --fabric.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<network::Network>,
    assumptions: Vec<String>,
}

#[derive(Debug, Serialize)]
struct JobRow {
    tp: usize,
    cp: usize,
    dp: usize,
    pp: usize,
    ep: usize,
}

#[derive(Debug, Serialize)]
struct OrderRow {
    /// Axes, innermost first.
    name: String,
    /// Megatron's flag for it; null where it has none.
    megatron: Option<String>,
    /// Hosts in the order of their ranks.
    hosts: Vec<usize>,
    /// By host in that order, NVML indices in the order of local ranks.
    visible_devices: Vec<Vec<u32>>,
}

#[derive(Debug, Serialize)]
struct RankRow {
    rank: usize,
    host: usize,
    gpu: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    bus_id: Option<String>,
    tp: usize,
    cp: usize,
    ep: usize,
    dp: usize,
    pp: usize,
}

#[derive(Debug, Serialize)]
struct AxisRow {
    axis: &'static str,
    groups: usize,
    members: usize,
    bytes: u64,
    times: u64,
    tier: &'static str,
    tiers: Vec<TierRow>,
    operation_us: f64,
    latency_us: f64,
    step_us: f64,
    exposed_us: f64,
    sensitivity: &'static str,
    bottleneck: Option<String>,
    /// Data of its slowest group per second: alone, while its axis runs, while all axes run.
    alone_gbps: Option<f64>,
    axis_gbps: Option<f64>,
    job_gbps: Option<f64>,
}

#[derive(Debug, Serialize)]
struct TierRow {
    tier: &'static str,
    groups: usize,
}

#[derive(Debug, Serialize)]
struct StepRow {
    communication_us: f64,
    exposed_us: f64,
    /// Part of a pass that stages wait, `(pp - 1) / microbatches`.
    bubble: String,
    bubble_us: Option<f64>,
    step_us: Option<f64>,
}

#[derive(Debug, Serialize)]
struct AlternativeRow {
    order: String,
    megatron: Option<String>,
    #[serde(flatten)]
    step: StepRow,
}

pub(crate) fn run(args: &MapArgs) -> Result<Exit, Failure> {
    let origin = source::load(&args.source)?;
    let topology = &origin.topology;
    let fleet = Fleet::of(topology).map_err(Failure::internal)?;
    let gpus: Option<Vec<GpuIndex>> =
        args.gpus.as_ref().map(|gpus| gpus.iter().copied().map(GpuIndex).collect());
    let job = job(args, &fleet)?;
    let (model, mut assumptions) = model(&args.traffic).whole(&job);
    assumptions.extend(topology.assumptions().iter().cloned());
    let request = MapRequest {
        job,
        traffic: Traffic::new(&job, &model, &given(&args.traffic)),
        gpus,
        links: match args.links {
            Links::Auto => LinkPolicy::Auto,
            Links::All => LinkPolicy::All,
        },
    };
    let mut mapping = map::map(&fleet, &request).map_err(|error| match error {
        MapError::Apart(_) => Failure::new(Exit::NoPlan, error.to_string()),
        _ => Failure::usage(error.to_string()),
    })?;
    let network = origin.network.as_ref().map(|(fabric, places)| {
        assumptions.push("times between hosts: the network is taken as blocking nothing".into());
        network::Network::of(fabric, places, &mapping)
    });
    mapping.warnings.extend(network.iter().flat_map(network::Network::warnings));
    match args.output {
        TextFormat::Json => {
            let mut document = document(topology, &request, &mapping, assumptions);
            document.network = network;
            output::print_json(&document)?;
        }
        TextFormat::Table => {
            let mut text = table(&request, &mapping, &assumptions, fleet.hosts());
            text.push_str(&network.as_ref().map(network::Network::render).unwrap_or_default());
            output::print(&text)?;
        }
    }
    Ok(if topology.hosts().iter().any(|host| !host.faults.is_empty()) {
        Exit::Unknown
    } else if mapping.warnings.is_empty() {
        Exit::Ok
    } else {
        Exit::Degraded
    })
}

fn job(args: &MapArgs, fleet: &Fleet) -> Result<Job, Failure> {
    let there = args
        .gpus
        .as_ref()
        .map_or_else(|| fleet.gpus(), |gpus| gpus.len().saturating_mul(fleet.hosts()));
    let told = ToldJob { tp: args.tp, cp: args.cp, dp: args.dp, pp: args.pp, ep: args.ep };
    told.on(there).map_err(|error| Failure::usage(error.to_string()))
}

fn model(args: &TrafficArgs) -> ToldModel {
    ToldModel {
        hidden: args.hidden,
        sequence: args.sequence,
        layers: args.layers,
        batch: args.batch,
        microbatches: args.microbatches,
        accumulation: args.accumulation,
        element_bytes: args.element_bytes,
        vocabulary: args.vocabulary,
        experts: args.experts,
        experts_per_token: args.experts_per_token,
        tflops: args.tflops,
    }
}

fn given(args: &TrafficArgs) -> Given {
    let by_axis = [
        (Axis::Tp, args.bytes_tp),
        (Axis::Cp, args.bytes_cp),
        (Axis::Ep, args.bytes_ep),
        (Axis::Dp, args.bytes_dp),
        (Axis::ExpertDp, args.bytes_expert_dp),
        (Axis::Pp, args.bytes_pp),
    ];
    by_axis.into_iter().filter_map(|(axis, bytes)| Some((axis, bytes?))).collect()
}

fn us(ps: u64) -> f64 {
    Fraction::of(ps, 1_000_000).to_f64()
}

/// GB/s of kB/s.
fn gbps(kbps: Fraction) -> f64 {
    kbps.to_f64() / 1e6
}

fn document(
    topology: &Topology,
    request: &MapRequest,
    mapping: &Mapping,
    assumptions: Vec<String>,
) -> Document {
    let Job { tp, cp, dp, pp, ep } = request.job;
    Document {
        schema_version: 1,
        fingerprint: topology.fingerprint().to_owned(),
        rates: topology.rates().as_str(),
        job: JobRow { tp, cp, dp, pp, ep },
        order: OrderRow {
            name: mapping.order.name.clone(),
            megatron: mapping.order.megatron.clone(),
            hosts: mapping.order.hosts.clone(),
            visible_devices: mapping
                .order
                .visible
                .iter()
                .map(|gpus| gpus.iter().map(|gpu| gpu.0).collect())
                .collect(),
        },
        mesh: mesh(request.job, &mapping.ranks),
        ranks: mapping.ranks.iter().map(rank_row).collect(),
        axes: mapping.axes.iter().map(axis_row).collect(),
        step: step_row(&mapping.step),
        identity: mapping.identity.as_ref().map(step_row),
        alternatives: mapping.alternatives.iter().map(alternative_row).collect(),
        mappings: mapping.mappings,
        exhaustive: mapping.exhaustive,
        traffic: request.traffic.sources.clone(),
        warnings: mapping.warnings.clone(),
        network: None,
        assumptions,
    }
}

fn mesh(job: Job, ranks: &[MappedRank]) -> Vec<Vec<Vec<Vec<usize>>>> {
    let mut mesh = vec![vec![vec![vec![0; job.tp]; job.cp]; job.dp]; job.pp];
    for rank in ranks {
        mesh[rank.at.pp][rank.at.dp][rank.at.cp][rank.at.tp] = rank.rank;
    }
    mesh
}

fn rank_row(rank: &MappedRank) -> RankRow {
    RankRow {
        rank: rank.rank,
        host: rank.host,
        gpu: rank.gpu.0,
        bus_id: rank.bus_id.map(|id| id.to_string()),
        tp: rank.at.tp,
        cp: rank.at.cp,
        ep: rank.ep,
        dp: rank.at.dp,
        pp: rank.at.pp,
    }
}

fn axis_row(axis: &AxisReport) -> AxisRow {
    let tier = |(tier, groups): (&Tier, &usize)| TierRow { tier: tier.as_str(), groups: *groups };
    AxisRow {
        axis: axis.operation.axis.as_str(),
        groups: axis.groups,
        members: axis.members,
        bytes: axis.operation.bytes,
        times: axis.operation.times,
        tier: axis.tier.as_str(),
        tiers: axis.tiers.iter().map(tier).collect(),
        operation_us: us(axis.operation_ps),
        latency_us: us(axis.latency_ps),
        step_us: us(axis.step_ps),
        exposed_us: us(axis.exposed_ps),
        sensitivity: axis.sensitivity(),
        bottleneck: axis.bottleneck.clone(),
        alone_gbps: axis.alone_kbps.map(gbps),
        axis_gbps: axis.axis_kbps.map(gbps),
        job_gbps: axis.job_kbps.map(gbps),
    }
}

fn step_row(step: &StepTime) -> StepRow {
    StepRow {
        communication_us: us(step.communication_ps),
        exposed_us: us(step.exposed_ps),
        bubble: step.bubble.to_string(),
        bubble_us: step.bubble_ps.map(us),
        step_us: step.step_ps.map(us),
    }
}

fn alternative_row(other: &Alternative) -> AlternativeRow {
    AlternativeRow {
        order: other.order.clone(),
        megatron: other.megatron.clone(),
        step: step_row(&other.step),
    }
}

fn table(request: &MapRequest, mapping: &Mapping, assumptions: &[String], hosts: usize) -> String {
    let Job { tp, cp, dp, pp, ep } = request.job;
    let order = &mapping.order;
    let mut text = format!(
        "{} ranks on {hosts} {}: tp {tp}, cp {cp}, ep {ep}, dp {dp}, pp {pp}\norder {}{}\n\n",
        mapping.ranks.len(),
        if hosts == 1 { "host" } else { "hosts" },
        order.name,
        megatron(order.megatron.as_deref())
    );
    text.push_str(&ranks(mapping));
    text.push('\n');
    text.push_str(&axes(mapping));
    text.push('\n');
    text.push_str(&step(mapping));
    let list = |text: &mut String, title: &str, lines: &[String]| {
        if !lines.is_empty() {
            let _ = writeln!(text, "\n{title}:");
            lines.iter().for_each(|line| {
                let _ = writeln!(text, "  {line}");
            });
        }
    };
    let others: Vec<String> = mapping
        .alternatives
        .iter()
        .map(|other| {
            let flag = megatron(other.megatron.as_deref());
            format!("{}{flag}: {:.1} us exposed", other.order, us(other.step.exposed_ps))
        })
        .collect();
    list(&mut text, "Other orders", &others);
    let warnings: Vec<String> = mapping
        .warnings
        .iter()
        .map(|w| format!("{}: {}: {}; {}", w.code, w.component, w.evidence, w.fix))
        .collect();
    list(&mut text, "Warnings", &warnings);
    list(&mut text, "Sent", &request.traffic.sources);
    list(&mut text, "Assumed", assumptions);
    text
}

fn megatron(flag: Option<&str>) -> String {
    match flag {
        Some(flag) => format!(" (Megatron: {flag})"),
        None => " (give the framework the mesh of ranks)".into(),
    }
}

/// Hosts in order with their GPUs in the order of local ranks, and the first and last rank on each.
fn ranks(mapping: &Mapping) -> String {
    let mut rows = vec![
        [
            "HOST",
            "RANKS",
            "CUDA_VISIBLE_DEVICES (NVML indices)",
            "TP,CP,DP,PP OF THE FIRST",
            "OF THE LAST",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for (host, visible) in mapping.order.hosts.iter().zip(&mapping.order.visible) {
        let here: Vec<&MappedRank> =
            mapping.ranks.iter().filter(|rank| rank.host == *host).collect();
        let (Some(first), Some(last)) = (here.first(), here.last()) else { continue };
        let at = |rank: &MappedRank| {
            format!("{},{},{},{}", rank.at.tp, rank.at.cp, rank.at.dp, rank.at.pp)
        };
        let gpus: Vec<String> = visible.iter().map(ToString::to_string).collect();
        rows.push(vec![
            host.to_string(),
            format!("{}-{}", first.rank, last.rank),
            gpus.join(","),
            at(first),
            at(last),
        ]);
    }
    output::table(&rows)
}

fn axes(mapping: &Mapping) -> String {
    let header = [
        "AXIS",
        "GROUPS",
        "OF",
        "TIER",
        "BYTES",
        "TIMES",
        "OPERATION us",
        "STEP us",
        "EXPOSED us",
        "BOUND BY",
        "ALONE GB/s",
        "AXIS GB/s",
        "ALL GB/s",
        "BUSIEST LINK",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let rate = |kbps: Option<Fraction>| {
        kbps.map_or_else(|| "-".to_owned(), |kbps| format!("{:.2}", gbps(kbps)))
    };
    for axis in &mapping.axes {
        rows.push(vec![
            axis.operation.axis.as_str().into(),
            axis.groups.to_string(),
            axis.members.to_string(),
            axis.tier.as_str().into(),
            size::display(axis.operation.bytes),
            axis.operation.times.to_string(),
            format!("{:.1}", us(axis.operation_ps)),
            format!("{:.1}", us(axis.step_ps)),
            format!("{:.1}", us(axis.exposed_ps)),
            axis.sensitivity().into(),
            rate(axis.alone_kbps),
            rate(axis.axis_kbps),
            rate(axis.job_kbps),
            axis.bottleneck.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    output::table(&rows)
}

fn step(mapping: &Mapping) -> String {
    let step = &mapping.step;
    let mut text = format!(
        "A step: {:.1} us of communication, {:.1} us of it exposed",
        us(step.communication_ps),
        us(step.exposed_ps)
    );
    if let Some(identity) = &mapping.identity {
        let _ = write!(text, " ({:.1} us with GPUs in index order)", us(identity.exposed_ps));
    }
    let _ = write!(text, "\nPipeline bubble: {:.1} % of the work", 100.0 * step.bubble.to_f64());
    if let Some(bubble) = step.bubble_ps {
        let _ = write!(text, ", {:.1} us", us(bubble));
    }
    if let Some(all) = step.step_ps {
        let _ = write!(text, "\nThe whole step: {:.1} us", us(all));
    }
    let all = if mapping.exhaustive { "all there are" } else { "not all there are" };
    let _ = writeln!(text, "\n{} mappings looked at, {all}", mapping.mappings);
    text
}
