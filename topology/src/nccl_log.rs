//! What NCCL says of itself at `NCCL_DEBUG=INFO`: devices, NICs, rings, and how neighbours reach each other.
//!
//! ```text
//!   node:855:864 [0] NCCL INFO comm 0x5.. rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId a4000 commId 0x.. - Init START
//!   node:855:864 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:..
//!   node:855:864 [0] NCCL INFO Channel 00/24 :    0   1   2   3
//!   node:855:865 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/IPC            [88000] before 2.12: a PCI address
//! ```
//!
//! A log is of all processes of a job in whatever order, with words of launchers before and lines of other software between, and
//! often of several communicators; the largest counts, the first of several. Nothing here is an error: what is not understood is
//! not there.

use alloc::borrow::ToOwned as _;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use crate::{BusId, GpuIndex};

/// What a log tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NcclLog {
    /// `2.18.3` of `NCCL version 2.18.3+cuda12.2`.
    pub version: Option<String>,
    /// By rank of the largest communicator.
    pub devices: BTreeMap<u32, Device>,
    /// Ranks of the largest communicator that tells its rings.
    pub ranks: usize,
    /// Rings by channel, of ranks.
    pub rings: BTreeMap<u32, Vec<u32>>,
    /// Who reaches whom how.
    pub connections: BTreeSet<Connection>,
    /// RDMA ports in use, by name and number.
    pub ports: BTreeSet<(String, u32)>,
}

/// The device of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The host's name in the log.
    pub host: String,
    /// NVML's number, from 2.18 on.
    pub nvml: Option<GpuIndex>,
    /// PCI address.
    pub bus_id: Option<BusId>,
}

/// A way from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection {
    /// Sender.
    pub from: u32,
    /// What stands in brackets behind it.
    pub from_device: DeviceMark,
    /// Receiver.
    pub to: u32,
    /// What stands in brackets behind it.
    pub to_device: DeviceMark,
    /// `P2P/IPC`, `SHM/direct/direct`, `NET/IB/0/GDRDMA`.
    pub via: String,
}

/// The number in brackets behind a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceMark {
    /// NVML's number, or CUDA's ordinal before 2.18.
    Number(u32),
    /// A PCI address.
    Address(BusId),
}

/// Reads a log.
#[must_use]
pub fn read(text: &str) -> NcclLog {
    let mut log = NcclLog::default();
    let mut most_devices = 0;
    for line in text.lines() {
        if let Some((_, version)) = line.split_once("NCCL version ") {
            let number = version.split(['+', ' ', '\r']).next().unwrap_or_default();
            if log.version.is_none() && number.starts_with(|c: char| c.is_ascii_digit()) {
                log.version = Some(number.to_owned());
            }
        }
        let Some((before, said)) = line.split_once(" NCCL INFO ") else { continue };
        let host = before.split_whitespace().rev().nth(1).unwrap_or_default();
        let host = host.split(':').next().unwrap_or_default();
        if said.starts_with("comm ") {
            if let Some((rank, count, device)) = init(said, host) {
                if count > most_devices {
                    most_devices = count;
                    log.devices.clear();
                }
                if count == most_devices {
                    log.devices.entry(rank).or_insert(device);
                }
            }
        } else if let Some(ports) = said.strip_prefix("NET/IB : Using ") {
            log.ports.extend(ports.split('[').filter_map(port));
        } else if let Some(channel) = said.strip_prefix("Channel ") {
            if let Some((number, ring)) = ring(channel) {
                if ring.len() > log.ranks {
                    log.ranks = ring.len();
                    log.rings.clear();
                }
                if ring.len() == log.ranks {
                    log.rings.entry(number).or_insert(ring);
                }
            } else {
                log.connections.extend(connection(channel));
            }
        }
    }
    log
}

/// `comm 0x.. rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId a4000 ...`
fn init(said: &str, host: &str) -> Option<(u32, u32, Device)> {
    let words: Vec<&str> = said.split_whitespace().collect();
    let after = |key: &str| {
        let at = words.iter().position(|word| *word == key)?;
        words.get(at + 1).copied()
    };
    let rank: u32 = after("rank")?.parse().ok()?;
    let count: u32 = after("nranks").or_else(|| after("nRanks"))?.parse().ok()?;
    let device = Device {
        host: host.to_owned(),
        nvml: after("nvmlDev").and_then(|text| text.parse().ok()).map(GpuIndex),
        bus_id: after("busId").and_then(address),
    };
    (rank < count).then_some((rank, count, device))
}

/// NCCL's hexadecimal form of an address: domain, bus, device and function without separators.
fn address(text: &str) -> Option<BusId> {
    let number = u64::from_str_radix(text, 16).ok()?;
    let byte = |shift: u32, mask: u64| u8::try_from(number >> shift & mask).ok();
    BusId::new(u32::try_from(number >> 20).ok()?, byte(12, 0xff)?, byte(4, 0xff)?, byte(0, 0xf)?)
}

/// `0]mlx5_0:1/IB `, `0]mlx5_ib0:1/IB/SHARP `
fn port(text: &str) -> Option<(String, u32)> {
    let (number, rest) = text.split_once(']')?;
    number.parse::<u32>().ok()?;
    let (name, rest) = rest.split_once('/')?;
    let (name, port) = name.trim().rsplit_once(':')?;
    let layer = rest.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    let known = matches!(layer, "IB" | "RoCE");
    Some((name.to_owned(), port.parse().ok().filter(|_| known && !name.is_empty())?))
}

/// `00/24 :    0   1   2   3`
fn ring(text: &str) -> Option<(u32, Vec<u32>)> {
    let (number, ranks) = text.split_once(" :")?;
    let number: u32 = number.split('/').next()?.trim().parse().ok()?;
    let ranks: Vec<u32> =
        ranks.split_whitespace().map(|rank| rank.parse().ok()).collect::<Option<_>>()?;
    let distinct: BTreeSet<u32> = ranks.iter().copied().collect();
    let count = u32::try_from(ranks.len()).ok()?;
    (count > 1 && distinct.into_iter().eq(0..count)).then_some((number, ranks))
}

/// `00/0 : 1[1] -> 2[2] [send] via NET/IB/0/GDRDMA`
fn connection(text: &str) -> Option<Connection> {
    let (_, rest) = text.split_once(" : ")?;
    let (ends, via) = rest.split_once(" via ")?;
    let (from, to) = ends.split_once(" -> ")?;
    let (from, from_device) = end(from)?;
    let (to, to_device) = end(to.split_whitespace().next()?)?;
    let via = via.split_whitespace().next()?.trim_end_matches(',').to_owned();
    Some(Connection { from, from_device, to, to_device, via })
}

fn end(text: &str) -> Option<(u32, DeviceMark)> {
    let (rank, mark) = text.trim().split_once('[')?;
    let mark = mark.strip_suffix(']')?;
    // Addresses have at least a bus, so at least four digits; no host has a thousand GPUs.
    let device = match mark.len() {
        0..=3 => DeviceMark::Number(mark.parse().ok()?),
        _ => DeviceMark::Address(address(mark)?),
    };
    Some((rank.parse().ok()?, device))
}

/// Body of the fuzz target: any text is read, and what is told of rings and devices holds together.
pub fn fuzz(bytes: &[u8]) {
    let log = read(&String::from_utf8_lossy(bytes));
    assert!(log.rings.values().all(|ring| ring.len() == log.ranks), "rings of one communicator");
    for connection in &log.connections {
        assert!(!connection.via.is_empty(), "a connection goes some way");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    const LOG: &str = "\
0: node00:880:887 [0] NCCL INFO comm 0x55ba rank 0 nranks 2 cudaDev 0 nvmlDev 4 busId a4000 commId 0xab - Init START
 node01:880:888 [1] NCCL INFO comm 0x55bb rank 1 nranks 2 cudaDev 1 nvmlDev 5 busId a9000 commId 0xab - Init START
NCCL version 2.18.3+cuda12.2
node00:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_bond_0:1/IB/SHARP [RO]; OOB ib0:10.99.0.2<0>
node00:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.99.0.2<0>
node00:1:2 [0] NCCL INFO Channel 00/02 :    0   1
node00:1:2 [0] NCCL INFO Channel 01/02 :    1   0
node00:1:2 [0] NCCL INFO Channel 02/02 :    1   1
node00:1:2 [0] NCCL INFO Channel 00/0 : 0[4] -> 1[5] via P2P/IPC
node00:1:2 [0] NCCL INFO Channel 00 : 1[a9000] -> 0[a4000] [send] via NET/IB/0/GDRDMA
node00:1:2 [0] NCCL INFO Channel 00/01 : 0
";

    #[test]
    fn a_log_of_two_eras() {
        let log = read(LOG);
        assert_eq!(log.version.as_deref(), Some("2.18.3"));
        assert_eq!(log.devices[&1].host, "node01");
        assert_eq!(log.devices[&0].nvml, Some(GpuIndex(4)));
        assert_eq!(log.devices[&0].bus_id.unwrap().to_string(), "0000:a4:00.0");
        assert_eq!(log.rings, BTreeMap::from([(0, [0, 1].into()), (1, [1, 0].into())]));
        let ports: Vec<_> = log.ports.iter().map(|(name, port)| (name.as_str(), *port)).collect();
        assert_eq!(ports, [("mlx5_0", 1), ("mlx5_bond_0", 1)]);
        let via: Vec<_> = log.connections.iter().map(|one| one.via.as_str()).collect();
        assert_eq!(via, ["P2P/IPC", "NET/IB/0/GDRDMA"]);
        assert_eq!(read("nothing of NCCL\n"), NcclLog::default());
    }

    proptest! {
        #[test]
        fn never_panics(text in "( NCCL INFO )?(comm|Channel|NET/IB : Using)?[ 0-9a-fx:/\\[\\]>-]{0,60}\u{e9}?") {
            fuzz(text.as_bytes());
        }
    }
}
