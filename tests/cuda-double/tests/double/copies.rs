//! Copies: what they may touch, and that no address is good for anything else.

use crate::raw::{Driver, at, code, out};

#[test]
fn bytes_go_there_and_back() {
    let driver = Driver::new("{}");
    let (one, two) = (driver.allocate(1000), driver.allocate(1000));
    let values: Vec<u8> = (0..=249).cycle().take(1000).collect();
    driver.put(one, &values);
    let stream = driver.stream();
    driver.ok("cuMemcpyDtoDAsync_v2", &[two + 8, one, 992, stream]);
    driver.ok("cuMemsetD8Async", &[two, 7, 8, stream]);
    driver.ok("cuStreamSynchronize", &[stream]);
    let found = driver.bytes(two, 1000);
    assert_eq!(found[..8], [7; 8]);
    assert_eq!(found[8..], values[..992]);
    driver.ok("cuMemsetD32Async", &[two, 0x0403_0201, 250, stream]);
    driver.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(driver.bytes(two + 4, 4), [1, 2, 3, 4]);
}

#[test]
fn fresh_memory_is_not_zero() {
    let driver = Driver::new("{}");
    assert!(driver.bytes(driver.allocate(4096), 4096).iter().all(|byte| *byte == 0xff));
}

#[test]
fn nothing_runs_over_an_allocation() {
    let driver = Driver::new("{}");
    let memory = driver.allocate(100);
    let stream = driver.stream();
    let host = [0_u8; 200];
    for (to, length) in [(memory, 101), (memory + 99, 2), (memory + 100, 1), (memory - 1, 1)] {
        driver.fails(code::INVALID_VALUE, "cuMemcpyHtoD_v2", &[to, at(&host), length]);
        driver.fails(code::INVALID_VALUE, "cuMemcpyHtoDAsync_v2", &[to, at(&host), length, stream]);
        driver.fails(code::INVALID_VALUE, "cuMemsetD8Async", &[to, 0, length, stream]);
    }
    driver.fails(code::INVALID_VALUE, "cuMemcpyDtoH_v2", &[at(&host), memory + 50, 51]);
    driver.fails(code::INVALID_VALUE, "cuMemsetD32Async", &[memory + 2, 0, 1, stream]);
    // Host and device change places.
    driver.fails(code::INVALID_VALUE, "cuMemcpyHtoD_v2", &[at(&host), memory, 8]);
    driver.fails(code::INVALID_VALUE, "cuMemcpyDtoH_v2", &[memory, at(&host), 8]);
    driver.fails(code::INVALID_VALUE, "cuMemFree_v2", &[memory + 8]);
    driver.ok("cuMemFree_v2", &[memory]);
    driver.fails(code::INVALID_VALUE, "cuMemcpyHtoD_v2", &[memory, at(&host), 8]);
    driver.fails(code::INVALID_VALUE, "cuMemFree_v2", &[memory]);
    driver.ok("cuMemFree_v2", &[0]);
    assert_ne!(driver.allocate(100), memory, "addresses are not given out again");
    driver.fails(code::INVALID_VALUE, "cuMemAlloc_v2", &[out(&mut 0_u64), 0]);
}

#[test]
fn addresses_come_again_where_that_is_asked_for() {
    let driver = Driver::new(r#"{"reuse": true}"#);
    let memory = driver.allocate(100);
    driver.ok("cuMemFree_v2", &[memory]);
    assert_eq!(driver.allocate(100), memory);
}

/// No page of a device's address can be read: a kernel asked to write it out says so.
#[test]
fn the_host_cannot_read_device_memory() {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    let driver = Driver::new("{}");
    let address = driver.allocate(1 << 20);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"x").unwrap();
    let address = std::ptr::with_exposed_provenance(usize::try_from(address).unwrap());
    // SAFETY: the kernel reads the bytes, and answers with an error where it cannot.
    let written = unsafe { libc_write(file.as_raw_fd(), address, 8) };
    assert_eq!(written, -1);
}

unsafe extern "C" {
    #[link_name = "write"]
    fn libc_write(file: i32, bytes: *const u8, count: usize) -> isize;
}

#[test]
fn host_memory_that_the_driver_knows() {
    let driver = Driver::new("{}");
    let mut memory = vec![0_u8; 1 << 16];
    let begin = out(&mut memory[0]);
    driver.ok("cuMemHostRegister_v2", &[begin, 1 << 15, 0]);
    driver.fails(code::REGISTERED, "cuMemHostRegister_v2", &[begin + 4096, 64, 0]);
    assert_eq!(driver.get::<u64>("cuMemHostGetDevicePointer_v2", &[begin + 64, 0]), begin + 64);
    let device = driver.allocate(1 << 16);
    // A range that is registered in part.
    driver.fails(code::INVALID_VALUE, "cuMemcpyHtoD_v2", &[device, begin, 1 << 16]);
    driver.fails(code::NOT_REGISTERED, "cuMemHostUnregister", &[begin + 64]);
    driver.ok("cuMemHostUnregister", &[begin]);
    driver.fails(code::NOT_REGISTERED, "cuMemHostUnregister", &[begin]);
    driver.ok("cuMemcpyHtoD_v2", &[device, begin, 1 << 16]);
    let pinned = driver.pinned(4096);
    let pinned = out(&mut pinned[0]);
    driver.fails(code::INVALID_VALUE, "cuMemFree_v2", &[pinned]);
    driver.fails(code::INVALID_VALUE, "cuMemFreeHost", &[device]);
    driver.ok("cuMemFreeHost", &[pinned]);
}

#[test]
fn what_an_address_is() {
    let driver = Driver::new("{}");
    driver.retain(2);
    let memory = driver.allocate(3 << 20);
    assert_eq!(memory % (2 << 20), 0);
    let get = |which: u64, at: u64| driver.get::<u64>("cuPointerGetAttribute", &[which, at]);
    assert_eq!((get(2, memory), get(9, memory + 5)), (2, 2));
    assert_eq!((get(11, memory + 5), get(12, memory + 5)), (memory, 3 << 20));
    let mut size = 0_usize;
    let mut base = 0_u64;
    driver.ok("cuMemGetAddressRange_v2", &[out(&mut base), out(&mut size), memory + 77]);
    assert_eq!((base, size), (memory, 3 << 20));
    let host = [0_u8; 8];
    driver.fails(code::INVALID_VALUE, "cuPointerGetAttribute", &[out(&mut base), 2, at(&host)]);
    // The plural call says nothing of what it does not know.
    let mut kind = 9_u32;
    driver.ok("cuPointerGetAttributes", &[1, at(&[2_u32]), at(&[out(&mut kind)]), at(&host)]);
    assert_eq!(kind, 0);
    // A descriptor for other devices, of whole pages only.
    let file = driver.get::<i32>("cuMemGetHandleForAddressRange", &[memory, 4096, 1, 0]);
    assert!(file > 2);
    driver.fails(
        code::INVALID_VALUE,
        "cuMemGetHandleForAddressRange",
        &[out(&mut kind), memory, 100, 1, 0],
    );
}
