//! When the ranks of a job go over to another plan: once all of them hold it.
//!
//! ```text
//!   rank 0   holds 7 ── has 8 ─────────── uses 8
//!   rank 1   holds 7 ─────────── has 8 ── uses 8        until the last rank has 8, every rank uses 7
//! ```

use alloc::vec;
use alloc::vec::Vec;

use topology::{Generation, Rank};

/// What each rank of a job holds, and which plan all use.
#[derive(Clone, Debug)]
pub struct Switch {
    /// By rank, the newest generation it has a plan of.
    held: Vec<Option<Generation>>,
    used: Option<Generation>,
}

impl Switch {
    /// Nobody holds anything.
    #[must_use]
    pub fn new(ranks: usize) -> Self {
        Self { held: vec![None; ranks], used: None }
    }

    /// A rank has the plan of a generation. Older than what it had is passed over: generations only rise. The generation that all use from now on,
    /// where this made them change it.
    pub fn holds(&mut self, rank: Rank, generation: Generation) -> Option<Generation> {
        let held = self.held.get_mut(rank.index())?;
        *held = (*held).max(Some(generation));
        let first = *self.held.first()?;
        let agreed = first.filter(|_| self.held.iter().all(|held| *held == first))?;
        if self.used == Some(agreed) {
            return None;
        }
        self.used = Some(agreed);
        self.used
    }

    /// The generation that all use.
    #[must_use]
    pub fn used(&self) -> Option<Generation> {
        self.used
    }

    /// Ranks that hold another generation than the newest anyone holds, with theirs: who is waited for.
    #[must_use]
    pub fn behind(&self) -> Vec<(usize, Option<Generation>)> {
        let newest = self.held.iter().max().copied().flatten();
        self.held.iter().copied().enumerate().filter(|(_, held)| *held != newest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_or_none() {
        let mut switch = Switch::new(2);
        assert_eq!(switch.holds(Rank(0), Generation(7)), None);
        assert_eq!(switch.holds(Rank(1), Generation(7)), Some(Generation(7)));
        assert_eq!(switch.holds(Rank(0), Generation(8)), None);
        assert_eq!(
            (switch.used(), switch.behind()),
            (Some(Generation(7)), vec![(1, Some(Generation(7)))])
        );
        // One that skips a generation brings the others to wait for it.
        assert_eq!(switch.holds(Rank(1), Generation(9)), None);
        assert_eq!(switch.holds(Rank(0), Generation(9)), Some(Generation(9)));
        assert_eq!(switch.holds(Rank(0), Generation(8)), None);
        assert_eq!(switch.used(), Some(Generation(9)));
        assert_eq!(switch.holds(Rank(5), Generation(10)), None);
    }

    proptest! {
        /// In whatever order plans arrive, what is used never falls, and everyone held it when it came into use.
        #[test]
        fn nobody_uses_what_another_lacks(arrivals in proptest::collection::vec((0_u32..4, 0_u64..6), 0..80)) {
            let mut switch = Switch::new(4);
            let mut newest = [None; 4];
            let mut used = None;
            for (rank, generation) in arrivals {
                let place = rank as usize;
                newest[place] = newest[place].max(Some(Generation(generation)));
                if let Some(now) = switch.holds(Rank(rank), Generation(generation)) {
                    prop_assert!(used < Some(now));
                    prop_assert!(newest.iter().all(|held| *held == Some(now)));
                    used = Some(now);
                }
                prop_assert_eq!(switch.used(), used);
            }
        }
    }
}
