//! Judgement over facts: what of a host is not as it should be.
//!
//! Each rule looks at the facts alone, or compares a device with its siblings on the host, or with a profile of the
//! host in its good days; none repairs or hides anything. One file for each theme.
//!
//! A rule that lacks a fact it needs says which, and never passes: that makes the verdict [`Status::Unknown`]. What the
//! format of an input has no words for at all (access control in an NCCL topology) is not the host's failing; it is
//! listed as not checked.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::snapshot::{Snapshot, Source};
use crate::{Finding, Severity};

mod access;
mod against;
mod device;
mod fabric;
mod fabrics;
mod gpu_links;
mod gpudirect;
mod host;
mod launcher;
mod nic;
mod numa;
mod pcie;
mod peers;
mod roce;
#[cfg(test)]
mod tests;

pub use against::{Difference, differences};
pub use fabrics::{Fabric, FabricVerdict, fabrics};
pub use gpudirect::{GpuDirect, GpuDirectPath, gpudirect};
pub(crate) use launcher::tasks_of_slurm;
pub use launcher::{Launcher, UnknownLauncher, launcher};

use device::Devices;

/// Verdict over a host or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Everything known is as it should be, and everything needed is known.
    Ok,
    /// Something could not be read.
    Unknown,
    /// Works, slower than it should.
    Degraded,
    /// Do not run jobs here.
    Critical,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Degraded => "degraded",
            Self::Critical => "critical",
        })
    }
}

/// A rule that could not be applied for want of a fact.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unchecked {
    /// The rule, by the code of its finding.
    pub code: String,
    /// The device, link or pair it would have been about.
    pub component: String,
    /// The fact it lacks, and why where that is known.
    pub missing: String,
}

/// What examining a host came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examination {
    /// The worst first, then by code.
    pub findings: Vec<Finding>,
    /// Rules that lack a fact, by code. Any of them makes the verdict at least unknown.
    pub unchecked: Vec<Unchecked>,
    /// Themes of which the input's format tells nothing.
    pub not_told: Vec<&'static str>,
    /// Whether some fact could not be read, whether or not a rule needs it.
    pub faulty: bool,
}

impl Examination {
    /// The verdict.
    #[must_use]
    pub fn status(&self) -> Status {
        match self.findings.iter().map(|finding| finding.severity).max() {
            Some(Severity::Critical) => Status::Critical,
            Some(Severity::Degraded) => Status::Degraded,
            Some(Severity::Info) | None if self.is_incomplete() => Status::Unknown,
            Some(Severity::Info) | None => Status::Ok,
        }
    }

    /// Whether something is not known that should be.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.faulty || !self.unchecked.is_empty()
    }

    /// Adds findings of other examiners.
    pub fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings);
        self.findings.sort_by(worst_first);
    }

    /// Joins that of another host; devices of several hosts carry the host's number.
    pub fn join(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.findings.sort_by(worst_first);
        self.unchecked.extend(other.unchecked);
        self.not_told.extend(other.not_told);
        self.not_told.sort_unstable();
        self.not_told.dedup();
        self.faulty |= other.faulty;
    }

    fn finding(
        &mut self,
        code: &str,
        severity: Severity,
        component: impl Into<String>,
        evidence: impl Into<String>,
        fix: &str,
    ) {
        self.findings.push(Finding::new(code, severity, component, evidence, fix));
    }

    fn unchecked(&mut self, code: &str, component: impl Into<String>, missing: impl Into<String>) {
        self.unchecked.push(Unchecked {
            code: code.into(),
            component: component.into(),
            missing: missing.into(),
        });
    }
}

fn worst_first(a: &Finding, b: &Finding) -> core::cmp::Ordering {
    b.severity.cmp(&a.severity).then_with(|| a.cmp(b))
}

/// Themes that only the host itself tells, and formats made of its topology do not.
const TOLD_BY_THE_HOST: [&str; 9] = [
    "access control (ACS)",
    "bonds",
    "GID tables",
    "GPUDirect RDMA",
    "IOMMU",
    "NVLink fabric",
    "peer access",
    "port counters",
    "trained against capable PCIe links",
];

/// Examines a host.
#[must_use]
pub fn judge(snapshot: &Snapshot) -> Examination {
    let mut found = Examination { faulty: !snapshot.faults.is_empty(), ..Examination::default() };
    let devices = Devices::new(snapshot);
    gpu_links::examine(&devices, &mut found);
    pcie::examine(&devices, &mut found);
    nic::examine(&devices, &mut found);
    numa::examine(&devices, &mut found);
    peers::examine(&devices, &mut found);
    access::examine(&devices, &mut found);
    gpudirect::examine(&devices, &mut found);
    fabric::examine(&devices, &mut found);
    roce::examine(&devices, &mut found);
    host::examine(&devices, &mut found);
    if snapshot.source != Source::Live {
        // What a format cannot hold is no more missing than it is good.
        found.unchecked.clear();
        found.not_told.extend(TOLD_BY_THE_HOST);
    }
    found.not_told.sort_unstable();
    found.not_told.dedup();
    if snapshot.gpus.is_empty() && snapshot.link_graph.is_none() {
        found.unchecked("no-gpu", "host", "there is no GPU that could be examined");
    }
    found.findings.sort_by(worst_first);
    found.unchecked.sort();
    found
}

/// Examines a host that should be like `profile`, a snapshot of it or of a host of its kind when all was well.
#[must_use]
pub fn judge_against(snapshot: &Snapshot, profile: &Snapshot) -> Examination {
    let mut found = judge(snapshot);
    against::examine(snapshot, profile, &mut found);
    found.findings.sort_by(worst_first);
    found.unchecked.sort();
    found
}

/// Every finding of a host; the worst first, then by code.
#[must_use]
pub fn examine(snapshot: &Snapshot) -> Vec<Finding> {
    judge(snapshot).findings
}
