//! The host as a whole, and its NUMA nodes with their processors.
//!
//! The kernel release, the product name and the architecture of the running host come from `sysinfo`. It cannot
//! be pointed at another root, and knows neither NUMA nodes nor CPU families: the rest, and all of a recorded tree,
//! is read from the files themselves.

use std::collections::BTreeMap;

use sysinfo::{Product, System};
use topology::snapshot::{FaultKind, HostFacts, NumaNode};
use topology::{CpuArch, CpuList, CpuModel, InvalidCpuList};

use super::apart::Report;
use super::root::Root;
use super::trouble::Trouble;
use super::{cpus, gpudirect, host};

const NODES: &str = "sys/devices/system/node";

/// A piece of this probe's facts.
pub(super) enum CpuPart {
    /// The host as a whole; the GPU driver is the NVML probe's to tell, this one has what the kernel module says.
    Host(Box<HostFacts>),
    /// A NUMA node.
    Node(NumaNode),
}

pub(super) fn read(root: &Root, report: &Report<CpuPart>) {
    let cpuinfo = match root.read("proc/cpuinfo") {
        Ok(text) => parse_cpuinfo(&text),
        Err(error) => {
            report.fault("proc/cpuinfo", Trouble::from(&error));
            CpuInfo::default()
        }
    };
    report.part(CpuPart::Host(Box::new(host_facts(root, &cpuinfo))));
    let live_arch = root.is_live().then(|| arch_of_uname(&System::cpu_arch())).flatten();
    for mut node in nodes(root, report) {
        node.cpu = cpuinfo.model_of(node.cpus.as_ref());
        node.cpu.arch = live_arch.or(node.cpu.arch);
        report.part(CpuPart::Node(node));
    }
}

fn host_facts(root: &Root, cpuinfo: &CpuInfo) -> HostFacts {
    let live = |value: Option<String>| if root.is_live() { value } else { None };
    let file = |path: &str| root.read(path).ok().map(|text| text.trim().to_owned());
    let told = |text: &String| !text.is_empty();
    let kernel = live(System::kernel_version().ok())
        .or_else(|| file("proc/sys/kernel/osrelease"))
        .or_else(|| parse_kernel_version(&file("proc/version")?))
        .filter(told);
    HostFacts {
        vendor: file("sys/class/dmi/id/sys_vendor").filter(told),
        // Absent on boards without DMI tables, which is no fault.
        product: live(Product::name().ok())
            .or_else(|| file("sys/class/dmi/id/product_name"))
            .filter(told),
        hypervisor: cpuinfo.hypervisor,
        kernel_flags: file("proc/cmdline").map(|line| host::kernel_flags(&line)),
        iommu: host::iommu(root),
        gpudirect: gpudirect::read(root, kernel.as_deref()),
        imex: host::imex(root),
        cpus: cpus::read(root),
        limits: host::limits(root),
        identity: host::identity(root),
        kernel,
        driver: file("proc/driver/nvidia/version")
            .and_then(|text| parse_driver_version(&text))
            .or_else(|| file("sys/module/amdgpu/version"))
            .filter(told),
        ..HostFacts::default()
    }
}

/// The version in the first line of the kernel module's own file:
/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ...`.
fn parse_driver_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
    let version = |word: &&str| {
        word.contains('.')
            && word.split('.').all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    line.split_whitespace().find(version).map(Into::into)
}

/// The release in `Linux version 5.15.0-1 (builder) (gcc ...`, which recorders keep more often than the file that
/// has it alone.
fn parse_kernel_version(text: &str) -> Option<String> {
    text.strip_prefix("Linux version ")?.split_whitespace().next().map(Into::into)
}

fn nodes(root: &Root, report: &Report<CpuPart>) -> Vec<NumaNode> {
    let names = match root.list(NODES) {
        Ok(names) => names,
        Err(error) => {
            report.fault(NODES, Trouble::from(&error));
            return Vec::new();
        }
    };
    let mut ids: Vec<u32> =
        names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    ids.sort_unstable();
    ids.dedup();
    let node = |id: &u32| node(root, *id, &ids, report);
    ids.iter().map(node).collect()
}

fn node(root: &Root, id: u32, ids: &[u32], report: &Report<CpuPart>) -> NumaNode {
    let read = |file: &str| {
        let path = format!("{NODES}/node{id}/{file}");
        let text = root.read(&path);
        text.map_err(|error| report.fault(&path, Trouble::from(&error))).ok()
    };
    let bad = |file: &str, text: &str| {
        report.fault(
            format!("{NODES}/node{id}/{file}"),
            Trouble::new(FaultKind::Malformed, format!("'{text}'")),
        );
    };
    let cpus = read_cpus(root, &format!("{NODES}/node{id}"), "cpulist", "cpumap");
    let memory_bytes = read("meminfo").and_then(|text| {
        let bytes = parse_mem_total(&text);
        if bytes.is_none() {
            bad("meminfo", text.lines().next().unwrap_or_default());
        }
        bytes
    });
    let distances = read("distance").and_then(|text| {
        let distances = parse_distances(&text, ids);
        if distances.is_none() {
            bad("distance", &text);
        }
        distances
    });
    NumaNode {
        cpus: cpus.map_err(|(place, error)| report.fault(place, error)).ok(),
        memory_bytes,
        distances: distances.unwrap_or_default(),
        ..NumaNode::new(id)
    }
}

/// A set of CPUs from its list file, or from its mask file where a recorder left the list out.
///
/// # Errors
/// The list's path and what is wrong with it.
pub(super) fn read_cpus(
    root: &Root,
    dir: &str,
    list: &str,
    mask: &str,
) -> Result<CpuList, (String, Trouble)> {
    let place = format!("{dir}/{list}");
    let malformed = |error: InvalidCpuList| Trouble::new(FaultKind::Malformed, error);
    match root.read(&place) {
        Ok(text) => text.parse().map_err(|error| (place, malformed(error))),
        Err(error) => match root.read(&format!("{dir}/{mask}")) {
            Ok(text) => CpuList::from_mask(&text)
                .map_err(|error| (format!("{dir}/{mask}"), malformed(error))),
            Err(_) => Err((place, Trouble::from(&error))),
        },
    }
}

/// Bytes in `Node 0 MemTotal:       32762040 kB`.
fn parse_mem_total(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("MemTotal:")?;
    let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The file has one column for each node that is online, in the order of their numbers.
fn parse_distances(text: &str, ids: &[u32]) -> Option<BTreeMap<u32, u32>> {
    let columns: Option<Vec<u32>> = text.split_whitespace().map(|n| n.parse().ok()).collect();
    let columns = columns.filter(|columns| columns.len() == ids.len())?;
    Some(ids.iter().copied().zip(columns).collect())
}

/// What `/proc/cpuinfo` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CpuInfo {
    /// By CPU number.
    models: BTreeMap<u32, CpuModel>,
    /// Whether the CPU reports a hypervisor; only x86 tells.
    hypervisor: Option<bool>,
}

impl CpuInfo {
    /// The model of the first CPU of a node; of the first CPU of all for a node without any that is listed.
    fn model_of(&self, cpus: Option<&CpuList>) -> CpuModel {
        let own = cpus.into_iter().flat_map(CpuList::iter).find_map(|cpu| self.models.get(&cpu));
        own.or_else(|| self.models.values().next()).cloned().unwrap_or_default()
    }
}

fn parse_cpuinfo(text: &str) -> CpuInfo {
    let mut info = CpuInfo::default();
    let mut cpu = 0;
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let (key, value) = (key.trim(), value.trim());
        if key == "processor" {
            // Some Arm kernels print the model's name under the same key.
            if let Ok(number) = value.parse() {
                cpu = number;
                info.models.entry(cpu).or_default();
            }
            continue;
        }
        let model = info.models.entry(cpu).or_default();
        match key {
            "vendor_id" => {
                model.vendor = Some(value.into());
                model.arch = Some(CpuArch::X86_64);
            }
            "cpu family" => model.family = value.parse().ok(),
            "model" if model.arch == Some(CpuArch::X86_64) => model.model = value.parse().ok(),
            "flags" => {
                let mut flags = value.split_whitespace();
                info.hypervisor = Some(flags.any(|flag| flag == "hypervisor"));
            }
            "CPU implementer" => model.arch = Some(CpuArch::Arm64),
            "cpu" if value.starts_with("POWER") => model.arch = Some(CpuArch::Ppc64),
            _ => {}
        }
    }
    info
}

fn arch_of_uname(machine: &str) -> Option<CpuArch> {
    match machine {
        "x86_64" => Some(CpuArch::X86_64),
        "aarch64" => Some(CpuArch::Arm64),
        "ppc64" | "ppc64le" => Some(CpuArch::Ppc64),
        _ => None,
    }
}

/// Feeds the parsers of this file.
pub(super) fn fuzz(text: &str) {
    let _ = parse_cpuinfo(text);
    let _ = parse_driver_version(text);
    let _ = parse_kernel_version(text);
    let _ = parse_mem_total(text);
    let _ = parse_distances(text, &[0, 1]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x86_cpuinfo() {
        let info = parse_cpuinfo(
            "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: X\n\
             flags\t\t: fpu lm hypervisor\n\nprocessor\t: 1\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n",
        );
        assert_eq!(info.hypervisor, Some(true));
        let on = |cpu| info.model_of(Some(&CpuList::from_cpus([cpu])));
        assert_eq!((on(0).family, on(0).model), (Some(25), Some(17)));
        assert_eq!(on(1).vendor.as_deref(), Some("GenuineIntel"));
        assert_eq!(on(1).arch, Some(CpuArch::X86_64));
        // A node of memory alone has the processor of the host.
        assert_eq!(info.model_of(Some(&CpuList::default())), on(0));
    }

    #[test]
    fn other_cpuinfo() {
        let arm = parse_cpuinfo("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n");
        assert_eq!(arm.models[&0].arch, Some(CpuArch::Arm64));
        assert_eq!(arm.models[&0].vendor, None);
        assert_eq!(arm.hypervisor, None);
        let power = parse_cpuinfo("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n");
        assert_eq!(power.models[&0].arch, Some(CpuArch::Ppc64));
        assert_eq!(parse_cpuinfo(""), CpuInfo::default());
    }

    #[test]
    fn driver_versions() {
        let check = |text: &str, expect: Option<&str>| {
            assert_eq!(parse_driver_version(text).as_deref(), expect);
        };
        check(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 12.2.0\n",
            Some("535.104.05"),
        );
        check(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build\n",
            Some("560.35.03"),
        );
        check("GCC version: 12.2.0\n", None);
        check("", None);
    }

    #[test]
    fn kernel_versions() {
        let version = parse_kernel_version("Linux version 5.15.0-1 (a@b) (gcc 12)");
        assert_eq!(version.as_deref(), Some("5.15.0-1"));
        assert_eq!(parse_kernel_version("version 5"), None);
    }

    #[test]
    fn node_files() {
        assert_eq!(
            parse_mem_total("Node 0 MemTotal:       2 kB\nNode 0 MemFree: 1 kB"),
            Some(2048)
        );
        assert_eq!(parse_mem_total("Node 0 MemTotal: x kB"), None);
        assert_eq!(parse_distances("10 21", &[0, 8]), Some(BTreeMap::from([(0, 10), (8, 21)])));
        assert_eq!(parse_distances("10 21 31", &[0, 8]), None);
    }
}
