//! How long a plan takes, by collective: `planning_time [--hosts N] [--gpus 0,1,2] [--seconds S] [--together] FILE...`
//!
//! Every FILE is a machine in any format of `topology::formats`; the least time of as many repetitions as fit the seconds.
//! `--together` leaves out the collectives one by one. The last line says the most memory the process ever had resident.

#![expect(clippy::print_stdout, reason = "the table is what one runs this for")]

use std::time::Instant;

use topology::{Collective, PlanRequest, RateModel};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut hosts, mut seconds, mut files) = (1, 1.0, Vec::new());
    let mut gpus = None;
    let mut apart = true;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("a value follows");
        match argument.as_str() {
            "--hosts" => hosts = value().parse().expect("a number of hosts"),
            "--seconds" => seconds = value().parse().expect("seconds"),
            "--together" => apart = false,
            "--gpus" => {
                gpus = Some(
                    value()
                        .split(',')
                        .map(|g| topology::GpuIndex(g.parse().expect("an index")))
                        .collect(),
                );
            }
            _ => files.push(argument),
        }
    }
    println!(
        "| machine | ranks | all | {} |",
        planner::assemble::PLANNED.map(|c| c.as_str()).join(" | ")
    );
    println!("|---|---|---|{}", "---|".repeat(planner::assemble::PLANNED.len()));
    for file in files {
        let bytes = std::fs::read(&file).expect("a readable file");
        let snapshots = topology::formats::read(&bytes).expect("a machine");
        let all: Vec<_> = (0..hosts).flat_map(|_| snapshots.clone()).collect();
        let topology = topology::lower(&all, RateModel::Effective).expect("a topology");
        let time = |collectives: Vec<Collective>| {
            let request = PlanRequest { collectives, gpus: gpus.clone(), ..PlanRequest::default() };
            let begin = Instant::now();
            let mut least = f64::INFINITY;
            let mut ranks = 0;
            while least.is_infinite() || begin.elapsed().as_secs_f64() < seconds {
                let start = Instant::now();
                let plan = planner::plan(&topology, &request);
                least = least.min(start.elapsed().as_secs_f64());
                ranks = plan.map_or(0, |plan| plan.ranks.len());
            }
            (ranks, format!("{:.2}", least * 1e3))
        };
        let (ranks, all) = time(Vec::new());
        let each: Vec<_> = planner::assemble::PLANNED
            .into_iter()
            .map(|c| if apart { time(vec![c]).1 } else { String::new() })
            .collect();
        let name = std::path::Path::new(&file)
            .file_stem()
            .map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        println!("| {name} x{hosts} | {ranks} | {all} | {} |", each.join(" | "));
    }
    // The kernel's own high-water mark; nothing else here keeps much.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for line in status.lines().filter(|line| line.starts_with("VmHWM")) {
        println!("{line}");
    }
}
