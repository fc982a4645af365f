//! A topology as a daemon publishes it, on the client's side.

use topology::{Generation, LowerError, RateModel, Snapshot, Topology, lower};

use crate::v1;

/// The facts of a published topology, and what it takes to make the same graph of them.
///
/// The graph itself does not travel: it is a pure function of the facts and the rate model, so a client makes it
/// itself and shows, explains and plans with the very code that serves recorded files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its number in the daemon's run.
    pub generation: Generation,
    /// The daemon's fingerprint of the graph.
    pub fingerprint: String,
    /// Whose rates.
    pub rates: RateModel,
    /// Facts by host.
    pub hosts: Vec<Snapshot>,
}

/// One message of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent {
    /// A topology the client does not have.
    Topology(Published),
    /// Nothing for a while.
    Heartbeat {
        /// The present generation.
        generation: Generation,
        /// The present fingerprint.
        fingerprint: String,
    },
    /// What leads to the next topology; for [`v1::TopologyChanges::apply_to`].
    Changes(v1::TopologyChanges),
    /// Changes do not reach to the present generation: a topology follows.
    Resync(Generation),
}

/// Why a client cannot make the daemon's graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The facts make no graph here.
    #[error("the daemon's facts make no topology")]
    Lower(#[source] LowerError),
    /// Client and daemon see the same facts differently, so they are of different versions.
    #[error(
        "daemon and client are of different versions: the same facts give fingerprint {daemon} there and {client} here"
    )]
    Fingerprint {
        /// As published.
        daemon: String,
        /// As made here.
        client: String,
    },
}

impl Published {
    /// The daemon's graph.
    ///
    /// # Errors
    /// Where the facts make no graph, or another one than the daemon's.
    pub fn replay(&self) -> Result<Topology, ReplayError> {
        let topology = lower(&self.hosts, self.rates).map_err(ReplayError::Lower)?;
        if topology.fingerprint() == self.fingerprint {
            Ok(topology)
        } else {
            Err(ReplayError::Fingerprint {
                daemon: self.fingerprint.clone(),
                client: topology.fingerprint().to_owned(),
            })
        }
    }
}
