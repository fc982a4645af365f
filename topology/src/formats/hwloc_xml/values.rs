//! Values of attributes: bitmaps, PCI types, link speeds.

use alloc::format;
use alloc::string::String;

use crate::{Bandwidth, CpuList};

/// Most words of a bitmap: 8,192 CPUs, the most a Linux kernel can be built for.
const MOST_WORDS: usize = 256;

/// hwloc's bitmap: 32-bit words from the highest, an empty one is 0. `None` for an infinite one (`0xf...f`), and
/// for one longer than any machine's.
pub(super) fn bitmap(text: &str) -> Option<CpuList> {
    if text.split(',').count() > MOST_WORDS {
        return None;
    }
    let mut words = String::with_capacity(text.len() + 8);
    for word in text.trim().split(',') {
        let separator = if words.is_empty() { "" } else { "," };
        words.push_str(separator);
        words.push_str(if word.is_empty() { "0" } else { word });
    }
    CpuList::from_mask(&words).ok()
}

/// Class (24 bits), vendor and device of `0604 [10b5:8725] [10b5:8725] ca 00`; the last is hwloc 3's programming
/// interface.
pub(super) fn pci_type(text: &str) -> Option<(u32, u16, u16)> {
    let mut words = text.split_whitespace();
    let class = u32::from(hex16(words.next()?)?);
    let (vendor, device) = words.next()?.strip_prefix('[')?.strip_suffix(']')?.split_once(':')?;
    let interface = words.nth(2).and_then(|word| u8::from_str_radix(word, 16).ok()).unwrap_or(0);
    Some((class << 8 | u32::from(interface), hex16(vendor)?, hex16(device)?))
}

fn hex16(text: &str) -> Option<u16> {
    (text.len() == 4).then(|| u16::from_str_radix(text, 16).ok()).flatten()
}

/// GB/s as hwloc writes it, exact to the kB/s; `None` for 0, its word for unknown.
pub(super) fn gbps(text: &str) -> Option<Bandwidth> {
    let (whole, fraction) = text.trim().split_once('.').unwrap_or_else(|| (text.trim(), ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || whole.len() > 6 || !digits(whole) || !digits(fraction) {
        return None;
    }
    let millionths: String = format!("{fraction:0<6}").chars().take(6).collect();
    let kbps = whole.parse::<u64>().ok()? * 1_000_000 + millionths.parse::<u64>().ok()?;
    (kbps > 0).then(|| Bandwidth::from_kbps(kbps))
}

/// Whether a link carries this much in 8b/10b code, that of PCIe 1 and 2: a multiple of 250 MB/s.
pub(super) fn is_old_code(total: Bandwidth) -> bool {
    total.kbps().is_multiple_of(250_000) && total.kbps() <= 16_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn bitmaps() {
        for (text, expect) in [
            ("0x00000005", Some("0,2")),
            ("0x0000ffff,0xff000000,,0x0", Some("88-111")),
            ("0x00000003,,0x00000001", Some("0,64-65")),
            ("0x0", Some("")),
            ("0xf...f", None),
            ("x", None),
            ("", Some("")),
        ] {
            assert_eq!(bitmap(text).map(|list| list.to_string()).as_deref(), expect, "{text}");
        }
    }

    #[test]
    fn pci_types() {
        assert_eq!(pci_type("0302 [10de:1db1] [10de:1212] a1"), Some((0x03_02_00, 0x10de, 0x1db1)));
        assert_eq!(
            pci_type("0604 [8086:244e] [0000:0000] 90 01"),
            Some((0x06_04_01, 0x8086, 0x244e))
        );
        for text in
            ["", "0302", "0302 10de:1db1", "302 [10de:1db1]", "0302 [10de:1db]", "0302 [10de-1db1]"]
        {
            assert_eq!(pci_type(text), None, "{text}");
        }
    }

    #[test]
    fn link_speeds() {
        for (text, kbps) in [
            ("15.753846", Some(15_753_846)),
            ("0.25", Some(250_000)),
            ("63", Some(63_000_000)),
            ("0.000000", None),
            ("-1", None),
            ("1e9", None),
            ("", None),
            ("9999999", None),
        ] {
            assert_eq!(gbps(text).map(Bandwidth::kbps), kbps, "{text}");
        }
        let old = |kbps| is_old_code(Bandwidth::from_kbps(kbps));
        assert!(old(4_000_000) && old(250_000) && old(8_000_000));
        assert!(!old(3_938_462) && !old(15_753_846) && !old(31_000_000));
    }
}
