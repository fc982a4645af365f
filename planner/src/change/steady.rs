//! Hysteresis: which changes of rates are taken for real.
//!
//! ```text
//!   sample    100  100   60  100   60   60   60   60        kB/s, say
//!   taken     100                             60           after three samples in a row that say the same
//! ```
//!
//! A rate that moves by less than a tenth is the same rate. Another one counts once it came three times in a row. A link that is gone counts
//! at once, for a plan that needs it can do nothing; it comes back like any other change.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Samples in a row that make a change.
pub const SAMPLES: u32 = 3;
/// Part of a rate, in percent, below which a difference is none.
pub const PERCENT: u64 = 10;

/// Rates as taken for real, by whatever names links.
#[derive(Clone, Debug, Default)]
pub struct Steady<K> {
    links: BTreeMap<K, Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    taken: u64,
    /// Another rate that was seen, and how often in a row.
    seen: Option<(u64, u32)>,
}

/// A change that is taken for real.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<K> {
    /// Which link.
    pub link: K,
    /// Rate before, kB/s.
    pub from_kbps: u64,
    /// Rate from now on, kB/s; 0 where the link is gone.
    pub to_kbps: u64,
}

impl<K: Ord + Clone> Steady<K> {
    /// The first sample, which is believed.
    #[must_use]
    pub fn new(rates_kbps: impl IntoIterator<Item = (K, u64)>) -> Self {
        let held = |(link, taken)| (link, Held { taken, seen: None });
        Self { links: rates_kbps.into_iter().map(held).collect() }
    }

    /// The rate that a link is taken to have, kB/s.
    #[must_use]
    pub fn rate_kbps(&self, link: &K) -> u64 {
        self.links.get(link).map_or(0, |held| held.taken)
    }

    /// Takes a sample of all links; what is missing is gone. The changes it makes, by link.
    pub fn sample(&mut self, rates_kbps: &BTreeMap<K, u64>) -> Vec<Change<K>> {
        for link in rates_kbps.keys() {
            self.links.entry(link.clone()).or_insert(Held { taken: 0, seen: None });
        }
        let mut changes = Vec::new();
        for (link, held) in &mut self.links {
            let rate = rates_kbps.get(link).copied().unwrap_or(0);
            if alike(held.taken, rate) {
                held.seen = None;
                continue;
            }
            let times = match held.seen {
                Some((before, times)) if alike(before, rate) => times + 1,
                _ => 1,
            };
            if times >= SAMPLES || rate == 0 {
                changes.push(Change { link: link.clone(), from_kbps: held.taken, to_kbps: rate });
                *held = Held { taken: rate, seen: None };
            } else {
                held.seen = Some((rate, times));
            }
        }
        changes
    }
}

/// Whether two rates differ by less than a tenth of the larger, and neither alone is zero.
fn alike(a: u64, b: u64) -> bool {
    let (low, high) = (a.min(b), a.max(b));
    a == b || (low > 0 && u128::from(high - low) * 100 < u128::from(high) * u128::from(PERCENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rates as taken after each sample of one link that begins with the first.
    #[track_caller]
    fn check(samples: &[u64], taken: &[u64]) {
        let mut steady = Steady::new([("link", samples[0])]);
        let after: Vec<u64> = samples
            .iter()
            .map(|&rate| {
                steady.sample(&BTreeMap::from([("link", rate)]));
                steady.rate_kbps(&"link")
            })
            .collect();
        assert_eq!(after, taken);
    }

    #[test]
    fn three_samples_make_a_change() {
        check(&[100, 60, 60, 60, 60], &[100, 100, 100, 60, 60]);
        check(&[100, 60, 100, 60, 60, 100], &[100; 6]);
        check(&[100, 60, 62, 58, 60], &[100, 100, 100, 58, 58]);
        check(&[100, 60, 30, 60, 30], &[100; 5]);
    }

    #[test]
    fn small_moves_are_none() {
        check(&[100, 95, 91, 109, 95], &[100; 5]);
    }

    #[test]
    fn what_is_gone_is_gone_at_once_and_comes_back_slowly() {
        check(&[100, 0, 100, 100, 100], &[100, 0, 0, 0, 100]);
        check(&[100, 0, 100, 0, 100, 100, 0, 100], &[100, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_link_that_is_not_in_the_sample_is_gone() {
        let mut steady = Steady::new([("a", 100), ("b", 50)]);
        let found = steady.sample(&BTreeMap::from([("a", 100)]));
        assert_eq!(found, [Change { link: "b", from_kbps: 50, to_kbps: 0 }]);
        for _ in 0..SAMPLES {
            steady.sample(&BTreeMap::from([("a", 100), ("c", 70)]));
        }
        assert_eq!(steady.rate_kbps(&"c"), 70);
    }

    proptest! {
        /// However rates flap, no more than every third sample makes a change but those that a lost link makes, of which none follows another
        /// before it came back.
        #[test]
        fn flapping_makes_few_changes(rates in proptest::collection::vec(prop_oneof![Just(0_u64), 1_u64..200], 1..60)) {
            let mut steady = Steady::new([(0, 100)]);
            let (mut changes, mut lost) = (0, 0);
            for rate in &rates {
                for change in steady.sample(&BTreeMap::from([(0, *rate)])) {
                    if change.to_kbps == 0 { lost += 1 } else { changes += 1 }
                }
            }
            prop_assert!(changes <= rates.len() / SAMPLES as usize);
            prop_assert!(lost <= changes + 1);
        }
    }
}
