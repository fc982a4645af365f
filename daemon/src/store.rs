//! What outlives the daemon: the generation it published last, with the facts it stands for. A restart changes no machine, so it must
//! not end the plans of running jobs.
//!
//! The file is written beside its place, made durable and only then renamed over the one before, and the folder is made durable too:
//! whenever the daemon or the host dies, the one or the other is there, whole. Its first line is a checksum of the rest, for what a disk
//! may do to it. A file that cannot be used is put aside and told of, and the daemon begins at generation 1.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flate2::Crc;
use serde::{Deserialize, Serialize};
use topology::{Generation, RateModel, Snapshot};

use crate::state::{Earlier, Published};

/// Version of the file. Another one is not read.
const VERSION: u32 = 1;
const NAME: &str = "state";
const UNFINISHED: &str = "state.new";
const UNUSABLE: &str = "state.unusable";

/// The folder that the state is in.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    folder: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    generation: u64,
    fingerprint: String,
    rates: String,
    hosts: Vec<Snapshot>,
}

/// Why there is nothing to go on from.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// What is in it is not what was written.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    /// It cannot be written.
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl Store {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.into() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// What was written last; `None` where nothing ever was.
    pub(crate) fn load(&self) -> Result<Option<Earlier>, StoreError> {
        let path = self.path(NAME);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StoreError::Read { path, source }),
        };
        parse(&bytes).map(Some).map_err(|reason| {
            // For whoever wants to know what happened to it; the next write would take it away.
            drop(fs::rename(&path, self.path(UNUSABLE)));
            StoreError::Damaged { path, reason }
        })
    }

    /// Keeps what is about to be published: whoever sees a generation may count on no other machine ever having it.
    pub(crate) fn save(&self, published: &Published) -> Result<(), StoreError> {
        let document = Document {
            version: VERSION,
            generation: published.generation.0,
            fingerprint: published.topology.fingerprint().into(),
            rates: published.topology.rates().as_str().into(),
            hosts: published.topology.hosts().to_vec(),
        };
        let unfinished = self.path(UNFINISHED);
        let printed = print(&document);
        printed.and_then(|bytes| self.replace(&unfinished, &bytes)).map_err(|source| {
            // On a full disk half a file would take the room that the next attempt needs.
            drop(fs::remove_file(&unfinished));
            StoreError::Write { path: self.path(NAME), source }
        })
    }

    fn replace(&self, unfinished: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = File::create(unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(unfinished, self.path(NAME))?;
        File::open(&self.folder)?.sync_all()
    }
}

fn checksum(bytes: &[u8]) -> String {
    let mut crc = Crc::new();
    crc.update(bytes);
    format!("{:08x}", crc.sum())
}

fn print(document: &Document) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(document)?;
    Ok([checksum(&json).as_bytes(), b"\n", &json].concat())
}

fn parse(bytes: &[u8]) -> Result<Earlier, String> {
    let line = bytes.iter().position(|byte| *byte == b'\n').ok_or("it has no checksum")?;
    let (sum, json) = (&bytes[..line], &bytes[line + 1..]);
    if sum != checksum(json).as_bytes() {
        return Err("its checksum is not that of its content".into());
    }
    let document: Document = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if document.version != VERSION {
        return Err(format!("it is of version {}, not {VERSION}", document.version));
    }
    let rates: RateModel = document.rates.parse().map_err(|_| "it names no rates".to_owned())?;
    Ok(Earlier {
        generation: Generation(document.generation),
        fingerprint: document.fingerprint,
        rates,
        hosts: document.hosts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::{pair, read, state};

    fn saved() -> (tempfile::TempDir, Store, Earlier) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        let state = state();
        read(&state, pair(10, vec![]));
        read(&state, pair(20, vec![]));
        let published = state.current().unwrap();
        store.save(&published).unwrap();
        let expect = Earlier {
            generation: Generation(2),
            fingerprint: published.topology.fingerprint().into(),
            rates: published.topology.rates(),
            hosts: published.topology.hosts().to_vec(),
        };
        (folder, store, expect)
    }

    #[test]
    fn what_was_saved_is_loaded() {
        let (folder, store, expect) = saved();
        assert_eq!(store.load().unwrap(), Some(expect));
        let names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [NAME]);
        assert_eq!(Store::new(&folder.path().join("none")).load().unwrap(), None);
    }

    /// Every prefix of the file, and the file with any byte changed: never read as something else.
    #[test]
    fn damage_is_seen() {
        let (folder, store, expect) = saved();
        let path = folder.path().join(NAME);
        let whole = fs::read(&path).unwrap();
        let lengths = (0..whole.len()).step_by(7);
        let cut = lengths.clone().map(|length| whole[..length].to_vec());
        let changed = lengths.map(|place| {
            let mut bytes = whole.clone();
            bytes[place] ^= 1;
            bytes
        });
        for damaged in cut.chain(changed) {
            fs::write(&path, &damaged).unwrap();
            assert!(matches!(store.load(), Err(StoreError::Damaged { .. })));
            assert_eq!(fs::read(folder.path().join(UNUSABLE)).unwrap(), damaged);
        }
        fs::write(&path, &whole).unwrap();
        assert_eq!(store.load().unwrap(), Some(expect));
    }

    #[test]
    fn what_cannot_be_written_leaves_what_was() {
        let (folder, store, expect) = saved();
        // In the place of the unfinished file: a folder, which no file can take.
        fs::create_dir(folder.path().join(UNFINISHED)).unwrap();
        let state = state();
        read(&state, pair(30, vec![]));
        let error = store.save(&state.current().unwrap()).unwrap_err();
        assert!(matches!(error, StoreError::Write { .. }), "{error}");
        assert_eq!(store.load().unwrap(), Some(expect));
    }

    #[test]
    fn another_version_is_not_read() {
        let document = Document {
            version: VERSION + 1,
            generation: 1,
            fingerprint: String::new(),
            rates: "effective".into(),
            hosts: vec![],
        };
        let refused = parse(&print(&document).unwrap()).unwrap_err();
        assert_eq!(refused, format!("it is of version {}, not {VERSION}", VERSION + 1));
    }
}
