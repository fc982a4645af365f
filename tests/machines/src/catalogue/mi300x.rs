//! A server with eight AMD Instinct MI300X.

use super::models::MI300X;
use crate::build::{
    Ports, at, class, connectx, cpu, front_end, gpu, gpu_function, host, host_bridge, join, link,
    numa_nodes, vendor,
};
use crate::machine::{HostBridge, Machine};
use topology::snapshot::NicRole;

/// PEX 89104.
const SWITCH: Ports = Ports { vendor: vendor::BROADCOM, device: 0xc030, generation: 5, width: 16 };

/// Root port of EPYC Genoa.
const ROOT: Ports = Ports { vendor: vendor::AMD, device: 0x14ab, generation: 5, width: 16 };

/// Device id of ConnectX-7.
const CONNECTX_7: u16 = 0x1021;

/// Buses of the GPUs in the order of their addresses; each NIC is on the bus before.
const GPUS: [u8; 8] = [0x0c, 0x22, 0x38, 0x5c, 0x9f, 0xaf, 0xbf, 0xdf];

/// A GPU and a NIC below one switch.
fn pair(bus: u8, numa_node: u32) -> HostBridge {
    let nic = connectx(at(bus - 1, 0, 0), CONNECTX_7, class::ETHERNET, link(5, 16));
    let gpu = gpu_function(at(bus, 0, 0), &MI300X);
    let switch = SWITCH.switch(at(bus - 3, 0, 0), vec![(0, vec![nic]), (1, vec![gpu])]);
    host_bridge(bus - 4, Some(numa_node), vec![ROOT.root_port(at(bus - 4, 1, 1), vec![switch])])
}

/// Eight MI300X. Odd: no NVIDIA driver at all; GPUs are processing accelerators to PCI and known from the compute
/// driver's files; one xGMI link between each two; eight RoCE ports.
#[must_use]
pub fn mi300x() -> Machine {
    let epyc = cpu("AuthenticAMD", 25, 17, "AMD EPYC 9654 96-Core Processor");
    let oddity = "GPUs that PCI calls accelerators, known from the kernel's compute driver alone";
    let mut machine = host("mi300x", oddity, epyc, numa_nodes(2, 1, 96, 1152));
    machine.vendor = "Generic".to_owned();
    machine.product = "MI300X platform".to_owned();
    machine.driver = None;
    machine.kernel = "6.8.0-60-generic".to_owned();
    machine.command_line =
        format!("BOOT_IMAGE=/boot/vmlinuz-{} ro amd_iommu=on iommu=pt", machine.kernel);
    machine.iommu = Some("identity");
    machine.host_bridges = GPUS.iter().zip(0..).map(|(bus, index)| pair(*bus, index / 4)).collect();
    machine.gpus = (0..)
        .zip(GPUS)
        .map(|(index, bus)| gpu("mi300x", index, at(bus, 0, 0), &MI300X, Some(index / 4)))
        .collect();
    for a in 0..GPUS.len() {
        for b in a + 1..GPUS.len() {
            join(&mut machine.gpus, a, b, 1);
        }
    }
    machine.nics = (0..)
        .zip(GPUS)
        .map(|(number, bus)| {
            let name = format!("eth{number}");
            let mut nic = front_end(Some(number), &name, at(bus - 1, 0, 0), Some(400_000));
            nic.role = NicRole::Fabric;
            nic
        })
        .collect();
    machine
}
