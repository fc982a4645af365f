//! NVIDIA DGX H100.

use super::models::H100_SXM5;
use crate::build::{
    Ports, at, class, connectx, cpu, front_end, gpu, gpu_function, host, host_bridge, infiniband,
    join_switches, link, numa_nodes, nvswitch, vendor,
};
use crate::machine::{HostBridge, Machine};
use crate::scenario::{Code, Fabric};

/// PEX 89144.
const SWITCH: Ports = Ports { vendor: vendor::BROADCOM, device: 0xc030, generation: 5, width: 16 };

/// Root port of fourth generation Xeon Scalable.
const ROOT: Ports = Ports { vendor: vendor::INTEL, device: 0x352a, generation: 5, width: 16 };

/// Device id of ConnectX-7.
const CONNECTX_7: u16 = 0x1021;

/// Device id of the third NVSwitch.
const NVSWITCH: u16 = 0x22a3;

/// Buses of the NICs, each with its GPU three buses on, and their numbers as the driver gives them.
const NICS: [(u32, u8); 8] =
    [(0, 0x18), (3, 0x40), (4, 0x4f), (5, 0x5e), (6, 0x9a), (9, 0xc0), (10, 0xce), (11, 0xdc)];

/// Buses of the NVSwitches, and each GPU's links to them.
const NVSWITCHES: [(u8, usize); 4] = [(0x07, 4), (0x08, 5), (0x09, 5), (0x0a, 4)];

/// One NIC with its GPU, which is one switch further down.
fn pair(nic: u8, numa_node: u32) -> HostBridge {
    let gpu = SWITCH
        .switch(at(nic + 1, 0, 0), vec![(0, vec![gpu_function(at(nic + 3, 0, 0), &H100_SXM5)])]);
    let nic_function = connectx(at(nic, 0, 0), CONNECTX_7, class::INFINIBAND, link(5, 16));
    let top = SWITCH.switch(at(nic - 2, 0, 0), vec![(0, vec![nic_function]), (1, vec![gpu])]);
    host_bridge(nic - 3, Some(numa_node), vec![ROOT.root_port(at(nic - 3, 1, 0), vec![top])])
}

/// A card with two Ethernet ports for storage.
fn storage(bus: u8, numa_node: u32) -> HostBridge {
    let port = |function| connectx(at(bus, 0, function), CONNECTX_7, class::ETHERNET, link(5, 16));
    host_bridge(
        bus - 1,
        Some(numa_node),
        vec![ROOT.root_port(at(bus - 1, 1, 0), vec![port(0), port(1)])],
    )
}

/// DGX H100. Odd: eighteen links a GPU that its four NVSwitches do not share evenly (4, 5, 5, 4); compute NICs
/// are mlx5_0, 3, 4, 5, 6, 9, 10 and 11; fabric registration reads "completed" although nothing leaves the
/// host.
#[must_use]
pub fn dgx_h100() -> Machine {
    let xeon = cpu("GenuineIntel", 6, 143, "Intel(R) Xeon(R) Platinum 8480C");
    let oddity = "eighteen links a GPU, shared 4, 5, 5, 4 between four NVSwitches; fabric state without a fabric";
    let mut machine = host("dgx_h100", oddity, xeon, numa_nodes(2, 1, 56, 1024));
    machine.product = "DGXH100".to_owned();
    machine.distances = vec![vec![10, 21], vec![21, 10]];
    let port = |(device, (bus, _))| (device, vec![nvswitch(at(bus, 0, 0), NVSWITCH)]);
    let switches = SWITCH.switch(at(0x05, 0, 0), (0..).zip(NVSWITCHES).map(port).collect());
    let mut bridges =
        vec![host_bridge(0x00, Some(0), vec![ROOT.root_port(at(0x00, 12, 0), vec![switches])])];
    bridges.extend(NICS.iter().zip(0..).map(|((_, bus), index)| pair(*bus, index / 4)));
    bridges.extend([storage(0x29, 0), storage(0xaa, 1)]);
    bridges.sort_by_key(|bridge| bridge.bus);
    machine.host_bridges = bridges;
    machine.gpus = (0..)
        .zip(NICS)
        .map(|(index, (_, nic))| {
            let mut gpu = gpu("dgx_h100", index, at(nic + 3, 0, 0), &H100_SXM5, Some(index / 4));
            join_switches(
                &mut gpu,
                NVSWITCHES
                    .into_iter()
                    .flat_map(|(bus, count)| std::iter::repeat_n(at(bus, 0, 0), count)),
            );
            gpu.fabric = Some(Fabric {
                state: 3,
                status: Code::SUCCESS,
                cluster_uuid: [0; 16],
                clique_id: 0,
                health_mask: 0,
                health_summary: 0,
            });
            gpu
        })
        .collect();
    let mut nics: Vec<_> = NICS
        .iter()
        .map(|(number, bus)| {
            (*number, infiniband(*number, &format!("ibp{bus}s0"), at(*bus, 0, 0), 400))
        })
        .collect();
    for (number, bus, function) in [(1, 0x29, 0), (2, 0x29, 1), (7, 0xaa, 0), (8, 0xaa, 1)] {
        let name = format!("ens{bus}f{function}np{function}");
        nics.push((number, front_end(Some(number), &name, at(bus, 0, function), Some(200_000))));
    }
    nics.sort_by_key(|(number, _)| *number);
    machine.nics = nics.into_iter().map(|(_, nic)| nic).collect();
    machine
}
