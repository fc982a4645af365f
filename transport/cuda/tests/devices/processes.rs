//! Ranks that are processes of their own, which open each other's memory by handles.

use std::process::{Child, Stdio};
use std::time::Duration;

use topology::{Plan, Rank};
use transport::even::full_plan;
use transport::{Element, Failure, ReduceOp, Rendezvous};
use transport_cuda::{Communicator, Context, CudaError, Options, Way, objects};

use crate::collectives::Side;
use crate::double::{command, is_child, nothing_left, told};
use crate::group::{Guarded, device_of, options, stream};

const RANK: &str = "TOPOD_CUDA_TEST_RANK";
const PLACE: &str = "TOPOD_CUDA_TEST_PLACE";

/// What `each` is to do, as one rank's process; in the parent, starts a process for each rank and gives them.
pub(crate) fn processes(
    test: &str,
    ranks: u32,
    variables: &[(&str, &str)],
    each: impl FnOnce(Rank, &Rendezvous),
) -> Option<Vec<Child>> {
    if is_child(test) {
        let rank = std::env::var(RANK).unwrap().parse().unwrap();
        each(Rank(rank), &std::env::var(PLACE).unwrap().parse().unwrap());
        return None;
    }
    let folder = tempfile::tempdir().unwrap().keep();
    let place = format!("file://{}/meet", folder.display());
    let mut children = Vec::new();
    for rank in 0..ranks {
        let mut command = command(test)?;
        command.env(RANK, rank.to_string()).env(PLACE, &place).envs(variables.iter().copied());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        children.push(command.spawn().unwrap());
    }
    Some(children)
}

#[track_caller]
pub(crate) fn all_succeed(children: Option<Vec<Child>>) {
    for child in children.into_iter().flatten() {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", told(&output));
    }
}

pub(crate) fn made(plan: &Plan, rank: Rank, place: &Rendezvous, options: Options) -> Communicator {
    let context = Context::new(device_of(rank)).unwrap();
    Communicator::new(plan, rank, place, &context, options).unwrap()
}

#[test]
fn every_collective_between_processes() {
    let test = "processes::every_collective_between_processes";
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let variables = [("TOPOD_CUDA_DOUBLE_REPORT", report.to_str().unwrap())];
    let children = processes(test, 4, &variables, |rank, place| {
        let before = objects();
        {
            let mut communicator = made(&full_plan(4, 2), rank, place, options());
            assert!(
                communicator.links().iter().all(|link| link.way == Way::Peer),
                "{:?}",
                communicator.links()
            );
            assert_eq!(objects().opened, 3, "each other rank's memory, once");
            Side::new(&mut communicator).all(&[7, 2003]);
        }
        assert_eq!(objects(), before, "everything was given back");
    });
    let Some(children) = children else { return };
    all_succeed(Some(children));
    nothing_left(&report);
}

/// Where no handle opens, memory goes through the host, and that is said.
#[test]
fn handles_that_do_not_open_leave_the_host() {
    let test = "processes::handles_that_do_not_open_leave_the_host";
    let children =
        processes(test, 3, &[("TOPOD_CUDA_DOUBLE_FAULTS", "ipc:open")], |rank, place| {
            let mut communicator = made(&full_plan(3, 1), rank, place, options());
            for link in communicator.links() {
                assert_eq!(link.way, Way::Staged, "{link:?}");
                assert!(link.why.contains("cuIpcOpenMemHandle_v2"), "{link:?}");
            }
            Side::new(&mut communicator).all(&[1003]);
        });
    all_succeed(children);
}

#[test]
fn processes_through_the_host() {
    let test = "processes::processes_through_the_host";
    let children = processes(test, 3, &[], |rank, place| {
        let staged = Options { peer: false, ..options() };
        let mut communicator = made(&full_plan(3, 1), rank, place, staged);
        assert!(communicator.links().iter().all(|link| link.way == Way::Staged));
        assert_eq!(objects().opened, 0);
        Side::new(&mut communicator).all(&[1003]);
    });
    all_succeed(children);
}

/// A rank's process is killed while the others wait for it: all of them end with its name, none hangs.
#[test]
fn a_killed_process_is_named() {
    let test = "processes::a_killed_process_is_named";
    let children = processes(test, 3, &[], |rank, place| {
        let mut communicator = made(&full_plan(3, 2), rank, place, options());
        let stream = stream(&communicator);
        let data = Guarded::new(communicator.context(), 0, &vec![1.0_f32; 5000]);
        let memory = data.memory();
        let all_reduce = |c: &mut Communicator| {
            c.all_reduce(&memory, &memory, f32::TYPE, ReduceOp::Sum, &stream)
        };
        let first = all_reduce(&mut communicator).unwrap();
        // Where the others are still in the first, they may hear of the end of rank 1 there.
        let first = communicator.wait(first);
        if rank == Rank(1) {
            first.as_ref().unwrap();
            // As a process that is killed: nothing is closed, nobody told.
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
        // The caller's stream is not held for ever.
        stream.synchronize().unwrap();
        let next = all_reduce(&mut communicator).unwrap_err();
        assert!(matches!(next, CudaError::Failed(_)), "{next}");
        println!("rank {rank}: {error}");
    });
    let Some(children) = children else { return };
    for (rank, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.success(), rank != 1, "rank {rank}: {}", told(&output));
    }
}

/// A rank that lives and does not come is named once the time limit is over, through those that wait for others.
#[test]
fn a_rank_that_does_not_come_is_named() {
    let test = "processes::a_rank_that_does_not_come_is_named";
    let children = processes(test, 4, &[], |rank, place| {
        let short = Options { timeout: Duration::from_millis(800), ..options() };
        let mut communicator = made(&full_plan(4, 1), rank, place, short);
        let stream = stream(&communicator);
        let data = Guarded::new(communicator.context(), 0, &vec![1.0_f32; 5000]);
        let memory = data.memory();
        if rank == Rank(2) {
            // Until the others have given up.
            let mut told = false;
            while !told {
                std::thread::yield_now();
                told = communicator.poll().is_err();
            }
            return;
        }
        let pending =
            communicator.all_reduce(&memory, &memory, f32::TYPE, ReduceOp::Sum, &stream).unwrap();
        let error = communicator.wait(pending).unwrap_err();
        let CudaError::Failed(failure) = &error else { panic!("{error}") };
        assert!(matches!(**failure, Failure::Timeout { .. }), "{error}");
        assert_eq!(failure.culprit().rank, Rank(2), "{error}");
        stream.synchronize().unwrap();
    });
    all_succeed(children);
}
