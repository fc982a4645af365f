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

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use planner::calibrated;
use topology::calibration::{
    self, Calibration, HostLink, LinkFit, Measured, Point, SCHEMA_VERSION, SharedRate, SizeFactor,
};
use topology::{Algorithm, Collective, Plan};

use super::job::{self, Job};
use super::{algorithms, fetch_for, forced, has_place, report};
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
const MIN_TIME_MS: u32 = 40;
/// Operations before the clock counts.
const WARM_UP: u32 = 2;
/// How often everything is measured, each time by other processes, in turn: what one pair of processes shares (pages, places in caches,
/// whatever else ran in that second) is not what the next one does. The median counts.
const PASSES: usize = 3;
/// Measurements beyond which there are fewer passes: starting processes takes its time too.
const MOST_MEASUREMENTS: usize = 30;
/// Most time for the passes of one measurement of links, on which all predictions rest, in milliseconds.
const LINK_TIME_MS: u32 = 4_000;
/// Most time for all operations together, in milliseconds; each pass of each has its part.
const MOST_TIME_MS: u32 = 36_000;
/// Least part, by which small sizes at least are measured.
const LEAST_TIME_MS: u32 = 300;

/// What calibrations call a link; they hold those within a host alone.
pub(super) fn link(kind: LinkKind) -> Option<HostLink> {
    match kind {
        LinkKind::Shm => Some(HostLink::Shm),
        LinkKind::Tcp => Some(HostLink::Tcp),
        // What carries the data, the group finds out, and it may be of several kinds.
        LinkKind::Auto | LinkKind::Verbs => None,
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
    let kind = link(args.transport)
        .ok_or_else(|| Failure::usage("a calibration is of one kind of link: use shm or tcp"))?;
    let not_written = |error| Failure::usage(format!("{}: {error}", path.display()));
    // Beside the file, so that it takes its place in one step; and before anything is measured, so that nothing is for nothing.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or_else(|| Path::new(".")))
        .map_err(not_written)?;
    let origin = source::load(&args.source)?;
    let plan = fetch_for(args, &origin, args.ranks, with_all_reduce(&args.only))?;
    let pair = if args.ranks == 2 {
        plan.clone()
    } else {
        fetch_for(args, &origin, 2, vec![Collective::AllReduce])?
    };
    let four = match fetch_for(args, &origin, SHARED_RANKS, vec![Collective::AllReduce]) {
        Ok(plan) => Some(plan),
        // The machine has not so many GPUs to stand for.
        Err(failure) if failure.exit == Exit::NoPlan => None,
        Err(failure) => return Err(failure),
    };
    let of = |collective: &Collective| algorithms(&plan, *collective).len();
    let jobs = args.only.iter().map(of).sum::<usize>().max(1);
    let passes = (MOST_MEASUREMENTS / jobs).clamp(1, PASSES);
    let each = |all_ms: u32, parts: usize| {
        (all_ms / u32::try_from(parts).unwrap_or(u32::MAX)).max(LEAST_TIME_MS)
    };
    let (link_ms, most_ms) = (each(LINK_TIME_MS, passes), each(MOST_TIME_MS, jobs * passes));
    let measuring = Measuring { args, kind, passes, link_ms, most_ms };
    let mut fit = measuring.links(&pair)?;
    if let Some(four) = four {
        fit.shared.push(measuring.shared(&four)?);
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores = u32::try_from(cores).unwrap_or(u32::MAX);
    let all = args.only.iter().flat_map(|&collective| {
        algorithms(&plan, collective).into_iter().map(move |algorithm| (collective, algorithm))
    });
    let operations = measuring.operations(&plan, &fit, cores, &all.collect::<Vec<_>>())?;
    let made = Calibration {
        schema_version: SCHEMA_VERSION,
        cpu: cpu_name(),
        cores,
        links: vec![fit],
        operations,
    };
    file.write_all(calibration::write(&made).as_bytes()).map_err(not_written)?;
    // Made for its maker alone; the figures are no secret.
    file.as_file().set_permissions(Permissions::from_mode(0o644)).map_err(not_written)?;
    file.persist(path).map_err(|error| not_written(error.error))?;
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

fn median_ns(measured: &job::Measured) -> f64 {
    let mut times = measured.batches.clone();
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN).max(1.0)
}

/// What all measurements have in common.
struct Measuring<'a> {
    args: &'a BenchArgs,
    kind: HostLink,
    passes: usize,
    /// For each pass over links.
    link_ms: u32,
    /// For each pass of an operation.
    most_ms: u32,
}

impl Measuring<'_> {
    fn settle(&self, job: &mut Job) {
        job.by_plan = true;
        job.cold = false;
        job.overlap = false;
        job.warm_up = WARM_UP;
        job.min_time_ms = MIN_TIME_MS;
        job.most_time_ms = Some(self.most_ms);
    }

    /// Once by processes of their own.
    fn once(
        &self,
        ranks: u32,
        plan: &Plan,
        change: impl Fn(&mut Job),
    ) -> Result<Vec<(u64, f64)>, Failure> {
        let all = |job: &mut Job| {
            self.settle(job);
            change(job);
        };
        let measured = super::measure(self.args, ranks, plan, all)?;
        Ok(measured.iter().map(|of| (of.bytes, median_ns(of))).collect())
    }

    /// Bytes and nanoseconds of sends along the plan's links, by size as far as there was time.
    fn messages(
        &self,
        ranks: u32,
        plan: &Plan,
        sizes: &[u64],
        ping_pong: bool,
    ) -> Result<Vec<(u64, f64)>, Failure> {
        let change = |job: &mut Job| {
            job.collective = Collective::SendRecv;
            job.in_place = false;
            job.ping_pong = ping_pong;
            job.sizes = sizes.to_vec();
            job.most_time_ms = Some(self.link_ms);
        };
        let passes = (0..self.passes).map(|_| self.once(ranks, plan, change));
        Ok(middle(&passes.collect::<Result<Vec<_>, _>>()?))
    }

    fn links(&self, plan: &Plan) -> Result<LinkFit, Failure> {
        let there_and_back = self.messages(2, plan, &LINK_SIZES, true)?;
        let exchange = self.messages(2, plan, &LINK_SIZES, false)?;
        let point = |((bytes, both), (_, exchange_ns)): ((u64, f64), (u64, f64))| Point {
            bytes,
            one_way_ns: both / 2.0,
            exchange_ns,
        };
        let points = there_and_back.into_iter().zip(exchange).map(point).collect();
        calibrated::link(self.kind, points)
            .ok_or_else(|| Failure::internal(
                "the times measured over the link make no line: it takes cores on which nothing else runs",
            ))
    }

    /// Four ranks in a circle, each sending to the next: two pairs of links at once.
    fn shared(&self, plan: &Plan) -> Result<SharedRate, Failure> {
        let times = self.messages(SHARED_RANKS, plan, &SHARED_SIZES, false)?;
        let rates =
            times.into_iter().map(|(bytes, ns)| bytes as f64 * f64::from(SHARED_RANKS) / ns);
        Ok(SharedRate { ranks: SHARED_RANKS, gbps: rates.fold(0.0, f64::max) })
    }

    /// Every algorithm once, then all again.
    fn operations(
        &self,
        plan: &Plan,
        fit: &LinkFit,
        cores: u32,
        all: &[(Collective, Algorithm)],
    ) -> Result<Vec<Measured>, Failure> {
        let ranks = self.args.ranks;
        let plans = all.iter().map(|(of, by)| forced(plan.clone(), *of, *by));
        let plans = plans.collect::<Result<Vec<_>, _>>()?;
        let mut passes: Vec<Vec<Vec<(u64, f64)>>> = vec![Vec::new(); all.len()];
        for _ in 0..self.passes {
            for ((&(collective, _), plan), passes) in all.iter().zip(&plans).zip(&mut passes) {
                let change = |job: &mut Job| {
                    job.collective = collective;
                    job.in_place = has_place(collective);
                    job.sizes = OPERATION_SIZES.to_vec();
                };
                passes.push(self.once(ranks, plan, change)?);
            }
        }
        let measured = |((&(collective, algorithm), plan), passes): Run<'_>| {
            let factor = |(bytes, time_ns): (u64, f64)| {
                let load = report::load(plan, collective, bytes)?;
                let alone = calibrated::links_ns(fit, cores, plan.ranks.len(), load, bytes);
                Some(SizeFactor { bytes, time_ns, factor: time_ns / alone })
            };
            let factors = middle(passes).into_iter().filter_map(factor).collect();
            Measured { link: fit.link, collective, algorithm, ranks, factors }
        };
        Ok(all.iter().zip(&plans).zip(&passes).map(measured).collect())
    }
}

/// What ran, the plan that was forced to it, and bytes with nanoseconds of each pass.
type Run<'a> = ((&'a (Collective, Algorithm), &'a Plan), &'a Vec<Vec<(u64, f64)>>);

/// By size, the middle one of several passes; sizes that all have.
fn middle(passes: &[Vec<(u64, f64)>]) -> Vec<(u64, f64)> {
    let sizes = passes.iter().map(Vec::len).min().unwrap_or(0);
    let of_size = |at: usize| {
        let mut times: Vec<f64> = passes.iter().map(|pass| pass[at].1).collect();
        times.sort_unstable_by(f64::total_cmp);
        (passes[0][at].0, times[times.len() / 2])
    };
    (0..sizes).map(of_size).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_the_passes() {
        let passes = [vec![(8, 3.0), (64, 9.0)], vec![(8, 5.0)], vec![(8, 4.0), (64, 1.0)]];
        assert_eq!(middle(&passes), [(8, 4.0)]);
        assert_eq!(middle(&passes[..1]), passes[0]);
        assert_eq!(middle(&[]), []);
    }
}
