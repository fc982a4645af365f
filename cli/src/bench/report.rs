//! What was measured, for people and for scripts.

use std::fmt::Write;

use serde::Serialize;
use topology::{Algorithm, Collective, Plan};
use transport::MemoryLimit;

use super::job::Measured;
use crate::args::{BenchArgs, LinkKind};
use crate::output;
use crate::size;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema_version: u32,
    collective: Collective,
    ranks: usize,
    transport: &'static str,
    /// What the plan reaches on the hardware it is for; says nothing about this host's memory.
    planned_hardware_algbw_gbps: Option<f64>,
    planned_hardware: String,
    results: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    bytes: u64,
    algorithm: Option<Algorithm>,
    operations: usize,
    /// Median over operations of the time from the last rank's call to the last rank's return.
    time_us: f64,
    algbw_gbps: f64,
    busbw_gbps: f64,
    wrong: u64,
    /// Least time the memory allows, measured in this run.
    memory_limit_us: Option<f64>,
    of_memory_limit: Option<f64>,
}

impl Report {
    /// From the measurements of every rank of this host (or of one), all over the same sizes.
    pub(crate) fn new(
        args: &BenchArgs,
        plan: &Plan,
        outcomes: &[Vec<Measured>],
        limits: &[MemoryLimit],
    ) -> Self {
        let reached = plan.collectives.get(&args.collective);
        let best = reached.and_then(|reached| reached.best.as_ref());
        let ranks = plan.ranks.len();
        let results = args.sizes.0.iter().enumerate().map(|(place, bytes)| {
            let of_ranks: Vec<&Measured> =
                outcomes.iter().filter_map(|sizes| sizes.get(place)).collect();
            let time_us = median_us(&of_ranks);
            let algbw = *bytes as f64 / time_us / 1e3;
            let limit = limits.get(place).map(|limit| limit.all_reduce.as_secs_f64() * 1e6);
            Row {
                bytes: *bytes,
                algorithm: algorithm(plan, args.collective, *bytes),
                operations: of_ranks.iter().map(|m| m.operations.len()).min().unwrap_or(0),
                time_us,
                algbw_gbps: algbw,
                busbw_gbps: algbw
                    * args.collective.busbw_factor(u32::try_from(ranks).unwrap_or(u32::MAX)),
                wrong: of_ranks.iter().map(|m| m.wrong).sum(),
                memory_limit_us: limit,
                of_memory_limit: limit.map(|limit| limit / time_us),
            }
        });
        Self {
            schema_version: 1,
            collective: args.collective,
            ranks,
            transport: match args.transport {
                LinkKind::Shm => "shm",
                LinkKind::Tcp => "tcp",
            },
            planned_hardware_algbw_gbps: best.map(|best| best.algbw_gbps.to_f64()),
            planned_hardware: format!(
                "{}, {} rates",
                plan.topology.source.as_str(),
                plan.topology.rates
            ),
            results: results.collect(),
        }
    }

    pub(crate) fn wrong(&self) -> u64 {
        self.results.iter().map(|row| row.wrong).sum()
    }

    pub(crate) fn render(&self) -> String {
        let mut text = format!(
            "{} of 32-bit floats (sum), in place, {} ranks on this host's memory over {}; every element of every operation checked\n",
            self.collective, self.ranks, self.transport
        );
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
            "ALGORITHM",
            "OPS",
            "TIME us",
            "ALGBW GB/s",
            "BUSBW GB/s",
            "WRONG",
            "MEMORY LIMIT us",
            "LIMIT/TIME",
        ];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        for row in &self.results {
            rows.push(vec![
                size::display(row.bytes),
                row.algorithm.map_or("-", Algorithm::as_str).to_owned(),
                row.operations.to_string(),
                format!("{:.1}", row.time_us),
                format!("{:.3}", row.algbw_gbps),
                format!("{:.3}", row.busbw_gbps),
                row.wrong.to_string(),
                row.memory_limit_us.map_or_else(|| "-".into(), |us| format!("{us:.1}")),
                row.of_memory_limit
                    .map_or_else(|| "-".into(), |share| format!("{:.0} %", 100.0 * share)),
            ]);
        }
        text.push_str(&output::table(&rows));
        text
    }
}

fn algorithm(plan: &Plan, collective: Collective, bytes: u64) -> Option<Algorithm> {
    let reached = plan.collectives.get(&collective)?;
    let choice = reached
        .by_size
        .iter()
        .find(|choice| bytes <= choice.max_bytes)
        .map(|choice| choice.algorithm);
    choice.or_else(|| reached.best.as_ref().map(|best| best.algorithm))
}

/// Per operation from the last call to the last return over the ranks at hand; the median of those.
fn median_us(ranks: &[&Measured]) -> f64 {
    let operations = ranks.iter().map(|m| m.operations.len()).min().unwrap_or(0);
    let mut times: Vec<u64> = (0..operations)
        .map(|operation| {
            let called = ranks.iter().map(|m| m.operations[operation].0).max().unwrap_or(0);
            let returned = ranks.iter().map(|m| m.operations[operation].1).max().unwrap_or(0);
            returned.saturating_sub(called)
        })
        .collect();
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, |ns| (*ns).max(1) as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_lasts_from_the_last_call_to_the_last_return() {
        let rank = |operations: &[(u64, u64)]| Measured {
            bytes: 4,
            operations: operations.to_vec(),
            wrong: 0,
        };
        let (a, b) = (
            rank(&[(0, 9_000), (10_000, 20_000), (30_000, 31_000)]),
            rank(&[(4_000, 8_000), (11_000, 19_000), (30_500, 33_000)]),
        );
        assert_eq!(median_us(&[&a, &b]), 5.0);
    }
}
