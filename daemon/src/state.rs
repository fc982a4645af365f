//! What the daemon publishes. One writer, the main loop; everyone else reads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use proto::v1;
use tokio::sync::watch;
use topology::snapshot::PciKind;
use topology::{Generation, Snapshot, Topology};

use crate::plans::Plans;

/// A topology with its number. Never changed, only replaced as a whole.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) generation: Generation,
    pub(crate) topology: Topology,
    /// As sent, made once per generation and not once per request.
    pub(crate) wire: v1::Topology,
}

/// Everything the services share.
#[derive(Debug)]
pub(crate) struct State {
    published: watch::Sender<Option<Arc<Published>>>,
    closing: watch::Sender<bool>,
    last_error: Mutex<Option<String>>,
    started: Instant,
    pub(crate) plans: Plans,
}

/// What became of a topology that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publication {
    /// It is the new generation.
    New(Generation),
    /// It says what the present one says.
    Unchanged(Generation),
}

impl State {
    pub(crate) fn new() -> Self {
        Self {
            published: watch::Sender::new(None),
            closing: watch::Sender::new(false),
            last_error: Mutex::new(None),
            started: Instant::now(),
            plans: Plans::new(),
        }
    }

    /// Publishes `topology` as the next generation, unless clients would see no difference.
    pub(crate) fn publish(&self, topology: Topology) -> Publication {
        *self.lock_last_error() = None;
        let present = self.current();
        if let Some(present) = &present
            && says_the_same(&present.topology, &topology)
        {
            return Publication::Unchanged(present.generation);
        }
        let generation = Generation(present.map_or(1, |present| present.generation.0 + 1));
        let wire = v1::Topology::published(&topology, generation);
        self.plans.forget_before(generation);
        self.published.send_replace(Some(Arc::new(Published { generation, topology, wire })));
        Publication::New(generation)
    }

    /// Keeps why the latest reading gave no topology, for whoever asks.
    pub(crate) fn set_last_error(&self, error: String) {
        *self.lock_last_error() = Some(error);
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.lock_last_error().clone()
    }

    fn lock_last_error(&self) -> MutexGuard<'_, Option<String>> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present topology; `None` before the first.
    pub(crate) fn current(&self) -> Option<Arc<Published>> {
        self.published.borrow().clone()
    }

    /// Every topology from now on; who reads slowly sees the latest alone.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<Published>>> {
        self.published.subscribe()
    }

    /// Ends the watches.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Tells when the daemon drains.
    pub(crate) fn closing(&self) -> Closing {
        Closing(self.closing.subscribe())
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }
}

/// Tells when the daemon drains.
#[derive(Clone, Debug)]
pub(crate) struct Closing(watch::Receiver<bool>);

impl Closing {
    /// Returns once the daemon drains.
    pub(crate) async fn wait(&mut self) {
        // A state that is gone drains no less.
        drop(self.0.wait_for(|closing| *closing).await);
    }
}

/// Whether two readings are the same to every client: the same graph, and the same facts but for those that come and go
/// by themselves. A plan is bound to a generation, so a counter that grows or a GPU that idles must not make one.
fn says_the_same(a: &Topology, b: &Topology) -> bool {
    a.fingerprint() == b.fingerprint()
        && a.rates() == b.rates()
        && a.hosts().len() == b.hosts().len()
        && a.hosts().iter().zip(b.hosts()).all(|(a, b)| settled(a) == settled(b))
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

    #[test]
    fn a_generation_per_difference() {
        let state = State::new();
        assert!(state.current().is_none());
        let steps = [
            (pair(10, vec![]), Publication::New(Generation(1))),
            (pair(10, vec![]), Publication::Unchanged(Generation(1))),
            (pair(20, vec![]), Publication::New(Generation(2))),
            (pair(20, vec![fault("gone", 1)]), Publication::New(Generation(3))),
            (pair(20, vec![fault("gone", 2)]), Publication::Unchanged(Generation(3))),
            (pair(20, vec![fault("hung", 2)]), Publication::New(Generation(4))),
        ];
        for (topology, expect) in steps {
            let fingerprint = topology.fingerprint().to_owned();
            assert_eq!(state.publish(topology), expect);
            assert_eq!(state.current().unwrap().wire.fingerprint, fingerprint);
        }
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
        let state = State::new();
        state.publish(host(|_| {}));
        let same = Publication::Unchanged(Generation(1));
        let counters = |s: &mut Snapshot| s.nics[0].counters = Some(PortCounters::default());
        assert_eq!(state.publish(host(counters)), same);
        let idle = |s: &mut Snapshot| {
            s.pci_devices[0].link.trained = Some(PcieLink { mtps: 2_500, width: 16 });
            s.pci_devices[0].suspended = Some(true);
        };
        assert_eq!(state.publish(host(idle)), same);
        let access = |s: &mut Snapshot| s.pci_devices[0].acs = Some(Acs::default());
        assert_eq!(state.publish(host(access)), Publication::New(Generation(2)));
    }

    #[test]
    fn a_good_reading_clears_the_error() {
        let state = State::new();
        state.set_last_error("unreadable".into());
        assert_eq!(state.last_error().as_deref(), Some("unreadable"));
        state.publish(pair(10, vec![]));
        assert_eq!(state.last_error(), None);
    }
}
