//! Sizes as people write them: `8`, `1KiB`, `64M`, `1GB`; ranges as nccl-tests counts them.

use std::str::FromStr;

/// Bytes from text. `K`, `M`, `G` and `KiB`.. are powers of 1024 (as in nccl-tests), `kB`/`KB`, `MB`, `GB` powers of 1000.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("'{text}' is no size: a number, then K, M, G, KiB, MB, .."))?;
    let unit_bytes: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => {
            return Err(format!(
                "'{text}' is no size: unit '{unit}' is not one of K, M, G, KiB, MiB, GiB, kB, MB, GB"
            ));
        }
    };
    number.checked_mul(unit_bytes).ok_or_else(|| format!("'{text}' is more than 2^64 bytes"))
}

/// `64 MiB`, `8 B`: the largest binary unit that is exact.
pub(crate) fn display(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// Sizes to measure, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<u64>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains(':') {
            return text.split(',').map(parse).collect::<Result<Vec<_>, _>>().map(Sizes);
        }
        let parts: Vec<&str> = text.split(':').collect();
        let (from, to, factor) = match parts.as_slice() {
            [from, to] => (parse(from)?, parse(to)?, 2),
            [from, to, factor] => (parse(from)?, parse(to)?, parse(factor)?),
            _ => return Err(format!("'{text}' is not FROM:TO:FACTOR")),
        };
        if factor < 2 || from == 0 || from > to {
            return Err(format!(
                "'{text}': FROM must be positive and at most TO, FACTOR at least 2"
            ));
        }
        let sizes = std::iter::successors(Some(from), |size| size.checked_mul(factor))
            .take_while(|size| *size <= to);
        Ok(Self(sizes.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<u64>) {
        assert_eq!(parse(text).ok(), expect, "{text}");
    }

    #[test]
    fn sizes() {
        check("8", Some(8));
        check("1KiB", Some(1024));
        check("64M", Some(64 << 20));
        check("1GB", Some(1_000_000_000));
        check("1 GiB", Some(1 << 30));
        for text in ["", "x", "1Q", "-1", "99999999999999999999", "17179869184G"] {
            check(text, None);
        }
    }

    #[test]
    fn ranges() {
        assert_eq!("8:64:2".parse(), Ok(Sizes(vec![8, 16, 32, 64])));
        assert_eq!("8:1K:4".parse(), Ok(Sizes(vec![8, 32, 128, 512])));
        assert_eq!("8,1K".parse(), Ok(Sizes(vec![8, 1024])));
        for text in ["8:4:2", "8:16:1", "0:8:2", "1:2:3:4"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }

    #[test]
    fn shown() {
        assert_eq!(
            [display(8), display(1024), display(64 << 20), display(1500)],
            ["8 B", "1 KiB", "64 MiB", "1500 B"]
        );
    }
}
