//! What the daemon publishes. One writer, the main loop; everyone else reads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use prost::bytes::Bytes;
use proto::v1;
use tokio::sync::watch;
use topology::snapshot::PciKind;
use topology::{Generation, RateModel, Snapshot, Topology};

use crate::feed::{Feed, Numbered, Step, Watcher, next_steps};
use crate::jobs::Jobs;
use crate::metrics::Metrics;
use crate::plans::Plans;
use crate::verdict;

/// A topology with its number. Never changed, only replaced as a whole.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) generation: Generation,
    pub(crate) topology: Topology,
    /// As sent, made once per generation and not once per request.
    pub(crate) wire: v1::Topology,
    /// As a message of a watch, once somebody was told.
    pub(crate) sent: OnceLock<Bytes>,
    /// What leads here from the generations before.
    steps: Vec<Arc<Step<v1::TopologyChanges>>>,
}

impl Numbered for Published {
    type Changes = v1::TopologyChanges;

    fn number(&self) -> u64 {
        self.generation.0
    }

    fn steps(&self) -> &[Arc<Step<v1::TopologyChanges>>] {
        &self.steps
    }
}

/// The verdict on the latest reading.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) report: v1::HealthReport,
    steps: Vec<Arc<Step<v1::HealthChanges>>>,
}

impl Numbered for Judged {
    type Changes = v1::HealthChanges;

    fn number(&self) -> u64 {
        self.report.sequence
    }

    fn steps(&self) -> &[Arc<Step<v1::HealthChanges>>] {
        &self.steps
    }
}

/// What an earlier run of the daemon published last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Earlier {
    pub(crate) generation: Generation,
    pub(crate) fingerprint: String,
    pub(crate) rates: RateModel,
    pub(crate) hosts: Vec<Snapshot>,
}

/// Everything the services share.
#[derive(Debug)]
pub(crate) struct State {
    published: watch::Sender<Option<Arc<Published>>>,
    judged: watch::Sender<Option<Arc<Judged>>>,
    closing: watch::Sender<bool>,
    earlier: Option<Earlier>,
    last_error: Mutex<Option<String>>,
    /// What of the daemon's own business does not work, by what it is about.
    warnings: Mutex<BTreeMap<&'static str, String>>,
    last_success: Mutex<Option<(Instant, SystemTime)>>,
    readings: AtomicU64,
    failed_readings: AtomicU64,
    watchers: Arc<AtomicU32>,
    started: Instant,
    heartbeat: Duration,
    pub(crate) plans: Plans,
    pub(crate) jobs: Jobs,
    pub(crate) metrics: Metrics,
}

/// What becomes of a topology that was read.
#[derive(Debug)]
pub(crate) enum Next {
    /// It is to be published.
    New(Arc<Published>),
    /// It says what the present one says, but for counters and the like.
    Unchanged { topology: Box<Topology>, generation: Generation },
}

impl State {
    pub(crate) fn new(earlier: Option<Earlier>, heartbeat: Duration) -> Self {
        let metrics = Metrics::new();
        Self {
            published: watch::Sender::new(None),
            judged: watch::Sender::new(None),
            closing: watch::Sender::new(false),
            earlier,
            last_error: Mutex::new(None),
            warnings: Mutex::default(),
            last_success: Mutex::new(None),
            readings: AtomicU64::new(0),
            failed_readings: AtomicU64::new(0),
            watchers: Arc::default(),
            started: Instant::now(),
            heartbeat,
            plans: Plans::new(metrics.plans()),
            jobs: Jobs::default(),
            metrics,
        }
    }

    /// What publishing `topology` would mean.
    pub(crate) fn next(&self, topology: Topology) -> Next {
        let present = self.current();
        let same = |fingerprint: &str, rates: RateModel, hosts: &[Snapshot]| {
            says_the_same((fingerprint, rates, hosts), &topology)
        };
        if let Some(present) = &present
            && same(
                present.topology.fingerprint(),
                present.topology.rates(),
                present.topology.hosts(),
            )
        {
            return Next::Unchanged { topology: topology.into(), generation: present.generation };
        }
        let generation = match (&present, &self.earlier) {
            (Some(present), _) => Generation(present.generation.0 + 1),
            // Restarting changes no machine, and plans of the generation stay good.
            (None, Some(e)) if same(&e.fingerprint, e.rates, &e.hosts) => e.generation,
            (None, Some(earlier)) => Generation(earlier.generation.0 + 1),
            (None, None) => Generation(1),
        };
        let wire = v1::Topology::published(&topology, generation);
        let steps = present.map_or_else(Vec::new, |present| {
            let changes = v1::TopologyChanges::between(&present.wire, &wire);
            let step = changes.map(|changes| Step {
                base: present.generation.0,
                base_identity: present.wire.fingerprint.clone(),
                number: generation.0,
                changes,
                sent: OnceLock::new(),
            });
            next_steps(&present.steps, step)
        });
        Next::New(Arc::new(Published { generation, topology, wire, sent: OnceLock::new(), steps }))
    }

    /// Makes it what everyone sees.
    pub(crate) fn publish(&self, published: Arc<Published>) {
        self.plans.forget_before(published.generation);
        self.published.send_replace(Some(published));
    }

    /// Judges a reading that gave a topology, whether or not it is a new one. Whether the verdict differs from the one before.
    pub(crate) fn judge(&self, topology: &Topology, generation: Generation) -> bool {
        let present = self.verdict();
        let mut report = verdict::report(topology, generation);
        report.sequence = present.as_ref().map_or(1, |present| present.report.sequence);
        if present.as_ref().is_some_and(|present| present.report == report) {
            return false;
        }
        let mut steps = Vec::new();
        if let Some(present) = present {
            report.sequence += 1;
            let changes = v1::HealthChanges::between(&present.report, &report);
            let step = changes.map(|changes| Step {
                base: present.report.sequence,
                base_identity: String::new(),
                number: report.sequence,
                changes,
                sent: OnceLock::new(),
            });
            steps = next_steps(&present.steps, step);
        }
        self.judged.send_replace(Some(Arc::new(Judged { report, steps })));
        true
    }

    /// A reading gave a topology, after that long.
    pub(crate) fn reading_succeeded(&self, took: Duration) {
        *lock(&self.last_error) = None;
        *lock(&self.last_success) = Some((Instant::now(), SystemTime::now()));
        self.readings.fetch_add(1, Ordering::Relaxed);
        self.metrics.reading(took, true);
    }

    /// A reading gave none, for this reason.
    pub(crate) fn reading_failed(&self, took: Duration, error: String) {
        *lock(&self.last_error) = Some(error);
        self.readings.fetch_add(1, Ordering::Relaxed);
        self.failed_readings.fetch_add(1, Ordering::Relaxed);
        self.metrics.reading(took, false);
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        lock(&self.last_error).clone()
    }

    /// When a reading last gave a topology: by a clock that never jumps, and by the wall's.
    pub(crate) fn last_success(&self) -> Option<(Instant, SystemTime)> {
        *lock(&self.last_success)
    }

    /// Readings, and those of them that failed.
    pub(crate) fn readings(&self) -> (u64, u64) {
        (self.readings.load(Ordering::Relaxed), self.failed_readings.load(Ordering::Relaxed))
    }

    /// Sets or clears what does not work. Whether it says something else than before.
    pub(crate) fn warn(&self, about: &'static str, warning: Option<String>) -> bool {
        let mut warnings = lock(&self.warnings);
        match warning {
            Some(warning) => warnings.insert(about, warning.clone()) != Some(warning),
            None => warnings.remove(about).is_some(),
        }
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        lock(&self.warnings).values().cloned().collect()
    }

    /// The present topology; `None` before the first.
    pub(crate) fn current(&self) -> Option<Arc<Published>> {
        self.published.borrow().clone()
    }

    /// The present verdict; `None` before the first.
    pub(crate) fn verdict(&self) -> Option<Arc<Judged>> {
        self.judged.borrow().clone()
    }

    /// Tells that another topology is published.
    pub(crate) fn topology_changes(&self) -> watch::Receiver<Option<Arc<Published>>> {
        self.published.subscribe()
    }

    /// Tells that there is another verdict.
    pub(crate) fn verdict_changes(&self) -> watch::Receiver<Option<Arc<Judged>>> {
        self.judged.subscribe()
    }

    /// Every topology from now on; who reads slowly sees the latest alone.
    pub(crate) fn topologies(&self) -> Feed<Published> {
        self.feed(&self.published)
    }

    /// Every verdict from now on.
    pub(crate) fn verdicts(&self) -> Feed<Judged> {
        self.feed(&self.judged)
    }

    fn feed<T>(&self, of: &watch::Sender<Option<Arc<T>>>) -> Feed<T> {
        Feed {
            published: of.subscribe(),
            closing: self.closing(),
            heartbeat: self.heartbeat,
            _watcher: Watcher::new(&self.watchers),
        }
    }

    /// Watches open.
    pub(crate) fn watchers(&self) -> u32 {
        self.watchers.load(Ordering::Relaxed)
    }

    /// Ends the watches.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Tells when the daemon drains.
    pub(crate) fn closing(&self) -> Closing {
        Closing::of(&self.closing)
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells when the daemon drains.
#[derive(Clone, Debug)]
pub(crate) struct Closing(watch::Receiver<bool>);

impl Closing {
    pub(crate) fn of(closing: &watch::Sender<bool>) -> Self {
        Self(closing.subscribe())
    }

    /// Returns once the daemon drains.
    pub(crate) async fn wait(&mut self) {
        // A state that is gone drains no less.
        drop(self.0.wait_for(|closing| *closing).await);
    }
}

/// Whether a reading says what an earlier one did, to every client: the same graph, and the same facts but for those that come and go
/// by themselves. A plan is bound to a generation, so a counter that grows or a GPU that idles must not make one.
fn says_the_same(earlier: (&str, RateModel, &[Snapshot]), topology: &Topology) -> bool {
    let (fingerprint, rates, hosts) = earlier;
    fingerprint == topology.fingerprint()
        && rates == topology.rates()
        && hosts.len() == topology.hosts().len()
        && hosts.iter().zip(topology.hosts()).all(|(a, b)| settled(a) == settled(b))
}

/// The facts without times, counters, and what power management changes.
fn settled(snapshot: &Snapshot) -> Snapshot {
    let mut snapshot = snapshot.clone();
    for fault in &mut snapshot.faults {
        fault.at_unix_ms = None;
    }
    for nic in &mut snapshot.nics {
        nic.counters = None;
    }
    for gpu in &mut snapshot.gpus {
        gpu.link_errors.clear();
    }
    for device in &mut snapshot.pci_devices {
        device.suspended = None;
        // A link narrows for a reason, and slows down when idle.
        if let Some(trained) = device.link.trained.as_mut().filter(|_| device.kind == PciKind::Gpu)
        {
            trained.mtps = 0;
        }
    }
    snapshot.host.limits = None;
    snapshot
}

#[cfg(test)]
pub(crate) mod tests {
    use topology::snapshot::{Acs, FaultKind, LinkGraph, PciDevice, PcieLink, PortCounters};
    use topology::{Bandwidth, Fault, Gpu, GpuIndex, Nic, RateModel, Source, lower};

    use super::*;

    /// Two GPUs joined by one link each way.
    pub(crate) fn pair(gbps: u64, faults: Vec<Fault>) -> Topology {
        let link =
            |from: &str, to: &str| (from.into(), to.into(), Bandwidth::from_mbps(gbps * 1000));
        let mut snapshot = Snapshot::new(Source::LinkGraph);
        snapshot.link_graph = Some(LinkGraph {
            name: "pair".into(),
            gpus: vec!["0".into(), "1".into()],
            switches: vec![],
            links: vec![link("0", "1"), link("1", "0")],
        });
        snapshot.faults = faults;
        lower(&[snapshot], RateModel::Effective).unwrap()
    }

    fn fault(error: &str, at: u64) -> Fault {
        let fault = Fault::new("test", "here", FaultKind::Unreadable, error);
        Fault { at_unix_ms: Some(at), ..fault }
    }

    pub(crate) fn state() -> State {
        State::new(None, Duration::from_secs(1000))
    }

    /// The generation after `topology` was read, and whether it is new.
    pub(crate) fn read(state: &State, topology: Topology) -> (u64, bool) {
        match state.next(topology) {
            Next::New(published) => {
                let generation = published.generation.0;
                state.publish(published);
                (generation, true)
            }
            Next::Unchanged { generation, .. } => (generation.0, false),
        }
    }

    #[test]
    fn a_generation_per_difference() {
        let state = state();
        assert!(state.current().is_none());
        let steps = [
            (pair(10, vec![]), (1, true)),
            (pair(10, vec![]), (1, false)),
            (pair(20, vec![]), (2, true)),
            (pair(20, vec![fault("gone", 1)]), (3, true)),
            (pair(20, vec![fault("gone", 2)]), (3, false)),
            (pair(20, vec![fault("hung", 2)]), (4, true)),
        ];
        for (topology, expect) in steps {
            let fingerprint = topology.fingerprint().to_owned();
            assert_eq!(read(&state, topology), expect);
            assert_eq!(state.current().unwrap().wire.fingerprint, fingerprint);
        }
        let bases: Vec<u64> = state.current().unwrap().steps.iter().map(|step| step.base).collect();
        assert_eq!(bases, [1, 2, 3]);
    }

    #[test]
    fn generations_go_on_after_a_restart() {
        let earlier = |topology: &Topology| Earlier {
            generation: Generation(7),
            fingerprint: topology.fingerprint().into(),
            rates: topology.rates(),
            hosts: topology.hosts().to_vec(),
        };
        let after = |topology: Topology| {
            let state = State::new(Some(earlier(&pair(10, vec![]))), Duration::from_secs(1));
            read(&state, topology)
        };
        assert_eq!(after(pair(10, vec![])), (7, true));
        assert_eq!(after(pair(20, vec![])), (8, true));
    }

    #[test]
    fn a_verdict_per_difference() {
        let state = state();
        let judge = |faults| state.judge(&pair(10, faults), Generation(1));
        assert!(judge(vec![]));
        assert!(!judge(vec![]));
        assert!(judge(vec![fault("gone", 1)]));
        assert!(!judge(vec![fault("gone", 2)]), "a later time is no difference");
        let judged = state.verdict().unwrap();
        assert_eq!((judged.report.sequence, judged.steps.len()), (2, 1));
        assert_eq!(judged.report.status(), v1::HealthStatus::Unknown);
    }

    /// Counters that grow and GPUs that idle make no generation; a link that narrowed does.
    #[test]
    fn what_comes_and_goes_makes_no_generation() {
        let host = |change: fn(&mut Snapshot)| {
            let mut snapshot = Snapshot::new(Source::Live);
            let bus_id = "01:00.0".parse().unwrap();
            let mut function = PciDevice::new(bus_id, PciKind::Gpu);
            function.link.trained = Some(PcieLink { mtps: 32_000, width: 16 });
            // What it can do is known, so the graph does not rest on what it trained to.
            function.link.device_capable = function.link.trained;
            snapshot.pci_devices.push(function);
            snapshot.gpus.push(Gpu { bus_id: Some(bus_id), ..Gpu::new(GpuIndex(0)) });
            snapshot.nics.push(Nic::new("mlx5_0"));
            change(&mut snapshot);
            lower(&[snapshot], RateModel::Effective).unwrap()
        };
        let state = state();
        let same = (1, false);
        assert_eq!(read(&state, host(|_| {})), (1, true));
        let counters = |s: &mut Snapshot| s.nics[0].counters = Some(PortCounters::default());
        assert_eq!(read(&state, host(counters)), same);
        let idle = |s: &mut Snapshot| {
            s.pci_devices[0].link.trained = Some(PcieLink { mtps: 2_500, width: 16 });
            s.pci_devices[0].suspended = Some(true);
        };
        assert_eq!(read(&state, host(idle)), same);
        let access = |s: &mut Snapshot| s.pci_devices[0].acs = Some(Acs::default());
        assert_eq!(read(&state, host(access)), (2, true));
    }

    #[test]
    fn a_good_reading_clears_the_error() {
        let state = state();
        state.reading_failed(Duration::ZERO, "unreadable".into());
        assert_eq!(state.last_error().as_deref(), Some("unreadable"));
        assert!(state.last_success().is_none());
        state.reading_succeeded(Duration::ZERO);
        assert_eq!((state.last_error(), state.readings()), (None, (2, 1)));
        assert!(state.last_success().is_some());
    }

    #[test]
    fn warnings_are_of_now() {
        let state = state();
        state.warn("state", Some("full".into()));
        state.warn("state", Some("full again".into()));
        assert_eq!(state.warnings(), ["full again"]);
        state.warn("state", None);
        assert!(state.warnings().is_empty());
    }
}
