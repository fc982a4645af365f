//! What the driver refuses or loses: every rank ends with the same words, and none hangs.

use std::sync::Barrier;
use std::time::Duration;

use topology::Rank;
use transport::even::full_plan;
use transport::{Element, Failure, ReduceOp};
use transport_cuda::{Buffer, CudaError, Device, NoDriver, Options, Way};

use crate::collectives::Side;
use crate::double::{bare, is_child, over, run};
use crate::gpu_direct::Controls;
use crate::group::{group, options, stream};

const FAULTS: &str = "TOPOD_CUDA_DOUBLE_FAULTS";

/// Operations until one fails, among four ranks; every rank's error. What succeeded is right, which is looked at where the device still
/// answers.
fn until_it_fails(options: impl Fn() -> Options + Sync) -> Vec<Failure> {
    fails(options, true)
}

fn fails(options: impl Fn() -> Options + Sync, looks: bool) -> Vec<Failure> {
    group(
        &full_plan(4, 2),
        |_| options(),
        |made, rank| {
            let mut communicator = made.unwrap();
            let stream = stream(&communicator);
            let context = communicator.context();
            let input = Buffer::of(context, &vec![1.0_f32; 3000]).unwrap().memory();
            let output = Buffer::of(context, &vec![0.0_f32; 3000]).unwrap();
            for _ in 0..1000 {
                let called = communicator.all_reduce(
                    &input,
                    &output.memory(),
                    f32::TYPE,
                    ReduceOp::Sum,
                    &stream,
                );
                match called.and_then(|pending| communicator.wait(pending)) {
                    Ok(()) if looks => {
                        let mut now = vec![0.0_f32; 3000];
                        // A device that is lost by now is told by the next operation.
                        if output.read(0, &mut now).is_ok() {
                            assert!(now.iter().all(|sum| *sum == 4.0), "rank {rank}: {now:?}");
                        }
                    }
                    Ok(()) => {}
                    Err(CudaError::Failed(failure)) => return *failure,
                    Err(other) => panic!("rank {rank}: {other}"),
                }
            }
            panic!("rank {rank}: nothing failed");
        },
    )
}

#[track_caller]
fn blames_the_device_of(rank: u32, failures: &[Failure], words: &[&str]) {
    for failure in failures {
        assert!(matches!(failure, Failure::PeerLost { .. }), "{failure}");
        assert_eq!(failure.culprit().rank, Rank(rank), "{failure}");
        let text = failure.to_string();
        assert!(
            text.contains("its device failed") && words.iter().all(|word| text.contains(word)),
            "{text}"
        );
    }
}

#[test]
fn a_device_that_is_lost_is_named() {
    let bus_id = || Device::by_ordinal(2).unwrap().bus_id().to_string();
    over("faults::a_device_that_is_lost_is_named", &[(FAULTS, "lost:device=2,after=150")], || {
        blames_the_device_of(2, &until_it_fails(options), &["CUDA_ERROR_", &bus_id()]);
    });
}

/// Where it is its owner's own copy that finds it, the owner leaves; the others hear why.
#[test]
fn a_device_that_is_lost_under_its_owners_copy_is_named_to_the_others() {
    let test = "faults::a_device_that_is_lost_under_its_owners_copy_is_named_to_the_others";
    over(test, &[], || {
        let cuda = Controls::cuda();
        let meet = Barrier::new(2);
        group(
            &full_plan(2, 1),
            |_| options(),
            |made, rank| {
                let mut communicator = made.unwrap();
                let stream = stream(&communicator);
                let buffer = Buffer::of(communicator.context(), &[1.0_f32; 3000]).unwrap();
                meet.wait();
                if rank == Rank(1) {
                    cuda.set_faults("lost:device=1");
                    let error = buffer.read(0, &mut [0.0_f32; 3]).unwrap_err();
                    assert!(matches!(error, CudaError::Driver(_)), "{error}");
                    return;
                }
                let memory = buffer.memory();
                let called =
                    communicator.all_reduce(&memory, &memory, f32::TYPE, ReduceOp::Sum, &stream);
                match called.and_then(|pending| communicator.wait(pending)) {
                    Err(CudaError::Failed(failure)) => {
                        blames_the_device_of(1, &[*failure], &["CUDA_ERROR_"]);
                    }
                    other => panic!("{other:?}"),
                }
            },
        );
    });
}

/// At many places of an operation: what was enqueued before it runs out, though words come late that it waits for.
#[test]
fn a_call_that_is_refused_is_named() {
    let test = "faults::a_call_that_is_refused_is_named";
    for after in [60, 77, 100, 131, 152, 173] {
        let fault = format!("call:cuLaunchKernel,after={after},times=1,code=719");
        over(test, &[(FAULTS, &fault)], || {
            let failures = until_it_fails(options);
            let culprit = failures[0].culprit().rank.0;
            let words = ["cuLaunchKernel", "CUDA_ERROR_LAUNCH_FAILED"];
            blames_the_device_of(culprit, &failures, &words);
        });
        if is_child(test) {
            return;
        }
    }
}

/// Whatever call of those that an operation makes fails, and whenever: the group ends, and what it held is given back.
#[test]
fn any_call_may_be_refused() {
    for (at, call) in [
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuStreamWaitValue32_v2",
        "cuStreamWriteValue32_v2",
        "cuMemcpyAsync",
    ]
    .iter()
    .enumerate()
    {
        let fault = format!("call:{call},after={},times=1,code=999", 50 + 37 * at);
        over("faults::any_call_may_be_refused", &[(FAULTS, &fault)], || {
            let failures = until_it_fails(options);
            let culprit = failures[0].culprit().rank.0;
            blames_the_device_of(culprit, &failures, &["CUDA_ERROR_UNKNOWN"]);
        });
        if is_child("faults::any_call_may_be_refused") {
            return;
        }
    }
}

#[test]
fn memory_that_is_lacking_is_told_to_all() {
    // The first of rank 1's device are its own few bytes, the second what others write.
    for fault in
        ["oom:device=1", "oom:device=1,after=1", "call:cuMemHostRegister_v2,after=2,code=2"]
    {
        over("faults::memory_that_is_lacking_is_told_to_all", &[(FAULTS, fault)], || {
            let errors = group(&full_plan(3, 1), |_| options(), |made, _| made.unwrap_err());
            for error in &errors {
                assert!(matches!(error, CudaError::Peer { .. }), "{error}");
                assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
                assert_eq!(error.to_string(), errors[0].to_string());
            }
        });
        if is_child("faults::memory_that_is_lacking_is_told_to_all") {
            return;
        }
    }
}

#[test]
fn devices_that_cannot_reach_each_other_go_through_the_host() {
    let variables = [("TOPOD_CUDA_DOUBLE_NO_PEER", "0-1,1-2")];
    over("faults::devices_that_cannot_reach_each_other_go_through_the_host", &variables, || {
        group(
            &full_plan(3, 2),
            |_| options(),
            |made, rank| {
                let mut communicator = made.unwrap();
                for link in communicator.links() {
                    let refused = rank == Rank(1) || link.peer == Rank(1);
                    let expected = if refused { Way::Staged } else { Way::Peer };
                    assert_eq!(link.way, expected, "{rank}: {link:?}");
                    assert_eq!(link.why.contains("cannot reach memory of"), refused, "{link:?}");
                }
                Side::new(&mut communicator).all(&[7, 1003]);
            },
        );
    });
}

/// A stream that stands still: the others name its rank, and it gives up too, though its stream never runs out.
#[test]
fn a_stream_that_stands_still_is_named() {
    let faults = [(FAULTS, "stall:device=1,after=60")];
    over("faults::a_stream_that_stands_still_is_named", &faults, || {
        let short = || Options { timeout: Duration::from_secs(2), ..options() };
        // A copy would stand still as well.
        for failure in fails(short, false) {
            assert!(matches!(failure, Failure::Timeout { .. }), "{failure}");
        }
    });
}

/// Delays of all kinds: an event or a word that is missing shows with some.
#[test]
fn results_do_not_depend_on_who_is_ahead() {
    // Delays are turns of the processor, which on a busy machine are long: few operations show enough.
    for seed in ["1", "2"] {
        over(
            "faults::results_do_not_depend_on_who_is_ahead",
            &[("TOPOD_CUDA_DOUBLE_SEED", seed)],
            || {
                group(
                    &full_plan(2, 2),
                    |_| options(),
                    |made, _| {
                        let mut communicator = made.unwrap();
                        let mut side = Side::new(&mut communicator);
                        side.all_reduce::<f32>(2003, ReduceOp::Avg);
                    },
                );
            },
        );
        if is_child("faults::results_do_not_depend_on_who_is_ahead") {
            return;
        }
    }
}

#[test]
fn a_host_without_a_driver_is_an_ordinary_one() {
    let test = "faults::a_host_without_a_driver_is_an_ordinary_one";
    if !is_child(test) {
        return run(bare(test).env("TOPOD_CUDA_LIBRARY", "/nowhere/libcuda.so.1"));
    }
    for error in [Device::count().unwrap_err(), Device::by_ordinal(0).unwrap_err()] {
        assert!(matches!(error, CudaError::NoDriver(NoDriver::NotFound { .. })), "{error}");
        assert!(error.to_string().contains("/nowhere/libcuda.so.1"), "{error}");
    }
}

#[test]
fn a_driver_that_lacks_a_function_is_too_old() {
    let test = "faults::a_driver_that_lacks_a_function_is_too_old";
    if !is_child(test) {
        // Any other library.
        let folder = tempfile::tempdir().unwrap();
        let Ok(other) = machines::build_cuda_kernels(folder.path()) else {
            println!("skipped: no g++");
            return;
        };
        return run(bare(test).env("TOPOD_CUDA_LIBRARY", other));
    }
    let error = Device::by_ordinal(0).unwrap_err();
    assert!(
        matches!(error, CudaError::NoDriver(NoDriver::Old { missing: "cuInit", .. })),
        "{error}"
    );
}

#[test]
fn a_driver_without_devices_is_said_to_have_none() {
    over(
        "faults::a_driver_without_devices_is_said_to_have_none",
        &[("CUDA_VISIBLE_DEVICES", "")],
        || {
            assert_eq!(Device::count().unwrap(), 0);
            assert!(matches!(
                Device::by_ordinal(0).unwrap_err(),
                CudaError::NoDriver(NoDriver::NoDevice) | CudaError::Driver(_)
            ));
        },
    );
}
