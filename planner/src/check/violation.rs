//! What a plan can do wrong, and where.

use alloc::string::{String, ToString};
use core::fmt;

use topology::plan::Pattern;
use topology::{
    Algorithm, BusId, Collective, Fraction, GpuIndex, HostId, LinkKind, Rank, RateModel,
};

/// One thing a plan does wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}{kind}")]
pub struct Violation {
    /// Where in the plan.
    pub at: Place,
    /// What.
    pub kind: ViolationKind,
}

/// A place in a plan, as precise as the violation allows. Displayed with a trailing `: ` unless empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The list of channels: `None` is the plan's own, else the place in [`Plan::alternatives`](topology::Plan::alternatives).
    pub alternative: Option<usize>,
    /// Place of the channel in its list.
    pub channel: Option<usize>,
    /// Sender and receiver of the hop.
    pub edge: Option<(Rank, Rank)>,
    /// The collective it shows in.
    pub collective: Option<Collective>,
}

/// Which claim about a collective a violation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// [`CollectivePlan::best`](topology::plan::CollectivePlan::best).
    Best,
    /// [`CollectivePlan::ring`](topology::plan::CollectivePlan::ring).
    Ring,
    /// One of [`CollectivePlan::candidates`](topology::plan::CollectivePlan::candidates).
    Candidate(Algorithm),
}

/// Kinds of violation. Names and ranks are the plan's own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViolationKind {
    // The plan and its topology.
    /// Made for another topology.
    #[error("the plan is for topology {plan}, this is {topology}")]
    Fingerprint {
        /// The plan's.
        plan: String,
        /// The topology's.
        topology: String,
    },
    /// Made with other rates.
    #[error("the plan counts with {plan} rates, the topology carries {topology} ones")]
    Rates {
        /// The plan's.
        plan: RateModel,
        /// The topology's.
        topology: RateModel,
    },
    /// No ranks at all.
    #[error("the plan has no ranks")]
    NoRanks,
    /// Ranks are not numbered by place.
    #[error("rank {rank} stands in place {place}")]
    RankPlace {
        /// The number.
        rank: Rank,
        /// The place.
        place: usize,
    },
    /// No such GPU.
    #[error("rank {rank}: host {host} has no GPU {gpu}")]
    UnknownGpu {
        /// The rank.
        rank: Rank,
        /// Its host.
        host: HostId,
        /// Its GPU.
        gpu: GpuIndex,
    },
    /// Two ranks on one GPU.
    #[error("ranks {first} and {second} are the same GPU")]
    SameGpu {
        /// Lower rank.
        first: Rank,
        /// Higher rank.
        second: Rank,
    },
    /// PCI address of another device.
    #[error("rank {rank} is said to be at {}, the topology has it at {}", address(*.plan), address(*.topology))]
    BusId {
        /// The rank.
        rank: Rank,
        /// The plan's address.
        plan: Option<BusId>,
        /// The topology's address.
        topology: Option<BusId>,
    },
    /// UUID of another device.
    #[error("rank {rank} is said to be {plan}, the topology has {topology} there")]
    Uuid {
        /// The rank.
        rank: Rank,
        /// The plan's UUID.
        plan: String,
        /// The topology's UUID.
        topology: String,
    },

    // One channel.
    /// Channels are not numbered by place.
    #[error("the channel is numbered {index}")]
    ChannelIndex {
        /// The number.
        index: u32,
    },
    /// A rank the plan does not have.
    #[error("rank {rank} is not in the plan")]
    UnknownRank {
        /// The rank.
        rank: Rank,
    },
    /// The channel lists a collective twice.
    #[error("listed twice")]
    CollectiveTwice,
    /// The channel serves nothing.
    #[error("the channel serves no collective")]
    NoCollective,
    /// The collective has no entry in the plan, or none that says it has a best algorithm.
    #[error("channels carry a collective that the plan has no best algorithm for")]
    CollectiveWithoutBest,
    /// A best algorithm without channels.
    #[error("a best algorithm is named and no channel carries it")]
    NoChannels,
    /// Neither a best algorithm nor a finding.
    #[error("there is no best algorithm and no finding that says why")]
    NoBestNoFinding,
    /// A share that is zero or negative.
    #[error("the share {share} is not positive")]
    Share {
        /// The share.
        share: Fraction,
    },
    /// Ring order is not a permutation of the ranks.
    #[error("the ring visits rank {rank} {times} times")]
    RingOrder {
        /// First such rank.
        rank: Rank,
        /// How often it is listed.
        times: usize,
    },
    /// Ring edges do not follow the ring order.
    #[error("hop {hop} of the ring must be {} -> {}", expected.0, expected.1)]
    RingHop {
        /// Place in the ring order.
        hop: usize,
        /// Sender and receiver by ring order.
        expected: (Rank, Rank),
    },
    /// More edges or fewer than the pattern has.
    #[error("the {} has {found} edges, {expected} are needed", word(*.pattern))]
    EdgeCount {
        /// The pattern.
        pattern: Pattern,
        /// Edges found.
        found: usize,
        /// Edges needed.
        expected: usize,
    },
    /// Fields that the pattern does not have.
    #[error("a {} has no {field}", word(*.pattern))]
    Superfluous {
        /// The pattern.
        pattern: Pattern,
        /// Field of [`Channel`](topology::Channel).
        field: &'static str,
    },
    /// No root where one is needed.
    #[error("the channel names no root")]
    NoRoot,
    /// A hop from a rank to itself.
    #[error("a rank sends to itself")]
    SelfEdge,
    /// The sender has nothing yet: a parent after its child.
    #[error("rank {rank} sends before it has received")]
    SendsBeforeReceiving {
        /// The sender.
        rank: Rank,
    },
    /// A second way to the same rank.
    #[error("rank {rank} is reached twice")]
    ReachedTwice {
        /// The receiver.
        rank: Rank,
    },
    /// A rank no hop leads to or, towards a root, from.
    #[error("the tree does not span rank {rank}")]
    NotSpanned {
        /// The rank.
        rank: Rank,
    },
    /// Towards the root: a rank that already sent receives.
    #[error("rank {rank} receives after it has sent its sum on")]
    ReceivesAfterSending {
        /// The receiver.
        rank: Rank,
    },
    /// Towards the root: a rank sends its sum twice, or the root sends.
    #[error("rank {rank} sends its sum once too often")]
    SendsTwice {
        /// The sender.
        rank: Rank,
    },
    /// A pattern that cannot do what the collective needs.
    #[error("a {} cannot carry it", word(*.pattern))]
    CannotCarry {
        /// The pattern.
        pattern: Pattern,
    },
    /// A pair that must exchange data and has no edge.
    #[error("the pair {from} -> {to} has no edge")]
    PairMissing {
        /// Sender.
        from: Rank,
        /// Receiver.
        to: Rank,
    },
    /// A pair with two edges, or one that has nothing to exchange.
    #[error("the pair {from} -> {to} has an edge too many")]
    PairTooMany {
        /// Sender.
        from: Rank,
        /// Receiver.
        to: Rank,
    },
    /// The NICs listed are not those crossed.
    #[error("NIC {name} is {}", if *.listed { "listed and not crossed" } else { "crossed and not listed" })]
    Nics {
        /// Vertex name.
        name: String,
        /// Which way round.
        listed: bool,
    },

    // One hop.
    /// A hop without a path.
    #[error("the hop has no path")]
    NoPath,
    /// Path shares do not add up.
    #[error("path shares add up to {sum}, not 1")]
    PathShares {
        /// What they add up to.
        sum: Fraction,
    },
    /// A name the topology does not have.
    #[error("the topology has no vertex {name}")]
    UnknownVertex {
        /// The name.
        name: String,
    },
    /// A hop over a link that is not there.
    #[error("there is no link from {from} to {to}")]
    NoLink {
        /// Vertex name.
        from: String,
        /// Vertex name.
        to: String,
    },
    /// A hop over a link without capacity.
    #[error("the link from {from} to {to} carries nothing")]
    DeadLink {
        /// Vertex name.
        from: String,
        /// Vertex name.
        to: String,
    },
    /// A link that the plan's link policy keeps for other traffic.
    #[error(
        "the path takes the {link} from {from} to {to}, but NVLink or xGMI joins the GPUs of this host and the plan's \
         links are `auto`"
    )]
    AgainstPolicy {
        /// Technology.
        link: LinkKind,
        /// Vertex name.
        from: String,
        /// Vertex name.
        to: String,
    },
    /// A GPU that only forwards.
    #[error("the path crosses {name}, a GPU that does not take part in this hop")]
    CrossesGpu {
        /// Vertex name.
        name: String,
    },
    /// A path with a loop.
    #[error("the path comes to {name} twice")]
    Loop {
        /// Vertex name.
        name: String,
    },

    // What arrives.
    /// Shares of a collective's channels do not add up.
    #[error("shares of the channels{} add up to {sum}, not 1", .root.map(|r| alloc::format!(" for root {r}")).unwrap_or_default())]
    Shares {
        /// The root they are for, where the collective has one and the channels name it.
        root: Option<Rank>,
        /// What they add up to.
        sum: Fraction,
    },
    /// A rank's shard is not 1/N of the data.
    #[error("the channels carry {share} of the data for rank {rank}, its shard is {expected}")]
    ShardShare {
        /// Owner of the shard.
        rank: Rank,
        /// What its channels carry.
        share: Fraction,
        /// 1/N.
        expected: Fraction,
    },
    /// Symbolic execution ends with the wrong data.
    #[error(
        "rank {rank} ends with the data of rank {of} {times} times for shard {shard}, {expected} needed"
    )]
    Arrives {
        /// Who holds it.
        rank: Rank,
        /// Owner or root of the piece of data looked at.
        shard: Rank,
        /// Contributor.
        of: Rank,
        /// Times found.
        times: usize,
        /// Times needed.
        expected: usize,
    },

    // Claims.
    /// A claimed bandwidth that the channels do not have.
    #[error("{claim} claims {claimed} GB/s, the channels have {counted}")]
    Algbw {
        /// Which claim.
        claim: Claim,
        /// Claimed.
        claimed: Fraction,
        /// Counted.
        counted: Fraction,
    },
    /// A claimed number of channels.
    #[error("{claim} claims {claimed} channels, there are {counted}")]
    ChannelCount {
        /// Which claim.
        claim: Claim,
        /// Claimed.
        claimed: u32,
        /// Counted.
        counted: u32,
    },
    /// A claimed height.
    #[error("{claim} claims height {claimed}, it is {counted}")]
    Height {
        /// Which claim.
        claim: Claim,
        /// Claimed.
        claimed: u32,
        /// Counted.
        counted: u32,
    },
    /// An algorithm whose channels have another pattern.
    #[error("{claim} claims algorithm {algorithm}, its channels are no such")]
    AlgorithmPattern {
        /// Which claim.
        claim: Claim,
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// The best algorithm has nothing that runs it.
    #[error("nothing can execute the best algorithm")]
    NoExecutor,
    /// The best algorithm is not among those considered.
    #[error("the best algorithm is not among the candidates")]
    BestNotCandidate,
    /// More channels than executors take.
    #[error("{channels} channels, at most {limit} can be executed")]
    TooManyChannels {
        /// Channels.
        channels: u32,
        /// The limit.
        limit: u32,
    },
    /// A channel's own rate.
    #[error("the channel claims {claimed} GB/s, it carries {counted}")]
    ChannelRate {
        /// Claimed.
        claimed: Fraction,
        /// Counted.
        counted: Fraction,
    },
    /// A bound below what the plan reaches is no bound.
    #[error("the claimed bound {bound} GB/s is below the {counted} that the channels have")]
    BoundBelowCount {
        /// Claimed bound.
        bound: Fraction,
        /// Counted.
        counted: Fraction,
    },
    /// `optimal` must say whether the count equals the bound.
    #[error("{claim} says optimal: {claimed}, the bound says otherwise")]
    Optimal {
        /// Which claim.
        claim: Claim,
        /// As claimed.
        claimed: bool,
    },
    /// A bound that differs from the proof by enumeration.
    #[error("the claimed bound is {claimed} GB/s, all cuts give {proved}")]
    Bound {
        /// Claimed.
        claimed: Fraction,
        /// By enumeration.
        proved: Fraction,
    },
    /// The choice by size does not ascend to the largest size.
    #[error("row {row} of the choice by size is out of order, or the last row is not unlimited")]
    SizeOrder {
        /// Place of the row.
        row: usize,
    },
    /// The choice by size names channels that are not there.
    #[error(
        "row {row} of the choice by size wants {channels} channels of {algorithm}, there are {found}"
    )]
    SizeChannels {
        /// Place of the row.
        row: usize,
        /// Algorithm.
        algorithm: Algorithm,
        /// Channels wanted.
        channels: u32,
        /// Channels there.
        found: u32,
    },
    /// A collective that some channels carry in rounds and others otherwise.
    #[error("some of its channels are rounds and some are not")]
    RoundsAmongOthers,
    /// Rounds that are no algorithm's.
    #[error("its {rounds} rounds are not those of an algorithm that is known to be right")]
    UnknownRounds {
        /// How many there are.
        rounds: usize,
    },
    /// Fractions of the plan do not fit 128 bits when added up.
    #[error("fractions too fine to be added up exactly")]
    Overflow,
}

/// A PCI address as people write it.
fn address(id: Option<BusId>) -> String {
    id.map_or_else(|| "no PCI address".into(), |id| id.to_string())
}

/// The word of plan files.
fn word(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Ring => "ring",
        Pattern::Tree => "tree",
        Pattern::Pairs => "pairs channel",
        Pattern::Rounds => "round",
    }
}

impl Place {
    /// The same place, for one hop.
    pub(super) fn edge(self, from: Rank, to: Rank) -> Self {
        Self { edge: Some((from, to)), ..self }
    }

    /// The same place, for one collective.
    pub(super) fn collective(self, collective: Collective) -> Self {
        Self { collective: Some(collective), ..self }
    }

    /// A violation here.
    pub(super) fn violation(self, kind: ViolationKind) -> Violation {
        Violation { at: self, kind }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(collective) = self.collective {
            write!(f, "{collective}")?;
            separator = ", ";
        }
        if let Some(alternative) = self.alternative {
            write!(f, "{separator}alternative {alternative}")?;
            separator = ", ";
        }
        if let Some(channel) = self.channel {
            write!(f, "{separator}channel {channel}")?;
            separator = ", ";
        }
        if let Some((from, to)) = self.edge {
            write!(f, "{separator}edge {from} -> {to}")?;
            separator = ", ";
        }
        if separator.is_empty() { Ok(()) } else { f.write_str(": ") }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Best => f.write_str("best"),
            Self::Ring => f.write_str("ring"),
            Self::Candidate(algorithm) => write!(f, "candidate {algorithm}"),
        }
    }
}
