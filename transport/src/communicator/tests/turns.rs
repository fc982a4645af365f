//! Who goes first, and how fast: priorities and budgets, by counts.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use super::*;
use crate::pace::Pace;

/// A large operation is in flight when a small one is started; how many are in flight once the small one is over.
#[track_caller]
fn left_behind(transport: Transport, priorities: u32, priority: u32, expected: usize) {
    let options = |_| Options { priorities, paths: Paths::Plan, ..with(transport)(Rank(0)) };
    group(&ring_plan(3, 1), options, |made, rank| {
        let mut communicator = made.unwrap();
        let large = communicator.start_all_reduce(vec![1.0_f32; 1 << 20], ReduceOp::Sum).unwrap();
        communicator.set_priority(priority).unwrap();
        let small = communicator.start_all_reduce(vec![i64::from(rank.0)], ReduceOp::Sum).unwrap();
        let (sum, _) = communicator.wait(small).unwrap();
        assert_eq!(sum, [3]);
        assert_eq!(communicator.in_flight(), expected, "{transport:?}, priority {priority}");
        let (sum, _) = communicator.wait(large).unwrap();
        assert!(sum.iter().all(|x| (*x - 3.0).abs() < f32::EPSILON));
    });
}

#[test]
fn a_higher_priority_passes_what_is_in_flight() {
    for transport in [Transport::Tcp, Transport::Shm] {
        left_behind(transport, 2, 1, 1);
    }
    // Of one priority, the second waits for its turn on what both need.
    left_behind(Transport::Tcp, 2, 0, 0);
}

#[test]
fn priorities_are_those_the_group_was_made_for() {
    group(&ring_plan(2, 1), with(Transport::Shm), |made, _| {
        let mut communicator = made.unwrap();
        let error = communicator.set_priority(1).unwrap_err().to_string();
        assert_eq!(error, "there is no priority 1: the communicator was made for 1, from 0");
        assert_eq!(communicator.priority(), 0);
    });
    let options = |_| Options { priorities: 9, ..Options::default() };
    group(&ring_plan(2, 1), options, |made, _| {
        let error = made.unwrap_err().to_string();
        assert!(error.contains("1 to 8 priorities"), "{error}");
    });
}

/// Every collective and messages with every priority, one after the other and all at once.
#[test]
fn operations_of_all_priorities_are_right() {
    let options = |_| Options {
        priorities: 3,
        slot_bytes: Some(4096),
        transport: Transport::Tcp,
        ..Options::for_all()
    };
    group(&crate::even::full_plan(3, 1), options, |made, rank| {
        let mut communicator = made.unwrap();
        let mut pending = Vec::new();
        for round in 0..9_u32 {
            communicator.set_priority(round % 3).unwrap();
            let data = vec![i64::from(rank.0 + round); 5000];
            pending.push(communicator.start_all_reduce(data, ReduceOp::Sum).unwrap());
            let (next, before) = (Rank((rank.0 + 1) % 3), Rank((rank.0 + 2) % 3));
            let mut heard = [0_i64; 1];
            let word = |of: Rank| i64::from(100 * round + of.0);
            communicator.exchange(&[word(rank)], next, &mut heard, before).unwrap();
            assert_eq!(heard, [word(before)]);
            communicator.barrier().unwrap();
        }
        for (round, pending) in (0..).zip(pending) {
            let (sum, _) = communicator.wait(pending).unwrap();
            assert!(sum.iter().all(|x| *x == 3 + 3 * round), "round {round}");
        }
        if rank == Rank(0) {
            let mut heard = [0];
            assert_eq!(communicator.receive_any(&mut heard).unwrap(), Rank(2));
            assert_eq!(heard, [7]);
        } else if rank == Rank(2) {
            communicator.send(&[7], Rank(0)).unwrap();
        }
    });
}

#[test]
fn a_budget_holds_messages_back() {
    const RATE: u64 = 1_000_000;
    // Two shards of 25 messages.
    const COUNT: usize = 51_200;
    let options = |_| Options {
        bandwidth: NonZeroU64::new(RATE),
        timeout: Duration::from_secs(60),
        ..with(Transport::Shm)(Rank(0))
    };
    let both = Barrier::new(2);
    group(&ring_plan(2, 1), options, |made, _| {
        let mut communicator = made.unwrap();
        // Milliseconds; it stands still until told to run, and then goes on by one with each look.
        let (now, runs) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (read, goes) = (Arc::clone(&now), Arc::clone(&runs));
        let clock = Box::new(move || {
            let step = u64::from(goes.load(Ordering::Relaxed));
            Duration::from_millis(read.fetch_add(step, Ordering::Relaxed))
        });
        communicator.pace = Some(Pace::new(NonZeroU64::new(RATE).unwrap(), clock));
        let pending = communicator.start_all_reduce(vec![1.0_f32; COUNT], ReduceOp::Sum).unwrap();
        while communicator.pace.as_ref().unwrap().wait().is_none() {
            communicator.progress().unwrap();
        }
        // Three messages of 4096 bytes went: the third began within the burst of 10 ms.
        let wait = communicator.pace.as_ref().unwrap().wait();
        assert_eq!(wait, Some(Duration::from_nanos(3 * 4_096_000 - 10_000_000)));
        both.wait();
        assert!(!communicator.test(&pending).unwrap());
        runs.store(true, Ordering::Relaxed);
        let (sum, stats) = communicator.wait(pending).unwrap();
        assert!(sum.iter().all(|x| (*x - 2.0).abs() < f32::EPSILON));
        assert_eq!(stats.path, Path::Plan, "along channels, whose messages are counted");
        // Each rank sends all of it once: 204 ms at this rate, but for the burst and the last message.
        let took = now.load(Ordering::Relaxed);
        assert!(took >= 204 - 10 - 5, "{took} ms");
        assert!(!stats.held.is_zero() && stats.held <= Duration::from_millis(took));
        both.wait();
    });
}

#[test]
fn a_budget_that_would_look_like_silence_is_refused() {
    let options = |_| Options { bandwidth: NonZeroU64::new(100), ..Options::default() };
    group(&ring_plan(2, 1), options, |made, _| {
        let error = made.unwrap_err().to_string();
        assert!(error.contains("a quarter of the time limit"), "{error}");
    });
}
