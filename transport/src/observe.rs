//! What operations took: totals by kind, who was waited for, and a trace to look at.
//!
//! Off unless asked for: the smallest operations take less time than two looks at the clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use topology::{Collective, Rank};

use crate::communicator::{Path, Stats};

mod late;
mod trace;

pub use late::{Attribution, Late};
pub(crate) use late::{attribute, synchronises};
pub use trace::Trace;

/// Operations whose times are kept for [`Attribution`].
pub(crate) const KEPT: usize = 1024;

/// Totals of operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many.
    pub operations: u64,
    /// Total data, as nccl-tests counts it.
    pub bytes: u64,
    /// From call to end on this rank, added up.
    pub elapsed: Duration,
    /// The longest.
    pub longest: Duration,
    /// Times this rank slept.
    pub sleeps: u64,
}

impl Totals {
    fn add(&mut self, stats: &Stats) {
        self.operations += 1;
        self.bytes += stats.bytes;
        self.elapsed += stats.elapsed;
        self.longest = self.longest.max(stats.elapsed);
        self.sleeps += stats.sleeps;
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// This rank has its result.
    Done,
    /// Given up after the limit of time.
    TimedOut,
    /// Ended by an error.
    Failed,
}

/// An operation that ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Ended {
    /// What it was.
    pub collective: Collective,
    /// How it ended.
    pub outcome: Outcome,
    /// Total data, as nccl-tests counts it.
    pub bytes: u64,
    /// From call to end on this rank.
    pub elapsed: Duration,
}

/// Called on one rank for each operation that ended: on rank 0 for those of all, on the sender for messages, and on the rank that noticed
/// first for those that failed.
pub type EndHook = Box<dyn FnMut(&Ended) + Send>;

/// An operation that is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) collective: Collective,
    /// Its number on every rank; of messages, between their two.
    pub(crate) number: u64,
    pub(crate) start: Instant,
    pub(crate) stats: Stats,
}

/// Keeps account of one communicator's operations.
#[derive(Debug)]
pub(crate) struct Observer {
    totals: BTreeMap<(Collective, Path), Totals>,
    /// Number and time of the latest operations that all ranks take part in, in order of their end.
    recent: VecDeque<(u64, Collective, Duration)>,
    pub(crate) trace: Option<Trace>,
    /// Its own operations are nobody's.
    pub(crate) paused: bool,
}

impl Observer {
    pub(crate) fn new(trace: Option<Trace>) -> Self {
        Self { totals: BTreeMap::new(), recent: VecDeque::new(), trace, paused: false }
    }

    pub(crate) fn record(&mut self, done: Done) {
        if self.paused {
            return;
        }
        let Done { collective, number, stats, .. } = done;
        self.totals.entry((collective, stats.path)).or_default().add(&stats);
        if let Some(trace) = &mut self.trace {
            trace.add(&done);
        }
        if collective == Collective::SendRecv {
            return;
        }
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back((number, collective, stats.elapsed));
    }

    pub(crate) const fn totals(&self) -> &BTreeMap<(Collective, Path), Totals> {
        &self.totals
    }

    /// The latest operations in the order of their numbers.
    pub(crate) fn recent(&self) -> Vec<(u64, Collective, Duration)> {
        let mut recent: Vec<_> = self.recent.iter().copied().collect();
        recent.sort_unstable_by_key(|(number, ..)| *number);
        recent
    }

    pub(crate) fn forget_recent(&mut self) {
        self.recent.clear();
    }
}

/// A rank as a process in a trace.
#[must_use]
pub(crate) fn process_name(rank: Rank, host: &str) -> String {
    format!("rank {rank} on {host}")
}
