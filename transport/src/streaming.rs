//! Whether a rank writes what others read past the caches.
//!
//! To write a line that another core has read, its copy has to be found and given up, and its data comes along, to be overwritten. Between
//! cores of one cache that is soon over, and memory that is used in turn and is longer than second-level caches sees little of it: 2 to 3
//! ns a line. Between cores of different caches it took 16 to 28 ns. Past the caches it takes 1 to 4 ns wherever the cores are; but then
//! the reader finds the line in memory, where between cores of one cache it would find it there (AMD Zen 4, two virtual cores of one
//! socket).
//!
//! Which it is cannot be asked for (a virtual core moves), so it is measured: what a rank writes it times, and now and then it tries the
//! other way.

use std::time::Instant;

use crate::memory::stream::{LEAST_BYTES, STREAMS};

/// Picoseconds a byte from which memory is slow to write: 5 GB/s, less than any memory has for one core.
const SLOW: u64 = 200;
/// Past the caches it is to be at least so much faster, in tenths.
const GAIN: u64 = 7;
/// Bytes from which every message is timed; of shorter ones, which would feel it, one in [`SAMPLE`].
const TIMED_BYTES: usize = 32 << 10;
const SAMPLE: u32 = 8;
/// Picoseconds a byte that a write counts for at most: one during which the core did something else says nothing of memory, and would
/// outweigh a hundred others.
const MOST: u64 = 4 * SLOW;
/// Bytes to write one way before the other is tried again.
const LOOK: usize = 256 << 20;
/// Bytes to write before what is measured counts: laps of the memory that show how it was before.
const SETTLE: usize = 4 << 20;
/// Bytes that are measured then.
const MEASURE: u64 = 2 << 20;

/// What a rank has found.
#[derive(Debug, Default)]
pub(crate) struct Streaming {
    /// Whether it writes past the caches now.
    pub(crate) on: bool,
    /// Short messages until the next one is timed.
    untimed: u32,
    /// Written since it last changed its mind.
    bytes: usize,
    /// Picoseconds and bytes of what counts of that.
    spent: (u64, u64),
    /// Picoseconds a byte, as measured last through and past the caches.
    cost: [Option<u64>; 2],
}

/// A message that is being written.
#[derive(Debug)]
pub(crate) struct Writing {
    begun: Instant,
    /// For how many of its length it stands.
    stands_for: u32,
}

impl Streaming {
    /// So many bytes are about to be written; `None` where that need not be timed.
    pub(crate) fn begin(&mut self, bytes: usize) -> Option<Writing> {
        if !STREAMS || bytes < LEAST_BYTES {
            return None;
        }
        let stands_for = if bytes < TIMED_BYTES { SAMPLE } else { 1 };
        self.untimed += 1;
        if self.untimed < stands_for {
            return None;
        }
        self.untimed = 0;
        Some(Writing { begun: Instant::now(), stands_for })
    }

    /// They are written.
    pub(crate) fn end(&mut self, writing: &Writing, bytes: usize) {
        let nanoseconds = u64::try_from(writing.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let times = writing.stands_for;
        self.wrote(bytes * times as usize, nanoseconds.saturating_mul(times.into()));
    }

    /// Takes in that so many bytes took so long.
    fn wrote(&mut self, bytes: usize, nanoseconds: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes < SETTLE {
            return;
        }
        let most = MOST.saturating_mul(bytes as u64);
        self.spent.0 = self.spent.0.saturating_add(nanoseconds.saturating_mul(1000).min(most));
        self.spent.1 += bytes as u64;
        if self.spent.1 < MEASURE {
            return;
        }
        let cost = self.spent.0 / self.spent.1;
        self.cost[usize::from(self.on)] = Some(cost);
        self.spent = (0, 0);
        let changes = match (self.on, self.cost) {
            // Not yet known whether it helps, or it did when it was tried last; or long ago.
            (false, [_, past]) => {
                cost > SLOW
                    && (past.is_none_or(|past| past * 10 < cost * GAIN) || self.bytes >= LOOK)
            }
            (true, [through, _]) => {
                through.is_some_and(|through| cost * 10 >= through * GAIN) || self.bytes >= LOOK
            }
        };
        if changes {
            self.on = !self.on;
            self.bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes for long; what share of it was past the caches, in percent.
    fn share(cost: impl Fn(bool) -> u64) -> usize {
        let mut streaming = Streaming::default();
        let (mut past, all) = (0, 40_000);
        for _ in 0..all {
            past += usize::from(streaming.on);
            let bytes = 64 << 10;
            streaming.wrote(bytes, cost(streaming.on) * bytes as u64 / 1000);
        }
        past * 100 / all
    }

    #[test]
    fn what_is_slow_goes_past_the_caches_where_that_helps() {
        assert_eq!(share(|_| 30), 0, "fast");
        assert!(share(|past| if past { 50 } else { 400 }) > 90, "slow, and it helps");
        assert!(share(|past| if past { 390 } else { 400 }) < 10, "slow, and it does not help");
    }

    /// A core that does something else for a millisecond, some hundred times in a second.
    #[test]
    fn what_disturbs_now_and_then_changes_nothing() {
        let mut streaming = Streaming::default();
        for write in 0..40_000 {
            let disturbed = write % 16 == 5;
            streaming.wrote(64 << 10, if disturbed { 1_000_000 } else { 2000 });
            assert!(!streaming.on, "write {write}");
        }
    }

    #[test]
    fn short_messages_are_timed_now_and_then() {
        let mut streaming = Streaming::default();
        let timed = |streaming: &mut Streaming, bytes| {
            let all = (0..80).filter_map(|_| streaming.begin(bytes));
            all.map(|writing| writing.stands_for).collect::<Vec<_>>()
        };
        let expected = if STREAMS { [0, 10, 80] } else { [0; 3] };
        for (bytes, count) in [100, 4096, TIMED_BYTES].into_iter().zip(expected) {
            let timed = timed(&mut streaming, bytes);
            assert_eq!(timed.len(), count, "{bytes} bytes");
            assert!(timed.iter().all(|stands_for| *stands_for as usize == 80 / count.max(1)));
        }
    }

    #[test]
    fn a_machine_that_changes_is_followed() {
        let mut streaming = Streaming::default();
        let mut run = |slow: bool| {
            for _ in 0..20_000 {
                let cost = if slow && !streaming.on { 400 } else { 40 };
                streaming.wrote(64 << 10, cost * 65_536 / 1000);
            }
            streaming.on
        };
        assert!(!run(false));
        assert!(run(true));
        assert!(!run(false));
        assert!(run(true));
    }
}
