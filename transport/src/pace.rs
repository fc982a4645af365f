//! A budget of bytes a second for what a rank sends.
//!
//! Kept as one time: when what was sent so far would be over at the budget's rate. A message may go while that lies no further ahead than
//! a burst; so in any time t at most `rate x (t + burst)` and one message go. Integers alone, rounded so that never more goes.

use std::fmt;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// How far ahead of its rate a rank may send: enough that short operations are not cut up.
const BURST: Duration = Duration::from_millis(10);

/// What time it is, from any beginning.
pub(crate) type Clock = Box<dyn Fn() -> Duration + Send>;

/// The system's.
pub(crate) fn monotonic() -> Clock {
    let start = Instant::now();
    Box::new(move || start.elapsed())
}

pub(crate) struct Pace {
    bytes_per_s: NonZeroU64,
    clock: Clock,
    now_ns: u64,
    /// When all that was sent is over.
    over_ns: u64,
    /// Since when a message waits.
    held_since_ns: Option<u64>,
    held_ns: u64,
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pace")
            .field("bytes_per_s", &self.bytes_per_s)
            .field("held_ns", &self.held_ns)
            .finish_non_exhaustive()
    }
}

impl Pace {
    pub(crate) fn new(bytes_per_s: NonZeroU64, clock: Clock) -> Self {
        Self { bytes_per_s, clock, now_ns: 0, over_ns: 0, held_since_ns: None, held_ns: 0 }
    }

    /// Looks at the clock.
    pub(crate) fn tick(&mut self) {
        self.now_ns = nanoseconds((self.clock)()).max(self.now_ns);
    }

    /// Whether a message may go now.
    pub(crate) fn allows(&mut self) -> bool {
        let allowed = self.over_ns <= self.now_ns.saturating_add(nanoseconds(BURST));
        if !allowed {
            self.held_since_ns.get_or_insert(self.now_ns);
        } else if let Some(since) = self.held_since_ns.take() {
            self.held_ns = self.held_ns.saturating_add(self.now_ns - since);
        }
        allowed
    }

    /// A message goes.
    pub(crate) fn spend(&mut self, bytes: usize) {
        let takes = span_ns(bytes as u64, self.bytes_per_s);
        self.over_ns = self.over_ns.max(self.now_ns).saturating_add(takes);
    }

    /// How long until the message that waits may go; `None` where none waits.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.held_since_ns?;
        let left = self.over_ns.saturating_sub(self.now_ns).saturating_sub(nanoseconds(BURST));
        Some(Duration::from_nanos(left))
    }

    /// How long messages waited for the budget, in all, up to the last look at the clock.
    pub(crate) fn held(&self) -> Duration {
        let since = self.held_since_ns.map_or(0, |since| self.now_ns - since);
        Duration::from_nanos(self.held_ns.saturating_add(since))
    }
}

/// How long so many bytes take at a rate; saturating.
pub(crate) fn span_ns(bytes: u64, bytes_per_s: NonZeroU64) -> u64 {
    let takes = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_s.get()));
    u64::try_from(takes).unwrap_or(u64::MAX)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Messages of `bytes` that go by each of these times in milliseconds, as often as asked for.
    #[track_caller]
    fn goes(rate: u64, bytes: usize, times_ms: &[u64], expected: &[u64]) {
        let now = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&now);
        let clock: Clock = Box::new(move || Duration::from_millis(read.load(Ordering::Relaxed)));
        let mut pace = Pace::new(NonZeroU64::new(rate).unwrap(), clock);
        let mut gone = 0;
        let mut found = Vec::new();
        for at in times_ms {
            now.store(*at, Ordering::Relaxed);
            pace.tick();
            while gone < 1_000_000 && pace.allows() {
                pace.spend(bytes);
                gone += 1;
            }
            found.push(gone);
        }
        assert_eq!(found, expected, "{bytes} bytes at {rate} a second");
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        // 1000 bytes a millisecond: ten in the burst, and the one that goes at its end. Idle time is not saved up.
        goes(1_000_000, 1000, &[0, 0, 1, 5, 105], &[11, 11, 12, 16, 27]);
        goes(1_000_000, 1000, &[1000, 1001], &[11, 12]);
        // A message larger than the burst goes by itself, and the next when it is paid for.
        goes(1_000_000, 1 << 20, &[0, 1000, 1039, 1040], &[1, 1, 2, 2]);
        goes(u64::MAX, 1, &[0], &[1_000_000]);
        goes(1, 1, &[0, 989, 990], &[1, 1, 2]);
    }

    #[test]
    fn what_waits_is_known() {
        let now = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&now);
        let clock: Clock = Box::new(move || Duration::from_millis(read.load(Ordering::Relaxed)));
        let mut pace = Pace::new(NonZeroU64::new(1000).unwrap(), clock);
        pace.tick();
        assert!(pace.allows() && pace.wait().is_none());
        pace.spend(100);
        assert!(!pace.allows());
        assert_eq!(pace.wait(), Some(Duration::from_millis(90)));
        now.store(60, Ordering::Relaxed);
        pace.tick();
        assert!(!pace.allows());
        assert_eq!(
            (pace.wait(), pace.held()),
            (Some(Duration::from_millis(30)), Duration::from_millis(60))
        );
        now.store(100, Ordering::Relaxed);
        pace.tick();
        assert!(pace.allows() && pace.wait().is_none());
        assert_eq!(pace.held(), Duration::from_millis(100));
    }
}
