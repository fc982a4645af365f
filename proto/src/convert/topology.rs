//! Published topologies.

use ::topology::{Generation, Topology};

use super::enums::required;
use super::{WireError, each, present, to_each};
use crate::published::{Published, WatchEvent};
use crate::v1;

impl v1::Topology {
    /// What a daemon sends of `topology`.
    #[must_use]
    pub fn published(topology: &Topology, generation: Generation) -> Self {
        Self {
            generation: generation.0,
            fingerprint: topology.fingerprint().to_owned(),
            rates: v1::RateModel::from(topology.rates()).into(),
            hosts: to_each(topology.hosts()),
        }
    }
}

impl From<&Published> for v1::Topology {
    fn from(published: &Published) -> Self {
        Self {
            generation: published.generation.0,
            fingerprint: published.fingerprint.clone(),
            rates: v1::RateModel::from(published.rates).into(),
            hosts: to_each(&published.hosts),
        }
    }
}

impl TryFrom<v1::Topology> for Published {
    type Error = WireError;

    fn try_from(wire: v1::Topology) -> Result<Self, WireError> {
        Ok(Self {
            generation: Generation(wire.generation),
            fingerprint: wire.fingerprint,
            rates: required("Topology.rates", wire.rates)?,
            hosts: each(wire.hosts)?,
        })
    }
}

impl TryFrom<v1::GetTopologyResponse> for Published {
    type Error = WireError;

    fn try_from(wire: v1::GetTopologyResponse) -> Result<Self, WireError> {
        present("GetTopologyResponse.topology", wire.topology)?.try_into()
    }
}

impl TryFrom<v1::GetPlanResponse> for ::topology::Plan {
    type Error = WireError;

    fn try_from(wire: v1::GetPlanResponse) -> Result<Self, WireError> {
        present("GetPlanResponse.plan", wire.plan)?.try_into()
    }
}

impl TryFrom<v1::WatchTopologyResponse> for WatchEvent {
    type Error = WireError;

    fn try_from(wire: v1::WatchTopologyResponse) -> Result<Self, WireError> {
        use v1::watch_topology_response::Event;
        Ok(match present("WatchTopologyResponse.event", wire.event)? {
            Event::Topology(topology) => Self::Topology(topology.try_into()?),
            Event::Heartbeat(beat) => Self::Heartbeat {
                generation: Generation(beat.generation),
                fingerprint: beat.fingerprint,
            },
            Event::Changes(changes) => Self::Changes(changes),
            Event::Resync(resync) => Self::Resync(Generation(resync.generation)),
        })
    }
}
