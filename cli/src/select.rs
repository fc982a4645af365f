//! `topoctl select`: which GPUs to give to a job, and why.

use std::fmt::Write;

use planner::select::{self, Choice, SelectError, Selection};
use serde::Serialize;
use topology::plan::LinkPolicy;
use topology::{Bandwidth, Fraction, GpuIndex, HostId, Topology};

use crate::args::{Links, SelectArgs, TextFormat};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::source;

#[derive(Debug, Serialize)]
struct Document {
    schema_version: u32,
    fingerprint: String,
    rates: &'static str,
    /// Sets there are, and whether all of them were compared.
    sets: u64,
    exhaustive: bool,
    best: Row,
    alternatives: Vec<Row>,
    /// Free GPUs that stay, NVML indices.
    left: Vec<u32>,
    reasons: Vec<String>,
    assumptions: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Row {
    gpus: Vec<Gpu>,
    /// Proved bound on all-reduce among them; none for one GPU, or where they cannot reach each other.
    all_reduce_gbps: Option<f64>,
    /// Bandwidth between every two of the free GPUs that stay, added up.
    left_gbps: f64,
    nics: Vec<String>,
    nics_gbps: f64,
    numa: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Gpu {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bus_id: Option<String>,
}

pub(crate) fn run(args: &SelectArgs) -> Result<Exit, Failure> {
    let origin = source::load(&args.source)?;
    let free: Option<Vec<GpuIndex>> =
        args.free.as_ref().map(|free| free.iter().copied().map(GpuIndex).collect());
    let links = match args.links {
        Links::Auto => LinkPolicy::Auto,
        Links::All => LinkPolicy::All,
    };
    let topology = &origin.topology;
    let selection = select::select(topology, args.count, free.as_deref(), links).map_err(
        |error| match error {
            SelectError::TooFew { .. } => Failure::new(Exit::NoPlan, error.to_string()),
            _ => Failure::usage(error.to_string()),
        },
    )?;
    let reasons = reasons(&selection);
    match args.output {
        TextFormat::Json => output::print_json(&Document {
            schema_version: 1,
            fingerprint: topology.fingerprint().to_owned(),
            rates: topology.rates().as_str(),
            sets: selection.sets,
            exhaustive: selection.exhaustive,
            best: row(topology, &selection.best),
            alternatives: selection.alternatives.iter().map(|c| row(topology, c)).collect(),
            left: selection.left.iter().map(|gpu| gpu.0).collect(),
            reasons,
            assumptions: topology.assumptions().to_vec(),
        })?,
        TextFormat::Table => output::print(&table(topology, &selection, &reasons))?,
    }
    let known = topology.hosts().iter().all(|host| host.faults.is_empty());
    Ok(if known { Exit::Ok } else { Exit::Unknown })
}

fn row(topology: &Topology, choice: &Choice) -> Row {
    let gpu = |index: &GpuIndex| {
        let vertex = topology.gpu(HostId(0), *index).map(|id| topology.vertex(id));
        let facts = topology.hosts()[0].gpus.iter().find(|gpu| gpu.index == *index);
        Gpu {
            index: index.0,
            uuid: facts.and_then(|gpu| gpu.uuid.clone()),
            bus_id: vertex.and_then(|vertex| vertex.bus_id).map(|id| id.to_string()),
        }
    };
    Row {
        gpus: choice.gpus.iter().map(gpu).collect(),
        all_reduce_gbps: all_reduce(choice).map(gbps),
        left_gbps: Bandwidth::from_kbps(choice.worth.rest.left).gbps(),
        nics: choice.near_nics.clone(),
        nics_gbps: Bandwidth::from_kbps(choice.worth.rest.nics).gbps(),
        numa: choice.nodes.clone(),
    }
}

/// The bound in kB/s, where there is one to speak of.
fn all_reduce(choice: &Choice) -> Option<Fraction> {
    Some(choice.worth.all_reduce).filter(|bound| *bound > Fraction::ZERO)
}

/// GB/s of kB/s.
fn gbps(kbps: Fraction) -> f64 {
    kbps.to_f64() / 1e6
}

/// Why these, in the order in which sets are compared.
fn reasons(selection: &Selection) -> Vec<String> {
    let best = &selection.best;
    let rest = &best.worth.rest;
    let mut reasons = Vec::new();
    match all_reduce(best) {
        Some(bound) if selection.exhaustive => reasons.push(format!(
            "all-reduce among them can reach {:.2} GB/s: of {} sets none can reach more",
            gbps(bound),
            selection.sets
        )),
        Some(bound) => reasons.push(format!(
            "all-reduce among them can reach {:.2} GB/s: of {} sets not all were compared, and no exchange of one GPU \
             for another helps",
            gbps(bound),
            selection.sets
        )),
        None if best.gpus.len() == 1 => {
            reasons.push("one GPU has nobody to talk to: what it leaves decides".to_owned());
        }
        None => reasons.push("no way leads from each to each other, in this or any other set".to_owned()),
    }
    if let Some((a, b)) = best.apart {
        reasons.push(format!(
            "GPU{a} and GPU{b} are joined by no GPU link inside the set, so PCIe carries the traffic"
        ));
    }
    if let Some(other) =
        selection.alternatives.iter().find(|c| c.worth.all_reduce < best.worth.all_reduce)
    {
        reasons.push(format!(
            "the next lower bound is {:.2} GB/s ({})",
            gbps(other.worth.all_reduce),
            other.names()
        ));
    }
    if !selection.left.is_empty() && selection.all_free > 0 {
        let share = Fraction::of(rest.left, selection.all_free).to_f64() * 100.0;
        reasons.push(format!(
            "{} stay free, with {share:.0} % of the bandwidth there was between free GPUs",
            select::names(&selection.left)
        ));
    }
    if !best.near_nics.is_empty() {
        reasons.push(format!(
            "near {} ({:.1} GB/s together)",
            best.near_nics.join(", "),
            Bandwidth::from_kbps(rest.nics).gbps()
        ));
    }
    match best.nodes.as_slice() {
        [] => {}
        [node] => reasons.push(format!("all below {node}")),
        nodes => reasons.push(format!("spread over {}", nodes.join(", "))),
    }
    reasons
}

fn table(topology: &Topology, selection: &Selection, reasons: &[String]) -> String {
    let mut text = format!("{}\n", selection.best.names());
    for gpu in row(topology, &selection.best).gpus {
        if let (Some(uuid), bus_id) = (gpu.uuid, gpu.bus_id.unwrap_or_default()) {
            let _ = writeln!(text, "  GPU{} {bus_id} {uuid}", gpu.index);
        }
    }
    text.push_str("\nWhy:\n");
    for reason in reasons {
        let _ = writeln!(text, "  {reason}");
    }
    if !selection.alternatives.is_empty() {
        text.push_str("\nNext best:\n");
        for other in &selection.alternatives {
            let bound =
                all_reduce(other).map_or_else(|| "-".into(), |b| format!("{:.2} GB/s", gbps(b)));
            let left = Bandwidth::from_kbps(other.worth.rest.left).gbps();
            let _ =
                writeln!(text, "  {}: all-reduce {bound}, leaves {left:.1} GB/s", other.names());
        }
    }
    text
}
