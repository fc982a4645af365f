//! Which context is current, what peers may reach, and what ends a context.

use crate::raw::{Driver, code, out};

#[test]
fn calls_need_a_current_context() {
    let driver = Driver::load("{}");
    driver.ok("cuInit", &[0]);
    driver.fails(code::INVALID_CONTEXT, "cuMemAlloc_v2", &[out(&mut 0_u64), 64]);
    let one = driver.retain(1);
    assert_eq!(driver.get::<i32>("cuCtxGetDevice", &[]), 1);
    let two = driver.get::<u64>("cuDevicePrimaryCtxRetain", &[2]);
    driver.ok("cuCtxPushCurrent_v2", &[two]);
    assert_eq!(driver.get::<u64>("cuCtxGetCurrent", &[]), two);
    assert_eq!(driver.get::<u64>("cuCtxPopCurrent_v2", &[]), two);
    assert_eq!(driver.get::<u64>("cuCtxGetCurrent", &[]), one);
    // Another thread has none.
    std::thread::scope(|scope| {
        scope.spawn(|| driver.fails(code::INVALID_CONTEXT, "cuCtxSynchronize", &[]));
    });
    driver.fails(code::INVALID_CONTEXT, "cuCtxSetCurrent", &[0x1234]);
    // A context lives as long as it is retained.
    assert_eq!(driver.retain(1), one);
    driver.ok("cuDevicePrimaryCtxRelease_v2", &[1]);
    let memory = driver.allocate(64);
    driver.ok("cuDevicePrimaryCtxRelease_v2", &[1]);
    driver.fails(code::CONTEXT_DESTROYED, "cuMemAlloc_v2", &[out(&mut 0_u64), 64]);
    driver.fails(code::INVALID_CONTEXT, "cuDevicePrimaryCtxRelease_v2", &[1]);
    driver.ok("cuCtxSetCurrent", &[two]);
    driver.fails(code::INVALID_VALUE, "cuMemFree_v2", &[memory]);
    assert!(driver.report().contains(r#""allocations":1"#), "{}", driver.report());
}

#[test]
fn peers_are_enabled_one_way_and_once() {
    let driver = Driver::new(r#"{"no_peer": [[0, 3]]}"#);
    let [zero, one, three] =
        [0, 1, 3].map(|device| driver.get::<u64>("cuDevicePrimaryCtxRetain", &[device]));
    driver.ok("cuCtxSetCurrent", &[one]);
    let there = driver.allocate(64);
    driver.ok("cuCtxSetCurrent", &[zero]);
    let here = driver.allocate(64);
    let stream = driver.stream();
    // Device 0 does not reach device 1 until it is enabled, but for the copy that names both.
    driver.fails(code::INVALID_VALUE, "cuMemcpyDtoDAsync_v2", &[there, here, 64, stream]);
    driver.ok("cuMemcpyPeerAsync", &[there, one, here, zero, 64, stream]);
    driver.fails(code::PEER_NOT_ENABLED, "cuCtxDisablePeerAccess", &[one]);
    driver.fails(code::INVALID_VALUE, "cuCtxEnablePeerAccess", &[one, 1]);
    driver.ok("cuCtxEnablePeerAccess", &[one, 0]);
    driver.fails(code::PEER_ENABLED, "cuCtxEnablePeerAccess", &[one, 0]);
    driver.ok("cuMemcpyDtoDAsync_v2", &[there, here, 64, stream]);
    driver.fails(code::NO_PEER_ACCESS, "cuCtxEnablePeerAccess", &[three, 0]);
    driver.fails(code::INVALID_DEVICE, "cuCtxEnablePeerAccess", &[zero, 0]);
    // The other way is another matter.
    driver.ok("cuCtxSetCurrent", &[one]);
    let back = driver.stream();
    driver.fails(code::INVALID_VALUE, "cuMemcpyDtoDAsync_v2", &[here, there, 64, back]);
    driver.ok("cuCtxSetCurrent", &[zero]);
    driver.ok("cuCtxDisablePeerAccess", &[one]);
    driver.fails(code::INVALID_VALUE, "cuMemcpyAsync", &[there, here, 64, stream]);
}

#[test]
fn staged_copies_where_they_are_asked_for() {
    let driver = Driver::new(r#"{"staged_copies": true}"#);
    let here = driver.allocate(64);
    driver.retain(1);
    let there = driver.allocate(64);
    let stream = driver.stream();
    driver.ok("cuMemcpyAsync", &[there, here, 64, stream]);
    driver.ok("cuStreamSynchronize", &[stream]);
}
