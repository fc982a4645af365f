//! Sums that notice when they no longer fit. A plan may come from a file, so nothing bounds its fractions.

use topology::Fraction;

/// Sum; `None` on overflow. Runs of equal fractions, as over the planes of a switch, are added at once.
pub(super) fn sum(fractions: impl IntoIterator<Item = Fraction>) -> Option<Fraction> {
    let mut sum = Fraction::ZERO;
    let mut run: (Fraction, i128) = (Fraction::ZERO, 0);
    for fraction in fractions {
        if run.0 == fraction {
            run.1 += 1;
        } else {
            sum = sum.checked_add(run.0.checked_mul(Fraction::integer(run.1))?)?;
            run = (fraction, 1);
        }
    }
    sum.checked_add(run.0.checked_mul(Fraction::integer(run.1))?)
}

/// Product of all; `None` on overflow.
pub(super) fn product(fractions: impl IntoIterator<Item = Fraction>) -> Option<Fraction> {
    fractions.into_iter().try_fold(Fraction::ONE, Fraction::checked_mul)
}

/// A count as a fraction.
pub(super) fn integer(count: usize) -> Fraction {
    Fraction::integer(i128::try_from(count).expect("a count of things in memory fits i128"))
}
