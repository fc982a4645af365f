//! Cores by logical number: hwloc's order, which Slurm and Open MPI count in.
//!
//! The kernel's numbers differ from machine to machine; these do not: packages in order, in each its NUMA nodes, in each its
//! caches, in each its cores, all by their first hardware thread (hwloc's "L#").

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::CpuList;
use crate::snapshot::Snapshot;

/// A core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Core {
    /// Place of its package.
    pub(super) package: usize,
    /// Its number in the package.
    pub(super) in_package: usize,
    /// Its hardware threads.
    pub(super) threads: CpuList,
}

/// All cores; the place in the list is the number on the host.
///
/// # Errors
/// Where the host does not tell packages and cores.
pub(super) fn logical(snapshot: &Snapshot) -> Result<Vec<Core>, String> {
    let untold = || {
        String::from(
            "this input does not tell packages and cores: record the host with topoctl snapshot",
        )
    };
    let host = snapshot.host.cpus.as_ref().ok_or_else(untold)?;
    if host.cores.is_empty() || host.packages.is_empty() {
        return Err(untold());
    }
    let first = |cpus: &CpuList| cpus.iter().next();
    let mut packages: Vec<&CpuList> = host.packages.values().collect();
    packages.sort_by_key(|cpus| first(cpus));
    let holds = |cpus: &CpuList, cpu: u32| cpus.contains(cpu);
    let mut keyed = Vec::new();
    for threads in host.cores.iter().filter(|core| !core.is_empty()) {
        let Some(cpu) = first(threads) else { continue };
        let package = packages.iter().position(|cpus| holds(cpus, cpu)).ok_or_else(untold)?;
        let node = snapshot
            .numa_nodes
            .iter()
            .filter_map(|node| node.cpus.as_ref())
            .find(|cpus| holds(cpus, cpu))
            .and_then(first);
        let cache = host.l3.iter().find(|cpus| holds(cpus, cpu)).and_then(first);
        keyed.push(((package, node, cache, cpu), threads.clone()));
    }
    keyed.sort();
    let mut cores: Vec<Core> = Vec::with_capacity(keyed.len());
    for ((package, ..), threads) in keyed {
        let in_package = cores.iter().filter(|core| core.package == package).count();
        cores.push(Core { package, in_package, threads });
    }
    Ok(cores)
}

/// The numbers of the cores that lie wholly in a set, and whether that is all of it.
pub(super) fn numbers(cores: &[Core], cpus: &CpuList) -> (Vec<usize>, bool) {
    let whole = |core: &Core| core.threads.iter().all(|cpu| cpus.contains(cpu));
    let inside: Vec<usize> = (0..cores.len()).filter(|at| whole(&cores[*at])).collect();
    let threads: usize = inside.iter().map(|at| cores[*at].threads.len()).sum();
    (inside, threads == cpus.len())
}

/// As a list of numbers and ranges.
pub(super) fn ranges(numbers: impl IntoIterator<Item = usize>) -> String {
    CpuList::from_cpus(numbers.into_iter().filter_map(|number| u32::try_from(number).ok()))
        .to_string()
}
