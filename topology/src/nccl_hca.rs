//! `NCCL_IB_HCA`: which RDMA ports NCCL uses.
//!
//! ```text
//!   [^][=]NAME[:PORT[:RAIL[:PLANE]]],...      ^ all but these      = whole names, else beginnings of names
//! ```
//!
//! The signs stand once, before the first name (`src/transport/net_ib` and `parseStringList` in `src/misc/utils.cc` of NCCL
//! 2.30). A name without `=` is the beginning of one, so `mlx5_1` also means `mlx5_10`; a second `^` or `=` is taken for a part
//! of a name, and then nothing matches. Nothing of that is said by NCCL, so strings are checked here.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::snapshot::{Nic, NicRole};
use crate::words::some_of;
use crate::{Finding, Severity};

/// Most entries that NCCL keeps (`MAX_IB_DEVS`).
pub const MOST_ENTRIES: usize = 32;

/// Longest name that NCCL keeps: 64 bytes with the closing zero (`struct netIf`).
const LONGEST_NAME: usize = 63;

/// A choice of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcaFilter {
    /// All but the ports named.
    pub exclude: bool,
    /// Names are whole, not beginnings.
    pub exact: bool,
    /// In the order given.
    pub entries: Vec<HcaEntry>,
}

/// One port, or all of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HcaEntry {
    /// RDMA device.
    pub name: String,
    /// Port from 1; `None` is every port.
    pub port: Option<u32>,
    /// Rail, for versions of NCCL that know them (2.30).
    pub rail: Option<u32>,
    /// Plane within the rail.
    pub plane: Option<u32>,
}

/// Text that NCCL would take for something else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {entry}: {reason}")]
pub struct InvalidHcaFilter {
    /// From 1.
    pub entry: usize,
    /// In words.
    pub reason: String,
}

impl FromStr for HcaFilter {
    type Err = InvalidHcaFilter;

    fn from_str(text: &str) -> Result<Self, InvalidHcaFilter> {
        let (exclude, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let entries = (1..)
            .zip(rest.split(','))
            .map(|(entry, text)| one(text).map_err(|reason| InvalidHcaFilter { entry, reason }))
            .collect::<Result<Vec<_>, _>>()?;
        if entries.len() > MOST_ENTRIES {
            let reason = format!("NCCL keeps the first {MOST_ENTRIES} and drops the rest");
            return Err(InvalidHcaFilter { entry: MOST_ENTRIES + 1, reason });
        }
        Ok(Self { exclude, exact, entries })
    }
}

fn one(text: &str) -> Result<HcaEntry, String> {
    if text.contains(['^', '=']) {
        return Err("'^' and '=' stand once, before the first name, and hold for all".into());
    }
    if text.contains(|c: char| c.is_whitespace() || matches!(c, '"' | '\'')) {
        return Err("a blank or quote would be a part of the name".into());
    }
    let mut fields = text.split(':');
    let name = fields.next().unwrap_or_default();
    if name.is_empty() {
        return Err("no name".into());
    }
    if name.len() > LONGEST_NAME {
        return Err(format!("a name of {} bytes", name.len()));
    }
    let mut number = |what: &str| match fields.next() {
        None | Some("") => Ok(None),
        // NCCL reads anything else as 0.
        Some(text) => text.parse().map(Some).map_err(|_| format!("{what} '{text}' is no number")),
    };
    let (port, rail, plane) = (number("port")?, number("rail")?, number("plane")?);
    if port == Some(0) {
        return Err("ports are numbered from 1".into());
    }
    if fields.next().is_some() {
        return Err("more than name, port, rail and plane".into());
    }
    Ok(HcaEntry { name: name.into(), port, rail, plane })
}

impl fmt::Display for HcaFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signs = [(self.exclude, "^"), (self.exact, "=")];
        let mut text: String =
            signs.into_iter().filter(|(on, _)| *on).map(|(_, sign)| sign).collect();
        for (at, entry) in self.entries.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            text.push_str(&entry.to_string());
        }
        f.pad(&text)
    }
}

impl fmt::Display for HcaEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = [self.port, self.rail, self.plane];
        let told = numbers.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        f.write_str(&self.name)?;
        for number in &numbers[..told] {
            f.write_str(":")?;
            if let Some(number) = number {
                write!(f, "{number}")?;
            }
        }
        Ok(())
    }
}

impl HcaFilter {
    /// Exactly the ports for traffic between GPUs that are not known to be down, each with its number, and with rail and plane
    /// where those are known. `None` where there is none.
    #[must_use]
    pub fn of(nics: &[Nic]) -> Option<Self> {
        let usable = |nic: &&Nic| nic.role == NicRole::Fabric && nic.up != Some(false);
        let entry = |nic: &Nic| {
            Some(HcaEntry {
                name: nic.name.clone(),
                port: Some(nic.port?),
                rail: nic.rail.map(|rail| rail.0),
                plane: nic.plane,
            })
        };
        let entries: Vec<HcaEntry> = nics.iter().filter(usable).filter_map(entry).collect();
        (!entries.is_empty()).then_some(Self { exclude: false, exact: true, entries })
    }

    /// Whether NCCL would use a port.
    #[must_use]
    pub fn selects(&self, name: &str, port: u32) -> bool {
        self.entries.iter().any(|entry| self.matches(entry, name, port)) != self.exclude
    }

    fn matches(&self, entry: &HcaEntry, name: &str, port: u32) -> bool {
        let named = if self.exact { name == entry.name } else { name.starts_with(&entry.name) };
        named && entry.port.is_none_or(|own| own == port)
    }
}

/// What is wrong with a user's string on a host with these ports; nothing where it is fine.
#[must_use]
pub fn lint(text: &str, nics: &[Nic]) -> Vec<Finding> {
    let advice = HcaFilter::of(nics).map_or_else(
        || "leave it unset: no port of this host is known to be for traffic between GPUs".into(),
        |filter| format!("NCCL_IB_HCA=\"{filter}\""),
    );
    let mut found = Vec::new();
    let mut finding = |code: &str, severity, evidence: String| {
        found.push(Finding::new(code, severity, "NCCL_IB_HCA", evidence, advice.clone()));
    };
    let filter: HcaFilter = match text.parse() {
        Ok(filter) => filter,
        Err(error) => {
            finding("nccl-hca-malformed", Severity::Critical, format!("'{text}': {error}"));
            return found;
        }
    };
    let ports: Vec<(&Nic, u32)> = nics.iter().filter_map(|nic| Some((nic, nic.port?))).collect();
    let shown = |nic: &Nic, port: u32| format!("{}:{port}", nic.name);
    let list = |wanted: &dyn Fn(&Nic, u32) -> bool| -> Vec<String> {
        let ports = ports.iter().filter(|(nic, port)| wanted(nic, *port));
        ports.map(|(nic, port)| shown(nic, *port)).collect()
    };
    if list(&|nic, port| filter.selects(&nic.name, port)).is_empty() {
        let evidence = format!("'{text}' selects none of {} ports", ports.len());
        finding("nccl-hca-selects-nothing", Severity::Critical, evidence);
        return found;
    }
    let idle: Vec<String> = filter
        .entries
        .iter()
        .filter(|entry| !ports.iter().any(|(nic, port)| filter.matches(entry, &nic.name, *port)))
        .map(ToString::to_string)
        .collect();
    if !idle.is_empty() {
        let evidence = format!("no port of this host is meant by {}", some_of(&idle));
        finding("nccl-hca-entry-unknown", Severity::Degraded, evidence);
    }
    if !filter.exact {
        for entry in &filter.entries {
            let devices: BTreeSet<&str> = ports
                .iter()
                .filter(|(nic, port)| filter.matches(entry, &nic.name, *port))
                .map(|(nic, _)| nic.name.as_str())
                .collect();
            // A name of its own that also begins others is a slip; a stem like `mlx5` is meant.
            if devices.contains(entry.name.as_str()) && devices.len() > 1 {
                let others: Vec<String> = devices
                    .into_iter()
                    .filter(|name| *name != entry.name)
                    .map(Into::into)
                    .collect();
                let evidence = format!("'{entry}' also means {}", some_of(&others));
                finding("nccl-hca-prefix-matches-more", Severity::Degraded, evidence);
            }
        }
    }
    let stray = list(&|nic, port| nic.role == NicRole::Other && filter.selects(&nic.name, port));
    if !stray.is_empty() {
        let reasons: BTreeSet<&str> = ports
            .iter()
            .filter(|(nic, port)| nic.role == NicRole::Other && filter.selects(&nic.name, *port))
            .filter_map(|(nic, _)| nic.role_reason.as_deref())
            .collect();
        let reasons: Vec<String> = reasons.into_iter().map(Into::into).collect();
        let evidence = format!(
            "it selects {}, not for traffic between GPUs ({})",
            some_of(&stray),
            some_of(&reasons)
        );
        finding("nccl-hca-selects-other-roles", Severity::Degraded, evidence);
    }
    let missed = list(&|nic, port| {
        nic.role == NicRole::Fabric && nic.up != Some(false) && !filter.selects(&nic.name, port)
    });
    if !missed.is_empty() {
        let evidence = format!("it leaves out {}", some_of(&missed));
        finding("nccl-hca-leaves-out-ports", Severity::Info, evidence);
    }
    let down = list(&|nic, port| {
        nic.role != NicRole::Other && nic.up == Some(false) && filter.selects(&nic.name, port)
    });
    if !down.is_empty() {
        let evidence = format!("it selects {}, which are down", some_of(&down));
        finding("nccl-hca-selects-down-ports", Severity::Info, evidence);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rail;
    use proptest::prelude::*;

    fn nic(name: &str, port: u32, role: NicRole) -> Nic {
        Nic { port: Some(port), role, up: Some(true), ..Nic::new(name) }
    }

    /// Twelve devices, of which the tenth is for storage.
    fn nics() -> Vec<Nic> {
        let role = |at| if at == 10 { NicRole::Other } else { NicRole::Fabric };
        (0..12).map(|at| nic(&format!("mlx5_{at}"), 1, role(at))).collect()
    }

    #[track_caller]
    fn check(text: &str, expect: &[&str]) {
        let codes: Vec<String> = lint(text, &nics()).into_iter().map(|f| f.code).collect();
        assert_eq!(codes, expect, "{text}: {:#?}", lint(text, &nics()));
    }

    /// Prefixes that mean more than was meant, signs repeated, ports without a use (NVIDIA/nccl#236, nccl-tests#150,
    /// torchcomms#763).
    #[test]
    fn field_case_i_plus_hca_strings() {
        let exact = HcaFilter::of(&nics()).unwrap().to_string();
        assert!(exact.starts_with("=mlx5_0:1,mlx5_1:1,"), "{exact}");
        assert!(!exact.contains("mlx5_10:1") && exact.ends_with("mlx5_11:1"), "{exact}");
        check(&exact, &[]);
        // A beginning of a name means more devices than that of the name.
        let stems = ["nccl-hca-prefix-matches-more", "nccl-hca-selects-other-roles"];
        check("mlx5_1", &[&stems[..], &["nccl-hca-leaves-out-ports"]].concat());
        // The sign stands once; repeated it becomes part of a name.
        check("^=mlx5_10,^=mlx5_11", &["nccl-hca-malformed"]);
        check("^=mlx5_10", &[]);
        check("=mlx5_0:1,mlx5_12", &["nccl-hca-entry-unknown", "nccl-hca-leaves-out-ports"]);
        check("=mlx4_0", &["nccl-hca-selects-nothing"]);
        check("=mlx5_0:2", &["nccl-hca-selects-nothing"]);
        check("=mlx5_0:x", &["nccl-hca-malformed"]);
        check("\"mlx5_0\"", &["nccl-hca-malformed"]);
        check("mlx5", &["nccl-hca-selects-other-roles"]);
    }

    /// Include and exclude, whole names and beginnings: four modes.
    #[test]
    fn four_modes() {
        let selected = |text: &str| -> Vec<u32> {
            let filter: HcaFilter = text.parse().unwrap();
            (0..12).filter(|at| filter.selects(&format!("mlx5_{at}"), 1)).collect()
        };
        assert_eq!(selected("mlx5_1"), [1, 10, 11]);
        assert_eq!(selected("=mlx5_1"), [1]);
        assert_eq!(selected("^mlx5_1"), [0, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(selected("^=mlx5_1"), [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        assert_eq!(selected("=mlx5_1:2"), [0; 0]);
    }

    #[test]
    fn rails_are_written_where_they_are_known() {
        let mut nics = [nic("mlx5_0", 1, NicRole::Fabric), nic("mlx5_1", 2, NicRole::Fabric)];
        nics[1].rail = Some(Rail(3));
        assert_eq!(HcaFilter::of(&nics).unwrap().to_string(), "=mlx5_0:1,mlx5_1:2:3");
        nics[0].up = Some(false);
        assert_eq!(HcaFilter::of(&nics).unwrap().to_string(), "=mlx5_1:2:3");
        assert_eq!(HcaFilter::of(&[]), None);
        let entry = HcaEntry { name: "a".into(), port: None, rail: None, plane: Some(2) };
        let filter = HcaFilter { exclude: true, exact: false, entries: [entry].into() };
        assert_eq!(filter.to_string(), "^a:::2");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(text in "[\\^]?[=]?[a-z0-9_:,^= ]{0,40}") {
            if let Ok(filter) = text.parse::<HcaFilter>() {
                prop_assert_eq!(filter.to_string().parse(), Ok(filter));
            }
            let _ = lint(&text, &nics());
        }
    }
}
