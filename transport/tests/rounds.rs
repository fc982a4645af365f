//! Schedules in rounds, and along double binary trees, before the checker: right for every number of ranks, with as many steps
//! one after the other as their names promise.

use std::collections::BTreeMap;

use planner::check::{self, ScheduleReport};
use planner::rounds::rounds;
use planner::trees::double_tree;
use topology::plan::{ChannelEdge, EdgePath};
use topology::schedule::Schedule;
use topology::{Algorithm, Collective, Fraction, Plan, Rank};
use transport::schedule::rounds::{Rounds, hierarchical, in_rounds};
use transport::schedule::{Sizing, schedule};

const COLLECTIVES: [Collective; 3] =
    [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];

/// One message each, whatever the size.
fn whole() -> Sizing {
    Sizing::new(4, 1 << 24).unwrap()
}

/// Many messages of a cache line or four.
fn cut() -> Sizing {
    Sizing::new(4, 256).unwrap()
}

#[track_caller]
fn passes(made: &Schedule, what: &str) -> ScheduleReport {
    check::schedule(made, 1).unwrap_or_else(|violation| panic!("{what}: {violation}"))
}

fn log2_up(n: usize) -> usize {
    n.next_power_of_two().ilog2() as usize
}

/// Steps one after the other that an algorithm takes at most, and where ranks need not be folded at least.
fn depth(kind: Rounds, collective: Collective, n: usize) -> usize {
    let passes = if collective == Collective::AllReduce { 2 } else { 1 };
    let folds = if n.is_power_of_two() { 0 } else { 2 };
    match kind {
        Rounds::OneShot => 1,
        Rounds::TwoShot => passes,
        Rounds::RecursiveDoubling => n.ilog2() as usize + folds,
        Rounds::HalvingDoubling => 2 * n.ilog2() as usize + folds,
        Rounds::Bruck | Rounds::Pat => passes * log2_up(n),
    }
}

/// Elements a rank sends, of a count that ranks divide, where that is the same for all.
fn sent(kind: Rounds, collective: Collective, n: usize, count: usize) -> Option<usize> {
    let passes = if collective == Collective::AllReduce { 2 } else { 1 };
    match kind {
        Rounds::OneShot => Some((n - 1) * count),
        Rounds::TwoShot | Rounds::Bruck | Rounds::Pat => Some(passes * (n - 1) * count / n),
        _ if !n.is_power_of_two() => None,
        Rounds::RecursiveDoubling => Some(n.ilog2() as usize * count),
        Rounds::HalvingDoubling => Some(2 * (n - 1) * count / n),
    }
}

fn kinds() -> impl Iterator<Item = (Rounds, Collective)> {
    let pairs =
        Rounds::ALL.iter().flat_map(|kind| COLLECTIVES.map(|collective| (*kind, collective)));
    pairs.filter(|(kind, collective)| kind.runs(*collective))
}

#[test]
fn every_number_of_ranks_to_sixty_four() {
    for (kind, collective) in kinds() {
        for n in 1..=64 {
            let what = format!("{kind} {collective}, {n} ranks");
            let count = 4 * n;
            let made = in_rounds(kind, collective, n, count, whole()).unwrap();
            let report = passes(&made, &what);
            if n == 1 {
                assert_eq!(report.messages, 0, "{what}");
                continue;
            }
            let most = depth(kind, collective, n);
            let least = if sent(kind, collective, n, count).is_some() { most } else { 2 };
            assert!((least..=most).contains(&report.depth), "{what}: {}", report.depth);
            for rank in 0..u32::try_from(n).unwrap() {
                let of_rank = report.sent.iter().filter(|((from, _), _)| *from == Rank(rank));
                let total: usize = of_rank.map(|(_, elements)| elements).sum();
                let wanted = sent(kind, collective, n, count).unwrap_or(total);
                assert_eq!(total, wanted, "{what}: rank {rank}");
            }
        }
    }
}

/// Counts that ranks do not divide, fewer elements than ranks, none at all; messages of several chunks.
#[test]
fn any_count() {
    for (kind, collective) in kinds() {
        for n in [2, 3, 4, 5, 7, 8, 12, 17] {
            for count in [0, 1, 5, 64, 1000] {
                let made = in_rounds(kind, collective, n, count, cut()).unwrap();
                passes(&made, &format!("{kind} {collective}, {n} ranks, {count} elements"));
            }
        }
    }
}

#[test]
fn a_thousand_ranks() {
    for (kind, collective, n) in [
        (Rounds::RecursiveDoubling, Collective::AllReduce, 1024),
        (Rounds::HalvingDoubling, Collective::AllReduce, 1024),
        (Rounds::HalvingDoubling, Collective::AllReduce, 1000),
        (Rounds::Pat, Collective::AllGather, 256),
        (Rounds::Bruck, Collective::ReduceScatter, 200),
    ] {
        let made = in_rounds(kind, collective, n, n, whole()).unwrap();
        let report = passes(&made, &format!("{kind} {collective}, {n} ranks"));
        assert!(report.depth <= depth(kind, collective, n), "{}", report.depth);
    }
}

#[test]
fn hosts_of_equal_size() {
    let between =
        [Rounds::TwoShot, Rounds::HalvingDoubling, Rounds::Pat, Rounds::Bruck, Rounds::OneShot];
    for (hosts, per_host) in
        [(1, 1), (1, 4), (4, 1), (2, 2), (2, 8), (3, 4), (4, 3), (5, 2), (8, 8), (7, 9), (2, 32)]
    {
        for collective in COLLECTIVES {
            for kind in between.into_iter().filter(|kind| kind.runs(collective)) {
                for (count, sizing) in
                    [(hosts * per_host * 4, whole()), (1000, cut()), (3, whole())]
                {
                    let what = format!(
                        "{kind} {collective}, {hosts} hosts of {per_host}, {count} elements"
                    );
                    let made =
                        hierarchical(kind, collective, hosts, per_host, count, sizing).unwrap();
                    let report = passes(&made, &what);
                    if hosts > 1 && per_host > 1 && count >= hosts * per_host && sizing == whole() {
                        let inside = if collective == Collective::AllReduce { 2 } else { 1 };
                        assert!(report.depth <= inside + depth(kind, collective, hosts), "{what}");
                        // Nobody crosses hosts but to the same place.
                        for (from, to) in report.sent.keys().map(|(a, b)| (a.index(), b.index())) {
                            let same_host = from / per_host == to / per_host;
                            assert!(same_host || from % per_host == to % per_host, "{what}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn what_does_not_go_in_rounds() {
    for (kind, collective) in [
        (Rounds::OneShot, Collective::AllGather),
        (Rounds::HalvingDoubling, Collective::ReduceScatter),
        (Rounds::Pat, Collective::Broadcast),
    ] {
        let error = in_rounds(kind, collective, 4, 64, whole()).unwrap_err();
        let wanted = format!("{collective} does not go in rounds by {kind}");
        assert_eq!(error.to_string(), wanted);
        assert!(hierarchical(kind, collective, 2, 2, 64, whole()).is_err());
    }
}

/// A plan along both trees of [`double_tree`].
fn double_tree_plan(ranks: u32) -> Plan {
    let mut plan = transport::even::tree_plan(ranks, 2, 2);
    let hop = |from: usize, to: usize| ChannelEdge {
        from: Rank(u32::try_from(from).unwrap()),
        to: Rank(u32::try_from(to).unwrap()),
        paths: vec![EdgePath { via: Vec::new(), share: Fraction::ONE }],
    };
    for (channel, parents) in plan.channels.iter_mut().zip(double_tree(ranks as usize)) {
        let depth = |mut rank: usize| {
            let mut depth = 0;
            while let Some(parent) = parents[rank] {
                (rank, depth) = (parent, depth + 1);
            }
            depth
        };
        let mut down: Vec<(usize, usize)> =
            (0..parents.len()).filter_map(|rank| Some((parents[rank]?, rank))).collect();
        down.sort_by_key(|(_, rank)| depth(*rank));
        let root = parents.iter().position(Option::is_none).expect("a root");
        channel.root = Some(Rank(u32::try_from(root).unwrap()));
        channel.edges = down.iter().map(|(parent, rank)| hop(*parent, *rank)).collect();
        channel.reduce_edges =
            down.iter().rev().map(|(parent, rank)| hop(*rank, *parent)).collect();
    }
    plan
}

#[test]
fn double_binary_trees() {
    for ranks in (2..=64).chain([100, 127, 128, 256]) {
        let plan = double_tree_plan(ranks);
        let made = schedule(&plan, Collective::AllReduce, None, 128, whole()).unwrap();
        let report = passes(&made, &format!("double tree over {ranks} ranks"));
        assert!(report.depth <= 2 * (log2_up(ranks as usize) + 1), "{ranks}: {}", report.depth);
        let made = schedule(&plan, Collective::AllReduce, None, 1000, cut()).unwrap();
        passes(&made, &format!("double tree over {ranks} ranks, in chunks"));
    }
}

/// What plans say of rounds is what schedules do: elements by sender and receiver.
#[track_caller]
fn as_planned(made: &Schedule, algorithm: Algorithm, hosts: &[usize]) {
    let what = format!("{algorithm} {}, {} ranks", made.collective, hosts.len());
    let report = passes(made, &what);
    let planned = rounds(algorithm, made.collective, hosts).unwrap();
    let mut expected: BTreeMap<(Rank, Rank), Fraction> = BTreeMap::new();
    for round in &planned {
        for (from, to) in &round.hops {
            let rank = |index: &usize| Rank(u32::try_from(*index).unwrap());
            let sum = expected.entry((rank(from), rank(to))).or_insert(Fraction::ZERO);
            *sum = *sum + round.share * Fraction::of(made.count as u64, 1);
        }
    }
    let sent: BTreeMap<(Rank, Rank), Fraction> = report
        .sent
        .iter()
        .map(|(ends, elements)| (*ends, Fraction::of(*elements as u64, 1)))
        .collect();
    assert_eq!(sent, expected, "{what}");
    assert!(report.depth <= planned.len(), "{what}: {} steps", report.depth);
}

#[test]
fn schedules_send_what_plans_say() {
    let named = [
        Algorithm::OneShot,
        Algorithm::Direct,
        Algorithm::RecursiveDoubling,
        Algorithm::HalvingDoubling,
        Algorithm::Bruck,
        Algorithm::Pat,
    ];
    for n in (2..=17_usize).chain([31, 32, 33, 64]) {
        let hosts = vec![0; n];
        // Divided by the ranks, and by the largest power of two among them.
        let count = n << n.ilog2();
        for algorithm in named {
            let kind = Rounds::of(algorithm).unwrap();
            for collective in COLLECTIVES.into_iter().filter(|c| kind.runs(*c)) {
                let made = in_rounds(kind, collective, n, count, whole()).unwrap();
                as_planned(&made, algorithm, &hosts);
            }
        }
    }
    for (count, inside) in [(2, 2), (2, 8), (3, 4), (4, 3), (5, 2), (8, 8)] {
        let hosts: Vec<usize> = (0..count * inside).map(|rank| rank / inside).collect();
        for collective in COLLECTIVES {
            let between = Rounds::of(Algorithm::between_hosts(collective, count)).unwrap();
            let elements = count * inside * inside * count;
            let made = hierarchical(between, collective, count, inside, elements, whole()).unwrap();
            as_planned(&made, Algorithm::Hierarchical, &hosts);
        }
    }
}
