//! NVIDIA DGX-1: eight GPUs in a hybrid cube mesh, no NVSwitch.

use super::models::{P100_SXM2, V100_SXM2};
use crate::build::{
    Ports, at, class, connectx, cpu, gpu, gpu_function, host, host_bridge, infiniband, join, link,
    numa_nodes, vendor,
};
use crate::machine::{GpuModel, HostBridge, Machine};

/// PEX 8764, one for each pair of GPUs.
const SWITCH: Ports = Ports { vendor: vendor::PLX, device: 0x8764, generation: 3, width: 16 };

/// Root port of Xeon E5 v4.
const ROOT: Ports = Ports { vendor: vendor::INTEL, device: 0x6f04, generation: 3, width: 16 };

/// Device id of ConnectX-4.
const CONNECTX_4: u16 = 0x1013;

/// Buses of the GPUs in index order, and of the NICs in name order.
const GPUS: [u8; 8] = [0x06, 0x07, 0x0a, 0x0b, 0x85, 0x86, 0x89, 0x8a];
const NICS: [u8; 4] = [0x05, 0x0c, 0x84, 0x8b];

/// One socket: two switches, each with two GPUs and a NIC. The NIC sits below the first GPU of the one
/// switch and above the second of the other, as the addresses of real machines show.
fn socket(bus: u8, first: u8, numa_node: u32, model: &GpuModel) -> HostBridge {
    let gpu = |bus| vec![gpu_function(at(bus, 0, 0), model)];
    let nic = |bus| vec![connectx(at(bus, 0, 0), CONNECTX_4, class::INFINIBAND, link(3, 16))];
    let low = SWITCH.switch(
        at(first, 0, 0),
        vec![(4, vec![]), (8, nic(first + 3)), (12, gpu(first + 4)), (16, gpu(first + 5))],
    );
    let high = SWITCH.switch(
        at(first + 6, 0, 0),
        vec![(8, gpu(first + 8)), (12, gpu(first + 9)), (16, nic(first + 10))],
    );
    let ports =
        vec![ROOT.root_port(at(bus, 2, 0), vec![low]), ROOT.root_port(at(bus, 3, 0), vec![high])];
    host_bridge(bus, Some(numa_node), ports)
}

fn dgx1(name: &'static str, oddity: &'static str, model: &'static GpuModel) -> Machine {
    let xeon = cpu("GenuineIntel", 6, 79, "Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz");
    let mut machine = host(name, oddity, xeon, numa_nodes(2, 1, 20, 256));
    machine.product = "DGX-1".to_owned();
    machine.distances = vec![vec![10, 21], vec![21, 10]];
    machine.host_bridges = vec![socket(0x00, 0x02, 0, model), socket(0x80, 0x81, 1, model)];
    machine.gpus = (0..)
        .zip(GPUS)
        .map(|(index, bus)| gpu(name, index, at(bus, 0, 0), model, Some(index / 4)))
        .collect();
    machine.nics = (0..)
        .zip(NICS)
        .map(|(index, bus)| infiniband(index, &format!("ib{index}"), at(bus, 0, 0), 100))
        .collect();
    // The two sockets' root complexes do not forward peer requests to each other.
    machine.p2p_across_sockets = false;
    machine
}

/// DGX-1 with V100. Odd: six links a GPU over four neighbours, so two of them are joined twice; three GPUs are
/// no neighbour and are reached over PCIe and the socket link, or through another GPU.
#[must_use]
pub fn dgx1v() -> Machine {
    let mut machine = dgx1(
        "dgx1v",
        "hybrid cube mesh whose NVLinks are single to two neighbours and double to two, and absent to three GPUs",
        &V100_SXM2,
    );
    // The wiring of NVIDIA's white paper on the DGX-1 with V100: each half is a square with both diagonals, and the
    // halves are joined corner to corner.
    for half in [0, 4] {
        for (a, b, count) in [(0, 1, 1), (0, 2, 1), (0, 3, 2), (1, 2, 2), (1, 3, 1), (2, 3, 2)] {
            join(&mut machine.gpus, half + a, half + b, count);
        }
    }
    for (corner, count) in [(0, 2), (1, 2), (2, 1), (3, 1)] {
        join(&mut machine.gpus, corner, corner + 4, count);
    }
    machine
}

/// DGX-1 with P100. Odd: four links a GPU, one to each neighbour, at NVLink 1 rates.
#[must_use]
pub fn dgx1p() -> Machine {
    let mut machine = dgx1(
        "dgx1p",
        "hybrid cube mesh of single NVLinks at the first generation's rate",
        &P100_SXM2,
    );
    for half in [0, 4] {
        for (a, b) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
            join(&mut machine.gpus, half + a, half + b, 1);
        }
    }
    for corner in 0..4 {
        join(&mut machine.gpus, corner, corner + 4, 1);
    }
    machine
}
