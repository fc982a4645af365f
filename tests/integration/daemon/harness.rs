//! A daemon in this process, on a machine this process may change.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use daemon::machine::MachineSource;
use daemon::{Config, EventSource, Notifier, RunError, Signal, Surroundings};
use proto::v1::health_service_client::HealthServiceClient;
use proto::v1::plan_service_client::PlanServiceClient;
use proto::v1::report_service_client::ReportServiceClient;
use proto::v1::status_service_client::StatusServiceClient;
use proto::v1::topology_service_client::TopologyServiceClient;
use proto::{Reason, v1};
use tempfile::TempDir;
use tokio::net::UnixDatagram;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use topology::snapshot::{
    Gpu, GpuLinkKind, GpuLinks, LinkPeer, Nic, NicRole, NumaNode, PciDevice, PciKind, PcieLink,
    PcieLinkFacts,
};
use topology::{Bandwidth, BusId, GpuIndex, Snapshot, Source};

/// Longest wait for anything: only a failing test takes as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn gpu_address(index: u32) -> BusId {
    BusId::new(0, 0x10 + u8::try_from(index).unwrap(), 0, 0).unwrap()
}

pub(crate) fn gpu_uuid(index: u32) -> String {
    format!("GPU-00000000-0000-0000-0000-{index:012}")
}

/// `gpus` GPUs, each joined to each by one NVLink of `gbps`, and one NIC, below one NUMA node.
pub(crate) fn machine(gpus: u32, gbps: u64) -> Snapshot {
    let gen3x16 = PcieLink { mtps: 8000, width: 16 };
    let function = |bus_id, kind| PciDevice {
        host_bridge: Some("pci0000:00".into()),
        numa_node: Some(0),
        link: PcieLinkFacts {
            trained: Some(gen3x16),
            device_capable: Some(gen3x16),
            slot_capable: Some(gen3x16),
            trained_total: None,
        },
        ..PciDevice::new(bus_id, kind)
    };
    let nic_address = BusId::new(0, 0x80, 0, 0).unwrap();
    let mut snapshot = Snapshot::new(Source::Live);
    snapshot.numa_nodes.push(NumaNode {
        cpus: Some("0-7".parse().unwrap()),
        distances: [(0, 10)].into(),
        ..NumaNode::new(0)
    });
    for index in 0..gpus {
        snapshot.pci_devices.push(function(gpu_address(index), PciKind::Gpu));
        let peers = (0..gpus).filter(|peer| *peer != index);
        snapshot.gpus.push(Gpu {
            bus_id: Some(gpu_address(index)),
            uuid: Some(gpu_uuid(index)),
            compute_capability: Some(70),
            numa_node: Some(0),
            links: peers
                .map(|peer| GpuLinks {
                    kind: GpuLinkKind::NvLink,
                    peer: LinkPeer::Gpu(gpu_address(peer)),
                    count: 1,
                    rate: Some(Bandwidth::from_mbps(gbps * 1000)),
                })
                .collect(),
            ..Gpu::new(GpuIndex(index))
        });
    }
    snapshot.pci_devices.push(function(nic_address, PciKind::Nic));
    snapshot.nics.push(Nic {
        bus_id: Some(nic_address),
        numa_node: Some(0),
        port: Some(1),
        mbit: Some(100_000),
        up: Some(true),
        role: NicRole::Fabric,
        ..Nic::new("mlx5_0")
    });
    snapshot
}

pub(crate) fn record(path: &Path, snapshot: &Snapshot) {
    fs::write(path, serde_json::to_vec(snapshot).unwrap()).unwrap();
}

/// A place for a daemon: its socket, its machine, and who it notifies.
pub(crate) struct Place {
    folder: TempDir,
    notified: UnixDatagram,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let notified = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        Self { folder, notified }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("topod.sock")
    }

    pub(crate) fn machine(&self) -> PathBuf {
        self.path("machine.json")
    }

    pub(crate) fn notify(&self) -> PathBuf {
        self.path("notify")
    }

    pub(crate) fn config(&self) -> Config {
        Config {
            events: EventSource::Socket(self.path("uevents")),
            poll: None,
            heartbeat: PATIENCE,
            drain_limit: PATIENCE,
            ..Config::new(self.socket(), MachineSource::Recorded(self.machine()))
        }
    }

    /// The next notification that has a line beginning with `start`.
    pub(crate) async fn notification(&self, start: &str) -> String {
        let mut others = Vec::new();
        let wait = async {
            loop {
                let mut buffer = [0; 4096];
                let length = self.notified.recv(&mut buffer).await.unwrap();
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                if text.lines().any(|line| line.starts_with(start)) {
                    return text;
                }
                others.push(text);
            }
        };
        let found = timeout(PATIENCE, wait).await;
        found.unwrap_or_else(|_| panic!("no notification {start}, but {others:?}"))
    }

    /// A notification that is there already.
    pub(crate) fn heard(&self) -> Option<String> {
        let mut buffer = [0; 4096];
        let length = self.notified.try_recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("unix://{}", self.socket().display()));
        endpoint.unwrap().connect().await.unwrap()
    }
}

/// A running daemon.
pub(crate) struct Daemon {
    pub(crate) place: Place,
    pub(crate) signals: mpsc::Sender<Signal>,
    pub(crate) task: JoinHandle<Result<(), RunError>>,
    channel: Channel,
}

impl Daemon {
    /// Ready, on four GPUs.
    pub(crate) async fn start() -> Self {
        let place = Place::new();
        record(&place.machine(), &machine(4, 20));
        let config = place.config();
        Self::start_with(place, config).await
    }

    pub(crate) async fn start_with(place: Place, config: Config) -> Self {
        let (signals, task) = run(&place, config);
        place.notification("READY=1").await;
        let channel = place.channel().await;
        Self { place, signals, task, channel }
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) fn topologies(&self) -> TopologyServiceClient<Channel> {
        TopologyServiceClient::new(self.channel())
    }

    pub(crate) fn plans(&self) -> PlanServiceClient<Channel> {
        PlanServiceClient::new(self.channel())
    }

    pub(crate) fn verdicts(&self) -> HealthServiceClient<Channel> {
        HealthServiceClient::new(self.channel())
    }

    pub(crate) fn reports(&self) -> ReportServiceClient<Channel> {
        ReportServiceClient::new(self.channel())
    }

    pub(crate) async fn status(&self) -> v1::GetStatusResponse {
        let mut client = StatusServiceClient::new(self.channel());
        client.get_status(v1::GetStatusRequest {}).await.unwrap().into_inner()
    }

    /// Its status once that is as wanted: it is asked again and again.
    pub(crate) async fn status_when(
        &self,
        wanted: impl Fn(&v1::GetStatusResponse) -> bool,
    ) -> v1::GetStatusResponse {
        let wait = async {
            loop {
                let status = self.status().await;
                if wanted(&status) {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, wait).await.expect("the status becomes as wanted")
    }

    /// Has the daemon read `snapshot` in place of what it read before.
    pub(crate) async fn reload(&self, snapshot: &Snapshot) {
        record(&self.place.machine(), snapshot);
        self.signals.send(Signal::Reload).await.unwrap();
    }

    /// Asks it to end and waits until it has; the place remains.
    pub(crate) async fn stop(self) -> (Result<(), RunError>, Place) {
        let Self { place, signals, task, channel } = self;
        signals.send(Signal::Terminate).await.unwrap();
        drop(channel);
        let ended = timeout(PATIENCE, task).await.expect("the daemon ends").unwrap();
        (ended, place)
    }
}

/// Starts a daemon and waits for nothing.
pub(crate) fn run(
    place: &Place,
    config: Config,
) -> (mpsc::Sender<Signal>, JoinHandle<Result<(), RunError>>) {
    let (signals, received) = mpsc::channel(4);
    let notifier = Notifier::to(place.notify().as_os_str()).unwrap();
    let surroundings = Surroundings { notifier, ..Surroundings::default() };
    (signals, tokio::spawn(daemon::run(config, received, surroundings)))
}

#[track_caller]
pub(crate) fn check_refused<T: std::fmt::Debug>(
    result: Result<T, Status>,
    code: Code,
    reason: Reason,
) -> Status {
    let status = result.expect_err("the call is refused");
    assert_eq!((status.code(), Reason::of(&status)), (code, Some(reason)), "{status}");
    status
}
