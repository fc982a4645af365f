//! Which way an operation goes by its size, where ranks reach each other over links of one kind that the plan was not made for.
//!
//! A plan knows the links of its machine, and chooses by their latencies. Processes that talk over sockets wait longer for each message:
//! then few rounds are worth more. So the plan is given a few ways in rounds beside its own channels, every way is
//! [timed in thought](super::cost), and a row of the choice by size goes to another way than the plan's own only where that gains.

use topology::plan::{ChannelEdge, ChannelSet, Pattern, SizeChoice};
use topology::{Algorithm, Channel, Collective, Fraction, Plan, Protocol, Rank};

use super::cost::{LinkCost, time_ns};
use super::{Selected, Sizing, schedule};

/// Most ranks for which ways are compared. Beyond, the plan's own goes: a choice must not take longer than what it saves.
const MOST_RANKS: usize = 32;
/// Most ranks that talk all to all: each pair takes connections, with their memory.
const MOST_DIRECT: usize = 8;
/// Sizes in bytes that are timed, as powers of two; each stands for those from half to twice as many.
const SIZES: [u32; 9] = [6, 8, 10, 12, 14, 16, 18, 20, 22];
/// A way is taken only where it saves more than one part in so many of what the plan's own takes.
const WORTH: u64 = 20;
/// How many of the plan's own channels are tried beside all: each divides messages once more.
const FEWER: [u32; 3] = [1, 2, 4];

/// A kernel's TCP between processes: a call at each end, what the kernel does in between, and a copy at each end. Assumed from one rough
/// look at loopback (6.5 us one way at 8 bytes), not fitted; on a network latency is more, which favours few rounds yet.
pub(crate) const TCP: LinkCost =
    LinkCost { latency_ns: 1_500, message_ns: 2_500, byte_ps: 150, local_ps: 100 };

/// Ways beside the plan's own.
fn ways(collective: Collective, ranks: usize) -> &'static [Algorithm] {
    use Algorithm::{Bruck, Direct, HalvingDoubling, OneShot, RecursiveDoubling, Tree};
    match (collective, ranks <= MOST_DIRECT) {
        (Collective::AllReduce, true) => &[OneShot, RecursiveDoubling, Direct, HalvingDoubling],
        (Collective::AllReduce, false) => &[RecursiveDoubling, HalvingDoubling, Bruck],
        (Collective::AllGather | Collective::ReduceScatter, true) => &[Direct, Bruck],
        (Collective::AllGather | Collective::ReduceScatter, false) => &[Bruck],
        // One tree for each root, over the same connections.
        (Collective::Broadcast | Collective::Reduce, _) => &[Tree],
        _ => &[],
    }
}

/// The plan with choices by size for links of this cost, for the collectives that have any.
pub(crate) fn for_links(
    plan: &Plan,
    collectives: &[Collective],
    cost: &LinkCost,
    slot_bytes: usize,
) -> Plan {
    let ranks = plan.ranks.len();
    let mut made = plan.clone();
    if !(2..=MOST_RANKS).contains(&ranks) {
        return made;
    }
    let Ok(sizing) = Sizing::new(4, slot_bytes) else { return made };
    // A barrier goes as an all-reduce.
    let mut wanted: Vec<Collective> = collectives
        .iter()
        .map(|c| if *c == Collective::Barrier { Collective::AllReduce } else { *c })
        .collect();
    wanted.sort_unstable();
    wanted.dedup();
    for collective in wanted {
        if let Some(rows) = rows(&mut made, collective, cost, sizing)
            && let Some(reached) = made.collectives.get_mut(&collective)
        {
            reached.by_size = rows;
        }
    }
    made
}

/// The choices for one collective; `None` where the plan does not carry it, or nothing beats its own way.
fn rows(
    made: &mut Plan,
    collective: Collective,
    cost: &LinkCost,
    sizing: Sizing,
) -> Option<Vec<SizeChoice>> {
    let ranks = made.ranks.len();
    let own = own(made, collective)?;
    let others: Vec<Algorithm> =
        ways(collective, ranks).iter().copied().filter(|way| *way != own.algorithm).collect();
    for way in &others {
        add_way(made, collective, *way);
    }
    let times = |row: SizeChoice| -> Option<Vec<u64>> {
        let mut trial = made.clone();
        trial.collectives.get_mut(&collective)?.by_size = vec![row];
        let root = collective.has_root().then_some(Rank(0));
        let time = |power: &u32| {
            let count = (1_usize << power) / 4;
            let schedule = schedule(&trial, collective, root, count, sizing).ok()?;
            Some(time_ns(&schedule, 4, cost))
        };
        SIZES.iter().map(time).collect()
    };
    let of_own = times(own.clone())?;
    // Only a plan that says what is best has its channels counted.
    let counted = made.collectives.get(&collective)?.best.is_some();
    let fewer = FEWER.iter().filter(|count| counted && **count < own.channels);
    let of_others: Vec<(SizeChoice, Vec<u64>)> = others
        .iter()
        .map(|way| row(*way, 1))
        .chain(fewer.map(|count| row(own.algorithm, *count)))
        .filter_map(|choice| Some((choice.clone(), times(choice)?)))
        .collect();
    let alike =
        |a: &SizeChoice, b: &SizeChoice| (a.algorithm, a.channels) == (b.algorithm, b.channels);
    let mut rows: Vec<SizeChoice> = Vec::new();
    for (at, power) in SIZES.iter().enumerate() {
        let best = of_others.iter().min_by_key(|(_, times)| times[at]);
        let chosen = match best {
            Some((way, times)) if times[at] < of_own[at] - of_own[at] / WORTH => way,
            _ => &own,
        };
        let chosen = SizeChoice { max_bytes: 2 << power, ..chosen.clone() };
        match rows.last_mut() {
            Some(last) if alike(last, &chosen) => last.max_bytes = chosen.max_bytes,
            _ => rows.push(chosen),
        }
    }
    if rows.iter().all(|row| alike(row, &own)) {
        return None;
    }
    match rows.last_mut() {
        Some(last) if alike(last, &own) => last.max_bytes = u64::MAX,
        _ => rows.push(own),
    }
    Some(rows)
}

fn row(algorithm: Algorithm, channels: u32) -> SizeChoice {
    let protocol = Protocol::Simple;
    SizeChoice { max_bytes: u64::MAX, algorithm, protocol, channels, predicted_ps: None }
}

/// What the plan carries it by at infinite size; `None` where it does not carry it.
fn own(plan: &Plan, collective: Collective) -> Option<SizeChoice> {
    if let Some(best) = &plan.collectives.get(&collective)?.best {
        return Some(row(best.algorithm, best.channels));
    }
    let mut channels = plan.channels_of(collective);
    let algorithm = match channels.next()?.pattern {
        Pattern::Ring => Algorithm::Ring,
        // Not the name of a tree of one root, which the way in few rounds has.
        Pattern::Tree => Algorithm::Forest,
        Pattern::Pairs | Pattern::Rounds => return None,
    };
    let count = u32::try_from(channels.count()).unwrap_or(u32::MAX).saturating_add(1);
    Some(row(algorithm, count))
}

/// Gives a plan a way in rounds, where it has none of that name for the collective.
fn add_way(plan: &mut Plan, collective: Collective, algorithm: Algorithm) {
    let named = |set: &&mut ChannelSet| set.algorithm == algorithm;
    let serves =
        |set: &ChannelSet| set.algorithm == algorithm && set.collectives.contains(&collective);
    if plan.alternatives.iter().any(serves) {
        return;
    }
    let in_rounds = |set: &&mut ChannelSet| {
        set.channels.iter().all(|channel| channel.pattern == Pattern::Rounds)
    };
    // One set for the collectives that go alike: they share connections.
    if let Some(set) = plan.alternatives.iter_mut().filter(named).find(in_rounds) {
        set.collectives.push(collective);
        set.channels.iter_mut().for_each(|channel| channel.collectives.push(collective));
        return;
    }
    let channel = Channel {
        index: 0,
        pattern: Pattern::Rounds,
        collectives: vec![collective],
        ranks: Vec::new(),
        root: None,
        nics: Vec::new(),
        share: Fraction::ONE,
        gbps: Fraction::ONE,
        edges: Vec::new(),
        reduce_edges: Vec::new(),
    };
    plan.alternatives.push(ChannelSet {
        algorithm,
        collectives: vec![collective],
        channels: vec![channel],
    });
}

/// A tree of as few rounds as can be from or to a root: rank r passes on to those 1, 2, 4, .. further round, as far as they are beyond
/// its own distance from the root. So trees of all roots go over the same connections.
pub(super) fn binomial(
    collective: Collective,
    ranks: usize,
    root: Rank,
    first: &Selected<'_>,
) -> Channel {
    let at = |place: usize| super::rank((root.index() + place) % ranks);
    let mut down: Vec<(usize, usize)> = Vec::new();
    for place in 1..ranks {
        let parent = place & !(1 << place.ilog2());
        down.push((parent, place));
    }
    let edge = |from: usize, to: usize| ChannelEdge { from: at(from), to: at(to), paths: vec![] };
    // The child with most behind it is served first, and heard last.
    let edges = match collective {
        Collective::Reduce => down.iter().rev().map(|&(p, c)| edge(c, p)).collect(),
        _ => down.iter().map(|&(p, c)| edge(p, c)).collect(),
    };
    let collectives = vec![collective];
    Channel {
        pattern: Pattern::Tree,
        root: Some(root),
        collectives,
        edges,
        ..first.channel.clone()
    }
}

#[cfg(test)]
mod tests {
    use Algorithm::{Bruck, Direct, HalvingDoubling, OneShot, RecursiveDoubling, Ring, Tree};

    use super::*;
    use topology::plan::Candidate;

    use crate::even::{full_plan, ring_plan, tree_plan};
    use crate::schedule::connections;

    fn chosen(plan: &Plan, collective: Collective, bytes: u64) -> Algorithm {
        let made = for_links(plan, &[collective], &TCP, 128 << 10);
        let rows = &made.collectives[&collective].by_size;
        rows.iter().find(|row| bytes <= row.max_bytes).map_or(Ring, |row| row.algorithm)
    }

    #[test]
    fn small_data_takes_few_rounds_and_large_data_the_plans_channels() {
        #[track_caller]
        fn check(collective: Collective, ranks: u32, expected: &[(u64, &[Algorithm])]) {
            for (bytes, allowed) in expected {
                let found = chosen(&ring_plan(ranks, 1), collective, *bytes);
                assert!(allowed.contains(&found), "{collective} of {bytes} among {ranks}: {found}");
            }
        }
        use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
        check(AllReduce, 2, &[(8, &[OneShot, RecursiveDoubling]), (64 << 20, &[Ring])]);
        let few = [RecursiveDoubling, HalvingDoubling, Direct];
        check(AllReduce, 4, &[(8, &[RecursiveDoubling]), (64 << 10, &few), (64 << 20, &[Ring])]);
        check(AllReduce, 6, &[(8, &[OneShot, RecursiveDoubling]), (64 << 20, &[Ring])]);
        check(AllReduce, 16, &[(8, &[RecursiveDoubling]), (1 << 16, &few), (64 << 20, &[Ring])]);
        check(AllGather, 4, &[(64, &[Direct, Bruck]), (64 << 20, &[Ring])]);
        check(ReduceScatter, 16, &[(64, &[Bruck]), (64 << 20, &[Ring])]);
        check(Broadcast, 4, &[(64, &[Tree]), (64 << 20, &[Ring])]);
        check(Reduce, 8, &[(64, &[Tree]), (64 << 20, &[Ring])]);
    }

    #[test]
    fn middle_sizes_take_few_of_many_channels() {
        let mut plan = ring_plan(4, 8);
        let reached = plan.collectives.get_mut(&Collective::Broadcast).unwrap();
        reached.best = Some(Candidate {
            algorithm: Ring,
            algbw_gbps: Fraction::ONE,
            channels: 8,
            height: 3,
            optimal: false,
            executors: Vec::new(),
            note: String::new(),
        });
        let made = for_links(&plan, &[Collective::Broadcast], &TCP, 128 << 10);
        let rows = &made.collectives[&Collective::Broadcast].by_size;
        let at = |bytes: u64| rows.iter().find(|row| bytes <= row.max_bytes).unwrap();
        assert_eq!(at(8).algorithm, Tree);
        assert!(at(256 << 10).channels < 8, "{rows:?}");
        assert!(rows.windows(2).all(|pair| pair[0].max_bytes < pair[1].max_bytes), "{rows:?}");
        assert_eq!((rows.last().unwrap().channels, rows.last().unwrap().max_bytes), (8, u64::MAX));
    }

    #[test]
    fn what_has_no_other_way_keeps_its_own() {
        for (plan, collective) in [
            (full_plan(4, 1), Collective::AllToAll),
            (ring_plan(33, 1), Collective::AllReduce),
            (ring_plan(1, 1), Collective::AllReduce),
            (ring_plan(3, 1), Collective::SendRecv),
        ] {
            assert_eq!(for_links(&plan, &[collective], &TCP, 1 << 17), plan, "{collective}");
        }
    }

    #[test]
    fn trees_of_every_root_share_their_connections() {
        for ranks in [2, 3, 6, 8] {
            let plan = ring_plan(ranks, 1);
            let wanted = [Collective::Broadcast, Collective::Reduce];
            let made = for_links(&plan, &wanted, &TCP, 1 << 17);
            let more = connections(&made, &wanted).len() - connections(&plan, &wanted).len();
            // One for each distance and rank, there and back.
            let distances = (ranks - 1).ilog2() as usize + 1;
            assert!(more <= 2 * distances * ranks as usize, "{ranks} ranks: {more}");
        }
    }

    #[test]
    fn plans_of_trees_get_ways_too() {
        let found = chosen(&tree_plan(8, 1, 1), Collective::AllReduce, 8);
        assert!([OneShot, RecursiveDoubling].contains(&found), "{found}");
    }
}
