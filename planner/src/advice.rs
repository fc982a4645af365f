//! What one more link, or a NIC elsewhere, would bring.
//!
//! ```text
//!   limiting cuts ──▶ single changes across them ── what_if ──▶ topology ── bound ──▶ those that raise it ── plan ──▶ gains
//! ```
//!
//! Only a change across a limiting cut can raise a bound, so only those are tried: one more link where links cross it,
//! an NVLink between two GPUs on either side that have none, and where data goes over PCIe or the network one more NIC
//! below each switch, or a NIC moved there. On several hosts every host gets the same change, for hosts are bought alike.

use alloc::borrow::ToOwned;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use topology::plan::Plan;
use topology::{
    Collective, Fraction, HostId, LinkKind, PlanRequest, Topology, VertexId, VertexKind, what_if,
};

use crate::assemble::bounds::{self, Limit, Prover};
use crate::model::Model;
use crate::plan_error::PlanError;

/// Most changes tried: each costs a bound of every collective.
pub const MOST_TRIED: usize = 96;

/// Most changes planned and listed.
pub const MOST_LISTED: usize = 5;

/// Name of a NIC that is tried.
const NEW_NIC: &str = "one-more-nic";

/// The changes that help.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// Changes whose bounds were computed.
    pub tried: usize,
    /// Changes left out because there are more than [`MOST_TRIED`].
    pub left_out: usize,
    /// What helps most first, at most [`MOST_LISTED`]; of changes that bring the same the first.
    pub gains: Vec<Gain>,
    /// Changes that raise a bound and are neither in `gains` nor alike to one there.
    pub not_listed: usize,
}

/// One change with what it brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gain {
    /// As [`what_if`] takes them: one, or the same for each host.
    pub changes: Vec<String>,
    /// Other changes tried that raise the same bounds to the same figures.
    pub alike: usize,
    /// Bounds that rise, in GB/s: before and after.
    pub bounds: BTreeMap<Collective, (Fraction, Fraction)>,
    /// What checked plans reach for those collectives, in GB/s: before and after. Without an entry where either has no plan.
    pub best: BTreeMap<Collective, (Fraction, Fraction)>,
}

impl Gain {
    /// The largest bound after to before.
    fn ratio(&self) -> Fraction {
        let ratios = self.bounds.values().filter_map(|(before, after)| after.checked_div(*before));
        ratios.max().unwrap_or(Fraction::ONE)
    }
}

/// Tries single changes on the machine that `plan` was made for with `request`.
///
/// # Errors
/// [`PlanError`], as for a plan.
pub fn single_changes(
    topology: &Topology,
    request: &PlanRequest,
    plan: &Plan,
) -> Result<Advice, PlanError> {
    let model = Model::new(topology, request)?;
    let collectives: Vec<Collective> = plan.collectives.keys().copied().collect();
    let mut before = BTreeMap::new();
    let mut limits = Vec::new();
    let mut prover = Prover::new(&model);
    for &collective in &collectives {
        if let Ok(limit) = prover.limit(collective) {
            before.insert(collective, limit.algbw);
            limits.push(limit);
        }
    }
    let mut candidates = candidates(topology, &model, &limits);
    let mut advice =
        Advice { left_out: candidates.len().saturating_sub(MOST_TRIED), ..Advice::default() };
    candidates.truncate(MOST_TRIED);
    let mut gains: Vec<Gain> = Vec::new();
    for changes in candidates {
        // A change that cannot be made, such as a link whose rate nothing tells, is none to advise.
        let Ok(changed) = what_if::apply(topology, &changes) else { continue };
        let Ok(model) = Model::new(&changed, request) else { continue };
        advice.tried += 1;
        let mut raised = BTreeMap::new();
        let mut prover = Prover::new(&model);
        for (&collective, &now) in &before {
            if let Ok(Some(limit)) = prover.limit_above(collective, now) {
                raised.insert(collective, (bounds::gbps(now), bounds::gbps(limit.algbw)));
            }
        }
        if raised.is_empty() {
            continue;
        }
        match gains.iter_mut().find(|gain| gain.bounds == raised) {
            Some(gain) => gain.alike += 1,
            None => {
                gains.push(Gain { changes, alike: 0, bounds: raised, best: BTreeMap::new() });
            }
        }
    }
    // Stable, so that among equals the order of trying decides.
    gains.sort_by_key(|gain| core::cmp::Reverse((gain.ratio(), gain.bounds.len())));
    advice.not_listed = gains.iter().skip(MOST_LISTED).map(|gain| gain.alike + 1).sum();
    gains.truncate(MOST_LISTED);
    for gain in &mut gains {
        gain.best = reached(topology, request, plan, gain);
    }
    advice.gains = gains;
    Ok(advice)
}

/// What plans reach on the changed machine where the bound rises.
fn reached(
    topology: &Topology,
    request: &PlanRequest,
    plan: &Plan,
    gain: &Gain,
) -> BTreeMap<Collective, (Fraction, Fraction)> {
    let request =
        PlanRequest { collectives: gain.bounds.keys().copied().collect(), ..request.clone() };
    let changed = what_if::apply(topology, &gain.changes).ok();
    let Some(then) = changed.and_then(|changed| crate::plan(&changed, &request).ok()) else {
        return BTreeMap::new();
    };
    let best = |plan: &Plan, collective: &Collective| {
        let entry = plan.collectives.get(collective)?;
        entry.best.as_ref().map(|best| best.algbw_gbps)
    };
    let both = |collective: &Collective| {
        Some((*collective, (best(plan, collective)?, best(&then, collective)?)))
    };
    gain.bounds.keys().filter_map(both).collect()
}

/// Single changes across the limiting cuts, most direct first.
fn candidates(topology: &Topology, model: &Model, limits: &[Limit]) -> Vec<Vec<String>> {
    let mut list = Collected::default();
    let mut over_pcie = false;
    for limit in limits {
        let edges = limit.cuts.iter().flat_map(|cut| &cut.edges).chain(&limit.edges);
        for edge in edges {
            for from in model.bound_vertices(edge.from) {
                for to in model.bound_vertices(edge.to) {
                    over_pcie |= is_pcie_side(topology, from) || is_pcie_side(topology, to);
                    list.link(topology, from, to);
                }
            }
        }
    }
    for cut in limits.iter().flat_map(|limit| &limit.cuts) {
        let inside: BTreeSet<usize> =
            cut.from.iter().copied().filter(|node| *node < model.ranks()).collect();
        for &a in &inside {
            for b in (0..model.ranks()).filter(|b| !inside.contains(b)) {
                let ends = [a, b].map(|rank| model.bound_vertices(rank).next());
                if let [Some(a), Some(b)] = ends {
                    list.gpu_pair(topology, a, b);
                }
            }
        }
    }
    if over_pcie {
        list.nics(topology);
    }
    list.changes
}

fn is_pcie_side(topology: &Topology, id: VertexId) -> bool {
    !matches!(
        topology.vertex(id).kind,
        VertexKind::Gpu { .. } | VertexKind::NvSwitch | VertexKind::Switch
    )
}

/// Changes, each once however it is reached.
#[derive(Default)]
struct Collected {
    seen: BTreeSet<Vec<String>>,
    changes: Vec<Vec<String>>,
}

impl Collected {
    fn push(&mut self, changes: Vec<String>) {
        if self.seen.insert(changes.clone()) {
            self.changes.push(changes);
        }
    }

    /// One more link like those that join the two.
    fn link(&mut self, topology: &Topology, from: VertexId, to: VertexId) {
        let joined = !topology.links_between(from, to).is_empty()
            || !topology.links_between(to, from).is_empty();
        if from != to && joined {
            let (a, b) = (from.min(to), from.max(to));
            self.push(everywhere(topology, &[a, b], |names| {
                format!("add {}-{}", names[0], names[1])
            }));
        }
    }

    /// A link between two GPUs of a host that have none, where others there are joined directly.
    fn gpu_pair(&mut self, topology: &Topology, a: VertexId, b: VertexId) {
        let graph = topology.graph();
        let is_gpu = |id: VertexId| matches!(topology.vertex(id).kind, VertexKind::Gpu { .. });
        let host = topology.vertex(a).host;
        let direct = graph.edge_indices().any(|edge| {
            graph.edge_endpoints(edge).is_some_and(|(from, to)| {
                is_gpu(from) && is_gpu(to) && topology.vertex(from).host == host
            }) && matches!(graph[edge].kind, LinkKind::NvLink | LinkKind::Xgmi | LinkKind::Abstract)
        });
        let joined = !topology.links_between(a, b).is_empty();
        if direct && !joined && a != b && topology.vertex(b).host == host {
            let (a, b) = (a.min(b), a.max(b));
            self.push(everywhere(topology, &[a, b], |names| {
                format!("add {}-{}", names[0], names[1])
            }));
        }
    }

    /// One more NIC below each switch or NUMA node with GPUs, and each NIC moved to each of the others.
    fn nics(&mut self, topology: &Topology) {
        let first = topology.gpus().first().and_then(|gpu| topology.vertex(*gpu).host);
        let parents: Vec<VertexId> = topology
            .graph()
            .node_indices()
            .filter(|id| topology.vertex(*id).host == first)
            .filter(|id| {
                let kind = &topology.vertex(*id).kind;
                matches!(kind, VertexKind::PcieSwitch | VertexKind::NumaNode { .. })
                    && topology.links_from(*id).iter().any(|(_, below)| {
                        matches!(topology.vertex(*below).kind, VertexKind::Gpu { .. })
                    })
            })
            .collect();
        let nics: Vec<VertexId> = topology
            .nics()
            .iter()
            .copied()
            .filter(|nic| topology.vertex(*nic).host == first)
            .collect();
        if nics.is_empty() {
            return;
        }
        for &parent in &parents {
            self.push(everywhere(topology, &[parent], |names| {
                format!("add nic {NEW_NIC} to {}", names[0])
            }));
        }
        for &nic in &nics {
            for &parent in &parents {
                if topology.links_between(nic, parent).is_empty() {
                    self.push(everywhere(topology, &[nic, parent], |names| {
                        format!("move {} to {}", names[0], names[1])
                    }));
                }
            }
        }
    }
}

/// The change for the devices named, and on every other host that has devices of those names.
fn everywhere(
    topology: &Topology,
    devices: &[VertexId],
    change: impl Fn(&[String]) -> String,
) -> Vec<String> {
    let name = |id: VertexId| topology.vertex(id).name.as_str();
    let host_of = |id: VertexId| topology.vertex(id).host;
    let hosts = topology.hosts().len();
    let Some(own) = devices.iter().find_map(|id| host_of(*id)).filter(|_| hosts > 1) else {
        let names: Vec<String> = devices.iter().map(|id| name(*id).to_owned()).collect();
        return [change(&names)].into();
    };
    let of_host = |host: usize| -> Option<Vec<String>> {
        let host = HostId(u32::try_from(host).ok()?);
        let renamed = |id: &VertexId| match host_of(*id) {
            Some(_) => {
                let local = name(*id).strip_prefix(&format!("{own}:"))?;
                let full = format!("{host}:{local}");
                topology.find(&full).map(|_| full)
            }
            None => Some(name(*id).to_owned()),
        };
        devices.iter().map(renamed).collect()
    };
    (0..hosts).filter_map(of_host).map(|names| change(&names)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::sample;
    use topology::{RateModel, formats, lower};

    fn advise(topology: &Topology, collectives: &[Collective]) -> Advice {
        let request = PlanRequest { collectives: collectives.to_vec(), ..PlanRequest::default() };
        let plan = crate::plan(topology, &request).unwrap();
        let advice = single_changes(topology, &request, &plan).unwrap();
        for gain in &advice.gains {
            // What it says of the changed machine is what planning that machine says.
            let changed = what_if::apply(topology, &gain.changes).unwrap();
            let then = crate::plan(&changed, &request).unwrap();
            for (collective, (before, after)) in &gain.bounds {
                assert!(before < after);
                let bound = then.collectives[collective].bound.as_ref().unwrap();
                assert!(bound.algbw_gbps <= *after, "{:?} {collective}", gain.changes);
            }
            for (collective, (_, after)) in &gain.best {
                let best = then.collectives[collective].best.as_ref().unwrap();
                assert_eq!(best.algbw_gbps, *after, "{:?} {collective}", gain.changes);
            }
        }
        advice
    }

    #[test]
    fn a_lost_link_is_what_helps_most() {
        // A full mesh of four at 20 GB/s a pair, in which 0 and 1 have half.
        let pairs = [(0, 1, 10), (0, 2, 20), (0, 3, 20), (1, 2, 20), (1, 3, 20), (2, 3, 20)];
        let mesh = sample::topology(4, 0, sample::both(pairs));
        let advice = advise(&mesh, &[Collective::AllGather]);
        let best = &advice.gains[0];
        assert_eq!(best.changes, ["add g0-g1"]);
        // 50 GB/s enter g0, so 200/3 in all; with 10 more 80.
        let expected = (Fraction::of(200, 3), Fraction::integer(80));
        assert_eq!(best.bounds[&Collective::AllGather], expected);
        assert_eq!(best.best[&Collective::AllGather].1, Fraction::integer(80));
    }

    #[test]
    fn nothing_single_helps_a_symmetric_machine() {
        let star = sample::topology(4, 1, sample::both((0..4).map(|gpu| (gpu, 4, 10))));
        let advice = advise(&star, &[Collective::AllGather]);
        assert!(advice.tried > 0);
        assert_eq!((advice.gains.len(), advice.left_out), (0, 0));
        // All-reduce can use one faster GPU, by reducing more of the data there; whichever of the four it is.
        let advice = advise(&star, &[Collective::AllReduce]);
        assert_eq!((advice.gains.len(), advice.gains[0].alike), (1, 3));
    }

    #[test]
    fn hosts_get_the_same_change() {
        let host = r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
            <pci busid="0000:01:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="80"><nvlink target="0000:02:00.0" count="4"/></gpu></pci>
            <pci busid="0000:02:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="1" sm="80"><nvlink target="0000:01:00.0" count="4"/></gpu></pci>
            <pci busid="0000:09:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_0" dev="0" speed="100000" port="1" guid="0x1" gdr="1"/></nic></pci>
            </cpu></system>"#;
        let one = formats::read(host.as_bytes()).unwrap().remove(0);
        let two = lower(&[one.clone(), one], RateModel::Effective).unwrap();
        let advice = advise(&two, &[Collective::AllGather]);
        let changes: Vec<_> = advice.gains.iter().map(|gain| gain.changes.clone()).collect();
        assert!(
            changes.contains(&vec!["add 0:mlx5_0-fabric".into(), "add 1:mlx5_0-fabric".into()]),
            "{changes:?}"
        );
        // 12.5 GB/s into each host for half the data: 25 in all, twice that with two lanes where PCIe carries 24.
        let best = &advice.gains[0].bounds[&Collective::AllGather];
        assert_eq!(best.0, Fraction::integer(25));
        assert!(best.1 >= Fraction::integer(48), "{}", best.1);
    }
}
