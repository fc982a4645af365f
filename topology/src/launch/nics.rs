//! NICs beside GPUs, shared out evenly.
//!
//! Two GPUs and two NICs under one switch are all equally near; tasks that each take the first of the nearest meet on one NIC
//! (openucx/ucx#8401). Here GPUs are matched with NICs: as few GPUs on a NIC as can be, and the same answer for every task.

use alloc::vec::Vec;

use crate::snapshot::NicRole;
use crate::{GpuIndex, HostId, Nic, PathType, Topology, VertexId, VertexKind};

/// For each GPU the NICs for it, as places in the host's list: of those that are nearest, none shared by more GPUs than must be, and
/// NICs that are left over with the GPU beside them that has fewest. Empty where the host has no NIC for traffic between GPUs.
#[must_use]
pub fn near_nics(topology: &Topology, host: HostId, gpus: &[GpuIndex]) -> Vec<Vec<usize>> {
    let nearest: Vec<Vec<usize>> = gpus.iter().map(|gpu| nearest(topology, host, *gpu)).collect();
    let nics = topology.hosts().get(host.index()).map_or(0, |host| host.nics.len());
    let matched = (1..=gpus.len()).find_map(|share| match_all(&nearest, nics, share));
    let mut given: Vec<Vec<usize>> = match matched {
        Some(matched) => matched.into_iter().map(|nic| nic.into_iter().collect()).collect(),
        None => alloc::vec![Vec::new(); gpus.len()],
    };
    for nic in 0..nics {
        let taken = given.iter().any(|own| own.contains(&nic));
        let beside = (0..gpus.len()).filter(|gpu| nearest[*gpu].contains(&nic));
        if let Some(gpu) = beside.min_by_key(|gpu| given[*gpu].len()).filter(|_| !taken) {
            given[gpu].push(nic);
        }
    }
    given.iter_mut().for_each(|own| own.sort_unstable());
    given
}

/// Whether NCCL and its like should use a port.
pub(super) fn carries_gpu_traffic(nic: &Nic) -> bool {
    nic.role == NicRole::Fabric && nic.up != Some(false)
}

/// The NICs of the best class.
fn nearest(topology: &Topology, host: HostId, gpu: GpuIndex) -> Vec<usize> {
    let of_host = |id: &&VertexId| topology.vertex(**id).host == Some(host);
    let Some(from) = topology.gpu(host, gpu) else { return Vec::new() };
    let Some(facts) = topology.hosts().get(host.index()) else { return Vec::new() };
    let mut best: Vec<(PathType, usize)> = Vec::new();
    for id in topology.nics().iter().filter(of_host) {
        let VertexKind::Nic { index } = topology.vertex(*id).kind else { continue };
        let place = index as usize;
        if facts.nics.get(place).is_some_and(carries_gpu_traffic) {
            best.push((topology.path(from, *id).class, place));
        }
    }
    let class = best.iter().map(|(class, _)| *class).min();
    let near = best.into_iter().filter(|(own, _)| Some(*own) == class && *own < PathType::Net);
    near.map(|(_, place)| place).collect()
}

/// A NIC for each GPU that has any near, none with more than `share` GPUs; `None` where there is no such choice. By augmenting
/// paths (Kuhn), GPUs and NICs in order.
fn match_all(nearest: &[Vec<usize>], nics: usize, share: usize) -> Option<Vec<Option<usize>>> {
    let mut users: Vec<Vec<usize>> = alloc::vec![Vec::new(); nics];
    for gpu in (0..nearest.len()).filter(|gpu| !nearest[*gpu].is_empty()) {
        if !augment(gpu, nearest, share, &mut users, &mut alloc::vec![false; nics]) {
            return None;
        }
    }
    let of = |gpu: usize| users.iter().position(|users| users.contains(&gpu));
    Some((0..nearest.len()).map(of).collect())
}

fn augment(
    gpu: usize,
    nearest: &[Vec<usize>],
    share: usize,
    users: &mut [Vec<usize>],
    tried: &mut [bool],
) -> bool {
    // A free one first: who has one already stays, and the first GPU has the first NIC.
    if let Some(nic) = nearest[gpu].iter().find(|nic| !tried[**nic] && users[**nic].len() < share) {
        users[*nic].push(gpu);
        return true;
    }
    for nic in &nearest[gpu] {
        if core::mem::replace(&mut tried[*nic], true) {
            continue;
        }
        for at in 0..users[*nic].len() {
            let other = users[*nic][at];
            if augment(other, nearest, share, users, tried) {
                users[*nic][at] = gpu;
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All GPUs of a switch would pick its first NIC (openucx/ucx#8401, uccl#160).
    #[test]
    fn field_case_044_gpus_of_a_switch_do_not_meet_on_a_nic() {
        let both = alloc::vec![0, 1];
        assert_eq!(match_all(&[both.clone(), both.clone()], 2, 1), Some([Some(0), Some(1)].into()));
        // The first GPU gives way to the second, which has no other.
        assert_eq!(match_all(&[both, [0].into()], 2, 1), Some([Some(1), Some(0)].into()));
        let one = alloc::vec![alloc::vec![0]; 3];
        assert_eq!(match_all(&one, 1, 2), None);
        assert_eq!(match_all(&one, 1, 3), Some([Some(0); 3].into()));
        assert_eq!(match_all(&[Vec::new(), [0].into()], 1, 1), Some([None, Some(0)].into()));
    }

    proptest! {
        /// What is matched is near, and shares are kept.
        #[test]
        fn matched_and_shared(
            nearest in proptest::collection::vec(proptest::collection::btree_set(0_usize..6, 1..6), 0..12),
            share in 1_usize..4,
        ) {
            let nearest: Vec<Vec<usize>> = nearest.into_iter().map(|set| set.into_iter().collect()).collect();
            if let Some(matched) = match_all(&nearest, 6, share) {
                for (gpu, nic) in matched.iter().enumerate() {
                    prop_assert!(nic.is_some_and(|nic| nearest[gpu].contains(&nic)));
                }
                for nic in 0..6 {
                    prop_assert!(matched.iter().filter(|own| **own == Some(nic)).count() <= share);
                }
            } else {
                // Some GPUs have too few NICs between them, which sharing more cures.
                prop_assert!(match_all(&nearest, 6, nearest.len()).is_some());
            }
        }
    }
}
