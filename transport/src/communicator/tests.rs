//! Groups of threads of this process; groups of processes are in the integration tests.

use std::time::Duration;

use topology::Collective;

use super::*;
use crate::element::{ElementType, ReduceOp};
use crate::even::{ring_plan, tree_plan};

mod account;
mod choice;
mod driver;
mod faults;
mod ffi;
mod fusion;
mod grid;
mod messages;
mod shards;
mod shrink;
mod turns;
mod types;

/// Runs `each` on every rank of a fresh group, one thread per rank.
fn group<T: Send>(
    plan: &Plan,
    options: impl Fn(Rank) -> Options + Sync,
    each: impl Fn(Result<Communicator, ConnectError>, Rank) -> T + Sync,
) -> Vec<T> {
    let folder = tempfile::tempdir().unwrap();
    let rendezvous: Rendezvous =
        format!("file://{}/meet", folder.path().display()).parse().unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = plan
            .ranks
            .iter()
            .map(|r| {
                let (rendezvous, options, each) = (&rendezvous, &options, &each);
                scope.spawn(move || {
                    each(Communicator::new(plan, r.rank, rendezvous, options(r.rank)), r.rank)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn with(transport: Transport) -> impl Fn(Rank) -> Options + Sync {
    move |_| Options { transport, slot_bytes: Some(4096), ..Options::default() }
}

fn value(rank: Rank, i: usize) -> f32 {
    let (i, rank) = (u16::try_from(i % 1000).unwrap(), u16::try_from(rank.0).unwrap());
    f32::from(i) + 1000.0 * f32::from(rank)
}

#[track_caller]
fn check(plan: &Plan, transport: Transport, counts: &[usize]) {
    let ranks: Vec<_> = plan.ranks.iter().map(|r| r.rank).collect();
    group(plan, with(transport), |made, rank| {
        let mut communicator = made.unwrap();
        for &count in counts {
            let input: Vec<f32> = (0..count).map(|i| value(rank, i)).collect();
            let expect: Vec<f32> =
                (0..count).map(|i| ranks.iter().map(|r| value(*r, i)).sum()).collect();
            let mut apart = vec![0.0; count];
            let stats = communicator.all_reduce_into(&input, &mut apart, ReduceOp::Sum).unwrap();
            assert_eq!(apart, expect, "rank {rank}, {count} elements, out of place");
            assert_eq!(stats.bytes, count as u64 * 4);
            let mut data = input;
            communicator.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            assert_eq!(data, expect, "rank {rank}, {count} elements, in place");
        }
    });
}

/// The collectives that move shards or have a root, each with every root, on one plan.
#[track_caller]
fn check_others(plan: &Plan, transport: Transport) {
    use Collective::{AllGather, Broadcast, Reduce, ReduceScatter};
    let ranks: Vec<_> = plan.ranks.iter().map(|r| r.rank).collect();
    let options = |_| Options {
        transport,
        slot_bytes: Some(4096),
        collectives: vec![AllGather, ReduceScatter, Broadcast, Reduce],
        ..Options::default()
    };
    group(plan, options, |made, rank| {
        let mut communicator = made.unwrap();
        for count in COUNTS {
            let all = |of: Rank| (0..count).map(move |i| value(of, i)).collect::<Vec<f32>>();
            let sum: Vec<f32> =
                (0..count).map(|i| ranks.iter().map(|r| value(*r, i)).sum()).collect();
            let part = |of: Rank| crate::schedule::shard(count, of, ranks.len());
            let mut gathered = vec![0.0; count];
            communicator.all_gather(&all(rank)[part(rank)], &mut gathered).unwrap();
            let expect: Vec<f32> = ranks.iter().flat_map(|r| all(*r)[part(*r)].to_vec()).collect();
            assert_eq!(gathered, expect, "rank {rank}, all-gather of {count}");
            let mut scattered = vec![0.0; part(rank).len()];
            communicator.reduce_scatter(&all(rank), &mut scattered, ReduceOp::Sum).unwrap();
            assert_eq!(scattered, sum[part(rank)], "rank {rank}, reduce-scatter of {count}");
            for root in &ranks {
                let mut buffer = all(rank);
                communicator.broadcast(&mut buffer, *root).unwrap();
                assert_eq!(buffer, all(*root), "rank {rank}, broadcast of {count} from {root}");
                let mut output = vec![-1.0; count];
                communicator.reduce(&all(rank), &mut output, ReduceOp::Sum, *root).unwrap();
                let expect = if rank == *root { sum.clone() } else { vec![-1.0; count] };
                assert_eq!(output, expect, "rank {rank}, reduce of {count} to {root}");
            }
        }
    });
}

#[test]
fn the_other_collectives_give_the_right_result() {
    for transport in [Transport::Shm, Transport::Tcp] {
        check_others(&ring_plan(2, 1), transport);
        check_others(&ring_plan(5, 2), transport);
    }
}

#[test]
fn a_shard_of_another_length_is_refused() {
    group(&ring_plan(2, 1), with(Transport::Shm), |made, _| {
        let mut communicator = made.unwrap();
        let error = communicator.all_gather(&[0.0; 3], &mut [0.0; 4]).unwrap_err();
        assert!(matches!(error, TransportError::Length { expected: 2, found: 3, .. }), "{error}");
    });
}

const COUNTS: [usize; 7] = [0, 1, 2, 17, 4096, 10_007, 50_000];

#[test]
fn rings_over_shared_memory() {
    for ranks in [1, 2, 3, 5] {
        check(&ring_plan(ranks, 2), Transport::Shm, &COUNTS);
    }
}

#[test]
fn rings_over_tcp() {
    for ranks in [2, 3] {
        check(&ring_plan(ranks, 2), Transport::Tcp, &COUNTS);
    }
}

#[test]
fn trees_over_both() {
    check(&tree_plan(5, 2, 2), Transport::Auto, &COUNTS);
    check(&tree_plan(4, 1, 3), Transport::Tcp, &COUNTS);
}

#[test]
fn a_rank_that_leaves_is_named() {
    let errors = group(&ring_plan(3, 1), with(Transport::Auto), |made, rank| {
        let mut communicator = made.unwrap();
        if rank == Rank(2) {
            return None;
        }
        let mut data = vec![1.0; 100_000];
        communicator.options.timeout = Duration::from_secs(5);
        let error = communicator.all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
        let again = communicator.all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
        assert!(again.to_string().starts_with("the communicator is unusable"), "{again}");
        Some(error.to_string())
    });
    for error in errors.into_iter().flatten() {
        assert!(error.starts_with("rank 2 on ") && error.contains("left the group"), "{error}");
    }
}

#[test]
fn another_size_is_an_error_on_every_rank() {
    for transport in [Transport::Shm, Transport::Tcp] {
        group(&ring_plan(4, 1), with(transport), |made, rank| {
            let count = if rank == Rank(1) { 4000 } else { 4004 };
            let error = made.unwrap().all_reduce(&mut vec![1.0; count], ReduceOp::Sum).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("4000 elements") && text.contains("4004 elements"), "{text}");
        });
    }
}

#[test]
fn other_settings_are_refused() {
    let options = |rank: Rank| Options {
        slots: Some(if rank == Rank(1) { 8 } else { 4 }),
        ..Options::default()
    };
    group(&ring_plan(3, 1), options, |made, _| {
        let error = made.unwrap_err().to_string();
        assert!(error.contains("has slots 4 of 131072 bytes, rank 1"), "{error}");
    });
}

#[test]
fn what_was_not_asked_for_is_not_connected() {
    let options = |_| Options { collectives: vec![Collective::Broadcast], ..Options::default() };
    group(&tree_plan(2, 1, 1), options, |made, _| {
        let error = made.unwrap().all_reduce(&mut [1.0], ReduceOp::Sum).unwrap_err();
        assert_eq!(error, TransportError::NotConnected(Collective::AllReduce));
    });
}

#[test]
fn nonsense_is_refused_before_anything_is_sent() {
    let rendezvous: Rendezvous = "file:///nowhere".parse().unwrap();
    let refuse = |rank, options, word: &str| {
        let error = Communicator::new(&ring_plan(2, 1), Rank(rank), &rendezvous, options);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refuse(2, Options::default(), "rank 2 is not in a plan of 2 ranks");
    refuse(0, Options { slots: Some(1), ..Options::default() }, "at least two slots");
    refuse(0, Options { slots: Some(999_999_999), ..Options::default() }, "at most 4096 slots");
    refuse(0, Options { slot_bytes: Some(8), ..Options::default() }, "slots of 8 bytes");
    refuse(0, Options { slot_bytes: Some(2 << 30), ..Options::default() }, "at most 1 GiB");
    group(&ring_plan(1, 1), with(Transport::Auto), |made, _| {
        let error = made.unwrap().all_reduce_into(&[1.0], &mut [0.0; 2], ReduceOp::Sum);
        assert_eq!(error.unwrap_err().to_string(), "an output of 2 elements, not 1");
    });
}

#[test]
fn what_exceeds_the_budget_is_refused_before_anything_moves() {
    // Ranks with two below and one above keep partial sums.
    let plan = tree_plan(7, 1, 2);
    let options = |bytes: usize| Options {
        transport: Transport::Tcp,
        memory_bytes: bytes,
        collectives: vec![Collective::AllReduce, Collective::ReduceScatter],
        ..Options::default()
    };
    let rendezvous: Rendezvous = "file:///nowhere".parse().unwrap();
    let error = Communicator::new(&plan, Rank(0), &rendezvous, options(1 << 20)).unwrap_err();
    let ConnectError::Budget { needed, budget } = error else { panic!("{error}") };
    assert!(needed > budget && budget == 1 << 20);
    group(
        &plan,
        |_| options(needed + 4000),
        |made, rank| {
            let mut communicator = made.unwrap();
            let count = 30_000;
            let shard = crate::schedule::shard(count, rank, 7).len();
            let (input, mut output) = (vec![1.0_f32; count], vec![0.0; shard]);
            let refused =
                communicator.reduce_scatter(&input, &mut output, ReduceOp::Sum).unwrap_err();
            assert!(matches!(refused, TransportError::Budget { .. }), "{refused}");
            let mut small = vec![1.0_f32; 420];
            communicator.reduce_scatter_in_place(&mut small, ReduceOp::Sum).unwrap();
            assert_eq!(small[crate::schedule::shard(420, rank, 7)], [7.0; 60], "usable as before");
        },
    );
}
