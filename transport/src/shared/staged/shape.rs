//! Who sends what to whom in a large operation on private buffers, in bytes.

use std::ops::Range;

use topology::Collective;

use super::super::flat::exchanged;
use super::super::{Shared, Work, id};
use crate::schedule::shard;

/// Who sends what to whom, in bytes.
pub(super) struct Shape<'a> {
    pub(super) work: &'a Work,
    pub(super) own: usize,
    pub(super) ranks: usize,
    /// Of a round for one rank.
    pub(super) part: usize,
    /// Of a stage.
    pub(super) stage: usize,
}

impl<'a> Shape<'a> {
    pub(super) fn new(work: &'a Work, shared: &Shared, part: usize) -> Self {
        let stage = shared.arena.stage_bytes().1;
        Self { work, own: shared.own(), ranks: shared.ranks(), part, stage }
    }

    /// How far a rank may be ahead with rounds of such a length. Most of the stage is kept between what is written and what others have
    /// just read, which is in their caches still; where ranks take turns on a core, as much as there is room for is done in a turn. A
    /// round that does not fit the rest of a lap may leave nearly its length unused.
    pub(super) fn window(&self, length: usize, shared: &Shared) -> usize {
        if shared.shares_cores() { self.stage } else { (self.stage / 4).max(2 * length) }
    }

    /// Where on a stage a place lies.
    pub(super) fn start(&self, at: u64) -> usize {
        usize::try_from(at % self.stage as u64).unwrap_or(0)
    }

    fn root(&self) -> usize {
        self.work.root.map_or(0, |root| root.index())
    }

    pub(super) fn combines(&self) -> bool {
        use Collective::{AllReduce, Reduce, ReduceScatter};
        matches!(self.work.collective, AllReduce | Reduce | ReduceScatter)
    }

    /// Whether all get the same of what a rank stages.
    pub(super) fn is_shared(&self) -> bool {
        use Collective::{AllGather, Broadcast, Gather};
        matches!(self.work.collective, AllGather | Broadcast | Gather)
    }

    /// Whether this rank has anything to stage.
    pub(super) fn stages(&self) -> bool {
        match self.work.collective {
            Collective::Broadcast | Collective::Scatter => self.own == self.root(),
            Collective::Gather => self.own != self.root(),
            _ => true,
        }
    }

    /// Whether it takes anything from the others' stages, or waits for what it combines.
    pub(super) fn takes(&self) -> bool {
        match self.work.collective {
            Collective::Gather => self.own == self.root(),
            _ => true,
        }
    }

    /// Whether it leaves what it combines in its own output.
    pub(super) fn keeps(&self) -> bool {
        self.work.collective != Collective::Reduce || self.own == self.root()
    }

    /// Whether others take what it combines.
    pub(super) fn tells(&self) -> bool {
        match self.work.collective {
            Collective::AllReduce => true,
            Collective::Reduce => self.own != self.root(),
            _ => false,
        }
    }

    /// The bytes that a rank combines. Of two ranks the root alone reduces: what it would save, it would spend on fetching.
    pub(super) fn owned(&self, rank: usize) -> Range<usize> {
        let size = self.work.kernel.element_bytes();
        if self.work.collective == Collective::Reduce && self.ranks == 2 {
            let all = if rank == self.root() { self.work.count * size } else { 0 };
            return 0..all;
        }
        let shard = shard(self.work.count, id(rank), self.ranks);
        shard.start * size..shard.end * size
    }

    /// Of what a rank combines, the part of a round.
    pub(super) fn piece(&self, rank: usize, round: u64) -> Range<usize> {
        cut(self.owned(rank), self.part, round)
    }

    /// The block from one rank to another where nothing is combined: where it lies in the input of the one, and where in the output of the
    /// other.
    fn block(&self, from: usize, to: usize) -> (Range<usize>, usize) {
        let size = self.work.kernel.element_bytes();
        let whole = self.work.count * size;
        let part = |rank: usize| {
            let shard = shard(self.work.count, id(rank), self.ranks);
            (shard.start * size, shard.len() * size)
        };
        match self.work.collective {
            Collective::AllGather => (0..part(from).1, part(from).0),
            Collective::Gather if to == self.root() => (0..part(from).1, part(from).0),
            Collective::Broadcast if from == self.root() => (0..whole, 0),
            Collective::Scatter if from == self.root() => {
                let (start, bytes) = part(to);
                (start..start + bytes, 0)
            }
            Collective::AllToAll => {
                let (source, target, _) = exchanged(self.work, self.ranks, from, to);
                (source.start * size..source.end * size, target.start * size)
            }
            _ => (0..0, 0),
        }
    }

    /// Where a rank's stage has what is for another.
    pub(super) fn place(&self, from: usize, to: usize) -> usize {
        if self.is_shared() { 0 } else { (to + self.ranks - from - 1) % self.ranks * self.part }
    }

    /// Where in a round a rank's part of the result lies.
    pub(super) fn combined(&self) -> usize {
        (self.ranks - 1) * self.part
    }

    /// What this rank stages for another in a round, and where.
    pub(super) fn staged(&self, to: usize, round: u64) -> Option<(Range<usize>, usize)> {
        let source = if self.combines() {
            self.piece(to, round)
        } else {
            // Of what all get, the root of a gather is one that gets it.
            let to = if self.work.collective == Collective::Gather { self.root() } else { to };
            cut(self.block(self.own, to).0, self.part, round)
        };
        (!source.is_empty()).then(|| (source, self.place(self.own, to)))
    }

    /// What this rank takes from another in a round: from where in its stage (or in this rank's own input), and to where.
    pub(super) fn taken(&self, from: usize, round: u64) -> Option<(usize, Range<usize>)> {
        if self.combines() {
            let takes = match self.work.collective {
                Collective::AllReduce => true,
                Collective::Reduce => self.own == self.root(),
                _ => false,
            };
            let piece = self.piece(from, round);
            return (takes && from != self.own && !piece.is_empty())
                .then(|| (self.combined(), piece));
        }
        let (block, target) = self.block(from, self.own);
        let source = cut(block.clone(), self.part, round);
        if source.is_empty() {
            return None;
        }
        let ahead = source.start - block.start;
        let place = if from == self.own { source.start } else { self.place(from, self.own) };
        Some((place, target + ahead..target + ahead + source.len()))
    }

    /// Bytes of the longest block; every rank finds the same.
    pub(super) fn longest(&self) -> usize {
        let mut all = 0..self.ranks;
        match self.work.collective {
            _ if self.combines() => all.map(|rank| self.owned(rank).len()).max().unwrap_or(0),
            Collective::AllToAll if self.work.blocks.is_some() => {
                let to = |from: usize| (0..self.ranks).map(move |to| (from, to));
                let pairs = all.by_ref().flat_map(to);
                pairs.map(|(from, to)| self.block(from, to).0.len()).max().unwrap_or(0)
            }
            // Borders are rounded down, so what remains is with later shards: the longest has the quotient rounded up.
            Collective::AllGather | Collective::Gather | Collective::Scatter => {
                self.work.count.div_ceil(self.ranks) * self.work.kernel.element_bytes()
            }
            // Blocks of one length, and the whole.
            _ => self.block(self.root(), 0).0.len(),
        }
    }
}

/// The part of a stretch that goes in a round.
fn cut(all: Range<usize>, step: usize, round: u64) -> Range<usize> {
    let ahead = usize::try_from(round).unwrap_or(usize::MAX).saturating_mul(step);
    let start = all.start.saturating_add(ahead).min(all.end);
    start..start.saturating_add(step).min(all.end)
}
