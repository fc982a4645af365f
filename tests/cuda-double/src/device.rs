//! Devices: what the driver tells of them, and their primary contexts.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use crate::config::Described;
use crate::context::Context;

/// Where on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bus {
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
}

/// Domain, bus, device and function; a driver takes them without the domain or the function too.
pub(crate) fn parse_bus(text: &str) -> Option<Bus> {
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    let text = text.trim();
    let (place, function) = text.split_once('.').unwrap_or((text, "0"));
    hex(function)?;
    let mut parts = place.rsplit(':');
    let device = hex(parts.next()?)?;
    let bus = hex(parts.next()?)?;
    let domain = parts.next().map_or(Some(0), hex)?;
    parts.next().is_none().then_some(Bus { domain, bus, device })
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) bus: Bus,
    /// Bytes.
    pub(crate) memory: u64,
    /// As in (9, 0).
    pub(crate) capability: (u32, u32),
    /// Bytes that are allocated in this process.
    pub(crate) used: AtomicU64,
    /// Operations that ran.
    pub(crate) operations: AtomicU64,
    pub(crate) streams: AtomicU64,
    pub(crate) lost: AtomicBool,
    /// How often the primary context is retained.
    pub(crate) primary: Mutex<(u32, Option<Arc<Context>>)>,
}

impl Device {
    /// # Errors
    /// Says what of the description is none.
    pub(crate) fn new(described: Described) -> Result<Self, String> {
        let digits: Vec<u32> = described
            .uuid
            .trim_start_matches("GPU-")
            .chars()
            .filter_map(|c| c.to_digit(16))
            .collect();
        let mut uuid = [0; 16];
        if digits.len() != 32 {
            return Err(format!("{:?} is no UUID", described.uuid));
        }
        for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::try_from(pair[0] * 16 + pair[1]).unwrap_or(0);
        }
        let bus = parse_bus(&described.bus_id)
            .ok_or_else(|| format!("{:?} is no bus", described.bus_id))?;
        Ok(Self {
            name: described.name,
            uuid,
            bus,
            memory: described.memory_total,
            capability: described.compute_capability,
            used: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            streams: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            primary: Mutex::new((0, None)),
        })
    }

    /// As in 90.
    pub(crate) fn capability(&self) -> u32 {
        self.capability.0 * 10 + self.capability.1
    }

    /// Attributes by `CUdevice_attribute`'s numbers; `None` for one that the double does not know. Sizes are a Hopper's, from
    /// NVIDIA's table of compute capabilities.
    pub(crate) fn attribute(&self, number: i32) -> Option<i32> {
        let signed = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        Some(match number {
            1..=3 => 1024,
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65_535,
            8 => 49_152,
            9 => 65_536,
            10 => 32,
            11 => i32::MAX,
            12 | 82 => 65_536,
            13 => 1_980_000,
            14 | 29 | 51 => 512,
            16 => 132,
            // No time limit, not integrated, compute mode default, no TCC, no managed memory of any kind, one GPU on its board.
            17 | 18 | 20 | 35 | 83..=86 | 88 | 89 | 96 | 98 | 100 | 101 => 0,
            15 | 19 | 31 | 32 | 41 | 78 | 79 | 80 | 90 | 91 | 95 | 99 => 1,
            // 32 and 64 bit operations on memory by streams, and the inverted comparison.
            92..=94 => 1,
            33 => signed(self.bus.bus),
            34 => signed(self.bus.device),
            50 => signed(self.bus.domain),
            36 => 2_619_000,
            37 => 5120,
            38 => 50 << 20,
            39 => 2048,
            40 => 3,
            75 => signed(self.capability.0),
            76 => signed(self.capability.1),
            81 => 233_472,
            87 => 2,
            97 => 232_448,
            // Virtual memory management, memory pools and handles of them are not played.
            102..=105 | 107..=110 | 112 | 114 | 115 | 119 => 0,
            106 => 32,
            111 => 1024,
            113 => 1,
            // GPUDirect RDMA, its flushes by the host, order of writes that the owner and all others see.
            116 => 1,
            117 => 1,
            118 => 200,
            // IPC of events; DMA-BUF of device memory.
            124 | 125 => 1,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buses_in_every_spelling() {
        let bus = Bus { domain: 0, bus: 0x1b, device: 0 };
        for text in ["0000:1b:00.0", "00000000:1B:00.0", "1b:00", "0000:1B:00"] {
            assert_eq!(parse_bus(text), Some(bus), "{text}");
        }
        assert_eq!(parse_bus("10000:00:04.0").unwrap().domain, 0x10000);
        for text in ["", "1b", "x:y.z", "0:0:0:0"] {
            assert_eq!(parse_bus(text), None, "{text}");
        }
    }
}
