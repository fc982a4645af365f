//! The way kernels come to a device outside of tests: NVRTC compiles the source, and the driver is given its PTX. The double reads the heads
//! of NVRTC's own output, where other tests give it heads that were written by hand.

use topology::{Protocol, Rank};
use transport::ReduceOp;
use transport::even::full_plan;
use transport_cuda::{CAPABILITIES, Image, Options, compile, is_here};

use crate::collectives::Side;
use crate::double::{is_child, over};
use crate::group::{group, options};
use crate::packages::{COMPILER, load, wanted};

#[test]
fn what_nvrtc_makes_is_loaded_and_runs() {
    let test = "nvrtc::what_nvrtc_makes_is_loaded_and_runs";
    let Some([builtins, compiler]) = wanted(COMPILER) else { return };
    if is_child(test) {
        load(builtins);
        load(compiler);
        assert!(is_here(), "NVRTC cannot be loaded");
    }
    // A Hopper, as the double's devices are; and the earliest that is promised.
    for capability in ["90", "70"] {
        over(test, &[("TOPOD_CUDA_DOUBLE_CAPABILITY", capability)], || {
            group(
                &full_plan(3, 2),
                // By the device's own capability.
                |_| Options { image: Image::Compile, ..options() },
                |made, _| {
                    let mut communicator = made.unwrap();
                    let mut side = Side::new(&mut communicator);
                    side.all_reduce::<f32>(1003, ReduceOp::Avg);
                    side.all_reduce::<half::bf16>(1003, ReduceOp::Max);
                    side.all_reduce::<i64>(1003, ReduceOp::Sum);
                },
            );
        });
        if is_child(test) {
            return;
        }
    }
}

/// The heads that NVRTC writes for the kernels of messages with flags: as many parameters, of the lengths that this crate gives.
#[test]
fn kernels_of_messages_with_flags_are_loaded_and_run() {
    let test = "nvrtc::kernels_of_messages_with_flags_are_loaded_and_run";
    let Some([builtins, compiler]) = wanted(COMPILER) else { return };
    if is_child(test) {
        load(builtins);
        load(compiler);
    }
    over(test, &[], || {
        let protocols = Some(vec![Protocol::Ll128]);
        group(
            &full_plan(2, 1),
            |_| Options { image: Image::Compile, protocols: protocols.clone(), ..options() },
            |made, _| {
                let mut communicator = made.unwrap();
                assert_eq!(communicator.why_not(Protocol::Ll128), None);
                let mut side = Side::new(&mut communicator);
                side.all_reduce::<half::f16>(1003, ReduceOp::Avg);
                let by_copies = communicator.by_copies();
                assert!(by_copies.is_empty(), "{by_copies:?}");
            },
        );
    });
}

/// PTX of a later device is refused by an earlier one, with the driver's words: on every rank the operation is, and nothing hangs.
#[test]
fn ptx_for_a_later_device_is_refused() {
    let test = "nvrtc::ptx_for_a_later_device_is_refused";
    let Some([builtins, compiler]) = wanted(COMPILER) else { return };
    if is_child(test) {
        load(builtins);
        load(compiler);
    }
    over(test, &[("TOPOD_CUDA_DOUBLE_CAPABILITY", "80")], || {
        let latest = CAPABILITIES.into_iter().max().unwrap();
        let image = compile(latest).unwrap().to_src().into_bytes();
        group(
            &full_plan(2, 1),
            |_| Options { image: Image::Given(image.clone()), ..options() },
            |made, rank| {
                let mut communicator = made.unwrap();
                let data = crate::group::Guarded::new(communicator.context(), 0, &[1.0_f32; 8]);
                let stream = crate::group::stream(&communicator);
                let both = data.memory();
                let refused = communicator.all_reduce(
                    &both,
                    &both,
                    transport::ElementType::F32,
                    ReduceOp::Sum,
                    &stream,
                );
                let words = refused.unwrap_err().to_string();
                assert!(words.contains("CUDA_ERROR_NO_BINARY_FOR_GPU"), "{words}");
                // What combines nothing goes without kernels.
                let sent = communicator.broadcast(
                    &both,
                    &both,
                    transport::ElementType::F32,
                    Rank(0),
                    &stream,
                );
                communicator.wait(sent.unwrap()).unwrap();
                assert_eq!(data.read(), [1.0; 8], "{rank}");
            },
        );
    });
}
