//! `topod-gpu-check`: one command for a host with a GPU, some minutes, one report.
//!
//! ```text
//!   probe ──▶ what NVML says, beside nvidia-smi and the CUDA driver
//!   copies ──▶ host to device, device to host, pinned and pageable; device to device is the roof
//!   kernels ──▶ every reduction: results beside the host's arithmetic, then traffic beside the roof
//!   collectives ──▶ ranks as processes, on one GPU or a GPU each: every element checked, then rates; NCCL beside them where it is
//!   LL, LL128 ──▶ the same by messages that travel with their flags: every element checked, then times beside those of copies
//!          └──▶ JSON report, summary, and what this could not show
//! ```
//!
//! Exit codes: 0 all that ran passed; 1 something is wrong; 2 the command line is; 3 there is no GPU to check, or no driver or kernels for it;
//! 4 what ran passed, and the time was over before the end.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

mod budget;
mod command;
mod compare;
mod ffi;
mod folder;
mod group;
mod kernels;
mod measure;
mod nccl;
mod reference;
mod report;
mod smi_text;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use topology::Protocol;

use crate::budget::{Budget, Deadline};
use crate::folder::Folder;
use crate::group::{Part, Shares, Work};
use crate::report::{Collectives, Flagged, Report, Stage};

/// Checks the transport's kernels and the probe on one GPU, and measures them.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Arguments {
    /// CUDA's number of the GPU
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "topod-gpu-check.json")]
    json: PathBuf,
    /// Ranks that share the GPU in collectives, where there is only one; where there are several, each has a rank
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    ranks: u32,
    /// Seconds after which nothing new is begun; each stage has its share of them
    #[arg(long, default_value_t = 420, value_name = "SECONDS")]
    limit: u64,
    /// Small sizes and few repetitions: checks results, measures nothing to rely on
    #[arg(long)]
    quick: bool,
    /// Kernels that were compiled elsewhere, by --compile, for a host without NVRTC
    #[arg(long, value_name = "FILE")]
    ptx: Option<PathBuf>,
    /// Only compile the kernels for a compute capability (as 90) into --ptx's FILE; needs NVRTC, no GPU
    #[arg(long, value_name = "CAPABILITY", requires = "ptx")]
    compile: Option<u32>,
}

/// Where each stage's share of the time ends, in hundredths of it.
mod share {
    pub(crate) const PROBE: u32 = 10;
    pub(crate) const COPIES: u32 = 25;
    pub(crate) const RESULTS: u32 = 40;
    pub(crate) const TRAFFIC: u32 = 55;
    pub(crate) const COLLECTIVES_CHECKED: u32 = 75;
    pub(crate) const COLLECTIVES: u32 = 86;
    pub(crate) const LL: u32 = 91;
    pub(crate) const LL128: u32 = 96;
    pub(crate) const NCCL: u32 = 100;
}

fn main() -> ExitCode {
    // NVML is asked in a child of this program, which this serves where it is that child.
    if let Some(code) = daemon::probe::nvml_child::serve() {
        return code;
    }
    // So are ranks of the collectives.
    if let Some(code) = group::serve() {
        return code;
    }
    let arguments = Arguments::parse();
    if let (Some(capability), Some(file)) = (arguments.compile, &arguments.ptx) {
        return compile(capability, file);
    }
    match check(&arguments) {
        Ok(report) => finish(&arguments, &report),
        Err(why) => {
            eprintln!("topod-gpu-check: {why}");
            println!(
                "Nothing was checked. On a host with an NVIDIA GPU and its driver, run this again."
            );
            ExitCode::from(3)
        }
    }
}

fn compile(capability: u32, file: &std::path::Path) -> ExitCode {
    let compiled = transport_cuda::compile(capability).map_err(|error| error.to_string());
    let written = compiled.and_then(|ptx| {
        std::fs::write(file, ptx.to_src()).map_err(|error| format!("{}: {error}", file.display()))
    });
    match written {
        Ok(()) => {
            println!("kernels for compute capability {capability} and later: {}", file.display());
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("topod-gpu-check: {why}");
            ExitCode::from(3)
        }
    }
}

/// Everything; an error only where nothing can be checked at all.
fn check(arguments: &Arguments) -> Result<Report, String> {
    let budget = Budget::new(Duration::from_secs(arguments.limit));
    let gpu = ffi::Gpu::open(arguments.device)?;
    let gpus = ffi::Gpu::count()?;
    let folder = Folder::new()?;
    let mut report = Report::new(&gpu, gpus, arguments.quick)?;
    let probed = compare::probe_stage(&gpu, &folder, budget.until(share::PROBE));
    report.stage("probe", probed);
    let deadline = budget.until(share::COPIES);
    let measured = copies(&gpu, arguments, deadline, &mut report.copies);
    report.stage("copies", measured);
    let roof = measure::roof(&report.copies);
    let missing = match kernels::load(&gpu, arguments.ptx.as_deref()) {
        Ok((module, how)) => {
            report.kernels_from = Some(how);
            let results = kernels::results(&gpu, &module, budget.until(share::RESULTS));
            report.stage("kernel results", results);
            let deadline = budget.until(share::TRAFFIC);
            let traffic = kernels::traffic(&gpu, &module, arguments.quick, roof, deadline);
            match traffic {
                Ok(traffic) => {
                    let judged = kernels::judged(&traffic, arguments.quick, deadline);
                    report.stage("kernel traffic", judged);
                    report.kernels = traffic;
                }
                Err(why) => report.stage("kernel traffic", Stage::failed(why)),
            }
            let launched = kernels::launches(&gpu, &module, &mut report.launch_microseconds);
            report.stage("kernel launches", launched);
            None
        }
        Err(why) => {
            for name in ["kernel results", "kernel traffic", "kernel launches"] {
                report.stage(name, Stage::skipped(why.clone()));
            }
            Some(why)
        }
    };
    // The ranks have it from here on: it may be one that serves a single process.
    drop(gpu);
    match missing {
        None => between_ranks(arguments, budget, &mut report),
        Some(why) => {
            for name in BETWEEN_RANKS {
                report.stage(name, Stage::skipped(why.clone()));
            }
        }
    }
    report.seconds = budget.spent().as_secs_f64();
    Ok(report)
}

/// The stages that ranks are for.
const BETWEEN_RANKS: [&str; 5] =
    ["collectives", "memory between ranks", "collectives by LL", "collectives by LL128", "nccl"];

/// Collectives of the transport and of NCCL between processes.
fn between_ranks(arguments: &Arguments, budget: Budget, report: &mut Report) {
    let devices = group::devices(arguments.device, report.gpus, arguments.ranks);
    let shares = |check, all| Shares { check: budget.until(check), all: budget.until(all) };
    let part = Part {
        work: Work::Collectives,
        rank: 0,
        ranks: 0,
        device: 0,
        shared: false,
        folder: PathBuf::new(),
        ptx: arguments.ptx.clone(),
        quick: arguments.quick,
        protocol: None,
        check: Duration::ZERO,
        all: Duration::ZERO,
    };
    let of_collectives = shares(share::COLLECTIVES_CHECKED, share::COLLECTIVES);
    if of_collectives.all.is_over() {
        for name in BETWEEN_RANKS {
            report.stage(name, Stage::stopped(vec!["it was not begun: no time".to_owned()]));
        }
        return;
    }
    match group::run(&part, &devices, of_collectives) {
        Ok(outcome) => {
            let passed = format!(
                "{} elements as they must be, on {} ranks; {} rates",
                outcome.checked,
                devices.len(),
                outcome.rates.len()
            );
            report.stage("collectives", outcome.stage(passed));
            report.stage("memory between ranks", outcome.reach());
            report.collectives = Some(Collectives::new(&devices, &outcome));
        }
        Err(why) => {
            report.stage("collectives", Stage::failed(why.clone()));
            report.stage("memory between ranks", Stage::skipped(why));
        }
    }
    for (protocol, until) in [(Protocol::Ll, share::LL), (Protocol::Ll128, share::LL128)] {
        let part = Part { protocol: Some(protocol), ..part.clone() };
        by_protocol(&part, protocol, &devices, shares(until, until), report);
    }
    let ours = report.collectives.as_ref().map(Collectives::rates).unwrap_or_default();
    let of_nccl = shares(share::NCCL, share::NCCL);
    let stage = nccl::stage((&part, of_nccl), &devices, ours, &mut report.nccl);
    report.stage("nccl", stage);
}

/// Collectives by messages that travel with their flags.
fn by_protocol(
    part: &Part,
    protocol: Protocol,
    devices: &[u32],
    shares: Shares,
    report: &mut Report,
) {
    let name = format!("collectives by {}", protocol.as_str().to_uppercase());
    if shares.all.is_over() {
        report.stage(&name, Stage::stopped(vec!["it was not begun: no time".to_owned()]));
        return;
    }
    match group::run(part, devices, shares) {
        Ok(outcome) => {
            report.stage(&name, outcome.by(protocol));
            let copies = report.collectives.as_ref().map(Collectives::rates).unwrap_or_default();
            let flagged = Flagged::new(protocol, &outcome, copies);
            report.with_flags.push(flagged);
        }
        Err(why) => report.stage(&name, Stage::failed(why)),
    }
}

fn copies(
    gpu: &ffi::Gpu,
    arguments: &Arguments,
    deadline: Deadline,
    into: &mut Vec<measure::Copy>,
) -> Stage {
    match measure::copies(gpu, arguments.quick, deadline) {
        Ok(measured) => {
            *into = measured.copies;
            Stage::of(measured.wrong, measured.missed, format!("{} rates", into.len()))
        }
        Err(why) => Stage::failed(why),
    }
}

fn finish(arguments: &Arguments, report: &Report) -> ExitCode {
    print!("{}", report.summary());
    let text = report.json();
    if let Err(error) = std::fs::write(&arguments.json, text) {
        eprintln!("topod-gpu-check: {}: {error}", arguments.json.display());
        return ExitCode::from(2);
    }
    println!("report: {}", arguments.json.display());
    match (report.is_good(), report.is_whole()) {
        (false, _) => ExitCode::FAILURE,
        (true, false) => ExitCode::from(4),
        (true, true) => ExitCode::SUCCESS,
    }
}
