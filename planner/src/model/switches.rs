//! The network between hosts where its switches are told: what hosts send goes up and comes down, and turns round once.
//!
//! ```text
//!   Sent(leaf) ─▶ Leaving(leaf, up) ═▶ Arrived(spine, from below) ─▶ Leaving(spine, down) ═▶ Arrived(leaf, from above) ─▶ Received(leaf)
//!   ─▶ inside a switch, which blocks nothing       ═▶ a cable
//! ```
//!
//! Routes of fat trees never go up again, so a leaf joins no two spines. Where switches of one tier are joined, as in a dragonfly, there is no
//! up and down: any way is open.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use topology::{LinkKind, VertexId, VertexKind};

use super::{Capacity, Draft, Node};

/// Directed cables between switches, kB/s, with whether they lead up.
type Cables = BTreeMap<(VertexId, VertexId), (u64, bool)>;

impl Draft<'_> {
    /// Joins the leaves that hosts send to and receive from by the cables above them.
    pub(super) fn switches(&mut self) {
        let cables = self.cables();
        if cables.is_empty() {
            return;
        }
        let mut inside: BTreeSet<(Node, Node)> = BTreeSet::new();
        for node in self.edges.keys().flat_map(|(from, to)| [*from, *to]) {
            match node {
                Node::Sent(leaf, _) => {
                    inside.extend([true, false].map(|up| (node, Node::Leaving(leaf, up))));
                }
                Node::Received(leaf, _) => {
                    inside.extend([true, false].map(|up| (Node::Arrived(leaf, up), node)));
                }
                _ => {}
            }
        }
        for &(from, to) in cables.keys() {
            for switch in [from, to] {
                inside.extend([
                    (Node::Arrived(switch, true), Node::Leaving(switch, true)),
                    (Node::Arrived(switch, true), Node::Leaving(switch, false)),
                    (Node::Arrived(switch, false), Node::Leaving(switch, false)),
                ]);
            }
        }
        for ((from, to), (kbps, up)) in cables {
            self.add(Node::Leaving(from, up), Node::Arrived(to, up), kbps, kbps);
        }
        // A way inside a switch carries what comes to its one end and leaves by its other; no more is ever needed.
        let (into, out) = self.sums();
        let mut next: BTreeMap<Node, Vec<Node>> = BTreeMap::new();
        for (from, to) in inside {
            if let (Some(into), Some(out)) = (into.get(&from), out.get(&to)) {
                let usable = into.usable.min(out.usable);
                self.add(from, to, usable, into.relaxed.min(out.relaxed));
                next.entry(from).or_default().push(to);
            }
        }
        self.shorten(&next);
    }

    /// Between switches that hosts use, with which way is up: away from the leaves.
    fn cables(&self) -> Cables {
        let graph = self.topology.graph();
        let is_switch = |id: VertexId| self.topology.vertex(id).kind == VertexKind::Fabric;
        let mut cables = Cables::new();
        for edge in graph.edge_indices().filter(|edge| graph[*edge].kind == LinkKind::Net) {
            if let Some((from, to)) = graph.edge_endpoints(edge)
                && is_switch(from)
                && is_switch(to)
            {
                let cable = cables.entry((from, to)).or_insert((0, true));
                cable.0 = cable.0.saturating_add(graph[edge].bandwidth.kbps());
            }
        }
        let mut tier: BTreeMap<VertexId, u32> = BTreeMap::new();
        let mut front: Vec<VertexId> = Vec::new();
        for node in self.edges.keys().flat_map(|(from, to)| [*from, *to]) {
            if let Node::Sent(leaf, _) | Node::Received(leaf, _) = node
                && tier.insert(leaf, 1).is_none()
            {
                front.push(leaf);
            }
        }
        for next in 2.. {
            let leads = |from: &VertexId| {
                let of = cables.keys().filter(|cable| cable.0 == *from);
                of.map(|cable| cable.1).collect::<Vec<_>>()
            };
            let mut above: Vec<VertexId> = front.iter().flat_map(leads).collect();
            above.retain(|switch| !tier.contains_key(switch));
            above.sort_unstable();
            above.dedup();
            if above.is_empty() {
                break;
            }
            tier.extend(above.iter().map(|switch| (*switch, next)));
            front = above;
        }
        cables.retain(|(from, to), _| tier.contains_key(from) && tier.contains_key(to));
        if cables.keys().all(|(from, to)| tier[from] != tier[to]) {
            for ((from, to), (_, up)) in &mut cables {
                *up = tier[from] < tier[to];
            }
        }
        cables
    }

    /// By node, what comes in, and what goes out.
    fn sums(&self) -> (BTreeMap<Node, Capacity>, BTreeMap<Node, Capacity>) {
        let (mut into, mut out) = (BTreeMap::new(), BTreeMap::new());
        for ((from, to), capacity) in &self.edges {
            // What hosts of one switch send each other is not for here.
            if matches!((from, to), (Node::Sent(..), Node::Received(..))) {
                continue;
            }
            for (node, sums) in [(*to, &mut into), (*from, &mut out)] {
                let sum: &mut Capacity = BTreeMap::entry(sums, node).or_default();
                sum.usable = sum.usable.saturating_add(capacity.usable);
                sum.relaxed = sum.relaxed.saturating_add(capacity.relaxed);
            }
        }
        (into, out)
    }

    /// Makes one node of two where all that arrives leaves in one direction: at the top of a tree.
    fn shorten(&mut self, next: &BTreeMap<Node, Vec<Node>>) {
        let only = |node: Node| match next.get(&node).map(Vec::as_slice) {
            Some([to]) if matches!((node, to), (Node::Arrived(..), Node::Leaving(..))) => *to,
            _ => node,
        };
        let edges = core::mem::take(&mut self.edges);
        for ((from, to), capacity) in edges {
            let (from, to) = (only(from), only(to));
            if from != to {
                self.add(from, to, capacity.usable, capacity.relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use topology::fabric::{self, Fabric, FabricForm};
    use topology::{Collective, Fraction, Network, PlanRequest, RateModel, Topology, lower_in};

    use crate::test_hosts::host;

    /// A network as `ibnetdiscover` tells it, from cables `end rate end`: an end is `switch` or `host/nic`, the rate that of ibnetdiscover.
    fn network(cables: &[(&str, &str, &str)]) -> Fabric {
        let mut ports: BTreeMap<&str, Vec<(usize, &str, &str)>> = BTreeMap::new();
        for &(a, rate, b) in cables {
            for (end, far) in [(a, b), (b, a)] {
                let ports = ports.entry(end).or_default();
                ports.push((ports.len() + 1, far, rate));
            }
        }
        let guid = |end: &str| {
            let place = ports.keys().position(|known| *known == end).unwrap();
            format!("{}-{place:016x}", if end.contains('/') { "H" } else { "S" })
        };
        let mut text = String::new();
        for (end, cables) in &ports {
            let kind = if end.contains('/') { "Ca" } else { "Switch" };
            text += &format!(
                "{kind} {} \"{}\" # \"{}\"\n",
                cables.len(),
                guid(end),
                end.replace('/', " ")
            );
            for (number, far, rate) in cables {
                // The far end's port: which of its cables this is.
                let same = |(_, back, _): &&(usize, &str, &str)| back == end;
                let nth = cables.iter().filter(|c| c.1 == *far && c.0 < *number).count();
                let far_port = ports[far].iter().filter(same).nth(nth).unwrap().0;
                text += &format!(
                    "[{number}] \"{}\"[{far_port}] # \"{}\" lid 1 {rate}\n",
                    guid(far),
                    far.replace('/', " ")
                );
            }
        }
        fabric::read(FabricForm::Infiniband, &text).unwrap()
    }

    fn joined(machine: &str, fabric: &Fabric, hosts: &[&str]) -> Topology {
        let place = |name: &&str| fabric.hosts.iter().position(|host| host.name == **name).unwrap();
        let places: Vec<usize> = hosts.iter().map(place).collect();
        let copies: Vec<_> = hosts.iter().map(|_| host(machine)).collect();
        lower_in(&copies, RateModel::Effective, Some(Network { fabric, hosts: &places })).unwrap()
    }

    /// Bound and what is reached, GB/s, of a plan that the checker passes.
    #[track_caller]
    fn reached(topology: &Topology, collective: Collective) -> (Fraction, Fraction) {
        let request = PlanRequest { collectives: [collective].into(), ..Default::default() };
        let plan = crate::plan(topology, &request).unwrap();
        crate::check::plan(topology, &plan).unwrap();
        let planned = &plan.collectives[&collective];
        (planned.bound.as_ref().unwrap().algbw_gbps, planned.best.as_ref().unwrap().algbw_gbps)
    }

    /// DGX-1V hosts a, b, c, d: NICs 0 to 3 of a and b at leaf-1, of c and d at leaf-2, and so many cables from each to a spine.
    fn pods(cables: usize) -> Fabric {
        let nic = |host: char, nic: usize| format!("{host}/mlx5_{nic}");
        let ends: Vec<(String, &str)> = ('a'..='d')
            .flat_map(|h| {
                (0..4).map(move |n| (nic(h, n), if h < 'c' { "leaf-1" } else { "leaf-2" }))
            })
            .collect();
        let mut all: Vec<(&str, &str, &str)> =
            ends.iter().map(|(end, leaf)| (end.as_str(), "4xEDR", *leaf)).collect();
        for leaf in ["leaf-1", "leaf-2"] {
            all.extend((0..cables).map(|_| (leaf, "4xEDR", "spine-1")));
        }
        network(&all)
    }

    #[test]
    fn a_tapered_network_bounds_what_crosses_it() {
        let hosts = ["a", "b", "c", "d"];
        // As wide as the NICs below it: no different from none that is told.
        let (wide, open) =
            (joined("dgx1v", &pods(8), &hosts), crate::test_hosts::copies("dgx1v", 4));
        let gather = Collective::AllGather;
        assert_eq!(reached(&wide, gather), reached(&open, gather));
        // One cable: 16 of 32 ranks' parts come over 12.5 GB/s.
        let narrow = joined("dgx1v", &pods(1), &hosts);
        let (bound, best) = reached(&narrow, gather);
        assert_eq!(bound, Fraction::of(25, 1));
        assert!(best * Fraction::integer(100) >= bound * Fraction::integer(99), "{best}");
    }

    #[test]
    fn rails_that_nothing_joins_are_crossed_inside_hosts() {
        let ends: Vec<(String, String)> = ['a', 'b']
            .into_iter()
            .flat_map(|h| (0..4).map(move |n| (format!("{h}/mlx5_{n}"), format!("rail-{n}"))))
            .collect();
        let cables: Vec<(&str, &str, &str)> =
            ends.iter().map(|(end, rail)| (end.as_str(), "4xEDR", rail.as_str())).collect();
        let rails = network(&cables);
        let topology = joined("dgx1v", &rails, &["a", "b"]);
        assert!(topology.find("fabric:rail-3").is_some());
        let unplanned = [Collective::SendRecv, Collective::Barrier];
        for collective in Collective::ALL.iter().filter(|one| !unplanned.contains(one)) {
            let (bound, best) = reached(&topology, *collective);
            assert!(
                best * Fraction::integer(100) >= bound * Fraction::integer(99),
                "{collective} {best} of {bound}"
            );
        }
    }
}
