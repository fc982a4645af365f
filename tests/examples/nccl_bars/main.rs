//! Our plans beside what NCCL's own search finds, on the boards of the corpus.
//!
//! ```text
//! cargo run --release -p tests --example nccl_bars                 # every board, one host and two
//! cargo run --release -p tests --example nccl_bars -- --all        # every case of the bars: subsets, two and four hosts, mixed hosts
//! cargo run --release -p tests --example nccl_bars -- --bounds     # no plans: where the printed bounds and ours differ, and why
//! ```
//!
//! Rates are NCCL's on both sides, so the comparison is of the search, not of hardware. Every plan has passed the
//! independent checker; its figures are what the checker counted. Prints Markdown. Where NCCL's figure is above what the links
//! allow, the checker counts NCCL's own shapes (double binary trees over hosts, rings) and names the capacity that the figure overruns.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

mod differences;
mod overruns;

use std::process::ExitCode;
use std::time::Instant;

use tests::nccl::{self, Case, Group};
use topology::{Collective, Plan, PlanRequest};

/// The two collectives NCCL's figures are for, in the order of every pair here.
const BOTH: [Collective; 2] = [Collective::AllGather, Collective::AllReduce];

/// Figures printed with two decimals, and rates of few digits behind them.
const ROUNDING: f64 = 0.005;

struct Row {
    name: String,
    group: Group,
    ranks: usize,
    /// GB/s: total of the rings, all-gather and all-reduce algorithm bandwidth.
    nccl: [f64; 3],
    ours: [f64; 3],
    optimal: [bool; 2],
    algorithm: [String; 2],
    planning_ms: f64,
    nvlink: bool,
    /// Where NCCL's figure is above our bound: what it overruns.
    overrun: Vec<String>,
}

fn main() -> ExitCode {
    let wanted = |word: &str| std::env::args().any(|argument| argument == word);
    let cases = match nccl::cases() {
        Ok(cases) => cases,
        Err(error) => {
            eprintln!("nccl_bars: {error}; nothing to compare with");
            return ExitCode::from(2);
        }
    };
    if wanted("--bounds") {
        return differences::print(&cases);
    }
    let all = wanted("--all");
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for case in cases.iter().filter(|case| all || plain(case)) {
        match compare(case) {
            Ok(row) => rows.push(row),
            Err(error) => failed.push(format!("{}: {error}", case.name())),
        }
    }
    print(&rows, &failed);
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whole boards, alone or two alike.
fn plain(case: &Case) -> bool {
    case.gpus.is_none()
        && case.files.len() <= 2
        && case.files.iter().all(|file| *file == case.files[0])
}

fn request(case: &Case) -> PlanRequest {
    PlanRequest { gpus: case.gpus.clone(), collectives: BOTH.into(), ..PlanRequest::default() }
}

fn compare(case: &Case) -> Result<Row, String> {
    let topology = case.topology()?;
    let start = Instant::now();
    let plan = planner::plan(&topology, &request(case)).map_err(|error| error.to_string())?;
    let planning_ms = start.elapsed().as_secs_f64() * 1e3;
    let checked = planner::check::plan(&topology, &plan).map_err(|found| {
        found.first().map_or_else(|| "not valid".into(), |violation| violation.to_string())
    })?;
    let counted = |collective| {
        checked.collectives.get(&collective).map_or(f64::NAN, |counted| counted.algbw_gbps.to_f64())
    };
    let n = plan.ranks.len() as f64;
    let best =
        |collective| plan.collectives.get(&collective).and_then(|reached| reached.best.clone());
    Ok(Row {
        name: case.name(),
        group: case.group(),
        ranks: plan.ranks.len(),
        nccl: [case.nccl.ring_total, case.nccl.all_gather, case.nccl.all_reduce],
        ours: [ring_total(&plan, n), counted(BOTH[0]), counted(BOTH[1])],
        optimal: BOTH.map(|collective| best(collective).is_some_and(|best| best.optimal)),
        algorithm: BOTH.map(|collective| {
            best(collective).map_or_else(|| "-".into(), |best| best.algorithm.to_string())
        }),
        planning_ms,
        nvlink: ["NVL", "NVB"].iter().any(|path| case.nccl.path.starts_with(path)),
        overrun: overruns::of(case, &topology, &plan),
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
    print_groups(rows);
    println!("\nRings below 90 % of NCCL's where NVLink connects all GPUs of one host:\n");
    list(
        rows.iter()
            .filter(|row| row.nvlink && !row.name.contains(" x") && row.ours[0] < 0.9 * row.nccl[0])
            .map(|row| format!("{}: {:.1} of {:.1}", row.name, row.ours[0], row.nccl[0])),
    );
    for (place, what) in [(1, "all-gather"), (2, "all-reduce")] {
        println!("\nBest {what} below NCCL's by more than its own rounding (0.5 %):\n");
        list(
            rows.iter().filter(|row| row.ours[place] < (1.0 - ROUNDING) * row.nccl[place]).map(
                |row| format!("{}: {:.2} of {:.2}", row.name, row.ours[place], row.nccl[place]),
            ),
        );
    }
    println!("\nNCCL's figure above our bound, and what it overruns:\n");
    list(
        rows.iter()
            .flat_map(|row| row.overrun.iter().map(|overrun| format!("{}: {overrun}", row.name))),
    );
    println!("\nNo plan, or a plan the checker refuses:\n");
    list(failed.iter().cloned());
}

fn print_groups(rows: &[Row]) {
    println!(
        "\n| group | cases | all-gather, ours to NCCL's (geometric mean) | all-reduce | all-gather at the bound | all-reduce at the bound \
         | planning ms, median | most |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut groups: Vec<Group> = rows.iter().map(|row| row.group).collect();
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        let of_group: Vec<&Row> = rows.iter().filter(|row| row.group == group).collect();
        print_group(group.name(), &of_group);
    }
    print_group("all", &rows.iter().collect::<Vec<_>>());
}

fn print_group(name: &str, rows: &[&Row]) {
    let mut ms: Vec<f64> = rows.iter().map(|row| row.planning_ms).collect();
    ms.sort_by(f64::total_cmp);
    let at_bound = |place: usize| rows.iter().filter(|row| row.optimal[place]).count();
    println!(
        "| {name} | {} | {:.3} | {:.3} | {} | {} | {:.1} | {:.0} |",
        rows.len(),
        mean(rows.iter().map(|row| row.ours[1] / row.nccl[1])),
        mean(rows.iter().map(|row| row.ours[2] / row.nccl[2])),
        at_bound(0),
        at_bound(1),
        ms.get(ms.len() / 2).copied().unwrap_or(f64::NAN),
        ms.last().copied().unwrap_or(f64::NAN)
    );
}

/// Geometric.
fn mean(ratios: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> =
        ratios.filter(|ratio| ratio.is_finite() && *ratio > 0.0).map(f64::ln).collect();
    (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
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
