//! Every collective, checked element by element.

use std::ops::DerefMut;
use std::sync::Barrier;

use topology::Rank;
use transport::{Communicator, Element, ReduceOp, verbs_messages};

use crate::double::over;
use crate::group::Group;

/// What rank `rank` puts in place `i`: small whole numbers, so that sums are exact in any order.
fn value(rank: usize, i: usize) -> i64 {
    i64::try_from((i * 7 + rank * 31) % 1009).expect("below 1009")
}

type Buffer = Box<dyn DerefMut<Target = [i64]>>;

/// Memory of the caller's own, or of the communicator's, which NICs may read.
fn buffer(group: &Communicator, allocated: bool, count: usize) -> Buffer {
    if allocated {
        Box::new(group.allocate(count).expect("memory"))
    } else {
        Box::new(vec![i64::default(); count])
    }
}

#[track_caller]
fn check<T: Element + PartialEq + std::fmt::Debug>(
    what: &str,
    found: &[T],
    expected: impl Fn(usize) -> T,
) {
    for (i, element) in found.iter().enumerate() {
        assert_eq!(*element, expected(i), "{what}, element {i} of {}", found.len());
    }
}

pub(crate) fn every_collective(group: &mut Communicator, count: usize, allocated: bool) {
    let (ranks, own) = (group.ranks(), group.rank().index());
    let root = Rank(u32::try_from(ranks - 1).expect("few ranks"));
    let is_root = own == root.index();
    let at_root = |count| if is_root { count } else { 0 };
    let zeros = |group: &Communicator, count| buffer(group, allocated, count);
    let data = |group: &Communicator, count| {
        let mut data = buffer(group, allocated, count);
        data.iter_mut().enumerate().for_each(|(i, element)| *element = value(own, i));
        data
    };
    let sum = |i: usize| (0..ranks).map(|rank| value(rank, i)).sum::<i64>();

    let mut all = data(group, count);
    group.all_reduce(&mut all, ReduceOp::Sum).expect("all-reduce");
    check("all-reduce", &all, sum);

    let (part, mut whole) = (data(group, count), zeros(group, count * ranks));
    group.all_gather(&part, &mut whole).expect("all-gather");
    check("all-gather", &whole, |i| value(i / count, i % count));

    let (blocks, mut shard) = (data(group, count * ranks), zeros(group, count));
    group.reduce_scatter(&blocks, &mut shard, ReduceOp::Sum).expect("reduce-scatter");
    check("reduce-scatter", &shard, |i| sum(own * count + i));

    let mut all = if is_root { data(group, count) } else { zeros(group, count) };
    group.broadcast(&mut all, root).expect("broadcast");
    check("broadcast", &all, |i| value(root.index(), i));

    let mut all = zeros(group, count);
    group.reduce(&part, &mut all, ReduceOp::Sum, root).expect("reduce");
    check("reduce", if is_root { &all[..] } else { &[] }, sum);

    let mut whole = zeros(group, at_root(count * ranks));
    group.gather(&part, &mut whole, count * ranks, root).expect("gather");
    check("gather", &whole, |i| value(i / count, i % count));

    let (parts, mut shard) = (data(group, at_root(count * ranks)), zeros(group, count));
    group.scatter(&parts, &mut shard, count * ranks, root).expect("scatter");
    check("scatter", &shard, |i| value(root.index(), own * count + i));

    let mut whole = zeros(group, count * ranks);
    group.all_to_all(&blocks, &mut whole).expect("all-to-all");
    check("all-to-all", &whole, |i| value(i / count, own * count + i % count));

    let place = |step| Rank(u32::try_from((own + step) % ranks).expect("few ranks"));
    let (to, from) = (place(1), place(ranks - 1));
    let mut got = zeros(group, count);
    group.exchange(&part, to, &mut got, from).expect("exchange");
    check("send and receive", &got, |i| value(from.index(), i));

    let small = |i: usize| i32::try_from(sum(i)).expect("small");
    let float = |i| f32::from(i16::try_from(value(own, i)).expect("below 1009"));
    let mut narrow: Vec<f32> = (0..count).map(float).collect();
    group.all_reduce(&mut narrow, ReduceOp::Sum).expect("all-reduce of floats");
    check("all-reduce of floats", &narrow, |i| small(i) as f32);
    group.barrier().expect("barrier");
}

/// Runs them all over one configuration, and looks at what is left.
#[track_caller]
fn check_all(test: &str, group: Group, variables: &[(&str, &str)]) {
    let devices = (group.ranks * group.nics).to_string();
    let variables = [&[("DEVICES", devices.as_str())][..], variables].concat();
    over(test, "", &variables, |double| {
        let meet = Barrier::new(group.ranks as usize);
        for result in group.each(|group| {
            for count in [1, 37, 6001] {
                every_collective(group, count, false);
            }
            every_collective(group, 6001, true);
            // Before anybody leaves: who leaves last says so to ends that are gone.
            meet.wait();
            if group.rank() == Rank(0) {
                double.nothing_sent_twice();
            }
            meet.wait();
        }) {
            result.expect("a group");
        }
        double.nothing_left();
        assert!(double.report()["messages"]["rdma_write_with_imm"].as_u64() > Some(0));
    });
}

/// A test for each configuration, so that each has a child of its own.
macro_rules! checked {
    ($($name:ident: $ranks:literal ranks, $nics:literal nics, $settings:expr, $variables:expr;)*) => {
        $(#[test]
        fn $name() {
            let group = Group { ranks: $ranks, nics: $nics, settings: &$settings };
            check_all(concat!("collectives::", stringify!($name)), group, &$variables);
        })*
    };
}

checked! {
    two_ranks: 2 ranks, 1 nics, [], [];
    three_ranks: 3 ranks, 1 nics, [], [];
    five_ranks: 5 ranks, 1 nics, [], [];
    two_ranks_of_two_nics: 2 ranks, 2 nics, [], [];
    three_ranks_of_two_nics: 3 ranks, 2 nics, [], [];
    five_ranks_of_two_nics: 5 ranks, 2 nics, [], [];
    over_roce: 3 ranks, 1 nics, [], [("LINK_LAYER", "roce")];
    over_roce_of_link_local_addresses: 2 ranks, 1 nics, [], [("LINK_LAYER", "roce"), ("GIDS", "empty,ll-v1,ll-v2")];
    over_roce_by_a_named_entry: 2 ranks, 2 nics, [("ib_gid_index", "2")], [("LINK_LAYER", "roce")];
    on_the_second_port: 2 ranks, 1 nics, [("ib_hca", "=mlx5_0:2,mlx5_1:2")], [("PORTS", "2")];
    without_inline: 3 ranks, 1 nics, [], [("INLINE", "0")];
    with_less_inline_than_asked: 2 ranks, 1 nics, [], [("INLINE", "70"), ("INLINE_CLAMPED", "1")];
    of_an_old_library: 2 ranks, 1 nics, [], [("PLAIN", "1")];
    with_small_packets: 2 ranks, 1 nics, [], [("MTU", "256")];
    over_three_pairs: 3 ranks, 1 nics, [("ib_qps_per_connection", "3"), ("slots", "5")], [];
    over_three_pairs_that_overtake: 3 ranks, 1 nics, [("ib_qps_per_connection", "3")], [("SEED", "5")];
    announced: 2 ranks, 1 nics, [("ib_adaptive_routing", "1"), ("slot_bytes", "32768")], [("SEED", "9")];
    unannounced: 2 ranks, 1 nics, [("ib_adaptive_routing", "0"), ("slot_bytes", "32768")], [("SEED", "11")];
    with_the_fewest_slots: 2 ranks, 1 nics, [("slots", "2")], [("SEED", "3")];
    late_and_out_of_order: 5 ranks, 1 nics, [], [("SEED", "77")];
}

#[test]
fn who_leaves_once_all_are_done_asks_nobody_who_has_left() {
    let test = "collectives::who_leaves_once_all_are_done_asks_nobody_who_has_left";
    over(test, "", &[("DEVICES", "3")], |double| {
        let meet = Barrier::new(3);
        for result in (Group { ranks: 3, nics: 1, settings: &[] }).each(|group| {
            every_collective(group, 6001, false);
            meet.wait();
        }) {
            result.expect("a group");
        }
        double.nothing_left();
        double.nothing_sent_twice();
    });
}

#[test]
fn memory_of_callers_is_read_where_it_lies_and_copied_where_it_cannot_be_registered() {
    let test = "collectives::memory_of_callers_is_read_where_it_lies_and_copied_where_it_cannot_be_registered";
    over(test, "", &[], |double| {
        let group = Group { ranks: 2, nics: 1, settings: &[] };
        let lent = |faults: &str| {
            let before = verbs_messages();
            let meet = Barrier::new(2);
            for result in group.each(|group| {
                // What links need is registered; from here on only what is lent.
                meet.wait();
                if group.rank() == Rank(0) {
                    double.set_faults(faults);
                }
                meet.wait();
                every_collective(group, 50_001, true);
            }) {
                result.expect("a group");
            }
            double.set_faults("");
            double.nothing_left();
            let now = verbs_messages();
            (now.lent - before.lent, now.landed - before.landed)
        };
        let (out, inward) = lent("");
        assert!(out > 0 && inward > 0, "{out} {inward}");
        assert_eq!(lent("register:"), (0, 0));
        // Some fit below the limit of locked memory, and the others are copied.
        let (out, inward) = lent("register:device=0,bytes=500000");
        assert!(out > 0 && inward > 0, "{out} {inward}");
    });
}

/// Of a broadcast's messages none is copied but those that the root sends before it can have heard of a place: no more than there are slots.
#[test]
fn messages_land_where_they_are_wanted_but_for_those_sent_ahead() {
    let test = "collectives::messages_land_where_they_are_wanted_but_for_those_sent_ahead";
    for (settings, seed) in [
        (&[("slots", "3")][..], ""),
        (&[("slots", "3")], "7"),
        (&[("slots", "16")], "21"),
        (&[("slots", "4"), ("ib_qps_per_connection", "3")], "5"),
        (&[("slots", "4"), ("ib_adaptive_routing", "1")], ""),
    ] {
        let case = format!("{settings:?} {seed}");
        over(test, &case, &[("SEED", seed)], |double| {
            const MESSAGES: usize = 60;
            // Of 4 KiB each.
            const COUNT: usize = MESSAGES * 512;
            let slots: usize = settings[0].1.parse().expect("a number");
            let settings: &'static [_] = settings;
            let meet = Barrier::new(2);
            let root = Rank(0);
            let counts = (Group { ranks: 2, nics: 1, settings }).each(|group| {
                let mut data = buffer(group, true, COUNT);
                let mut landed = Vec::new();
                for round in 0..3 {
                    if group.rank() == root {
                        data.iter_mut().enumerate().for_each(|(i, at)| *at = value(round, i));
                    }
                    meet.wait();
                    let before = verbs_messages();
                    meet.wait();
                    group.broadcast(&mut data, root).expect("a broadcast");
                    check("broadcast", &data, |i| value(round, i));
                    meet.wait();
                    let now = verbs_messages();
                    assert_eq!(now.received - before.received, MESSAGES as u64);
                    assert_eq!(now.lent - before.lent, MESSAGES as u64);
                    landed.push(now.landed - before.landed);
                    meet.wait();
                }
                // Before anybody leaves.
                if group.rank() == root {
                    double.nothing_sent_twice();
                }
                meet.wait();
                landed
            });
            let most = MESSAGES as u64;
            for landed in counts.into_iter().flat_map(|landed| landed.expect("a group")) {
                assert!((most - slots as u64..=most).contains(&landed), "{landed} of {most}");
            }
            double.nothing_left();
        });
    }
}
