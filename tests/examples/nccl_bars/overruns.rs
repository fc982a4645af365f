//! Where a figure is above what the links allow: the checker on the shapes that NCCL runs, at NCCL's figure.

use planner::check;
use tests::nccl::Case;
use topology::plan::Plan;
use topology::{Algorithm, Channel, Collective, LinkId, Topology};

use crate::{BOTH, ROUNDING};

/// For each collective whose figure is above our proved bound: the bound, and which capacity NCCL's shapes overrun at that figure.
pub(crate) fn of(case: &Case, topology: &Topology, plan: &Plan) -> Vec<String> {
    let theirs = [case.nccl.all_gather, case.nccl.all_reduce];
    let mut lines = Vec::new();
    for (collective, figure) in BOTH.into_iter().zip(theirs) {
        let Some(bound) = plan.collectives.get(&collective).and_then(|entry| entry.bound.as_ref())
        else {
            continue;
        };
        let most = bound.algbw_gbps.to_f64();
        if figure <= most * (1.0 + ROUNDING) {
            continue;
        }
        lines.push(format!(
            "{collective} {figure:.2} is above the proved {most:.2} ({}), which rests on {}",
            bound.algbw_gbps,
            bound.limited_by.join("; ")
        ));
        for algorithm in [Algorithm::Tree, Algorithm::Ring] {
            lines.extend(overrun(topology, plan, collective, algorithm, figure));
        }
    }
    lines
}

/// The channels of that shape, counted; the busiest link at the figure.
fn overrun(
    topology: &Topology,
    plan: &Plan,
    collective: Collective,
    algorithm: Algorithm,
    figure: f64,
) -> Option<String> {
    let own = plan.collectives[&collective].best.as_ref().map(|best| best.algorithm);
    let channels: Vec<Channel> = if own == Some(algorithm) {
        plan.channels_of(collective).cloned().collect()
    } else {
        let set = plan
            .alternatives
            .iter()
            .find(|set| set.algorithm == algorithm && set.collectives.contains(&collective))?;
        set.channels.clone()
    };
    let counted = check::count(topology, &plan.ranks, &channels, collective).ok()?;
    let load =
        |link: &LinkId| counted.loads.iter().find(|(id, _)| id == link).map(|(_, load)| *load);
    let busiest = *counted.limiting.first()?;
    let (from, to) = topology.graph().edge_endpoints(busiest)?;
    let shape = match algorithm {
        Algorithm::Tree => "double binary trees over the hosts",
        _ => "rings",
    };
    Some(format!(
        "{shape} ({} channels) reach {:.2} by the checker's count: at {figure:.2} the link from {} to {} would carry {:.2} of its \
         {:.2} GB/s, as would {} others",
        counted.channels,
        counted.algbw_gbps.to_f64(),
        topology.vertex(from).name,
        topology.vertex(to).name,
        figure * load(&busiest)?.to_f64(),
        topology.link(busiest).bandwidth.gbps(),
        counted.limiting.len() - 1
    ))
}
