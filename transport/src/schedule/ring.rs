//! Schedules around a ring. One lane per rank: it receives from the one before and sends to the one after.
//!
//! ```text
//!   all-reduce of one chunk by 4 ranks, as rank at position p sees it (segments by position):
//!     send p-1 │ reduce p-2, send │ reduce p-3, send │ reduce p: done, keep, send │ keep p-1, send │ keep p-2, send │ keep p-3
//!     └──────────────── reduce-scatter ────────────────────┘└──────────────────── all-gather ─────────────────────────┘
//! ```
//!
//! Segments longer than a slot take several rounds of this, one after another; each rank enters the next round as
//! soon as its own part of the last is done, so that rounds overlap around the ring.

use std::ops::Range;

use topology::Rank;
use topology::plan::Pattern;
use topology::schedule::{Buffer, Lane, Op, Step};

use super::{Job, ScheduleError, Selected, slice, split, step};

/// The ring's ranks in order, checked to be every rank once.
fn order(job: &Job<'_>, selected: &Selected<'_>) -> Result<Vec<usize>, ScheduleError> {
    let malformed =
        |why| ScheduleError::Malformed { channel: selected.id, pattern: Pattern::Ring, why };
    let order: Vec<usize> = selected.channel.ranks.iter().map(|r| r.index()).collect();
    let mut seen = vec![false; job.programs.len()];
    if order.len() != seen.len() {
        return Err(malformed("wrong number of ranks"));
    }
    for &rank in &order {
        match seen.get_mut(rank) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(malformed("a rank twice, or no rank of the plan")),
        }
    }
    Ok(order)
}

/// Adds a lane for every position of the ring; `steps` are by position.
fn push_lanes(job: &mut Job<'_>, id: u32, order: &[usize], steps: Vec<Vec<Step>>) {
    let n = order.len();
    for (p, steps) in steps.into_iter().enumerate() {
        let (before, after) = (order[(p + n - 1) % n], order[(p + 1) % n]);
        let receives = steps.iter().any(|s| s.op.receives());
        let sends = steps.iter().any(|s| s.op.sends());
        let lane = Lane {
            channel: id,
            connection: 0,
            recv_from: receives.then(|| super::rank(before)),
            send_to: sends.then(|| super::rank(after)),
            steps,
        };
        job.push(order[p], lane);
    }
}

/// The chunk of `segment` that belongs to a round; empty where the segment is through.
fn chunk(segment: &Range<usize>, round: usize, length: usize) -> Range<usize> {
    let start = segment.end.min(segment.start + round * length);
    start..segment.end.min(start + length)
}

fn rounds(segments: &[Range<usize>], length: usize) -> usize {
    segments.iter().map(|s| s.len().div_ceil(length)).max().unwrap_or(0)
}

fn longest(segments: &[Range<usize>]) -> usize {
    segments.iter().map(Range::len).max().unwrap_or(0)
}

pub(super) fn all_reduce(
    job: &mut Job<'_>,
    selected: &Selected<'_>,
    range: Range<usize>,
) -> Result<(), ScheduleError> {
    let order = order(job, selected)?;
    let n = order.len();
    let segments: Vec<_> =
        (0..n).map(|p| split::part(range.clone(), p, n, job.sizing.line())).collect();
    let length = job.sizing.ring_chunk(longest(&segments));
    let mut steps = vec![Vec::new(); n];
    for round in 0..rounds(&segments, length) {
        for (p, steps) in steps.iter_mut().enumerate() {
            let mut add = |op: Op, back: usize| {
                let chunk = chunk(&segments[(p + n - back) % n], round, length);
                if chunk.is_empty() {
                    return;
                }
                let (input, output) = (slice(Buffer::Input, &chunk), slice(Buffer::Output, &chunk));
                steps.push(match op {
                    Op::Send | Op::RecvReduceSend => step(op, input, input),
                    Op::RecvReduceCopySend => step(op, input, output),
                    _ => step(op, output, output),
                });
            };
            add(Op::Send, 1);
            (2..n).for_each(|back| add(Op::RecvReduceSend, back));
            add(Op::RecvReduceCopySend, 0);
            (1..n - 1).for_each(|back| add(Op::RecvCopySend, back));
            add(Op::Recv, n - 1);
        }
    }
    push_lanes(job, selected.id, &order, steps);
    Ok(())
}

/// All-gather or reduce-scatter. `parts` are this ring's parts of every rank's shard, `shards` the shards, both by rank.
pub(super) fn sharded(
    job: &mut Job<'_>,
    selected: &Selected<'_>,
    parts: &[Range<usize>],
    shards: &[Range<usize>],
) -> Result<(), ScheduleError> {
    let order = order(job, selected)?;
    let n = order.len();
    let gather = job.collective == topology::Collective::AllGather;
    let length = job.sizing.ring_chunk(longest(parts));
    let mut steps = vec![Vec::new(); n];
    for round in 0..rounds(parts, length) {
        for (p, steps) in steps.iter_mut().enumerate() {
            let own = order[p];
            let mut add = |op: Op, back: usize| {
                let chunk = chunk(&parts[order[(p + n - back) % n]], round, length);
                if chunk.is_empty() {
                    return;
                }
                // The buffer that holds this rank's shard alone starts with it.
                let local = || chunk.start - shards[own].start..chunk.end - shards[own].start;
                let input = slice(Buffer::Input, &chunk);
                let output = slice(Buffer::Output, &chunk);
                steps.push(match op {
                    Op::Send if gather => {
                        let own = slice(Buffer::Input, &local());
                        step(op, own, own)
                    }
                    Op::Send | Op::RecvReduceSend => step(op, input, input),
                    Op::RecvReduceCopy => step(op, input, slice(Buffer::Output, &local())),
                    _ => step(op, output, output),
                });
            };
            if gather {
                add(Op::Send, 0);
                (1..n - 1).for_each(|back| add(Op::RecvCopySend, back));
                add(Op::Recv, n - 1);
            } else {
                add(Op::Send, 1);
                (2..n).for_each(|back| add(Op::RecvReduceSend, back));
                add(Op::RecvReduceCopy, 0);
            }
        }
    }
    push_lanes(job, selected.id, &order, steps);
    Ok(())
}

/// Broadcast or reduce: the ring cut open at the root.
pub(super) fn rooted(
    job: &mut Job<'_>,
    selected: &Selected<'_>,
    range: Range<usize>,
) -> Result<(), ScheduleError> {
    let order = order(job, selected)?;
    let n = order.len();
    let root = job.root.map_or(0, Rank::index);
    let at = order.iter().position(|&r| r == root).unwrap_or(0);
    let broadcast = job.collective == topology::Collective::Broadcast;
    let length = job.sizing.chain_chunk(range.len(), n - 1);
    let mut steps = vec![Vec::new(); n];
    for round in 0..range.len().div_ceil(length) {
        let chunk = chunk(&range, round, length);
        let (input, output) = (slice(Buffer::Input, &chunk), slice(Buffer::Output, &chunk));
        for (p, steps) in steps.iter_mut().enumerate() {
            let hops_after_root = (p + n - at) % n;
            steps.push(match (broadcast, hops_after_root) {
                (true, 0) | (false, 1) => step(Op::Send, input, input),
                (true, h) if h == n - 1 => step(Op::Recv, output, output),
                (true, _) => step(Op::RecvCopySend, output, output),
                (false, 0) => step(Op::RecvReduceCopy, input, output),
                (false, _) => step(Op::RecvReduceSend, input, input),
            });
        }
    }
    push_lanes(job, selected.id, &order, steps);
    if broadcast {
        job.push(root, super::local_copy(selected.id, range.clone(), range));
    }
    Ok(())
}
