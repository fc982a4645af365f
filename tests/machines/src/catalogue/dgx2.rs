//! NVIDIA DGX-2: sixteen GPUs on two boards, joined by NVSwitches.

use topology::BusId;

use super::models::V100_SXM3;
use crate::build::{
    Ports, at, class, connectx, cpu, gpu, gpu_function, host, host_bridge, infiniband,
    join_switches, link, numa_nodes, nvswitch, vendor,
};
use crate::machine::{Function, HostBridge, Machine};

/// PEX 9797.
const SWITCH: Ports = Ports { vendor: vendor::PLX, device: 0x9797, generation: 3, width: 16 };

/// Root port of Xeon Scalable.
const ROOT: Ports = Ports { vendor: vendor::INTEL, device: 0x2030, generation: 3, width: 16 };

/// Device id of ConnectX-5.
const CONNECTX_5: u16 = 0x1017;

/// Device id of the first NVSwitch.
const NVSWITCH: u16 = 0x1ac2;

/// Buses of two GPUs and of the NIC between them, quarter by quarter: each quarter has one PCIe switch over
/// two, and each of those two has a group of three.
const QUARTERS: [[[u8; 3]; 2]; 4] = [
    [[0x34, 0x35, 0x36], [0x39, 0x3a, 0x3b]],
    [[0x57, 0x58, 0x59], [0x5c, 0x5d, 0x5e]],
    [[0xb7, 0xb8, 0xb9], [0xbc, 0xbd, 0xbe]],
    [[0xe0, 0xe1, 0xe2], [0xe5, 0xe6, 0xe7]],
];

/// Buses of each board's NVSwitches. The first board's are public, the second's made by analogy.
const NVSWITCHES: [[u8; 6]; 2] =
    [[0x61, 0x62, 0x63, 0x65, 0x66, 0x67], [0xea, 0xeb, 0xec, 0xee, 0xef, 0xf0]];

/// Switch numbers in the order of link numbers, as a public listing of one GPU shows them.
const LINK_ORDER: [usize; 6] = [3, 0, 2, 5, 4, 1];

fn group([gpu_a, nic, gpu_b]: [u8; 3]) -> Function {
    let gpu = |bus| vec![gpu_function(at(bus, 0, 0), &V100_SXM3)];
    let nic = vec![connectx(at(nic, 0, 0), CONNECTX_5, class::INFINIBAND, link(3, 16))];
    SWITCH.switch(at(gpu_a - 2, 0, 0), vec![(0, gpu(gpu_a)), (4, nic), (8, gpu(gpu_b))])
}

/// A quarter below its own host bridge, eight buses before its first GPU; the second quarter of each half has
/// the board's NVSwitches too.
fn quarter(number: usize) -> HostBridge {
    let [low, high] = QUARTERS[number];
    let upstream = low[0] - 8;
    let mut below = vec![(0, vec![group(low)]), (4, vec![group(high)])];
    if number % 2 == 1 {
        let switches = NVSWITCHES[number / 2];
        let port = |(device, bus)| (device, vec![nvswitch(at(bus, 0, 0), NVSWITCH)]);
        below.push((
            8,
            vec![SWITCH.switch(at(switches[0] - 2, 0, 0), (0..).zip(switches).map(port).collect())],
        ));
    }
    let top = SWITCH.switch(at(upstream, 0, 0), below);
    let root = ROOT.root_port(at(upstream - 1, 0, 0), vec![top]);
    host_bridge(upstream - 1, Some(if number < 2 { 0 } else { 1 }), vec![root])
}

/// DGX-2. Odd: sixteen GPUs, each with one link to each of its own board's six NVSwitches and to none of the
/// other board's, though all sixteen reach each other; NICs between two GPUs on one PCIe switch.
#[must_use]
pub fn dgx2() -> Machine {
    let xeon = cpu("GenuineIntel", 6, 85, "Intel(R) Xeon(R) Platinum 8168 CPU @ 2.70GHz");
    let oddity = "sixteen GPUs on two boards, each linked to its own board's six NVSwitches alone";
    let mut machine = host("dgx2", oddity, xeon, numa_nodes(2, 1, 24, 768));
    machine.product = "DGX-2".to_owned();
    machine.distances = vec![vec![10, 21], vec![21, 10]];
    machine.host_bridges = (0..4).map(quarter).collect();
    let gpus = QUARTERS.iter().flatten().flat_map(|[gpu_a, _, gpu_b]| [*gpu_a, *gpu_b]);
    machine.gpus = (0..)
        .zip(gpus)
        .map(|(index, bus)| {
            let board = usize::from(index >= 8);
            let mut gpu = gpu("dgx2", index, at(bus, 0, 0), &V100_SXM3, Some(index / 8));
            let switches: Vec<BusId> = NVSWITCHES[board].iter().map(|bus| at(*bus, 0, 0)).collect();
            join_switches(&mut gpu, LINK_ORDER.map(|number| switches[number]));
            gpu
        })
        .collect();
    let nics = QUARTERS.iter().flatten().map(|[_, nic, _]| *nic);
    machine.nics = (0..)
        .zip(nics)
        .map(|(index, bus)| infiniband(index, &format!("ib{index}"), at(bus, 0, 0), 100))
        .collect();
    machine
}
