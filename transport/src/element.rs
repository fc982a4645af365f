//! Element types, and what elements are combined by.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

/// What a buffer holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementType {
    /// IEEE 754 single precision.
    #[default]
    F32,
    /// IEEE 754 double precision.
    F64,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// 8 bits, signed.
    I8,
    /// 32 bits, signed.
    I32,
    /// 64 bits, signed.
    I64,
    /// 8 bits, unsigned.
    U8,
}

impl ElementType {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::F64, Self::F16, Self::Bf16, Self::I8, Self::I32, Self::I64, Self::U8];

    /// Bytes of one.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// Whether it has a fraction.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::Bf16)
    }

    /// The word on command lines.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
        }
    }
}

/// What elements are combined by.
///
/// For floats and one plan, the result is the same on every rank and in every run. Against the exact sum of `n` inputs it is off
/// by at most `(n - 1) * u * (|x_1| + ... + |x_n|)` to first order, where `u` is half a unit in the last place of the element
/// type (2^-24 for `f32`, 2^-53 for `f64`, 2^-11 for `f16`, 2^-8 for `bf16`), in whatever order the plan adds: partial sums of
/// `f16` and `bf16` are computed in `f32` and kept in their own type. A product is off by `(n - 1) * u` of its value; an average
/// by one more `u` than its sum. Least and greatest are exact, and NaN where any input is.
///
/// Integers wrap, as in NCCL; the average of integers is the quotient of that sum, rounded towards zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Addition.
    #[default]
    Sum,
    /// Multiplication.
    Prod,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// The sum over the number of ranks.
    Avg,
    /// The bits that are set in all; integers alone.
    And,
    /// The bits that are set in any; integers alone.
    Or,
}

impl ReduceOp {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg, Self::And, Self::Or];

    /// The word on command lines.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::And => "and",
            Self::Or => "or",
        }
    }

    /// Whether it can combine elements of a type.
    #[must_use]
    pub const fn combines(self, element: ElementType) -> bool {
        !(matches!(self, Self::And | Self::Or) && element.is_float())
    }
}

/// A word that names no element type or operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{word}' is none of {known}")]
pub struct UnknownWord {
    /// As given.
    pub word: String,
    /// What there is.
    pub known: String,
}

fn find<T: Copy>(
    word: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<T, UnknownWord> {
    all.iter().copied().find(|one| name(*one) == word).ok_or_else(|| UnknownWord {
        word: word.to_owned(),
        known: all.iter().map(|one| name(*one)).collect::<Vec<_>>().join(", "),
    })
}

impl FromStr for ElementType {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        find(word, &Self::ALL, Self::as_str)
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        find(word, &Self::ALL, Self::as_str)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type that buffers may hold. Any bits are a value of it.
pub trait Element:
    Copy + Default + PartialEq + fmt::Debug + Send + Sync + sealed::Sealed + 'static
{
    /// Which.
    const TYPE: ElementType;
}

macro_rules! elements {
    ($($type:ty => $name:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;
        }
    )*};
}

elements!(
    f32 => F32, f64 => F64, f16 => F16, bf16 => Bf16, i8 => I8, i32 => I32, i64 => I64, u8 => U8
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for element in ElementType::ALL {
            assert_eq!(element.to_string().parse(), Ok(element));
        }
        for op in ReduceOp::ALL {
            assert_eq!(op.to_string().parse(), Ok(op));
        }
        let error = "f8".parse::<ElementType>().unwrap_err().to_string();
        assert_eq!(error, "'f8' is none of f32, f64, f16, bf16, i8, i32, i64, u8");
        assert!("xor".parse::<ReduceOp>().is_err());
    }

    #[test]
    fn sizes_are_those_of_the_types() {
        fn check<T: Element>() {
            assert_eq!(T::TYPE.bytes(), size_of::<T>());
        }
        check::<f32>();
        check::<f64>();
        check::<f16>();
        check::<bf16>();
        check::<i8>();
        check::<i32>();
        check::<i64>();
        check::<u8>();
    }
}
