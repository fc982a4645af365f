//! Algorithms that go in rounds: few steps for small data, or steps that fit machines whose every pair has a way of its own.
//!
//! ```text
//!   one-shot             everybody sends all of it to everybody; all-reduce in one step, n-1 times the data
//!   two-shot             the same by shards: reduce-scatter, then all-gather; two steps
//!   recursive doubling   all-reduce in log2 n steps, all of the data in each
//!   halving, doubling    all-reduce in 2 log2 n steps, 2 (n-1)/n times the data (Rabenseifner)
//!   Bruck                all-gather and reduce-scatter in log2 n steps rounded up, near ranks first, any number of ranks
//!   PAT                  the same, far ranks first, when there is least to send (NCCL's parallel aggregated trees, arXiv 2506.20252)
//!   hierarchical         two-shot inside hosts, any of these between equal places of them
//! ```
//!
//! A round begins at a rank when its round before is over there; nobody waits for anybody else. Sums are made in one place and in
//! one order, so that every rank has the same bits.

use std::ops::Range;

use topology::schedule::{Buffer, Program, Schedule, Slice, Step};
use topology::{Collective, Rank};

use super::{Job, ScheduleError, Sizing, split};

mod direct;
mod dissemination;
mod doubling;
mod lower;

/// How the rounds go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounds {
    /// All of it to everybody.
    OneShot,
    /// By shards, there and back.
    TwoShot,
    /// All of it to ranks 1, 2, 4, .. away in turn.
    RecursiveDoubling,
    /// Half of what is left each time, and back.
    HalvingDoubling,
    /// Blocks to ranks 1, 2, 4, .. away in turn.
    Bruck,
    /// Blocks to ranks .., 4, 2, 1 away in turn.
    Pat,
}

impl Rounds {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::OneShot,
        Self::TwoShot,
        Self::RecursiveDoubling,
        Self::HalvingDoubling,
        Self::Bruck,
        Self::Pat,
    ];

    /// Whether the collective can go in such rounds among any number of ranks.
    #[must_use]
    pub const fn runs(self, collective: Collective) -> bool {
        match self {
            Self::OneShot | Self::RecursiveDoubling | Self::HalvingDoubling => {
                matches!(collective, Collective::AllReduce)
            }
            Self::TwoShot | Self::Bruck | Self::Pat => matches!(
                collective,
                Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter
            ),
        }
    }
}

/// The schedule of a collective over `count` elements of total data among `ranks`.
///
/// # Errors
/// [`ScheduleError::Rounds`] where the collective does not go in such rounds.
pub fn in_rounds(
    kind: Rounds,
    collective: Collective,
    ranks: usize,
    count: usize,
    sizing: Sizing,
) -> Result<Schedule, ScheduleError> {
    let everybody: Vec<usize> = (0..ranks).collect();
    let rounds =
        Group { members: &everybody, shape: Shape::of(collective, count, ranks)? }.rounds(kind)?;
    Ok(lowered(collective, ranks, count, sizing, rounds))
}

/// The schedule of a collective whose ranks are `hosts` times `per_host`, host-major: two-shot inside hosts, and `between` among the
/// ranks that have the same place in their hosts.
///
/// # Errors
/// [`ScheduleError::Rounds`] where the collective does not go in such rounds.
pub fn hierarchical(
    between: Rounds,
    collective: Collective,
    hosts: usize,
    per_host: usize,
    count: usize,
    sizing: Sizing,
) -> Result<Schedule, ScheduleError> {
    let ranks = hosts * per_host;
    let inside = |host: usize| (host * per_host..(host + 1) * per_host).collect::<Vec<_>>();
    let rail = |place: usize| (0..hosts).map(|host| host * per_host + place).collect::<Vec<_>>();
    let insides: Vec<Vec<usize>> = (0..hosts).map(inside).collect();
    let rails: Vec<Vec<usize>> = (0..per_host).map(rail).collect();
    let shard = |rank: usize| split::part(0..count, rank, ranks, 1);
    // The shards of a rail, and what one host has of all of them.
    let of_rail = |rail: &[usize]| rail.iter().map(|&rank| vec![shard(rank)]).collect::<Vec<_>>();
    let by_place = || {
        rails
            .iter()
            .map(|rail| rail.iter().map(|&rank| shard(rank)).collect())
            .collect::<Vec<Vec<_>>>()
    };
    let mut rounds = Vec::new();
    let mut all = |parts: Vec<Vec<Round>>| rounds.extend(side_by_side(parts));
    match collective {
        Collective::AllReduce => {
            if !between.runs(Collective::AllReduce) {
                return Err(ScheduleError::Rounds { collective, kind: between });
            }
            let slice = |place: usize| split::part(0..count, place, per_host, 1);
            let slices: Vec<Vec<Range<usize>>> =
                (0..per_host).map(|place| vec![slice(place)]).collect();
            let group =
                |members: &Vec<usize>| direct::reduce_scatter(members, &slices, Keep::InPlace);
            all(insides.iter().map(group).collect());
            let mut across = Vec::new();
            for (place, members) in rails.iter().enumerate() {
                let shape = Shape::Whole { range: slice(place), from: Buffer::Output };
                across.push(Group { members, shape }.rounds(between)?);
            }
            all(across);
            let group = |members: &Vec<usize>| direct::all_gather(members, &slices, Buffer::Output);
            all(insides.iter().map(group).collect());
        }
        Collective::AllGather => {
            let mut across = Vec::new();
            for members in &rails {
                across.push(gather_blocks(between, members, &of_rail(members))?);
            }
            all(across);
            let blocks = by_place();
            let group = |members: &Vec<usize>| direct::all_gather(members, &blocks, Buffer::Output);
            all(insides.iter().map(group).collect());
        }
        Collective::ReduceScatter => {
            let blocks = by_place();
            let group =
                |members: &Vec<usize>| direct::reduce_scatter(members, &blocks, Keep::Scratch);
            all(insides.iter().map(group).collect());
            let mut across = Vec::new();
            for members in &rails {
                across.push(scatter_blocks(between, members, &of_rail(members))?);
            }
            all(across);
        }
        _ => return Err(ScheduleError::Rounds { collective, kind: between }),
    }
    Ok(lowered(collective, ranks, count, sizing, rounds))
}

/// What a group works on.
#[derive(Clone, Debug)]
enum Shape {
    /// All-reduce of a range that each member has in `from` and wants in the output.
    Whole { range: Range<usize>, from: Buffer },
    /// All-gather: each member's input is its shard of the output.
    Gather { shards: Vec<Vec<Range<usize>>> },
    /// Reduce-scatter: each member's output is the sum of its shards of the inputs.
    Scatter { shards: Vec<Vec<Range<usize>>> },
}

impl Shape {
    fn of(collective: Collective, count: usize, ranks: usize) -> Result<Self, ScheduleError> {
        let shards =
            || (0..ranks).map(|rank| vec![split::part(0..count, rank, ranks, 1)]).collect();
        match collective {
            Collective::AllReduce => Ok(Self::Whole { range: 0..count, from: Buffer::Input }),
            Collective::AllGather => Ok(Self::Gather { shards: shards() }),
            Collective::ReduceScatter => Ok(Self::Scatter { shards: shards() }),
            _ => Err(ScheduleError::Rounds { collective, kind: Rounds::TwoShot }),
        }
    }
}

/// Ranks that work together on one shape.
struct Group<'a> {
    members: &'a [usize],
    shape: Shape,
}

impl Group<'_> {
    fn rounds(self, kind: Rounds) -> Result<Vec<Round>, ScheduleError> {
        let Self { members, shape } = self;
        match shape {
            Shape::Gather { shards } => gather_blocks(kind, members, &shards),
            Shape::Scatter { shards } => {
                let blocks = &shards;
                match kind {
                    Rounds::TwoShot => Ok(direct::reduce_scatter(members, blocks, Keep::Alone)),
                    Rounds::Bruck => {
                        Ok(dissemination::reduce_scatter(members, blocks, Buffer::Input, false))
                    }
                    Rounds::Pat => {
                        Ok(dissemination::reduce_scatter(members, blocks, Buffer::Input, true))
                    }
                    _ => Err(ScheduleError::Rounds { collective: Collective::ReduceScatter, kind }),
                }
            }
            Shape::Whole { range, from } => Ok(match kind {
                Rounds::OneShot => direct::one_shot(members, &range, from),
                Rounds::TwoShot => {
                    let blocks = cut(&range, members.len());
                    let mut rounds =
                        direct::reduce_scatter_from(members, &blocks, from, Keep::InPlace);
                    rounds.extend(direct::all_gather(members, &blocks, Buffer::Output));
                    rounds
                }
                Rounds::RecursiveDoubling => doubling::whole(members, &range, from),
                Rounds::HalvingDoubling => doubling::halves(members, &range, from),
                Rounds::Bruck => {
                    dissemination::all_reduce(members, &cut(&range, members.len()), from, false)
                }
                Rounds::Pat => {
                    dissemination::all_reduce(members, &cut(&range, members.len()), from, true)
                }
            }),
        }
    }
}

/// An all-gather of blocks that each member has in its input.
fn gather_blocks(
    kind: Rounds,
    members: &[usize],
    blocks: &Blocks,
) -> Result<Vec<Round>, ScheduleError> {
    Ok(match kind {
        Rounds::TwoShot => direct::all_gather(members, blocks, Buffer::Input),
        Rounds::Bruck => dissemination::all_gather(members, blocks, false),
        Rounds::Pat => dissemination::all_gather(members, blocks, true),
        _ => return Err(ScheduleError::Rounds { collective: Collective::AllGather, kind }),
    })
}

/// A reduce-scatter of blocks of which each member has its part in the scratch memory, at the place it has in the whole.
fn scatter_blocks(
    kind: Rounds,
    members: &[usize],
    blocks: &Blocks,
) -> Result<Vec<Round>, ScheduleError> {
    Ok(match kind {
        Rounds::TwoShot => {
            direct::reduce_scatter_from(members, blocks, Buffer::Scratch, Keep::Alone)
        }
        Rounds::Bruck => dissemination::reduce_scatter(members, blocks, Buffer::Scratch, false),
        Rounds::Pat => dissemination::reduce_scatter(members, blocks, Buffer::Scratch, true),
        _ => return Err(ScheduleError::Rounds { collective: Collective::ReduceScatter, kind }),
    })
}

/// Pieces of the whole that belong together, by member.
type Blocks = [Vec<Range<usize>>];

/// A range in as many blocks as there are members.
fn cut(range: &Range<usize>, members: usize) -> Vec<Vec<Range<usize>>> {
    (0..members).map(|at| vec![split::part(range.clone(), at, members, 1)]).collect()
}

/// Where a reduce-scatter leaves a member's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    /// In the output, at the place it has in the whole.
    InPlace,
    /// In the output, which is nothing but that.
    Alone,
    /// In the scratch memory, at the place it has in the whole.
    Scratch,
}

/// What happens between two ranks, and then at each, in one round.
#[derive(Clone, Debug, Default)]
struct Round {
    moves: Vec<Move>,
    /// By rank, in order.
    locals: Vec<(usize, Step)>,
}

/// Elements on their way from one rank to another.
#[derive(Clone, Debug)]
struct Move {
    from: usize,
    to: usize,
    src: Slice,
    dst: Slice,
    /// What the receiver adds to them before it keeps them.
    add: Option<Slice>,
}

/// Rounds of groups that have nothing to do with each other.
fn side_by_side(groups: Vec<Vec<Round>>) -> Vec<Round> {
    let mut all: Vec<Round> = Vec::new();
    for (place, round) in groups.into_iter().flat_map(|rounds| rounds.into_iter().enumerate()) {
        if place == all.len() {
            all.push(Round::default());
        }
        all[place].moves.extend(round.moves);
        all[place].locals.extend(round.locals);
    }
    all
}

fn lowered(
    collective: Collective,
    ranks: usize,
    count: usize,
    sizing: Sizing,
    rounds: Vec<Round>,
) -> Schedule {
    let mut programs = vec![Program::default(); ranks];
    let job = Job { collective, root: None, count, sizing, programs: &mut programs };
    lower::lower(job, rounds);
    Schedule { collective, count, root: None, programs }
}

fn at(buffer: Buffer, range: &Range<usize>) -> Slice {
    super::slice(buffer, range)
}

fn rank(index: usize) -> Rank {
    super::rank(index)
}
