//! Direct exchanges: all-to-all, gather and scatter, each block straight from the rank that has it to the one that wants it.
//!
//! ```text
//!   lane s of rank r, for s = 1, 2, ... n-1        send to r+s ◀── its own block      chunk 0, 1, ...
//!                                                  receive from r-s                   in turn
//! ```
//!
//! So in every turn each rank sends to one and hears from one other, and no two send to the same. A way over NICs, switches or
//! other ranks is a matter of the hardware the plan is for: memory of hosts reaches every peer by one link.

use std::ops::Range;

use topology::plan::Pattern;
use topology::schedule::{Buffer, Lane, Op};

use super::{Job, ScheduleError, Selected, even_chunk, slice, split, step};

/// Where a block lies at its sender, and where at its receiver.
pub(super) struct Block {
    pub(super) source: Range<usize>,
    pub(super) target: Range<usize>,
}

/// Adds the exchange of `block(from, to)` for every ordered pair; `None` for pairs that exchange nothing whatever the count.
pub(super) fn exchange(
    job: &mut Job<'_>,
    channels: &[Selected<'_>],
    block: impl Fn(usize, usize) -> Option<Block>,
) -> Result<(), ScheduleError> {
    let ranks = job.programs.len();
    let (collective, count) = (job.collective, job.count);
    for channel in channels {
        covers(channel, ranks, &block)?;
    }
    // The part of every block on every channel, by sender, then receiver, then channel.
    let mut parts: Vec<Vec<Range<usize>>> = Vec::with_capacity(ranks * ranks);
    for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
        let length = block(from, to).map_or(0, |block| block.source.len());
        let cut = split::by_shares(0..length, channels, job.sizing.line());
        parts.push(cut.ok_or(ScheduleError::Shares { collective, count })?);
    }
    for (place, channel) in channels.iter().enumerate() {
        for rank in 0..ranks {
            for shift in 1..ranks {
                let (to, from) = ((rank + shift) % ranks, (rank + ranks - shift) % ranks);
                let outward = pieces(job, block(rank, to), &parts[rank * ranks + to][place]);
                let inward = pieces(job, block(from, rank), &parts[from * ranks + rank][place]);
                let mut steps = Vec::with_capacity(outward.len() + inward.len());
                for turn in 0..outward.len().max(inward.len()) {
                    if let Some((source, _)) = outward.get(turn) {
                        let own = slice(Buffer::Input, source);
                        steps.push(step(Op::Send, own, own));
                    }
                    if let Some((_, target)) = inward.get(turn) {
                        let kept = slice(Buffer::Output, target);
                        steps.push(step(Op::Recv, kept, kept));
                    }
                }
                let lane = Lane {
                    channel: channel.id,
                    connection: 0,
                    recv_from: (!inward.is_empty()).then(|| super::rank(from)),
                    send_to: (!outward.is_empty()).then(|| super::rank(to)),
                    steps,
                };
                job.push(rank, lane);
            }
        }
    }
    for rank in 0..ranks {
        if let Some(Block { source, target }) = block(rank, rank) {
            let id = channels.first().map_or(0, |channel| channel.id);
            job.push(rank, super::local_copy(id, source, target));
        }
    }
    Ok(())
}

/// The chunks of a part of a block: where each is at its sender and at its receiver.
fn pieces(
    job: &Job<'_>,
    block: Option<Block>,
    part: &Range<usize>,
) -> Vec<(Range<usize>, Range<usize>)> {
    let Some(Block { source, target }) = block else { return Vec::new() };
    let sizing = job.sizing;
    let length = even_chunk(part.len(), part.len().div_ceil(sizing.slot()), sizing.line());
    part.clone()
        .step_by(length)
        .map(|at| {
            let end = part.end.min(at + length);
            (source.start + at..source.start + end, target.start + at..target.start + end)
        })
        .collect()
}

/// Whether the channel has a hop for every pair that exchanges something.
fn covers(
    selected: &Selected<'_>,
    ranks: usize,
    block: impl Fn(usize, usize) -> Option<Block>,
) -> Result<(), ScheduleError> {
    let malformed =
        |why| ScheduleError::Malformed { channel: selected.id, pattern: Pattern::Pairs, why };
    let mut listed = vec![false; ranks * ranks];
    for edge in &selected.channel.edges {
        let (from, to) = (edge.from.index(), edge.to.index());
        if from >= ranks || to >= ranks {
            return Err(malformed("a hop to no rank of the plan"));
        }
        listed[from * ranks + to] = true;
    }
    let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
    for (from, to) in pairs.filter(|(from, to)| from != to) {
        if block(from, to).is_some() && !listed[from * ranks + to] {
            return Err(malformed("two ranks exchange data and have no hop"));
        }
    }
    Ok(())
}
