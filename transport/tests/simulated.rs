//! Schedules in time over links that simulate them, beside closed forms and the checker's counts.

use planner::simulate::{Sharing, chain_ns, of_schedule, simulate};
use topology::schedule::Schedule;
use topology::{Collective, Rank};
use transport::even;
use transport::schedule::rounds::{Rounds, in_rounds};
use transport::schedule::{Sizing, schedule};

/// GB/s of a link.
const GBPS: f64 = 20.0;
const BYTES: usize = 4;

/// Nanoseconds over links that `way` names.
fn time(made: &Schedule, links: usize, way: impl Fn(Rank, Rank) -> Vec<(usize, f64)>) -> [f64; 2] {
    let transfers = of_schedule(made, BYTES, |from, to, _| (way(from, to), 0.0)).unwrap();
    [Sharing::Fair, Sharing::Serial]
        .map(|sharing| simulate(&vec![GBPS; links], &transfers, sharing).unwrap().end_ns())
}

#[track_caller]
fn near(found: [f64; 2], expected: f64, what: &str) {
    for found in found {
        assert!((found / expected - 1.0).abs() < 1e-3, "{what}: {found}, not {expected}");
    }
}

#[test]
fn a_broadcast_down_a_chain_takes_what_its_pieces_say() {
    for ranks in [2_u32, 3, 4, 6, 9] {
        // A tree whose ranks have one child each.
        let plan = even::tree_plan(ranks, 1, 1);
        let count = 5040 * 1024;
        let sizing = Sizing::new(BYTES, 1 << 30).unwrap();
        let made = schedule(&plan, Collective::Broadcast, Some(Rank(0)), count, sizing).unwrap();
        let pieces = made.programs[0].lanes.iter().map(|lane| lane.steps.len()).max().unwrap();
        assert!(ranks == 2 || pieces > 1);
        let bytes = (count * BYTES) as u64;
        let expected = chain_ns(bytes, ranks as usize, pieces as u64, GBPS, 0.0);
        let hop = |from: Rank, _: Rank| vec![(from.index(), 1.0)];
        near(time(&made, ranks as usize, hop), expected, &format!("{ranks} ranks"));
    }
}

/// Every rank with a link of its own to a switch and one back.
#[test]
fn rounds_over_a_switch_take_what_their_hops_carry() {
    let n = 8;
    let count = 1 << 20;
    let whole = Sizing::new(BYTES, 1 << 30).unwrap();
    let way = |from: Rank, to: Rank| vec![(from.index(), 1.0), (n + to.index(), 1.0)];
    let bytes = (count * BYTES) as f64;
    for (kind, over) in [
        (Rounds::OneShot, 7.0),
        (Rounds::TwoShot, 14.0 / 8.0),
        (Rounds::RecursiveDoubling, 3.0),
        (Rounds::HalvingDoubling, 14.0 / 8.0),
        (Rounds::Pat, 14.0 / 8.0),
        (Rounds::Bruck, 14.0 / 8.0),
    ] {
        let made = in_rounds(kind, Collective::AllReduce, n, count, whole).unwrap();
        let [fair, _] = time(&made, 2 * n, way);
        near([fair; 2], bytes * over / GBPS, &format!("{kind:?}"));
    }
}

#[test]
fn a_ring_takes_two_times_what_it_carries_once() {
    let plan = even::ring_plan(4, 1);
    let whole = Sizing::new(BYTES, 1 << 30).unwrap();
    let made = schedule(&plan, Collective::AllReduce, None, 1 << 20, whole).unwrap();
    let way = |from: Rank, _: Rank| vec![(from.index(), 1.0)];
    near(time(&made, 4, way), (BYTES << 20) as f64 * 1.5 / GBPS, "ring");
}
