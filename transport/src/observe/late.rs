//! Who was waited for.
//!
//! In an operation that nobody leaves before everybody came, all ranks end at about the same time, so the one that spent the
//! least time in it came last, and the others waited for it. That needs no clocks that agree.

use std::time::Duration;

use topology::{Collective, Rank};

/// How late one rank was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// Which.
    pub rank: Rank,
    /// Operations in which it came last.
    pub times_last: u64,
    /// Time that the other ranks together waited for it in those.
    pub cost: Duration,
}

/// Who was waited for, over the latest operations of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    /// Operations that were looked at.
    pub operations: u64,
    /// By cost, the highest first; all ranks.
    pub ranks: Vec<Late>,
}

impl Attribution {
    /// The rank that cost the others most, if any rank cost them anything.
    #[must_use]
    pub fn slowest(&self) -> Option<&Late> {
        self.ranks.first().filter(|late| !late.cost.is_zero())
    }
}

/// Whether nobody leaves before everybody came.
pub(crate) const fn synchronises(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::AllReduce
            | Collective::AllGather
            | Collective::ReduceScatter
            | Collective::AllToAll
            | Collective::Barrier
    )
}

/// From the nanoseconds that each rank (outer) spent in each operation (inner).
pub(crate) fn attribute(times: &[Vec<u64>]) -> Attribution {
    let operations = times.iter().map(Vec::len).min().unwrap_or(0);
    let mut late: Vec<Late> = (0..times.len())
        .map(|rank| Late {
            rank: Rank(u32::try_from(rank).unwrap_or(u32::MAX)),
            times_last: 0,
            cost: Duration::ZERO,
        })
        .collect();
    for at in 0..operations {
        let of = |rank: usize| times[rank][at];
        let Some(last) = (0..times.len()).min_by_key(|rank| of(*rank)) else { continue };
        let waited: u64 = (0..times.len()).map(|rank| of(rank) - of(last)).sum();
        if waited > 0 {
            late[last].times_last += 1;
            late[last].cost += Duration::from_nanos(waited);
        }
    }
    late.sort_by_key(|late| (std::cmp::Reverse(late.cost), late.rank));
    Attribution { operations: operations as u64, ranks: late }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_spent_least_came_last() {
        // Rank 1 comes 900 late twice, rank 2 100 late once.
        let times = [vec![1000, 1000, 150], vec![100, 100, 150], vec![1000, 1000, 50]];
        let found = attribute(&times);
        assert_eq!(found.operations, 3);
        let told: Vec<_> =
            found.ranks.iter().map(|l| (l.rank.0, l.times_last, l.cost.as_nanos())).collect();
        assert_eq!(told, [(1, 2, 3600), (2, 1, 200), (0, 0, 0)]);
        assert_eq!(found.slowest().unwrap().rank, Rank(1));
    }

    #[test]
    fn nobody_is_blamed_for_nothing() {
        assert_eq!(attribute(&[vec![5, 5], vec![5, 5]]).slowest(), None);
        assert_eq!(attribute(&[vec![7]]).slowest(), None);
        assert_eq!(attribute(&[]).slowest(), None);
    }
}
