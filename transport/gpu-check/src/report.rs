//! The report: what was done, what it showed, and what it could not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;
use topology::{Collective, Protocol};

use crate::ffi::Gpu;
use crate::group::{self, Rate};
use crate::kernels::Traffic;
use crate::measure::{Copy, roof};
use crate::nccl::Compared;

/// Version of the report's keys.
const SCHEMA: u32 = 1;

/// What no run on a single GPU tells. Said in every such report, so that nobody takes one for more.
const ONE_GPU_CANNOT_SHOW: [&str; 7] = [
    "links between GPUs: NVLink, NVSwitch, PCIe peer copies, their rates and their errors",
    "IPC between different devices, and peer access",
    "how memory written by one GPU is ordered for another: LL and LL128 stay off by default",
    "GPUDirect RDMA, NICs, and anything between hosts",
    "rates of collectives over links: ranks that share a GPU share its memory and take turns on it",
    "NCCL beside the transport: it refuses two ranks on one GPU",
    "the loss of one GPU while others live",
];

/// What no run on a single host tells.
const ONE_HOST_CANNOT_SHOW: [&str; 3] = [
    "GPUDirect RDMA, NICs, and anything between hosts",
    "rates along a plan of this machine: the ranks' rings are even, in the order of CUDA's numbers",
    "the loss of one GPU while others live",
];

/// How a stage ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Passed,
    /// It ran, and what it found is wrong.
    Wrong,
    /// It did not run to its end.
    Failed,
    /// Its share of the time was over before its end; what it came to is right.
    Stopped,
    /// It was not begun, or says nothing: never a pass.
    Skipped,
}

/// One stage, and what it has to say.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stage {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    pub(crate) details: Vec<String>,
}

impl Stage {
    fn new(outcome: Outcome, details: Vec<String>) -> Self {
        Self { name: String::new(), outcome, details }
    }

    pub(crate) fn passed(what: String) -> Self {
        Self::new(Outcome::Passed, vec![what])
    }

    pub(crate) fn wrong(details: Vec<String>) -> Self {
        Self::new(Outcome::Wrong, details)
    }

    pub(crate) fn failed(why: String) -> Self {
        Self::new(Outcome::Failed, vec![why])
    }

    pub(crate) fn failed_by(causes: Vec<String>) -> Self {
        Self::new(Outcome::Failed, causes)
    }

    /// What there was no time for.
    pub(crate) fn stopped(missed: Vec<String>) -> Self {
        Self::new(Outcome::Stopped, missed)
    }

    /// It ran, and could not show what it is for.
    pub(crate) fn unshown(why: Vec<String>) -> Self {
        Self::new(Outcome::Skipped, why)
    }

    /// Wrong where anything is, else stopped where anything was missed.
    pub(crate) fn of(wrong: Vec<String>, missed: Vec<String>, passed: String) -> Self {
        match (wrong.is_empty(), missed.is_empty()) {
            (true, true) => Self::passed(passed),
            (true, false) => Self::stopped(missed),
            (false, _) => Self::wrong(wrong.into_iter().chain(missed).collect()),
        }
    }

    pub(crate) fn skipped(why: String) -> Self {
        Self::new(Outcome::Skipped, vec![why])
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema_version: u32,
    /// `topod`'s own version.
    version: &'static str,
    quick: bool,
    gpu: Described,
    pub(crate) stages: Vec<Stage>,
    pub(crate) copies: Vec<Copy>,
    pub(crate) kernels: Vec<Traffic>,
    /// `nvrtc`, or the file they were read from.
    pub(crate) kernels_from: Option<String>,
    /// From one launch to the next of a kernel that has nothing to do.
    pub(crate) launch_microseconds: Option<f64>,
    /// GPUs that ranks had; all ranks share one where there is no other.
    pub(crate) gpus: u32,
    pub(crate) collectives: Option<Collectives>,
    /// The same by messages that travel with their flags.
    pub(crate) with_flags: Vec<Flagged>,
    pub(crate) nccl: Option<Compared>,
    cannot_show: Vec<&'static str>,
    pub(crate) seconds: f64,
}

/// The transport's collectives between processes.
#[derive(Debug, Serialize)]
pub(crate) struct Collectives {
    ranks: usize,
    /// CUDA's numbers of the ranks' GPUs.
    devices: Vec<u32>,
    /// Rings of the plan, which is even: made without looking at the machine.
    channels: u32,
    /// From rank to rank, by the way that bytes take.
    ways: BTreeMap<String, usize>,
    /// Why not straight into the other's memory.
    why: BTreeSet<String>,
    elements_checked: u64,
    rates: Vec<Rate>,
}

impl Collectives {
    pub(crate) fn new(devices: &[u32], outcome: &group::Outcome) -> Self {
        let shared = devices.windows(2).all(|pair| pair[0] == pair[1]);
        Self {
            ranks: devices.len(),
            devices: devices.to_vec(),
            channels: group::channels(shared),
            ways: outcome.ways.clone(),
            why: outcome.why.clone(),
            elements_checked: outcome.checked,
            rates: outcome.rates.clone(),
        }
    }

    pub(crate) fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// A line for each rate.
    fn lines(&self) -> impl Iterator<Item = String> {
        self.rates.iter().map(|rate| {
            format!(
                "{:<14} {:>10} bytes {:>10.1} us {:>8.2} GB/s algbw {:>8.2} GB/s busbw",
                rate.collective.as_str(),
                rate.bytes,
                rate.median_microseconds,
                rate.algbw_gb_per_s,
                rate.busbw_gb_per_s
            )
        })
    }
}

/// Collectives by messages that travel with their flags, beside those by copies.
#[derive(Debug, Serialize)]
pub(crate) struct Flagged {
    protocol: Protocol,
    elements_checked: u64,
    /// Operations of all ranks.
    by_protocol: BTreeMap<Protocol, u64>,
    /// Why some went by copies.
    by_copies: BTreeSet<String>,
    rates: Vec<Rate>,
    /// Where both were measured.
    beside_copies: Vec<BesideCopies>,
}

#[derive(Debug, Serialize)]
struct BesideCopies {
    collective: Collective,
    bytes: usize,
    microseconds: f64,
    microseconds_by_copies: f64,
}

impl Flagged {
    pub(crate) fn new(protocol: Protocol, outcome: &group::Outcome, copies: &[Rate]) -> Self {
        let pair = |rate: &Rate| {
            let same =
                |other: &&Rate| (other.collective, other.bytes) == (rate.collective, rate.bytes);
            Some(BesideCopies {
                collective: rate.collective,
                bytes: rate.bytes,
                microseconds: rate.median_microseconds,
                microseconds_by_copies: copies.iter().find(same)?.median_microseconds,
            })
        };
        Self {
            protocol,
            elements_checked: outcome.checked,
            by_protocol: outcome.by_protocol.clone(),
            by_copies: outcome.by_copies.clone(),
            rates: outcome.rates.clone(),
            beside_copies: outcome.rates.iter().filter_map(pair).collect(),
        }
    }

    /// A line for each time.
    fn lines(&self) -> impl Iterator<Item = String> {
        self.beside_copies.iter().map(|beside| {
            format!(
                "{:<14} {:>10} bytes {:>10.1} us by {}, {:>10.1} us by copies",
                beside.collective.as_str(),
                beside.bytes,
                beside.microseconds,
                self.protocol,
                beside.microseconds_by_copies
            )
        })
    }
}

/// The GPU, as the CUDA driver tells.
#[derive(Debug, Serialize)]
struct Described {
    name: String,
    bus_id: String,
    uuid: String,
    /// Times ten, as in 90.
    compute_capability: u32,
    memory_bytes: u64,
    multiprocessors: u32,
    /// As in 12090.
    driver_version: i32,
}

impl Report {
    pub(crate) fn new(gpu: &Gpu, gpus: u32, quick: bool) -> Result<Self, String> {
        let gpu = Described {
            name: gpu.name()?,
            bus_id: gpu.bus_id()?,
            uuid: gpu.uuid()?,
            compute_capability: gpu.capability(),
            memory_bytes: gpu.memory_bytes()?,
            multiprocessors: gpu.multiprocessors(),
            driver_version: gpu.driver_version()?,
        };
        Ok(Self {
            schema_version: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            quick,
            gpu,
            stages: Vec::new(),
            copies: Vec::new(),
            kernels: Vec::new(),
            kernels_from: None,
            launch_microseconds: None,
            gpus,
            collectives: None,
            with_flags: Vec::new(),
            nccl: None,
            cannot_show: if gpus > 1 {
                ONE_HOST_CANNOT_SHOW.to_vec()
            } else {
                ONE_GPU_CANNOT_SHOW.to_vec()
            },
            seconds: 0.0,
        })
    }

    pub(crate) fn stage(&mut self, name: &str, stage: Stage) {
        self.stages.push(Stage { name: name.to_owned(), ..stage });
    }

    /// Whether nothing that ran was wrong. What was skipped is no fault, and no proof.
    pub(crate) fn is_good(&self) -> bool {
        let bad = |stage: &Stage| matches!(stage.outcome, Outcome::Wrong | Outcome::Failed);
        !self.stages.iter().any(bad)
    }

    /// Whether nothing was left out for want of time.
    pub(crate) fn is_whole(&self) -> bool {
        !self.stages.iter().any(|stage| stage.outcome == Outcome::Stopped)
    }

    pub(crate) fn json(&self) -> String {
        // Numbers and texts alone cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    pub(crate) fn summary(&self) -> String {
        let mut text = String::new();
        let gpu = &self.gpu;
        let _ = writeln!(
            text,
            "{} at {}, compute capability {}.{}, driver for CUDA {}.{}",
            gpu.name,
            gpu.bus_id,
            gpu.compute_capability / 10,
            gpu.compute_capability % 10,
            gpu.driver_version / 1000,
            gpu.driver_version % 1000 / 10
        );
        for stage in &self.stages {
            let word = match stage.outcome {
                Outcome::Passed => "passed",
                Outcome::Wrong => "WRONG",
                Outcome::Failed => "FAILED",
                Outcome::Stopped => "stopped: no time",
                Outcome::Skipped => "skipped",
            };
            let _ = writeln!(text, "{:<22} {word}", stage.name);
            for detail in stage.details.iter().take(8) {
                let _ = writeln!(text, "                       {detail}");
            }
            if stage.details.len() > 8 {
                let _ = writeln!(
                    text,
                    "                       and {} more in the report",
                    stage.details.len() - 8
                );
            }
        }
        if let Some(roof) = roof(&self.copies) {
            let _ = writeln!(
                text,
                "device to device: {roof:.1} GB/s of traffic, the roof of a reduction"
            );
        }
        if let Some(collectives) = &self.collectives {
            let of = if self.gpus > 1 { "a GPU each" } else { "one GPU for all" };
            let _ = writeln!(text, "collectives of {} ranks, {of}:", collectives.ranks);
            collectives.lines().for_each(|line| {
                let _ = writeln!(text, "  {line}");
            });
        }
        self.with_flags.iter().flat_map(Flagged::lines).for_each(|line| {
            let _ = writeln!(text, "  {line}");
        });
        if let Some(compared) = &self.nccl {
            compared.lines().for_each(|line| {
                let _ = writeln!(text, "  {line}");
            });
        }
        if self.quick {
            let _ = writeln!(text, "--quick: the rates are of small sizes and say nothing");
        }
        let what = if self.gpus > 1 { "One host" } else { "One GPU" };
        let _ = writeln!(text, "{:.0} s. {what} does not show:", self.seconds);
        for what in &self.cannot_show {
            let _ = writeln!(text, "  - {what}");
        }
        text
    }
}
