//! The hosts of a job by class: equal hosts are looked at once, however many there are.
//!
//! ```text
//!   host 0   host 1   host 2   host 3          class 0: its Topology, GPUs, the way of each GPU to the network
//!   class 0  class 0  class 1  class 0         class 1: ...
//! ```
//!
//! Two hosts are of one class where their graphs have the same fingerprint. All hosts meet in one network that blocks nothing, as elsewhere.
//!
//! A GPU's way to the network is over the NICs nearest to it. GPUs that share their nearest NICs divide them evenly, with the fewest hops: of as many
//! GPUs as NICs each has its own, so that a NIC has one partner at a time; fewer NICs than GPUs are shared, more are used together.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use topology::{
    Fraction, GpuIndex, LinkId, LowerError, PathType, RateModel, Snapshot, Topology, VertexId,
    VertexKind, lower,
};

use crate::select::usable;

/// Hosts by class.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// Each kind of host once.
    pub classes: Vec<HostClass>,
    /// By host, its place in `classes`.
    pub class_of: Vec<usize>,
}

/// One kind of host.
#[derive(Clone, Debug)]
pub struct HostClass {
    /// One host of it, alone.
    pub topology: Topology,
    /// By NVML index.
    pub gpus: Vec<ClassGpu>,
}

/// A GPU of a class.
#[derive(Clone, Debug)]
pub struct ClassGpu {
    /// NVML index, or place in a link graph.
    pub index: GpuIndex,
    /// In the class's topology.
    pub vertex: VertexId,
    /// Its ways to the network and back; shares add up to 1, and there is none where the host has no NIC.
    pub uplinks: Vec<Uplink>,
}

/// A way from a GPU to the network and back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// The NIC.
    pub nic: VertexId,
    /// Its place among the host's NICs for collectives: the rail.
    pub rail: usize,
    /// Part of the GPU's traffic.
    pub share: Fraction,
    /// Links from the GPU to the network, in order.
    pub out: Vec<LinkId>,
    /// Links from the network to the GPU, in order.
    pub back: Vec<LinkId>,
}

impl Fleet {
    /// The hosts of a topology.
    ///
    /// # Errors
    /// Where a host cannot be lowered alone, which one that is part of a topology always can.
    pub fn of(topology: &Topology) -> Result<Self, LowerError> {
        match topology.hosts() {
            // As it is, with what was changed in thought.
            [_] => {
                let classes = vec![HostClass::new(topology.clone())];
                Ok(Self { classes, class_of: vec![0] })
            }
            hosts => Self::new(hosts, topology.rates()),
        }
    }

    /// Hosts by their facts, each lowered alone. One that is all the same as the one before is not looked at again.
    ///
    /// # Errors
    /// Where the facts of one contradict each other.
    pub fn new(hosts: &[Snapshot], rates: RateModel) -> Result<Self, LowerError> {
        let mut fleet = Self { classes: Vec::new(), class_of: Vec::new() };
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for (place, host) in hosts.iter().enumerate() {
            if place > 0 && hosts[place - 1] == *host {
                fleet.class_of.push(fleet.class_of[place - 1]);
                continue;
            }
            let alone = lower(core::slice::from_ref(host), rates)
                .map_err(|error| LowerError { host: place, ..error })?;
            let next = fleet.classes.len();
            let class = *known.entry(alone.fingerprint().into()).or_insert(next);
            if class == next {
                fleet.classes.push(HostClass::new(alone));
            }
            fleet.class_of.push(class);
        }
        Ok(fleet)
    }

    /// Number of hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.class_of.len()
    }

    /// Number of GPUs.
    #[must_use]
    pub fn gpus(&self) -> usize {
        self.class_of.iter().map(|&class| self.classes[class].gpus.len()).sum()
    }

    /// The class of a host.
    #[must_use]
    pub fn class(&self, host: usize) -> &HostClass {
        &self.classes[self.class_of[host]]
    }

    /// Hosts of each class.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = vec![0; self.classes.len()];
        self.class_of.iter().for_each(|&class| counts[class] += 1);
        counts
    }
}

impl HostClass {
    /// What a job has to know of a host; `topology` is of one host.
    #[must_use]
    pub fn new(topology: Topology) -> Self {
        let mut gpus: Vec<ClassGpu> = topology
            .gpus()
            .iter()
            .filter_map(|&vertex| match topology.vertex(vertex).kind {
                VertexKind::Gpu { index } => Some(ClassGpu { index, vertex, uplinks: Vec::new() }),
                _ => None,
            })
            .collect();
        gpus.sort_by_key(|gpu| gpu.index);
        let uplinks = uplinks(&topology, &gpus);
        for (gpu, uplinks) in gpus.iter_mut().zip(uplinks) {
            gpu.uplinks = uplinks;
        }
        Self { topology, gpus }
    }
}

/// By GPU, its ways to the network.
fn uplinks(topology: &Topology, gpus: &[ClassGpu]) -> Vec<Vec<Uplink>> {
    let fabric =
        topology.graph().node_indices().find(|&id| topology.vertex(id).kind == VertexKind::Fabric);
    let mut made = vec![Vec::new(); gpus.len()];
    let Some(fabric) = fabric else { return made };
    let nics: Vec<VertexId> =
        topology.nics().iter().copied().filter(|&nic| usable(topology, nic)).collect();
    // GPUs by the NICs that are nearest to them.
    let mut sharing: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
    for (place, gpu) in gpus.iter().enumerate() {
        let classes: Vec<PathType> =
            nics.iter().map(|&nic| topology.path(gpu.vertex, nic).class).collect();
        let reached = |rail: &usize| {
            classes[*rail] < PathType::Net
                && !topology.links_between(nics[*rail], fabric).is_empty()
        };
        let nearest = (0..nics.len()).filter(reached).map(|rail| classes[rail]).min();
        let near: Vec<usize> = (0..nics.len())
            .filter(reached)
            .filter(|&rail| Some(classes[rail]) == nearest)
            .collect();
        if !near.is_empty() {
            sharing.entry(near).or_default().push(place);
        }
    }
    for (rails, mut sharers) in sharing {
        let hops = |place: usize, rail: usize| {
            topology.path(gpus[place].vertex, nics[rail]).hops.len() as u64
        };
        let cost: Vec<Vec<u64>> =
            sharers.iter().map(|&p| rails.iter().map(|&rail| hops(p, rail)).collect()).collect();
        sharers = fewest_hops(&cost).into_iter().map(|at| sharers[at]).collect();
        let (nics_here, gpus_here) = (rails.len() as u64, sharers.len() as u64);
        for (at, &place) in (0_u64..).zip(&sharers) {
            for (nth, &rail) in (0_u64..).zip(&rails) {
                let common = common(at, gpus_here, nth, nics_here);
                if common > 0 {
                    let (gpu, nic) = (gpus[place].vertex, nics[rail]);
                    let share = Fraction::of(common, nics_here);
                    made[place].extend(uplink(topology, gpu, nic, fabric, rail, share));
                }
            }
        }
    }
    made
}

/// What the `at`th of so many GPUs has of the `nth` of so many NICs, in units of a NIC divided by the number of GPUs: GPU `at` has all from `at` times the
/// number of NICs on.
fn common(at: u64, gpus: u64, nth: u64, nics: u64) -> u64 {
    let (begin, end) = (at * nics, (at + 1) * nics);
    let (first, last) = (nth * gpus, (nth + 1) * gpus);
    end.min(last).saturating_sub(begin.max(first))
}

/// An order of GPUs in which they have few hops to the NICs they get, found by exchanging two as long as that helps; `hops` by GPU and NIC.
fn fewest_hops(hops: &[Vec<u64>]) -> Vec<usize> {
    let gpus = hops.len() as u64;
    let cost = |at: usize, gpu: usize| -> u64 {
        let nics = hops[gpu].len() as u64;
        let of = |(nth, hops): (u64, &u64)| common(at as u64, gpus, nth, nics) * hops;
        (0..).zip(&hops[gpu]).map(of).sum()
    };
    let mut order: Vec<usize> = (0..hops.len()).collect();
    loop {
        let pairs = (0..order.len()).flat_map(|a| (a + 1..order.len()).map(move |b| (a, b)));
        let better = pairs.into_iter().find(|&(a, b)| {
            cost(a, order[b]) + cost(b, order[a]) < cost(a, order[a]) + cost(b, order[b])
        });
        let Some((a, b)) = better else { return order };
        order.swap(a, b);
    }
}

fn uplink(
    topology: &Topology,
    gpu: VertexId,
    nic: VertexId,
    fabric: VertexId,
    rail: usize,
    share: Fraction,
) -> Option<Uplink> {
    let hops = |from, to| topology.path(from, to).hops.into_iter().map(|hop| hop.link);
    let out = hops(gpu, nic).chain(topology.links_between(nic, fabric).first().copied()).collect();
    let enter = topology.links_between(fabric, nic).first().copied()?;
    let back = core::iter::once(enter).chain(hops(nic, gpu)).collect();
    Some(Uplink { nic, rail, share, out, back })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_hosts::{host, joined};

    /// GPU and rail of each way, with its share.
    fn ways(name: &str) -> Vec<(u32, usize, Fraction)> {
        let class = HostClass::new(joined(&[host(name)]));
        let of_gpu = |gpu: &ClassGpu| {
            let index = gpu.index.0;
            gpu.uplinks.iter().map(move |u| (index, u.rail, u.share)).collect::<Vec<_>>()
        };
        class.gpus.iter().flat_map(of_gpu).collect()
    }

    #[test]
    fn as_many_nics_as_gpus_are_one_each() {
        for name in ["dgx_a100", "dgx_h100"] {
            let ways = ways(name);
            assert_eq!(ways.len(), 8, "{name}: {ways:?}");
            let rails: alloc::collections::BTreeSet<usize> = ways.iter().map(|way| way.1).collect();
            assert_eq!(rails.len(), 8, "{name}: {ways:?}");
        }
    }

    /// Two GPUs and two NICs below one switch, each GPU a hop nearer to the other's in order: no link carries both GPUs' data.
    #[test]
    fn ways_do_not_meet_where_they_need_not() {
        let class = HostClass::new(joined(&[host("dgx_a100")]));
        let mut users = BTreeMap::new();
        for link in class.gpus.iter().flat_map(|gpu| &gpu.uplinks).flat_map(|uplink| &uplink.out) {
            *users.entry(*link).or_insert(0) += 1;
        }
        assert!(users.values().all(|&count| count == 1), "{users:?}");
        assert_eq!(fewest_hops(&[vec![4, 4], vec![3, 5]]), [1, 0]);
    }

    #[test]
    fn fewer_nics_are_shared() {
        let ways = ways("dgx1v");
        let rails: Vec<usize> = ways.iter().map(|way| way.1).collect();
        assert_eq!(rails, [0, 0, 1, 1, 2, 2, 3, 3]);
        assert!(ways.iter().all(|way| way.2 == Fraction::ONE));
    }

    #[test]
    fn equal_hosts_are_one_class() {
        let (a, b) = (host("dgx_a100"), host("dgx_h100"));
        let fleet = Fleet::of(&joined(&[a.clone(), b.clone(), a.clone(), a])).unwrap();
        assert_eq!(fleet.class_of, [0, 1, 0, 0]);
        assert_eq!((fleet.gpus(), fleet.counts()), (32, vec![3, 1]));
        assert_ne!(b.gpus.len(), 0);
    }
}
