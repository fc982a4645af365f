//! Schedules along a tree. Towards the root every rank adds what its children send and passes the sum on; from the
//! root every rank keeps what its parent sends and passes it on.
//!
//! ```text
//!   lanes of a rank with two children, all-reduce        (j: chunk; an arrow: must be done before)
//!     up    child a: output = input + r          j ──┐
//!     up    child b: send to parent: output + r  j ◀─┘          at the root: output = output + r ──┐
//!     down  parent: output = r, send to child a  j ──┐          at the root: send to child a     ◀─┤
//!     down  send to child b: output              j ◀─┘                       send to child b     ◀─┘
//! ```

use std::ops::Range;

use topology::plan::{ChannelEdge, Pattern};
use topology::schedule::{Buffer, Lane, Op, Slice, Step, StepRef};
use topology::{Collective, Rank};

use super::{Job, ScheduleError, Selected, split, step};

/// Connection numbers within a tree's channel.
pub(super) const UP: u32 = 0;
pub(super) const DOWN: u32 = 1;

/// A spanning tree, by rank.
struct Tree {
    root: usize,
    parent: Vec<Option<usize>>,
    /// In edge order.
    children: Vec<Vec<usize>>,
    height: usize,
}

impl Tree {
    /// From `(parent, child)` pairs.
    fn new(
        ranks: usize,
        root: Option<Rank>,
        pairs: impl Iterator<Item = (Rank, Rank)>,
    ) -> Result<Self, &'static str> {
        let root = root.map(Rank::index).filter(|r| *r < ranks).ok_or("no root")?;
        let mut parent = vec![None; ranks];
        let mut children = vec![Vec::new(); ranks];
        for (from, to) in pairs {
            let (from, to) = (from.index(), to.index());
            if from >= ranks || to >= ranks {
                return Err("an edge to no rank of the plan");
            }
            if to == root || parent[to].replace(from).is_some() {
                return Err("a rank with two parents, or a root with one");
            }
            children[from].push(to);
        }
        let mut depth = vec![0_usize; ranks];
        let mut reached = vec![root];
        let mut next = 0;
        while let Some(&rank) = reached.get(next) {
            for &child in &children[rank] {
                depth[child] = depth[rank] + 1;
                reached.push(child);
            }
            next += 1;
        }
        if reached.len() != ranks {
            return Err("not every rank is reached from the root");
        }
        let height = depth.into_iter().max().unwrap_or(0);
        Ok(Self { root, parent, children, height })
    }
}

fn up_tree(ranks: usize, root: Option<Rank>, edges: &[ChannelEdge]) -> Result<Tree, &'static str> {
    Tree::new(ranks, root, edges.iter().map(|e| (e.to, e.from)))
}

fn down_tree(
    ranks: usize,
    root: Option<Rank>,
    edges: &[ChannelEdge],
) -> Result<Tree, &'static str> {
    Tree::new(ranks, root, edges.iter().map(|e| (e.from, e.to)))
}

/// The whole of one tree channel's part in any collective.
pub(super) fn schedule(
    job: &mut Job<'_>,
    selected: &Selected<'_>,
    range: Range<usize>,
) -> Result<(), ScheduleError> {
    let ranks = job.programs.len();
    let channel = selected.channel;
    let malformed =
        |why| ScheduleError::Malformed { channel: selected.id, pattern: Pattern::Tree, why };
    match job.collective {
        Collective::AllReduce => {
            let up = up_tree(ranks, channel.root, &channel.reduce_edges).map_err(malformed)?;
            let down = down_tree(ranks, channel.root, &channel.edges).map_err(malformed)?;
            let chunks = chunks(job, &range, up.height + down.height);
            let summed = reduce(job, selected.id, &up, &chunks);
            broadcast(job, selected.id, &down, &chunks, summed);
        }
        Collective::Reduce | Collective::ReduceScatter => {
            let up = up_tree(ranks, channel.root, &channel.edges).map_err(malformed)?;
            let chunks = chunks(job, &range, up.height);
            reduce(job, selected.id, &up, &chunks);
        }
        _ => {
            let down = down_tree(ranks, channel.root, &channel.edges).map_err(malformed)?;
            let chunks = chunks(job, &range, down.height);
            broadcast(job, selected.id, &down, &chunks, None);
        }
    }
    Ok(())
}

fn chunks(job: &Job<'_>, range: &Range<usize>, hops: usize) -> Vec<Range<usize>> {
    let length = job.sizing.chain_chunk(range.len(), hops);
    range.clone().step_by(length).map(|at| at..range.end.min(at + length)).collect()
}

/// `chunk` in a buffer that holds the whole data, or the shard of `owner` alone.
fn place(job: &Job<'_>, buffer: Buffer, owner: usize, chunk: &Range<usize>) -> Slice {
    let shard_alone = matches!(
        (job.collective, buffer),
        (Collective::AllGather, Buffer::Input) | (Collective::ReduceScatter, Buffer::Output)
    );
    let start =
        if shard_alone { split::part(0..job.count, owner, job.programs.len(), 1).start } else { 0 };
    Slice { buffer, offset: chunk.start - start, count: chunk.len() }
}

/// The way up; returns the root's lane that holds the sum of chunk `j` after its step `j`.
fn reduce(job: &mut Job<'_>, id: u32, tree: &Tree, chunks: &[Range<usize>]) -> Option<u32> {
    let mut summed = None;
    for rank in 0..job.programs.len() {
        let parent = tree.parent[rank];
        let lane = |recv_from: Option<usize>, send_to: Option<usize>, steps| Lane {
            channel: id,
            connection: UP,
            recv_from: recv_from.map(super::rank),
            send_to: send_to.map(super::rank),
            steps,
        };
        if tree.children[rank].is_empty() {
            let steps = chunks
                .iter()
                .map(|c| place(job, Buffer::Input, rank, c))
                .map(|own| step(Op::Send, own, own))
                .collect();
            job.push(rank, lane(None, parent, steps));
            continue;
        }
        // Sums of some children: in the output where it will hold the result, else in memory of our own.
        let partial = if rank == tree.root || job.collective == Collective::AllReduce {
            Buffer::Output
        } else {
            if tree.children[rank].len() > 1 {
                job.programs[rank].scratch = job.count;
            }
            Buffer::Scratch
        };
        let mut before: Option<u32> = None;
        for (i, &child) in tree.children[rank].iter().enumerate() {
            let last = i + 1 == tree.children[rank].len();
            let send_to = parent.filter(|_| last);
            let steps = (0_u32..)
                .zip(chunks)
                .map(|(j, c)| {
                    let src = if before.is_some() { partial } else { Buffer::Input };
                    let src = place(job, src, rank, c);
                    let (op, dst) = if send_to.is_some() {
                        (Op::RecvReduceSend, src)
                    } else {
                        (Op::RecvReduceCopy, place(job, partial, rank, c))
                    };
                    let after = before.map(|lane| StepRef { lane, step: j }).into_iter().collect();
                    Step { op, src, dst, after }
                })
                .collect();
            before = Some(job.push(rank, lane(Some(child), send_to, steps)));
        }
        if rank == tree.root {
            summed = before;
        }
    }
    summed
}

/// The way down. `summed` is the root's lane whose step `j` must be done before chunk `j` leaves; where there is none,
/// the root sends its input and keeps a copy.
fn broadcast(
    job: &mut Job<'_>,
    id: u32,
    tree: &Tree,
    chunks: &[Range<usize>],
    summed: Option<u32>,
) {
    for rank in 0..job.programs.len() {
        let lane = |recv_from: Option<usize>, send_to: Option<usize>, steps| Lane {
            channel: id,
            connection: DOWN,
            recv_from: recv_from.map(super::rank),
            send_to: send_to.map(super::rank),
            steps,
        };
        let children = &tree.children[rank];
        let mut sources = children.iter().copied();
        let mut ready = summed;
        let buffer = if rank == tree.root && summed.is_none() {
            if job.collective == Collective::Broadcast
                && let (Some(first), Some(last)) = (chunks.first(), chunks.last())
            {
                let all = first.start..last.end;
                job.push(rank, super::local_copy(id, all.clone(), all));
            }
            Buffer::Input
        } else {
            Buffer::Output
        };
        if let Some(parent) = tree.parent[rank] {
            let first = sources.next();
            let op = if first.is_some() { Op::RecvCopySend } else { Op::Recv };
            let steps = chunks
                .iter()
                .map(|c| place(job, Buffer::Output, rank, c))
                .map(|kept| step(op, kept, kept))
                .collect();
            ready = Some(job.push(rank, lane(Some(parent), first, steps)));
        }
        for child in sources {
            let steps = (0_u32..)
                .zip(chunks)
                .map(|(j, c)| {
                    let src = place(job, buffer, rank, c);
                    let after = ready.map(|lane| StepRef { lane, step: j }).into_iter().collect();
                    Step { op: Op::Send, src, dst: src, after }
                })
                .collect();
            job.push(rank, lane(None, Some(child), steps));
        }
    }
}
