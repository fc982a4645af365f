//! Our plans beside the bounded search of rings, in one run: depth first, one speed for all, a budget of steps as NCCL's.
//!
//! ```text
//! cargo run --release -p tests --example bounded            # every board, and two GPU subsets of each that has some
//! cargo run --release -p tests --example bounded -- --all   # every subset
//! ```
//!
//! Both work on the same graph with the same rates. The bounded search gives rings alone, the plan is for all-gather and
//! all-reduce and has passed the independent checker; times are the fastest of three runs on one core. Prints Markdown.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use planner::bounded_search::{self, STEPS_PER_SPEED};
use planner::model::Model;
use tests::nccl::{self, Case, Group};
use topology::{Collective, PlanRequest};

/// Runs of each; the fastest counts.
const RUNS: u32 = 3;

struct Row {
    name: String,
    ranks: usize,
    /// GB/s of algorithm bandwidth: all-gather, all-reduce.
    bounded: [f64; 2],
    ours: [f64; 2],
    /// Milliseconds: bounded search, plan.
    ms: [f64; 2],
}

fn main() -> ExitCode {
    let all = std::env::args().any(|argument| argument == "--all");
    let cases = match nccl::cases() {
        Ok(cases) => chosen(cases, all),
        Err(error) => {
            eprintln!("bounded: {error}");
            return ExitCode::from(2);
        }
    };
    println!(
        "| machine | GPUs | all-gather bounded | ours | gain | all-reduce bounded | ours | gain | bounded ms | ours ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let (mut rows, mut failed) = (Vec::new(), false);
    for case in &cases {
        match compare(case) {
            Ok(row) => {
                print(&row);
                rows.push(row);
            }
            Err(error) => {
                eprintln!("bounded: {}: {error}", case.name());
                failed = true;
            }
        }
    }
    println!();
    summary("all-gather", &rows, 0);
    summary("all-reduce", &rows, 1);
    println!(
        "- time, ours to the bounded search's: geometric mean {:.2}",
        mean(rows.iter().map(|row| row.ms[1] / row.ms[0]))
    );
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// One host each: whole, and of subsets the first and the last of each board unless all are wanted.
fn chosen(cases: Vec<Case>, all: bool) -> Vec<Case> {
    let mut subsets: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for case in cases.iter().filter(|case| case.group() == Group::OneHostSubset) {
        subsets.entry(case.files[0].clone()).or_default().push(case.number);
    }
    let kept: Vec<usize> = subsets
        .into_values()
        .flat_map(|of_board| match of_board[..] {
            [first, .., last] if !all => vec![first, last],
            _ => of_board,
        })
        .collect();
    let wanted = |case: &Case| case.group() == Group::OneHost || kept.contains(&case.number);
    cases.into_iter().filter(wanted).collect()
}

/// The result with the milliseconds of the fastest of several runs.
fn timed<T>(run: impl Fn() -> T) -> (T, f64) {
    let once = || {
        let start = Instant::now();
        let result = run();
        (result, start.elapsed().as_secs_f64() * 1e3)
    };
    let (result, first) = once();
    let fastest = (1..RUNS).map(|_| once().1).fold(first, f64::min);
    (result, fastest)
}

fn compare(case: &Case) -> Result<Row, String> {
    let topology = case.topology()?;
    let request = PlanRequest {
        gpus: case.gpus.clone(),
        collectives: vec![Collective::AllGather, Collective::AllReduce],
        ..PlanRequest::default()
    };
    let model = Model::new(&topology, &request).map_err(|error| error.to_string())?;
    let (bounded, bounded_ms) = timed(|| bounded_search::search(&model.graph, STEPS_PER_SPEED));
    let (plan, plan_ms) = timed(|| planner::plan(&topology, &request));
    let plan = plan.map_err(|error| error.to_string())?;
    let n = plan.ranks.len() as f64;
    let rings = bounded.total() as f64 / 1e6;
    let best = |collective| {
        let reached = plan.collectives.get(&collective).and_then(|reached| reached.best.as_ref());
        reached.map_or(f64::NAN, |best| best.algbw_gbps.to_f64())
    };
    Ok(Row {
        name: case.name(),
        ranks: plan.ranks.len(),
        bounded: [rings * n / (n - 1.0), rings * n / (2.0 * (n - 1.0))],
        ours: [best(Collective::AllGather), best(Collective::AllReduce)],
        ms: [bounded_ms, plan_ms],
    })
}

fn print(row: &Row) {
    let gain = |place: usize| match row.ours[place] / row.bounded[place] {
        gain if gain.is_finite() => format!("{gain:.2}"),
        _ => "no ring".into(),
    };
    println!(
        "| {} | {} | {:.2} | {:.2} | {} | {:.2} | {:.2} | {} | {:.1} | {:.1} |",
        row.name,
        row.ranks,
        row.bounded[0],
        row.ours[0],
        gain(0),
        row.bounded[1],
        row.ours[1],
        gain(1),
        row.ms[0],
        row.ms[1]
    );
}

fn summary(what: &str, rows: &[Row], place: usize) {
    let gains = || rows.iter().map(|row| row.ours[place] / row.bounded[place]);
    let (none, below) = (
        gains().filter(|gain| !gain.is_finite()).count(),
        gains().filter(|gain| *gain < 0.999).count(),
    );
    println!(
        "- {what}, ours to the bounded search's over {} machines: geometric mean {:.3}, most {:.2}; {below} below; {none} \
         where the search finds no ring",
        rows.len() - none,
        mean(gains()),
        gains().filter(|gain| gain.is_finite()).fold(0.0, f64::max)
    );
}

fn mean(ratios: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> =
        ratios.filter(|ratio| ratio.is_finite() && *ratio > 0.0).map(f64::ln).collect();
    (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
}
