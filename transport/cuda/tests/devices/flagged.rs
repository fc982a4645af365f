//! Small messages that travel with their flags (LL and LL128): the results of copies, by one launch an operation.
//!
//! The double runs each block as a thread, and stores of 8 bytes, for LL128 the flag, after what they bring. That a GPU's stores stay whole
//! and come in order is not shown here.

use std::time::Duration;

use half::bf16;
use topology::{Collective, Plan, Protocol, Rank};
use transport::even::{full_plan, tree_plan};
use transport::{Element, Failure, ReduceOp};
use transport_cuda::{Communicator, CudaError, Options, objects};

use crate::collectives::Side;
use crate::double::{is_child, nothing_left, over, told};
use crate::group::{Guarded, group, options, stream};
use crate::processes::{all_succeed, made, processes};

const FAULTS: &str = "TOPOD_CUDA_DOUBLE_FAULTS";
const BOTH: [Protocol; 2] = [Protocol::Ll, Protocol::Ll128];

/// By one protocol whatever the size, with short slots: messages are many.
fn only(protocol: Protocol) -> Options {
    Options { protocols: Some(vec![protocol]), flagged_bytes: 512, ..options() }
}

/// Operations that went by a protocol.
fn count(communicator: &Communicator, protocol: Protocol) -> u64 {
    communicator.by_protocol().get(&protocol).copied().unwrap_or(0)
}

/// Every collective, element type and operation.
fn everything(plan: &Plan, protocol: Protocol, counts: &[usize]) {
    group(
        plan,
        |_| only(protocol),
        |made, rank| {
            let mut communicator = made.unwrap();
            assert_eq!(communicator.why_not(protocol), None, "{rank}");
            Side::new(&mut communicator).all(counts);
            assert!(count(&communicator, protocol) > 100, "{:?}", communicator.by_protocol());
            // What is longer than a launch holds says so.
            let long =
                |why: &String| ["words", "elements", "lanes"].iter().any(|what| why.contains(what));
            let by_copies = communicator.by_copies();
            assert!(by_copies.keys().all(long), "{by_copies:?}");
            assert_eq!(count(&communicator, Protocol::Simple), by_copies.values().sum::<u64>());
        },
    );
}

macro_rules! groups {
    ($($name:ident: $ranks:literal, $counts:expr);*) => {$(
        #[test]
        fn $name() {
            let test = concat!("flagged::", stringify!($name));
            over(test, &[], || {
                for protocol in BOTH {
                    everything(&full_plan($ranks, 2), protocol, &$counts);
                }
            });
        }
    )*};
}

groups!(
    among_two: 2, [0, 7, 1003];
    among_three: 3, [333];
    among_five: 5, [1003];
    among_eight: 8, [1003]
);

#[test]
fn along_trees() {
    over("flagged::along_trees", &[], || {
        for (ranks, arity) in [(4, 1), (7, 2)] {
            for protocol in BOTH {
                let trees =
                    || Options { collectives: Collective::ALL[..5].to_vec(), ..only(protocol) };
                group(
                    &tree_plan(ranks, 2, arity),
                    |_| trees(),
                    |made, _| {
                        let mut communicator = made.unwrap();
                        let mut side = Side::new(&mut communicator);
                        for count in [0, 5, 1500] {
                            side.all_reduce::<f32>(count, ReduceOp::Avg);
                            side.reduce_scatter::<i32>(count, ReduceOp::Sum);
                            side.reduce::<bf16>(count, ReduceOp::Max);
                            side.broadcast::<u8>(count);
                        }
                        assert!(count(&communicator, protocol) > 0);
                    },
                );
            }
        }
    });
}

#[test]
fn alone() {
    over("flagged::alone", &[], || {
        group(
            &full_plan(1, 1),
            |_| only(Protocol::Ll),
            |made, _| {
                let mut communicator = made.unwrap();
                let mut side = Side::new(&mut communicator);
                side.all_reduce::<f32>(1003, ReduceOp::Avg);
                side.all_gather::<u8>(7);
                assert!(count(&communicator, Protocol::Ll) > 0, "{:?}", communicator.by_copies());
            },
        );
    });
}

/// Operations that follow each other, small ones with flags and longer ones by copies, of two priorities: numbers of messages pass
/// the place where they, their flags and their credits begin again.
#[test]
fn numbers_begin_again() {
    over("flagged::numbers_begin_again", &[], || {
        for protocol in BOTH {
            let wanted = || Options {
                priorities: 2,
                protocols: Some(vec![protocol, Protocol::Simple]),
                flagged_bytes: 512,
                ..options()
            };
            group(
                &full_plan(3, 1),
                |_| wanted(),
                |made, rank| {
                    let mut communicator = made.unwrap();
                    let streams = [stream(&communicator), stream(&communicator)];
                    let one = if rank == Rank(0) { 1.0_f32 } else { 0.0 };
                    let small =
                        [0, 1].map(|_| Guarded::new(communicator.context(), 1, &[one; 101]));
                    let large =
                        [0, 1].map(|_| Guarded::new(communicator.context(), 0, &[one; 1500]));
                    let mut last = None;
                    for turn in 0..40 {
                        for priority in 0..2 {
                            communicator.set_priority(priority).unwrap();
                            let place = priority as usize;
                            let op = if turn < 10 { ReduceOp::Sum } else { ReduceOp::Avg };
                            for memory in [small[place].memory(), large[place].memory()] {
                                // Copies seldom, so that most messages are of the other kind.
                                if memory.bytes() > 512 && turn % 8 != 0 {
                                    continue;
                                }
                                last = Some(
                                    communicator
                                        .all_reduce(
                                            &memory,
                                            &memory,
                                            f32::TYPE,
                                            op,
                                            &streams[place],
                                        )
                                        .unwrap(),
                                );
                            }
                        }
                    }
                    communicator.wait(last.unwrap()).unwrap();
                    streams.iter().for_each(|stream| stream.synchronize().unwrap());
                    assert_eq!(communicator.failure().map(|f| f.to_string()), None);
                    assert_eq!(count(&communicator, protocol), 80);
                    assert_eq!(count(&communicator, Protocol::Simple), 10);
                    // The first sum has one summand that is not nought, the others three alike; averages change nothing.
                    for place in 0..2 {
                        assert_eq!(small[place].read(), [3.0_f32.powi(9); 101]);
                        assert_eq!(large[place].read(), [3.0_f32; 1500]);
                    }
                },
            );
        }
    });
}

/// Who asks for nothing gets copies.
#[test]
fn off_by_default() {
    over("flagged::off_by_default", &[], || {
        group(
            &full_plan(2, 1),
            |_| options(),
            |made, _| {
                let mut communicator = made.unwrap();
                assert!(communicator.why_not(Protocol::Ll).unwrap().contains("without it"));
                Side::new(&mut communicator).all_reduce::<f32>(7, ReduceOp::Sum);
                let all: u64 = communicator.by_protocol().values().sum();
                assert_eq!(count(&communicator, Protocol::Simple), all);
                assert!(communicator.by_copies().is_empty(), "nothing else was asked for");
            },
        );
    });
}

/// What cannot be goes by copies, and every rank says the same reason.
#[track_caller]
fn falls_back(test: &str, variables: &[(&str, &str)], refused: &[Protocol], words: &str) {
    over(test, variables, || {
        for protocol in BOTH {
            let whys = group(
                &full_plan(3, 1),
                |_| only(protocol),
                |made, _| {
                    let mut communicator = made.unwrap();
                    Side::new(&mut communicator).all_reduce::<f32>(100, ReduceOp::Sum);
                    let is_refused = refused.contains(&protocol);
                    let by = if is_refused { Protocol::Simple } else { protocol };
                    assert!(count(&communicator, by) > 0, "{:?}", communicator.by_protocol());
                    assert_eq!(communicator.by_copies().is_empty(), !is_refused);
                    communicator.by_copies().keys().next().cloned()
                },
            );
            for why in &whys {
                assert_eq!(why, &whys[0]);
                assert!(why.as_ref().is_none_or(|why| why.contains(words)), "{why:?}");
            }
        }
    });
}

#[test]
fn without_peer_access_copies_go() {
    let variables = [("TOPOD_CUDA_DOUBLE_NO_PEER", "1-2")];
    let words = "does not write memory of rank";
    falls_back("flagged::without_peer_access_copies_go", &variables, &BOTH, words);
}

#[test]
fn without_nvlink_ll128_does_not_go() {
    let variables = [("TOPOD_CUDA_DOUBLE_NO_NVLINK", "1")];
    let test = "flagged::without_nvlink_ll128_does_not_go";
    falls_back(test, &variables, &[Protocol::Ll128], "NVLink");
}

#[test]
fn ranks_that_share_a_device_in_a_process_go_by_copies() {
    let variables = [("TOPOD_CUDA_DOUBLE_DEVICES", "2")];
    let test = "flagged::ranks_that_share_a_device_in_a_process_go_by_copies";
    falls_back(test, &variables, &BOTH, "in one process");
}

/// Operations until one fails, among three ranks; every rank's error.
fn until_it_fails(protocol: Protocol, timeout: Duration) -> Vec<Failure> {
    group(
        &full_plan(3, 2),
        |_| Options { timeout, ..only(protocol) },
        |made, rank| {
            let mut communicator = made.unwrap();
            let stream = stream(&communicator);
            let data = Guarded::new(communicator.context(), 0, &[0.0_f32; 300]);
            let memory = data.memory();
            for _ in 0..1000 {
                let called =
                    communicator.all_reduce(&memory, &memory, f32::TYPE, ReduceOp::Sum, &stream);
                match called.and_then(|pending| communicator.wait(pending)) {
                    Ok(()) => {}
                    Err(CudaError::Failed(failure)) => {
                        assert_eq!(count(&communicator, Protocol::Simple), 0);
                        return *failure;
                    }
                    Err(other) => panic!("rank {rank}: {other}"),
                }
            }
            panic!("rank {rank}: nothing failed");
        },
    )
}

#[test]
fn a_device_that_is_lost_is_named() {
    let faults = [(FAULTS, "lost:device=1,after=40")];
    over("flagged::a_device_that_is_lost_is_named", &faults, || {
        for failure in until_it_fails(Protocol::Ll, options().timeout) {
            assert!(matches!(failure, Failure::PeerLost { .. }), "{failure}");
            assert_eq!(failure.culprit().rank, Rank(1), "{failure}");
            assert!(failure.to_string().contains("its device failed"), "{failure}");
        }
    });
}

#[test]
fn a_launch_that_is_refused_is_named() {
    let faults = [(FAULTS, "call:cuLaunchCooperativeKernel,after=20,times=1,code=719")];
    over("flagged::a_launch_that_is_refused_is_named", &faults, || {
        let failures = until_it_fails(Protocol::Ll128, options().timeout);
        for failure in &failures {
            assert_eq!(failure.culprit(), failures[0].culprit());
            assert!(failure.to_string().contains("cuLaunchCooperativeKernel"), "{failure}");
        }
    });
}

/// A kernel that never begins: the others' wait in vain, and end once the time is over.
#[test]
fn a_stream_that_stands_still_ends_all() {
    let faults = [(FAULTS, "stall:device=1,after=30")];
    over("flagged::a_stream_that_stands_still_ends_all", &faults, || {
        for failure in until_it_fails(Protocol::Ll, Duration::from_secs(2)) {
            assert!(matches!(failure, Failure::Timeout { .. }), "{failure}");
        }
    });
}

#[test]
fn results_do_not_depend_on_who_is_ahead() {
    let test = "flagged::results_do_not_depend_on_who_is_ahead";
    for seed in ["1", "2"] {
        over(test, &[("TOPOD_CUDA_DOUBLE_SEED", seed)], || {
            for protocol in BOTH {
                group(
                    &full_plan(3, 2),
                    |_| only(protocol),
                    |made, _| {
                        let mut communicator = made.unwrap();
                        let mut side = Side::new(&mut communicator);
                        side.all_reduce::<f32>(333, ReduceOp::Avg);
                        side.all_gather::<u8>(100);
                        assert!(count(&communicator, protocol) > 0);
                    },
                );
            }
        });
        if is_child(test) {
            return;
        }
    }
}

#[test]
fn between_processes() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let variables = [("TOPOD_CUDA_DOUBLE_REPORT", report.to_str().unwrap())];
    let children = processes("flagged::between_processes", 3, &variables, |rank, place| {
        let before = objects();
        {
            let wanted = Options { protocols: Some(BOTH.to_vec()), ..only(Protocol::Ll) };
            let mut communicator = made(&full_plan(3, 2), rank, place, wanted);
            for protocol in BOTH {
                assert_eq!(communicator.why_not(protocol), None);
            }
            Side::new(&mut communicator).all(&[333]);
            assert!(count(&communicator, Protocol::Ll) > 100);
        }
        assert_eq!(objects(), before, "everything was given back");
    });
    let Some(children) = children else { return };
    all_succeed(Some(children));
    nothing_left(&report);
}

/// A rank's process is killed while kernels of the others wait for it: all end with its name, and none hangs.
#[test]
fn a_killed_process_is_named() {
    let children = processes("flagged::a_killed_process_is_named", 3, &[], |rank, place| {
        let mut communicator = made(&full_plan(3, 2), rank, place, only(Protocol::Ll128));
        let stream = stream(&communicator);
        let data = Guarded::new(communicator.context(), 0, &[1.0_f32; 300]);
        let memory = data.memory();
        let all_reduce = |c: &mut Communicator| {
            c.all_reduce(&memory, &memory, f32::TYPE, ReduceOp::Sum, &stream)
        };
        let first = all_reduce(&mut communicator).unwrap();
        // Where the others are still in the first, they may hear of the end of rank 1 there.
        let first = communicator.wait(first);
        if rank == Rank(1) {
            first.as_ref().unwrap();
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                .unwrap();
        }
        let second = first
            .and_then(|()| all_reduce(&mut communicator))
            .and_then(|second| communicator.wait(second));
        let error = second.unwrap_err();
        let CudaError::Failed(failure) = &error else { panic!("{error}") };
        assert!(matches!(**failure, Failure::PeerLost { .. }), "{error}");
        assert_eq!(failure.culprit().rank, Rank(1), "{error}");
        assert_eq!(count(&communicator, Protocol::Simple), 0);
        stream.synchronize().unwrap();
    });
    let Some(children) = children else { return };
    for (rank, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.success(), rank != 1, "rank {rank}: {}", told(&output));
    }
}
