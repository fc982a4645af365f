//! Plans.

use std::collections::BTreeMap;

use topology::plan::{
    Bound, Candidate, Channel, ChannelEdge, ChannelSet, CollectivePlan, EdgePath, PlanRank,
    SizeChoice, TopologyRef,
};
use topology::{Collective, Finding, Generation, GpuIndex, HostId, Plan, Rank};

use super::enums::{required, required_each, some};
use super::{WireError, each, fraction, present, some_bus_id, to_each};
use crate::v1;

impl From<&Plan> for v1::Plan {
    fn from(plan: &Plan) -> Self {
        Self {
            topology: Some((&plan.topology).into()),
            ranks: to_each(&plan.ranks),
            channels: to_each(&plan.channels),
            alternatives: to_each(&plan.alternatives),
            collectives: plan
                .collectives
                .iter()
                .map(|(collective, reached)| collective_plan(*collective, reached))
                .collect(),
            assumptions: plan.assumptions.clone(),
            findings: to_each(&plan.findings),
        }
    }
}

impl TryFrom<v1::Plan> for Plan {
    type Error = WireError;

    fn try_from(wire: v1::Plan) -> Result<Self, WireError> {
        let mut collectives = BTreeMap::new();
        for reached in wire.collectives {
            let collective: Collective = required("CollectivePlan.collective", reached.collective)?;
            if collectives.insert(collective, reached.try_into()?).is_some() {
                return Err(WireError::Duplicate {
                    field: "Plan.collectives",
                    value: collective.to_string(),
                });
            }
        }
        Ok(Self {
            topology: present("Plan.topology", wire.topology)?.try_into()?,
            ranks: each(wire.ranks)?,
            channels: each(wire.channels)?,
            alternatives: each(wire.alternatives)?,
            collectives,
            assumptions: wire.assumptions,
            findings: each(wire.findings)?,
        })
    }
}

impl From<&TopologyRef> for v1::TopologyRef {
    fn from(topology: &TopologyRef) -> Self {
        Self {
            fingerprint: topology.fingerprint.clone(),
            source: v1::Source::from(topology.source).into(),
            rates: v1::RateModel::from(topology.rates).into(),
            links: v1::LinkPolicy::from(topology.links).into(),
            what_if: topology.what_if.clone(),
            generation: topology.generation.0,
        }
    }
}

impl TryFrom<v1::TopologyRef> for TopologyRef {
    type Error = WireError;

    fn try_from(wire: v1::TopologyRef) -> Result<Self, WireError> {
        Ok(Self {
            fingerprint: wire.fingerprint,
            source: required("TopologyRef.source", wire.source)?,
            rates: required("TopologyRef.rates", wire.rates)?,
            links: some("TopologyRef.links", wire.links)?.unwrap_or_default(),
            what_if: wire.what_if,
            generation: Generation(wire.generation),
        })
    }
}

impl From<&PlanRank> for v1::PlanRank {
    fn from(rank: &PlanRank) -> Self {
        Self {
            rank: rank.rank.0,
            host: rank.host.0,
            gpu: rank.gpu.0,
            bus_id: rank.bus_id.map(|id| id.to_string()),
            uuid: rank.uuid.clone(),
        }
    }
}

impl TryFrom<v1::PlanRank> for PlanRank {
    type Error = WireError;

    fn try_from(wire: v1::PlanRank) -> Result<Self, WireError> {
        Ok(Self {
            rank: Rank(wire.rank),
            host: HostId(wire.host),
            gpu: GpuIndex(wire.gpu),
            bus_id: some_bus_id("PlanRank.bus_id", wire.bus_id.as_deref())?,
            uuid: wire.uuid,
        })
    }
}

impl From<&Channel> for v1::Channel {
    fn from(channel: &Channel) -> Self {
        Self {
            index: channel.index,
            pattern: v1::Pattern::from(channel.pattern).into(),
            collectives: numbers(&channel.collectives),
            ranks: channel.ranks.iter().map(|rank| rank.0).collect(),
            root: channel.root.map(|rank| rank.0),
            nics: channel.nics.clone(),
            share: channel.share.to_string(),
            gbps: channel.gbps.to_string(),
            edges: to_each(&channel.edges),
            reduce_edges: to_each(&channel.reduce_edges),
        }
    }
}

impl TryFrom<v1::Channel> for Channel {
    type Error = WireError;

    fn try_from(wire: v1::Channel) -> Result<Self, WireError> {
        Ok(Self {
            index: wire.index,
            pattern: required("Channel.pattern", wire.pattern)?,
            collectives: required_each("Channel.collectives", &wire.collectives)?,
            ranks: wire.ranks.into_iter().map(Rank).collect(),
            root: wire.root.map(Rank),
            nics: wire.nics,
            share: fraction("Channel.share", &wire.share)?,
            gbps: fraction("Channel.gbps", &wire.gbps)?,
            edges: each(wire.edges)?,
            reduce_edges: each(wire.reduce_edges)?,
        })
    }
}

impl From<&ChannelEdge> for v1::ChannelEdge {
    fn from(edge: &ChannelEdge) -> Self {
        Self { from: edge.from.0, to: edge.to.0, paths: to_each(&edge.paths) }
    }
}

impl TryFrom<v1::ChannelEdge> for ChannelEdge {
    type Error = WireError;

    fn try_from(wire: v1::ChannelEdge) -> Result<Self, WireError> {
        Ok(Self { from: Rank(wire.from), to: Rank(wire.to), paths: each(wire.paths)? })
    }
}

impl From<&EdgePath> for v1::EdgePath {
    fn from(path: &EdgePath) -> Self {
        Self { via: path.via.clone(), share: path.share.to_string() }
    }
}

impl TryFrom<v1::EdgePath> for EdgePath {
    type Error = WireError;

    fn try_from(wire: v1::EdgePath) -> Result<Self, WireError> {
        Ok(Self { via: wire.via, share: fraction("EdgePath.share", &wire.share)? })
    }
}

impl From<&ChannelSet> for v1::ChannelSet {
    fn from(set: &ChannelSet) -> Self {
        Self {
            algorithm: v1::Algorithm::from(set.algorithm).into(),
            collectives: numbers(&set.collectives),
            channels: to_each(&set.channels),
        }
    }
}

impl TryFrom<v1::ChannelSet> for ChannelSet {
    type Error = WireError;

    fn try_from(wire: v1::ChannelSet) -> Result<Self, WireError> {
        Ok(Self {
            algorithm: required("ChannelSet.algorithm", wire.algorithm)?,
            collectives: required_each("ChannelSet.collectives", &wire.collectives)?,
            channels: each(wire.channels)?,
        })
    }
}

fn collective_plan(collective: Collective, reached: &CollectivePlan) -> v1::CollectivePlan {
    v1::CollectivePlan {
        collective: v1::Collective::from(collective).into(),
        bound: reached.bound.as_ref().map(Into::into),
        best: reached.best.as_ref().map(Into::into),
        ring: reached.ring.as_ref().map(Into::into),
        candidates: to_each(&reached.candidates),
        by_size: to_each(&reached.by_size),
    }
}

impl TryFrom<v1::CollectivePlan> for CollectivePlan {
    type Error = WireError;

    /// Leaves out `collective`, the key in [`Plan::collectives`].
    fn try_from(wire: v1::CollectivePlan) -> Result<Self, WireError> {
        Ok(Self {
            bound: wire.bound.map(Bound::try_from).transpose()?,
            best: wire.best.map(Candidate::try_from).transpose()?,
            ring: wire.ring.map(Candidate::try_from).transpose()?,
            candidates: each(wire.candidates)?,
            by_size: each(wire.by_size)?,
        })
    }
}

impl From<&Bound> for v1::Bound {
    fn from(bound: &Bound) -> Self {
        Self { algbw_gbps: bound.algbw_gbps.to_string(), limited_by: bound.limited_by.clone() }
    }
}

impl TryFrom<v1::Bound> for Bound {
    type Error = WireError;

    fn try_from(wire: v1::Bound) -> Result<Self, WireError> {
        Ok(Self {
            algbw_gbps: fraction("Bound.algbw_gbps", &wire.algbw_gbps)?,
            limited_by: wire.limited_by,
        })
    }
}

impl From<&Candidate> for v1::Candidate {
    fn from(candidate: &Candidate) -> Self {
        Self {
            algorithm: v1::Algorithm::from(candidate.algorithm).into(),
            algbw_gbps: candidate.algbw_gbps.to_string(),
            channels: candidate.channels,
            height: candidate.height,
            optimal: candidate.optimal,
            executors: candidate
                .executors
                .iter()
                .map(|executor| v1::Executor::from(*executor).into())
                .collect(),
            note: candidate.note.clone(),
        }
    }
}

impl TryFrom<v1::Candidate> for Candidate {
    type Error = WireError;

    fn try_from(wire: v1::Candidate) -> Result<Self, WireError> {
        Ok(Self {
            algorithm: required("Candidate.algorithm", wire.algorithm)?,
            algbw_gbps: fraction("Candidate.algbw_gbps", &wire.algbw_gbps)?,
            channels: wire.channels,
            height: wire.height,
            optimal: wire.optimal,
            executors: required_each("Candidate.executors", &wire.executors)?,
            note: wire.note,
        })
    }
}

impl From<&SizeChoice> for v1::SizeChoice {
    fn from(choice: &SizeChoice) -> Self {
        Self {
            max_bytes: (choice.max_bytes != u64::MAX).then_some(choice.max_bytes),
            algorithm: v1::Algorithm::from(choice.algorithm).into(),
            protocol: v1::Protocol::from(choice.protocol).into(),
            channels: choice.channels,
            predicted_ps: choice.predicted_ps,
        }
    }
}

impl TryFrom<v1::SizeChoice> for SizeChoice {
    type Error = WireError;

    fn try_from(wire: v1::SizeChoice) -> Result<Self, WireError> {
        Ok(Self {
            max_bytes: wire.max_bytes.unwrap_or(u64::MAX),
            algorithm: required("SizeChoice.algorithm", wire.algorithm)?,
            protocol: required("SizeChoice.protocol", wire.protocol)?,
            channels: wire.channels,
            predicted_ps: wire.predicted_ps,
        })
    }
}

impl From<&Finding> for v1::Finding {
    fn from(finding: &Finding) -> Self {
        Self {
            code: finding.code.clone(),
            severity: v1::Severity::from(finding.severity).into(),
            component: finding.component.clone(),
            evidence: finding.evidence.clone(),
            fix: finding.fix.clone(),
        }
    }
}

impl TryFrom<v1::Finding> for Finding {
    type Error = WireError;

    fn try_from(wire: v1::Finding) -> Result<Self, WireError> {
        Ok(Self {
            code: wire.code,
            severity: required("Finding.severity", wire.severity)?,
            component: wire.component,
            evidence: wire.evidence,
            fix: wire.fix,
        })
    }
}

fn numbers(collectives: &[Collective]) -> Vec<i32> {
    collectives.iter().map(|collective| v1::Collective::from(*collective).into()).collect()
}
