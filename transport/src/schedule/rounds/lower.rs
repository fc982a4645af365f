//! Rounds as lanes: one for each peer of a round, each behind all that the rank did before.

use std::collections::BTreeMap;

use topology::schedule::{Buffer, Lane, Op, Slice, Step, StepRef};

use super::{Move, Round};
use crate::schedule::{Job, Sizing, even_chunk};

/// The channel all rounds are on.
const CHANNEL: u32 = 0;

pub(super) fn lower(mut job: Job<'_>, rounds: Vec<Round>) {
    let ranks = job.programs.len();
    // The last steps of what each rank did so far.
    let mut done: Vec<Vec<StepRef>> = vec![Vec::new(); ranks];
    for (connection, round) in (0_u32..).zip(rounds) {
        let mut sends: Vec<BTreeMap<usize, Vec<Step>>> = vec![BTreeMap::new(); ranks];
        let mut receives = sends.clone();
        for moved in &round.moves {
            for step in chunks(moved, job.sizing) {
                let sent = Step { op: Op::Send, src: step.0, dst: step.0, after: Vec::new() };
                sends[moved.from].entry(moved.to).or_default().push(sent);
                let received = match step.2 {
                    Some(add) => {
                        Step { op: Op::RecvReduceCopy, src: add, dst: step.1, after: Vec::new() }
                    }
                    None => Step { op: Op::Recv, src: step.1, dst: step.1, after: Vec::new() },
                };
                receives[moved.to].entry(moved.from).or_default().push(received);
            }
        }
        for (rank, (sends, receives)) in sends.into_iter().zip(receives).enumerate() {
            let lanes = lanes(rank, ranks, sends, receives);
            let before = done[rank].clone();
            let mut last = Vec::new();
            for (send_to, recv_from, mut steps) in lanes {
                if let Some(first) = steps.first_mut() {
                    first.after.clone_from(&before);
                }
                last.extend(push(&mut job, rank, connection, send_to, recv_from, steps));
            }
            if !last.is_empty() {
                done[rank] = last;
            }
        }
        let mut locals: Vec<Vec<Step>> = vec![Vec::new(); ranks];
        for (rank, step) in round.locals {
            if step.src.count > 0 {
                locals[rank].push(step);
            }
        }
        for (rank, mut steps) in locals.into_iter().enumerate() {
            if let Some(first) = steps.first_mut() {
                first.after.clone_from(&done[rank]);
            }
            let last = push(&mut job, rank, connection, None, None, steps);
            if last.is_some() {
                done[rank] = last.into_iter().collect();
            }
        }
    }
    for program in job.programs.iter_mut() {
        let steps = program.lanes.iter().flat_map(|lane| &lane.steps);
        let ends =
            steps.flat_map(|step| [step.src, step.dst]).filter(|s| s.buffer == Buffer::Scratch);
        program.scratch = ends.map(|slice| slice.offset + slice.count).max().unwrap_or(0);
    }
}

/// Adds a lane; its last step.
fn push(
    job: &mut Job<'_>,
    rank: usize,
    connection: u32,
    send_to: Option<usize>,
    recv_from: Option<usize>,
    steps: Vec<Step>,
) -> Option<StepRef> {
    let last = u32::try_from(steps.len()).ok()?.checked_sub(1)?;
    let lane = Lane {
        channel: CHANNEL,
        connection,
        recv_from: recv_from.map(super::rank),
        send_to: send_to.map(super::rank),
        steps,
    };
    Some(StepRef { lane: job.push(rank, lane), step: last })
}

/// Where a chunk is at its sender, where it goes at its receiver, and what is added to it.
type Chunk = (Slice, Slice, Option<Slice>);

fn chunks(moved: &Move, sizing: Sizing) -> Vec<Chunk> {
    let count = moved.src.count;
    let length = even_chunk(count, count.div_ceil(sizing.slot()), sizing.line());
    let part = |slice: Slice, start: usize| Slice {
        offset: slice.offset + start,
        count: length.min(count - start),
        ..slice
    };
    (0..count)
        .step_by(length)
        .map(|start| {
            (part(moved.src, start), part(moved.dst, start), moved.add.map(|add| part(add, start)))
        })
        .collect()
}

/// Sends and receives in lanes, one a peer. What is sent may lie where a sum with what the same peer sends is kept: then they share a lane
/// and take turns, the send first, so that data is gone before the sum takes its place.
fn lanes(
    rank: usize,
    ranks: usize,
    mut sends: BTreeMap<usize, Vec<Step>>,
    receives: BTreeMap<usize, Vec<Step>>,
) -> Vec<(Option<usize>, Option<usize>, Vec<Step>)> {
    let mut lanes = Vec::new();
    for (peer, back) in receives {
        let adds = back.iter().any(|step| step.op == Op::RecvReduceCopy);
        match sends.remove(&peer) {
            Some(out) if adds => lanes.push((Some(peer), Some(peer), in_turn(out, back))),
            out => {
                lanes.push((None, Some(peer), back));
                lanes.extend(out.map(|out| (Some(peer), None, out)));
            }
        }
    }
    lanes.extend(sends.into_iter().map(|(peer, out)| (Some(peer), None, out)));
    // Each rank begins with another peer.
    lanes.sort_by_key(|(to, from, _)| match (to, from) {
        (Some(to), _) => (to + ranks - rank) % ranks,
        (None, from) => (rank + ranks - from.unwrap_or(rank)) % ranks,
    });
    lanes
}

fn in_turn(sends: Vec<Step>, receives: Vec<Step>) -> Vec<Step> {
    let mut steps = Vec::with_capacity(sends.len() + receives.len());
    let (mut sends, mut receives) = (sends.into_iter(), receives.into_iter());
    loop {
        let (out, back) = (sends.next(), receives.next());
        if out.is_none() && back.is_none() {
            return steps;
        }
        steps.extend(out);
        steps.extend(back);
    }
}
