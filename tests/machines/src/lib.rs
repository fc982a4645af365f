//! Machines to test against: what they are made of, written out as everything topod reads of a host.
//!
//! ```text
//!                        ┌─ write ──▶ sysfs and procfs tree, as the kernel shows the machine
//!   catalogue ─ Machine ─┼─ write ──▶ scenario of the NVML double, as the driver shows it
//!               deviate  └─ snapshot ▶ the facts that a right probe of the two finds
//! ```
//!
//! One description makes all three, so that tree and driver never contradict each other unless a [`Deviation`]
//! says so. Nothing here was taken from the code that it tests.
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod machine;
pub mod scenario;

mod build;
mod config_space;
mod deviation;
mod library;
mod nvml;
mod snapshot;
mod sysfs;

pub use catalogue::{dgx_a100, dgx_h100, dgx1p, dgx1v, dgx2, pcie_two_sockets, vm_flat};
pub use deviation::Deviation;
pub use library::{
    build_cuda_kernels, cuda_double_library, install_cuda_double, install_nvml_double,
    install_verbs_double, nvml_double_library, verbs_double_library,
};
pub use machine::Machine;

use std::io;
use std::path::{Path, PathBuf};

/// Where a machine was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The directory that stands for `/`: it has `sys` and `proc`.
    pub root: PathBuf,
    /// The NVML double's scenario.
    pub scenario: PathBuf,
}

impl Machine {
    /// Writes the machine into an existing directory: the tree into `root/`, and the scenario.
    ///
    /// # Errors
    /// Where a file cannot be written.
    pub fn write(&self, directory: &Path) -> io::Result<Paths> {
        let root = directory.join("root");
        self.write_root(&root)?;
        Ok(Paths { root, scenario: self.write_scenario(directory)? })
    }

    /// Writes the NVML double's scenario alone, as [`scenario::SCENARIO_BESIDE_LIBRARY`]. The tree is some thousand
    /// small files, so a test of the driver's side does without.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn write_scenario(&self, directory: &Path) -> io::Result<PathBuf> {
        let path = directory.join(scenario::SCENARIO_BESIDE_LIBRARY);
        std::fs::write(&path, serde_json::to_string_pretty(&self.scenario())?)?;
        Ok(path)
    }
}
