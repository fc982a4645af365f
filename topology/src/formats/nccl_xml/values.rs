//! Attribute values of NCCL's XML: C integers, class codes, link rates as the kernel words them.

use alloc::format;
use alloc::string::String;

use crate::BusId;
use crate::snapshot::PcieLink;

/// Hexadecimal with or without `0x`, as sysfs and NCCL write ids.
pub(super) fn hex(text: &str) -> Option<u32> {
    let digits = hex_digits(text);
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if plain { u32::from_str_radix(digits, 16).ok() } else { None }
}

fn hex_digits(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text)
}

/// A 24-bit class code. NCCL matches prefixes and itself writes `0x03` for a GPU without a known
/// class, so short codes are the upper bytes.
pub(super) fn class(text: &str) -> Option<u32> {
    let code = hex(text)?;
    match hex_digits(text).len() {
        1 | 2 => Some(code << 16),
        3 | 4 => Some(code << 8),
        5 | 6 => Some(code),
        _ => None,
    }
}

/// MT/s per lane of `16.0 GT/s PCIe`, `8 GT/s`, `32 GT/s PCIe/s`; `None` for what is no PCIe rate (`Unknown`).
pub(super) fn rate_mtps(text: &str) -> Option<u32> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if !unit.trim_start().to_ascii_lowercase().starts_with("gt/s") {
        return None;
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // The rates of PCIe 1.0 to 7.0.
    match (whole, fraction.trim_end_matches('0')) {
        ("2", "5") => Some(2500),
        ("5", "") => Some(5000),
        ("8", "") => Some(8000),
        ("16", "") => Some(16_000),
        ("32", "") => Some(32_000),
        ("64", "") => Some(64_000),
        ("128", "") => Some(128_000),
        _ => None,
    }
}

/// Lanes; `None` for what is no PCIe width (0 and 255 are the kernel's words for unknown).
pub(super) fn width(text: &str) -> Option<u8> {
    text.trim().parse().ok().filter(|lanes| matches!(lanes, 1 | 2 | 4 | 8 | 12 | 16 | 32))
}

/// Both halves, 0 for one not known; `None` when neither is.
pub(super) fn link(mtps: Option<u32>, width: Option<u8>) -> Option<PcieLink> {
    (mtps.is_some() || width.is_some())
        .then(|| PcieLink { mtps: mtps.unwrap_or(0), width: width.unwrap_or(0) })
}

/// Where an NVLink says it goes.
pub(super) enum Target {
    Device(BusId),
    /// `fffffff:ffff:ff` and the like: the driver shows no such device (in a VM, or on a rack-wide fabric);
    /// NCCL takes it for an NVSwitch (`src/graph/xml.cc`).
    Hidden,
}

pub(super) fn target(text: &str) -> Option<Target> {
    if let Ok(bus_id) = text.parse() {
        return Some(Target::Device(bus_id));
    }
    let mut fields = text.trim().split([':', '.']).peekable();
    let mut count = 0;
    while let Some(field) = fields.next() {
        let all_ones = !field.is_empty() && field.bytes().all(|b| b.eq_ignore_ascii_case(&b'f'));
        let function = count >= 2 && fields.peek().is_none() && field == "0";
        if !all_ones && !function {
            return None;
        }
        count += 1;
    }
    (count >= 3).then_some(Target::Hidden)
}

/// The CPUID family as the kernel displays it. NCCL before 2.30 wrote AMD's as extended and base nibble side by
/// side (0x8F, 0xAF, 0xBF), where the sum is meant: 23, 25, 26.
pub(super) fn cpu_family(text: &str) -> Option<u32> {
    let family: u32 = text.trim().parse().ok()?;
    let (extended, base) = (family >> 4, family & 0xF);
    Some(if base == 0xF && extended > 1 { base + extended } else { family })
}

/// The `gcn` attribute is a bare number in older RCCL (910 stands for gfx90a), a name in newer.
pub(super) fn gcn_name(text: &str) -> String {
    match text.trim() {
        "910" => "gfx90a".into(),
        digits if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            format!("gfx{digits}")
        }
        name => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: PartialEq + core::fmt::Debug>(
        read: fn(&str) -> Option<T>,
        cases: &[(&str, Option<T>)],
    ) {
        for (text, expect) in cases {
            assert_eq!(read(text), *expect, "{text}");
        }
    }

    #[test]
    fn classes() {
        check(
            class,
            &[
                ("0x060400", Some(0x06_04_00)),
                ("0x03", Some(0x03_00_00)),
                ("0x0302", Some(0x03_02_00)),
                ("030200", Some(0x03_02_00)),
                ("0x0302000", None),
                ("", None),
                ("0x", None),
                ("bridge", None),
            ],
        );
    }

    #[test]
    fn link_rates() {
        check(
            rate_mtps,
            &[
                ("16 GT/s", Some(16_000)),
                ("16.0 GT/s PCIe", Some(16_000)),
                ("2.5 GT/s", Some(2500)),
                ("2.5 GT/s PCIe", Some(2500)),
                ("32 GT/s PCIe/s", Some(32_000)),
                ("64.0GT/s", Some(64_000)),
                ("Unknown", None),
                ("Unknown speed", None),
                ("", None),
                ("0 GT/s", None),
                ("17 GT/s", None),
                ("16", None),
                ("16 MB/s", None),
                ("-1", None),
            ],
        );
        check(
            width,
            &[("16", Some(16)), ("0", None), ("255", None), ("3", None), ("", None), ("-1", None)],
        );
    }

    #[test]
    fn targets() {
        check(
            |text| target(text).map(|t| matches!(t, Target::Hidden)),
            &[
                ("0000:3b:00.0", Some(false)),
                ("fffffff:ffff:ff", Some(true)),
                ("fffffff:ff:ff.0", Some(true)),
                ("FFFFFFFF:FF:FF.F", Some(true)),
                ("1", None),
                ("", None),
                ("f:f", None),
                ("0000:3b:00", None),
            ],
        );
    }

    #[test]
    fn families() {
        check(
            cpu_family,
            &[
                ("6", Some(6)),
                ("143", Some(23)),
                ("175", Some(25)),
                ("191", Some(26)),
                ("23", Some(23)),
                ("25", Some(25)),
                ("26", Some(26)),
                ("x", None),
            ],
        );
        assert_eq!(["910", "908", "gfx942"].map(gcn_name), ["gfx90a", "gfx908", "gfx942"]);
    }
}
