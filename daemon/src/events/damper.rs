//! From events to the time of a reading. Pure: it is told what time it is.
//!
//! A device that comes or goes sends a burst of events, so a reading waits until they have been quiet for a moment, but
//! not for ever. A device that flaps would make generation after generation, each of which ends plans: after a few changes in a
//! minute readings are held apart until it has been quiet for longer.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Silence after which a burst counts as over.
const QUIET: Duration = Duration::from_millis(300);
/// Longest wait for that silence.
const LONGEST: Duration = Duration::from_secs(3);
/// So many changes within [`WINDOW`] are flapping,
const FLAPS: usize = 4;
const WINDOW: Duration = Duration::from_secs(60);
/// which holds readings this far apart until the window is empty again.
const HELD: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Damper {
    /// First and latest event that no reading covers.
    burst: Option<(Instant, Instant)>,
    /// Start of the latest reading.
    read: Option<Instant>,
    /// Latest changes.
    changes: VecDeque<Instant>,
    flapping: bool,
}

impl Damper {
    /// Something happened.
    pub(super) fn event(&mut self, now: Instant) {
        let first = self.burst.map_or(now, |(first, _)| first);
        self.burst = Some((first, now));
    }

    /// A reading begins.
    pub(super) fn reading(&mut self, now: Instant) {
        self.burst = None;
        self.read = Some(now);
        self.forget(now);
    }

    /// A reading found a difference; whether flapping begins with it.
    pub(super) fn changed(&mut self, now: Instant) -> bool {
        self.forget(now);
        self.changes.push_back(now);
        let began = !self.flapping && self.changes.len() >= FLAPS;
        self.flapping |= began;
        began
    }

    /// When the next reading is due for the events so far.
    pub(super) fn due(&self) -> Option<Instant> {
        let (first, last) = self.burst?;
        let settled = (last + QUIET).min(first + LONGEST);
        match self.read {
            Some(read) if self.flapping => Some(settled.max(read + HELD)),
            _ => Some(settled),
        }
    }

    fn forget(&mut self, now: Instant) {
        while self.changes.front().is_some_and(|change| now.duration_since(*change) > WINDOW) {
            self.changes.pop_front();
        }
        self.flapping &= !self.changes.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events, readings (`r`) and changes (`c`) at milliseconds; then when a reading is due.
    #[track_caller]
    fn check(steps: &[(u64, char)], due_ms: Option<u64>) {
        let start = Instant::now();
        let mut damper = Damper::default();
        for &(ms, what) in steps {
            let now = start + Duration::from_millis(ms);
            match what {
                'e' => damper.event(now),
                'r' => damper.reading(now),
                _ => drop(damper.changed(now)),
            }
        }
        let due = damper.due().map(|due| u64::try_from((due - start).as_millis()).unwrap());
        assert_eq!(due, due_ms, "{steps:?}");
    }

    #[test]
    fn bursts_settle_and_flapping_is_held() {
        check(&[], None);
        check(&[(0, 'e')], Some(300));
        check(&[(0, 'e'), (200, 'e')], Some(500));
        // A burst that never ends.
        let endless: Vec<_> = (0..50).map(|i| (i * 100, 'e')).collect();
        check(&endless, Some(3000));
        check(&[(0, 'e'), (300, 'r')], None);
        check(&[(0, 'e'), (300, 'r'), (310, 'e')], Some(610));
        let mut flapping: Vec<(u64, char)> = (0..4)
            .flat_map(|i| [(i * 1000, 'e'), (i * 1000 + 300, 'r'), (i * 1000 + 400, 'c')])
            .collect();
        flapping.push((4000, 'e'));
        check(&flapping, Some(33_300));
        // Quiet for the window, and it is over.
        flapping.extend([(33_300, 'r'), (99_000, 'r'), (99_100, 'e')]);
        check(&flapping, Some(99_400));
    }

    #[test]
    fn flapping_is_told_once() {
        let mut damper = Damper::default();
        let now = Instant::now();
        let told: Vec<bool> = (0..6).map(|_| damper.changed(now)).collect();
        assert_eq!(told, [false, false, false, true, false, false]);
    }
}
