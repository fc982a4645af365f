//! Plans for what fails one at a time, made while nothing has failed.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use topology::{LinkKind, Plan, PlanRequest, Topology, VertexKind, what_if};

use super::Told;

/// Plans by the fingerprint of the topology each is for.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    plans: BTreeMap<String, Option<Plan>>,
}

/// The single failures of a topology in the words of [`what_if`]: for every two vertices that GPU links join, one of several parallel links and
/// all of them; every NIC, and its way to the network. Sorted, each once.
#[must_use]
pub fn single_failures(topology: &Topology) -> Vec<String> {
    let graph = topology.graph();
    let mut failures = BTreeSet::new();
    for edge in graph.edge_indices() {
        let (link, Some((from, to))) = (&graph[edge], graph.edge_endpoints(edge)) else { continue };
        if !matches!(link.kind, LinkKind::NvLink | LinkKind::Xgmi | LinkKind::Abstract) {
            continue;
        }
        // Both directions fail together; of links one way only, the one there is.
        let back = !topology.links_between(to, from).is_empty();
        if back && from > to {
            continue;
        }
        let joint = if back { '-' } else { '>' };
        let pair = format!("{}{joint}{}", topology.vertex(from).name, topology.vertex(to).name);
        if link.count > 1 {
            failures.insert(format!("remove {pair} x1"));
        }
        failures.insert(format!("remove {pair}"));
    }
    for &nic in topology.nics() {
        if matches!(topology.vertex(nic).kind, VertexKind::Nic { .. }) {
            let name = &topology.vertex(nic).name;
            // Gone from the bus, or there without its cable.
            failures.insert(format!("remove {name}"));
            if topology.find("fabric").is_some_and(|f| !topology.links_between(nic, f).is_empty()) {
                failures.insert(format!("remove {name}-fabric"));
            }
        }
    }
    failures.into_iter().collect()
}

impl Prepared {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Plans for one failure more, so that who has other things to do can do them in between. Nothing where there is a plan for a topology
    /// like that, which for equal links of a symmetric machine is not so: they differ by name.
    ///
    /// # Errors
    /// Where the failure is none of this topology's.
    pub fn prepare(
        &mut self,
        topology: &Topology,
        request: &PlanRequest,
        failure: &str,
    ) -> Result<(), what_if::WhatIfError> {
        let failed = what_if::apply(topology, &[failure])?;
        let of = String::from(failed.fingerprint());
        self.plans.entry(of).or_insert_with(|| {
            let mut plan = crate::plan(&failed, request).ok()?;
            // What it is for will then be the machine that is there, of which more is to be told than that.
            Told::of(&failed).remove_from(&mut plan);
            plan.topology.what_if.clear();
            Some(plan)
        });
        Ok(())
    }

    /// Plans for all single failures.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare), which is not to be expected.
    pub fn all(topology: &Topology, request: &PlanRequest) -> Result<Self, what_if::WhatIfError> {
        let mut prepared = Self::new();
        for failure in single_failures(topology) {
            prepared.prepare(topology, request, &failure)?;
        }
        Ok(prepared)
    }

    /// The plan for a topology, where it is one that was thought of and has one.
    #[must_use]
    pub fn plan(&self, topology: &Topology) -> Option<&Plan> {
        self.plans.get(topology.fingerprint())?.as_ref()
    }

    /// Of plans that were made before, each for the topology it names: for who keeps them in another form meanwhile.
    #[must_use]
    pub fn of(plans: impl IntoIterator<Item = Plan>) -> Self {
        let named = |plan: Plan| (plan.topology.fingerprint.clone(), Some(plan));
        Self { plans: plans.into_iter().map(named).collect() }
    }

    /// The plans there are.
    pub fn into_plans(self) -> impl Iterator<Item = Plan> {
        self.plans.into_values().flatten()
    }

    /// How many topologies were thought of.
    #[must_use]
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Whether none was.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }
}
