//! Large operations: straight from and to the other ranks' buffers.
//!
//! ```text
//!   post where the buffers are ──▶ hear where the others' are ──▶ work, a chunk at a time ──▶ say so ──▶ hear who is done
//!
//!   registered       rank r combines shard r of all inputs, in the order of ranks, into shard r of every result
//!   private          through stages ([`super::staged`]); or, by the kernel's copies, into shard r of its own, says so, and fetches the
//!                    other shards from their ranks; to a root: the root alone
//!   not combined     every rank fetches what it is to get
//! ```
//!
//! A rank is done with its own buffers once everyone who touches them has said so.

use std::sync::atomic::Ordering;

use topology::Collective;

use super::flat::exchanged;
use super::staged::Staged;
use super::{Advance, Broken, Shared, Work, id};
use crate::Path;
use crate::arena::{Remote, WORDS, Word};
use crate::element::ReduceOp;
use crate::link::LinkError;
use crate::memory::{Aligned, Slot, copy};
use crate::schedule::shard;

/// Bytes of all ranks' parts of one chunk: within the second-level cache of a core.
const CHUNK: usize = 256 << 10;

/// Bytes of each rank's part of one chunk.
fn chunk_bytes(ranks: usize, element_bytes: usize) -> usize {
    (CHUNK / ranks.max(1)).next_multiple_of(64 * element_bytes)
}

/// Most scratch memory that large operations take.
pub(crate) fn scratch_bytes(ranks: usize) -> usize {
    (ranks + 1) * chunk_bytes(ranks, 8)
}

/// A large operation in flight.
#[derive(Debug)]
pub(crate) struct Direct {
    number: u64,
    /// Its place among the large operations.
    turn: u64,
    phase: Phase,
    /// Whether results are fetched, for want of registered buffers to leave them in.
    pulls: bool,
    /// Where it goes through stages.
    staged: Option<Staged>,
    places: Places,
    steps: usize,
}

/// What is found out while an operation runs. Kept from one to the next, so that it allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Places {
    inputs: Vec<Option<Remote>>,
    outputs: Vec<Option<Remote>>,
    jobs: Vec<Job>,
    sources: Vec<Slot>,
    targets: Vec<Slot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Post,
    Hear(usize),
    Work { job: usize, done: usize },
    Wait(usize),
    Staged,
}

/// A stretch of bytes to handle.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// Combine those of all inputs into the results.
    Reduce { start: usize, bytes: usize },
    /// Fetch from a rank's input.
    Fetch { from: usize, source: usize, target: usize, bytes: usize },
    /// Say that this rank's shard of the result is whole.
    Tell,
    /// Fetch a shard of the result from its rank's output, once that is whole.
    Pull { from: usize, start: usize, bytes: usize },
}

impl Job {
    const fn bytes(self) -> usize {
        match self {
            Self::Reduce { bytes, .. } | Self::Fetch { bytes, .. } | Self::Pull { bytes, .. } => {
                bytes
            }
            Self::Tell => 0,
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
            pulls: false,
            staged: None,
            places: Places::default(),
            steps: 0,
        }
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) const fn path(&self) -> Path {
        if self.staged.is_some() { Path::Staged } else { Path::Direct }
    }

    /// Steps done so far.
    pub(crate) const fn step(&self) -> usize {
        self.steps
    }

    /// Steps in all, as far as is known.
    pub(crate) fn steps(&self, ranks: usize) -> usize {
        let chunk = CHUNK / ranks.max(1);
        let chunks: usize = self.places.jobs.iter().map(|job| job.bytes().div_ceil(chunk)).sum();
        let staged = self.staged.as_ref().map_or(0, |staged| staged.steps(ranks));
        // Post, hear, wait.
        chunks + staged + 3
    }

    /// As far as it goes without the others.
    pub(crate) fn finish(&mut self, work: &Work, shared: &mut Shared) -> Result<Advance, Broken> {
        let mut moved = false;
        loop {
            match self.progress(work, shared)? {
                Advance::Moved => moved = true,
                Advance::Waits(_) if moved => return Ok(Advance::Moved),
                other => return Ok(other),
            }
        }
    }

    /// One step, so that operations in flight take turns.
    pub(crate) fn progress(&mut self, work: &Work, shared: &mut Shared) -> Result<Advance, Broken> {
        if shared.large.1 != self.turn {
            return Ok(Advance::Turn);
        }
        match self.phase {
            Phase::Post => {
                if let Err(rank) = shared.is_free(self.number, shared.arena.lap(0)) {
                    return Ok(Advance::Waits(rank));
                }
                let ([a, b], [c, d]) = (shared.place(work.input), shared.place(work.output));
                let own = shared.own();
                // What no other rank can reach is staged for certain, and the others find it there when they hear of it.
                if !shared.crosses && lacks(work, own, (a, c)) && self.staged.is_none() {
                    let mut staged = Staged::new(work, shared);
                    staged.begin(work, shared);
                    self.staged = Some(staged);
                }
                let words: [u64; WORDS] = [a, b, c, d, 0];
                shared.arena.post(self.number, work.tag.count, work.tag.signature, Some(words));
                self.places = std::mem::take(&mut shared.places);
                let Places { inputs, outputs, jobs, .. } = &mut self.places;
                jobs.clear();
                for list in [inputs, outputs] {
                    list.clear();
                    list.resize(shared.ranks(), None);
                }
                self.to(Phase::Hear(0))
            }
            Phase::Hear(rank) if rank == shared.ranks() => self.plan(work, shared),
            Phase::Hear(rank) if rank == shared.own() => {
                self.places.inputs[rank] = Some(Remote::Here(work.input));
                self.places.outputs[rank] = Some(Remote::Here(work.output));
                self.phase = Phase::Hear(rank + 1);
                Ok(Advance::Moved)
            }
            // Who only gives waits for nobody.
            Phase::Hear(rank) if !tells(work, rank) => {
                self.phase = Phase::Hear(rank + 1);
                Ok(Advance::Moved)
            }
            Phase::Hear(rank) => {
                if !shared.heard(rank, self.number, &work.tag)? {
                    return Ok(Advance::Waits(rank));
                }
                let [a, b, c, d, _] = shared.arena.words(rank, self.number);
                let (sent, received) = lengths(work, shared.ranks(), rank);
                self.places.inputs[rank] = shared.remote(rank, [a, b], sent)?;
                self.places.outputs[rank] = shared.remote(rank, [c, d], received)?;
                self.phase = Phase::Hear(rank + 1);
                Ok(Advance::Moved)
            }
            Phase::Work { job, done } => self.work(work, shared, job, done),
            Phase::Staged => {
                let Some(staged) = &mut self.staged else {
                    unreachable!("set with the phase");
                };
                let advance = staged.progress(work, shared)?;
                if advance == Advance::Done {
                    self.end(shared);
                } else if advance == Advance::Moved {
                    self.steps += 1;
                }
                Ok(advance)
            }
            Phase::Wait(rank) if rank == shared.ranks() => {
                self.end(shared);
                Ok(Advance::Done)
            }
            Phase::Wait(rank) => {
                let stage = shared.arena.word(rank, Word::Stage).load(Ordering::Acquire);
                if stage < self.done() && touches(work, rank, shared.own()) {
                    return Ok(Advance::Waits(rank));
                }
                self.phase = Phase::Wait(rank + 1);
                Ok(Advance::Moved)
            }
        }
    }

    fn end(&mut self, shared: &mut Shared) {
        shared.large.1 += 1;
        shared.complete(self.number);
        shared.places = std::mem::take(&mut self.places);
    }

    /// What the stage of a rank says once its shard of the result is whole.
    const fn whole(&self) -> u64 {
        2 * self.turn + 1
    }

    /// What the stage of a rank says once it touches nobody's buffers any more.
    const fn done(&self) -> u64 {
        2 * self.turn + 2
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
        let words = |rank: usize| {
            let [input, _, output, ..] = shared.arena.words(rank, self.number);
            (input, output)
        };
        let possible = (0..ranks).all(|rank| !lacks(work, rank, words(rank)));
        if !possible && !shared.crosses {
            if self.staged.is_none() {
                self.staged = Some(Staged::new(work, shared));
            }
            return self.to(Phase::Staged);
        }
        self.pulls = (0..ranks).any(|rank| writes(work, rank) && words(rank).1 == 0);
        let size = work.kernel.element_bytes();
        let part = |rank: usize| {
            let shard = shard(work.count, id(rank), ranks);
            (shard.start * size, shard.len() * size)
        };
        let fetch = |from, source, target, bytes| Job::Fetch { from, source, target, bytes };
        // Each begins with the next rank, so that not all fetch from one.
        let round = (0..ranks).map(|shift| (own + shift) % ranks);
        let jobs = &mut self.places.jobs;
        match work.collective {
            Collective::Reduce if self.pulls => {
                if own == root {
                    jobs.push(Job::Reduce { start: 0, bytes: work.count * size });
                }
            }
            Collective::AllReduce if self.pulls => {
                let (start, bytes) = part(own);
                jobs.extend([Job::Reduce { start, bytes }, Job::Tell]);
                jobs.extend(round.skip(1).map(|rank| {
                    let (start, bytes) = part(rank);
                    Job::Pull { from: rank, start, bytes }
                }));
            }
            Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce => {
                let (start, bytes) = part(own);
                jobs.push(Job::Reduce { start, bytes });
            }
            Collective::AllGather => jobs.extend(round.map(|rank| {
                let (start, bytes) = part(rank);
                fetch(rank, 0, start, bytes)
            })),
            Collective::Gather if own == root => jobs.extend(round.map(|rank| {
                let (start, bytes) = part(rank);
                fetch(rank, 0, start, bytes)
            })),
            Collective::Broadcast => jobs.push(fetch(root, 0, 0, work.count * size)),
            Collective::Scatter => {
                let (start, bytes) = part(own);
                jobs.push(fetch(root, start, 0, bytes));
            }
            Collective::AllToAll => jobs.extend(round.map(|rank| {
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
        let Some(current) = self.places.jobs.get(job).copied() else {
            // What came from a rank that gave up before is worth nothing.
            let gone =
                |rank: &usize| shared.arena.word(*rank, Word::Aborted).load(Ordering::Acquire) != 0;
            if let Some(rank) = (0..shared.ranks()).find(gone) {
                return Err((id(rank), LinkError::Closed));
            }
            shared.arena.say(Word::Stage, self.done());
            return self.to(Phase::Wait(0));
        };
        match current {
            Job::Tell => shared.arena.say(Word::Stage, self.whole()),
            Job::Pull { from, .. } => {
                let stage = shared.arena.word(from, Word::Stage).load(Ordering::Acquire);
                if stage < self.whole() {
                    return Ok(Advance::Waits(from));
                }
            }
            Job::Reduce { .. } | Job::Fetch { .. } => {}
        }
        let size = work.kernel.element_bytes();
        let chunk = chunk_bytes(shared.ranks(), size);
        let bytes = chunk.min(current.bytes() - done);
        if bytes > 0 {
            match current {
                Job::Fetch { from, source, target, .. } => {
                    let kept = work.output.part(target + done, bytes);
                    if let Some(remote) = self.places.inputs[from] {
                        remote.read(source + done, kept).map_err(|error| (id(from), error))?;
                    }
                }
                Job::Tell => {}
                Job::Pull { from, start, .. } => {
                    let kept = work.output.part(start + done, bytes);
                    if let Some(remote) = self.places.outputs[from] {
                        remote.read(start + done, kept).map_err(|error| (id(from), error))?;
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
        let Places { inputs, outputs, sources, targets: here, .. } = &mut self.places;
        sources.clear();
        here.clear();
        for (rank, input) in inputs.iter().enumerate() {
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
            _ => !self.pulls || rank == own,
        };
        let within = if work.collective == Collective::ReduceScatter { done } else { at };
        for (rank, output) in outputs.iter().enumerate() {
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
            work.kernel.fold(&[first], sources);
            work.kernel.finish(first, ranks);
            rest.iter().for_each(|target| copy(*target, first));
        } else if here.is_empty() {
            work.kernel.fold(&spare, sources);
        } else {
            work.kernel.fold(here, sources);
        }
        Ok(())
    }
}

/// Whether others read a rank's input.
fn reads(work: &Work, rank: usize) -> bool {
    match work.collective {
        Collective::Broadcast | Collective::Scatter => {
            work.root.is_some_and(|root| root.index() == rank)
        }
        _ => true,
    }
}

/// Whether others write its output, or read it.
fn writes(work: &Work, rank: usize) -> bool {
    match work.collective {
        Collective::AllReduce => true,
        Collective::Reduce => work.root.is_some_and(|root| root.index() == rank),
        _ => false,
    }
}

/// Whether where a rank's buffers are, as it posts it, leaves others without what they need of them.
fn lacks(work: &Work, rank: usize, (input, output): (u64, u64)) -> bool {
    (reads(work, rank) && input == 0) || (writes(work, rank) && output == 0)
}

/// Whether where a rank's buffers are matters to the others.
fn tells(work: &Work, rank: usize) -> bool {
    reads(work, rank) || writes(work, rank)
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
