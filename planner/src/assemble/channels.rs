//! Rings, trees and pairs as channels of a plan, in the names of the topology.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use topology::plan::{ChannelEdge, Pattern};
use topology::{Channel, Collective, Fraction};

use super::planes::Dealt;
use crate::check::Counted;
use crate::forest::{Forest, TreeEdge};
use crate::model::{Model, rank_of};
use crate::pairs::Pair;
use crate::rings::{RingPacking, Way};
use crate::rounds::Round;
use crate::trees::Tree;

/// A channel that still lacks its place, collectives and rate.
fn channel(
    model: &Model,
    pattern: Pattern,
    root: Option<usize>,
    share: Fraction,
    edges: Vec<ChannelEdge>,
    reduce_edges: Vec<ChannelEdge>,
) -> Channel {
    let crossed = edges.iter().chain(&reduce_edges).flat_map(|e| &e.paths).flat_map(|p| &p.via);
    let nics: BTreeSet<&String> = crossed.filter(|name| model.is_nic(name)).collect();
    Channel {
        index: 0,
        pattern,
        collectives: Vec::new(),
        ranks: Vec::new(),
        root: root.map(rank_of),
        nics: nics.into_iter().cloned().collect(),
        share,
        gbps: Fraction::ZERO,
        edges,
        reduce_edges,
    }
}

fn edge(model: &Model, from: usize, to: usize, ways: &[Way]) -> ChannelEdge {
    let paths = model.paths(ways.iter().map(|way| (way.via.as_slice(), way.share)));
    ChannelEdge { from: rank_of(from), to: rank_of(to), paths }
}

/// Which of a model's graphs trees or ways lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// [`Model::graph`].
    Usable,
    /// [`Model::bound_graph`].
    Bound,
}

/// Planes shared out among the hops of all trees, where they allow it.
fn dealt(model: &Model, ground: Ground, forest: &Forest) -> Option<Dealt> {
    let uses = forest.trees.iter().flat_map(|tree| {
        let weight = Fraction::of(tree.weight, 1);
        let hops = tree.edges.iter().flat_map(|e| e.paths.iter().map(move |path| (e, path)));
        hops.map(move |(e, path)| (e.from, e.to, path.via.as_slice(), path.share * weight))
    });
    if ground == Ground::Bound { None } else { Dealt::new(model, uses) }
}

fn forest_edges(
    model: &Model,
    ground: Ground,
    dealt: Option<&Dealt>,
    edges: &[TreeEdge],
) -> Vec<ChannelEdge> {
    edges
        .iter()
        .map(|e| {
            let ways = e.paths.iter().map(|path| (path.via.as_slice(), path.share));
            let paths = match (dealt, ground) {
                (Some(dealt), _) => dealt.paths(e.from, e.to),
                (None, Ground::Usable) => model.paths(ways),
                (None, Ground::Bound) => model.bound_paths(ways),
            };
            ChannelEdge { from: rank_of(e.from), to: rank_of(e.to), paths }
        })
        .collect()
}

/// One channel a ring, each for the part of the data that its rate is of the total.
pub(super) fn rings(model: &Model, packing: &RingPacking) -> Vec<Channel> {
    packing
        .rings
        .iter()
        .map(|ring| {
            let n = ring.order.len();
            let edges = ring
                .hops
                .iter()
                .enumerate()
                .map(|(i, ways)| edge(model, ring.order[i], ring.order[(i + 1) % n], ways))
                .collect();
            let share = ring.rate / packing.total;
            let mut channel = channel(model, Pattern::Ring, None, share, edges, Vec::new());
            channel.ranks = ring.order.iter().map(|rank| rank_of(*rank)).collect();
            channel
        })
        .collect()
}

/// One channel a tree, all for equal parts, up and down.
pub(super) fn trees(model: &Model, trees: &[Tree]) -> Vec<Channel> {
    let Some(share) = i128::try_from(trees.len()).ok().and_then(|n| Fraction::new(1, n)) else {
        return Vec::new();
    };
    let edges = |edges: &[crate::trees::TreeEdge]| -> Vec<ChannelEdge> {
        let way =
            |e: &crate::trees::TreeEdge| edge(model, e.from, e.to, core::slice::from_ref(&e.way));
        edges.iter().map(way).collect()
    };
    trees
        .iter()
        .map(|tree| {
            let (down, up) = (edges(&tree.down), edges(&tree.up));
            channel(model, Pattern::Tree, Some(tree.root), share, down, up)
        })
        .collect()
}

/// One channel a tree, by its weight.
pub(super) fn forest(model: &Model, ground: Ground, forest: &Forest) -> Vec<Channel> {
    let dealt = dealt(model, ground, forest);
    let total: u64 = forest.trees.iter().map(|tree| tree.weight).sum();
    forest
        .trees
        .iter()
        .map(|tree| {
            let edges = forest_edges(model, ground, dealt.as_ref(), &tree.edges);
            let share = Fraction::of(tree.weight, total);
            channel(model, Pattern::Tree, Some(tree.root), share, edges, Vec::new())
        })
        .collect()
}

/// One channel for each tree up with its tree down.
pub(super) fn all_reduce_forest(
    model: &Model,
    ground: Ground,
    reduce: &Forest,
    spread: &Forest,
) -> Vec<Channel> {
    let (dealt_up, dealt_down) = (dealt(model, ground, reduce), dealt(model, ground, spread));
    let total: u64 = spread.trees.iter().map(|tree| tree.weight).sum();
    reduce
        .trees
        .iter()
        .zip(&spread.trees)
        .map(|(up, down)| {
            let reduce = forest_edges(model, ground, dealt_up.as_ref(), &up.edges);
            let spread = forest_edges(model, ground, dealt_down.as_ref(), &down.edges);
            let share = Fraction::of(down.weight, total);
            channel(model, Pattern::Tree, Some(down.root), share, spread, reduce)
        })
        .collect()
}

/// One channel for all pairs.
pub(super) fn pairs(
    model: &Model,
    ground: Ground,
    root: Option<usize>,
    pairs: &[Pair],
) -> Vec<Channel> {
    let uses = pairs.iter().flat_map(|pair| {
        pair.ways.iter().map(|way| (pair.from, pair.to, way.via.as_slice(), way.share))
    });
    let dealt = if ground == Ground::Bound { None } else { Dealt::new(model, uses) };
    let edges = pairs.iter().map(|pair| {
        let ways = pair.ways.iter().map(|way| (way.via.as_slice(), way.share));
        let paths = match (&dealt, ground) {
            (Some(dealt), _) => dealt.paths(pair.from, pair.to),
            (None, Ground::Usable) => model.paths(ways),
            (None, Ground::Bound) => model.bound_paths(ways),
        };
        ChannelEdge { from: rank_of(pair.from), to: rank_of(pair.to), paths }
    });
    let edges = edges.collect();
    [channel(model, Pattern::Pairs, root, Fraction::ONE, edges, Vec::new())].into()
}

/// One channel a round; `None` where a hop has no way.
pub(super) fn rounds(
    model: &Model,
    rounds: &[Round],
    ways: &BTreeMap<(usize, usize), Vec<Way>>,
) -> Option<Vec<Channel>> {
    let of_round = |round: &Round| {
        let hop =
            |&(from, to): &(usize, usize)| Some(edge(model, from, to, ways.get(&(from, to))?));
        let edges = round.hops.iter().map(hop).collect::<Option<_>>()?;
        Some(channel(model, Pattern::Rounds, None, round.share, edges, Vec::new()))
    };
    rounds.iter().map(of_round).collect()
}

/// Hops one after the other when `channels` carry a collective: inside hosts, and between them. Of channels side by side the longest
/// chain, there and back for an all-reduce; of rounds, all.
pub(super) fn hops_in_all(
    model: &Model,
    collective: Collective,
    channels: &[Channel],
) -> (u64, u64) {
    let crosses = |e: &ChannelEdge| model.hosts[e.from.index()] != model.hosts[e.to.index()];
    if channels.iter().all(|channel| channel.pattern == Pattern::Rounds) {
        let between = channels.iter().filter(|c| c.edges.iter().any(crosses)).count() as u64;
        return (channels.len() as u64 - between, between);
    }
    let passes = if collective == Collective::AllReduce { 2 } else { 1 };
    let (inside, between) = hops(model, channels);
    (passes * inside, passes * between)
}

/// Hops on the longest chain of any of `channels`, one way: inside hosts, and between them.
fn hops(model: &Model, channels: &[Channel]) -> (u64, u64) {
    let mut longest = (0, 0);
    for channel in channels {
        let crosses = |e: &ChannelEdge| model.hosts[e.from.index()] != model.hosts[e.to.index()];
        let chain = match channel.pattern {
            Pattern::Pairs | Pattern::Rounds => {
                let between = u64::from(channel.edges.iter().any(crosses));
                (1 - between, between)
            }
            Pattern::Ring => {
                let between = channel.edges.iter().filter(|e| crosses(e)).count() as u64;
                let all = channel.edges.len() as u64;
                // The last hop home is not taken.
                (all - between - u64::from(between == 0), between.saturating_sub(1))
            }
            Pattern::Tree => {
                let towards = channel.edges.first().is_some_and(|e| Some(e.from) != channel.root);
                let ordered: Vec<&ChannelEdge> = if towards {
                    channel.edges.iter().rev().collect()
                } else {
                    channel.edges.iter().collect()
                };
                let mut depth = alloc::vec![(0_u64, 0_u64); model.ranks()];
                for e in ordered {
                    let (near, far) = if towards { (e.to, e.from) } else { (e.from, e.to) };
                    let (between, inside) = depth[near.index()];
                    let step = u64::from(crosses(e));
                    depth[far.index()] = (between + step, inside + 1 - step);
                }
                depth
                    .into_iter()
                    .max()
                    .map(|(between, inside)| (inside, between))
                    .unwrap_or_default()
            }
        };
        if (chain.1, chain.0) > (longest.1, longest.0) {
            longest = chain;
        }
    }
    longest
}

/// The collectives of each channel, its place, and what it carries.
pub(super) fn finish(
    channels: &mut [Channel],
    counted: &BTreeMap<Collective, Counted>,
    ranks: usize,
) -> Option<()> {
    for (place, channel) in channels.iter_mut().enumerate() {
        channel.index = u32::try_from(place).ok()?;
        let mut least: Option<Fraction> = None;
        for (collective, Counted { algbw_gbps, .. }) in counted {
            if channel.collectives.contains(collective) {
                let gbps = crate::check::channel_gbps(channel, *collective, *algbw_gbps, ranks)?;
                least = Some(least.map_or(gbps, |known| known.min(gbps)));
            }
        }
        channel.gbps = least.unwrap_or(Fraction::ZERO);
    }
    Some(())
}
