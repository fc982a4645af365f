//! Shards of unequal length: a count that ranks do not divide, with shards that just fill what goes in one piece, or nearly.

use super::*;
use crate::even::full_plan;
use crate::schedule::shard;
use crate::{Path, Stats};

/// Bytes of a rank's data that no other rank has in the same place.
fn data(rank: usize, count: usize) -> Vec<u8> {
    (0..count).map(|at| u8::try_from((at * 7 + at / 251 + rank * 37) % 251).unwrap()).collect()
}

/// Elements of each shard, rounded down: cache lines, pages, pieces of stages, and one less and one more.
const SHARDS: [usize; 9] = [
    2 << 10,
    8 << 10,
    (16 << 10) - 1,
    16 << 10,
    (16 << 10) + 1,
    32 << 10,
    64 << 10,
    128 << 10,
    (1 << 20) + 64,
];

/// Collectives that only move, and all the rest, on private buffers over a link.
#[track_caller]
fn check(transport: Transport, ranks: usize) {
    let root = Rank(u32::try_from(ranks - 1).unwrap());
    let plan = full_plan(u32::try_from(ranks).unwrap(), 1);
    let options = |_| Options {
        transport,
        collectives: Collective::ALL.to_vec(),
        slot_bytes: Some(4096),
        ..Options::default()
    };
    group(&plan, options, |made, rank| {
        let mut group = made.unwrap();
        let own = rank.index();
        let mut paths = Vec::new();
        let mut took = |stats: Stats| paths.push(stats.path);
        for elements in SHARDS {
            for rest in [0, 1, ranks - 1] {
                let count = elements * ranks + rest;
                let part = |rank: usize| shard(count, Rank(u32::try_from(rank).unwrap()), ranks);
                let gathered: Vec<u8> =
                    (0..ranks).flat_map(|rank| data(rank, part(rank).len())).collect();
                let what = format!("{transport:?}, {ranks} ranks, {count} bytes, rank {rank}");

                let mut all = vec![255; count];
                took(group.all_gather(&data(own, part(own).len()), &mut all).unwrap());
                assert!(all == gathered, "all-gather, {what}");

                let mut all = vec![255; if rank == root { count } else { 0 }];
                took(group.gather(&data(own, part(own).len()), &mut all, count, root).unwrap());
                assert!(rank != root || all == gathered, "gather, {what}");

                let whole = data(ranks, if rank == root { count } else { 0 });
                let mut mine = vec![255; part(own).len()];
                took(group.scatter(&whole, &mut mine, count, root).unwrap());
                assert!(mine == data(ranks, count)[part(own)], "scatter, {what}");

                let mut mine = vec![255_u8; part(own).len()];
                took(group.reduce_scatter(&data(own, count), &mut mine, ReduceOp::Max).unwrap());
                let most: Vec<u8> = part(own)
                    .map(|at| (0..ranks).map(|r| (at * 7 + at / 251 + r * 37) % 251).max())
                    .map(|most| u8::try_from(most.unwrap()).unwrap())
                    .collect();
                assert!(mine == most, "reduce-scatter, {what}");

                let mut sum = data(own, count);
                took(group.broadcast(&mut sum, root).unwrap());
                assert!(sum == data(root.index(), count), "broadcast, {what}");
            }
        }
        assert!(transport != Transport::Shm || paths.contains(&Path::Staged), "{paths:?}");
    });
}

#[test]
fn shards_of_unequal_length_go_whole() {
    for ranks in [2, 3, 4] {
        check(Transport::Shm, ranks);
    }
    check(Transport::Tcp, 3);
}
