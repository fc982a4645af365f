//! Facts of the host beside its processors: kernel options, IOMMU, IMEX, limits of the process, identity.

use topology::CpuList;
use topology::snapshot::{HostIdentity, Imex, ProcessLimits};

use super::root::Root;

/// Options of the kernel command line that bear on PCI, IOMMU and NUMA. The rest may name hosts, disks and users.
const FLAGS: [&str; 16] = [
    "amd_iommu",
    "hugepages",
    "hugepagesz",
    "intel_iommu",
    "iommu",
    "iommu.passthrough",
    "iommu.strict",
    "isolcpus",
    "nohz_full",
    "nosmt",
    "numa",
    "numa_balancing",
    "pci",
    "pcie_acs_override",
    "pcie_aspm",
    "pcie_ports",
];

/// The options of a command line that are of interest, in their order.
pub(super) fn kernel_flags(command_line: &str) -> Vec<String> {
    let wanted = |word: &&str| {
        let key = word.split('=').next().unwrap_or_default();
        FLAGS.contains(&key)
    };
    command_line.split_whitespace().filter(wanted).map(Into::into).collect()
}

/// Whether the kernel runs an IOMMU: it makes the directory of groups where it could, and fills it where it does.
pub(super) fn iommu(root: &Root) -> Option<bool> {
    match root.list("sys/kernel/iommu_groups") {
        Ok(groups) => Some(!groups.is_empty()),
        // A kernel built without has no such directory; of a recorded tree nobody knows.
        Err(_) => root.is_live().then_some(false),
    }
}

/// What NVLink between hosts needs; `None` where nothing of it is told.
pub(super) fn imex(root: &Root) -> Option<Imex> {
    let is_channel = |name: &&String| name.starts_with("channel");
    let count = |number: usize| u32::try_from(number).ok();
    let channels = match root.list("dev/nvidia-caps-imex-channels") {
        Ok(names) => count(names.iter().filter(is_channel).count()),
        // With the driver and without the directory there is no channel.
        Err(_) if root.exists("dev/nvidia-caps") => Some(0),
        Err(_) => None,
    };
    // Each line is the address of a host; only how many is kept.
    let peer = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let peers = root.read("etc/nvidia-imex/nodes_config.cfg").ok();
    let peers = peers.and_then(|text| count(text.lines().filter(peer).count()));
    let unit = root.link("etc/systemd/system/nvidia-imex.service");
    let service_masked = unit.map(|target| target == "dev/null");
    let imex = Imex { channels, peers, service_masked };
    (imex != Imex::default()).then_some(imex)
}

/// What the process that probes may use.
pub(super) fn limits(root: &Root) -> Option<ProcessLimits> {
    let status = root.read("proc/self/status").ok()?;
    let list = |key: &str| -> Option<CpuList> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches(':').trim().parse().ok()
    };
    let (memory_bytes, millicpus) = cgroup(root);
    Some(ProcessLimits {
        cpus: list("Cpus_allowed_list"),
        numa_nodes: list("Mems_allowed_list"),
        memory_bytes,
        millicpus,
    })
}

/// The least memory and CPU time of the cgroups around the process (version 2 of cgroups).
fn cgroup(root: &Root) -> (Option<u64>, Option<u64>) {
    let groups = root.read("proc/self/cgroup").unwrap_or_default();
    let Some(path) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return (None, None);
    };
    let mut dir = format!("sys/fs/cgroup/{path}");
    let (mut memory, mut time) = (None, None);
    let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
    while dir.len() > "sys/fs/cgroup".len() {
        let trimmed = dir.trim_end_matches('/').to_owned();
        let limit = |file: &str| root.read(&format!("{trimmed}/{file}")).unwrap_or_default();
        memory = least(memory, limit("memory.max").parse().ok());
        time = least(time, parse_cpu_max(&limit("cpu.max")));
        dir = trimmed.rsplit_once('/').map(|(above, _)| above.to_owned()).unwrap_or_default();
    }
    (memory, time)
}

/// Thousandths of a CPU in `150000 100000`: microseconds of each period; `max` is no limit.
fn parse_cpu_max(text: &str) -> Option<u64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.trim().parse().ok()?);
    quota.checked_mul(1000)?.checked_div(period)
}

/// Digests that tell hosts and containers apart. The machine id alone is the same in all clones of an image, the boot
/// id alone in all containers of a host.
pub(super) fn identity(root: &Root) -> Option<HostIdentity> {
    let read = |file: &str| root.read(file).ok().filter(|text| !text.is_empty());
    let machine = read("etc/machine-id");
    let boot = read("proc/sys/kernel/random/boot_id");
    let digest = HostIdentity::digest;
    let host = machine.zip(boot).map(|(machine, boot)| digest(&[&machine, &boot]));
    let namespace =
        |which: &str| root.link_text(&format!("proc/self/ns/{which}")).map(|name| digest(&[&name]));
    let identity = HostIdentity {
        host,
        ipc_namespace: namespace("ipc"),
        pid_namespace: namespace("pid"),
        shared_memory: root.device_of("dev/shm").map(|device| digest(&[&device.to_string()])),
    };
    (identity != HostIdentity::default()).then_some(identity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            for (file, text) in files {
                let path = tree.0.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            tree
        }

        fn root(&self) -> Root {
            Root::new(self.0.path())
        }
    }

    #[test]
    fn flags_of_interest() {
        let line = "BOOT_IMAGE=/vmlinuz root=UUID=1 ro hostname=secret intel_iommu=on iommu=pt pci=noacs quiet";
        assert_eq!(kernel_flags(line), ["intel_iommu=on", "iommu=pt", "pci=noacs"]);
    }

    #[test]
    fn limits_of_all_cgroups_above() {
        let tree = Tree::new(&[
            ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3,8\nMems_allowed_list:\t1\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "1048576\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/a/cpu.max", "max 100000\n"),
        ]);
        let limits = limits(&tree.root()).unwrap();
        assert_eq!(limits.cpus.unwrap().to_string(), "0-3,8");
        assert_eq!(limits.numa_nodes.unwrap().to_string(), "1");
        assert_eq!((limits.memory_bytes, limits.millicpus), (Some(1 << 20), Some(1500)));
    }

    /// Names and boot ids alone do not tell hosts apart (NVIDIA/nccl#187).
    #[test]
    fn field_case_062_host_identity() {
        let host = |machine: &str, boot: &str| {
            let tree = Tree::new(&[
                ("etc/machine-id", machine),
                ("proc/sys/kernel/random/boot_id", boot),
                ("etc/hostname", "node1"),
            ]);
            identity(&tree.root()).unwrap().host.unwrap()
        };
        assert_eq!(host("m1", "b1"), host("m1", "b1"));
        // Clones of one image, and one host after another boot.
        assert_ne!(host("m1", "b1"), host("m1", "b2"));
        assert_ne!(host("m1", "b1"), host("m2", "b1"));
        assert_ne!(host("ab", "c"), host("a", "bc"));
        assert!(!host("m1", "b1").contains("m1"));
        let half = Tree::new(&[("etc/machine-id", "m1")]);
        assert_eq!(identity(&half.root()), None);
    }

    /// Two pods of one host reach each other only where namespaces and shared memory are the same
    /// (NVIDIA/nccl#326).
    #[test]
    fn field_case_061_containers_of_one_host() {
        let pod = |ipc: &str| {
            let tree = Tree::new(&[
                ("etc/machine-id", "m"),
                ("proc/sys/kernel/random/boot_id", "b"),
                ("dev/shm/x", ""),
            ]);
            fs::create_dir_all(tree.0.path().join("proc/self/ns")).unwrap();
            symlink(ipc, tree.0.path().join("proc/self/ns/ipc")).unwrap();
            identity(&tree.root()).unwrap()
        };
        let (a, b, c) = (pod("ipc:[1]"), pod("ipc:[1]"), pod("ipc:[2]"));
        assert_eq!((&a.host, &a.ipc_namespace), (&b.host, &b.ipc_namespace));
        assert_eq!(a.host, c.host);
        assert_ne!(a.ipc_namespace, c.ipc_namespace);
        assert!(a.shared_memory.is_some());
    }

    /// IMEX: a masked service, channels, and the list of peers (dra-driver-nvidia-gpu#524).
    #[test]
    fn field_case_j5_imex_files() {
        let tree = Tree::new(&[
            ("dev/nvidia-caps-imex-channels/channel0", ""),
            ("etc/nvidia-imex/nodes_config.cfg", "# hosts\n198.18.0.1\n\n198.18.0.2\n"),
        ]);
        fs::create_dir_all(tree.0.path().join("etc/systemd/system")).unwrap();
        let unit = tree.0.path().join("etc/systemd/system/nvidia-imex.service");
        symlink("/dev/null", unit).unwrap();
        let expect = Imex { channels: Some(1), peers: Some(2), service_masked: Some(true) };
        assert_eq!(imex(&tree.root()), Some(expect));
        let none = Tree::new(&[("dev/nvidia-caps/nvidia-cap1", "")]);
        assert_eq!(imex(&none.root()).unwrap().channels, Some(0));
        assert_eq!(imex(&Tree::new(&[]).root()), None);
    }
}
