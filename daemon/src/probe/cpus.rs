//! CPUs by package, third-level cache and core.

use std::collections::BTreeMap;

use topology::CpuList;
use topology::snapshot::CpuTopology;

use super::cpu::read_cpus;
use super::root::Root;

const CPUS: &str = "sys/devices/system/cpu";

/// Indices of caches to look at; the third level is the fourth or so.
const MOST_CACHES: u32 = 8;

/// `None` where the kernel lists no CPU.
pub(super) fn read(root: &Root) -> Option<CpuTopology> {
    let names = root.list(CPUS).ok()?;
    let mut numbers: Vec<u32> =
        names.iter().filter_map(|name| name.strip_prefix("cpu")?.parse().ok()).collect();
    numbers.sort_unstable();
    let mut packages: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let (mut cores, mut l3) = (BTreeMap::new(), BTreeMap::new());
    for cpu in numbers {
        let dir = format!("{CPUS}/cpu{cpu}");
        if let Some(package) = number(root, &format!("{dir}/topology/physical_package_id")) {
            packages.entry(package).or_default().push(cpu);
        }
        let topology = format!("{dir}/topology");
        let threads = read_cpus(root, &topology, "core_cpus_list", "core_cpus")
            .or_else(|_| read_cpus(root, &topology, "thread_siblings_list", "thread_siblings"));
        insert(&mut cores, threads.ok());
        // The same set from each of its CPUs: one is enough to ask.
        if !l3.values().any(|cpus: &CpuList| cpus.iter().any(|other| other == cpu)) {
            insert(&mut l3, third_level(root, &dir));
        }
    }
    let packages = packages.into_iter().map(|(id, cpus)| (id, CpuList::from_cpus(cpus))).collect();
    let topology = CpuTopology {
        packages,
        l3: l3.into_values().collect(),
        cores: cores.into_values().collect(),
    };
    (topology != CpuTopology::default()).then_some(topology)
}

fn insert(sets: &mut BTreeMap<u32, CpuList>, cpus: Option<CpuList>) {
    let Some(cpus) = cpus else { return };
    let first = cpus.iter().next();
    if let Some(first) = first {
        sets.insert(first, cpus);
    }
}

fn third_level(root: &Root, cpu: &str) -> Option<CpuList> {
    let dir = (0..MOST_CACHES)
        .map(|index| format!("{cpu}/cache/index{index}"))
        .find(|dir| number(root, &format!("{dir}/level")) == Some(3))?;
    read_cpus(root, &dir, "shared_cpu_list", "shared_cpu_map").ok()
}

fn number(root: &Root, file: &str) -> Option<u32> {
    // Arm kernels say -1 where firmware tells no package.
    root.read(file).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Numbers that run over cores before threads, as most machines have them; a linear split of the list would put
    /// one task on two halves of every core (pytorch#115305).
    #[test]
    fn field_case_046_interleaved_threads() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: String, text: &str| {
            let path = dir.path().join(CPUS).join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for cpu in 0..8_u32 {
            let (core, half) = (cpu % 4, cpu % 4 / 2);
            write(format!("cpu{cpu}/topology/physical_package_id"), &half.to_string());
            write(
                format!("cpu{cpu}/topology/thread_siblings_list"),
                &format!("{core},{}", core + 4),
            );
            write(format!("cpu{cpu}/cache/index3/level"), "3");
            let first = half * 2;
            let shared = format!("{first}-{},{}-{}", first + 1, first + 4, first + 5);
            write(format!("cpu{cpu}/cache/index3/shared_cpu_list"), &shared);
        }
        fs::create_dir_all(dir.path().join(CPUS).join("cpufreq")).unwrap();
        let cpus = read(&Root::new(dir.path())).unwrap();
        let words = |lists: &[CpuList]| lists.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(words(&cpus.cores), ["0,4", "1,5", "2,6", "3,7"]);
        assert_eq!(words(&cpus.l3), ["0-1,4-5", "2-3,6-7"]);
        assert_eq!(cpus.packages[&1].to_string(), "2-3,6-7");
        assert_eq!(read(&Root::new(&dir.path().join("nothing"))), None);
    }
}
