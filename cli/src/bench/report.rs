//! What was measured, for people and for scripts.

use std::fmt::Write;

use planner::calibrated::{self, Load};
use serde::Serialize;
use topology::calibration::Calibration;
use topology::{Algorithm, Collective, Plan, Rank};
use transport::MemoryLimit;

use super::job::Measured;
use super::peers::{Case, Peers};
use super::plot::{self, Line};
use crate::args::{BenchArgs, LinkKind, Placement};
use crate::output;
use crate::size;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema_version: u32,
    collective: Collective,
    ranks: usize,
    transport: &'static str,
    element: String,
    op: String,
    placement: &'static str,
    cold: bool,
    memory: &'static str,
    pinned: bool,
    /// What the plan reaches on the hardware it is for; says nothing about this host's memory.
    planned_hardware_algbw_gbps: Option<f64>,
    planned_hardware: String,
    /// Whether predictions are those of a calibration of this host.
    calibrated: bool,
    results: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    bytes: u64,
    /// Of the plan as it went, where its channels carried the operation.
    algorithm: Option<Algorithm>,
    /// `plan`, `flat`, `direct` or `staged`.
    path: String,
    operations: u64,
    /// Median over batches of the slowest rank's time per operation.
    time_us: f64,
    time_min_us: f64,
    /// Tenth percentile.
    time_p10_us: f64,
    algbw_gbps: f64,
    busbw_gbps: f64,
    wrong: u64,
    /// The share of the operation that hid behind work of its own length.
    #[serde(skip_serializing_if = "Option::is_none")]
    hidden_share: Option<f64>,
    /// Least time the memory allows, measured in this run.
    memory_limit_us: Option<f64>,
    of_memory_limit: Option<f64>,
    /// What the plan predicts for the hardware it is for; with a calibration, what that predicts for this host.
    predicted_us: Option<f64>,
    peer_us: Option<f64>,
    peer: Option<String>,
    /// How many times faster than the peer.
    over_peer: Option<f64>,
}

impl Report {
    pub(crate) fn new(
        args: &BenchArgs,
        plan: &Plan,
        measured: &[Measured],
        limits: &[MemoryLimit],
        peers: &Peers,
        predictor: Option<&Calibration>,
    ) -> Self {
        let reached = plan.collectives.get(&args.collective);
        let best = reached.and_then(|reached| reached.best.as_ref());
        let ranks = plan.ranks.len();
        let in_place = args.placement == Placement::In;
        let results = measured.iter().enumerate().map(|(at, measured)| {
            let mut times = measured.batches.clone();
            times.sort_unstable_by(f64::total_cmp);
            let at_share = |share: usize| {
                times.get(times.len() * share / 100).map_or(f64::NAN, |ns| ns.max(1.0) / 1e3)
            };
            let time_us = at_share(50);
            let algbw = measured.bytes as f64 / time_us / 1e3;
            let limit = limits.get(at).and_then(|limit| limit_us(args, ranks, measured, limit));
            let asked = args.sizes.0.get(at).copied().unwrap_or(0);
            let case = Case {
                collective: args.collective,
                ranks,
                bytes: asked,
                in_place,
                cold: args.cold,
            };
            let peer = peers.best(&case);
            Row {
                bytes: measured.bytes,
                algorithm: measured.algorithm,
                path: measured.path.clone(),
                operations: measured.operations,
                time_us,
                time_min_us: at_share(0),
                time_p10_us: at_share(10),
                algbw_gbps: algbw,
                busbw_gbps: algbw
                    * args.collective.busbw_factor(u32::try_from(ranks).unwrap_or(u32::MAX)),
                wrong: measured.wrong,
                hidden_share: measured.hidden,
                memory_limit_us: limit,
                of_memory_limit: limit.map(|limit| limit / time_us),
                predicted_us: match predictor {
                    None => predicted_us(plan, args.collective, measured.bytes),
                    // Of what the plan says for its machine, and not of another way that links here made faster.
                    Some(calibration) => (measured.algorithm.is_some()
                        && measured.algorithm == algorithm(plan, args.collective, measured.bytes))
                    .then(|| calibrated_us(calibration, args, plan, measured.bytes))
                    .flatten(),
                },
                peer_us: peer.map(|(us, _)| us),
                peer: peer.map(|(_, tag)| tag.to_owned()),
                over_peer: peer.map(|(us, _)| us / time_us),
            }
        });
        Self {
            schema_version: 1,
            collective: args.collective,
            ranks,
            transport: match args.transport {
                LinkKind::Auto => "auto",
                LinkKind::Shm => "shm",
                LinkKind::Tcp => "tcp",
                LinkKind::Verbs => "verbs",
            },
            element: args.element.to_string(),
            op: args.op.to_string(),
            placement: if in_place { "in" } else { "out" },
            cold: args.cold,
            memory: if args.registered { "registered" } else { "private" },
            pinned: args.pin,
            planned_hardware_algbw_gbps: best.map(|best| best.algbw_gbps.to_f64()),
            planned_hardware: format!(
                "{}, {} rates",
                plan.topology.source.as_str(),
                plan.topology.rates
            ),
            calibrated: predictor.is_some(),
            results: results.collect(),
        }
    }

    /// With the rows of another algorithm.
    pub(crate) fn with(mut self, other: Self) -> Self {
        self.results.extend(other.results);
        self
    }

    pub(crate) fn wrong(&self) -> u64 {
        self.results.iter().map(|row| row.wrong).sum()
    }

    fn title(&self) -> String {
        format!(
            "{} of {} ({}), {} place, {}{} buffers, {} ranks on this host's memory over {}",
            self.collective,
            self.element,
            self.op,
            self.placement,
            if self.cold { "cold " } else { "" },
            self.memory,
            self.ranks,
            self.transport
        )
    }

    pub(crate) fn render(&self) -> String {
        let mut text =
            format!("{}; every element checked before and after what is timed\n", self.title());
        if let Some(algbw) = self.planned_hardware_algbw_gbps {
            let _ = writeln!(
                text,
                "the plan's own figure is for the recorded hardware ({}): {algbw:.2} GB/s algbw",
                self.planned_hardware
            );
        }
        text.push('\n');
        let header = [
            "SIZE",
            "PATH",
            "OPS",
            "TIME us",
            "MIN us",
            "ALGBW GB/s",
            "BUSBW GB/s",
            "WRONG",
            "MEMORY LIMIT us",
            "LIMIT/TIME",
            "PEER us",
            "PEER/TIME",
            "HIDDEN",
        ];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        if self.calibrated {
            rows[0].extend(["PREDICTED us", "TIME/PREDICTED"].map(str::to_owned));
        }
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        for row in &self.results {
            rows.push(vec![
                size::display(row.bytes),
                row.algorithm.map_or_else(|| row.path.clone(), |algorithm| algorithm.to_string()),
                row.operations.to_string(),
                format!("{:.2}", row.time_us),
                format!("{:.2}", row.time_min_us),
                format!("{:.3}", row.algbw_gbps),
                format!("{:.3}", row.busbw_gbps),
                row.wrong.to_string(),
                or_dash(row.memory_limit_us.map(|us| format!("{us:.1}"))),
                or_dash(row.of_memory_limit.map(|share| format!("{:.0} %", 100.0 * share))),
                or_dash(row.peer_us.map(|us| format!("{us:.2}"))),
                or_dash(row.over_peer.map(|ratio| format!("{ratio:.2}"))),
                or_dash(row.hidden_share.map(|share| format!("{:.0} %", 100.0 * share))),
            ]);
            if let Some(cells) = rows.last_mut().filter(|_| self.calibrated) {
                let predicted = row.predicted_us;
                cells.push(or_dash(predicted.map(|us| format!("{us:.2}"))));
                cells.push(or_dash(predicted.map(|us| format!("{:.2}", row.time_us / us))));
            }
        }
        text.push_str(&output::table(&rows));
        text
    }

    /// Measured against the limit, the prediction and the peer, as SVG.
    pub(crate) fn plot(&self) -> String {
        let line = |name: &str, colour, dashed, of: &dyn Fn(&Row) -> Option<f64>| Line {
            name: name.to_owned(),
            colour,
            dashed,
            points: self
                .results
                .iter()
                .filter_map(|row| of(row).map(|us| (row.bytes as f64, us)))
                .collect(),
        };
        let mut lines = vec![
            line("measured", "#0b6", false, &|row| Some(row.time_us)),
            line("memory limit", "#888", true, &|row| row.memory_limit_us),
            line(
                if self.calibrated { "calibrated" } else { "plan, on its own hardware" },
                "#06c",
                true,
                &|row| row.predicted_us,
            ),
            line("best peer", "#d40", false, &|row| row.peer_us),
        ];
        lines.retain(|line| !line.points.is_empty());
        plot::render(&self.title(), &lines)
    }
}

/// Least time for the bytes that must be read once and written once, at the rate of the fused pass.
fn limit_us(
    args: &BenchArgs,
    ranks: usize,
    measured: &Measured,
    limit: &MemoryLimit,
) -> Option<f64> {
    let n = ranks as f64;
    let in_place = args.placement == Placement::In;
    // Of every rank's own part nothing is moved in place.
    let moved = if in_place { (n - 1.0) / n } else { 1.0 };
    let buffers = match args.collective {
        Collective::AllReduce => n,
        Collective::AllGather | Collective::AllToAll => n * moved,
        // Everything is read, and one buffer's worth written.
        Collective::ReduceScatter | Collective::Reduce => (n + 1.0) / 2.0,
        Collective::Broadcast => n - 1.0,
        Collective::Gather | Collective::Scatter => moved,
        Collective::SendRecv => n,
        Collective::Barrier => return None,
    };
    Some(buffers * measured.bytes as f64 / limit.bytes_per_second * 1e6)
}

pub(super) fn algorithm(plan: &Plan, collective: Collective, bytes: u64) -> Option<Algorithm> {
    let reached = plan.collectives.get(&collective)?;
    let choice = reached
        .by_size
        .iter()
        .find(|choice| bytes <= choice.max_bytes)
        .map(|choice| choice.algorithm);
    choice.or_else(|| reached.best.as_ref().map(|best| best.algorithm))
}

/// By the row of that size, where it says one, scaled to the size; by the bandwidth alone beyond the table.
fn predicted_us(plan: &Plan, collective: Collective, bytes: u64) -> Option<f64> {
    let reached = plan.collectives.get(&collective)?;
    let row = reached.by_size.iter().find(|choice| bytes <= choice.max_bytes)?;
    if let Some(ps) = row.predicted_ps.filter(|_| row.max_bytes == bytes) {
        return Some(ps as f64 / 1e6);
    }
    let algbw = reached.best.as_ref()?.algbw_gbps.to_f64();
    (row.predicted_ps.is_none() && algbw > 0.0).then(|| bytes as f64 / algbw / 1e3)
}

/// What the links of this host, as calibrated, allow the channels that the transport takes.
fn calibrated_us(
    calibration: &Calibration,
    args: &BenchArgs,
    plan: &Plan,
    bytes: u64,
) -> Option<f64> {
    let collective = args.collective;
    let load = load(plan, collective, bytes)?;
    let algorithm = algorithm(plan, collective, bytes)?;
    let link = super::calibrate::link(args.transport)?;
    let ranks = plan.ranks.len();
    let ns = calibrated::predict_ns(calibration, link, collective, algorithm, ranks, load, bytes)?;
    Some(ns / 1e3)
}

/// What an operation of a size asks of the links.
pub(super) fn load(plan: &Plan, collective: Collective, bytes: u64) -> Option<Load> {
    let root = collective.has_root().then_some(Rank(0));
    let chosen = transport::schedule::select(plan, collective, root, bytes).ok()?;
    let channels = chosen.iter().map(|selected| selected.channel);
    let (ranks, algorithm) = (plan.ranks.len(), algorithm(plan, collective, bytes)?);
    Some(Load::of(channels, collective, ranks).of_algorithm(algorithm, collective, ranks))
}
