//! When to read the machine again without being asked.
//!
//! ```text
//!   kernel uevents ─▶ those of the machine's devices ─┐
//!                                                     ├─▶ damper ─▶ a reading is due ─▶ another generation, if anything differs
//!   a slow clock, for what sends no event ────────────┘
//! ```
//!
//! Nothing here wakes up while nothing happens but for the slow clock. A port that goes down, and facts that
//! only NVML knows, send no uevent: the clock finds those.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use damper::Damper;
use source::Source;
use uevent::Uevent;

mod damper;
mod source;
mod uevent;

/// Where news of devices come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EventSource {
    /// Nowhere.
    None,
    /// The kernel.
    #[default]
    Kernel,
    /// Datagrams in the kernel's form, to a Unix socket that is made at this path: recorded machines and tests.
    Socket(PathBuf),
}

/// Why the machine is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Devices sent events.
    Events,
    /// It is time.
    Clock,
}

/// Waits for a reason to read the machine.
#[derive(Debug)]
pub(crate) struct Watch {
    source: Option<Source>,
    damper: Damper,
    every: Option<Duration>,
    clock: Option<Instant>,
}

impl Watch {
    /// A source that cannot be had is a warning: the clock remains.
    pub(crate) fn new(from: &EventSource, every: Option<Duration>) -> Self {
        let source = match Source::open(from) {
            Ok(source) => source,
            Err(error) => {
                let clock =
                    every.map_or_else(|| "never".into(), |every| format!("every {every:?}"));
                warn!(%error, clock, "no device events; the machine is read again by the clock alone");
                None
            }
        };
        Self { source, damper: Damper::default(), every, clock: None }
    }

    /// A reading begins: it covers whatever was told so far.
    pub(crate) fn reading(&mut self) {
        self.damper.reading(Instant::now());
        self.clock = self.every.map(|every| Instant::now() + every);
    }

    /// A reading that an event or the clock caused found a difference. Whether that is once too often lately, for the first time.
    pub(crate) fn changed(&mut self) -> bool {
        self.damper.changed(Instant::now())
    }

    /// Returns when a reading is due. May be dropped and called again at any point.
    pub(crate) async fn due(&mut self) -> Due {
        loop {
            let settled = self.damper.due();
            let next = [settled, self.clock].into_iter().flatten().min();
            tokio::select! {
                message = receive(&mut self.source) => self.heard(&message),
                () = until(next) => {
                    return if settled.is_some() && settled == next { Due::Events } else { Due::Clock };
                }
            }
        }
    }

    fn heard(&mut self, message: &[u8]) {
        match Uevent::parse(message) {
            Some(event) if event.concerns_the_machine() => {
                debug!(action = event.action, device = event.path, "device event");
                self.damper.event(Instant::now());
            }
            // Others are none of ours.
            _ => {}
        }
    }
}

/// The next message; for ever where none can come.
async fn receive(source: &mut Option<Source>) -> Vec<u8> {
    loop {
        let Some(open) = source else { return std::future::pending().await };
        match open.receive().await {
            Ok(message) => return message,
            // More events than the socket holds: something happened, whatever it was.
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) =>
            {
                return uevent::LOST.to_vec();
            }
            Err(error) => {
                warn!(%error, "device events ended; the machine is read again by the clock alone");
                *source = None;
            }
        }
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
