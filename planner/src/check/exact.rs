//! Sums that notice when they no longer fit. A plan may come from a file, so nothing bounds its fractions.

use topology::Fraction;

/// Sum; `None` on overflow.
pub(super) fn sum(fractions: impl IntoIterator<Item = Fraction>) -> Option<Fraction> {
    fractions.into_iter().try_fold(Fraction::ZERO, Fraction::checked_add)
}

/// Product of all; `None` on overflow.
pub(super) fn product(fractions: impl IntoIterator<Item = Fraction>) -> Option<Fraction> {
    fractions.into_iter().try_fold(Fraction::ONE, Fraction::checked_mul)
}

/// A count as a fraction.
pub(super) fn integer(count: usize) -> Fraction {
    Fraction::integer(i128::try_from(count).expect("a count of things in memory fits i128"))
}
