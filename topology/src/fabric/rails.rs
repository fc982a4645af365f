//! Rails: the leaf that NICs of one name share, in the hosts of a scalable unit.
//!
//! ```text
//!   host-1  mlx5_0 ── leaf A      rail 0: leaf A, by the majority of mlx5_0
//!           mlx5_1 ── leaf B      rail 1: leaf B
//!   host-2  mlx5_0 ── leaf A
//!           mlx5_1 ── leaf A      not at its rail's leaf
//! ```
//!
//! Rails of a unit are numbered by the first name on each leaf. Fewer than three NICs of a name prove no majority, and hosts whose NICs are
//! all at one leaf have no rails.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use super::levels::Union;
use super::{Fabric, natural_cmp};
use crate::Rail;

/// Fewest NICs of one name that prove which leaf is theirs.
const PROOF: usize = 3;

pub(super) fn assign(fabric: &mut Fabric) {
    let mut union = fabric.units();
    // By unit and name: NICs at each leaf.
    let mut seen: BTreeMap<(usize, String), BTreeMap<usize, usize>> = BTreeMap::new();
    for (unit, nic) in fabric.hosts.iter().flat_map(|host| {
        let unit = unit(host.nics.iter().filter_map(|nic| nic.leaf), &mut union);
        host.nics.iter().filter_map(move |nic| Some((unit?, nic)))
    }) {
        if let (Some(name), Some(leaf)) = (&nic.name, nic.leaf) {
            *seen.entry((unit, name.clone())).or_default().entry(leaf).or_default() += 1;
        }
    }
    let leaf_of: BTreeMap<(usize, String), usize> = seen
        .into_iter()
        .filter_map(|(key, leaves)| {
            let total: usize = leaves.values().sum();
            let (leaf, count) = leaves.into_iter().max_by_key(|(_, count)| *count)?;
            (total >= PROOF && 2 * count > total).then_some((key, leaf))
        })
        .collect();
    // First name on each leaf of a unit.
    let mut first: BTreeMap<usize, BTreeMap<usize, &str>> = BTreeMap::new();
    for ((unit, name), leaf) in &leaf_of {
        let known = first.entry(*unit).or_default().entry(*leaf).or_insert(name);
        if natural_cmp(name, known).is_lt() {
            *known = name;
        }
    }
    let mut rail_of: BTreeMap<(usize, usize), Rail> = BTreeMap::new();
    for (unit, leaves) in first.iter().filter(|(_, leaves)| leaves.len() > 1) {
        let mut leaves: Vec<(&usize, &&str)> = leaves.iter().collect();
        leaves.sort_by(|a, b| natural_cmp(a.1, b.1));
        for (rail, (leaf, _)) in (0..).zip(leaves) {
            rail_of.insert((*unit, *leaf), Rail(rail));
        }
    }
    for host in &mut fabric.hosts {
        let unit = unit(host.nics.iter().filter_map(|nic| nic.leaf), &mut union);
        for nic in &mut host.nics {
            nic.rail = unit.zip(nic.name.clone()).and_then(|key| {
                let leaf = leaf_of.get(&key)?;
                rail_of.get(&(key.0, *leaf)).copied()
            });
        }
    }
}

/// The unit that most of a host's leaves are of; the first of several.
fn unit(leaves: impl Iterator<Item = usize>, union: &mut Union) -> Option<usize> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for leaf in leaves {
        *counts.entry(union.root(leaf)).or_default() += 1;
    }
    counts.into_iter().max_by(|a, b| a.1.cmp(&b.1).then(b.0.cmp(&a.0))).map(|(unit, _)| unit)
}

/// NICs, by host and place, that are not at their rail's leaf, and the leaf of their rail.
pub(super) fn strays(fabric: &Fabric) -> Vec<(usize, usize, usize)> {
    let mut union = fabric.units();
    // By unit and rail: NICs at each leaf; the majority is the rail's, as when rails were given.
    let mut leaves: BTreeMap<(usize, Rail), BTreeMap<usize, usize>> = BTreeMap::new();
    let mut members = BTreeSet::new();
    for (at, host) in fabric.hosts.iter().enumerate() {
        let unit = unit(host.nics.iter().filter_map(|nic| nic.leaf), &mut union);
        for (place, nic) in host.nics.iter().enumerate() {
            if let (Some(unit), Some(rail), Some(leaf)) = (unit, nic.rail, nic.leaf) {
                *leaves.entry((unit, rail)).or_default().entry(leaf).or_default() += 1;
                members.insert((at, place, unit, rail, leaf));
            }
        }
    }
    let of_rail = |unit: usize, rail: Rail| {
        leaves[&(unit, rail)].iter().max_by_key(|(_, count)| **count).map(|(leaf, _)| *leaf)
    };
    members
        .into_iter()
        .filter_map(|(host, nic, unit, rail, leaf)| {
            of_rail(unit, rail)
                .filter(|of_rail| *of_rail != leaf)
                .map(|of_rail| (host, nic, of_rail))
        })
        .collect()
}
