//! Order in streams and between them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::raw::{Driver, at, code, out};

/// A word of pinned memory.
fn word(driver: &Driver) -> (&'static AtomicU32, u64) {
    let bytes = driver.pinned(64);
    bytes.fill(0);
    let address = out(&mut bytes[0]);
    // SAFETY: aligned, and shared with streams only as atomic words.
    (unsafe { AtomicU32::from_ptr(bytes.as_mut_ptr().cast()) }, address)
}

#[test]
fn streams_wait_for_events_and_for_nothing_else() {
    let driver = Driver::new("{}");
    let (gate, gate_at) = word(&driver);
    let (first, second) = (driver.stream(), driver.stream());
    let (a, b) = (driver.allocate(4), driver.allocate(4));
    let event = driver.event();
    // An event that was never recorded holds nothing up.
    driver.ok("cuStreamWaitEvent", &[second, event, 0]);
    driver.ok("cuEventQuery", &[event]);
    driver.ok("cuMemsetD32Async", &[b, 1, 1, second]);
    driver.ok("cuStreamSynchronize", &[second]);
    driver.ok("cuStreamWaitValue32_v2", &[first, gate_at, 1, 1]);
    driver.ok("cuMemsetD32Async", &[a, 7, 1, first]);
    driver.ok("cuEventRecord", &[event, first]);
    driver.fails(code::NOT_READY, "cuEventQuery", &[event]);
    driver.fails(code::NOT_READY, "cuStreamQuery", &[first]);
    driver.ok("cuStreamWaitEvent", &[second, event, 0]);
    driver.ok("cuMemcpyDtoDAsync_v2", &[b, a, 4, second]);
    driver.fails(code::NOT_READY, "cuStreamQuery", &[second]);
    gate.store(1, Ordering::Release);
    driver.ok("cuStreamSynchronize", &[second]);
    driver.ok("cuEventQuery", &[event]);
    assert_eq!(driver.bytes(b, 4), [7, 0, 0, 0]);
}

#[test]
fn an_event_is_what_was_recorded_last_when_it_was_asked_for() {
    let driver = Driver::new("{}");
    let (gate, gate_at) = word(&driver);
    let (first, second) = (driver.stream(), driver.stream());
    let event = driver.event();
    driver.ok("cuEventRecord", &[event, second]);
    driver.ok("cuEventSynchronize", &[event]);
    driver.ok("cuStreamWaitEvent", &[second, event, 0]);
    driver.ok("cuStreamWaitValue32_v2", &[first, gate_at, 1, 0]);
    driver.ok("cuEventRecord", &[event, first]);
    // The second stream waits for the earlier record, which was reached.
    driver.ok("cuStreamSynchronize", &[second]);
    driver.fails(code::NOT_READY, "cuEventQuery", &[event]);
    // A destroyed event's record still comes.
    driver.ok("cuStreamWaitEvent", &[second, event, 0]);
    driver.ok("cuEventDestroy_v2", &[event]);
    driver.fails(code::INVALID_HANDLE, "cuEventQuery", &[event]);
    gate.store(1, Ordering::Release);
    driver.ok("cuStreamSynchronize", &[second]);
}

#[test]
fn the_default_stream_is_ordered_with_those_that_block() {
    let driver = Driver::new("{}");
    let (gate, gate_at) = word(&driver);
    let blocking = driver.get::<u64>("cuStreamCreate", &[0]);
    let free = driver.stream();
    let memory = driver.allocate(4);
    driver.ok("cuStreamWaitValue32_v2", &[blocking, gate_at, 1, 0]);
    driver.ok("cuMemsetD32Async", &[memory, 5, 1, blocking]);
    // Behind the blocking stream, and the blocking stream's next behind this.
    driver.ok("cuMemsetD32Async", &[memory, 6, 1, 0]);
    driver.fails(code::NOT_READY, "cuStreamQuery", &[0]);
    driver.ok("cuMemsetD32Async", &[driver.allocate(4), 6, 1, free]);
    driver.ok("cuStreamSynchronize", &[free]);
    let other = driver.get::<u64>("cuStreamCreate", &[0]);
    driver.ok("cuMemsetD32Async", &[memory, 7, 1, other]);
    driver.fails(code::NOT_READY, "cuStreamQuery", &[other]);
    gate.store(1, Ordering::Release);
    driver.ok("cuCtxSynchronize", &[]);
    assert_eq!(driver.bytes(memory, 1), [7]);
}

#[test]
fn words_are_compared_as_asked() {
    let driver = Driver::new("{}");
    let memory = driver.allocate(16);
    let stream = driver.stream();
    let passes = |start: u32, value: u64, flags: u64| {
        driver.put(memory, &start.to_le_bytes());
        driver.ok("cuStreamWaitValue32_v2", &[stream, memory, value, flags]);
        driver.ok("cuStreamSynchronize", &[stream]);
    };
    passes(5, 5, 0);
    passes(6, 5, 0);
    // In the order of a circle.
    passes(2, 0xffff_ffff, 0);
    passes(5, 5, 1);
    passes(6, 4, 2);
    passes(6, 6, 3);
    let holds = |start: u32, value: u64, flags: u64| {
        driver.put(memory, &start.to_le_bytes());
        let stream = driver.stream();
        driver.ok("cuStreamWaitValue32_v2", &[stream, memory, value, flags]);
        driver.fails(code::NOT_READY, "cuStreamQuery", &[stream]);
        let writer = driver.stream();
        let good = if flags == 3 { 0 } else { value };
        driver.ok("cuStreamWriteValue32_v2", &[writer, memory, good, 0]);
        driver.ok("cuStreamSynchronize", &[stream]);
    };
    holds(4, 5, 0);
    holds(0xffff_ffff, 2, 0);
    holds(6, 5, 1);
    holds(2, 4, 2);
    holds(0xffff_fffe, 1, 3);
    driver.ok("cuStreamWriteValue64_v2", &[stream, memory + 8, 1 << 40, 0]);
    driver.ok("cuStreamWaitValue64_v2", &[stream, memory + 8, 1 << 40, 1]);
    driver.ok("cuStreamSynchronize", &[stream]);
    driver.fails(code::INVALID_VALUE, "cuStreamWaitValue32_v2", &[stream, memory + 2, 0, 0]);
    driver.fails(code::INVALID_VALUE, "cuStreamWaitValue64_v2", &[stream, memory + 12, 0, 0]);
    driver.fails(code::INVALID_VALUE, "cuStreamWriteValue32_v2", &[stream, memory + 16, 0, 0]);
    driver.fails(code::NOT_SUPPORTED, "cuStreamWaitValue32_v2", &[stream, memory, 0, 1 << 30]);
    // Pageable memory is no place for flags.
    driver.fails(code::INVALID_VALUE, "cuStreamWaitValue32_v2", &[stream, at(&[0_u32]), 0, 0]);
}

static CALLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn note(data: *mut c_void) {
    CALLED.fetch_add(data.expose_provenance() as u64, Ordering::AcqRel);
}

#[test]
fn functions_of_the_host_run_in_their_place() {
    let driver = Driver::new("{}");
    let (gate, gate_at) = word(&driver);
    let stream = driver.stream();
    driver.ok("cuStreamWaitValue32_v2", &[stream, gate_at, 1, 0]);
    let function = (note as extern "C" fn(*mut c_void) as *const c_void).expose_provenance() as u64;
    driver.ok("cuLaunchHostFunc", &[stream, function, 40]);
    assert_eq!(CALLED.load(Ordering::Acquire), 0);
    gate.store(1, Ordering::Release);
    driver.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(CALLED.load(Ordering::Acquire), 40);
}

#[test]
fn functions_of_the_host_must_not_call_the_driver() {
    static CODE: AtomicU32 = AtomicU32::new(0);
    extern "C" fn calls(data: *mut c_void) {
        // SAFETY: the driver outlasts the stream that calls this.
        let driver = unsafe { &*data.cast_const().cast::<Driver>() };
        CODE.store(driver.call("cuCtxSynchronize", &[]), Ordering::Release);
    }
    let driver = Driver::new("{}");
    let stream = driver.stream();
    let function =
        (calls as extern "C" fn(*mut c_void) as *const c_void).expose_provenance() as u64;
    let data = std::ptr::from_ref(&driver).expose_provenance() as u64;
    driver.ok("cuLaunchHostFunc", &[stream, function, data]);
    driver.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(CODE.load(Ordering::Acquire), code::NOT_PERMITTED);
}

#[test]
fn pinned_memory_is_read_when_the_copy_runs() {
    let driver = Driver::new("{}");
    let (gate, gate_at) = word(&driver);
    let stream = driver.stream();
    let (pinned, memory) = (driver.pinned(4), driver.allocate(8));
    pinned.fill(1);
    driver.ok("cuStreamWaitValue32_v2", &[stream, gate_at, 1, 0]);
    driver.ok("cuMemcpyHtoDAsync_v2", &[memory, out(&mut pinned[0]), 4, stream]);
    // Too early: the copy has not run.
    pinned.fill(2);
    gate.store(1, Ordering::Release);
    driver.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(driver.bytes(memory, 4), [2; 4]);
    // Pageable memory is read before the call returns.
    let mut pageable = vec![3_u8; 4];
    driver.ok("cuMemcpyHtoDAsync_v2", &[memory, at(&pageable), 4, stream]);
    pageable.fill(4);
    driver.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(driver.bytes(memory, 4), [3; 4]);
}

#[test]
fn freeing_waits_for_what_uses_the_memory() {
    let driver = Driver::new("{}");
    let (gate, gate_at) = word(&driver);
    let stream = driver.stream();
    let (memory, kept) = (driver.allocate(64), driver.allocate(64));
    driver.put(memory, &[9; 64]);
    driver.ok("cuStreamWaitValue32_v2", &[stream, gate_at, 1, 0]);
    driver.ok("cuMemcpyDtoDAsync_v2", &[kept, memory, 64, stream]);
    let context = driver.get::<u64>("cuCtxGetCurrent", &[]);
    let freed = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            driver.ok("cuCtxSetCurrent", &[context]);
            driver.ok("cuMemFree_v2", &[memory]);
            freed.store(1, Ordering::Release);
        });
        while !driver.report().contains("cuMemFree_v2") {
            std::thread::yield_now();
        }
        assert_eq!(freed.load(Ordering::Acquire), 0, "freed under a copy");
        gate.store(1, Ordering::Release);
    });
    driver.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(driver.bytes(kept, 64), [9; 64]);
}

#[test]
fn events_know_their_context_and_their_time() {
    let driver = Driver::new("{}");
    let stream = driver.stream();
    let timed = [0, 0].map(|flags| driver.get::<u64>("cuEventCreate", &[flags]));
    driver.fails(
        code::INVALID_HANDLE,
        "cuEventElapsedTime",
        &[out(&mut 0_f32), timed[0], timed[1]],
    );
    driver.ok("cuEventRecord", &[timed[0], stream]);
    driver.ok("cuEventRecord", &[timed[1], stream]);
    driver.ok("cuEventSynchronize", &[timed[1]]);
    assert!(driver.get::<f32>("cuEventElapsedTime", &[timed[0], timed[1]]) >= 0.0);
    let untimed = driver.event();
    driver.ok("cuEventRecord", &[untimed, stream]);
    driver.fails(code::INVALID_HANDLE, "cuEventElapsedTime", &[out(&mut 0_f32), timed[0], untimed]);
    // For other processes only without timing.
    driver.fails(code::INVALID_VALUE, "cuEventCreate", &[out(&mut 0_u64), 4]);
    driver.retain(1);
    let other = driver.stream();
    driver.fails(code::INVALID_HANDLE, "cuEventRecord", &[untimed, other]);
    driver.ok("cuStreamWaitEvent", &[other, untimed, 0]);
    driver.ok("cuStreamDestroy_v2", &[other]);
    driver.fails(code::INVALID_HANDLE, "cuStreamSynchronize", &[other]);
    driver.fails(code::INVALID_VALUE, "cuStreamCreate", &[out(&mut 0_u64), 2]);
}

/// Two streams that lack an event between them: with some seed the second is first, and with some it is not.
#[test]
fn seeds_show_a_missing_event() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 1..=64 {
        let driver = Driver::new(&format!(r#"{{"seed": {seed}}}"#));
        let memory = driver.allocate(4);
        driver.put(memory, &[0; 4]);
        let (gate, gate_at) = word(&driver);
        let (first, second) = (driver.stream(), driver.stream());
        let pinned = driver.pinned(4);
        for stream in [first, second] {
            driver.ok("cuStreamWaitValue32_v2", &[stream, gate_at, 1, 0]);
        }
        driver.ok("cuMemsetD32Async", &[memory, 1, 1, first]);
        driver.ok("cuMemcpyDtoHAsync_v2", &[out(&mut pinned[0]), memory, 4, second]);
        gate.store(1, Ordering::Release);
        driver.ok("cuCtxSynchronize", &[]);
        seen.insert(pinned[0]);
        driver.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
        if seen.len() == 2 {
            return;
        }
    }
    panic!("64 seeds, and always {seen:?}");
}
