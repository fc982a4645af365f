//! Short ways to say what a machine's PCI tree is.

use topology::snapshot::{LinkLayer, NicRole, PcieLink};
use topology::{BusId, CpuArch, CpuList};

use crate::machine::{
    Cpu, Driver, Function, FunctionKind, Gpu, GpuModel, HostBridge, Machine, Nic, NumaNode, NvLink,
    NvLinkPeer, PciIds, PortLink,
};

/// Vendor ids of the PCI registry.
pub(crate) mod vendor {
    pub(crate) const AMD: u16 = 0x1022;
    /// Of AMD's GPUs.
    pub(crate) const ATI: u16 = 0x1002;
    pub(crate) const BROADCOM: u16 = 0x1000;
    pub(crate) const INTEL: u16 = 0x8086;
    pub(crate) const MELLANOX: u16 = 0x15b3;
    pub(crate) const NVIDIA: u16 = 0x10de;
    pub(crate) const PLX: u16 = 0x10b5;
    pub(crate) const RED_HAT: u16 = 0x1af4;
}

/// Class codes of the PCI registry.
pub(crate) mod class {
    pub(crate) const BRIDGE: u32 = 0x06_04_00;
    pub(crate) const ACCELERATOR: u32 = 0x12_00_00;
    pub(crate) const CONTROLLER_3D: u32 = 0x03_02_00;
    pub(crate) const ETHERNET: u32 = 0x02_00_00;
    pub(crate) const INFINIBAND: u32 = 0x02_07_00;
    pub(crate) const OTHER_BRIDGE: u32 = 0x06_80_00;
}

/// An address on domain 0.
///
/// # Panics
/// Where device or function is out of range; descriptions are fixed, so a test finds it.
pub(crate) fn at(bus: u8, device: u8, function: u8) -> BusId {
    BusId::new(0, bus, device, function).expect("descriptions name real addresses")
}

/// Transfer rate per lane of a PCIe generation, MT/s.
pub(crate) const fn mtps(generation: u32) -> u32 {
    match generation {
        1 => 2_500,
        2 => 5_000,
        3 => 8_000,
        4 => 16_000,
        5 => 32_000,
        _ => 64_000,
    }
}

/// A link at its best.
pub(crate) const fn link(generation: u32, width: u8) -> PortLink {
    let link = PcieLink { mtps: mtps(generation), width };
    PortLink { max: link, trained: link }
}

/// A product of ports: vendor, device and the most its ports can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    pub(crate) generation: u32,
    pub(crate) width: u8,
}

impl Ports {
    const fn ids(self) -> PciIds {
        PciIds {
            vendor: self.vendor,
            device: self.device,
            subsystem_vendor: self.vendor,
            subsystem_device: self.device,
            class: class::BRIDGE,
        }
    }

    fn port(self, kind: FunctionKind, bus_id: BusId, children: Vec<Function>) -> Function {
        let best = link(self.generation, self.width);
        // A port towards devices trains to what the device below can do; without one its link is down.
        let link = match (kind, children.first().and_then(|child| child.link)) {
            (FunctionKind::UpstreamPort, _) => best,
            (_, Some(below)) => {
                PortLink { max: best.max, trained: lesser(best.max, below.trained) }
            }
            (_, None) => PortLink { max: best.max, trained: PcieLink { mtps: mtps(1), width: 0 } },
        };
        let acs = (kind != FunctionKind::UpstreamPort).then_some(0);
        Function {
            bus_id,
            kind,
            ids: self.ids(),
            numa_node: None,
            link: Some(link),
            acs,
            suspended: false,
            children,
        }
    }

    /// A root port.
    pub(crate) fn root_port(self, bus_id: BusId, children: Vec<Function>) -> Function {
        self.port(FunctionKind::RootPort, bus_id, children)
    }

    /// A switch: its upstream port, and a downstream port at each (device, function) of the bus behind it, with
    /// what hangs there.
    pub(crate) fn switch(self, upstream: BusId, below: Vec<(u8, Vec<Function>)>) -> Function {
        let bus = upstream.bus() + 1;
        let ports = below.into_iter().map(|(device, children)| {
            self.port(FunctionKind::DownstreamPort, at(bus, device, 0), children)
        });
        self.port(FunctionKind::UpstreamPort, upstream, ports.collect())
    }
}

const fn lesser(a: PcieLink, b: PcieLink) -> PcieLink {
    PcieLink {
        mtps: if a.mtps < b.mtps { a.mtps } else { b.mtps },
        width: if a.width < b.width { a.width } else { b.width },
    }
}

/// A device.
pub(crate) fn endpoint(bus_id: BusId, ids: PciIds, link: PortLink) -> Function {
    Function {
        bus_id,
        kind: FunctionKind::Endpoint,
        ids,
        numa_node: None,
        link: Some(link),
        acs: None,
        suspended: false,
        children: Vec::new(),
    }
}

/// A GPU's function.
pub(crate) fn gpu_function(bus_id: BusId, model: &GpuModel) -> Function {
    let vendor = if model.gfx_target_version.is_some() { vendor::ATI } else { vendor::NVIDIA };
    let ids = PciIds {
        vendor,
        device: model.device,
        subsystem_vendor: vendor,
        subsystem_device: model.subsystem,
        class: model.class,
    };
    endpoint(bus_id, ids, link(model.pcie_generation, 16))
}

/// A ConnectX function of a device id.
pub(crate) fn connectx(bus_id: BusId, device: u16, class: u32, link: PortLink) -> Function {
    let ids = PciIds {
        vendor: vendor::MELLANOX,
        device,
        subsystem_vendor: vendor::MELLANOX,
        subsystem_device: 0x0007,
        class,
    };
    endpoint(bus_id, ids, link)
}

/// A host bridge on domain 0 whose functions all belong to a NUMA node.
pub(crate) fn host_bridge(bus: u8, numa_node: Option<u32>, functions: Vec<Function>) -> HostBridge {
    fn place(functions: &mut [Function], numa_node: Option<u32>) {
        for function in functions {
            function.numa_node = numa_node;
            place(&mut function.children, numa_node);
        }
    }
    let mut functions = functions;
    place(&mut functions, numa_node);
    HostBridge { domain: 0, bus, functions }
}

/// NUMA nodes of equal size over the CPUs: node n has cores `n*cores..` and their second threads after all cores.
pub(crate) fn numa_nodes(packages: u32, per_package: u32, cores: u32, gib: u64) -> Vec<NumaNode> {
    let nodes = packages * per_package;
    let node = |number: u32| NumaNode {
        package: number / per_package,
        cpus: CpuList::from_cpus([0, nodes * cores].into_iter().flat_map(|thread| {
            let first = thread + number * cores;
            first..first + cores
        })),
        memory_bytes: gib << 30,
    };
    (0..nodes).map(node).collect()
}

/// Distances: 10 within a node, `near` within a package, `far` between packages.
pub(crate) fn distances(nodes: &[NumaNode], near: u32, far: u32) -> Vec<Vec<u32>> {
    let distance = |(i, a): (usize, &NumaNode), (j, b): (usize, &NumaNode)| match () {
        () if i == j => 10,
        () if a.package == b.package => near,
        () => far,
    };
    let row = |a| nodes.iter().enumerate().map(|b| distance(a, b)).collect();
    nodes.iter().enumerate().map(row).collect()
}

/// A GPU without links, its UUID made from the machine's name and the index.
pub(crate) fn gpu(
    machine: &str,
    index: u32,
    bus_id: BusId,
    model: &'static GpuModel,
    numa_node: Option<u32>,
) -> Gpu {
    // FNV-1a, so that GPUs of different machines differ.
    let hash = machine
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    Gpu {
        bus_id,
        uuid: format!("GPU-{hash:08x}-0000-4000-8000-{index:012x}"),
        model,
        numa_node,
        links: Vec::new(),
        mig: false,
        fabric: None,
        c2c: None,
        memory_node: None,
    }
}

/// Adds `count` links between two GPUs, each with the next free number at both ends.
pub(crate) fn join(gpus: &mut [Gpu], a: usize, b: usize, count: usize) {
    for _ in 0..count {
        let (link_a, link_b) = (gpus[a].links.len(), gpus[b].links.len());
        gpus[a].links.push(up(NvLinkPeer::Gpu(b, link_b)));
        gpus[b].links.push(up(NvLinkPeer::Gpu(a, link_a)));
    }
}

/// A link that is up.
pub(crate) fn up(peer: NvLinkPeer) -> NvLink {
    NvLink { peer, active: true, errors: std::collections::BTreeMap::new() }
}

/// An InfiniBand port for traffic between GPUs.
pub(crate) fn infiniband(rdma: u32, netdev: &str, bus_id: BusId, gbit: u64) -> Nic {
    Nic {
        rdma: Some(format!("mlx5_{rdma}")),
        netdev: Some(netdev.to_owned()),
        bus_id,
        link_layer: LinkLayer::Infiniband,
        mbit: Some(gbit * 1000),
        up: true,
        link_downed: 0,
        role: NicRole::Fabric,
    }
}

/// A bare-metal host with two threads a core and nothing else yet; the rest is for its description to fill in.
pub(crate) fn host(
    name: &'static str,
    oddity: &'static str,
    cpu: Cpu,
    nodes: Vec<NumaNode>,
) -> Machine {
    let kernel = "5.15.0-91-generic";
    Machine {
        name,
        oddity,
        vendor: "NVIDIA".to_owned(),
        product: name.to_owned(),
        kernel: kernel.to_owned(),
        command_line: format!("BOOT_IMAGE=/boot/vmlinuz-{kernel} ro"),
        hypervisor: false,
        iommu: None,
        imex_channels: None,
        confidential: None,
        driver: Some(Driver { version: "535.161.08".to_owned(), cuda: 12020, open: false }),
        cpu,
        threads_per_core: 2,
        distances: distances(&nodes, 12, 32),
        numa_nodes: nodes,
        host_bridges: Vec::new(),
        gpus: Vec::new(),
        nics: Vec::new(),
        p2p_across_sockets: true,
        peermem: true,
        privileged: true,
        p2p_denied: Vec::new(),
        events: Vec::new(),
        faults: Vec::new(),
        call_log: None,
    }
}

/// A processor.
pub(crate) fn cpu(vendor: &str, family: u32, model: u32, name: &str) -> Cpu {
    Cpu { arch: CpuArch::X86_64, vendor: vendor.to_owned(), family, model, name: name.to_owned() }
}

/// An NVSwitch's function.
pub(crate) fn nvswitch(bus_id: BusId, device: u16) -> Function {
    let ids = PciIds {
        vendor: vendor::NVIDIA,
        device,
        subsystem_vendor: vendor::NVIDIA,
        subsystem_device: device,
        class: class::OTHER_BRIDGE,
    };
    endpoint(bus_id, ids, link(3, 4))
}

/// Adds links to switches, in the order of link numbers.
pub(crate) fn join_switches(gpu: &mut Gpu, switches: impl IntoIterator<Item = BusId>) {
    gpu.links.extend(switches.into_iter().map(|bus_id| up(NvLinkPeer::Switch(bus_id))));
}

/// An Ethernet port that is not for traffic between GPUs.
pub(crate) fn front_end(rdma: Option<u32>, netdev: &str, bus_id: BusId, mbit: Option<u64>) -> Nic {
    Nic {
        rdma: rdma.map(|number| format!("mlx5_{number}")),
        netdev: Some(netdev.to_owned()),
        bus_id,
        link_layer: LinkLayer::Ethernet,
        mbit,
        up: true,
        link_downed: 0,
        role: NicRole::Other,
    }
}
