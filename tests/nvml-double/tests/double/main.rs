//! The double under the real binding: what a machine's description says is what nvml-wrapper reads, and every
//! fault plays.

mod binding;
mod events;
mod faults;
mod raw;

use std::path::PathBuf;

use machines::Machine;
use nvml_wrapper::Nvml;
use tempfile::TempDir;

/// A machine written to a directory with a copy of the double, so that each test plays its own.
struct Stage {
    directory: TempDir,
    library: PathBuf,
}

impl Stage {
    fn new(machine: &Machine) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the machine");
        machine.write_scenario(directory.path()).expect("the scenario is written");
        let library =
            machines::install_nvml_double(directory.path()).expect("the double is copied");
        Self { directory, library }
    }

    /// Changes what the next initialisation finds.
    fn play(&self, machine: &Machine) {
        machine.write_scenario(self.directory.path()).expect("the scenario is written");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn init(&self) -> Result<Nvml, nvml_wrapper::error::NvmlError> {
        Nvml::builder().lib_path(self.library.as_os_str()).init()
    }

    fn nvml(&self) -> Nvml {
        self.init().expect("the double initialises")
    }
}
