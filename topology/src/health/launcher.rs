//! What a job's launcher left to this task of the host's GPUs.
//!
//! A launcher that gives each task a device control group with one GPU takes its peers away: tasks cannot open each other's memory
//! then, and traffic between GPUs of one host passes through host memory or the network (NVIDIA/nccl#1066, open-mpi/ompi#11949).
//! A mask such as `CUDA_VISIBLE_DEVICES` does not: the driver still shows all.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::snapshot::{PciKind, Snapshot};
use crate::{Finding, Severity};

/// What starts the tasks of a job on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Launcher {
    /// `srun`.
    Slurm,
    /// Open MPI's `mpirun`.
    Mpirun,
    /// PyTorch's.
    Torchrun,
    /// A pod of Kubernetes: one task, or what it starts itself.
    Kubernetes,
}

/// A word that names no launcher known here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no launcher is called '{0}': srun, mpirun, torchrun and kubernetes are")]
pub struct UnknownLauncher(String);

impl FromStr for Launcher {
    type Err = UnknownLauncher;

    fn from_str(text: &str) -> Result<Self, UnknownLauncher> {
        match text {
            "slurm" | "srun" => Ok(Self::Slurm),
            "mpirun" => Ok(Self::Mpirun),
            "torchrun" => Ok(Self::Torchrun),
            "kubernetes" | "k8s" => Ok(Self::Kubernetes),
            other => Err(UnknownLauncher(other.into())),
        }
    }
}

impl Launcher {
    /// Tasks on this host, by what the launcher tells each of them. `None` outside a job.
    fn tasks_here(self, variable: &dyn Fn(&str) -> Option<String>) -> Option<u32> {
        let number = |name: &str| variable(name)?.trim().parse().ok();
        match self {
            Self::Slurm => tasks_of_slurm(variable),
            Self::Mpirun => number("OMPI_COMM_WORLD_LOCAL_SIZE"),
            Self::Torchrun => number("LOCAL_WORLD_SIZE"),
            // A pod knows nothing of others on its host.
            Self::Kubernetes => None,
        }
    }

    fn fix(self) -> &'static str {
        match self {
            Self::Slurm => {
                "srun --gpu-bind=none, or --gres-flags=allow-task-sharing from Slurm 23.11 on, and choose the GPU by SLURM_LOCALID"
            }
            Self::Mpirun | Self::Torchrun | Self::Kubernetes => {
                "give the container or control group of all tasks every GPU of the job, and choose one by local rank"
            }
        }
    }
}

/// Tasks of the step on this host by Slurm's variables: `8`, or `8(x2),4` with this host's at the place of its number.
pub(crate) fn tasks_of_slurm(variable: &dyn Fn(&str) -> Option<String>) -> Option<u32> {
    let per_host =
        variable("SLURM_STEP_TASKS_PER_NODE").or_else(|| variable("SLURM_TASKS_PER_NODE"))?;
    let host = variable("SLURM_NODEID").and_then(|text| text.trim().parse().ok());
    of_host(&per_host, host.unwrap_or(0))
}

/// The count of a host in Slurm's compressed list.
fn of_host(list: &str, host: u32) -> Option<u32> {
    let mut before = 0_u32;
    for item in list.split(',') {
        let (count, times) = match item.trim().split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (item.trim(), 1),
        };
        before = before.checked_add(times)?;
        if host < before {
            return count.parse().ok();
        }
    }
    None
}

/// What is found of the task that this is; `variable` reads its environment. Nothing outside a job of that launcher.
#[must_use]
pub fn launcher(
    snapshot: &Snapshot,
    launcher: Launcher,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    let Some(tasks) = launcher.tasks_here(variable).filter(|tasks| *tasks > 1) else {
        return Vec::new();
    };
    let there = snapshot.pci_devices.iter().filter(|device| device.kind == PciKind::Gpu).count();
    let seen = snapshot.gpus.iter().filter(|gpu| gpu.uuid.is_some()).count();
    let mut found = Vec::new();
    let all = u32::try_from(seen).is_ok_and(|seen| seen >= tasks);
    if seen > 0 && seen < there && !all {
        let evidence = format!(
            "the driver shows this task {seen} of {there} GPUs, and {tasks} tasks are here: they cannot open each other's GPU memory"
        );
        let (code, fix) = ("task-sees-few-gpus", launcher.fix());
        found.push(Finding::new(code, Severity::Degraded, "host", evidence, fix));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Gpu, PciDevice, Source};
    use crate::{BusId, GpuIndex};

    fn host(there: u8, seen: u32) -> Snapshot {
        let mut host = Snapshot::new(Source::Live);
        for bus in 0..there {
            let bus_id = BusId::new(0, bus, 0, 0).unwrap();
            host.pci_devices.push(PciDevice::new(bus_id, PciKind::Gpu));
        }
        for index in 0..seen {
            host.gpus.push(Gpu { uuid: Some("GPU-x".into()), ..Gpu::new(GpuIndex(index)) });
        }
        host
    }

    #[track_caller]
    fn check(which: &str, environment: &[(&str, &str)], there: u8, seen: u32, expect: usize) {
        let variable = |name: &str| {
            environment.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).into())
        };
        let found = launcher(&host(there, seen), which.parse().unwrap(), &variable);
        assert_eq!(found.len(), expect, "{environment:?}: {found:?}");
    }

    /// One GPU a task in a control group of its own: no peers (NVIDIA/nccl#1066, nccl-tests#300).
    #[test]
    fn field_case_063_one_gpu_a_task() {
        let eight = [("SLURM_STEP_TASKS_PER_NODE", "8")];
        check("slurm", &eight, 8, 1, 1);
        check("slurm", &eight, 8, 8, 0);
        check("slurm", &[("SLURM_TASKS_PER_NODE", "1")], 8, 1, 0);
        check("slurm", &[], 8, 1, 0);
        // The second host of several has one task.
        let mixed = [("SLURM_TASKS_PER_NODE", "8,1(x3)"), ("SLURM_NODEID", "1")];
        check("slurm", &mixed, 8, 1, 0);
        check("mpirun", &[("OMPI_COMM_WORLD_LOCAL_SIZE", "4")], 8, 1, 1);
        check("torchrun", &[("LOCAL_WORLD_SIZE", "2")], 4, 2, 0);
        assert!("pbs".parse::<Launcher>().is_err());
    }

    #[test]
    fn lists_of_slurm() {
        for (list, host, expect) in [
            ("8", 0, Some(8)),
            ("8(x2),4", 1, Some(8)),
            ("8(x2),4", 2, Some(4)),
            ("8(x2),4", 3, None),
            ("8(x2", 0, None),
            ("", 0, None),
            ("1(x4294967295),1(x9)", 0, Some(1)),
            ("1(x4294967295),1(x9)", u32::MAX, None),
        ] {
            assert_eq!(of_host(list, host), expect, "{list} {host}");
        }
    }
}
