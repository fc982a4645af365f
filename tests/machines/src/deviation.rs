//! What may be wrong with a machine.

use std::path::PathBuf;

use topology::BusId;
use topology::snapshot::PcieLink;

use crate::build::mtps;
use crate::machine::{Function, Machine, NvLinkPeer};
use crate::scenario::{Action, Code, Fault};

/// One thing that is not as its maker meant it. GPUs are named by index, NICs by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// A GPU's link of a number is down, at both ends.
    NvLinkDown {
        /// GPU.
        gpu: usize,
        /// Link number.
        link: usize,
    },
    /// All of a GPU's links are down.
    NvLinksDown {
        /// GPU.
        gpu: usize,
    },
    /// A NIC's PCIe link trained at half its width.
    HalfWidth {
        /// NIC.
        nic: String,
    },
    /// A NIC's port is down.
    PortDown {
        /// NIC.
        nic: String,
    },
    /// Firmware tells no NUMA node for any PCI function; the driver still knows its GPUs'.
    NumaUnknown,
    /// Every GPU is idle: its PCIe link runs at the first generation's speed, at full width.
    Idle,
    /// A GPU has fallen off the bus: sysfs still lists it, NVML calls it lost.
    GpuLost {
        /// GPU.
        gpu: usize,
    },
    /// The process may not use a GPU, as under a device control group.
    GpuDenied {
        /// GPU.
        gpu: usize,
    },
    /// No GPU driver is loaded.
    NoDriver,
    /// A GPU is partitioned.
    MigOn {
        /// GPU.
        gpu: usize,
    },
    /// NVML denies peer access between two GPUs.
    PeerAccessDenied {
        /// One GPU.
        a: usize,
        /// The other.
        b: usize,
    },
    /// Every port redirects peer requests to the root complex (ACS request and completion redirect).
    AcsOn,
    /// The reader is not root: of each `config` file only 64 bytes.
    Unprivileged,
    /// The kernel module for GPUDirect RDMA is not loaded.
    NoPeermem,
    /// An NVML call hangs, for one GPU or all, until a file is gone or for ever.
    Hang {
        /// Function, or its start with `*`.
        call: String,
        /// GPU.
        gpu: Option<usize>,
        /// The file.
        until_gone: Option<PathBuf>,
    },
    /// A PCI function without link attributes, as under old kernels and in some virtual machines.
    LinkUnknown {
        /// The function.
        bus_id: BusId,
    },
    /// Any fault of the NVML double.
    Nvml(Fault),
}

impl Machine {
    /// The machine with something wrong.
    ///
    /// # Panics
    /// Where the machine has no such GPU, link or NIC: the test that says so is wrong.
    #[must_use]
    pub fn with(mut self, deviation: Deviation) -> Self {
        match deviation {
            Deviation::NvLinkDown { gpu, link } => self.take_down(gpu, link),
            Deviation::NvLinksDown { gpu } => {
                for link in 0..self.gpus[gpu].links.len() {
                    self.take_down(gpu, link);
                }
            }
            Deviation::HalfWidth { nic } => {
                let bus_id = self.nic_mut(&nic).bus_id;
                self.train(bus_id, |link| PcieLink { width: link.width / 2, ..link });
            }
            Deviation::PortDown { nic } => {
                let nic = self.nic_mut(&nic);
                nic.up = false;
                nic.link_downed += 1;
            }
            Deviation::NumaUnknown => self.each_function(&mut |function| function.numa_node = None),
            Deviation::Idle => {
                for bus_id in self.gpus.iter().map(|gpu| gpu.bus_id).collect::<Vec<_>>() {
                    self.train(bus_id, |link| PcieLink { mtps: mtps(1), ..link });
                }
            }
            Deviation::GpuLost { gpu } => self.spoil(gpu, Code::GPU_IS_LOST),
            Deviation::GpuDenied { gpu } => self.spoil(gpu, Code::NO_PERMISSION),
            Deviation::NoDriver => self.driver = None,
            Deviation::MigOn { gpu } => self.gpus[gpu].mig = true,
            Deviation::PeerAccessDenied { a, b } => {
                assert!(a.max(b) < self.gpus.len(), "{} has no such GPUs", self.name);
                self.p2p_denied.push((a, b));
            }
            Deviation::AcsOn => self.each_function(&mut |function| {
                // What kernels set where they isolate devices: validation, request and completion redirect,
                // forwarding.
                function.acs = function.acs.map(|_| 0x1d);
            }),
            Deviation::Unprivileged => self.privileged = false,
            Deviation::NoPeermem => self.peermem = false,
            Deviation::Hang { call, gpu, until_gone } => {
                let fault = Fault::new(&call, Action::Hang { until_gone });
                self.faults.push(match gpu {
                    Some(gpu) => fault.on_device(self.index(gpu)),
                    None => fault,
                });
            }
            Deviation::LinkUnknown { bus_id } => self.function(bus_id).link = None,
            Deviation::Nvml(fault) => self.faults.push(fault),
        }
        self
    }

    fn take_down(&mut self, gpu: usize, link: usize) {
        self.gpus[gpu].links[link].active = false;
        if let NvLinkPeer::Gpu(peer, back) = self.gpus[gpu].links[link].peer {
            self.gpus[peer].links[back].active = false;
        }
    }

    /// Changes what the link above a device trained to, as both ends see it.
    fn train(&mut self, bus_id: BusId, change: impl Fn(PcieLink) -> PcieLink) {
        let above = self
            .path_to(bus_id)
            .and_then(|(_, path)| path.iter().rev().nth(1).map(|port| port.bus_id));
        for end in [Some(bus_id), above].into_iter().flatten() {
            if let Some(link) = &mut self.function(end).link {
                link.trained = change(link.trained);
            }
        }
    }

    /// Every call that touches the device fails.
    fn spoil(&mut self, gpu: usize, code: Code) {
        let fault = Fault::new("nvmlDevice*", Action::Return(code)).on_device(self.index(gpu));
        self.faults.push(fault);
    }

    fn index(&self, gpu: usize) -> u32 {
        assert!(gpu < self.gpus.len(), "{} has no GPU {gpu}", self.name);
        u32::try_from(gpu).expect("no machine has four billion GPUs")
    }

    fn nic_mut(&mut self, name: &str) -> &mut crate::machine::Nic {
        let machine = self.name;
        let nic = self.nics.iter_mut().find(|nic| nic.name() == name);
        nic.unwrap_or_else(|| panic!("{machine} has no NIC {name}"))
    }

    fn function(&mut self, bus_id: BusId) -> &mut Function {
        let machine = self.name;
        self.function_mut(bus_id).unwrap_or_else(|| panic!("{machine} has no function {bus_id}"))
    }

    fn each_function(&mut self, change: &mut dyn FnMut(&mut Function)) {
        fn walk(functions: &mut [Function], change: &mut dyn FnMut(&mut Function)) {
            for function in functions {
                change(function);
                walk(&mut function.children, change);
            }
        }
        for bridge in &mut self.host_bridges {
            walk(&mut bridge.functions, change);
        }
    }
}
