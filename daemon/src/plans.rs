//! Plans, each made once: on a blocking thread, checked, and kept for as long as its generation is the present one, and for some
//! generations more for requests that a change of the machine does not touch ([`past`]).
//!
//! Whoever asks for a plan that is being made waits for it with the others; making it goes on when all of them have
//! left, since the next launch asks for the same. Failures are kept like plans: equal requests fail equally.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use planner::check::Violation;
use planner::{PlanError, change};
use prometheus::IntCounterVec;
use prost::Message as _;
use prost::bytes::Bytes;
use proto::v1;
use tokio::sync::{Semaphore, watch};
use tokio::task;
use topology::plan::Pattern;
use topology::{Collective, Fraction, Generation, Plan, PlanRequest};

use crate::state::Published;

mod past;

pub(crate) use past::Origin;
use past::{MOST_FAILURES, Past, Pasts, Prepared};

/// Plans kept. A node of 8 GPUs has 247 sets of two or more; a plan is some tens of kilobytes.
const MOST_KEPT: usize = 512;

/// Plans waited for. More distinct requests than this at once are refused rather than queued without end.
const MOST_PENDING: usize = 64;

/// Plans made at once: the daemon must not take the machine from the jobs it serves.
const MOST_WORKERS: usize = 2;

/// Requests of a generation that plans for failures are made for: those that come first, for later ones are rarely whole jobs.
const MOST_PREPARED: usize = 4;

/// Ranks of such a request. Planning for many hosts takes seconds, and who asks for it has other daemons to ask.
const MOST_PREPARED_RANKS: u32 = 16;

/// Before plans for failures are begun: a job that starts has better use for the machine.
const QUIET: Duration = Duration::from_secs(1);

/// Rest after each of them, in times of what it took.
const REST: u32 = 3;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanFailure {
    /// The planner says so.
    #[error("no plan for this request")]
    Planner(#[source] PlanError),
    /// The checker found the plan wrong: a defect, and the plan is not published.
    #[error("the plan did not pass the check: {violations}")]
    Rejected {
        /// In words.
        violations: String,
    },
    /// The planner panicked.
    #[error("the planner failed")]
    Panicked,
    /// More distinct plans are being made than the daemon takes on.
    #[error("{MOST_PENDING} plans are being made already")]
    Overloaded,
    /// What is kept of a plan is not that plan: a defect.
    #[error("the plan cannot be read back: {error}")]
    Kept {
        /// In words.
        error: String,
    },
    /// The daemon ended before the plan was made.
    #[error("the daemon is shutting down")]
    Abandoned,
}

/// A checked plan as it is kept: as it is sent, since that is small and is all that most who ask want.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    /// A `GetPlanResponse`.
    pub(crate) response: Bytes,
    /// In numbers, for metrics.
    pub(crate) reached: Reached,
    pub(crate) origin: Origin,
}

/// A plan in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) ranks: u32,
    /// Channels by pattern.
    pub(crate) channels: BTreeMap<&'static str, u32>,
    /// By collective: what the best algorithm reaches and the proved bound, in GB/s.
    pub(crate) collectives: BTreeMap<Collective, (Fraction, Option<Fraction>)>,
}

impl Made {
    fn new(plan: &Plan, origin: Origin) -> Self {
        let mut channels: BTreeMap<&'static str, u32> = BTreeMap::new();
        for channel in &plan.channels {
            *channels.entry(pattern(channel.pattern)).or_default() += 1;
        }
        let collectives = plan.collectives.iter().filter_map(|(collective, reached)| {
            let best = reached.best.as_ref()?.algbw_gbps;
            Some((*collective, (best, reached.bound.as_ref().map(|bound| bound.algbw_gbps))))
        });
        let reached = Reached {
            ranks: u32::try_from(plan.ranks.len()).unwrap_or(u32::MAX),
            channels,
            collectives: collectives.collect(),
        };
        Self { response: encode(plan, origin), reached, origin }
    }

    /// The plan again.
    pub(crate) fn plan(&self) -> Result<Plan, PlanFailure> {
        decode(self.response.clone())
    }
}

/// A `GetPlanResponse` with a plan.
fn encode(plan: &Plan, origin: Origin) -> Bytes {
    let plan = Some(v1::Plan::from(plan));
    let (origin, origin_generation) = origin.sent();
    let response = v1::GetPlanResponse { plan, origin: origin.into(), origin_generation };
    response.encode_to_vec().into()
}

fn decode(response: Bytes) -> Result<Plan, PlanFailure> {
    let defect = |error: &dyn std::error::Error| PlanFailure::Kept { error: error.to_string() };
    let response = v1::GetPlanResponse::decode(response).map_err(|e| defect(&e))?;
    Plan::try_from(response).map_err(|error| defect(&error))
}

fn violations(violations: &[Violation]) -> PlanFailure {
    let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
    PlanFailure::Rejected { violations: violations.join("; ") }
}

fn pattern(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Ring => "ring",
        Pattern::Tree => "tree",
        Pattern::Pairs => "pairs",
        Pattern::Rounds => "rounds",
    }
}

type Answer = Result<Arc<Made>, PlanFailure>;

/// Makes a plan, or goes on with one of before.
type Make = fn(&Published, &PlanRequest, &[Arc<Past>]) -> Answer;

/// The plans of the present generation.
#[derive(Debug)]
pub(crate) struct Plans {
    kept: Arc<Mutex<Kept>>,
    workers: Arc<Semaphore>,
    /// One after another, plans are made for failures.
    preparing: Arc<Semaphore>,
    /// Plans by origin.
    made: IntCounterVec,
    /// Places for other work that takes a worker.
    waiting: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: HashMap<(Generation, PlanRequest), Entry>,
    pasts: Pasts,
    /// What is published.
    present: Generation,
    /// Requests of that for which plans for failures are made.
    preparing: usize,
    /// Counts lookups, to tell which entry was not used for longest.
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    published: Arc<Published>,
    prepared: Prepared,
    answer: watch::Receiver<Option<Answer>>,
    last_used: u64,
}

impl Entry {
    fn is_pending(&self) -> bool {
        self.answer.borrow().is_none() && self.answer.has_changed().is_ok()
    }
}

impl Plans {
    /// None yet; `made` counts by [origin](Origin).
    pub(crate) fn new(made: IntCounterVec) -> Self {
        Self {
            kept: Arc::default(),
            workers: Arc::new(Semaphore::new(MOST_WORKERS)),
            preparing: Arc::new(Semaphore::new(1)),
            made,
            waiting: Arc::new(Semaphore::new(MOST_PENDING)),
        }
    }

    /// The checked plan for `request` on `published`.
    pub(crate) async fn get(&self, published: &Arc<Published>, request: PlanRequest) -> Answer {
        self.get_with(published, request, make).await
    }

    async fn get_with(
        &self,
        published: &Arc<Published>,
        mut request: PlanRequest,
        make: Make,
    ) -> Answer {
        // A plan does not depend on the order in which collectives are named.
        request.collectives.sort_unstable();
        request.collectives.dedup();

        let mut answer = self.find_or_start(published, request, make)?;
        let answer = answer.wait_for(Option::is_some).await;
        answer.ok().and_then(|answer| answer.clone()).unwrap_or(Err(PlanFailure::Abandoned))
    }

    fn find_or_start(
        &self,
        published: &Arc<Published>,
        request: PlanRequest,
        make: Make,
    ) -> Result<watch::Receiver<Option<Answer>>, PlanFailure> {
        let mut kept = lock(&self.kept);
        kept.clock += 1;
        let now = kept.clock;
        let key = (published.generation, request);
        if let Some(entry) = kept.entries.get_mut(&key) {
            entry.last_used = now;
            return Ok(entry.answer.clone());
        }
        kept.make_room()?;
        let (prepared, pasts) = (Prepared::default(), kept.pasts.of(&key.1));
        let answer =
            self.start(Arc::clone(published), key.1.clone(), pasts, prepared.clone(), make);
        let published = Arc::clone(published);
        let entry = Entry { published, prepared, answer: answer.clone(), last_used: now };
        kept.entries.insert(key, entry);
        Ok(answer)
    }

    fn start(
        &self,
        published: Arc<Published>,
        request: PlanRequest,
        pasts: Vec<Arc<Past>>,
        prepared: Prepared,
        make: Make,
    ) -> watch::Receiver<Option<Answer>> {
        let (sender, receiver) = watch::channel(None);
        let (workers, counter) = (Arc::clone(&self.workers), self.made.clone());
        let preparation = Preparation {
            kept: Arc::clone(&self.kept),
            workers: Arc::clone(&self.workers),
            turn: Arc::clone(&self.preparing),
            published: Arc::clone(&published),
            request: request.clone(),
            prepared,
        };
        task::spawn(async move {
            // The semaphore is never closed; were it, going on without a permit would do no harm.
            let permit = workers.acquire().await.ok();
            let made = task::spawn_blocking(move || make(&published, &request, &pasts)).await;
            let answer = made.unwrap_or(Err(PlanFailure::Panicked));
            drop(permit);
            let ranks = answer.as_ref().map_or(0, |made| made.reached.ranks);
            if let Ok(made) = &answer {
                counter.with_label_values(&[made.origin.word()]).inc();
            }
            sender.send_replace(Some(answer));
            if (2..=MOST_PREPARED_RANKS).contains(&ranks) {
                preparation.run().await;
            }
        });
        receiver
    }

    /// Other work of the planner's kind, on the same workers; refused where too much of it waits.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PlanFailure> {
        let place = Arc::clone(&self.waiting).try_acquire_owned();
        let place = place.map_err(|_| PlanFailure::Overloaded)?;
        let worker = Arc::clone(&self.workers).acquire_owned().await;
        let done = task::spawn_blocking(move || {
            // Held until it is done, though nobody may wait for it by then.
            let _held = (place, worker);
            work()
        });
        done.await.map_err(|_| PlanFailure::Panicked)
    }

    /// Every plan that is kept, in numbers.
    pub(crate) fn reached(&self) -> Vec<Arc<Made>> {
        let kept = lock(&self.kept);
        let made = kept.entries.values().filter_map(|entry| {
            entry.answer.borrow().as_ref().and_then(|answer| answer.as_ref().ok().map(Arc::clone))
        });
        made.collect()
    }

    /// Answers with plans of this generation alone from now on; those of before are for what is asked again.
    pub(crate) fn forget_before(&self, generation: Generation) {
        let mut kept = lock(&self.kept);
        if kept.present != generation {
            kept.present = generation;
            kept.preparing = 0;
        }
        let entries = std::mem::take(&mut kept.entries);
        for ((of, request), entry) in entries {
            if of >= generation {
                kept.entries.insert((of, request), entry);
                continue;
            }
            let Entry { published, prepared, answer, last_used } = entry;
            let made = answer.borrow().as_ref().and_then(|answer| answer.as_ref().ok().cloned());
            if let Some(made) = made {
                kept.pasts.add(request, Past { published, made, prepared, last_used });
            }
        }
        kept.pasts.tidy(generation);
    }

    /// How many plans and failures are kept or being made.
    pub(crate) fn len(&self) -> usize {
        lock(&self.kept).entries.len()
    }

    /// How many plans are there for failures that have not happened.
    pub(crate) fn prepared(&self) -> usize {
        let kept = lock(&self.kept);
        let present: usize = kept.entries.values().map(|entry| entry.prepared.len()).sum();
        present + kept.pasts.prepared()
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plans to be made beforehand, for single failures of what is published.
struct Preparation {
    kept: Arc<Mutex<Kept>>,
    workers: Arc<Semaphore>,
    turn: Arc<Semaphore>,
    published: Arc<Published>,
    request: PlanRequest,
    prepared: Prepared,
}

impl Preparation {
    /// Makes them one after another, with pauses, for as long as the generation lasts.
    async fn run(self) {
        if !self.is_wanted() {
            return;
        }
        tokio::time::sleep(QUIET).await;
        // Never closed.
        let Ok(_turn) = self.turn.acquire().await else { return };
        let published = Arc::clone(&self.published);
        let failures = task::spawn_blocking(move || change::single_failures(&published.topology));
        let failures = failures.await.unwrap_or_default();
        for failure in failures.into_iter().take(MOST_FAILURES) {
            if lock(&self.kept).present > self.published.generation {
                return;
            }
            let worker = self.workers.acquire().await.ok();
            let begin = Instant::now();
            let (published, request) = (Arc::clone(&self.published), self.request.clone());
            let prepared = self.prepared.clone();
            let work = move || prepared.prepare(&published.topology, &request, &failure);
            // The log has the panic; who asks once the failure is there gets what planning gives then.
            drop(task::spawn_blocking(work).await);
            drop(worker);
            tokio::time::sleep(begin.elapsed() * REST).await;
        }
    }

    fn is_wanted(&self) -> bool {
        let mut kept = lock(&self.kept);
        let wanted = kept.present == self.published.generation && kept.preparing < MOST_PREPARED;
        kept.preparing += usize::from(wanted);
        wanted
    }
}

impl Kept {
    fn make_room(&mut self) -> Result<(), PlanFailure> {
        if self.entries.values().filter(|entry| entry.is_pending()).count() >= MOST_PENDING {
            return Err(PlanFailure::Overloaded);
        }
        while self.entries.len() >= MOST_KEPT {
            let finished = self.entries.iter().filter(|(_, entry)| !entry.is_pending());
            let oldest =
                finished.min_by_key(|(_, entry)| entry.last_used).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { break };
            self.entries.remove(&oldest);
        }
        Ok(())
    }
}

/// Goes on with a plan of before where that is allowed; plans otherwise, and has the plan checked by code that did not make it.
fn make(published: &Published, request: &PlanRequest, pasts: &[Arc<Past>]) -> Answer {
    if let Some(made) = pasts.iter().find_map(|past| past.ready(published, request)) {
        return Ok(Arc::new(made));
    }
    let mut plan = planner::plan(&published.topology, request).map_err(PlanFailure::Planner)?;
    plan.topology.generation = published.generation;
    planner::check::plan(&published.topology, &plan).map_err(|found| violations(&found))?;
    let origin = pasts.first().map_or(Origin::New, |past| Origin::Replanned(past.generation()));
    Ok(Arc::new(Made::new(&plan, origin)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Condvar, LazyLock};

    use topology::GpuIndex;

    use super::*;
    use crate::state::tests::{pair, read, state};

    fn published() -> Arc<Published> {
        let state = state();
        read(&state, pair(10, vec![]));
        state.current().unwrap()
    }

    fn plans() -> Plans {
        Plans::new(crate::metrics::Metrics::new().plans())
    }

    /// A request like no other number's.
    fn request(number: u32) -> PlanRequest {
        PlanRequest { gpus: Some(vec![GpuIndex(number)]), ..Default::default() }
    }

    fn empty(_: &Published, _: &PlanRequest, _: &[Arc<Past>]) -> Answer {
        Ok(Arc::default())
    }

    #[tokio::test]
    async fn equal_requests_are_answered_by_one_plan() {
        static MADE: AtomicU32 = AtomicU32::new(0);
        fn counted(published: &Published, request: &PlanRequest, pasts: &[Arc<Past>]) -> Answer {
            MADE.fetch_add(1, Ordering::Relaxed);
            empty(published, request, pasts)
        }
        let (plans, published) = (plans(), published());
        let with = |collectives: &[Collective]| PlanRequest {
            collectives: collectives.to_vec(),
            ..request(0)
        };
        let (reduce, gather) = (Collective::AllReduce, Collective::AllGather);
        let (one, other) = tokio::join!(
            plans.get_with(&published, with(&[reduce, gather]), counted),
            plans.get_with(&published, with(&[gather, reduce, gather]), counted),
        );
        assert!(Arc::ptr_eq(&one.unwrap(), &other.unwrap()));
        assert_eq!((MADE.load(Ordering::Relaxed), plans.len()), (1, 1));

        plans.get_with(&published, with(&[reduce]), counted).await.unwrap();
        assert_eq!((MADE.load(Ordering::Relaxed), plans.len()), (2, 2));

        plans.forget_before(Generation(2));
        assert_eq!(plans.len(), 0);
    }

    #[tokio::test]
    async fn failures_are_answers() {
        fn fails(_: &Published, _: &PlanRequest, _: &[Arc<Past>]) -> Answer {
            Err(PlanFailure::Planner(PlanError::NoGpu))
        }
        fn panics(_: &Published, _: &PlanRequest, _: &[Arc<Past>]) -> Answer {
            panic!("a panic made for this test")
        }
        let (plans, published) = (plans(), published());
        for _ in 0..2 {
            let failed = plans.get_with(&published, request(0), fails).await;
            assert_eq!(failed, Err(PlanFailure::Planner(PlanError::NoGpu)));
            let panicked = plans.get_with(&published, request(1), panics).await;
            assert_eq!(panicked, Err(PlanFailure::Panicked));
        }
    }

    #[tokio::test]
    async fn a_plan_is_made_though_nobody_waits() {
        let (plans, published) = (plans(), published());
        // Found or started, and then never waited for.
        let mut answer = plans.find_or_start(&published, request(0), empty).unwrap();
        answer.wait_for(Option::is_some).await.unwrap();
        fn unused(_: &Published, _: &PlanRequest, _: &[Arc<Past>]) -> Answer {
            panic!("the plan is there already")
        }
        plans.get_with(&published, request(0), unused).await.unwrap();
    }

    #[tokio::test]
    async fn too_many_at_once_are_refused() {
        static OPEN: LazyLock<(Mutex<bool>, Condvar)> = LazyLock::new(Default::default);
        fn waits(published: &Published, request: &PlanRequest, pasts: &[Arc<Past>]) -> Answer {
            let (open, changed) = &*OPEN;
            drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
            empty(published, request, pasts)
        }
        let (plans, published) = (plans(), published());
        let most = u32::try_from(MOST_PENDING).unwrap();
        let mut answers = Vec::new();
        for number in 0..most {
            answers.push(plans.find_or_start(&published, request(number), waits).unwrap());
        }
        let refused = plans.get_with(&published, request(most), waits).await;
        assert_eq!(refused, Err(PlanFailure::Overloaded));
        // One that is being made already may be waited for.
        answers.push(plans.find_or_start(&published, request(0), waits).unwrap());

        *OPEN.0.lock().unwrap() = true;
        OPEN.1.notify_all();
        for mut answer in answers {
            answer.wait_for(Option::is_some).await.unwrap();
        }
        plans.get_with(&published, request(most), waits).await.unwrap();
    }

    #[tokio::test]
    async fn what_was_not_used_for_longest_makes_room() {
        static MADE: AtomicU32 = AtomicU32::new(0);
        fn counted(published: &Published, request: &PlanRequest, pasts: &[Arc<Past>]) -> Answer {
            MADE.fetch_add(1, Ordering::Relaxed);
            empty(published, request, pasts)
        }
        let (plans, published) = (plans(), published());
        let most = u32::try_from(MOST_KEPT).unwrap();
        for number in 0..most {
            plans.get_with(&published, request(number), counted).await.unwrap();
        }
        plans.get_with(&published, request(0), counted).await.unwrap();
        plans.get_with(&published, request(most), counted).await.unwrap();
        assert_eq!((MADE.load(Ordering::Relaxed), plans.len()), (most + 1, MOST_KEPT));
        plans.get_with(&published, request(0), counted).await.unwrap();
        assert_eq!(MADE.load(Ordering::Relaxed), most + 1, "the one used again was kept");
        plans.get_with(&published, request(1), counted).await.unwrap();
        assert_eq!(MADE.load(Ordering::Relaxed), most + 2, "the one used least was not");
    }

    #[tokio::test]
    async fn what_is_kept_is_the_plan() {
        let (plans, published) = (plans(), published());
        let made = plans.get(&published, PlanRequest::default()).await.unwrap();
        let plan = made.plan().unwrap();
        planner::check::plan(&published.topology, &plan).unwrap();
        assert_eq!((made.reached.ranks, plan.topology.generation), (2, published.generation));
        let (best, bound) = made.reached.collectives[&Collective::AllReduce];
        assert_eq!(Some(best), bound);
        assert!(made.reached.channels.values().sum::<u32>() > 0);
        assert_eq!(plans.reached(), [made]);
    }

    #[tokio::test]
    async fn other_work_waits_its_turn_and_is_refused_in_time() {
        let plans = plans();
        assert_eq!(plans.work(|| 7).await, Ok(7));
        let panicked = plans.work(|| -> u32 { panic!("a panic made for this test") }).await;
        assert_eq!(panicked, Err(PlanFailure::Panicked));
        let _full = Arc::clone(&plans.waiting).acquire_many_owned(64).await.unwrap();
        assert_eq!(plans.work(|| 7).await, Err(PlanFailure::Overloaded));
    }
}
