//! NVIDIA DGX A100.

use topology::BusId;

use super::models::A100_SXM4;
use crate::build::{
    Ports, at, class, connectx, cpu, front_end, gpu, gpu_function, host, host_bridge, infiniband,
    join_switches, link, numa_nodes, nvswitch, vendor,
};
use crate::machine::{Function, HostBridge, Machine};

/// PEX 88096. It shows functions within one chip as switches below switches.
const SWITCH: Ports = Ports { vendor: vendor::BROADCOM, device: 0xc010, generation: 4, width: 16 };

/// Root port of EPYC Rome.
const ROOT: Ports = Ports { vendor: vendor::AMD, device: 0x1483, generation: 4, width: 16 };

/// Device id of ConnectX-6.
const CONNECTX_6: u16 = 0x101b;

/// Device id of the second NVSwitch.
const NVSWITCH: u16 = 0x1af1;

const NVSWITCHES: [u8; 6] = [0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9];

/// Switch numbers in the order of link numbers, as a public listing of such a board shows them for its first GPU.
const LINK_ORDER: [usize; 12] = [3, 3, 0, 0, 2, 2, 5, 5, 1, 1, 4, 4];

/// Buses of a quarter: two GPUs and two NICs on a NUMA node of their own.
#[derive(Clone, Copy)]
struct Quarter {
    root: u8,
    numa_node: u32,
    upstream: u8,
    gpus: [u8; 2],
    nics: [u8; 2],
}

const QUARTERS: [Quarter; 4] = [
    Quarter { root: 0x00, numa_node: 3, upstream: 0x01, gpus: [0x07, 0x0f], nics: [0x0c, 0x12] },
    Quarter { root: 0x40, numa_node: 1, upstream: 0x41, gpus: [0x47, 0x4e], nics: [0x4b, 0x54] },
    Quarter { root: 0x80, numa_node: 7, upstream: 0x81, gpus: [0x87, 0x90], nics: [0x8d, 0x94] },
    Quarter { root: 0xb0, numa_node: 5, upstream: 0xb1, gpus: [0xb7, 0xbd], nics: [0xba, 0xcc] },
];

fn nic(bus: u8) -> Vec<Function> {
    vec![connectx(at(bus, 0, 0), CONNECTX_6, class::INFINIBAND, link(4, 16))]
}

/// Every GPU meets every NIC of its quarter through more than one switch function, so that all are PXB and none
/// PIX.
fn quarter(quarter: Quarter) -> HostBridge {
    let [gpu_a, gpu_b] = quarter.gpus;
    let [nic_a, nic_b] = quarter.nics;
    let gpu = |bus| vec![gpu_function(at(bus, 0, 0), &A100_SXM4)];
    let first = SWITCH
        .switch(at(quarter.upstream + 2, 0, 0), vec![(0, vec![]), (4, vec![]), (8, gpu(gpu_a))]);
    let inner = SWITCH.switch(at(gpu_b - 2, 0, 0), vec![(0, gpu(gpu_b))]);
    let second = SWITCH.switch(at(nic_a - 2, 0, 0), vec![(0, nic(nic_a)), (4, vec![inner])]);
    let third = SWITCH.switch(at(nic_b - 2, 0, 0), vec![(0, nic(nic_b))]);
    let mut below = vec![(0, vec![first]), (4, vec![second]), (8, vec![third])];
    if quarter.root == 0xb0 {
        let port = |(device, bus)| (device, vec![nvswitch(at(bus, 0, 0), NVSWITCH)]);
        let switches =
            SWITCH.switch(at(NVSWITCHES[0] - 2, 0, 0), (0..).zip(NVSWITCHES).map(port).collect());
        below.insert(2, (6, vec![switches]));
    }
    let top = SWITCH.switch(at(quarter.upstream, 0, 0), below);
    host_bridge(
        quarter.root,
        Some(quarter.numa_node),
        vec![ROOT.root_port(at(quarter.root, 1, 1), vec![top])],
    )
}

/// A card with two Ethernet ports for storage.
fn storage(root: u8, numa_node: u32) -> HostBridge {
    let port =
        |function| connectx(at(root + 1, 0, function), CONNECTX_6, class::ETHERNET, link(4, 16));
    host_bridge(root, Some(numa_node), vec![ROOT.root_port(at(root, 3, 1), vec![port(0), port(1)])])
}

/// DGX A100 with eight compute NICs and two storage cards. Odd: eight NUMA nodes of which GPUs and compute NICs
/// are at the odd ones; names of the storage ports lie between those of the compute NICs, and `mlx5_10` sorts
/// before `mlx5_2` as text.
#[must_use]
pub fn dgx_a100() -> Machine {
    let epyc = cpu("AuthenticAMD", 23, 49, "AMD EPYC 7742 64-Core Processor");
    let oddity =
        "eight NUMA nodes, GPUs at the odd ones alone; storage NICs amid the compute NICs' names";
    let mut machine = host("dgx_a100", oddity, epyc, numa_nodes(2, 4, 16, 128));
    machine.product = "DGXA100 920-23687-2530-000".to_owned();
    let [a, b, c, d] = QUARTERS.map(quarter);
    machine.host_bridges = vec![a, b, storage(0x60, 0), c, d, storage(0xe0, 4)];
    let gpus = QUARTERS.iter().flat_map(|quarter| quarter.gpus.map(|bus| (bus, quarter.numa_node)));
    let switches: Vec<BusId> = NVSWITCHES.iter().map(|bus| at(*bus, 0, 0)).collect();
    machine.gpus = (0..)
        .zip(gpus)
        .map(|(index, (bus, node))| {
            let mut gpu = gpu("dgx_a100", index, at(bus, 0, 0), &A100_SXM4, Some(node));
            join_switches(&mut gpu, LINK_ORDER.map(|number| switches[number]));
            gpu
        })
        .collect();
    // As the driver numbers them: by address, storage ports included.
    let mut nics = Vec::new();
    for (number, bus) in [(0, 0x0c), (1, 0x12), (2, 0x4b), (3, 0x54)] {
        nics.push(infiniband(number, &format!("ib{number}"), at(bus, 0, 0), 200));
    }
    nics.push(front_end(Some(4), "enp97s0f0", at(0x61, 0, 0), Some(200_000)));
    nics.push(front_end(Some(5), "enp97s0f1", at(0x61, 0, 1), Some(200_000)));
    for (number, bus) in [(6, 0x8d), (7, 0x94), (8, 0xba), (9, 0xcc)] {
        nics.push(infiniband(number, &format!("ib{}", number - 2), at(bus, 0, 0), 200));
    }
    nics.push(front_end(Some(10), "enp225s0f0", at(0xe1, 0, 0), Some(200_000)));
    nics.push(front_end(Some(11), "enp225s0f1", at(0xe1, 0, 1), Some(200_000)));
    machine.nics = nics;
    machine
}

/// The same with four compute NICs. Odd: the second slot of each quarter is empty, so that two GPUs share a NIC, one
/// of them through a switch more.
#[must_use]
pub fn dgx_a100_four_nics() -> Machine {
    let mut machine = dgx_a100();
    machine.name = "dgx_a100_four_nics";
    machine.oddity = "one NIC for two GPUs, the second slot of each quarter empty";
    let gone = QUARTERS.map(|quarter| at(quarter.nics[1], 0, 0));
    fn empty(functions: &mut Vec<Function>, gone: &[BusId]) {
        functions.retain(|function| !gone.contains(&function.bus_id));
        for function in functions {
            empty(&mut function.children, gone);
        }
    }
    for bridge in &mut machine.host_bridges {
        empty(&mut bridge.functions, &gone);
    }
    machine.nics.retain(|nic| !gone.contains(&nic.bus_id));
    // The driver numbers what is there.
    for (number, nic) in machine.nics.iter_mut().enumerate() {
        nic.rdma = Some(format!("mlx5_{number}"));
    }
    machine
}

/// The same with four of its GPUs partitioned. Odd: links are up all the same, and nobody reaches those GPUs.
#[must_use]
pub fn dgx_a100_mig() -> Machine {
    let mut machine = dgx_a100();
    machine.name = "dgx_a100_mig";
    machine.oddity = "four GPUs in MIG mode: their NVLinks are up and they have no peers";
    for gpu in &mut machine.gpus[4..] {
        gpu.mig = true;
    }
    machine
}
