//! Where a rank's buffers are, what the caller puts in them, and what must come out.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use topology::schedule::{Blocks, Buffer, Schedule, Slice};
use topology::{Collective, Rank};

use super::violation::ScheduleViolation;

/// Where the caller's buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Input and output are different memory.
    OutOfPlace,
    /// They are the same, as NCCL defines it: the shard lies at its place in the whole.
    InPlace,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfPlace => "out of place",
            Self::InPlace => "in place",
        })
    }
}

/// The caller's memory: the input where it is apart from the output.
pub(super) const INPUT: usize = 0;
/// The caller's memory: the output, and the input with it in place.
pub(super) const OUTPUT: usize = 1;
/// The communicator's memory.
pub(super) const SCRATCH: usize = 2;

/// One rank's buffers. Each is a range of a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    input: (usize, Range<usize>),
    output: (usize, Range<usize>),
    scratch: usize,
}

/// What one operation is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation<'a> {
    collective: Collective,
    count: usize,
    ranks: usize,
    /// `None` where the collective has none; the sender of send-receive.
    root: Option<Rank>,
    /// Of send-receive.
    receiver: Option<Rank>,
    /// Of an uneven all-to-all.
    blocks: Option<&'a Blocks>,
}

impl<'a> Operation<'a> {
    /// `blocks` are those of an uneven all-to-all, which a schedule does not say itself.
    pub(super) fn new(
        schedule: &Schedule,
        blocks: Option<&'a Blocks>,
    ) -> Result<Self, ScheduleViolation> {
        let ranks = schedule.programs.len();
        let collective = schedule.collective;
        if ranks == 0 {
            return Err(ScheduleViolation::NoRanks);
        }
        let rooted = collective.has_root() || collective == Collective::SendRecv;
        let root = schedule.root.filter(|root| rooted && root.index() < ranks);
        if rooted && root.is_none() {
            return Err(ScheduleViolation::Root { collective });
        }
        let blocks = blocks.filter(|_| collective == Collective::AllToAll);
        let even = schedule.count.is_multiple_of(ranks);
        let fits = blocks.map_or(even, |b| b.ranks() == ranks && b.total() == schedule.count);
        if collective == Collective::AllToAll && !fits {
            return Err(ScheduleViolation::Blocks { count: schedule.count, ranks });
        }
        let mut receiver = None;
        if collective == Collective::SendRecv {
            let writes = |rank: &Rank| {
                let steps = schedule.programs[rank.index()].lanes.iter().flat_map(|l| &l.steps);
                Some(*rank) != root
                    && steps.into_iter().any(|s| s.op.writes() && s.dst.buffer == Buffer::Output)
            };
            let mut receivers = (0..).map(Rank).take(ranks).filter(writes);
            receiver = receivers.next();
            let receivers = receivers.count() + usize::from(receiver.is_some());
            if receivers != 1 {
                return Err(ScheduleViolation::Receivers { receivers });
            }
        }
        Ok(Self { collective, count: schedule.count, ranks, root, receiver, blocks })
    }

    /// Elements of the whole that belong to `rank`.
    pub(super) fn shard(&self, rank: Rank) -> Range<usize> {
        // In 128 bits, as counts can be large.
        let cut = |rank: usize| {
            let at = self.count as u128 * rank as u128 / self.ranks as u128;
            usize::try_from(at).expect("a part of the count is no more than the count")
        };
        cut(rank.index())..cut(rank.index() + 1)
    }

    /// `rank`'s buffers; `None` where the collective has no such placement.
    pub(super) fn layout(
        &self,
        rank: Rank,
        scratch: usize,
        placement: Placement,
    ) -> Option<Layout> {
        let is_root = self.root == Some(rank);
        let (whole, shard) = (0..self.count, self.shard(rank));
        let (alone, none) = (0..shard.len(), 0..0);
        let if_root = |range: Range<usize>| if is_root { range } else { none.clone() };
        let (input, output) = match self.collective {
            Collective::AllToAll => match self.blocks {
                Some(b) => (0..b.sent(rank.index()), 0..b.received(rank.index())),
                None => (whole.clone(), whole.clone()),
            },
            Collective::AllReduce => (whole.clone(), whole.clone()),
            Collective::AllGather => (alone, whole.clone()),
            Collective::ReduceScatter => (whole.clone(), alone),
            Collective::Broadcast => (if_root(whole.clone()), whole.clone()),
            Collective::Reduce => (whole.clone(), if_root(whole.clone())),
            Collective::Gather => (alone, if_root(whole.clone())),
            Collective::Scatter => (if_root(whole.clone()), alone),
            Collective::SendRecv => {
                let receives = self.receiver == Some(rank);
                (if_root(whole.clone()), if receives { whole.clone() } else { none.clone() })
            }
            Collective::Barrier => (none.clone(), none.clone()),
        };
        match placement {
            Placement::OutOfPlace => {
                Some(Layout { input: (INPUT, input), output: (OUTPUT, output), scratch })
            }
            Placement::InPlace => {
                let (input, output) = match self.collective {
                    Collective::AllReduce => (whole.clone(), whole),
                    Collective::Broadcast => (if_root(whole.clone()), whole),
                    Collective::Reduce => (whole.clone(), if_root(whole)),
                    Collective::AllGather => (shard, whole),
                    Collective::ReduceScatter => (whole, shard),
                    Collective::Gather => (shard, if_root(whole)),
                    Collective::Scatter => (if_root(whole), shard),
                    Collective::AllToAll | Collective::SendRecv | Collective::Barrier => {
                        return None;
                    }
                };
                Some(Layout { input: (OUTPUT, input), output: (OUTPUT, output), scratch })
            }
        }
    }

    /// What each of a rank's output elements is the sum of: `terms(rank)` gives, for runs of its output, whose input
    /// from which element on; `None` stands for every rank's.
    pub(super) fn wanted(&self, rank: Rank) -> Vec<Wanted> {
        let whole = 0..self.count;
        let every = || (0..).map(Rank).take(self.ranks);
        let run = |output: Range<usize>, of: Option<Rank>, element| Wanted { output, of, element };
        let is_root = self.root == Some(rank);
        match self.collective {
            Collective::AllReduce => vec![run(whole, None, 0)],
            Collective::Reduce if is_root => vec![run(whole, None, 0)],
            Collective::ReduceScatter => {
                let shard = self.shard(rank);
                vec![run(0..shard.len(), None, shard.start)]
            }
            Collective::Broadcast => vec![run(whole, self.root, 0)],
            Collective::SendRecv if self.receiver == Some(rank) => {
                vec![run(whole, self.root, 0)]
            }
            Collective::Scatter => {
                let shard = self.shard(rank);
                vec![run(0..shard.len(), self.root, shard.start)]
            }
            Collective::AllGather => every().map(|of| run(self.shard(of), Some(of), 0)).collect(),
            Collective::Gather if is_root => {
                every().map(|of| run(self.shard(of), Some(of), 0)).collect()
            }
            Collective::AllToAll => {
                let start = self.shard(rank).start;
                let block = |of: Rank| match self.blocks {
                    Some(blocks) => {
                        let (from, to) = (of.index(), rank.index());
                        run(blocks.target(from, to), Some(of), blocks.source(from, to).start)
                    }
                    None => run(self.shard(of), Some(of), start),
                };
                every().map(block).collect()
            }
            Collective::Reduce
            | Collective::Gather
            | Collective::SendRecv
            | Collective::Barrier => vec![],
        }
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    pub(super) fn is_barrier(&self) -> bool {
        self.collective == Collective::Barrier
    }
}

/// What a run of a rank's output must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Elements of the output.
    pub(super) output: Range<usize>,
    /// Whose input; `None` is the sum of all ranks'.
    pub(super) of: Option<Rank>,
    /// Element of the input at the first element of the run.
    pub(super) element: usize,
}

impl Layout {
    /// The caller's data: memory and elements.
    pub(super) fn input(&self) -> (usize, Range<usize>) {
        self.input.clone()
    }

    /// Where the result is to be: memory and elements.
    pub(super) fn output(&self) -> (usize, Range<usize>) {
        self.output.clone()
    }

    /// Elements of a buffer.
    pub(super) fn size(&self, buffer: Buffer) -> usize {
        match buffer {
            Buffer::Input => self.input.1.len(),
            Buffer::Output => self.output.1.len(),
            Buffer::Scratch => self.scratch,
        }
    }

    /// Memory and elements of a slice that is within its buffer.
    pub(super) fn place(&self, slice: Slice) -> (usize, Range<usize>) {
        let (memory, base) = match slice.buffer {
            Buffer::Input => (self.input.0, self.input.1.start),
            Buffer::Output => (self.output.0, self.output.1.start),
            Buffer::Scratch => (SCRATCH, 0),
        };
        let start = base + slice.offset;
        (memory, start..start + slice.count)
    }
}
