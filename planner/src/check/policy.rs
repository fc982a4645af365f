//! The link policy: under [`LinkPolicy::Auto`] GPUs that NVLink joins exchange no data over PCIe.
//!
//! ```text
//!   GPU0 ══ GPU1      GPU0 ─▶ GPU1 over NVLink alone
//!     │       │       GPU0 ─▶ numa0 ─▶ GPU1 is refused, although the links are there
//!     └ numa0 ┘       GPU0 ─▶ numa0 ─▶ mlx5_0 ─▶ another host is as it should be
//! ```

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use petgraph::Direction;
use petgraph::visit::EdgeRef;
use topology::plan::LinkPolicy;
use topology::{HostId, LinkId, LinkKind, Topology, VertexId, VertexKind};

/// Hosts whose PCIe must not carry data from one of the host's ranks to another.
pub(super) fn hosts_off_pcie(
    topology: &Topology,
    ranks: &[VertexId],
    links: LinkPolicy,
) -> BTreeSet<HostId> {
    if links == LinkPolicy::All {
        return BTreeSet::new();
    }
    let mut by_host: BTreeMap<HostId, Vec<VertexId>> = BTreeMap::new();
    for &rank in ranks {
        if let Some(host) = topology.vertex(rank).host {
            by_host.entry(host).or_default().push(rank);
        }
    }
    by_host.retain(|_, gpus| {
        gpus.len() > 1
            && [Direction::Outgoing, Direction::Incoming]
                .into_iter()
                .all(|direction| joined(topology, gpus, direction))
    });
    by_host.into_keys().collect()
}

/// Whether NVLink or xGMI joins the first of `gpus` with all others in that direction, passing through no other GPU.
fn joined(topology: &Topology, gpus: &[VertexId], direction: Direction) -> bool {
    let mut seen = BTreeSet::from([gpus[0]]);
    let mut front = Vec::from([gpus[0]]);
    while let Some(here) = front.pop() {
        for edge in topology.graph().edges_directed(here, direction) {
            let next = if direction == Direction::Outgoing { edge.target() } else { edge.source() };
            let absent = matches!(topology.vertex(next).kind, VertexKind::Gpu { .. })
                && !gpus.contains(&next);
            if !absent && is_between_gpus(topology, edge.id()) && seen.insert(next) {
                front.push(next);
            }
        }
    }
    gpus.iter().all(|gpu| seen.contains(gpu))
}

/// Whether a link joins GPUs or their switches without PCIe. The NVLink of a GPU to its processor does not.
pub(super) fn is_between_gpus(topology: &Topology, link: LinkId) -> bool {
    let kind = topology.link(link).kind;
    let ends = topology.graph().edge_endpoints(link);
    matches!(kind, LinkKind::NvLink | LinkKind::Xgmi | LinkKind::Abstract)
        && ends.is_some_and(|(from, to)| {
            [from, to].iter().all(|end| {
                let kind = &topology.vertex(*end).kind;
                matches!(kind, VertexKind::Gpu { .. } | VertexKind::NvSwitch | VertexKind::Switch)
            })
        })
}

/// Whether a link joins switches of the network between hosts.
pub(super) fn is_between_switches(topology: &Topology, link: LinkId) -> bool {
    let ends = topology.graph().edge_endpoints(link);
    let is_switch = |id: VertexId| topology.vertex(id).kind == VertexKind::Fabric;
    ends.is_some_and(|(from, to)| is_switch(from) && is_switch(to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::ViolationKind;
    use topology::plan::{EdgePath, Plan};
    use topology::{Channel, Collective, Fraction, GpuIndex, PlanRequest, RateModel};

    /// GPUs 0 to 3 in a square of NVLinks, GPU 4 without any; all below one CPU, with a NIC.
    fn host() -> Vec<topology::Snapshot> {
        let gpu = |index: usize| {
            let peers: &[usize] = [&[1, 3][..], &[0, 2], &[1, 3], &[2, 0], &[]][index];
            let links: String = peers
                .iter()
                .map(|peer| format!(r#"<nvlink target="0000:0{}:00.0" count="2"/>"#, peer + 1))
                .collect();
            format!(
                r#"<pci busid="0000:0{}:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
                <gpu dev="{index}" sm="80">{links}</gpu></pci>"#,
                index + 1
            )
        };
        let gpus: String = (0..5).map(gpu).collect();
        let text = format!(
            r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">{gpus}
            <pci busid="0000:09:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
            <nic><net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" gdr="1"/></nic></pci></cpu></system>"#
        );
        topology::formats::read(text.as_bytes()).unwrap()
    }

    fn plan(hosts: usize, gpus: &[u32], links: LinkPolicy) -> (Topology, Plan) {
        let hosts = vec![host().remove(0); hosts];
        let topology = topology::lower(&hosts, RateModel::Effective).unwrap();
        let request = PlanRequest {
            gpus: Some(gpus.iter().copied().map(GpuIndex).collect()),
            collectives: vec![Collective::AllGather, Collective::AllReduce],
            links,
            ..PlanRequest::default()
        };
        let plan = crate::plan(&topology, &request).unwrap();
        assert_eq!(plan.topology.links, links);
        (topology, plan)
    }

    /// Violations of the policy when hop `hop` of channel `channel` is sent over PCIe.
    fn over_pcie(topology: &Topology, plan: &Plan, channel: usize, hop: usize) -> Vec<String> {
        let mut plan = plan.clone();
        let channel: &mut Channel = &mut plan.channels[channel];
        let hop = channel.reduce_edges.iter_mut().chain(&mut channel.edges).nth(hop).unwrap();
        let host = plan.ranks[hop.from.index()].host;
        let numa =
            if topology.hosts().len() > 1 { format!("{host}:numa0") } else { "numa0".into() };
        hop.paths = vec![EdgePath { via: vec![numa], share: Fraction::ONE }];
        let found = crate::check::plan(topology, &plan).err().unwrap_or_default();
        let of_policy = found
            .iter()
            .filter(|violation| matches!(violation.kind, ViolationKind::AgainstPolicy { .. }));
        of_policy.map(ToString::to_string).collect()
    }

    /// The hops between ranks of one host, as channel and place in it.
    fn inside(plan: &Plan) -> Vec<(usize, usize)> {
        let host = |rank: topology::Rank| plan.ranks[rank.index()].host;
        let channels = plan.channels.iter().enumerate();
        let hops = channels.flat_map(|(at, c)| c.all_edges().enumerate().map(move |e| (at, e)));
        hops.filter(|(_, (_, edge))| host(edge.from) == host(edge.to))
            .map(|(at, (hop, _))| (at, hop))
            .collect()
    }

    #[test]
    fn every_hop_moved_to_pcie_is_caught() {
        for hosts in [1, 2] {
            let (topology, plan) = plan(hosts, &[0, 1, 2, 3], LinkPolicy::Auto);
            let hops = inside(&plan);
            assert!(hops.len() >= 6 * hosts, "{hops:?}");
            for (channel, hop) in hops {
                // One for the way up to the processor, one message a path.
                let found = over_pcie(&topology, &plan, channel, hop);
                assert_eq!(found.len(), 1, "{hosts} hosts, channel {channel}, hop {hop}");
                assert!(found[0].contains("takes the PCIe from "), "{}", found[0]);
                let mut all = plan.clone();
                all.topology.links = LinkPolicy::All;
                assert_eq!(over_pcie(&topology, &all, channel, hop), [""; 0]);
            }
        }
    }

    #[test]
    fn pcie_is_free_where_nvlink_does_not_join() {
        // With GPU 4, or with two GPUs whose NVLinks go to absent ones, PCIe is what there is.
        for gpus in [&[0, 1, 4][..], &[0, 2]] {
            let (topology, plan) = plan(1, gpus, LinkPolicy::Auto);
            assert!(!inside(&plan).is_empty());
            crate::check::plan(&topology, &plan).unwrap();
        }
    }

    #[test]
    fn all_links_are_for_all() {
        let (topology, plan) = plan(1, &[0, 1], LinkPolicy::All);
        let via = |plan: &Plan| {
            let edges = plan.channels.iter().flat_map(Channel::all_edges);
            edges.flat_map(|edge| &edge.paths).any(|path| !path.via.is_empty())
        };
        assert!(via(&plan), "PCIe carries a part");
        crate::check::plan(&topology, &plan).unwrap();
        // The same plan, said to be made under the other policy, is refused.
        let mut auto = plan;
        auto.topology.links = LinkPolicy::Auto;
        let found = crate::check::plan(&topology, &auto).unwrap_err();
        assert!(matches!(found[0].kind, ViolationKind::AgainstPolicy { .. }), "{}", found[0]);
    }
}
