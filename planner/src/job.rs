//! Plans for many hosts by class: [`JobPlan`] says what they mean.
//!
//! ```text
//!   Fleet ─ class ─▶ plan inside, owners, uplinks ┐
//!                                                 ├─ hubs ─▶ exchange ─ check ─▶ what is reached ─▶ JobPlan
//!   counts of hosts ───────────────── bounds ─────┘
//! ```
//!
//! Each class is planned once, so the work grows with the number of classes, and with hosts only where they are counted. Inside a host the plan for
//! all-gather and reduce-scatter serves; GPUs next to NICs own the data that comes from other hosts, in proportion to those NICs' rates.
//!
//! **Between hosts** every host is a port with some rate, and the network blocks nothing. There the best exchange is known in closed form: an
//! all-reduce over hubs of weight w loads a host's port `1 + w (B-2)` each way, so weights that make all ports busy equally long reach
//! `2 (B-1)` over the sum of rates, which no schedule beats. A weight cannot fall below zero: then the slowest host alone limits, and rightly so.
//! Weights come from the links' own loads, not from ports alone, so what a host does inside counts.
//!
//! **Bounds** are those of cuts around hosts and GPUs, the same in every host of a class. With all-reduce, groups of a partition into p groups
//! take in at least `2 (p-1)` times the data together; each class may count as whole hosts or as single GPUs, whichever proves more.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use topology::job_plan::{Exchange, JobClass, JobCollective, JobPlan, JobUplink};
use topology::plan::{LinkPolicy, PlanRank};
use topology::{
    Collective, Finding, Fraction, HostId, LinkId, PathType, PlanRequest, Rank, Severity, Topology,
};

use crate::check::job as check_job;
use crate::check::job::{ClassFlows, Flowing, JobCounted, count_job};
use crate::fleet::{ClassGpu, Fleet, HostClass};
use crate::plan_error::PlanError;
use bounds::ClassCuts;

mod bounds;
#[cfg(test)]
mod tests;

/// Collectives planned by class.
pub const PLANNED: [Collective; 3] =
    [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];

/// Why there is no plan by class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// Nothing to plan for.
    #[error("the job has no host, or one without GPUs")]
    NoHost,
    /// A collective that is not planned by class.
    #[error("{0} is not planned by class: all-reduce, all-gather and reduce-scatter are")]
    NotPlanned(Collective),
    /// The GPUs of a host have no plan among them.
    #[error("hosts of class {class}: {error}")]
    Class {
        /// Place of the class.
        class: usize,
        /// Why.
        error: PlanError,
    },
    /// Hosts without a NIC.
    #[error("hosts of class {class} have no NIC to reach other hosts by")]
    NoNetwork {
        /// Place of the class.
        class: usize,
    },
    /// The checker refused it, which is a defect of the planner.
    #[error("the plan did not pass the check: {0}")]
    Refused(String),
}

/// Plans a job by class; no collective asked for is all of [`PLANNED`].
///
/// # Errors
/// [`JobError`].
pub fn plan(
    fleet: &Fleet,
    collectives: &[Collective],
    links: LinkPolicy,
) -> Result<JobPlan, JobError> {
    if fleet.hosts() == 0 || fleet.classes.iter().any(|class| class.gpus.is_empty()) {
        return Err(JobError::NoHost);
    }
    let wanted = if collectives.is_empty() { &PLANNED[..] } else { collectives };
    if let Some(other) = wanted.iter().find(|collective| !PLANNED.contains(collective)) {
        return Err(JobError::NotPlanned(*other));
    }
    let mut classes = Vec::new();
    let mut cuts = Vec::new();
    let mut flows = Vec::new();
    for (place, class) in fleet.classes.iter().enumerate() {
        let made =
            job_class(class, links).map_err(|error| JobError::Class { class: place, error })?;
        if fleet.hosts() > 1 && made.uplinks.iter().all(Vec::is_empty) {
            return Err(JobError::NoNetwork { class: place });
        }
        cuts.push(ClassCuts::of(class, made.plan.as_ref(), fleet.hosts() > 1));
        flows.push(ClassFlows::of(&class.topology, &made).map_err(refused)?);
        classes.push(made);
    }
    let hosts = Hosts { counts: fleet.counts(), sizes: sizes(fleet), cuts, flows };
    let topologies: Vec<&Topology> = fleet.classes.iter().map(|class| &class.topology).collect();
    let mut plan = JobPlan {
        classes,
        class_of: fleet
            .class_of
            .iter()
            .map(|&class| u32::try_from(class).unwrap_or(u32::MAX))
            .collect(),
        collectives: BTreeMap::new(),
        assumptions: assumptions(fleet),
        findings: Vec::new(),
    };
    for &collective in wanted {
        let (bound_gbps, bound_by) = hosts.bound(collective);
        let limits = JobCollective {
            exchange: hosts.exchange(collective, &topologies),
            algbw_gbps: Fraction::ZERO,
            bound_gbps,
            bound_by,
            limited_by: String::new(),
        };
        plan.collectives.insert(collective, limits);
    }
    let counted = count_job(&topologies, &plan).map_err(refused)?;
    for (collective, JobCounted { algbw_gbps, limiting, .. }) in &counted {
        if let Some(reached) = plan.collectives.get_mut(collective) {
            reached.algbw_gbps = *algbw_gbps;
            reached.limited_by =
                limiting.map_or_else(String::new, |(class, link)| link_name(fleet, class, link));
        }
    }
    plan.findings = findings(fleet, &plan);
    // Its form and loads were checked when they were counted.
    check_job::claims(&plan, &counted).map_err(refused)?;
    Ok(plan)
}

fn refused(found: Vec<String>) -> JobError {
    JobError::Refused(found.into_iter().next().unwrap_or_default())
}

fn sizes(fleet: &Fleet) -> Vec<u64> {
    fleet.classes.iter().map(|class| class.gpus.len() as u64).collect()
}

fn assumptions(fleet: &Fleet) -> Vec<String> {
    let mut all: Vec<String> = fleet
        .classes
        .iter()
        .flat_map(|class| class.topology.assumptions().iter().cloned())
        .chain(["all NICs meet in one network that blocks nothing".into()])
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn link_name(fleet: &Fleet, class: usize, link: LinkId) -> String {
    let topology = &fleet.classes[class].topology;
    let ends = topology.graph().edge_endpoints(link);
    let name = |id| &topology.vertex(id).name;
    ends.map_or_else(String::new, |(from, to)| {
        format!("class {class}: {} > {}", name(from), name(to))
    })
}

/// Inside one class: its plan, its owners, its ways.
fn job_class(class: &HostClass, links: LinkPolicy) -> Result<JobClass, PlanError> {
    let topology = &class.topology;
    let ranks: Vec<PlanRank> = (0..)
        .zip(&class.gpus)
        .map(|(rank, gpu)| PlanRank {
            rank: Rank(rank),
            host: HostId(0),
            gpu: gpu.index,
            bus_id: topology.vertex(gpu.vertex).bus_id,
            // What is true of one host of the class is not of the others.
            uuid: None,
        })
        .collect();
    let plan = match class.gpus.len() {
        0 | 1 => None,
        _ => {
            let request = PlanRequest {
                collectives: vec![Collective::AllGather, Collective::ReduceScatter],
                links,
                ..PlanRequest::default()
            };
            let mut plan = crate::plan(topology, &request)?;
            plan.ranks.iter_mut().for_each(|rank| rank.uuid = None);
            Some(plan)
        }
    };
    let uplinks = class.gpus.iter().map(|gpu| {
        // The last link leads to the network, or back to the GPU: neither is named.
        let names = |links: &[LinkId]| -> Vec<String> {
            let inner = links[..links.len().saturating_sub(1)].iter();
            let end = |link: &LinkId| topology.graph().edge_endpoints(*link).map(|(_, to)| to);
            inner.filter_map(end).map(|id| topology.vertex(id).name.clone()).collect()
        };
        let ways = gpu.uplinks.iter().map(|uplink| JobUplink {
            rail: u32::try_from(uplink.rail).unwrap_or(u32::MAX),
            share: uplink.share,
            out: names(&uplink.out),
            back: names(&uplink.back),
        });
        ways.collect()
    });
    Ok(JobClass {
        fingerprint: topology.fingerprint().into(),
        ranks,
        plan,
        owners: owners(class),
        uplinks: uplinks.collect(),
    })
}

/// Each NIC's rate goes to the GPUs next to it that use it; those GPUs own data in that proportion.
fn owners(class: &HostClass) -> Vec<Fraction> {
    let topology = &class.topology;
    let mut users: BTreeMap<usize, Vec<(PathType, usize, Fraction, u64)>> = BTreeMap::new();
    for (local, gpu) in class.gpus.iter().enumerate() {
        for uplink in &gpu.uplinks {
            let rate = |link: &LinkId| topology.link(*link).bandwidth.kbps();
            let kbps = uplink.out.iter().chain(&uplink.back).map(rate).min().unwrap_or(0);
            let near = topology.path(gpu.vertex, uplink.nic).class;
            users.entry(uplink.rail).or_default().push((near, local, uplink.share, kbps));
        }
    }
    let mut weights = vec![Fraction::ZERO; class.gpus.len()];
    for of_nic in users.values() {
        let nearest = of_nic.iter().map(|user| user.0).min();
        let owning = || of_nic.iter().filter(|user| Some(user.0) == nearest);
        let all: Fraction = owning().map(|user| user.2).sum();
        for &(_, local, share, kbps) in owning() {
            weights[local] = weights[local] + Fraction::of(kbps, 1) * share / all;
        }
    }
    let total: Fraction = weights.iter().copied().sum();
    if total.is_zero() {
        // One host alone: nobody stands before others.
        weights.fill(Fraction::of(1, class.gpus.len() as u64));
        return weights;
    }
    weights.into_iter().map(|weight| weight / total).collect()
}

/// What exchanges and bounds are made from; by class.
struct Hosts {
    counts: Vec<u64>,
    /// GPUs of a host.
    sizes: Vec<u64>,
    cuts: Vec<ClassCuts>,
    flows: Vec<ClassFlows>,
}

/// Denominator of weights before they are counted out exactly.
const WEIGHT_BITS: u32 = 32;
/// Bytes that times are counted for.
const GIB: u128 = 1 << 30;

impl Hosts {
    fn hosts(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn ranks(&self) -> u64 {
        self.counts.iter().zip(&self.sizes).map(|(count, size)| count * size).sum()
    }

    /// Part of the data of a host of a class.
    fn data(&self, class: usize) -> Fraction {
        Fraction::of(self.sizes[class], self.ranks())
    }

    /// How hosts exchange data: directly where that comes within a hundredth of what hubs reach.
    fn exchange(&self, collective: Collective, topologies: &[&Topology]) -> Exchange {
        let hubs = self.hubs(collective, topologies);
        if collective == Collective::AllReduce {
            return Exchange::Hubs(hubs);
        }
        let slowest = |hub: &dyn Fn(usize) -> Option<Fraction>| -> u128 {
            let times = (0..self.flows.len()).map(|class| {
                let flowing = Flowing::new(collective, self.hosts(), self.data(class), hub(class));
                let loads =
                    flowing.and_then(|flowing| self.flows[class].loads(collective, &flowing));
                longest(topologies[class], &loads.unwrap_or_default())
            });
            times.max().unwrap_or(0)
        };
        let (direct, over) = (slowest(&|_| None), slowest(&|class| Some(hubs[class])));
        if direct * 99 <= over * 100 { Exchange::Direct } else { Exchange::Hubs(hubs) }
    }

    /// Weights with which all classes take equally long, as far as they can.
    fn hubs(&self, collective: Collective, topologies: &[&Topology]) -> Vec<Fraction> {
        // By class and link: the time without being a hub, and what being one for everything adds.
        let mut lines: Vec<Vec<(u128, u128)>> = Vec::new();
        for (class, flows) in self.flows.iter().enumerate() {
            let at = |hub: Fraction| {
                let flowing = Flowing::new(collective, self.hosts(), self.data(class), Some(hub));
                flowing.and_then(|flowing| flows.loads(collective, &flowing)).unwrap_or_default()
            };
            let (none, all) = (at(Fraction::ZERO), at(Fraction::ONE));
            let line = |(link, load): (&LinkId, &Fraction)| {
                let base =
                    time(topologies[class], *link, none.get(link).copied().unwrap_or_default());
                let full = time(topologies[class], *link, *load);
                (base, full.saturating_sub(base))
            };
            lines.push(all.iter().map(line).collect());
        }
        let weight = |class: usize, limit: u128| -> u128 {
            let one = 1_u128 << WEIGHT_BITS;
            let of = |&(base, slope): &(u128, u128)| match slope {
                0 => one,
                _ => ((limit.saturating_sub(base)) << WEIGHT_BITS) / slope,
            };
            lines[class].iter().map(of).min().unwrap_or(one).min(one)
        };
        let whole = |limit: u128| -> u128 {
            (0..lines.len())
                .map(|class| weight(class, limit) * u128::from(self.counts[class]))
                .sum()
        };
        // Whatever the weights, nobody is faster than without being a hub.
        let mut low = lines.iter().flatten().map(|line| line.0).max().unwrap_or(0);
        let mut high =
            lines.iter().flatten().map(|line| line.0 + line.1).max().unwrap_or(0).max(low + 1);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if whole(middle) >= 1 << WEIGHT_BITS { high = middle } else { low = middle }
        }
        let weights: Vec<u128> = (0..lines.len()).map(|class| weight(class, high)).collect();
        let total: u128 = weights
            .iter()
            .zip(&self.counts)
            .map(|(weight, count)| weight * u128::from(*count))
            .sum();
        let share = |weight: &u128| {
            let (weight, total) = (i128::try_from(*weight).ok()?, i128::try_from(total).ok()?);
            Fraction::new(weight, total)
        };
        weights.iter().map(|weight| share(weight).unwrap_or_default()).collect()
    }
}

/// Picoseconds for a GiB of total data.
fn time(topology: &Topology, link: LinkId, load: Fraction) -> u128 {
    let kbps = u128::from(topology.link(link).bandwidth.kbps()).max(1);
    let numerator = u128::try_from(load.numerator()).unwrap_or(0);
    let denominator = u128::try_from(load.denominator()).unwrap_or(1);
    (numerator * GIB * 1_000_000_000).div_ceil(denominator * kbps)
}

fn longest(topology: &Topology, loads: &BTreeMap<LinkId, Fraction>) -> u128 {
    loads.iter().map(|(link, load)| time(topology, *link, *load)).max().unwrap_or(0)
}

/// What is worth knowing: which classes are slower, and where owners of one strand are on different rails.
fn findings(fleet: &Fleet, plan: &JobPlan) -> Vec<Finding> {
    let mut found = Vec::new();
    if plan.class_of.len() > 1 {
        let rails = |class: usize| -> Vec<(Fraction, Vec<usize>)> {
            let of = |(gpu, part): (&ClassGpu, &Fraction)| {
                (*part, gpu.uplinks.iter().map(|uplink| uplink.rail).collect())
            };
            let gpus = &fleet.classes[class].gpus;
            gpus.iter()
                .zip(&plan.classes[class].owners)
                .map(of)
                .filter(|of| !of.0.is_zero())
                .collect()
        };
        let first = rails(0);
        let other: Vec<String> = (1..fleet.classes.len())
            .filter(|&class| rails(class) != first)
            .map(|class| format!("class {class}"))
            .collect();
        if !other.is_empty() {
            let evidence = "their NICs or rates differ from those of class 0, so some data goes from one rail to another";
            let fix = "where rails do not reach each other, run hosts of one class together";
            let (code, component) = ("owners-cross-rails", other.join(", "));
            found.push(Finding::new(code, Severity::Info, component, evidence, fix));
        }
    }
    for class in &plan.classes {
        found.extend(class.plan.iter().flat_map(|plan| plan.findings.iter().cloned()));
    }
    found.sort_unstable();
    found.dedup();
    found
}
