//! `topoctl exec`: a task of a job, with variables set and bound beside its GPU.
//!
//! Nothing here may keep a job from running: without daemon, topology or local rank the command runs as it would have, and
//! stderr says so. What launcher or user has bound or set stays, and that is said, too.

pub(crate) mod limits;

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::thread::{CpuSet, sched_setaffinity};
use topology::launch::{
    Binding, Export, ExportOptions, bind, exports, local_place, near_nics, task_gpus, visible,
};
use topology::{CpuList, GpuIndex, HostId, Topology};

use crate::args::ExecArgs;
use crate::environment::{one_host, variable};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::source;

pub(crate) fn run(args: &ExecArgs) -> Result<Exit, Failure> {
    let [program, arguments @ ..] = args.command.as_slice() else {
        return Err(Failure::usage("there is no command to run"));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    if let Err(failure) = prepare(args, &mut command) {
        if args.strict {
            return Err(failure);
        }
        output::warn(&format!("{}: nothing is bound, and the command runs", failure.message));
    }
    // Comes back only where it fails.
    let error = command.exec();
    let exit = match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::CannotInvoke,
    };
    Err(Failure::new(exit, format!("{}: {error}", program.display())))
}

/// Sets what is known to be of use; the error says what is not known.
fn prepare(args: &ExecArgs, command: &mut Command) -> Result<(), Failure> {
    let topology = source::load(&args.source)?.topology;
    let host = one_host(&topology)?;
    let options = ExportOptions { force: args.force, ..ExportOptions::default() };
    let found = exports(host, options, &variable);
    let say = |text: &str| {
        if args.verbose {
            output::warn(text);
        }
    };
    // A container has interfaces of its own, which a daemon outside does not see.
    let is_here = |export: &&Export| {
        let interface = export.value.trim_start_matches('=');
        !export.name.ends_with("_SOCKET_IFNAME")
            || Path::new("/sys/class/net").join(interface).exists()
    };
    for export in found.set.iter().filter(is_here) {
        command.env(&export.name, &export.value);
        say(&format!("{}='{}': {}", export.name, export.value, export.reason));
    }
    found.kept.iter().chain(&found.notes).for_each(|text| say(text));

    let unknown = |message: String| Failure::new(Exit::Unknown, message);
    if host.gpus.is_empty() {
        return Err(unknown("no GPU is known on this host".into()));
    }
    let place = local_place(args.local_rank_from.as_deref(), &variable)
        .map_err(|error| unknown(error.to_string()))?;
    let place = place.ok_or_else(|| unknown("no launcher tells a local rank".into()))?;
    let visible = visible(host, &found.over(&variable));
    visible.notes.iter().for_each(|note| output::warn(note));
    let (gpus, at) = task_gpus(host, &visible, &place)
        .ok_or_else(|| unknown(format!("which GPU local rank {} has is not known", place.rank)))?;
    let gpu = gpus[at];
    say(&format!("{}={}: GPU{gpu}", place.told_by, place.rank));
    // Whoever set the list for all ranks wants it so.
    if options.force || variable("UCX_NET_DEVICES").is_none() {
        own_nics(&topology, &gpus, at, command, &say);
    }

    let limits = limits::own();
    let binding = bind(host, &limits.allowed(), &gpus).swap_remove(at);
    if binding.cpus.is_empty() {
        output::warn(&format!("local rank {} is not bound: {}", place.rank, binding.reason));
        return Ok(());
    }
    if limits.bound_by_launcher() && !args.rebind {
        // Alone it would have all CPUs near its GPU.
        let near = bind(host, &limits.allowed(), &[gpu]).swap_remove(0).cpus;
        if !limits.affinity.iter().any(|cpu| near.contains(cpu)) {
            output::warn(&format!(
                "local rank {} stays bound to CPUs {} by its launcher, and near GPU{gpu} are {near}: --rebind takes those",
                place.rank, limits.affinity
            ));
        }
        return Ok(());
    }
    bind_here(&binding, &say);
    Ok(())
}

/// The ports beside the task's GPU for UCX.
fn own_nics(
    topology: &Topology,
    gpus: &[GpuIndex],
    at: usize,
    command: &mut Command,
    say: &dyn Fn(&str),
) {
    let host = &topology.hosts()[0];
    let near = near_nics(topology, HostId(0), gpus).swap_remove(at);
    let ports: Vec<String> = near
        .into_iter()
        .filter_map(|nic| Some(format!("{}:{}", host.nics[nic].name, host.nics[nic].port?)))
        .filter(|port| !port.contains([',', '\0']))
        .collect();
    if !ports.is_empty() {
        let value = ports.join(",");
        say(&format!(
            "UCX_NET_DEVICES='{value}': the ports beside GPU{}, evenly among the tasks",
            gpus[at]
        ));
        command.env("UCX_NET_DEVICES", value);
    }
}

fn bind_here(binding: &Binding, say: &dyn Fn(&str)) {
    match set_affinity(&binding.cpus) {
        Ok(()) => say(&format!("CPUs {}: {}", binding.cpus, binding.reason)),
        Err(error) => output::warn(&format!("CPUs {}: {error}", binding.cpus)),
    }
    if binding.memory_nodes.is_empty() {
        return;
    }
    let set = transport::has_memory_policy().and_then(|set| {
        if !set {
            transport::prefer_memory(&binding.memory_nodes)?;
        }
        Ok(set)
    });
    match set {
        Ok(true) => say("memory: a policy is set and stays"),
        Ok(false) => say(&format!("memory of node {:?} is preferred", binding.memory_nodes)),
        Err(error) => say(&format!("memory comes from where it is first touched: {error}")),
    }
}

fn set_affinity(cpus: &CpuList) -> io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus.iter() {
        let cpu = cpu as usize;
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Error::other(format!("CPU {cpu} is beyond {}", CpuSet::MAX_CPU)));
        }
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}
