//! From where the machine's facts come to a topology.

use std::path::PathBuf;

use topology::{LowerError, RateModel, Topology};

use crate::probe::{ProbeConfig, probe};
use crate::recorded::{self, RecordedError};

/// Where the facts come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineSource {
    /// This host, or a recorded device tree.
    Probe(ProbeConfig),
    /// A recorded machine, of any format that [`recorded`] reads.
    Recorded(PathBuf),
}

impl MachineSource {
    /// How it is probed; `None` where it is not.
    pub(crate) fn probed(&self) -> Option<&ProbeConfig> {
        match self {
            Self::Probe(config) => Some(config),
            Self::Recorded(_) => None,
        }
    }
}

/// Why there is no topology.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The recorded machine cannot be read: no such file, no known format, or one that contradicts itself.
    #[error("cannot read {}", path.display())]
    Recorded {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: RecordedError,
    },
    /// The facts contradict each other.
    #[error("the facts make no topology")]
    Lower {
        /// Why.
        #[from]
        source: LowerError,
    },
    /// A probe or reader panicked: a defect.
    #[error("reading the machine failed; the log has the panic")]
    Panicked,
}

/// Reads the machine and makes its graph. Takes as long as the probes do: call it where blocking is allowed.
///
/// # Errors
/// Where a file is refused or facts contradict each other; a fact that is missing is no error.
pub fn read(source: &MachineSource, rates: RateModel) -> Result<Topology, MachineError> {
    let hosts = match source {
        MachineSource::Probe(config) => vec![probe(config)],
        MachineSource::Recorded(path) => recorded::read(path)
            .map_err(|source| MachineError::Recorded { path: path.clone(), source })?,
    };
    Ok(topology::lower(&hosts, rates)?)
}
