//! Which NICs a plan has its connections use.
//!
//! A hop between hosts crosses vertices; those of them that its channel lists as NICs are the sender's, first, and the receiver's,
//! last. In topologies of several hosts their names begin with the host's number (`3:mlx5_0`), and end in a port where a device has
//! several (`3:mlx5_0:2`).

use topology::{Plan, Rank};

use super::{ConnectionId, channel_ids};

/// The RDMA device, with its port where that is said, that `own` uses for one of its connections; `None` where the plan says nothing:
/// the hop stays within a host, or the connection is not the plan's.
pub(crate) fn nic(plan: &Plan, own: Rank, id: ConnectionId) -> Option<&str> {
    let channel = channel_ids(plan).find(|selected| selected.id == id.channel)?.channel;
    let edge = channel.all_edges().find(|edge| (edge.from, edge.to) == (id.from, id.to))?;
    // A connection is one: of several ways that share a hop it takes the widest, and of equal ones the first.
    let widest = edge.paths.iter().map(|path| path.share).max()?;
    let path = edge.paths.iter().find(|path| path.share == widest)?;
    let host = format!("{}:", plan.ranks.get(own.index())?.host);
    let mine = |name: &'_ &String| channel.nics.contains(name) && of_host(name, &host).is_some();
    let mut nics = path.via.iter().filter(mine);
    let name = if own == id.from { nics.next() } else { nics.next_back() };
    of_host(name?, &host)
}

/// A vertex's own name, where it is on the host whose names begin so.
fn of_host<'a>(name: &'a str, host: &str) -> Option<&'a str> {
    let (first, _) = name.split_once(':').unwrap_or((name, ""));
    let of_several = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
    if of_several { name.strip_prefix(host) } else { Some(name) }
}

#[cfg(test)]
mod tests {
    use topology::plan::EdgePath;
    use topology::{Fraction, HostId};

    use super::*;
    use crate::even::full_plan;

    /// Two ranks, the second on another host where there are `hosts` of them; the hop from 0 to 1 crosses `ways`.
    fn plan(hosts: u32, nics: &[&str], ways: &[(&[&str], Fraction)]) -> Plan {
        let mut plan = full_plan(2, 1);
        plan.ranks[1].host = HostId(hosts - 1);
        let channel = &mut plan.channels[0];
        channel.nics = nics.iter().map(|name| (*name).to_owned()).collect();
        let edge = channel.edges.iter_mut().find(|edge| edge.from == Rank(0)).unwrap();
        edge.paths = ways
            .iter()
            .map(|(via, share)| EdgePath {
                via: via.iter().map(|name| (*name).to_owned()).collect(),
                share: *share,
            })
            .collect();
        plan
    }

    #[track_caller]
    fn check(plan: &Plan, channel: u32, expected: [Option<&str>; 2]) {
        let id = ConnectionId { from: Rank(0), to: Rank(1), channel, connection: 0 };
        let found = [0, 1].map(|rank| nic(plan, Rank(rank), id));
        assert_eq!(found, expected);
    }

    #[test]
    fn each_end_uses_its_own() {
        let whole = Fraction::of(1, 1);
        let nics = ["0:mlx5_1", "1:mlx5_3:2"];
        let via = ["0:switch", "0:mlx5_1", "fabric", "1:mlx5_3:2", "1:switch"];
        let two = plan(2, &nics, &[(&via, whole)]);
        check(&two, 0, [Some("mlx5_1"), Some("mlx5_3:2")]);
        check(&two, 1, [None, None]);
        check(&two, u32::MAX, [None, None]);
        // Out of one host and back in again.
        let one = plan(1, &["mlx5_0", "mlx5_1"], &[(&["mlx5_0", "fabric", "mlx5_1"], whole)]);
        check(&one, 0, [Some("mlx5_0"), Some("mlx5_1")]);
        check(&plan(2, &[], &[(&via, whole)]), 0, [None, None]);
        check(&plan(2, &nics, &[]), 0, [None, None]);
    }

    #[test]
    fn of_several_ways_the_widest_is_taken() {
        let nics = ["0:a", "0:b", "1:a", "1:b"];
        let (a, b) = (["0:a", "fabric", "1:a"], ["0:b", "fabric", "1:b"]);
        let of = |n| Fraction::of(n, 3);
        check(&plan(2, &nics, &[(&a, of(1)), (&b, of(2))]), 0, [Some("b"), Some("b")]);
        let half = Fraction::of(1, 2);
        check(&plan(2, &nics, &[(&a, half), (&b, half)]), 0, [Some("a"), Some("a")]);
    }

    #[test]
    fn hosts_are_told_apart_by_number() {
        assert_eq!(of_host("1:mlx5_0", "1:"), Some("mlx5_0"));
        assert_eq!(of_host("11:mlx5_0", "1:"), None);
        assert_eq!(of_host("mlx5_0:2", "1:"), Some("mlx5_0:2"));
    }
}
