//! The page of metrics as a file, for sites where node_exporter's textfile collector reads it and no port is opened.
//!
//! Written beside its place and renamed over it, as that collector asks of writers, and gone with the daemon: a file that stays would tell
//! of a machine that nobody looks at. Its age is `node_textfile_mtime_seconds`.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{self, JoinHandle};
use tracing::warn;

use crate::metrics::page;
use crate::state::State;

/// Between writings where nothing changes: scrapers come every 15 s to a minute.
const EVERY: Duration = Duration::from_secs(15);

/// Whose name may not be the final one meanwhile: the collector reads every file that ends so.
pub(crate) const SUFFIX: &str = "prom";

/// A file that is kept up to date.
#[derive(Debug)]
pub(crate) struct Textfile {
    path: PathBuf,
    task: JoinHandle<()>,
}

/// Keeps a file up to date until it is dropped.
pub(crate) fn start(path: &Path, state: Arc<State>) -> Textfile {
    let task = tokio::spawn(follow(path.into(), state));
    Textfile { path: path.into(), task }
}

impl Drop for Textfile {
    fn drop(&mut self) {
        self.task.abort();
        drop(fs::remove_file(&self.path));
    }
}

async fn follow(path: PathBuf, state: Arc<State>) {
    let (mut topologies, mut verdicts) = (state.topology_changes(), state.verdict_changes());
    loop {
        let (to, of) = (path.clone(), Arc::clone(&state));
        let written = task::spawn_blocking(move || write(&to, &of)).await;
        let refused = match written {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("{}: {error}", path.display())),
            Err(error) => Some(error.to_string()),
        };
        if state.warn("metrics_textfile", refused.clone())
            && let Some(error) = refused
        {
            warn!(error, "the file of metrics cannot be written");
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            _ = topologies.changed() => {}
            _ = verdicts.changed() => {}
        }
    }
}

fn write(path: &Path, state: &State) -> io::Result<()> {
    let page = page(state).map_err(io::Error::other)?;
    let unfinished = path.with_extension(format!("{SUFFIX}.new"));
    let written = fs::write(&unfinished, page).and_then(|()| {
        // The collector is another user, whatever the mask of this one is.
        fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o644))?;
        fs::rename(&unfinished, path)
    });
    if written.is_err() {
        drop(fs::remove_file(&unfinished));
    }
    written
}
