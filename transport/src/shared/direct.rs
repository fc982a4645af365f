//! Large operations: straight from and to the other ranks' buffers.
//!
//! ```text
//!   post where the buffers are ──▶ hear where the others' are ──▶ work, a chunk at a time ──▶ say so ──▶ hear who is done
//!
//!   reductions       rank r combines shard r of all inputs, in the order of ranks, into shard r of every result
//!   the others       every rank fetches what it is to get
//! ```
//!
//! A rank is done with its own buffers once everyone who touches them has said so.

use std::sync::atomic::Ordering;

use topology::Collective;

use super::flat::exchanged;
use super::{Advance, Broken, Shared, Work, id};
use crate::arena::{Remote, WORDS, Word};
use crate::element::ReduceOp;
use crate::link::LinkError;
use crate::memory::{Aligned, Slot, copy};
use crate::schedule::shard;

/// Bytes of all ranks' parts of one chunk: within the second-level cache of a core.
const CHUNK: usize = 256 << 10;

/// A large operation in flight.
#[derive(Debug)]
pub(crate) struct Direct {
    number: u64,
    /// Its place among the large operations.
    turn: u64,
    phase: Phase,
    inputs: Vec<Option<Remote>>,
    outputs: Vec<Option<Remote>>,
    jobs: Vec<Job>,
    steps: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Post,
    Hear(usize),
    Work { job: usize, done: usize },
    Wait(usize),
}

/// A stretch of bytes to handle.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// Combine those of all inputs into the results.
    Reduce { start: usize, bytes: usize },
    /// Fetch from a rank's input.
    Fetch { from: usize, source: usize, target: usize, bytes: usize },
}

impl Job {
    const fn bytes(self) -> usize {
        match self {
            Self::Reduce { bytes, .. } | Self::Fetch { bytes, .. } => bytes,
        }
    }
}

impl Direct {
    pub(crate) fn new(shared: &mut Shared) -> Self {
        let turn = shared.large.0;
        shared.large.0 += 1;
        Self {
            number: shared.number(),
            turn,
            phase: Phase::Post,
            inputs: Vec::new(),
            outputs: Vec::new(),
            jobs: Vec::new(),
            steps: 0,
        }
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Steps done so far.
    pub(crate) const fn step(&self) -> usize {
        self.steps
    }

    /// Steps in all, as far as is known.
    pub(crate) fn steps(&self, ranks: usize) -> usize {
        let chunk = CHUNK / ranks.max(1);
        let chunks: usize = self.jobs.iter().map(|job| job.bytes().div_ceil(chunk)).sum();
        // Post, hear, wait.
        chunks + 3
    }

    pub(crate) fn progress(&mut self, work: &Work, shared: &mut Shared) -> Result<Advance, Broken> {
        if shared.large.1 != self.turn {
            return Ok(Advance::Turn);
        }
        match self.phase {
            Phase::Post => {
                if let Err(rank) = shared.slot_is_free(self.number) {
                    return Ok(Advance::Waits(rank));
                }
                let ([a, b], [c, d]) = (shared.place(work.input), shared.place(work.output));
                let words: [u64; WORDS] = [a, b, c, d, 0];
                shared.arena.post(self.number, work.tag.count, work.tag.signature, Some(words));
                self.inputs = vec![None; shared.ranks()];
                self.outputs = vec![None; shared.ranks()];
                self.to(Phase::Hear(0))
            }
            Phase::Hear(rank) if rank == shared.ranks() => self.plan(work, shared),
            Phase::Hear(rank) if rank == shared.own() => {
                self.inputs[rank] = Some(Remote::Here(work.input));
                self.outputs[rank] = Some(Remote::Here(work.output));
                self.phase = Phase::Hear(rank + 1);
                Ok(Advance::Moved)
            }
            Phase::Hear(rank) => {
                if !shared.heard(rank, self.number, &work.tag)? {
                    return Ok(Advance::Waits(rank));
                }
                let [a, b, c, d, _] = shared.arena.words(rank, self.number);
                let (sent, received) = lengths(work, shared.ranks(), rank);
                self.inputs[rank] = shared.remote(rank, [a, b], sent)?;
                self.outputs[rank] = shared.remote(rank, [c, d], received)?;
                self.phase = Phase::Hear(rank + 1);
                Ok(Advance::Moved)
            }
            Phase::Work { job, done } => self.work(work, shared, job, done),
            Phase::Wait(rank) if rank == shared.ranks() => {
                shared.large.1 += 1;
                shared.complete(self.number);
                Ok(Advance::Done)
            }
            Phase::Wait(rank) => {
                let stage = shared.arena.word(rank, Word::Stage).load(Ordering::Acquire);
                if stage <= self.turn && touches(work, rank, shared.own()) {
                    return Ok(Advance::Waits(rank));
                }
                self.phase = Phase::Wait(rank + 1);
                Ok(Advance::Moved)
            }
        }
    }

    fn to(&mut self, phase: Phase) -> Result<Advance, Broken> {
        self.phase = phase;
        self.steps += 1;
        Ok(Advance::Moved)
    }

    /// What this rank is to do, once it knows where everything is.
    fn plan(&mut self, work: &Work, shared: &mut Shared) -> Result<Advance, Broken> {
        let (own, ranks) = (shared.own(), shared.ranks());
        let root = work.root.map_or(0, |root| root.index());
        // Every rank looks at the same list, so that all find the same.
        let reads = |rank: usize| match work.collective {
            Collective::Broadcast | Collective::Scatter => rank == root,
            _ => true,
        };
        let writes = |rank: usize| match work.collective {
            Collective::AllReduce => true,
            Collective::Reduce => rank == root,
            _ => false,
        };
        let possible = (0..ranks).all(|rank| {
            let [input, _, output, ..] = shared.arena.words(rank, self.number);
            (!reads(rank) || input != 0) && (!writes(rank) || output != 0)
        });
        if !possible && !shared.crosses {
            shared.large.1 += 1;
            shared.arena.say(Word::Stage, self.turn + 1);
            shared.complete(self.number);
            return Ok(Advance::Elsewhere);
        }
        let size = work.kernel.element_bytes();
        let part = |rank: usize| {
            let shard = shard(work.count, id(rank), ranks);
            (shard.start * size, shard.len() * size)
        };
        let fetch = |from, source, target, bytes| Job::Fetch { from, source, target, bytes };
        // Each begins with the next rank, so that not all fetch from one.
        let round = (0..ranks).map(|shift| (own + shift) % ranks);
        match work.collective {
            Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce => {
                let (start, bytes) = part(own);
                self.jobs.push(Job::Reduce { start, bytes });
            }
            Collective::AllGather => self.jobs.extend(round.map(|rank| {
                let (start, bytes) = part(rank);
                fetch(rank, 0, start, bytes)
            })),
            Collective::Gather if own == root => self.jobs.extend(round.map(|rank| {
                let (start, bytes) = part(rank);
                fetch(rank, 0, start, bytes)
            })),
            Collective::Broadcast => self.jobs.push(fetch(root, 0, 0, work.count * size)),
            Collective::Scatter => {
                let (start, bytes) = part(own);
                self.jobs.push(fetch(root, start, 0, bytes));
            }
            Collective::AllToAll => self.jobs.extend(round.map(|rank| {
                let (source, target, _) = exchanged(work, ranks, rank, own);
                fetch(rank, source.start * size, target.start * size, source.len() * size)
            })),
            Collective::Gather | Collective::Barrier | Collective::SendRecv => {}
        }
        self.to(Phase::Work { job: 0, done: 0 })
    }

    fn work(
        &mut self,
        work: &Work,
        shared: &mut Shared,
        job: usize,
        done: usize,
    ) -> Result<Advance, Broken> {
        let Some(current) = self.jobs.get(job).copied() else {
            // What came from a rank that gave up before is worth nothing.
            let gone =
                |rank: &usize| shared.arena.word(*rank, Word::Aborted).load(Ordering::Acquire) != 0;
            if let Some(rank) = (0..shared.ranks()).find(gone) {
                return Err((id(rank), LinkError::Closed));
            }
            shared.arena.say(Word::Stage, self.turn + 1);
            return self.to(Phase::Wait(0));
        };
        let size = work.kernel.element_bytes();
        let chunk = (CHUNK / shared.ranks()).next_multiple_of(64 * size);
        let bytes = chunk.min(current.bytes() - done);
        if bytes > 0 {
            match current {
                Job::Fetch { from, source, target, .. } => {
                    let kept = work.output.part(target + done, bytes);
                    if let Some(remote) = self.inputs[from] {
                        remote.read(source + done, kept).map_err(|error| (id(from), error))?;
                    }
                }
                Job::Reduce { start, .. } => {
                    self.reduce(work, shared, start, done, bytes, chunk)?;
                }
            }
        }
        if done + bytes == current.bytes() {
            return self.to(Phase::Work { job: job + 1, done: 0 });
        }
        self.to(Phase::Work { job, done: done + bytes })
    }

    /// Combines bytes `done..done + bytes` of this rank's shard, which starts at `start`.
    fn reduce(
        &mut self,
        work: &Work,
        shared: &mut Shared,
        start: usize,
        done: usize,
        bytes: usize,
        chunk: usize,
    ) -> Result<(), Broken> {
        let (own, ranks) = (shared.own(), shared.ranks());
        let at = start + done;
        // Room for a copy of each input, and for the result where no buffer of this rank is to hold it.
        if shared.scratch.bytes().len() < (ranks + 1) * chunk {
            shared.scratch = Aligned::new((ranks + 1) * chunk);
        }
        let mut sources: Vec<Slot> = Vec::with_capacity(ranks);
        for (rank, input) in self.inputs.iter().enumerate() {
            sources.push(match input {
                Some(Remote::Here(slot)) => slot.part(at, bytes),
                Some(there) => {
                    let copied = shared.scratch.slot(rank * chunk, bytes);
                    there.read(at, copied).map_err(|error| (id(rank), error))?;
                    copied
                }
                None => continue,
            });
        }
        let is_root = |rank: usize| work.root.is_some_and(|root| root.index() == rank);
        let wants = |rank: usize| match work.collective {
            Collective::Reduce => is_root(rank),
            Collective::ReduceScatter => rank == own,
            _ => true,
        };
        let within = if work.collective == Collective::ReduceScatter { done } else { at };
        let mut here: Vec<Slot> = Vec::with_capacity(ranks);
        for (rank, output) in self.outputs.iter().enumerate() {
            if let Some(Remote::Here(slot)) = output
                && wants(rank)
            {
                here.push(slot.part(within, bytes));
            }
        }
        let spare = [shared.scratch.slot(ranks * chunk, bytes)];
        let (first, rest) =
            if here.is_empty() { (spare[0], &here[..]) } else { (here[0], &here[1..]) };
        if work.kernel.op == Some(ReduceOp::Avg) {
            work.kernel.fold(&[first], &sources);
            work.kernel.finish(first, ranks);
            rest.iter().for_each(|target| copy(*target, first));
        } else if here.is_empty() {
            work.kernel.fold(&spare, &sources);
        } else {
            work.kernel.fold(&here, &sources);
        }
        for (rank, output) in self.outputs.iter().enumerate() {
            if let Some(there @ Remote::There { .. }) = output
                && wants(rank)
            {
                there.write(within, first).map_err(|error| (id(rank), error))?;
            }
        }
        Ok(())
    }
}

/// Bytes of a rank's input and output.
fn lengths(work: &Work, ranks: usize, rank: usize) -> (usize, usize) {
    let size = work.kernel.element_bytes();
    let whole = work.count * size;
    let own = shard(work.count, id(rank), ranks).len() * size;
    let is_root = work.root.is_some_and(|root| root.index() == rank);
    match (work.collective, &work.blocks) {
        (Collective::AllGather, _) => (own, whole),
        (Collective::ReduceScatter, _) => (whole, own),
        (Collective::Gather, _) => (own, if is_root { whole } else { 0 }),
        (Collective::Scatter, _) => (if is_root { whole } else { 0 }, own),
        (_, Some(blocks)) => (blocks.sent(rank) * size, blocks.received(rank) * size),
        (_, None) => (whole, whole),
    }
}

/// Whether `rank` reads or writes buffers of `own`, so that `own` waits for it.
fn touches(work: &Work, rank: usize, own: usize) -> bool {
    let is_root = |rank: usize| work.root.is_some_and(|root| root.index() == rank);
    rank != own
        && match work.collective {
            Collective::Broadcast | Collective::Scatter => is_root(own),
            Collective::Gather => is_root(rank),
            _ => true,
        }
}
