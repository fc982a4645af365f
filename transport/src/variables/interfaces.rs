//! Which network interface other hosts reach this rank by: NCCL_SOCKET_IFNAME's grammar.
//!
//! ```text
//!   eth,ib0     names that begin so       =eth0,eth1   exactly these
//!   ^docker     all but these             ^=lo         all but exactly these
//! ```

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use if_addrs::IfOperStatus;

/// A choice among interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interfaces {
    without: bool,
    exactly: bool,
    names: Vec<String>,
    text: String,
}

impl FromStr for Interfaces {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.trim();
        let (without, rest) = rest.strip_prefix('^').map_or((false, rest), |rest| (true, rest));
        let (exactly, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let names: Vec<String> = rest
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        if names.is_empty() {
            return Err("it names no interface".to_owned());
        }
        Ok(Self { without, exactly, names, text: text.to_owned() })
    }
}

impl fmt::Display for Interfaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An interface's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
}

impl Interfaces {
    fn allows(&self, name: &str) -> bool {
        let named = self.names.iter().any(|wanted| {
            if self.exactly { name == wanted } else { name.starts_with(wanted.as_str()) }
        });
        named != self.without
    }

    /// The address to be reached by: the first in the system's order, as NCCL takes it, but an address that means something on
    /// its own link alone only where there is no other, and IPv4 before IPv6. The loopback only where it is asked for by name.
    pub(crate) fn choose(&self, all: &[Found]) -> Option<Found> {
        let link_local = |found: &Found| match found.address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        let allowed = all.iter().filter(|found| {
            self.allows(&found.name) && !(self.without && found.address.is_loopback())
        });
        allowed.min_by_key(|found| (link_local(found), found.address.is_ipv6())).cloned()
    }
}

/// Addresses of the interfaces that are up, in the system's order.
pub(crate) fn here() -> std::io::Result<Vec<Found>> {
    let all = if_addrs::get_if_addrs()?;
    Ok(all
        .into_iter()
        .filter(|interface| interface.oper_status != IfOperStatus::Down)
        .map(|interface| Found { address: interface.ip(), name: interface.name })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let all = [
            ("lo", "127.0.0.1"),
            ("lo", "::1"),
            ("docker0", "172.17.0.1"),
            ("eth0", "fe80::1"),
            ("eth0", "2001:db8::1"),
            ("eth0", "192.0.2.1"),
            ("eth1", "198.51.100.1"),
            ("eth10", "203.0.113.1"),
            ("ib0", "fe80::2"),
        ]
        .map(|(name, address)| Found { name: name.into(), address: address.parse().unwrap() });
        let chosen = text.parse::<Interfaces>().unwrap().choose(&all);
        let chosen = chosen.map(|found| found.address.to_string());
        assert_eq!(chosen.as_deref(), expected, "{text}");
    }

    #[test]
    fn names_are_chosen_as_nccl_does() {
        check("eth0", Some("192.0.2.1"));
        check("eth", Some("192.0.2.1"));
        check("eth1", Some("198.51.100.1"));
        check("=eth10", Some("203.0.113.1"));
        check("=eth", None);
        check("eth1,eth0", Some("192.0.2.1"));
        check("ib0", Some("fe80::2"));
        check("ib0,eth1", Some("198.51.100.1"));
        check("wlan", None);
        check("lo", Some("127.0.0.1"));
        check("^docker", Some("192.0.2.1"));
        check("^docker,eth0,ib", Some("198.51.100.1"));
        check("^=docker0,eth1,eth10,eth0,ib0", None);
        check("^eth,ib", Some("172.17.0.1"));
    }

    #[test]
    fn a_list_without_names_is_refused() {
        for text in ["", "^", "=", "^=", " , "] {
            assert_eq!(text.parse::<Interfaces>().unwrap_err(), "it names no interface", "{text}");
        }
    }
}
