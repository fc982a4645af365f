//! Loads: what each directed link carries, hence how long one unit of data takes.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use num_integer::Integer;
use topology::plan::{ChannelEdge, Pattern};
use topology::{Algorithm, Channel, Collective, Fraction, LinkId, Rank, Topology};

use super::exact;
use super::semantics::roots;
use super::structure::{HopLoad, Parts};

/// What the channels of one collective reach, counted link by link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Total data per second, GB/s, at infinite size; zero where nothing crosses any link (one rank, barrier).
    pub algbw_gbps: Fraction,
    /// Bytes over each link per byte of the collective's total data; by link, without those that carry nothing.
    /// Where the root or the pair is open, those of the slowest choice.
    pub loads: Vec<(LinkId, Fraction)>,
    /// The links that decide the bandwidth; by link.
    pub limiting: Vec<LinkId>,
    /// Longest chain of hops one way: N-1 for a ring of N, the height of a tree, 1 for pairs; rounds are counted all.
    pub height: u32,
    /// Channels without a root, plus the largest number that share one; rounds are one channel together.
    pub channels: u32,
    /// The algorithms whose rounds these are; empty where they are no rounds.
    pub rounds: Vec<Algorithm>,
}

/// What one byte of a collective's total data costs, exactly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volumes {
    /// Bytes that each rank sends and receives of its own account, by rank; data it forwards for others of an exchange is not its own.
    pub ranks: Vec<(Fraction, Fraction)>,
    /// Bytes over each link, without those that carry nothing; by link.
    pub links: Vec<(LinkId, Fraction)>,
    /// Bytes that all ranks send together.
    pub job: Fraction,
}

/// Volumes of `channels`, all of which carry `collective`; of the slowest root, where the root is open. `None` where fractions do not
/// fit.
pub(super) fn volumes(
    topology: &Topology,
    channels: &[Loaded<'_>],
    parts: &Parts,
    collective: Collective,
    ranks: usize,
) -> Option<Volumes> {
    let of = Operation { topology, channels, parts, collective, ranks };
    let slowest = slowest(&of, cases(channels, collective, ranks))?;
    let Some((case, links, _)) = slowest else { return Some(Volumes::default()) };
    let mut by_rank = vec![(Fraction::ZERO, Fraction::ZERO); ranks];
    let mut job = Fraction::ZERO;
    for (channel, _) in channels.iter().filter(|(channel, _)| !idle(channel, case)) {
        for (place, edge) in channel.all_edges().enumerate() {
            let up = place < channel.reduce_edges.len();
            let part = factor(channel, collective, (edge, up), ranks, case);
            let data = channel.share.checked_mul(part)?;
            let (sent, received) = (edge.from.index(), edge.to.index());
            by_rank[sent].0 = by_rank[sent].0.checked_add(data)?;
            by_rank[received].1 = by_rank[received].1.checked_add(data)?;
            job = job.checked_add(data)?;
        }
    }
    Some(Volumes { ranks: by_rank, links, job })
}

/// What is left open by a plan and decided by the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// Nothing.
    Fixed,
    /// The root: any rank where rings alone carry the collective, else one of those that channels name.
    Root(Rank),
    /// Who sends to whom.
    Pair(Rank, Rank),
}

/// A channel with what each of its hops, as [`Channel::all_edges`] lists them, puts on links.
pub(super) type Loaded<'a> = (&'a Channel, &'a [HopLoad]);

/// Counts `channels`, all of which carry `collective`; `None` where fractions do not fit.
pub(super) fn count(
    topology: &Topology,
    channels: &[Loaded<'_>],
    parts: &Parts,
    collective: Collective,
    ranks: usize,
) -> Option<Counted> {
    let of = Operation { topology, channels, parts, collective, ranks };
    if channels.iter().any(|(channel, _)| channel.pattern == Pattern::Rounds) {
        return count_rounds(&of);
    }
    let mut cases = cases(channels, collective, ranks);
    if let Some(root) = slowest_root(&of, &cases)? {
        cases = vec![root];
    }
    let (loads, busy) =
        slowest(&of, cases)?.map_or_else(Default::default, |(_, loads, busy)| (loads, busy));
    let Busy { time, limiting } = busy;
    let algbw_gbps =
        if time.is_zero() { Fraction::ZERO } else { Fraction::ONE.checked_div(time)? };
    Some(Counted {
        algbw_gbps,
        loads,
        limiting,
        height: channels
            .iter()
            .map(|(channel, _)| height(channel, ranks))
            .max()
            .unwrap_or_default(),
        channels: channel_count(channels.iter().map(|(channel, _)| *channel)),
        rounds: Vec::new(),
    })
}

/// A round begins when the one before is over, so each takes as long as its busiest link.
fn count_rounds(of: &Operation<'_>) -> Option<Counted> {
    let mut time = Fraction::ZERO;
    let mut sums = vec![Fraction::ZERO; of.topology.graph().edge_count()];
    let mut busiest_links = BTreeSet::new();
    for channel in of.channels.chunks(1) {
        let round = loads(&Operation { channels: channel, ..*of }, Case::Fixed)?;
        let busy = Busy::of(of.topology, &round)?;
        time = time.checked_add(busy.time)?;
        busiest_links.extend(busy.limiting);
        // Sum before, load, sum after: the same for links after one another that carry the same.
        let mut last = [Fraction::ZERO; 3];
        for (link, load) in round {
            let sum = &mut sums[link.index()];
            if last[..2] != [*sum, load] {
                last = [*sum, load, sum.checked_add(load)?];
            }
            *sum = last[2];
        }
    }
    let used = sums.into_iter().enumerate().filter(|(_, sum)| !sum.is_zero());
    Some(Counted {
        algbw_gbps: Fraction::ONE.checked_div(time).unwrap_or(Fraction::ZERO),
        loads: used.map(|(link, sum)| (LinkId::new(link), sum)).collect(),
        limiting: busiest_links.into_iter().collect(),
        height: u32::try_from(of.channels.len()).unwrap_or(u32::MAX),
        channels: 1,
        rounds: Vec::new(),
    })
}

/// What is counted.
#[derive(Clone, Copy)]
struct Operation<'a> {
    topology: &'a Topology,
    channels: &'a [Loaded<'a>],
    parts: &'a Parts,
    collective: Collective,
    ranks: usize,
}

/// By link, without those that carry nothing.
type Loads = Vec<(LinkId, Fraction)>;

/// What takes longest.
#[derive(Default)]
struct Busy {
    /// Seconds per GB of the collective's data that the busiest link takes.
    time: Fraction,
    /// The links that take this long.
    limiting: Vec<LinkId>,
}

impl Busy {
    fn of(topology: &Topology, loads: &Loads) -> Option<Self> {
        let mut busy = Self::default();
        // Links after one another mostly carry the same at the same rate.
        let mut last: Option<(Fraction, u64, Fraction)> = None;
        for &(link, load) in loads {
            let kbps = topology.link(link).bandwidth.kbps();
            let time = match last {
                Some((known, rate, time)) if known == load && rate == kbps => time,
                _ => load.checked_div(Fraction::of(kbps, 1_000_000))?,
            };
            last = Some((load, kbps, time));
            if time > busy.time {
                busy = Self { time, limiting: Vec::new() };
            }
            if time == busy.time {
                busy.limiting.push(link);
            }
        }
        Some(busy)
    }
}

/// The first of the cases that take longest: its loads, and what is busiest. `None` inside where there is no case.
fn slowest(of: &Operation<'_>, cases: Vec<Case>) -> Option<Option<(Case, Loads, Busy)>> {
    let mut worst: Option<(Case, Loads, Busy)> = None;
    for case in cases {
        let loads = loads(of, case)?;
        let busy = Busy::of(of.topology, &loads)?;
        if worst.as_ref().is_none_or(|(_, _, slowest)| busy.time > slowest.time) {
            worst = Some((case, loads, busy));
        }
    }
    Some(worst)
}

/// On rings alone a root spares the hop that would bring its own data back, and nothing else differs from root to root. So
/// the first root that leaves one of the busiest links as it is, is a slowest one.
fn slowest_root(of: &Operation<'_>, cases: &[Case]) -> Option<Option<Case>> {
    let Operation { topology, channels, collective, ranks, .. } = *of;
    let rings = channels.iter().all(|(channel, _)| channel.pattern == Pattern::Ring);
    if !rings || cases.len() < 2 || !collective.has_root() {
        return Some(None);
    }
    let all = loads(of, Case::Fixed)?;
    let busy = Busy::of(topology, &all)?.limiting;
    let untouched = |case: &&Case| {
        let mut spared = BTreeSet::new();
        for (channel, hops) in channels {
            for (edge, hop) in channel.edges.iter().zip(*hops) {
                if factor(channel, collective, (edge, false), ranks, **case).is_zero() {
                    spared.extend(hop.iter().map(|(link, _)| *link));
                }
            }
        }
        busy.iter().any(|link| !spared.contains(link))
    };
    Some(cases.iter().find(untouched).copied())
}

fn cases(channels: &[Loaded<'_>], collective: Collective, ranks: usize) -> Vec<Case> {
    let named = roots(channels.iter().map(|(channel, _)| *channel), collective);
    match collective {
        Collective::Broadcast | Collective::Reduce if named.is_empty() => {
            (0..).map(Rank).take(ranks).map(Case::Root).collect()
        }
        _ if !named.is_empty() => named.into_iter().map(Case::Root).collect(),
        Collective::SendRecv => {
            let edges = channels.iter().flat_map(|(channel, _)| &channel.edges);
            let pairs: BTreeSet<_> = edges.map(|edge| (edge.from, edge.to)).collect();
            pairs.into_iter().map(|(from, to)| Case::Pair(from, to)).collect()
        }
        // A barrier moves no data.
        Collective::Barrier => Vec::new(),
        _ => vec![Case::Fixed],
    }
}

/// Sums per link, over one common denominator: with many trees that is much faster than adding fractions.
fn loads(of: &Operation<'_>, case: Case) -> Option<Loads> {
    let Operation { topology, channels, parts, collective, ranks } = *of;
    // Few values differ: every link crossed names one of them.
    let mut values: Vec<Fraction> = Vec::new();
    let mut loaded: Vec<(LinkId, u32)> = Vec::new();
    let mut common: i128 = 1;
    for (channel, hops) in channels {
        if idle(channel, case) {
            continue;
        }
        let mut last: Option<(Fraction, u32, u32)> = None;
        for (place, (edge, hop)) in channel.all_edges().zip(*hops).enumerate() {
            let up = place < channel.reduce_edges.len();
            let factor = factor(channel, collective, (edge, up), ranks, case);
            if factor.is_zero() {
                continue;
            }
            for &(link, part) in hop {
                let value = match last {
                    Some((f, p, value)) if p == part && f == factor => value,
                    _ => {
                        let data = channel.share.checked_mul(factor)?;
                        let load = data.checked_mul(parts.of(part))?;
                        let missing = load.denominator() / common.gcd(&load.denominator());
                        common = common.checked_mul(missing)?;
                        values.push(load);
                        u32::try_from(values.len() - 1).ok()?
                    }
                };
                last = Some((factor, part, value));
                loaded.push((link, value));
            }
        }
    }
    let scaled = |load: &Fraction| load.numerator().checked_mul(common / load.denominator());
    let values: Vec<i128> = values.iter().map(scaled).collect::<Option<_>>()?;
    let mut sums = vec![0_i128; topology.graph().edge_count()];
    for (link, value) in loaded {
        let sum = &mut sums[link.index()];
        *sum = sum.checked_add(values[value as usize])?;
    }
    let used = sums.into_iter().enumerate().filter(|(_, sum)| *sum != 0);
    let mut last = (0, Fraction::ZERO);
    used.map(|(link, sum)| {
        if last.0 != sum {
            last = (sum, Fraction::new(sum, common)?);
        }
        Some((LinkId::new(link), last.1))
    })
    .collect()
}

/// Whether the channel is another root's.
fn idle(channel: &Channel, case: Case) -> bool {
    matches!((case, channel.root), (Case::Root(root), Some(own)) if root != own)
}

/// How much of the channel's share crosses one of its hops; `up` is whether the hop is on the way up.
fn factor(
    channel: &Channel,
    collective: Collective,
    (edge, up): (&ChannelEdge, bool),
    ranks: usize,
    case: Case,
) -> Fraction {
    // A way up is all-reduce's alone: all-gather and broadcast over the same channel use the way down.
    if up && collective != Collective::AllReduce {
        return Fraction::ZERO;
    }
    if idle(channel, case) {
        return Fraction::ZERO;
    }
    let shard = || Fraction::ONE / exact::integer(ranks);
    match (channel.pattern, collective) {
        (Pattern::Ring, Collective::AllReduce) => exact::integer(2 * (ranks - 1)) * shard(),
        (Pattern::Ring, Collective::AllGather | Collective::ReduceScatter) => {
            exact::integer(ranks - 1) * shard()
        }
        // The hop that would bring the root its own data back does not happen.
        (Pattern::Ring, Collective::Broadcast) if case == Case::Root(edge.to) => Fraction::ZERO,
        (Pattern::Ring, Collective::Reduce) if case == Case::Root(edge.from) => Fraction::ZERO,
        (Pattern::Ring | Pattern::Tree | Pattern::Rounds, _) => Fraction::ONE,
        (Pattern::Pairs, Collective::AllReduce) if channel.reduce_edges.is_empty() => Fraction::ONE,
        (Pattern::Pairs, Collective::Broadcast | Collective::Reduce) => Fraction::ONE,
        (Pattern::Pairs, Collective::SendRecv) => {
            if case == Case::Pair(edge.from, edge.to) {
                Fraction::ONE
            } else {
                Fraction::ZERO
            }
        }
        (Pattern::Pairs, _) => shard(),
    }
}

/// GB/s that `channel` carries when `collective` runs at `algbw_gbps`: on each hop of a ring (where broadcast
/// and reduce put the whole share on each, the others as much as their data crosses), of its data otherwise.
///
/// `None` where the fractions do not fit.
#[must_use]
pub fn channel_gbps(
    channel: &Channel,
    collective: Collective,
    algbw_gbps: Fraction,
    ranks: usize,
) -> Option<Fraction> {
    let passes = match (channel.pattern, collective) {
        (Pattern::Ring, Collective::AllReduce) => 2,
        (Pattern::Ring, Collective::AllGather | Collective::ReduceScatter) => 1,
        _ => return channel.share.checked_mul(algbw_gbps),
    };
    let crossing = Fraction::new(
        i128::try_from(passes * ranks.checked_sub(1)?).ok()?,
        i128::try_from(ranks).ok()?,
    )?;
    exact::product([channel.share, algbw_gbps, crossing])
}

fn height(channel: &Channel, ranks: usize) -> u32 {
    match channel.pattern {
        Pattern::Ring => u32::try_from(ranks - 1).unwrap_or(u32::MAX),
        Pattern::Pairs | Pattern::Rounds => 1,
        Pattern::Tree => {
            let way = |edges: &[ChannelEdge]| {
                // Hops are listed in an order they can be executed in, whichever way they run.
                let mut chain = vec![0_u32; ranks];
                for edge in edges {
                    let (from, to) = (edge.from.index(), edge.to.index());
                    chain[to] = chain[to].max(chain[from] + 1);
                }
                chain.into_iter().max().unwrap_or_default()
            };
            way(&channel.reduce_edges).max(way(&channel.edges))
        }
    }
}

fn channel_count<'a>(channels: impl Iterator<Item = &'a Channel>) -> u32 {
    let mut rooted = BTreeMap::<Rank, u32>::new();
    let mut others = 0;
    for channel in channels {
        match channel.root {
            Some(root) => *rooted.entry(root).or_default() += 1,
            None => others += 1,
        }
    }
    others + rooted.into_values().max().unwrap_or_default()
}
