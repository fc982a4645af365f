//! Plans of earlier generations, and those made beforehand for what may fail: most changes of a machine need no planning.
//!
//! ```text
//!   generation 7: request ── planned ──▶ plan 7 ── prepared, while nobody waits ──▶ one for each single failure
//!        │ a link fails
//!   generation 8: the same request ─┬─ a failure that was thought of ──▶ its plan          repaired
//!                                   ├─ plan 7 loses nothing ───────────▶ plan 7            kept
//!                                   └─ anything else ──────────────────▶ planned           replanned
//! ```
//!
//! Whatever comes of it passes the checker on the topology of its generation, as a new plan does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use planner::change::{Outcome, Prepared as PreparedPlans, Standing};
use planner::check;
use prost::bytes::Bytes;
use proto::v1;
use topology::{Generation, PlanRequest, Topology};
use tracing::warn;

use super::{Made, PlanFailure, decode, encode, violations};
use crate::state::Published;

/// Generations whose plans are thought of besides the present one. Each holds a topology.
const MOST_GENERATIONS: u64 = 4;

/// Requests whose earlier plans are kept.
const MOST_REQUESTS: usize = 128;

/// Single failures that plans are made for beforehand; a host of 8 GPUs and 6 NVSwitches has about a hundred.
pub(super) const MOST_FAILURES: usize = 128;

/// How a plan came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Planned, without one of an earlier generation.
    #[default]
    New,
    /// That of an earlier generation.
    Kept(Generation),
    /// Made beforehand in an earlier generation.
    Repaired(Generation),
    /// Planned, since that of an earlier generation is of no more use.
    Replanned(Generation),
}

impl Origin {
    /// The words in metrics.
    pub(crate) const WORDS: [&str; 4] = ["new", "kept", "repaired", "replanned"];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Kept(_) => "kept",
            Self::Repaired(_) => "repaired",
            Self::Replanned(_) => "replanned",
        }
    }

    /// As it is sent: what it was, and since when.
    pub(super) fn sent(self) -> (v1::PlanOrigin, Option<u64>) {
        match self {
            Self::New => (v1::PlanOrigin::New, None),
            Self::Kept(since) => (v1::PlanOrigin::Kept, Some(since.0)),
            Self::Repaired(since) => (v1::PlanOrigin::Repaired, Some(since.0)),
            Self::Replanned(since) => (v1::PlanOrigin::Replanned, Some(since.0)),
        }
    }
}

/// Plans for single failures of a topology, by the fingerprint that it has after each, as they are sent: small. Shared with who adds to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Prepared(Arc<Mutex<HashMap<String, Bytes>>>);

impl Prepared {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Plans for one failure of `topology`. Takes as long as planning does.
    pub(super) fn prepare(&self, topology: &Topology, request: &PlanRequest, failure: &str) {
        let mut prepared = PreparedPlans::new();
        // The failures are those of this topology.
        if prepared.prepare(topology, request, failure).is_err() {
            return;
        }
        for plan in prepared.into_plans() {
            let bytes = encode(&plan, Origin::default());
            self.lock().insert(plan.topology.fingerprint, bytes);
        }
    }

    /// The plan for a topology, where it was thought of.
    fn of(&self, topology: &Topology) -> Result<PreparedPlans, PlanFailure> {
        let found = self.lock().get(topology.fingerprint()).cloned();
        Ok(PreparedPlans::of(found.map(decode).transpose()?))
    }
}

/// A plan of an earlier generation.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) published: Arc<Published>,
    pub(super) made: Arc<Made>,
    pub(super) prepared: Prepared,
    /// By the cache's clock.
    pub(super) last_used: u64,
}

impl Past {
    pub(super) fn generation(&self) -> Generation {
        self.published.generation
    }

    /// What becomes of it on the machine as it is now; `None` where another plan is needed.
    pub(super) fn ready(&self, now: &Published, request: &PlanRequest) -> Option<Made> {
        match self.try_ready(now, request) {
            Ok(made) => made,
            // Nothing is lost but time: it is planned anew.
            Err(error) => {
                let generation = self.generation();
                warn!(%generation, %error, "a plan of before cannot be gone on with");
                None
            }
        }
    }

    fn try_ready(
        &self,
        now: &Published,
        request: &PlanRequest,
    ) -> Result<Option<Made>, PlanFailure> {
        let (before, prepared) = (&self.published.topology, self.prepared.of(&now.topology)?);
        let standing = Standing::new(before, self.made.plan()?, request.clone(), prepared);
        let standing = standing.map_err(|found| violations(&found))?;
        let (mut plan, origin) = match standing.ready(&now.topology) {
            Ok(Some(Outcome::Keep(plan))) => (plan, Origin::Kept(self.generation())),
            Ok(Some(Outcome::Repair(plan))) => (plan, Origin::Repaired(self.generation())),
            Ok(Some(Outcome::Replan(_)) | None) => return Ok(None),
            Err(error) => return Err(PlanFailure::Planner(error)),
        };
        plan.topology.generation = now.generation;
        check::plan(&now.topology, &plan).map_err(|found| violations(&found))?;
        Ok(Some(Made::new(&plan, origin)))
    }
}

/// The plans of earlier generations by request, the latest first.
#[derive(Debug, Default)]
pub(super) struct Pasts(HashMap<PlanRequest, Vec<Arc<Past>>>);

impl Pasts {
    pub(super) fn of(&self, request: &PlanRequest) -> Vec<Arc<Past>> {
        self.0.get(request).cloned().unwrap_or_default()
    }

    pub(super) fn add(&mut self, request: PlanRequest, past: Past) {
        self.0.entry(request).or_default().insert(0, Arc::new(past));
    }

    /// Forgets what is too old, and what was not asked for for longest where there is too much.
    pub(super) fn tidy(&mut self, present: Generation) {
        self.0.retain(|_, pasts| {
            pasts.retain(|past| past.generation().0.saturating_add(MOST_GENERATIONS) >= present.0);
            pasts.sort_by_key(|past| std::cmp::Reverse(past.generation()));
            !pasts.is_empty()
        });
        if self.0.len() > MOST_REQUESTS {
            let used = |pasts: &Vec<Arc<Past>>| pasts.first().map_or(0, |past| past.last_used);
            let mut all: Vec<u64> = self.0.values().map(used).collect();
            all.sort_unstable();
            let oldest = all[all.len() - MOST_REQUESTS];
            self.0.retain(|_, pasts| used(pasts) >= oldest);
        }
    }

    /// Plans made beforehand.
    pub(super) fn prepared(&self) -> usize {
        self.0.values().flatten().map(|past| past.prepared.len()).sum()
    }
}
