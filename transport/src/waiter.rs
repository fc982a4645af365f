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

use crate::arena::Arena;
use crate::link::Interest;
use crate::link::shm::{Doorbell, Pair};

/// Rounds of spinning, each a poll of every lane and a pause: 20 to 50 us. Longer costs more than it gains as soon as
/// two ranks find themselves on one core.
const SPINS: u32 = 500;
/// Rounds of yielding: 0.1 ms alone on a core, longer with others to run.
const YIELDS: u32 = 128;
/// Rounds of yielding where others have to run on this core before anything can move.
const MANY_YIELDS: u32 = 1024;
/// Longest sleep between two looks at the control connections by a rank that waits for the arena.
const NAP: Duration = Duration::from_millis(20);
/// The same for a rank that waits for sockets as well, whose sleep the arena's bell does not end.
const SHORT_NAP: Duration = Duration::from_millis(1);
/// Yields between two looks at the control connections.
const LOOK: u32 = 64;

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
    arena: Option<Arc<Arena>>,
    /// What the bell in the arena said when this rank raised its flag.
    bell: Option<u32>,
    spins: u32,
    yields: u32,
    idle: u32,
    armed: bool,
    /// Times it slept, for statistics.
    pub(crate) sleeps: u64,
}

impl Waiter {
    pub(crate) fn new(
        doorbell: Doorbell,
        pairs: Vec<Arc<Pair>>,
        arena: Option<Arc<Arena>>,
        oversubscribed: bool,
    ) -> Self {
        // Where others have to run on this core first, a yield lets them; alone on a core it returns at once.
        let (spins, yields) = if oversubscribed { (0, MANY_YIELDS) } else { (SPINS, YIELDS) };
        let (bell, armed) = (None, false);
        Self { doorbell, pairs, arena, bell, spins, yields, idle: 0, armed, sleeps: 0 }
    }

    /// Something moved.
    pub(crate) fn moved(&mut self) {
        self.idle = 0;
        if self.armed {
            self.disarm();
        }
    }

    /// Whether others have to run on this core before anything can move.
    pub(crate) const fn shares_core(&self) -> bool {
        self.spins == 0
    }

    fn arm(&mut self) {
        self.armed = true;
        // The pairs first: what makes their peers pass a fence, where these have none of their own, is in the arena's.
        self.pairs.iter().for_each(|pair| pair.arm());
        self.bell = self.arena.as_ref().map(|arena| arena.arm());
    }

    fn disarm(&mut self) {
        self.armed = false;
        self.pairs.iter().for_each(|pair| pair.disarm());
        if let (Some(arena), Some(_)) = (&self.arena, self.bell.take()) {
            arena.disarm();
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
        if yields <= self.yields {
            std::thread::yield_now();
            return if yields.is_multiple_of(LOOK) { Pause::Look } else { Pause::Again };
        }
        if !self.armed {
            self.arm();
            return Pause::Again;
        }
        Pause::Sleep
    }

    /// Sleeps until a peer rings, a descriptor is ready, or `limit` has passed.
    pub(crate) fn sleep<'a>(
        &mut self,
        control: impl Iterator<Item = BorrowedFd<'a>>,
        interests: impl Iterator<Item = Interest<'a>>,
        mut limit: Duration,
    ) {
        let mut interests = interests.peekable();
        match (&self.arena, self.bell) {
            // Whatever moves next is in the arena; the control connections are looked at in between.
            (Some(arena), Some(bell)) if interests.peek().is_none() => {
                arena.sleep(bell, limit.min(NAP));
                return self.awake();
            }
            (Some(_), Some(_)) => limit = limit.min(SHORT_NAP),
            _ => {}
        }
        let mut fds = vec![readable(self.doorbell.descriptor().as_fd())];
        for fd in control {
            fds.push(readable(fd));
        }
        for interest in interests {
            match interest {
                Interest::Doorbell => {}
                Interest::Readable(fd) => fds.push(readable(fd)),
                Interest::Either(one, other) => fds.extend([one, other].map(readable)),
                Interest::Writable(fd) => {
                    fds.push(PollFd::from_borrowed_fd(fd, PollFlags::OUT));
                }
            }
        }
        let limit = Timespec::try_from(limit).unwrap_or_default();
        // Whether something is ready, time is up or a signal came: the caller polls everything again.
        let _ = poll(&mut fds, Some(&limit));
        self.doorbell.clear();
        self.awake();
    }

    fn awake(&mut self) {
        self.disarm();
        self.sleeps += 1;
        // Woken for nothing, it goes back to sleep after a few yields.
        self.idle = self.spins + self.yields - LOOK / 4;
    }
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}
