//! hwloc's XML, as `lstopo machine.xml` writes it: versions 1, 2 and 3.
//!
//! ```text
//!   topology version              none in hwloc 1
//!     object Machine, Package (Socket), Group, NUMANode, …   cpuset and nodeset say what is near what
//!       object Bridge 0-1         a host bridge, below the object it is near to
//!         object Bridge 1-1       root port, switch port
//!           object PCIDev         pci_busid, pci_type (class, ids), pci_link_speed as trained, in GB/s
//!             object OSDev        nvml0, cuda0, rsmi0, mlx5_0, eth0
//!     distances2                  NUMA latencies, NVLink and xGMI bandwidths
//! ```
//!
//! What hwloc never records is a fault of every snapshot: what links could do, and the rates of NIC ports. A topology
//! recorded without devices (the default of some commands) gives a host without GPUs, and says so.

mod distances;
mod objects;
mod values;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use roxmltree::Node;

use self::objects::{OsDevice, Part};
use super::ReadError;
use super::pci_tree::{Tree, compute_capability};
use super::text::{excerpt, fault};
use super::xml::Markup;
use crate::snapshot::{Gpu, HostFacts, LinkLayer, Nic, NicRole, NumaNode, Source};
use crate::words::some_of;
use crate::{BusId, CpuArch, CpuList, CpuModel, Fault, GpuIndex, Snapshot};

const FORMAT: &str = "hwloc XML";
const READER: &str = "hwloc-xml";

pub(super) fn read(text: &str) -> Result<Snapshot, ReadError> {
    let markup = Markup::of(text, FORMAT);
    let document = markup.document()?;
    let root = document.root_element();
    let version = match root.attribute("version") {
        None => 1,
        Some(text) => text.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0),
    };
    if !(1..=3).contains(&version) {
        let reason = format!(
            "version {} of the format is not known (1 to 3 are)",
            excerpt(root.attribute("version").unwrap_or_default())
        );
        return Err(markup.refuse(root, reason));
    }
    let mut reader = Reader { version, ..Reader::empty(&markup) };
    let mut machines = objects::children(root).filter(|node| node.attribute("type").is_some());
    let Some(machine) = machines.next() else {
        return Err(markup.refuse(root, "no <object> in <topology>".into()));
    };
    if !matches!(machine.attribute("type"), Some("Machine" | "System")) {
        let reason = format!(
            "the first object is a '{}', not a Machine",
            excerpt(machine.attribute("type").unwrap_or_default())
        );
        return Err(markup.refuse(machine, reason));
    }
    reader.host(machine);
    reader.object(machine, &Part::default())?;
    reader.distances(root)?;
    reader.finish(machine)
}

/// A package, by what tells its NUMA nodes.
struct Package {
    id: Option<u64>,
    cpus: Option<Rc<CpuList>>,
    cpu: CpuModel,
}

struct Reader<'a> {
    markup: &'a Markup<'a>,
    version: u32,
    host: HostFacts,
    arch: Option<CpuArch>,
    packages: Vec<Package>,
    numa: BTreeMap<u32, NumaNode>,
    /// Memory without CPUs of its own (a GPU's, high-bandwidth memory beside a node's ordinary one).
    memory_only: BTreeSet<u32>,
    /// The CPUs of each node that has some.
    near_nodes: BTreeSet<Rc<CpuList>>,
    tree: Tree,
    /// Names of the PCI functions, and the CPUs near them.
    names: BTreeMap<BusId, String>,
    cpus: BTreeMap<BusId, Rc<CpuList>>,
    /// GPUs and NICs so far.
    kept: usize,
    os_devices: Vec<OsDevice>,
    /// What `gp_index` stands for.
    by_id: BTreeMap<u64, BusId>,
    links: Vec<distances::Bandwidths>,
    has_links: bool,
    /// Functions directly below a host bridge whose bus number says that bridges are left out.
    bridges_left_out: Vec<BusId>,
    /// GPUs whose link may have been at rest.
    at_rest: Vec<BusId>,
    faults: Vec<Fault>,
}

impl<'a> Reader<'a> {
    fn empty(markup: &'a Markup<'a>) -> Self {
        Self {
            markup,
            version: 0,
            host: HostFacts::default(),
            arch: None,
            packages: Vec::new(),
            numa: BTreeMap::new(),
            memory_only: BTreeSet::new(),
            near_nodes: BTreeSet::new(),
            tree: Tree::default(),
            names: BTreeMap::new(),
            cpus: BTreeMap::new(),
            kept: 0,
            os_devices: Vec::new(),
            by_id: BTreeMap::new(),
            links: Vec::new(),
            has_links: false,
            bridges_left_out: Vec::new(),
            at_rest: Vec::new(),
            faults: Vec::new(),
        }
    }

    fn fault(&mut self, line: usize, error: String) {
        self.faults.push(fault(READER, line, error));
    }

    fn host(&mut self, machine: Node<'_, '_>) {
        let info = |name| objects::info(machine, name);
        self.host.product = info("DMIProductName").or_else(|| info("PlatformModel")).map(excerpt);
        self.host.kernel = info("OSRelease").map(excerpt);
        self.arch = match info("Architecture") {
            Some("x86_64") => Some(CpuArch::X86_64),
            Some("aarch64" | "arm64") => Some(CpuArch::Arm64),
            Some("ppc64" | "ppc64le") => Some(CpuArch::Ppc64),
            _ => None,
        };
    }

    fn finish(mut self, machine: Node<'_, '_>) -> Result<Snapshot, ReadError> {
        let line = self.markup.line(machine);
        let mut snapshot = Snapshot::new(Source::HwlocXml);
        snapshot.pci_devices = self.tree.devices();
        snapshot.gpus = self.gpus()?;
        snapshot.nics = self.nics();
        if self.tree.0.is_empty() {
            self.fault(
                line,
                "no PCI devices recorded: GPUs and NICs unknown (`lstopo --whole-io` records them)"
                    .into(),
            );
        }
        let names =
            |ids: &[BusId]| some_of(&ids.iter().map(ToString::to_string).collect::<Vec<_>>());
        if !self.bridges_left_out.is_empty() {
            let error = format!(
                "the bridges above are not recorded, so paths may be shorter than they seem: {}",
                names(&self.bridges_left_out)
            );
            self.fault(line, error);
        }
        if !self.at_rest.is_empty() {
            let error = format!(
                "links at rest or of PCIe 1 or 2 when recorded, their rates under load unknown: {}",
                names(&self.at_rest)
            );
            self.fault(line, error);
        }
        if !snapshot.gpus.is_empty() {
            if !self.has_links {
                self.fault(0, "NVLinks and xGMI links are not recorded".into());
            }
            self.fault(0, "hwloc records links as trained, not what they can do: a lesser one is not told from a link at rest".into());
        }
        let cpus = |node: &NumaNode| self.packages.iter().find(|package| package.is_of(node));
        for node in self.numa.values_mut() {
            node.cpu = cpus(node)
                .or_else(|| self.packages.first())
                .map(|package| package.cpu.clone())
                .unwrap_or_default();
            node.cpu.arch = self.arch;
        }
        snapshot.host = self.host;
        snapshot.numa_nodes = self.numa.into_values().collect();
        snapshot.faults = self.faults;
        Ok(snapshot)
    }

    fn gpus(&mut self) -> Result<Vec<Gpu>, ReadError> {
        let functions: Vec<BusId> =
            self.tree.0.iter().filter(|(_, f)| f.is_gpu()).map(|(id, _)| *id).collect();
        let mut gpus = Vec::with_capacity(functions.len());
        let mut numbers = Vec::new();
        for id in functions {
            let of_gpu = |name: &str| -> Vec<&OsDevice> {
                self.os_devices
                    .iter()
                    .filter(|d| d.bus_id == id && d.number(name).is_some())
                    .collect()
            };
            let (nvml, rsmi, cuda) = (of_gpu("nvml"), of_gpu("rsmi"), of_gpu("cuda"));
            let first = |name| {
                [&nvml, &rsmi, &cuda]
                    .into_iter()
                    .flatten()
                    .find_map(|d: &&OsDevice| d.infos.get(name).cloned())
            };
            let function = &self.tree.0[&id];
            numbers.push(nvml.first().and_then(|d| d.number("nvml")).or_else(|| match &rsmi[..] {
                [one] => one.number("rsmi"),
                _ => None,
            }));
            let kib = |name| {
                first(name)
                    .and_then(|text: String| text.parse::<u64>().ok())
                    .and_then(|kib| kib.checked_mul(1024))
            };
            let parts = rsmi.len();
            let mut gpu = Gpu::new(GpuIndex(0));
            gpu.bus_id = Some(id);
            gpu.uuid = first("NVIDIAUUID").or_else(|| first("AMDUUID"));
            gpu.name = first("GPUModel").or_else(|| self.names.get(&id).cloned());
            gpu.compute_capability = compute_capability(function.vendor, function.device);
            gpu.memory_bytes = kib("CUDAGlobalMemorySize")
                .or_else(|| kib("RSMIVRAMSize"))
                .filter(|bytes| *bytes > 0);
            gpu.numa_node = function.numa_node;
            let near = self.cpus.get(&id).filter(|_| function.numa_node.is_some());
            gpu.cpus = near.map(|cpus| CpuList::clone(cpus));
            if parts > 1 {
                self.faults.push(fault(
                    READER,
                    0,
                    format!("{id} is in {parts} parts; one GPU stands for all"),
                ));
            }
            gpus.push(gpu);
        }
        let mut seen: Vec<u32> = numbers.iter().flatten().copied().collect();
        seen.sort_unstable();
        seen.dedup();
        let told = seen.len() == gpus.len();
        for (place, (gpu, number)) in (0..).zip(gpus.iter_mut().zip(numbers)) {
            gpu.index = GpuIndex(number.filter(|_| told).unwrap_or(place));
        }
        if !told {
            self.fault(
                0,
                "the driver's numbers of the GPUs are not recorded: numbered by PCI address".into(),
            );
        }
        gpus.sort_by_key(|gpu| gpu.index);
        self.gpu_links(&mut gpus);
        Ok(gpus)
    }

    /// RDMA devices, port by port where the ports are told; of functions without one the network interface.
    fn nics(&mut self) -> Vec<Nic> {
        let mut nics: Vec<Nic> = Vec::new();
        let is_rdma = |device: &&OsDevice| device.kind == objects::Kind::OpenFabrics;
        let has_rdma =
            self.os_devices.iter().any(|d| is_rdma(&d) && self.tree.0.contains_key(&d.bus_id));
        for (id, function) in &self.tree.0 {
            let own: Vec<&OsDevice> = self.os_devices.iter().filter(|d| d.bus_id == *id).collect();
            let rdma: Vec<&OsDevice> = own.iter().copied().filter(|d| is_rdma(d)).collect();
            if !function.is_nic() && rdma.is_empty() {
                continue;
            }
            let mut nic = Nic::new(String::new());
            nic.bus_id = Some(*id);
            nic.numa_node = function.numa_node;
            nic.link_layer = match function.class.map(|class| class >> 8) {
                Some(0x02_07 | 0x0c_06) => Some(LinkLayer::Infiniband),
                Some(0x02_00) => Some(LinkLayer::Ethernet),
                _ => None,
            };
            // Beside RDMA devices, a plain interface carries storage, management or a user's shell.
            nic.role = if rdma.is_empty() && has_rdma { NicRole::Other } else { NicRole::Unknown };
            for device in &rdma {
                let ports: Vec<(u32, bool)> = device.ports().collect();
                nic.name.clone_from(&device.name);
                for (port, up) in &ports {
                    nics.push(Nic { port: Some(*port), up: Some(*up), ..nic.clone() });
                }
                if ports.is_empty() {
                    nics.push(nic.clone());
                }
            }
            if rdma.is_empty() {
                let interface = own.iter().find(|d| d.kind == objects::Kind::Network);
                nic.name = interface.map_or_else(|| id.to_string(), |d| d.name.clone());
                nics.push(nic);
            }
        }
        if !nics.is_empty() {
            self.fault(0, "the rates of NIC ports are not recorded".into());
        }
        nics
    }
}

impl Package {
    fn is_of(&self, node: &NumaNode) -> bool {
        match (&self.cpus, &node.cpus) {
            // A node lies within one package, so its first CPU speaks for all.
            (Some(package), Some(node)) => {
                node.iter().next().is_some_and(|cpu| package.contains(cpu))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
