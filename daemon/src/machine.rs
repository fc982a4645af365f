//! From where the machine's facts come to a topology.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use topology::formats::{self, ReadError};
use topology::{LowerError, RateModel, Topology};

use crate::probe::{ProbeConfig, probe};

/// Where the facts come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineSource {
    /// This host, or a recorded device tree.
    Probe(ProbeConfig),
    /// A recorded machine of any format that `topology::formats` knows.
    Recorded(PathBuf),
}

/// Why there is no topology.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is of no known format, or contradicts its own.
    #[error("{}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ReadError,
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
        MachineSource::Recorded(path) => {
            let bytes = read_file(path)
                .map_err(|source| MachineError::Open { path: path.clone(), source })?;
            formats::read(&bytes)
                .map_err(|source| MachineError::Format { path: path.clone(), source })?
        }
    };
    Ok(topology::lower(&hosts, rates)?)
}

/// One byte more than the readers take is enough for them to refuse the rest.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let most = u64::try_from(formats::SIZE_LIMIT).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
