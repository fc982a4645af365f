//! Lowering capacities until as much enters every switch as leaves it.

use alloc::vec::Vec;

use super::probe::Probe;
use super::splitter::Splitter;

impl Splitter<'_> {
    /// Makes in and out equal at every switch by lowering edges, without hurting what ranks can be sent where possible.
    pub(super) fn trim(&mut self, steps: &mut u64) {
        let mut probe = Probe::new(self);
        for even in [true, false] {
            loop {
                let mut changed = false;
                for switch in self.ranks..self.nodes {
                    let surplus = self.surplus(switch);
                    let edges: Vec<(usize, usize, i64)> = if surplus > 0 {
                        self.entering(switch).iter().map(|&(u, c)| (u, switch, c)).collect()
                    } else {
                        self.leaving(switch).iter().map(|&(t, c)| (switch, t, c)).collect()
                    };
                    let total: i64 = edges.iter().map(|e| e.2).sum();
                    for (from, to, c) in edges {
                        let left = self.surplus(switch).abs();
                        if left == 0 {
                            break;
                        }
                        let fair =
                            i128::from(surplus.abs()) * i128::from(c) / i128::from(total.max(1));
                        let want = if even { i64::try_from(fair).unwrap_or(c).max(1) } else { c };
                        let by = self.spare(&mut probe, from, to, want.min(left).min(c), steps);
                        if by > 0 {
                            self.consume(from, to, by);
                            probe.set(from, to, self.at(from, to));
                            changed = true;
                        }
                    }
                }
                if !changed || even {
                    break;
                }
            }
        }
    }

    /// Lowers the larger side of every unbalanced switch in proportion, whatever that costs, until none is left. Capacities only
    /// ever fall, so it ends.
    pub(super) fn level(&mut self) {
        while let Some(switch) = (self.ranks..self.nodes).find(|&s| self.surplus(s) != 0) {
            let surplus = self.surplus(switch);
            let edges: Vec<(usize, usize, i64)> = if surplus > 0 {
                self.entering(switch).iter().map(|&(u, c)| (u, switch, c)).collect()
            } else {
                self.leaving(switch).iter().map(|&(t, c)| (switch, t, c)).collect()
            };
            let total: i64 = edges.iter().map(|e| e.2).sum();
            let mut left = surplus.abs();
            for (from, to, c) in edges {
                let part = i128::from(surplus.abs()) * i128::from(c) / i128::from(total);
                // Rounded up, so that the sum suffices.
                let by = i64::try_from(part).unwrap_or(c).saturating_add(1).min(c).min(left);
                self.consume(from, to, by);
                left -= by;
            }
        }
    }

    /// By how much an edge can be lowered: sets that hold its tail and not its head lose that.
    fn spare(&self, probe: &mut Probe, from: usize, to: usize, want: i64, steps: &mut u64) -> i64 {
        if to < self.ranks {
            return probe.slack_or_plain(&[from], &[to], &[], want, true, steps);
        }
        let targets: Vec<usize> = (0..self.ranks).filter(|&v| v != from).collect();
        probe.slack(&[from], &[to], &targets, want, steps)
    }
}
