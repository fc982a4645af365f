//! A compute tray of an NVIDIA GB200 NVL72 rack.

use topology::snapshot::{LinkLayer, NicRole};
use topology::{BusId, CpuArch, CpuList};

use super::models::GB200;
use crate::build::{Ports, class, connectx, gpu, gpu_function, host, link, up, vendor};
use crate::machine::{Cpu, Driver, Function, HostBridge, Machine, Nic, NumaNode, NvLinkPeer};
use crate::scenario::{Code, Fabric};

/// Root port of Grace.
const ROOT: Ports = Ports { vendor: vendor::NVIDIA, device: 0x22b8, generation: 5, width: 16 };

/// Device ids of ConnectX-7 and of BlueField-3.
const CONNECTX_7: u16 = 0x1021;
const BLUEFIELD_3: u16 = 0xa2dc;

/// PCI domains of the GPUs in index order, of the ConnectX-7 and of the BlueField-3: each root port is a domain.
const GPUS: [u32; 4] = [0x0008, 0x0009, 0x0018, 0x0019];
const CONNECTX: [u32; 4] = [0x0000, 0x0002, 0x0010, 0x0012];
const BLUEFIELDS: [u32; 2] = [0x0006, 0x0016];

/// Links of a GPU, two to each of the rack's nine switch trays.
const LINKS: u32 = 18;

/// Chip-to-chip links of a GPU and MB/s of each direction of one: 450 GB/s in all.
const C2C: (u32, u32) = (10, 44_712);

/// NUMA nodes of a GPU's memory: its own, and seven more for partitions, which have none until they are made.
const NODES_OF_A_GPU: u32 = 8;

fn at(domain: u32, bus: u8, function: u8) -> BusId {
    BusId::new(domain, bus, 0, function).expect("descriptions name real addresses")
}

/// A root port of a domain of its own with one device.
fn bridge(domain: u32, numa_node: u32, device: Function) -> HostBridge {
    let mut device = device;
    device.numa_node = Some(numa_node);
    let mut port = ROOT.root_port(at(domain, 0, 0), vec![device]);
    port.numa_node = Some(numa_node);
    HostBridge { domain, bus: 0, functions: vec![port] }
}

/// A compute tray: two Grace processors, four Blackwell GPUs. Odd: Arm processors without vendor or family; 34 NUMA
/// nodes, 32 of them the GPUs' memory and without a CPU; PCI domains beyond 0; NVLinks to switches that are other
/// machines; a clique of 72 GPUs in 18 hosts.
#[must_use]
pub fn gb200_tray() -> Machine {
    const NAME: &str = "gb200_tray";
    let grace = Cpu {
        arch: CpuArch::Arm64,
        vendor: "ARM".to_owned(),
        family: 0,
        model: 0,
        name: "Neoverse-V2".to_owned(),
    };
    let mut nodes: Vec<NumaNode> = (0..2)
        .map(|package| NumaNode {
            package,
            cpus: CpuList::from_cpus(package * 72..(package + 1) * 72),
            memory_bytes: 480 << 30,
        })
        .collect();
    for place in 0..4 * NODES_OF_A_GPU {
        let (index, own) = (place / NODES_OF_A_GPU, place % NODES_OF_A_GPU == 0);
        let memory_bytes = if own { GB200.memory_bytes } else { 0 };
        nodes.push(NumaNode { package: index / 2, cpus: CpuList::default(), memory_bytes });
    }
    let oddity =
        "34 NUMA nodes, 32 of GPU memory; NVLinks to switches of the rack; PCI domains beyond 0";
    let mut machine = host(NAME, oddity, grace, nodes);
    machine.product = "GB200 NVL".to_owned();
    machine.threads_per_core = 1;
    machine.kernel = "6.8.0-1025-nvidia-64k".to_owned();
    machine.command_line =
        format!("BOOT_IMAGE=/boot/vmlinuz-{} ro iommu.passthrough=1", machine.kernel);
    machine.iommu = Some("identity");
    machine.driver = Some(Driver { version: "570.133.20".to_owned(), cuda: 12080, open: true });
    machine.peermem = false;
    machine.imex_channels = Some(1);
    machine.distances = machine
        .numa_nodes
        .iter()
        .enumerate()
        .map(|(a, x)| {
            let distance = |(b, y): (usize, &NumaNode)| match () {
                () if a == b => 10,
                () if a < 2 && b < 2 => 40,
                () if x.package == y.package => 80,
                () => 120,
            };
            machine.numa_nodes.iter().enumerate().map(distance).collect()
        })
        .collect();
    let numa = |place: usize| u32::from(place >= 2);
    let mut bridges = Vec::new();
    for (place, domain) in GPUS.into_iter().enumerate() {
        bridges.push(bridge(domain, numa(place), gpu_function(at(domain, 1, 0), &GB200)));
    }
    for (place, domain) in CONNECTX.into_iter().enumerate() {
        let nic = connectx(at(domain, 3, 0), CONNECTX_7, class::INFINIBAND, link(5, 16));
        bridges.push(bridge(domain, numa(place), nic));
    }
    for (place, domain) in BLUEFIELDS.into_iter().enumerate() {
        let nic = connectx(at(domain, 3, 0), BLUEFIELD_3, class::ETHERNET, link(5, 16));
        bridges.push(bridge(domain, numa(2 * place), nic));
    }
    bridges.sort_by_key(|bridge| bridge.domain);
    machine.host_bridges = bridges;
    machine.gpus = (0..)
        .zip(GPUS)
        .map(|(index, domain)| {
            let mut gpu = gpu(NAME, index, at(domain, 1, 0), &GB200, Some(index / 2));
            // Where a switch tray's port lies on its own host is not this host's to see.
            gpu.links = (0..LINKS)
                .map(|number| {
                    let tray = 0xf000 + number / 2;
                    up(NvLinkPeer::Switch(at(tray, 1, 0)))
                })
                .collect();
            gpu.c2c = Some(C2C);
            gpu.memory_node = Some(2 + index * NODES_OF_A_GPU);
            gpu.fabric = Some(Fabric {
                state: 3,
                status: Code::SUCCESS,
                cluster_uuid: *b"a rack of topod.",
                clique_id: 32_764,
                health_mask: 0xaa,
                health_summary: 1,
            });
            gpu
        })
        .collect();
    let nic = |number: u32, domain: u32, layer: LinkLayer, gbit: u64, role: NicRole| Nic {
        rdma: Some(format!("mlx5_{number}")),
        netdev: Some(match layer {
            LinkLayer::Infiniband => format!("ib{number}"),
            LinkLayer::Ethernet => format!("enP{domain}s3f0np0"),
        }),
        bus_id: at(domain, 3, 0),
        link_layer: layer,
        mbit: Some(gbit * 1000),
        up: true,
        link_downed: 0,
        role,
    };
    // As the driver numbers them: by address.
    let mut all: Vec<(u32, LinkLayer, u64, NicRole)> =
        CONNECTX.map(|d| (d, LinkLayer::Infiniband, 400, NicRole::Fabric)).into();
    all.extend(BLUEFIELDS.map(|d| (d, LinkLayer::Ethernet, 200, NicRole::Other)));
    all.sort_by_key(|(domain, ..)| *domain);
    machine.nics = (0..)
        .zip(all)
        .map(|(number, (domain, layer, gbit, role))| nic(number, domain, layer, gbit, role))
        .collect();
    machine
}
