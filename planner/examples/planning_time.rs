//! How long planning takes, how much memory it needs, and how near the bound it comes.
//!
//! ```text
//! cargo run --release -p planner --example planning_time -- [OPTIONS] [MACHINE...]
//!
//!   MACHINE         a file of any format, or the name of one in tests/fixtures/machines or in the corpus (TOPOD_CORPUS);
//!                   A*2 is two such hosts, A+B are hosts that differ; nvswitch8 is so many GPUs on one switch, nvl72 on 18 planes,
//!                   torus16 a square of direct links
//!   --growth        machines of growing size
//!   --collectives   a row for each collective too: what is reached, and by what
//!   --stages        a row for each stage too
//!   --gpus 0,1,2    only these GPUs of each host
//!   --seconds S     as many plans as fit; without it one
//! ```
//!
//! One thread, Markdown: the time of the fastest plan as it passed, and the mean of what the kernel counts as computed, which a busy
//! machine spoils less but which may come in ticks of some milliseconds. Every machine is planned in a process of its own, so that the most
//! memory ever resident (`VmHWM`) is its own; a process that plans nothing has about 3 MB.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use planner::PlanError;
use planner::assemble::PLANNED;
use planner::composed::{Composed, Composer};
use planner::concurrent_flow::ConcurrentFlow;
use planner::forest::{self, ForestOptions};
use planner::model::Model;
use planner::rings::{self, RingOptions};
use planner::{bound, concurrent_flow, weighted};
use topology::{
    Collective, Fraction, GpuIndex, Plan, PlanRequest, RateModel, Snapshot, Topology, formats,
    lower,
};

/// Those the project has aims for: 8 GPUs, 16 directly linked, two hosts of 8, a rack.
const USUAL: [&str; 9] = [
    "dgx1v",
    "dgx_h100",
    "mi300x",
    "pcie_switches",
    "torus16",
    "dgx1v*2",
    "dgx_a100*2",
    "dgx_h100*2",
    "nvl72",
];

const GROWING: [&str; 22] = [
    "nvswitch2",
    "nvswitch4",
    "nvswitch8",
    "nvswitch16",
    "nvswitch36",
    "nvswitch72",
    "nvl36",
    "nvl72",
    "torus4",
    "torus9",
    "torus16",
    "torus25",
    "torus36",
    "dgx1v",
    "dgx1v*2",
    "dgx1v*4",
    "dgx1v*8",
    "dgx_h100",
    "dgx_h100*2",
    "dgx_h100*3",
    "dgx_h100*4",
    "dgx_h100*8",
];

#[derive(Default)]
struct Options {
    machines: Vec<String>,
    gpus: Option<Vec<GpuIndex>>,
    seconds: f64,
    collectives: bool,
    stages: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = match Options::read(&arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("planning_time: {error}");
            return ExitCode::from(2);
        }
    };
    // What this program gives itself: one machine, and no heading.
    if let [row, ..] = arguments.as_slice()
        && row == "--row"
    {
        return match rows(&options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("planning_time: {}: {error}", options.machines.join(" "));
                ExitCode::FAILURE
            }
        };
    }
    println!(
        "| machine | ranks | what | ms | CPU ms | peak MB | GB/s | of the bound | by | height | channels |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    if let [_] = options.machines.as_slice() {
        return match rows(&options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("planning_time: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let of_rows = |a: &&String| !options.machines.contains(*a) && *a != "--growth";
    let flags: Vec<&String> = arguments.iter().filter(of_rows).collect();
    let mut failed = false;
    for machine in &options.machines {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("planning_time"));
        let ran = Command::new(program).arg("--row").args(&flags).arg(machine).status();
        failed |= !ran.is_ok_and(|status| status.success());
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--row" => {}
                "--growth" => options.machines.extend(GROWING.map(str::to_owned)),
                "--collectives" => options.collectives = true,
                "--stages" => options.stages = true,
                "--seconds" => {
                    let value = value()?;
                    options.seconds =
                        value.parse().map_err(|_| format!("{value} are no seconds"))?;
                }
                "--gpus" => {
                    let index = |text: &str| {
                        text.parse().map(GpuIndex).map_err(|_| format!("{text} is no GPU"))
                    };
                    options.gpus = Some(value()?.split(',').map(index).collect::<Result<_, _>>()?);
                }
                flag if flag.starts_with("--") => return Err(format!("{flag} is not known")),
                machine => options.machines.push(machine.to_owned()),
            }
        }
        if options.machines.is_empty() {
            options.machines.extend(USUAL.map(str::to_owned));
        }
        Ok(options)
    }

    fn request(&self, collectives: Vec<Collective>) -> PlanRequest {
        PlanRequest { collectives, gpus: self.gpus.clone(), ..PlanRequest::default() }
    }

    /// The plan, and how long it took: the two columns of time.
    fn plan(
        &self,
        topology: &Topology,
        collectives: Vec<Collective>,
    ) -> (Result<Plan, PlanError>, String) {
        let request = self.request(collectives);
        let (begin, computed) = (Instant::now(), computed_ms());
        let (mut least, mut plans) = (f64::INFINITY, 0.0);
        loop {
            let start = Instant::now();
            let plan = planner::plan(topology, &request);
            least = least.min(passed_ms(start));
            plans += 1.0;
            if begin.elapsed().as_secs_f64() >= self.seconds {
                let computed = (computed_ms() - computed) / plans;
                return (plan, format!("{least:.2} | {computed:.2}"));
            }
        }
    }
}

/// The rows of one machine.
fn rows(options: &Options) -> Result<(), String> {
    let machine = options.machines.first().map_or("", String::as_str);
    let topology = topology(machine)?;
    let (plan, ms) = options.plan(&topology, Vec::new());
    let plan = plan.map_err(|error| error.to_string())?;
    let ranks = plan.ranks.len();
    println!("| {machine} | {ranks} | all | {ms} | {:.1} | | | | | |", peak_mb());
    if options.collectives {
        for collective in PLANNED {
            let (plan, ms) = options.plan(&topology, vec![collective]);
            let reached = plan.map_or_else(|e| format!("{e} | | | |"), |p| reached(&p, collective));
            println!("| {machine} | {ranks} | {collective} | {ms} | | {reached} |");
        }
    }
    if options.stages {
        stages(machine, &topology, &options.request(Vec::new()))?;
    }
    Ok(())
}

/// Rate, part of the bound, algorithm, height and channels of the best.
fn reached(plan: &Plan, collective: Collective) -> String {
    let entry = plan.collectives.get(&collective);
    let best = entry.and_then(|entry| entry.best.as_ref().or_else(|| entry.candidates.first()));
    let (Some(entry), Some(best)) = (entry, best) else { return "| | | |".into() };
    let bound = entry.bound.as_ref();
    let of_bound = bound.map_or(f64::NAN, |b| 100.0 * (best.algbw_gbps / b.algbw_gbps).to_f64());
    let (rate, by) = (best.algbw_gbps.to_f64(), best.algorithm);
    format!("{rate:.2} | {of_bound:.2} % | {by} | {} | {}", best.height, best.channels)
}

fn topology(machine: &str) -> Result<Topology, String> {
    let mut hosts: Vec<Snapshot> = Vec::new();
    for part in machine.split('+') {
        let (name, copies) = part.split_once('*').unwrap_or((part, "1"));
        let copies: usize = copies.parse().map_err(|_| format!("{copies} is not a number"))?;
        let read = host(name)?;
        hosts.extend((0..copies).flat_map(|_| read.iter().cloned()));
    }
    lower(&hosts, RateModel::Effective).map_err(|error| error.to_string())
}

fn host(name: &str) -> Result<Vec<Snapshot>, String> {
    let made = ["nvswitch", "nvl", "torus"].into_iter().find_map(|kind| {
        let gpus: usize = name.strip_prefix(kind)?.parse().ok()?;
        Some(match kind {
            "nvswitch" => switched(gpus, 1, 450),
            "nvl" => switched(gpus, 18, 50),
            _ => torus(gpus.isqrt()),
        })
    });
    let bytes = match made {
        Some(text) => text.into_bytes(),
        None => {
            let path = file(name)?;
            std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?
        }
    };
    formats::read(&bytes).map_err(|error| error.to_string())
}

fn file(name: &str) -> Result<PathBuf, String> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let corpus = std::env::var_os("TOPOD_CORPUS")
        .map_or_else(|| here.join("../../shared/corpus"), PathBuf::from)
        .join("nccl-model");
    let fixtures = here.join("../tests/fixtures/machines");
    let places = [
        PathBuf::from(name),
        fixtures.join(format!("{name}.json")),
        corpus.join(name),
        corpus.join(format!("{name}.xml")),
    ];
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| "no such machine".into())
}

/// GPUs with a link of so many GB/s to each of the switches.
fn switched(gpus: usize, switches: usize, gbps: u32) -> String {
    let links = (0..gpus).flat_map(|gpu| {
        (0..switches).map(move |switch| (format!("gpu{gpu}"), format!("switch{switch}"), gbps))
    });
    link_graph(gpus, switches, links)
}

/// A square of direct links, each row and column closed.
fn torus(side: usize) -> String {
    let links = (0..side * side).flat_map(|v| {
        let (row, column) = (v / side, v % side);
        let next = [row * side + (column + 1) % side, (row + 1) % side * side + column];
        next.map(|to| (format!("gpu{v}"), format!("gpu{to}"), 50))
    });
    link_graph(side * side, 0, links)
}

fn link_graph(
    gpus: usize,
    switches: usize,
    links: impl Iterator<Item = (String, String, u32)>,
) -> String {
    let list = |prefix: &str, n: usize| -> String {
        let names: Vec<String> = (0..n).map(|i| format!("\"{prefix}{i}\"")).collect();
        names.join(",")
    };
    let links: Vec<String> = links
        .map(|(a, b, gbps)| format!("[\"{a}\",\"{b}\",{gbps}],[\"{b}\",\"{a}\",{gbps}]"))
        .collect();
    format!(
        "{{\"schema_version\":1,\"gpus\":[{}],\"switches\":[{}],\"links\":[{}]}}",
        list("gpu", gpus),
        list("switch", switches),
        links.join(",")
    )
}

fn passed_ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// What this thread has computed so far; NaN where the kernel does not tell.
fn computed_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok());
    ns.map_or(f64::NAN, |ns| ns / 1e6)
}

/// The most memory this process ever had resident; NaN where the kernel does not tell.
fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| kib * 1024.0 / 1e6)
}

fn stages(machine: &str, topology: &Topology, request: &PlanRequest) -> Result<(), String> {
    let timed = |what: &str, work: &mut dyn FnMut() -> String| {
        let start = Instant::now();
        let said = work();
        let ms = passed_ms(start);
        println!("| {machine} | | stage: {what} | {ms:.2} | | | {said} | | | | |");
    };
    let mut model = Model::new(topology, request);
    timed("model", &mut || {
        model = Model::new(topology, request);
        String::new()
    });
    let model = model.map_err(|error| error.to_string())?;
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
                    let (rate, bound) = (gbps(forest.algbw), gbps(c.ceiling));
                    let (height, trees) = (forest.height(), forest.channels());
                    format!("{rate} of {bound}, height {height}, {trees} trees a root")
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
        Ok(f) => {
            let (height, trees) = (f.spread.height(), f.spread.trees.len());
            format!("{}, height {height}, {trees} trees", gbps(f.algbw))
        }
        Err(error) => error.to_string(),
    });
    Ok(())
}
