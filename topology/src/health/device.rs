//! The devices of a host with their places in the PCIe tree, as the rules look at them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::snapshot::{LinkPeer, NicRole, PciDevice, PciKind, Snapshot};
use crate::{BusId, Gpu, Nic};

/// PCI vendor id of NVIDIA.
const NVIDIA: u16 = 0x10de;

/// A snapshot with its PCI functions by address.
pub(super) struct Devices<'a> {
    pub(super) snapshot: &'a Snapshot,
    functions: BTreeMap<BusId, &'a PciDevice>,
}

impl<'a> Devices<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        let functions = snapshot.pci_devices.iter().map(|device| (device.bus_id, device)).collect();
        Self { snapshot, functions }
    }

    pub(super) fn function(&self, bus_id: BusId) -> Option<&'a PciDevice> {
        self.functions.get(&bus_id).copied()
    }

    pub(super) fn gpu_at(&self, bus_id: BusId) -> Option<&'a Gpu> {
        self.snapshot.gpus.iter().find(|gpu| gpu.bus_id == Some(bus_id))
    }

    /// The function and the bridges above it, up to the root bus. Ends at a loop.
    pub(super) fn way_up(&self, bus_id: BusId) -> Vec<&'a PciDevice> {
        let mut way = Vec::new();
        let mut next = self.function(bus_id);
        while let Some(function) = next.filter(|_| way.len() <= self.functions.len()) {
            way.push(function);
            next = function.parent.and_then(|parent| self.function(parent));
        }
        way
    }

    /// The bridges that peer traffic between two functions crosses, where they meet below one host bridge: those of
    /// either way below the common ancestor. `None` where they meet higher, or it is not known where.
    pub(super) fn bridges_between(&self, a: BusId, b: BusId) -> Option<Vec<&'a PciDevice>> {
        let (a, b) = (self.way_up(a), self.way_up(b));
        let (top_a, top_b) = (a.last()?, b.last()?);
        if top_a.host_bridge.is_none() || top_a.host_bridge != top_b.host_bridge {
            return None;
        }
        let above_b: BTreeSet<BusId> = b.iter().map(|function| function.bus_id).collect();
        let above_a: BTreeSet<BusId> = a.iter().map(|function| function.bus_id).collect();
        let own = |way: Vec<&'a PciDevice>, other: BTreeSet<BusId>| {
            way.into_iter().skip(1).filter(move |function| !other.contains(&function.bus_id))
        };
        Some(own(a, above_b).chain(own(b, above_a)).collect())
    }

    /// GPUs with an address.
    pub(super) fn gpus(&self) -> impl Iterator<Item = (&'a Gpu, BusId)> {
        self.snapshot.gpus.iter().filter_map(|gpu| Some((gpu, gpu.bus_id?)))
    }

    /// NIC ports for traffic between GPUs, one for each function.
    pub(super) fn fabric_nics(&self) -> impl Iterator<Item = (&'a Nic, BusId)> {
        let mut seen = BTreeSet::new();
        let fabric = |nic: &&Nic| nic.role == NicRole::Fabric;
        self.snapshot
            .nics
            .iter()
            .filter(fabric)
            .filter_map(|nic| Some((nic, nic.bus_id?)))
            .filter(move |(_, bus_id)| seen.insert(*bus_id))
    }

    /// Whether a GPU is NVIDIA's; unknown only where nothing tells the vendor.
    pub(super) fn is_nvidia(&self, gpu: &Gpu) -> bool {
        let vendor = gpu.bus_id.and_then(|id| self.function(id)).and_then(|f| f.vendor);
        vendor.map_or_else(|| gpu.gfx.is_none(), |vendor| vendor == NVIDIA)
    }

    pub(super) fn is_virtual_machine(&self) -> bool {
        self.snapshot.host.hypervisor == Some(true)
    }

    /// Whether this host has NVSwitches of its own.
    pub(super) fn has_nvswitch(&self) -> bool {
        self.snapshot.pci_devices.iter().any(|device| device.kind == PciKind::NvSwitch)
    }

    /// Whether a GPU's links lead to switches that this host does not have: those of a rack, or, in a virtual
    /// machine, those of the host below.
    pub(super) fn links_leave_the_host(&self, gpu: &Gpu) -> bool {
        gpu.links.iter().any(|links| match links.peer {
            LinkPeer::Switch(None) => true,
            LinkPeer::Switch(Some(id)) => self.function(id).is_none(),
            _ => false,
        })
    }
}

pub(super) fn gpu_name(gpu: &Gpu) -> String {
    match gpu.bus_id {
        Some(bus_id) => format!("GPU{} ({bus_id})", gpu.index),
        None => format!("GPU{}", gpu.index),
    }
}

/// A port's name with its number where the device has several.
pub(super) fn nic_name(nic: &Nic) -> String {
    match nic.port {
        Some(port) if port > 1 => format!("{}:{port}", nic.name),
        _ => nic.name.clone(),
    }
}

/// One component for one or several devices.
pub(super) fn component(what: &str, names: &[String]) -> String {
    match names {
        [one] => one.to_string(),
        several => format!("{} {what}", several.len()),
    }
}
