//! GID tables, counters and bonds of NIC ports.

use topology::snapshot::{Bond, BondMember, Gid, GidKind, GidScope, PortCounters};

use super::root::Root;

const NET: &str = "sys/class/net";

/// Words of a bond's `mode` file: `802.3ad 4`.
fn first_word(text: &str) -> Option<String> {
    text.split_whitespace().next().map(Into::into)
}

/// The table of a port, by index, without the entries that hold no address; `None` where there is no table. The kernel
/// refuses to read the type of an empty entry.
pub(super) fn gids(root: &Root, port: &str) -> Option<Vec<Gid>> {
    let names = root.list(&format!("{port}/gids")).ok()?;
    let mut indices: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    indices.sort_unstable();
    let gid = |index: u32| {
        let scope = scope(&root.read(&format!("{port}/gids/{index}")).ok()?)?;
        let attribute = |which: &str| {
            let text = root.read(&format!("{port}/gid_attrs/{which}/{index}")).ok();
            text.filter(|text| !text.is_empty())
        };
        // Kernels before 4.5 have no types, and version 1 alone.
        let kind = match attribute("types").as_deref() {
            Some("RoCE v2") => GidKind::RoceV2,
            _ => GidKind::IbOrRoceV1,
        };
        Some(Gid { index, kind, scope, netdev: attribute("ndevs") })
    };
    Some(indices.into_iter().filter_map(gid).collect())
}

/// How far an address reaches, from eight groups of four hexadecimal digits; `None` where it is none.
fn scope(text: &str) -> Option<GidScope> {
    let groups: Option<Vec<u16>> =
        text.split(':').map(|group| u16::from_str_radix(group, 16).ok()).collect();
    let groups: [u16; 8] = groups?.try_into().ok()?;
    let address = std::net::Ipv6Addr::from(groups);
    if address.is_unspecified() || groups[4..] == [0; 4] && groups[0] == 0xfe80 {
        return None;
    }
    Some(if address.to_ipv4_mapped().is_some() {
        GidScope::Ipv4
    } else if groups[0] & 0xffc0 == 0xfe80 {
        GidScope::LinkLocal
    } else if groups[0] & 0xfe00 == 0xfc00 {
        GidScope::UniqueLocal
    } else {
        GidScope::Global
    })
}

/// Error counters of a port; `None` where it shows none of them.
pub(super) fn counters(root: &Root, port: &str) -> Option<PortCounters> {
    let count = |name: &str| root.read(&format!("{port}/counters/{name}")).ok()?.parse().ok();
    let counters = PortCounters {
        link_downed: count("link_downed"),
        link_error_recovery: count("link_error_recovery"),
        symbol_errors: count("symbol_error"),
        receive_errors: count("port_rcv_errors"),
    };
    (counters != PortCounters::default()).then_some(counters)
}

/// The bond that an interface is, or is a leg of.
pub(super) fn bond(root: &Root, interface: &str) -> Option<Bond> {
    let is_bond = |name: &str| root.exists(&format!("{NET}/{name}/bonding/slaves"));
    let above = root.link(&format!("{NET}/{interface}/master"));
    let master = above.as_deref().and_then(|path| path.rsplit('/').next());
    let name = [Some(interface), master].into_iter().flatten().find(|name| is_bond(name))?;
    let read = |file: &str| root.read(&format!("{NET}/{name}/bonding/{file}")).ok();
    let member = |leg: &str| {
        let read = |file: &str| root.read(&format!("{NET}/{leg}/{file}")).ok();
        // The bond's own view of the leg, else the interface's.
        let state = read("bonding_slave/mii_status").or_else(|| read("operstate"));
        BondMember {
            name: leg.into(),
            up: state.and_then(|state| match state.as_str() {
                "up" => Some(true),
                "down" | "lowerlayerdown" | "dormant" | "notpresent" | "going down" => Some(false),
                _ => None,
            }),
            mbit: read("speed").and_then(|text| text.parse().ok()).filter(|mbit| *mbit > 0),
        }
    };
    Some(Bond {
        name: name.into(),
        mode: read("mode").as_deref().and_then(first_word),
        members: read("slaves")?.split_whitespace().map(member).collect(),
    })
}

/// Feeds the parsers of this file.
pub(super) fn fuzz(text: &str) {
    let _ = scope(text);
    let _ = first_word(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes() {
        use GidScope::{Global, Ipv4, LinkLocal, UniqueLocal};
        let check =
            |text: &str, expect: Option<GidScope>| assert_eq!(scope(text), expect, "{text}");
        check("fe80:0000:0000:0000:0200:00ff:fe00:0001", Some(LinkLocal));
        check("0000:0000:0000:0000:0000:ffff:c612:0001", Some(Ipv4));
        check("fd00:0000:0000:0000:0000:0000:0000:0001", Some(UniqueLocal));
        check("2001:0db8:0000:0000:0000:0000:0000:0001", Some(Global));
        // Another subnet of InfiniBand than the default one.
        check("fec0:0000:0000:0000:0002:c903:0000:0001", Some(Global));
        for text in [
            "",
            "0000:0000:0000:0000:0000:0000:0000:0000",
            "fe80:0:0:0:0:0:0:0",
            "fe80",
            "a:b:c:d:e:f:g:h",
            "1:2:3:4:5:6:7:8:9",
        ] {
            check(text, None);
        }
    }
}
