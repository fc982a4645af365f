//! Which ranks of which job asked for plans, and of which generation: what there is to know about a job that hangs as it starts.
//!
//! All ranks of a job must run plans of one generation, or they wait for each other for ever. The transport refuses to mix them once
//! ranks meet; here it is refused before they do.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use topology::Generation;

use proto::JobMember;

/// Jobs kept; a host rarely starts as many in a day.
const MOST_JOBS: usize = 256;
/// Ranks kept of each.
const MOST_RANKS: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Jobs(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    jobs: HashMap<String, Job>,
    /// Counts requests, to tell which job was not heard of for longest.
    clock: u64,
}

#[derive(Debug, Default)]
struct Job {
    ranks: BTreeMap<u32, (Generation, Instant)>,
    ranks_here: u32,
    last_heard: u64,
}

/// Why a rank gets no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JobError {
    /// Other ranks have plans of another generation.
    #[error(
        "job '{job}': {count} other ranks, {example} among them, have plans of generation {others}, and the present one is {present}: start the job anew under another name"
    )]
    Mixed { job: String, count: usize, example: u32, others: Generation, present: Generation },
    /// More ranks than are kept.
    #[error("job '{job}' has more than {MOST_RANKS} ranks on this host")]
    TooMany { job: String },
}

/// What is known of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Rank, generation of its latest plan, and how long ago that was.
    pub(crate) ranks: Vec<(u32, Generation, Duration)>,
    pub(crate) ranks_here: u32,
}

impl Jobs {
    /// A rank is to get a plan of the `present` generation.
    pub(crate) fn admit(
        &self,
        member: &JobMember,
        present: Generation,
        now: Instant,
    ) -> Result<(), JobError> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let clock = kept.clock;
        if !kept.jobs.contains_key(&member.job) && kept.jobs.len() >= MOST_JOBS {
            let oldest = kept.jobs.iter().min_by_key(|(_, job)| job.last_heard);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.and_then(|name| kept.jobs.remove(&name));
        }
        let job = kept.jobs.entry(member.job.clone()).or_default();
        job.last_heard = clock;
        let mut others = job
            .ranks
            .iter()
            .filter(|(rank, (generation, _))| **rank != member.rank && *generation != present);
        if let Some((example, (generation, _))) = others.next() {
            return Err(JobError::Mixed {
                job: member.job.clone(),
                count: 1 + others.count(),
                example: *example,
                others: *generation,
                present,
            });
        }
        if job.ranks.len() >= MOST_RANKS && !job.ranks.contains_key(&member.rank) {
            return Err(JobError::TooMany { job: member.job.clone() });
        }
        job.ranks_here = job.ranks_here.max(member.ranks_here);
        job.ranks.insert(member.rank, (present, now));
        Ok(())
    }

    /// What is known of the job of that name.
    pub(crate) fn known(&self, name: &str, now: Instant) -> Option<Known> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let job = kept.jobs.get(name)?;
        let rank = |(rank, (generation, at)): (&u32, &(Generation, Instant))| {
            (*rank, *generation, now.saturating_duration_since(*at))
        };
        Some(Known { ranks: job.ranks.iter().map(rank).collect(), ranks_here: job.ranks_here })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(job: &str, rank: u32) -> JobMember {
        JobMember { job: job.into(), rank, ranks_here: 4 }
    }

    /// Ranks ask one after another; which of them are refused.
    #[track_caller]
    fn check(asks: &[(u32, u64)], refused: &[u32]) {
        let (jobs, now) = (Jobs::default(), Instant::now());
        let admit = |&(rank, generation): &(u32, u64)| {
            jobs.admit(&member("a", rank), Generation(generation), now).err().map(|_| rank)
        };
        assert_eq!(asks.iter().filter_map(admit).collect::<Vec<_>>(), refused);
    }

    #[test]
    fn field_case_k2_generations_are_not_mixed() {
        check(&[(0, 41), (1, 41), (2, 41)], &[]);
        check(&[(0, 41), (1, 42), (2, 42)], &[1, 2]);
        // Alone it may ask again.
        check(&[(0, 41), (0, 42), (1, 42)], &[]);
        check(&[(0, 41), (1, 41), (0, 42)], &[0]);
    }

    #[test]
    fn field_case_k1_who_never_asked_is_missing() {
        let (jobs, start) = (Jobs::default(), Instant::now());
        for rank in [0, 1, 3] {
            jobs.admit(&member("train.0", rank), Generation(41), start).unwrap();
        }
        let refused = jobs.admit(&member("train.0", 2), Generation(42), start).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "job 'train.0': 3 other ranks, 0 among them, have plans of generation 41, and the present one is 42: start the job anew under another name"
        );
        let later = Duration::from_secs(9);
        let known = jobs.known("train.0", start + later).unwrap();
        let ranks = [0, 1, 3].map(|rank| (rank, Generation(41), later));
        assert_eq!(known, Known { ranks: ranks.to_vec(), ranks_here: 4 });
        assert_eq!(jobs.known("train.1", start), None);
    }

    #[test]
    fn what_is_kept_has_an_end() {
        let (jobs, now) = (Jobs::default(), Instant::now());
        for job in 0..=MOST_JOBS {
            jobs.admit(&member(&format!("{job}"), 0), Generation(1), now).unwrap();
        }
        assert!(jobs.known("0", now).is_none() && jobs.known("1", now).is_some());
        let most = u32::try_from(MOST_RANKS).unwrap();
        for rank in 0..most {
            jobs.admit(&member("large", rank), Generation(1), now).unwrap();
        }
        let refused = jobs.admit(&member("large", most), Generation(1), now);
        assert!(matches!(refused, Err(JobError::TooMany { .. })));
    }
}
