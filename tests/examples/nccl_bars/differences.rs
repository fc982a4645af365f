//! Where the bounds printed beside NCCL's figures and ours differ: which is wrong, and why. Each reason is tried, not believed.

use std::process::ExitCode;

use planner::assemble::bounds_of;
use planner::bound::{self, bottleneck};
use planner::model::Model;
use tests::nccl::Case;
use topology::plan::LinkPolicy;
use topology::{Collective, PlanRequest, Topology, what_if};

use crate::{BOTH, ROUNDING, request};

/// Our bounds of both collectives, GB/s; `None` where there is none.
type Bounds = [Option<f64>; 2];

struct Difference {
    collective: Collective,
    printed: f64,
    ours: f64,
    nccl: f64,
    reason: String,
}

/// Prints a table of the differences; exit code 1 where one of them is not explained.
pub(crate) fn print(cases: &[Case]) -> ExitCode {
    println!("| case | | collective | printed | ours | NCCL reaches | why |");
    println!("|---|---|---|---|---|---|---|");
    let (mut differ, mut open) = (0, 0);
    for case in cases {
        let found = match differences(case) {
            Ok(found) => found,
            Err(error) => {
                println!("| {} | {} | | | | | {error} |", case.number, case.name());
                open += 1;
                continue;
            }
        };
        differ += usize::from(!found.is_empty());
        for difference in found {
            open += usize::from(difference.reason.is_empty());
            let Difference { collective, printed, ours, nccl, reason } = difference;
            let reason = if reason.is_empty() { "not explained" } else { &reason };
            println!(
                "| {} | {} | {collective} | {printed:.2} | {ours:.2} | {nccl:.2} | {reason} |",
                case.number,
                case.name()
            );
        }
    }
    println!(
        "\n{differ} of {} cases differ by more than rounding; {open} not explained",
        cases.len()
    );
    if open == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn close(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < ROUNDING
}

fn bounds(topology: &Topology, request: &PlanRequest) -> Bounds {
    let found = bounds_of(topology, request).unwrap_or_default();
    BOTH.map(|collective| found.get(&collective).map(|bound| bound.algbw_gbps.to_f64()))
}

fn differences(case: &Case) -> Result<Vec<Difference>, String> {
    let topology = case.topology()?;
    let ours = bounds(&topology, &request(case));
    let nccl = [case.nccl.all_gather, case.nccl.all_reduce];
    let mut found = Vec::new();
    for (place, collective) in BOTH.into_iter().enumerate() {
        let Some(own) = ours[place] else { return Err(format!("no bound of {collective}")) };
        let printed = case.bound[place];
        if close(own, printed) {
            continue;
        }
        let reason = if printed < own {
            too_low(case, &topology, place)
        } else {
            too_high(case, &topology, place, own)
        };
        found.push(Difference { collective, printed, ours: own, nccl: nccl[place], reason });
    }
    Ok(found)
}

/// A printed bound below ours: is something faster, so that it is none?
fn too_low(case: &Case, topology: &Topology, place: usize) -> String {
    let nics: Vec<String> = topology
        .nics()
        .iter()
        .map(|nic| format!("remove {}", topology.vertex(*nic).name))
        .collect();
    let without = what_if::apply(topology, &nics).map(|topology| bounds(&topology, &request(case)));
    let leaves_nics_out =
        without.is_ok_and(|bounds| bounds[place].is_some_and(|b| close(b, case.bound[place])));
    let Ok(plan) = planner::plan(topology, &request(case)) else { return String::new() };
    let reached = plan.collectives[&BOTH[place]].best.as_ref();
    let reached = reached.map_or(f64::NAN, |best| best.algbw_gbps.to_f64());
    if reached <= case.bound[place] * (1.0 + ROUNDING) {
        return String::new();
    }
    let why = if leaves_nics_out {
        "; it is the bound without ways from NIC to NIC inside the host"
    } else {
        ""
    };
    format!("printed is no bound: a plan that the checker passes reaches {reached:.2}{why}")
}

/// A printed bound above ours: ours is the sharper one where it holds, which each of these shows by counting.
fn too_high(case: &Case, topology: &Topology, place: usize, own: f64) -> String {
    let printed = case.bound[place];
    let all = PlanRequest { links: LinkPolicy::All, ..request(case) };
    if bounds(topology, &all)[place].is_some_and(|bound| close(bound, printed)) {
        return "printed counts PCIe beside the NVLink that connects the GPUs; with all links ours is the same".into();
    }
    let Ok(model) = Model::new(topology, &request(case)) else { return String::new() };
    let graph = model.bound_graph();
    let n = graph.ranks as f64;
    if BOTH[place] == Collective::AllGather {
        let Ok(plain) = bottleneck(graph, &vec![1; graph.ranks]) else { return String::new() };
        let plain = n / plain.ratio.to_f64() / 1e6;
        return if close(plain, printed) {
            "printed is the least cut, which lets a switch give on more than it takes in (several GPUs below one NIC); ours counts \
             what all of them take in together"
                .into()
        } else {
            String::new()
        };
    }
    let Ok(partition) = bound::all_reduce(graph) else { return String::new() };
    let (groups, entering) =
        (partition.cuts.len(), partition.cuts.iter().map(|cut| cut.capacity).sum::<u64>());
    let counted = entering as f64 / 1e6 / (2.0 * (groups as f64 - 1.0));
    if !close(counted, own) {
        return String::new();
    }
    format!(
        "printed is an upper bound that nothing need reach; into {groups} groups of GPUs go {:.1} GB/s together, and what an \
         all-reduce brings into them is {} times its data",
        entering as f64 / 1e6,
        2 * (groups - 1)
    )
}
