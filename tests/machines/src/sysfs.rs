//! The device tree and `/proc`, as the kernel shows them.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use topology::snapshot::{LinkLayer, PcieLink};
use topology::{CpuArch, CpuList};

use crate::build::{class, vendor};
use crate::config_space::{self, Buses};
use crate::machine::{Function, FunctionKind, Machine, Nic, NvLinkPeer};

/// A directory being filled.
struct Tree(PathBuf);

impl Tree {
    /// Writes a line, as almost every file of sysfs is one.
    fn line(&self, path: &str, text: impl std::fmt::Display) -> io::Result<()> {
        self.file(path, format!("{text}\n").as_bytes())
    }

    fn file(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.0.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, bytes)
    }

    fn directory(&self, path: &str) -> io::Result<()> {
        fs::create_dir_all(self.0.join(path))
    }

    /// A link to another path of the tree, relative as in sysfs.
    fn link(&self, path: &str, target: &str) -> io::Result<()> {
        let from = Path::new(path);
        let depth = from.parent().map_or(0, |parent| parent.components().count());
        let shared = from
            .components()
            .zip(Path::new(target).components())
            .take_while(|(a, b)| a == b)
            .count();
        let shared = shared.min(depth);
        let rest: PathBuf = Path::new(target).components().skip(shared).collect();
        let ups: PathBuf = std::iter::repeat_n("..", depth - shared).collect();
        let path = self.0.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        symlink(ups.join(rest), path)
    }
}

impl Machine {
    /// Writes `sys` and `proc` below a directory that is made.
    pub(crate) fn write_root(&self, root: &Path) -> io::Result<()> {
        let tree = Tree(root.to_owned());
        self.write_host(&tree)?;
        self.write_cpus(&tree)?;
        self.write_nodes(&tree)?;
        tree.directory("sys/bus/pci/devices")?;
        for bridge in &self.host_bridges {
            let base = format!("sys/devices/{}", bridge.name());
            tree.directory(&base)?;
            self.write_functions(&tree, &base, bridge.bus, &bridge.functions)?;
        }
        for (number, nic) in (0..).zip(&self.nics) {
            self.write_nic(&tree, number, nic)?;
        }
        Ok(())
    }

    fn write_host(&self, tree: &Tree) -> io::Result<()> {
        tree.line("sys/devices/virtual/dmi/id/sys_vendor", &self.vendor)?;
        tree.line("sys/devices/virtual/dmi/id/product_name", &self.product)?;
        tree.link("sys/class/dmi/id", "sys/devices/virtual/dmi/id")?;
        tree.line("proc/sys/kernel/osrelease", &self.kernel)?;
        tree.line("proc/sys/kernel/ostype", "Linux")?;
        tree.line("proc/version", format!("Linux version {} (gcc) #1 SMP", self.kernel))?;
        tree.line("proc/cmdline", &self.command_line)?;
        let mut modules = String::new();
        let mut load = |name: &str| {
            let _ = writeln!(modules, "{name} 16384 0 - Live 0x0000000000000000");
        };
        if self.nics.iter().any(|nic| nic.rdma.is_some()) {
            ["mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs"].into_iter().for_each(&mut load);
        }
        if self.gpus.iter().any(|gpu| gpu.model.gfx_target_version.is_some()) {
            load("amdgpu");
            self.write_kfd(tree)?;
        }
        tree.directory("sys/kernel/mm/hugepages")?;
        tree.directory("sys/kernel/iommu_groups")?;
        if let Some(channels) = self.imex_channels {
            for channel in 0..channels {
                tree.file(&format!("dev/nvidia-caps-imex-channels/channel{channel}"), b"")?;
            }
            tree.directory("dev/nvidia-caps-imex-channels")?;
        }
        let nvidia = self.gpus.iter().any(|gpu| gpu.model.gfx_target_version.is_none());
        if let Some(driver) = self.driver.as_ref().filter(|_| nvidia) {
            load("nvidia");
            let flavour = match (driver.open, self.cpu.arch) {
                (true, CpuArch::X86_64) => "Open Kernel Module for x86_64",
                (true, _) => "Open Kernel Module for aarch64",
                (false, _) => "x86_64 Kernel Module",
            };
            let banner = format!(
                "NVRM version: NVIDIA UNIX {flavour}  {}  Thu Jan  1 00:00:00 UTC 1970",
                driver.version
            );
            tree.line("proc/driver/nvidia/version", banner)?;
            tree.line("sys/module/nvidia/version", &driver.version)?;
            if self.peermem {
                load("nvidia_peermem");
                tree.line("sys/module/nvidia_peermem/version", &driver.version)?;
                tree.line("sys/kernel/mm/memory_peers/nv_mem/version", &driver.version)?;
            }
        }
        tree.file("proc/modules", modules.as_bytes())
    }

    fn write_cpus(&self, tree: &Tree) -> io::Result<()> {
        let all = self.all_cpus();
        for file in ["online", "present", "possible"] {
            tree.line(&format!("sys/devices/system/cpu/{file}"), &all)?;
        }
        let mut cpuinfo = String::new();
        for cpu in all.iter() {
            let Some((package, siblings, cores)) = self.place_of(cpu) else { continue };
            // Core ids count within a package; the first thread's number is as good.
            let core = siblings.iter().next().unwrap_or(cpu);
            let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            tree.line(&format!("{topology}/physical_package_id"), package)?;
            tree.line(&format!("{topology}/core_id"), core)?;
            tree.line(&format!("{topology}/thread_siblings_list"), &siblings)?;
            // Which CPUs share a third-level cache is not in public listings; here those of a NUMA node do.
            let node =
                self.numa_nodes.iter().find(|node| node.cpus.iter().any(|other| other == cpu));
            if let Some(node) = node {
                let cache = format!("sys/devices/system/cpu/cpu{cpu}/cache/index3");
                tree.line(&format!("{cache}/level"), 3)?;
                tree.line(&format!("{cache}/shared_cpu_list"), &node.cpus)?;
            }
            if self.cpu.arch != CpuArch::X86_64 {
                let _ = write!(
                    cpuinfo,
                    "processor\t: {cpu}\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\n\
                     CPU architecture: 8\nCPU part\t: 0xd4f\n\n"
                );
                continue;
            }
            let _ = write!(
                cpuinfo,
                "processor\t: {cpu}\nvendor_id\t: {}\ncpu family\t: {}\nmodel\t\t: {}\nmodel name\t: {}\n\
                 physical id\t: {package}\nsiblings\t: {}\ncore id\t\t: {core}\n\
                 flags\t\t: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge sse sse2 ht syscall nx lm{}\n\n",
                self.cpu.vendor,
                self.cpu.family,
                self.cpu.model,
                self.cpu.name,
                cores.len(),
                if self.hypervisor { " hypervisor" } else { "" },
            );
        }
        tree.file("proc/cpuinfo", cpuinfo.as_bytes())
    }

    /// Package of a CPU, the threads of its core, and all CPUs of the package.
    fn place_of(&self, cpu: u32) -> Option<(u32, CpuList, CpuList)> {
        let node =
            self.numa_nodes.iter().find(|node| node.cpus.iter().any(|other| other == cpu))?;
        let in_package = self.numa_nodes.iter().filter(|other| other.package == node.package);
        let package = CpuList::from_cpus(in_package.flat_map(|node| node.cpus.iter()));
        let half = u32::try_from(self.all_cpus().len() / 2).ok()?;
        let threads = if self.threads_per_core == 2 {
            vec![cpu % half, cpu % half + half]
        } else {
            vec![cpu]
        };
        Some((node.package, CpuList::from_cpus(threads), package))
    }

    fn write_nodes(&self, tree: &Tree) -> io::Result<()> {
        let base = "sys/devices/system/node";
        let list = |wanted: &dyn Fn(&CpuList) -> bool| {
            let nodes = (0..).zip(&self.numa_nodes).filter(|(_, node)| wanted(&node.cpus));
            CpuList::from_cpus(nodes.map(|(id, _)| id))
        };
        for file in ["online", "possible", "has_memory"] {
            tree.line(&format!("{base}/{file}"), list(&|_| true))?;
        }
        tree.line(&format!("{base}/has_cpu"), list(&|cpus| !cpus.is_empty()))?;
        for ((id, node), distances) in (0_u32..).zip(&self.numa_nodes).zip(&self.distances) {
            let base = format!("{base}/node{id}");
            tree.line(&format!("{base}/cpulist"), &node.cpus)?;
            tree.line(&format!("{base}/cpumap"), mask(&node.cpus, &self.all_cpus()))?;
            let distances: Vec<String> = distances.iter().map(u32::to_string).collect();
            tree.line(&format!("{base}/distance"), distances.join(" "))?;
            let kib = node.memory_bytes >> 10;
            tree.line(&format!("{base}/meminfo"), format!("Node {id} MemTotal:       {kib} kB"))?;
        }
        Ok(())
    }

    /// Functions of one bus, below the directory of its bridge. Returns the last bus number used.
    fn write_functions(
        &self,
        tree: &Tree,
        base: &str,
        bus: u8,
        functions: &[Function],
    ) -> io::Result<u8> {
        let mut last = bus;
        for function in functions {
            let path = format!("{base}/{}", function.bus_id);
            let buses = if function.kind == FunctionKind::Endpoint {
                None
            } else {
                // Firmware numbers buses depth first; a port with nothing below still takes one.
                let secondary =
                    function.children.first().map_or(last + 1, |child| child.bus_id.bus());
                let subordinate =
                    self.write_functions(tree, &path, secondary, &function.children)?;
                last = last.max(subordinate);
                Some(Buses { secondary, subordinate })
            };
            self.write_function(tree, &path, function, buses)?;
        }
        Ok(last)
    }

    fn write_function(
        &self,
        tree: &Tree,
        path: &str,
        function: &Function,
        buses: Option<Buses>,
    ) -> io::Result<()> {
        let ids = function.ids;
        let file = |name: &str| format!("{path}/{name}");
        tree.line(&file("class"), format!("0x{:06x}", ids.class))?;
        tree.line(&file("vendor"), format!("0x{:04x}", ids.vendor))?;
        tree.line(&file("device"), format!("0x{:04x}", ids.device))?;
        tree.line(&file("subsystem_vendor"), format!("0x{:04x}", ids.subsystem_vendor))?;
        tree.line(&file("subsystem_device"), format!("0x{:04x}", ids.subsystem_device))?;
        match function.numa_node {
            Some(node) => tree.line(&file("numa_node"), node)?,
            None => tree.line(&file("numa_node"), -1)?,
        }
        // Where the kernel knows no node, every CPU is local.
        let all = self.all_cpus();
        let local = function.numa_node.and_then(|node| self.cpus_of(node)).unwrap_or(&all);
        tree.line(&file("local_cpulist"), local)?;
        tree.line(&file("local_cpus"), mask(local, &all))?;
        if let Some(link) = function.link {
            tree.line(&file("max_link_speed"), speed(link.max))?;
            tree.line(&file("max_link_width"), link.max.width)?;
            tree.line(&file("current_link_speed"), speed(link.trained))?;
            tree.line(&file("current_link_width"), link.trained.width)?;
        }
        if let Some(buses) = buses {
            tree.line(&file("secondary_bus_number"), buses.secondary)?;
            tree.line(&file("subordinate_bus_number"), buses.subordinate)?;
        }
        tree.line(&file("power/control"), "auto")?;
        tree.line(
            &file("power/runtime_status"),
            if function.suspended { "suspended" } else { "active" },
        )?;
        if let Some(domain) = self.iommu {
            let group = self.iommu_group(function.bus_id);
            let dir = format!("sys/kernel/iommu_groups/{group}");
            tree.line(&format!("{dir}/type"), domain)?;
            tree.link(&format!("{dir}/devices/{}", function.bus_id), path)?;
            tree.link(&file("iommu_group"), &dir)?;
        }
        tree.file(&file("config"), &config_space::bytes(function, buses, self.privileged))?;
        let mut uevent = String::new();
        if let Some(driver) = self.driver_of(function) {
            tree.link(&file("driver"), &format!("sys/bus/pci/drivers/{driver}"))?;
            tree.link(&format!("sys/bus/pci/drivers/{driver}/{}", function.bus_id), path)?;
            let _ = writeln!(uevent, "DRIVER={driver}");
        }
        let _ = writeln!(uevent, "PCI_CLASS={:X}", ids.class);
        let _ = writeln!(uevent, "PCI_ID={:04X}:{:04X}", ids.vendor, ids.device);
        let _ = writeln!(
            uevent,
            "PCI_SUBSYS_ID={:04X}:{:04X}",
            ids.subsystem_vendor, ids.subsystem_device
        );
        let _ = writeln!(uevent, "PCI_SLOT_NAME={}", function.bus_id);
        let board = self.gpus.iter().find(|gpu| gpu.bus_id == function.bus_id);
        if let Some(board) = board.filter(|gpu| gpu.model.gfx_target_version.is_some()) {
            tree.line(&file("product_name"), board.model.name)?;
            tree.line(&file("current_compute_partition"), "SPX")?;
            tree.line(&file("current_memory_partition"), "NPS1")?;
        }
        tree.file(&file("uevent"), uevent.as_bytes())?;
        tree.link(&file("subsystem"), "sys/bus/pci")?;
        tree.link(&format!("sys/bus/pci/devices/{}", function.bus_id), path)
    }

    /// The group of a function: each has one of its own, in the order of the tree.
    pub(crate) fn iommu_group(&self, bus_id: topology::BusId) -> u32 {
        let place = self.functions().iter().position(|(_, function)| function.bus_id == bus_id);
        place.and_then(|place| u32::try_from(place).ok()).unwrap_or(0)
    }

    /// The compute driver's nodes: one for each NUMA node with CPUs, then one for each AMD GPU.
    fn write_kfd(&self, tree: &Tree) -> io::Result<()> {
        let nodes = "sys/devices/virtual/kfd/kfd/topology/nodes";
        tree.link("sys/class/kfd/kfd", "sys/devices/virtual/kfd/kfd")?;
        let cpus = self.numa_nodes.iter().filter(|node| !node.cpus.is_empty()).count();
        for node in 0..cpus {
            let text = "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\nlocation_id 0\n";
            tree.line(&format!("{nodes}/{node}/properties"), text)?;
        }
        for (index, gpu) in self.gpus.iter().enumerate() {
            let Some(version) = gpu.model.gfx_target_version else { continue };
            let dir = format!("{nodes}/{}", cpus + index);
            let id = gpu.bus_id;
            let location = u32::from(id.bus()) << 8 | u32::from(id.device()) << 3;
            tree.line(
                &format!("{dir}/properties"),
                format!(
                    "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version {version}\nvendor_id 4098\n\
                     device_id {}\nlocation_id {location}\ndomain {}",
                    gpu.model.device,
                    id.domain()
                ),
            )?;
            let bank = format!("heap_type 1\nsize_in_bytes {}\nflags 0", gpu.model.memory_bytes);
            tree.line(&format!("{dir}/mem_banks/0/properties"), bank)?;
            // A PCIe link to the CPU, then one xGMI link to each peer.
            let link = |kind: u32, to: usize, mbps: u32| {
                let from = cpus + index;
                format!(
                    "type {kind}\nnode_from {from}\nnode_to {to}\nweight 15\nmin_bandwidth {mbps}\nmax_bandwidth {mbps}"
                )
            };
            let node = gpu.numa_node.and_then(|node| usize::try_from(node).ok()).unwrap_or(0);
            tree.line(&format!("{dir}/io_links/0/properties"), link(2, node, 0))?;
            for (number, peer) in gpu.links.iter().filter(|link| link.active).enumerate() {
                if let NvLinkPeer::Gpu(peer, _) = peer.peer {
                    let text = link(11, cpus + peer, gpu.model.nvlink_mbytes_per_second);
                    tree.line(&format!("{dir}/io_links/{}/properties", number + 1), text)?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn driver_of(&self, function: &Function) -> Option<&'static str> {
        match (function.ids.vendor, function.ids.class) {
            (_, class::BRIDGE) => function.link.map(|_| "pcieport"),
            (vendor::NVIDIA, class::OTHER_BRIDGE) => {
                self.driver.as_ref().map(|_| "nvidia-nvswitch")
            }
            (vendor::NVIDIA, _) => self.driver.as_ref().map(|_| "nvidia"),
            (vendor::ATI, _) => Some("amdgpu"),
            (vendor::MELLANOX, _) => Some("mlx5_core"),
            (vendor::INTEL, class::ETHERNET) => Some("ixgbe"),
            (vendor::RED_HAT, _) => Some("virtio-pci"),
            _ => None,
        }
    }

    fn write_nic(&self, tree: &Tree, number: u16, nic: &Nic) -> io::Result<()> {
        let Some((bridge, functions)) = self.path_to(nic.bus_id) else {
            let text = format!("{} has no PCI function", nic.name());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        };
        let mut device = format!("sys/devices/{}", bridge.name());
        for function in functions {
            let _ = write!(device, "/{}", function.bus_id);
        }
        if let Some(netdev) = &nic.netdev {
            // A virtio card's interface belongs to the virtio device on it.
            let virtio = self.functions().iter().any(|(_, function)| {
                function.bus_id == nic.bus_id && function.ids.vendor == vendor::RED_HAT
            });
            let owner = if virtio { format!("{device}/virtio{number}") } else { device.clone() };
            write_netdev(tree, &owner, number, netdev, nic)?;
        }
        if let Some(rdma) = &nic.rdma {
            write_rdma(tree, &device, number, rdma, nic)?;
        }
        Ok(())
    }
}

fn write_netdev(tree: &Tree, device: &str, number: u16, name: &str, nic: &Nic) -> io::Result<()> {
    let base = format!("{device}/net/{name}");
    let file = |name: &str| format!("{base}/{name}");
    tree.line(&file("operstate"), if nic.up { "up" } else { "down" })?;
    tree.line(&file("carrier"), u8::from(nic.up))?;
    tree.line(&file("speed"), speed_of(nic))?;
    tree.line(&file("dev_port"), 0)?;
    tree.line(&file("dev_id"), "0x0")?;
    // ARPHRD_INFINIBAND, ARPHRD_ETHER. Addresses are of the locally administered range.
    let (kind, mtu, address) = match nic.link_layer {
        LinkLayer::Infiniband => (32, 4092, format!("00:00:00:00:{}", colons(gid(number)))),
        LinkLayer::Ethernet => (1, 9000, format!("02:00:00:00:{}", colons(number.to_be_bytes()))),
    };
    tree.line(&file("type"), kind)?;
    tree.line(&file("mtu"), mtu)?;
    tree.line(&file("address"), address)?;
    tree.link(&file("device"), device)?;
    tree.link(&file("subsystem"), "sys/class/net")?;
    tree.link(&format!("sys/class/net/{name}"), &base)
}

fn write_rdma(tree: &Tree, device: &str, number: u16, name: &str, nic: &Nic) -> io::Result<()> {
    let base = format!("{device}/infiniband/{name}");
    let file = |name: &str| format!("{base}/{name}");
    let guid: Vec<String> =
        gid(number)[8..].chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    let guid = guid.join(":");
    tree.line(&file("node_type"), "1: CA")?;
    tree.line(&file("node_guid"), &guid)?;
    tree.line(&file("sys_image_guid"), &guid)?;
    tree.line(&file("fw_ver"), "28.39.1002")?;
    let port = |name: &str| format!("{base}/ports/1/{name}");
    let infiniband = nic.link_layer == LinkLayer::Infiniband;
    tree.line(&port("link_layer"), if infiniband { "InfiniBand" } else { "Ethernet" })?;
    tree.line(&port("state"), if nic.up { "4: ACTIVE" } else { "1: DOWN" })?;
    tree.line(&port("phys_state"), if nic.up { "5: LinkUp" } else { "3: Disabled" })?;
    tree.line(&port("rate"), rate(nic))?;
    tree.line(
        &port("lid"),
        if infiniband { format!("0x{:x}", number + 1) } else { "0x0".to_owned() },
    )?;
    tree.line(&port("counters/link_downed"), nic.link_downed)?;
    tree.line(&port("counters/symbol_error"), 0)?;
    let words = |bytes: [u8; 16]| {
        let words: Vec<String> =
            bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
        words.join(":")
    };
    if infiniband {
        tree.line(&port("gids/0"), words(gid(number)))?;
        tree.line(&port("gid_attrs/types/0"), "IB/RoCE v1")?;
    } else {
        // The kernel makes a version 1 and a version 2 entry for each address: link local, then IPv4 of a test
        // network.
        let [high, low] = number.to_be_bytes();
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 18, high, low];
        for (index, (address, kind)) in [
            (gid(number), "IB/RoCE v1"),
            (gid(number), "RoCE v2"),
            (mapped, "IB/RoCE v1"),
            (mapped, "RoCE v2"),
        ]
        .into_iter()
        .enumerate()
        {
            tree.line(&port(&format!("gids/{index}")), words(address))?;
            tree.line(&port(&format!("gid_attrs/types/{index}")), kind)?;
            if let Some(netdev) = &nic.netdev {
                tree.line(&port(&format!("gid_attrs/ndevs/{index}")), netdev)?;
            }
        }
    }
    tree.link(&file("device"), device)?;
    tree.link(&file("subsystem"), "sys/class/infiniband")?;
    tree.link(&format!("sys/class/infiniband/{name}"), &base)
}

/// A link-local GID of the locally administered range.
fn gid(number: u16) -> [u8; 16] {
    let [high, low] = number.to_be_bytes();
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0xff, 0xfe, 0, high, low]
}

fn colons<const N: usize>(bytes: [u8; N]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

/// An interface's `speed` file, -1 where it is down or does not know.
fn speed_of(nic: &Nic) -> i64 {
    nic.mbit.filter(|_| nic.up).and_then(|mbit| i64::try_from(mbit).ok()).unwrap_or(-1)
}

/// The port's `rate` file: rate, lanes and the generation's name. A port that is down shows the lowest.
fn rate(nic: &Nic) -> String {
    let gbit = nic.mbit.filter(|_| nic.up).unwrap_or(10_000) / 1000;
    let generation = match gbit {
        0..40 => "4X SDR",
        40..50 => "4X QDR",
        50..100 => "4X FDR",
        100..200 => "4X EDR",
        200..400 => "4X HDR",
        400..800 => "4X NDR",
        _ => "4X XDR",
    };
    format!("{gbit} Gb/sec ({generation})")
}

/// The kernel's words for a link speed since 5.8.
fn speed(link: PcieLink) -> String {
    format!("{}.{} GT/s PCIe", link.mtps / 1000, link.mtps % 1000 / 100)
}

/// The kernel's mask form: words of 32 bits, most significant first, the first as short as the number of CPUs
/// allows.
fn mask(cpus: &CpuList, all: &CpuList) -> String {
    let last = all.iter().last().unwrap_or(0);
    let word = |index: u32| {
        let base = index * 32;
        let bits = cpus.iter().filter(|cpu| (base..base + 32).contains(cpu));
        let bits = bits.fold(0_u32, |word, cpu| word | 1 << (cpu - base));
        let digits = if index == last / 32 { last % 32 / 4 + 1 } else { 8 };
        format!("{bits:0digits$x}", digits = usize::try_from(digits).unwrap_or(8))
    };
    let words: Vec<String> = (0..=last / 32).rev().map(word).collect();
    words.join(",")
}
