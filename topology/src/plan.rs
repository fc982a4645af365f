//! The result of planning: which channels carry which share of which collective, and how good that is.
//!
//! A plan leaves nothing to decide at execution. Every channel says, hop by hop, which vertices of the
//! topology its data crosses, so that anyone can add up the load of every link from the plan alone.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::{
    Algorithm, BusId, Collective, Executor, Finding, Fraction, Generation, GpuIndex, HostId,
    Protocol, Rank, RateModel, Source,
};

/// What is to be planned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlanRequest {
    /// GPUs by NVML index (position in a link graph), the same on every host; `None` is all.
    pub gpus: Option<Vec<GpuIndex>>,
    /// What to plan for; empty is every collective the planner knows.
    pub collectives: Vec<Collective>,
    /// Expected size of an operation in bytes.
    pub size_bytes: Option<u64>,
    /// Which links count.
    pub links: LinkPolicy,
}

/// Which links of a host carry traffic between GPUs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum LinkPolicy {
    /// NVLink or xGMI alone where it connects all requested GPUs of a host, else everything.
    #[default]
    Auto,
    /// NVLink and PCIe together.
    All,
}

/// Channels for a set of ranks, with what they reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The topology it was made for.
    pub topology: TopologyRef,
    /// By rank.
    pub ranks: Vec<PlanRank>,
    /// The channels of every collective's best algorithm; by index. Shares of one collective add up to 1, but for rounds.
    pub channels: Vec<Channel>,
    /// Channels of other algorithms that `by_size` or a forced choice may name.
    pub alternatives: Vec<ChannelSet>,
    /// What each collective reaches.
    pub collectives: BTreeMap<Collective, CollectivePlan>,
    /// Defaults taken where the topology did not tell.
    pub assumptions: Vec<String>,
    /// What is wrong, given up or worth knowing.
    pub findings: Vec<Finding>,
}

/// Which topology a plan is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyRef {
    /// [`Topology::fingerprint`](crate::Topology::fingerprint), hexadecimal.
    pub fingerprint: String,
    /// Of the first host.
    pub source: Source,
    /// Whose rates.
    pub rates: RateModel,
    /// Which links were allowed to carry traffic between GPUs of one host.
    pub links: LinkPolicy,
    /// [`Topology::changes`](crate::Topology::changes): what was changed in thought before planning. Not empty, the plan is
    /// for no machine that exists.
    pub what_if: Vec<String>,
    /// Of the publishing daemon; 0 without one.
    pub generation: Generation,
}

/// Which GPU a rank is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRank {
    /// Its number; ranks are host-major, GPUs in request order.
    pub rank: Rank,
    /// Its host.
    pub host: HostId,
    /// NVML index, or place in a link graph.
    pub gpu: GpuIndex,
    /// PCI address where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<BusId>,
    /// UUID where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

/// One independent stream of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Place in its list.
    pub index: u32,
    /// Shape.
    pub pattern: Pattern,
    /// The collectives that use it, each with the same share.
    pub collectives: Vec<Collective>,
    /// Ring order; for other patterns empty.
    pub ranks: Vec<Rank>,
    /// Root of a tree.
    pub root: Option<Rank>,
    /// NICs it uses, by vertex name.
    pub nics: Vec<String>,
    /// Part of the collective's total data; of a round, what each hop carries.
    pub share: Fraction,
    /// GB/s this channel carries: on each of its edges for a ring, of its tree's data otherwise; of a round, of a hop's data over
    /// the time of the whole operation.
    pub gbps: Fraction,
    /// Who sends to whom, in data direction. A ring: one edge per hop in ring order. A tree from its root:
    /// parents before children. A tree towards its root (reduce, reduce-scatter): children before parents.
    pub edges: Vec<ChannelEdge>,
    /// All-reduce along a tree: the way up, children before parents, while `edges` is the way down. Else empty.
    pub reduce_edges: Vec<ChannelEdge>,
}

/// Shape of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// A directed cycle over all ranks.
    Ring,
    /// A tree that spans all ranks.
    Tree,
    /// Independent sends between pairs.
    Pairs,
    /// One round of an algorithm that goes in rounds: its channels, in order, are the rounds, and every hop of a round carries the
    /// channel's `share` of the collective's total data. Shares of rounds do not add up to 1.
    Rounds,
}

/// One hop of a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelEdge {
    /// Sender.
    pub from: Rank,
    /// Receiver.
    pub to: Rank,
    /// Physical ways it takes; their shares add up to 1.
    pub paths: Vec<EdgePath>,
}

/// One physical way between two ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgePath {
    /// Names of the vertices crossed, in order, both ends left out; empty for a direct link.
    pub via: Vec<String>,
    /// Part of the hop's data.
    pub share: Fraction,
}

/// The channels of one algorithm for some collectives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelSet {
    /// Which algorithm.
    pub algorithm: Algorithm,
    /// For which collectives.
    pub collectives: Vec<Collective>,
    /// By index, counted from 0 in this set.
    pub channels: Vec<Channel>,
}

/// What a collective reaches under a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectivePlan {
    /// Proved upper bound; `None` where none is proved.
    pub bound: Option<Bound>,
    /// The best algorithm at infinite size that something can execute; `None` only beside a finding that says why.
    pub best: Option<Candidate>,
    /// The best set of rings, where there is one.
    pub ring: Option<Candidate>,
    /// Everything considered, `best` among them; best first.
    pub candidates: Vec<Candidate>,
    /// Choice by size, ascending; the last has `max_bytes` `u64::MAX`.
    pub by_size: Vec<SizeChoice>,
}

/// A proved upper bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Total data of the collective per second, GB/s, at infinite size.
    pub algbw_gbps: Fraction,
    /// What limits, in devices and links a person knows.
    pub limited_by: Vec<String>,
}

/// One algorithm with what it reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub algorithm: Algorithm,
    /// Total data per second, GB/s, at infinite size, as counted by the checker.
    pub algbw_gbps: Fraction,
    /// Rings, or the largest number of trees with one root; 1 for what goes in rounds.
    pub channels: u32,
    /// Longest chain of hops; rounds, for what goes in rounds.
    pub height: u32,
    /// Whether it equals the proved bound.
    pub optimal: bool,
    /// What can run it.
    pub executors: Vec<Executor>,
    /// Why it is not `best`, or what was given up; empty where nothing is to be said.
    pub note: String,
}

/// The choice for operations up to a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeChoice {
    /// Largest size in bytes this row is for.
    pub max_bytes: u64,
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Protocol.
    pub protocol: Protocol,
    /// Channels used.
    pub channels: u32,
    /// Predicted time at `max_bytes` in picoseconds (an integer, so that plans stay byte-equal); `None` in the last row.
    pub predicted_ps: Option<u64>,
}

impl Channel {
    /// Every hop, the way up first.
    pub fn all_edges(&self) -> impl Iterator<Item = &ChannelEdge> {
        self.reduce_edges.iter().chain(&self.edges)
    }
}

impl Plan {
    /// The channels that carry `collective` under its best algorithm.
    pub fn channels_of(&self, collective: Collective) -> impl Iterator<Item = &Channel> {
        self.channels.iter().filter(move |c| c.collectives.contains(&collective))
    }
}
