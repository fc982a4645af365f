//! Schedules made by hand, for tests: one of each form.

use topology::schedule::{Buffer, Lane, Op, Program, Schedule, Slice, Step, StepRef};
use topology::{Collective, Rank};

pub(super) use Buffer::{Input, Output, Scratch};

pub(super) fn slice(buffer: Buffer, elements: std::ops::Range<usize>) -> Slice {
    Slice { buffer, offset: elements.start, count: elements.len() }
}

pub(super) fn step(op: Op, src: Slice, dst: Slice) -> Step {
    Step { op, src, dst, after: Vec::new() }
}

fn lane(
    connection: u32,
    recv_from: Option<usize>,
    send_to: Option<usize>,
    steps: Vec<Step>,
) -> Lane {
    let rank = |rank: usize| Rank(u32::try_from(rank).unwrap());
    Lane {
        channel: 0,
        connection,
        recv_from: recv_from.map(rank),
        send_to: send_to.map(rank),
        steps,
    }
}

fn schedule(
    collective: Collective,
    count: usize,
    root: Option<u32>,
    scratch: usize,
    lanes: Vec<Vec<Lane>>,
) -> Schedule {
    let programs = lanes.into_iter().map(|lanes| Program { scratch, lanes }).collect();
    Schedule { collective, count, root: root.map(Rank), programs }
}

fn shard(rank: usize, ranks: usize, count: usize) -> std::ops::Range<usize> {
    count * rank / ranks..count * (rank + 1) / ranks
}

/// Reduce-scatter then all-gather around `0 -> 1 -> ... -> 0`, one message a shard.
pub(super) fn ring_all_reduce(n: usize, count: usize) -> Schedule {
    let programs = (0..n).map(|rank| {
        let of = |back: usize| shard((rank + 2 * n - back) % n, n, count);
        let reads = |op, back: usize, into| step(op, slice(Input, of(back)), slice(into, of(back)));
        let leaves = |op, back: usize| step(op, slice(Output, of(back)), slice(Output, of(back)));
        let mut steps = vec![reads(Op::Send, 0, Input)];
        steps.extend((1..n - 1).map(|back| reads(Op::RecvReduceSend, back, Input)));
        steps.push(reads(Op::RecvReduceCopySend, n - 1, Output));
        steps.extend((n..2 * n - 2).map(|back| leaves(Op::RecvCopySend, back)));
        steps.push(leaves(Op::Recv, 2 * n - 2));
        vec![lane(0, Some((rank + n - 1) % n), Some((rank + 1) % n), steps)]
    });
    schedule(Collective::AllReduce, count, None, 0, programs.collect())
}

pub(super) fn ring_all_gather(n: usize, count: usize) -> Schedule {
    let programs = (0..n).map(|rank| {
        let of = |back: usize| slice(Output, shard((rank + n - back) % n, n, count));
        let own = slice(Input, 0..of(0).count);
        let mut steps = vec![step(Op::Copy, own, of(0)), step(Op::Send, of(0), of(0))];
        steps.extend((1..n - 1).map(|back| step(Op::RecvCopySend, of(back), of(back))));
        steps.push(step(Op::Recv, of(n - 1), of(n - 1)));
        vec![lane(0, Some((rank + n - 1) % n), Some((rank + 1) % n), steps)]
    });
    schedule(Collective::AllGather, count, None, 0, programs.collect())
}

pub(super) fn ring_reduce_scatter(n: usize, count: usize) -> Schedule {
    let programs = (0..n).map(|rank| {
        let of = |back: usize| slice(Input, shard((rank + 2 * n - 1 - back) % n, n, count));
        let mut steps = vec![step(Op::Send, of(0), of(0))];
        steps.extend((1..n - 1).map(|back| step(Op::RecvReduceSend, of(back), of(back))));
        let out = slice(Output, 0..of(n - 1).count);
        steps.push(step(Op::RecvReduceCopy, of(n - 1), out));
        vec![lane(0, Some((rank + n - 1) % n), Some((rank + 1) % n), steps)]
    });
    schedule(Collective::ReduceScatter, count, None, 0, programs.collect())
}

/// Up and down the chain `0 - 1 - ... `; the way down waits for the way up in the last rank by `after`.
pub(super) fn chain_all_reduce(n: usize, count: usize, pieces: usize) -> Schedule {
    let programs = (0..n).map(|rank| {
        let (first, last) = (rank == 0, rank + 1 == n);
        let piece = |p| shard(p, pieces, count);
        let up = |p| {
            let src = slice(Input, piece(p));
            match (first, last) {
                (true, _) => step(Op::Send, src, src),
                (_, true) => step(Op::RecvReduceCopy, src, slice(Output, piece(p))),
                _ => step(Op::RecvReduceSend, src, src),
            }
        };
        let down = |p| {
            let whole = slice(Output, piece(p));
            let op = match (first, last) {
                (true, _) => Op::Recv,
                (_, true) => Op::Send,
                _ => Op::RecvCopySend,
            };
            let after = if last {
                vec![StepRef { lane: 0, step: u32::try_from(p).unwrap() }]
            } else {
                vec![]
            };
            Step { after, ..step(op, whole, whole) }
        };
        let below = (!first).then(|| rank - 1);
        let above = (!last).then_some(rank + 1);
        vec![
            lane(0, below, above, (0..pieces).map(up).collect()),
            lane(1, above, below, (0..pieces).map(down).collect()),
        ]
    });
    schedule(Collective::AllReduce, count, None, 0, programs.collect())
}

/// A star around the root, and what the root does with its own part.
fn star(
    collective: Collective,
    n: usize,
    count: usize,
    root: usize,
    own: Option<Step>,
    at_root: impl Fn(usize) -> Step,
    elsewhere: impl Fn(usize) -> Step,
) -> Schedule {
    let towards = matches!(collective, Collective::Gather | Collective::Reduce);
    let programs = (0..n).map(|rank| {
        if rank != root {
            let (from, to) = if towards { (None, Some(root)) } else { (Some(root), None) };
            return vec![lane(0, from, to, vec![elsewhere(rank)])];
        }
        let mut lanes = vec![lane(9, None, None, own.iter().cloned().collect())];
        for other in (0..n).filter(|other| *other != root) {
            let (from, to) = if towards { (Some(other), None) } else { (None, Some(other)) };
            let mut step = at_root(other);
            if collective == Collective::Reduce {
                // One after the other: all add to the same output.
                let before = u32::try_from(lanes.len() - 1).unwrap();
                step.after.push(StepRef { lane: before, step: 0 });
            }
            lanes.push(lane(0, from, to, vec![step]));
        }
        lanes
    });
    let root = Some(u32::try_from(root).unwrap());
    schedule(collective, count, root, 0, programs.collect())
}

pub(super) fn star_of(collective: Collective, n: usize, count: usize, root: usize) -> Schedule {
    let (whole_in, whole_out) = (slice(Input, 0..count), slice(Output, 0..count));
    let of = |rank| shard(rank, n, count);
    let alone = |buffer, rank| slice(buffer, 0..of(rank).len());
    let send = |slice| step(Op::Send, slice, slice);
    let recv = |slice| step(Op::Recv, slice, slice);
    let copy = |src, dst| Some(step(Op::Copy, src, dst));
    match collective {
        Collective::Broadcast => {
            let own = copy(whole_in, whole_out);
            star(collective, n, count, root, own, |_| send(whole_in), |_| recv(whole_out))
        }
        Collective::Reduce => {
            let own = copy(whole_in, whole_out);
            let add = step(Op::RecvReduceCopy, whole_out, whole_out);
            star(collective, n, count, root, own, |_| add.clone(), |_| send(whole_in))
        }
        Collective::Gather => {
            let own = copy(alone(Input, root), slice(Output, of(root)));
            let at_root = |rank| recv(slice(Output, of(rank)));
            star(collective, n, count, root, own, at_root, |rank| send(alone(Input, rank)))
        }
        Collective::Scatter => {
            let own = copy(slice(Input, of(root)), alone(Output, root));
            let at_root = |rank| send(slice(Input, of(rank)));
            star(collective, n, count, root, own, at_root, |rank| recv(alone(Output, rank)))
        }
        other => panic!("no star for {other}"),
    }
}

/// Every rank to every rank; a lane per peer and direction.
pub(super) fn all_to_all(n: usize, block: usize) -> Schedule {
    let programs = (0..n).map(|rank| {
        let of = |peer: usize, buffer| slice(buffer, peer * block..(peer + 1) * block);
        let own = step(Op::Copy, of(rank, Input), of(rank, Output));
        let mut lanes = vec![lane(9, None, None, vec![own])];
        for peer in (0..n).filter(|peer| *peer != rank) {
            let send = step(Op::Send, of(peer, Input), of(peer, Input));
            let recv = step(Op::Recv, of(peer, Output), of(peer, Output));
            lanes.push(lane(0, Some(peer), Some(peer), vec![send, recv]));
        }
        lanes
    });
    schedule(Collective::AllToAll, n * block, None, 0, programs.collect())
}

/// One shot by way of scratch memory: every rank gets everybody's input and adds up.
pub(super) fn one_shot_all_reduce(n: usize, count: usize) -> Schedule {
    let programs = (0..n).map(|rank| {
        let (input, output) = (slice(Input, 0..count), slice(Output, 0..count));
        let mut sum = vec![step(Op::Copy, input, output)];
        let mut lanes = Vec::new();
        for (place, peer) in (0..n).filter(|peer| *peer != rank).enumerate() {
            let kept = slice(Scratch, place * count..(place + 1) * count);
            let steps = vec![step(Op::Send, input, input), step(Op::Recv, kept, kept)];
            let after = StepRef { lane: u32::try_from(place + 1).unwrap(), step: 1 };
            sum.push(Step { after: vec![after], ..step(Op::Reduce, kept, output) });
            lanes.push(lane(0, Some(peer), Some(peer), steps));
        }
        // In place, the input must have been sent before sums go where it is.
        let sent =
            (0..n - 1).map(|place| StepRef { lane: u32::try_from(place + 1).unwrap(), step: 0 });
        sum[0].after.extend(sent);
        lanes.insert(0, lane(9, None, None, sum));
        lanes
    });
    schedule(Collective::AllReduce, count, None, (n - 1) * count, programs.collect())
}

/// Dissemination: in round k every rank tells the one 2^k ahead.
pub(super) fn barrier(n: usize) -> Schedule {
    let rounds = (0..).take_while(|k| 1_usize << k < n);
    let nothing = slice(Scratch, 0..0);
    let programs = (0..n).map(|rank| {
        let mut lanes = Vec::<Lane>::new();
        for k in rounds.clone() {
            let (ahead, behind) = ((rank + (1 << k)) % n, (rank + n - (1 << k)) % n);
            let mut send = step(Op::Send, nothing, nothing);
            if k > 0 {
                send.after = vec![StepRef { lane: k - 1, step: 1 }];
            }
            let recv = step(Op::Recv, nothing, nothing);
            lanes.push(lane(k, Some(behind), Some(ahead), vec![send, recv]));
        }
        lanes
    });
    schedule(Collective::Barrier, 0, None, 0, programs.collect())
}

pub(super) fn send_recv(n: usize, count: usize, from: usize, to: usize) -> Schedule {
    let (input, output) = (slice(Input, 0..count), slice(Output, 0..count));
    let mut lanes = vec![vec![]; n];
    lanes[from].push(lane(0, None, Some(to), vec![step(Op::Send, input, input)]));
    lanes[to].push(lane(0, Some(from), None, vec![step(Op::Recv, output, output)]));
    let root = Some(u32::try_from(from).unwrap());
    schedule(Collective::SendRecv, count, root, 0, lanes)
}
