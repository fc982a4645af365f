//! Reductions that switches make: what they would reach, with the reason why they are not taken. Nothing here runs them, so they
//! are candidates without channels.
//!
//! - **NVLS**: every GPU of a host reads the sum of one shard through the NVSwitches (`multimem.ld_reduce`) and writes the result to
//!   all (`multimem.st`). Of n GPUs, each sends its whole buffer up for others' reads and one shard of results, and receives as much:
//!   an all-reduce takes (n+1)/n of a buffer over its links where forwarding switches need 2(n-1)/n. All-gather and reduce-scatter
//!   have one half of that, a buffer over the links, which is more than (n-1)/n and so no gain at infinite size.
//! - **CollNet** (SHARP): hosts send each buffer up to the fabric once and get the sum once, beside 2(g-1)/g of a buffer over the
//!   links of each GPU of a host with g.
//!
//! These may exceed the proved bound, which is for switches that forward and do not add.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use topology::plan::{Candidate, PlanRank};
use topology::snapshot::{LinkLayer, NicRole};
use topology::{Algorithm, Collective, Fraction, HostId, LinkId, Topology, VertexId, VertexKind};

use crate::model::Model;
use crate::select::usable;

/// Compute capability times ten from which NVSwitches reduce (Hopper with third-generation switches; NCCL asks the driver for
/// multicast and takes NVLS from 9.0 on).
const NVLS_CAPABILITY: u32 = 90;

/// Candidates of switches that add; none where the machine is known to have no such switch.
pub(super) fn candidates(
    topology: &Topology,
    model: &Model,
    collective: Collective,
) -> Vec<Candidate> {
    let both = [nvls(topology, model, collective), coll_net(topology, model, collective)];
    both.into_iter().flatten().collect()
}

/// One that nothing here runs.
fn candidate(algorithm: Algorithm, algbw_gbps: Fraction, height: u32, note: &str) -> Candidate {
    Candidate {
        algorithm,
        algbw_gbps,
        channels: 1,
        height,
        optimal: false,
        executors: Vec::new(),
        note: note.into(),
    }
}

fn nvls(topology: &Topology, model: &Model, collective: Collective) -> Option<Candidate> {
    let several = model.hosts.iter().any(|host| *host != model.hosts[0]);
    let gpus = topology.hosts().iter().flat_map(|host| &host.gpus);
    let capability = gpus.map(|gpu| gpu.compute_capability).min()??;
    if several || capability < NVLS_CAPABILITY {
        return None;
    }
    let is_switch = |id: VertexId| topology.vertex(id).kind == VertexKind::NvSwitch;
    let gpus = vertices(topology, &model.ranks)?;
    let least = gpus.into_iter().map(|gpu| between(topology, gpu, is_switch)).min()??;
    let rate = Fraction::of(least, 1_000_000);
    let ranks = model.ranks() as u64;
    let (algbw, height) = match collective {
        Collective::AllReduce => (rate * Fraction::of(ranks, ranks + 1), 2),
        Collective::AllGather | Collective::ReduceScatter => (rate, 1),
        _ => return None,
    };
    let note = "NVSwitches add and multiply what passes: the bound, for switches that only forward, does not hold for it. \
                Needs multicast groups of the driver, which can run out; nothing here runs it, stock NCCL takes it by itself";
    Some(candidate(Algorithm::Nvls, algbw, height, note))
}

fn coll_net(topology: &Topology, model: &Model, collective: Collective) -> Option<Candidate> {
    if collective != Collective::AllReduce {
        return None;
    }
    let mut hosts: BTreeMap<HostId, Vec<VertexId>> = BTreeMap::new();
    for (rank, gpu) in model.ranks.iter().zip(vertices(topology, &model.ranks)?) {
        hosts.entry(rank.host).or_default().push(gpu);
    }
    if hosts.len() < 2 {
        return None;
    }
    let mut least: Option<Fraction> = None;
    let mut known = true;
    for (host, gpus) in &hosts {
        let snapshot = topology.hosts().get(host.index())?;
        let nics = snapshot.nics.iter().filter(|nic| nic.role != NicRole::Other);
        if nics.clone().any(|nic| nic.link_layer == Some(LinkLayer::Ethernet)) {
            return None;
        }
        known &= nics.clone().all(|nic| nic.link_layer.is_some());
        let of_host =
            |id: &&VertexId| topology.vertex(**id).host == Some(*host) && usable(topology, **id);
        let is_fabric = |id: VertexId| topology.vertex(id).kind == VertexKind::Fabric;
        let nets = topology.nics().iter().filter(of_host);
        let net: u64 = nets.filter_map(|nic| between(topology, *nic, is_fabric)).sum();
        let mut rate = Fraction::of(net, 1_000_000);
        // Shards are added up inside the host before they leave it, and spread there after.
        let switched = |id: VertexId| {
            matches!(topology.vertex(id).kind, VertexKind::NvSwitch | VertexKind::Gpu { .. })
        };
        let inside = gpus.iter().filter_map(|gpu| between(topology, *gpu, switched)).min();
        let count = gpus.len() as u64;
        if let Some(inside) = inside.filter(|_| count > 1) {
            let passes = Fraction::of(count, 2 * (count - 1));
            rate = rate.min(Fraction::of(inside, 1_000_000) * passes);
        }
        least = Some(least.map_or(rate, |least| least.min(rate)));
    }
    let note = match known {
        true => {
            "needs switches that add (SHARP) and their aggregation trees, which can run out: no input tells of them. \
                 Nothing here runs it; stock NCCL does with its plugin"
        }
        false => {
            "needs InfiniBand switches that add (SHARP) and their aggregation trees, which can run out: no input tells of them. \
                  Nothing here runs it; stock NCCL does with its plugin"
        }
    };
    let algbw = least.filter(|rate| !rate.is_zero())?;
    Some(candidate(Algorithm::CollNet, algbw, 4, note))
}

/// kB/s from a device to all its neighbours of a kind and back, the lesser; `None` where it has no such neighbour.
fn between(topology: &Topology, id: VertexId, wanted: impl Fn(VertexId) -> bool) -> Option<u64> {
    let rate = |link: LinkId| topology.link(link).bandwidth.kbps();
    let links = topology.links_from(id);
    let ends: BTreeSet<VertexId> =
        links.iter().map(|(_, to)| *to).filter(|to| wanted(*to)).collect();
    let out: u64 =
        links.iter().filter(|(_, to)| ends.contains(to)).map(|(link, _)| rate(*link)).sum();
    let back = ends.iter().flat_map(|end| topology.links_between(*end, id)).map(rate).sum();
    Some(out.min(back)).filter(|rate| *rate > 0)
}

/// The vertices of the ranks, in order.
fn vertices(topology: &Topology, ranks: &[PlanRank]) -> Option<Vec<VertexId>> {
    ranks.iter().map(|rank| topology.gpu(rank.host, rank.gpu)).collect()
}

#[cfg(test)]
mod tests {
    use topology::PlanRequest;
    use topology::snapshot::NicRole;

    use super::*;
    use crate::test_hosts::{host, joined};

    /// NICs for storage, and those whose port is down, add nothing to what hosts send to switches that add.
    #[test]
    fn only_nics_for_collectives_count() {
        let reached = |change: &dyn Fn(&mut topology::snapshot::Nic)| {
            let mut one = host("dgx_h100");
            // So slow that they limit, and not what is inside.
            one.nics.iter_mut().for_each(|nic| nic.mbit = nic.mbit.map(|mbit| mbit.min(100_000)));
            let fabric = one.nics.iter().position(|nic| nic.role != NicRole::Other).unwrap();
            change(&mut one.nics[fabric]);
            let topology = joined(&[one.clone(), one]);
            let model = Model::new(&topology, &PlanRequest::default()).unwrap();
            coll_net(&topology, &model, Collective::AllReduce).map(|found| found.algbw_gbps)
        };
        let all = reached(&|_| {}).unwrap();
        let storage = reached(&|nic| nic.role = NicRole::Other).unwrap();
        assert_eq!(storage, reached(&|nic| nic.up = Some(false)).unwrap());
        assert!(storage < all, "{storage} {all}");
    }
}
