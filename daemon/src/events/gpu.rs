//! Events that only the GPU driver knows, each told by a child of this program that waits for it
//! ([`probe::nvml_child`](crate::probe::nvml_child)).
//!
//! The child is gone before the machine is read, and started again afterwards: as long as it is there it holds the driver, and a
//! driver that is held cannot be unloaded nor its GPUs reset. Nothing wakes up while nothing happens.
//!
//! What happens to a GPU after a reading and before the next child listens tells no event. So each child first says which GPUs answer:
//!
//! ```text
//!   reading ── child 1: GPUs 0-7 ── (event, or the clock) ── reading ── GPU 3 falls ── child 2: GPUs 0-2, 4-7 ── reading
//! ```
//!
//! Where that differs from what the child before said, or there was none before, the machine is read once more.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tracing::{debug, warn};

use crate::probe::{GpuEvent, NO_EVENTS, NvmlHandle, next_event};

/// How long a reading waits for the child to be gone: one that hangs in the kernel dies when the kernel lets it.
const GONE: Duration = Duration::from_secs(5);

/// The child, while it runs, and how to start another.
#[derive(Debug)]
pub(super) struct GpuEvents {
    program: PathBuf,
    libraries: Vec<PathBuf>,
    to: UnboundedSender<GpuEvent>,
    running: Option<Arc<Running>>,
    /// Whether the latest child failed, and a reading was asked for on that account.
    failed: bool,
    /// The GPUs that answered the latest child.
    roll: Arc<Mutex<Option<String>>>,
}

#[derive(Debug, Default)]
struct Running {
    child: NvmlHandle,
    outcome: Mutex<Option<Outcome>>,
    ended: Condvar,
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It told an event, or was killed.
    Over,
    /// No driver tells of events.
    NoEvents,
    /// The driver failed.
    Failed,
}

/// Waits until the child is gone. Blocks.
#[derive(Debug)]
pub(crate) struct Release(Option<Arc<Running>>);

impl GpuEvents {
    pub(super) fn new(
        program: PathBuf,
        libraries: Vec<PathBuf>,
        to: UnboundedSender<GpuEvent>,
    ) -> Self {
        let roll = Arc::new(Mutex::new(None));
        Self { program, libraries, to, running: None, failed: false, roll }
    }

    /// Ends the child; the reading that follows waits for that.
    pub(super) fn release(&self) -> Release {
        if let Some(running) = &self.running {
            running.child.kill();
        }
        Release(self.running.clone())
    }

    /// Starts a child where none runs. `changed` is whether devices came or went since: where no driver told of events, only that
    /// brings one.
    pub(super) fn resume(&mut self, changed: bool) {
        let ended = self.running.as_ref().map(|running| running.outcome());
        let asked = match ended {
            // It hangs in the kernel.
            Some(None) => return,
            Some(Some(Outcome::NoEvents)) if !changed => return,
            Some(Some(Outcome::Failed)) => true,
            _ => false,
        };
        self.failed = asked;
        let running = Arc::new(Running::default());
        let (program, libraries) = (self.program.clone(), self.libraries.clone());
        let (to, own, failed) = (self.to.clone(), Arc::clone(&running), self.failed);
        let latest = Arc::clone(&self.roll);
        let thread = thread::Builder::new().name("gpu-events".into()).spawn(move || {
            let roll = |gpus: &str| {
                let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
                if latest.as_deref() != Some(gpus) {
                    debug!(gpus, "GPUs that answer now");
                    *latest = Some(gpus.into());
                    let _ = to.send(GpuEvent::Missed);
                }
            };
            let outcome = match next_event(&program, &libraries, &own.child, roll) {
                Ok(line) => {
                    debug!(line, "the GPU driver told of an event");
                    // A library that prints for itself is no event that is known.
                    let _ = to.send(serde_json::from_str(&line).unwrap_or(GpuEvent::Other));
                    Outcome::Over
                }
                Err(Some(NO_EVENTS)) => Outcome::NoEvents,
                // Without a code it was killed.
                Err(None) => Outcome::Over,
                Err(Some(code)) => {
                    debug!(code, "the wait for events of GPUs failed");
                    // The machine is looked at once; a driver that fails each time must not make readings without end.
                    if !failed {
                        let _ = to.send(GpuEvent::Other);
                    }
                    Outcome::Failed
                }
            };
            *own.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            own.ended.notify_all();
        });
        match thread {
            Ok(_) => self.running = Some(running),
            Err(error) => {
                warn!(%error, "no events of GPUs; the machine is read again by the clock alone");
            }
        }
    }
}

impl Running {
    fn outcome(&self) -> Option<Outcome> {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for GpuEvents {
    fn drop(&mut self) {
        drop(self.release());
    }
}

impl Release {
    /// There is no child.
    pub(crate) const fn none() -> Self {
        Self(None)
    }

    /// Returns once the child is gone, or is not for too long.
    pub(crate) fn wait(self) {
        let Some(running) = self.0 else { return };
        let outcome = running.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let (outcome, waited) = running
            .ended
            .wait_timeout_while(outcome, GONE, |outcome| outcome.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        drop(outcome);
        if waited.timed_out() {
            warn!("the process that waits for events of GPUs hangs in the driver");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program in the place of a child.
    fn program(dir: &tempfile::TempDir, script: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = dir.path().join("child");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn check(script: &str, kill: bool, events: &[GpuEvent], outcome: Outcome) {
        let dir = tempfile::tempdir().unwrap();
        let (to, mut from) = tokio::sync::mpsc::unbounded_channel();
        let mut gpus = GpuEvents::new(program(&dir, script), Vec::new(), to);
        gpus.resume(false);
        let running = gpus.running.clone().unwrap();
        if kill {
            drop(gpus.release());
        }
        let outcome_of = running.outcome.lock().unwrap();
        drop(running.ended.wait_while(outcome_of, |outcome| outcome.is_none()).unwrap());
        assert_eq!(running.outcome(), Some(outcome), "{script}");
        let told: Vec<_> = std::iter::from_fn(|| from.try_recv().ok()).collect();
        assert_eq!(told, events, "{script}");
        // Without a driver only a device that came brings another child.
        gpus.resume(false);
        let again = !Arc::ptr_eq(&running, gpus.running.as_ref().unwrap());
        assert_eq!(again, outcome != Outcome::NoEvents, "{script}");
        gpus.resume(true);
        assert!(!Arc::ptr_eq(&running, gpus.running.as_ref().unwrap()), "{script}");
    }

    #[test]
    fn how_children_end() {
        check("echo '{\"xid\":79}'", false, &[GpuEvent::Xid(79)], Outcome::Over);
        check("echo '\"other\"'", false, &[GpuEvent::Other], Outcome::Over);
        // The GPUs that answer are news where nobody knew them.
        let roll = "echo 'roll GPU-a, GPU-b'; echo '{\"xid\":79}'";
        check(roll, false, &[GpuEvent::Missed, GpuEvent::Xid(79)], Outcome::Over);
        check(
            "echo 'roll GPU-a'; exit 1",
            false,
            &[GpuEvent::Missed, GpuEvent::Other],
            Outcome::Failed,
        );
        check("exit 3", false, &[], Outcome::NoEvents);
        check("exit 1", false, &[GpuEvent::Other], Outcome::Failed);
        check("exec sleep 600", true, &[], Outcome::Over);
    }

    /// A GPU that is gone when the next child starts is told once.
    #[test]
    fn what_nobody_heard_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let (to, mut from) = tokio::sync::mpsc::unbounded_channel();
        let gpus = dir.path().join("gpus");
        let script = format!("cat {}", gpus.display());
        let mut events = GpuEvents::new(program(&dir, &script), Vec::new(), to);
        for (answer, told) in
            [("a, b", 1), ("a, b", 0), ("a, GPU is lost", 1), ("a, GPU is lost", 0), ("a, b", 1)]
        {
            std::fs::write(&gpus, format!("roll {answer}\n\"other\"\n")).unwrap();
            events.resume(false);
            let running = events.running.clone().unwrap();
            let outcome = running.outcome.lock().unwrap();
            drop(running.ended.wait_while(outcome, |outcome| outcome.is_none()).unwrap());
            let heard = std::iter::from_fn(|| from.try_recv().ok());
            let missed = heard.filter(|event| *event == GpuEvent::Missed).count();
            assert_eq!(missed, told, "{answer}");
        }
    }
}
