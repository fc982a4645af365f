//! Ranks of a parallel job to GPUs and hosts: which takes least time for what a training step sends.
//!
//! ```text
//!   Job, Model ─ traffic ─▶ operations by axis ┐
//!   Fleet ─ groups ─▶ loads on links ──────────┴─ evaluate ─▶ time of a step ─ search ─▶ Mapping, alternatives, warnings
//! ```
//!
//! All groups of an axis run at once; an operation takes as long as the busiest link of theirs, and the latency of the longest chain by
//! [`cost`](crate::cost). Tensor parallel groups stay inside what NVLink joins as far as they can, whatever the times. What computing hides is told apart where computing time is known; where it is not, nothing counts as hidden.
//!
//! Up to [`MOST_EXACT`] ranks every mapping is looked at. Of more, every nesting of the axes over hosts and GPUs in order is, and the best is
//! improved by exchanging GPUs inside hosts. So the answer is never worse than ranks in index order in Megatron's own nesting.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use topology::plan::LinkPolicy;
use topology::{BusId, Finding, Fraction, GpuIndex, Severity, health};

use crate::fleet::Fleet;
use crate::groups::{GpuPlace, GroupError, GroupLoads, HostLink, Loader, Motion, Tier, shares};
pub use evaluate::StepTime;
use evaluate::{Assignment, Evaluator};
pub use job::{Axis, Coordinates, Job};
use job::{MEGATRON, MEGATRON_PP_DP, Nesting};
pub use search::MOST_EXACT;
pub use told::{ToldJob, ToldModel};
pub use traffic::{Given, Model, Operation, Traffic};

mod evaluate;
mod job;
mod search;
#[cfg(test)]
mod tests;
mod told;
mod traffic;

/// Alternatives told.
const ALTERNATIVES: usize = 5;
/// Ranks beyond which shares of all groups at once are not computed.
const MOST_SHARED: usize = 1024;

/// Why there is no mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Sizes of axes that make no job.
    #[error("{0}")]
    Job(String),
    /// Ranks and GPUs differ in number.
    #[error(
        "the job has {ranks} ranks, and there are {gpus} GPUs: name as many, on each host the same, or give other hosts"
    )]
    Ranks {
        /// Of the job.
        ranks: usize,
        /// There.
        gpus: usize,
    },
    /// A host lacks a GPU that was named.
    #[error("host {host} has no GPU{gpu}")]
    UnknownGpu {
        /// Place of the host.
        host: usize,
        /// NVML index.
        gpu: u32,
    },
    /// A GPU that was named twice.
    #[error("GPU{0} is named twice")]
    GpuTwice(u32),
    /// However ranks are placed, some group has no way between its members.
    #[error("no mapping joins all groups: {0}")]
    Apart(GroupError),
}

/// A mapping with what it costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapping {
    /// By rank as a launcher counts them.
    pub ranks: Vec<MappedRank>,
    /// How ranks are counted.
    pub order: Order,
    /// By operation.
    pub axes: Vec<AxisReport>,
    /// Time of a step.
    pub step: StepTime,
    /// Time of a step with ranks on GPUs in index order, counted as Megatron does; `None` where that joins not all groups.
    pub identity: Option<StepTime>,
    /// Other nestings, best first.
    pub alternatives: Vec<Alternative>,
    /// What is to be known of it.
    pub warnings: Vec<Finding>,
    /// Whether every mapping was looked at.
    pub exhaustive: bool,
    /// Mappings looked at.
    pub mappings: u64,
}

/// One rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedRank {
    /// As the launcher counts.
    pub rank: usize,
    /// Host, by place.
    pub host: usize,
    /// NVML index.
    pub gpu: GpuIndex,
    /// PCI address where known.
    pub bus_id: Option<BusId>,
    /// Where it stands.
    pub at: Coordinates,
    /// Its place among the ranks that share experts.
    pub ep: usize,
}

/// How ranks are counted, and what a launcher has to be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Axes, innermost first, as Megatron writes them; `mesh` where only a table of ranks says it.
    pub name: String,
    /// The flag of Megatron that counts so; `None` where it has none, and a framework that takes a mesh of ranks is needed.
    pub megatron: Option<String>,
    /// Hosts in the order of their ranks.
    pub hosts: Vec<usize>,
    /// By host in that order, its GPUs in the order of local ranks: what `CUDA_VISIBLE_DEVICES` is to be.
    pub visible: Vec<Vec<GpuIndex>>,
}

/// What an axis costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisReport {
    /// What its groups do.
    pub operation: Operation,
    /// Groups.
    pub groups: usize,
    /// Ranks in each.
    pub members: usize,
    /// The worst links a group of it crosses.
    pub tier: Tier,
    /// Groups by the worst links each crosses.
    pub tiers: BTreeMap<Tier, usize>,
    /// One operation, all groups at once, picoseconds.
    pub operation_ps: u64,
    /// Of it, what does not depend on size.
    pub latency_ps: u64,
    /// All of a step.
    pub step_ps: u64,
    /// Of that, what nothing hides.
    pub exposed_ps: u64,
    /// The link that is busy longest, `FROM > TO`.
    pub bottleneck: Option<String>,
    /// Data of the slowest group per second, kB/s: running alone.
    pub alone_kbps: Option<Fraction>,
    /// While the other groups of its axis run too.
    pub axis_kbps: Option<Fraction>,
    /// While all groups of all axes run: its max-min share. `None` also where there are too many ranks.
    pub job_kbps: Option<Fraction>,
}

impl AxisReport {
    /// What would make it faster: `latency` where at least half of an operation's time is latency, else `bandwidth`.
    #[must_use]
    pub fn sensitivity(&self) -> &'static str {
        if self.latency_ps.saturating_mul(2) >= self.operation_ps { "latency" } else { "bandwidth" }
    }
}

/// Another way to count ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// As [`Order::name`].
    pub order: String,
    /// As [`Order::megatron`].
    pub megatron: Option<String>,
    /// Time of a step.
    pub step: StepTime,
}

/// What is to be mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapRequest {
    /// Axes.
    pub job: Job,
    /// What a step sends.
    pub traffic: Traffic,
    /// GPUs by NVML index, the same on every host; `None` is all.
    pub gpus: Option<Vec<GpuIndex>>,
    /// Which links count.
    pub links: LinkPolicy,
}

/// Maps a job's ranks to GPUs.
///
/// # Errors
/// [`MapError`].
pub fn map(fleet: &Fleet, request: &MapRequest) -> Result<Mapping, MapError> {
    let job = request.job;
    if let Some(reason) = job.refusal() {
        return Err(MapError::Job(reason));
    }
    let places = places(fleet, request.gpus.as_deref())?;
    if places.len() != job.ranks() {
        return Err(MapError::Ranks { ranks: job.ranks(), gpus: places.len() });
    }
    let mut evaluator =
        Evaluator::new(Loader::new(fleet, request.links), job, &request.traffic, places);
    let found = search::search(&mut evaluator);
    let identity: Assignment = (0..job.ranks()).collect();
    let Some(best) = found.first() else {
        let why = (0..evaluator.groups.len())
            .find_map(|operation| evaluator.operation(operation, &identity).err());
        return Err(match why {
            Some(error) => MapError::Apart(error),
            None => MapError::Job("no mapping has a time".into()),
        });
    };
    let launch = Launch::of(&evaluator, &best.assignment);
    let (axes, loads) = axes(&mut evaluator, &best.assignment).map_err(MapError::Apart)?;
    let mut alternatives: Vec<Alternative> = Vec::new();
    for other in &found[1..] {
        let Order { name, megatron, .. } = Launch::of(&evaluator, &other.assignment).order;
        let other = Alternative { order: name, megatron, step: other.time.clone() };
        // Hosts in another order are no other way to count.
        if alternatives.len() < ALTERNATIVES && !alternatives.contains(&other) {
            alternatives.push(other);
        }
    }
    Ok(Mapping {
        ranks: launch.ranks(&evaluator, &best.assignment),
        warnings: warnings(fleet, &axes, &loads),
        axes,
        step: best.time.clone(),
        identity: evaluator.step(&identity),
        alternatives,
        exhaustive: job.ranks() <= MOST_EXACT,
        mappings: evaluator.steps,
        order: launch.order,
    })
}

/// GPUs in host order, in index order or as named.
fn places(fleet: &Fleet, gpus: Option<&[GpuIndex]>) -> Result<Vec<GpuPlace>, MapError> {
    let mut places = Vec::new();
    for host in 0..fleet.hosts() {
        let of = &fleet.class(host).gpus;
        match gpus {
            None => places.extend((0..of.len()).map(|gpu| GpuPlace { host, gpu })),
            Some(named) => {
                for (at, wanted) in named.iter().enumerate() {
                    if named[..at].contains(wanted) {
                        return Err(MapError::GpuTwice(wanted.0));
                    }
                    let found = of.iter().position(|gpu| gpu.index == *wanted);
                    let gpu = found.ok_or(MapError::UnknownGpu { host, gpu: wanted.0 })?;
                    places.push(GpuPlace { host, gpu });
                }
            }
        }
    }
    Ok(places)
}

/// An order with the launcher's number of each rank.
struct Launch {
    order: Order,
    /// By number in Megatron's order.
    number: Vec<usize>,
}

impl Launch {
    /// The first nesting under which each host's ranks follow each other, so that a launcher can start them; else a mesh over hosts in order.
    fn of(evaluator: &Evaluator<'_>, assignment: &[usize]) -> Self {
        let job = &evaluator.job;
        let named =
            [(MEGATRON, Some("the default")), (MEGATRON_PP_DP, Some("--use-tp-pp-dp-mapping"))];
        let others = job.nestings().into_iter().map(|nesting| (nesting, None));
        let all: Vec<(Nesting, Option<&str>)> = named.into_iter().chain(others).collect();
        for (nesting, flag) in all {
            let by_number: Vec<GpuPlace> = (0..job.ranks())
                .map(|number| {
                    let rank = job.number(&MEGATRON, job.coordinates(&nesting, number));
                    evaluator.places[assignment[rank]]
                })
                .collect();
            let Some((hosts, visible)) = by_host(evaluator.fleet(), &by_number) else { continue };
            let number = (0..job.ranks())
                .map(|rank| job.number(&nesting, job.coordinates(&MEGATRON, rank)))
                .collect();
            let names: Vec<&str> = nesting
                .into_iter()
                .flat_map(|axis| match axis {
                    Axis::Cp => [Some("cp"), Some("ep")],
                    other => [Some(other.as_str()), None],
                })
                .flatten()
                .collect();
            let megatron = flag.map(String::from);
            let order = Order { name: names.join("-"), megatron, hosts, visible };
            return Self { order, number };
        }
        let (hosts, visible) = by_host(evaluator.fleet(), &evaluator.places).unwrap_or_default();
        let order = Order { name: "mesh".into(), megatron: None, hosts, visible };
        Self { order, number: assignment.to_vec() }
    }

    fn ranks(&self, evaluator: &Evaluator<'_>, assignment: &[usize]) -> Vec<MappedRank> {
        let job = &evaluator.job;
        let mut ranks: Vec<MappedRank> = (0..job.ranks())
            .map(|rank| {
                let place = evaluator.places[assignment[rank]];
                let class = evaluator.fleet().class(place.host);
                let at = job.coordinates(&MEGATRON, rank);
                MappedRank {
                    rank: self.number[rank],
                    host: place.host,
                    gpu: class.gpus[place.gpu].index,
                    bus_id: class.topology.vertex(class.gpus[place.gpu].vertex).bus_id,
                    ep: (at.dp * job.cp + at.cp) % job.ep,
                    at,
                }
            })
            .collect();
        ranks.sort_by_key(|rank| rank.rank);
        ranks
    }
}

/// Hosts and their GPUs in order, where each host's come in one row.
fn by_host(fleet: &Fleet, places: &[GpuPlace]) -> Option<(Vec<usize>, Vec<Vec<GpuIndex>>)> {
    let mut hosts: Vec<usize> = Vec::new();
    let mut visible: Vec<Vec<GpuIndex>> = Vec::new();
    let mut seen = alloc::collections::BTreeSet::new();
    for place in places {
        if hosts.last() != Some(&place.host) {
            if !seen.insert(place.host) {
                return None;
            }
            hosts.push(place.host);
            visible.push(Vec::new());
        }
        visible.last_mut()?.push(fleet.class(place.host).gpus[place.gpu].index);
    }
    Some((hosts, visible))
}

/// Reports by operation, and the loads of their groups.
fn axes(
    evaluator: &mut Evaluator<'_>,
    assignment: &Assignment,
) -> Result<(Vec<AxisReport>, Vec<Vec<GroupLoads>>), GroupError> {
    let fleet = evaluator.fleet();
    let mut loads = Vec::new();
    let mut times = Vec::new();
    for operation in 0..evaluator.groups.len() {
        loads.push(evaluator.loads(operation, assignment)?);
        times.push(evaluator.operation(operation, assignment)?);
    }
    let step = evaluator.step_of(&times.iter().map(|time| time.known()).collect::<Vec<_>>());
    let every: Vec<&GroupLoads> = loads.iter().flatten().collect();
    let mut of_job =
        if assignment.len() <= MOST_SHARED { shares(fleet, &every) } else { Vec::new() }
            .into_iter();
    let mut reports = Vec::new();
    for (at, (groups, time)) in loads.iter().zip(&times).enumerate() {
        let operation = evaluator.traffic.operations[at];
        let mut tiers: BTreeMap<Tier, usize> = BTreeMap::new();
        groups.iter().for_each(|group| *tiers.entry(group.tier).or_default() += 1);
        let job_kbps = of_job.by_ref().take(groups.len()).flatten().min();
        reports.push(AxisReport {
            operation,
            groups: groups.len(),
            members: groups.first().map_or(0, |group| usize::try_from(group.members).unwrap_or(0)),
            tier: tiers.keys().next_back().copied().unwrap_or(Tier::Alone),
            tiers,
            operation_ps: time.ps,
            latency_ps: time.latency_ps,
            step_ps: time.ps.saturating_mul(operation.times),
            exposed_ps: step.exposed_by_operation_ps[at],
            bottleneck: time.bottleneck.map(|link| link_name(fleet, link)),
            alone_kbps: groups.iter().filter_map(|group| group.alone(fleet)).min(),
            axis_kbps: time.kbps,
            job_kbps,
        });
    }
    Ok((reports, loads))
}

/// `GPU0 > nvs0`, with the host in front where there are several.
fn link_name(fleet: &Fleet, (host, link): HostLink) -> String {
    let topology = &fleet.class(host).topology;
    let Some((from, to)) = topology.graph().edge_endpoints(link) else { return String::new() };
    let (from, to) = (&topology.vertex(from).name, &topology.vertex(to).name);
    if fleet.hosts() > 1 { format!("host {host}: {from} > {to}") } else { format!("{from} > {to}") }
}

fn warning(code: &str, component: String, evidence: String, fix: &str) -> Finding {
    Finding::new(code, Severity::Degraded, component, evidence, fix)
}

/// What is wrong with where groups are.
fn warnings(fleet: &Fleet, axes: &[AxisReport], loads: &[Vec<GroupLoads>]) -> Vec<Finding> {
    let mut found = Vec::new();
    for report in axes {
        let axis = report.operation.axis;
        let worse = |than: Tier| -> usize {
            report.tiers.iter().filter(|(tier, _)| **tier > than).map(|(_, groups)| groups).sum()
        };
        let leaving = worse(Tier::GpuLinks);
        if axis == Axis::Tp && leaving > 0 {
            found.push(warning(
                "tp-group-leaves-nvlink-domain",
                axis.as_str().into(),
                format!(
                    "{leaving} of {} groups have GPUs that no NVLink or xGMI joins",
                    report.groups
                ),
                "take a smaller tp, or GPUs that NVLink joins",
            ));
        }
        let crossing = report.tiers.get(&Tier::CrossRail).copied().unwrap_or(0);
        // An exchange of everyone with everyone is on one rail only where each host has one member.
        if crossing > 0 && report.operation.motion != Motion::AllToAll {
            found.push(warning(
                "group-crosses-rails",
                axis.as_str().into(),
                format!("{crossing} of {} groups send from one rail to another", report.groups),
                "let PXN take the data to the right rail inside the host (NCCL does unless NCCL_PXN_DISABLE=1), or choose axes so that a host holds whole groups",
            ));
        }
    }
    for (host, &class) in fleet.class_of.iter().enumerate() {
        let topology = &fleet.classes[class].topology;
        for fault in topology.hosts().iter().flat_map(health::examine) {
            if fault.severity <= Severity::Info {
                continue;
            }
            // `GPU0-GPU3`, `mlx5_0`: a component is a device or a pair.
            let named: Vec<_> = core::iter::once(fault.component.as_str())
                .chain(fault.component.split(['-', ',', ' ']))
                .filter_map(|name| topology.find_device(name))
                .collect();
            let crosses = |(at, link): HostLink| {
                let ends = topology.graph().edge_endpoints(link);
                at == host
                    && ends.is_some_and(|(from, to)| named.contains(&from) || named.contains(&to))
            };
            let used: Vec<&str> = axes
                .iter()
                .zip(loads)
                .filter(|(_, groups)| {
                    groups.iter().flat_map(|group| &group.loads).any(|(link, _)| crosses(*link))
                })
                .map(|(report, _)| report.operation.axis.as_str())
                .collect();
            if !used.is_empty() {
                let place = if fleet.hosts() > 1 {
                    format!("host {host}: {}", fault.component)
                } else {
                    fault.component.clone()
                };
                found.push(warning(
                    "degraded-link-used",
                    place,
                    format!("{} ({}); {} crosses it", fault.evidence, fault.code, used.join(", ")),
                    &fault.fix,
                ));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}
