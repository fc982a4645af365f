//! Splitting a switch off pair by pair, each by as much as the cuts allow.

use alloc::vec::Vec;

use super::probe::Probe;
use super::splitter::{Pair, Splitter};

impl Splitter<'_> {
    /// Splits pair by pair, each by as much as the cuts allow: first spread over all pairs, then whatever goes, turning back last.
    pub(super) fn split_off(&mut self, switch: usize, steps: &mut u64) {
        let mut probe = Probe::new(self);
        let (ins, outs) = (self.entering(switch), self.leaving(switch));
        let mut pairs: Vec<(bool, core::cmp::Reverse<usize>, usize, usize)> = Vec::new();
        for (i, &(u, _)) in ins.iter().enumerate() {
            let distance = self.distances(switch, u);
            for j in 0..outs.len() {
                // Rotating the far end gives every node its turn at every place.
                let t = outs[(i + j) % outs.len()].0;
                pairs.push((u == t, core::cmp::Reverse(distance[t]), j, u));
            }
        }
        let to_of = |j: usize, u: usize| {
            let i = ins.iter().position(|e| e.0 == u).unwrap_or(0);
            outs[(i + j) % outs.len()].0
        };
        pairs.sort_unstable();
        for even in [true, false] {
            for &(back, _, j, from) in &pairs {
                let to = to_of(j, from);
                if even && back {
                    continue;
                }
                let mut want = self.at(from, switch).min(self.at(switch, to));
                if even {
                    let others = i64::try_from(outs.len().max(2) - 1).unwrap_or(i64::MAX);
                    let fair = |whole: i64| (whole + others - 1) / others;
                    let part = |edges: &[(usize, i64)], v: usize| {
                        edges.iter().find(|e| e.0 == v).map_or(0, |e| fair(e.1))
                    };
                    want = want.min(part(&ins, from)).min(part(&outs, to));
                }
                if want > 0 {
                    let amount = self.room(&mut probe, switch, (from, to), want, steps);
                    if amount > 0 {
                        self.split(switch, Pair { from, to, amount });
                        for (u, t) in [(from, switch), (switch, to), (from, to)] {
                            probe.set(u, t, self.at(u, t));
                        }
                    }
                }
            }
        }
    }

    /// How much can be split off at (from, switch), (switch, to). Only sets that hold both ends and not the switch, or the switch
    /// and neither end, lose capacity.
    fn room(
        &self,
        probe: &mut Probe,
        switch: usize,
        (from, to): (usize, usize),
        want: i64,
        steps: &mut u64,
    ) -> i64 {
        let ends = [from, to];
        let outside = |v: usize| !ends.contains(&v);
        let targets: Vec<usize> = (0..self.ranks).filter(|&v| outside(v)).collect();
        let mut room = want;
        room = probe.slack(&ends, &[switch], &targets, room, steps);
        if room > 0 {
            // A rank among the ends is the one that the set misses.
            let any_rank = ends.iter().any(|&v| v < self.ranks);
            let targets = if any_rank { Vec::new() } else { targets };
            room = probe.slack_or_plain(&[switch], &ends, &targets, room, any_rank, steps);
        }
        room
    }
}
