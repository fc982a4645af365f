//! Valid plans pass with the figures counted by hand; every mutation of one is rejected.

use proptest::prelude::*;
use topology::plan::{EdgePath, Pattern, Plan};
use topology::{Algorithm, Channel, Collective, Fraction, Rank, Topology};

use super::sample::{self, Seed, both, finding, pairs, ring, topology, tree};
use super::{Claim, ViolationKind, count};

use Collective::{
    AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendRecv,
};

fn fraction(text: &str) -> Fraction {
    text.parse().unwrap()
}

/// `channels` on all GPUs of `topology` reach `algbw` GB/s.
#[track_caller]
fn reaches(topology: &Topology, channels: &[Channel], collective: Collective, algbw: &str) {
    let ranks = sample::ranks(topology, topology.gpus().len());
    let counted = count(topology, &ranks, channels, collective).unwrap();
    assert_eq!(counted.algbw_gbps, fraction(algbw), "{collective}");
}

/// The plan is rejected, first of all for `message`.
#[track_caller]
fn rejected(topology: &Topology, plan: &Plan, message: &str) {
    let found = super::plan(topology, plan).unwrap_err();
    assert_eq!(found[0].to_string(), message);
}

const RINGS: &[Collective] = &[AllReduce, AllGather, ReduceScatter, Broadcast, Reduce];

/// The known rings of the DGX-1V: double links and single links, both ways round.
fn dgx1v_rings(topology: &Topology) -> Vec<Channel> {
    let (double, single) = ([0, 4, 7, 6, 5, 1, 2, 3], [0, 1, 3, 7, 5, 4, 6, 2]);
    let back = |order: [u32; 8]| {
        let mut order = order;
        order.reverse();
        order
    };
    [(double, "1/3"), (back(double), "1/3"), (single, "1/6"), (back(single), "1/6")]
        .map(|(order, share)| ring(topology, RINGS, &order, fraction(share)))
        .to_vec()
}

#[test]
fn dgx1v_rings_are_counted() {
    let topology = sample::dgx1v();
    let rings = dgx1v_rings(&topology);
    reaches(&topology, &rings, AllGather, "1200/7");
    reaches(&topology, &rings, ReduceScatter, "1200/7");
    reaches(&topology, &rings, AllReduce, "600/7");
    reaches(&topology, &rings, Broadcast, "150");
    reaches(&topology, &rings, Reduce, "150");
    let plan = sample::plan(&topology, 8, Algorithm::Ring, rings);
    let gbps: Vec<_> = plan.channels.iter().map(|channel| channel.gbps.to_string()).collect();
    assert_eq!(gbps, ["50", "50", "25", "25"]);
    let report = super::plan(&topology, &plan).unwrap();
    let all_gather = &report.collectives[&AllGather];
    // Every one of the 32 directed links is full.
    assert_eq!((all_gather.limiting.len(), all_gather.loads.len()), (32, 32));
    assert_eq!((all_gather.height, all_gather.channels), (7, 4));
    assert!(report.unchecked.is_empty());
}

/// Three GPUs on one switch, 10 GB/s each way.
fn star() -> Topology {
    topology(3, 1, both((0..3).map(|gpu| (gpu, 3, 10))))
}

#[test]
fn every_pattern_is_counted() {
    let star = star();
    let stars = |collective, share| {
        (0..3)
            .map(|root| {
                let list = [(root, 0), ((root + 1) % 3, 0), ((root + 2) % 3, 0)];
                tree(&star, collective, &list, fraction(share))
            })
            .collect::<Vec<_>>()
    };
    // Each root sends its third twice and receives the other two.
    reaches(&star, &stars(AllGather, "1/3"), AllGather, "15");
    reaches(&star, &stars(ReduceScatter, "1/3"), ReduceScatter, "15");
    // Up and down both put 2/3 + 2/3 on each link.
    reaches(&star, &stars(AllReduce, "1/3"), AllReduce, "15/2");
    let chain = [(0, 0), (1, 0), (2, 1)];
    reaches(&star, &[tree(&star, Broadcast, &chain, Fraction::ONE)], Broadcast, "10");
    reaches(&star, &[tree(&star, Reduce, &chain, Fraction::ONE)], Reduce, "10");
    let one = |collective, root| [pairs(&star, collective, root, 3, Fraction::ONE)];
    reaches(&star, &one(AllToAll, None), AllToAll, "15");
    reaches(&star, &one(AllGather, None), AllGather, "15");
    reaches(&star, &one(AllReduce, None), AllReduce, "5");
    reaches(&star, &one(Scatter, Some(0)), Scatter, "15");
    reaches(&star, &one(Gather, Some(2)), Gather, "15");
    reaches(&star, &one(Broadcast, Some(1)), Broadcast, "5");
    // One pair at a time.
    reaches(&star, &one(SendRecv, None), SendRecv, "10");
    let mut two_shot = one(AllReduce, None);
    two_shot[0].reduce_edges = two_shot[0].edges.clone();
    reaches(&star, &two_shot, AllReduce, "15/2");
    reaches(&star, &[ring(&star, RINGS, &[2, 0, 1], Fraction::ONE)], AllReduce, "15/2");
}

#[test]
fn roots_are_served_one_at_a_time() {
    let star = topology(3, 1, both([(0, 3, 10), (1, 3, 6), (2, 3, 10)]));
    let from = |root| {
        let list = [(root, 0), ((root + 1) % 3, 0), ((root + 2) % 3, 0)];
        tree(&star, Broadcast, &list, Fraction::ONE)
    };
    // Each sends all twice, so the slowest root is the one with the slow link.
    reaches(&star, &[from(0), from(2)], Broadcast, "5");
    reaches(&star, &[from(0), from(1), from(2)], Broadcast, "3");
    let mut half = from(1);
    half.share = fraction("1/2");
    let found = count(&star, &sample::ranks(&star, 3), &[from(0), half], Broadcast).unwrap_err();
    let message = "broadcast: shares of the channels for root 1 add up to 1/2, not 1";
    assert_eq!(found[0].to_string(), message);
}

#[test]
fn parallel_links_share_a_hop() {
    let two = topology(2, 0, [(0, 1, 10), (0, 1, 30), (1, 0, 20)]);
    let plan = [ring(&two, &[AllGather], &[0, 1], Fraction::ONE)];
    reaches(&two, &plan, AllGather, "40");
}

#[test]
fn paths_split_a_hop() {
    let both_ways = topology(2, 1, both([(0, 1, 30), (0, 2, 10), (2, 1, 10)]));
    let mut channel = tree(&both_ways, Broadcast, &[(0, 0), (1, 0)], Fraction::ONE);
    channel.edges[0].paths = vec![
        EdgePath { via: vec![], share: fraction("3/4") },
        EdgePath { via: vec!["s0".into()], share: fraction("1/4") },
    ];
    reaches(&both_ways, &[channel], Broadcast, "40");
}

#[test]
fn one_rank_needs_nothing() {
    let one = topology(1, 0, []);
    let alone = ring(&one, RINGS, &[0], Fraction::ONE);
    let plan = sample::plan(&one, 1, Algorithm::Ring, vec![alone]);
    let report = super::plan(&one, &plan).unwrap();
    assert_eq!(report.collectives[&AllReduce].algbw_gbps, Fraction::ZERO);
}

#[test]
fn messages_name_the_place() {
    let star = star();
    let valid = sample::plan(
        &star,
        3,
        Algorithm::Ring,
        vec![ring(&star, RINGS, &[0, 1, 2], Fraction::ONE)],
    );
    let check = |message: &str, change: &dyn Fn(&mut Plan)| {
        let mut plan = valid.clone();
        change(&mut plan);
        rejected(&star, &plan, message);
    };
    super::plan(&star, &valid).unwrap();
    check("channel 0, edge 1 -> 2: there is no link from g1 to g2", &|plan| {
        plan.channels[0].edges[1].paths[0].via.clear();
    });
    check("channel 0, edge 1 -> 2: the topology has no vertex s7", &|plan| {
        plan.channels[0].edges[1].paths[0].via = vec!["s7".into()];
    });
    check(
        "channel 0, edge 1 -> 2: the path crosses g0, a GPU that does not take part in this hop",
        &|plan| plan.channels[0].edges[1].paths[0].via = vec!["g0".into()],
    );
    check("channel 0, edge 1 -> 2: the path comes to s0 twice", &|plan| {
        plan.channels[0].edges[1].paths[0].via = vec!["s0".into(), "s0".into()];
    });
    check("channel 0, edge 1 -> 2: path shares add up to 1/2, not 1", &|plan| {
        plan.channels[0].edges[1].paths[0].share = fraction("1/2");
    });
    check("channel 0, edge 0 -> 1: hop 2 of the ring must be 2 -> 0", &|plan| {
        plan.channels[0].edges[2] = plan.channels[0].edges[0].clone();
    });
    check("channel 0: the ring visits rank 0 2 times", &|plan| {
        plan.channels[0].ranks[2] = Rank(0);
    });
    check("channel 0: rank 3 is not in the plan", &|plan| plan.channels[0].ranks[2] = Rank(3));
    check("all-reduce: shares of the channels add up to 1/2, not 1", &|plan| {
        plan.channels[0].share = fraction("1/2");
    });
    check("channel 0: NIC mlx5_0 is listed and not crossed", &|plan| {
        plan.channels[0].nics.push("mlx5_0".into());
    });
    check("ranks 0 and 1 are the same GPU", &|plan| plan.ranks[1].gpu = sample::gpu(0));
    check("rank 1: host 0 has no GPU 9", &|plan| plan.ranks[1].gpu = sample::gpu(9));
    check("rank 0 stands in place 1", &|plan| plan.ranks[1].rank = Rank(0));
    check("all-reduce: best claims 8 GB/s, the channels have 15/2", &|plan| {
        let entry = plan.collectives.get_mut(&AllReduce).unwrap();
        entry.best.as_mut().unwrap().algbw_gbps = fraction("8");
    });
    check(
        "all-gather: the claimed bound 14 GB/s is below the 15 that the channels have",
        &|plan| {
            plan.collectives.get_mut(&AllGather).unwrap().bound.as_mut().unwrap().algbw_gbps =
                fraction("14");
        },
    );
    check("all-gather: best says optimal: true, the bound says otherwise", &|plan| {
        plan.collectives.get_mut(&AllGather).unwrap().bound = None;
    });
    check("channel 0: the channel claims 11 GB/s, it carries 10", &|plan| {
        plan.channels[0].gbps = fraction("11");
    });
    check("channel 0: the channel is numbered 5", &|plan| plan.channels[0].index = 5);
    check("all-to-all: a best algorithm is named and no channel carries it", &|plan| {
        let entry = plan.collectives[&AllGather].clone();
        plan.collectives.insert(AllToAll, entry);
    });
    check("all-to-all, channel 0: a ring cannot carry it", &|plan| {
        plan.channels[0].collectives.push(AllToAll);
    });
    check("all-gather: there is no best algorithm and no finding that says why", &|plan| {
        for channel in &mut plan.channels {
            channel.collectives.retain(|collective| *collective != AllGather);
        }
        let entry = plan.collectives.get_mut(&AllGather).unwrap();
        (entry.best, entry.ring) = (None, None);
        entry.candidates.clear();
        entry.by_size.clear();
    });
}

#[test]
fn a_missing_best_is_excused_by_a_finding() {
    let star = star();
    let mut plan = sample::plan(
        &star,
        3,
        Algorithm::Ring,
        vec![ring(&star, RINGS, &[0, 1, 2], Fraction::ONE)],
    );
    let mut entry = plan.collectives[&AllGather].clone();
    let unbacked = entry.candidates[0].clone();
    entry.candidates = vec![topology::plan::Candidate { algorithm: Algorithm::Direct, ..unbacked }];
    (entry.best, entry.ring, entry.by_size) = (None, None, vec![]);
    plan.collectives.insert(AllToAll, entry);
    plan.findings.push(finding());
    let report = super::plan(&star, &plan).unwrap();
    assert_eq!(report.unchecked, [(AllToAll, Claim::Candidate(Algorithm::Direct))]);
}

#[test]
fn another_topology_is_refused() {
    let star = star();
    let plan = sample::plan(
        &star,
        3,
        Algorithm::Ring,
        vec![ring(&star, RINGS, &[0, 1, 2], Fraction::ONE)],
    );
    let faster = topology(3, 1, both((0..3).map(|gpu| (gpu, 3, 11))));
    let found = super::plan(&faster, &plan).unwrap_err();
    assert!(matches!(found[0].kind, ViolationKind::Fingerprint { .. }), "{}", found[0]);
}

#[test]
fn gpus_that_do_not_take_part_are_not_crossed() {
    // A line of three; the middle GPU is not in the plan, or it is and may relay for pairs alone.
    let line = topology(3, 0, both([(0, 2, 10), (2, 1, 10)]));
    let relayed = |gpus| {
        let via = vec![EdgePath { via: vec!["g2".into()], share: Fraction::ONE }];
        let mut channel = pairs(&line, AllToAll, None, 1, Fraction::ONE);
        let hop = |from, to, paths: &Vec<EdgePath>| topology::plan::ChannelEdge {
            from: Rank(from),
            to: Rank(to),
            paths: paths.clone(),
        };
        let direct = vec![EdgePath { via: vec![], share: Fraction::ONE }];
        channel.edges = vec![hop(0, 1, &via), hop(1, 0, &via)];
        if gpus == 3 {
            let more = [(0, 2), (2, 0), (1, 2), (2, 1)];
            channel.edges.extend(more.map(|(from, to)| hop(from, to, &direct)));
        }
        count(&line, &sample::ranks(&line, gpus), &[channel], AllToAll)
    };
    let found = relayed(2).unwrap_err();
    assert!(matches!(found[0].kind, ViolationKind::CrossesGpu { .. }), "{}", found[0]);
    // Each link carries its neighbour's pair and the far pair: 2/3 of the data.
    assert_eq!(relayed(3).unwrap().algbw_gbps, fraction("15"));
}

/// What is remembered of a hop serves only hops with the same ends, the same ways and the same right to pass ranks.
#[test]
fn hops_that_differ_from_those_before_are_followed_anew() {
    // A line of three with a switch beside it that joins the ends.
    let line = topology(3, 1, both([(0, 1, 10), (1, 2, 10), (0, 3, 10), (2, 3, 10)]));
    let ranks = sample::ranks(&line, 3);
    let over = |name: &str| vec![EdgePath { via: vec![name.into()], share: Fraction::ONE }];
    let sent = |paths: Vec<EdgePath>| {
        let mut channel = pairs(&line, SendRecv, None, 1, Fraction::ONE);
        channel.edges = vec![topology::plan::ChannelEdge { from: Rank(0), to: Rank(2), paths }];
        vec![channel]
    };
    let half = Fraction::of(1, 2);
    let mut lost = over("s0");
    lost[0].share = half;
    let mut chain = ring(&line, RINGS, &[0, 1, 2], Fraction::ONE);
    chain.edges[2].paths = over("s0");
    let ring_by_switch = vec![chain.clone()];
    // A ring from 2 to 0 over rank 1, which a pair may pass and a ring may not.
    chain.edges[2].paths = over("g1");
    let mut back = sent(over("g1"));
    (back[0].edges[0].from, back[0].edges[0].to) = (Rank(2), Rank(0));
    let lists = [
        (sent(over("s0")), None),
        (sent(over("s0")), None),
        (sent(over("g1")), None),
        (sent(lost), Some(ViolationKind::PathShares { sum: half })),
        (sent(over("s1")), Some(ViolationKind::UnknownVertex { name: "s1".into() })),
        (back, None),
        (ring_by_switch, None),
        (vec![chain], Some(ViolationKind::CrossesGpu { name: "g1".into() })),
    ];
    let counter = super::Counter::new(&line, &ranks, topology::plan::LinkPolicy::All).unwrap();
    let sets = counter.sets(lists.iter().map(|(channels, _)| channels.as_slice()));
    for (place, (set, (channels, wrong))) in sets.into_iter().zip(&lists).enumerate() {
        let first = set.as_ref().err().map(|found| found[0].kind.clone());
        assert_eq!(first, *wrong, "list {place}");
        // The same as without what came before.
        let alone = counter.set(channels);
        assert_eq!(set.as_ref().err(), alone.as_ref().err(), "list {place}");
        if let (Ok(set), Ok(alone)) = (&set, &alone) {
            let collective = channels[0].collectives[0];
            assert_eq!(set.count(collective), alone.count(collective), "list {place}");
        }
    }
}

#[test]
fn semantics_does_not_lean_on_structure() {
    let star = star();
    #[track_caller]
    fn check(channel: &Channel, collective: Collective, message: &str) {
        let mut found = Vec::new();
        super::semantics::channel(channel, collective, 3, super::Place::default(), &mut found);
        let messages: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(messages, [message]);
    }
    let chain = [(0, 0), (1, 0), (2, 1)];
    let mut twice = tree(&star, Reduce, &chain, Fraction::ONE);
    twice.edges.push(twice.edges[1].clone());
    check(
        &twice,
        Reduce,
        "reduce: rank 0 ends with the data of rank 1 2 times for shard 0, 1 needed",
    );
    let mut lost = tree(&star, AllReduce, &chain, Fraction::ONE);
    lost.reduce_edges.swap(0, 1);
    check(
        &lost,
        AllReduce,
        "all-reduce: rank 0 ends with the data of rank 2 0 times for shard 0, 1 needed",
    );
    let mut early = tree(&star, Broadcast, &chain, Fraction::ONE);
    early.edges.swap(0, 1);
    check(
        &early,
        Broadcast,
        "broadcast: rank 2 ends with the data of rank 0 0 times for shard 0, 1 needed",
    );
    let mut short = ring(&star, RINGS, &[0, 1, 2], Fraction::ONE);
    short.edges[1] = sample::edge(&star, 1, 0);
    check(
        &short,
        AllGather,
        "all-gather: rank 0 ends with the data of rank 0 2 times for shard 0, 1 needed",
    );
    check(
        &short,
        ReduceScatter,
        "reduce-scatter: rank 0 ends with the data of rank 0 0 times for shard 0, 1 needed",
    );
}

/// One wrong step of a planner. Returns whether there was anything to do it to.
type Mutation = fn(&mut Plan, &Topology, &mut Seed) -> bool;

const MUTATIONS: &[(&str, Mutation)] = &[
    ("drop a hop", |plan, _, seed| {
        let edges = some_edges(plan, seed);
        edges.remove(seed.below(edges.len()));
        true
    }),
    ("duplicate a hop", |plan, _, seed| {
        let edges = some_edges(plan, seed);
        let hop = edges[seed.below(edges.len())].clone();
        edges.insert(seed.below(edges.len() + 1), hop);
        true
    }),
    ("send a hop elsewhere", |plan, topology, seed| {
        let ranks = plan.ranks.len();
        let tree = plan.channels[0].pattern == Pattern::Tree;
        let edges = some_edges(plan, seed);
        let place = seed.below(edges.len());
        let (before, after) = (edges[place].to, Rank(u32::try_from(seed.below(ranks)).unwrap()));
        edges[place].to = after;
        // A rank with another parent can be a tree as good as before where the path happens to lead there.
        let gpu = |rank: Rank| topology.gpus()[rank.index()];
        let last = edges[place].paths[0].via.last();
        let from = edges[place].from;
        let last = last.map_or_else(|| gpu(from), |name| topology.find(name).unwrap());
        before != after && (!tree || topology.links_between(last, gpu(after)).is_empty())
    }),
    ("leave out a vertex of a path", |plan, topology, seed| {
        let gpus = topology.gpus();
        let edges = some_edges(plan, seed);
        let hop = seed.below(edges.len());
        let (from, to) = (gpus[edges[hop].from.index()], gpus[edges[hop].to.index()]);
        let via = &mut edges[hop].paths[0].via;
        // Without it the path must not happen to exist over another link.
        let direct = !topology.links_between(from, to).is_empty();
        if via.is_empty() || direct {
            return false;
        }
        via.remove(0);
        true
    }),
    ("point a path through a GPU", |plan, topology, seed| {
        let gpus = topology.gpus();
        let pairs = plan.channels[0].pattern == Pattern::Pairs;
        let edges = some_edges(plan, seed);
        let hop = seed.below(edges.len());
        let wrong = gpus[seed.below(gpus.len())];
        let name = topology.vertex(wrong).name.clone();
        edges[hop].paths[0].via.insert(0, name);
        !pairs
    }),
    ("change a share", |plan, _, seed| {
        let channels = plan.channels.len();
        let channel = &mut plan.channels[seed.below(channels)];
        channel.share = channel.share * fraction("1/2");
        true
    }),
    ("move a share from one channel to another", |plan, _, seed| {
        let channels = plan.channels.len();
        let place = seed.below(channels);
        let half = plan.channels[place].share * fraction("1/2");
        plan.channels[place].share = half;
        let other = &mut plan.channels[(place + 1) % channels];
        other.share = other.share + half;
        channels > 1
    }),
    ("change the share of a path", |plan, _, seed| {
        let edges = some_edges(plan, seed);
        let hop = seed.below(edges.len());
        edges[hop].paths[0].share = fraction("2/3");
        true
    }),
    ("take another root", |plan, _, seed| {
        let ranks = plan.ranks.len();
        let place = seed.below(plan.channels.len());
        let channel = &mut plan.channels[place];
        let Some(root) = channel.root else { return false };
        channel.root = Some(Rank((root.0 + 1) % u32::try_from(ranks).unwrap()));
        true
    }),
    ("list a child before its parent", |plan, _, seed| {
        let edges = some_edges(plan, seed);
        // Two hops in a row, one of which feeds the other, change places.
        let feeding = (1..edges.len()).find(|hop| edges[hop - 1].to == edges[*hop].from);
        feeding.inspect(|hop| edges.swap(hop - 1, *hop)).is_some()
            && plan.channels[0].pattern != Pattern::Pairs
    }),
    ("reverse the hops", |plan, _, seed| {
        let pairs = plan.channels[0].pattern == Pattern::Pairs;
        let edges = some_edges(plan, seed);
        for edge in edges.iter_mut() {
            (edge.from, edge.to) = (edge.to, edge.from);
        }
        !pairs && edges.len() > 2
    }),
    ("forget a channel", |plan, _, seed| {
        let channels = plan.channels.len();
        plan.channels.remove(seed.below(channels));
        true
    }),
    ("claim more", |plan, _, _| {
        for entry in plan.collectives.values_mut() {
            let best = entry.best.as_mut().unwrap();
            best.algbw_gbps = best.algbw_gbps * fraction("1001/1000");
        }
        true
    }),
    ("claim a channel more", |plan, _, _| {
        plan.collectives.values_mut().for_each(|entry| entry.best.as_mut().unwrap().channels += 1);
        true
    }),
    ("claim less height", |plan, _, _| {
        for entry in plan.collectives.values_mut() {
            let best = entry.best.as_mut().unwrap();
            best.height = best.height.wrapping_sub(1);
        }
        true
    }),
];

fn some_edges<'a>(plan: &'a mut Plan, seed: &mut Seed) -> &'a mut Vec<topology::plan::ChannelEdge> {
    let place = seed.below(plan.channels.len());
    let channel = &mut plan.channels[place];
    if !channel.reduce_edges.is_empty() && seed.below(2) == 0 {
        &mut channel.reduce_edges
    } else {
        &mut channel.edges
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn valid_plans_pass((topology, plan, _) in sample::plans()) {
        let report = super::plan(&topology, &plan);
        prop_assert!(report.is_ok(), "{}", report.unwrap_err()[0]);
        let report = report.unwrap();
        let alternative = sample::with_alternative(plan.clone(), Algorithm::Forest);
        let with_alternative = super::plan(&topology, &alternative).unwrap();
        prop_assert_eq!(&report.collectives, &with_alternative.alternatives[0]);
    }

    /// No plan is faster than the cuts allow.
    #[test]
    fn counts_stay_below_cuts((topology, plan, shape) in sample::plans()) {
        let report = super::plan(&topology, &plan).unwrap();
        for (collective, counted) in &report.collectives {
            let root = plan.channels_of(*collective).find_map(|channel| channel.root);
            let proved = super::brute_force_bound(
                &topology, &plan.ranks, *collective, root, topology::plan::LinkPolicy::All,
            );
            if let Some(proved) = proved {
                prop_assert!(counted.algbw_gbps <= proved.algbw_gbps, "{} {:?}", collective, shape);
            } else {
                prop_assert_eq!(*collective, SendRecv);
            }
        }
    }

    #[test]
    fn mutations_are_rejected(
        (topology, plan, shape) in sample::plans(),
        mutation in 0..MUTATIONS.len(),
        seed: u64,
    ) {
        let mut mutated = plan;
        let (name, mutate) = MUTATIONS[mutation];
        prop_assume!(mutate(&mut mutated, &topology, &mut Seed(seed)));
        prop_assert!(super::plan(&topology, &mutated).is_err(), "{} of {:?}: {:#?}", name, shape, mutated);
    }

    /// Whatever a file holds, the checker answers.
    #[test]
    fn two_mutations_never_panic(
        (topology, plan, _) in sample::plans(),
        first in 0..MUTATIONS.len(),
        second in 0..MUTATIONS.len(),
        seed: u64,
    ) {
        let mut mutated = plan;
        let mut seed = Seed(seed);
        MUTATIONS[first].1(&mut mutated, &topology, &mut seed);
        // The first may have left nothing to choose from.
        prop_assume!(!mutated.channels.is_empty() && mutated.channels.iter().all(|c| !c.edges.is_empty()));
        MUTATIONS[second].1(&mut mutated, &topology, &mut seed);
        let _ = super::plan(&topology, &mutated);
    }
}

#[test]
fn every_mutation_applies_to_some_plan() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut applied = vec![0; MUTATIONS.len()];
    for seed in 0..200 {
        let (topology, plan, shape) = sample::plans().new_tree(&mut runner).unwrap().current();
        for ((name, mutate), applied) in MUTATIONS.iter().zip(&mut applied) {
            let mut mutated = plan.clone();
            if mutate(&mut mutated, &topology, &mut Seed(seed)) {
                *applied += 1;
                assert!(super::plan(&topology, &mutated).is_err(), "{name} of {shape:?}");
            }
        }
    }
    for ((name, _), applied) in MUTATIONS.iter().zip(applied) {
        assert!(applied >= 20, "{name} applied to {applied} of 200 plans");
    }
}
