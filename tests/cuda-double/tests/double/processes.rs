//! Two processes: this one, and this program once more as the other.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use tempfile::TempDir;

use crate::raw::{Driver, IpcHandle, code, out};

const LIBRARY: &str = "CUDA_DOUBLE_TEST_LIBRARY";
const HANDLES: &str = "CUDA_DOUBLE_TEST_HANDLES";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn handle(text: &str) -> IpcHandle {
    let mut bytes = [0; 64];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap();
    }
    IpcHandle(bytes)
}

/// A library that both processes load, and a folder for their files.
struct Stage {
    folder: TempDir,
    library: PathBuf,
}

impl Stage {
    fn new(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cuda-double.json"), config).unwrap();
        let library = machines::install_cuda_double(folder.path()).unwrap();
        Self { folder, library }
    }

    fn driver(&self) -> Driver {
        let driver = Driver::open(self.library.clone());
        driver.ok("cuInit", &[0]);
        driver.retain(0);
        driver
    }

    /// Runs a test of this program alone, in a process of its own.
    fn start(&self, test: &str, handles: &[IpcHandle], visible: &str) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored"]);
        let handles: Vec<String> = handles.iter().map(|handle| hex(&handle.0)).collect();
        command.env(LIBRARY, &self.library).env(HANDLES, handles.join(","));
        if !visible.is_empty() {
            command.env("CUDA_VISIBLE_DEVICES", visible);
        }
        command.spawn().unwrap()
    }

    #[track_caller]
    fn run(&self, test: &str, handles: &[IpcHandle], visible: &str) {
        assert!(self.start(test, handles, visible).wait().unwrap().success(), "{test}");
    }
}

/// Waits for a stream, or until the other process has failed.
#[track_caller]
fn wait(driver: &Driver, stream: u64, other: &mut Child) {
    while driver.call("cuStreamQuery", &[stream]) == code::NOT_READY {
        if let Some(status) = other.try_wait().unwrap() {
            assert!(status.success(), "the other process: {status}");
        }
        std::thread::yield_now();
    }
    driver.ok("cuStreamSynchronize", &[stream]);
}

/// What the other process is told.
fn told() -> (Driver, Vec<IpcHandle>) {
    let library = std::env::var_os(LIBRARY).expect("started by another test");
    let driver = Driver::open(Path::new(&library).to_owned());
    driver.ok("cuInit", &[0]);
    let handles = std::env::var(HANDLES).unwrap();
    (driver, handles.split(',').map(handle).collect())
}

fn memory_handle(driver: &Driver, memory: u64) -> IpcHandle {
    let mut handle = IpcHandle([0; 64]);
    driver.ok("cuIpcGetMemHandle", &[out(&mut handle), memory]);
    handle
}

fn event_handle(driver: &Driver, event: u64) -> IpcHandle {
    let mut handle = IpcHandle([0; 64]);
    driver.ok("cuIpcGetEventHandle", &[out(&mut handle), event]);
    handle
}

#[track_caller]
fn open(driver: &Driver, handle: IpcHandle) -> u64 {
    let mut memory = 0_u64;
    let code = driver.open_handle("cuIpcOpenMemHandle_v2", out(&mut memory), handle, 1);
    assert_eq!(code, code::SUCCESS);
    memory
}

/// The other waits in a stream for an event of this process, adds a mark of its own, and tells through a flag in memory of this one.
#[test]
fn memory_events_and_flags_of_another_process() {
    let stage = Stage::new("{}");
    let driver = stage.driver();
    let memory = driver.allocate(3000);
    driver.put(memory, &[0; 3000]);
    let stream = driver.stream();
    let event = driver.get::<u64>("cuEventCreate", &[6]);
    // In the middle of an allocation too, the handle is of the whole.
    let handles = [memory_handle(&driver, memory + 2000), event_handle(&driver, event)];
    let gate = driver.allocate(4);
    driver.put(gate, &[0; 4]);
    driver.ok("cuStreamWaitValue32_v2", &[stream, gate, 1, 1]);
    driver.ok("cuMemsetD8Async", &[memory + 100, 5, 100, stream]);
    driver.ok("cuEventRecord", &[event, stream]);
    let mut other = stage.start("processes::other_uses_memory", &handles, "");
    // The other says by a first flag that it is about to wait for the event, so that the event comes later.
    let first = driver.stream();
    driver.ok("cuStreamWaitValue32_v2", &[first, memory, 1, 1]);
    wait(&driver, first, &mut other);
    driver.ok("cuStreamWriteValue32_v2", &[first, gate, 1, 0]);
    driver.ok("cuStreamWaitValue32_v2", &[stream, memory + 4, 2, 1]);
    wait(&driver, stream, &mut other);
    assert_eq!(driver.bytes(memory + 1000, 100), [5; 100]);
    assert!(other.wait().unwrap().success());
    drop(stage.folder);
}

#[test]
#[ignore = "the other process of a test"]
fn other_uses_memory() {
    let (driver, handles) = told();
    let context = driver.retain(1);
    let memory = open(&driver, handles[0]);
    assert_eq!(open(&driver, handles[0]), memory, "the same again");
    assert_eq!(
        driver.get::<u64>("cuPointerGetAttribute", &[9, memory]),
        0,
        "its device is the first"
    );
    let mut event = 0_u64;
    let code = driver.open_handle("cuIpcOpenEventHandle", out(&mut event), handles[1], 0);
    assert_eq!(code, code::SUCCESS);
    driver.fails(code::NOT_READY, "cuEventQuery", &[event]);
    let stream = driver.stream();
    driver.ok("cuStreamWriteValue32_v2", &[stream, memory, 1, 0]);
    driver.ok("cuStreamWaitEvent", &[stream, event, 0]);
    // Access to the memory's device came with the opening.
    driver.ok("cuMemcpyDtoDAsync_v2", &[memory + 1000, memory + 100, 100, stream]);
    driver.ok("cuStreamWriteValue32_v2", &[stream, memory + 4, 2, 0]);
    driver.ok("cuStreamSynchronize", &[stream]);
    driver.fails(code::INVALID_VALUE, "cuMemFree_v2", &[memory]);
    driver.fails(code::INVALID_VALUE, "cuMemcpyDtoDAsync_v2", &[memory + 2999, memory, 2, stream]);
    driver.ok("cuIpcCloseMemHandle", &[memory]);
    driver.ok("cuMemsetD8Async", &[memory + 8, 0, 1, stream]);
    driver.ok("cuStreamSynchronize", &[stream]);
    driver.ok("cuIpcCloseMemHandle", &[memory]);
    driver.fails(code::INVALID_VALUE, "cuIpcCloseMemHandle", &[memory]);
    driver.fails(code::INVALID_VALUE, "cuMemsetD8Async", &[memory + 8, 0, 1, stream]);
    driver.ok("cuEventDestroy_v2", &[event]);
    assert_eq!(driver.get::<u64>("cuCtxGetCurrent", &[]), context);
}

#[test]
fn what_cannot_be_opened() {
    let stage = Stage::new(r#"{"no_peer": [[0, 2]]}"#);
    let driver = stage.driver();
    let memory = driver.allocate(64);
    let handle = memory_handle(&driver, memory);
    let place = &mut 0_u64;
    // Not by the process that made it.
    let code = driver.open_handle("cuIpcOpenMemHandle_v2", out(place), handle, 1);
    assert_eq!(code, code::INVALID_CONTEXT);
    let pinned = driver.pinned(64);
    let mut none = IpcHandle([0; 64]);
    driver.fails(code::INVALID_VALUE, "cuIpcGetMemHandle", &[out(&mut none), out(&mut pinned[0])]);
    let event = driver.event();
    driver.fails(code::INVALID_HANDLE, "cuIpcGetEventHandle", &[out(&mut none), event]);
    stage.run("processes::other_is_refused", &[handle], "");
    stage.run("processes::other_does_not_see_the_device", &[handle], "1,2");
    driver.ok("cuMemFree_v2", &[memory]);
    stage.run("processes::other_comes_too_late", &[handle], "");
}

#[test]
#[ignore = "the other process of a test"]
fn other_is_refused() {
    let (driver, handles) = told();
    driver.retain(2);
    let place = &mut 0_u64;
    let mut open =
        |handle, flags| driver.open_handle("cuIpcOpenMemHandle_v2", out(place), handle, flags);
    assert_eq!(open(handles[0], 1), code::NO_PEER_ACCESS);
    assert_eq!(open(handles[0], 0), code::INVALID_VALUE);
    assert_eq!(open(IpcHandle([7; 64]), 1), code::INVALID_VALUE);
    driver.faults(c"ipc:open");
    driver.retain(1);
    let mut open =
        |handle, flags| driver.open_handle("cuIpcOpenMemHandle_v2", out(place), handle, flags);
    assert_eq!(open(handles[0], 1), code::MAP_FAILED);
    driver.faults(c"ipc:export");
    let own = driver.allocate(64);
    driver.fails(code::NOT_SUPPORTED, "cuIpcGetMemHandle", &[out(&mut IpcHandle([0; 64])), own]);
}

#[test]
#[ignore = "the other process of a test"]
fn other_does_not_see_the_device() {
    let (driver, handles) = told();
    assert_eq!(driver.get::<i32>("cuDeviceGetCount", &[]), 2);
    driver.retain(0);
    let code = driver.open_handle("cuIpcOpenMemHandle_v2", out(&mut 0_u64), handles[0], 1);
    assert_eq!(code, code::INVALID_DEVICE);
}

#[test]
#[ignore = "the other process of a test"]
fn other_comes_too_late() {
    let (driver, handles) = told();
    driver.retain(0);
    let code = driver.open_handle("cuIpcOpenMemHandle_v2", out(&mut 0_u64), handles[0], 1);
    assert_eq!(code, code::MAP_FAILED);
}

/// What the owner frees while another uses it is an error there when it runs, and counted here.
#[test]
fn memory_that_its_owner_frees() {
    let stage = Stage::new("{}");
    let driver = stage.driver();
    let (memory, flags) = (driver.allocate(64), driver.allocate(64));
    driver.put(flags, &[0; 64]);
    let handles = [memory_handle(&driver, memory), memory_handle(&driver, flags)];
    let mut other = stage.start("processes::other_loses_memory", &handles, "");
    let stream = driver.stream();
    driver.ok("cuStreamWaitValue32_v2", &[stream, flags, 1, 1]);
    wait(&driver, stream, &mut other);
    driver.ok("cuMemFree_v2", &[memory]);
    driver.ok("cuStreamWriteValue32_v2", &[stream, flags + 4, 1, 0]);
    driver.ok("cuStreamSynchronize", &[stream]);
    assert!(other.wait().unwrap().success());
    assert!(driver.report().contains(r#""freed_while_open":1"#), "{}", driver.report());
}

#[test]
#[ignore = "the other process of a test"]
fn other_loses_memory() {
    let (driver, handles) = told();
    driver.retain(0);
    let (memory, flags) = (open(&driver, handles[0]), open(&driver, handles[1]));
    let stream = driver.stream();
    driver.ok("cuStreamWaitValue32_v2", &[stream, flags + 4, 1, 1]);
    driver.ok("cuMemsetD8Async", &[memory, 0, 64, stream]);
    driver.ok("cuStreamWriteValue32_v2", &[driver.stream(), flags, 1, 0]);
    driver.fails(code::ILLEGAL_ADDRESS, "cuStreamSynchronize", &[stream]);
}

#[test]
fn a_report_for_each_process_that_ends() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let stage = Stage::new(&format!(r#"{{"report": {report:?}}}"#));
    stage.run("processes::other_leaves_a_stream", &[IpcHandle([0; 64])], "");
    let text = std::fs::read_to_string(report).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(r#""streams":1"#), "{text}");
}

#[test]
#[ignore = "the other process of a test"]
fn other_leaves_a_stream() {
    let (driver, _) = told();
    driver.retain(0);
    driver.stream();
    std::mem::forget(driver);
}
