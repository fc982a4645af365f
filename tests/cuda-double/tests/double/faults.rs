//! Faults that are asked for.

use crate::raw::{Driver, at, code, out};

#[test]
fn a_device_is_lost_after_so_many_operations() {
    let driver = Driver::new(r#"{"faults": "lost:device=0,after=3"}"#);
    let memory = driver.allocate(64);
    let stream = driver.stream();
    for _ in 0..3 {
        driver.ok("cuMemsetD8Async", &[memory, 0, 64, stream]);
    }
    driver.ok("cuStreamSynchronize", &[stream]);
    let (waiting, event) = (driver.stream(), driver.event());
    driver.ok("cuMemsetD8Async", &[memory, 0, 64, stream]);
    // Whether the loss is known when a call comes is a race; that it is known in the end is none.
    driver.call("cuEventRecord", &[event, stream]);
    driver.call("cuStreamWaitEvent", &[waiting, event, 0]);
    for (name, argument) in
        [("cuStreamSynchronize", stream), ("cuEventSynchronize", event), ("cuStreamQuery", waiting)]
    {
        driver.fails(code::LAUNCH_FAILED, name, &[argument]);
    }
    driver.fails(code::LAUNCH_FAILED, "cuMemAlloc_v2", &[out(&mut 0_u64), 64]);
    driver.fails(code::LAUNCH_FAILED, "cuMemcpyHtoD_v2", &[memory, at(&[0_u8]), 1]);
    // The others live.
    driver.retain(1);
    driver.put(driver.allocate(64), &[1; 64]);
    driver.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
    driver.fails(46, "cuDevicePrimaryCtxRetain", &[out(&mut 0_u64), 0]);
}

#[test]
fn a_lost_device_holds_nobody_up() {
    let driver = Driver::new("{}");
    let stream = driver.stream();
    let event = driver.event();
    let memory = driver.allocate(4);
    driver.put(memory, &[0; 4]);
    // It waits for what never comes.
    driver.ok("cuStreamWaitValue32_v2", &[stream, memory, 1, 1]);
    driver.ok("cuEventRecord", &[event, stream]);
    driver.retain(1);
    let other = driver.stream();
    driver.ok("cuStreamWaitEvent", &[other, event, 0]);
    driver.fails(code::NOT_READY, "cuStreamQuery", &[other]);
    // Lost by what runs on another stream alone: the wait may not have begun yet, and would lose it before the call below.
    driver.faults(c"lost:device=0,stream=2,code=214");
    driver.retain(0);
    let another = driver.stream();
    driver.ok("cuMemsetD8Async", &[memory, 0, 1, another]);
    driver.fails(214, "cuStreamSynchronize", &[stream]);
    driver.ok("cuStreamSynchronize", &[other]);
}

#[test]
fn memory_runs_out_where_it_is_asked_for() {
    let driver = Driver::new(r#"{"faults": "oom:device=0,after=1,times=1; host-oom:"}"#);
    driver.allocate(64);
    driver.fails(code::OUT_OF_MEMORY, "cuMemAlloc_v2", &[out(&mut 0_u64), 64]);
    driver.allocate(64);
    driver.fails(code::OUT_OF_MEMORY, "cuMemHostAlloc", &[out(&mut 0_u64), 64, 0]);
    driver.faults(c"");
    driver.pinned(64);
}

#[test]
fn any_call_fails_as_asked() {
    let driver = Driver::new(r#"{"faults": "call:cuEventRecord,after=1,times=1,code=999"}"#);
    let (stream, event) = (driver.stream(), driver.event());
    driver.ok("cuEventRecord", &[event, stream]);
    driver.fails(999, "cuEventRecord", &[event, stream]);
    driver.ok("cuEventRecord", &[event, stream]);
}

#[test]
fn a_stalled_stream_stands_still_until_it_goes_on() {
    let driver = Driver::new(r#"{"faults": "stall:device=0,stream=1,after=1"}"#);
    let (first, second) = (driver.stream(), driver.stream());
    let memory = driver.allocate(4);
    for stream in [first, second] {
        driver.ok("cuMemsetD8Async", &[memory, 1, 1, stream]);
        driver.ok("cuStreamSynchronize", &[stream]);
        driver.ok("cuMemsetD8Async", &[memory, 2, 1, stream]);
    }
    driver.ok("cuStreamSynchronize", &[first]);
    driver.fails(code::NOT_READY, "cuStreamQuery", &[second]);
    driver.faults(c"");
    driver.ok("cuStreamSynchronize", &[second]);
}

#[test]
fn what_is_left_is_counted() {
    let driver = Driver::new("{}");
    let (stream, event, memory) = (driver.stream(), driver.event(), driver.allocate(64));
    driver.stream();
    driver.pinned(64);
    let left = |text: &str| assert!(driver.report().contains(text), "{}", driver.report());
    left(
        r#""left":{"allocations":1,"contexts":1,"events":1,"host_allocations":1,"imports":0,"streams":2}"#,
    );
    driver.ok("cuStreamDestroy_v2", &[stream]);
    driver.ok("cuEventDestroy_v2", &[event]);
    driver.ok("cuMemFree_v2", &[memory]);
    left(
        r#""left":{"allocations":0,"contexts":1,"events":0,"host_allocations":1,"imports":0,"streams":1}"#,
    );
    // What a context ends with was left, too.
    driver.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
    left(
        r#""left":{"allocations":0,"contexts":0,"events":0,"host_allocations":1,"imports":0,"streams":1}"#,
    );
    left(r#""cuStreamCreate":2"#);
}
