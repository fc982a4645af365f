//! What becomes of a plan when the machine changes: another one stands ready, it is kept, or it is made anew.
//!
//! ```text
//!   a machine that changed ── Standing::after ──┬─▶ Repair    a failure that was thought of: its plan is taken
//!                                               ├─▶ Keep      every changed link has room for what it carried
//!                                               └─▶ Replan    anything else
//!   plans of a generation ── Switch ──▶ all ranks go over at once
//! ```
//!
//! Keeping and repairing plan nothing. A link that got slower and still carries its load in the time of the busiest one changes no rate, and
//! no bound rises by it. A link that got faster is different: the plan stays right, but a better one may exist, so the bounds are computed again, and
//! the plan is made anew only where one rises by more than a hundredth above what is reached.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use topology::{Collective, Finding, Fraction, Plan, PlanRequest, Topology, VertexId};

use crate::assemble::{bounds_of, health_of};
use crate::check::{self, Violation};
use crate::plan_error::PlanError;
pub use prepared::{Prepared, single_failures};
pub use switch::Switch;

mod prepared;
mod switch;
#[cfg(test)]
mod tests;

/// What becomes of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The same channels at the same rates, for the new topology.
    Keep(Plan),
    /// The plan that was made beforehand for this failure.
    Repair(Plan),
    /// A new plan.
    Replan(Plan),
}

impl Outcome {
    /// The plan, however it came about.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        match self {
            Self::Keep(plan) | Self::Repair(plan) | Self::Replan(plan) => plan,
        }
    }
}

/// A plan in use, with what makes an answer to a change quick.
#[derive(Clone, Debug)]
pub struct Standing {
    plan: Plan,
    request: PlanRequest,
    /// By ends, kB/s of all links from one to the other.
    rates: BTreeMap<(String, String), u64>,
    /// By ends, for each collective: seconds per GB that the links may take for its rate to stay, and the load they have.
    loads: BTreeMap<(String, String), Vec<(Fraction, Fraction)>>,
    prepared: Prepared,
    told: Told,
}

impl Standing {
    /// A plan as it was made for a topology, with plans for failures as far as they are made.
    ///
    /// # Errors
    /// Where the plan is not one for this topology.
    pub fn new(
        topology: &Topology,
        plan: Plan,
        request: PlanRequest,
        prepared: Prepared,
    ) -> Result<Self, Vec<Violation>> {
        let report = check::plan(topology, &plan)?;
        let mut loads: BTreeMap<(String, String), Vec<(Fraction, Fraction)>> = BTreeMap::new();
        let sets = report.alternatives.iter().chain([&report.collectives]);
        for counted in sets.flat_map(BTreeMap::values).filter(|c| !c.algbw_gbps.is_zero()) {
            let mut by_ends: BTreeMap<(String, String), Fraction> = BTreeMap::new();
            for (link, load) in &counted.loads {
                if let Some((from, to)) = topology.graph().edge_endpoints(*link) {
                    let sum = by_ends.entry(ends(topology, from, to)).or_default();
                    *sum = *sum + *load;
                }
            }
            let time = Fraction::ONE / counted.algbw_gbps;
            for (ends, load) in by_ends {
                loads.entry(ends).or_default().push((time, load));
            }
        }
        let (rates, told) = (rates(topology), Told::of(topology));
        Ok(Self { plan, request, rates, loads, prepared, told })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan with what is to be told of the machine as it is now, though nothing that plans depend on changed.
    fn kept(&self, now: &Topology) -> Outcome {
        let mut plan = self.plan.clone();
        self.told.remove_from(&mut plan);
        Outcome::Keep(renewed(plan, now))
    }

    /// What becomes of it on the machine as it is now.
    ///
    /// # Errors
    /// Where a new plan is needed and there is none.
    pub fn after(&self, now: &Topology) -> Result<Outcome, PlanError> {
        match self.ready(now)? {
            Some(outcome) => Ok(outcome),
            None => crate::plan(now, &self.request).map(Outcome::Replan),
        }
    }

    /// The same without planning: `None` where that is needed.
    ///
    /// # Errors
    /// Where links got faster and the bounds cannot be computed.
    pub fn ready(&self, now: &Topology) -> Result<Option<Outcome>, PlanError> {
        if now.fingerprint() == self.plan.topology.fingerprint {
            return Ok(Some(self.kept(now)));
        }
        // Comparing fingerprints costs nothing, counting loads does.
        if let Some(plan) = self.prepared.plan(now) {
            return Ok(Some(Outcome::Repair(renewed(plan.clone(), now))));
        }
        Ok(self.holds(now)?.then(|| self.kept(now)))
    }

    /// Whether the plan is as good on `now` as on its own topology, and no plan is much better.
    fn holds(&self, now: &Topology) -> Result<bool, PlanError> {
        let same_kind = now.rates() == self.plan.topology.rates
            && self.plan.ranks.iter().all(|rank| {
                let gpu = now.gpu(rank.host, rank.gpu);
                gpu.is_some_and(|gpu| now.vertex(gpu).bus_id == rank.bus_id)
            });
        if !same_kind || self.request.gpus.is_none() && now.gpus().len() != self.plan.ranks.len() {
            return Ok(false);
        }
        let after = rates(now);
        let all: BTreeSet<&(String, String)> = self.rates.keys().chain(after.keys()).collect();
        let mut faster = false;
        for ends in all {
            let rate =
                |rates: &BTreeMap<(String, String), u64>| rates.get(ends).copied().unwrap_or(0);
            let (old, new) = (rate(&self.rates), rate(&after));
            faster |= new > old;
            if new < old {
                let carried = self.loads.get(ends).map_or(&[][..], Vec::as_slice);
                let room = |(time, load): &(Fraction, Fraction)| {
                    let kbps = Fraction::of(new, 1_000_000);
                    new > 0 && time.checked_mul(kbps).is_some_and(|most| *load <= most)
                };
                if !carried.iter().all(room) {
                    return Ok(false);
                }
            }
        }
        Ok(!faster || !self.could_be_better(now)?)
    }

    /// Whether a bound has risen by more than a hundredth above what is reached.
    fn could_be_better(&self, now: &Topology) -> Result<bool, PlanError> {
        let bounds = bounds_of(now, &self.request)?;
        let rises = |(collective, reached): (&Collective, &topology::plan::CollectivePlan)| {
            let (Some(bound), Some(best)) = (bounds.get(collective), &reached.best) else {
                return true;
            };
            let before = reached.bound.as_ref().map_or(best.algbw_gbps, |b| b.algbw_gbps);
            // What was out of reach before is no reason now.
            bound.algbw_gbps * Fraction::integer(100) > before * Fraction::integer(101)
        };
        Ok(self.plan.collectives.iter().any(rises))
    }
}

fn ends(topology: &Topology, from: VertexId, to: VertexId) -> (String, String) {
    (topology.vertex(from).name.clone(), topology.vertex(to).name.clone())
}

fn rates(topology: &Topology) -> BTreeMap<(String, String), u64> {
    let graph = topology.graph();
    let mut rates = BTreeMap::new();
    for edge in graph.edge_indices() {
        if let Some((from, to)) = graph.edge_endpoints(edge) {
            *rates.entry(ends(topology, from, to)).or_default() += graph[edge].bandwidth.kbps();
        }
    }
    rates
}

/// What a plan says of the machine itself: true of the machine it was made for, and not of the one after a change.
#[derive(Clone, Debug)]
struct Told {
    findings: Vec<Finding>,
    assumptions: Vec<String>,
}

impl Told {
    fn of(topology: &Topology) -> Self {
        Self { findings: health_of(topology), assumptions: topology.assumptions().to_vec() }
    }

    fn remove_from(&self, plan: &mut Plan) {
        plan.findings.retain(|finding| !self.findings.contains(finding));
        plan.assumptions.retain(|assumption| !self.assumptions.contains(assumption));
    }
}

/// A plan that says nothing of any machine, with what is to be told of the machine as it is now.
fn renewed(mut plan: Plan, now: &Topology) -> Plan {
    plan.topology.fingerprint = now.fingerprint().into();
    plan.topology.what_if = now.changes().to_vec();
    for rank in &mut plan.ranks {
        let host = now.hosts().get(rank.host.index());
        let gpu = host.and_then(|host| host.gpus.iter().find(|gpu| gpu.index == rank.gpu));
        rank.uuid = gpu.and_then(|gpu| gpu.uuid.clone());
    }
    plan.findings.extend(health_of(now));
    plan.findings.sort_unstable();
    plan.findings.dedup();
    plan.assumptions = now.assumptions().iter().cloned().chain(plan.assumptions).collect();
    plan
}
