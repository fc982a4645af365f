//! The written tree, read back with nothing but the file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use machines::{Deviation, Machine, dgx1v, vm_flat};
use tempfile::TempDir;

struct Tree {
    _directory: TempDir,
    root: PathBuf,
}

impl Tree {
    fn new(machine: &Machine) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = machine.write(directory.path()).unwrap().root;
        Self { _directory: directory, root }
    }

    #[track_caller]
    fn line(&self, path: &str) -> String {
        let text = fs::read_to_string(self.root.join(path));
        text.unwrap_or_else(|error| panic!("{path}: {error}")).trim_end().to_owned()
    }

    #[track_caller]
    fn check(&self, path: &str, expect: &str) {
        assert_eq!(self.line(path), expect, "{path}");
    }

    /// Where a link leads, from the root.
    #[track_caller]
    fn target(&self, path: &str) -> String {
        let target = fs::canonicalize(self.root.join(path))
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        let root = fs::canonicalize(&self.root).unwrap();
        target.strip_prefix(root).unwrap().to_str().unwrap().to_owned()
    }
}

/// Some thousand small files, written once for the tests that only read.
static DGX1V: LazyLock<Tree> = LazyLock::new(|| Tree::new(&dgx1v()));

#[test]
fn dgx1v_tree() {
    let tree = &*DGX1V;
    // A GPU, found as every tool finds it.
    let gpu = "sys/bus/pci/devices/0000:06:00.0";
    assert_eq!(
        tree.target(gpu),
        "sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0/0000:03:0c.0/0000:06:00.0"
    );
    tree.check(&format!("{gpu}/class"), "0x030200");
    tree.check(&format!("{gpu}/vendor"), "0x10de");
    tree.check(&format!("{gpu}/device"), "0x1db1");
    tree.check(&format!("{gpu}/numa_node"), "0");
    tree.check(&format!("{gpu}/local_cpulist"), "0-19,40-59");
    tree.check(&format!("{gpu}/local_cpus"), "0000,0fffff00,000fffff");
    tree.check(&format!("{gpu}/current_link_speed"), "8.0 GT/s PCIe");
    tree.check(&format!("{gpu}/max_link_width"), "16");
    assert_eq!(tree.target(&format!("{gpu}/driver")), "sys/bus/pci/drivers/nvidia");
    // Ports and their buses.
    let upstream = "sys/bus/pci/devices/0000:02:00.0";
    tree.check(&format!("{upstream}/class"), "0x060400");
    tree.check(&format!("{upstream}/secondary_bus_number"), "3");
    tree.check(&format!("{upstream}/subordinate_bus_number"), "7");
    let empty = "sys/bus/pci/devices/0000:03:04.0";
    tree.check(&format!("{empty}/secondary_bus_number"), "4");
    tree.check(&format!("{empty}/current_link_width"), "0");
    tree.check("sys/bus/pci/devices/0000:80:03.0/subordinate_bus_number", "139");
    // A NIC by its RDMA device and its interface.
    let nic = "sys/class/infiniband/mlx5_1";
    assert_eq!(
        tree.target(&format!("{nic}/device")),
        tree.target("sys/bus/pci/devices/0000:0c:00.0")
    );
    assert_eq!(
        tree.target("sys/class/net/ib1/device"),
        tree.target("sys/bus/pci/devices/0000:0c:00.0")
    );
    tree.check(&format!("{nic}/ports/1/rate"), "100 Gb/sec (4X EDR)");
    tree.check(&format!("{nic}/ports/1/state"), "4: ACTIVE");
    tree.check(&format!("{nic}/ports/1/link_layer"), "InfiniBand");
    tree.check("sys/class/net/ib1/type", "32");
    // The host.
    tree.check("sys/devices/system/node/online", "0-1");
    tree.check("sys/devices/system/node/node1/cpulist", "20-39,60-79");
    tree.check("sys/devices/system/node/node1/distance", "21 10");
    tree.check("sys/devices/system/cpu/cpu45/topology/thread_siblings_list", "5,45");
    tree.check("sys/devices/system/cpu/cpu45/topology/physical_package_id", "0");
    tree.check("sys/class/dmi/id/product_name", "DGX-1");
    let cpuinfo = tree.line("proc/cpuinfo");
    assert_eq!(cpuinfo.matches("vendor_id\t: GenuineIntel").count(), 80);
    assert!(cpuinfo.contains("model\t\t: 79") && !cpuinfo.contains("hypervisor"));
}

#[test]
fn every_link_of_the_tree_leads_somewhere() {
    fn walk(directory: &Path, links: &mut usize) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_symlink() {
                assert!(path.exists(), "{} is dangling", path.display());
                *links += 1;
            } else if path.is_dir() {
                walk(&path, links);
            }
        }
    }
    let tree = Tree::new(&vm_flat());
    let mut links = 0;
    walk(&DGX1V.root, &mut links);
    walk(&tree.root, &mut links);
    assert!(links > 100, "{links}");
}

#[test]
fn deviations_show() {
    let tree = Tree::new(
        &dgx1v()
            .with(Deviation::HalfWidth { nic: "mlx5_0".to_owned() })
            .with(Deviation::PortDown { nic: "mlx5_3".to_owned() })
            .with(Deviation::NumaUnknown)
            .with(Deviation::Idle)
            .with(Deviation::AcsOn),
    );
    tree.check("sys/bus/pci/devices/0000:05:00.0/current_link_width", "8");
    tree.check("sys/bus/pci/devices/0000:05:00.0/max_link_width", "16");
    // The port above tells the same.
    tree.check("sys/bus/pci/devices/0000:03:08.0/current_link_width", "8");
    tree.check("sys/class/infiniband/mlx5_3/ports/1/state", "1: DOWN");
    tree.check("sys/class/infiniband/mlx5_3/ports/1/counters/link_downed", "1");
    tree.check("sys/class/net/ib3/operstate", "down");
    tree.check("sys/bus/pci/devices/0000:06:00.0/numa_node", "-1");
    tree.check("sys/bus/pci/devices/0000:06:00.0/local_cpulist", "0-79");
    tree.check("sys/bus/pci/devices/0000:06:00.0/current_link_speed", "2.5 GT/s PCIe");
    tree.check("sys/bus/pci/devices/0000:06:00.0/max_link_speed", "8.0 GT/s PCIe");
    let port = fs::read(tree.root.join("sys/bus/pci/devices/0000:03:08.0/config")).unwrap();
    assert_eq!(port[0x106], 0x1d);
}

#[test]
fn configuration_space() {
    let tree = &*DGX1V;
    let config = |bus_id: &str| {
        fs::read(tree.root.join(format!("sys/bus/pci/devices/{bus_id}/config"))).unwrap()
    };
    // PCI Express port types: root port 4, upstream 5, downstream 6, endpoint 0.
    for (bus_id, kind) in
        [("0000:00:02.0", 4), ("0000:02:00.0", 5), ("0000:03:0c.0", 6), ("0000:06:00.0", 0)]
    {
        let bytes = config(bus_id);
        assert_eq!(bytes.len(), 4096);
        assert_eq!(bytes[0x34], 0x40);
        assert_eq!(bytes[0x42] >> 4, kind, "{bus_id}");
        // Link status: generation 3 and 16 lanes.
        assert_eq!((bytes[0x52] & 0xf, bytes[0x52] >> 4 | bytes[0x53] << 4), (3, 16), "{bus_id}");
    }
    let bridge = config("0000:02:00.0");
    assert_eq!(bridge[0x18..0x1b], [2, 3, 7]);
}

#[test]
fn no_driver_and_no_privilege() {
    let tree = Tree::new(&dgx1v().with(Deviation::NoDriver).with(Deviation::Unprivileged));
    tree.check("sys/bus/pci/devices/0000:06:00.0/class", "0x030200");
    assert!(!tree.root.join("sys/bus/pci/devices/0000:06:00.0/driver").exists());
    assert!(!tree.line("proc/modules").contains("nvidia"));
    let config = fs::read(tree.root.join("sys/bus/pci/devices/0000:06:00.0/config")).unwrap();
    assert_eq!(config.len(), 64);
}

#[test]
fn vm_flat_tree() {
    let tree = Tree::new(&vm_flat());
    let gpu = "sys/bus/pci/devices/0000:00:05.0";
    assert_eq!(tree.target(gpu), "sys/devices/pci0000:00/0000:00:05.0");
    tree.check(&format!("{gpu}/numa_node"), "-1");
    tree.check(&format!("{gpu}/local_cpulist"), "0-47");
    assert!(!tree.root.join(gpu).join("current_link_speed").exists());
    assert_eq!(tree.target("sys/class/net/eth0/device/.."), "sys/devices/pci0000:00/0000:00:03.0");
    tree.check("sys/class/net/eth0/speed", "-1");
    tree.check("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "3");
    assert!(tree.line("proc/cpuinfo").contains(" hypervisor"));
}
