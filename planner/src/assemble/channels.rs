//! Rings, trees and pairs as channels of a plan, in the names of the topology.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use topology::plan::{ChannelEdge, EdgePath, Pattern};
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
    pattern: Pattern,
    root: Option<usize>,
    share: Fraction,
    hops: Hops,
    reduce_edges: Vec<ChannelEdge>,
) -> Channel {
    Channel {
        index: 0,
        pattern,
        collectives: Vec::new(),
        ranks: Vec::new(),
        root: root.map(rank_of),
        nics: hops.nics.into_iter().collect(),
        share,
        gbps: Fraction::ZERO,
        edges: hops.edges,
        reduce_edges,
    }
}

/// Hops of one channel in names, with the NICs that they cross.
#[derive(Default)]
struct Hops {
    edges: Vec<ChannelEdge>,
    nics: BTreeSet<String>,
}

/// Names hops: few ways differ among the many that channels take, and each is named once.
pub(super) struct Naming<'a> {
    model: &'a Model,
    ground: Ground,
    /// By a number that few share.
    known: BTreeMap<u64, Vec<Named>>,
}

/// The ways of a hop in names.
struct Named {
    ways: Vec<(Vec<usize>, Fraction)>,
    paths: Vec<EdgePath>,
    nics: Vec<String>,
}

impl Named {
    fn new(model: &Model, ground: Ground, ways: Vec<(Vec<usize>, Fraction)>) -> Self {
        let nodes = ways.iter().map(|(nodes, share)| (nodes.as_slice(), *share));
        let paths = match ground {
            Ground::Usable => model.paths(nodes),
            Ground::Bound => model.bound_paths(nodes),
        };
        let crossed = paths.iter().flat_map(|path| &path.via);
        let nics: BTreeSet<&String> = crossed.filter(|name| model.is_nic(name)).collect();
        let nics = nics.into_iter().cloned().collect();
        Self { ways, paths, nics }
    }

    fn is<'b>(&self, mut ways: impl Iterator<Item = (&'b [usize], Fraction)>) -> bool {
        let same = |known: &(Vec<usize>, Fraction)| {
            ways.next().is_some_and(|(nodes, share)| known.0 == nodes && known.1 == share)
        };
        self.ways.iter().all(same) && ways.next().is_none()
    }
}

impl<'a> Naming<'a> {
    pub(super) fn new(model: &'a Model, ground: Ground) -> Self {
        Self { model, ground, known: BTreeMap::new() }
    }

    /// Adds a hop to those of a channel.
    fn add<'b>(
        &mut self,
        hops: &mut Hops,
        (from, to): (usize, usize),
        ways: impl Iterator<Item = (&'b [usize], Fraction)> + Clone,
    ) {
        let like = self.known.entry(number(ways.clone().map(|(nodes, _)| nodes))).or_default();
        let place = like.iter().position(|named| named.is(ways.clone()));
        let place = place.unwrap_or_else(|| {
            let ways = ways.map(|(nodes, share)| (nodes.to_vec(), share)).collect();
            like.push(Named::new(self.model, self.ground, ways));
            like.len() - 1
        });
        let Named { paths, nics, .. } = &like[place];
        for nic in nics {
            if !hops.nics.contains(nic) {
                hops.nics.insert(nic.clone());
            }
        }
        let paths = paths.clone();
        hops.edges.push(ChannelEdge { from: rank_of(from), to: rank_of(to), paths });
    }
}

/// A number from the nodes of ways, different for most that differ (FNV-1a, by nodes instead of bytes).
fn number<'b>(ways: impl Iterator<Item = &'b [usize]>) -> u64 {
    let mix = |sum: u64, node: u64| (sum ^ node).wrapping_mul(0x0100_0000_01b3);
    ways.fold(0xcbf2_9ce4_8422_2325, |sum, nodes| {
        mix(nodes.iter().fold(sum, |sum, node| mix(sum, *node as u64)), u64::MAX)
    })
}

fn ways_of(ways: &[Way]) -> impl Iterator<Item = (&[usize], Fraction)> + Clone {
    ways.iter().map(|way| (way.via.as_slice(), way.share))
}

/// Which of a model's graphs trees or ways lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// [`Model::graph`].
    Usable,
    /// [`Model::bound_graph`].
    Bound,
}

impl Ground {
    /// Where what was made on [`Model::bound_graph`] lies: there are two graphs only where that one is another.
    pub(super) fn of_bound(model: &Model) -> Self {
        if model.is_relaxed() { Self::Bound } else { Self::Usable }
    }
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

/// Adds a tree's hops to those of a channel.
fn add_tree(naming: &mut Naming<'_>, dealt: Option<&Dealt>, hops: &mut Hops, edges: &[TreeEdge]) {
    for e in edges {
        if let Some(dealt) = dealt {
            let paths = dealt.paths(e.from, e.to);
            hops.edges.push(ChannelEdge { from: rank_of(e.from), to: rank_of(e.to), paths });
        } else {
            let ways = e.paths.iter().map(|path| (path.via.as_slice(), path.share));
            naming.add(hops, (e.from, e.to), ways);
        }
    }
}

/// One channel a ring, each for the part of the data that its rate is of the total.
pub(super) fn rings(model: &Model, packing: &RingPacking) -> Vec<Channel> {
    let mut naming = Naming::new(model, Ground::Usable);
    packing
        .rings
        .iter()
        .map(|ring| {
            let n = ring.order.len();
            let mut hops = Hops::default();
            for (i, ways) in ring.hops.iter().enumerate() {
                let ends = (ring.order[i], ring.order[(i + 1) % n]);
                naming.add(&mut hops, ends, ways_of(ways));
            }
            let share = ring.rate / packing.total;
            let mut channel = channel(Pattern::Ring, None, share, hops, Vec::new());
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
    let mut naming = Naming::new(model, Ground::Usable);
    trees
        .iter()
        .map(|tree| {
            let mut hops = Hops::default();
            for e in tree.up.iter().chain(&tree.down) {
                naming.add(&mut hops, (e.from, e.to), ways_of(core::slice::from_ref(&e.way)));
            }
            let (hops, up) = split(hops, tree.up.len());
            channel(Pattern::Tree, Some(tree.root), share, hops, up)
        })
        .collect()
}

/// The first `up` hops apart from the others.
fn split(mut hops: Hops, up: usize) -> (Hops, Vec<ChannelEdge>) {
    let down = hops.edges.split_off(up);
    let up = core::mem::replace(&mut hops.edges, down);
    (hops, up)
}

/// One channel a tree, by its weight.
pub(super) fn forest(naming: &mut Naming<'_>, forest: &Forest) -> Vec<Channel> {
    let dealt = dealt(naming.model, naming.ground, forest);
    let total: u64 = forest.trees.iter().map(|tree| tree.weight).sum();
    forest
        .trees
        .iter()
        .map(|tree| {
            let mut hops = Hops::default();
            add_tree(naming, dealt.as_ref(), &mut hops, &tree.edges);
            let share = Fraction::of(tree.weight, total);
            channel(Pattern::Tree, Some(tree.root), share, hops, Vec::new())
        })
        .collect()
}

/// One channel for each tree up with its tree down.
pub(super) fn all_reduce_forest(
    naming: &mut Naming<'_>,
    reduce: &Forest,
    spread: &Forest,
) -> Vec<Channel> {
    let (model, ground) = (naming.model, naming.ground);
    let (dealt_up, dealt_down) = (dealt(model, ground, reduce), dealt(model, ground, spread));
    let total: u64 = spread.trees.iter().map(|tree| tree.weight).sum();
    reduce
        .trees
        .iter()
        .zip(&spread.trees)
        .map(|(up, down)| {
            let mut hops = Hops::default();
            add_tree(naming, dealt_up.as_ref(), &mut hops, &up.edges);
            add_tree(naming, dealt_down.as_ref(), &mut hops, &down.edges);
            let (hops, reduce) = split(hops, up.edges.len());
            let share = Fraction::of(down.weight, total);
            channel(Pattern::Tree, Some(down.root), share, hops, reduce)
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
    let mut naming = Naming::new(model, ground);
    let mut hops = Hops::default();
    for pair in pairs {
        if let Some(dealt) = &dealt {
            let paths = dealt.paths(pair.from, pair.to);
            let (from, to) = (rank_of(pair.from), rank_of(pair.to));
            hops.edges.push(ChannelEdge { from, to, paths });
        } else {
            naming.add(&mut hops, (pair.from, pair.to), ways_of(&pair.ways));
        }
    }
    [channel(Pattern::Pairs, root, Fraction::ONE, hops, Vec::new())].into()
}

/// One channel a round; `None` where a hop has no way.
pub(super) fn rounds(
    naming: &mut Naming<'_>,
    rounds: &[Round],
    ways: &BTreeMap<(usize, usize), Vec<Way>>,
) -> Option<Vec<Channel>> {
    let mut of_round = |round: &Round| {
        let mut hops = Hops::default();
        for hop in &round.hops {
            naming.add(&mut hops, *hop, ways_of(ways.get(hop)?));
        }
        Some(channel(Pattern::Rounds, None, round.share, hops, Vec::new()))
    };
    rounds.iter().map(&mut of_round).collect()
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
