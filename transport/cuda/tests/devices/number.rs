//! Elements of every type, and what becomes of them by plain arithmetic over whole numbers that all types hold.

use half::{bf16, f16};
use transport::{Element, ReduceOp};

pub(crate) trait Number: Element {
    fn of(value: i64) -> Self;
    /// A sum over a number of ranks.
    fn mean(sum: i64, ranks: i64) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            #[expect(clippy::allow_attributes, reason = "not every type needs all")]
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "integers wrap, as those of the kernels")]
            fn of(value: i64) -> Self {
                value as Self
            }
            fn mean(sum: i64, ranks: i64) -> Self {
                Self::of(sum / ranks)
            }
        }
    )*};
}

integers!(i8, i32, i64, u8);

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn single(value: i64) -> f32 {
    value as f32
}

impl Number for f32 {
    fn of(value: i64) -> Self {
        single(value)
    }
    fn mean(sum: i64, ranks: i64) -> Self {
        single(sum) / single(ranks)
    }
}

impl Number for f64 {
    fn of(value: i64) -> Self {
        single(value).into()
    }
    fn mean(sum: i64, ranks: i64) -> Self {
        Self::of(sum) / Self::of(ranks)
    }
}

impl Number for f16 {
    fn of(value: i64) -> Self {
        Self::from_f32(single(value))
    }
    fn mean(sum: i64, ranks: i64) -> Self {
        Self::from_f32(f32::mean(sum, ranks))
    }
}

impl Number for bf16 {
    fn of(value: i64) -> Self {
        Self::from_f32(single(value))
    }
    fn mean(sum: i64, ranks: i64) -> Self {
        Self::from_f32(f32::mean(sum, ranks))
    }
}

/// What a rank brings at a place: small enough that sums and products of eight are exact in every type.
pub(crate) fn value(rank: usize, place: usize, op: ReduceOp) -> i64 {
    let mixed = (rank * 7 + place * 3 + place / 11) % 8;
    let mixed = i64::try_from(mixed).unwrap();
    if op == ReduceOp::Prod { 1 + mixed % 2 } else { mixed }
}

/// What all ranks together make of a place.
pub(crate) fn combined<T: Number>(ranks: usize, place: usize, op: ReduceOp) -> T {
    let all = (0..ranks).map(|rank| value(rank, place, op));
    let whole = all.reduce(|a, b| match op {
        ReduceOp::Sum | ReduceOp::Avg => a + b,
        ReduceOp::Prod => a * b,
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::And => a & b,
        _ => a | b,
    });
    let whole = whole.unwrap();
    if op == ReduceOp::Avg { T::mean(whole, i64::try_from(ranks).unwrap()) } else { T::of(whole) }
}
