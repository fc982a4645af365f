//! Groups that go on without a rank.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Barrier;

use super::*;
use crate::even::full_plan;

/// What a rank does instead of the second all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// Its part.
    Operates,
    /// Unwinds, as a process that is killed.
    Dies,
    /// Nothing until the others are through, then its part.
    Sleeps,
    /// Its part with another length.
    Differs,
}

use Does::{Dies, Differs, Operates, Sleeps};

/// The ranks of the smaller group by their old numbers, or why there is none.
type Ending = Result<Vec<Rank>, ConnectError>;

fn options(transport: Transport, timeout: Duration) -> Options {
    Options {
        transport,
        timeout,
        join_timeout: timeout * 2,
        slot_bytes: Some(4096),
        collectives: vec![Collective::AllReduce, Collective::AllGather],
        ..Options::default()
    }
}

/// What each rank ends with; `None` for one that died.
fn run(transport: Transport, all: &[Does]) -> Vec<Option<Ending>> {
    let ranks = u32::try_from(all.len()).unwrap();
    let sleeps = all.contains(&Sleeps);
    // What waits for a time limit waits so long; nothing else comes near it.
    let timeout = Duration::from_secs(if sleeps { 4 } else { 30 });
    let (begun, through) = (Barrier::new(all.len()), Barrier::new(all.len()));
    let each = |made: Result<Communicator, ConnectError>, rank: Rank| {
        let does = all[rank.index()];
        let lived = catch_unwind(AssertUnwindSafe(|| {
            let mut group = made.unwrap();
            let mut data = vec![1.0_f32; 3000];
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            // Nobody ends while another still takes from its memory.
            begun.wait();
            match does {
                Dies => resume_unwind(Box::new("died")),
                Differs => data.push(0.0),
                Sleeps => _ = through.wait(),
                Operates => {}
            }
            // One that comes late may find all it needs of an operation that the others gave up.
            while group.all_reduce(&mut data, ReduceOp::Sum).is_ok() {}
            let mut left = Vec::new();
            let plan = |ranks: &[Rank]| {
                left = ranks.to_vec();
                full_plan(u32::try_from(ranks.len()).unwrap(), 2)
            };
            let made = group.shrink(plan, options(transport, timeout));
            if sleeps && does != Sleeps {
                through.wait();
            }
            let mut smaller = made?;
            let again = group.shrink(|_| unreachable!("shrunk before"), Options::default());
            assert!(matches!(again, Err(ConnectError::Options(_))), "{again:?}");
            let mut numbers = vec![0_i64; left.len()];
            smaller.all_gather(&[i64::from(rank.0)], &mut numbers).unwrap();
            let old: Vec<i64> = left.iter().map(|rank| rank.0.into()).collect();
            assert_eq!(numbers, old, "the order is the old one");
            assert_eq!(left[smaller.rank().index()], rank);
            Ok(left)
        }));
        match lived {
            Ok(ending) => Some(ending),
            Err(why) if does == Dies && why.is::<&str>() => None,
            Err(why) => resume_unwind(why),
        }
    };
    group(&full_plan(ranks, 2), |_| options(transport, timeout), each)
}

#[track_caller]
fn check(all: &[Does], live: &[u32]) {
    for transport in [Transport::Shm, Transport::Tcp] {
        let endings = run(transport, all);
        let live: Vec<Rank> = live.iter().copied().map(Rank).collect();
        for (rank, ending) in (0..).map(Rank).zip(endings) {
            match ending {
                Some(Ok(ranks)) => {
                    assert!(ranks == live && live.contains(&rank), "{all:?}: {rank}: {ranks:?}");
                }
                Some(Err(ConnectError::Excluded(failure))) => {
                    assert!(!live.contains(&rank), "{all:?}: {rank}: {failure}");
                    assert_eq!(failure.culprit().rank, rank);
                }
                Some(Err(error)) => panic!("{transport:?}, {all:?}: {rank}: {error}"),
                None => assert!(!live.contains(&rank), "{all:?}: {rank} died"),
            }
        }
    }
}

#[test]
fn the_ranks_that_live_go_on() {
    check(&[Operates, Dies], &[0]);
    check(&[Dies, Operates], &[1]);
    check(&[Dies, Operates, Operates], &[1, 2]);
    check(&[Operates, Operates, Dies, Operates], &[0, 1, 3]);
    check(&[Dies, Dies, Operates, Operates], &[2, 3]);
    check(&[Operates, Dies, Dies, Operates, Dies], &[0, 3]);
}

#[test]
fn a_mistaken_call_costs_nobody_the_place() {
    check(&[Operates, Differs, Operates], &[0, 1, 2]);
}

#[test]
fn most_go_on_without_a_rank_that_does_nothing() {
    check(&[Operates, Operates, Sleeps], &[0, 1]);
    check(&[Sleeps, Operates, Operates], &[1, 2]);
}

#[test]
fn half_do_not_go_on_without_a_rank_that_may_live() {
    for (rank, ending) in run(Transport::Shm, &[Operates, Sleeps]).into_iter().enumerate() {
        match ending {
            Some(Err(ConnectError::TooFew { came, silent })) if rank == 0 => {
                assert_eq!((came, silent), (vec![Rank(0)], vec![Rank(1)]));
            }
            Some(Err(ConnectError::Excluded(_))) if rank == 1 => {}
            other => panic!("rank {rank}: {other:?}"),
        }
    }
}

#[test]
fn a_group_that_works_is_not_shrunk() {
    group(
        &full_plan(2, 1),
        |_| options(Transport::Shm, Duration::from_secs(30)),
        |made, _| {
            let mut group = made.unwrap();
            let error = group.shrink(|_| unreachable!("it works"), Options::default()).unwrap_err();
            assert!(error.to_string().contains("failed"), "{error}");
            group.barrier().unwrap();
        },
    );
}
