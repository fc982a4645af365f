//! Operations on places: refused where they make no sense, whole where they do. What they compute is tested by the faces.
#![expect(unsafe_code, reason = "places are named by address")]

use super::*;
use crate::{Call, Place};

fn place<T: Element>(data: &mut [T]) -> Place {
    Place::new(data.as_mut_ptr().cast(), data.len(), T::TYPE).unwrap()
}

#[test]
fn places_are_aligned_and_end_in_the_address_space() {
    let mut data = [0_u64; 2];
    let start = data.as_mut_ptr().cast::<u8>();
    assert!(Place::new(start, 2, ElementType::F64).is_some());
    assert!(Place::new(start.wrapping_add(4), 1, ElementType::F64).is_none());
    assert!(Place::new(start.wrapping_add(4), 1, ElementType::F32).is_some());
    assert!(Place::new(std::ptr::null_mut(), 1, ElementType::U8).is_none());
    assert!(Place::new(std::ptr::null_mut(), 0, ElementType::F64).is_some());
    assert!(Place::new(start, usize::MAX / 8, ElementType::F64).is_none());
    assert!(Place::new(start, usize::MAX, ElementType::F64).is_none());
}

#[test]
fn places_of_unfitting_length_are_refused_and_nothing_is_sent() {
    group(
        &crate::even::full_plan(2, 1),
        |_| Options::for_all(),
        |made, rank| {
            let mut communicator = made.unwrap();
            let (mut three, mut four) = ([1.0_f32; 3], [2.0_f32; 4]);
            let (short, long) = (place(&mut three), place(&mut four));
            let root = Rank(0);
            let calls = [
                Call::AllReduce { input: short, output: long, op: ReduceOp::Sum },
                Call::AllReduce { input: long, output: long, op: ReduceOp::And },
                Call::AllGather { shard: short, output: long },
                Call::ReduceScatter { input: long, shard: short, op: ReduceOp::Sum },
                Call::Gather { shard: short, output: long, count: 4, root },
                Call::Scatter { input: long, shard: short, count: 4, root },
                Call::AllToAll { input: short, output: long },
                Call::Send { data: short, to: rank },
                Call::Receive { data: short, from: Rank(7) },
            ];
            for call in calls {
                let name = format!("{call:?}");
                // SAFETY: The arrays outlive the call.
                let error = unsafe { communicator.run_at(ElementType::F32, call) }.unwrap_err();
                assert!(!matches!(error, TransportError::Failed(_)), "{name}: {error}");
            }
            let whole = place(&mut four);
            let call = Call::AllReduce { input: whole, output: whole, op: ReduceOp::Sum };
            // SAFETY: As above.
            let started =
                unsafe { communicator.start_at(ElementType::F32, call, "owner") }.unwrap();
            assert_eq!(communicator.wait(started).unwrap().0, "owner");
            assert_eq!(four, [4.0; 4]);
        },
    );
}
