//! A driver that dies, hangs and comes back, while the daemon serves.

use std::fs;
use std::path::Path;
use std::time::Duration;

use daemon::machine::MachineSource;
use daemon::probe::{NvmlChoice, ProbeConfig, TimeLimits};
use daemon::{Config, EventSource, Signal};
use machines::scenario::{Action, Fault};
use machines::{dgx1v, install_nvml_double};
use proto::v1;

use crate::daemon::harness::{Daemon, PATIENCE, Place};

/// A call that hangs costs this; one that does not takes a hundredth of it.
const DRIVER_LIMIT: Duration = Duration::from_secs(8);

#[tokio::test]
async fn it_is_served_on_and_said_what_is_not_known() {
    let place = Place::new();
    let (dies, hangs) = (place.path("dies"), place.path("hangs"));
    let mut described = dgx1v();
    let on_call = |action, file: &Path| Fault {
        while_exists: Some(file.into()),
        ..Fault::new("nvmlDeviceGetUUID", action)
    };
    described.faults.push(on_call(Action::Abort, &dies));
    described.faults.push(on_call(Action::Hang { until_gone: Some(hangs.clone()) }, &hangs));
    let folder = place.path("described");
    fs::create_dir(&folder).unwrap();
    let paths = described.write(&folder).unwrap();
    let library = install_nvml_double(&folder).unwrap();
    let config = Config {
        source: MachineSource::Probe(ProbeConfig {
            root: paths.root,
            nvml: NvmlChoice::Library(library),
            nvml_program: Some(crate::programs::topod().into()),
            limits: TimeLimits { files: PATIENCE, nvml: DRIVER_LIMIT },
        }),
        events: EventSource::None,
        ..place.config()
    };
    let daemon = Daemon::start_with(place, config).await;
    let well = published(&daemon).await;
    assert_eq!((well.gpus, well.faults), (8, 0));
    for trouble in [&dies, &hangs] {
        fs::write(trouble, "").unwrap();
        daemon.signals.send(Signal::Reload).await.unwrap();
        daemon.place.notification("RELOADING=1").await;
        // It answers though the driver does not.
        published(&daemon).await;
        daemon.place.notification("READY=1").await;
        let ill = published(&daemon).await;
        assert!(ill.faults > 0, "{}", trouble.display());
        assert_ne!(daemon.status().await.health(), v1::HealthStatus::Ok, "unknown is not well");

        fs::remove_file(trouble).unwrap();
        daemon.signals.send(Signal::Reload).await.unwrap();
        daemon.place.notification("READY=1").await;
        let again = published(&daemon).await;
        assert_eq!((again.fingerprint, again.faults), (well.fingerprint.clone(), 0));
        assert_eq!(again.generation, ill.generation + 1);
    }
    let (ended, _) = daemon.stop().await;
    ended.unwrap();
}

async fn published(daemon: &Daemon) -> v1::PublishedStatus {
    daemon.status().await.published.expect("something is published")
}
