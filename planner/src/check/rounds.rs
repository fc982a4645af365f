//! Which algorithms a list of rounds is: hop by hop and share by share, from the definitions, without the code that makes them.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use topology::{Algorithm, Channel, Collective, Fraction, Rank};

use super::exact;

/// One round as seen inside a group: who sends to whom, by place in the group, and what.
struct Seen {
    hops: BTreeSet<(usize, usize)>,
    share: Fraction,
}

/// The algorithms whose rounds these are; with two ranks several are the same. `hosts` by rank.
pub(super) fn recognise(
    rounds: &[&Channel],
    collective: Collective,
    hosts: &[usize],
) -> Vec<Algorithm> {
    let ranks = hosts.len();
    let whole = |rank: Rank| (0, rank.index());
    let flat: Option<Vec<Seen>> = rounds.iter().map(|round| seen(round, 1, whole)).collect();
    let mut found: Vec<Algorithm> = Vec::new();
    if let Some(flat) = flat {
        let kinds = [
            Algorithm::OneShot,
            Algorithm::Direct,
            Algorithm::RecursiveDoubling,
            Algorithm::HalvingDoubling,
            Algorithm::Bruck,
            Algorithm::Pat,
        ];
        let fits = |kind: &Algorithm| is(&flat, *kind, collective, ranks, Fraction::ONE);
        found.extend(kinds.into_iter().filter(fits));
    }
    if hierarchical(rounds, collective, hosts) == Some(true) {
        found.push(Algorithm::Hierarchical);
    }
    found
}

/// A round as every one of `groups` groups sees it; `None` where a hop leaves its group, is listed twice, or groups differ.
fn seen(round: &Channel, groups: usize, place: impl Fn(Rank) -> (usize, usize)) -> Option<Seen> {
    let mut by_group = alloc::vec![BTreeSet::new(); groups];
    for edge in &round.edges {
        let (from, to) = (place(edge.from), place(edge.to));
        if from.0 != to.0 || !by_group.get_mut(from.0)?.insert((from.1, to.1)) {
            return None;
        }
    }
    let first = by_group.pop()?;
    by_group.iter().all(|hops| *hops == first).then_some(Seen { hops: first, share: round.share })
}

fn hierarchical(rounds: &[&Channel], collective: Collective, hosts: &[usize]) -> Option<bool> {
    let count = hosts.iter().max()? + 1;
    let inside = hosts.len() / count;
    let even = hosts.iter().enumerate().all(|(rank, host)| rank / inside.max(1) == *host);
    if count < 2 || inside < 2 || hosts.len() != count * inside || !even {
        return Some(false);
    }
    let (first, last) = match collective {
        Collective::AllReduce => (1, 1),
        Collective::AllGather => (0, 1),
        Collective::ReduceScatter => (1, 0),
        _ => return Some(false),
    };
    if rounds.len() <= first + last {
        return Some(false);
    }
    let in_host = |rank: Rank| (rank.index() / inside, rank.index() % inside);
    let on_rail = |rank: Rank| (rank.index() % inside, rank.index() / inside);
    let part = Fraction::ONE / exact::integer(inside);
    let (head, rest) = rounds.split_at(first);
    let (middle, tail) = rest.split_at(rest.len() - last);
    for round in head.iter().chain(tail) {
        let round = seen(round, count, in_host)?;
        if round.share != part || !everybody(&round, inside) {
            return Some(false);
        }
    }
    let middle: Option<Vec<Seen>> =
        middle.iter().map(|round| seen(round, inside, on_rail)).collect();
    let between = Algorithm::between_hosts(collective, count);
    Some(is(&middle?, between, collective, count, part))
}

fn everybody(round: &Seen, members: usize) -> bool {
    // No hop is there twice or leads home, so their number settles it.
    round.hops.len() == members * (members - 1) && round.hops.iter().all(|(a, b)| a != b)
}

/// Whether exactly `members` hops, one from each, lead to where `to` says.
fn each(round: &Seen, members: usize, to: impl Fn(usize) -> usize) -> bool {
    round.hops.len() == members && (0..members).all(|from| round.hops.contains(&(from, to(from))))
}

/// Whether the rounds are those of an algorithm over `members` of a group that has `whole` of the data.
fn is(
    rounds: &[Seen],
    algorithm: Algorithm,
    collective: Collective,
    members: usize,
    whole: Fraction,
) -> bool {
    let of_shards = |shards: usize| whole * exact::integer(shards) / exact::integer(members);
    let reduced = collective == Collective::AllReduce;
    let sharded = matches!(collective, Collective::AllGather | Collective::ReduceScatter);
    match algorithm {
        Algorithm::OneShot if reduced => {
            matches!(rounds, [round] if round.share == whole && everybody(round, members))
        }
        Algorithm::Direct if reduced || sharded => {
            rounds.len() == if reduced { 2 } else { 1 }
                && rounds.iter().all(|r| r.share == of_shards(1) && everybody(r, members))
        }
        Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling if reduced => {
            let core = members.next_power_of_two() / if members.is_power_of_two() { 1 } else { 2 };
            let Some(rounds) = unfolded(rounds, core, members, whole) else { return false };
            let steps = core.ilog2() as usize;
            let halving = algorithm == Algorithm::HalvingDoubling;
            let wanted = |at: usize| match (halving, at < steps) {
                (false, _) => (1 << at, whole),
                (true, true) => (core >> (at + 1), whole / exact::integer(2 << at)),
                (true, false) => {
                    let back = 2 * steps - 1 - at;
                    (core >> (back + 1), whole / exact::integer(2 << back))
                }
            };
            rounds.len() == if halving { 2 * steps } else { steps }
                && rounds.iter().enumerate().all(|(at, round)| {
                    let (bit, share) = wanted(at);
                    round.share == share && each(round, core, |from| from ^ bit)
                })
        }
        Algorithm::Bruck | Algorithm::Pat if reduced || sharded => {
            let steps = members.next_power_of_two().ilog2() as usize;
            let spread = |at: usize, round: &Seen, back: bool| {
                let far_first = algorithm == Algorithm::Pat;
                let distance = 1 << if far_first { steps - 1 - at } else { at };
                // What is held is a multiple of twice the distance away, or everything nearer than the distance.
                let shards = if far_first {
                    (members - distance).div_ceil(2 * distance)
                } else {
                    distance.min(members - distance)
                };
                let on = if back { members - distance } else { distance };
                round.share == of_shards(shards)
                    && each(round, members, |from| (from + on) % members)
            };
            let passes = if reduced { 2 } else { 1 };
            rounds.len() == passes * steps
                && rounds.iter().enumerate().all(|(at, round)| {
                    if at < steps && collective != Collective::AllGather {
                        spread(steps - 1 - at, round, true)
                    } else {
                        spread(at % steps, round, false)
                    }
                })
        }
        _ => false,
    }
}

/// The rounds without the first and last, by which ranks beyond a power of two give and get all of the data.
fn unfolded(rounds: &[Seen], core: usize, members: usize, whole: Fraction) -> Option<&[Seen]> {
    if core == members {
        return Some(rounds);
    }
    let [first, between @ .., last] = rounds else { return None };
    let folds = |round: &Seen, turned: bool| {
        round.share == whole
            && round.hops.len() == members - core
            && round.hops.iter().all(|&(from, to)| {
                let (beyond, other) = if turned { (to, from) } else { (from, to) };
                beyond >= core && beyond - core == other
            })
    };
    (folds(first, false) && folds(last, true)).then_some(between)
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::plan::{ChannelEdge, Pattern};

    const KINDS: [Algorithm; 7] = [
        Algorithm::OneShot,
        Algorithm::Direct,
        Algorithm::RecursiveDoubling,
        Algorithm::HalvingDoubling,
        Algorithm::Bruck,
        Algorithm::Pat,
        Algorithm::Hierarchical,
    ];
    const COLLECTIVES: [Collective; 3] =
        [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];

    fn made(algorithm: Algorithm, collective: Collective, hosts: &[usize]) -> Option<Vec<Channel>> {
        let rank = |index: usize| Rank(u32::try_from(index).unwrap());
        let rounds = crate::rounds::rounds(algorithm, collective, hosts)?;
        let channel = |round: crate::rounds::Round| Channel {
            index: 0,
            pattern: Pattern::Rounds,
            collectives: [collective].into(),
            ranks: Vec::new(),
            root: None,
            nics: Vec::new(),
            share: round.share,
            gbps: Fraction::ZERO,
            edges: round
                .hops
                .iter()
                .map(|&(from, to)| ChannelEdge {
                    from: rank(from),
                    to: rank(to),
                    paths: Vec::new(),
                })
                .collect(),
            reduce_edges: Vec::new(),
        };
        Some(rounds.into_iter().map(channel).collect())
    }

    fn known(rounds: &[Channel], collective: Collective, hosts: &[usize]) -> Vec<Algorithm> {
        recognise(&rounds.iter().collect::<Vec<_>>(), collective, hosts)
    }

    #[test]
    fn every_number_of_ranks_is_known_by_its_hops() {
        for ranks in 2..=64 {
            let hosts = alloc::vec![0; ranks];
            for (kind, collective) in KINDS.iter().flat_map(|k| COLLECTIVES.map(|c| (*k, c))) {
                let Some(rounds) = made(kind, collective, &hosts) else { continue };
                let found = known(&rounds, collective, &hosts);
                assert!(found.contains(&kind), "{kind} {collective}, {ranks} ranks: {found:?}");
                assert!(found.len() == 1 || ranks == 2, "{kind} {collective}, {ranks}: {found:?}");
            }
        }
    }

    #[test]
    fn hosts_of_equal_size() {
        for (count, inside) in [(2, 2), (2, 8), (3, 4), (4, 2), (5, 3), (8, 8)] {
            let hosts: Vec<usize> = (0..count * inside).map(|rank| rank / inside).collect();
            for collective in COLLECTIVES {
                let rounds = made(Algorithm::Hierarchical, collective, &hosts).unwrap();
                let found = known(&rounds, collective, &hosts);
                assert_eq!(found, [Algorithm::Hierarchical], "{count} hosts of {inside}");
            }
        }
    }

    /// One hop left out, turned, led astray or twice; a share changed; rounds in another order, one left out, one twice.
    #[test]
    fn what_is_no_algorithm_is_not_known() {
        let hosts: Vec<usize> = (0..6).map(|rank| rank / 3).collect();
        for (kind, collective) in KINDS.iter().flat_map(|k| COLLECTIVES.map(|c| (*k, c))) {
            let Some(good) = made(kind, collective, &hosts) else { continue };
            let refused = |what: &str, change: &dyn Fn(&mut Vec<Channel>)| {
                let mut rounds = good.clone();
                change(&mut rounds);
                if rounds != good {
                    let found = known(&rounds, collective, &hosts);
                    assert!(!found.contains(&kind), "{kind} {collective}, {what}");
                }
            };
            for at in 0..good.len() {
                refused("no hop", &|rounds| drop(rounds[at].edges.pop()));
                refused("astray", &|rounds| {
                    let to = &mut rounds[at].edges[0].to;
                    to.0 = (to.0 + 1) % 6;
                });
                refused("twice", &|rounds| {
                    let first = rounds[at].edges[0].clone();
                    rounds[at].edges.push(first);
                });
                refused("share", &|rounds| {
                    rounds[at].share = rounds[at].share * Fraction::of(1, 2);
                });
                refused("a round twice", &|rounds| {
                    let round = rounds[at].clone();
                    rounds.push(round);
                });
                refused("no round", &|rounds| drop(rounds.remove(at)));
            }
            if !matches!(kind, Algorithm::Hierarchical) || collective != Collective::AllReduce {
                refused("backwards", &|rounds| {
                    // What is the same backwards is the same.
                    let shares: Vec<Fraction> = rounds.iter().map(|r| r.share).collect();
                    let turned: Vec<Fraction> = rounds.iter().rev().map(|r| r.share).collect();
                    if shares != turned {
                        rounds.reverse();
                    }
                });
            }
        }
    }
}
