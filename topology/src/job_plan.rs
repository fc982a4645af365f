//! A plan for many hosts in a form that does not grow with them: what each class of hosts does, and who is of which class.
//!
//! Listing every hop of a job of 16,384 hosts is out of the question, and nobody needs it: equal hosts do the same. A [`JobPlan`] holds
//!
//! ```text
//!   classes    for each kind of host: its plan for all-gather and reduce-scatter among its own GPUs,
//!              owners:  the part of the host's data with which each GPU stands before the other hosts,
//!              uplinks: the ways of each GPU to the network and back
//!   class_of   by host, in the order of ranks
//!   exchange   by collective: each host to each other, or over hubs
//! ```
//!
//! and means the following. Think of the data of an operation as the line from 0 to 1. Each host cuts it among its owners in order of local rank, each
//! owner's piece among its trees, in order of channels. (A ring is, for each of its ranks, the tree that follows it round from there.) Where the cuts
//! of all classes are put together, the line falls into *strands*; in a strand each host has one owner and one tree to it and from it.
//!
//! - **All-reduce**: a strand is divided among all hosts as hubs, by [`Exchange::Hubs`]. In every host the strand is reduced to its owner; owners
//!   send it to the hub's owner, which adds it all up and sends it back; owners spread it. So each hop between hosts is one owner's
//!   to another's, on its rail where classes agree on rails.
//! - **All-gather**: the line is that of each host in turn, cut in equal parts for the GPUs that have them. A GPU's part is spread in its own
//!   host by its own trees; the strand's owner there sends it to the other hosts' owners, directly, or to a hub that sends it to the
//!   others; owners spread it.
//! - **Reduce-scatter**: all-gather backwards.
//!
//! [`JobPlan::expand`] writes all of it out as channels, for as many hosts as that makes sense for. The checker counts loads by class without
//! doing so, and tests hold that both are the same.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::plan::{ChannelEdge, EdgePath, Pattern, PlanRank};
use crate::{Channel, Collective, Finding, Fraction, HostId, Plan, Rank};

/// Channels for many hosts, by class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPlan {
    /// Each kind of host once.
    pub classes: Vec<JobClass>,
    /// By host, in the order of ranks, its place in `classes`.
    pub class_of: Vec<u32>,
    /// What each collective does between hosts, and what it reaches.
    pub collectives: BTreeMap<Collective, JobCollective>,
    /// Defaults taken where a topology did not tell.
    pub assumptions: Vec<String>,
    /// What is wrong, given up or worth knowing.
    pub findings: Vec<Finding>,
}

/// What one kind of host does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobClass {
    /// [`Topology::fingerprint`](crate::Topology::fingerprint) of one such host.
    pub fingerprint: String,
    /// Its GPUs by local rank, as on host 0.
    pub ranks: Vec<PlanRank>,
    /// Its plan for all-gather and reduce-scatter among them; `None` for a single GPU.
    pub plan: Option<Plan>,
    /// By local rank, the part of the host's data with which it stands before other hosts. Adds up to 1.
    pub owners: Vec<Fraction>,
    /// By local rank, its ways to the network; for an owner shares add up to 1.
    pub uplinks: Vec<Vec<JobUplink>>,
}

/// A way from a GPU to the network and back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobUplink {
    /// Its place among the host's NICs for collectives.
    pub rail: u32,
    /// Part of the GPU's traffic.
    pub share: Fraction,
    /// Names of the vertices from the GPU to the NIC, without the GPU.
    pub out: Vec<String>,
    /// From the NIC to the GPU, without the GPU.
    pub back: Vec<String>,
}

/// What a collective does between hosts, and what it reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCollective {
    /// Between hosts.
    pub exchange: Exchange,
    /// Total data per second, GB/s, at infinite size, as counted by the checker.
    pub algbw_gbps: Fraction,
    /// No plan reaches more; GB/s.
    pub bound_gbps: Fraction,
    /// What the bound comes from.
    pub bound_by: String,
    /// The link that limits, with its class.
    pub limited_by: String,
}

/// Who sends to whom between hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// Each host to each other.
    Direct,
    /// Each part by way of a hub; by class, the part that each host of it is hub for. Over all hosts they add up to 1.
    Hubs(Vec<Fraction>),
}

/// A piece of the line from 0 to 1 in one host: from, to, owner, place of the tree among its owner's.
type Piece = (Fraction, Fraction, usize, usize);

/// A tree of a class with its part of its root's data.
#[derive(Clone, Debug)]
pub struct RootTree<'a> {
    /// Part of what its root spreads or collects.
    pub share: Fraction,
    /// Hops in local ranks: parents before children for spreading, children before parents for collecting.
    pub edges: Vec<&'a ChannelEdge>,
}

impl JobClass {
    /// The trees by which `root` spreads (all-gather) or collects (reduce-scatter) its data inside the host, in order of channels; one without
    /// hops for a single GPU. None where their shares, which a file may hold, do not fit. They are those of the plan's own channels, or of its first alternative in rings or trees where those are none.
    #[must_use]
    pub fn trees(&self, collective: Collective, root: usize) -> Vec<RootTree<'_>> {
        let Some(plan) = &self.plan else {
            return vec![RootTree { share: Fraction::ONE, edges: Vec::new() }];
        };
        let in_trees = |channel: &&Channel| {
            matches!(channel.pattern, Pattern::Ring | Pattern::Tree)
                && channel.collectives.contains(&collective)
        };
        // Where the plan's own channels are rounds, the first of its alternatives that has rings or trees.
        let mut lists = core::iter::once(&plan.channels)
            .chain(plan.alternatives.iter().map(|set| &set.channels));
        let channels = lists.find(|list| list.iter().any(|channel| in_trees(&channel)));
        let mut trees: Vec<RootTree<'_>> = Vec::new();
        for channel in channels.into_iter().flatten().filter(in_trees) {
            match channel.pattern {
                Pattern::Ring => {
                    let count = channel.edges.len();
                    let first = channel.edges.iter().position(|edge| edge.from.index() == root);
                    let Some(first) = first else { continue };
                    // Spreading leaves out the hop into the root, collecting the one out of it.
                    let skip = usize::from(collective == Collective::ReduceScatter);
                    let edges =
                        (skip..count - 1 + skip).map(|i| &channel.edges[(first + i) % count]);
                    trees.push(RootTree { share: channel.share, edges: edges.collect() });
                }
                Pattern::Tree if channel.root.is_some_and(|of| of.index() == root) => {
                    trees.push(RootTree {
                        share: channel.share,
                        edges: channel.edges.iter().collect(),
                    });
                }
                Pattern::Tree | Pattern::Pairs | Pattern::Rounds => {}
            }
        }
        let total = trees
            .iter()
            .try_fold(Fraction::ZERO, |total, tree| total.checked_add(tree.share))
            .filter(|total| !total.is_zero());
        for tree in &mut trees {
            let Some(share) = total.and_then(|total| tree.share.checked_div(total)) else {
                return Vec::new();
            };
            tree.share = share;
        }
        trees
    }

    /// Cuts the line by these parts of each local rank, each of them by its trees.
    fn pieces(&self, collective: Collective, parts: &[Fraction]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = Fraction::ZERO;
        for (owner, &part) in parts.iter().enumerate().filter(|(_, part)| !part.is_zero()) {
            for (place, tree) in self.trees(collective, owner).iter().enumerate() {
                let end = at + part * tree.share;
                pieces.push((at, end, owner, place));
                at = end;
            }
        }
        pieces
    }
}

impl JobPlan {
    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u64 {
        self.class_of.iter().map(|&class| self.classes[class as usize].ranks.len() as u64).sum()
    }

    /// Hosts of each class.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = vec![0; self.classes.len()];
        self.class_of.iter().for_each(|&class| counts[class as usize] += 1);
        counts
    }

    /// Ranks, and every channel of a collective with every hop; `None` for other collectives than all-reduce, all-gather and
    /// reduce-scatter, or where the plan has it not.
    #[must_use]
    pub fn expand(&self, collective: Collective) -> Option<(Vec<PlanRank>, Vec<Channel>)> {
        let exchange = &self.collectives.get(&collective)?.exchange;
        let job = Expansion::new(self);
        let mut channels = match collective {
            Collective::AllReduce => job.all_reduce(exchange)?,
            Collective::AllGather | Collective::ReduceScatter => job.shards(collective, exchange),
            _ => return None,
        };
        for (index, channel) in (0..).zip(&mut channels) {
            channel.index = index;
        }
        Some((job.ranks, channels))
    }
}

struct Expansion<'a> {
    plan: &'a JobPlan,
    ranks: Vec<PlanRank>,
    /// Rank of each host's first GPU.
    first: Vec<usize>,
    /// Names of the NICs that data may cross, with their hosts.
    nics: BTreeSet<String>,
}

/// One host in a strand.
#[derive(Clone, Copy)]
struct Part {
    host: usize,
    owner: usize,
    tree: usize,
}

impl<'a> Expansion<'a> {
    fn new(plan: &'a JobPlan) -> Self {
        let mut ranks = Vec::new();
        let mut first = Vec::new();
        for (host, &class) in (0..).zip(&plan.class_of) {
            first.push(ranks.len());
            for local in &plan.classes[class as usize].ranks {
                let rank = Rank(u32::try_from(ranks.len()).unwrap_or(u32::MAX));
                ranks.push(PlanRank { rank, host: HostId(host), ..local.clone() });
            }
        }
        let mut expansion = Self { plan, ranks, first, nics: BTreeSet::new() };
        for host in 0..expansion.first.len() {
            let class = expansion.class(host);
            let between = class.uplinks.iter().flatten().filter_map(|uplink| uplink.out.last());
            let inside = class.plan.iter().flat_map(|plan| &plan.channels).flat_map(|c| &c.nics);
            let names: Vec<String> =
                between.chain(inside).map(|name| expansion.name(host, name)).collect();
            expansion.nics.extend(names);
        }
        expansion
    }

    fn class(&self, host: usize) -> &'a JobClass {
        &self.plan.classes[self.plan.class_of[host] as usize]
    }

    fn rank(&self, host: usize, local: usize) -> Rank {
        Rank(u32::try_from(self.first[host] + local).unwrap_or(u32::MAX))
    }

    fn name(&self, host: usize, name: &str) -> String {
        if self.first.len() == 1 || name == FABRIC { name.into() } else { format!("{host}:{name}") }
    }

    /// The hops of a tree inside a host.
    fn inside(&self, collective: Collective, part: Part) -> Vec<ChannelEdge> {
        let trees = self.class(part.host).trees(collective, part.owner);
        let Some(tree) = trees.get(part.tree) else { return Vec::new() };
        let path = |path: &EdgePath| EdgePath {
            via: path.via.iter().map(|name| self.name(part.host, name)).collect(),
            share: path.share,
        };
        tree.edges
            .iter()
            .map(|edge| ChannelEdge {
                from: self.rank(part.host, edge.from.index()),
                to: self.rank(part.host, edge.to.index()),
                paths: edge.paths.iter().map(path).collect(),
            })
            .collect()
    }

    /// The hop from one host's owner to another's.
    fn between(&self, from: Part, to: Part) -> ChannelEdge {
        let mut paths = Vec::new();
        for out in &self.class(from.host).uplinks[from.owner] {
            for back in &self.class(to.host).uplinks[to.owner] {
                let out_names = out.out.iter().map(|name| self.name(from.host, name));
                let back_names = back.back.iter().map(|name| self.name(to.host, name));
                let via = out_names.chain([FABRIC.into()]).chain(back_names).collect();
                paths.push(EdgePath { via, share: out.share * back.share });
            }
        }
        paths.sort_unstable_by(|a, b| a.via.cmp(&b.via));
        ChannelEdge {
            from: self.rank(from.host, from.owner),
            to: self.rank(to.host, to.owner),
            paths,
        }
    }

    fn channel(
        &self,
        collective: Collective,
        root: Rank,
        share: Fraction,
        edges: Vec<ChannelEdge>,
        reduce_edges: Vec<ChannelEdge>,
    ) -> Channel {
        let crossed = edges.iter().chain(&reduce_edges).flat_map(|edge| &edge.paths);
        let nics: BTreeSet<&String> =
            crossed.flat_map(|path| &path.via).filter(|name| self.nics.contains(*name)).collect();
        let nics = nics.into_iter().cloned().collect();
        Channel {
            index: 0,
            pattern: Pattern::Tree,
            collectives: [collective].into(),
            ranks: Vec::new(),
            root: Some(root),
            nics,
            share,
            // Counted by whoever wants it.
            gbps: share,
            edges,
            reduce_edges,
        }
    }

    fn all_reduce(&self, exchange: &Exchange) -> Option<Vec<Channel>> {
        let Exchange::Hubs(weights) = exchange else { return None };
        let pieces = |collective| -> Vec<Vec<Piece>> {
            let of = |class: &JobClass| class.pieces(collective, &class.owners);
            self.plan.classes.iter().map(of).collect()
        };
        let (spread, collect) = (pieces(Collective::AllGather), pieces(Collective::ReduceScatter));
        let mut channels = Vec::new();
        for (from, to) in strands(spread.iter().chain(&collect)) {
            let parts = |pieces: &[Vec<Piece>]| -> Option<Vec<Part>> {
                (0..self.first.len())
                    .map(|host| {
                        let pieces = &pieces[self.plan.class_of[host] as usize];
                        at(pieces, from).map(|(owner, tree)| Part { host, owner, tree })
                    })
                    .collect()
            };
            let (down, up) = (parts(&spread)?, parts(&collect)?);
            for hub in 0..self.first.len() {
                let weight = weights[self.plan.class_of[hub] as usize];
                if weight.is_zero() {
                    continue;
                }
                let others = || (0..self.first.len()).filter(|&host| host != hub);
                let inside = |collective, parts: &[Part]| -> Vec<ChannelEdge> {
                    parts.iter().flat_map(|&part| self.inside(collective, part)).collect()
                };
                let mut reduce_edges = inside(Collective::ReduceScatter, &up);
                reduce_edges.extend(others().map(|host| self.between(up[host], up[hub])));
                let mut edges: Vec<ChannelEdge> =
                    others().map(|host| self.between(down[hub], down[host])).collect();
                edges.extend(inside(Collective::AllGather, &down));
                let root = self.rank(hub, down[hub].owner);
                channels.push(self.channel(
                    Collective::AllReduce,
                    root,
                    (to - from) * weight,
                    edges,
                    reduce_edges,
                ));
            }
        }
        Some(channels)
    }

    /// All-gather, or the same backwards.
    fn shards(&self, collective: Collective, exchange: &Exchange) -> Vec<Channel> {
        let total = self.ranks.len() as u64;
        let foreign: Vec<Vec<Piece>> =
            self.plan.classes.iter().map(|class| class.pieces(collective, &class.owners)).collect();
        let mut channels = Vec::new();
        for home in 0..self.first.len() {
            let class = self.class(home);
            let size = class.ranks.len() as u64;
            let own = class.pieces(collective, &vec![Fraction::of(1, size); class.ranks.len()]);
            for (from, to) in strands(foreign.iter().chain([&own])) {
                let Some((root, tree)) = at(&own, from) else { continue };
                let owners: Option<Vec<Part>> = (0..self.first.len())
                    .map(|host| {
                        let pieces = &foreign[self.plan.class_of[host] as usize];
                        at(pieces, from).map(|(owner, tree)| Part { host, owner, tree })
                    })
                    .collect();
                let Some(owners) = owners else { continue };
                let share = (to - from) * Fraction::of(size, total);
                let own = Part { host: home, owner: root, tree };
                let hubs: Vec<(usize, Fraction)> = match exchange {
                    Exchange::Direct => [(home, Fraction::ONE)].into(),
                    Exchange::Hubs(weights) => (0..self.first.len())
                        .map(|hub| (hub, weights[self.plan.class_of[hub] as usize]))
                        .filter(|(_, weight)| !weight.is_zero())
                        .collect(),
                };
                for (hub, weight) in hubs {
                    channels.push(self.shard(collective, own, &owners, hub, share * weight));
                }
            }
        }
        channels
    }

    /// The tree of a piece of a rank's own data.
    fn shard(
        &self,
        collective: Collective,
        own: Part,
        owners: &[Part],
        hub: usize,
        share: Fraction,
    ) -> Channel {
        let back = collective == Collective::ReduceScatter;
        let hop = |from: usize, to: usize| {
            let (from, to) = (owners[from], owners[to]);
            if back { self.between(to, from) } else { self.between(from, to) }
        };
        let mut levels: Vec<Vec<ChannelEdge>> = vec![self.inside(collective, own)];
        if hub != own.host {
            levels.push([hop(own.host, hub)].into());
        }
        let rest = owners.iter().filter(|part| part.host != own.host && part.host != hub);
        levels.push(rest.map(|part| hop(hub, part.host)).collect());
        let others = owners.iter().filter(|part| part.host != own.host);
        levels.push(others.flat_map(|&part| self.inside(collective, part)).collect());
        if back {
            levels.reverse();
        }
        let root = self.rank(own.host, own.owner);
        self.channel(collective, root, share, levels.concat(), Vec::new())
    }
}

/// The vertex that all hosts' NICs meet in.
const FABRIC: &str = "fabric";

/// The pieces that remain where all cuts are put together.
fn strands<'a>(cuts: impl Iterator<Item = &'a Vec<Piece>>) -> Vec<(Fraction, Fraction)> {
    let ends: BTreeSet<Fraction> =
        cuts.flatten().flat_map(|&(from, to, _, _)| [from, to]).collect();
    let ends: Vec<Fraction> = ends.into_iter().collect();
    ends.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

/// Owner and tree of the piece that a strand from here lies in.
fn at(pieces: &[Piece], from: Fraction) -> Option<(usize, usize)> {
    let piece = pieces.iter().find(|piece| piece.0 <= from && from < piece.1)?;
    Some((piece.2, piece.3))
}
