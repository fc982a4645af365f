//! Global identifiers: which of their addresses two ports speak by.
//!
//! A RoCE port has an entry per address of its interface and version of the protocol; both ends must take the same version and
//! family. One end sees both lists and decides for both, so that they agree.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Protocol of an entry, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Protocol {
    /// RoCE version 2, over UDP: passes routers.
    RoceV2,
    /// RoCE version 1: the Ethernet segment alone.
    RoceV1,
    InfiniBand,
}

/// An entry of a port's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gid {
    /// Its place, what `NCCL_IB_GID_INDEX` names.
    pub(super) index: u8,
    pub(super) protocol: Protocol,
    pub(super) address: Ipv6Addr,
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at index {}", self.address, self.index)
    }
}

impl Gid {
    const fn is_ipv4(&self) -> bool {
        self.address.to_ipv4_mapped().is_some()
    }

    const fn is_link_local(&self) -> bool {
        match self.address.to_canonical() {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
    }

    /// The first half: the InfiniBand subnet.
    pub(super) const fn subnet(&self) -> u64 {
        (self.address.to_bits() >> 64) as u64
    }
}

/// The entries of a port that can be read and hold something. `port` is its folder, `/sys/class/infiniband/DEVICE/ports/N`.
///
/// An entry without an interface cannot be read (the kernel answers EINVAL), nor can its type; that is no fault.
pub(super) fn table(port: &Path) -> Vec<Gid> {
    let read = |path: &str, index: u8| -> Option<String> {
        let text = std::fs::read_to_string(port.join(path).join(index.to_string())).ok()?;
        Some(text.trim().to_owned())
    };
    let entries = std::fs::read_dir(port.join("gids")).into_iter().flatten().flatten();
    let mut indices: Vec<u8> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    indices.sort_unstable();
    let entry = |index| {
        let address: Ipv6Addr = read("gids", index)?.parse().ok()?;
        let protocol = match read("gid_attrs/types", index)?.as_str() {
            "RoCE v2" => Protocol::RoceV2,
            // The kernel has one name for both.
            "IB/RoCE v1" | "RoCE v1" => Protocol::RoceV1,
            _ => return None,
        };
        (!address.is_unspecified() && address.segments()[4..] != [0; 4]).then_some(Gid {
            index,
            protocol,
            address,
        })
    };
    indices.into_iter().filter_map(entry).collect()
}

/// What the entries of two ports must agree in: the protocol, and whether their addresses are IPv4's.
pub(super) type Kind = (Protocol, bool);

impl Gid {
    const fn kind(&self) -> Kind {
        (self.protocol, self.is_ipv4())
    }
}

/// The kinds of a port's entries.
pub(super) fn kinds(gids: &[Gid]) -> BTreeSet<Kind> {
    gids.iter().map(Gid::kind).collect()
}

/// The entries by which two ports speak, own first: the same protocol and family; version 2 before 1, addresses that reach beyond
/// the link before those that do not, IPv4 before IPv6, addresses that share most of their beginning (one subnet), and last the
/// first places. The same whichever end is asked.
pub(super) fn choose(own: &[Gid], peer: &[Gid]) -> Option<(Gid, Gid)> {
    let pairs = own.iter().flat_map(|a| peer.iter().map(move |b| (*a, *b)));
    let fits = |(a, b): &(Gid, Gid)| a.kind() == b.kind();
    pairs.filter(fits).min_by_key(|(a, b)| {
        let shared = (a.address.to_bits() ^ b.address.to_bits()).leading_zeros();
        let (low, high) = (a.index.min(b.index), a.index.max(b.index));
        let local = a.is_link_local() || b.is_link_local();
        (a.protocol, local, !a.is_ipv4(), 128 - shared, high, low)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gids(text: &str) -> Vec<Gid> {
        let one = |text: &str| {
            let (index, rest) = text.split_once('=').unwrap();
            let (version, address) = rest.split_once('/').unwrap();
            Gid {
                index: index.parse().unwrap(),
                protocol: if version == "2" { Protocol::RoceV2 } else { Protocol::RoceV1 },
                address: address.parse().unwrap(),
            }
        };
        text.split_whitespace().map(one).collect()
    }

    /// Which places two lists agree on, and that the other end agrees.
    #[track_caller]
    fn check(own: &str, peer: &str, expected: Option<(u8, u8)>) {
        let (own, peer) = (gids(own), gids(peer));
        let chosen = choose(&own, &peer).map(|(a, b)| (a.index, b.index));
        assert_eq!(chosen, expected);
        let other = choose(&peer, &own).map(|(a, b)| (b.index, a.index));
        assert_eq!(other, expected, "seen from the other end");
        assert_eq!(kinds(&own).is_disjoint(&kinds(&peer)), expected.is_none());
    }

    #[test]
    fn both_ends_take_the_same_kind() {
        let full =
            "0=1/fe80::1 1=2/fe80::1 2=1/::ffff:10.0.0.1 3=2/::ffff:10.0.0.1 4=2/2001:db8::1";
        let peer =
            "0=1/fe80::2 1=2/fe80::2 2=1/::ffff:10.0.0.2 3=2/::ffff:10.0.0.2 4=2/2001:db8::2";
        check(full, peer, Some((3, 3)));
        check(full, "7=2/2001:db8::9", Some((4, 7)));
        check(full, "0=1/fe80::2 1=1/::ffff:10.0.0.2", Some((2, 1)));
        check(full, "1=2/fe80::2 0=1/fe80::2", Some((1, 1)));
        check("0=2/::ffff:10.0.0.1", "0=2/2001:db8::9", None);
        check("0=2/::ffff:10.0.0.1", "0=1/::ffff:10.0.0.2", None);
        check("", peer, None);
    }

    #[test]
    fn of_several_subnets_the_shared_one_is_taken() {
        let own = "0=2/::ffff:10.0.0.1 1=2/::ffff:10.1.0.1 2=2/::ffff:169.254.0.1";
        check(own, "5=2/::ffff:10.1.0.7", Some((1, 5)));
        check(own, "5=2/::ffff:169.254.0.7", Some((2, 5)));
        check(own, "4=2/::ffff:10.1.0.7 5=2/::ffff:10.1.0.7", Some((1, 4)));
    }

    #[test]
    fn what_cannot_be_read_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        for (index, address, kind) in [
            ("0", "fe80:0000:0000:0000:5054:00ff:fe00:0001", "IB/RoCE v1"),
            ("1", "fe80:0000:0000:0000:5054:00ff:fe00:0001", "RoCE v2"),
            ("2", "0000:0000:0000:0000:0000:0000:0000:0000", "RoCE v2"),
            ("3", "0000:0000:0000:0000:0000:ffff:0a08:0001", "RoCE v2"),
            ("4", "fe80:0000:0000:0000:0000:0000:0000:0000", "IB/RoCE v1"),
            ("5", "nonsense", "RoCE v2"),
            ("10", "0000:0000:0000:0000:0000:ffff:0a08:0002", "RoCE v2"),
            ("11", "0000:0000:0000:0000:0000:ffff:0a08:0003", "RoCE v3"),
        ] {
            for (path, text) in [("gids", address), ("gid_attrs/types", kind)] {
                let path = folder.path().join(path);
                std::fs::create_dir_all(&path).unwrap();
                std::fs::write(path.join(index), format!("{text}\n")).unwrap();
            }
        }
        std::fs::remove_file(folder.path().join("gid_attrs/types/1")).unwrap();
        std::fs::create_dir(folder.path().join("gids/6")).unwrap();
        let shown: Vec<_> = table(folder.path()).iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "fe80::5054:ff:fe00:1 at index 0",
                "::ffff:10.8.0.1 at index 3",
                "::ffff:10.8.0.2 at index 10"
            ]
        );
        assert!(table(Path::new("/nonexistent")).is_empty());
    }
}
