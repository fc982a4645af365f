//! Our plans beside the schedules that TACCL and TE-CCL published, on the same link graphs.
//!
//! ```text
//! cargo run --release -p tests --example published
//! ```
//!
//! Prints Markdown. Exit code 1 where a plan that something executes is slower than a published schedule, 2 without the bars.
//! Published figures count latency and an indivisible shard in, ours are what the independent checker counts at infinite size.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use std::process::ExitCode;
use std::time::Instant;

use tests::bars::{self, Published};
use topology::{Collective, PlanRequest};

/// Runs of each plan; the fastest counts.
const RUNS: u32 = 3;

struct Row {
    cells: Vec<String>,
    slower: Option<String>,
}

fn main() -> ExitCode {
    let cases = match bars::published() {
        Ok(cases) => cases,
        Err(error) => {
            eprintln!("published: {error}");
            return ExitCode::from(2);
        }
    };
    println!(
        "| graph | GPUs | collective | ours GB/s | by | bound | ours ms | TACCL GB/s | TACCL s | TE-CCL GB/s | TE-CCL s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut failed = false;
    for case in cases {
        let name = case.graph.name.clone();
        match compare(case) {
            Ok(Row { cells, slower }) => {
                println!("| {} |", cells.join(" | "));
                if let Some(slower) = slower {
                    eprintln!("published: {slower}");
                    failed = true;
                }
            }
            Err(error) => {
                eprintln!("published: {name}: {error}");
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn compare(case: Published) -> Result<Row, String> {
    let collective = match case.collective.as_str() {
        "allgather" => Collective::AllGather,
        "alltoall" => Collective::AllToAll,
        other => return Err(format!("collective {other} is not known")),
    };
    let name = case.graph.name.clone();
    let published = case.best();
    let topology = bars::topology(case.graph).map_err(|error| error.to_string())?;
    let request = PlanRequest { collectives: vec![collective], ..PlanRequest::default() };
    let mut fastest = f64::INFINITY;
    let mut plan = Err(String::new());
    for _ in 0..RUNS {
        let start = Instant::now();
        plan = planner::plan(&topology, &request).map_err(|error| error.to_string());
        fastest = fastest.min(start.elapsed().as_secs_f64() * 1e3);
    }
    let plan = plan?;
    let reached = &plan.collectives[&collective];
    let executed = reached.best.as_ref();
    let ours = executed.or_else(|| reached.candidates.first()).ok_or("nothing carries it")?;
    let (algbw, bound) = (
        ours.algbw_gbps.to_f64(),
        reached.bound.as_ref().map_or(f64::NAN, |bound| bound.algbw_gbps.to_f64()),
    );
    let theirs = published.unwrap_or(f64::NAN);
    let slower = (executed.is_some() && algbw < 0.9999 * theirs)
        .then(|| format!("{name} {collective}: {algbw:.3} GB/s is below {theirs}"));
    let figure = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.2}"));
    let mark = if executed.is_none() {
        " (nothing runs it yet)"
    } else if ours.optimal {
        " =bound"
    } else {
        ""
    };
    let cells = vec![
        name,
        plan.ranks.len().to_string(),
        collective.to_string(),
        format!("{algbw:.2}{mark}"),
        ours.algorithm.to_string(),
        format!("{bound:.2}"),
        format!("{fastest:.1}"),
        figure(case.taccl),
        figure(case.taccl_seconds),
        figure(case.teccl),
        figure(case.teccl_seconds),
    ];
    Ok(Row { cells, slower })
}
