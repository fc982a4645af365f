//! Bandwidth: an integer, so that sums, bounds and comparisons are exact and plans byte-equal.

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::iter::Sum;
use core::ops::{Add, Mul};

use serde::{Deserialize, Serialize};

/// Bytes per second in one direction, in units of 1,000 bytes per second (kB/s).
///
/// A finer unit than MB/s because link graphs in the wild carry rates such as 24.999967 GB/s, which
/// a coarser unit would round.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bandwidth(u64);

impl Bandwidth {
    /// No capacity.
    pub const ZERO: Self = Self(0);

    /// From kB/s (1,000 bytes per second).
    #[must_use]
    pub const fn from_kbps(kbytes_per_second: u64) -> Self {
        Self(kbytes_per_second)
    }

    /// From MB/s (1,000,000 bytes per second).
    #[must_use]
    pub const fn from_mbps(mbytes_per_second: u64) -> Self {
        Self(mbytes_per_second * 1000)
    }

    /// From a network rate in Mbit/s, as NICs and NCCL's `speed` attribute state it.
    #[must_use]
    pub const fn from_mbit(mbit_per_second: u64) -> Self {
        Self(mbit_per_second * 125)
    }

    /// From GB/s written in decimal; digits beyond the sixth place are dropped (rounded down).
    /// `None` for a negative, non-finite or absurd (over 1 EB/s) figure.
    #[must_use]
    pub fn from_gbps(gbytes_per_second: f64) -> Option<Self> {
        let scaled = gbytes_per_second * 1e6;
        // 1e-4 absorbs the binary representation of decimal inputs such as 20.6.
        let kbps = scaled + 1e-4;
        if !(0.0..=1e15).contains(&kbps) {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "range checked above; truncation is the rounding wanted"
        )]
        Some(Self(kbps as u64))
    }

    /// In kB/s (1,000 bytes per second).
    #[must_use]
    pub const fn kbps(self) -> u64 {
        self.0
    }

    /// In GB/s (1e9 bytes per second), for display only.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "display only; rates are far below 2^53 kB/s")]
    pub fn gbps(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Whether there is no capacity.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// In GB/s with the fewest digits that are exact: `20`, `20.6`, `24.999967`.
    #[must_use]
    pub fn display_gbps(self) -> String {
        let (whole, rest) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if rest == 0 {
            return format!("{whole}");
        }
        let text = format!("{whole}.{rest:06}");
        text.trim_end_matches('0').into()
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GB/s", self.display_gbps())
    }
}

impl Add for Bandwidth {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Mul<u64> for Bandwidth {
    type Output = Self;
    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

impl Sum for Bandwidth {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(gbps: f64, kbps: Option<u64>, text: &str) {
        let parsed = Bandwidth::from_gbps(gbps);
        assert_eq!(parsed.map(Bandwidth::kbps), kbps);
        if let Some(b) = parsed {
            assert_eq!(b.display_gbps(), text);
        }
    }

    #[test]
    fn decimal_rates_are_exact() {
        check(25.0, Some(25_000_000), "25");
        check(20.6, Some(20_600_000), "20.6");
        check(24.999967, Some(24_999_967), "24.999967");
        check(0.0, Some(0), "0");
        check(-1.0, None, "");
        check(f64::NAN, None, "");
        check(f64::INFINITY, None, "");
        check(1e30, None, "");
    }

    #[test]
    fn mbit() {
        assert_eq!(Bandwidth::from_mbit(100_000), Bandwidth::from_mbps(12_500));
    }
}
