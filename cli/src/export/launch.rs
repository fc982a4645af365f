//! Files and variables for launchers and runtimes.

use std::fmt::Write;

use topology::launch::{
    ExportOptions, comment, exports, hostfile, quote, rank_hosts, rankfile, slurm_gres,
    slurm_hostfile, torchrun_order,
};
use topology::{GpuIndex, HostId, nccl_tuner, rccl, ucc};

use crate::args::{ExportArgs, ExportFormat};
use crate::environment::one_host;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::plan;
use crate::source::Origin;

/// Lines of NCCL's configuration file. The environment of whoever exports is none of the host's.
pub(super) fn nccl_conf(origin: &Origin) -> Result<String, Failure> {
    let found = exports(one_host(&origin.topology)?, ExportOptions::default(), &|_| None);
    let mut text = String::new();
    for export in found.set.iter().filter(|export| export.name.starts_with("NCCL_")) {
        // The file has no quotes: a line is a name, '=', and a value to its end.
        if export.value.contains(['\n', '\r']) {
            output::warn(&format!("{}: left out, a name has a line break", export.name));
            continue;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}\n{}={}", comment(&export.reason), export.name, export.value);
    }
    found.notes.iter().for_each(|note| text.push_str(&format!("{}\n", comment(note))));
    Ok(text)
}

pub(super) fn tuner(args: &ExportArgs, origin: &Origin) -> Result<String, Failure> {
    let (plan, _) = plan::make(origin, &plan::request(&args.request))?;
    let (rows, left) = nccl_tuner::from_plan(&plan);
    left.iter().for_each(|note| output::warn(note));
    if rows.is_empty() {
        let why = "nothing of the plan is an algorithm of NCCL's";
        return Err(Failure::new(Exit::NoPlan, why));
    }
    Ok(nccl_tuner::write(&rows))
}

pub(super) fn rccl(args: &ExportArgs, origin: &Origin) -> Result<String, Failure> {
    let (plan, _) = plan::make(origin, &plan::request(&args.request))?;
    let rings = rccl::rings(&origin.topology, &plan);
    let trees = rccl::trees(&plan).map_err(|error| error.to_string());
    let rings = rings.map_err(|error| error.to_string());
    if let (Err(error), Err(_)) = (&rings, &trees) {
        return Err(Failure::new(Exit::NoPlan, error.clone()));
    }
    let mut text = String::new();
    for (name, value, why) in [
        ("NCCL_RINGS", rings, "the plan's rings, instead of RCCL's search and its models"),
        ("RCCL_TREES", trees, "the plan's trees for all-reduce"),
    ] {
        let _ = match value {
            Ok(value) => writeln!(text, "{}\nexport {name}={}", comment(why), quote(&value)),
            Err(error) => writeln!(text, "{}", comment(&format!("{name}: not set, {error}"))),
        };
    }
    output::warn(
        "RCCL reads these for every communicator: use them only where all communicators span all GPUs of each host",
    );
    Ok(text)
}

pub(super) fn ucx(args: &ExportArgs, origin: &Origin) -> Result<String, Failure> {
    let found = exports(&origin.topology.hosts()[0], ExportOptions::default(), &|_| None);
    let mut text = String::new();
    let mut line = |name: &str, value: &str, why: &str| {
        let _ = writeln!(text, "{}\nexport {name}={}", comment(why), quote(value));
    };
    let devices = found.set.iter().find(|export| export.name == "UCX_NET_DEVICES");
    if let Some(export) = devices.filter(|_| origin.topology.hosts().len() == 1) {
        line(&export.name, &export.value, &export.reason);
    }
    let (plan, _) = plan::make(origin, &plan::request(&args.request))?;
    if let Some(tune) = ucc::tune(&plan) {
        line("UCC_TL_UCP_TUNE", &tune, "the plan's algorithms by size, as far as UCC has them");
    }
    if text.is_empty() {
        let why = "no port is known to be for traffic between GPUs, and nothing of the plan has a name in UCC";
        return Err(Failure::new(Exit::NoPlan, why));
    }
    Ok(text)
}

pub(super) fn ranks(args: &ExportArgs, origin: &Origin) -> Result<String, Failure> {
    let topology = &origin.topology;
    let mut names = args.host_name.clone();
    if names.is_empty() && topology.hosts().len() == 1 {
        names.push("localhost".into());
    }
    let gpus: Option<Vec<GpuIndex>> =
        args.request.gpus.as_ref().map(|gpus| gpus.iter().copied().map(GpuIndex).collect());
    let hosts = rank_hosts(topology, &names, gpus.as_deref()).map_err(Failure::usage)?;
    if hosts.iter().any(|host| host.gpus.is_empty()) {
        return Err(Failure::new(Exit::NoPlan, "a host has no GPU, and so no rank"));
    }
    if let Some(sorted) = torchrun_order(&names) {
        output::warn(&format!(
            "torchrun's c10d rendezvous would take these hosts as {}: give it --node-rank and --rdzv-backend=static",
            sorted.join(", ")
        ));
    }
    Ok(match args.format {
        ExportFormat::Hostfile => hostfile(&hosts),
        ExportFormat::SlurmHostfile => slurm_hostfile(&hosts),
        _ => rankfile(topology, &hosts).map_err(|error| Failure::new(Exit::Unknown, error))?,
    })
}

pub(super) fn gres(origin: &Origin) -> Result<String, Failure> {
    one_host(&origin.topology)?;
    slurm_gres(&origin.topology, HostId(0)).map_err(|error| Failure::new(Exit::Unknown, error))
}
