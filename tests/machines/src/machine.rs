//! What a machine is made of, as its makers describe it.

use topology::snapshot::{LinkLayer, NicRole, PcieLink};
use topology::{BusId, CpuArch, CpuList};

use crate::scenario::{Event, Fault, NvLinkError};

/// One host with its devices. Fields are free to change: a machine that no one built is a test case too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Short name: `dgx1v`.
    pub name: &'static str,
    /// One sentence on what is odd about it.
    pub oddity: &'static str,
    /// Maker and product name as firmware tells them.
    pub vendor: String,
    /// See `vendor`.
    pub product: String,
    /// Kernel release.
    pub kernel: String,
    /// Kernel command line.
    pub command_line: String,
    /// Whether it is a virtual machine.
    pub hypervisor: bool,
    /// The kernel's word for the kind of its IOMMU domains (`identity`, `DMA-FQ`); `None` where no IOMMU runs.
    pub iommu: Option<&'static str>,
    /// Channel devices for NVLink between hosts; `None` where the driver has no such directory.
    pub imex_channels: Option<u32>,
    /// Whether GPUs run in confidential computing mode; `None` where the driver does not tell.
    pub confidential: Option<bool>,
    /// GPU driver; `None` where none is loaded.
    pub driver: Option<Driver>,
    /// The processor, the same in every socket.
    pub cpu: Cpu,
    /// Hardware threads of a core: 1, or 2 that lie half of all CPUs apart.
    pub threads_per_core: u32,
    /// By number.
    pub numa_nodes: Vec<NumaNode>,
    /// Distances between NUMA nodes in ACPI SLIT units.
    pub distances: Vec<Vec<u32>>,
    /// In address order.
    pub host_bridges: Vec<HostBridge>,
    /// In NVML's order, which is that of their addresses.
    pub gpus: Vec<Gpu>,
    /// In the order of their device names.
    pub nics: Vec<Nic>,
    /// Whether GPUs on different sockets reach each other over PCIe.
    pub p2p_across_sockets: bool,
    /// Whether the kernel module for GPUDirect RDMA is loaded.
    pub peermem: bool,
    /// Whether a reader may see a PCI function's configuration beyond its first 64 bytes.
    pub privileged: bool,
    /// Pairs of GPUs (by index) for which NVML denies peer access though links would allow it.
    pub p2p_denied: Vec<(usize, usize)>,
    /// Events that NVML delivers.
    pub events: Vec<Event>,
    /// What goes wrong in NVML calls.
    pub faults: Vec<Fault>,
    /// See [`crate::scenario::Scenario::call_log`].
    pub call_log: Option<std::path::PathBuf>,
}

/// The GPU driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Release: `535.161.08`.
    pub version: String,
    /// CUDA release in NVML's code: 12020 for 12.2.
    pub cuda: i32,
    /// Whether its kernel modules are the open ones, which export memory as DMA-BUF.
    pub open: bool,
}

/// A processor model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Architecture. Arm processors show neither vendor nor family nor model.
    pub arch: CpuArch,
    /// `GenuineIntel`, `AuthenticAMD`.
    pub vendor: String,
    /// As the kernel shows it (base plus extended).
    pub family: u32,
    /// As the kernel shows it.
    pub model: u32,
    /// Marketing name.
    pub name: String,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Socket.
    pub package: u32,
    /// Its CPUs; empty for one with memory alone.
    pub cpus: CpuList,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

/// A host bridge, sysfs `pci0000:80`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostBridge {
    /// PCI domain.
    pub domain: u32,
    /// Its root bus.
    pub bus: u8,
    /// Functions on the root bus.
    pub functions: Vec<Function>,
}

impl HostBridge {
    /// Sysfs name.
    #[must_use]
    pub fn name(&self) -> String {
        format!("pci{:04x}:{:02x}", self.domain, self.bus)
    }
}

/// A PCI function with what hangs below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Address.
    pub bus_id: BusId,
    /// Port type.
    pub kind: FunctionKind,
    /// Identity.
    pub ids: PciIds,
    /// As firmware tells it; `None` is -1.
    pub numa_node: Option<u32>,
    /// Its own link: of a root or downstream port the one below it, of all else the one above. `None` where the
    /// kernel shows none.
    pub link: Option<PortLink>,
    /// ACS control register of a port that has one.
    pub acs: Option<u16>,
    /// Whether runtime power management has put it to sleep.
    pub suspended: bool,
    /// Functions on the bus behind it.
    pub children: Vec<Self>,
}

/// Port type of a PCI Express function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    /// Of the root complex.
    RootPort,
    /// The side of a switch towards the root.
    UpstreamPort,
    /// A side of a switch towards devices.
    DownstreamPort,
    /// A device.
    Endpoint,
}

/// Identity of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciIds {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Subsystem vendor.
    pub subsystem_vendor: u16,
    /// Subsystem device.
    pub subsystem_device: u16,
    /// 24-bit class code.
    pub class: u32,
}

/// A link as one of its ends sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLink {
    /// The most this end can do.
    pub max: PcieLink,
    /// As trained.
    pub trained: PcieLink,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its PCI function.
    pub bus_id: BusId,
    /// `GPU-...`.
    pub uuid: String,
    /// What it is.
    pub model: &'static GpuModel,
    /// The NUMA node it is at, as the driver knows it; sysfs may not. `None` in a virtual machine that does not
    /// tell.
    pub numa_node: Option<u32>,
    /// By link number.
    pub links: Vec<NvLink>,
    /// Whether it is partitioned.
    pub mig: bool,
    /// Fabric registration; `None` where the board takes part in none.
    pub fabric: Option<crate::scenario::Fabric>,
    /// Chip-to-chip links to the CPU, and MB/s of each.
    pub c2c: Option<(u32, u32)>,
    /// The NUMA node that its own memory forms, on coherent boards.
    pub memory_node: Option<u32>,
}

/// A GPU product.
#[derive(Debug, PartialEq, Eq)]
pub struct GpuModel {
    /// As NVML names it.
    pub name: &'static str,
    /// PCI device id.
    pub device: u16,
    /// PCI subsystem device id, of NVIDIA.
    pub subsystem: u16,
    /// 24-bit class code: 3D controller or VGA.
    pub class: u32,
    /// Compute capability.
    pub compute_capability: (i32, i32),
    /// Bytes.
    pub memory_bytes: u64,
    /// PCIe generation at 16 lanes.
    pub pcie_generation: u32,
    /// NVML's code of the NVLink version; 0 without NVLink.
    pub nvlink_version: u32,
    /// Rate of an active NVLink as NVML tells it, MB/s per direction.
    pub nvlink_mbytes_per_second: u32,
    /// Whether it can be partitioned.
    pub mig: bool,
    /// Of AMD's: the architecture in the compute driver's number (90402 is gfx942). Its links are xGMI.
    pub gfx_target_version: Option<u32>,
}

/// One NVLink of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvLink {
    /// Where it leads.
    pub peer: NvLinkPeer,
    /// Whether it is up.
    pub active: bool,
    /// Error counters other than zero.
    pub errors: std::collections::BTreeMap<NvLinkError, u64>,
}

/// The other end of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvLinkPeer {
    /// A GPU by index, and the number of the same link there.
    Gpu(usize, usize),
    /// An NVSwitch, whether or not this host sees its PCI function.
    Switch(BusId),
    /// Nothing: no bridge is mounted.
    Nothing,
}

/// An RDMA device with one port, or a network card without RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// `mlx5_0`; `None` for a card without RDMA.
    pub rdma: Option<String>,
    /// Its network interface.
    pub netdev: Option<String>,
    /// Its PCI function.
    pub bus_id: BusId,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Line rate in Mbit/s; `None` where the driver tells none (virtio).
    pub mbit: Option<u64>,
    /// Whether the port is up.
    pub up: bool,
    /// Times the link went down, from its counters.
    pub link_downed: u64,
    /// What it is for.
    pub role: NicRole,
}

impl Nic {
    /// The name it goes by: RDMA device, else interface.
    #[must_use]
    pub fn name(&self) -> &str {
        self.rdma.as_deref().or(self.netdev.as_deref()).unwrap_or("unnamed")
    }
}

impl Machine {
    /// Every PCI function, each after the bridge above it, with that bridge.
    #[must_use]
    pub fn functions(&self) -> Vec<(Option<&Function>, &Function)> {
        fn walk<'a>(
            parent: Option<&'a Function>,
            functions: &'a [Function],
            out: &mut Vec<(Option<&'a Function>, &'a Function)>,
        ) {
            for function in functions {
                out.push((parent, function));
                walk(Some(function), &function.children, out);
            }
        }
        let mut out = Vec::new();
        for bridge in &self.host_bridges {
            walk(None, &bridge.functions, &mut out);
        }
        out
    }

    /// The functions from the root bus down to an address, and the host bridge above them.
    #[must_use]
    pub fn path_to(&self, bus_id: BusId) -> Option<(&HostBridge, Vec<&Function>)> {
        fn find<'a>(
            functions: &'a [Function],
            bus_id: BusId,
            path: &mut Vec<&'a Function>,
        ) -> bool {
            functions.iter().any(|function| {
                path.push(function);
                let found = function.bus_id == bus_id || find(&function.children, bus_id, path);
                if !found {
                    path.pop();
                }
                found
            })
        }
        self.host_bridges.iter().find_map(|bridge| {
            let mut path = Vec::new();
            find(&bridge.functions, bus_id, &mut path).then_some((bridge, path))
        })
    }

    /// A function to change.
    pub fn function_mut(&mut self, bus_id: BusId) -> Option<&mut Function> {
        fn find(functions: &mut [Function], bus_id: BusId) -> Option<&mut Function> {
            functions.iter_mut().find_map(|function| {
                if function.bus_id == bus_id {
                    Some(function)
                } else {
                    find(&mut function.children, bus_id)
                }
            })
        }
        self.host_bridges.iter_mut().find_map(|bridge| find(&mut bridge.functions, bus_id))
    }

    /// The NUMA node of a function, its own or that of the nearest bridge above that tells one.
    #[must_use]
    pub fn numa_node_of(&self, bus_id: BusId) -> Option<u32> {
        self.path_to(bus_id)?.1.iter().rev().find_map(|function| function.numa_node)
    }

    /// CPUs of a NUMA node.
    #[must_use]
    pub fn cpus_of(&self, node: u32) -> Option<&CpuList> {
        let index = usize::try_from(node).ok()?;
        self.numa_nodes.get(index).map(|node| &node.cpus)
    }

    /// Every CPU.
    #[must_use]
    pub fn all_cpus(&self) -> CpuList {
        CpuList::from_cpus(self.numa_nodes.iter().flat_map(|node| node.cpus.iter()))
    }
}
