//! PCI addresses. Sysfs writes `0000:3b:00.0`, NVML `00000000:3B:00.0`, and some hosts have domains
//! beyond 16 bits (`10000:00:04.0`); all spellings of one function compare equal here.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A PCI function: domain, bus, device, function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BusId {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// Text that is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a PCI address (domain:bus:device.function)")]
pub struct InvalidBusId {
    /// The text as found.
    pub text: String,
}

impl BusId {
    /// An address from its parts; `None` where device exceeds 31 or function 7.
    #[must_use]
    pub fn new(domain: u32, bus: u8, device: u8, function: u8) -> Option<Self> {
        (device < 32 && function < 8).then_some(Self { domain, bus, device, function })
    }

    /// PCI domain (segment), 32 bits.
    #[must_use]
    pub fn domain(self) -> u32 {
        self.domain
    }

    /// Bus number within the domain.
    #[must_use]
    pub fn bus(self) -> u8 {
        self.bus
    }

    /// Device number, 0 to 31.
    #[must_use]
    pub fn device(self) -> u8 {
        self.device
    }

    /// Function number, 0 to 7.
    #[must_use]
    pub fn function(self) -> u8 {
        self.function
    }
}

impl fmt::Display for BusId {
    /// Sysfs spelling: lower case, domain at least four digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for BusId {
    type Err = InvalidBusId;

    /// Accepts any number of leading zeros in the domain, either case, and a missing domain (`3b:00.0`).
    fn from_str(text: &str) -> Result<Self, InvalidBusId> {
        parse(text.trim()).ok_or_else(|| InvalidBusId { text: text.into() })
    }
}

fn parse(text: &str) -> Option<BusId> {
    let (head, function) = text.rsplit_once('.')?;
    let (head, device) = head.rsplit_once(':')?;
    let (domain, bus) = head.rsplit_once(':').unwrap_or(("0", head));
    BusId::new(
        hex(domain, 8)?,
        u8::try_from(hex(bus, 2)?).ok()?,
        u8::try_from(hex(device, 2)?).ok()?,
        u8::try_from(hex(function, 1)?).ok()?,
    )
}

fn hex(digits: &str, most: usize) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if !plain || digits.trim_start_matches('0').len() > most {
        return None;
    }
    let significant = digits.trim_start_matches('0');
    if significant.is_empty() { Some(0) } else { u32::from_str_radix(significant, 16).ok() }
}

impl Serialize for BusId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for BusId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        let parsed = text.parse::<BusId>().ok().map(|id| id.to_string());
        assert_eq!(parsed.as_deref(), expect, "{text}");
    }

    #[test]
    fn spellings() {
        check("0000:3b:00.0", Some("0000:3b:00.0"));
        check("00000000:3B:00.0", Some("0000:3b:00.0"));
        check("3b:00.0", Some("0000:3b:00.0"));
        check("10000:00:04.0", Some("10000:00:04.0"));
        check("ffffffff:ff:1f.7", Some("ffffffff:ff:1f.7"));
        check(" 0000:01:00.0\n", Some("0000:01:00.0"));
    }

    #[test]
    fn refused() {
        // The second is the target NCCL writes for "no such device".
        for text in [
            "",
            "fffffff:ffff:ff",
            "0000:3b:20.0",
            "0000:3b:00.8",
            "0000:3b:00",
            "+1:00:00.0",
            "g:0:0.0",
            "1ffffffff:00:00.0",
            "::.",
            "0000:100:00.0",
        ] {
            check(text, None);
        }
    }

    proptest! {
        #[test]
        fn round_trip(domain: u32, bus: u8, device in 0u8..32, function in 0u8..8) {
            let id = BusId::new(domain, bus, device, function).unwrap();
            prop_assert_eq!(id.to_string().parse::<BusId>().unwrap(), id);
            let nvml = alloc::format!("{domain:08X}:{bus:02X}:{device:02X}.{function:X}");
            prop_assert_eq!(nvml.parse::<BusId>().unwrap(), id);
            let json = serde_json::to_string(&id).unwrap();
            prop_assert_eq!(serde_json::from_str::<BusId>(&json).unwrap(), id);
        }

        #[test]
        fn never_panics(text in ".{0,40}") {
            let _ = text.parse::<BusId>();
        }
    }
}
