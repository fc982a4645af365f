//! Ranks as processes: children of this program, which share one GPU or have one each.
//!
//! ```text
//!   parent   a folder ── a child for each rank, told its part as JSON ── waits, ends those that hang
//!   child    meets the others in the folder ── checks, measures ── says what it found as JSON
//! ```

mod cases;
mod collectives;
mod rates;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use topology::Protocol;

use crate::budget::Deadline;
use crate::command::Running;
use crate::folder::Folder;
use crate::nccl;
use crate::report::Stage;

pub(crate) use cases::{brought, combined};
pub(crate) use collectives::channels;
pub(crate) use rates::{Rate, Timed, batches, merged, sizes};

/// What a child's command line begins with.
const ARGUMENT: &str = "--as-rank";

/// How much longer than it is silent a rank may take at the end of its share: to end what it is in.
const GRACE: Duration = Duration::from_secs(25);

/// How long a rank is silent before it is named. A quick check is one of results, perhaps on a host that is busy with other things.
pub(crate) const fn silence(quick: bool) -> Duration {
    Duration::from_secs(if quick { 120 } else { 20 })
}

/// What a child is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Work {
    /// The transport's collectives.
    Collectives,
    /// NCCL's, to compare with.
    Nccl,
}

/// One rank's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) work: Work,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// CUDA's number of its GPU.
    pub(crate) device: u32,
    /// Whether all ranks have that one.
    pub(crate) shared: bool,
    /// Where ranks meet.
    pub(crate) folder: PathBuf,
    /// Kernels that were compiled elsewhere.
    pub(crate) ptx: Option<PathBuf>,
    pub(crate) quick: bool,
    /// That operations go by, where it is not copies.
    pub(crate) protocol: Option<Protocol>,
    /// For checking results, from its start.
    pub(crate) check: Duration,
    /// For checking and measuring, from its start.
    pub(crate) all: Duration,
}

/// What a rank found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Ways to other ranks by name, and why they are no better.
    pub(crate) ways: BTreeMap<String, usize>,
    pub(crate) why: BTreeSet<String>,
    /// Elements compared.
    pub(crate) checked: u64,
    pub(crate) wrong: Vec<String>,
    /// What there was no time for.
    pub(crate) missed: Vec<String>,
    pub(crate) timed: Vec<Timed>,
    /// Operations by protocol, and why some went by copies.
    pub(crate) by_protocol: BTreeMap<Protocol, u64>,
    pub(crate) by_copies: BTreeSet<String>,
    /// Why the protocol is not used.
    pub(crate) why_not: Option<String>,
    /// What ended it before its end.
    pub(crate) failure: Option<String>,
    /// Of another library.
    pub(crate) library: Option<String>,
}

/// What all ranks found.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) ways: BTreeMap<String, usize>,
    pub(crate) why: BTreeSet<String>,
    pub(crate) checked: u64,
    pub(crate) wrong: BTreeSet<String>,
    pub(crate) missed: BTreeSet<String>,
    pub(crate) by_protocol: BTreeMap<Protocol, u64>,
    pub(crate) by_copies: BTreeSet<String>,
    pub(crate) why_not: BTreeSet<String>,
    /// Equal words once, however many ranks say them.
    pub(crate) failures: BTreeSet<String>,
    pub(crate) rates: Vec<Rate>,
    pub(crate) library: Option<String>,
}

/// For the beginning of `main`: where this process is a rank, does its work and gives the exit code.
pub(crate) fn serve() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != ARGUMENT {
        return None;
    }
    let part: Option<Part> = arguments.next().and_then(|text| serde_json::from_str(&text).ok());
    Some(part.map_or_else(
        || ExitCode::from(2),
        |part| {
            let found = match part.work {
                Work::Collectives => collectives::as_rank(&part),
                Work::Nccl => nccl::as_rank(&part),
            };
            println!("{}", serde_json::to_string(&found).unwrap_or_default());
            ExitCode::SUCCESS
        },
    ))
}

/// Which rank has which GPU: one each where there are several, else all the same.
pub(crate) fn devices(own: u32, gpus: u32, sharing: u32) -> Vec<u32> {
    if gpus > 1 { (0..gpus).collect() } else { vec![own; sharing as usize] }
}

/// Until when ranks check, and until when they check and measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    pub(crate) check: Deadline,
    pub(crate) all: Deadline,
}

/// Runs a part for each of `devices`, which fills in what is missing in `part`: who each is, where they meet, and how long they have.
pub(crate) fn run(part: &Part, devices: &[u32], shares: Shares) -> Result<Outcome, String> {
    let own = std::env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
    let folder = Folder::new()?;
    let (check, all) = (shares.check.left(), shares.all.left());
    let limit = Deadline::after(all + silence(part.quick) + GRACE);
    let part = Part { check, all, folder: folder.path().to_owned(), ..part.clone() };
    let ranks = u32::try_from(devices.len()).map_err(|_| "too many ranks".to_owned())?;
    let mut running = Vec::new();
    for (rank, device) in (0..ranks).zip(devices) {
        let shared = devices.iter().all(|other| other == device);
        let part = Part { rank, ranks, device: *device, shared, ..part.clone() };
        let mut command = Command::new(&own);
        command.arg(ARGUMENT);
        command.arg(serde_json::to_string(&part).map_err(|error| error.to_string())?);
        running.push(Running::start(command, folder.path(), &format!("rank-{rank}"))?);
    }
    let mut outcome = Outcome::default();
    let mut timed = Vec::new();
    for (rank, process) in (0..ranks).zip(running) {
        let ended = process.wait(limit)?;
        let said = String::from_utf8_lossy(&ended.output);
        let found = said.lines().last().and_then(|line| serde_json::from_str::<Found>(line).ok());
        match found {
            Some(found) => outcome.add(rank, found, &mut timed),
            None => {
                let last = ended.errors.lines().last().unwrap_or_default();
                let words = format!("rank {rank}'s process said nothing: {} {last}", ended.how());
                outcome.failures.insert(words.trim_end().to_owned());
            }
        }
    }
    outcome.rates = merged(&timed, ranks);
    Ok(outcome)
}

impl Outcome {
    fn add(&mut self, rank: u32, found: Found, timed: &mut Vec<Vec<Timed>>) {
        for (way, count) in found.ways {
            *self.ways.entry(way).or_default() += count;
        }
        self.why.extend(found.why);
        self.checked += found.checked;
        self.wrong.extend(found.wrong.into_iter().map(|what| format!("rank {rank}: {what}")));
        self.missed.extend(found.missed);
        for (protocol, count) in found.by_protocol {
            *self.by_protocol.entry(protocol).or_default() += count;
        }
        self.by_copies.extend(found.by_copies);
        self.why_not.extend(found.why_not);
        self.failures.extend(found.failure);
        self.library = self.library.take().or(found.library);
        timed.push(found.timed);
    }

    /// How the results were.
    pub(crate) fn stage(&self, passed: String) -> Stage {
        if !self.wrong.is_empty() {
            Stage::wrong(self.wrong.iter().chain(&self.failures).cloned().collect())
        } else if !self.failures.is_empty() {
            Stage::failed_by(self.failures.iter().cloned().collect())
        } else if !self.missed.is_empty() {
            Stage::stopped(self.missed.iter().cloned().collect())
        } else if self.checked == 0 {
            Stage::failed("no rank compared a single element".to_owned())
        } else {
            Stage::passed(passed)
        }
    }

    /// The stage of a protocol: that its results are right, where operations went by it.
    pub(crate) fn by(&self, protocol: Protocol) -> Stage {
        let count = self.by_protocol.get(&protocol).copied().unwrap_or(0);
        if self.failures.is_empty() && !self.why_not.is_empty() {
            return Stage::unshown(self.why_not.iter().cloned().collect());
        }
        if self.failures.is_empty() && self.wrong.is_empty() && count == 0 {
            let mut why = vec![format!("no operation went by {protocol}")];
            why.extend(self.by_copies.iter().cloned());
            why.extend(self.missed.iter().cloned());
            return Stage::unshown(why);
        }
        let copies = self.by_protocol.get(&Protocol::Simple).copied().unwrap_or(0);
        self.stage(format!(
            "{} elements as they must be, and so as copies leave them; {count} operations by {protocol}, {copies} by copies",
            self.checked
        ))
    }

    /// How ranks reach each other: all straight into each other's memory, or what was not shown.
    pub(crate) fn reach(&self) -> Stage {
        let all: usize = self.ways.values().sum();
        let straight = self.ways.get("peer").copied().unwrap_or(0);
        if all == 0 {
            return Stage::skipped("ranks did not meet".to_owned());
        }
        if straight == all {
            return Stage::passed(format!(
                "{all} ways, each straight into the other process's memory"
            ));
        }
        let mut details = vec![format!(
            "{straight} of {all} ways go straight into the other process's memory, the others through the host's: not shown"
        )];
        details.extend(self.why.iter().cloned());
        Stage::unshown(details)
    }
}
