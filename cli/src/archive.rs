//! The archive that `topoctl snapshot --raw` writes: the facts first, which is all that most readers want, then the
//! files they were read from.
//!
//! ```text
//!   topod-snapshot/snapshot.json     the facts
//!   topod-snapshot/root/sys/...      the files
//! ```

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use daemon::probe::{Recorded, Recording};
use daemon::recorded::FACTS;
use tar::{Builder, EntryType, Header};

use crate::exit::Failure;

/// Writes facts and the files they were read from as one archive, compressed where the name asks for it.
pub(crate) fn write(
    output: Option<&Path>,
    facts: &str,
    recording: &Recording,
) -> Result<(), Failure> {
    let compressed = output.is_some_and(|path| {
        path.extension().is_some_and(|extension| extension == "gz" || extension == "tgz")
    });
    let mut bytes = Vec::new();
    let written = if compressed {
        let level = flate2::Compression::default();
        let mut encoder = flate2::write::GzEncoder::new(&mut bytes, level);
        build(&mut encoder, facts, recording).and_then(|()| encoder.finish().map(drop))
    } else {
        build(&mut bytes, facts, recording)
    };
    written.map_err(Failure::internal)?;
    match output {
        Some(path) => fs::write(path, bytes)
            .map_err(|error| Failure::internal(format!("{}: {error}", path.display()))),
        None => io::stdout().write_all(&bytes).map_err(Failure::internal),
    }
}

/// Equal machines give equal archives: no times, no owners, sorted.
fn build(to: impl Write, facts: &str, recording: &Recording) -> io::Result<()> {
    let mut builder = Builder::new(to);
    let header = |kind: EntryType, mode: u32, size: usize| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(size as u64);
        header
    };
    let facts_path = PathBuf::from(FACTS);
    let mut file = header(EntryType::Regular, 0o644, facts.len());
    builder.append_data(&mut file, &facts_path, facts.as_bytes())?;
    let root = facts_path.with_file_name("root");
    for (path, entry) in &recording.entries {
        let path = root.join(path);
        match entry {
            Recorded::Directory => {
                builder.append_data(
                    &mut header(EntryType::Directory, 0o755, 0),
                    path,
                    io::empty(),
                )?;
            }
            Recorded::File(bytes) => {
                let mut file = header(EntryType::Regular, 0o644, bytes.len());
                builder.append_data(&mut file, path, bytes.as_slice())?;
            }
            Recorded::Link(target) => {
                builder.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target)?;
            }
        }
    }
    builder.into_inner().map(drop)
}
