//! Every kind of fault, played once.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use machines::scenario::{Action, Code, Fault, SCENARIO_VARIABLE};
use machines::{Deviation, Machine, dgx1v};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::Stage;

/// Waits until the call log has a line; a call that never comes is the test's failure.
fn wait_for_call(log: &Path, line: &str) {
    let end = Instant::now() + Duration::from_secs(30);
    while !fs::read_to_string(log).is_ok_and(|text| text.lines().any(|found| found == line)) {
        assert!(Instant::now() < end, "no call {line:?}");
        thread::yield_now();
    }
}

fn returning(call: &str, code: Code) -> Fault {
    Fault::new(call, Action::Return(code))
}

#[test]
fn return_codes() {
    #[track_caller]
    fn check(code: Code, expect: impl Fn(&NvmlError) -> bool) {
        let fault = returning("nvmlDeviceGetName", code).on_device(2);
        let stage = Stage::new(&dgx1v().with(Deviation::Nvml(fault)));
        let nvml = stage.nvml();
        let error = nvml.device_by_index(2).unwrap().name().unwrap_err();
        assert!(expect(&error), "{code:?} came as {error:?}");
        assert!(nvml.device_by_index(3).unwrap().name().is_ok());
        assert!(nvml.device_by_index(2).unwrap().uuid().is_ok());
    }
    check(Code::GPU_IS_LOST, |error| matches!(error, NvmlError::GpuLost));
    check(Code::NO_PERMISSION, |error| matches!(error, NvmlError::NoPermission));
    check(Code::UNKNOWN, |error| matches!(error, NvmlError::Unknown));
    check(Code::NOT_SUPPORTED, |error| matches!(error, NvmlError::NotSupported));
    check(Code::FUNCTION_NOT_FOUND, |error| matches!(error, NvmlError::FunctionNotFound));
    check(Code::TIMEOUT, |error| matches!(error, NvmlError::Timeout));
    check(Code::RESET_REQUIRED, |error| matches!(error, NvmlError::ResetRequired));
    check(Code::INSUFFICIENT_SIZE, |error| matches!(error, NvmlError::InsufficientSize(_)));
    check(Code(77), |error| matches!(error, NvmlError::UnexpectedVariant(77)));
}

#[test]
fn one_gpu_lost_or_denied() {
    let lost = Stage::new(&dgx1v().with(Deviation::GpuLost { gpu: 5 }));
    let nvml = lost.nvml();
    assert_eq!(nvml.device_count().unwrap(), 8);
    assert!(matches!(nvml.device_by_index(5), Err(NvmlError::GpuLost)));
    assert!(nvml.device_by_index(6).unwrap().name().is_ok());

    let denied = Stage::new(&dgx1v().with(Deviation::GpuDenied { gpu: 1 }));
    let nvml = denied.nvml();
    assert!(matches!(nvml.device_by_index(1), Err(NvmlError::NoPermission)));
}

#[test]
fn lost_in_the_middle() {
    let mut fault = returning("nvmlDevice*", Code::GPU_IS_LOST).on_device(0);
    fault.skip = 2;
    let stage = Stage::new(&dgx1v().with(Deviation::Nvml(fault)));
    let nvml = stage.nvml();
    let device = nvml.device_by_index(0).unwrap();
    assert!(device.name().is_ok());
    assert!(matches!(device.uuid(), Err(NvmlError::GpuLost)));
    assert!(matches!(device.name(), Err(NvmlError::GpuLost)));
}

#[test]
fn a_fault_that_passes() {
    let mut fault = returning("nvmlDeviceGetUUID", Code::UNKNOWN);
    fault.times = Some(2);
    let stage = Stage::new(&dgx1v().with(Deviation::Nvml(fault)));
    let nvml = stage.nvml();
    let device = nvml.device_by_index(0).unwrap();
    assert!(device.uuid().is_err());
    assert!(device.uuid().is_err());
    assert!(device.uuid().is_ok());
}

#[test]
fn a_fault_as_long_as_a_file_exists() {
    let stage = Stage::new(&dgx1v());
    let switch = stage.path("broken");
    let mut fault = returning("nvmlDeviceGetUUID", Code::UNKNOWN);
    fault.while_exists = Some(switch.clone());
    stage.play(&dgx1v().with(Deviation::Nvml(fault)));
    let nvml = stage.nvml();
    let device = nvml.device_by_index(0).unwrap();
    assert!(device.uuid().is_ok());
    fs::write(&switch, "").unwrap();
    assert!(device.uuid().is_err());
    fs::remove_file(&switch).unwrap();
    assert!(device.uuid().is_ok());
}

#[test]
fn one_link() {
    let mut fault = returning("nvmlDeviceGetNvLink*", Code::NOT_READY).on_device(0);
    fault.link = Some(3);
    let stage = Stage::new(&dgx1v().with(Deviation::Nvml(fault)));
    let nvml = stage.nvml();
    let device = nvml.device_by_index(0).unwrap();
    assert!(device.link_wrapper_for(3).is_active().is_err());
    assert!(device.link_wrapper_for(2).is_active().unwrap());
    assert!(nvml.device_by_index(1).unwrap().link_wrapper_for(3).is_active().unwrap());
}

#[test]
fn no_driver() {
    let stage = Stage::new(&dgx1v().with(Deviation::NoDriver));
    assert!(matches!(stage.init(), Err(NvmlError::DriverNotLoaded)));
}

#[test]
fn no_scenario() {
    let stage = Stage::new(&dgx1v());
    fs::remove_file(stage.path(machines::scenario::SCENARIO_BESIDE_LIBRARY)).unwrap();
    assert!(matches!(stage.init(), Err(NvmlError::DriverNotLoaded)));
    fs::write(stage.path(machines::scenario::SCENARIO_BESIDE_LIBRARY), "{").unwrap();
    assert!(matches!(stage.init(), Err(NvmlError::Unknown)));
}

#[test]
fn a_hang_that_ends() {
    let stage = Stage::new(&dgx1v());
    let (log, gate) = (stage.path("calls"), stage.path("gate"));
    fs::write(&gate, "").unwrap();
    let mut machine = dgx1v().with(Deviation::Hang {
        call: "nvmlDeviceGetName".to_owned(),
        gpu: Some(2),
        until_gone: Some(gate.clone()),
    });
    machine.call_log = Some(log.clone());
    stage.play(&machine);
    let nvml = Arc::new(stage.nvml());
    let hanging = thread::spawn({
        let nvml = Arc::clone(&nvml);
        move || nvml.device_by_index(2).unwrap().name()
    });
    wait_for_call(&log, "nvmlDeviceGetName 2");
    // Others answer meanwhile.
    assert!(nvml.device_by_index(3).unwrap().name().is_ok());
    assert!(!hanging.is_finished());
    fs::remove_file(&gate).unwrap();
    assert_eq!(hanging.join().unwrap().unwrap(), "Tesla V100-SXM2-16GB");
}

#[test]
fn a_hang_for_ever() {
    let stage = Stage::new(&dgx1v());
    let log = stage.path("calls");
    let mut machine =
        dgx1v().with(Deviation::Hang { call: "nvmlInit*".to_owned(), gpu: None, until_gone: None });
    machine.call_log = Some(log.clone());
    stage.play(&machine);
    // The thread stays behind until the test process ends, as it would in a daemon.
    let library = stage.library.clone();
    let hanging =
        thread::spawn(move || Nvml::builder().lib_path(library.as_os_str()).init().is_ok());
    wait_for_call(&log, "nvmlInit_v2");
    assert!(!hanging.is_finished());
}

#[test]
fn a_delay() {
    let fault = Fault::new("nvmlDeviceGetName", Action::Delay { milliseconds: 50 });
    let stage = Stage::new(&dgx1v().with(Deviation::Nvml(fault)));
    let nvml = stage.nvml();
    let before = Instant::now();
    assert!(nvml.device_by_index(0).unwrap().name().is_ok());
    assert!(before.elapsed() >= Duration::from_millis(50));
}

/// The process that dies; run by the test below, with the scenario from the environment.
#[test]
#[ignore = "it aborts: `an_abort` runs it in a process of its own"]
fn abort_child() {
    let library = machines::nvml_double_library();
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
    assert_eq!(nvml.device_count().unwrap(), 8);
    let _ = nvml.device_by_index(0).unwrap().name();
}

#[test]
fn an_abort() {
    use std::os::unix::process::ExitStatusExt as _;

    let run = |machine: Machine| {
        let stage = Stage::new(&machine);
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "faults::abort_child", "--ignored", "--quiet"])
            .env(SCENARIO_VARIABLE, stage.path(machines::scenario::SCENARIO_BESIDE_LIBRARY))
            .output()
            .unwrap()
            .status
    };
    assert!(run(dgx1v()).success());
    let fault = Fault::new("nvmlDeviceGetName", Action::Abort);
    assert_eq!(run(dgx1v().with(Deviation::Nvml(fault))).signal(), Some(6));
}
