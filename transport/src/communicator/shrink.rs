//! A group without the ranks that are lost.

use std::collections::BTreeSet;

use topology::{Plan, Rank};

use super::{Communicator, Options, claims};
use crate::error::{ConnectError, Failure};
use crate::mesh::Listeners;
use crate::rendezvous::{Join, meet_at};
use crate::survivors::Known;

impl Communicator {
    /// After a failure: makes a group of the ranks that live, in their old order. Every rank that got the failure calls it;
    /// ranks have [`Options::join_timeout`] to come.
    ///
    /// A rank that died or did nothing is left out. `plan` makes the plan for those that are left, which are given by their
    /// numbers in this group; it must be the same on all of them. Registered buffers belong to the old group.
    ///
    /// # Errors
    /// As [`Communicator::new`]; [`ConnectError::TooFew`] where so many are silent, without having ended for certain, that they
    /// may be a group of their own; [`ConnectError::Excluded`] where this rank is the one at fault;
    /// [`ConnectError::Options`] where the group has not failed, or was shrunk before.
    pub fn shrink(
        &mut self,
        plan: impl FnOnce(&[Rank]) -> Plan,
        options: Options,
    ) -> Result<Self, ConnectError> {
        let Some(failure) = self.failure.clone() else {
            return Err(ConnectError::Options(
                "only a group that failed is shrunk; split this one",
            ));
        };
        let accused = match &*failure {
            Failure::PeerLost { culprit, .. } | Failure::Timeout { culprit, .. } => {
                Some(culprit.rank)
            }
            Failure::OperationMismatch { .. } | Failure::Link { .. } => None,
        };
        if accused == Some(self.rank) {
            return Err(ConnectError::Excluded(failure));
        }
        let Some(listener) = self.listener.take() else {
            return Err(ConnectError::Options("the group was shrunk before"));
        };
        let known = Known {
            own: self.rank,
            group: &self.group,
            control: &mut self.control,
            ended: BTreeSet::new(),
            accused,
        };
        let (ranks, place) = known.agree(listener, options.join_timeout)?;
        tracing::info!(target: "topod::init", "rank {}: {} of {} ranks live", self.rank, ranks.len(), self.ranks());
        let own = ranks.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        let own = Rank(u32::try_from(own).unwrap_or(u32::MAX));
        let plan = plan(&ranks);
        if plan.ranks.len() != ranks.len() {
            return Err(ConnectError::NoSuchRank { rank: own, ranks: plan.ranks.len() });
        }
        let local = ranks.iter().all(|r| self.group.members[r.index()].address.is_loopback());
        let listeners = Listeners::open(local, &options)
            .map_err(|source| ConnectError::Local { what: "listen for peers", source })?;
        let join = Join::new(own, claims(&plan, &options), listeners.reach.clone());
        let group = meet_at(&place, ranks.len(), &join, options.join_timeout)?;
        Self::connect(&plan, own, group, options, listeners)
    }
}
