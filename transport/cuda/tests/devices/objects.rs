//! What is held of the driver is given back, and what the settings refuse costs nothing.

use std::time::{Duration, Instant};

use topology::{Collective, Rank};
use transport::even::{full_plan, ring_plan};
use transport::{Element, ElementType, ReduceOp};
use transport_cuda::{Buffer, Context, CudaError, Device, Image, Options, Way, objects};

use crate::collectives::Side;
use crate::double::over;
use crate::group::{Guarded, group, options, stream};

#[test]
fn everything_is_given_back() {
    over("objects::everything_is_given_back", &[], || {
        let before = objects();
        for _ in 0..2 {
            group(
                &full_plan(3, 2),
                |_| options(),
                |made, _| {
                    let mut communicator = made.unwrap();
                    assert!(communicator.links().iter().all(|link| link.way == Way::Peer));
                    Side::new(&mut communicator).all_reduce::<f32>(3000, ReduceOp::Sum);
                },
            );
            assert_eq!(objects(), before);
        }
    });
}

#[test]
fn devices_are_named() {
    over("objects::devices_are_named", &[], || {
        let count = Device::count().unwrap();
        assert!(count >= 2, "{count}");
        let mut seen = Vec::new();
        for ordinal in 0..count {
            let device = Device::by_ordinal(ordinal).unwrap();
            assert_eq!(Device::by_bus_id(device.bus_id()).unwrap().bus_id(), device.bus_id());
            assert!(!device.name().unwrap().is_empty() && device.capability() >= 10);
            assert!(!seen.contains(&device.bus_id()), "{}", device.bus_id());
            seen.push(device.bus_id());
        }
        let error = Device::by_ordinal(count).unwrap_err().to_string();
        assert!(error.contains("cuDeviceGet") && error.contains("CUDA_ERROR_"), "{error}");
        assert!(Device::cuda_version().unwrap() >= 11000);
    });
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_enqueued() {
    over("objects::what_does_not_fit_is_refused_before_anything_is_enqueued", &[], || {
        let few = || Options { collectives: vec![Collective::AllReduce], ..options() };
        group(
            &ring_plan(2, 1),
            |_| few(),
            |made, _| {
                let mut c = made.unwrap();
                let stream = stream(&c);
                let data = Guarded::new(c.context(), 0, &[1.0_f32; 64]);
                let (whole, part) = (data.memory(), data.part(0..32));
                let sum = ReduceOp::Sum;
                let refused = c.all_reduce(&whole, &part, f32::TYPE, sum, &stream).unwrap_err();
                assert!(matches!(refused, CudaError::Length { .. }), "{refused}");
                let odd = whole.part(2, 64);
                let refused = c.all_reduce(&odd, &odd, f32::TYPE, sum, &stream).unwrap_err();
                assert!(matches!(refused, CudaError::Unaligned { .. }), "{refused}");
                let odd = whole.part(0, 63);
                let refused = c.all_reduce(&odd, &odd, f32::TYPE, sum, &stream).unwrap_err();
                assert!(matches!(refused, CudaError::Length { .. }), "{refused}");
                let refused =
                    c.all_reduce(&whole, &whole, f32::TYPE, ReduceOp::And, &stream).unwrap_err();
                assert!(matches!(refused, CudaError::NotCombined { .. }), "{refused}");
                let refused = c.broadcast(&whole, &whole, f32::TYPE, Rank(7), &stream).unwrap_err();
                assert!(matches!(refused, CudaError::Schedule(_)), "{refused}");
                let refused = c.send(&whole, f32::TYPE, Rank(0), &stream).unwrap_err();
                assert!(matches!(refused, CudaError::NotConnected(_)), "{refused}");
                assert!(c.set_priority(1).is_err());
                // It is as usable as before.
                let pending = c.all_reduce(&whole, &whole, f32::TYPE, sum, &stream).unwrap();
                c.wait(pending).unwrap();
                assert_eq!(data.read(), vec![2.0; 64]);
            },
        );
    });
}

#[test]
fn settings_that_differ_are_named() {
    over("objects::settings_that_differ_are_named", &[], || {
        let of = |rank: Rank| Options { slots: 2 + rank.index(), ..options() };
        let errors = group(&ring_plan(2, 1), of, |made, _| made.unwrap_err().to_string());
        for error in errors {
            assert!(
                error.contains("rank 0 has slots 2") && error.contains("rank 1 has 3"),
                "{error}"
            );
        }
    });
}

#[test]
fn a_budget_is_kept() {
    over("objects::a_budget_is_kept", &[], || {
        let of = |_: Rank| Options { memory_bytes: 1 << 10, ..options() };
        for error in group(&ring_plan(2, 1), of, |made, _| made.unwrap_err()) {
            assert!(matches!(error, CudaError::Budget { .. }), "{error}");
        }
    });
}

#[test]
fn without_kernels_what_combines_nothing_goes() {
    over("objects::without_kernels_what_combines_nothing_goes", &[], || {
        let none =
            |_: Rank| Options { image: Image::Given(b"no kernel here".to_vec()), ..options() };
        group(&full_plan(2, 1), none, |made, rank| {
            let mut c = made.unwrap();
            let stream = stream(&c);
            let data = Guarded::new(c.context(), 0, &[if rank == Rank(0) { 3_u8 } else { 4 }; 10]);
            let memory = data.memory();
            let refused = c
                .all_reduce(&memory, &memory, ElementType::U8, ReduceOp::Sum, &stream)
                .unwrap_err();
            assert!(matches!(refused, CudaError::Kernels(_)), "{refused}");
            let pending = c.broadcast(&memory, &memory, ElementType::U8, Rank(1), &stream).unwrap();
            c.wait(pending).unwrap();
            assert_eq!(data.read(), [4; 10]);
        });
    });
}

#[test]
fn small_tensors_go_together() {
    over("objects::small_tensors_go_together", &[], || {
        let small = |_: Rank| Options { bucket_bytes: 1024, ..options() };
        group(&ring_plan(3, 1), small, |made, rank| {
            let mut c = made.unwrap();
            let stream = stream(&c);
            let lengths = [3_usize, 0, 100, 7, 2000, 1, 33];
            let of = |at: usize, rank: usize| f32::from(u16::try_from(at + rank).unwrap());
            let made = |(at, length): (usize, &usize)| {
                Guarded::new(c.context(), at % 2, &vec![of(at, rank.index()); *length])
            };
            let tensors: Vec<_> = lengths.iter().enumerate().map(made).collect();
            let memory: Vec<_> = tensors.iter().map(Guarded::memory).collect();
            let last = c.all_reduce_many(&memory, f32::TYPE, ReduceOp::Sum, &stream).unwrap();
            c.wait(last.unwrap()).unwrap();
            for (at, tensor) in tensors.iter().enumerate() {
                let expected = (0..3).map(|rank| of(at, rank)).sum::<f32>();
                assert_eq!(tensor.read(), vec![expected; lengths[at]], "tensor {at}");
            }
            assert!(c.all_reduce_many(&[], f32::TYPE, ReduceOp::Sum, &stream).unwrap().is_none());
        });
    });
}

#[test]
fn ranks_that_call_different_operations_are_told() {
    over("objects::ranks_that_call_different_operations_are_told", &[], || {
        let errors = group(
            &full_plan(2, 1),
            |_| options(),
            |made, rank| {
                let mut c = made.unwrap();
                let stream = stream(&c);
                let data = Guarded::new(c.context(), 0, &[1_i32; 4000]);
                let memory = data.memory();
                let called = if rank == Rank(0) {
                    c.all_reduce(&memory, &memory, i32::TYPE, ReduceOp::Sum, &stream)
                } else {
                    c.broadcast(&memory, &memory, i32::TYPE, Rank(0), &stream)
                };
                let error = called.and_then(|pending| c.wait(pending)).unwrap_err();
                stream.synchronize().unwrap();
                error.to_string()
            },
        );
        for error in errors {
            assert!(error.contains("all-reduce of 4000 elements (i32, sum)"), "{error}");
            assert!(error.contains("broadcast of 4000 elements (i32) with root 0"), "{error}");
        }
    });
}

#[test]
fn ranks_may_share_a_device() {
    over("objects::ranks_may_share_a_device", &[], || {
        let plan = full_plan(3, 1);
        let folder = tempfile::tempdir().unwrap();
        let place: transport::Rendezvous =
            format!("file://{}/meet", folder.path().display()).parse().unwrap();
        std::thread::scope(|scope| {
            for rank in [Rank(0), Rank(1), Rank(2)] {
                let (plan, place) = (&plan, &place);
                scope.spawn(move || {
                    let context = Context::new(Device::by_ordinal(0).unwrap()).unwrap();
                    let made =
                        transport_cuda::Communicator::new(plan, rank, place, &context, options());
                    let mut communicator = made.unwrap();
                    assert!(communicator.links().iter().all(|link| link.way == Way::Peer));
                    // Memory is made before and freed after: to free waits for all that the device does, also for other ranks.
                    let stream = stream(&communicator);
                    let data = Guarded::new(&context, 0, &vec![1.0_f32; 5000]);
                    let memory = data.memory();
                    for _ in 0..5 {
                        let _ = communicator
                            .all_reduce(&memory, &memory, f32::TYPE, ReduceOp::Sum, &stream)
                            .unwrap();
                    }
                    stream.synchronize().unwrap();
                    assert_eq!(data.read(), vec![243.0; 5000]);
                    let _ = communicator.barrier(&stream).unwrap();
                    stream.synchronize().unwrap();
                });
            }
        });
    });
}

/// Ranks that pass for those of several hosts: what goes between goes by the hosts' links.
#[test]
fn between_hosts_messages_go_by_the_hosts_links() {
    over("objects::between_hosts_messages_go_by_the_hosts_links", &[], || {
        let of = |rank: Rank| Options {
            pretended_host: Some(format!("host {}", rank.0 / 2)),
            ..options()
        };
        group(&full_plan(4, 2), of, |made, rank| {
            let mut communicator = made.unwrap();
            for link in communicator.links() {
                let near = link.peer.0 / 2 == rank.0 / 2;
                assert_eq!(link.way, if near { Way::Peer } else { Way::Network }, "{link:?}");
            }
            Side::new(&mut communicator).all(&[0, 1003]);
        });
    });
}

/// A budget of bytes a second holds what the hosts carry, and nothing that devices copy among themselves.
#[test]
fn a_budget_holds_what_goes_to_other_hosts() {
    over("objects::a_budget_holds_what_goes_to_other_hosts", &[], || {
        const RATE: u64 = 200_000;
        // Of a sum over two ranks each sends as much as it has, once.
        const COUNT: usize = 25_000;
        let sums = |hosts: u32| {
            let of = |rank: Rank| {
                let mut options = options();
                options.host.bandwidth = std::num::NonZeroU64::new(RATE);
                Options { pretended_host: Some(format!("host {}", rank.0 % hosts)), ..options }
            };
            group(&ring_plan(2, 1), of, |made, _| {
                let mut communicator = made.unwrap();
                let stream = stream(&communicator);
                let data = Guarded::new(communicator.context(), 0, &vec![1.0_f32; COUNT]);
                let memory = data.memory();
                let before = communicator.held().unwrap();
                let start = Instant::now();
                let pending = communicator
                    .all_reduce(&memory, &memory, f32::TYPE, ReduceOp::Sum, &stream)
                    .unwrap();
                communicator.wait(pending).unwrap();
                let took = start.elapsed();
                assert_eq!(data.read(), vec![2.0; COUNT]);
                (took, communicator.held().unwrap() - before)
            })
        };
        // 100,000 bytes at 200,000 a second, but for the burst of 10 ms, the last message, and what was left of the meeting's.
        for (took, held) in sums(2) {
            assert!(took >= Duration::from_millis(500 - 10 - 25), "{took:?}");
            assert!(!held.is_zero());
        }
        for (_, held) in sums(1) {
            assert_eq!(held, Duration::ZERO, "devices of one host");
        }
    });
}

#[test]
fn buffers_hold_what_is_written() {
    over("objects::buffers_hold_what_is_written", &[], || {
        let context = Context::new(Device::by_ordinal(1).unwrap()).unwrap();
        let buffer = Buffer::of(&context, &[1_i64, 2, 3]).unwrap();
        let mut back = [0_i64; 2];
        buffer.read(8, &mut back).unwrap();
        assert_eq!(back, [2, 3]);
        assert!(matches!(buffer.read(16, &mut back), Err(CudaError::Length { .. })));
        assert!(matches!(buffer.write(25, &[0_u8; 0]), Err(CudaError::Length { .. })));
        assert_eq!(Buffer::new(&context, 0).unwrap().bytes(), 0);
    });
}
