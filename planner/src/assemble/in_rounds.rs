//! Algorithms that go in rounds, over the ways of this machine.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use topology::{Algorithm, Collective};

use super::Family;
use super::channels::{self, Ground, Naming};
use crate::model::Model;
use crate::pairs;
use crate::rings::Way;
use crate::rounds::{Round, rounds};

/// What goes in rounds, the simplest first: with two ranks several are the same, and the first stands for all.
const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::OneShot,
    Algorithm::Direct,
    Algorithm::RecursiveDoubling,
    Algorithm::HalvingDoubling,
    Algorithm::Pat,
    Algorithm::Bruck,
    Algorithm::Hierarchical,
];

/// Rounds with more hops than this in all are not considered: the list is larger than the plan's other channels together.
const MOST_HOPS: usize = 2048;
/// The same of [`Algorithm::Hierarchical`], the only one of use among so many ranks.
const MOST_HIERARCHICAL_HOPS: usize = 16_384;

/// Rounds with more hops than this stand in the plan only where it names them for some size.
pub(super) const MOST_IDLE_HOPS: usize = 512;

/// Pieces that the data of a pair is routed in, and for how many ranks at most; beyond it, whole.
const PIECES: u64 = 4;
const MOST_SPLIT_RANKS: usize = 32;

/// A family for each algorithm and collective that it can carry.
pub(super) fn families(model: &Model, wanted: &[Collective]) -> Vec<Family> {
    let mut found: Vec<(Algorithm, Collective, Vec<Round>)> = Vec::new();
    for &collective in wanted {
        for algorithm in ALGORITHMS.into_iter().filter(|a| is_listable(*a, &model.hosts)) {
            let Some(rounds) = rounds(algorithm, collective, &model.hosts) else { continue };
            let hops: usize = rounds.iter().map(|round| round.hops.len()).sum();
            let known =
                found.iter().any(|(_, of, same)| *of == collective && same_hops(same, &rounds));
            if hops <= most_hops(algorithm) && !known {
                found.push((algorithm, collective, rounds));
            }
        }
    }
    if found.is_empty() {
        return Vec::new();
    }
    let used: BTreeSet<(usize, usize)> =
        found.iter().flat_map(|(.., rounds)| rounds).flat_map(|r| &r.hops).copied().collect();
    let pieces = if model.ranks() > MOST_SPLIT_RANKS { 1 } else { PIECES };
    let wanted = |from: usize, to: usize| used.contains(&(from, to));
    let Some(pairs) = pairs::route_in(&model.graph, pieces, wanted) else { return Vec::new() };
    let ways: BTreeMap<(usize, usize), Vec<Way>> =
        pairs.into_iter().map(|pair| ((pair.from, pair.to), pair.ways)).collect();
    let passes_ranks = |pair: &(usize, usize)| {
        let mut over = ways.get(pair).into_iter().flatten().flat_map(|way| &way.via);
        over.any(|node| *node < model.ranks())
    };
    let mut naming = Naming::new(model, Ground::Usable);
    let family = |(algorithm, collective, rounds): (Algorithm, Collective, Vec<Round>)| {
        let channels = channels::rounds(&mut naming, &rounds, &ways)?;
        let relayed = rounds.iter().flat_map(|round| &round.hops).any(passes_ranks);
        Some(Family { relayed, ..Family::new(algorithm, [collective].into(), channels) })
    };
    found.into_iter().filter_map(family).collect()
}

/// Whether one round alone is not already too long.
fn is_listable(algorithm: Algorithm, hosts: &[usize]) -> bool {
    let ranks = hosts.len();
    let count = hosts.iter().max().map_or(1, |last| last + 1);
    let of_round = match algorithm {
        Algorithm::OneShot | Algorithm::Direct => ranks.saturating_mul(ranks - 1),
        Algorithm::Hierarchical => ranks.saturating_mul((ranks / count).saturating_sub(1)),
        _ => ranks,
    };
    of_round <= most_hops(algorithm)
}

fn most_hops(algorithm: Algorithm) -> usize {
    if algorithm == Algorithm::Hierarchical { MOST_HIERARCHICAL_HOPS } else { MOST_HOPS }
}

fn same_hops(a: &[Round], b: &[Round]) -> bool {
    let sorted = |round: &Round| (round.share, round.hops.iter().copied().collect::<BTreeSet<_>>());
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| sorted(a) == sorted(b))
}
