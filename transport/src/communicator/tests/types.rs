//! Every collective, type and operation; several in flight; messages between two; barriers.

use half::{bf16, f16};

use super::*;
use crate::arena::SharedBuffer;
use crate::element::Element;
use crate::even::full_plan;

/// Whole numbers that every type holds, with their sums, products and means.
trait Small: Element {
    fn small(value: u8) -> Self;
}

macro_rules! small {
    ($($type:ty, $from:expr);*) => {$(
        impl Small for $type {
            fn small(value: u8) -> Self {
                $from(value)
            }
        }
    )*};
}

small!(
    f32, f32::from; f64, f64::from; f16, |v: u8| f16::from_f32(v.into());
    bf16, |v: u8| bf16::from_f32(v.into()); i8, |v: u8| v.try_into().unwrap();
    i32, i32::from; i64, i64::from; u8, |v| v
);

fn every(transport: Transport) -> impl Fn(Rank) -> Options + Sync {
    move |_| Options {
        transport,
        slot_bytes: Some(4096),
        collectives: Collective::ALL.to_vec(),
        timeout: Duration::from_secs(20),
        ..Options::default()
    }
}

/// 1 or 2, so that products of few ranks stay small; differs by rank and place.
fn at(rank: Rank, i: usize) -> u8 {
    u8::try_from((i * 7 + rank.index() * 5 + i * rank.index()) % 2 + 1).unwrap()
}

fn combined(op: ReduceOp, ranks: &[Rank], i: usize) -> u8 {
    let of_all = ranks.iter().map(|r| at(*r, i));
    let sum: u8 = of_all.clone().sum();
    match op {
        ReduceOp::Sum => sum,
        ReduceOp::Prod => of_all.product(),
        ReduceOp::Min => of_all.min().unwrap(),
        ReduceOp::Max => of_all.max().unwrap(),
        // Rounded towards zero for integers; floats are compared where it is whole.
        ReduceOp::Avg => sum / u8::try_from(ranks.len()).unwrap(),
        ReduceOp::And => of_all.reduce(|a, b| a & b).unwrap(),
        ReduceOp::Or => of_all.reduce(|a, b| a | b).unwrap(),
    }
}

/// Every collective on one type, in place and out of place, with every root.
fn check_type<T: Small>(communicator: &mut Communicator, ranks: &[Rank], counts: &[usize]) {
    let rank = communicator.rank();
    let n = ranks.len();
    for &count in counts {
        let data = |of: Rank| (0..count).map(move |i| T::small(at(of, i))).collect::<Vec<T>>();
        let part = |of: Rank| crate::schedule::shard(count, of, n);
        let gathered: Vec<T> = ranks.iter().flat_map(|r| data(*r)[part(*r)].to_vec()).collect();
        let blank = || vec![T::default(); count];
        for op in ReduceOp::ALL.into_iter().filter(|op| op.combines(T::TYPE)) {
            let whole = |i: usize| {
                let sum = combined(ReduceOp::Sum, ranks, i);
                op != ReduceOp::Avg || usize::from(sum).is_multiple_of(n) || !T::TYPE.is_float()
            };
            let wanted: Vec<T> = (0..count).map(|i| T::small(combined(op, ranks, i))).collect();
            let same = |found: &[T], start: usize, what: &str| {
                for (i, found) in found.iter().enumerate() {
                    let right = *found == wanted[start + i] || !whole(start + i);
                    assert!(right, "rank {rank}, {what} {op} of {count} {}, {i}", T::TYPE);
                }
            };
            let mut own = data(rank);
            communicator.all_reduce(&mut own, op).unwrap();
            same(&own, 0, "all-reduce");
            let mut apart = blank();
            communicator.all_reduce_into(&data(rank), &mut apart, op).unwrap();
            same(&apart, 0, "all-reduce apart");
            let mut shard = vec![T::default(); part(rank).len()];
            communicator.reduce_scatter(&data(rank), &mut shard, op).unwrap();
            same(&shard, part(rank).start, "reduce-scatter");
            let mut own = data(rank);
            communicator.reduce_scatter_in_place(&mut own, op).unwrap();
            same(&own[part(rank)], part(rank).start, "reduce-scatter in place");
            for root in ranks {
                let (mut own, mut apart) = (data(rank), blank());
                communicator.reduce(&data(rank), &mut apart, op, *root).unwrap();
                communicator.reduce_in_place(&mut own, op, *root).unwrap();
                if rank == *root {
                    same(&apart, 0, "reduce");
                    same(&own, 0, "reduce in place");
                } else {
                    assert_eq!((apart, own), (blank(), data(rank)));
                }
            }
        }
        let mut apart = blank();
        communicator.all_gather(&data(rank)[part(rank)], &mut apart).unwrap();
        assert_eq!(apart, gathered);
        let mut own = data(rank);
        communicator.all_gather_in_place(&mut own).unwrap();
        assert_eq!(own, gathered);
        for root in ranks {
            let mut own = data(rank);
            communicator.broadcast(&mut own, *root).unwrap();
            assert_eq!(own, data(*root));
            let (mut own, mut apart) = (data(rank), blank());
            communicator.gather(&data(rank)[part(rank)], &mut apart, count, *root).unwrap();
            communicator.gather_in_place(&mut own, *root).unwrap();
            let expect =
                if rank == *root { [&gathered, &gathered] } else { [&blank(), &data(rank)] };
            assert_eq!([&apart, &own], expect, "rank {rank}, gather of {count} to {root}");
            let input = if rank == *root { data(rank) } else { Vec::new() };
            let (mut shard, mut own) = (vec![T::default(); part(rank).len()], data(rank));
            communicator.scatter(&input, &mut shard, count, *root).unwrap();
            communicator.scatter_in_place(&mut own, *root).unwrap();
            let expect = &data(*root)[part(rank)];
            assert_eq!([&shard, &own[part(rank)]], [expect, expect]);
        }
        let block = |from: Rank, to: Rank| {
            let start = count * to.index();
            (start..start + count).map(|i| T::small(at(from, i))).collect::<Vec<T>>()
        };
        let input: Vec<T> = ranks.iter().flat_map(|to| block(rank, *to)).collect();
        let mut output = vec![T::default(); count * n];
        communicator.all_to_all(&input, &mut output).unwrap();
        let expect: Vec<T> = ranks.iter().flat_map(|from| block(*from, rank)).collect();
        assert_eq!(output, expect, "rank {rank}, all-to-all of {count}");
        communicator.barrier().unwrap();
    }
}

#[test]
fn every_collective_on_every_type() {
    for (ranks, transport) in [(1, Transport::Auto), (3, Transport::Auto), (2, Transport::Tcp)] {
        let plan = full_plan(ranks, 2);
        let all: Vec<_> = plan.ranks.iter().map(|r| r.rank).collect();
        group(&plan, every(transport), |made, _| {
            let mut communicator = made.unwrap();
            check_type::<f32>(&mut communicator, &all, &[0, 1, 2, 17, 5003]);
            check_type::<f64>(&mut communicator, &all, &[3, 1000]);
            check_type::<f16>(&mut communicator, &all, &[5, 3001]);
            check_type::<bf16>(&mut communicator, &all, &[5, 3001]);
            check_type::<i8>(&mut communicator, &all, &[1, 9001]);
            check_type::<i32>(&mut communicator, &all, &[100]);
            check_type::<i64>(&mut communicator, &all, &[7, 2000]);
            check_type::<u8>(&mut communicator, &all, &[64, 9001]);
        });
    }
}

#[test]
fn several_sockets_carry_what_one_does() {
    let all: Vec<Rank> = (0..3).map(Rank).collect();
    let options = |rank| Options { sockets: 3, ..every(Transport::Tcp)(rank) };
    group(&full_plan(3, 1), options, |made, _| {
        check_type::<i32>(&mut made.unwrap(), &all, &[1, 5003, 40_000]);
    });
}

/// Data that goes round each rank's stage several times, so that every rank waits for room there.
#[test]
fn every_collective_in_many_rounds() {
    for ranks in [2, 3, 5] {
        let plan = full_plan(ranks, 1);
        let all: Vec<Rank> = (0..ranks).map(Rank).collect();
        group(&plan, every(Transport::Auto), |made, _| {
            let mut communicator = made.unwrap();
            check_type::<i32>(&mut communicator, &all, &[20_000, 150_001]);
            check_type::<u8>(&mut communicator, &all, &[70_003]);
        });
    }
}

/// The ways that all of them must take with the same result: the plan's channels, stages, registered buffers, and where the kernel
/// permits them its copies between processes.
#[test]
fn every_way_gives_the_same() {
    let bits = |paths, cross_memory, registered: bool| {
        let options = move |rank| Options { paths, cross_memory, ..every(Transport::Auto)(rank) };
        group(&full_plan(3, 2), options, move |made, rank| {
            let mut communicator = made.unwrap();
            let mut all = Vec::new();
            for count in [5000, 70_001, 300_000] {
                let value = |i: usize| at(rank, i).into();
                let mut data: Vec<i64> = (0..count).map(value).collect();
                let stats = if registered {
                    let mut shared = communicator.allocate(count).unwrap();
                    assert!(shared.is_shared());
                    shared.copy_from_slice(&data);
                    let stats = communicator.all_reduce(&mut shared, ReduceOp::Sum).unwrap();
                    data.copy_from_slice(&shared);
                    stats
                } else {
                    communicator.all_reduce(&mut data, ReduceOp::Sum).unwrap()
                };
                let direct = registered || communicator.crosses_memory();
                let shared = if direct { Path::Direct } else { Path::Staged };
                let way = if paths == Paths::Plan { Path::Plan } else { shared };
                assert_eq!(stats.path, way);
                let mut mean = vec![u8::try_from(rank.0).unwrap(); count];
                communicator.all_reduce(&mut mean, ReduceOp::Avg).unwrap();
                all.push((data, mean));
            }
            all
        })
    };
    let plan = bits(Paths::Plan, true, false);
    assert_eq!(plan, bits(Paths::Auto, true, false));
    assert_eq!(plan, bits(Paths::Auto, false, false));
    assert_eq!(plan, bits(Paths::Auto, false, true));
    assert_eq!(plan[0][0].1[0], 1);
}

#[test]
fn registered_buffers_serve_every_collective() {
    group(&full_plan(3, 1), every(Transport::Auto), |made, rank| {
        let mut communicator = made.unwrap();
        let count = 30_000;
        let fresh = || -> (SharedBuffer<i32>, SharedBuffer<i32>) {
            let mut input = communicator.allocate(count).unwrap();
            for (i, x) in input.iter_mut().enumerate() {
                *x = at(rank, i).into();
            }
            (input, communicator.allocate(count).unwrap())
        };
        let of = |rank: u32, i: usize| i32::from(at(Rank(rank), i));
        let part = crate::schedule::shard(count, rank, 3);
        let cases: Vec<_> = (0..8).map(|_| fresh()).collect();
        let mut cases = cases.into_iter();
        let mut next = || cases.next().unwrap();
        let (input, mut output) = next();
        communicator.all_gather(&input[part.clone()], &mut output).unwrap();
        let owner = |i: usize| {
            (0..3).find(|r| crate::schedule::shard(count, Rank(*r), 3).contains(&i)).unwrap()
        };
        assert!((0..count).all(|i| output[i] == of(owner(i), i)));
        let (mut own, _) = next();
        communicator.broadcast(&mut own, Rank(2)).unwrap();
        assert!((0..count).all(|i| own[i] == of(2, i)));
        let (input, mut output) = next();
        communicator.all_to_all(&input, &mut output).unwrap();
        let from =
            |i: usize| (u32::try_from(i / 10_000).unwrap(), i % 10_000 + 10_000 * rank.index());
        assert!((0..count).all(|i| output[i] == of(from(i).0, from(i).1)));
        let (mut own, _) = next();
        communicator.scatter_in_place(&mut own, Rank(1)).unwrap();
        assert!(part.clone().all(|i| own[i] == of(1, i)));
        let (input, mut output) = next();
        communicator.reduce(&input, &mut output, ReduceOp::Max, Rank(0)).unwrap();
        let most =
            |i: usize| if rank == Rank(0) { (0..3).map(|r| of(r, i)).max().unwrap() } else { 0 };
        assert!((0..count).all(|i| output[i] == most(i)));
        let (mut own, _) = next();
        communicator.reduce_scatter_in_place(&mut own, ReduceOp::Sum).unwrap();
        assert!(part.clone().all(|i| own[i] == (0..3).map(|r| of(r, i)).sum::<i32>()));
        let (input, mut output) = next();
        communicator.gather(&input[part], &mut output, count, Rank(1)).unwrap();
        assert!((0..count).all(|i| output[i] == if rank == Rank(1) { of(owner(i), i) } else { 0 }));
    });
}

#[test]
fn a_full_heap_is_an_error_and_space_comes_back() {
    let options = |rank| Options { heap_bytes: 1 << 21, ..every(Transport::Auto)(rank) };
    group(&full_plan(2, 1), options, |made, _| {
        let communicator = made.unwrap();
        let most = communicator.allocate::<u8>(1 << 21).unwrap();
        let error = communicator.allocate::<u8>(1).unwrap_err();
        assert!(matches!(error, TransportError::NoMemory { bytes: 1, .. }), "{error}");
        drop(most);
        let again = communicator.allocate::<i64>(1000).unwrap();
        assert!(again.iter().all(|x| *x == 0));
    });
    let tcp = group(&full_plan(2, 1), every(Transport::Tcp), |made, _| {
        made.unwrap().allocate::<u8>(5).unwrap().is_shared()
    });
    assert_eq!(tcp, [false, false]);
}

/// A small operation on one rank, a large one on another.
#[test]
fn another_size_is_an_error_however_it_travels() {
    for counts in [[100, 200_000], [200_000, 100], [200_000, 200_004]] {
        group(&full_plan(2, 1), every(Transport::Auto), |made, rank| {
            let mut data = vec![1.0_f32; counts[rank.index()]];
            let error = made.unwrap().all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
            let text = error.to_string();
            assert!(counts.iter().all(|c| text.contains(&format!("{c} elements"))), "{text}");
        });
    }
}

/// Over sockets the ways may differ with the size, so that neither ever sees a message of the other.
#[test]
fn sizes_that_go_different_ways_are_an_error() {
    for counts in [[2, 1 << 20], [1 << 20, 2], [2, 1 << 14]] {
        let options =
            |rank| Options { timeout: Duration::from_secs(30), ..every(Transport::Tcp)(rank) };
        group(&full_plan(2, 2), options, |made, rank| {
            let mut data = vec![1.0_f32; counts[rank.index()]];
            let error = made.unwrap().all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
            let text = error.to_string();
            assert!(counts.iter().all(|c| text.contains(&format!("{c} elements"))), "{text}");
        });
    }
}

/// One rank broadcasts, and need not wait for anybody; the other waits for it in vain.
#[test]
fn another_operation_is_an_error() {
    group(&full_plan(2, 1), every(Transport::Auto), |made, rank| {
        let mut communicator = made.unwrap();
        let result = if rank == Rank(0) {
            communicator.broadcast(&mut [1_u8], Rank(1)).map(drop)
        } else {
            communicator.all_reduce(&mut [1_u8], ReduceOp::Sum).map(drop)
        };
        let text = result.unwrap_err().to_string();
        assert!(text.contains("all-reduce") && text.contains("broadcast"), "{text}");
    });
}

/// A root that is far ahead waits for the slowest reader, and overwrites nothing.
#[test]
fn a_root_runs_ahead_by_as_many_slots_as_there_are() {
    group(&full_plan(3, 1), every(Transport::Auto), |made, rank| {
        let mut communicator = made.unwrap();
        for i in 0..2000_u32 {
            let mut data = [if rank == Rank(0) { i } else { 0 }; 3].map(i64::from);
            communicator.broadcast(&mut data, Rank(0)).unwrap();
            assert_eq!(data, [i64::from(i); 3]);
            if rank == Rank(2) && i % 100 == 0 {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn groups_of_a_grid_work_at_once() {
    for transport in [Transport::Auto, Transport::Tcp] {
        group(&full_plan(4, 1), every(transport), |made, rank| {
            let mut world = made.unwrap();
            let plan = |ranks: &[Rank]| full_plan(u32::try_from(ranks.len()).unwrap(), 1);
            let rows = [vec![Rank(0), Rank(1)], vec![Rank(3), Rank(2)]];
            let columns = [vec![Rank(0), Rank(2)], vec![Rank(1), Rank(3)]];
            let mut row = world.subgroup(&rows, plan, every(transport)(rank)).unwrap().unwrap();
            let mut column =
                world.subgroup(&columns, plan, every(transport)(rank)).unwrap().unwrap();
            assert_eq!(row.rank(), Rank([0, 1, 1, 0][rank.index()]));
            let value = i64::from(1 << rank.0);
            let in_row = row.start_all_reduce(vec![value; 10_000], ReduceOp::Sum).unwrap();
            let in_column = column.start_all_reduce(vec![value; 10_000], ReduceOp::Sum).unwrap();
            let mut all = [value];
            world.all_reduce(&mut all, ReduceOp::Sum).unwrap();
            assert_eq!(all, [15]);
            let (column_sum, _) = column.wait(in_column).unwrap();
            assert_eq!(column_sum, vec![[5, 10][rank.index() % 2]; 10_000]);
            assert_eq!(row.wait(in_row).unwrap().0, vec![[3, 12][rank.index() / 2]; 10_000]);
            // Rank 3 is in no group; the others are sorted by key.
            let colour = (rank != Rank(3)).then_some(7);
            let three = world.split(colour, -i64::from(rank.0), plan, every(transport)(rank));
            match three.unwrap() {
                None => assert_eq!(rank, Rank(3)),
                Some(mut three) => {
                    assert_eq!(three.rank(), Rank(2 - rank.0));
                    let mut data = [i32::try_from(rank.0).unwrap()];
                    three.broadcast(&mut data, Rank(0)).unwrap();
                    assert_eq!(data, [2]);
                }
            }
            let twice = world.subgroup(&[vec![Rank(0), Rank(0)]], plan, every(transport)(rank));
            assert!(twice.unwrap_err().to_string().contains("twice"));
        });
    }
}

#[test]
fn another_plan_in_a_group_is_refused() {
    group(&full_plan(2, 1), every(Transport::Auto), |made, rank| {
        let plan = |_: &[Rank]| full_plan(2, rank.0 + 1);
        let error = made.unwrap().split(Some(0), 0, plan, every(Transport::Auto)(rank));
        assert!(error.unwrap_err().to_string().contains("plan digest"));
    });
}

#[test]
fn floats_are_not_combined_by_bits() {
    group(&full_plan(2, 1), every(Transport::Auto), |made, _| {
        let error = made.unwrap().all_reduce(&mut [1.0_f32], ReduceOp::And).unwrap_err();
        let wanted = TransportError::NotCombined { op: ReduceOp::And, element: ElementType::F32 };
        assert_eq!(error, wanted);
    });
}

/// Sums of any floats, where the order of additions shows.
#[test]
fn the_same_plan_gives_the_same_bits() {
    let run = || {
        group(&full_plan(3, 2), every(Transport::Auto), |made, rank| {
            let mut communicator = made.unwrap();
            let mut seed = u64::from(rank.0) + 1;
            let mut data: Vec<f32> = (0..20_000)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    f32::from_bits(u32::try_from(seed >> 41).unwrap() | 0x3f00_0000)
                })
                .collect();
            communicator.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            communicator.all_reduce(&mut data[..1000], ReduceOp::Sum).unwrap();
            data.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let (one, two) = (run(), run());
    assert_eq!(one, two);
    assert!(one.iter().all(|bits| *bits == one[0]));
}

/// What rank `from` sends to `to`.
fn blocks(from: usize, to: usize) -> usize {
    (from * 5 + to * 3) % 4 * 700
}

#[test]
fn uneven_blocks_arrive() {
    for transport in [Transport::Auto, Transport::Tcp] {
        group(&full_plan(3, 2), every(transport), |made, rank| {
            let own = rank.index();
            let sends: Vec<usize> = (0..3).map(|to| blocks(own, to)).collect();
            let receives: Vec<usize> = (0..3).map(|from| blocks(from, own)).collect();
            let value = |from: usize, to: usize, i: usize| {
                i64::try_from(from * 100_000 + to * 10_000 + i).unwrap()
            };
            let input: Vec<i64> = (0..3)
                .flat_map(|to| (0..blocks(own, to)).map(move |i| value(own, to, i)))
                .collect();
            let expect: Vec<i64> = (0..3)
                .flat_map(|from| (0..blocks(from, own)).map(move |i| value(from, own, i)))
                .collect();
            let mut output = vec![0; expect.len()];
            let mut communicator = made.unwrap();
            communicator.all_to_all_uneven(&input, &sends, &mut output, &receives).unwrap();
            assert_eq!(output, expect);
        });
    }
}

#[test]
fn uneven_blocks_that_do_not_match_are_refused_before_any_moves() {
    group(&full_plan(2, 1), every(Transport::Auto), |made, rank| {
        let mut communicator = made.unwrap();
        let receives = if rank == Rank(1) { [3, 1] } else { [1, 1] };
        let mut output = vec![0_u8; receives.iter().sum()];
        let result = communicator.all_to_all_uneven(&[1, 2_u8], &[1, 1], &mut output, &receives);
        let text = result.unwrap_err().to_string();
        assert_eq!(text, "rank 0 sends 1 elements to rank 1, which expects 3");
        let mut output = [0_u8; 2];
        communicator.all_to_all_uneven(&[1, 2], &[1, 1], &mut output, &[1, 1]).unwrap();
        assert_eq!(output, [u8::try_from(rank.0 + 1).unwrap(); 2]);
        let error = communicator.all_to_all(&[0; 3], &mut [0; 3]).unwrap_err().to_string();
        assert!(error.contains("3 elements are not"), "{error}");
        let error = communicator.all_to_all_uneven(&[1_u8], &[1, 1], &mut [], &[0, 0]);
        assert_eq!(error.unwrap_err().to_string(), "an input of 1 elements, not 2");
    });
}

#[test]
fn several_in_flight_end_in_any_order() {
    for transport in [Transport::Auto, Transport::Tcp] {
        group(&full_plan(3, 2), every(transport), |made, rank| {
            let mut communicator = made.unwrap();
            let mine = |i: usize| vec![i32::try_from(i + rank.index()).unwrap(); 1000 * i + 1];
            let mut pending = Vec::new();
            for i in 0..6 {
                pending.push((i, communicator.start_all_reduce(mine(i), ReduceOp::Sum).unwrap()));
            }
            let spread = communicator
                .start_broadcast(vec![i32::try_from(rank.0).unwrap(); 4000], Rank(1))
                .unwrap();
            // A blocking one in between overtakes none of them.
            let mut sum = [1_i64];
            communicator.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [3]);
            while !communicator.test(&spread).unwrap() {
                std::thread::yield_now();
            }
            // Ranks wait in different orders.
            pending.rotate_left(rank.index() * 2);
            for (i, one) in pending.into_iter().rev() {
                while !communicator.wait_for(&one, Duration::from_millis(20)).unwrap() {}
                let (data, stats) = communicator.wait(one).unwrap();
                let expect = i32::try_from(3 * i + 3).unwrap();
                assert_eq!((data.len(), stats.bytes), (1000 * i + 1, 4000 * i as u64 + 4));
                assert!(data.iter().all(|x| *x == expect), "rank {rank}, operation {i}");
            }
            assert_eq!(communicator.wait(spread).unwrap().0, vec![1; 4000]);
        });
    }
}

#[test]
fn one_dropped_in_flight_is_done_all_the_same() {
    group(&full_plan(2, 1), every(Transport::Auto), |made, rank| {
        let mut communicator = made.unwrap();
        let pending = communicator.start_all_reduce(vec![1.0_f64; 9000], ReduceOp::Sum).unwrap();
        if rank == Rank(0) {
            drop(pending);
        } else {
            assert_eq!(communicator.wait(pending).unwrap().0, vec![2.0; 9000]);
        }
        communicator.barrier().unwrap();
    });
}

#[test]
fn messages_between_two() {
    for transport in [Transport::Auto, Transport::Tcp] {
        group(&full_plan(3, 1), every(transport), |made, rank| {
            let mut communicator = made.unwrap();
            for count in [0, 1, 1000, 50_000] {
                let value = |from: Rank| vec![u8::try_from(from.0 + 1).unwrap(); count];
                if rank == Rank(0) {
                    // Each sends once; in whatever order they come, nobody is heard twice.
                    let mut senders = Vec::new();
                    for _ in 0..2 {
                        let mut data = vec![0; count];
                        let from = communicator.receive_any(&mut data).unwrap();
                        assert_eq!(data, value(from));
                        senders.push(from);
                    }
                    senders.sort_unstable();
                    assert_eq!(senders, [Rank(1), Rank(2)]);
                } else {
                    communicator.send(&value(rank), Rank(0)).unwrap();
                    // Both send before either receives.
                    let peer = Rank(3 - rank.0);
                    let sent = communicator.start_send(value(rank), peer).unwrap();
                    let got = communicator.start_receive(vec![0; count], peer).unwrap();
                    assert_eq!(communicator.wait(got).unwrap().0, value(peer));
                    assert_eq!(communicator.wait(sent).unwrap().0, value(rank));
                }
                // Else a fast rank's next message is among those of this round.
                communicator.barrier().unwrap();
            }
        });
    }
}

#[test]
fn a_message_of_another_size_is_an_error() {
    group(&full_plan(2, 1), every(Transport::Auto), |made, rank| {
        let mut communicator = made.unwrap();
        let error = communicator.send(&[0_u8], rank).unwrap_err();
        assert_eq!(error, TransportError::NoPeer { peer: rank, ranks: 2 });
        if rank == Rank(0) {
            communicator.send(&[1_i32, 2], Rank(1)).unwrap();
            communicator.barrier().unwrap_err();
        } else {
            let error = communicator.receive_any(&mut [0_i32; 3]).unwrap_err().to_string();
            assert!(error.contains("2 elements (i32)") && error.contains("3 elements"), "{error}");
        }
    });
}

#[test]
fn a_monitored_barrier_names_who_is_missing() {
    group(&full_plan(4, 1), every(Transport::Auto), |made, rank| {
        let mut communicator = made.unwrap();
        communicator.monitored_barrier(Duration::from_secs(20)).unwrap();
        if rank.0 % 2 == 0 {
            let limit = Duration::from_millis(300);
            let error = communicator.monitored_barrier(limit).unwrap_err();
            let ranks = vec![Rank(1), Rank(3)];
            assert_eq!(error, TransportError::Missing { ranks, limit });
        }
        // The late ones hear that they were missed, and the group goes on.
        communicator.barrier().unwrap();
        if rank.0 % 2 == 1 {
            let error = communicator.monitored_barrier(Duration::from_secs(20)).unwrap_err();
            assert!(error.to_string().starts_with("ranks 1, 3 did not come"), "{error}");
        }
        communicator.monitored_barrier(Duration::from_secs(20)).unwrap();
    });
}

#[test]
fn a_barrier_needs_no_channels() {
    let options = |_| Options { collectives: vec![], ..Options::default() };
    group(&full_plan(3, 1), options, |made, _| made.unwrap().barrier().unwrap());
}
