//! Plans made without a planner, for groups that have none to ask, for trying links, and for tests: equal shares, no physical paths.

use std::collections::BTreeMap;

use topology::plan::{ChannelEdge, CollectivePlan, LinkPolicy, Pattern, PlanRank, TopologyRef};
use topology::{
    Channel, Collective, Fraction, Generation, GpuIndex, HostId, Plan, Rank, RateModel, Source,
};

/// Every collective that runs along rings and trees.
const ALL: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

/// `channels` rings over `ranks` ranks; every second one runs backwards.
#[must_use]
pub fn ring_plan(ranks: u32, channels: u32) -> Plan {
    let rings = (0..channels).map(|index| {
        let mut order: Vec<Rank> = (0..ranks).map(Rank).collect();
        if index % 2 == 1 {
            order.reverse();
        }
        let next = order.iter().cycle().skip(1);
        let edges = order.iter().zip(next).map(|(from, to)| edge(*from, *to)).collect();
        Channel {
            index,
            pattern: Pattern::Ring,
            collectives: ALL.to_vec(),
            ranks: order,
            root: None,
            nics: Vec::new(),
            share: Fraction::of(1, u64::from(channels)),
            gbps: Fraction::ONE,
            edges,
            reduce_edges: Vec::new(),
        }
    });
    plan(ranks, rings.collect())
}

/// Trees in which parent `p` has children `arity * p + 1 ..= arity * p + arity`, numbers taken round the ranks from the root.
///
/// Per rank and channel one tree from it (all-gather; broadcast too) and one towards it (reduce-scatter; reduce too);
/// `channels` more for all-reduce, with roots 0, 1, ... in turn.
#[must_use]
pub fn tree_plan(ranks: u32, channels: u32, arity: u32) -> Plan {
    let rooted = |root: u32| {
        let at = move |place: u32| Rank((root + place) % ranks);
        (1..ranks).map(move |place| (at((place - 1) / arity), at(place)))
    };
    let down = |root: u32| rooted(root).map(|(p, c)| edge(p, c)).collect::<Vec<_>>();
    let up = |root: u32| {
        let mut edges: Vec<_> = rooted(root).map(|(p, c)| edge(c, p)).collect();
        edges.reverse();
        edges
    };
    let mut list = Vec::new();
    let mut add = |collectives: &[Collective], root, parts: u32, edges, reduce_edges| {
        list.push(Channel {
            index: u32::try_from(list.len()).unwrap_or(u32::MAX),
            pattern: Pattern::Tree,
            collectives: collectives.to_vec(),
            ranks: Vec::new(),
            root: Some(Rank(root)),
            nics: Vec::new(),
            share: Fraction::of(1, u64::from(parts)),
            gbps: Fraction::ONE,
            edges,
            reduce_edges,
        });
    };
    for channel in 0..channels {
        let root = channel % ranks;
        add(&[Collective::AllReduce], root, channels, down(root), up(root));
        for root in 0..ranks {
            let parts = ranks * channels;
            add(&[Collective::AllGather, Collective::Broadcast], root, parts, down(root), vec![]);
            add(&[Collective::ReduceScatter, Collective::Reduce], root, parts, up(root), vec![]);
        }
    }
    plan(ranks, list)
}

/// Direct exchanges between all pairs, in `channels` equal parts: all-to-all, and gather and scatter with any root.
#[must_use]
pub fn pairs_plan(ranks: u32, channels: u32) -> Plan {
    let all = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
    let edges: Vec<ChannelEdge> =
        all.filter(|(from, to)| from != to).map(|(from, to)| edge(Rank(from), Rank(to))).collect();
    let list = (0..channels).map(|index| Channel {
        index,
        pattern: Pattern::Pairs,
        collectives: vec![Collective::AllToAll, Collective::Gather, Collective::Scatter],
        ranks: Vec::new(),
        root: None,
        nics: Vec::new(),
        share: Fraction::of(1, u64::from(channels)),
        gbps: Fraction::ONE,
        edges: edges.clone(),
        reduce_edges: Vec::new(),
    });
    plan(ranks, list.collect())
}

/// [`ring_plan`] for what rings carry, [`pairs_plan`] for the rest.
#[must_use]
pub fn full_plan(ranks: u32, channels: u32) -> Plan {
    let mut plan = ring_plan(ranks, channels);
    for mut channel in pairs_plan(ranks, channels).channels {
        channel.index += channels;
        plan.channels.push(channel);
    }
    plan
}

fn edge(from: Rank, to: Rank) -> ChannelEdge {
    ChannelEdge { from, to, paths: Vec::new() }
}

fn plan(ranks: u32, channels: Vec<Channel>) -> Plan {
    Plan {
        topology: TopologyRef {
            fingerprint: "even".to_owned(),
            source: Source::LinkGraph,
            rates: RateModel::Effective,
            links: LinkPolicy::Auto,
            what_if: Vec::new(),
            generation: Generation(0),
        },
        ranks: (0..ranks)
            .map(|rank| PlanRank {
                rank: Rank(rank),
                host: HostId(0),
                gpu: GpuIndex(rank),
                bus_id: None,
                uuid: None,
            })
            .collect(),
        channels,
        alternatives: Vec::new(),
        collectives: Collective::ALL
            .iter()
            .map(|collective| {
                let nothing_claimed = CollectivePlan {
                    bound: None,
                    best: None,
                    ring: None,
                    candidates: Vec::new(),
                    by_size: Vec::new(),
                };
                (*collective, nothing_claimed)
            })
            .collect::<BTreeMap<_, _>>(),
        assumptions: Vec::new(),
        findings: Vec::new(),
    }
}
