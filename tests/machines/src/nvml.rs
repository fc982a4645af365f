//! What the driver shows of a machine.

use topology::BusId;

use crate::build::vendor;
use crate::machine::{Function, FunctionKind, Gpu, Machine, NvLink, NvLinkPeer};
use crate::scenario::{
    Action, C2cLink, Code, Device, Fault, Level, Mig, NvLink as LinkAnswer, P2p, Pair, Pcie,
    Remote, RemoteKind, Scenario,
};

impl Machine {
    /// The NVML double's scenario for this machine. Without a driver initialising fails.
    #[must_use]
    pub fn scenario(&self) -> Scenario {
        let mut faults = self.faults.clone();
        if self.driver.is_none() {
            faults.insert(0, Fault::new("nvmlInit*", Action::Return(Code::DRIVER_NOT_LOADED)));
        }
        let version = self.driver.as_ref().map_or("", |driver| &driver.version);
        let cuda = self.driver.as_ref().map_or(0, |driver| driver.cuda);
        Scenario {
            driver_version: version.to_owned(),
            nvml_version: format!("{}.{version}", cuda / 1000),
            cuda_driver_version: cuda,
            max_links: 18,
            absent_link: Code::NOT_SUPPORTED,
            confidential: self.confidential,
            devices: (0..)
                .zip(&self.gpus)
                .filter(|(_, gpu)| gpu.model.gfx_target_version.is_none())
                .map(|(index, gpu)| self.device(index, gpu))
                .collect(),
            pairs: self.pairs(),
            events: self.events.clone(),
            faults,
            call_log: self.call_log.clone(),
        }
    }

    fn device(&self, index: u32, gpu: &Gpu) -> Device {
        let model = gpu.model;
        // In a virtual machine that tells no node, NVML names every CPU and every node.
        let cpus = gpu.numa_node.and_then(|node| self.cpus_of(node)).cloned();
        let nodes = || (0..).zip(&self.numa_nodes).map(|(id, _)| id).collect();
        Device {
            uuid: gpu.uuid.clone(),
            name: model.name.to_owned(),
            bus_id: gpu.bus_id,
            pci_device_id: ids(model.device, vendor::NVIDIA),
            pci_subsystem_id: ids(model.subsystem, vendor::NVIDIA),
            minor: index,
            serial: Some(format!("{index:013}")),
            board_part_number: Some("900-00000-0000-000".to_owned()),
            memory_total: model.memory_bytes,
            compute_capability: model.compute_capability,
            mig: model.mig.then_some(Mig { current: gpu.mig, pending: gpu.mig }),
            cpus: Some(cpus.unwrap_or_else(|| self.all_cpus())),
            memory_nodes: Some(gpu.numa_node.map_or_else(nodes, |node| vec![node])),
            own_numa_node: gpu.memory_node,
            pcie: self.pcie(gpu),
            nvlinks: gpu.links.iter().map(|link| self.link_answer(gpu, link)).collect(),
            c2c_links: gpu
                .c2c
                .map(|(count, mbytes_per_second)| {
                    vec![C2cLink { active: true, mbytes_per_second }; count as usize]
                })
                .unwrap_or_default(),
            fabric: gpu.fabric.clone(),
            module_id: None,
        }
    }

    /// NVML's view of the PCIe link: `max` is the lesser of the GPU and the port above it.
    fn pcie(&self, gpu: &Gpu) -> Pcie {
        let path = self.path_to(gpu.bus_id).map(|(_, path)| path).unwrap_or_default();
        let own = path.last().and_then(|function| function.link);
        let above = path.iter().rev().nth(1).and_then(|function| function.link);
        let best = gpu.model.pcie_generation;
        let slot = above.map_or(best, |link| generation(link.max.mtps));
        let slot_width = above.map_or(16, |link| u32::from(link.max.width));
        Pcie {
            max_generation: best.min(slot),
            device_max_generation: best,
            max_width: slot_width.min(16),
            current_generation: own.map_or(best, |link| generation(link.trained.mtps)),
            current_width: own.map_or(16, |link| u32::from(link.trained.width)),
        }
    }

    fn link_answer(&self, gpu: &Gpu, link: &NvLink) -> LinkAnswer {
        let remote = match link.peer {
            NvLinkPeer::Gpu(index, number) => self.gpus.get(index).map(|peer| Remote {
                kind: RemoteKind::Gpu,
                bus_id: peer.bus_id.to_string(),
                pci_device_id: ids(peer.model.device, vendor::NVIDIA),
                link: u32::try_from(number).ok(),
            }),
            NvLinkPeer::Switch(bus_id) => Some(Remote {
                kind: RemoteKind::Switch,
                bus_id: bus_id.to_string(),
                pci_device_id: self.device_id_of(bus_id),
                link: None,
            }),
            NvLinkPeer::Nothing => None,
        };
        LinkAnswer {
            active: link.active,
            version: gpu.model.nvlink_version,
            mbytes_per_second: gpu.model.nvlink_mbytes_per_second,
            remote: if link.active { remote } else { None },
            errors: link.errors.clone(),
        }
    }

    /// 0 where this host does not see the function.
    fn device_id_of(&self, bus_id: BusId) -> u32 {
        let path = self.path_to(bus_id).map(|(_, path)| path).unwrap_or_default();
        path.last().map_or(0, |function| ids(function.ids.device, function.ids.vendor))
    }

    /// What NVML says of each two GPUs, the one of the lower index second.
    pub(crate) fn pairs(&self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for (b, right) in self.gpus.iter().enumerate() {
            for (a, left) in self.gpus[..b].iter().enumerate() {
                let level = self.level(left.bus_id, right.bus_id);
                let linked = self.linked(a, b);
                let denied = self.p2p_denied.iter().any(|pair| *pair == (a, b) || *pair == (b, a));
                let same_socket = level <= Level::Node || self.p2p_across_sockets;
                let (read, nvlink, pci) = match () {
                    () if left.mig || right.mig => {
                        (P2p::GpuNotSupported, P2p::GpuNotSupported, P2p::GpuNotSupported)
                    }
                    () if denied => {
                        (P2p::ChipsetNotSupported, P2p::NotSupported, P2p::ChipsetNotSupported)
                    }
                    () => {
                        let pci = if same_socket { P2p::Ok } else { P2p::TopologyNotSupported };
                        let nvlink = if linked { P2p::Ok } else { P2p::NotSupported };
                        (if linked { P2p::Ok } else { pci }, nvlink, pci)
                    }
                };
                // Atomic operations between GPUs work over NVLink alone.
                pairs.push(Pair {
                    a: number(a),
                    b: number(b),
                    level,
                    read,
                    write: read,
                    nvlink,
                    atomics: nvlink,
                    pci,
                });
            }
        }
        pairs
    }

    /// Whether NVLinks lead from one GPU to the other, directly or through switches.
    fn linked(&self, a: usize, b: usize) -> bool {
        let active = |index: usize| self.gpus[index].links.iter().filter(|link| link.active);
        let to_switch =
            |index| active(index).any(|link| matches!(link.peer, NvLinkPeer::Switch(_)));
        let direct =
            active(a).any(|link| matches!(link.peer, NvLinkPeer::Gpu(peer, _) if peer == b));
        direct || (to_switch(a) && to_switch(b))
    }

    /// NVML's level at which the PCIe paths of two devices meet.
    #[must_use]
    pub fn level(&self, a: BusId, b: BusId) -> Level {
        let (Some((bridge_a, path_a)), Some((bridge_b, path_b))) =
            (self.path_to(a), self.path_to(b))
        else {
            return Level::System;
        };
        let shared = path_a.iter().zip(&path_b).take_while(|(x, y)| x.bus_id == y.bus_id).count();
        match path_a[..shared].last() {
            Some(meeting) => {
                // Switches crossed: the one they meet in, and those below it on either side.
                let below = |path: &[&Function]| {
                    path[shared..]
                        .iter()
                        .filter(|function| function.kind == FunctionKind::UpstreamPort)
                        .count()
                };
                let inside = usize::from(meeting.kind == FunctionKind::UpstreamPort);
                if inside + below(&path_a) + below(&path_b) <= 1 {
                    Level::Single
                } else {
                    Level::Multiple
                }
            }
            None if bridge_a.name() == bridge_b.name() => Level::HostBridge,
            None => match (self.numa_node_of(a), self.numa_node_of(b)) {
                (Some(x), Some(y)) if x == y => Level::Node,
                _ => Level::System,
            },
        }
    }
}

fn ids(device: u16, vendor: u16) -> u32 {
    u32::from(device) << 16 | u32::from(vendor)
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

const fn generation(mtps: u32) -> u32 {
    match mtps {
        2_500 => 1,
        5_000 => 2,
        8_000 => 3,
        16_000 => 4,
        32_000 => 5,
        _ => 6,
    }
}
