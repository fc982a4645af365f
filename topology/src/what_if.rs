//! Changes made in thought: links and devices added, removed, slowed or moved.
//!
//! ```text
//!   Topology ── "remove GPU0-GPU3" ──▶ Topology ── "slow mlx5_0 to 12.5GB/s" ──▶ Topology
//! ```
//!
//! | change | does |
//! |---|---|
//! | `remove A-B` | takes away every link between the two |
//! | `remove A-B x1` | takes away one of the parallel links |
//! | `remove A` | takes away a device with all its links |
//! | `A-B x1`, `A-B 25GB/s` | so many parallel links (of PCIe: lanes), or so much together, from now on; `set A-B to ...` says the same |
//! | `slow A-B to ...`, `slow A to ...` | the same, refused unless slower; of a device: none of its links carries more |
//! | `add A-B`, `add A-B x2`, `add A-B 25GB/s` | one or more further links like those there, or one of that rate |
//! | `add nic NAME to A [RATE]` | a NIC below a PCIe switch or NUMA node, with its port in the network; like the host's first NIC without a rate |
//! | `add gpu NAME to A [RATE]` | a GPU on a switch; like another one there without a rate |
//! | `move A to B` | hangs a device below another PCIe switch or NUMA node, its link as fast as before |
//!
//! Devices are named as [`Topology::find_device`] takes them. `A-B` means both directions, `A>B` the one from A to B. Where links of
//! several technologies join the two, a change means the fastest (NVLink before PCIe), and `remove` all of them.
//! Rates are in GB/s, MB/s, Gbit/s or Mbit/s.
//!
//! The facts of the hosts stay as they were read, but classes that a matrix stated are given up, since they were stated of
//! the machine as it is. Each change stands in [`Topology::changes`] and in the assumptions, so that no plan of
//! a changed machine passes for one of the machine that is there.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::lower::builder;
use crate::{Link, LinkKind, PathType, Topology, Vertex, VertexId, VertexKind};
use words::Change;

mod devices;
mod links;
mod names;
#[cfg(test)]
mod tests;
mod words;

/// A change that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{change}': {reason}")]
pub struct WhatIfError {
    /// The change as it was written.
    pub change: String,
    /// What is wrong with it, with the names there are.
    pub reason: String,
}

/// The topology after `changes`, made one after the other. Without any it is the same.
///
/// # Errors
/// At the first change that says nothing known, names a device or link that is not there, or would change nothing.
pub fn apply(topology: &Topology, changes: &[impl AsRef<str>]) -> Result<Topology, WhatIfError> {
    let mut changed = topology.clone();
    for change in changes {
        let change = change.as_ref().trim();
        let refuse = |reason| WhatIfError { change: change.into(), reason };
        let parsed = words::parse(change).map_err(refuse)?;
        let draft = one(&changed, &parsed).map_err(refuse)?;
        changed = draft.finish(&changed, change);
    }
    Ok(changed)
}

fn one(topology: &Topology, change: &Change) -> Result<Draft, String> {
    match change {
        Change::Remove { what, count } => match (names::target(topology, what)?, count) {
            (names::Target::Device(device), None) => Ok(devices::remove(topology, device)),
            (names::Target::Device(_), Some(_)) => {
                Err("a device is removed as a whole; so many links are removed from 'A-B'".into())
            }
            (names::Target::Link(ends), count) => links::remove(topology, ends, *count),
        },
        Change::Set { link, amount } => {
            let ends = names::link(topology, link)?;
            links::set(topology, ends, *amount)
        }
        Change::Slow { what, amount } => match names::target(topology, what)? {
            names::Target::Device(device) => devices::slow(topology, device, *amount),
            names::Target::Link(ends) => links::slow(topology, ends, *amount),
        },
        Change::AddLink { link, amount } => {
            let ends = names::link(topology, link)?;
            links::add(topology, ends, *amount)
        }
        Change::AddDevice { kind, name, to, rate } => {
            let to = names::device(topology, to)?;
            devices::add(topology, *kind, name, to, *rate)
        }
        Change::Move { what, to } => {
            let what = names::device(topology, what)?;
            devices::relocate(topology, what, names::device(topology, to)?)
        }
    }
}

/// A topology taken apart. Places are the vertices of the one it was taken from, then new ones.
struct Draft {
    vertices: Vec<Option<Vertex>>,
    links: Vec<(usize, usize, Link)>,
}

impl Draft {
    fn of(topology: &Topology) -> Self {
        let graph = topology.graph();
        Self {
            vertices: graph.node_weights().cloned().map(Some).collect(),
            links: graph
                .raw_edges()
                .iter()
                .map(|e| (e.source().index(), e.target().index(), e.weight.clone()))
                .collect(),
        }
    }

    fn add_vertex(&mut self, vertex: Vertex) -> usize {
        self.vertices.push(Some(vertex));
        self.vertices.len() - 1
    }

    fn add_both(&mut self, a: usize, b: usize, link: &Link) {
        self.links.push((a, b, link.clone()));
        self.links.push((b, a, link.clone()));
    }

    fn finish(self, before: &Topology, change: &str) -> Topology {
        let mut place = Vec::with_capacity(self.vertices.len());
        let mut vertices = Vec::with_capacity(self.vertices.len());
        for vertex in self.vertices {
            place.push(vertex.as_ref().map(|_| vertices.len()));
            vertices.extend(vertex);
        }
        let links = self.links.into_iter().filter_map(|(from, to, link)| {
            Some((*place.get(from)?.as_ref()?, *place.get(to)?.as_ref()?, link))
        });
        let mut hosts = before.hosts().to_vec();
        for host in &mut hosts {
            host.matrix = None;
        }
        let mut assumptions: BTreeSet<String> = before.assumptions().iter().cloned().collect();
        assumptions.insert(format!("what if: {change}"));
        let mut topology = Topology::assemble(
            builder::sorted(vertices, links.collect()),
            hosts,
            before.rates(),
            assumptions.into_iter().collect(),
        );
        topology.changes = before.changes().to_vec();
        topology.changes.push(change.to_owned());
        topology
    }
}

/// The technology of a new link between two vertices, by what they are.
fn kind_between(topology: &Topology, a: &VertexKind, b: &VertexKind) -> Option<LinkKind> {
    use VertexKind::{Fabric, Gpu, Nic, NicCard, NumaNode, NvSwitch, PcieSwitch, Switch};
    let has = |kind| topology.graph().edge_weights().any(|link| link.kind == kind);
    let one_way = |a: &VertexKind, b: &VertexKind| {
        Some(match (a, b) {
            (Switch, Gpu { .. } | Switch) => LinkKind::Abstract,
            (Gpu { .. }, Gpu { .. }) if has(LinkKind::Abstract) => LinkKind::Abstract,
            (Gpu { .. }, Gpu { .. }) if has(LinkKind::Xgmi) => LinkKind::Xgmi,
            (Gpu { .. }, Gpu { .. } | NvSwitch) => LinkKind::NvLink,
            (NumaNode { .. }, NumaNode { .. }) => LinkKind::Socket,
            (Nic { .. }, Fabric) => LinkKind::Net,
            (Gpu { .. } | Nic { .. } | NicCard | PcieSwitch, PcieSwitch | NumaNode { .. })
            | (Nic { .. }, NicCard) => LinkKind::Pcie,
            _ => return None,
        })
    };
    one_way(a, b).or_else(|| one_way(b, a))
}

/// Whether one of the hosts' devices hangs below the other in the PCIe tree: its links upward.
fn pcie_depth(topology: &Topology, id: VertexId) -> Option<usize> {
    if matches!(topology.vertex(id).kind, VertexKind::NumaNode { .. }) {
        return Some(0);
    }
    let numa = topology.numa_of(id)?;
    let path = topology.path(id, numa);
    (path.class != PathType::Dis).then_some(path.hops.len())
}
