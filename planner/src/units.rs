//! Between the whole numbers that count and the floating point of linear programs, which only guess.

use alloc::vec::Vec;

use topology::Fraction;

/// The nearest number of floating point.
pub(crate) fn float(x: u64) -> f64 {
    Fraction::of(x, 1).to_f64()
}

/// The nearest whole number; prices, lengths and shares are never below zero but for rounding.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped at zero, scaled below 2^50"
)]
pub(crate) fn to_units(x: f64) -> u64 {
    if x > 0.0 { (x + 0.5) as u64 } else { 0 }
}

/// The values as multiples of the least that counts, or of a part of it down to one in `most`, where all are.
pub(crate) fn simple_multiples(values: &[f64], most: u32) -> Option<Vec<u64>> {
    let largest = values.iter().copied().fold(0.0, f64::max);
    let least = values.iter().copied().filter(|&x| x > largest * 1e-6).fold(largest, f64::min);
    (1..=most).find_map(|multiple| {
        let factor = f64::from(multiple) / least;
        let rounded: Vec<u64> = values.iter().map(|&x| to_units(x * factor)).collect();
        let near = |(&x, &r): (&f64, &u64)| (x * factor - float(r)).abs() < 1e-4;
        values.iter().zip(&rounded).all(near).then_some(rounded)
    })
}
