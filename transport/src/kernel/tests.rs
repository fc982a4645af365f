use proptest::prelude::*;

use super::*;
use crate::memory::{Aligned, caller, caller_mut};

/// Any type through one list of cases: its number for a small whole number.
trait Sample: Element {
    fn from_small(value: i32) -> Self;
    fn exactly(self) -> f64;
}

macro_rules! samples {
    ($($type:ty, $from:expr, $exact:expr);*) => {$(
        impl Sample for $type {
            fn from_small(value: i32) -> Self {
                $from(value)
            }
            fn exactly(self) -> f64 {
                $exact(self)
            }
        }
    )*};
}

samples!(
    f32, |v: i32| f32::from(i8::try_from(v).unwrap()), f64::from;
    f64, f64::from, |x| x;
    f16, |v: i32| f16::from(i8::try_from(v).unwrap()), f64::from;
    bf16, |v: i32| bf16::from(i8::try_from(v).unwrap()), f64::from;
    i8, |v: i32| i8::try_from(v).unwrap(), f64::from;
    i32, |v: i32| v, f64::from;
    i64, i64::from, |x: i64| x as f64;
    u8, |v: i32| u8::try_from(v).unwrap(), f64::from
);

fn expect(op: ReduceOp, inputs: &[f64], float: bool) -> f64 {
    // By bits of the small numbers the cases are made of.
    let bits = |f: fn(u8, u8) -> u8| {
        let small = |x: &f64| (0..=9_u8).find(|v| f64::from(*v) == *x).unwrap();
        f64::from(inputs.iter().map(small).reduce(f).unwrap())
    };
    match op {
        ReduceOp::Sum => inputs.iter().sum(),
        ReduceOp::Prod => inputs.iter().product(),
        ReduceOp::Min => inputs.iter().copied().fold(f64::INFINITY, f64::min),
        ReduceOp::Max => inputs.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Avg => {
            let mean = inputs.iter().sum::<f64>() / inputs.len() as f64;
            if float { mean } else { mean.trunc() }
        }
        ReduceOp::And => bits(|a, b| a & b),
        ReduceOp::Or => bits(|a, b| a | b),
    }
}

/// Every operation on `sources` inputs of one type, into places apart and in place of each input.
fn check<T: Sample>(sources: usize) {
    for op in ReduceOp::ALL {
        let Some(kernel) = Kernel::new(T::TYPE, op) else {
            assert!(T::TYPE.is_float());
            continue;
        };
        for n in [0, 1, 7, 100, 5000] {
            let input = |s: usize| (0..n).map(move |i| T::from_small([1, 2, 3][(i + s) % 3]));
            let inputs: Vec<Vec<T>> = (0..sources).map(|s| input(s).collect()).collect();
            let wanted: Vec<f64> = (0..n)
                .map(|i| {
                    let of_all: Vec<f64> = inputs.iter().map(|x| x[i].exactly()).collect();
                    expect(op, &of_all, T::TYPE.is_float())
                })
                .collect();
            let same = |found: &[T]| {
                for (found, wanted) in found.iter().zip(&wanted) {
                    let close = (found.exactly() - wanted).abs() <= wanted.abs() / 200.0;
                    let fine = if op == ReduceOp::Avg { close } else { found.exactly() == *wanted };
                    assert!(fine, "{op} of {sources} {}: {found:?}, not {wanted}", T::TYPE);
                }
            };
            let mut apart = vec![T::default(); n];
            let slots: Vec<Slot> = inputs.iter().map(|x| caller(x)).collect();
            kernel.fold(&[caller_mut(&mut apart)], &slots);
            kernel.finish(caller_mut(&mut apart), sources);
            same(&apart);
            for place in 0..sources {
                let mut own = inputs.clone();
                let slots: Vec<Slot> = own.iter_mut().map(|x| caller_mut(x)).collect();
                kernel.fold(&[slots[place]], &slots);
                kernel.finish(slots[place], sources);
                same(&own[place]);
            }
            // Everybody's input becomes everybody's result.
            let mut own = inputs.clone();
            let slots: Vec<Slot> = own.iter_mut().map(|x| caller_mut(x)).collect();
            kernel.fold(&slots, &slots);
            for (slot, data) in slots.iter().zip(&own) {
                kernel.finish(*slot, sources);
                same(data);
            }
        }
    }
}

#[test]
fn every_operation_on_every_type() {
    for sources in [1, 2, 3, 4] {
        check::<f32>(sources);
        check::<f64>(sources);
        check::<f16>(sources);
        check::<bf16>(sources);
        check::<i8>(sources);
        check::<i32>(sources);
        check::<i64>(sources);
        check::<u8>(sources);
    }
}

#[test]
fn reduces_into_two_places() {
    let kernel = Kernel::new(ElementType::F32, ReduceOp::Sum).unwrap();
    for n in [0, 1, 7, 5000] {
        let (a, b) = (vec![1.5_f32; n], vec![2.0_f32; n]);
        let mut memory = Aligned::new(8 * n);
        let (one, two) = (memory.slot(0, 4 * n), memory.slot(4 * n, 4 * n));
        kernel.reduce_both(one, two, caller(&a), caller(&b));
        kernel.reduce_both(one, two, one, caller(&b));
        // SAFETY: Nothing writes while they are compared.
        let read = |slot: Slot| unsafe { slot.read::<f32>() };
        let (one, two) = (read(one), read(two));
        assert_eq!((one, two), (&vec![5.5; n][..], &vec![5.5; n][..]));
    }
}

#[test]
fn nan_spreads_and_integers_wrap() {
    let pair = |op, a: f32, b: f32| {
        let mut out = [0.0_f32];
        let kernel = Kernel::new(ElementType::F32, op).unwrap();
        kernel.fold(&[caller_mut(&mut out)], &[caller(&[a]), caller(&[b])]);
        out[0]
    };
    for op in [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Prod] {
        assert!(pair(op, f32::NAN, 1.0).is_nan() && pair(op, 1.0, f32::NAN).is_nan());
    }
    let kernel = Kernel::new(ElementType::U8, ReduceOp::Sum).unwrap();
    let mut out = [200_u8];
    let own = caller_mut(&mut out);
    kernel.fold(&[own], &[own, caller(&[100_u8])]);
    assert_eq!(out, [44]);
    assert!(Kernel::new(ElementType::Bf16, ReduceOp::Or).is_none());
}

proptest! {
    /// The documented bound, for sums of any floats in rank order.
    #[test]
    fn sums_keep_the_bound(
        inputs in (1_usize..9).prop_flat_map(|n| {
            proptest::collection::vec(proptest::collection::vec(-1e3_f32..1e3, 50), n)
        }),
    ) {
        let n = inputs.len();
        macro_rules! keeps {
            ($type:ty, $from:expr, $digits:expr) => {
                let typed: Vec<Vec<$type>> =
                    inputs.iter().map(|x| x.iter().map(|x| $from(*x)).collect()).collect();
                let mut out = [<$type>::default(); 50];
                let slots: Vec<Slot> = typed.iter().map(|x| caller(x)).collect();
                let kernel = Kernel::new(<$type>::TYPE, ReduceOp::Sum).unwrap();
                kernel.fold(&[caller_mut(&mut out)], &slots);
                for (i, found) in out.iter().enumerate() {
                    let exact: f64 = typed.iter().map(|x| f64::from(x[i])).sum();
                    let size: f64 = typed.iter().map(|x| f64::from(x[i]).abs()).sum();
                    let bound = (n - 1) as f64 * 0.5_f64.powi($digits) * size * 1.01;
                    let off = (f64::from(*found) - exact).abs();
                    prop_assert!(off <= bound, "{} off by {off}, bound {bound}", stringify!($type));
                }
            };
        }
        keeps!(f32, |x| x, 24);
        keeps!(f16, f16::from_f32, 11);
        keeps!(bf16, bf16::from_f32, 8);
    }
}
