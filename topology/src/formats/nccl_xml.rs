//! NCCL's topology XML, as `NCCL_TOPO_DUMP_FILE` writes it and people write it by hand for `NCCL_TOPO_FILE`.
//!
//! ```text
//!   system version            1 NCCL, 2 RCCL
//!     cpu numaid host_hash    one per NUMA node; hosts of a fused dump differ in host_hash
//!       pci busid class       bridges stand for whole switches, no root or downstream ports
//!         pci …
//!           gpu dev sm        dev is NVML's index
//!             nvlink target count tclass     (RCCL: xgmi)
//!             c2c bw count
//!         nic
//!           net name speed    speed in Mbit/s
//!       nic                   a network interface without PCI address
//! ```
//!
//! What NCCL itself demands must be there (`src/graph/topo.cc`): version, numaid, busid, the target and count of an
//! NVLink, the name of a net. All else is optional in the wild and becomes a fault where absent.

mod devices;
mod host;
mod values;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use roxmltree::{Node, NodeType};

use self::devices::{new_gpu, new_nic};
use self::host::{Host, PendingGpu};
use super::ReadError;
use super::text::excerpt;
use super::xml::Markup;
use crate::snapshot::{NumaNode, PciDevice, PciKind, PcieLinkFacts};
use crate::{BusId, CpuArch, CpuList, CpuModel, Snapshot};

pub(super) const FORMAT: &str = "NCCL topology XML";

/// `system version` of NCCL and of RCCL.
const VERSIONS: [i64; 2] = [1, 2];

/// PCI vendors whose display and accelerator functions are GPUs of ours; a server's console graphics is not.
const GPU_VENDORS: [u16; 2] = [0x10de, 0x1002];

pub(super) fn read(text: &str) -> Result<Vec<Snapshot>, ReadError> {
    let markup = Markup::of(text, FORMAT);
    let document = markup.document()?;
    let known = document
        .descendants()
        .filter(|n| n.has_tag_name("pci"))
        .filter_map(|n| n.attribute("busid")?.parse().ok())
        .collect();
    let reader = Reader { markup: &markup, known };
    reader.system(document.root_element())
}

struct Reader<'a> {
    markup: &'a Markup<'a>,
    /// Every PCI address of the file.
    known: BTreeSet<BusId>,
}

/// Where in the tree an element hangs.
#[derive(Clone, Copy)]
struct Above {
    parent: Option<BusId>,
    numa_node: Option<u32>,
}

impl Reader<'_> {
    fn line(&self, node: Node<'_, '_>) -> usize {
        self.markup.line(node)
    }

    fn refuse(&self, node: Node<'_, '_>, reason: String) -> ReadError {
        self.markup.refuse(node, reason)
    }

    fn system(&self, root: Node<'_, '_>) -> Result<Vec<Snapshot>, ReadError> {
        match self.integer(root, "version")? {
            Some(version) if VERSIONS.contains(&version) => {}
            Some(version) => {
                let reason = format!("version {version} of the format is not known (1 and 2 are)");
                return Err(self.refuse(root, reason));
            }
            None => return Err(self.refuse(root, "<system> states no version".into())),
        }
        let mut hosts: Vec<Host> = Vec::new();
        let mut by_hash = BTreeMap::new();
        let mut stray = Vec::new();
        for child in self.children(root, &["cpu"], &mut stray)? {
            let place = *by_hash.entry(host_hash(child)).or_insert_with(|| {
                hosts.push(Host::new());
                hosts.len() - 1
            });
            self.cpu(child, &mut hosts[place])?;
        }
        let Some(first) = hosts.first_mut() else {
            return Err(self.refuse(root, "no <cpu> in <system>".into()));
        };
        first.faults.append(&mut stray);
        // Rank order where every host has ranks; a sort that keeps the file's order otherwise.
        if hosts.iter().all(|host| host.first_rank.is_some()) {
            hosts.sort_by_key(|host| host.first_rank);
        }
        hosts.into_iter().map(Host::finish).collect()
    }

    fn cpu(&self, node: Node<'_, '_>, host: &mut Host) -> Result<(), ReadError> {
        let line = self.line(node);
        let Some(numa) = self.integer(node, "numaid")? else {
            return Err(self.refuse(node, "<cpu> states no numaid".into()));
        };
        let numa_node = match numa {
            // The kernel's word for a host without NUMA data.
            ..0 => None,
            _ => Some(
                u32::try_from(numa)
                    .map_err(|_| self.refuse(node, format!("numaid {numa} is no NUMA node")))?,
            ),
        };
        let cpus = match node.attribute("affinity").map(str::trim) {
            None | Some("") => None,
            Some(_) if self.integer(node, "affinity_offset")?.unwrap_or(0) != 0 => {
                host.fault(line, "affinity with an offset is not read: CPUs unknown".into());
                None
            }
            Some(mask) => CpuList::from_mask(mask)
                .map_err(|error| host.fault(line, format!("affinity: {error}, not read")))
                .ok(),
        };
        let arch = match node.attribute("arch").map(str::trim) {
            None | Some("") => None,
            Some("x86_64") => Some(CpuArch::X86_64),
            Some("arm64" | "aarch64") => Some(CpuArch::Arm64),
            Some("ppc64" | "ppc64le") => Some(CpuArch::Ppc64),
            Some(other) => {
                host.fault(line, format!("arch '{}' is not known", excerpt(other)));
                None
            }
        };
        let words =
            |name| node.attribute(name).map(str::trim).filter(|text: &&str| !text.is_empty());
        let cpu = CpuModel {
            arch,
            vendor: words("vendor").map(excerpt),
            family: words("familyid").and_then(values::cpu_family),
            model: words("modelid").and_then(|text| text.parse().ok()),
        };
        if let Some(id) = numa_node {
            let numa = NumaNode { cpus, cpu, ..NumaNode::new(id) };
            host.numa_node(numa).map_err(|reason| self.refuse(node, reason))?;
        }
        let above = Above { parent: None, numa_node };
        for child in self.children(node, &["pci", "nic"], &mut host.faults)? {
            if child.has_tag_name("pci") {
                self.pci(child, above, host)?;
            } else {
                self.nic(child, above, None, host)?;
            }
        }
        Ok(())
    }

    fn pci(&self, node: Node<'_, '_>, above: Above, host: &mut Host) -> Result<(), ReadError> {
        let line = self.line(node);
        let stated = node
            .attribute("busid")
            .ok_or_else(|| self.refuse(node, "<pci> states no busid".into()))?;
        let stated: BusId = stated.parse().map_err(|_| {
            self.refuse(node, format!("busid '{}' is no PCI address", excerpt(stated)))
        })?;
        let id16 = |name| {
            let id =
                node.attribute(name).and_then(values::hex).and_then(|id| u16::try_from(id).ok());
            // No vendor has either; a VM's bridge shows them.
            id.filter(|id| *id != 0 && *id != u16::MAX)
        };
        let (vendor, device) = (id16("vendor"), id16("device"));
        let class = match node.attribute("class").map(str::trim) {
            None | Some("") => None,
            Some(text) => values::class(text).or_else(|| {
                host.fault(line, format!("class '{}' is no class code", excerpt(text)));
                None
            }),
        };
        let children = self.children(node, &["pci", "gpu", "nic", "pcilink"], &mut host.faults)?;
        let has = |name: &str| children.iter().any(|child| child.has_tag_name(name));
        let kind = if has("gpu") {
            PciKind::Gpu
        } else if has("nic") {
            PciKind::Nic
        } else {
            kind_by_class(class, vendor, has("pci"))
        };
        let bus_id = host
            .claim(stated, kind, line, &self.known)
            .map_err(|reason| self.refuse(node, reason))?;
        let link = self.link(node, bus_id, host);
        host.pci_devices.push(PciDevice {
            parent: above.parent,
            class,
            vendor,
            device,
            numa_node: above.numa_node,
            link,
            ..PciDevice::new(bus_id, kind)
        });
        let here = Above { parent: Some(bus_id), ..above };
        let mut gpus = 0;
        let nics = host.nics.len();
        let name = |child: Node<'_, '_>| {
            String::from(child.attribute("target").map(str::trim).unwrap_or_default())
        };
        for child in children {
            match child.tag_name().name() {
                "pci" => self.pci(child, here, host)?,
                "nic" => self.nic(child, here, class, host)?,
                "gpu" if gpus > 0 => {
                    let error = format!("{bus_id} has several <gpu>; the first stands for all");
                    host.fault(self.line(child), error);
                }
                "gpu" => {
                    self.gpu(child, bus_id, above.numa_node, host)?;
                    gpus += 1;
                }
                _ => match name(child).parse::<BusId>() {
                    Ok(target) if target != bus_id => {
                        host.pci_links.push((bus_id.min(target), bus_id.max(target)));
                        let error = format!(
                            "the direct PCI link of {bus_id} to {target} is kept and not planned on"
                        );
                        host.fault(self.line(child), error);
                    }
                    _ => {
                        let error = format!(
                            "target '{}' of <pcilink> is no other PCI address",
                            excerpt(&name(child))
                        );
                        host.fault(self.line(child), error);
                    }
                },
            }
        }
        if kind == PciKind::Gpu && gpus == 0 {
            host.untagged.push(bus_id);
            host.gpus.push(PendingGpu {
                line,
                dev: None,
                links: Vec::new(),
                gpu: new_gpu(bus_id, above.numa_node),
            });
        }
        if kind == PciKind::Nic && host.nics.len() == nics {
            host.unnamed.push(bus_id);
            let nic = new_nic(format!("{bus_id}"), Some(bus_id), above.numa_node, class);
            host.nics.push((None, nic));
        }
        if kind == PciKind::Other && class.is_none() {
            host.classless.push(bus_id);
        }
        Ok(())
    }

    fn link(&self, node: Node<'_, '_>, bus_id: BusId, host: &mut Host) -> PcieLinkFacts {
        let line = self.line(node);
        let words = |name| node.attribute(name).map_or("", str::trim);
        let (speed, width) = (words("link_speed"), words("link_width"));
        let (mtps, lanes) = (values::rate_mtps(speed), values::width(width));
        if mtps.is_none() {
            if speed.is_empty() || speed.starts_with("Unknown") {
                host.no_speed.push((line, bus_id));
            } else {
                host.fault(line, format!("link_speed '{}' is no PCIe rate", excerpt(speed)));
            }
        }
        if lanes.is_none() {
            if matches!(width, "" | "0" | "255") {
                host.no_width.push((line, bus_id));
            } else {
                host.fault(line, format!("link_width '{}' is no PCIe width", excerpt(width)));
            }
        }
        PcieLinkFacts { device_capable: values::link(mtps, lanes), ..PcieLinkFacts::default() }
    }

    /// Child elements of the names wanted, in file order. A known element in the wrong place contradicts the
    /// format; an unknown one, or text (a sign of something cut), is a fault.
    fn children<'a, 'input>(
        &self,
        node: Node<'a, 'input>,
        wanted: &[&str],
        faults: &mut Vec<crate::Fault>,
    ) -> Result<Vec<Node<'a, 'input>>, ReadError> {
        const ELEMENTS: [&str; 12] = [
            "system", "cpu", "pci", "gpu", "nvlink", "xgmi", "c2c", "nic", "net", "gin", "rma",
            "pcilink",
        ];
        let mut found = Vec::new();
        for child in node.children() {
            let name = child.tag_name().name();
            match child.node_type() {
                NodeType::Element if wanted.contains(&name) => found.push(child),
                NodeType::Element if ELEMENTS.contains(&name) => {
                    let reason = format!("<{name}> cannot be inside <{}>", node.tag_name().name());
                    return Err(self.refuse(child, reason));
                }
                NodeType::Element => {
                    let error = format!("<{}> is not known and left out", excerpt(name));
                    faults.push(host::fault(self.line(child), error));
                }
                NodeType::Text => {
                    let text = child.text().unwrap_or_default().trim();
                    if !text.is_empty() {
                        let error = format!(
                            "text '{}' between elements: perhaps some were cut",
                            excerpt(text)
                        );
                        faults.push(host::fault(self.line(child), error));
                    }
                }
                NodeType::Root | NodeType::Comment | NodeType::PI => {}
            }
        }
        Ok(found)
    }

    /// An integer attribute; `None` where absent or blank.
    fn integer(&self, node: Node<'_, '_>, name: &str) -> Result<Option<i64>, ReadError> {
        let Some(text) = node.attribute(name).map(str::trim).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| {
            let element = node.tag_name().name();
            self.refuse(
                node,
                format!("{name} of <{element}> is '{}', not an integer", excerpt(text)),
            )
        })
    }

    /// An integer attribute that counts or numbers something; `None` also where negative, NCCL's word for unset.
    fn index(&self, node: Node<'_, '_>, name: &str) -> Result<Option<u32>, ReadError> {
        match self.integer(node, name)? {
            Some(value @ 0..) => u32::try_from(value).map(Some).map_err(|_| {
                self.refuse(node, format!("{name} is {value}, which is out of range"))
            }),
            _ => Ok(None),
        }
    }
}

/// NCCL takes no hash for hash 0 (`src/graph/topo.cc`).
fn host_hash(cpu: Node<'_, '_>) -> String {
    let text = cpu.attribute("host_hash").map(str::trim).unwrap_or_default().to_ascii_lowercase();
    let zero = text.trim_start_matches("0x").bytes().all(|b| b == b'0');
    if zero { String::new() } else { text }
}

fn kind_by_class(class: Option<u32>, vendor: Option<u16>, has_children: bool) -> PciKind {
    let of_gpu_vendor = vendor.is_none_or(|vendor| GPU_VENDORS.contains(&vendor));
    match class.map(|class| (class >> 16, class >> 8 & 0xFF)) {
        Some((0x03 | 0x12, _)) if of_gpu_vendor => PciKind::Gpu,
        Some((0x02, _)) => PciKind::Nic,
        Some((0x06, 0x80)) if !has_children => PciKind::NvSwitch,
        Some((0x06, 0x04)) => PciKind::Switch,
        _ if has_children => PciKind::Switch,
        _ => PciKind::Other,
    }
}

#[cfg(test)]
mod tests;
