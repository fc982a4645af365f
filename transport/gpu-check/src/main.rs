//! `topod-gpu-check`: one command for a host with a GPU, some minutes, one report.
//!
//! ```text
//!   probe ──▶ what NVML says, beside nvidia-smi and the CUDA driver
//!   copies ──▶ host to device, device to host, pinned and pageable; device to device is the roof
//!   kernels ──▶ every reduction: results beside the host's arithmetic, then traffic beside the roof
//!          └──▶ JSON report, summary, and what one GPU cannot show
//! ```
//!
//! Exit codes: 0 all that ran passed; 1 something is wrong; 2 the command line is; 3 there is no GPU to check, or no driver or kernels for it.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

mod compare;
mod ffi;
mod kernels;
mod measure;
mod reference;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use crate::report::{Report, Stage};

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
    /// Seconds after which nothing new is begun
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

/// Until when stages may begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn is_over(self) -> bool {
        Instant::now() >= self.0
    }
}

fn main() -> ExitCode {
    // NVML is asked in a child of this program, which this serves where it is that child.
    if let Some(code) = daemon::probe::nvml_child::serve() {
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
    let start = Instant::now();
    let deadline = Deadline(start + Duration::from_secs(arguments.limit));
    let gpu = ffi::Gpu::open(arguments.device)?;
    let mut report = Report::new(&gpu, arguments.quick)?;
    report.stage("probe", compare::probe_stage(&gpu));
    let measured = copies(&gpu, arguments, deadline, &mut report.copies);
    report.stage("copies", measured);
    let roof = measure::roof(&report.copies);
    let module = kernels::load(&gpu, arguments.ptx.as_deref());
    match module {
        Ok((module, how)) => {
            report.kernels_from = Some(how);
            let results = kernels::results(&gpu, &module, deadline);
            report.stage("kernel results", results);
            let traffic = kernels::traffic(&gpu, &module, arguments.quick, roof, deadline);
            match traffic {
                Ok(traffic) => {
                    report.stage("kernel traffic", kernels::judged(&traffic, arguments.quick));
                    report.kernels = traffic;
                }
                Err(why) => report.stage("kernel traffic", Stage::failed(why)),
            }
            let launched = kernels::launches(&gpu, &module, &mut report.launch_microseconds);
            report.stage("kernel launches", launched);
        }
        Err(why) => {
            for name in ["kernel results", "kernel traffic", "kernel launches"] {
                report.stage(name, Stage::skipped(why.clone()));
            }
        }
    }
    // Not run by this build, and said so: what is not listed would pass for done.
    for name in ["collectives", "nccl"] {
        report.stage(name, Stage::skipped("this build does not run it".to_owned()));
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

fn copies(
    gpu: &ffi::Gpu,
    arguments: &Arguments,
    deadline: Deadline,
    into: &mut Vec<measure::Copy>,
) -> Stage {
    match measure::copies(gpu, arguments.quick, deadline) {
        Ok((copies, wrong)) => {
            *into = copies;
            if wrong.is_empty() {
                Stage::passed(format!("{} rates", into.len()))
            } else {
                Stage::wrong(wrong)
            }
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
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
