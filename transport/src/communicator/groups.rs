//! Groups within a group: each a communicator of its own, with a plan of its own.

use topology::{Plan, Rank};

use super::{Communicator, Options, claims};
use crate::element::ReduceOp;
use crate::error::ConnectError;
use crate::mesh::Listeners;
use crate::rendezvous::{Group, Join, Member};

impl Communicator {
    /// Makes one group of all ranks of each `colour`, in the order of `key` and then of rank; no group for ranks without a
    /// colour. Collective: every rank calls it.
    ///
    /// `plan` makes the plan for a group of so many ranks, which are given by their numbers in this one; it must be the same on
    /// every rank of the group. All operations of this and of other groups may be in flight meanwhile.
    ///
    /// # Errors
    /// As [`Communicator::new`]; [`ConnectError::Parent`] where this group fails, or shares no host and was not made for
    /// all-reduce and all-gather.
    pub fn split(
        &mut self,
        colour: Option<u32>,
        key: i64,
        plan: impl FnOnce(&[Rank]) -> Plan,
        options: Options,
    ) -> Result<Option<Self>, ConnectError> {
        let number = self.splits;
        self.splits += 1;
        let mut places = vec![0_i64; 2 * self.ranks()];
        self.all_gather(&[colour.map_or(-1, i64::from), key], &mut places)
            .map_err(ConnectError::Parent)?;
        let mut members: Vec<(i64, usize)> = places
            .chunks(2)
            .enumerate()
            .filter(|(_, place)| colour.is_some_and(|colour| place[0] == i64::from(colour)))
            .map(|(rank, place)| (place[1], rank))
            .collect();
        members.sort_unstable();
        let ranks: Vec<Rank> = members.iter().map(|(_, rank)| id(*rank)).collect();
        let own = id(ranks.iter().position(|rank| *rank == self.rank).unwrap_or(0));
        let plan = colour.map(|_| plan(&ranks));
        let local = self.group.members.iter().all(|m| m.address.is_loopback());
        let listeners = Listeners::open(local, &options)
            .map_err(|source| ConnectError::Local { what: "listen for peers", source })?;
        let card = plan
            .as_ref()
            .map(|plan| Join::new(own, claims(plan, &options), listeners.reach.clone()));
        let cards = self.swap(card.as_ref())?;
        let (Some(plan), Some(colour)) = (plan, colour) else { return Ok(None) };
        let joins: Vec<&Join> = ranks.iter().filter_map(|r| cards[r.index()].as_ref()).collect();
        let differs = joins.first().and_then(|first| joins.iter().find_map(|j| first.differs(j)));
        if let Some(refusal) = differs {
            return Err(refusal.into());
        }
        if plan.ranks.len() != ranks.len() {
            let ranks = plan.ranks.len();
            return Err(ConnectError::NoSuchRank { rank: own, ranks });
        }
        // Tells this group from others of these ranks.
        let mixed = ((number << 32) | u64::from(colour)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let members = ranks.iter().zip(joins).map(|(rank, join)| Member {
            reach: join.reach().clone(),
            address: self.group.members[rank.index()].address,
        });
        let group = Group { session: self.group.session ^ mixed ^ 1, members: members.collect() };
        Self::connect(&plan, own, group, options, listeners).map(Some)
    }

    /// Makes one group of each list of ranks, in the order of the list; none for a rank in no list. Collective: every rank
    /// calls it, with the same lists.
    ///
    /// With lists along each dimension of a grid of ranks these are the groups of data, tensor and pipeline parallelism.
    ///
    /// # Errors
    /// As [`Communicator::split`]; [`ConnectError::Options`] where a rank is in two lists, or twice in one.
    pub fn subgroup(
        &mut self,
        lists: &[Vec<Rank>],
        plan: impl FnOnce(&[Rank]) -> Plan,
        options: Options,
    ) -> Result<Option<Self>, ConnectError> {
        let mut all: Vec<Rank> = lists.iter().flatten().copied().collect();
        all.sort_unstable();
        if all.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(ConnectError::Options("a rank is in two lists, or twice in one"));
        }
        let place = lists.iter().enumerate().find_map(|(colour, list)| {
            let key = list.iter().position(|rank| *rank == self.rank)?;
            Some((u32::try_from(colour).ok()?, i64::try_from(key).ok()?))
        });
        let (colour, key) = place.map_or((None, 0), |(colour, key)| (Some(colour), key));
        self.split(colour, key, plan, options)
    }

    /// Everybody's card, by rank.
    fn swap(&mut self, card: Option<&Join>) -> Result<Vec<Option<Join>>, ConnectError> {
        let mut own = serde_json::to_vec(&card).expect("a card is a struct of strings and numbers");
        let mut longest = [i64::try_from(own.len()).unwrap_or(i64::MAX)];
        self.all_reduce(&mut longest, ReduceOp::Max).map_err(ConnectError::Parent)?;
        let length = usize::try_from(longest[0]).unwrap_or(usize::MAX);
        // Filled up with spaces, which JSON does not mind.
        own.resize(length, b' ');
        let mut all = vec![0_u8; length * self.ranks()];
        self.all_gather(&own, &mut all).map_err(ConnectError::Parent)?;
        let cards = all.chunks(length).map(serde_json::from_slice);
        cards.collect::<Result<_, _>>().map_err(|error| {
            let what = "read where the other ranks are";
            ConnectError::Local { what, source: error.into() }
        })
    }
}

fn id(rank: usize) -> Rank {
    Rank(u32::try_from(rank).unwrap_or(u32::MAX))
}
