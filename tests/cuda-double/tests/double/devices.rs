//! What the driver tells of devices.

use std::ffi::CStr;

use crate::raw::{Driver, at, code, out};

fn text(bytes: &[u8]) -> &str {
    CStr::from_bytes_until_nul(bytes).unwrap().to_str().unwrap()
}

#[test]
fn eight_without_a_configuration() {
    let driver = Driver::load("{}");
    driver.fails(code::NOT_INITIALIZED, "cuDeviceGetCount", &[out(&mut 0_i32)]);
    driver.fails(code::INVALID_VALUE, "cuInit", &[1]);
    driver.ok("cuInit", &[0]);
    assert_eq!(driver.get::<i32>("cuDeviceGetCount", &[]), 8);
    driver.fails(code::INVALID_DEVICE, "cuDeviceGet", &[out(&mut 0_i32), 8]);
    let mut name = [0_u8; 64];
    driver.ok("cuDeviceGetName", &[out(&mut name), 64, 7]);
    assert_eq!(text(&name), "NVIDIA H100 80GB HBM3");
    // A short buffer gets what fits.
    driver.ok("cuDeviceGetName", &[out(&mut name), 7, 7]);
    assert_eq!(text(&name), "NVIDIA");
    driver.ok("cuDeviceGetPCIBusId", &[out(&mut name), 64, 1]);
    assert_eq!(text(&name), "0000:43:00.0");
    assert_eq!(driver.get::<i32>("cuDeviceGetByPCIBusId", &[at(b"00000000:43:00.0\0")]), 1);
    driver.fails(
        code::INVALID_DEVICE,
        "cuDeviceGetByPCIBusId",
        &[out(&mut 0_i32), at(b"0000:44:00.0\0")],
    );
    assert_eq!(driver.get::<i32>("cuDeviceGetAttribute", &[75, 0]), 9);
    driver.fails(code::INVALID_VALUE, "cuDeviceGetAttribute", &[out(&mut 0_i32), 100_000, 0]);
}

#[test]
fn described_devices_in_another_order() {
    let device = |bus: &str| {
        format!(
            r#"{{"name": "G", "uuid": "GPU-00000000-0000-4000-8000-0000000000{bus}", "bus_id": "0000:{bus}:00.0",
                "memory_total": 65536, "compute_capability": [8, 6]}}"#
        )
    };
    let config = format!(
        r#"{{"devices": [{}, {}], "order": [1, 0], "attributes": {{"92": 0}}, "no_peer": [[0, 1]]}}"#,
        device("0a"),
        device("0b")
    );
    let driver = Driver::new(&config);
    assert_eq!(driver.get::<i32>("cuDeviceGetByPCIBusId", &[at(b"0000:0b:00.0\0")]), 0);
    assert_eq!(driver.get::<i32>("cuDeviceGetAttribute", &[76, 1]), 6);
    assert_eq!(driver.get::<i32>("cuDeviceGetAttribute", &[92, 1]), 0);
    assert_eq!(driver.get::<i32>("cuDeviceCanAccessPeer", &[0, 1]), 0);
    assert_eq!(driver.get::<i32>("cuDeviceGetP2PAttribute", &[2, 1, 0]), 0);
    driver.fails(code::INVALID_DEVICE, "cuDeviceGetP2PAttribute", &[out(&mut 0_i32), 2, 1, 1]);
    // Atomic operations between devices tell NVLink from PCIe.
    let native =
        |config: &str| Driver::new(config).get::<i32>("cuDeviceGetP2PAttribute", &[3, 0, 1]);
    assert_eq!((native("{}"), native(r#"{"no_nvlink": true}"#)), (1, 0));
    assert_eq!(driver.get::<usize>("cuDeviceTotalMem_v2", &[0]), 65536);
    driver.allocate(60_000);
    driver.fails(code::OUT_OF_MEMORY, "cuMemAlloc_v2", &[out(&mut 0_u64), 10_000]);
    assert_eq!(driver.get::<usize>("cuMemGetInfo_v2", &[out(&mut 0_usize)]), 5536);
}

#[test]
fn symbols_by_name() {
    let driver = Driver::load("{}");
    let mut function = 0_u64;
    let mut status = 9_u32;
    let name = at(b"cuMemAlloc\0");
    driver.ok("cuGetProcAddress_v2", &[name, out(&mut function), 12_080, 0, out(&mut status)]);
    assert!(function != 0 && status == 0);
    let name = at(b"cuNothing\0");
    driver.fails(
        code::NOT_FOUND,
        "cuGetProcAddress_v2",
        &[name, out(&mut function), 12_080, 0, out(&mut status)],
    );
    assert_eq!((function, status), (0, 1));
}

#[test]
fn a_configuration_that_is_none() {
    for config in ["", "7", r#"{"colour": 1}"#, r#"{"faults": "nonsense"}"#] {
        let driver = Driver::load(config);
        assert_ne!(driver.call("cuInit", &[0]), code::SUCCESS, "{config}");
    }
    assert_eq!(Driver::load(r#"{"count": 0}"#).call("cuInit", &[0]), 100);
}
