//! The tree of objects: NUMA nodes, packages, the PCI tree, the system's devices.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;

use roxmltree::Node;

use super::{Package, Reader, values};
use crate::formats::pci_tree::{Function, free_address};
use crate::formats::text::excerpt;
use crate::formats::{DEVICE_LIMIT, ReadError};
use crate::snapshot::NumaNode;
use crate::{BusId, CpuList, CpuModel};

/// Child objects, in file order.
pub(super) fn children<'a, 'input>(
    node: Node<'a, 'input>,
) -> impl Iterator<Item = Node<'a, 'input>> {
    node.children().filter(|child| child.has_tag_name("object"))
}

/// Value of an `<info>` of an object; `None` where blank.
pub(super) fn info<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    infos(node).find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn infos<'a>(node: Node<'a, '_>) -> impl Iterator<Item = (&'a str, &'a str)> {
    node.children().filter(|child| child.has_tag_name("info")).filter_map(|child| {
        let value = child.attribute("value")?.trim();
        (!value.is_empty()).then_some((child.attribute("name")?, value))
    })
}

/// A device as the system names it.
pub(super) struct OsDevice {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) bus_id: BusId,
    pub(super) infos: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Network,
    OpenFabrics,
    Other,
}

impl OsDevice {
    /// The number in a name like `nvml3`.
    pub(super) fn number(&self, prefix: &str) -> Option<u32> {
        self.name.strip_prefix(prefix)?.parse().ok()
    }

    /// Ports told, and whether each is active (state 4).
    pub(super) fn ports(&self) -> impl Iterator<Item = (u32, bool)> {
        (1..=8).filter_map(|port| {
            let state = self.infos.get(&format!("Port{port}State"))?;
            Some((port, state.starts_with('4')))
        })
    }
}

/// What an object's place says.
#[derive(Clone, Default)]
pub(super) struct Part {
    /// The NUMA nodes near it, and the CPUs; shared by all objects below.
    nodes: Option<Rc<CpuList>>,
    cpus: Option<Rc<CpuList>>,
    /// The PCI function above.
    parent: Option<BusId>,
    /// Of the host bridge: its name in sysfs, domain and bus.
    host_bridge: Option<(String, u32, u8)>,
    pci: Option<BusId>,
}

impl Reader<'_> {
    /// An object and all below it. The depth is limited by the scan before.
    pub(super) fn object(&mut self, node: Node<'_, '_>, around: &Part) -> Result<(), ReadError> {
        let mut here = around.clone();
        let bitmap = |name| node.attribute(name).and_then(values::bitmap).map(Rc::new);
        if let Some(cpus) = bitmap("cpuset") {
            here.cpus = Some(cpus);
        }
        if let Some(nodes) = bitmap("nodeset") {
            here.nodes = Some(nodes);
        }
        match node.attribute("type").unwrap_or_default() {
            "Package" | "Socket" => self.package(node, &here),
            "NUMANode" => self.numa_node(node, &here)?,
            "Bridge" => self.bridge(node, &mut here)?,
            "PCIDev" => {
                let id = self.pci(node, &here, false)?;
                here.pci = Some(id);
                here.parent = Some(id);
            }
            "OSDev" => self.os_device(node, &here),
            _ => {}
        }
        for child in children(node) {
            self.object(child, &here)?;
        }
        Ok(())
    }

    fn package(&mut self, node: Node<'_, '_>, here: &Part) {
        let number = |name| info(node, name).and_then(|text| text.parse().ok());
        if self.packages.len() >= DEVICE_LIMIT {
            return;
        }
        self.packages.push(Package {
            id: id(node),
            cpus: here.cpus.clone(),
            cpu: CpuModel {
                arch: None,
                vendor: info(node, "CPUVendor").map(excerpt),
                family: number("CPUFamilyNumber"),
                model: number("CPUModelNumber"),
            },
        });
    }

    fn numa_node(&mut self, node: Node<'_, '_>, here: &Part) -> Result<(), ReadError> {
        let refuse = |reason: String| Err(self.markup.refuse(node, reason));
        let Some(index) = node.attribute("os_index").and_then(|text| text.parse().ok()) else {
            return refuse("a NUMANode states no os_index".into());
        };
        let memory_bytes = node.attribute("local_memory").and_then(|text| text.parse().ok());
        // hwloc 2 gives memory without CPUs the CPUs it is near to; only its kind tells.
        let near = here.cpus.as_ref().filter(|cpus| !cpus.is_empty());
        let kind = node.attribute("subtype").unwrap_or_default();
        let shared = near.is_some_and(|cpus| !self.near_nodes.insert(Rc::clone(cpus)));
        let alone =
            ["GPUMemory", "MCDRAM", "HBM", "NVM", "CXL"].iter().any(|word| kind.contains(word))
                || shared;
        let cpus = match alone {
            true => Some(CpuList::default()),
            false => here.cpus.as_deref().cloned(),
        };
        if cpus.as_ref().is_some_and(CpuList::is_empty) {
            self.memory_only.insert(index);
        }
        if self.numa.len() >= DEVICE_LIMIT {
            return refuse(format!("more than {DEVICE_LIMIT} NUMA nodes"));
        }
        let numa = NumaNode { cpus, memory_bytes, ..NumaNode::new(index) };
        if self.numa.insert(index, numa).is_some() {
            return refuse(format!("NUMA node {index} is described twice"));
        }
        Ok(())
    }

    fn bridge(&mut self, node: Node<'_, '_>, here: &mut Part) -> Result<(), ReadError> {
        let kind = node.attribute("bridge_type").unwrap_or_default();
        match kind {
            "0-1" => {
                let buses = node.attribute("bridge_pci").and_then(bus_range);
                here.host_bridge =
                    buses.map(|(domain, bus)| (format!("pci{domain:04x}:{bus:02x}"), domain, bus));
                here.parent = None;
                Ok(())
            }
            "1-1" | "" if node.attribute("pci_busid").is_some() => {
                here.parent = Some(self.pci(node, here, true)?);
                Ok(())
            }
            _ => {
                let line = self.markup.line(node);
                self.fault(line, format!("a bridge of kind '{}' is passed over", excerpt(kind)));
                Ok(())
            }
        }
    }

    fn pci(
        &mut self,
        node: Node<'_, '_>,
        here: &Part,
        is_bridge: bool,
    ) -> Result<BusId, ReadError> {
        let stated = node.attribute("pci_busid").unwrap_or_default();
        let stated: BusId = stated.parse().map_err(|_| {
            self.markup.refuse(node, format!("pci_busid '{}' is no PCI address", excerpt(stated)))
        })?;
        let bus_id = self.claim(node, stated)?;
        if self.tree.0.len() >= 16 * DEVICE_LIMIT {
            return Err(self
                .markup
                .refuse(node, format!("more than {} PCI functions", 16 * DEVICE_LIMIT)));
        }
        let kind = node.attribute("pci_type").unwrap_or_default();
        let ids = values::pci_type(kind);
        if ids.is_none() {
            let line = self.markup.line(node);
            self.fault(line, format!("pci_type '{}' of {bus_id} is not read", excerpt(kind)));
        }
        let speed = node.attribute("pci_link_speed").unwrap_or_default();
        let mut function = Function {
            parent: here.parent,
            host_bridge: here.host_bridge.as_ref().map(|(name, ..)| name.clone()),
            class: ids.map(|(class, ..)| class),
            vendor: ids.map(|(_, vendor, _)| vendor),
            device: ids.map(|(.., device)| device),
            numa_node: here.nodes.as_ref().and_then(|nodes| self.home_of(nodes)),
            is_bridge,
            trained_total: values::gbps(speed),
            ..Function::default()
        };
        let kept = function.is_gpu() || function.is_nic();
        if function.is_gpu() && function.trained_total.is_some_and(values::is_old_code) {
            // A GPU at rest trains down to the first generation; its link under load is unknown.
            self.at_rest.push(bus_id);
            function.trained_total = None;
        }
        if kept
            && here.parent.is_none()
            && here
                .host_bridge
                .as_ref()
                .is_some_and(|(_, domain, bus)| *domain == bus_id.domain() && *bus != bus_id.bus())
        {
            self.bridges_left_out.push(bus_id);
        }
        let name = info(node, "PCIDevice").or_else(|| node.attribute("name"));
        if let Some(name) = name.filter(|_| kept) {
            self.names.insert(bus_id, excerpt(name));
        }
        if let Some(cpus) = here.cpus.as_ref().filter(|_| kept) {
            self.cpus.insert(bus_id, Rc::clone(cpus));
        }
        self.kept += usize::from(kept);
        if self.kept > DEVICE_LIMIT {
            return Err(self
                .markup
                .refuse(node, format!("more than {DEVICE_LIMIT} GPUs and NICs")));
        }
        if let Some(id) = id(node) {
            self.by_id.insert(id, bus_id);
        }
        self.tree.0.insert(bus_id, function);
        Ok(bus_id)
    }

    /// The address a function is known by: as stated, or the next free one where another has it (hand-edited files).
    /// A GPU's address must be its own, since links name GPUs by it.
    fn claim(&mut self, node: Node<'_, '_>, stated: BusId) -> Result<BusId, ReadError> {
        let Some(other) = self.tree.0.get(&stated) else { return Ok(stated) };
        let class = node.attribute("pci_type").and_then(values::pci_type);
        let new = Function {
            class: class.map(|(class, ..)| class),
            vendor: class.map(|(_, vendor, _)| vendor),
            ..Function::default()
        };
        let free = free_address(stated, |id| self.tree.0.contains_key(&id));
        match free {
            Some(free) if !other.is_gpu() && !new.is_gpu() => {
                let line = self.markup.line(node);
                self.fault(
                    line,
                    format!("{stated} is listed twice; this one is called {free} here"),
                );
                Ok(free)
            }
            _ => Err(self.markup.refuse(node, format!("PCI function {stated} is listed twice"))),
        }
    }

    /// The one NUMA node a device is near to, of those with CPUs. `None` where there are several.
    fn home_of(&self, nodes: &CpuList) -> Option<u32> {
        let mut homes = nodes.iter().filter(|node| !self.memory_only.contains(node));
        let first = homes.next();
        first.filter(|_| homes.next().is_none())
    }

    fn os_device(&mut self, node: Node<'_, '_>, here: &Part) {
        let (Some(name), Some(bus_id)) = (node.attribute("name"), here.pci) else { return };
        if let Some(id) = id(node) {
            self.by_id.insert(id, bus_id);
        }
        // hwloc 3 has bits (16 network, 32 OpenFabrics), before it has numbers (2 and 3).
        let number: u32 =
            node.attribute("osdev_type").and_then(|text| text.parse().ok()).unwrap_or(0);
        let kind = match (self.version, number) {
            (3, bits) if bits & 32 != 0 => Kind::OpenFabrics,
            (3, bits) if bits & 16 != 0 => Kind::Network,
            (1 | 2, 3) => Kind::OpenFabrics,
            (1 | 2, 2) => Kind::Network,
            _ => Kind::Other,
        };
        const WANTED: [&str; 6] =
            ["NVIDIAUUID", "AMDUUID", "GPUModel", "CUDAGlobalMemorySize", "RSMIVRAMSize", "Port"];
        let infos = infos(node)
            .filter(|(key, _)| WANTED.iter().any(|wanted| key.starts_with(wanted)))
            .map(|(key, value)| (key.into(), excerpt(value)))
            .collect();
        if self.os_devices.len() < 16 * DEVICE_LIMIT {
            self.os_devices.push(OsDevice { name: excerpt(name), kind, bus_id, infos });
        }
    }
}

/// The number distances name an object by.
fn id(node: Node<'_, '_>) -> Option<u64> {
    node.attribute("gp_index").and_then(|text| text.parse().ok())
}

/// Domain and first bus of `0003:[00-01]`.
fn bus_range(text: &str) -> Option<(u32, u8)> {
    let (domain, buses) = text.trim().split_once(":[")?;
    let (first, _) = buses.split_once('-')?;
    Some((u32::from_str_radix(domain, 16).ok()?, u8::from_str_radix(first, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ranges() {
        assert_eq!(bus_range("0003:[00-01]"), Some((3, 0)));
        assert_eq!(bus_range("10000:[e1-ff]"), Some((0x10000, 0xe1)));
        for text in ["", "0003", "0003:[0]", "x:[00-01]", "0003:[100-101]"] {
            assert_eq!(bus_range(text), None, "{text}");
        }
    }
}
