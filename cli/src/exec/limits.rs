//! What this process may use: its affinity, which a launcher may have narrowed, and its control group, which nothing widens.

use std::fs;
use std::path::{Path, PathBuf};

use topology::CpuList;
use topology::snapshot::ProcessLimits;

/// What this process may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// CPUs it may run on now.
    pub(crate) affinity: CpuList,
    /// CPUs that it could be let run on.
    most: Option<CpuList>,
    numa_nodes: Option<CpuList>,
}

impl Limits {
    /// Whether somebody left it fewer CPUs than its control group has.
    pub(crate) fn bound_by_launcher(&self) -> bool {
        let Some(most) = &self.most else { return false };
        !self.affinity.is_empty() && most.iter().any(|cpu| !self.affinity.contains(cpu))
    }

    /// What a binding may use.
    pub(crate) fn allowed(&self) -> ProcessLimits {
        let affinity = (!self.affinity.is_empty()).then(|| self.affinity.clone());
        ProcessLimits {
            cpus: self.most.clone().or(affinity),
            numa_nodes: self.numa_nodes.clone(),
            ..ProcessLimits::default()
        }
    }
}

/// Those of this process. Those in a snapshot are of whoever made it: a daemon is in another control group.
pub(crate) fn own() -> Limits {
    read(Path::new("/"))
}

fn read(root: &Path) -> Limits {
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let status = text("proc/self/status");
    let list = |key: &str| -> Option<CpuList> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches(':').parse().ok()
    };
    let online: Option<CpuList> = text("sys/devices/system/cpu/online")
        .parse()
        .ok()
        .filter(|cpus: &CpuList| !cpus.is_empty());
    let group = group(root, &text("proc/self/cgroup"));
    // A CPU that is offline counts as nobody's.
    let most = match (group, online) {
        (Some(group), Some(online)) => {
            Some(CpuList::from_cpus(group.iter().filter(|cpu| online.contains(*cpu))))
        }
        (group, online) => group.or(online),
    };
    Limits {
        affinity: list("Cpus_allowed_list").unwrap_or_default(),
        most: most.filter(|cpus| !cpus.is_empty()),
        numa_nodes: list("Mems_allowed_list"),
    }
}

/// CPUs of the control group, from `/proc/self/cgroup`: lines `ID:CONTROLLERS:PATH`, version 2 with neither. In a container the
/// group is often the root of what is mounted, whatever its path says.
fn group(root: &Path, groups: &str) -> Option<CpuList> {
    let fields = groups.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
    let mut candidates: Vec<PathBuf> = Vec::new();
    for field in fields {
        let [id, controllers, path] = field[..] else { continue };
        let path = Path::new(path.trim_start_matches('/'));
        let (mount, files) = match (id, controllers.split(',').any(|name| name == "cpuset")) {
            ("0", _) => ("sys/fs/cgroup", &["cpuset.cpus.effective"][..]),
            (_, true) => ("sys/fs/cgroup/cpuset", &["cpuset.effective_cpus", "cpuset.cpus"][..]),
            _ => continue,
        };
        // The nearest that has the controller; those above have no fewer.
        for above in path.ancestors() {
            candidates.extend(files.iter().map(|file| root.join(mount).join(above).join(file)));
        }
    }
    let list = |path: &PathBuf| fs::read_to_string(path).ok()?.parse().ok();
    candidates.iter().filter_map(list).find(|cpus: &CpuList| !cpus.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &[(&str, &str)], most: Option<&str>, bound: bool) {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let limits = read(dir.path());
        let found = limits.most.as_ref().map(ToString::to_string);
        assert_eq!((found.as_deref(), limits.bound_by_launcher()), (most, bound), "{files:?}");
    }

    #[test]
    fn control_groups_of_both_versions() {
        let status =
            ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3\nMems_allowed_list:\t0\n");
        let online = ("sys/devices/system/cpu/online", "0-15\n");
        let v2 = ("proc/self/cgroup", "0::/job/step\n");
        check(&[status], None, false);
        check(&[status, online], Some("0-15"), true);
        check(
            &[status, online, v2, ("sys/fs/cgroup/job/step/cpuset.cpus.effective", "0-3\n")],
            Some("0-3"),
            false,
        );
        // The step has no controller of its own; the job has.
        check(
            &[status, online, v2, ("sys/fs/cgroup/job/cpuset.cpus.effective", "0-7\n")],
            Some("0-7"),
            true,
        );
        // In a container its group is the root.
        check(
            &[status, v2, ("sys/fs/cgroup/cpuset.cpus.effective", "2-3,40\n"), online],
            Some("2-3"),
            false,
        );
        let v1 = ("proc/self/cgroup", "4:cpu,cpuset:/slurm/uid_0\n0::/\n");
        check(
            &[status, v1, ("sys/fs/cgroup/cpuset/slurm/uid_0/cpuset.cpus", "0-3\n")],
            Some("0-3"),
            false,
        );
        check(&[("proc/self/status", "no list"), online], Some("0-15"), false);
    }
}
