//! Device events: what makes the daemon look at its machine again.

use tokio::net::UnixDatagram;

use daemon::machine::MachineSource;
use daemon::probe::{NvmlChoice, ProbeConfig, TimeLimits};
use machines::scenario::{Action, Code, Event, Fault};
use machines::{dgx1v, install_nvml_double};

use super::harness::{Daemon, PATIENCE, Place, machine, record};

const NIC_GONE: &[u8] =
    b"remove@/devices/pci0000:00/0000:80:00.0/net/eth0\0SUBSYSTEM=net\0SEQNUM=9\0";
const CONTAINER: &[u8] = b"add@/devices/virtual/net/veth1\0SUBSYSTEM=net\0";

async fn send(place: &Place, message: &[u8]) {
    let socket = UnixDatagram::unbound().unwrap();
    socket.send_to(message, place.path("uevents")).await.unwrap();
}

#[tokio::test]
async fn an_event_leads_to_another_generation() {
    let daemon = Daemon::start().await;
    record(&daemon.place.machine(), &machine(3, 20));
    send(&daemon.place, CONTAINER).await;
    send(&daemon.place, b"nonsense").await;
    send(&daemon.place, NIC_GONE).await;
    daemon.place.notification("STATUS=3 GPUs, 1 NICs, 0 faults, generation 2").await;

    // Events without a difference make none: the next is of the next difference.
    send(&daemon.place, NIC_GONE).await;
    record(&daemon.place.machine(), &machine(2, 20));
    send(&daemon.place, NIC_GONE).await;
    daemon.place.notification("STATUS=2 GPUs, 1 NICs, 0 faults, generation 3").await;
    let (ended, _) = daemon.stop().await;
    ended.unwrap();
}

#[tokio::test]
async fn what_cannot_be_read_after_an_event_stays_published() {
    let daemon = Daemon::start().await;
    std::fs::write(daemon.place.machine(), "no machine").unwrap();
    send(&daemon.place, NIC_GONE).await;
    let mut status = daemon.status().await;
    while status.last_error.is_none() {
        tokio::task::yield_now().await;
        status = daemon.status().await;
    }
    assert_eq!(status.published.unwrap().generation, 1);
}

#[tokio::test]
async fn without_events_there_is_the_clock() {
    let place = Place::new();
    record(&place.machine(), &machine(4, 20));
    let mut config = place.config();
    config.events = daemon::EventSource::None;
    config.poll = Some(std::time::Duration::from_millis(20));
    let daemon = Daemon::start_with(place, config).await;
    record(&daemon.place.machine(), &machine(3, 20));
    daemon.place.notification("STATUS=3 GPUs, 1 NICs, 0 faults, generation 2").await;
}

/// A GPU falls off the bus: the driver says so with an Xid, and no uevent comes.
#[tokio::test]
async fn an_event_of_the_gpu_driver_leads_to_another_generation() {
    let place = Place::new();
    let falls = place.path("falls");
    let mut described = dgx1v();
    described.events =
        // Another GPU than the lost one tells: that one might be gone before anyone listens to it.
        vec![Event { device: 2, kind: 8, data: 79, when_exists: Some(falls.clone()) }];
    let lost = Fault::new("nvmlDevice*", Action::Return(Code::GPU_IS_LOST)).on_device(3);
    described.faults.push(Fault { while_exists: Some(falls.clone()), ..lost });
    let folder = place.path("described");
    std::fs::create_dir(&folder).unwrap();
    let paths = described.write(&folder).unwrap();
    let library = install_nvml_double(&folder).unwrap();
    let mut config = place.config();
    config.source = MachineSource::Probe(ProbeConfig {
        root: paths.root,
        nvml: NvmlChoice::Library(library),
        nvml_program: Some(crate::programs::topod().into()),
        limits: TimeLimits { files: PATIENCE, nvml: PATIENCE },
    });
    let daemon = Daemon::start_with(place, config).await;
    std::fs::write(&falls, "").unwrap();
    daemon.place.notification("STATUS=7 GPUs").await;
    let (ended, _) = daemon.stop().await;
    ended.unwrap();
}
