//! NVML in a process of its own: it may die or hang there.

use std::time::Duration;

use daemon::probe::{ProbeConfig, TimeLimits};
use machines::scenario::{Action, Fault};
use machines::{Deviation, dgx1v};
use topology::Snapshot;

use super::{indices, nvml_faults, probe, with_driver_of};

/// As `config`, with NVML asked in a child of topod.
fn in_child(config: &ProbeConfig) -> ProbeConfig {
    ProbeConfig { nvml_program: Some(crate::programs::topod().into()), ..config.clone() }
}

/// What GPU 3 did to the driver costs what had not been told, and nothing else.
#[track_caller]
fn lost_from_gpu_3_on(found: &Snapshot) {
    let whole = dgx1v().snapshot();
    assert_eq!(found.host, whole.host);
    assert_eq!(found.numa_nodes, whole.numa_nodes);
    assert_eq!(found.pci_devices, whole.pci_devices);
    assert_eq!(found.nics, whole.nics);
    let mut first = whole.gpus[..3].to_vec();
    first.iter_mut().for_each(|gpu| gpu.peers.clear());
    assert_eq!(found.gpus[..3], first);
    assert_eq!(indices(found), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(found.gpus[3..].iter().all(|gpu| gpu.inactive_links.is_none()));
}

const CALL: &str = "nvmlDeviceGetNvLinkState";
const PLACE: &str = "nvmlDeviceGetNvLinkState(0) of GPU 3";

#[test]
fn a_child_tells_what_a_thread_does() {
    let written = with_driver_of(&dgx1v());
    let (here, there) = (probe(&written.config), probe(&in_child(&written.config)));
    assert_eq!(there, here);
    assert_eq!(there, dgx1v().snapshot());
}

/// The library aborts in the middle of a probe.
#[test]
fn a_library_that_dies_takes_only_its_process_along() {
    let dies = Fault::new(CALL, Action::Abort).on_device(3);
    let written = with_driver_of(&dgx1v().with(Deviation::Nvml(dies)));
    let config = in_child(&written.config);
    for _ in 0..2 {
        let found = probe(&config);
        let faults = nvml_faults(&found);
        let [(place, words)] = faults[..] else { panic!("{:?}", found.faults) };
        assert_eq!(place, PLACE);
        assert!(words.starts_with("the process that asked the driver ended"), "{words}");
        lost_from_gpu_3_on(&found);
    }
}

/// A child that hangs is killed, so that the next probe asks again.
#[test]
fn a_child_that_hangs_is_killed() {
    let hang = Deviation::Hang { call: CALL.into(), gpu: Some(3), until_gone: None };
    let written = with_driver_of(&dgx1v().with(hang));
    let limits = TimeLimits { nvml: Duration::from_secs(10), ..written.config.limits };
    let config = ProbeConfig { limits, ..in_child(&written.config) };
    let found = probe(&config);
    assert_eq!(nvml_faults(&found), [(PLACE, "timed out")]);
    lost_from_gpu_3_on(&found);
    // The driver is whole again, as after a reset.
    dgx1v().write_scenario(written.dir()).unwrap();
    let whole = TimeLimits { nvml: Duration::from_secs(300), ..limits };
    assert_eq!(probe(&ProbeConfig { limits: whole, ..config }), dgx1v().snapshot());
}
