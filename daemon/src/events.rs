//! When to read the machine again without being asked.
//!
//! ```text
//!   kernel uevents ─▶ those of the machine's devices ─┐
//!   NVML events ─▶ those of the machine, not of jobs ─┤
//!                                                     ├─▶ damper ─▶ a reading is due ─▶ another generation, if anything differs
//!   a slow clock, for what sends no event ────────────┘
//! ```
//!
//! Nothing here wakes up while nothing happens but for the slow clock. A port that goes down sends no event: the clock finds that.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use damper::Damper;
use gpu::GpuEvents;
use source::Source;
use uevent::Uevent;

pub(crate) use gpu::Release;

use crate::probe::{GpuEvent, ProbeConfig};

mod damper;
mod gpu;
mod source;
mod uevent;

/// Events of GPUs are listened to no more often than this.
const GPUS_APART: Duration = Duration::from_secs(10);

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
    gpus: Option<(GpuEvents, UnboundedReceiver<GpuEvent>)>,
    /// Whether devices came or went since the latest reading began.
    heard: bool,
    /// When the GPUs' latest event came, and when they are watched again.
    quiet: (Option<Instant>, Option<Instant>),
    damper: Damper,
    every: Option<Duration>,
    clock: Option<Instant>,
}

impl Watch {
    /// A source that cannot be had is a warning: the clock remains. `machine` is how the machine is probed, where it is: its GPU
    /// driver tells of events too.
    pub(crate) fn new(
        from: &EventSource,
        machine: Option<&ProbeConfig>,
        every: Option<Duration>,
    ) -> Self {
        let source = match Source::open(from) {
            Ok(source) => source,
            Err(error) => {
                let clock =
                    every.map_or_else(|| "never".into(), |every| format!("every {every:?}"));
                warn!(%error, clock, "no device events; the machine is read again by the clock alone");
                None
            }
        };
        let gpus = machine.filter(|_| *from != EventSource::None).and_then(|machine| {
            let (to, told) = unbounded_channel();
            Some((GpuEvents::new(machine.nvml_program.clone()?, machine.libraries()?, to), told))
        });
        Self {
            source,
            gpus,
            heard: true,
            quiet: (None, None),
            damper: Damper::default(),
            every,
            clock: None,
        }
    }

    /// Reads the machine so often from the next reading on.
    pub(crate) fn set_poll(&mut self, every: Option<Duration>) {
        self.every = every;
    }

    /// A reading begins: it covers whatever was told so far. It waits for the release first.
    pub(crate) fn reading(&mut self) -> Release {
        self.damper.reading(Instant::now());
        // A time that no clock reaches never comes.
        self.clock = self.every.and_then(|every| Instant::now().checked_add(every));
        self.gpus.as_ref().map_or(Release::none(), |(events, _)| events.release())
    }

    /// A reading has ended: GPUs may be watched again.
    pub(crate) fn read(&mut self) {
        let now = Instant::now();
        // A GPU that reports an error a second must not have the machine read as often.
        let until = self.quiet.0.map(|event| event + GPUS_APART).filter(|until| *until > now);
        self.quiet.1 = Some(until.unwrap_or(now));
        self.watch_gpus();
    }

    /// Watches the GPUs where it is time.
    fn watch_gpus(&mut self) {
        if self.quiet.1.is_none_or(|at| at > Instant::now()) {
            return;
        }
        self.quiet.1 = None;
        let heard = std::mem::take(&mut self.heard);
        if let Some((events, _)) = &mut self.gpus {
            events.resume(heard);
        }
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
            let gpus = self.quiet.1;
            tokio::select! {
                message = receive(&mut self.source) => self.heard(&message),
                event = told(&mut self.gpus) => self.told(event),
                () = until(gpus) => self.watch_gpus(),
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
                self.heard = true;
                self.damper.event(Instant::now());
            }
            // Others are none of ours.
            _ => {}
        }
    }

    fn told(&mut self, event: GpuEvent) {
        match event {
            GpuEvent::Xid(number) => info!(xid = number, "a GPU reports an error"),
            GpuEvent::Other => {}
            GpuEvent::Missed => {
                // It happened in the past, and is said once: no reason to look away.
                self.damper.event(Instant::now());
                return;
            }
        }
        self.quiet.0 = Some(Instant::now());
        self.damper.event(Instant::now());
    }
}

/// The next event of the GPUs; for ever where none can come.
async fn told(gpus: &mut Option<(GpuEvents, UnboundedReceiver<GpuEvent>)>) -> GpuEvent {
    match gpus {
        Some((_, told)) => match told.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest time that a configuration can name is far away and no panic.
    #[tokio::test(start_paused = true)]
    async fn the_clock_has_no_longest_time() {
        for seconds in [u64::MAX, u64::MAX / 2, 1 << 40] {
            let every = Some(Duration::from_secs(seconds));
            let mut watch = Watch::new(&EventSource::None, None, every);
            watch.reading();
            let soon = tokio::time::timeout(Duration::from_secs(3600), watch.due()).await;
            assert!(soon.is_err(), "{seconds}");
        }
        let mut watch = Watch::new(&EventSource::None, None, Some(Duration::from_secs(7)));
        watch.reading();
        assert_eq!(watch.due().await, Due::Clock);
    }
}
