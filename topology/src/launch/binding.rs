//! CPUs and memory of each task: those near its GPU, parted among the tasks whose GPUs lie there.
//!
//! ```text
//!   near = the GPU's own CPUs, else those of its NUMA node, else of the nearest node that has any
//!   near ∩ allowed, by core: threads of one core stay together; by third-level cache: tasks share none where they need not
//!   [core 0 | core 1][core 2 | core 3] …    two tasks: half each; more tasks than cores: all share all
//! ```
//!
//! Numbers of CPUs say nothing: threads of a core are often numbered half the machine apart, and caches need not follow sockets
//! (pytorch#115305). So lists of cores and caches decide, and where the host does not tell them nothing is parted.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::snapshot::{NumaNode, ProcessLimits, Snapshot};
use crate::{CpuList, Gpu, GpuIndex};

/// What a task is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// CPUs; empty: as it is.
    pub cpus: CpuList,
    /// NUMA nodes to have memory of, by number; empty: as it is.
    pub memory_nodes: Vec<u32>,
    /// Why so; for people.
    pub reason: String,
}

/// Binds the tasks of a host, whose GPUs these are in order of local rank, to CPUs and memory that `allowed` leaves them. Equal
/// inputs give equal bindings, so tasks that each work it out for themselves agree.
#[must_use]
pub fn bind(snapshot: &Snapshot, allowed: &ProcessLimits, gpus: &[GpuIndex]) -> Vec<Binding> {
    let near: Vec<Result<CpuList, String>> =
        gpus.iter().map(|gpu| near_cpus(snapshot, allowed, *gpu)).collect();
    let mut groups: BTreeMap<&CpuList, Vec<usize>> = BTreeMap::new();
    for (task, near) in near.iter().enumerate() {
        if let Ok(near) = near {
            groups.entry(near).or_default().push(task);
        }
    }
    let mut bindings: Vec<Binding> = near
        .iter()
        .map(|near| Binding {
            reason: near.as_ref().err().cloned().unwrap_or_default(),
            ..Binding::default()
        })
        .collect();
    // Where sets overlap, the smaller goes first, and the larger takes what is left as long as that is enough.
    let mut groups: Vec<(&CpuList, Vec<usize>)> = groups.into_iter().collect();
    groups.sort_by_key(|(near, _)| near.len());
    let mut given = CpuList::default();
    for (near, tasks) in groups {
        let left = CpuList::from_cpus(near.iter().filter(|cpu| !given.contains(*cpu)));
        let from = if cores(snapshot, &left).len() >= tasks.len() { &left } else { near };
        let parts = part(snapshot, from, tasks.len());
        given = CpuList::from_cpus(given.iter().chain(from.iter()));
        for (task, (cpus, how)) in tasks.iter().zip(parts) {
            let memory_nodes = memory_nodes(snapshot, allowed, &cpus);
            let reason = format!("CPUs near GPU{}{how}", gpus[*task]);
            bindings[*task] = Binding { cpus, memory_nodes, reason };
        }
    }
    bindings
}

/// CPUs near a GPU that the task may use.
fn near_cpus(
    snapshot: &Snapshot,
    allowed: &ProcessLimits,
    index: GpuIndex,
) -> Result<CpuList, String> {
    let gpu = snapshot.gpus.iter().find(|gpu| gpu.index == index);
    let gpu = gpu.ok_or_else(|| format!("there is no GPU{index} on this host"))?;
    let near = gpu.cpus.clone().filter(|cpus| !cpus.is_empty());
    let near = near
        .or_else(|| cpus_of_node(snapshot, node_of(snapshot, gpu)?))
        .ok_or_else(|| format!("which CPUs are near GPU{index} is not known"))?;
    let usable = match &allowed.cpus {
        Some(allowed) => CpuList::from_cpus(near.iter().filter(|cpu| allowed.contains(*cpu))),
        None => near.clone(),
    };
    match usable.is_empty() {
        true => Err(format!("none of the CPUs near GPU{index} ({near}) is left to this task")),
        false => Ok(usable),
    }
}

fn node_of(snapshot: &Snapshot, gpu: &Gpu) -> Option<u32> {
    let function = || snapshot.pci_devices.iter().find(|device| Some(device.bus_id) == gpu.bus_id);
    gpu.numa_node.or_else(|| function()?.numa_node)
}

/// CPUs of a node, or of the nearest that has any: memory of a coherent GPU, and memory on a bus, are nodes without CPUs.
fn cpus_of_node(snapshot: &Snapshot, id: u32) -> Option<CpuList> {
    let node = snapshot.numa_nodes.iter().find(|node| node.id == id)?;
    let has_cpus = |node: &&NumaNode| node.cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
    let distance = |other: &&NumaNode| match other.id == id {
        true => 0,
        false => node.distances.get(&other.id).copied().unwrap_or(u32::MAX),
    };
    let own = Some(node).filter(has_cpus);
    let nearest = || snapshot.numa_nodes.iter().filter(has_cpus).min_by_key(distance);
    own.or_else(|| node.is_memory_only().then(nearest)?)?.cpus.clone()
}

/// Cores with those of their threads that are in the set, by cache, then first thread. Empty where the host does not tell cores.
fn cores(snapshot: &Snapshot, cpus: &CpuList) -> Vec<CpuList> {
    let Some(host) = snapshot.host.cpus.as_ref().filter(|host| !host.cores.is_empty()) else {
        return Vec::new();
    };
    let mut cores: Vec<CpuList> = host
        .cores
        .iter()
        .map(|core| CpuList::from_cpus(core.iter().filter(|cpu| cpus.contains(*cpu))))
        .filter(|core| !core.is_empty())
        .collect();
    // A CPU that no core lists is one of its own.
    let listed = |cpu: u32| host.cores.iter().any(|core| core.contains(cpu));
    let alone = cpus.iter().filter(|cpu| !listed(*cpu));
    cores.extend(alone.map(|cpu| CpuList::from_cpus([cpu])));
    let first = |core: &CpuList| core.iter().next();
    let cache = |core: &CpuList| {
        host.l3.iter().position(|cache| first(core).is_some_and(|cpu| cache.contains(cpu)))
    };
    cores.sort_by_key(|core| (cache(core), first(core)));
    cores
}

/// The CPUs of each of some tasks, and how they came about.
fn part(snapshot: &Snapshot, cpus: &CpuList, tasks: usize) -> Vec<(CpuList, &'static str)> {
    let all = |how| alloc::vec![(cpus.clone(), how); tasks];
    if tasks == 1 {
        return all("");
    }
    let cores = cores(snapshot, cpus);
    match cores.len() {
        0 => all(", which its neighbours use too: the host does not tell its cores"),
        count if count < tasks => {
            all(", which its neighbours use too: there are fewer cores than tasks")
        }
        count => {
            let part = |task: usize| {
                let (from, to) = (task * count / tasks, (task + 1) * count / tasks);
                CpuList::from_cpus(cores[from..to].iter().flat_map(CpuList::iter))
            };
            (0..tasks).map(|task| (part(task), ", its part of them in whole cores")).collect()
        }
    }
}

/// Nodes with memory at the CPUs, or the nearest such to them; never a GPU's own memory.
fn memory_nodes(snapshot: &Snapshot, allowed: &ProcessLimits, cpus: &CpuList) -> Vec<u32> {
    let of_gpu = |node: &NumaNode| snapshot.gpus.iter().any(|gpu| gpu.memory_node == Some(node.id));
    let usable = |node: &&NumaNode| {
        node.memory_bytes != Some(0)
            && !of_gpu(node)
            && allowed.numa_nodes.as_ref().is_none_or(|nodes| nodes.contains(node.id))
    };
    let here = |node: &NumaNode| {
        node.cpus.as_ref().is_some_and(|own| own.iter().any(|cpu| cpus.contains(cpu)))
    };
    let local: Vec<&NumaNode> = snapshot.numa_nodes.iter().filter(|node| here(node)).collect();
    let own: Vec<u32> = local.iter().copied().filter(|n| usable(n)).map(|node| node.id).collect();
    if !own.is_empty() {
        return own;
    }
    let Some(at) = local.first().filter(|node| node.memory_bytes == Some(0)) else {
        // What is near is forbidden, or not known: nothing better is.
        return Vec::new();
    };
    let distance = |node: &&NumaNode| at.distances.get(&node.id).copied().unwrap_or(u32::MAX);
    let nearest = snapshot.numa_nodes.iter().filter(usable).min_by_key(distance);
    nearest.map(|node| node.id).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{CpuTopology, HostFacts, Source};
    use alloc::string::ToString;
    use proptest::prelude::*;

    fn list(text: &str) -> CpuList {
        text.parse().unwrap()
    }

    fn host(nodes: &[&str], cores: &[&str], l3: &[&str], gpus: &[(&str, u32)]) -> Snapshot {
        let lists = |texts: &[&str]| texts.iter().map(|text| list(text)).collect();
        let cpus = CpuTopology { cores: lists(cores), l3: lists(l3), ..CpuTopology::default() };
        let mut host = Snapshot::new(Source::Live);
        host.host = HostFacts { cpus: Some(cpus), ..HostFacts::default() };
        for (id, cpus) in (0..).zip(nodes) {
            let distances =
                (0..4).map(|other: u32| (other, 10 + 10 * other.abs_diff(id))).collect();
            let cpus = Some(list(cpus));
            host.numa_nodes.push(NumaNode {
                cpus,
                distances,
                memory_bytes: Some(1 << 30),
                ..NumaNode::new(id)
            });
        }
        for (index, (cpus, node)) in (0..).zip(gpus) {
            let cpus = (!cpus.is_empty()).then(|| list(cpus));
            host.gpus.push(Gpu { cpus, numa_node: Some(*node), ..Gpu::new(GpuIndex(index)) });
        }
        host
    }

    #[track_caller]
    fn check(host: &Snapshot, allowed: &str, expect: &[&str]) {
        let cpus = (!allowed.is_empty()).then(|| list(allowed));
        let allowed = ProcessLimits { cpus, ..ProcessLimits::default() };
        let gpus: Vec<GpuIndex> = host.gpus.iter().map(|gpu| gpu.index).collect();
        let bound = bind(host, &allowed, &gpus);
        let found: Vec<String> = bound.iter().map(|binding| binding.cpus.to_string()).collect();
        assert_eq!(found, expect, "{bound:#?}");
    }

    /// Threads numbered after all cores, caches across: a linear split puts two tasks on each core (pytorch#115305, #148689,
    /// #149334).
    #[test]
    fn field_case_046_parts_are_whole_cores_of_few_caches() {
        let cores = ["0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15"];
        // As on Frontier: NUMA node and cache do not run with the numbers of GPUs.
        let l3 = ["0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"];
        let one = host(&["0-15"], &cores, &l3, &[("", 0), ("", 0)]);
        check(&one, "", &["0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"]);
        // A control group takes half of the threads, and a core with them.
        check(&one, "0-6", &["0,2,4", "1,3,5-6"]);
        let four = host(&["0-15"], &cores, &l3, &[("", 0); 4]);
        check(&four, "", &["0,2,8,10", "4,6,12,14", "1,3,9,11", "5,7,13,15"]);
        // More tasks than cores share.
        check(&four, "0,8,1", &["0-1,8"; 4]);
        let mut untold = four.clone();
        untold.host.cpus = None;
        check(&untold, "", &["0-15"; 4]);
        // Nothing near is left.
        let far = host(&["0-3", "4-7"], &cores, &[], &[("", 0), ("", 1)]);
        check(&far, "4-7", &["", "4-7"]);
        // The smaller of sets that overlap goes first.
        let overlap = host(&["0-7"], &cores, &[], &[("0-7", 0), ("0-1", 0)]);
        check(&overlap, "", &["2-7", "0-1"]);
    }

    /// Nodes of memory alone, as on Grace: no CPU is there to bind to, and a GPU's memory is not for the host
    /// (vllm#39361, superbenchmark#658).
    #[test]
    fn field_case_047_nodes_without_cpus() {
        let mut grace = host(&["0-3", "4-7", "", ""], &[], &[], &[("", 2), ("", 1)]);
        grace.gpus[0].memory_node = Some(2);
        grace.gpus[1].memory_node = Some(3);
        check(&grace, "", &["4-7", "4-7"]);
        let gpus = [GpuIndex(0), GpuIndex(1)];
        let bound = bind(&grace, &ProcessLimits::default(), &gpus);
        assert!(bound.iter().all(|binding| binding.memory_nodes == [1]), "{bound:#?}");
        // A node whose memory is none of the task's, and one that has none.
        let limits = ProcessLimits { numa_nodes: Some(list("0")), ..ProcessLimits::default() };
        assert!(bind(&grace, &limits, &gpus)[0].memory_nodes.is_empty());
        grace.numa_nodes[1].memory_bytes = Some(0);
        assert_eq!(bind(&grace, &ProcessLimits::default(), &gpus)[0].memory_nodes, [0]);
    }

    proptest! {
        /// What is given is allowed, whole cores go to one task where there are enough, and nobody is left without.
        #[test]
        fn parts_are_disjoint_allowed_and_fair(
            cores in 1_u32..24, tasks in 1_usize..9, allowed in proptest::collection::btree_set(0_u32..48, 1..48),
        ) {
            let texts: Vec<String> = (0..cores).map(|core| format!("{core},{}", core + cores)).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let all = format!("0-{}", 2 * cores - 1);
            let host = host(&[&all], &texts, &[], &alloc::vec![("", 0); tasks]);
            let limits = ProcessLimits { cpus: Some(CpuList::from_cpus(allowed)), ..ProcessLimits::default() };
            let gpus: Vec<GpuIndex> = host.gpus.iter().map(|gpu| gpu.index).collect();
            let bound = bind(&host, &limits, &gpus);
            let usable = limits.cpus.unwrap().iter().filter(|cpu| *cpu < 2 * cores).count();
            prop_assert!(bound.iter().all(|binding| binding.cpus.is_empty() == (usable == 0)));
            let shared = bound.iter().any(|binding| binding.reason.contains("fewer"));
            for (at, one) in bound.iter().enumerate() {
                for other in &bound[at + 1..] {
                    let meet = one.cpus.iter().any(|cpu| {
                        other.cpus.contains(cpu) || other.cpus.contains((cpu + cores) % (2 * cores))
                    });
                    prop_assert!(shared || usable == 0 || !meet, "{bound:?}");
                }
            }
            prop_assert!(shared || bound.iter().map(|b| b.cpus.len()).sum::<usize>() == usable);
        }
    }
}
