//! What was measured of a host's own links, for predictions in the place of tables.
//!
//! A file of this belongs to the host it was measured on: its links are memory and the loopback between processes, which carry
//! what the host executor runs. It says nothing of GPUs.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::formats::ReadError;
use crate::{Algorithm, Collective};

/// Version of the form; readers refuse others.
pub const SCHEMA_VERSION: u32 = 1;

/// Largest file read, in bytes.
const MOST_BYTES: usize = 16 << 20;

/// A kind of link between processes of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostLink {
    /// Slots in memory that two processes share.
    Shm,
    /// TCP over the loopback.
    Tcp,
}

/// Everything measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The processor's name, as the kernel has it; empty where it has none.
    #[serde(default)]
    pub cpu: String,
    /// Cores the ranks could use.
    pub cores: u32,
    /// By kind of link.
    pub links: Vec<LinkFit>,
    /// End to end, by what ran.
    #[serde(default)]
    pub operations: Vec<Measured>,
}

/// One kind of link: a line through what was measured, and how far off the line it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkFit {
    /// Which.
    pub link: HostLink,
    /// Nanoseconds a message of no bytes takes one way.
    pub alpha_ns: f64,
    /// GB/s one way, the other idle.
    pub gbps: f64,
    /// GB/s each way, both at once; half of `gbps` where the two ways share everything.
    pub duplex_gbps: f64,
    /// Both ways at once, ascending: what the line is corrected by.
    pub points: Vec<Point>,
    /// Several pairs at once: what all of them together carry, each way.
    #[serde(default)]
    pub shared: Vec<SharedRate>,
}

/// One size over a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Bytes of the message.
    pub bytes: u64,
    /// Nanoseconds one way, the other idle: half of a round trip.
    pub one_way_ns: f64,
    /// Nanoseconds of an exchange, each sending the other as much.
    pub exchange_ns: f64,
}

/// Ranks that load their links together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedRate {
    /// How many, each sending to one and receiving from another.
    pub ranks: u32,
    /// GB/s of all of them together.
    pub gbps: f64,
}

/// What an algorithm took end to end, against what the links alone predict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Over which links.
    pub link: HostLink,
    /// Of what.
    pub collective: Collective,
    /// By what.
    pub algorithm: Algorithm,
    /// Among how many.
    pub ranks: u32,
    /// By size, ascending.
    pub factors: Vec<SizeFactor>,
}

/// One size of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizeFactor {
    /// Total data.
    pub bytes: u64,
    /// Measured, in nanoseconds.
    pub time_ns: f64,
    /// Measured over predicted by the links.
    pub factor: f64,
}

impl Calibration {
    /// The fit of a kind of link.
    #[must_use]
    pub fn link(&self, link: HostLink) -> Option<&LinkFit> {
        self.links.iter().find(|fit| fit.link == link)
    }
}

/// As JSON text, with a final newline.
#[must_use]
pub fn write(calibration: &Calibration) -> String {
    // Strings, numbers and lists of them: serialising those cannot fail.
    let mut text = serde_json::to_string_pretty(calibration).unwrap_or_default();
    text.push('\n');
    text
}

/// From JSON text.
///
/// # Errors
/// Where the bytes are no calibration of this version, or hold rates and times that nothing has.
pub fn read(bytes: &[u8]) -> Result<Calibration, ReadError> {
    let refuse = |line, reason| ReadError { format: "calibration", line, reason };
    if bytes.len() > MOST_BYTES {
        return Err(refuse(0, format!("larger than {MOST_BYTES} bytes")));
    }
    let found: Calibration =
        serde_json::from_slice(bytes).map_err(|e| refuse(e.line(), e.to_string()))?;
    if found.schema_version != SCHEMA_VERSION {
        let version = found.schema_version;
        return Err(refuse(0, format!("schema_version {version} is not {SCHEMA_VERSION}")));
    }
    let positive = |value: f64| value.is_finite() && value > 0.0;
    for fit in &found.links {
        let rates = [fit.gbps, fit.duplex_gbps];
        let sound = rates.into_iter().chain(fit.shared.iter().map(|s| s.gbps)).all(positive)
            && fit.alpha_ns.is_finite()
            && fit.alpha_ns >= 0.0
            && fit.points.iter().all(|p| positive(p.one_way_ns) && positive(p.exchange_ns))
            && fit.points.is_sorted_by(|a, b| a.bytes < b.bytes);
        if !sound {
            return Err(refuse(
                0,
                "a link with rates or times that nothing has, or sizes out of order".into(),
            ));
        }
    }
    for measured in &found.operations {
        let sound = measured.factors.iter().all(|f| positive(f.factor) && positive(f.time_ns))
            && measured.factors.is_sorted_by(|a, b| a.bytes < b.bytes);
        if !sound {
            let (collective, algorithm) = (measured.collective, measured.algorithm);
            let why = format!("{collective} by {algorithm}: no such times, or sizes out of order");
            return Err(refuse(0, why));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn sample() -> Calibration {
        Calibration {
            schema_version: SCHEMA_VERSION,
            cpu: "Model".into(),
            cores: 2,
            links: vec![LinkFit {
                link: HostLink::Shm,
                alpha_ns: 300.0,
                gbps: 10.0,
                duplex_gbps: 6.0,
                points: vec![Point { bytes: 8, one_way_ns: 301.0, exchange_ns: 320.0 }],
                shared: vec![SharedRate { ranks: 4, gbps: 7.0 }],
            }],
            operations: vec![Measured {
                link: HostLink::Shm,
                collective: Collective::AllReduce,
                algorithm: Algorithm::Ring,
                ranks: 2,
                factors: vec![SizeFactor { bytes: 1024, time_ns: 900.0, factor: 1.1 }],
            }],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(write(&sample()).as_bytes()), Ok(sample()));
    }

    #[track_caller]
    fn refused(change: impl Fn(&mut Calibration), why: &str) {
        let mut changed = sample();
        change(&mut changed);
        let error = read(write(&changed).as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn nonsense_is_refused() {
        refused(|c| c.schema_version = 2, "schema_version 2 is not 1");
        refused(|c| c.links[0].gbps = 0.0, "rates or times");
        refused(|c| c.links[0].points[0].exchange_ns = -1.0, "rates or times");
        refused(|c| c.operations[0].factors[0].factor = 0.0, "all-reduce by ring");
        refused(|c| c.operations[0].factors.extend_from_within(..), "out of order");
        assert!(read(b"{}").is_err());
    }
}
