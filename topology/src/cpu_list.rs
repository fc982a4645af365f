//! Sets of CPUs in the kernel's list form: `0-15,64-79`.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A set of CPU numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuList(BTreeSet<u32>);

/// Text that is no CPU list or mask.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a CPU list")]
pub struct InvalidCpuList {
    /// The text as found.
    pub text: String,
}

/// No machine has more CPUs; a guard against `0-4294967295`.
const MOST_CPUS: u32 = 1 << 16;

impl CpuList {
    /// From CPU numbers in any order.
    #[must_use]
    pub fn from_cpus(cpus: impl IntoIterator<Item = u32>) -> Self {
        Self(cpus.into_iter().collect())
    }

    /// From the kernel's mask form, words of 32 bits, most significant first: `00000000,0000ffff`.
    ///
    /// # Errors
    /// Where a word is not hexadecimal.
    pub fn from_mask(text: &str) -> Result<Self, InvalidCpuList> {
        let error = || InvalidCpuList { text: text.into() };
        let words: Vec<&str> = text.trim().split(',').collect();
        if words.len() > (MOST_CPUS / 32) as usize {
            return Err(error());
        }
        let mut cpus = BTreeSet::new();
        for (base, word) in (0..).step_by(32).zip(words.iter().rev()) {
            let bits =
                u32::from_str_radix(word.trim_start_matches("0x"), 16).map_err(|_| error())?;
            cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| base + bit));
        }
        Ok(Self(cpus))
    }

    /// In the kernel's mask form, as [`from_mask`](Self::from_mask) takes it.
    #[must_use]
    pub fn to_mask(&self) -> String {
        let words = self.0.last().map_or(1, |last| last / 32 + 1);
        let word = |at: u32| {
            let cpus = self.0.range(at * 32..(at + 1) * 32);
            cpus.fold(0_u32, |bits, cpu| bits | 1 << (cpu % 32))
        };
        let words: Vec<String> =
            (0..words).rev().map(|at| alloc::format!("{:08x}", word(at))).collect();
        words.join(",")
    }

    /// Whether a CPU is in it.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let mut rest = self.0.iter().copied().peekable();
        while let Some(first) = rest.next() {
            let mut last = first;
            while rest.next_if(|cpu| *cpu == last + 1).is_some() {
                last += 1;
            }
            let comma = if text.is_empty() { "" } else { "," };
            let item = if first == last {
                alloc::format!("{comma}{first}")
            } else {
                alloc::format!("{comma}{first}-{last}")
            };
            text.push_str(&item);
        }
        f.pad(&text)
    }
}

impl FromStr for CpuList {
    type Err = InvalidCpuList;

    fn from_str(text: &str) -> Result<Self, InvalidCpuList> {
        let error = || InvalidCpuList { text: text.into() };
        let mut cpus = BTreeSet::new();
        for item in text.trim().split(',').filter(|item| !item.is_empty()) {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let first = first.trim().parse::<u32>().map_err(|_| error())?;
            let last = last.trim().parse::<u32>().map_err(|_| error())?;
            if first > last || last >= MOST_CPUS {
                return Err(error());
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl Serialize for CpuList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        assert_eq!(
            text.parse::<CpuList>().ok().map(|l| l.to_string()).as_deref(),
            expect,
            "{text}"
        );
    }

    #[test]
    fn lists() {
        check("0-3,8", Some("0-3,8"));
        check("8,0,1,2,3", Some("0-3,8"));
        check("", Some(""));
        check("0-15,64-79\n", Some("0-15,64-79"));
        for text in ["x", "3-1", "1-", "0-4294967295", "-1"] {
            check(text, None);
        }
    }

    #[test]
    fn masks() {
        let list = CpuList::from_mask("00000000,ffff0000").unwrap();
        assert_eq!(list.to_string(), "16-31");
        assert_eq!(CpuList::from_mask("1,00000001").unwrap().to_string(), "0,32");
        assert!(CpuList::from_mask("zz").is_err());
    }

    proptest! {
        #[test]
        fn round_trip(cpus in proptest::collection::btree_set(0u32..4096, 0..60)) {
            let list = CpuList::from_cpus(cpus);
            prop_assert_eq!(&CpuList::from_mask(&list.to_mask()).unwrap(), &list);
            prop_assert_eq!(list.to_string().parse::<CpuList>().unwrap(), list);
        }

        #[test]
        fn never_panics(text in ".{0,40}") {
            let _ = text.parse::<CpuList>();
            let _ = CpuList::from_mask(&text);
        }
    }
}
