//! Plans made without any cleverness, for tests: valid by construction, far from optimal.

use std::collections::VecDeque;

use proptest::prelude::*;
use topology::plan::{
    Bound, Candidate, ChannelEdge, ChannelSet, CollectivePlan, EdgePath, LinkPolicy, Pattern, Plan,
    PlanRank, SizeChoice, TopologyRef,
};
use topology::snapshot::LinkGraph;
use topology::{
    Algorithm, Bandwidth, Channel, Collective, Executor, Finding, Fraction, Generation, GpuIndex,
    HostId, Protocol, Rank, RateModel, Severity, Snapshot, Source, Topology, VertexId, VertexKind,
};

use super::{channel_gbps, count};

/// GPUs `g0..`, switches `s0..`, links by place (GPUs first) in GB/s, one direction each.
pub(crate) fn topology(
    gpus: usize,
    switches: usize,
    links: impl IntoIterator<Item = (usize, usize, u64)>,
) -> Topology {
    let name = |place: usize| {
        if place < gpus { format!("g{place}") } else { format!("s{}", place - gpus) }
    };
    let mut snapshot = Snapshot::new(Source::LinkGraph);
    snapshot.link_graph = Some(LinkGraph {
        name: "sample".into(),
        gpus: (0..gpus).map(name).collect(),
        switches: (gpus..gpus + switches).map(name).collect(),
        links: links
            .into_iter()
            .map(|(from, to, gbps)| (name(from), name(to), Bandwidth::from_mbps(gbps * 1000)))
            .collect(),
    });
    topology::lower(&[snapshot], RateModel::Nominal).unwrap()
}

/// Both directions of each.
pub(crate) fn both(
    links: impl IntoIterator<Item = (usize, usize, u64)>,
) -> impl Iterator<Item = (usize, usize, u64)> {
    links.into_iter().flat_map(|(a, b, gbps)| [(a, b, gbps), (b, a, gbps)])
}

/// The NVLinks of a DGX-1V (hybrid cube mesh of single and double bricks) at 25 GB/s a brick.
pub(crate) fn dgx1v() -> Topology {
    let double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)];
    let single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)];
    let links = double.map(|(a, b)| (a, b, 50)).into_iter().chain(single.map(|(a, b)| (a, b, 25)));
    topology(8, 0, both(links))
}

/// The first `gpus` GPUs of a link graph, which are all GPUs of it unless a test says so.
pub(crate) fn ranks(topology: &Topology, gpus: usize) -> Vec<PlanRank> {
    (0..)
        .zip(&topology.gpus()[..gpus])
        .map(|(rank, id)| {
            let vertex = topology.vertex(*id);
            let VertexKind::Gpu { index } = vertex.kind else { panic!("a GPU is no GPU") };
            PlanRank {
                rank: Rank(rank),
                host: vertex.host.unwrap_or(HostId(0)),
                gpu: index,
                bus_id: vertex.bus_id,
                uuid: None,
            }
        })
        .collect()
}

pub(super) fn gpu(rank: u32) -> GpuIndex {
    GpuIndex(rank)
}

/// A way with the fewest links that crosses no GPU.
fn route(topology: &Topology, from: VertexId, to: VertexId) -> Option<Vec<String>> {
    let mut before = vec![None; topology.graph().node_count()];
    let mut queue = VecDeque::from([from]);
    while let Some(here) = queue.pop_front() {
        if here != from && matches!(topology.vertex(here).kind, VertexKind::Gpu { .. }) {
            continue;
        }
        for (_, next) in topology.links_from(here) {
            if next != from && before[next.index()].is_none() {
                before[next.index()] = Some(here);
                queue.push_back(next);
            }
        }
    }
    let mut via = Vec::new();
    let mut here = before[to.index()]?;
    while here != from {
        via.push(topology.vertex(here).name.clone());
        here = before[here.index()]?;
    }
    via.reverse();
    Some(via)
}

pub(super) fn edge(topology: &Topology, from: u32, to: u32) -> ChannelEdge {
    let gpus = topology.gpus();
    let via = route(topology, gpus[from as usize], gpus[to as usize])
        .unwrap_or_else(|| panic!("no way from {from} to {to}"));
    let paths = vec![EdgePath { via, share: Fraction::ONE }];
    ChannelEdge { from: Rank(from), to: Rank(to), paths }
}

fn channel(pattern: Pattern, collectives: &[Collective], share: Fraction) -> Channel {
    Channel {
        index: 0,
        pattern,
        collectives: collectives.to_vec(),
        ranks: Vec::new(),
        root: None,
        nics: Vec::new(),
        share,
        gbps: Fraction::ZERO,
        edges: Vec::new(),
        reduce_edges: Vec::new(),
    }
}

pub(crate) fn ring(
    topology: &Topology,
    collectives: &[Collective],
    order: &[u32],
    share: Fraction,
) -> Channel {
    let hops = order.iter().zip(order.iter().cycle().skip(1)).filter(|(from, to)| from != to);
    Channel {
        ranks: order.iter().map(|rank| Rank(*rank)).collect(),
        edges: hops.map(|(from, to)| edge(topology, *from, *to)).collect(),
        ..channel(Pattern::Ring, collectives, share)
    }
}

/// `tree`: the root, then each further rank with the place of its parent in the list.
pub(crate) fn tree(
    topology: &Topology,
    collective: Collective,
    tree: &[(u32, usize)],
    share: Fraction,
) -> Channel {
    let links = || tree.iter().skip(1).map(|(rank, parent)| (tree[*parent].0, *rank));
    let down = || links().map(|(parent, child)| edge(topology, parent, child)).collect();
    let up = || links().rev().map(|(parent, child)| edge(topology, child, parent)).collect();
    let (edges, reduce_edges) = match collective {
        Collective::AllReduce => (down(), up()),
        Collective::ReduceScatter | Collective::Reduce => (up(), Vec::new()),
        _ => (down(), Vec::new()),
    };
    let root = Some(Rank(tree[0].0));
    Channel { root, edges, reduce_edges, ..channel(Pattern::Tree, &[collective], share) }
}

pub(crate) fn pairs(
    topology: &Topology,
    collective: Collective,
    root: Option<u32>,
    ranks: u32,
    share: Fraction,
) -> Channel {
    let all = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
    let needed = all.filter(|(from, to)| {
        from != to
            && match collective {
                Collective::Broadcast | Collective::Scatter => root == Some(*from),
                Collective::Reduce | Collective::Gather => root == Some(*to),
                _ => true,
            }
    });
    Channel {
        root: root.map(Rank),
        edges: needed.map(|(from, to)| edge(topology, from, to)).collect(),
        ..channel(Pattern::Pairs, &[collective], share)
    }
}

/// A plan of these channels that says of itself what the checker counts, with the count as its bound.
pub(crate) fn plan(
    topology: &Topology,
    gpus: usize,
    algorithm: Algorithm,
    mut channels: Vec<Channel>,
) -> Plan {
    let ranks = ranks(topology, gpus);
    let mut collectives: Vec<_> =
        channels.iter().flat_map(|channel| channel.collectives.clone()).collect();
    collectives.sort_unstable();
    collectives.dedup();
    for (index, channel) in (0..).zip(&mut channels) {
        channel.index = index;
    }
    let mut entries = std::collections::BTreeMap::new();
    for collective in collectives {
        let counted = count(topology, &ranks, &channels, collective)
            .unwrap_or_else(|found| panic!("{collective}: {}", found[0]));
        let best = Candidate {
            algorithm,
            algbw_gbps: counted.algbw_gbps,
            channels: counted.channels,
            height: counted.height,
            optimal: true,
            executors: vec![Executor::Host],
            note: String::new(),
        };
        let bound = Bound { algbw_gbps: counted.algbw_gbps, limited_by: Vec::new() };
        entries.insert(
            collective,
            CollectivePlan {
                bound: Some(bound),
                ring: (algorithm == Algorithm::Ring).then(|| best.clone()),
                candidates: vec![best.clone()],
                best: Some(best),
                by_size: vec![SizeChoice {
                    max_bytes: u64::MAX,
                    algorithm,
                    protocol: Protocol::Simple,
                    channels: 1,
                    predicted_ps: None,
                }],
            },
        );
        for channel in channels.iter_mut().filter(|c| c.collectives.contains(&collective)) {
            channel.gbps = channel_gbps(channel, collective, counted.algbw_gbps, gpus).unwrap();
        }
    }
    Plan {
        topology: TopologyRef {
            fingerprint: topology.fingerprint().into(),
            source: Source::LinkGraph,
            rates: topology.rates(),
            links: LinkPolicy::Auto,
            what_if: Vec::new(),
            generation: Generation(0),
        },
        ranks,
        channels,
        alternatives: Vec::new(),
        collectives: entries,
        assumptions: Vec::new(),
        findings: Vec::new(),
    }
}

/// Takes the plan's own channels as an alternative as well.
pub(super) fn with_alternative(mut plan: Plan, algorithm: Algorithm) -> Plan {
    plan.alternatives.push(ChannelSet {
        algorithm,
        collectives: plan.collectives.keys().copied().collect(),
        channels: plan.channels.clone(),
    });
    plan
}

pub(super) fn finding() -> Finding {
    Finding {
        code: "sample".into(),
        severity: Severity::Info,
        component: String::new(),
        evidence: String::new(),
        fix: String::new(),
    }
}

/// What a random plan is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Rings,
    Trees(Collective),
    Pairs(Collective),
}

fn shapes() -> impl Strategy<Value = Shape> {
    use Collective::{
        AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendRecv,
    };
    let trees = [AllGather, ReduceScatter, AllReduce, Broadcast, Reduce];
    let pairs = [AllToAll, AllGather, Gather, Scatter, Broadcast, Reduce, SendRecv];
    prop_oneof![
        Just(Shape::Rings),
        proptest::sample::select(trees.to_vec()).prop_map(Shape::Trees),
        proptest::sample::select(pairs.to_vec()).prop_map(Shape::Pairs),
    ]
}

/// A random graph in which every GPU reaches every other over switches, and sometimes directly.
fn graphs() -> impl Strategy<Value = (usize, usize, Vec<(usize, usize, u64)>)> {
    (2_usize..7, 1_usize..4).prop_flat_map(|(gpus, switches)| {
        let up = proptest::collection::vec((0..switches, 1_u64..50), gpus);
        let spine = proptest::collection::vec(1_u64..50, switches - 1);
        let direct = proptest::collection::vec((0..gpus, 0..gpus, 1_u64..50), 0..8);
        (up, spine, direct).prop_map(move |(up, spine, direct)| {
            let up = up.into_iter().enumerate().map(|(gpu, (s, gbps))| (gpu, gpus + s, gbps));
            let spine =
                spine.into_iter().enumerate().map(|(s, gbps)| (gpus + s, gpus + s + 1, gbps));
            let direct = direct.into_iter().filter(|(a, b, _)| a != b);
            (gpus, switches, both(up.chain(spine)).chain(direct).collect())
        })
    })
}

/// A random valid plan on a random graph; sometimes with an alternative set.
pub(super) fn plans() -> impl Strategy<Value = (Topology, Plan, Shape)> {
    (graphs(), shapes(), 1_u64..4, any::<u64>()).prop_map(
        |((gpus, switches, links), shape, parts, seed)| {
            let topology = topology(gpus, switches, links);
            let mut seed = Seed(seed);
            let (algorithm, channels) = match shape {
                Shape::Rings => (Algorithm::Ring, random_rings(&topology, gpus, parts, &mut seed)),
                Shape::Trees(collective) => {
                    (Algorithm::Forest, random_trees(&topology, collective, gpus, parts, &mut seed))
                }
                Shape::Pairs(collective) => {
                    let rooted = collective.has_root();
                    let root = rooted.then(|| u32::try_from(seed.below(gpus)).unwrap());
                    let count = u32::try_from(gpus).unwrap();
                    let one = pairs(&topology, collective, root, count, Fraction::of(1, parts));
                    (Algorithm::Direct, (0..parts).map(|_| one.clone()).collect())
                }
            };
            (topology.clone(), plan(&topology, gpus, algorithm, channels), shape)
        },
    )
}

fn random_rings(topology: &Topology, gpus: usize, parts: u64, seed: &mut Seed) -> Vec<Channel> {
    use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    let total = parts * (parts + 1) / 2;
    (1..=parts)
        .map(|part| {
            let order = seed.order(gpus);
            let all = [AllReduce, AllGather, ReduceScatter, Broadcast, Reduce];
            ring(topology, &all, &order, Fraction::of(part, total))
        })
        .collect()
}

fn random_trees(
    topology: &Topology,
    collective: Collective,
    gpus: usize,
    parts: u64,
    seed: &mut Seed,
) -> Vec<Channel> {
    let roots: Vec<u32> = match collective {
        Collective::AllGather | Collective::ReduceScatter => {
            (0..u32::try_from(gpus).unwrap()).collect()
        }
        _ => vec![u32::try_from(seed.below(gpus)).unwrap()],
    };
    let share = Fraction::of(1, parts * roots.len() as u64);
    let mut channels = Vec::new();
    for root in roots {
        for _ in 0..parts {
            let mut order = seed.order(gpus);
            order.retain(|rank| *rank != root);
            let mut list = vec![(root, 0)];
            for rank in order {
                list.push((rank, seed.below(list.len())));
            }
            channels.push(tree(topology, collective, &list, share));
        }
    }
    channels
}

/// A generator of which nothing is asked but that equal seeds give equal numbers (splitmix64).
pub(super) struct Seed(pub(super) u64);

impl Seed {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % end as u64).unwrap()
    }

    fn order(&mut self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..u32::try_from(count).unwrap()).collect();
        for place in (1..count).rev() {
            order.swap(place, self.below(place + 1));
        }
        order
    }
}
