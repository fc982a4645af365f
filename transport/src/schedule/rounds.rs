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

use std::fmt;
use std::ops::Range;

use topology::schedule::{Buffer, Program, Schedule, Slice, Step};
use topology::{Algorithm, Collective, Rank};

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

    /// The kind that a plan calls by this name; [`Algorithm::Hierarchical`] is made of two.
    #[must_use]
    pub const fn of(algorithm: Algorithm) -> Option<Self> {
        match algorithm {
            Algorithm::OneShot => Some(Self::OneShot),
            Algorithm::Direct => Some(Self::TwoShot),
            Algorithm::RecursiveDoubling => Some(Self::RecursiveDoubling),
            Algorithm::HalvingDoubling => Some(Self::HalvingDoubling),
            Algorithm::Bruck => Some(Self::Bruck),
            Algorithm::Pat => Some(Self::Pat),
            _ => None,
        }
    }

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

impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::OneShot => "one-shot",
            Self::TwoShot => "two-shot",
            Self::RecursiveDoubling => "recursive doubling",
            Self::HalvingDoubling => "halving and doubling",
            Self::Bruck => "Bruck",
            Self::Pat => "PAT",
        })
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
    let members: Vec<usize> = (0..ranks).collect();
    let shards = cut(&(0..count), ranks);
    let rounds = match collective {
        Collective::AllReduce => Some(all_reduce(kind, &members, &(0..count), Buffer::Input)),
        Collective::AllGather => all_gather(kind, &members, &shards),
        Collective::ReduceScatter => reduce_scatter(kind, &members, &shards, Buffer::Input),
        _ => None,
    };
    let rounds = rounds.ok_or(ScheduleError::Rounds { collective, kind })?;
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
    let inside = |host: usize| (host * per_host..(host + 1) * per_host).collect();
    let rail = |place: usize| (0..hosts).map(|host| host * per_host + place).collect();
    let insides: Vec<Vec<usize>> = (0..hosts).map(inside).collect();
    let rails: Vec<Vec<usize>> = (0..per_host).map(rail).collect();
    // What the ranks at each place of their hosts work on together: a slice of the data, or their shards of it.
    let slices = cut(&(0..count), per_host);
    let shards = cut(&(0..count), ranks);
    let of_rail =
        |rail: &Vec<usize>| -> Vec<_> { rail.iter().map(|&r| shards[r].clone()).collect() };
    let by_place: Vec<Vec<_>> = rails.iter().map(|rail| of_rail(rail).concat()).collect();

    let gather_inside = |blocks: &Blocks| {
        let group = |members: &Vec<usize>| direct::all_gather(members, blocks, Buffer::Output);
        side_by_side(insides.iter().map(group))
    };
    let scatter_inside = |blocks: &Blocks, keep| {
        let group =
            |members: &Vec<usize>| direct::reduce_scatter(members, blocks, Buffer::Input, keep);
        side_by_side(insides.iter().map(group))
    };
    let across = |group: &dyn Fn(usize) -> Option<Vec<Round>>| {
        let groups: Option<Vec<_>> = (0..per_host).map(group).collect();
        groups.map(side_by_side).ok_or(ScheduleError::Rounds { collective, kind: between })
    };
    let rounds = match collective {
        Collective::AllReduce => {
            let of_slice = |place: usize| {
                Some(all_reduce(between, &rails[place], &slices[place][0], Buffer::Output))
            };
            let begin = scatter_inside(&slices, Keep::InPlace);
            [begin, across(&of_slice)?, gather_inside(&slices)].concat()
        }
        Collective::AllGather => {
            let of_shards =
                |place: usize| all_gather(between, &rails[place], &of_rail(&rails[place]));
            [across(&of_shards)?, gather_inside(&by_place)].concat()
        }
        Collective::ReduceScatter => {
            let of_shards = |place: usize| {
                let blocks = of_rail(&rails[place]);
                reduce_scatter(between, &rails[place], &blocks, Buffer::Scratch)
            };
            [scatter_inside(&by_place, Keep::Scratch), across(&of_shards)?].concat()
        }
        _ => return Err(ScheduleError::Rounds { collective, kind: between }),
    };
    Ok(lowered(collective, ranks, count, sizing, rounds))
}

/// All-reduce of a range that each member has in `from` and wants in the output.
fn all_reduce(kind: Rounds, members: &[usize], range: &Range<usize>, from: Buffer) -> Vec<Round> {
    let blocks = cut(range, members.len());
    match kind {
        Rounds::OneShot => direct::one_shot(members, range, from),
        Rounds::TwoShot => {
            let mut rounds = direct::reduce_scatter(members, &blocks, from, Keep::InPlace);
            rounds.extend(direct::all_gather(members, &blocks, Buffer::Output));
            rounds
        }
        Rounds::RecursiveDoubling => doubling::whole(members, range, from),
        Rounds::HalvingDoubling => doubling::halves(members, range, from),
        Rounds::Bruck => dissemination::all_reduce(members, &blocks, from, Order::NearFirst),
        Rounds::Pat => dissemination::all_reduce(members, &blocks, from, Order::FarFirst),
    }
}

/// All-gather of blocks that each member has in its input; `None` where it does not go in such rounds, here and below.
fn all_gather(kind: Rounds, members: &[usize], blocks: &Blocks) -> Option<Vec<Round>> {
    match kind {
        Rounds::TwoShot => Some(direct::all_gather(members, blocks, Buffer::Input)),
        Rounds::Bruck => Some(dissemination::all_gather(members, blocks, Order::NearFirst)),
        Rounds::Pat => Some(dissemination::all_gather(members, blocks, Order::FarFirst)),
        _ => None,
    }
}

/// Reduce-scatter of blocks that each member has in `from`, at the place they have in the whole, into an output that is the member's
/// block alone.
fn reduce_scatter(
    kind: Rounds,
    members: &[usize],
    blocks: &Blocks,
    from: Buffer,
) -> Option<Vec<Round>> {
    match kind {
        Rounds::TwoShot => Some(direct::reduce_scatter(members, blocks, from, Keep::Alone)),
        Rounds::Bruck => {
            Some(dissemination::reduce_scatter(members, blocks, from, Order::NearFirst))
        }
        Rounds::Pat => Some(dissemination::reduce_scatter(members, blocks, from, Order::FarFirst)),
        _ => None,
    }
}

/// Which ranks hear of a block first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Those next to its owner.
    NearFirst,
    /// Those half way round.
    FarFirst,
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
fn side_by_side(groups: impl IntoIterator<Item = Vec<Round>>) -> Vec<Round> {
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
