//! How long planning takes and how near the bound it gets, by collective.
//!
//! ```text
//! cargo run --release -p planner --example plan_times                        # pairs of hosts, and NVL72
//! cargo run --release -p planner --example plan_times -- dgx2.xml*2 nvl72    # these
//! cargo run --release -p planner --example plan_times -- --stages dgx2.xml   # and what each stage takes
//! ```
//!
//! A machine is a file of the corpus (`TOPOD_CORPUS`), `*N` for so many equal hosts, `a+b` for hosts that differ, or
//! `nvl72`, `nvl36`: one host of so many GPUs on 18 switch planes. One thread, one run each, time computed rather than passed;
//! prints Markdown.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use planner::assemble::PLANNED;
use planner::composed::{Composed, Composer};
use planner::concurrent_flow::ConcurrentFlow;
use planner::forest::{self, ForestOptions};
use planner::model::Model;
use planner::rings::{self, RingOptions};
use planner::{bound, concurrent_flow, weighted};
use topology::plan::PlanRequest;
use topology::{Collective, Fraction, RateModel, Snapshot, Topology, formats, lower};

/// Whole machines in pairs, as people rent them.
const USUAL: [&str; 12] = [
    "dgx1p.xml*2",
    "dgx1v.xml*2",
    "dgx2.xml*2",
    "dgx_a100_8nic.xml*2",
    "dgx_a100_deg_g3_nv6.xml*2",
    "dgx_a100_nic2_x8.xml*2",
    "dgx_h100_8nic.xml*2",
    "dgx_b200_8nic.xml*2",
    "rccl_8p6l_4nic.xml*2",
    "rccl_8p6l_6nic.xml*2",
    "rccl_8p_940.xml*2",
    "nvl72",
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let stages = arguments.iter().any(|a| a == "--stages");
    let named: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|a| !a.starts_with("--")).collect();
    let machines = if named.is_empty() { USUAL.to_vec() } else { named };
    println!("| machine | ranks | what | ms | GB/s | of the bound | by | height | channels |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut failed = false;
    for machine in machines {
        match topology(machine) {
            Ok(topology) => {
                if stages {
                    stages_of(machine, &topology);
                }
                plans(machine, &topology);
            }
            Err(error) => {
                eprintln!("plan_times: {machine}: {error}");
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn topology(machine: &str) -> Result<Topology, String> {
    let mut hosts: Vec<Snapshot> = Vec::new();
    for part in machine.split('+') {
        let (name, copies) = part.split_once('*').unwrap_or((part, "1"));
        let copies: usize = copies.parse().map_err(|_| format!("{copies} is not a number"))?;
        let read = host(name)?;
        for _ in 0..copies {
            hosts.extend(read.iter().cloned());
        }
    }
    lower(&hosts, RateModel::Effective).map_err(|error| error.to_string())
}

fn host(name: &str) -> Result<Vec<Snapshot>, String> {
    let bytes = if let Some(gpus) = name.strip_prefix("nvl") {
        let gpus: usize = gpus.parse().map_err(|_| format!("{name}: how many GPUs?"))?;
        rack(gpus).into_bytes()
    } else {
        let folder = std::env::var_os("TOPOD_CORPUS").map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpus"),
            PathBuf::from,
        );
        let path = folder.join("nccl-model").join(name);
        std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?
    };
    formats::read(&bytes).map_err(|error| error.to_string())
}

/// A link graph of one NVLink domain: every GPU has one link of 50 GB/s to each of 18 switch planes.
fn rack(gpus: usize) -> String {
    let list = |prefix: &str, n: usize| -> Vec<String> {
        (0..n).map(|i| format!("\"{prefix}{i}\"")).collect()
    };
    let mut links = Vec::new();
    for gpu in list("gpu", gpus) {
        for plane in list("nvs", 18) {
            links.push(format!("[{gpu},{plane},50]"));
            links.push(format!("[{plane},{gpu},50]"));
        }
    }
    format!(
        "{{\"schema_version\":1,\"gpus\":[{}],\"switches\":[{}],\"links\":[{}]}}",
        list("gpu", gpus).join(","),
        list("nvs", 18).join(","),
        links.join(",")
    )
}

/// Time this thread computes, where the kernel tells, so that a busy machine does not spoil the figures; else time that passes.
struct Clock {
    start: Instant,
    computed: Option<u64>,
}

impl Clock {
    fn start() -> Self {
        Self { start: Instant::now(), computed: computed_ns() }
    }

    fn ms(&self) -> f64 {
        match (self.computed, computed_ns()) {
            (Some(from), Some(to)) => {
                Duration::from_nanos(to.saturating_sub(from)).as_secs_f64() * 1e3
            }
            _ => self.start.elapsed().as_secs_f64() * 1e3,
        }
    }
}

fn computed_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn plans(machine: &str, topology: &Topology) {
    let mut requests: Vec<(String, Vec<Collective>)> =
        PLANNED.iter().map(|c| (c.to_string(), vec![*c])).collect();
    requests.push((
        "all-gather, all-reduce".into(),
        vec![Collective::AllGather, Collective::AllReduce],
    ));
    requests.push(("all of them".into(), PLANNED.to_vec()));
    for (what, collectives) in requests {
        let request = PlanRequest { collectives: collectives.clone(), ..PlanRequest::default() };
        let start = Clock::start();
        let plan = planner::plan(topology, &request);
        let ms = start.ms();
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                println!("| {machine} | | {what} | {ms:.1} | {error} | | | | |");
                continue;
            }
        };
        let ranks = plan.ranks.len();
        let entry = match collectives.as_slice() {
            [only] => plan.collectives.get(only),
            _ => None,
        };
        let candidate =
            entry.and_then(|entry| entry.best.as_ref().or_else(|| entry.candidates.first()));
        let (Some(entry), Some(best)) = (entry, candidate) else {
            println!("| {machine} | {ranks} | {what} | {ms:.1} | | | | | |");
            continue;
        };
        let of_bound = entry
            .bound
            .as_ref()
            .map_or(f64::NAN, |bound| 100.0 * (best.algbw_gbps / bound.algbw_gbps).to_f64());
        println!(
            "| {machine} | {ranks} | {what} | {ms:.1} | {:.2} | {of_bound:.2} % | {} | {} | {} |",
            best.algbw_gbps.to_f64(),
            best.algorithm,
            best.height,
            best.channels,
        );
    }
}

fn stages_of(machine: &str, topology: &Topology) {
    let timed = |what: &str, work: &mut dyn FnMut() -> String| {
        let start = Clock::start();
        let said = work();
        let ms = start.ms();
        println!("| {machine} | | stage: {what} | {ms:.1} | {said} | | | | |");
    };
    let mut model = None;
    timed("model", &mut || match Model::new(topology, &PlanRequest::default()) {
        Ok(made) => {
            let said = format!("{} nodes, {} edges", made.graph.nodes, made.graph.edges.len());
            model = Some(made);
            said
        }
        Err(error) => error.to_string(),
    });
    let Some(model) = model else { return };
    let graph = &model.graph;
    let gbps = |kbps: Fraction| format!("{:.2} GB/s", kbps.to_f64() / 1e6);
    let options = ForestOptions::default();
    timed("bound all-gather", &mut || {
        bound::all_gather(graph).map_or_else(|e| e.to_string(), |b| gbps(b.algbw))
    });
    timed("bound all-reduce", &mut || {
        bound::all_reduce(graph).map_or_else(|e| e.to_string(), |b| gbps(b.algbw))
    });
    timed("bound all-to-all", &mut || {
        concurrent_flow::all_to_all(graph).map_or_else(|e| e.to_string(), |b| gbps(b.algbw))
    });
    let mut composer = None;
    timed("symmetry", &mut || {
        let made = Composer::new(model.network());
        let said = format!("{} renamings", made.order());
        composer = Some(made);
        said
    });
    if let Some(composer) = &composer {
        let said = |found: Option<Composed>| {
            found.map_or_else(
                || "none".into(),
                |c| {
                    let forest = &c.forest;
                    let bound = gbps(c.ceiling);
                    let (height, trees) = (forest.height(), forest.channels());
                    format!(
                        "{} of {bound}, height {height}, {trees} trees a root",
                        gbps(forest.algbw)
                    )
                },
            )
        };
        timed("composed all-gather", &mut || said(composer.all_gather()));
        timed("composed reduce-scatter", &mut || said(composer.reduce_scatter()));
        timed("composed all-reduce", &mut || {
            let most = bound::all_reduce(model.bound_graph()).ok();
            said(most.and_then(|most| composer.all_reduce(most.algbw)))
        });
    }
    timed("rings", &mut || {
        let packing = rings::pack(graph, &RingOptions::new(model.hosts.clone()));
        format!("{}, {} steps", gbps(packing.total), packing.steps)
    });
    timed("ways of all-to-all", &mut || {
        let said = |f: ConcurrentFlow| {
            let ways: usize = f.pairs.iter().map(|pair| pair.ways.len()).sum();
            format!("{} of {}, {ways} ways", gbps(f.algbw), gbps(f.bound.algbw))
        };
        concurrent_flow::solve(&model.network()).map_or_else(|e| e.to_string(), said)
    });
    let forest = |f: Result<forest::Forest, forest::ForestError>| match f {
        Ok(f) => format!("{}, height {}, {} trees", gbps(f.algbw), f.height(), f.trees.len()),
        Err(error) => error.to_string(),
    };
    timed("forest all-gather", &mut || forest(forest::all_gather(graph, &options)));
    timed("forest broadcast", &mut || forest(forest::broadcast(graph, 0, &options)));
    timed("forest all-reduce", &mut || match weighted::all_reduce(graph, &options) {
        Ok(f) => format!(
            "{}, height {}, {} trees",
            gbps(f.algbw),
            f.spread.height(),
            f.spread.trees.len()
        ),
        Err(error) => error.to_string(),
    });
}
