//! Recorded machines from files: every format of `topology::formats`, and a host's `/sys` as a directory or archive.
//!
//! ```text
//!   directory with sys ─────────────────────────────┐
//!   .tar, .tar.gz, .tar.bz2 ── unpacked, bounded ───┼──▶ the probe over that root ──▶ Snapshot
//!   .gz, .bz2 of another format ── decompressed ─┐
//!   anything else ───────────────────────────────┴──▶ topology::formats::read ──────▶ Snapshots
//! ```
//!
//! What a file is, its first bytes say, never its name. An archive is unpacked into a directory of its own that ends
//! with the read; what is in it can neither leave that directory nor fill the disk (see [`archive`]).

mod archive;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use topology::Snapshot;
use topology::formats::{self, ReadError};

use crate::probe::{ProbeConfig, probe, recorded_root};

/// Most bytes of an input as it lies on disk.
const MOST_BYTES: u64 = 64 << 20;

/// Why a recorded machine was refused.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    /// The file or directory cannot be read.
    #[error("{0}")]
    Open(#[from] io::Error),
    /// The file is of no known format, or contradicts its own.
    #[error("{0}")]
    Format(#[from] ReadError),
    /// The archive or directory holds no host that can be read.
    #[error("{place}: {reason}")]
    Tree {
        /// Where: `archive`, `archive, entry a/b`, `directory`.
        place: String,
        /// What is wrong, in words.
        reason: String,
    },
}

impl RecordedError {
    fn tree(place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Tree { place: place.into(), reason: reason.into() }
    }
}

/// Reads a file or directory.
///
/// # Errors
/// Where it cannot be opened, is of no known format, contradicts its own, or is larger than a machine can be.
pub fn read(path: &Path) -> Result<Vec<Snapshot>, RecordedError> {
    if fs::metadata(path)?.is_dir() {
        let root = recorded_root(path).ok_or_else(|| {
            let reason = "no sys in it, nor in exactly one directory of it: no recorded host";
            RecordedError::tree("directory", reason)
        })?;
        return Ok(vec![probe(&ProbeConfig::recorded(root))]);
    }
    read_from(File::open(path)?)
}

/// Reads what a stream gives, as [`read`] does a file.
///
/// # Errors
/// As [`read`].
pub fn read_from(stream: impl Read) -> Result<Vec<Snapshot>, RecordedError> {
    let mut bytes = Vec::new();
    stream.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    read_bytes(&bytes)
}

/// Reads the bytes of a file.
///
/// # Errors
/// As [`read`].
pub fn read_bytes(bytes: &[u8]) -> Result<Vec<Snapshot>, RecordedError> {
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MOST_BYTES) {
        return Err(RecordedError::tree("input", format!("larger than {MOST_BYTES} bytes")));
    }
    if archive::is_compressed(bytes) {
        let plain = archive::decompress(bytes)?;
        if archive::is_compressed(&plain) {
            return Err(RecordedError::tree("archive", "compressed twice"));
        }
        return if archive::is_archive(&plain) {
            read_tree(&plain)
        } else {
            Ok(formats::read(&plain)?)
        };
    }
    if archive::is_archive(bytes) { read_tree(bytes) } else { Ok(formats::read(bytes)?) }
}

/// Body of the fuzz target of archives, run by the tests too.
pub fn fuzz_archive(bytes: &[u8]) {
    archive::fuzz(bytes);
}

/// Where an archive of facts with the files they came from has the facts: its first entry. Whoever reads it takes these,
/// since the files alone lack what the GPU driver told.
pub const FACTS: &str = "topod-snapshot/snapshot.json";

/// The facts that an archive begins with; `None` where it begins with anything else, or is an archive of another form.
fn facts(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut archive = tar::Archive::new(bytes);
    let mut first = archive.entries().ok()?.next()?.ok()?;
    if first.path().ok()? != Path::new(FACTS) {
        return None;
    }
    let mut facts = Vec::new();
    // No larger than the archive that is in memory already.
    first.read_to_end(&mut facts).ok()?;
    Some(facts)
}

fn read_tree(tar: &[u8]) -> Result<Vec<Snapshot>, RecordedError> {
    if let Some(facts) = facts(tar) {
        return Ok(formats::read(&facts)?);
    }
    let unpacked = archive::unpack(tar)?;
    Ok(vec![probe(&ProbeConfig::recorded(unpacked.root()))])
}

#[cfg(test)]
mod tests;
