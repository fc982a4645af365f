//! Devices.

use super::{Out, Text, TextOut};
use crate::code::Code;
use crate::device::parse_bus;

entries! {
    fn cuDeviceGetCount(driver, count: Out<i32>) {
        count.put(i32::try_from(driver.devices.len()).unwrap_or(i32::MAX))
    }

    fn cuDeviceGet(driver, device: Out<i32>, ordinal: i32) {
        driver.device(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(driver, name: TextOut, room: i32, device: i32) {
        let (_, device) = driver.device(device)?;
        name.put(&device.name, room)
    }

    fn cuDeviceGetUuid(driver, uuid: Out<[u8; 16]>, device: i32) {
        uuid.put(driver.device(device)?.1.uuid)
    }

    fn cuDeviceGetUuid_v2(driver, uuid: Out<[u8; 16]>, device: i32) {
        uuid.put(driver.device(device)?.1.uuid)
    }

    fn cuDeviceGetPCIBusId(driver, text: TextOut, room: i32, device: i32) {
        let bus = driver.device(device)?.1.bus;
        text.put(&format!("{:04X}:{:02X}:{:02X}.0", bus.domain, bus.bus, bus.device), room)
    }

    fn cuDeviceGetByPCIBusId(driver, device: Out<i32>, text: Text) {
        let bus = parse_bus(text.get()?).ok_or(Code::INVALID_VALUE)?;
        let place = driver.devices.iter().position(|device| device.bus == bus);
        let place = place.and_then(|place| i32::try_from(place).ok());
        device.put(place.ok_or(Code::INVALID_DEVICE)?)
    }

    fn cuDeviceGetAttribute(driver, value: Out<i32>, attribute: i32, device: i32) {
        let (_, device) = driver.device(device)?;
        value.put(driver.attribute(device, attribute).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuDeviceComputeCapability(driver, major: Out<i32>, minor: Out<i32>, device: i32) {
        let (_, device) = driver.device(device)?;
        major.put(device.capability.0.cast_signed())?;
        minor.put(device.capability.1.cast_signed())
    }

    fn cuDeviceTotalMem_v2(driver, bytes: Out<usize>, device: i32) {
        bytes.put(usize::try_from(driver.device(device)?.1.memory).unwrap_or(usize::MAX))
    }

    fn cuDeviceCanAccessPeer(driver, can: Out<i32>, device: i32, peer: i32) {
        let ((from, _), (to, _)) = (driver.device(device)?, driver.device(peer)?);
        can.put(i32::from(driver.can_reach(from, to)))
    }

    fn cuDeviceGetP2PAttribute(driver, value: Out<i32>, attribute: u32, device: i32, peer: i32) {
        let ((from, _), (to, _)) = (driver.device(device)?, driver.device(peer)?);
        if from == to {
            return Err(Code::INVALID_DEVICE);
        }
        let can = i32::from(driver.can_reach(from, to));
        value.put(match attribute {
            // Rank 0 is the best; arrays are reached where memory is.
            1 => 0,
            2 | 4 => can,
            // Atomic operations are native over NVLink, not over PCIe.
            3 => i32::from(can != 0 && !driver.config.no_nvlink),
            _ => return Err(Code::INVALID_VALUE),
        })
    }
}
