//! A plan's channels lowered to the steps of one operation. Pure: no IO, clock, environment or hash order.
//!
//! ```text
//!   Plan, collective, root, count ── select ──▶ channels ── split by shares ──▶ element ranges
//!                                                   ring: one lane per rank      ── pipelined chunks ──▶ Schedule
//!                                                   tree: one lane per hop
//!                                                   pairs: one lane per distance of ranks
//!                                                   rounds: one lane per peer and round
//! ```
//!
//! Every schedule but all-to-all's is right both in place and out of place: no step reads `Input` where an earlier step wrote the
//! same place of `Output`.
//!
//! Shards: rank `r` of `n` owns the elements `count * r / n .. count * (r + 1) / n` (rounded down) of the total data
//! of an all-gather, reduce-scatter, gather or scatter; its `Input` or `Output` then holds its shard alone, from offset 0.
//! An all-to-all has `n` blocks of one length, or [`Blocks`] of any.
//!
//! A step that receives and sends in one needs the message and a free slot at once. Around a ring that is free of
//! deadlock with two or more slots per connection ([`MIN_SLOTS`]); on trees one is enough.

use std::ops::Range;

use topology::schedule::{Blocks, Buffer, Lane, Op, Program, Schedule, Slice, Step};
use topology::{Algorithm, Collective, Plan, Rank, plan::Pattern};

pub(crate) mod by_size;
mod cost;
mod direct;
pub(crate) mod rails;
mod ring;
pub mod rounds;
mod select;
mod split;
#[cfg(test)]
mod tests;
mod tree;

use direct::Block;
use rounds::Rounds;
pub use select::{Selected, channel_ids, select};

/// Slots a connection needs for every schedule made here to be free of deadlock.
pub const MIN_SLOTS: usize = 2;

/// Cache line: ranges that different ranks or channels work on start on multiples of it, relative to the buffer.
const LINE_BYTES: usize = 64;

/// What the links can carry at once; decides how data is cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizing {
    element_bytes: usize,
    slot_bytes: usize,
}

/// A slot that holds no element.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "slots of {slot_bytes} bytes cannot carry elements of {element_bytes} bytes (at least {LINE_BYTES} bytes needed)"
)]
pub struct InvalidSizing {
    /// As given.
    pub element_bytes: usize,
    /// As given.
    pub slot_bytes: usize,
}

impl Sizing {
    /// Elements of `element_bytes`, a power of two up to 64; messages of at most `slot_bytes`.
    ///
    /// # Errors
    /// Where a slot does not hold a cache line, or the element size is not such a power of two.
    pub fn new(element_bytes: usize, slot_bytes: usize) -> Result<Self, InvalidSizing> {
        if !element_bytes.is_power_of_two() || element_bytes > LINE_BYTES || slot_bytes < LINE_BYTES
        {
            return Err(InvalidSizing { element_bytes, slot_bytes });
        }
        Ok(Self { element_bytes, slot_bytes })
    }

    /// Elements of a cache line.
    const fn line(self) -> usize {
        LINE_BYTES / self.element_bytes
    }

    /// Largest chunk, in elements; a multiple of the line.
    const fn slot(self) -> usize {
        self.slot_bytes / LINE_BYTES * self.line()
    }

    /// Chunk length in elements around a ring, where every rank is busy at every step: as few chunks as slots allow,
    /// of equal length. `longest` is the longest run one message of the ring could carry.
    fn ring_chunk(self, longest: usize) -> usize {
        even_chunk(longest, longest.div_ceil(self.slot()), self.line())
    }

    /// Chunk length in elements along a tree or chain `hops` deep. The last rank waits for `hops` chunks, so data
    /// above 16 KiB (below that, latency rules) is cut into several; but a chunk below 16 KiB costs more in hand-over
    /// than it gains in overlap.
    fn chain_chunk(self, length: usize, hops: usize) -> usize {
        const WORTH_CUTTING_BYTES: usize = 16 << 10;
        let smallest = (WORTH_CUTTING_BYTES / self.element_bytes).min(self.slot());
        let wanted = if hops <= 1 { 1 } else { 2 * hops };
        let pieces = wanted.min(length.div_ceil(smallest)).max(length.div_ceil(self.slot())).max(1);
        even_chunk(length, pieces, self.line())
    }
}

/// Length of `pieces` chunks that cover `length`, in whole lines; at least one line.
fn even_chunk(length: usize, pieces: usize, line: usize) -> usize {
    length.div_ceil(pieces.max(1)).next_multiple_of(line).max(line)
}

/// Why a plan has no schedule for an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The plan has nothing for the collective (or nothing with that root).
    #[error("the plan has no channel for {collective}{}", root.map(|r| format!(" with root {r}")).unwrap_or_default())]
    NoChannel {
        /// Asked for.
        collective: Collective,
        /// Asked for, or missing among the roots of an all-gather or reduce-scatter.
        root: Option<Rank>,
    },
    /// A shape that is not executed here.
    #[error("{collective} along {pattern:?} channels is not executed by this transport")]
    Unsupported {
        /// Asked for.
        collective: Collective,
        /// Of the plan's channel.
        pattern: Pattern,
    },
    /// A collective that does not go in such rounds.
    #[error("{collective} does not go in rounds by {kind}")]
    Rounds {
        /// Asked for.
        collective: Collective,
        /// Asked for.
        kind: Rounds,
    },
    /// A rooted collective without a root, or with one that is no rank.
    #[error("{collective} among {ranks} ranks needs a root below {ranks}")]
    Root {
        /// Asked for.
        collective: Collective,
        /// In the plan.
        ranks: usize,
    },
    /// An all-to-all whose data is not `ranks` blocks of one length, and no [`Blocks`].
    #[error(
        "all-to-all among {ranks} ranks needs as many blocks of one length; {count} elements are not"
    )]
    Uneven {
        /// Elements of a rank's buffer.
        count: usize,
        /// In the plan.
        ranks: usize,
    },
    /// Blocks for another number of ranks than the plan's.
    #[error("blocks among {blocks} ranks for a plan of {ranks}")]
    Blocks {
        /// Ranks of the blocks.
        blocks: usize,
        /// In the plan.
        ranks: usize,
    },
    /// A channel that is not what its pattern says.
    #[error("channel {channel} is not a {pattern:?} over all ranks: {why}")]
    Malformed {
        /// [`channel_ids`] number.
        channel: u32,
        /// As claimed.
        pattern: Pattern,
        /// What is wrong.
        why: &'static str,
    },
    /// Shares that cannot be added up in 128 bits, are negative, or add up to nothing.
    #[error("the shares of the channels for {collective} cannot divide {count} elements")]
    Shares {
        /// Asked for.
        collective: Collective,
        /// Elements to divide.
        count: usize,
    },
}

/// The schedule of `collective` over `count` elements of total data along the channels `plan` chooses for that size.
///
/// `root` is for collectives that single out a rank and ignored for others.
///
/// # Errors
/// Where the plan has no channels for it, or its channels are not the shapes they claim.
pub fn schedule(
    plan: &Plan,
    collective: Collective,
    root: Option<Rank>,
    count: usize,
    sizing: Sizing,
) -> Result<Schedule, ScheduleError> {
    let ranks = plan.ranks.len();
    let root = if collective.has_root() {
        Some(root.filter(|r| r.index() < ranks).ok_or(ScheduleError::Root { collective, ranks })?)
    } else {
        None
    };
    let mut programs = vec![Program::default(); ranks];
    if ranks == 1 {
        let all = 0..count;
        Job { collective, root, count, sizing, programs: &mut programs }
            .push(0, local_copy(0, all.clone(), all));
        return Ok(Schedule { collective, count, root, programs });
    }
    let bytes = u64::try_from(count.saturating_mul(sizing.element_bytes)).unwrap_or(u64::MAX);
    let channels = select(plan, collective, root, bytes)?;
    if let Some(first) = channels.iter().find(|c| c.channel.pattern == Pattern::Rounds) {
        return by_rounds(plan, collective, root, first, count, sizing);
    }
    let exchanges = direct_only(collective);
    if let Some(other) =
        channels.iter().find(|c| exchanges != (c.channel.pattern == Pattern::Pairs))
    {
        return Err(ScheduleError::Unsupported { collective, pattern: other.channel.pattern });
    }
    let mut job = Job { collective, root, count, sizing, programs: &mut programs };
    match collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => {
            let ranges = split::by_shares(0..count, &channels, sizing.line())
                .ok_or(ScheduleError::Shares { collective, count })?;
            for (channel, range) in channels.iter().zip(ranges) {
                match channel.channel.pattern {
                    Pattern::Ring if collective == Collective::AllReduce => {
                        ring::all_reduce(&mut job, channel, range)?;
                    }
                    Pattern::Ring => ring::rooted(&mut job, channel, range)?,
                    Pattern::Tree => tree::schedule(&mut job, channel, range)?,
                    pattern => return Err(ScheduleError::Unsupported { collective, pattern }),
                }
            }
        }
        Collective::AllGather | Collective::ReduceScatter => sharded(&mut job, &channels)?,
        Collective::AllToAll => {
            if !count.is_multiple_of(ranks) {
                return Err(ScheduleError::Uneven { count, ranks });
            }
            let part = |rank| split::part(0..count, rank, ranks, 1);
            direct::exchange(&mut job, &channels, |from, to| {
                Some(Block { source: part(to), target: part(from) })
            })?;
        }
        Collective::Gather | Collective::Scatter => {
            let root = root.map_or(0, Rank::index);
            let gather = collective == Collective::Gather;
            let part = |rank| split::part(0..count, rank, ranks, 1);
            direct::exchange(&mut job, &channels, |from, to| {
                let (own, place) = if gather { (from, to) } else { (to, from) };
                let (alone, whole) = (0..part(own).len(), part(own));
                let (source, target) = if gather { (alone, whole) } else { (whole, alone) };
                (place == root).then_some(Block { source, target })
            })?;
        }
        _ => {
            let pattern = channels.first().map_or(Pattern::Pairs, |c| c.channel.pattern);
            return Err(ScheduleError::Unsupported { collective, pattern });
        }
    }
    if collective == Collective::AllGather {
        for rank in 0..ranks {
            let shard = split::part(0..count, rank, ranks, 1);
            job.push(rank, local_copy(0, 0..shard.len(), shard));
        }
    }
    Ok(Schedule { collective, count, root, programs })
}

/// The schedule of the rounds whose first is `first`.
fn by_rounds(
    plan: &Plan,
    collective: Collective,
    root: Option<Rank>,
    first: &Selected<'_>,
    count: usize,
    sizing: Sizing,
) -> Result<Schedule, ScheduleError> {
    let pattern = Pattern::Rounds;
    let unsupported = || ScheduleError::Unsupported { collective, pattern };
    let ranks = plan.ranks.len();
    let algorithm = select::algorithm(plan, collective, first.channel).ok_or_else(unsupported)?;
    if let (Algorithm::Tree, Some(of)) = (algorithm, root) {
        let channel = by_size::binomial(collective, ranks, of, first);
        let mut programs = vec![Program::default(); ranks];
        let mut job = Job { collective, root, count, sizing, programs: &mut programs };
        tree::schedule(&mut job, &Selected { id: first.id, channel: &channel }, 0..count)?;
        return Ok(Schedule { collective, count, root, programs });
    }
    let mut made = if algorithm == Algorithm::Hierarchical {
        let hosts = 1 + plan.ranks.windows(2).filter(|pair| pair[0].host != pair[1].host).count();
        let between = Algorithm::between_hosts(collective, hosts);
        let kind = Rounds::of(between).ok_or_else(unsupported)?;
        if !ranks.is_multiple_of(hosts) {
            let why = "hosts of different size";
            return Err(ScheduleError::Malformed { channel: first.id, pattern, why });
        }
        rounds::hierarchical(kind, collective, hosts, ranks / hosts, count, sizing)?
    } else {
        let kind = Rounds::of(algorithm).ok_or_else(unsupported)?;
        rounds::in_rounds(kind, collective, ranks, count, sizing)?
    };
    for lane in made.programs.iter_mut().flat_map(|program| &mut program.lanes) {
        lane.channel = first.id;
    }
    Ok(made)
}

/// The schedule of an uneven all-to-all.
///
/// # Errors
/// As [`schedule`]; and where the blocks are for another number of ranks.
pub fn schedule_uneven(
    plan: &Plan,
    blocks: &Blocks,
    sizing: Sizing,
) -> Result<Schedule, ScheduleError> {
    let (collective, count) = (Collective::AllToAll, blocks.total());
    let ranks = plan.ranks.len();
    if blocks.ranks() != ranks {
        return Err(ScheduleError::Blocks { blocks: blocks.ranks(), ranks });
    }
    let mut programs = vec![Program::default(); ranks];
    let mut job = Job { collective, root: None, count, sizing, programs: &mut programs };
    if ranks == 1 {
        job.push(0, local_copy(0, 0..count, 0..count));
    } else {
        // The size by which the plan chooses is what a rank sends on the mean.
        let bytes = u64::try_from(count.saturating_mul(sizing.element_bytes) / ranks.max(1));
        let channels = select(plan, collective, None, bytes.unwrap_or(u64::MAX))?;
        direct::exchange(&mut job, &channels, |from, to| {
            Some(Block { source: blocks.source(from, to), target: blocks.target(from, to) })
        })?;
    }
    Ok(Schedule { collective, count, root: None, programs })
}

/// The elements of `count` that are `rank`'s shard among `ranks` in an all-gather or reduce-scatter.
#[must_use]
pub fn shard(count: usize, rank: Rank, ranks: usize) -> Range<usize> {
    split::part(0..count, rank.index(), ranks, 1)
}

/// One direction of traffic between two ranks on one channel.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct ConnectionId {
    /// Who sends.
    pub from: Rank,
    /// Who receives.
    pub to: Rank,
    /// [`channel_ids`] number, or [`SEND_RECV`].
    pub channel: u32,
    /// As in [`Lane::connection`]; those of the next priority are numbered from the next multiple of 65,536 on.
    pub connection: u32,
}

/// Connections of the next priority: those of all have their own, numbered from a multiple of this on.
const OF_PRIORITY: u32 = 1 << 16;

impl ConnectionId {
    /// The connection that stands for this one in operations of a priority.
    #[must_use]
    pub const fn of(self, priority: u32) -> Self {
        Self { connection: self.connection + priority * OF_PRIORITY, ..self }
    }

    /// Whose it is.
    pub(crate) const fn priority(self) -> u32 {
        self.connection / OF_PRIORITY
    }
}

/// The channel of sends and receives, which go straight between any two ranks, whatever the plan.
pub const SEND_RECV: u32 = u32::MAX;

/// The schedule of one rank sending `count` elements to another: their two programs, the others' empty.
///
/// # Panics
/// Where either is no rank.
#[must_use]
pub fn send_recv(ranks: usize, from: Rank, to: Rank, count: usize, sizing: Sizing) -> Schedule {
    let mut programs = vec![Program::default(); ranks];
    let length = send_chunk(count, sizing);
    let chunks = || (0..count).step_by(length).map(|at| at..count.min(at + length));
    let steps = |op, buffer| {
        let of_chunk = |chunk| step(op, slice(buffer, &chunk), slice(buffer, &chunk));
        // The receiver has to hear of an empty message too, to know that it came.
        if count == 0 { vec![of_chunk(0..0)] } else { chunks().map(of_chunk).collect() }
    };
    let lane = |recv_from, send_to, steps| Lane {
        channel: SEND_RECV,
        connection: 0,
        recv_from,
        send_to,
        steps,
    };
    programs[from.index()].lanes = vec![lane(None, Some(to), steps(Op::Send, Buffer::Input))];
    programs[to.index()].lanes = vec![lane(Some(from), None, steps(Op::Recv, Buffer::Output))];
    Schedule { collective: Collective::SendRecv, count, root: Some(from), programs }
}

fn send_chunk(count: usize, sizing: Sizing) -> usize {
    even_chunk(count, count.div_ceil(sizing.slot()), sizing.line())
}

/// Most bytes that are sent in one message.
pub(crate) const fn longest_message(slot_bytes: usize) -> usize {
    slot_bytes / LINE_BYTES * LINE_BYTES
}

/// Elements of the first message by which `count` elements are sent.
pub(crate) fn first_message(count: usize, sizing: Sizing) -> usize {
    send_chunk(count, sizing).min(count)
}

/// Collectives that run along pairs and along nothing else.
const fn direct_only(collective: Collective) -> bool {
    matches!(collective, Collective::AllToAll | Collective::Gather | Collective::Scatter)
}

/// Every connection that schedules for `collectives` may use in operations of so many priorities, sorted.
#[must_use]
pub fn connections_of_all(
    plan: &Plan,
    collectives: &[Collective],
    priorities: u32,
) -> Vec<ConnectionId> {
    let of_one = connections(plan, collectives);
    let of = |priority| of_one.iter().map(move |id: &ConnectionId| id.of(priority));
    let mut all: Vec<ConnectionId> = (0..priorities).flat_map(of).collect();
    all.sort_unstable();
    all
}

/// Those of one priority.
pub(crate) fn connections(plan: &Plan, collectives: &[Collective]) -> Vec<ConnectionId> {
    let mut all = Vec::new();
    for Selected { id, channel } in channel_ids(plan) {
        let mut add = |from, to, connection| {
            all.push(ConnectionId { from, to, channel: id, connection });
        };
        // A barrier is an all-reduce of next to nothing.
        let wanted = |c: &&Collective| {
            collectives.contains(c)
                || (**c == Collective::AllReduce && collectives.contains(&Collective::Barrier))
        };
        for collective in channel.collectives.iter().filter(wanted) {
            match channel.pattern {
                Pattern::Ring => {
                    let next = channel.ranks.iter().cycle().skip(1);
                    channel.ranks.iter().zip(next).for_each(|(a, b)| add(*a, *b, 0));
                }
                Pattern::Tree => {
                    let (up, down): (&[_], &[_]) = match collective {
                        Collective::AllReduce => (&channel.reduce_edges, &channel.edges),
                        Collective::Reduce | Collective::ReduceScatter => (&channel.edges, &[]),
                        _ => (&[], &channel.edges),
                    };
                    up.iter().for_each(|e| add(e.from, e.to, tree::UP));
                    down.iter().for_each(|e| add(e.from, e.to, tree::DOWN));
                }
                Pattern::Pairs if direct_only(*collective) => {
                    channel.edges.iter().for_each(|e| add(e.from, e.to, 0));
                }
                Pattern::Pairs | Pattern::Rounds => {}
            }
        }
    }
    for collective in collectives {
        let carried = match collective {
            Collective::Barrier => Collective::AllReduce,
            other => *other,
        };
        for first in select::in_rounds(plan, carried) {
            all.extend(connections_of_rounds(plan, carried, &first));
        }
    }
    if collectives.contains(&Collective::SendRecv) {
        for (from, to) in
            (0..plan.ranks.len()).flat_map(|a| (0..plan.ranks.len()).map(move |b| (a, b)))
        {
            let (from, to) = (rank(from), rank(to));
            all.push(ConnectionId { from, to, channel: SEND_RECV, connection: 0 });
        }
    }
    all.sort_unstable();
    all.dedup();
    all.retain(|c| c.from != c.to);
    all
}

/// The connections of rounds: those of a schedule with an element for every rank, which leaves none out.
fn connections_of_rounds(
    plan: &Plan,
    collective: Collective,
    first: &Selected<'_>,
) -> Vec<ConnectionId> {
    let sizing = Sizing { element_bytes: 1, slot_bytes: LINE_BYTES };
    let roots = if collective.has_root() { plan.ranks.len() } else { 1 };
    let of_root = |root: usize| {
        let root = collective.has_root().then(|| rank(root));
        by_rounds(plan, collective, root, first, plan.ranks.len(), sizing)
    };
    let programs = (0..roots).filter_map(|root| of_root(root).ok()).map(|made| made.programs);
    let of_rank = |(from, program): (usize, Program)| {
        let from = rank(from);
        program.lanes.into_iter().filter_map(move |lane| {
            let (channel, connection) = (lane.channel, lane.connection);
            lane.send_to.map(|to| ConnectionId { from, to, channel, connection })
        })
    };
    programs.flat_map(|programs| programs.into_iter().enumerate().flat_map(of_rank)).collect()
}

/// All-gather and reduce-scatter: rings carry a part of every shard, trees a part of their root's.
fn sharded(job: &mut Job<'_>, channels: &[Selected<'_>]) -> Result<(), ScheduleError> {
    let (collective, count, ranks) = (job.collective, job.count, job.programs.len());
    let pattern = channels.first().map_or(Pattern::Ring, |c| c.channel.pattern);
    if let Some(other) = channels.iter().find(|c| c.channel.pattern != pattern) {
        return Err(ScheduleError::Unsupported { collective, pattern: other.channel.pattern });
    }
    match pattern {
        Pattern::Ring => {
            let shards: Vec<_> = (0..ranks).map(|r| split::part(0..count, r, ranks, 1)).collect();
            let mut parts: Vec<Vec<Range<usize>>> = vec![Vec::new(); channels.len()];
            for shard in &shards {
                let ranges = split::by_shares(shard.clone(), channels, job.sizing.line())
                    .ok_or(ScheduleError::Shares { collective, count })?;
                for (part, range) in parts.iter_mut().zip(ranges) {
                    part.push(range);
                }
            }
            for (channel, part) in channels.iter().zip(&parts) {
                ring::sharded(job, channel, part, &shards)?;
            }
        }
        Pattern::Tree => {
            for rank in 0..ranks {
                let root = Rank(u32::try_from(rank).unwrap_or(u32::MAX));
                let own: Vec<_> =
                    channels.iter().filter(|c| c.channel.root == Some(root)).copied().collect();
                if own.is_empty() {
                    return Err(ScheduleError::NoChannel { collective, root: Some(root) });
                }
                let shard = split::part(0..count, rank, ranks, 1);
                let ranges = split::by_shares(shard, &own, job.sizing.line())
                    .ok_or(ScheduleError::Shares { collective, count })?;
                for (channel, range) in own.iter().zip(ranges) {
                    tree::schedule(job, channel, range)?;
                }
            }
        }
        Pattern::Pairs | Pattern::Rounds => {
            return Err(ScheduleError::Unsupported { collective, pattern });
        }
    }
    Ok(())
}

/// The schedule being made.
struct Job<'a> {
    collective: Collective,
    root: Option<Rank>,
    count: usize,
    sizing: Sizing,
    programs: &'a mut [Program],
}

impl Job<'_> {
    /// Adds a lane to `rank`'s program and returns its index there. An empty one is left out: there is nothing to run,
    /// nothing for a peer to wait for, and nothing to refer to.
    fn push(&mut self, rank: usize, lane: Lane) -> u32 {
        let lanes = &mut self.programs[rank].lanes;
        if !lane.steps.is_empty() {
            lanes.push(lane);
        }
        u32::try_from(lanes.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }
}

fn rank(index: usize) -> Rank {
    Rank(u32::try_from(index).unwrap_or(u32::MAX))
}

fn slice(buffer: Buffer, range: &Range<usize>) -> Slice {
    Slice { buffer, offset: range.start, count: range.len() }
}

fn step(op: Op, src: Slice, dst: Slice) -> Step {
    Step { op, src, dst, after: Vec::new() }
}

/// A lane without peers that copies `from` of the input to `to` of the output.
fn local_copy(channel: u32, from: Range<usize>, to: Range<usize>) -> Lane {
    let steps = if from.is_empty() {
        Vec::new()
    } else {
        vec![step(Op::Copy, slice(Buffer::Input, &from), slice(Buffer::Output, &to))]
    };
    Lane { channel, connection: 0, recv_from: None, send_to: None, steps }
}
