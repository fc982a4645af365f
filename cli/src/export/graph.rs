//! NCCL's graph file, and when not to give one.
//!
//! NCCL reads the file for every communicator: one over other GPUs of the host than the file's finds a device that is not there,
//! and its init fails. So the file is written where the plan is over all GPUs that jobs see here, and else refused unless that is
//! asked for by name.

use std::collections::BTreeSet;

use topology::launch::visible;
use topology::{GpuIndex, Plan, Snapshot, nccl_graph};

use crate::args::ExportArgs;
use crate::environment::variable;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::plan;
use crate::source::Origin;

pub(super) fn text(args: &ExportArgs, origin: &Origin) -> Result<String, Failure> {
    let (plan, _) = plan::make(origin, &plan::request(&args.request))?;
    let file = nccl_graph::from_plan(&origin.topology, &plan)
        .map_err(|error| Failure::new(Exit::NoPlan, error.to_string()))?;
    for (at, host) in (0..).zip(origin.topology.hosts()) {
        if let Some(why) = breaks(&plan, at, host)
            && !args.break_other_communicators
        {
            return Err(Failure::new(
                Exit::NoPlan,
                format!(
                    "{why}: communicators over the others would fail; plan on all, set CUDA_VISIBLE_DEVICES as jobs will, or insist with --break-other-communicators"
                ),
            ));
        }
    }
    output::warn(
        "NCCL reads a graph file for every communicator and validates nothing: use it only where all communicators span exactly these GPUs of each host",
    );
    Ok(nccl_graph::write(&file))
}

/// Why the plan's GPUs of a host are not those that jobs see there.
fn breaks(plan: &Plan, at: u32, host: &Snapshot) -> Option<String> {
    let planned: BTreeSet<GpuIndex> =
        plan.ranks.iter().filter(|rank| rank.host.0 == at).map(|rank| rank.gpu).collect();
    // The list in the environment is of this host; a recorded one has its own GPUs.
    let seen: BTreeSet<GpuIndex> = visible(host, &variable).gpus.into_iter().flatten().collect();
    let list = |gpus: &BTreeSet<GpuIndex>| {
        gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    };
    // A bare graph of links has names and no GPUs that anything could see.
    (!seen.is_empty() && planned != seen).then(|| {
        format!("the plan is over GPUs {}, and jobs here see {}", list(&planned), list(&seen))
    })
}
