//! Exact fractions: bounds, shares and channel rates are never floats.

use alloc::string::{String, ToString};
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::iter::Sum;
use core::ops::{Add, Div, Mul, Sub};
use core::str::FromStr;

use num_integer::gcd;
use num_rational::Ratio;
use num_traits::{CheckedAdd, CheckedDiv, CheckedMul, CheckedSub, Zero};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A reduced fraction of 128-bit integers, written `p/q` (or `p` where q is 1).
///
/// The operators panic on overflow rather than wrap: capacities are below 2^50 and counts of trees
/// below 2^20, so an overflow is a bug. Code that meets input it has not bounded uses the `checked_` forms.
#[derive(Clone, Copy, Debug, Eq)]
pub struct Fraction(Ratio<i128>);

/// A fraction of numbers below 2^62, as almost all are: 64-bit arithmetic, with products in 128 bits that cannot overflow.
#[derive(Clone, Copy)]
struct Small {
    numerator: i64,
    denominator: i64,
}

impl Small {
    const END: i128 = 1 << 62;

    #[expect(clippy::cast_possible_truncation, reason = "both are below 2^62")]
    fn of(fraction: Fraction) -> Option<Self> {
        let (p, q) = (fraction.numerator(), fraction.denominator());
        (p.abs() < Self::END && q < Self::END)
            .then_some(Self { numerator: p as i64, denominator: q as i64 })
    }

    fn both(a: Fraction, b: Fraction) -> Option<(Self, Self)> {
        Some((Self::of(a)?, Self::of(b)?))
    }

    /// Common factors are taken out crosswise first, so the product is reduced.
    fn times(self, other: Self) -> Fraction {
        let g = gcd(self.numerator, other.denominator).max(1);
        let h = gcd(other.numerator, self.denominator).max(1);
        let product = |a: i64, b: i64| i128::from(a) * i128::from(b);
        Fraction(Ratio::new_raw(
            product(self.numerator / g, other.numerator / h),
            product(self.denominator / h, other.denominator / g),
        ))
    }

    /// One over it; zero has none.
    fn inverse(self) -> Option<Self> {
        match self.numerator.signum() {
            0 => None,
            sign => {
                Some(Self { numerator: sign * self.denominator, denominator: self.numerator.abs() })
            }
        }
    }

    /// Only a common factor of both denominators can be left in the sum.
    #[expect(clippy::cast_possible_truncation, reason = "a rest of a 64-bit division")]
    fn plus(self, other: Self) -> Fraction {
        let g = gcd(self.denominator, other.denominator);
        let (b, d) = (self.denominator / g, other.denominator / g);
        let sum = i128::from(self.numerator) * i128::from(d)
            + i128::from(other.numerator) * i128::from(b);
        if sum == 0 {
            return Fraction::ZERO;
        }
        let h = if g == 1 { 1 } else { gcd((sum % i128::from(g)) as i64, g) };
        let denominator = i128::from(b) * i128::from(other.denominator);
        if h == 1 {
            return Fraction(Ratio::new_raw(sum, denominator));
        }
        Fraction(Ratio::new_raw(sum / i128::from(h), denominator / i128::from(h)))
    }
}

/// Text that is not a fraction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a fraction (p or p/q, q > 0)")]
pub struct InvalidFraction {
    /// The text as found.
    pub text: String,
}

impl Fraction {
    /// Zero.
    pub const ZERO: Self = Self(Ratio::new_raw(0, 1));
    /// One.
    pub const ONE: Self = Self(Ratio::new_raw(1, 1));

    /// `numerator / denominator`, reduced; `None` where the denominator is zero.
    #[must_use]
    pub fn new(numerator: i128, denominator: i128) -> Option<Self> {
        (denominator != 0).then(|| Self(Ratio::new(numerator, denominator)))
    }

    /// A whole number.
    #[must_use]
    pub const fn integer(value: i128) -> Self {
        Self(Ratio::new_raw(value, 1))
    }

    /// `numerator / denominator` of counts the caller knows to be positive.
    ///
    /// # Panics
    /// Where `denominator` is zero.
    #[must_use]
    pub fn of(numerator: u64, denominator: u64) -> Self {
        assert!(denominator != 0, "fraction with zero denominator");
        let g = gcd(numerator, denominator);
        Self(Ratio::new_raw(i128::from(numerator / g), i128::from(denominator / g)))
    }

    /// Reduced numerator (carries the sign).
    #[must_use]
    pub fn numerator(self) -> i128 {
        *self.0.numer()
    }

    /// Reduced denominator, positive.
    #[must_use]
    pub fn denominator(self) -> i128 {
        *self.0.denom()
    }

    /// Whether it is zero.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0.is_zero()
    }

    /// Largest integer not above it.
    #[must_use]
    pub fn floor(self) -> i128 {
        self.0.floor().to_integer()
    }

    /// For display and cost models only.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "display only")]
    pub fn to_f64(self) -> f64 {
        self.numerator() as f64 / self.denominator() as f64
    }

    /// Sum, or `None` on overflow.
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        match Small::both(self, other) {
            Some((a, b)) => Some(a.plus(b)),
            None => self.0.checked_add(&other.0).map(Self),
        }
    }

    /// Difference, or `None` on overflow.
    #[must_use]
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        match Small::both(self, other) {
            Some((a, b)) => Some(a.plus(Small { numerator: -b.numerator, ..b })),
            None => self.0.checked_sub(&other.0).map(Self),
        }
    }

    /// Product, or `None` on overflow.
    #[must_use]
    pub fn checked_mul(self, other: Self) -> Option<Self> {
        match Small::both(self, other) {
            Some((a, b)) => Some(a.times(b)),
            None => self.0.checked_mul(&other.0).map(Self),
        }
    }

    /// Quotient, or `None` on overflow or division by zero.
    #[must_use]
    pub fn checked_div(self, other: Self) -> Option<Self> {
        match Small::both(self, other) {
            Some((a, b)) => Some(a.times(b.inverse()?)),
            None => self.0.checked_div(&other.0).map(Self),
        }
    }
}

impl Default for Fraction {
    fn default() -> Self {
        Self::ZERO
    }
}

/// Both are reduced, so no division is needed as for any two ratios.
impl PartialEq for Fraction {
    fn eq(&self, other: &Self) -> bool {
        self.0.numer() == other.0.numer() && self.0.denom() == other.0.denom()
    }
}

impl Hash for Fraction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.numer(), self.0.denom()).hash(state);
    }
}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Fraction {
    fn cmp(&self, other: &Self) -> Ordering {
        match Small::both(*self, *other) {
            Some((a, b)) => {
                let cross =
                    |a: Small, b: Small| i128::from(a.numerator) * i128::from(b.denominator);
                cross(a, b).cmp(&cross(b, a))
            }
            None => self.0.cmp(&other.0),
        }
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Fraction {
    type Err = InvalidFraction;

    fn from_str(text: &str) -> Result<Self, InvalidFraction> {
        let error = || InvalidFraction { text: text.into() };
        let (p, q) = text.split_once('/').unwrap_or((text, "1"));
        let p = p.trim().parse::<i128>().map_err(|_| error())?;
        let q = q.trim().parse::<i128>().map_err(|_| error())?;
        // i128::MIN cannot be negated while reducing.
        if q <= 0 || p == i128::MIN {
            return Err(error());
        }
        Self::new(p, q).ok_or_else(error)
    }
}

impl Serialize for Fraction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $checked:ident, $what:literal) => {
        impl $trait for Fraction {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                self.$checked(other).expect($what)
            }
        }
    };
}
operator!(Add, add, checked_add, "fraction sum within 128 bits");
operator!(Sub, sub, checked_sub, "fraction difference within 128 bits");
operator!(Mul, mul, checked_mul, "fraction product within 128 bits");
operator!(Div, div, checked_div, "fraction quotient within 128 bits and divisor not zero");

impl Sum for Fraction {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        assert_eq!(
            text.parse::<Fraction>().ok().map(|f| f.to_string()).as_deref(),
            expect,
            "{text}"
        );
    }

    #[test]
    fn text() {
        check("480/7", Some("480/7"));
        check("6/4", Some("3/2"));
        check("5", Some("5"));
        check("-1/3", Some("-1/3"));
        for text in ["", "1/0", "1/-2", "x", "1/2/3", "-170141183460469231731687303715884105728"] {
            check(text, None);
        }
    }

    proptest! {
        #[test]
        fn round_trip(p in -1_000_000_i128..1_000_000, q in 1_i128..1_000_000) {
            let f = Fraction::new(p, q).unwrap();
            prop_assert_eq!(f.to_string().parse::<Fraction>().unwrap(), f);
        }

        /// The short way and the long one agree, near the border between them as well.
        #[test]
        fn arithmetic_equals_the_library(
            p in -60_i128..60, q in 1_i128..60, r in -60_i128..60, s in 1_i128..60,
            shift in proptest::sample::select(vec![0_u32, 20, 55, 56, 57, 58]), whole in any::<bool>(),
        ) {
            let large = |x: i128| if whole { (x << shift) + 1 } else { x << shift };
            for (p, q, r, s) in [(p, q, r, s), (large(p), q, r, s), (p, large(q), r, s), (large(p), q, r, large(s))] {
                let (a, b) = (Fraction::new(p, q).unwrap(), Fraction::new(r, s).unwrap());
                prop_assert_eq!(a.checked_add(b), a.0.checked_add(&b.0).map(Fraction));
                prop_assert_eq!(a.checked_sub(b), a.0.checked_sub(&b.0).map(Fraction));
                prop_assert_eq!(a.checked_mul(b), a.0.checked_mul(&b.0).map(Fraction));
                let quotient = (!b.is_zero()).then(|| a.0.checked_div(&b.0).map(Fraction));
                prop_assert_eq!(a.checked_div(b), quotient.flatten());
                prop_assert_eq!(a.cmp(&b), a.0.cmp(&b.0));
                // Equal by either way to get there: by terms that are reduced, and by the library's comparison.
                prop_assert_eq!(a == b, a.0 == b.0);
                let there_and_back = a.checked_add(b).and_then(|sum| sum.checked_sub(b));
                prop_assert!(there_and_back.is_none_or(|same| same == a));
            }
        }

        #[test]
        fn never_panics(text in ".{0,60}") {
            let _ = text.parse::<Fraction>();
        }
    }
}
