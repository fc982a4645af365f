//! PCI functions: identity, place in the tree, locality, links.
//!
//! The place of a function is the path its entry links to:
//!
//! ```text
//!   sys/bus/pci/devices/0000:03:00.0 -> ../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0/0000:03:00.0
//!                                                    host bridge    root port    switch       its port     the function
//! ```
//!
//! Trees that were copied with links followed have no such links; there the directories below `sys/devices` tell.

use std::collections::{BTreeMap, BTreeSet};

use topology::snapshot::{Acs, FaultKind, IommuDomain, IommuGroup, PcieLink};
use topology::{BusId, CpuList, Fault};

use super::apart::Report;
use super::config_space;
use super::cpu::read_cpus;
use super::root::Root;
use super::trouble::Trouble;

const DEVICES: &str = "sys/bus/pci/devices";

/// Class and subclass of a bridge between PCI buses.
const PCI_BRIDGE: u32 = 0x0604;

/// Levels below `sys/devices` at which host bridges may lie.
const MOST_DEPTH: usize = 6;

/// One PCI function, as its files tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PciFunction {
    /// The bridge above it.
    pub(super) parent: Option<BusId>,
    /// The host bridge its path starts at: `pci0000:17`.
    pub(super) host_bridge: Option<String>,
    pub(super) class: Option<u32>,
    pub(super) vendor: Option<u16>,
    pub(super) device: Option<u16>,
    /// As the firmware tells; -1 is `None`.
    pub(super) numa_node: Option<u32>,
    pub(super) local_cpus: Option<CpuList>,
    /// As trained.
    pub(super) trained: Option<PcieLink>,
    /// What it can do.
    pub(super) capable: Option<PcieLink>,
    /// The bus below it, of a bridge.
    pub(super) secondary_bus: Option<u8>,
    /// Whether it is a virtual function.
    pub(super) is_virtual: bool,
    /// The physical function it is one of.
    pub(super) physical_function: Option<BusId>,
    /// Access control, of a bridge.
    pub(super) acs: Option<Acs>,
    pub(super) iommu: Option<IommuGroup>,
    /// Whether the kernel has put it to sleep.
    pub(super) suspended: Option<bool>,
    /// The driver that holds it.
    pub(super) driver: Option<String>,
    /// What of the above could not be read; told only if the function matters.
    pub(super) faults: Vec<(Fact, Fault)>,
}

/// Which of a function's facts a fault is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    /// Class, vendor, device.
    Identity,
    /// The link as trained.
    Trained,
    /// The link it can make.
    Capable,
}

/// Tells every PCI function of the host.
pub(super) fn read(root: &Root, report: &Report<(BusId, PciFunction)>) {
    let mut paths: BTreeMap<BusId, String> = BTreeMap::new();
    match root.list(DEVICES) {
        Ok(names) => {
            for name in names {
                let Ok(bus_id) = name.parse::<BusId>() else { continue };
                let entry = format!("{DEVICES}/{name}");
                paths.insert(bus_id, root.link(&entry).unwrap_or(entry));
            }
        }
        Err(error) => report.fault(DEVICES, Trouble::from(&error)),
    }
    // Where the entries are no links, or there are none, the device tree itself has the places. The running kernel
    // always makes them links.
    if !root.is_live() && paths.values().all(|path| path.starts_with(DEVICES)) {
        walk(root, "sys/devices", MOST_DEPTH, &mut paths);
    }
    // A recorder may have left out a bridge that the paths below it name.
    let mut above = BTreeMap::new();
    for path in paths.values() {
        for (end, _) in path.match_indices('/') {
            if let Some(bus_id) = last_bus_id(&path[..end]) {
                above.entry(bus_id).or_insert_with(|| path[..end].to_owned());
            }
        }
    }
    for (bus_id, path) in above {
        paths.entry(bus_id).or_insert(path);
    }
    for (bus_id, path) in paths {
        report.part((bus_id, function(root, &path, report)));
    }
}

/// Adds the functions in a directory. `depth` is how much deeper to look outside of host bridges: they also lie
/// below platform devices and, on Hyper-V, six levels down below ACPI ones.
fn walk(root: &Root, dir: &str, depth: usize, paths: &mut BTreeMap<BusId, String>) {
    for name in root.list(dir).unwrap_or_default() {
        let path = format!("{dir}/{name}");
        if root.link(&path).is_some() {
            continue;
        }
        if let Some(bus_id) = last_bus_id(&path) {
            // A function: more functions, and a VMD's host bridge, lie directly in it.
            paths.insert(bus_id, path.clone());
            walk(root, &path, 0, paths);
        } else if is_host_bridge(&name) {
            walk(root, &path, 0, paths);
        } else if depth > 0 && name != "virtual" && name != "system" {
            walk(root, &path, depth - 1, paths);
        }
    }
}

/// The function a path is inside of, or is: the last component that is an address.
pub(super) fn last_bus_id(path: &str) -> Option<BusId> {
    path.rsplit('/').next()?.parse().ok()
}

fn is_host_bridge(component: &str) -> bool {
    component
        .strip_prefix("pci")
        .and_then(|rest| rest.split_once(':'))
        .is_some_and(|(domain, bus)| is_hex(domain) && bus.len() == 2 && is_hex(bus))
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The bridge above and the host bridge, from the function's path below the last host bridge: a VMD has its own,
/// below a function of another.
fn place(path: &str) -> (Option<BusId>, Option<String>) {
    let components: Vec<&str> = path.split('/').collect();
    let bridge = components.iter().rposition(|component| is_host_bridge(component));
    let Some(bridge) = bridge else { return (None, None) };
    let mut above = components[bridge + 1..].iter().rev().skip(1);
    let parent = above.find_map(|component| component.parse().ok());
    (parent, Some(components[bridge].into()))
}

fn function(root: &Root, path: &str, report: &Report<(BusId, PciFunction)>) -> PciFunction {
    let mut faults = Vec::new();
    let mut read = |fact: Fact, file: &str, parse: fn(&str) -> Option<u32>| {
        let place = format!("{path}/{file}");
        let text = root.read(&place).map_err(|error| Trouble::from(&error));
        let value = text.and_then(|text| {
            let malformed =
                || Trouble::new(FaultKind::Malformed, format!("the file says '{text}'"));
            parse(&text).ok_or_else(malformed)
        });
        value.map_err(|error| faults.push((fact, report.new_fault(place, error)))).ok()
    };
    let mut id = |file| read(Fact::Identity, file, parse_id);
    let (class, vendor, device) = (id("class"), id("vendor"), id("device"));
    // Half a link is none: the fault tells what is missing, and a zero in its place would poison the minimum
    // over a path (meta-pytorch/monarch#4630).
    let mut link = |fact, speed, width| {
        let (mtps, width) = (read(fact, speed, parse_speed), read(fact, width, parse_width));
        Some(PcieLink { mtps: mtps?, width: u8::try_from(width?).ok()? })
    };
    let trained = link(Fact::Trained, "current_link_speed", "current_link_width");
    let capable = link(Fact::Capable, "max_link_speed", "max_link_width");
    let secondary = root.read(&format!("{path}/secondary_bus_number")).ok();
    // A kernel without NUMA has no such file, which leaves the node as unknown as -1 does.
    let numa_node = root.read(&format!("{path}/numa_node")).ok();
    let (parent, host_bridge) = place(path);
    let physical_function = root.link(&format!("{path}/physfn"));
    let bridge = class.is_some_and(|class| class >> 8 == PCI_BRIDGE);
    let config = bridge.then(|| root.read_bytes(&format!("{path}/config")).ok()).flatten();
    let status = root.read(&format!("{path}/power/runtime_status")).ok();
    PciFunction {
        parent,
        host_bridge,
        class,
        vendor: vendor.and_then(|id| u16::try_from(id).ok()),
        device: device.and_then(|id| u16::try_from(id).ok()),
        numa_node: numa_node.and_then(|text| text.parse().ok()),
        local_cpus: read_cpus(root, path, "local_cpulist", "local_cpus").ok(),
        trained,
        capable,
        secondary_bus: secondary.and_then(|text| text.parse().ok()),
        is_virtual: physical_function.is_some(),
        physical_function: physical_function.as_deref().and_then(last_bus_id),
        acs: config.as_deref().and_then(config_space::access_control),
        iommu: iommu(root, path),
        suspended: status.and_then(|status| match status.as_str() {
            "suspended" | "suspending" => Some(true),
            "active" | "resuming" => Some(false),
            _ => None,
        }),
        driver: root.link(&format!("{path}/driver")).as_deref().and_then(last_component),
        faults,
    }
}

/// The group the function links to, and the kind of its domain.
fn iommu(root: &Root, path: &str) -> Option<IommuGroup> {
    let group = root.link(&format!("{path}/iommu_group"))?;
    let group: u32 = last_component(&group)?.parse().ok()?;
    let domain = root.read(&format!("sys/kernel/iommu_groups/{group}/type")).ok();
    let domain = domain.and_then(|kind| match kind.as_str() {
        "identity" => Some(IommuDomain::Identity),
        "DMA" => Some(IommuDomain::Dma),
        "DMA-FQ" => Some(IommuDomain::DmaFq),
        "unmanaged" => Some(IommuDomain::Unmanaged),
        "blocked" => Some(IommuDomain::Blocked),
        _ => None,
    });
    Some(IommuGroup { group, domain })
}

fn last_component(path: &str) -> Option<String> {
    path.rsplit('/').next().map(Into::into)
}

/// `0x060400`.
fn parse_id(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x")?;
    is_hex(digits).then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

/// MT/s in `8.0 GT/s PCIe`, or in `8 GT/s` as kernels before 5.8 wrote it.
fn parse_speed(text: &str) -> Option<u32> {
    let gtps = text.strip_suffix("PCIe").unwrap_or(text).trim().strip_suffix("GT/s")?.trim();
    let (whole, tenths) = gtps.split_once('.').unwrap_or((gtps, "0"));
    let whole: u32 = whole.parse().ok()?;
    let tenths: u32 = if tenths.len() == 1 { tenths.parse().ok()? } else { return None };
    // 128 GT/s is PCIe 7.0, the fastest there is.
    (whole <= 128).then(|| whole * 1000 + tenths * 100).filter(|mtps| *mtps > 0)
}

/// Lanes; 0 is a link that is down, and older kernels print 255 for one they cannot read.
fn parse_width(text: &str) -> Option<u32> {
    text.parse().ok().filter(|width| (1..=32).contains(width))
}

/// Addresses on a path, for those who hold a path to something inside a function.
pub(super) fn innermost_bus_id(path: &str) -> Option<BusId> {
    path.split('/').rev().find_map(|component| component.parse().ok())
}

/// Feeds the parsers of this file.
pub(super) fn fuzz(text: &str) {
    let _ = parse_speed(text);
    let _ = parse_width(text);
    let _ = parse_id(text);
    let _ = place(text);
    let _ = innermost_bus_id(text);
}

/// Places functions whose paths do not tell, by the number of the bus each bridge leads to.
pub(super) fn place_by_bus_number(functions: &mut BTreeMap<BusId, PciFunction>) {
    let bridges: BTreeMap<(u32, u8), BusId> = functions
        .iter()
        .filter_map(|(id, f)| Some(((id.domain(), f.secondary_bus.filter(|bus| *bus > 0)?), *id)))
        .collect();
    for (bus_id, function) in functions.iter_mut().filter(|(_, f)| f.host_bridge.is_none()) {
        let (domain, bus) = (bus_id.domain(), bus_id.bus());
        match bridges.get(&(domain, bus)).filter(|bridge| *bridge != bus_id) {
            Some(bridge) => function.parent = Some(*bridge),
            None if !bridges.is_empty() => {
                function.host_bridge = Some(format!("pci{domain:04x}:{bus:02x}"))
            }
            None => {}
        }
    }
}

/// The functions on the way from those in `kept` to their host bridges, and those themselves.
pub(super) fn with_ancestors(
    functions: &BTreeMap<BusId, PciFunction>,
    kept: impl IntoIterator<Item = BusId>,
) -> BTreeSet<BusId> {
    let mut all = BTreeSet::new();
    for bus_id in kept {
        let mut next = functions.contains_key(&bus_id).then_some(bus_id);
        while let Some(bus_id) = next.filter(|bus_id| all.insert(*bus_id)) {
            next = functions.get(&bus_id).and_then(|function| function.parent);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_and_widths() {
        let speed =
            |text: &str, expect: Option<u32>| assert_eq!(parse_speed(text), expect, "{text}");
        speed("2.5 GT/s PCIe", Some(2500));
        speed("8 GT/s", Some(8000));
        speed("16.0 GT/s PCIe", Some(16000));
        speed("64.0 GT/s PCIe", Some(64000));
        for text in [
            "Unknown",
            "Unknown speed",
            "",
            "GT/s",
            "0 GT/s",
            "-1 GT/s",
            "9999999999 GT/s",
            "80600000GT/s",
            "1. GT/s",
        ] {
            speed(text, None);
        }
        assert_eq!(parse_width("16"), Some(16));
        for text in ["0", "255", "", "x16"] {
            assert_eq!(parse_width(text), None, "{text}");
        }
    }

    #[test]
    fn places() {
        let check = |path: &str, parent: Option<&str>, bridge: Option<&str>| {
            let (found, host_bridge) = place(path);
            assert_eq!(found.map(|id| id.to_string()).as_deref(), parent, "{path}");
            assert_eq!(host_bridge.as_deref(), bridge, "{path}");
        };
        check("sys/devices/pci0000:17/0000:17:00.0", None, Some("pci0000:17"));
        check(
            "sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0",
            Some("0000:17:00.0"),
            Some("pci0000:17"),
        );
        // A VMD's own domain, and a function below a platform device.
        check(
            "sys/devices/pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:04.0",
            None,
            Some("pci10000:00"),
        );
        check(
            "sys/devices/platform/f0000000.pcie/pci0001:00/0001:00:00.0",
            None,
            Some("pci0001:00"),
        );
        check("sys/bus/pci/devices/0000:17:00.0", None, None);
    }
}
