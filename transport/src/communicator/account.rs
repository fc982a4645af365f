//! What a communicator tells of its operations.

use topology::Collective;

use super::{Communicator, Path};
use crate::element::ReduceOp;
use crate::error::TransportError;
use crate::observe::{Attribution, KEPT, Observer, Totals, Trace, attribute, synchronises};
use crate::variables::expand;

impl Communicator {
    /// Totals of the operations so far, by collective and by the way they took; none unless [`super::Options::observe`].
    #[must_use]
    pub fn totals(&self) -> Vec<(Collective, Path, Totals)> {
        let totals = self.observer.iter().flat_map(|observer| observer.totals());
        totals.map(|((collective, path), totals)| (*collective, *path, *totals)).collect()
    }

    /// The operations so far as slices; none unless [`super::Options::trace`] names a file, which is written when the
    /// communicator is dropped.
    #[must_use]
    pub fn trace(&self) -> Option<&Trace> {
        self.observer.as_ref()?.trace.as_ref()
    }

    /// Who was waited for in the latest operations since the last call, up to 1024 of those that nobody leaves before everybody
    /// came. Collective, along all-reduce and all-gather; nothing is found unless [`super::Options::observe`] on every rank.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn attribute(&mut self) -> Result<Attribution, TransportError> {
        let recent = self.observer.as_ref().map(Observer::recent).unwrap_or_default();
        self.pause(true);
        let found = self.gather_times(&recent);
        self.pause(false);
        if let Some(observer) = &mut self.observer {
            observer.forget_recent();
        }
        found.map(|times| attribute(&times))
    }

    fn pause(&mut self, paused: bool) {
        if let Some(observer) = &mut self.observer {
            observer.paused = paused;
        }
    }

    /// Nanoseconds by rank and operation, of the operations that all ranks tell of.
    fn gather_times(
        &mut self,
        recent: &[(u64, Collective, std::time::Duration)],
    ) -> Result<Vec<Vec<u64>>, TransportError> {
        let number = |entry: Option<&(u64, Collective, std::time::Duration)>| {
            entry.map(|(number, ..)| i64::try_from(*number).unwrap_or(i64::MAX))
        };
        // From the highest first number to the lowest last one; a rank that knows of none leaves none.
        let first = number(recent.first()).unwrap_or(i64::MAX);
        let last = number(recent.last()).unwrap_or(-1);
        let mut window = [first, -last];
        self.all_reduce(&mut window, ReduceOp::Max)?;
        let (first, last) = (window[0], -window[1]);
        let length = last.saturating_sub(first).saturating_add(1);
        let length = usize::try_from(length).unwrap_or(0).min(2 * KEPT);
        let mut own = vec![0_i64; length];
        for (number, collective, elapsed) in recent {
            let at = i64::try_from(*number).unwrap_or(i64::MAX).saturating_sub(first);
            let place = usize::try_from(at).ok().and_then(|at| own.get_mut(at));
            if let Some(place) = place.filter(|_| synchronises(*collective)) {
                *place = i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX).max(1);
            }
        }
        let mut all = vec![0_i64; length * self.ranks()];
        self.all_gather(&own, &mut all)?;
        if length == 0 {
            return Ok(vec![Vec::new(); self.ranks()]);
        }
        let rows: Vec<&[i64]> = all.chunks(length).collect();
        let told = |at: &usize| rows.iter().all(|row| row[*at] > 0);
        let columns: Vec<usize> = (0..length).filter(told).collect();
        let time = |row: &[i64], at: usize| u64::try_from(row[at]).unwrap_or(0);
        Ok(rows.iter().map(|row| columns.iter().map(|at| time(row, *at)).collect()).collect())
    }

    /// Writes the trace where the options want it.
    pub(super) fn leave_trace(&self) {
        let (Some(trace), Some(pattern)) = (self.trace(), &self.options.trace) else { return };
        let host = &self.group.members[self.rank.index()].reach.host.name;
        let path = expand(pattern, host, Some(self.rank));
        let path = numbered(&path);
        let written = std::fs::File::create(&path)
            .and_then(|file| trace.write(std::io::BufWriter::new(file)));
        match written {
            Ok(()) => tracing::info!(target: "topod::profile", "the trace is in {path}"),
            Err(error) => tracing::warn!(target: "topod::profile", %error, "no trace in {path}"),
        }
    }
}

/// The path itself for the first communicator of a process, with a number for those after it.
fn numbered(path: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static WRITTEN: AtomicU32 = AtomicU32::new(0);
    match WRITTEN.fetch_add(1, Ordering::Relaxed) {
        0 => path.to_owned(),
        number => format!("{path}.{number}"),
    }
}
