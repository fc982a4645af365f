//! Machines without NVLink between GPUs, or without a PCIe tree to see.

use topology::snapshot::NicRole;
use topology::{BusId, CpuList};

use super::models::{A100_PCIE, A100_SXM4};
use crate::build::{
    Ports, at, class, connectx, cpu, endpoint, front_end, gpu, gpu_function, host, host_bridge,
    infiniband, join, join_switches, link, numa_nodes, vendor,
};
use crate::machine::{Function, HostBridge, Machine, NumaNode, NvLink, NvLinkPeer, PciIds};

/// Root port of third generation Xeon Scalable.
const ROOT: Ports = Ports { vendor: vendor::INTEL, device: 0x347a, generation: 4, width: 16 };

/// Device id of ConnectX-6 Dx.
const CONNECTX_6_DX: u16 = 0x101d;
/// Device id of a ConnectX-6 virtual function.
const CONNECTX_6_VF: u16 = 0x101c;

/// Links of an A100, with or without a bridge on them.
const A100_LINKS: usize = 12;

/// One socket: two GPUs on two root ports of one host bridge, a third on a host bridge of its own, and a NIC on
/// another.
fn socket(buses: [u8; 3], numa_node: u32) -> [HostBridge; 3] {
    let [pair, single, nic] = buses;
    let port = |bus: u8, device, child: Vec<Function>| ROOT.root_port(at(bus, device, 0), child);
    let gpu = |bus| vec![gpu_function(at(bus, 0, 0), &A100_PCIE)];
    let nic_port =
        |function| connectx(at(nic + 1, 0, function), CONNECTX_6_DX, class::ETHERNET, link(4, 16));
    [
        host_bridge(
            pair,
            Some(numa_node),
            vec![port(pair, 2, gpu(pair + 1)), port(pair, 4, gpu(pair + 2))],
        ),
        host_bridge(single, Some(numa_node), vec![port(single, 2, gpu(single + 1))]),
        host_bridge(nic, Some(numa_node), vec![port(nic, 2, vec![nic_port(0), nic_port(1)])]),
    ]
}

/// Six PCIe cards on two sockets, no PCIe switch. Odd: the cards have NVLinks and no bridge on them, so twelve
/// links are there and none is up, which is no fault; pairs meet at every level from the host bridge up; NICs
/// are RoCE with two ports each.
#[must_use]
pub fn pcie_two_sockets() -> Machine {
    const NAME: &str = "pcie_two_sockets";
    let xeon = cpu("GenuineIntel", 6, 106, "Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz");
    let oddity = "cards with NVLinks and no bridges; pairs that meet at PHB, NODE and SYS";
    let mut machine = host(NAME, oddity, xeon, numa_nodes(2, 1, 32, 256));
    machine.vendor = "Generic".to_owned();
    machine.product = "Two-socket GPU server".to_owned();
    machine.distances = vec![vec![10, 20], vec![20, 10]];
    let ids = PciIds {
        vendor: vendor::INTEL,
        device: 0x1563,
        subsystem_vendor: vendor::INTEL,
        subsystem_device: 0x0001,
        class: class::ETHERNET,
    };
    let on_board = endpoint(at(0x02, 0, 0), ids, link(3, 4));
    let mut bridges =
        vec![host_bridge(0x00, Some(0), vec![ROOT.root_port(at(0x00, 28, 0), vec![on_board])])];
    bridges.extend(socket([0x16, 0x30, 0x4a], 0));
    bridges.extend(socket([0x97, 0xb0, 0xc9], 1));
    machine.host_bridges = bridges;
    let gpus = [0x17, 0x18, 0x31, 0x98, 0x99, 0xb1];
    machine.gpus = (0..)
        .zip(gpus)
        .map(|(index, bus)| {
            let mut gpu = gpu(NAME, index, at(bus, 0, 0), &A100_PCIE, Some(index / 3));
            let bare =
                NvLink { peer: NvLinkPeer::Nothing, active: false, errors: Default::default() };
            gpu.links = vec![bare; A100_LINKS];
            gpu
        })
        .collect();
    let ports = [(0x4b_u8, 0_u8), (0x4b, 1), (0xca, 0), (0xca, 1)];
    machine.nics = (0..)
        .zip(ports)
        .map(|(number, (bus, function))| {
            let name = format!("ens{bus}f{function}np{function}");
            let mut nic = front_end(Some(number), &name, at(bus, 0, function), Some(100_000));
            nic.role = NicRole::Fabric;
            nic
        })
        .collect();
    machine.nics.push(front_end(None, "eno1", at(0x02, 0, 0), Some(10_000)));
    machine
}

/// Addresses on the host of the NVSwitches that the guest does not see.
const UNSEEN_NVSWITCHES: [u8; 6] = [0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9];

/// A virtual machine with four of eight GPUs. Odd: every function is on the root bus, without link attributes
/// and with NUMA node -1; NVLinks lead to switches that this host does not have; NICs are virtual functions.
#[must_use]
pub fn vm_flat() -> Machine {
    const NAME: &str = "vm_flat";
    let epyc = cpu("AuthenticAMD", 23, 49, "AMD EPYC 7V12 64-Core Processor");
    let node = NumaNode { package: 0, cpus: CpuList::from_cpus(0..48), memory_bytes: 448 << 30 };
    let oddity = "flat PCI bus without links or NUMA nodes; NVLinks to switches that it cannot see";
    let mut machine = host(NAME, oddity, epyc, vec![node]);
    machine.vendor = "QEMU".to_owned();
    machine.product = "Standard PC (i440FX + PIIX, 1996)".to_owned();
    machine.hypervisor = true;
    machine.threads_per_core = 1;
    machine.distances = vec![vec![10]];
    let flat = |mut function: Function| {
        function.link = None;
        function
    };
    let virtio = PciIds {
        vendor: vendor::RED_HAT,
        device: 0x1000,
        subsystem_vendor: vendor::RED_HAT,
        subsystem_device: 0x0001,
        class: class::ETHERNET,
    };
    let mut functions = vec![flat(endpoint(at(0, 3, 0), virtio, link(1, 1)))];
    functions.extend((5..9).map(|device| flat(gpu_function(at(0, device, 0), &A100_SXM4))));
    functions.extend((10..12).map(|device| {
        flat(connectx(at(0, device, 0), CONNECTX_6_VF, class::INFINIBAND, link(4, 16)))
    }));
    machine.host_bridges = vec![host_bridge(0, None, functions)];
    let switches: Vec<BusId> = UNSEEN_NVSWITCHES.iter().map(|bus| at(*bus, 0, 0)).collect();
    machine.gpus = (0..)
        .zip(5..9)
        .map(|(index, device)| {
            let mut gpu = gpu(NAME, index, at(0, device, 0), &A100_SXM4, None);
            join_switches(&mut gpu, switches.iter().flat_map(|bus_id| [*bus_id; 2]));
            gpu
        })
        .collect();
    machine.nics = (0..)
        .zip(10..12)
        .map(|(number, device)| infiniband(number, &format!("ib{number}"), at(0, device, 0), 200))
        .collect();
    machine.nics.push(front_end(None, "eth0", at(0, 3, 0), None));
    machine
}

/// One socket with four cards, each at a root port of one host bridge. Odd: all meet at the host bridge; the NIC is a
/// card with two RoCE ports; the kernel translates addresses.
#[must_use]
pub fn pcie_one_socket() -> Machine {
    const NAME: &str = "pcie_one_socket";
    let xeon = cpu("GenuineIntel", 6, 106, "Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz");
    let oddity = "one socket, four cards at root ports of one host bridge; the IOMMU translates";
    let mut machine = host(NAME, oddity, xeon, numa_nodes(1, 1, 28, 256));
    machine.vendor = "Generic".to_owned();
    machine.product = "One-socket GPU server".to_owned();
    machine.command_line = format!("{} intel_iommu=on", machine.command_line);
    machine.iommu = Some("DMA-FQ");
    let mut functions: Vec<Function> = (0..4)
        .map(|place: u8| {
            let gpu = gpu_function(at(0x17 + place, 0, 0), &A100_PCIE);
            ROOT.root_port(at(0x16, 2 + 2 * place, 0), vec![gpu])
        })
        .collect();
    let port =
        |function| connectx(at(0x31, 0, function), CONNECTX_6_DX, class::ETHERNET, link(4, 16));
    functions.push(ROOT.root_port(at(0x16, 12, 0), vec![port(0), port(1)]));
    machine.host_bridges = vec![host_bridge(0x16, Some(0), functions)];
    machine.gpus = (0..4)
        .map(|index: u8| gpu(NAME, index.into(), at(0x17 + index, 0, 0), &A100_PCIE, Some(0)))
        .collect();
    bare(&mut machine);
    machine.nics = roce_ports(&[(0x31, 0), (0x31, 1)]);
    machine
}

/// NVLinks without a bridge on them.
fn bare(machine: &mut Machine) {
    for gpu in &mut machine.gpus {
        let bare = NvLink { peer: NvLinkPeer::Nothing, active: false, errors: Default::default() };
        gpu.links = vec![bare; A100_LINKS];
    }
}

/// RoCE ports for traffic between GPUs, by bus and function.
fn roce_ports(ports: &[(u8, u8)]) -> Vec<crate::machine::Nic> {
    let nic = |(number, (bus, function)): (u32, &(u8, u8))| {
        let name = format!("ens{bus}f{function}np{function}");
        let mut nic = front_end(Some(number), &name, at(*bus, 0, *function), Some(100_000));
        nic.role = NicRole::Fabric;
        nic
    };
    (0..).zip(ports).map(nic).collect()
}

/// PEX 88096.
const SWITCH: Ports = Ports { vendor: vendor::BROADCOM, device: 0xc010, generation: 4, width: 16 };

/// Two sockets, each with a PCIe switch over four cards and a NIC. Odd: access control redirects on every port, as
/// firmware leaves it; pairs that meet at PIX and SYS alone.
#[must_use]
pub fn pcie_switches() -> Machine {
    const NAME: &str = "pcie_switches";
    let xeon = cpu("GenuineIntel", 6, 106, "Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz");
    let oddity = "a PCIe switch over four cards on each socket, with ACS left on";
    let mut machine = host(NAME, oddity, xeon, numa_nodes(2, 1, 28, 256));
    machine.vendor = "Generic".to_owned();
    machine.product = "Two-socket GPU server with switches".to_owned();
    machine.distances = vec![vec![10, 20], vec![20, 10]];
    let socket = |bus: u8, numa_node| {
        let mut below: Vec<(u8, Vec<Function>)> = (0..4)
            .map(|place: u8| (place, vec![gpu_function(at(bus + 3 + place, 0, 0), &A100_PCIE)]))
            .collect();
        let nic = connectx(at(bus + 7, 0, 0), CONNECTX_6_DX, class::ETHERNET, link(4, 16));
        below.push((4, vec![nic]));
        let mut switch = SWITCH.switch(at(bus + 1, 0, 0), below);
        for port in &mut switch.children {
            port.acs = Some(0x1d);
        }
        host_bridge(bus, Some(numa_node), vec![ROOT.root_port(at(bus, 2, 0), vec![switch])])
    };
    machine.host_bridges = vec![socket(0x16, 0), socket(0x97, 1)];
    let buses = [0x19_u8, 0x1a, 0x1b, 0x1c, 0x9a, 0x9b, 0x9c, 0x9d];
    machine.gpus = (0..)
        .zip(buses)
        .map(|(index, bus)| gpu(NAME, index, at(bus, 0, 0), &A100_PCIE, Some(index / 4)))
        .collect();
    bare(&mut machine);
    machine.nics = roce_ports(&[(0x1d, 0), (0x9e, 0)]);
    machine
}

/// Two sockets with two cards each, joined in pairs by NVLink bridges. Odd: twelve links to the neighbour on the
/// socket and none to the others.
#[must_use]
pub fn nvlink_bridges() -> Machine {
    const NAME: &str = "nvlink_bridges";
    let xeon = cpu("GenuineIntel", 6, 106, "Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz");
    let oddity = "cards joined in pairs by NVLink bridges, and the pairs not at all";
    let mut machine = host(NAME, oddity, xeon, numa_nodes(2, 1, 28, 256));
    machine.vendor = "Generic".to_owned();
    machine.product = "Two-socket GPU server".to_owned();
    machine.distances = vec![vec![10, 20], vec![20, 10]];
    let socket = |bus: u8, numa_node| {
        let mut functions: Vec<Function> = (0..2)
            .map(|place: u8| {
                let gpu = gpu_function(at(bus + 1 + place, 0, 0), &A100_PCIE);
                ROOT.root_port(at(bus, 2 + 2 * place, 0), vec![gpu])
            })
            .collect();
        let nic = connectx(at(bus + 5, 0, 0), CONNECTX_6_DX, class::INFINIBAND, link(4, 16));
        functions.push(ROOT.root_port(at(bus, 10, 0), vec![nic]));
        host_bridge(bus, Some(numa_node), functions)
    };
    machine.host_bridges = vec![socket(0x16, 0), socket(0x97, 1)];
    machine.gpus = (0..)
        .zip([0x17_u8, 0x18, 0x98, 0x99])
        .map(|(index, bus)| gpu(NAME, index, at(bus, 0, 0), &A100_PCIE, Some(index / 2)))
        .collect();
    join(&mut machine.gpus, 0, 1, A100_LINKS);
    join(&mut machine.gpus, 2, 3, A100_LINKS);
    machine.nics =
        vec![infiniband(0, "ib0", at(0x1b, 0, 0), 200), infiniband(1, "ib1", at(0x9c, 0, 0), 200)];
    machine
}
