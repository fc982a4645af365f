//! Why a plan has the channels it has: what they carry, what one less would carry, which links are full.
//!
//! Everything is counted on the finished plan by the checker, as anyone could.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use topology::plan::{Pattern, Plan};
use topology::{Channel, Collective, Fraction, LinkId, Rank, Topology};

use crate::check;

/// The channels of one collective, explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// The shape of its channels.
    pub pattern: Pattern,
    /// Rates in GB/s with how many channels have them, fastest first.
    pub rates: Vec<(Fraction, usize)>,
    /// What is reached, in GB/s.
    pub algbw_gbps: Fraction,
    /// What the channels would reach without the slowest ring, or the slowest tree of every root that has several, its share
    /// given to the others in proportion. `None` where there is one ring, or one tree a root.
    pub with_one_less: Option<Fraction>,
    /// Links that decide the bandwidth, sender and receiver by name.
    pub full: Vec<(String, String)>,
    /// Directed links that carry something.
    pub used: usize,
}

/// Explains the channels that carry `collective`; `None` where no channel does.
#[must_use]
pub fn channels(topology: &Topology, plan: &Plan, collective: Collective) -> Option<Why> {
    let own: Vec<Channel> = plan.channels_of(collective).cloned().collect();
    let count =
        |channels: &[Channel]| check::count(topology, &plan.ranks, channels, collective).ok();
    let counted = count(&own)?;
    let mut rates: BTreeMap<Fraction, usize> = BTreeMap::new();
    for channel in &own {
        *rates.entry(channel.gbps).or_default() += 1;
    }
    let ends = |link: &LinkId| {
        let (from, to) = topology.graph().edge_endpoints(*link)?;
        Some((topology.vertex(from).name.clone(), topology.vertex(to).name.clone()))
    };
    Some(Why {
        pattern: own.first()?.pattern,
        rates: rates.into_iter().rev().collect(),
        algbw_gbps: counted.algbw_gbps,
        with_one_less: one_less(&own).and_then(|fewer| count(&fewer)).map(|c| c.algbw_gbps),
        full: counted.limiting.iter().filter_map(ends).collect(),
        used: counted.loads.len(),
    })
}

/// Without the channel of the least share of each root that has several; `None` where none has.
fn one_less(channels: &[Channel]) -> Option<Vec<Channel>> {
    let mut of_root: BTreeMap<Option<Rank>, Vec<&Channel>> = BTreeMap::new();
    for channel in channels {
        of_root.entry(channel.root).or_default().push(channel);
    }
    if of_root.values().all(|group| group.len() < 2) {
        return None;
    }
    let mut fewer = Vec::new();
    for group in of_root.values() {
        // Of equal ones the last, so that the first keep their places.
        let least = (0..group.len()).rev().min_by_key(|place| group[*place].share)?;
        let total = group.iter().try_fold(Fraction::ZERO, |sum, c| sum.checked_add(c.share))?;
        let kept = if group.len() == 1 { total } else { total - group[least].share };
        for (place, channel) in group.iter().enumerate() {
            if group.len() > 1 && place == least {
                continue;
            }
            let share = channel.share.checked_mul(total.checked_div(kept)?)?;
            fewer.push(Channel { share, ..(*channel).clone() });
        }
    }
    Some(fewer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::sample;
    use topology::{Algorithm, PlanRequest};

    #[test]
    fn one_ring_less_is_counted() {
        let topology = sample::dgx1v();
        let request =
            PlanRequest { collectives: vec![Collective::AllGather], ..PlanRequest::default() };
        let plan = crate::plan(&topology, &request).unwrap();
        let why = channels(&topology, &plan, Collective::AllGather).unwrap();
        assert_eq!(why.pattern, Pattern::Ring);
        assert_eq!(why.algbw_gbps.to_string(), "1200/7");
        let carried: Fraction = why.rates.iter().fold(Fraction::ZERO, |sum, (rate, count)| {
            sum + *rate * Fraction::of(*count as u64, 1)
        });
        assert_eq!(carried.to_string(), "150");
        // The slowest ring's rate is missing; the others keep theirs.
        let slowest = why.rates.last().unwrap().0;
        let expected = (carried - slowest) * Fraction::of(8, 7);
        assert_eq!(why.with_one_less, Some(expected));
        assert_eq!((why.used, why.full.len()), (32, 32));
        assert_eq!(channels(&topology, &plan, Collective::AllToAll), None);
    }

    #[test]
    fn one_channel_cannot_be_less() {
        let star = sample::topology(3, 1, sample::both((0..3).map(|gpu| (gpu, 3, 10))));
        let ring = sample::ring(&star, &[Collective::AllGather], &[0, 1, 2], Fraction::ONE);
        let plan = sample::plan(&star, 3, Algorithm::Ring, vec![ring]);
        let why = channels(&star, &plan, Collective::AllGather).unwrap();
        assert_eq!((why.with_one_less, why.full.len()), (None, 6));
        assert_eq!(why.full[0], ("g0".into(), "s0".into()));
    }

    #[test]
    fn trees_are_counted_by_root() {
        let star = sample::topology(3, 1, sample::both((0..3).map(|gpu| (gpu, 3, 10))));
        let trees =
            |share: &str| (0..3_u32).map(move |root| (root, share.to_owned())).collect::<Vec<_>>();
        // Two trees a root: from the root to both, and along a chain, which loads other links.
        let star_trees = trees("1/12").into_iter().map(|(root, share)| {
            let list = [(root, 0), ((root + 1) % 3, 0), ((root + 2) % 3, 0)];
            sample::tree(&star, Collective::AllGather, &list, share.parse().unwrap())
        });
        let chains = trees("1/4").into_iter().map(|(root, share)| {
            let list = [(root, 0), ((root + 1) % 3, 0), ((root + 2) % 3, 1)];
            sample::tree(&star, Collective::AllGather, &list, share.parse().unwrap())
        });
        let plan = sample::plan(&star, 3, Algorithm::Forest, star_trees.chain(chains).collect());
        let why = channels(&star, &plan, Collective::AllGather).unwrap();
        assert_eq!(why.with_one_less.unwrap().to_string(), "15");
        assert_eq!(why.rates.iter().map(|(_, count)| *count).sum::<usize>(), 6);
    }
}
