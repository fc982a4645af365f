//! Ranks, hosts and cores in the files of Open MPI and Slurm.
//!
//! The order of hosts is the order of ranks, and ranks of a host follow its GPUs. Open MPI takes it from a host file with `--map-by
//! ppr:N:node`, and cores besides from a rank file (`-rf` in 4.x, `--map-by rankfile:file=` in 5.x); Slurm keeps an order of hosts
//! with `SLURM_HOSTFILE` and `-m arbitrary` alone, one line a task.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use super::binding::bind;
use super::cores::{logical, numbers, ranges};
use crate::snapshot::{ProcessLimits, Snapshot};
use crate::{GpuIndex, Topology};

/// A host by the name that launchers know it by, with the GPUs of its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankHost {
    /// Its name.
    pub name: String,
    /// In rank order.
    pub gpus: Vec<GpuIndex>,
}

/// The hosts of a topology under these names, all with these GPUs (`None`: all that each has).
///
/// # Errors
/// Where names and hosts differ in number, or a name is none or that of another host.
pub fn rank_hosts(
    topology: &Topology,
    names: &[String],
    gpus: Option<&[GpuIndex]>,
) -> Result<Vec<RankHost>, String> {
    let hosts = topology.hosts();
    if names.len() != hosts.len() {
        return Err(format!(
            "{} hosts have {} names: --host-name gives one each, in rank order",
            hosts.len(),
            names.len()
        ));
    }
    let valid = |name: &str| {
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        !name.is_empty() && !name.starts_with('-') && name.chars().all(letter)
    };
    if let Some(name) = names.iter().find(|name| !valid(name)) {
        return Err(format!("'{name}' is no name of a host"));
    }
    let mut seen = BTreeSet::new();
    if let Some(name) = names.iter().find(|name| !seen.insert(*name)) {
        return Err(format!("'{name}' names two hosts: launchers take them for one"));
    }
    let of = |(name, host): (&String, &Snapshot)| {
        let has: Vec<GpuIndex> = host.gpus.iter().map(|gpu| gpu.index).collect();
        let gpus = gpus.map_or_else(|| has.clone(), <[GpuIndex]>::to_vec);
        match gpus.iter().find(|gpu| !has.contains(gpu)) {
            Some(gpu) => Err(format!("{name} has no GPU{gpu}")),
            None => Ok(RankHost { name: name.clone(), gpus }),
        }
    };
    names.iter().zip(hosts).map(of).collect()
}

/// Open MPI's host file: a line each, with as many slots as ranks.
#[must_use]
pub fn hostfile(hosts: &[RankHost]) -> String {
    let mut text = String::from(
        "# in rank order: mpirun --hostfile FILE --map-by ppr:N:node, N ranks a host\n",
    );
    for RankHost { name, gpus } in hosts {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name} slots={}", gpus.len());
    }
    text
}

/// For `SLURM_HOSTFILE` with `srun -m arbitrary`: a line a task. Slurm takes every line for a host, so there are no comments.
#[must_use]
pub fn slurm_hostfile(hosts: &[RankHost]) -> String {
    let lines = hosts.iter().flat_map(|host| host.gpus.iter().map(|_| &host.name));
    lines.fold(String::new(), |text, name| text + name + "\n")
}

/// Open MPI's rank file: each rank on the whole cores beside its GPU, as `PACKAGE:CORES` by logical number.
///
/// # Errors
/// Where the hosts do not tell their cores, or no whole core of one package is near a GPU.
pub fn rankfile(topology: &Topology, hosts: &[RankHost]) -> Result<String, String> {
    let mut text = String::from(
        "# mpirun -rf FILE in Open MPI 4, --map-by rankfile:file=FILE in 5; package:cores by logical number\n",
    );
    let mut rank = 0;
    for (host, snapshot) in hosts.iter().zip(topology.hosts()) {
        let cores = logical(snapshot).map_err(|error| format!("{}: {error}", host.name))?;
        let bound = bind(snapshot, &ProcessLimits::default(), &host.gpus);
        for (gpu, binding) in host.gpus.iter().zip(bound) {
            let (inside, _) = numbers(&cores, &binding.cpus);
            let package = inside.first().map(|at| cores[*at].package);
            let package =
                package.filter(|package| inside.iter().all(|at| cores[*at].package == *package));
            let Some(package) = package else {
                let why = match binding.cpus.is_empty() {
                    true => binding.reason,
                    false => format!("CPUs {} are not whole cores of one package", binding.cpus),
                };
                return Err(format!("{}: GPU{gpu}: {why}", host.name));
            };
            let list = ranges(inside.iter().map(|at| cores[*at].in_package));
            let _ = writeln!(text, "rank {rank}={} slot={package}:{list}", host.name);
            rank += 1;
        }
    }
    Ok(text)
}

/// Whether hosts of these names, in rank order, keep it under torchrun's c10d rendezvous, which sorts names as text
/// (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`); else what it makes of them.
#[must_use]
pub fn torchrun_order(names: &[String]) -> Option<Vec<String>> {
    let mut sorted = names.to_vec();
    sorted.sort();
    (sorted != names).then_some(sorted)
}
