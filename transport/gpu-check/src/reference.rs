//! What a reduction must give, by the host's own arithmetic: after each operation rounded as the type is, in the sources' order.

use half::{bf16, f16};
use transport::{ElementType, ReduceOp};

/// Elements of all sources, combined; little endian bytes, as many as one source has.
pub(crate) fn folded(
    element: ElementType,
    op: ReduceOp,
    ranks: i32,
    sources: &[Vec<u8>],
) -> Vec<u8> {
    match element {
        ElementType::F32 => each::<f32>(op, ranks, sources),
        ElementType::F64 => each::<f64>(op, ranks, sources),
        ElementType::F16 => each::<f16>(op, ranks, sources),
        ElementType::Bf16 => each::<bf16>(op, ranks, sources),
        ElementType::I8 => each::<i8>(op, ranks, sources),
        ElementType::U8 => each::<u8>(op, ranks, sources),
        ElementType::I32 => each::<i32>(op, ranks, sources),
        ElementType::I64 => each::<i64>(op, ranks, sources),
    }
}

/// The first element that differs, where NaN equals every NaN: index, found and expected bytes.
pub(crate) fn first_difference(
    element: ElementType,
    found: &[u8],
    expected: &[u8],
) -> Option<(usize, Vec<u8>, Vec<u8>)> {
    let width = element.bytes();
    let pairs = found.chunks(width).zip(expected.chunks(width)).enumerate();
    let differs = |a: &[u8], b: &[u8]| a != b && !(is_nan(element, a) && is_nan(element, b));
    pairs
        .into_iter()
        .find(|(_, (a, b))| differs(a, b))
        .map(|(i, (a, b))| (i, a.to_vec(), b.to_vec()))
}

fn is_nan(element: ElementType, bytes: &[u8]) -> bool {
    match element {
        ElementType::F32 => f32::take(bytes).is_nan(),
        ElementType::F64 => f64::take(bytes).is_nan(),
        ElementType::F16 => f16::take(bytes).is_nan(),
        ElementType::Bf16 => bf16::take(bytes).is_nan(),
        _ => false,
    }
}

trait Number: Copy {
    fn take(bytes: &[u8]) -> Self;
    fn put(self, into: &mut Vec<u8>);
    fn combined(self, other: Self, op: ReduceOp) -> Self;
    fn over(self, ranks: i32) -> Self;
}

fn each<T: Number>(op: ReduceOp, ranks: i32, sources: &[Vec<u8>]) -> Vec<u8> {
    let width = size_of::<T>();
    let mut all = Vec::new();
    for index in 0..sources.first().map_or(0, |source| source.len() / width) {
        let values = sources.iter().map(|source| T::take(&source[index * width..][..width]));
        if let Some(value) = values.reduce(|a, b| a.combined(b, op)) {
            if ranks > 0 { value.over(ranks) } else { value }.put(&mut all);
        }
    }
    all
}

macro_rules! bytes {
    () => {
        fn take(bytes: &[u8]) -> Self {
            let mut own = [0; size_of::<Self>()];
            own.copy_from_slice(bytes);
            Self::from_le_bytes(own)
        }

        fn put(self, into: &mut Vec<u8>) {
            into.extend(self.to_le_bytes());
        }
    };
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            bytes!();

            fn combined(self, other: Self, op: ReduceOp) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => self.wrapping_add(other),
                    ReduceOp::Prod => self.wrapping_mul(other),
                    ReduceOp::Min => self.min(other),
                    ReduceOp::Max => self.max(other),
                    ReduceOp::And => self & other,
                    _ => self | other,
                }
            }

            fn over(self, ranks: i32) -> Self {
                // A quotient of a number by a positive one is no larger.
                Self::try_from(i128::from(self) / i128::from(ranks)).unwrap_or(0)
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty, $wide:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Number for $type {
            bytes!();

            fn combined(self, other: Self, op: ReduceOp) -> Self {
                let (a, b): ($wide, $wide) = ($widen(self), $widen(other));
                $narrow(match op {
                    ReduceOp::Prod => a * b,
                    // What is no number stays none.
                    ReduceOp::Min if a < b || a.is_nan() => a,
                    ReduceOp::Max if a > b || a.is_nan() => a,
                    ReduceOp::Min | ReduceOp::Max => b,
                    _ => a + b,
                })
            }

            fn over(self, ranks: i32) -> Self {
                $narrow($widen(self) / as_wide::<$wide>(ranks))
            }
        }
    )*};
}

trait FromRanks {
    fn from_ranks(ranks: i32) -> Self;
}

impl FromRanks for f32 {
    fn from_ranks(ranks: i32) -> Self {
        // Ranks are few, so that this is exact.
        Self::from(i16::try_from(ranks).unwrap_or(i16::MAX))
    }
}

impl FromRanks for f64 {
    fn from_ranks(ranks: i32) -> Self {
        Self::from(ranks)
    }
}

fn as_wide<T: FromRanks>(ranks: i32) -> T {
    T::from_ranks(ranks)
}

integers!(i8, u8, i32, i64);
floats! {
    f32, f32, |x: f32| x, |x: f32| x;
    f64, f64, |x: f64| x, |x: f64| x;
    f16, f32, |x: f16| x.to_f32(), f16::from_f32;
    bf16, f32, |x: bf16| x.to_f32(), bf16::from_f32;
}

/// Random bytes, in which every value of small types comes up, with what is special of floats laid between.
pub(crate) fn numbers(element: ElementType, elements: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let width = element.bytes();
    let mut bytes = Vec::with_capacity(elements * width);
    for _ in 0..elements {
        let random = next();
        // A quarter special: so that infinities meet each other, and zeros of either sign.
        let special: Option<f64> = match random % 32 {
            0 => Some(f64::INFINITY),
            1 => Some(f64::NEG_INFINITY),
            2 => Some(f64::NAN),
            3 => Some(0.0),
            4 => Some(-0.0),
            5 => Some(1.0),
            6 => Some(-1.5),
            7 => Some(65504.0),
            _ => None,
        };
        match (special, element) {
            (Some(value), ElementType::F64) => bytes.extend(value.to_le_bytes()),
            (Some(value), ElementType::F32) => {
                bytes.extend(f16::from_f64(value).to_f32().to_le_bytes())
            }
            (Some(value), ElementType::F16) => bytes.extend(f16::from_f64(value).to_le_bytes()),
            (Some(value), ElementType::Bf16) => bytes.extend(bf16::from_f64(value).to_le_bytes()),
            _ => bytes.extend(&next().to_le_bytes()[..width]),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_round_after_each_operation_and_wrap() {
        let of = |values: &[f32]| {
            values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect::<Vec<_>>()
        };
        // 2048 + 1 is no half, so the second one is lost as well.
        let sum =
            folded(ElementType::F16, ReduceOp::Sum, 0, &[of(&[2048.0]), of(&[1.0]), of(&[1.0])]);
        assert_eq!(sum, of(&[2048.0]));
        assert_eq!(folded(ElementType::I8, ReduceOp::Sum, 0, &[vec![127], vec![1]]), [0x80]);
        assert_eq!(folded(ElementType::I8, ReduceOp::Avg, 2, &[vec![0xff], vec![0xfe]]), [0xff]);
        let nan = folded(ElementType::F16, ReduceOp::Max, 0, &[of(&[1.0]), of(&[f32::NAN])]);
        assert!(is_nan(ElementType::F16, &nan));
    }

    #[test]
    fn differences_are_found_and_nans_are_alike() {
        let of = |bits: u32| bits.to_le_bytes().to_vec();
        assert_eq!(first_difference(ElementType::F32, &of(0x7fc0_0000), &of(0xffc0_0001)), None);
        assert_eq!(first_difference(ElementType::F32, &of(0), &of(0x8000_0000)).unwrap().0, 0);
        assert!(first_difference(ElementType::I32, &of(0x7fc0_0000), &of(0xffc0_0001)).is_some());
    }

    #[test]
    fn special_values_come_up() {
        let bytes = numbers(ElementType::F32, 1000, 3);
        let values: Vec<f32> = bytes.chunks(4).map(f32::take).collect();
        assert!(values.iter().any(|v| v.is_nan()) && values.iter().any(|v| v.is_infinite()));
        assert!(values.iter().any(|v| *v == 0.0 && v.is_sign_negative()));
    }
}
