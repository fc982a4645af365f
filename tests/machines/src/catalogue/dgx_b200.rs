//! NVIDIA DGX B200.

use super::models::B200_SXM;
use crate::build::{
    Ports, at, class, connectx, cpu, front_end, gpu, gpu_function, host, host_bridge, infiniband,
    join_switches, link, numa_nodes, nvswitch, vendor,
};
use crate::machine::{Driver, HostBridge, Machine};
use crate::scenario::{Code, Fabric};

/// PEX 89144.
const SWITCH: Ports = Ports { vendor: vendor::BROADCOM, device: 0xc030, generation: 5, width: 16 };

/// Root port of fifth generation Xeon Scalable.
const ROOT: Ports = Ports { vendor: vendor::INTEL, device: 0x352a, generation: 5, width: 16 };

/// Device id of ConnectX-7.
const CONNECTX_7: u16 = 0x1021;

/// Device id of the fourth NVSwitch.
const NVSWITCH: u16 = 0x22a5;

/// Buses of the NICs; each GPU is three buses on.
const NICS: [u8; 8] = [0x18, 0x40, 0x4f, 0x5e, 0x9a, 0xc0, 0xce, 0xdc];

/// Buses of the two NVSwitches.
const NVSWITCHES: [u8; 2] = [0x05, 0x06];

/// One NIC with its GPU, both below one switch.
fn pair(nic: u8, numa_node: u32) -> HostBridge {
    let nic_function = connectx(at(nic, 0, 0), CONNECTX_7, class::INFINIBAND, link(5, 16));
    let gpu = gpu_function(at(nic + 3, 0, 0), &B200_SXM);
    let switch = SWITCH.switch(at(nic - 2, 0, 0), vec![(0, vec![nic_function]), (1, vec![gpu])]);
    host_bridge(nic - 3, Some(numa_node), vec![ROOT.root_port(at(nic - 3, 1, 0), vec![switch])])
}

/// DGX B200. Odd: two NVSwitches instead of four, nine links to each; registration completes with a healthy mask
/// (0xaa: all four conditions known to be false) and a zero cluster, since nothing leaves the host. Wiring of PCIe by
/// analogy with DGX H100, but with one switch for both.
#[must_use]
pub fn dgx_b200() -> Machine {
    let xeon = cpu("GenuineIntel", 6, 207, "Intel(R) Xeon(R) Platinum 8570");
    let oddity = "two NVSwitches with nine links each; a healthy fabric mask without a cluster";
    let mut machine = host("dgx_b200", oddity, xeon, numa_nodes(2, 1, 56, 1024));
    machine.product = "DGXB200".to_owned();
    machine.driver = Some(Driver { version: "570.133.20".to_owned(), cuda: 12080, open: true });
    machine.peermem = false;
    machine.distances = vec![vec![10, 21], vec![21, 10]];
    let port = |(device, bus)| (device, vec![nvswitch(at(bus, 0, 0), NVSWITCH)]);
    let switches = SWITCH.switch(at(0x03, 0, 0), (0..).zip(NVSWITCHES).map(port).collect());
    let mut bridges =
        vec![host_bridge(0x00, Some(0), vec![ROOT.root_port(at(0x00, 12, 0), vec![switches])])];
    bridges.extend(NICS.iter().zip(0..).map(|(bus, index)| pair(*bus, index / 4)));
    let storage =
        |function| connectx(at(0x29, 0, function), CONNECTX_7, class::ETHERNET, link(5, 16));
    let port = ROOT.root_port(at(0x28, 1, 0), vec![storage(0), storage(1)]);
    bridges.push(host_bridge(0x28, Some(0), vec![port]));
    bridges.sort_by_key(|bridge| bridge.bus);
    machine.host_bridges = bridges;
    machine.gpus = (0..)
        .zip(NICS)
        .map(|(index, nic)| {
            let mut gpu = gpu("dgx_b200", index, at(nic + 3, 0, 0), &B200_SXM, Some(index / 4));
            join_switches(&mut gpu, NVSWITCHES.into_iter().flat_map(|bus| [at(bus, 0, 0); 9]));
            gpu.fabric = Some(Fabric {
                state: 3,
                status: Code::SUCCESS,
                cluster_uuid: [0; 16],
                clique_id: 0,
                health_mask: 0xaa,
                health_summary: 1,
            });
            gpu
        })
        .collect();
    let compute = (0..).zip(NICS).map(|(number, bus)| {
        let number = if number < 1 { number } else { number + 2 };
        (number, infiniband(number, &format!("ibp{bus}s0"), at(bus, 0, 0), 400))
    });
    let mut nics: Vec<_> = compute.collect();
    for (number, function) in [(1, 0), (2, 1)] {
        let name = format!("ens41f{function}np{function}");
        nics.push((number, front_end(Some(number), &name, at(0x29, 0, function), Some(200_000))));
    }
    nics.sort_by_key(|(number, _)| *number);
    machine.nics = nics.into_iter().map(|(_, nic)| nic).collect();
    machine
}
