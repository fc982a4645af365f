//! `topoctl env`: variables for the tasks of a job on a host.

use std::fmt::Write;

use serde::Serialize;
use topology::launch::{
    Binding, Export, ExportOptions, Exports, LocalPlace, bind, comment, exports, near_nics, quote,
    task_gpus, visible,
};
use topology::snapshot::ProcessLimits;
use topology::{GpuIndex, HostId, LocalRank, Snapshot, Topology};

use crate::args::{EnvArgs, EnvFormat};
use crate::exec::limits;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::source;

/// A value of this process's environment; one that is no UTF-8 is set all the same.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// The one host of a topology.
pub(crate) fn one_host(topology: &Topology) -> Result<&Snapshot, Failure> {
    match topology.hosts() {
        [host] => Ok(host),
        hosts => Err(Failure::usage(format!("one host is wanted, and {} are given", hosts.len()))),
    }
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema_version: u32,
    set: &'a [Export],
    kept: &'a [String],
    notes: &'a [String],
    tasks: Vec<Task>,
}

/// What each task is given where there is one for each visible GPU.
#[derive(Debug, Serialize)]
struct Task {
    local_rank: u32,
    gpu: u32,
    uuid: Option<String>,
    /// `None`: as the launcher leaves it.
    cpus: Option<String>,
    memory_nodes: Vec<u32>,
    nics: Vec<String>,
    reason: String,
}

pub(crate) fn run(args: &EnvArgs) -> Result<Exit, Failure> {
    let topology = source::load(&args.source)?.topology;
    let host = one_host(&topology)?;
    let options = ExportOptions {
        launcher: Some(args.launcher),
        bound_by_exec: args.exec,
        force: args.force,
    };
    let found = exports(host, options, &variable);
    found.kept.iter().for_each(|kept| output::warn(kept));
    if host.gpus.is_empty() {
        output::warn("no GPU is known on this host: what follows is of its NICs alone");
    }
    // What limits this process says nothing of a host that was recorded elsewhere.
    let here = args.source.from.is_empty();
    let limits = if here { limits::own().allowed() } else { ProcessLimits::default() };
    let tasks = tasks(&topology, host, &limits, &found);
    let text = match args.output {
        EnvFormat::Sh => shell(&found, &tasks),
        EnvFormat::K8s => pod(&found, &tasks)?,
        EnvFormat::Json => {
            let Exports { set, kept, notes } = &found;
            output::print_json(&Document { schema_version: 1, set, kept, notes, tasks })?;
            return Ok(Exit::Ok);
        }
    };
    output::print(&text)?;
    Ok(Exit::Ok)
}

fn tasks(
    topology: &Topology,
    host: &Snapshot,
    limits: &ProcessLimits,
    found: &Exports,
) -> Vec<Task> {
    let visible = visible(host, &found.over(&variable));
    visible.notes.iter().for_each(|note| output::warn(note));
    let place = LocalPlace { rank: LocalRank(0), tasks: None, told_by: String::new() };
    let Some((gpus, _)) = task_gpus(host, &visible, &place) else { return Vec::new() };
    let nics = near_nics(topology, HostId(0), &gpus);
    let bound = bind(host, limits, &gpus);
    let task = |(local_rank, ((gpu, binding), nics)): (u32, ((GpuIndex, Binding), Vec<usize>))| {
        let uuid = host.gpus.iter().find(|own| own.index == gpu).and_then(|own| own.uuid.clone());
        Task {
            local_rank,
            gpu: gpu.0,
            uuid,
            cpus: (!binding.cpus.is_empty()).then(|| binding.cpus.to_string()),
            memory_nodes: binding.memory_nodes,
            nics: nics.into_iter().map(|nic| host.nics[nic].name.clone()).collect(),
            reason: binding.reason,
        }
    };
    (0..).zip(gpus.into_iter().zip(bound).zip(nics)).map(task).collect()
}

fn shell(found: &Exports, tasks: &[Task]) -> String {
    let mut text = String::new();
    for export in &found.set {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}\nexport {}={}",
            comment(&export.reason),
            export.name,
            quote(&export.value)
        );
    }
    text.push_str(&remarks(found, tasks));
    text
}

fn remarks(found: &Exports, tasks: &[Task]) -> String {
    let notes = found.notes.iter().map(|note| comment(note));
    let tasks = tasks.iter().map(|task| {
        let Task { local_rank, gpu, cpus, memory_nodes, nics, reason, .. } = task;
        let cpus = cpus
            .as_deref()
            .map_or_else(|| "CPUs as they are".into(), |cpus| format!("CPUs {cpus}"));
        let nodes: Vec<String> = memory_nodes.iter().map(ToString::to_string).collect();
        let memory = if nodes.is_empty() {
            String::new()
        } else {
            format!(", memory of node {}", nodes.join(" and "))
        };
        let nics =
            if nics.is_empty() { String::new() } else { format!(", {}", nics.join(" and ")) };
        comment(&format!(
            "topoctl exec, local rank {local_rank}: GPU{gpu}, {cpus}{memory}{nics} ({reason})"
        ))
    });
    notes.chain(tasks).fold(String::new(), |text, line| text + &line + "\n")
}

/// A list for `env:`; the values as JSON strings, which YAML takes.
fn pod(found: &Exports, tasks: &[Task]) -> Result<String, Failure> {
    let mut text = String::new();
    for export in &found.set {
        let value = serde_json::to_string(&export.value).map_err(Failure::internal)?;
        let _ = writeln!(
            text,
            "{}\n- name: {}\n  value: {value}",
            comment(&export.reason),
            export.name
        );
    }
    if found.set.is_empty() {
        text.push_str("[]\n");
    }
    text.push_str(&remarks(found, tasks));
    Ok(text)
}
