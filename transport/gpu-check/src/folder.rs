//! A folder of this run's own, for what ranks tell each other and their outputs; gone at the end.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Result<Self, String> {
        let own = std::process::id();
        // One of an earlier process of this number may lie there, or anything of somebody else's: never taken.
        for attempt in 0..1000_u32 {
            let path = std::env::temp_dir().join(format!("topod-gpu-check-{own}-{attempt}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(format!("{}: {error}", path.display())),
            }
        }
        Err(format!("{}: no name is free", std::env::temp_dir().display()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is a few files for the host's own cleaning.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
