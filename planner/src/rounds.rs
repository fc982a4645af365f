//! Who sends how much to whom in algorithms that go in rounds.
//!
//! ```text
//!   one-shot             all of it to everybody                                      all-reduce in 1 round
//!   direct               shards to everybody                                         1 round, all-reduce 2
//!   recursive doubling   all of it to rank ^ 1, ^ 2, ^ 4, ..                         all-reduce in log2 n
//!   halving, doubling    1/2 to rank ^ n/2, 1/4 to ^ n/4, .., and back               all-reduce in 2 log2 n
//!   Bruck                1, 2, 4, .. shards to ranks 1, 2, 4, .. further on          log2 n rounded up, all-reduce twice that
//!   PAT                  the same with the far ranks first, when there is least to send
//!   hierarchical         direct inside hosts, one of these between equal places of hosts
//! ```
//!
//! Numbers of ranks that are no power of two first fold what is beyond it onto the others, where an algorithm goes by bits. The
//! transport makes its schedules by the same rules; tests hold the two together.

use alloc::vec::Vec;
use core::iter;

use topology::{Algorithm, Collective, Fraction};

/// One round: what each of its hops carries, as part of the collective's total data, and who sends to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Part of the total data that every hop carries.
    pub share: Fraction,
    /// Sender and receiver.
    pub hops: Vec<(usize, usize)>,
}

/// The rounds of an algorithm over `hosts.len()` ranks, whose hosts `hosts` names, host-major; `None` where the collective does not go
/// in such rounds, or the hosts are not of one size.
#[must_use]
pub fn rounds(algorithm: Algorithm, collective: Collective, hosts: &[usize]) -> Option<Vec<Round>> {
    let ranks = hosts.len();
    if ranks < 2 {
        return None;
    }
    if algorithm != Algorithm::Hierarchical {
        return flat(algorithm, collective, ranks);
    }
    let count = hosts.iter().max()? + 1;
    let inside = ranks / count;
    let even = hosts.iter().enumerate().all(|(rank, host)| rank / inside.max(1) == *host);
    if count < 2 || inside < 2 || !ranks.is_multiple_of(count) || !even {
        return None;
    }
    let between = flat(Algorithm::between_hosts(collective, count), collective, count)?;
    let of_host = Fraction::of(1, inside as u64);
    let rails = between.into_iter().map(|round| Round {
        share: round.share * of_host,
        hops: round
            .hops
            .iter()
            .flat_map(|&(from, to)| {
                (0..inside).map(move |place| (from * inside + place, to * inside + place))
            })
            .collect(),
    });
    let pairs = everybody(inside);
    let hosts = Round {
        share: of_host,
        hops: (0..count)
            .flat_map(|host| {
                pairs.iter().map(move |&(a, b)| (host * inside + a, host * inside + b))
            })
            .collect(),
    };
    let reduces = matches!(collective, Collective::AllReduce | Collective::ReduceScatter);
    let spreads = matches!(collective, Collective::AllReduce | Collective::AllGather);
    let first = reduces.then(|| hosts.clone());
    Some(first.into_iter().chain(rails).chain(spreads.then_some(hosts)).collect())
}

fn everybody(ranks: usize) -> Vec<(usize, usize)> {
    (0..ranks).flat_map(|a| (0..ranks).filter(move |b| *b != a).map(move |b| (a, b))).collect()
}

fn flat(algorithm: Algorithm, collective: Collective, ranks: usize) -> Option<Vec<Round>> {
    let reduced = collective == Collective::AllReduce;
    if !reduced && !matches!(collective, Collective::AllGather | Collective::ReduceScatter) {
        return None;
    }
    let shard = || Round { share: Fraction::of(1, ranks as u64), hops: everybody(ranks) };
    Some(match algorithm {
        Algorithm::OneShot if reduced => {
            [Round { share: Fraction::ONE, hops: everybody(ranks) }].into()
        }
        Algorithm::Direct => iter::repeat_with(shard).take(1 + usize::from(reduced)).collect(),
        Algorithm::RecursiveDoubling if reduced => {
            folded(ranks, |core| bits(core).map(|bit| (bit, Fraction::ONE)).collect())
        }
        Algorithm::HalvingDoubling if reduced => folded(ranks, |core| {
            let part = |bit: usize| (bit, Fraction::of(bit as u64, core as u64));
            let mut down: Vec<_> = bits(core).map(part).collect();
            let up = down.clone();
            down.reverse();
            down.into_iter().chain(up).collect()
        }),
        Algorithm::Bruck | Algorithm::Pat => {
            let spread = dissemination(ranks, algorithm == Algorithm::Pat);
            let turned = |round: &Round| Round {
                share: round.share,
                hops: round.hops.iter().map(|&(from, to)| (to, from)).collect(),
            };
            let sum = || spread.iter().rev().map(turned);
            match collective {
                Collective::AllGather => spread,
                Collective::ReduceScatter => sum().collect(),
                _ => sum().chain(spread.iter().cloned()).collect(),
            }
        }
        _ => return None,
    })
}

/// 1, 2, 4, .. below `end`.
fn bits(end: usize) -> impl Iterator<Item = usize> {
    iter::successors(Some(1_usize), |bit| bit.checked_mul(2)).take_while(move |bit| *bit < end)
}

/// Exchanges over bits of the largest power of two among the ranks, those beyond it folded onto the others before and back after.
fn folded(ranks: usize, exchanges: impl Fn(usize) -> Vec<(usize, Fraction)>) -> Vec<Round> {
    let core = 1 << ranks.ilog2();
    let fold: Vec<(usize, usize)> = (core..ranks).map(|beyond| (beyond, beyond - core)).collect();
    let unfold: Vec<(usize, usize)> = fold.iter().map(|&(a, b)| (b, a)).collect();
    let end = |hops: Vec<_>| (!hops.is_empty()).then_some(Round { share: Fraction::ONE, hops });
    let exchange = |(bit, share): (usize, Fraction)| Round {
        share,
        hops: (0..core).map(|rank| (rank ^ bit, rank)).collect(),
    };
    let between = exchanges(core).into_iter().map(exchange);
    end(fold).into_iter().chain(between).chain(end(unfold)).collect()
}

/// An all-gather over distances. A rank holds the shards of ranks at the offsets so far behind it, and passes on those whose
/// receiver is not their owner's circle round.
fn dissemination(ranks: usize, far_first: bool) -> Vec<Round> {
    let mut distances: Vec<usize> = bits(ranks).collect();
    if far_first {
        distances.reverse();
    }
    let mut offsets: Vec<usize> = [0].into();
    let mut rounds = Vec::new();
    for distance in distances {
        let come: Vec<usize> =
            offsets.iter().map(|o| o + distance).filter(|o| *o < ranks).collect();
        rounds.push(Round {
            share: Fraction::of(come.len() as u64, ranks as u64),
            hops: (0..ranks).map(|rank| (rank, (rank + distance) % ranks)).collect(),
        });
        offsets.extend(come);
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn shares(algorithm: Algorithm, collective: Collective, ranks: usize, expected: &[(u64, u64)]) {
        let found = rounds(algorithm, collective, &alloc::vec![0; ranks]).unwrap();
        let found: Vec<Fraction> = found.iter().map(|round| round.share).collect();
        let expected: Vec<Fraction> = expected.iter().map(|&(a, b)| Fraction::of(a, b)).collect();
        assert_eq!(found, expected, "{algorithm} {collective}, {ranks} ranks");
    }

    #[test]
    fn what_hops_carry() {
        use Algorithm::{Bruck, Direct, HalvingDoubling, OneShot, Pat, RecursiveDoubling};
        use Collective::{AllGather, AllReduce, ReduceScatter};
        shares(OneShot, AllReduce, 5, &[(1, 1)]);
        shares(Direct, AllReduce, 4, &[(1, 4), (1, 4)]);
        shares(RecursiveDoubling, AllReduce, 8, &[(1, 1); 3]);
        shares(RecursiveDoubling, AllReduce, 6, &[(1, 1); 4]);
        shares(HalvingDoubling, AllReduce, 4, &[(1, 2), (1, 4), (1, 4), (1, 2)]);
        shares(Bruck, AllGather, 6, &[(1, 6), (2, 6), (2, 6)]);
        shares(Pat, AllGather, 6, &[(1, 6), (1, 6), (3, 6)]);
        shares(Pat, ReduceScatter, 6, &[(3, 6), (1, 6), (1, 6)]);
    }

    #[test]
    fn between_hosts_only_equal_places() {
        let hosts: Vec<usize> = (0..12).map(|rank| rank / 4).collect();
        let found = rounds(Algorithm::Hierarchical, Collective::AllReduce, &hosts).unwrap();
        // Inside, PAT there and back over three hosts, inside.
        assert_eq!(found.len(), 1 + 2 * 2 + 1);
        for (from, to) in found.iter().flat_map(|round| &round.hops) {
            assert!(from / 4 == to / 4 || from % 4 == to % 4);
        }
        let uneven = [0, 0, 0, 1, 1];
        assert_eq!(rounds(Algorithm::Hierarchical, Collective::AllReduce, &uneven), None);
        assert_eq!(rounds(Algorithm::Hierarchical, Collective::AllReduce, &[0, 0]), None);
    }

    #[test]
    fn what_does_not_go_in_rounds() {
        for (algorithm, collective) in [
            (Algorithm::OneShot, Collective::AllGather),
            (Algorithm::Ring, Collective::AllReduce),
            (Algorithm::Pat, Collective::Broadcast),
        ] {
            assert_eq!(rounds(algorithm, collective, &[0; 4]), None);
        }
    }
}
