//! The report: what was done, what it showed, and what it could not.

use std::fmt::Write as _;

use serde::Serialize;

use crate::ffi::Gpu;
use crate::kernels::Traffic;
use crate::measure::{Copy, roof};

/// Version of the report's keys.
const SCHEMA: u32 = 1;

/// What no run on a single GPU tells. Said in every report, so that nobody takes one for more.
const CANNOT_SHOW: [&str; 6] = [
    "links between GPUs: NVLink, NVSwitch, PCIe peer copies, their rates and their errors",
    "IPC between different devices, and peer access",
    "how memory written by one GPU is ordered for another: LL and LL128 stay off by default",
    "GPUDirect RDMA, NICs, and anything between hosts",
    "rates of collectives over links: ranks that share a GPU share its memory",
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
    cannot_show: [&'static str; 6],
    pub(crate) seconds: f64,
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
    pub(crate) fn new(gpu: &Gpu, quick: bool) -> Result<Self, String> {
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
            cannot_show: CANNOT_SHOW,
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
                Outcome::Skipped => "skipped",
            };
            let _ = writeln!(text, "{:<16} {word}", stage.name);
            for detail in stage.details.iter().take(8) {
                let _ = writeln!(text, "                 {detail}");
            }
            if stage.details.len() > 8 {
                let _ = writeln!(
                    text,
                    "                 and {} more in the report",
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
        if self.quick {
            let _ = writeln!(text, "--quick: the rates are of small sizes and say nothing");
        }
        let _ = writeln!(text, "{:.0} s. One GPU does not show:", self.seconds);
        for what in self.cannot_show {
            let _ = writeln!(text, "  - {what}");
        }
        text
    }
}
