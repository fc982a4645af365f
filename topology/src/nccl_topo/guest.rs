//! A file for a guest: the host's tree with the guest's addresses.

use alloc::borrow::ToOwned as _;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::str::FromStr;

use super::element::Element;
use super::{End, TopoError, TopoFile, Tree, affinity};
use crate::snapshot::{PciDevice, PciKind, Snapshot};
use crate::{BusId, CpuList};

/// Which device of the host is which of the guest. Text has a pair a line, the host's address first, with a blank or `=`
/// between; pairs may also be told apart by commas, and `#` begins a remark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestMap(BTreeMap<BusId, BusId>);

/// A line that is no pair of addresses, or says something twice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct InvalidGuestMap {
    /// From 1.
    pub line: usize,
    /// In words.
    pub reason: String,
}

impl FromStr for GuestMap {
    type Err = InvalidGuestMap;

    fn from_str(text: &str) -> Result<Self, InvalidGuestMap> {
        let mut pairs = BTreeMap::new();
        let mut guests = BTreeSet::new();
        for (line, content) in (1..).zip(text.lines()) {
            let refuse = |reason: String| InvalidGuestMap { line, reason };
            let content = content.split('#').next().unwrap_or_default();
            for pair in content.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
                let mut words = pair.split(|c: char| c == '=' || c.is_whitespace());
                let mut next = || words.find(|word| !word.is_empty());
                let (Some(host), Some(guest), None) = (next(), next(), next()) else {
                    return Err(refuse(format!("'{}' is no pair of addresses", short(pair))));
                };
                let address = |word: &str| {
                    word.parse::<BusId>()
                        .map_err(|_| refuse(format!("'{}' is no PCI address", short(word))))
                };
                let (host, guest) = (address(host)?, address(guest)?);
                if pairs.insert(host, guest).is_some() {
                    return Err(refuse(format!("{host} of the host is named twice")));
                }
                if !guests.insert(guest) {
                    return Err(refuse(format!("{guest} of the guest is named twice")));
                }
            }
        }
        Ok(Self(pairs))
    }
}

fn short(text: &str) -> String {
    text.chars().take(60).collect()
}

pub(super) fn file(
    host: &Snapshot,
    map: &GuestMap,
    guest: Option<&Snapshot>,
) -> Result<TopoFile, TopoError> {
    let tree = Tree::new(host);
    let refuse = |reason: String| Err(TopoError::Map(reason));
    let everything = tree.ends()?;
    let all: BTreeSet<BusId> = everything.iter().map(|end| end.device.bus_id).collect();
    let guest_functions: Option<BTreeMap<BusId, &PciDevice>> =
        guest.map(|guest| guest.pci_devices.iter().map(|device| (device.bus_id, device)).collect());
    let mut ends: Vec<End<'_>> = Vec::new();
    for (from, to) in &map.0 {
        let Some(end) = tree
            .end(*from)
            .filter(|_| matches!(tree.functions[from].kind, PciKind::Gpu | PciKind::Nic))
        else {
            return refuse(format!("{from} is no GPU and no NIC of the host"));
        };
        if let Some(functions) = &guest_functions {
            let Some(function) = functions.get(to) else {
                return refuse(format!("{to} is no GPU and no NIC of the guest"));
            };
            let model = |device: &PciDevice| (device.vendor, device.device);
            let known = |device: &PciDevice| device.vendor.is_some() && device.device.is_some();
            let other_model =
                known(function) && known(end.device) && model(function) != model(end.device);
            // A virtual function has another id than the physical one it is a part of, and is a NIC all the same.
            if function.kind != end.device.kind || other_model && function.kind == PciKind::Gpu {
                return refuse(format!("{from} of the host and {to} of the guest differ in kind"));
            }
        }
        ends.push(end);
    }
    let gpus = |id: &BusId| host.gpus.iter().any(|gpu| gpu.bus_id == Some(*id));
    if !map.0.keys().any(gpus) {
        return refuse("it names no GPU".into());
    }
    ends.sort_by_key(|end| end.device.bus_id);
    let mut file = tree.file(&ends, &mut |end| map.0[&end.device.bus_id].to_string())?;
    let taken: BTreeSet<BusId> = map
        .0
        .values()
        .copied()
        .chain(guest_functions.iter().flat_map(|functions| functions.keys().copied()))
        .collect();
    rename_switches(&mut file.system, &mut made_up(&taken));
    masks(&mut file, guest);
    let left = all.iter().filter(|id| !map.0.contains_key(id)).count();
    if left > 0 {
        file.notes
            .push(format!("{left} GPUs and NICs of the host are not in the map and left out"));
    }
    file.system.check()?;
    Ok(file)
}

/// Addresses that no guest has: those above every domain a guest is given, as published files use them. What NCCL finds
/// under an address of the guest it would write over what the file states of a switch.
fn made_up(taken: &BTreeSet<BusId>) -> impl Iterator<Item = BusId> {
    let all = (0..=0xff_u8).rev().flat_map(|bus| (0..32).map(move |device| (bus, device)));
    let ids = all.filter_map(|(bus, device)| BusId::new(0xffff, bus, device, 0));
    ids.skip(1).filter(|id| !taken.contains(id))
}

fn rename_switches(element: &mut Element, names: &mut dyn Iterator<Item = BusId>) {
    if element.name == "pci"
        && !element.children.is_empty()
        && let Some(name) = names.next()
    {
        for (attribute, value) in &mut element.attributes {
            if *attribute == "busid" {
                *value = name.to_string();
            }
        }
    }
    element.children.iter_mut().for_each(|child| rename_switches(child, names));
}

/// The host's CPU numbers mean nothing in the guest.
fn masks(file: &mut TopoFile, guest: Option<&Snapshot>) {
    let mut without = Vec::new();
    for cpu in &mut file.system.children {
        let node: Option<u32> = cpu.attribute("numaid").and_then(|id| id.parse().ok());
        cpu.attributes.retain(|(attribute, _)| *attribute != "affinity");
        let cpus: Option<&CpuList> = guest
            .and_then(|guest| guest.numa_nodes.iter().find(|numa| Some(numa.id) == node))
            .and_then(|numa| numa.cpus.as_ref());
        match cpus.and_then(affinity) {
            Some(mask) => cpu.attributes.push(("affinity", mask)),
            None => without.push(cpu.attribute("numaid").unwrap_or_default().to_owned()),
        }
    }
    if !without.is_empty() {
        file.notes.push(format!(
            "no CPU mask for NUMA node {}: {}",
            without.join(", "),
            match guest {
                Some(_) => "the guest has no such node; NCCL then binds to no CPUs there",
                None => "give the guest's own facts for it, or NCCL takes that of the guest's node of this number",
            }
        ));
    }
}
