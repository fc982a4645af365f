//! How planning a job by class grows with its hosts: time, memory, and how near the bound the plan comes.
//!
//! ```text
//! cargo run --release -p planner --example job_time [-- HOSTSxCLASSES...]        such as 16384x20; without any, a row for each doubling
//! ```
//!
//! Hosts are DGX H100 as the project describes them; each further class has one NIC more at half its rate, then at a quarter. The time is
//! that of lowering each class, planning it, and everything between hosts; it passes on one thread. Every row is made in a process of its own, so that
//! the most memory ever resident (`VmHWM`) is its own.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use planner::fleet::Fleet;
use planner::job;
use topology::formats::{self, job_plan_json};
use topology::plan::LinkPolicy;
use topology::snapshot::NicRole;
use topology::{Collective, RateModel, Snapshot};

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, row] = arguments.as_slice()
        && first == "--row"
    {
        return match print_row(row) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("job_time: {row}: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if arguments.is_empty() {
        let doubled = (0..15).map(|power| format!("{}x1", 1 << power));
        let classes = ["32x4", "1024x20", "16384x20", "32768x20", "65536x20"].map(str::to_owned);
        arguments = doubled.chain(classes).collect();
    }
    println!(
        "| hosts | classes | GPUs | ms | of it, between hosts | peak MB | plan kB | all-reduce GB/s | of the bound | all-gather | reduce-scatter |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("job_time"));
    let mut failed = false;
    for row in &arguments {
        let ran = Command::new(&program).args(["--row", row]).status();
        failed |= !ran.is_ok_and(|status| status.success());
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn print_row(row: &str) -> Result<(), String> {
    let (hosts, classes) = row.split_once('x').unwrap_or((row, "1"));
    let number = |text: &str| text.parse::<usize>().map_err(|_| format!("{text} is no number"));
    let (hosts, classes) = (number(hosts)?, number(classes)?);
    let kinds = kinds(classes)?;
    let start = Instant::now();
    let mut fleet = Fleet::new(&kinds, RateModel::Effective).map_err(|e| e.to_string())?;
    if fleet.classes.len() != classes {
        return Err(format!("{} classes were made, not {classes}", fleet.classes.len()));
    }
    // Hosts of all classes mixed, as in a fleet that grew.
    fleet.class_of = (0..hosts).map(|host| host % classes).collect();
    let plan = job::plan(&fleet, &[], LinkPolicy::Auto).map_err(|error| error.to_string())?;
    let whole = start.elapsed();
    // Planned again as one host of each class: what is more than that is between hosts.
    let alone = Instant::now();
    fleet.class_of = (0..classes).collect();
    job::plan(&fleet, &[], LinkPolicy::Auto).map_err(|error| error.to_string())?;
    let between = whole.saturating_sub(alone.elapsed());
    let peak = peak_mb();
    let reached = |collective: Collective| {
        let reached = &plan.collectives[&collective];
        let part = 100.0 * (reached.algbw_gbps / reached.bound_gbps).to_f64();
        (format!("{:.2}", reached.algbw_gbps.to_f64()), format!("{part:.2} %"))
    };
    let (rate, part) = reached(Collective::AllReduce);
    println!(
        "| {hosts} | {classes} | {} | {:.1} | {:.1} | {peak:.1} | {} | {rate} | {part} | {} | {} |",
        plan.ranks(),
        whole.as_secs_f64() * 1e3,
        between.as_secs_f64() * 1e3,
        job_plan_json::write(&plan).len() / 1000,
        reached(Collective::AllGather).1,
        reached(Collective::ReduceScatter).1,
    );
    Ok(())
}

/// So many kinds of hosts.
fn kinds(count: usize) -> Result<Vec<Snapshot>, String> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = here.join("../tests/fixtures/machines/dgx_h100.json");
    let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let host = formats::read(&bytes).map_err(|error| error.to_string())?.remove(0);
    let mut kinds = vec![host.clone()];
    let rates = [200_000, 100_000, 50_000, 25_000];
    for mbit in rates {
        let mut slower = host.clone();
        for at in 0..slower.nics.len() {
            if slower.nics[at].role != NicRole::Other {
                slower.nics[at].mbit = Some(mbit);
                kinds.push(slower.clone());
            }
        }
    }
    if count == 0 || kinds.len() < count {
        return Err(format!("1 to {} kinds of hosts are known", kinds.len()));
    }
    kinds.truncate(count);
    Ok(kinds)
}

/// The most memory this process ever had resident; NaN where the kernel does not tell.
fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| kib * 1024.0 / 1e6)
}
