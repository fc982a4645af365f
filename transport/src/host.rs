//! Which machine a process is on, as far as it matters for reaching it, and for sharing it.

use std::collections::BTreeSet;

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

/// Two processes with equal `boot` and `network` can pass descriptors to each other and share memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Host {
    /// For people; errors name it.
    pub(crate) name: String,
    /// Differs between machines and between boots.
    pub(crate) boot: String,
    /// The network namespace: Unix sockets without a file are seen within one alone.
    pub(crate) network: String,
    /// The cores it may run on.
    pub(crate) cores: Vec<usize>,
    /// How many of them it may keep busy, where a quota says less than all.
    pub(crate) quota: Option<usize>,
}

impl Host {
    /// This process's. What cannot be read is replaced by the process number, which equals no other's: then shared
    /// memory is not used.
    pub(crate) fn this() -> Self {
        let unknown = || format!("process {}", std::process::id());
        let read = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned());
        let network = std::fs::read_link("/proc/self/ns/net");
        let cores: Vec<usize> = sched_getaffinity(None)
            .map(|set| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
            .unwrap_or_default();
        let parallel = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            name: read("/proc/sys/kernel/hostname").unwrap_or_else(|_| "unknown".to_owned()),
            boot: read("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| unknown()),
            network: network.map_or_else(|_| unknown(), |link| link.display().to_string()),
            quota: (parallel < cores.len()).then_some(parallel),
            cores,
        }
    }

    /// Cores that processes of one host have between them. Launchers bind each rank to its own: then none has more than one, and all
    /// have as many as there are ranks.
    pub(crate) fn cores_of<'a>(hosts: impl Iterator<Item = &'a Self> + Clone) -> usize {
        let union: BTreeSet<usize> = hosts.clone().flat_map(|h| h.cores.iter().copied()).collect();
        let quota = hosts.filter_map(|host| host.quota).min();
        union.len().min(quota.unwrap_or(usize::MAX)).max(1)
    }

    pub(crate) fn shares_memory_with(&self, other: &Self) -> bool {
        self.boot == other.boot && self.network == other.network
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_a_core_each_are_not_too_many() {
        let bound = |cores: &[usize], quota| {
            let (name, boot, network) = (String::new(), String::new(), String::new());
            Host { name, boot, network, cores: cores.to_vec(), quota }
        };
        let count = |hosts: &[Host]| Host::cores_of(hosts.iter());
        assert_eq!(count(&[bound(&[0], None), bound(&[1], None), bound(&[2, 3], None)]), 4);
        assert_eq!(count(&[bound(&[0, 1], None), bound(&[0, 1], None)]), 2);
        assert_eq!(count(&[bound(&[0, 1, 2, 3], Some(2)), bound(&[4], None)]), 2);
        assert_eq!(count(&[bound(&[], None)]), 1);
        assert!(count(&[Host::this()]) >= 1);
    }
}
