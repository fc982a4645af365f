//! What arrives: symbolic execution of a channel's hops, in the order they are listed, on multisets of contributions.
//!
//! This looks at hops alone and trusts nothing [`structure`](super::structure) found: a ring is what its
//! edges make it, not what its rank list says.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use topology::plan::{ChannelEdge, Pattern};
use topology::{Algorithm, Channel, Collective, Fraction, Rank};

use super::exact;
use super::structure::{Direction, ways};
use super::violation::{Place, Violation, ViolationKind};

/// Executes what `channel` does for `collective` on ranks `0..count`, all of which its edges must name.
pub(super) fn channel(
    channel: &Channel,
    collective: Collective,
    count: usize,
    at: Place,
    found: &mut Vec<Violation>,
) {
    let result = match channel.pattern {
        Pattern::Ring => ring(channel, collective, count),
        Pattern::Tree => tree(channel, collective, count),
        Pattern::Pairs => pairs(channel, collective, count),
        // What one round is for, the others say; see `rounds`.
        Pattern::Rounds => Ok(()),
    };
    if let Err(kind) = result {
        found.push(at.collective(collective).violation(kind));
    }
}

/// Every rank holds the piece of `shard` once: contributions by holder, then contributor.
fn arrived(
    holder: Rank,
    shard: Rank,
    times: &[usize],
    wanted: impl Fn(Rank) -> usize,
) -> Result<(), ViolationKind> {
    for (of, times) in ranks(times.len()).zip(times) {
        let expected = wanted(of);
        if *times != expected {
            return Err(ViolationKind::Arrives {
                rank: holder,
                shard,
                of,
                times: *times,
                expected,
            });
        }
    }
    Ok(())
}

fn ranks(count: usize) -> impl Iterator<Item = Rank> {
    (0..).map(Rank).take(count)
}

/// The data of `shard` is copied on along the ring, one hop a round, for as many rounds as there are other ranks.
fn ring_copy(next: &[Vec<Rank>], shard: Rank) -> Result<(), ViolationKind> {
    let mut times = vec![0_usize; next.len()];
    times[shard.index()] = 1;
    let mut front = vec![shard];
    for _ in 1..next.len() {
        front = front.iter().flat_map(|rank| next[rank.index()].iter().copied()).collect();
        for rank in &front {
            times[rank.index()] += 1;
        }
        // Two ways out of a rank would double the front each round; one arrival too many settles it.
        if front.len() != 1 {
            break;
        }
    }
    for (holder, times) in ranks(next.len()).zip(times) {
        if times != 1 {
            let (rank, of) = (holder, shard);
            return Err(ViolationKind::Arrives { rank, shard, of, times, expected: 1 });
        }
    }
    Ok(())
}

/// The sum for `shard` starts behind its owner and gathers one rank's part with every hop until it is there.
fn ring_reduce(next: &[Vec<Rank>], shard: Rank) -> Result<(), ViolationKind> {
    let mut times = vec![0_usize; next.len()];
    let mut here = shard;
    for hop in 0..next.len() {
        let [to] = next[here.index()][..] else { break };
        // The first hop only finds where the sum starts.
        if hop > 0 {
            times[here.index()] += 1;
        }
        here = to;
    }
    if here == shard {
        times[here.index()] += 1;
    } else {
        times.fill(0);
    }
    arrived(shard, shard, &times, |_| 1)
}

fn ring(channel: &Channel, collective: Collective, count: usize) -> Result<(), ViolationKind> {
    let (reduces, copies) = match collective {
        Collective::AllReduce | Collective::Barrier => (true, true),
        Collective::ReduceScatter | Collective::Reduce => (true, false),
        Collective::AllGather | Collective::Broadcast => (false, true),
        Collective::AllToAll | Collective::Gather | Collective::Scatter | Collective::SendRecv => {
            return Err(ViolationKind::CannotCarry { pattern: Pattern::Ring });
        }
    };
    let mut next = vec![Vec::new(); count];
    for edge in &channel.edges {
        next[edge.from.index()].push(edge.to);
    }
    // A ring has no root of its own: broadcast and reduce must work for any.
    for shard in ranks(count).filter(|_| count > 1) {
        if reduces {
            ring_reduce(&next, shard)?;
        }
        if copies {
            ring_copy(&next, shard)?;
        }
    }
    Ok(())
}

fn tree(channel: &Channel, collective: Collective, count: usize) -> Result<(), ViolationKind> {
    let root = channel.root.ok_or(ViolationKind::NoRoot)?;
    let ways = ways(channel, collective);
    if ways.is_empty() {
        return Err(ViolationKind::CannotCarry { pattern: Pattern::Tree });
    }
    for (edges, direction) in ways {
        match direction {
            Direction::Down => tree_copy(edges, root, count)?,
            Direction::Up => tree_reduce(edges, root, count)?,
        }
    }
    Ok(())
}

/// Each hop hands on whatever its sender holds then.
fn tree_copy(edges: &[ChannelEdge], root: Rank, count: usize) -> Result<(), ViolationKind> {
    let mut times = vec![0_usize; count];
    times[root.index()] = 1;
    for edge in edges {
        times[edge.to.index()] = times[edge.to.index()].saturating_add(times[edge.from.index()]);
    }
    for (rank, times) in ranks(count).zip(times) {
        if times != 1 {
            return Err(ViolationKind::Arrives { rank, shard: root, of: root, times, expected: 1 });
        }
    }
    Ok(())
}

/// Each hop adds whatever its sender has summed up by then to the receiver's sum.
fn tree_reduce(edges: &[ChannelEdge], root: Rank, count: usize) -> Result<(), ViolationKind> {
    let mut sums: Vec<Vec<Rank>> = ranks(count).map(|rank| vec![rank]).collect();
    for edge in edges {
        let sent = sums[edge.from.index()].clone();
        let sum = &mut sums[edge.to.index()];
        sum.extend(sent);
        // A correct sum never holds more than one of each; stopping here bounds what a wrong plan can cost.
        if sum.len() > count {
            break;
        }
    }
    let mut worst = (root, vec![0_usize; count]);
    let overfull = ranks(count).find(|rank| sums[rank.index()].len() > count);
    worst.0 = overfull.unwrap_or(root);
    for of in &sums[worst.0.index()] {
        worst.1[of.index()] += 1;
    }
    arrived(worst.0, root, &worst.1, |_| 1)
}

fn pairs(channel: &Channel, collective: Collective, count: usize) -> Result<(), ViolationKind> {
    let root = || channel.root.ok_or(ViolationKind::NoRoot);
    let to_root = |root: Rank| move |_: Rank, to: Rank| to == root;
    let from_root = |root: Rank| move |from: Rank, _: Rank| from == root;
    let all = |_: Rank, _: Rank| true;
    match collective {
        Collective::Broadcast | Collective::Scatter => {
            exchange(&channel.edges, count, from_root(root()?))
        }
        Collective::Reduce | Collective::Gather => {
            exchange(&channel.edges, count, to_root(root()?))
        }
        Collective::AllReduce | Collective::Barrier => {
            // In two steps, reduce-scatter then all-gather, or in one where there is no first.
            if !channel.reduce_edges.is_empty() {
                exchange(&channel.reduce_edges, count, all)?;
            }
            exchange(&channel.edges, count, all)
        }
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll
        | Collective::SendRecv => exchange(&channel.edges, count, all),
    }
}

/// Every pair that needs it exchanges its data exactly once.
fn exchange(
    edges: &[ChannelEdge],
    count: usize,
    needed: impl Fn(Rank, Rank) -> bool,
) -> Result<(), ViolationKind> {
    let mut missing: Vec<Vec<bool>> = ranks(count)
        .map(|from| ranks(count).map(|to| from != to && needed(from, to)).collect())
        .collect();
    for edge in edges {
        let pair = &mut missing[edge.from.index()][edge.to.index()];
        if !*pair {
            return Err(ViolationKind::PairTooMany { from: edge.from, to: edge.to });
        }
        *pair = false;
    }
    for (from, row) in ranks(count).zip(missing) {
        for (to, missing) in ranks(count).zip(row) {
            if missing {
                return Err(ViolationKind::PairMissing { from, to });
            }
        }
    }
    Ok(())
}

/// The roots that channels of a rooted collective name; empty where rings alone carry it, which serve any.
pub(super) fn roots<'a>(
    channels: impl Iterator<Item = &'a Channel>,
    collective: Collective,
) -> BTreeSet<Rank> {
    channels.filter(|_| collective.has_root()).filter_map(|channel| channel.root).collect()
}

/// Rounds of one collective together: they are those of a known algorithm. `None` where none of the channels is a round.
pub(super) fn rounds<'a>(
    channels: impl Iterator<Item = &'a Channel> + Clone,
    collective: Collective,
    hosts: &[usize],
    at: Place,
    found: &mut Vec<Violation>,
) -> Option<Vec<Algorithm>> {
    let is_round = |channel: &&Channel| channel.pattern == Pattern::Rounds;
    if !channels.clone().any(|channel| is_round(&channel)) {
        return None;
    }
    let at = at.collective(collective);
    let all: Vec<&Channel> = channels.collect();
    if !all.iter().all(is_round) {
        found.push(at.violation(ViolationKind::RoundsAmongOthers));
        return Some(Vec::new());
    }
    let known = super::rounds::recognise(&all, collective, hosts);
    if known.is_empty() {
        found.push(at.violation(ViolationKind::UnknownRounds { rounds: all.len() }));
    }
    Some(known)
}

/// The channels of one collective together: shares tile the data (where channels name several roots, for each root
/// by those that serve it), and each rank's shard is carried whole.
pub(super) fn together<'a>(
    channels: impl Iterator<Item = (Place, &'a Channel)> + Clone,
    collective: Collective,
    count: usize,
    at: Place,
    found: &mut Vec<Violation>,
) {
    let at = at.collective(collective);
    let roots = roots(channels.clone().map(|(_, channel)| channel), collective);
    let cases = roots.into_iter().map(Some);
    let cases: Vec<_> = if cases.len() == 0 { vec![None] } else { cases.collect() };
    for root in cases {
        let serves =
            |channel: &Channel| root.is_none() || channel.root.is_none() || channel.root == root;
        let serving = channels.clone().filter(|(_, channel)| serves(channel));
        match exact::sum(serving.map(|(_, channel)| channel.share)) {
            Some(sum) if sum == Fraction::ONE => {}
            Some(sum) => found.push(at.violation(ViolationKind::Shares { root, sum })),
            None => found.push(at.violation(ViolationKind::Overflow)),
        }
    }
    // Shards of these are what the caller's buffers are cut into, hence equal. All-reduce may cut as it likes.
    if matches!(collective, Collective::AllGather | Collective::ReduceScatter)
        && let Err(kind) = shards(channels, count)
    {
        found.push(at.violation(kind));
    }
}

fn shards<'a>(
    channels: impl Iterator<Item = (Place, &'a Channel)>,
    count: usize,
) -> Result<(), ViolationKind> {
    let mut by_owner = vec![Fraction::ZERO; count];
    let mut by_all = Fraction::ZERO;
    for (_, channel) in channels {
        let sum = match (channel.pattern, channel.root) {
            (Pattern::Tree, Some(root)) => &mut by_owner[root.index()],
            _ => &mut by_all,
        };
        *sum = sum.checked_add(channel.share).ok_or(ViolationKind::Overflow)?;
    }
    let count = exact::integer(count);
    let expected = Fraction::ONE / count;
    let each = by_all.checked_div(count).ok_or(ViolationKind::Overflow)?;
    for (rank, sum) in (0..).map(Rank).zip(by_owner) {
        let share = sum.checked_add(each).ok_or(ViolationKind::Overflow)?;
        if share != expected {
            return Err(ViolationKind::ShardShare { rank, share, expected });
        }
    }
    Ok(())
}
