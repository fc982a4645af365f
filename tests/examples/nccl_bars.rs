//! Our plans beside what NCCL's own search finds, on the boards of the corpus.
//!
//! ```text
//! cargo run --release -p tests --example nccl_bars            # every board, one host and two
//! cargo run --release -p tests --example nccl_bars -- --all   # every case of the bars: subsets, two and four hosts, mixed hosts
//! ```
//!
//! Rates are NCCL's on both sides, so the comparison is of the search, not of hardware. Every plan has passed the
//! independent checker; its figures are what the checker counted. Prints Markdown.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde_json::Value;
use topology::plan::PlanRequest;
use topology::{Collective, GpuIndex, Plan, RateModel, Snapshot, formats, lower};

/// One comparison.
struct Case {
    files: Vec<String>,
    gpus: Option<Vec<GpuIndex>>,
    nccl: Value,
}

struct Row {
    name: String,
    ranks: usize,
    /// GB/s: total of the rings, all-gather and all-reduce algorithm bandwidth.
    nccl: [f64; 3],
    ours: [f64; 3],
    optimal: [bool; 2],
    algorithm: [String; 2],
    planning_ms: f64,
    nvlink: bool,
}

fn main() -> ExitCode {
    let all = std::env::args().any(|argument| argument == "--all");
    let (corpus, bars) = (folder("TOPOD_CORPUS", "corpus"), folder("TOPOD_BARS", "bars"));
    let Ok(text) = std::fs::read_to_string(bars.join("nccl.json")) else {
        eprintln!("nccl_bars: no nccl.json in {}; nothing to compare with", bars.display());
        return ExitCode::from(2);
    };
    let cases = match cases(&text, all) {
        Ok(cases) => cases,
        Err(error) => {
            eprintln!("nccl_bars: nccl.json: {error}");
            return ExitCode::from(2);
        }
    };
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for case in &cases {
        let name = name(case);
        match compare(&corpus, case, name.clone()) {
            Ok(row) => rows.push(row),
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    print(&rows, &failed);
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn folder(variable: &str, name: &str) -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared").join(name);
    std::env::var_os(variable).map_or_else(beside, PathBuf::from)
}

fn cases(text: &str, all: bool) -> Result<Vec<Case>, serde_json::Error> {
    let bars: Value = serde_json::from_str(text)?;
    let read = |case: &Value| -> Option<Case> {
        let files: Vec<String> = case["topologies"]
            .as_array()?
            .iter()
            .filter_map(|f| f.as_str().map(str::to_owned))
            .collect();
        let gpus = case["subset"].as_array().map(|list| {
            list.iter()
                .filter_map(Value::as_u64)
                .filter_map(|i| u32::try_from(i).ok())
                .map(GpuIndex)
                .collect()
        });
        Some(Case { files, gpus, nccl: case["nccl"].clone() })
    };
    let plain = |case: &Case| {
        case.gpus.is_none()
            && case.files.len() <= 2
            && case.files.iter().all(|file| *file == case.files[0])
    };
    Ok(bars["cases"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(read)
        .filter(|case| all || plain(case))
        .collect())
}

fn name(case: &Case) -> String {
    let mut distinct = case.files.clone();
    distinct.dedup();
    let files: Vec<&str> = distinct.iter().map(|file| file.trim_end_matches(".xml")).collect();
    let copies = if distinct.len() == 1 && case.files.len() > 1 {
        format!(" x{}", case.files.len())
    } else {
        String::new()
    };
    let gpus = case
        .gpus
        .as_ref()
        .map(|gpus| {
            format!(" [{}]", gpus.iter().map(|g| g.to_string()).collect::<Vec<_>>().join(" "))
        })
        .unwrap_or_default();
    format!("{}{copies}{gpus}", files.join(" + "))
}

fn compare(corpus: &Path, case: &Case, name: String) -> Result<Row, String> {
    let mut hosts: Vec<Snapshot> = Vec::new();
    for file in &case.files {
        let path = corpus.join("nccl-model").join(file);
        let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        hosts.extend(formats::read(&bytes).map_err(|error| error.to_string())?);
    }
    let topology = lower(&hosts, RateModel::Effective).map_err(|error| error.to_string())?;
    let request = PlanRequest {
        gpus: case.gpus.clone(),
        collectives: vec![Collective::AllGather, Collective::AllReduce],
        ..PlanRequest::default()
    };
    let start = Instant::now();
    let plan = planner::plan(&topology, &request).map_err(|error| error.to_string())?;
    let planning_ms = start.elapsed().as_secs_f64() * 1e3;
    let checked =
        planner::check::plan(&topology, &plan).map_err(|violations| format!("{violations:?}"))?;
    let counted = |collective| {
        checked.collectives.get(&collective).map_or(f64::NAN, |counted| counted.algbw_gbps.to_f64())
    };
    let n = plan.ranks.len() as f64;
    let ring = ring_total(&plan, n);
    let figure = |key: &str| case.nccl[key].as_f64().unwrap_or(f64::NAN);
    let nccl_rings = figure("ring_total_gbps");
    let best =
        |collective| plan.collectives.get(&collective).and_then(|reached| reached.best.clone());
    let of = [Collective::AllGather, Collective::AllReduce];
    Ok(Row {
        name,
        ranks: plan.ranks.len(),
        nccl: [nccl_rings, nccl_rings * n / (n - 1.0), figure("all_reduce_algbw_gbps")],
        ours: [ring, counted(Collective::AllGather), counted(Collective::AllReduce)],
        optimal: of.map(|collective| best(collective).is_some_and(|best| best.optimal)),
        algorithm: of.map(|collective| {
            best(collective).map_or_else(|| "-".into(), |best| best.algorithm.to_string())
        }),
        planning_ms,
        nvlink: case.nccl["path"]
            .as_str()
            .is_some_and(|path| path.starts_with("NVL") || path.starts_with("NVB")),
    })
}

/// Total rate of the plan's rings: all-gather algorithm bandwidth times (N-1)/N.
fn ring_total(plan: &Plan, n: f64) -> f64 {
    let ring =
        plan.collectives.get(&Collective::AllGather).and_then(|reached| reached.ring.as_ref());
    ring.map_or(0.0, |ring| ring.algbw_gbps.to_f64() * (n - 1.0) / n)
}

fn print(rows: &[Row], failed: &[String]) {
    println!(
        "| case | ranks | rings NCCL | rings ours | all-gather NCCL | ours | by | all-reduce NCCL | ours | by | ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let mark = |place: usize| if row.optimal[place] { " =bound" } else { "" };
        println!(
            "| {} | {} | {:.1} | {:.1} | {:.2} | {:.2}{} | {} | {:.2} | {:.2}{} | {} | {:.1} |",
            row.name,
            row.ranks,
            row.nccl[0],
            row.ours[0],
            row.nccl[1],
            row.ours[1],
            mark(0),
            row.algorithm[0],
            row.nccl[2],
            row.ours[2],
            mark(1),
            row.algorithm[1],
            row.planning_ms
        );
    }
    println!();
    for (place, what) in [(1, "all-gather"), (2, "all-reduce")] {
        let ratios: Vec<f64> = rows
            .iter()
            .map(|row| row.ours[place] / row.nccl[place])
            .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
            .collect();
        let mean =
            (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len().max(1) as f64).exp();
        println!(
            "- {what}: geometric mean of ours to NCCL's over {} cases: {mean:.3}",
            ratios.len()
        );
    }
    println!("\nRings below 90 % of NCCL's where NVLink connects all GPUs of one host:\n");
    list(
        rows.iter()
            .filter(|row| row.nvlink && !row.name.contains(" x") && row.ours[0] < 0.9 * row.nccl[0])
            .map(|row| format!("{}: {:.1} of {:.1}", row.name, row.ours[0], row.nccl[0])),
    );
    for (place, what) in [(1, "all-gather"), (2, "all-reduce")] {
        println!("\nBest {what} below NCCL's by more than its own rounding (0.5 %):\n");
        list(
            rows.iter().filter(|row| row.ours[place] < 0.995 * row.nccl[place]).map(|row| {
                format!("{}: {:.2} of {:.2}", row.name, row.ours[place], row.nccl[place])
            }),
        );
    }
    println!("\nNo plan, or a plan the checker refuses:\n");
    list(failed.iter().cloned());
}

fn list(lines: impl Iterator<Item = String>) {
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() {
        println!("none");
    }
    for line in lines {
        println!("- {line}");
    }
}
