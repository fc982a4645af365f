//! How a rank waits: as briefly as others allow.
//!
//! ```text
//!   spin (a core each) ──▶ yield ──▶ raise the flags, poll once more ──▶ sleep until a descriptor or the doorbell
//!      ▲ 0.1 us             ▲ 0.8 us                                        ▲ 5 us and more
//!      └────────────────────┴──── progress ─────────────────────────────────┘
//! ```
//!
//! Where more ranks than cores share a host, spinning only keeps others from running, so it is left out.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::link::Interest;
use crate::link::shm::{Doorbell, Pair};

/// Rounds of spinning, each a poll of every lane and a pause: 20 to 50 us. Longer costs more than it gains as soon as
/// two ranks find themselves on one core.
const SPINS: u32 = 500;
/// Rounds of yielding: 0.1 ms alone on a core, longer with others to run.
const YIELDS: u32 = 128;
/// Yields between two looks at the control connections.
const LOOK: u32 = 32;

/// What to do before polling again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Nothing.
    Again,
    /// Look at the control connections.
    Look,
    /// Sleep by [`Waiter::sleep`], then look.
    Sleep,
}

#[derive(Debug)]
pub(crate) struct Waiter {
    doorbell: Doorbell,
    pairs: Vec<Arc<Pair>>,
    spins: u32,
    idle: u32,
    armed: bool,
    /// Times it slept, for statistics.
    pub(crate) sleeps: u64,
}

impl Waiter {
    pub(crate) fn new(doorbell: Doorbell, pairs: Vec<Arc<Pair>>, oversubscribed: bool) -> Self {
        let spins = if oversubscribed { 0 } else { SPINS };
        Self { doorbell, pairs, spins, idle: 0, armed: false, sleeps: 0 }
    }

    /// Something moved.
    pub(crate) fn moved(&mut self) {
        self.idle = 0;
        if std::mem::take(&mut self.armed) {
            self.pairs.iter().for_each(|pair| pair.disarm());
        }
    }

    /// Nothing moved.
    pub(crate) fn idle(&mut self) -> Pause {
        self.idle += 1;
        if self.idle <= self.spins {
            std::hint::spin_loop();
            return Pause::Again;
        }
        let yields = self.idle - self.spins;
        if yields <= YIELDS {
            std::thread::yield_now();
            return if yields.is_multiple_of(LOOK) { Pause::Look } else { Pause::Again };
        }
        if !self.armed {
            self.armed = true;
            self.pairs.iter().for_each(|pair| pair.arm());
            return Pause::Again;
        }
        Pause::Sleep
    }

    /// Sleeps until a peer rings, a descriptor is ready, or `limit` has passed.
    pub(crate) fn sleep<'a>(
        &mut self,
        control: impl Iterator<Item = BorrowedFd<'a>>,
        interests: impl Iterator<Item = Interest<'a>>,
        limit: Duration,
    ) {
        let mut fds = vec![readable(self.doorbell.descriptor().as_fd())];
        for fd in control {
            fds.push(readable(fd));
        }
        for interest in interests {
            match interest {
                Interest::Doorbell => {}
                Interest::Readable(fd) => fds.push(readable(fd)),
                Interest::Writable(fd) => {
                    fds.push(PollFd::from_borrowed_fd(fd, PollFlags::OUT));
                }
            }
        }
        let limit = Timespec::try_from(limit).unwrap_or_default();
        // Whether something is ready, time is up or a signal came: the caller polls everything again.
        let _ = poll(&mut fds, Some(&limit));
        self.doorbell.clear();
        self.armed = false;
        self.pairs.iter().for_each(|pair| pair.disarm());
        self.sleeps += 1;
        // Woken for nothing, it goes back to sleep after a few yields.
        self.idle = self.spins + YIELDS - LOOK / 4;
    }
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}
