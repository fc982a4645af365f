//! `topoctl bench --calibrate FILE`: what this host's links between processes are, and how far each algorithm is off them.
//!
//! ```text
//!   ping-pong, 2 ranks      one way, by size ────────┐
//!   exchange, 2 ranks       both ways at once ───────┼─▶ alpha, rate, duplex, how far off the line by size
//!   exchange, 4 ranks       links that share ────────┘
//!   collectives             by algorithm and size ───▶ measured over what the links alone predict
//! ```
//!
//! Sizes of the last are other ones than people ask for, so that a prediction is between what was measured.

use std::path::Path;

use planner::calibrated;
use topology::calibration::{
    self, Calibration, HostLink, LinkFit, Measured, Point, SCHEMA_VERSION, SharedRate, SizeFactor,
};
use topology::{Algorithm, Collective, Plan};

use super::job::{self, Job};
use super::{algorithms, fetch_for, forced, report};
use crate::args::{BenchArgs, LinkKind};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::size;
use crate::source;

/// Bytes of messages over a link.
const LINK_SIZES: [u64; 13] = [
    8,
    32,
    128,
    512,
    2 << 10,
    8 << 10,
    32 << 10,
    128 << 10,
    512 << 10,
    2 << 20,
    8 << 20,
    32 << 20,
    64 << 20,
];
/// Bytes of messages when several pairs load their links at once.
const SHARED_SIZES: [u64; 2] = [512 << 10, 8 << 20];
/// Ranks that do.
const SHARED_RANKS: u32 = 4;
/// Bytes of operations.
const OPERATION_SIZES: [u64; 8] =
    [256, 2 << 10, 16 << 10, 128 << 10, 512 << 10, 4 << 20, 32 << 20, 72 << 20];
/// Least time for each size, in milliseconds: twenty batches.
const MIN_TIME_MS: u32 = 60;

pub(super) fn link(kind: LinkKind) -> HostLink {
    match kind {
        LinkKind::Shm => HostLink::Shm,
        LinkKind::Tcp => HostLink::Tcp,
    }
}

/// A calibration that was written before.
pub(crate) fn read(path: &Path) -> Result<Calibration, Failure> {
    let bytes = source::read_bytes(path)?;
    calibration::read(&bytes)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

pub(super) fn run(args: &BenchArgs, path: &Path) -> Result<Exit, Failure> {
    if args.ranks < 2 {
        return Err(Failure::usage("one rank has no link to calibrate"));
    }
    let plan = fetch_for(args, args.ranks, with_all_reduce(&args.only))?;
    let pair = if args.ranks == 2 {
        plan.clone()
    } else {
        fetch_for(args, 2, vec![Collective::AllReduce])?
    };
    let mut fit = links(args, &pair)?;
    // Where the machine has so many GPUs to stand for.
    if let Ok(four) = fetch_for(args, SHARED_RANKS, vec![Collective::AllReduce]) {
        fit.shared.push(shared(args, &four)?);
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores = u32::try_from(cores).unwrap_or(u32::MAX);
    let mut operations = Vec::new();
    for &collective in &args.only {
        for algorithm in algorithms(&plan, collective) {
            operations.push(operation(args, &plan, &fit, cores, (collective, algorithm))?);
        }
    }
    let made = Calibration {
        schema_version: SCHEMA_VERSION,
        cpu: cpu_name(),
        cores,
        links: vec![fit],
        operations,
    };
    std::fs::write(path, calibration::write(&made))
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    output::print(&render(&made))?;
    Ok(Exit::Ok)
}

/// All-reduce besides, by which ranks agree on times.
fn with_all_reduce(wanted: &[Collective]) -> Vec<Collective> {
    let mut all = vec![Collective::AllReduce];
    all.extend(wanted.iter().filter(|c| **c != Collective::AllReduce));
    all
}

/// The processor's name, as the kernel has it.
fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':'))
        .map_or_else(String::new, |(_, name)| name.trim().into())
}

/// Median nanoseconds by size of sends along the plan's links.
fn messages(
    args: &BenchArgs,
    ranks: u32,
    plan: &Plan,
    sizes: &[u64],
    ping_pong: bool,
) -> Result<Vec<f64>, Failure> {
    let change = |job: &mut Job| {
        job.collective = Collective::SendRecv;
        job.in_place = false;
        job.ping_pong = ping_pong;
        job.sizes = sizes.to_vec();
        settle(job);
    };
    let measured = super::measure(args, ranks, plan, change)?;
    Ok(measured.iter().map(median_ns).collect())
}

/// What all measurements have in common.
fn settle(job: &mut Job) {
    job.by_plan = true;
    job.cold = false;
    job.overlap = false;
    job.min_time_ms = MIN_TIME_MS;
}

fn median_ns(measured: &job::Measured) -> f64 {
    let mut times = measured.batches.clone();
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN).max(1.0)
}

fn links(args: &BenchArgs, plan: &Plan) -> Result<LinkFit, Failure> {
    let there_and_back = messages(args, 2, plan, &LINK_SIZES, true)?;
    let exchange = messages(args, 2, plan, &LINK_SIZES, false)?;
    let point = |((bytes, both), exchange_ns): ((&u64, f64), f64)| Point {
        bytes: *bytes,
        one_way_ns: both / 2.0,
        exchange_ns,
    };
    let points = LINK_SIZES.iter().zip(there_and_back).zip(exchange).map(point).collect();
    let kind = link(args.transport);
    calibrated::link(kind, points)
        .ok_or_else(|| Failure::internal("the times measured over the link make no line"))
}

/// Four ranks in a circle, each sending to the next: two pairs of links at once.
fn shared(args: &BenchArgs, plan: &Plan) -> Result<SharedRate, Failure> {
    let times = messages(args, SHARED_RANKS, plan, &SHARED_SIZES, false)?;
    let rates = SHARED_SIZES
        .iter()
        .zip(times)
        .map(|(bytes, ns)| *bytes as f64 * f64::from(SHARED_RANKS) / ns);
    Ok(SharedRate { ranks: SHARED_RANKS, gbps: rates.fold(0.0, f64::max) })
}

fn operation(
    args: &BenchArgs,
    plan: &Plan,
    fit: &LinkFit,
    cores: u32,
    (collective, algorithm): (Collective, Algorithm),
) -> Result<Measured, Failure> {
    let plan = forced(plan.clone(), collective, algorithm)?;
    let change = |job: &mut Job| {
        job.collective = collective;
        job.in_place = true;
        job.sizes = OPERATION_SIZES.to_vec();
        settle(job);
    };
    let measured = super::measure(args, args.ranks, &plan, change)?;
    let ranks = plan.ranks.len();
    let factor = |of: &job::Measured| {
        let time_ns = median_ns(of);
        let load = report::load(&plan, collective, of.bytes)?;
        let alone = calibrated::links_ns(fit, cores, ranks, load, of.bytes);
        Some(SizeFactor { bytes: of.bytes, time_ns, factor: time_ns / alone })
    };
    let factors = measured.iter().filter_map(factor).collect();
    Ok(Measured { link: fit.link, collective, algorithm, ranks: args.ranks, factors })
}

fn render(made: &Calibration) -> String {
    let mut text = format!("{}, {} cores\n", made.cpu, made.cores);
    for fit in &made.links {
        let line = |bytes: u64| fit.alpha_ns + bytes as f64 / fit.gbps;
        text.push_str(&format!(
            "{}: alpha {:.0} ns, {:.2} GB/s one way, {:.2} GB/s each way at once ({:.0} % duplex)\n",
            match fit.link {
                HostLink::Shm => "shared memory",
                HostLink::Tcp => "TCP loopback",
            },
            fit.alpha_ns,
            fit.gbps,
            fit.duplex_gbps,
            100.0 * fit.duplex_gbps / fit.gbps
        ));
        for shared in &fit.shared {
            text.push_str(&format!(
                "{} ranks in a circle: {:.2} GB/s together\n",
                shared.ranks, shared.gbps
            ));
        }
        let header = ["SIZE", "ONE WAY us", "LINE us", "EXCHANGE us"];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        for point in &fit.points {
            rows.push(vec![
                size::display(point.bytes),
                format!("{:.2}", point.one_way_ns / 1e3),
                format!("{:.2}", line(point.bytes) / 1e3),
                format!("{:.2}", point.exchange_ns / 1e3),
            ]);
        }
        text.push('\n');
        text.push_str(&output::table(&rows));
    }
    let header = ["COLLECTIVE", "ALGORITHM", "SIZE", "TIME us", "OVER LINKS ALONE"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for operation in &made.operations {
        for factor in &operation.factors {
            rows.push(vec![
                operation.collective.to_string(),
                operation.algorithm.to_string(),
                size::display(factor.bytes),
                format!("{:.2}", factor.time_ns / 1e3),
                format!("{:.2}", factor.factor),
            ]);
        }
    }
    text.push('\n');
    text.push_str(&output::table(&rows));
    text
}
