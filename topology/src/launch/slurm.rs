//! Slurm's `gres.conf`: device files, cores and links of GPUs.
//!
//! Slurm numbers cores logically, without hardware threads; its scheduling knows sockets, so cores of a GPU that are part of a
//! socket need NUMA nodes or caches to be its sockets (gres.conf(5), slurm.conf(5) on SlurmdParameters).

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use super::cores::{Core, logical, numbers, ranges};
use super::quote::comment;
use crate::snapshot::Snapshot;
use crate::{Gpu, GpuIndex, HostId, Topology};

/// The file for a host; what has to be said stands in it as comments.
///
/// # Errors
/// Where the host does not tell its cores, or the device files of its GPUs.
pub fn slurm_gres(topology: &Topology, host: HostId) -> Result<String, String> {
    let snapshot = topology.hosts().get(host.index()).ok_or("there is no such host")?;
    if snapshot.gpus.is_empty() {
        return Err("this host has no GPU".into());
    }
    let cores = logical(snapshot)?;
    let mut text = String::from(
        "# GPUs for gres.conf; NodeName= goes before Name= where hosts differ. With AutoDetect=nvml these lines must agree with what it finds: leave that out\n",
    );
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for gpu in &snapshot.gpus {
        let kind = gpu.name.as_deref().map(kind_of).filter(|kind| !kind.is_empty());
        let counted = kind.map_or_else(|| "gpu".into(), |kind| format!("gpu:{kind}"));
        *counts.entry(counted).or_default() += 1;
    }
    // Slurm passes over typed lines where the node's count has no type.
    let counts: Vec<String> =
        counts.into_iter().map(|(kind, count)| format!("{kind}:{count}")).collect();
    let _ =
        writeln!(text, "# slurm.conf: GresTypes=gpu, and of the node Gres={}", counts.join(","));
    let mut lines = String::new();
    let mut parts = Vec::new();
    for gpu in &snapshot.gpus {
        let file = file(gpu)?;
        let _ = write!(lines, "Name=gpu");
        if let Some(kind) = gpu.name.as_deref().map(kind_of).filter(|kind| !kind.is_empty()) {
            let _ = write!(lines, " Type={kind}");
        }
        let _ = write!(lines, " File={file}");
        let near = gpu.cpus.as_ref().filter(|cpus| !cpus.is_empty()).or_else(|| {
            let node = snapshot.numa_nodes.iter().find(|node| Some(node.id) == gpu.numa_node)?;
            node.cpus.as_ref().filter(|cpus| !cpus.is_empty())
        });
        match near.map(|near| numbers(&cores, near)) {
            Some((inside, true)) if !inside.is_empty() => {
                let _ = write!(lines, " Cores={}", ranges(inside.iter().copied()));
                parts.extend(part_of_socket(&cores, &inside));
            }
            Some((inside, _)) if !inside.is_empty() => {
                let _ = write!(lines, " Cores={}", ranges(inside.iter().copied()));
                let _ = writeln!(
                    text,
                    "{}",
                    comment(&format!(
                        "GPU{}: CPUs of cores that are not wholly near it are left out",
                        gpu.index
                    ))
                );
            }
            _ => {
                let _ = writeln!(
                    text,
                    "{}",
                    comment(&format!("GPU{}: which cores are near it is not known", gpu.index))
                );
            }
        }
        if let Some(links) = links(topology, host, snapshot, gpu.index) {
            let _ = write!(lines, " Links={links}");
        }
        lines.push('\n');
    }
    if let Some(part) = parts.into_iter().max() {
        let l3 = snapshot.host.cpus.as_ref().map_or(0, |cpus| cpus.l3.len());
        let nodes = snapshot.numa_nodes.iter().filter(|node| !node.is_memory_only()).count();
        let setting = if l3 > nodes && part * l3 == cores.len() {
            "l3cache_as_socket"
        } else {
            "numa_node_as_socket"
        };
        let _ = writeln!(
            text,
            "{}",
            comment(&format!(
                "cores of a GPU are {part} of a socket: slurm.conf needs SlurmdParameters={setting}, and Sockets= and CoresPerSocket= as slurmd -C then prints them"
            ))
        );
    }
    Ok(text + &lines)
}

fn file(gpu: &Gpu) -> Result<String, String> {
    match (gpu.minor, gpu.gfx.is_some()) {
        (Some(minor), false) => Ok(format!("/dev/nvidia{minor}")),
        (Some(minor), true) => Ok(format!("/dev/dri/renderD{minor}")),
        (None, _) => Err(format!("GPU{}: which device file it has is not known", gpu.index)),
    }
}

/// As Slurm's own detection names it: lower case, words joined (`gpu_nvml.c`).
fn kind_of(name: &str) -> String {
    let letter =
        |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
    name.trim().to_ascii_lowercase().chars().map(letter).collect()
}

/// How many cores these are, where they are not whole packages.
fn part_of_socket(cores: &[Core], inside: &[usize]) -> Option<usize> {
    let package = cores[*inside.first()?].package;
    let all = cores.iter().filter(|core| core.package == package).count();
    (inside.len() < all).then_some(inside.len())
}

/// Links to each GPU, -1 for itself; `None` where there are none between any.
fn links(topology: &Topology, host: HostId, snapshot: &Snapshot, gpu: GpuIndex) -> Option<String> {
    let from = topology.gpu(host, gpu)?;
    let count = |other: &Gpu| match other.index == gpu {
        true => Some(String::from("-1")),
        false => Some(topology.path(from, topology.gpu(host, other.index)?).links.to_string()),
    };
    let counts: Vec<String> = snapshot.gpus.iter().map(count).collect::<Option<_>>()?;
    counts.iter().any(|count| !matches!(count.as_str(), "0" | "-1")).then(|| counts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{RankHost, hostfile, rank_hosts, rankfile, slurm_hostfile, torchrun_order};
    use crate::snapshot::{CpuTopology, NumaNode, Source};
    use crate::{BusId, CpuList, RateModel, lower};

    /// Two packages of four cores with two threads each, four NUMA nodes, a cache a node: CPUs 0 to 7 first threads.
    fn host() -> Snapshot {
        let list = |text: &str| text.parse::<CpuList>().unwrap();
        let mut host = Snapshot::new(Source::Live);
        let cores = (0..8).map(|core| list(&format!("{core},{}", core + 8))).collect();
        // The second half of each package lies in the first: numbers of caches are not in order.
        let nodes = ["2-3,10-11", "0-1,8-9", "4-5,12-13", "6-7,14-15"];
        let packages = [(0, list("0-3,8-11")), (1, list("4-7,12-15"))].into();
        let l3 = nodes.iter().map(|node| list(node)).collect();
        host.host.cpus = Some(CpuTopology { packages, l3, cores });
        for (id, cpus) in (0..).zip(nodes) {
            host.numa_nodes.push(NumaNode { cpus: Some(list(cpus)), ..NumaNode::new(id) });
            host.gpus.push(Gpu {
                bus_id: BusId::new(0, u8::try_from(id + 1).unwrap(), 0, 0),
                minor: Some(3 - id),
                name: Some("NVIDIA A100-SXM4-40GB".into()),
                numa_node: Some(id),
                cpus: Some(list(cpus)),
                ..Gpu::new(GpuIndex(id))
            });
        }
        host
    }

    /// Cores in Slurm's numbers, without threads, and a word where they are parts of a socket (slurm-operator#205,
    /// deepops#1195).
    #[test]
    fn field_case_050_gres_conf_has_logical_cores() {
        let topology = lower(&[host()], RateModel::Effective).unwrap();
        let text = slurm_gres(&topology, HostId(0)).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        // GPU0's node is the second of its package by first thread.
        let expect = [
            "Name=gpu Type=nvidia_a100-sxm4-40gb File=/dev/nvidia3 Cores=2-3",
            "Name=gpu Type=nvidia_a100-sxm4-40gb File=/dev/nvidia2 Cores=0-1",
            "Name=gpu Type=nvidia_a100-sxm4-40gb File=/dev/nvidia1 Cores=4-5",
            "Name=gpu Type=nvidia_a100-sxm4-40gb File=/dev/nvidia0 Cores=6-7",
        ];
        assert_eq!(lines, expect, "{text}");
        assert!(text.contains("SlurmdParameters=numa_node_as_socket"), "{text}");
        assert!(text.contains(" Gres=gpu:nvidia_a100-sxm4-40gb:4\n"), "{text}");
        let mut untold = host();
        untold.host.cpus = None;
        let topology = lower(&[untold], RateModel::Effective).unwrap();
        assert!(slurm_gres(&topology, HostId(0)).is_err());
    }

    /// There is no mapping by device any more: ranks are told their cores (open-mpi/ompi#14169, #11696).
    #[test]
    fn field_case_051_rank_files() {
        let topology = lower(&[host(), host()], RateModel::Effective).unwrap();
        let names = ["n1", "n0"].map(String::from);
        let hosts = rank_hosts(&topology, &names, Some(&[GpuIndex(2), GpuIndex(0)])).unwrap();
        let text = rankfile(&topology, &hosts).unwrap();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "rank 0=n1 slot=1:0-1",
                "rank 1=n1 slot=0:2-3",
                "rank 2=n0 slot=1:0-1",
                "rank 3=n0 slot=0:2-3"
            ]
        );
        for (names, gpu) in [
            (&["a", "b"][..], 9),
            (&["a"], 0),
            (&["a", "b c"], 0),
            (&["a", "-b"], 0),
            (&["a", "a"], 0),
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).into()).collect();
            assert!(rank_hosts(&topology, &names, Some(&[GpuIndex(gpu)])).is_err(), "{names:?}");
        }
    }

    /// Hosts in the order of ranks, in each launcher's own way (pytorch#150660, open-mpi/ompi#4327).
    #[test]
    fn field_case_078_hosts_in_the_order_of_ranks() {
        let of =
            |name: &str| RankHost { name: name.into(), gpus: [GpuIndex(0), GpuIndex(1)].into() };
        let hosts = [of("node10"), of("node2")];
        assert!(hostfile(&hosts).ends_with("node10 slots=2\nnode2 slots=2\n"));
        assert_eq!(slurm_hostfile(&hosts), "node10\nnode10\nnode2\nnode2\n");
        let names = ["node2", "node10"].map(String::from);
        assert_eq!(torchrun_order(&names), Some(["node10", "node2"].map(String::from).to_vec()));
        assert_eq!(torchrun_order(&["node02", "node10"].map(String::from)), None);
    }
}
