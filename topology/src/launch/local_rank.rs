//! Which task of its host a process is, by what its launcher told it.

use alloc::borrow::ToOwned as _;
use alloc::string::String;
use alloc::vec::Vec;

use super::visible::Visible;
use crate::health::tasks_of_slurm;
use crate::snapshot::Snapshot;
use crate::{GpuIndex, LocalRank};

/// Place among the tasks of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPlace {
    /// Which.
    pub rank: LocalRank,
    /// Of how many; `None` where the launcher does not tell.
    pub tasks: Option<u32>,
    /// The variable that told.
    pub told_by: String,
}

/// Most tasks of a host: several for each thread of the largest hosts there are. Whatever a variable says, no more are thought of.
pub(super) const MOST_TASKS: u32 = 4096;

/// A value that is no local rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{variable}='{value}' is no local rank: a number below that of tasks, and below {}",
    MOST_TASKS
)]
pub struct NotALocalRank {
    /// Where it stands.
    pub variable: String,
    /// As found.
    pub value: String,
}

/// Local rank and number of local tasks, by launcher; the innermost first: mpirun inside a batch job of Slurm leaves the
/// variables of both, and torchrun inside either.
const SOURCES: [(&str, Option<&str>); 6] = [
    ("LOCAL_RANK", Some("LOCAL_WORLD_SIZE")),
    ("OMPI_COMM_WORLD_LOCAL_RANK", Some("OMPI_COMM_WORLD_LOCAL_SIZE")),
    ("MPI_LOCALRANKID", Some("MPI_LOCALNRANKS")),
    ("PMI_LOCAL_RANK", Some("PMI_LOCAL_SIZE")),
    ("MV2_COMM_WORLD_LOCAL_RANK", Some("MV2_COMM_WORLD_LOCAL_SIZE")),
    ("SLURM_LOCALID", None),
];

/// The place that the environment tells; `from` names the variable to take instead of those known. `None` where no launcher told.
///
/// # Errors
/// Where the variable holds no number, or a number beyond that of tasks or [`MOST_TASKS`].
pub fn local_place(
    from: Option<&str>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<LocalPlace>, NotALocalRank> {
    let known = SOURCES.iter().find(|(name, _)| match from {
        Some(from) => *name == from,
        None => variable(name).is_some(),
    });
    let Some(name) = from.or_else(|| Some(known?.0)) else { return Ok(None) };
    let Some(value) = variable(name) else { return Ok(None) };
    let number = |name: &str| variable(name).and_then(|text| text.trim().parse::<u32>().ok());
    let tasks = match known {
        Some((_, Some(count))) => number(count),
        Some((_, None)) => tasks_of_slurm(variable),
        None => None,
    };
    let tasks = tasks.filter(|tasks| (1..=MOST_TASKS).contains(tasks));
    let rank = value.trim().parse::<u32>().ok();
    match rank.filter(|rank| *rank < tasks.unwrap_or(MOST_TASKS)) {
        Some(rank) => {
            Ok(Some(LocalPlace { rank: LocalRank(rank), tasks, told_by: name.to_owned() }))
        }
        None => Err(NotALocalRank { variable: name.to_owned(), value }),
    }
}

/// The GPU of every task that shares the host, and which of these tasks this is; `None` where the task has no GPU that is known.
///
/// Tasks that see all GPUs take them in turn. Where each sees one GPU alone, which the others have is not told; then every GPU of
/// the host counts as some task's.
#[must_use]
pub fn task_gpus(
    snapshot: &Snapshot,
    visible: &Visible,
    place: &LocalPlace,
) -> Option<(Vec<GpuIndex>, usize)> {
    let devices = &visible.gpus;
    let rank = place.rank.index();
    let tasks = place.tasks.map_or(devices.len(), |tasks| tasks as usize).max(rank + 1);
    let own = (*devices.get(rank % devices.len().max(1))?)?;
    if devices.len() > 1 || tasks == 1 {
        let all: Option<Vec<GpuIndex>> =
            (0..tasks).map(|task| devices[task % devices.len()]).collect();
        return Some(all.map_or_else(|| (alloc::vec![own; tasks], rank), |all| (all, rank)));
    }
    let all: Vec<GpuIndex> = snapshot.gpus.iter().map(|gpu| gpu.index).collect();
    match all.iter().position(|gpu| *gpu == own).filter(|_| all.len() >= tasks) {
        Some(at) => Some((all, at)),
        None => Some((alloc::vec![own; tasks], rank)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Gpu, Source};

    #[track_caller]
    fn check(
        from: Option<&str>,
        variables: &[(&str, &str)],
        expect: Result<Option<(u32, Option<u32>)>, ()>,
    ) {
        let variable = |name: &str| {
            variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
        };
        let found = local_place(from, &variable);
        let found = found.map(|place| place.map(|place| (place.rank.0, place.tasks)));
        assert_eq!(found.map_err(|_| ()), expect, "{variables:?}");
    }

    #[test]
    fn the_innermost_launcher_tells() {
        check(None, &[], Ok(None));
        check(None, &[("LOCAL_RANK", "3"), ("LOCAL_WORLD_SIZE", "8")], Ok(Some((3, Some(8)))));
        let slurm = [("SLURM_LOCALID", "1"), ("SLURM_STEP_TASKS_PER_NODE", "4(x2)")];
        check(None, &slurm, Ok(Some((1, Some(4)))));
        let nested = [&slurm[..], &[("OMPI_COMM_WORLD_LOCAL_RANK", "2")]].concat();
        check(None, &nested, Ok(Some((2, None))));
        check(Some("SLURM_LOCALID"), &nested, Ok(Some((1, Some(4)))));
        check(Some("MY_RANK"), &[("MY_RANK", "5")], Ok(Some((5, None))));
        check(Some("MY_RANK"), &[], Ok(None));
        check(None, &[("LOCAL_RANK", "x")], Err(()));
        check(None, &[("LOCAL_RANK", "4294967295")], Err(()));
        check(None, &[("LOCAL_RANK", "4096")], Err(()));
        check(None, &[("LOCAL_RANK", "4095")], Ok(Some((4095, None))));
        let many = [("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "4294967295")];
        check(None, &many, Ok(Some((1, None))));
        check(None, &[("LOCAL_RANK", "8"), ("LOCAL_WORLD_SIZE", "8")], Err(()));
    }

    #[test]
    fn tasks_and_their_gpus() {
        let mut host = Snapshot::new(Source::Live);
        host.gpus = (0..4).map(|index| Gpu::new(GpuIndex(index))).collect();
        let check = |visible: &[u32],
                     rank: u32,
                     tasks: Option<u32>,
                     expect: Option<(&[u32], usize)>| {
            let gpus = visible.iter().map(|gpu| Some(GpuIndex(*gpu))).collect();
            let visible = Visible { gpus, notes: Vec::new() };
            let place = LocalPlace { rank: LocalRank(rank), tasks, told_by: "x".into() };
            let found = task_gpus(&host, &visible, &place);
            let found =
                found.map(|(gpus, at)| (gpus.iter().map(|gpu| gpu.0).collect::<Vec<_>>(), at));
            assert_eq!(found, expect.map(|(gpus, at)| (gpus.to_vec(), at)), "{visible:?} {rank}");
        };
        check(&[2, 3, 0, 1], 1, Some(4), Some((&[2, 3, 0, 1], 1)));
        check(&[2, 3, 0, 1], 1, Some(2), Some((&[2, 3], 1)));
        check(&[0, 1, 2, 3], 2, None, Some((&[0, 1, 2, 3], 2)));
        // More tasks than devices: in turn.
        check(&[0, 1], 3, Some(4), Some((&[0, 1, 0, 1], 3)));
        // Each task sees its own GPU.
        check(&[3], 0, Some(4), Some((&[0, 1, 2, 3], 3)));
        check(&[3], 2, Some(8), Some((&[3; 8], 2)));
        check(&[3], 0, Some(1), Some((&[3], 0)));
        check(&[], 0, Some(1), None);
    }
}
