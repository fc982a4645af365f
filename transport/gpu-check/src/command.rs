//! Other programs, each for a limited time: a tool that hangs in the driver must not hold the check up.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::budget::Deadline;

/// Between two looks at a process, where its end is no event (Linux before 5.3).
const LOOK: Duration = Duration::from_millis(10);

/// A process whose outputs go into files, so that none of them waits for a reader.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    files: [std::path::PathBuf; 2],
}

/// How a process ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None` where it was killed at its limit.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) output: Vec<u8>,
    pub(crate) errors: String,
}

impl Running {
    /// Starts it; `name` is for its files in `folder`.
    pub(crate) fn start(mut command: Command, folder: &Path, name: &str) -> Result<Self, String> {
        let files = ["out", "err"].map(|end| folder.join(format!("{name}.{end}")));
        let open = |file: &Path| {
            File::create(file).map_err(|error| format!("{}: {error}", file.display()))
        };
        command.stdin(Stdio::null()).stdout(open(&files[0])?).stderr(open(&files[1])?);
        let what = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| format!("{what}: {error}"))?;
        Ok(Self { child, files })
    }

    /// Waits for its end, and ends it at the limit.
    pub(crate) fn wait(mut self, limit: Deadline) -> Result<Ended, String> {
        let status = loop {
            match self.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break Some(status),
                None if limit.is_over() => {
                    // One that stands still in the kernel is left to it: it goes when the kernel lets it.
                    let _ = self.child.kill();
                    break None;
                }
                None => await_end(&self.child, limit.left()),
            }
        };
        let read = |file: &Path| {
            std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
        };
        let errors = String::from_utf8_lossy(&read(&self.files[1])?).trim().to_owned();
        Ok(Ended { status, output: read(&self.files[0])?, errors })
    }
}

/// Waits for a process's end, or as long as that may take; it may return before either.
fn await_end(child: &Child, limit: Duration) {
    let ends = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
    match (ends, Timespec::try_from(limit)) {
        (Ok(ends), Ok(limit)) => {
            // Interrupted or not: the caller looks again.
            let _ = poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&limit));
        }
        _ => std::thread::sleep(LOOK.min(limit)),
    }
}

impl Ended {
    /// In words.
    pub(crate) fn how(&self) -> String {
        match self.status {
            Some(status) => status.to_string(),
            None => "it did not end in time and was killed".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn what_a_program_says_and_one_that_never_ends() {
        let folder = Folder::new().unwrap();
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let start = |script, name| Running::start(shell(script), folder.path(), name).unwrap();
        let good = start("echo said; echo wrong >&2; exit 3", "a");
        let long = Deadline::after(Duration::from_secs(60));
        let ended = good.wait(long).unwrap();
        assert_eq!((ended.output.as_slice(), ended.errors.as_str()), (&b"said\n"[..], "wrong"));
        assert_eq!(ended.status.unwrap().code(), Some(3));
        // It waits for itself to be killed.
        let hangs = start("kill -STOP $$", "b");
        let ended = hangs.wait(Deadline::after(Duration::ZERO)).unwrap();
        assert!(ended.status.is_none() && ended.how().contains("killed"));
    }
}
