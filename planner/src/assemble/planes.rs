//! Which plane of a switch each hop takes, where all ranks exchange equal amounts over it.
//!
//! A hop that is spread over all planes of a rack takes eighteen paths, and a plan for its seventy-two GPUs lists a hundred thousand. Where every
//! rank sends every other the same, hops can share planes out instead: those to the next rank take the first, and so on round,
//!
//! ```text
//!   to the rank d further on:   | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
//!   planes in proportion:       |   A    |   B    |   C     |
//! ```
//!
//! so that most hops take one plane, few two, and every plane carries its part for every sender and every receiver.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;
use topology::plan::EdgePath;

use crate::model::Model;

/// Paths beyond which planes are shared out: below, all hops take all planes, as the hardware would have it.
const MANY: usize = 4096;

/// One hop: both ends, the nodes crossed, how much it carries.
pub(super) type Use<'a> = (usize, usize, &'a [usize], Fraction);

/// Paths by how much further on the receiver is.
pub(super) struct Dealt {
    ranks: usize,
    by_distance: Vec<Vec<EdgePath>>,
}

impl Dealt {
    /// `None` unless `uses` are few planes of one switch over which every rank sends every other the same.
    pub(super) fn new<'a>(model: &Model, uses: impl IntoIterator<Item = Use<'a>>) -> Option<Self> {
        let ranks = model.ranks();
        let mut amounts: BTreeMap<(usize, usize), Fraction> = BTreeMap::new();
        let mut switch = None;
        for (from, to, via, amount) in uses {
            let [over] = *via else { return None };
            if *switch.get_or_insert(over) != over {
                return None;
            }
            let sum = amounts.entry((from, to)).or_insert(Fraction::ZERO);
            *sum = *sum + amount;
        }
        let pairs = ranks * (ranks - 1);
        let amount = amounts.values().next()?;
        let planes = model.planes(switch?);
        let equal = amounts.len() == pairs && amounts.values().all(|a| a == amount);
        if !equal || pairs * planes.len() <= MANY || planes.len() < 2 {
            return None;
        }
        Some(Self { ranks, by_distance: shared_out(&planes, ranks - 1) })
    }

    /// The paths of a hop.
    pub(super) fn paths(&self, from: usize, to: usize) -> Vec<EdgePath> {
        self.by_distance[(to + self.ranks - from) % self.ranks - 1].clone()
    }
}

/// Lays hops `0..hops` of equal size and planes in proportion to their parts along one line.
fn shared_out(planes: &[(String, Fraction)], hops: usize) -> Vec<Vec<EdgePath>> {
    let length = crate::bound::whole(hops);
    let mut found = vec![Vec::new(); hops];
    let mut start = Fraction::ZERO;
    for (name, part) in planes {
        let end = start + *part * length;
        for (hop, paths) in found.iter_mut().enumerate() {
            let (low, high) = (crate::bound::whole(hop), crate::bound::whole(hop + 1));
            let (from, to) = (start.max(low), end.min(high));
            if from < to {
                paths.push(EdgePath { via: [name.clone()].into(), share: to - from });
            }
        }
        start = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plane_gets_its_part() {
        let planes = [("a", 1), ("b", 2), ("c", 1)].map(|(n, p)| (n.into(), Fraction::of(p, 4)));
        let found = shared_out(&planes, 7);
        for paths in &found {
            assert_eq!(paths.iter().map(|p| p.share).sum::<Fraction>(), Fraction::ONE);
            assert!(paths.len() <= 2);
        }
        for (name, part) in &planes {
            let paths = found.iter().flatten().filter(|p| p.via == [name.clone()]);
            assert_eq!(paths.map(|p| p.share).sum::<Fraction>(), *part * Fraction::integer(7));
        }
    }
}
