//! Small operations: data and flag in one go, and everyone reads what it needs.

use topology::Collective;
use topology::schedule::Blocks;

use super::{Advance, Broken, Shared, Work, id};
use crate::arena::SLOT_BYTES;
use crate::link::LinkError;
use crate::memory::{Slot, copy};
use crate::schedule::shard;

/// Whether an operation is small enough: what any rank posts fits a slot.
pub(crate) fn fits(
    collective: Collective,
    count: usize,
    element_bytes: usize,
    ranks: usize,
    blocks: Option<&Blocks>,
) -> bool {
    let posted = match (collective, blocks) {
        (Collective::Barrier, _) => 0,
        (Collective::AllGather | Collective::Gather, _) => count.div_ceil(ranks.max(1)),
        (_, Some(blocks)) => (0..ranks).map(|rank| blocks.sent(rank)).max().unwrap_or(0),
        (_, None) => count,
    };
    posted.saturating_mul(element_bytes) <= SLOT_BYTES
}

/// A small operation in flight.
#[derive(Debug)]
pub(crate) struct Flat {
    number: u64,
    posted: bool,
    /// The next rank to hear.
    next: usize,
}

impl Flat {
    pub(crate) fn new(shared: &mut Shared) -> Self {
        Self { number: shared.number(), posted: false, next: 0 }
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Steps done, of [`Flat::STEPS`].
    pub(crate) const fn step(&self) -> usize {
        if self.posted { 1 } else { 0 }
    }

    pub(crate) const STEPS: usize = 2;

    pub(crate) fn progress(&mut self, work: &Work, shared: &mut Shared) -> Result<Advance, Broken> {
        let mut moved = false;
        if !self.posted {
            if posts(work, shared.own()) {
                let bytes = work.input.bytes();
                if let Err(rank) = shared.is_free(self.number, shared.arena.lap(bytes)) {
                    return Ok(Advance::Waits(rank));
                }
                if work.collective != Collective::Barrier {
                    let place = shared.arena.payload(shared.own(), self.number, bytes);
                    shared.put(place, work.input);
                }
                shared.arena.post(self.number, work.tag.count, work.tag.signature, None);
            }
            self.posted = true;
            moved = true;
        }
        while self.next < shared.ranks() {
            if needs(work, shared.own(), self.next)
                && !shared.heard(self.next, self.number, &work.tag)?
            {
                return Ok(if moved { Advance::Moved } else { Advance::Waits(self.next) });
            }
            if matches!(work.collective, Collective::Broadcast | Collective::Scatter) {
                // The root waits for nobody and may well be ahead.
                shared.arena.expect(self.next, self.number + 2);
            }
            self.next += 1;
            moved = true;
        }
        self.compute(work, shared)?;
        shared.complete(self.number);
        Ok(Advance::Done)
    }

    /// What a rank posted, of `bytes` bytes.
    fn view(&self, work: &Work, shared: &Shared, rank: usize, bytes: usize) -> Slot {
        if rank == shared.own() {
            work.input
        } else {
            shared.arena.payload(rank, self.number, bytes)
        }
    }

    fn compute(&self, work: &Work, shared: &mut Shared) -> Result<(), Broken> {
        let size = work.kernel.element_bytes();
        let (own, ranks) = (shared.own(), shared.ranks());
        let whole = work.count * size;
        let part = |rank: usize| {
            let shard = shard(work.count, id(rank), ranks);
            (shard.start * size, shard.len() * size)
        };
        let root = work.root.map_or(0, |root| root.index());
        match work.collective {
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => {
                if work.collective == Collective::Reduce && own != root {
                    return Ok(());
                }
                let (start, bytes) = match work.collective {
                    Collective::ReduceScatter => part(own),
                    _ => (0, whole),
                };
                let mut views = std::mem::take(&mut shared.views);
                views.clear();
                views.extend(
                    (0..ranks).map(|r| self.view(work, shared, r, whole).part(start, bytes)),
                );
                work.kernel.fold(&[work.output], &views);
                work.kernel.finish(work.output, ranks);
                shared.views = views;
            }
            Collective::AllGather | Collective::Gather => {
                for rank in
                    (0..ranks).filter(|_| work.collective != Collective::Gather || own == root)
                {
                    let (start, bytes) = part(rank);
                    copy(work.output.part(start, bytes), self.view(work, shared, rank, bytes));
                }
            }
            Collective::Broadcast => copy(work.output, self.view(work, shared, root, whole)),
            Collective::Scatter => {
                let (start, bytes) = part(own);
                copy(work.output, self.view(work, shared, root, whole).part(start, bytes));
            }
            Collective::AllToAll => {
                for rank in 0..ranks {
                    let (source, target, sent) = exchanged(work, ranks, rank, own);
                    let view = self.view(work, shared, rank, sent * size);
                    let bytes = source.len() * size;
                    copy(
                        work.output.part(target.start * size, bytes),
                        view.part(source.start * size, bytes),
                    );
                }
            }
            Collective::Barrier => {}
            Collective::SendRecv => {
                let error = std::io::ErrorKind::Unsupported;
                return Err((id(own), LinkError::Io(error.into())));
            }
        }
        Ok(())
    }
}

/// Where the block from one rank to another lies at either, and how many elements the sender has in all.
pub(super) fn exchanged(
    work: &Work,
    ranks: usize,
    from: usize,
    to: usize,
) -> (std::ops::Range<usize>, std::ops::Range<usize>, usize) {
    match &work.blocks {
        Some(blocks) => (blocks.source(from, to), blocks.target(from, to), blocks.sent(from)),
        None => (shard(work.count, id(to), ranks), shard(work.count, id(from), ranks), work.count),
    }
}

/// Whether a rank has data for others.
fn posts(work: &Work, rank: usize) -> bool {
    let is_root = work.root.is_some_and(|root| root.index() == rank);
    match work.collective {
        Collective::Broadcast | Collective::Scatter => is_root,
        Collective::Reduce | Collective::Gather => !is_root,
        _ => true,
    }
}

/// Whether a rank waits for another.
fn needs(work: &Work, own: usize, rank: usize) -> bool {
    let is_root = |rank: usize| work.root.is_some_and(|root| root.index() == rank);
    rank != own
        && match work.collective {
            Collective::Broadcast | Collective::Scatter => is_root(rank),
            Collective::Reduce | Collective::Gather => is_root(own),
            _ => true,
        }
}
