//! Schedules are run by a small interpreter with bounded queues; every element of every rank is compared.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use topology::schedule::{Buffer, Op, Schedule, Slice};
use topology::{Collective, Plan, Rank};

use super::*;
use crate::even::{pairs_plan, ring_plan, tree_plan};

const COLLECTIVES: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

/// What element `i` of rank `r` contributes: sums of distinct sets of these differ.
fn value(rank: usize, i: usize) -> u64 {
    (1 << (5 * rank)) * (i as u64 % 31 + 1)
}

struct Machine {
    input: Vec<u64>,
    /// `None` in place: the output is the input.
    output: Option<Vec<u64>>,
    scratch: Vec<u64>,
    counters: Vec<usize>,
}

impl Machine {
    fn buffer(&mut self, slice: Slice) -> &mut [u64] {
        let buffer = match slice.buffer {
            Buffer::Input => &mut self.input,
            Buffer::Output => self.output.as_mut().unwrap_or(&mut self.input),
            Buffer::Scratch => &mut self.scratch,
        };
        &mut buffer[slice.offset..slice.offset + slice.count]
    }
}

/// Runs the schedule with `slots` messages per connection, a rank's lanes in turn; the final output of every rank.
fn run(
    schedule: &Schedule,
    blocks: Option<&Blocks>,
    in_place: bool,
    slots: usize,
) -> Vec<Vec<u64>> {
    let n = schedule.programs.len();
    let shard = |r| split::part(0..schedule.count, r, n, 1);
    let mut machines: Vec<_> = (0..n)
        .map(|r| {
            let (input, output) = match schedule.collective {
                Collective::AllGather => (shard(r), 0..schedule.count),
                Collective::ReduceScatter => (0..schedule.count, shard(r)),
                Collective::Gather => (shard(r), 0..schedule.count),
                Collective::Scatter => (0..schedule.count, shard(r)),
                Collective::AllToAll if blocks.is_some() => {
                    let blocks = blocks.expect("just seen");
                    (0..blocks.sent(r), 0..blocks.received(r))
                }
                _ => (0..schedule.count, 0..schedule.count),
            };
            Machine {
                input: input.map(|i| value(r, i)).collect(),
                output: (!in_place).then(|| vec![0; output.len()]),
                scratch: vec![0; schedule.programs[r].scratch],
                counters: vec![0; schedule.programs[r].lanes.len()],
            }
        })
        .collect();
    let mut wires: BTreeMap<(Rank, Rank, u32, u32), VecDeque<Vec<u64>>> = BTreeMap::new();
    loop {
        let mut progressed = false;
        for (r, program) in schedule.programs.iter().enumerate() {
            for (l, lane) in program.lanes.iter().enumerate() {
                let machine = &mut machines[r];
                let me = rank(r);
                let Some(step) = lane.steps.get(machine.counters[l]) else { continue };
                if step.after.iter().any(|d| machine.counters[d.lane as usize] <= d.step as usize) {
                    continue;
                }
                let inbound = lane.recv_from.map(|p| (p, me, lane.channel, lane.connection));
                let outbound = lane.send_to.map(|p| (me, p, lane.channel, lane.connection));
                let full = |wires: &BTreeMap<_, VecDeque<Vec<u64>>>| {
                    wires
                        .get(&outbound.expect("a sender has a peer"))
                        .is_some_and(|q| q.len() >= slots)
                };
                if step.op.sends() && full(&wires) {
                    continue;
                }
                let received = if step.op.receives() {
                    let wire = wires.entry(inbound.expect("a receiver has a peer")).or_default();
                    let Some(message) = wire.pop_front() else { continue };
                    assert_eq!(message.len(), step.src.count, "message length");
                    Some(message)
                } else {
                    None
                };
                let mut data = match (step.op, received) {
                    (Op::Recv | Op::RecvCopySend, Some(message)) => message,
                    (_, Some(message)) => {
                        machine.buffer(step.src).iter().zip(message).map(|(a, b)| a + b).collect()
                    }
                    (_, None) => machine.buffer(step.src).to_vec(),
                };
                if step.op == Op::Reduce {
                    data = machine.buffer(step.dst).iter().zip(data).map(|(a, b)| a + b).collect();
                }
                if step.op.writes() {
                    assert!(step.dst.buffer != Buffer::Input, "the input is never written");
                    machine.buffer(step.dst).copy_from_slice(&data);
                }
                if step.op.sends() {
                    wires
                        .entry(outbound.expect("a sender has a peer"))
                        .or_default()
                        .push_back(data);
                }
                machine.counters[l] += 1;
                progressed = true;
            }
        }
        if !progressed {
            break;
        }
    }
    for (machine, program) in machines.iter().zip(&schedule.programs) {
        let ends: Vec<_> = program.lanes.iter().map(|lane| lane.steps.len()).collect();
        assert_eq!(machine.counters, ends, "every lane runs to its end");
    }
    assert!(wires.values().all(VecDeque::is_empty), "every message is received");
    machines.into_iter().map(|m| m.output.unwrap_or(m.input)).collect()
}

#[track_caller]
fn check(
    plan: &Plan,
    collective: Collective,
    root: u32,
    count: usize,
    slot_bytes: usize,
    slots: usize,
) {
    let n = plan.ranks.len();
    let sizing = Sizing::new(4, slot_bytes).unwrap();
    let schedule = schedule(plan, collective, Some(Rank(root)), count, sizing).unwrap();
    let connections = connections(plan, &[collective]);
    for (me, program) in schedule.programs.iter().enumerate() {
        for lane in &program.lanes {
            let id = |from, to| ConnectionId {
                from,
                to,
                channel: lane.channel,
                connection: lane.connection,
            };
            let inbound = lane.recv_from.map(|peer| id(peer, rank(me)));
            let outbound = lane.send_to.map(|peer| id(rank(me), peer));
            for used in inbound.into_iter().chain(outbound) {
                assert!(connections.contains(&used), "{used:?} is announced");
            }
        }
        for step in program.lanes.iter().flat_map(|l| &l.steps) {
            assert!(step.src.count > 0 && step.src.count == step.dst.count);
            assert!(step.src.count * 4 <= slot_bytes || step.op == Op::Copy);
        }
    }
    let sum = |i| (0..n).map(|r| value(r, i)).sum::<u64>();
    let shard = |r| split::part(0..count, r, n, 1);
    let same_size =
        matches!(collective, Collective::AllReduce | Collective::Broadcast | Collective::Reduce);
    for in_place in [false, true] {
        if in_place && !same_size {
            continue;
        }
        for (r, output) in run(&schedule, None, in_place, slots).into_iter().enumerate() {
            let whole = 0..count;
            let root = root as usize;
            let expect: Vec<u64> = match collective {
                Collective::AllReduce => whole.map(sum).collect(),
                Collective::AllGather => {
                    (0..n).flat_map(|o| shard(o).map(move |i| value(o, i))).collect()
                }
                Collective::ReduceScatter => shard(r).map(sum).collect(),
                Collective::AllToAll => {
                    (0..n).flat_map(|o| shard(r).map(move |i| value(o, i))).collect()
                }
                Collective::Scatter => shard(r).map(|i| value(root, i)).collect(),
                Collective::Gather if r == root => {
                    (0..n).flat_map(|o| shard(o).map(move |i| value(o, i))).collect()
                }
                Collective::Gather => vec![0; count],
                Collective::Broadcast => whole.map(|i| value(root, i)).collect(),
                _ if r == root => whole.map(sum).collect(),
                _ if in_place => whole.map(|i| value(r, i)).collect(),
                _ => vec![0; count],
            };
            assert_eq!(output, expect, "{collective} rank {r} of {n}, in place: {in_place}");
        }
    }
}

#[test]
fn rings() {
    for n in 1..=8 {
        for count in [0, 1, 5, 64, 1000] {
            for collective in COLLECTIVES {
                check(&ring_plan(n, 3), collective, n - 1, count, 256, MIN_SLOTS);
            }
        }
    }
}

#[test]
fn trees() {
    for n in 1..=8 {
        for count in [0, 1, 5, 64, 1000] {
            for collective in COLLECTIVES {
                check(&tree_plan(n, 2, 2), collective, n / 2, count, 256, 1);
                check(&tree_plan(n, 1, 7), collective, 0, count, 1 << 16, 1);
            }
        }
    }
}

#[test]
fn pairs() {
    for n in 1..=8 {
        for count in [0, 1, 5, 64, 1000] {
            for channels in [1, 3] {
                let plan = pairs_plan(n, channels);
                check(&plan, Collective::Gather, n - 1, count, 256, 1);
                check(&plan, Collective::Scatter, n / 2, count, 256, 1);
                check(&plan, Collective::AllToAll, 0, count * n as usize, 256, 1);
            }
        }
    }
}

#[test]
fn the_choice_of_size_limits_the_channels() {
    let mut plan = ring_plan(4, 4);
    let reached = plan.collectives.get_mut(&Collective::AllReduce).unwrap();
    reached.best = Some(topology::plan::Candidate {
        algorithm: Algorithm::Ring,
        algbw_gbps: topology::Fraction::ONE,
        channels: 4,
        height: 3,
        optimal: false,
        executors: Vec::new(),
        note: String::new(),
    });
    let row = |max_bytes, channels| topology::plan::SizeChoice {
        max_bytes,
        algorithm: Algorithm::Ring,
        protocol: topology::Protocol::Simple,
        channels,
        predicted_ps: None,
    };
    reached.by_size = vec![row(1024, 1), row(u64::MAX, 4)];
    let ids = |bytes| -> Vec<u32> {
        select(&plan, Collective::AllReduce, None, bytes).unwrap().iter().map(|c| c.id).collect()
    };
    assert_eq!(ids(1024), [0]);
    assert_eq!(ids(1025), [0, 1, 2, 3]);
    check(&plan, Collective::AllReduce, 0, 100, 4096, MIN_SLOTS);
}

#[track_caller]
fn refuse(plan: &Plan, collective: Collective, root: Option<u32>, expect: &str) {
    let sizing = Sizing::new(4, 4096).unwrap();
    let error = schedule(plan, collective, root.map(Rank), 100, sizing).unwrap_err();
    assert!(error.to_string().contains(expect), "{error}");
}

#[test]
fn refusals() {
    refuse(&ring_plan(4, 1), Collective::AllToAll, None, "no channel for all-to-all");
    refuse(&pairs_plan(3, 1), Collective::AllToAll, None, "100 elements are not");
    refuse(&pairs_plan(4, 1), Collective::AllReduce, None, "no channel for all-reduce");
    refuse(&pairs_plan(4, 1), Collective::Gather, Some(4), "needs a root below 4");
    let mut plan = pairs_plan(4, 1);
    plan.channels[0].edges.remove(1);
    refuse(&plan, Collective::AllToAll, None, "have no hop");
    plan.channels[0].root = Some(Rank(1));
    refuse(&plan, Collective::Gather, Some(2), "no channel for gather with root 2");
    plan.channels[0].edges[0].to = Rank(4);
    refuse(&plan, Collective::Gather, Some(1), "no rank of the plan");
    plan.channels[0].pattern = Pattern::Ring;
    refuse(&plan, Collective::AllToAll, None, "along Ring channels is not executed");
    let blocks = Blocks::new(2, vec![0; 4]).unwrap();
    let sizing = Sizing::new(4, 4096).unwrap();
    let error = schedule_uneven(&pairs_plan(3, 1), &blocks, sizing).unwrap_err();
    assert_eq!(error.to_string(), "blocks among 2 ranks for a plan of 3");
    assert!(Blocks::new(2, vec![0; 3]).is_none());
    assert!(Blocks::new(2, vec![usize::MAX, 1, 0, 0]).is_none());
    refuse(&ring_plan(4, 1), Collective::Broadcast, None, "needs a root below 4");
    refuse(&ring_plan(4, 1), Collective::Broadcast, Some(4), "needs a root below 4");
    refuse(&ring_plan(4, 0), Collective::AllReduce, None, "no channel");
    let mut plan = ring_plan(4, 1);
    plan.channels[0].ranks[1] = Rank(0);
    refuse(&plan, Collective::AllReduce, None, "a rank twice");
    plan.channels[0].ranks.pop();
    refuse(&plan, Collective::AllReduce, None, "wrong number");
    plan.channels[0].share = topology::Fraction::ZERO;
    refuse(&plan, Collective::AllReduce, None, "shares");
    let mut plan = tree_plan(4, 1, 2);
    plan.channels[0].edges.pop();
    refuse(&plan, Collective::AllReduce, None, "not every rank");
    plan.channels[0].root = None;
    refuse(&plan, Collective::AllReduce, None, "no root");
    assert!(Sizing::new(3, 4096).is_err() && Sizing::new(4, 63).is_err());
}

/// A random tree: the parent of each rank is an earlier one in a random order.
fn random_tree(ranks: usize) -> impl Strategy<Value = Vec<(usize, usize)>> {
    let order = Just((0..ranks).collect::<Vec<_>>()).prop_shuffle();
    (order, proptest::collection::vec(any::<prop::sample::Index>(), ranks)).prop_map(
        |(order, picks)| (1..order.len()).map(|i| (order[picks[i].index(i)], order[i])).collect(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_tree_any_count(
        (down, up) in (2_usize..8).prop_flat_map(|n| (random_tree(n), random_tree(n))),
        count in 0_usize..3000,
        lines in 1_usize..20,
    ) {
        let n = down.len() + 1;
        let edge = |from: usize, to: usize| topology::plan::ChannelEdge {
            from: rank(from), to: rank(to), paths: Vec::new(),
        };
        let mut plan = tree_plan(u32::try_from(n).unwrap(), 1, 1);
        plan.channels.truncate(1);
        let channel = &mut plan.channels[0];
        channel.root = Some(rank(down[0].0));
        channel.edges = down.iter().map(|(p, c)| edge(*p, *c)).collect();
        // The way up ends at the same root: relabel the random one.
        let (old, new) = (up[0].0, down[0].0);
        let swap = |r: usize| if r == old { new } else if r == new { old } else { r };
        channel.reduce_edges = up.iter().rev().map(|(p, c)| edge(swap(*c), swap(*p))).collect();
        check(&plan, Collective::AllReduce, 0, count, lines * 64, 1);
    }

    #[test]
    fn any_blocks(
        (n, counts) in (1_usize..7).prop_flat_map(|n| {
            (Just(n), proptest::collection::vec(prop_oneof![Just(0_usize), 0_usize..300], n * n))
        }),
        channels in 1_u32..4,
        lines in 1_usize..9,
    ) {
        let blocks = Blocks::new(n, counts).unwrap();
        let plan = pairs_plan(u32::try_from(n).unwrap(), channels);
        let sizing = Sizing::new(4, lines * 64).unwrap();
        let schedule = schedule_uneven(&plan, &blocks, sizing).unwrap();
        for (to, output) in run(&schedule, Some(&blocks), false, 1).into_iter().enumerate() {
            let expect: Vec<u64> = (0..n)
                .flat_map(|from| blocks.source(from, to).map(move |i| value(from, i)))
                .collect();
            prop_assert_eq!(output, expect);
        }
    }

    #[test]
    fn shares_divide_exactly(
        shares in proptest::collection::vec(0_u64..1000, 1..9),
        count in any::<u32>(),
        line in 1_usize..65,
    ) {
        let count = count as usize;
        let mut plan = ring_plan(2, u32::try_from(shares.len()).unwrap());
        for (channel, share) in plan.channels.iter_mut().zip(&shares) {
            channel.share = topology::Fraction::of(*share, 999);
        }
        let channels: Vec<_> = channel_ids(&plan).collect();
        let ranges = split::by_shares(0..count, &channels, line);
        prop_assert_eq!(ranges.is_none(), shares.iter().sum::<u64>() == 0);
        let mut end = 0;
        for (range, share) in ranges.unwrap_or_default().into_iter().zip(&shares) {
            prop_assert_eq!(range.start, end);
            end = range.end;
            let ideal = u128::from(*share) * count as u128 / u128::from(shares.iter().sum::<u64>());
            prop_assert!((range.len() as u128).abs_diff(ideal) <= line as u128 + 1);
        }
        prop_assert!(shares.iter().sum::<u64>() == 0 || end == count);
    }
}
