//! Debian's Open MPI.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use topology::CpuList;

use super::{clean, field, halves, host, own_cpus, recorded, report, reports};
use crate::cli::check;

/// `None` where there is no mpirun.
fn mpirun() -> Option<Command> {
    let there = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        println!("skipped: there is no mpirun");
        return None;
    }
    let mut command = clean("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-np", "2"]);
    Some(command)
}

fn task(command: &mut Command, from: &Path, more: &[&str]) {
    command.arg(crate::programs::topoctl()).args(["exec", "--from"]).arg(from).args(more);
    command.args(["--", "sh", "-c", &report("OMPI_COMM_WORLD_LOCAL_RANK")]);
}

#[test]
fn tasks_of_mpirun_are_bound_beside_their_gpus() {
    let (_folder, from) = recorded(&host());
    let Some(mut command) = mpirun() else { return };
    command.args(["--bind-to", "none"]);
    task(&mut command, &from, &[]);
    halves(&reports(&command.output().unwrap()));

    // As topoctl env tells mpirun to leave binding alone.
    let exports = check(
        &["env", "--launcher", "mpirun", "--exec", "--from", &from.display().to_string()],
        "",
        0,
    );
    assert!(exports.contains("export OMPI_MCA_hwloc_base_binding_policy='none'"), "{exports}");
    let Some(mut command) = mpirun() else { return };
    command.env("OMPI_MCA_hwloc_base_binding_policy", "none");
    task(&mut command, &from, &[]);
    halves(&reports(&command.output().unwrap()));
}

/// mpirun's own binding stays, and is taken back where that is asked for.
#[test]
fn what_mpirun_has_bound_stays() {
    if own_cpus().len() < 2 {
        println!("skipped: one CPU is always bound");
        return;
    }
    let (_folder, from) = recorded(&host());
    let Some(mut command) = mpirun() else { return };
    // Both tasks on the last core: what topoctl would not have given the first.
    let last = own_cpus().iter().last().unwrap();
    command.args(["--bind-to", "none", "taskset", "-c", &last.to_string()]);
    task(&mut command, &from, &[]);
    let lines = reports(&command.output().unwrap());
    assert!(lines.iter().all(|line| field(line, "cpus") == last.to_string()), "{lines:?}");

    let Some(mut command) = mpirun() else { return };
    command.args(["--bind-to", "none", "taskset", "-c", &last.to_string()]);
    task(&mut command, &from, &["--rebind"]);
    halves(&reports(&command.output().unwrap()));
}

/// A rank file that is exported is one that mpirun takes, and its tasks are where it says.
#[test]
fn field_case_051_mpirun_takes_the_rank_file() {
    let (folder, from) = recorded(&host());
    let ranks = folder.path().join("ranks");
    let export = ["export", "--format", "rankfile", "--from", &from.display().to_string(), "-o"];
    check(&[&export[..], &[&ranks.display().to_string()]].concat(), "", 0);
    let text = fs::read_to_string(&ranks).unwrap();
    let Some(mut command) = mpirun() else { return };
    command.arg("-rf").arg(&ranks).args(["sh", "-c", &report("OMPI_COMM_WORLD_LOCAL_RANK")]);
    let lines = reports(&command.output().unwrap());
    assert_eq!(lines.len(), 2, "{text}");
    let cpus: Vec<CpuList> = own_cpus().iter().map(|cpu| CpuList::from_cpus([cpu])).collect();
    for (rank, line) in lines.iter().enumerate() {
        let slot =
            text.lines().find(|line| line.starts_with(&format!("rank {rank}=localhost slot=0:")));
        let cores: CpuList = slot.unwrap().rsplit(':').next().unwrap().parse().unwrap();
        let wanted = CpuList::from_cpus(
            cores.iter().flat_map(|core| cpus[core as usize].iter().collect::<Vec<_>>()),
        );
        assert_eq!(field(line, "cpus"), wanted.to_string(), "{text}");
    }
}

#[test]
fn a_host_file_is_one_that_mpirun_takes() {
    let (folder, from) = recorded(&host());
    let file = folder.path().join("hosts");
    let export = ["export", "--format", "hostfile", "--from", &from.display().to_string(), "-o"];
    check(&[&export[..], &[&file.display().to_string()]].concat(), "", 0);
    let Some(mut command) = mpirun() else { return };
    command.arg("--hostfile").arg(&file).args(["--map-by", "ppr:2:node", "--bind-to", "none"]);
    command.args(["sh", "-c", &report("OMPI_COMM_WORLD_LOCAL_RANK")]);
    assert_eq!(reports(&command.output().unwrap()).len(), 2);
}
