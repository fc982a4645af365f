//! Reads the facts of a host: no judgement, and never a failure.
//!
//! ```text
//!   ROOT/sys, ROOT/proc                        NVML library
//!    │ cpu      │ pci      │ nic     │ kfd      │ nvml          five threads, a time limit each
//!    └──────────┴──────────┼─────────┴──────────┘
//!                       assemble                                pure: joins what came, sorts
//!                          │
//!                       Snapshot                                facts, and a Fault for each one missing
//! ```
//!
//! Everything is read below a *root directory* and through a chosen *NVML library*, so a recorded machine and a
//! test double take the path a live host takes. A probe that does not answer in time costs only the facts it
//! had not yet told: the others do not wait for it, and a [`Fault`](topology::Fault) names the call it hangs in. NVML may be asked in a
//! process of its own ([`nvml_child`]), which it may take along when it dies.

use std::path::{Path, PathBuf};
use std::time::Duration;

use topology::{Snapshot, Source};

mod apart;
mod assemble;
mod config_space;
mod cpu;
mod cpus;
mod gpu;
mod gpudirect;
mod host;
mod kfd;
mod kind;
mod locality;
mod nic;
mod nvml;
mod pci;
mod port;
mod record;
mod role;
mod root;
#[cfg(test)]
mod tests;
mod trouble;

use apart::Apart;
use root::{Log, Root};

/// NVML in a child of this program.
pub use nvml::child as nvml_child;
pub(crate) use nvml::child::{Handle as NvmlHandle, next_event};
pub(crate) use nvml::{GpuEvent, NO_EVENTS};
pub use record::{Recorded, Recording};

/// What to probe, and how long to wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeConfig {
    /// The directory that holds `sys` and `proc`: `/` for the running host, or a recorded tree.
    pub root: PathBuf,
    /// Where the facts of NVIDIA GPUs come from.
    pub nvml: NvmlChoice,
    /// Program to ask NVML in, one that begins with [`nvml_child::serve`]: whatever the driver's library does, it does to that
    /// process. `None` asks on a thread of this one.
    pub nvml_program: Option<PathBuf>,
    /// How long each probe may take.
    pub limits: TimeLimits,
}

/// Which NVML to ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NvmlChoice {
    /// None: GPUs are drawn from PCI alone.
    Off,
    /// The driver's, as the dynamic linker finds it.
    #[default]
    Default,
    /// The library at this path.
    Library(PathBuf),
}

/// How long a probe may take before it is left behind. All probes start at once, so a whole probe takes no
/// longer than the longest of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// For each probe of files.
    pub files: Duration,
    /// For NVML. Without persistence mode the driver initialises every GPU on the first call, some seconds each;
    /// a single call on a host with a loose NVLink bridge has been seen to take 112 s (NVIDIA/nccl#557).
    pub nvml: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self { files: Duration::from_secs(10), nvml: Duration::from_secs(30) }
    }
}

impl ProbeConfig {
    /// The running host with its own driver.
    #[must_use]
    pub fn live() -> Self {
        Self {
            root: "/".into(),
            nvml: NvmlChoice::Default,
            nvml_program: None,
            limits: TimeLimits::default(),
        }
    }

    /// A recorded tree, without NVML: this host's GPUs are not the recorded ones.
    #[must_use]
    pub fn recorded(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), nvml: NvmlChoice::Off, ..Self::live() }
    }

    /// The same, with NVML asked in a child of this program.
    #[must_use]
    pub fn with_child(self) -> Self {
        Self { nvml_program: Some(nvml_child::this_program()), ..self }
    }

    /// Libraries to ask; none where NVML is off.
    pub(crate) fn libraries(&self) -> Option<Vec<PathBuf>> {
        nvml::libraries(&self.nvml)
    }
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self::live()
    }
}

/// Reads the host. Whatever cannot be read is a fault in the snapshot.
///
/// Equal trees give equal snapshots in whatever order directories list: everything is sorted, and faults carry a
/// time only where the host itself is probed.
#[must_use]
pub fn probe(config: &ProbeConfig) -> Snapshot {
    probe_below(config, &Root::new(&config.root))
}

/// As [`probe`], and gives the files that were read, so that the machine can be probed again from them; without
/// what tells names, serial numbers and addresses.
#[must_use]
pub fn probe_and_record(config: &ProbeConfig) -> (Snapshot, Recording) {
    let log = Log::default();
    let snapshot = probe_below(config, &Root::recorded(&config.root, log.clone()));
    (snapshot, Recording::scrubbed(&log))
}

fn probe_below(config: &ProbeConfig, root: &Root) -> Snapshot {
    let root = root.clone();
    let live = root.is_live();
    let files =
        |probe| Apart { probe, subject: config.root.clone(), limit: config.limits.files, live };

    let cpu = files("cpu").start({
        let root = root.clone();
        move |report| cpu::read(&root, report)
    });
    let pci = files("pci").start({
        let root = root.clone();
        move |report| pci::read(&root, report)
    });
    let kfd = files("kfd").start({
        let root = root.clone();
        move |report| kfd::read(&root, report)
    });
    let nic = files("nic").start(move |report| nic::read(&root, report));
    let nvml = nvml::libraries(&config.nvml).map(|libraries| {
        let subject = libraries.first().cloned().unwrap_or_default();
        let apart = Apart { probe: nvml::PROBE, subject, limit: config.limits.nvml, live };
        let child = NvmlHandle::default();
        let running = match config.nvml_program.clone() {
            None => apart.start(move |report| nvml::read(&libraries, report)),
            Some(program) => {
                let child = child.clone();
                apart.start(move |report| nvml::child::read(&program, &libraries, &child, report))
            }
        };
        (running, child)
    });

    let mut snapshot = Snapshot::new(Source::Live);
    let faults = &mut snapshot.faults;
    let parts = assemble::Parts {
        cpu: cpu.collect(faults),
        pci: pci.collect(faults),
        nic: nic.collect(faults),
        kfd: kfd.collect(faults),
        nvml: nvml.map(|(running, child)| running.collect_or(faults, Some(|| child.kill()))),
        clock: apart::Clock::new(live),
    };
    assemble::assemble(parts, &mut snapshot);
    snapshot
}

/// The root of a recorded tree: `dir` itself, or the one directory in it that holds a `sys`, which is how
/// archives of such trees are packed. `None` where there is none, or more than one.
#[must_use]
pub fn recorded_root(dir: &Path) -> Option<PathBuf> {
    let holds_sys = |dir: &Path| dir.join("sys").is_dir();
    if holds_sys(dir) {
        return Some(dir.into());
    }
    let below = std::fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut roots = below.filter(|path| holds_sys(path));
    match (roots.next(), roots.next()) {
        (Some(root), None) => Some(root),
        _ => None,
    }
}

/// Feeds the parsers of all files the probe reads; run by the tests and by fuzzing.
pub fn fuzz_probe_files(text: &str) {
    cpu::fuzz(text);
    gpudirect::fuzz(text);
    kfd::fuzz(text);
    nic::fuzz(text);
    pci::fuzz(text);
}
