//! Blocks of `lspci -vv`.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{FORMAT, Listing};
use crate::BusId;
use crate::formats::pci_tree::{Function, Tree};
use crate::formats::text::excerpt;
use crate::formats::{DEVICE_LIMIT, ReadError};
use crate::snapshot::PcieLink;

/// Class codes by the names lspci prints for them (the PCI ID registry's), where a kind depends on them.
const CLASSES: [(&str, u32); 14] = [
    ("VGA compatible controller", 0x03_00),
    ("3D controller", 0x03_02),
    ("Display controller", 0x03_80),
    ("Processing accelerators", 0x12_00),
    ("Ethernet controller", 0x02_00),
    ("Infiniband controller", 0x02_07),
    ("Fabric controller", 0x02_08),
    ("Network controller", 0x02_80),
    ("InfiniBand", 0x0c_06),
    ("Host bridge", 0x06_00),
    ("PCI bridge", 0x06_04),
    ("Bridge", 0x06_80),
    ("Audio device", 0x04_03),
    ("Non-Volatile memory controller", 0x01_08),
];

/// Address, class and the rest of the line that begins a block.
pub(super) fn device_line(line: &str) -> Option<(BusId, u32, &str)> {
    let (address, rest) = line.split_once(' ')?;
    let plain =
        address.len() >= 7 && address.bytes().all(|b| b.is_ascii_hexdigit() || b":.".contains(&b));
    let bus_id: BusId = if plain { address.parse().ok()? } else { return None };
    let (class, name) = rest.split_once(": ")?;
    let code = match class.rsplit_once(" [") {
        // `lspci -nn`.
        Some((_, code)) => u32::from_str_radix(code.strip_suffix(']')?, 16).ok()?,
        // `lspci -n`.
        None if class.len() == 4 && class.bytes().all(|b| b.is_ascii_hexdigit()) => {
            u32::from_str_radix(class, 16).ok()?
        }
        None if class.starts_with(|c: char| c.is_ascii_alphanumeric()) => {
            CLASSES.iter().find(|(word, _)| *word == class).map_or(0, |(_, code)| *code)
        }
        None => return None,
    };
    (code <= 0xFFFF).then_some((bus_id, code, name))
}

/// Whether a text has blocks, and what they tell of bridges.
pub(super) fn is_in(text: &str) -> bool {
    let mut device = false;
    text.lines().any(|line| {
        device |= device_line(line.trim()).is_some();
        device && buses(line.trim()).is_some()
    })
}

/// Secondary and subordinate bus of `Bus: primary=15, secondary=16, subordinate=1c, sec-latency=0`.
fn buses(line: &str) -> Option<(u8, u8)> {
    let rest = line.strip_prefix("Bus: primary=")?;
    let number = |name: &str| {
        let (_, value) = rest.split_once(name)?;
        let end = value.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(value.len());
        u8::from_str_radix(&value[..end], 16).ok()
    };
    Some((number("secondary=")?, number("subordinate=")?))
}

/// Rate and width of `LnkSta: Speed 2.5GT/s (downgraded), Width x16 (ok)`.
fn link(text: &str) -> Option<PcieLink> {
    let word = |name: &str| {
        let (_, value) = text.split_once(name)?;
        value.split([',', ' ', '(']).next()
    };
    let mtps = word("Speed ").and_then(|rate| match rate.strip_suffix("GT/s")? {
        "2.5" => Some(2500),
        "5" => Some(5000),
        "8" => Some(8000),
        "16" => Some(16_000),
        "32" => Some(32_000),
        "64" => Some(64_000),
        _ => None,
    });
    let width = word("Width x")
        .and_then(|lanes| lanes.parse::<u8>().ok())
        .filter(|lanes| (1..=32).contains(lanes));
    (mtps.is_some() || width.is_some())
        .then(|| PcieLink { mtps: mtps.unwrap_or(0), width: width.unwrap_or(0) })
}

/// Vendor and device id, from `[10de:2330]`, `10de:2330` or the vendor's name.
fn ids(name: &str) -> (Option<u16>, Option<u16>) {
    let hex = |text: &str| (text.len() == 4).then(|| u16::from_str_radix(text, 16).ok()).flatten();
    let pair = |text: &str| {
        let (vendor, device) = text.split_once(':')?;
        Some((hex(vendor)?, hex(device)?))
    };
    let told = name.split_whitespace().rev().find_map(|word| {
        pair(word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word))
    });
    if let Some((vendor, device)) = told {
        return (Some(vendor), Some(device));
    }
    let vendor = vendor_by_name(name);
    let device =
        name.split_once(" Device ").and_then(|(_, rest)| hex(rest.split_whitespace().next()?));
    (vendor, device)
}

/// Vendors whose GPUs are read.
pub(super) fn vendor_by_name(name: &str) -> Option<u16> {
    if name.starts_with("NVIDIA Corporation") {
        Some(0x10de)
    } else if name.starts_with("Advanced Micro Devices, Inc. [AMD/ATI]") {
        Some(0x1002)
    } else {
        None
    }
}

/// A product's name without revision and ids.
fn product(name: &str) -> &str {
    let end = [" (rev ", " (prog-if "]
        .iter()
        .filter_map(|mark| name.find(mark))
        .min()
        .unwrap_or(name.len());
    name[..end].trim()
}

struct Block {
    line: usize,
    function: Function,
    name: String,
    buses: Option<(u8, u8)>,
    is_virtual: bool,
}

pub(super) fn read(text: &str) -> Result<Listing, ReadError> {
    let blocks = blocks(text)?;
    let bridges: Vec<(BusId, (u8, u8))> =
        blocks.iter().filter_map(|(id, block)| Some((*id, block.buses?))).collect();
    // The nearest bridge above a bus is the one with the fewest buses below it.
    let above = |id: BusId| {
        let covers = |(bridge, (from, to)): &&(BusId, (u8, u8))| {
            *bridge != id && bridge.domain() == id.domain() && (*from..=*to).contains(&id.bus())
        };
        bridges
            .iter()
            .filter(covers)
            .min_by_key(|(bridge, (from, to))| (to - from, *bridge))
            .map(|(id, _)| *id)
    };
    let line = blocks.values().map(|block| block.line).min().unwrap_or(0);
    let has_physical = blocks.values().any(|block| block.function.is_nic() && !block.is_virtual);
    let names = blocks.iter().map(|(id, block)| (*id, block.name.clone())).collect();
    let parents: BTreeMap<BusId, Option<BusId>> =
        blocks.keys().map(|id| (*id, above(*id))).collect();
    let no_link =
        blocks.values().any(|block| block.function.is_gpu() && block.function.capable.is_none());
    let mut tree = Tree::default();
    for (id, block) in blocks {
        // A virtual function is a guest's share of a card; in a guest it is all there is.
        if block.is_virtual && has_physical {
            continue;
        }
        let parent = parents[&id];
        let host_bridge =
            parent.is_none().then(|| format!("pci{:04x}:{:02x}", id.domain(), id.bus()));
        tree.0.insert(id, Function { parent, host_bridge, ..block.function });
    }
    let missing = if no_link {
        alloc::vec!["link capabilities need privilege: `sudo lspci -vv` tells them"]
    } else {
        Vec::new()
    };
    Ok(Listing { tree, names, line, missing })
}

fn blocks(text: &str) -> Result<BTreeMap<BusId, Block>, ReadError> {
    let mut blocks: BTreeMap<BusId, Block> = BTreeMap::new();
    let mut at: Option<BusId> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let refuse = |reason: String| ReadError { format: FORMAT, line: number, reason };
        if let Some((id, class, name)) = device_line(line) {
            if blocks.len() >= 16 * DEVICE_LIMIT {
                return Err(refuse(format!("more than {} functions", 16 * DEVICE_LIMIT)));
            }
            let (vendor, device) = ids(product(name));
            let function = Function {
                class: (class != 0).then_some(class << 8),
                vendor,
                device,
                is_bridge: class == 0x06_04,
                ..Function::default()
            };
            let block = Block {
                line: number,
                function,
                name: excerpt(product(name)),
                buses: None,
                is_virtual: name.contains("Virtual Function"),
            };
            if let Some(first) = blocks.insert(id, block) {
                return Err(refuse(format!(
                    "{id} is also at line {}: two listings in one text",
                    first.line
                )));
            }
            at = Some(id);
            continue;
        }
        let Some(block) = at.and_then(|id| blocks.get_mut(&id)) else { continue };
        if let Some((secondary, subordinate)) = buses(line) {
            if subordinate < secondary {
                return Err(refuse(format!(
                    "subordinate bus {subordinate:02x} is below secondary {secondary:02x}"
                )));
            }
            block.buses.get_or_insert((secondary, subordinate));
        } else if let Some(node) = line.strip_prefix("NUMA node: ") {
            block.function.numa_node = node.trim().parse().ok();
        } else if let Some(rest) = line.strip_prefix("LnkCap:") {
            block.function.capable = block.function.capable.or_else(|| link(rest));
        } else if let Some(rest) = line.strip_prefix("LnkSta:") {
            block.function.trained = block.function.trained.or_else(|| link(rest));
        }
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn device_lines() {
        let check = |line: &str, expect: Option<(&str, u32)>| {
            let found = device_line(line).map(|(id, class, _)| (id.to_string(), class));
            assert_eq!(found, expect.map(|(id, class)| (id.into(), class)), "{line}");
        };
        check(
            "19:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)",
            Some(("0000:19:00.0", 0x0302)),
        );
        check(
            "0001:00:00.0 3D controller [0302]: NVIDIA [10de:20b2] (rev a1)",
            Some(("0001:00:00.0", 0x0302)),
        );
        check("01:00.0 0302: 10de:2330 (rev a1)", Some(("0000:01:00.0", 0x0302)));
        check(
            "00:00.0 System peripheral: Intel Corporation Device 09a2",
            Some(("0000:00:00.0", 0)),
        );
        check("12:30 lunch: soup", None);
        check("01:00.0", None);
        check("Capabilities: [40] Express", None);
        check("10:11:12.5 something: else [x]: y", Some(("0010:11:12.5", 0)));
    }

    #[test]
    fn links_and_ids() {
        let at = |mtps, width| Some(PcieLink { mtps, width });
        assert_eq!(link("\tPort #0, Speed 32GT/s, Width x16, ASPM L1"), at(32_000, 16));
        assert_eq!(link("\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)"), at(2500, 8));
        assert_eq!(link("Speed unknown, Width x0"), None);
        assert_eq!(ids("NVIDIA Corporation Device 2330"), (Some(0x10de), Some(0x2330)));
        assert_eq!(
            ids("Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]"),
            (Some(0x15b3), Some(0x1021))
        );
        assert_eq!(ids("10de:2330"), (Some(0x10de), Some(0x2330)));
        assert_eq!(ids("Intel Corporation Device 352a"), (None, Some(0x352a)));
        assert_eq!(
            buses("Bus: primary=15, secondary=16, subordinate=1c, sec-latency=0"),
            Some((0x16, 0x1c))
        );
        assert_eq!(buses("Bus: primary=15"), None);
    }
}
