//! Writes a device tree from a compact description.
//!
//! ```text
//! node0 cpus=0-3 kib=1024 distance=10,21
//! pci0000:00
//!   0000:00:01.0 060400 8086:2030 max=16.0x16
//!     0000:01:00.0 030200 10de:20b0 numa=0 cpus=0-3 max=16.0x16 now=2.5x16
//! rdma mlx5_0 0000:02:00.0 ib=up rate=400
//! net eth0 0000:03:00.0 speed=1000 state=up
//! file proc/sys/kernel/osrelease 6.1.0
//! ```
//!
//! Indentation is the tree of PCI functions. `max=` and `now=` write the four link files, `numa=` and `cpus=` theirs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use crate::probe::ProbeConfig;

/// A tree that is removed when dropped.
pub(super) struct SysfsTree {
    dir: TempDir,
}

impl SysfsTree {
    #[track_caller]
    pub(super) fn new(description: &str) -> Self {
        let tree = Self { dir: tempfile::tempdir().unwrap() };
        // A kernel has these even when they are empty.
        for dir in ["sys/bus/pci/devices", "sys/class/net", "sys/devices/system/node"] {
            fs::create_dir_all(tree.path().join(dir)).unwrap();
        }
        let mut above: Vec<(usize, String)> = Vec::new();
        for line in description.lines().filter(|line| !line.trim().is_empty()) {
            let indent = line.len() - line.trim_start().len();
            let words: Vec<&str> = line.split_whitespace().collect();
            above.retain(|(other, _)| *other < indent);
            match words[0] {
                "file" => tree.write(words[1], &words[2..].join(" ")),
                "rdma" => tree.rdma(words[1], words[2], &words[3..]),
                "net" => tree.net(words[1], words[2], &words[3..]),
                node if node.starts_with("node") => tree.node(node, &words[1..]),
                name => {
                    let dir = match above.last() {
                        Some((_, parent)) => format!("{parent}/{name}"),
                        None => format!("sys/devices/{name}"),
                    };
                    if let [class, ids, facts @ ..] = &words[1..] {
                        tree.function(name, &dir, class, ids, facts);
                    }
                    above.push((indent, dir));
                }
            }
        }
        tree
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn config(&self) -> ProbeConfig {
        ProbeConfig::recorded(self.path())
    }

    pub(super) fn write(&self, file: &str, text: &str) {
        let path = self.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    #[track_caller]
    pub(super) fn remove(&self, file: &str) {
        fs::remove_file(self.path().join(file)).unwrap();
    }

    pub(super) fn link(&self, file: &str, target: &str) {
        let path = self.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    fn node(&self, name: &str, facts: &[&str]) {
        let dir = format!("sys/devices/system/node/{name}");
        for fact in facts {
            match fact.split_once('=').unwrap() {
                ("cpus", cpus) => self.write(&format!("{dir}/cpulist"), cpus),
                ("kib", kib) => {
                    self.write(&format!("{dir}/meminfo"), &format!("Node 0 MemTotal: {kib} kB"));
                }
                ("distance", columns) => {
                    self.write(&format!("{dir}/distance"), &columns.replace(',', " "));
                }
                other => panic!("unknown fact {other:?}"),
            }
        }
    }

    fn function(&self, name: &str, dir: &str, class: &str, ids: &str, facts: &[&str]) {
        let (vendor, device) = ids.split_once(':').unwrap();
        for (file, id) in [("class", class), ("vendor", vendor), ("device", device)] {
            self.write(&format!("{dir}/{file}"), &format!("0x{id}"));
        }
        let link = |which: &str, value: &str| {
            let (speed, width) = value.split_once('x').unwrap();
            self.write(&format!("{dir}/{which}_link_speed"), &format!("{speed} GT/s PCIe"));
            self.write(&format!("{dir}/{which}_link_width"), width);
        };
        for fact in facts {
            match fact.split_once('=').unwrap() {
                ("max", value) => link("max", value),
                ("now", value) => link("current", value),
                ("numa", node) => self.write(&format!("{dir}/numa_node"), node),
                ("cpus", cpus) => self.write(&format!("{dir}/local_cpulist"), cpus),
                ("driver", driver) => {
                    self.link(&format!("{dir}/driver"), &format!("/sys/bus/pci/drivers/{driver}"));
                }
                ("physfn", physfn) => {
                    self.link(&format!("{dir}/physfn"), &format!("../{physfn}"));
                }
                other => panic!("unknown fact {other:?}"),
            }
        }
        let below = dir.strip_prefix("sys/").unwrap();
        self.link(&format!("sys/bus/pci/devices/{name}"), &format!("../../../{below}"));
    }

    /// The directory of a function written before.
    fn function_dir(&self, bus_id: &str) -> String {
        let target = fs::read_link(self.path().join("sys/bus/pci/devices").join(bus_id)).unwrap();
        format!("sys/{}", target.to_str().unwrap().trim_start_matches("../"))
    }

    /// A class entry that links to a directory in the function's own; gives that directory.
    fn class_entry(&self, class: &str, name: &str, bus_id: &str) -> String {
        let function = self.function_dir(bus_id);
        let dir = format!("{function}/{class}/{name}");
        self.link(&format!("{dir}/device"), "../..");
        let below = dir.strip_prefix("sys/").unwrap();
        self.link(&format!("sys/class/{class}/{name}"), &format!("../../{below}"));
        dir
    }

    fn rdma(&self, name: &str, bus_id: &str, facts: &[&str]) {
        let dir = self.class_entry("infiniband", name, bus_id);
        for fact in facts {
            let (key, value) = fact.split_once('=').unwrap();
            let layer = match key {
                "ib" => "InfiniBand",
                "roce" => "Ethernet",
                "rate" => {
                    self.write(&format!("{dir}/ports/1/rate"), &format!("{value} Gb/sec (4X NDR)"));
                    continue;
                }
                other => panic!("unknown fact {other}"),
            };
            let state = if value == "up" { "4: ACTIVE" } else { "1: DOWN" };
            self.write(&format!("{dir}/ports/1/state"), state);
            self.write(&format!("{dir}/ports/1/link_layer"), layer);
        }
    }

    fn net(&self, name: &str, bus_id: &str, facts: &[&str]) {
        let dir = self.class_entry("net", name, bus_id);
        self.write(&format!("{dir}/type"), "1");
        for fact in facts {
            match fact.split_once('=').unwrap() {
                ("state", state) => self.write(&format!("{dir}/operstate"), state),
                ("speed", speed) => self.write(&format!("{dir}/speed"), speed),
                other => panic!("unknown fact {other:?}"),
            }
        }
    }
}
