//! The independent checker: says what a plan or a schedule really does, by code that did not make it.
//!
//! ```text
//!   structure     ranks are GPUs, rings are rings, trees span, every hop follows links that exist
//!   semantics     symbolic execution: what arrives where, how often
//!   loads         bytes per physical link, hence the bandwidth
//!   rounds        algorithms that go in rounds, known by their hops
//!   claims        what the plan says of itself against what was counted
//!   brute_force   bounds again, by all cuts, for small topologies
//!   schedule      the steps of an operation: order, races, results
//! ```
//!
//! Nothing here uses the planner's search or its graph; all arithmetic is exact. A plan may come from a
//! file, so nothing about it is taken for granted: a wrong one is a list of [`Violation`]s, never a panic.

mod brute_force;
mod claims;
mod exact;
pub mod job;
mod loads;
mod policy;
mod rounds;
mod schedule;
mod semantics;
mod structure;
mod violation;

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use topology::plan::{LinkPolicy, Plan, PlanRank};
use topology::{Channel, Collective, Topology, VertexId};

pub use brute_force::{ProvedBound, bounds, brute_force_bound};
pub use claims::MOST_CHANNELS;
pub use loads::{Counted, Volumes, channel_gbps};
pub use schedule::{
    At, Connection, Placement, ScheduleReport, ScheduleViolation, Waits, Wrong, schedule,
    schedule_placed, schedule_uneven,
};
pub use violation::{Claim, Place, Violation, ViolationKind};

use loads::Loaded;
use structure::{Followed, HopLoad, Parts, Walker};

/// What a correct plan reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// By the plan's own channels.
    pub collectives: BTreeMap<Collective, Counted>,
    /// By each of [`Plan::alternatives`].
    pub alternatives: Vec<BTreeMap<Collective, Counted>>,
    /// Claims that no channels of the plan are behind, so that nothing could be counted.
    pub unchecked: Vec<(Collective, Claim)>,
}

/// Checks everything about `plan` but the truth of its bounds, which [`bounds`] proves where it can.
///
/// # Errors
/// All violations found, in the order of the plan. Semantics, loads and claims are judged only where the
/// structure is right.
pub fn plan(topology: &Topology, plan: &Plan) -> Result<CheckReport, Vec<Violation>> {
    let mut found = Vec::new();
    structure::topology_ref(topology, &plan.topology, &mut found);
    let Some(vertices) = structure::ranks(topology, &plan.ranks, &mut found) else {
        return Err(found);
    };
    let walker = Walker::new(topology, &vertices, plan.topology.links);
    let mut followed = Followed::default();
    let mut set = |channels, at, found: &mut Vec<Violation>| {
        Set::new((&walker, &mut followed), &vertices, channels, at, found)
    };
    let own = set(&plan.channels, Place::default(), &mut found);
    let alternatives: Vec<_> = (0..)
        .zip(&plan.alternatives)
        .map(|(number, alternative)| {
            let at = Place { alternative: Some(number), ..Place::default() };
            set(&alternative.channels, at, &mut found)
        })
        .collect();
    if !found.is_empty() {
        return Err(found);
    }
    let listed = plan.channels.iter().flat_map(|channel| &channel.collectives);
    let collectives = own.count(listed.copied().collect(), &mut found);
    let alternatives: Vec<_> = alternatives
        .iter()
        .zip(&plan.alternatives)
        .map(|(channels, set)| {
            let listed = set.channels.iter().flat_map(|channel| &channel.collectives);
            channels.count(listed.chain(&set.collectives).copied().collect(), &mut found)
        })
        .collect();
    if !found.is_empty() {
        return Err(found);
    }
    let mut report = CheckReport { collectives, alternatives, unchecked: Vec::new() };
    claims::check(plan, &mut report, &mut found);
    if found.is_empty() { Ok(report) } else { Err(found) }
}

/// What each collective of a plan moves: by its best algorithm's channels, of each byte of total data.
///
/// # Errors
/// All violations of the channels' structure; a plan that passed [`plan`] has none.
pub fn volumes(
    topology: &Topology,
    plan: &Plan,
) -> Result<BTreeMap<Collective, Volumes>, Vec<Violation>> {
    let counter = Counter::new(topology, &plan.ranks, plan.topology.links)?;
    let CountedSet(set) = counter.set(&plan.channels)?;
    let mut all = BTreeMap::new();
    for collective in plan.channels.iter().flat_map(|channel| &channel.collectives) {
        if !all.contains_key(collective) {
            let loaded = set.loaded(*collective);
            let volumes =
                loads::volumes(topology, &loaded, &set.parts, *collective, plan.ranks.len());
            let at = Place::default().collective(*collective);
            let overflow = || Vec::from([at.violation(ViolationKind::Overflow)]);
            all.insert(*collective, volumes.ok_or_else(overflow)?);
        }
    }
    Ok(all)
}

/// Counts what those of `channels` that carry `collective` reach, after checking their structure and semantics.
/// This is how a plan under construction learns what to say of itself. The channels' `index` and `gbps` are not looked at, and
/// any link may carry them.
///
/// # Errors
/// All violations found.
pub fn count(
    topology: &Topology,
    ranks: &[PlanRank],
    channels: &[Channel],
    collective: Collective,
) -> Result<Counted, Vec<Violation>> {
    Counter::new(topology, ranks, LinkPolicy::All)?.set(channels)?.count(collective)
}

/// Counts many sets of channels over the same ranks.
#[derive(Debug)]
pub struct Counter<'a> {
    walker: Walker<'a>,
    vertices: Vec<VertexId>,
}

impl<'a> Counter<'a> {
    /// For these ranks, whose channels keep to `links`.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn new(
        topology: &'a Topology,
        ranks: &[PlanRank],
        links: LinkPolicy,
    ) -> Result<Self, Vec<Violation>> {
        let mut found = Vec::new();
        let vertices = structure::ranks(topology, ranks, &mut found);
        let vertices = vertices.filter(|_| found.is_empty()).ok_or(found)?;
        Ok(Self { walker: Walker::new(topology, &vertices, links), vertices })
    }

    /// Checks the structure of `channels`.
    ///
    /// # Errors
    /// All violations found.
    pub fn set<'b>(&'b self, channels: &'b [Channel]) -> Result<CountedSet<'b>, Vec<Violation>> {
        self.next(channels, &mut Followed::default())
    }

    /// The same for many lists of channels, in their order. What takes the ways of hops before it need not be followed again.
    pub fn sets<'b>(
        &'b self,
        lists: impl IntoIterator<Item = &'b [Channel]>,
    ) -> Vec<Result<CountedSet<'b>, Vec<Violation>>> {
        let mut followed = Followed::default();
        lists.into_iter().map(|channels| self.next(channels, &mut followed)).collect()
    }

    fn next<'b>(
        &'b self,
        channels: &'b [Channel],
        followed: &mut Followed<'b>,
    ) -> Result<CountedSet<'b>, Vec<Violation>> {
        let mut found = Vec::new();
        let vertices = &self.vertices;
        let at = Place::default();
        let set = Set::new((&self.walker, followed), vertices, channels, at, &mut found);
        if found.is_empty() { Ok(CountedSet(set)) } else { Err(found) }
    }
}

/// Channels of sound structure.
#[derive(Debug)]
pub struct CountedSet<'a>(Set<'a>);

impl CountedSet<'_> {
    /// What those that carry `collective` reach, after checking their semantics.
    ///
    /// # Errors
    /// All violations found.
    pub fn count(&self, collective: Collective) -> Result<Counted, Vec<Violation>> {
        let mut found = Vec::new();
        let counted = self.0.count(BTreeSet::from([collective]), &mut found).remove(&collective);
        counted.filter(|_| found.is_empty()).ok_or(found)
    }
}

/// What [`plan`] does beyond counting: compares what a plan says of itself with what was counted, for a plan made of sets of
/// channels that passed a [`Counter`].
///
/// # Errors
/// All claims that are not so.
pub fn claims(plan: &Plan, mut report: CheckReport) -> Result<CheckReport, Vec<Violation>> {
    let mut found = Vec::new();
    claims::check(plan, &mut report, &mut found);
    if found.is_empty() { Ok(report) } else { Err(found) }
}

/// The host of each rank, numbered in the order in which they come.
fn hosts_of(topology: &Topology, vertices: &[VertexId]) -> Vec<usize> {
    let mut numbers = BTreeMap::new();
    let host = |vertex: &VertexId| {
        let next = numbers.len();
        *numbers.entry(topology.vertex(*vertex).host).or_insert(next)
    };
    vertices.iter().map(host).collect()
}

/// One list of channels with the loads of their hops.
#[derive(Debug)]
struct Set<'a> {
    topology: &'a Topology,
    ranks: usize,
    /// By rank, counted in the order in which they come.
    hosts: Vec<usize>,
    at: Place,
    channels: &'a [Channel],
    hops: Vec<Vec<HopLoad>>,
    /// Those that `hops` name.
    parts: Parts,
}

impl<'a> Set<'a> {
    /// Checks the structure of each channel.
    fn new(
        (walker, followed): (&Walker<'a>, &mut Followed<'a>),
        vertices: &[VertexId],
        channels: &'a [Channel],
        at: Place,
        found: &mut Vec<Violation>,
    ) -> Self {
        let mut hops = Vec::with_capacity(channels.len());
        for (place, channel) in channels.iter().enumerate() {
            let at = Place { channel: Some(place), ..at };
            let before = found.len();
            structure::channel(channel, vertices.len(), at, found);
            // Hops between ranks that are not there have no ends to start from.
            hops.push(if found.len() == before {
                structure::hops(walker, vertices, channel, followed, at, found)
            } else {
                Vec::new()
            });
        }
        let topology = walker.topology();
        let hosts = hosts_of(topology, vertices);
        let parts = followed.parts();
        Self { topology, ranks: vertices.len(), hosts, at, channels, hops, parts }
    }

    /// The channels that carry a collective, with what their hops put on links.
    fn loaded(&self, collective: Collective) -> Vec<Loaded<'_>> {
        let all = self.channels.iter().zip(&self.hops);
        all.filter(|(channel, _)| channel.collectives.contains(&collective))
            .map(|(channel, hops)| (channel, &hops[..]))
            .collect()
    }

    /// Executes and counts each of `collectives`.
    fn count(
        &self,
        collectives: BTreeSet<Collective>,
        found: &mut Vec<Violation>,
    ) -> BTreeMap<Collective, Counted> {
        let mut counts = BTreeMap::new();
        for collective in collectives {
            let before = found.len();
            let placed = self.channels.iter().enumerate().filter_map(|(place, channel)| {
                let carries = channel.collectives.contains(&collective);
                carries.then_some((Place { channel: Some(place), ..self.at }, channel))
            });
            if placed.clone().next().is_none() {
                found.push(self.at.collective(collective).violation(ViolationKind::NoChannels));
                continue;
            }
            for (at, channel) in placed.clone() {
                semantics::channel(channel, collective, self.ranks, at, found);
            }
            let alone = placed.clone().map(|(_, channel)| channel);
            let rounds = semantics::rounds(alone, collective, &self.hosts, self.at, found);
            if rounds.is_none() {
                semantics::together(placed, collective, self.ranks, self.at, found);
            }
            if found.len() > before {
                continue;
            }
            let loaded = self.loaded(collective);
            match loads::count(self.topology, &loaded, &self.parts, collective, self.ranks) {
                Some(counted) => {
                    let rounds = rounds.unwrap_or_default();
                    counts.insert(collective, Counted { rounds, ..counted });
                }
                None => {
                    found.push(self.at.collective(collective).violation(ViolationKind::Overflow));
                }
            }
        }
        counts
    }
}
