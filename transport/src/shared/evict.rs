//! Whether other ranks are to drop from their caches what they have read of this rank's stage.
//!
//! To write a line that another core has read, its copy has to be found and given up. Between cores of one cache that is soon over, and a
//! stage that is longer than second-level caches sees little of it. Between cores of different caches it took 20 to 25 ns a line,
//! where a line that no cache holds took 3, and dropping it costs its reader another 3 (AMD Zen, two virtual cores of one socket).
//!
//! Which it is cannot be asked for (a virtual core moves), so it is measured: what a rank writes on its stage it times, with lines
//! dropped and without, and now and then tries the other way.

/// Picoseconds a byte from which a stage is slow to write: 4 GB/s, less than any memory has for one core.
const SLOW: u64 = 250;
/// Dropping is to make it at least so much faster, in tenths.
const GAIN: u64 = 7;
/// Bytes to write one way before the other is tried again.
const LOOK: usize = 256 << 20;
/// Bytes to write before what is measured counts: laps of a stage that show how it was before.
const SETTLE: usize = 4 << 20;
/// Bytes that are measured then.
const MEASURE: u64 = 2 << 20;

/// What a rank has found.
#[derive(Debug, Default)]
pub(super) struct Asking {
    pub(super) asks: bool,
    /// Written since it last changed its mind.
    bytes: usize,
    /// Picoseconds and bytes of what counts of that.
    spent: (u64, u64),
    /// Picoseconds a byte, as measured last without and with dropping.
    cost: [Option<u64>; 2],
}

impl Asking {
    /// Takes in that so many bytes took so long; whether this rank asks for something else from now on.
    pub(super) fn wrote(&mut self, bytes: usize, nanoseconds: u64) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes < SETTLE {
            return false;
        }
        self.spent.0 = self.spent.0.saturating_add(nanoseconds.saturating_mul(1000));
        self.spent.1 += bytes as u64;
        if self.spent.1 < MEASURE {
            return false;
        }
        let cost = self.spent.0 / self.spent.1;
        self.cost[usize::from(self.asks)] = Some(cost);
        self.spent = (0, 0);
        let changes = match (self.asks, self.cost) {
            // Not yet known whether it helps, or it did when it was tried last; or long ago.
            (false, [_, dropped]) => {
                cost > SLOW
                    && (dropped.is_none_or(|dropped| dropped * 10 < cost * GAIN)
                        || self.bytes >= LOOK)
            }
            (true, [kept, _]) => {
                kept.is_some_and(|kept| cost * 10 >= kept * GAIN) || self.bytes >= LOOK
            }
        };
        if changes {
            self.asks = !self.asks;
            self.bytes = 0;
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes for long; what share of it was with dropping, in percent.
    fn share(cost: impl Fn(bool) -> u64) -> usize {
        let mut asking = Asking::default();
        let (mut with, all) = (0, 40_000);
        for _ in 0..all {
            with += usize::from(asking.asks);
            let bytes = 64 << 10;
            asking.wrote(bytes, cost(asking.asks) * bytes as u64 / 1000);
        }
        with * 100 / all
    }

    #[test]
    fn what_is_slow_is_dropped_where_that_helps() {
        assert_eq!(share(|_| 30), 0, "fast");
        assert!(share(|asks| if asks { 50 } else { 400 }) > 90, "slow, and dropping helps");
        assert!(
            share(|asks| if asks { 390 } else { 400 }) < 10,
            "slow, and dropping does not help"
        );
    }

    #[test]
    fn a_machine_that_changes_is_followed() {
        let mut asking = Asking::default();
        let mut run = |slow: bool| {
            for _ in 0..20_000 {
                let cost = if slow && !asking.asks { 400 } else { 40 };
                asking.wrote(64 << 10, cost * 65_536 / 1000);
            }
            asking.asks
        };
        assert!(!run(false));
        assert!(run(true));
        assert!(!run(false));
        assert!(run(true));
    }
}
