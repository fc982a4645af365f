//! Messages by the short way and by the executor's, mixed at either end.

use super::*;
use crate::even::full_plan;

fn options(transport: Transport) -> impl Fn(Rank) -> Options + Sync {
    move |_| Options {
        transport,
        slot_bytes: Some(4096),
        priorities: 2,
        timeout: Duration::from_secs(20),
        ..Options::for_all()
    }
}

/// Elements: what lies in a header, in the ring, in several messages.
const COUNTS: [usize; 7] = [0, 1, 11, 12, 512, 513, 2000];

fn values(from: Rank, round: usize) -> Vec<i64> {
    let first = i64::try_from(round).unwrap() * 1000 + i64::from(from.0);
    (first..).take(COUNTS[round % COUNTS.len()]).collect()
}

/// Each end goes its own way in every round, with what the other end does unknown to it: what arrives is the same.
#[test]
fn both_ends_may_go_either_way() {
    group(&full_plan(3, 1), options(Transport::Shm), |made, rank| {
        let mut communicator = made.unwrap();
        let (next, before) = (Rank((rank.0 + 1) % 3), Rank((rank.0 + 2) % 3));
        for round in 0..420 {
            let (ours, theirs) = (values(rank, round), values(before, round));
            communicator.set_priority(u32::try_from(round / 7 % 2).unwrap()).unwrap();
            let mut got = vec![-1; theirs.len()];
            match (round + rank.index()) % 4 {
                0 => drop(communicator.exchange(&ours, next, &mut got, before).unwrap()),
                1 => {
                    let sent = communicator.start_send(ours.clone(), next).unwrap();
                    communicator.receive(&mut got, before).unwrap();
                    assert_eq!(communicator.wait(sent).unwrap().0, ours);
                }
                2 => {
                    let pending = communicator.start_receive(got, before).unwrap();
                    // Something is in flight, so it goes by the executor.
                    communicator.send(&ours, next).unwrap();
                    got = communicator.wait(pending).unwrap().0;
                }
                _ => {
                    let sent = communicator.start_send(ours.clone(), next).unwrap();
                    let pending = communicator.start_receive(got, before).unwrap();
                    got = communicator.wait(pending).unwrap().0;
                    assert_eq!(communicator.wait(sent).unwrap().0, ours);
                }
            }
            assert_eq!(got, theirs, "rank {rank}, round {round}");
        }
    });
}

/// A sender that nobody holds back fills its connection and waits; a receiver finds everything, in order.
#[test]
fn a_sender_runs_ahead_by_as_many_messages_as_there_are_slots() {
    group(&full_plan(2, 1), options(Transport::Shm), |made, rank| {
        let mut communicator = made.unwrap();
        for round in 0..1400 {
            if rank == Rank(0) {
                communicator.send(&values(rank, round), Rank(1)).unwrap();
            } else {
                let mut got = vec![-1; COUNTS[round % COUNTS.len()]];
                communicator.receive(&mut got, Rank(0)).unwrap();
                assert_eq!(got, values(Rank(0), round), "round {round}");
            }
        }
    });
}

/// What is told of a message does not depend on its way: rank 1 has a hook, and so takes the executor's.
#[test]
fn both_ways_tell_the_same() {
    let watched = |rank: Rank| Options {
        on_step: (rank == Rank(1)).then(|| Box::new(|_: &crate::StepDone| {}) as crate::StepHook),
        ..options(Transport::Shm)(rank)
    };
    let told = group(&full_plan(2, 1), watched, |made, rank| {
        let mut communicator = made.unwrap();
        let other = Rank(1 - rank.0);
        let mut all = Vec::new();
        for (round, count) in COUNTS.into_iter().enumerate() {
            let mut got = vec![-1; count];
            let stats = communicator.exchange(&values(rank, round), other, &mut got, other);
            let stats = stats.unwrap();
            assert_eq!(got, values(other, round));
            all.push((stats.bytes, stats.path, stats.channels, stats.steps));
        }
        all
    });
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0][1], (8, Path::Plan, 1, 1));
}

#[test]
fn observed_messages_are_counted() {
    let watched =
        |rank: Rank| Options { observe: rank == Rank(0), ..options(Transport::Shm)(rank) };
    group(&full_plan(2, 1), watched, |made, rank| {
        let mut communicator = made.unwrap();
        let other = Rank(1 - rank.0);
        for _ in 0..10 {
            communicator.exchange(&[1_i32, 2], other, &mut [0; 2], other).unwrap();
        }
        let totals = communicator.totals();
        if rank == Rank(0) {
            let [(Collective::SendRecv, Path::Plan, of_both)] = totals[..] else {
                panic!("{totals:?}")
            };
            // Sent and received.
            assert_eq!((of_both.operations, of_both.bytes), (20, 160));
        } else {
            assert!(totals.is_empty());
        }
    });
}

#[test]
fn whoever_left_or_sends_something_else_is_named() {
    group(&full_plan(2, 1), options(Transport::Shm), |made, rank| {
        let mut communicator = made.unwrap();
        if rank == Rank(1) {
            communicator.send(&[7_i32], Rank(0)).unwrap();
            return;
        }
        let mut got = [0_i32];
        communicator.receive(&mut got, Rank(1)).unwrap();
        assert_eq!(got, [7], "what was sent before it left arrives");
        let error = communicator.receive(&mut got, Rank(1)).unwrap_err();
        let TransportError::Failed(failure) = &error else { panic!("{error}") };
        assert_eq!(failure.culprit().rank, Rank(1), "{error}");
        assert!(error.to_string().contains("send-recv"), "{error}");
    });
    group(&full_plan(2, 1), options(Transport::Shm), |made, rank| {
        let mut communicator = made.unwrap();
        if rank == Rank(1) {
            communicator.send(&[7_i32], Rank(0)).unwrap();
            communicator.barrier().unwrap_err();
            return;
        }
        let error = communicator.receive(&mut [0.0_f32], Rank(1)).unwrap_err().to_string();
        assert!(error.contains("(i32)") && error.contains("(f32)"), "{error}");
    });
}
