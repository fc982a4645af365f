//! Large operations on private buffers: through stages, parts of the shared memory that stay in cache, a round at a time.
//!
//! ```text
//!   combined       stage what others combine ──▶ combine own part of all stages, stage the result ──▶ take the others' results
//!   not combined   stage what others are to get ──▶ take from their stages
//! ```
//!
//! A copy between processes by the kernel needs one pass instead of two, and yet takes longer: it pins and maps page by page, and what
//! it brings has to be read again to be combined. What is read from a stage comes from the other core's cache.
//!
//! A stage is a ring of bytes that rounds use one after the other. Places on it are counted over all operations and laps, the same on
//! every rank, so that one number says how far a rank is. A rank stages up to place `p` once every rank has taken what lies one lap before.
//! Nobody touches another's private memory: a rank is done once it has its result and its last round is staged.

use std::sync::atomic::Ordering;

use topology::Collective;

use self::shape::Shape;
use super::{Advance, Broken, Shared, Work};
use crate::arena::Word;
use crate::element::ReduceOp;
use crate::memory::{Slot, copy};

mod shape;

/// Parts begin in the same place of a page, each.
const ALIGNED: usize = 4096;

/// Rounds that a rank stages before it has combined its part of the first of them.
const AHEAD: u64 = 2;

/// Where an operation is in its rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Staged {
    rounds: u64,
    /// Bytes of a round for one rank, and on the stage.
    part: usize,
    length: usize,
    staged: Cursor,
    folded: Cursor,
    taken: Cursor,
    /// Of the round that is being taken: ranks done with, in their order from this one on.
    from: usize,
}

/// A round, and where on the stages it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    round: u64,
    at: u64,
}

impl Cursor {
    /// The first place from `at` on where a round lies in one piece.
    fn first(at: u64, length: usize, stage: usize) -> Self {
        let (length, stage) = (length as u64, stage as u64);
        let left = stage - at % stage;
        Self { round: 0, at: if left < length { at + left } else { at } }
    }

    fn next(self, length: usize, stage: usize) -> Self {
        let Self { at, .. } = Self::first(self.end(length), length, stage);
        Self { round: self.round + 1, at }
    }

    /// Where its round ends.
    const fn end(self, length: usize) -> u64 {
        self.at + length as u64
    }
}

impl Staged {
    pub(super) fn new(work: &Work, shared: &Shared) -> Self {
        let mut shape = Shape::new(work, shared, 0);
        let longest = shape.longest();
        let most = shared.arena.stage_bytes().0;
        // What all are to get is there once, and may be as long as what each gets otherwise.
        let (most, times) = if shape.is_shared() {
            (most * (shape.ranks - 1).max(1), 1)
        } else {
            (most, shape.ranks - 1)
        };
        let rounds = longest.div_ceil(most);
        let part = longest.div_ceil(rounds.max(1)).next_multiple_of(ALIGNED);
        let length = part * (times + usize::from(shape.combines()));
        shape.part = part;
        let first = Cursor::first(shared.used, length, shape.stage);
        let rounds = rounds as u64;
        let end = Cursor { round: rounds, at: first.at };
        let of = |does: bool| if does { first } else { end };
        let (staged, folded) = (of(shape.stages()), of(shape.combines()));
        let taken = of(shape.takes());
        let this = Self { rounds, part, length, staged, folded, taken, from: 0 };
        // Others that stage need not wait for a rank that reads nothing.
        if taken == end && rounds > 0 {
            shared.arena.say(Word::Taken, this.last(shared.used, shape.stage));
        }
        this
    }

    /// Where its last round ends.
    fn last(&self, used: u64, stage: usize) -> u64 {
        let mut cursor = Cursor::first(used, self.length, stage);
        for _ in 1..self.rounds {
            cursor = cursor.next(self.length, stage);
        }
        if self.rounds == 0 { used } else { cursor.end(self.length) }
    }

    /// Steps in all: what is staged, what is combined, and what is taken from each rank.
    pub(super) fn steps(&self, ranks: usize) -> usize {
        usize::try_from(self.rounds).unwrap_or(usize::MAX).saturating_mul(2 + ranks)
    }

    /// Puts the first round on the stage before the others are heard, if the stage is free.
    pub(super) fn begin(&mut self, work: &Work, shared: &mut Shared) {
        let shape = Shape::new(work, shared, self.part);
        if self.staged.round < self.rounds {
            // Else there is time for it later.
            let _ = self.stage(&shape, shared);
        }
    }

    /// One step.
    pub(super) fn progress(&mut self, work: &Work, shared: &mut Shared) -> Result<Advance, Broken> {
        let shape = Shape::new(work, shared, self.part);
        let mut waits = None;
        let (staged, folded, taken) = (self.staged.round, self.folded.round, self.taken.round);
        // What is combined is not staged far ahead: it is to be in cache still when its turn comes.
        if staged < self.rounds && (!shape.combines() || staged < folded + AHEAD) {
            match self.stage(&shape, shared) {
                Ok(()) => return Ok(Advance::Moved),
                Err(rank) => waits = Some(rank),
            }
        }
        if folded < self.rounds {
            match self.fold(&shape, shared) {
                Ok(()) => return Ok(Advance::Moved),
                Err(rank) => waits = Some(rank),
            }
        }
        // Of a round that this rank has not combined yet, there may be others' results, and it is not over.
        if taken < self.rounds && (self.from < shape.ranks || taken < folded) {
            match self.take(&shape, shared) {
                Ok(()) => return Ok(Advance::Moved),
                Err(rank) => waits = Some(rank),
            }
        }
        if let Some(rank) = waits {
            return Ok(Advance::Waits(rank));
        }
        // What it had no part in is over as well.
        let end = self.last(shared.used, shape.stage);
        for word in [Word::Staged, Word::Folded, Word::Taken] {
            if shared.arena.word(shape.own, word).load(Ordering::Relaxed) < end {
                shared.arena.say(word, end);
            }
        }
        shared.used = end;
        Ok(Advance::Done)
    }

    fn stage(&mut self, shape: &Shape<'_>, shared: &mut Shared) -> Result<(), usize> {
        let Cursor { round, at } = self.staged;
        let end = self.staged.end(self.length);
        shared.is_taken(end, shape.window(self.length, shared))?;
        for to in (0..shape.ranks).filter(|rank| *rank != shape.own) {
            let Some((source, place)) = shape.staged(to, round) else { continue };
            let input = shape.work.input.part(source.start, source.len());
            let place = shared.arena.stage(shape.own, shape.start(at) + place, source.len());
            shared.put(place, input);
            // What all are to get is there once.
            if shape.is_shared() {
                break;
            }
        }
        self.staged = self.staged.next(self.length, shape.stage);
        shared.arena.say(Word::Staged, end);
        Ok(())
    }

    fn fold(&mut self, shape: &Shape<'_>, shared: &mut Shared) -> Result<(), usize> {
        let Cursor { round, at } = self.folded;
        let end = self.folded.end(self.length);
        let Shape { work, own, ranks, .. } = *shape;
        let piece = shape.piece(own, round);
        if !piece.is_empty() {
            for rank in (0..ranks).filter(|rank| *rank != own) {
                shared.reached(rank, Word::Staged, end)?;
            }
            let tells = shape.tells();
            if tells {
                shared.is_taken(end, shape.window(self.length, shared))?;
            }
            let (bytes, start) = (piece.len(), shape.start(at));
            let mut sources = std::mem::take(&mut shared.views);
            sources.clear();
            sources.extend((0..ranks).map(|rank| {
                if rank == own {
                    return work.input.part(piece.start, bytes);
                }
                shared.arena.stage(rank, start + shape.place(rank, own), bytes)
            }));
            let kept = shape.keeps().then(|| {
                let apart = work.collective == Collective::ReduceScatter;
                let ahead = if apart { shape.owned(own).start } else { 0 };
                work.output.part(piece.start - ahead, bytes)
            });
            let place = start + shape.combined();
            let told = tells.then(|| shared.arena.stage(own, place, bytes));
            match kept.filter(|_| tells && shared.streaming.on) {
                // What is combined straight into the stage goes through the caches.
                Some(kept) => {
                    combine(work, ranks, [Some(kept), None], &sources);
                    shared.put(shared.arena.stage(own, place, bytes), kept);
                }
                None => combine(work, ranks, [kept, told], &sources),
            }
            shared.views = sources;
        }
        self.folded = self.folded.next(self.length, shape.stage);
        shared.arena.say(Word::Folded, end);
        Ok(())
    }

    fn take(&mut self, shape: &Shape<'_>, shared: &mut Shared) -> Result<(), usize> {
        let Cursor { round, at } = self.taken;
        let (end, start) = (self.taken.end(self.length), shape.start(at));
        let Shape { work, own, ranks, .. } = *shape;
        while self.from < ranks {
            // Each begins with itself and the next rank, so that not all read one stage.
            let from = (own + self.from) % ranks;
            let Some((source, target)) = shape.taken(from, round) else {
                self.from += 1;
                continue;
            };
            let kept = work.output.part(target.start, target.len());
            let found = if from == own {
                work.input.part(source, target.len())
            } else {
                let word = if shape.combines() { Word::Folded } else { Word::Staged };
                shared.reached(from, word, end)?;
                shared.arena.stage(from, start + source, target.len())
            };
            copy(kept, found);
            self.from += 1;
            // One step; the last one of a round ends it.
            if self.from < ranks {
                return Ok(());
            }
        }
        if self.taken.round < self.folded.round {
            self.from = 0;
            self.taken = self.taken.next(self.length, shape.stage);
            shared.arena.say(Word::Taken, end);
        }
        Ok(())
    }
}

/// Combines the sources in the order of ranks into every target.
fn combine(work: &Work, ranks: usize, targets: [Option<Slot>; 2], sources: &[Slot]) {
    let averages = work.kernel.op == Some(ReduceOp::Avg);
    match targets {
        [Some(first), Some(second)] if averages => {
            work.kernel.fold(&[first], sources);
            work.kernel.finish(first, ranks);
            copy(second, first);
        }
        [Some(first), Some(second)] => work.kernel.fold(&[first, second], sources),
        [Some(only), None] | [None, Some(only)] => {
            work.kernel.fold(&[only], sources);
            work.kernel.finish(only, ranks);
        }
        [None, None] => {}
    }
}

impl Shared {
    /// Whether a rank has got so far; looks a few times.
    fn reached(&self, rank: usize, word: Word, value: u64) -> Result<(), usize> {
        let word = self.arena.word(rank, word);
        for _ in 0..self.looks {
            if word.load(Ordering::Acquire) >= value {
                return Ok(());
            }
        }
        Err(rank)
    }

    /// Whether this rank may stage up to a place, at most so many bytes ahead of what every rank has taken; else who has not.
    fn is_taken(&mut self, end: u64, window: usize) -> Result<(), usize> {
        let window = window as u64;
        while self.taken + window < end {
            let mut least = u64::MAX;
            for rank in (0..self.ranks()).filter(|rank| *rank != self.arena.own) {
                let taken = self.arena.word(rank, Word::Taken).load(Ordering::Acquire);
                if taken + window < end {
                    return Err(rank);
                }
                least = least.min(taken);
            }
            self.taken = least;
        }
        Ok(())
    }
}
