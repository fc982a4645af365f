//! From words to devices and links of a topology.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{Topology, VertexId};

/// Most names that a message lists.
const MOST_LISTED: usize = 40;

/// Two devices that links join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) a: VertexId,
    pub(super) b: VertexId,
    /// Whether both directions are meant, or the one from `a` to `b`.
    pub(super) both: bool,
}

impl Ends {
    /// The directions that are meant.
    pub(super) fn directions(self) -> Vec<(VertexId, VertexId)> {
        let back = self.both.then_some((self.b, self.a));
        [(self.a, self.b)].into_iter().chain(back).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Device(VertexId),
    Link(Ends),
}

pub(super) fn name(topology: &Topology, id: VertexId) -> &str {
    &topology.vertex(id).name
}

pub(super) fn device(topology: &Topology, word: &str) -> Result<VertexId, String> {
    topology
        .find_device(word)
        .ok_or_else(|| format!("there is no device '{word}'; there are {}", all_names(topology)))
}

/// A link, or why it is none.
pub(super) fn link(topology: &Topology, word: &str) -> Result<Ends, String> {
    match target(topology, word)? {
        Target::Link(ends) => Ok(ends),
        Target::Device(id) => {
            Err(format!("'{word}' is a device; its links are {}", links_of(topology, id)))
        }
    }
}

/// A device of that very name, else the two that a `-` or `>` in it parts. Names may hold a `-` themselves.
pub(super) fn target(topology: &Topology, word: &str) -> Result<Target, String> {
    if let Some(id) = topology.find_device(word) {
        return Ok(Target::Device(id));
    }
    let parts: Vec<(&str, &str, bool)> = word
        .match_indices(['-', '>'])
        .map(|(at, sign)| (&word[..at], &word[at + 1..], sign == "-"))
        .collect();
    let ends: Vec<Ends> = parts
        .iter()
        .filter_map(|&(a, b, both)| {
            Some(Ends { a: topology.find_device(a)?, b: topology.find_device(b)?, both })
        })
        .collect();
    match ends[..] {
        [Ends { a, b, .. }] if a == b => {
            Err(format!("'{word}' joins {} with itself", name(topology, a)))
        }
        [one] => Ok(Target::Link(one)),
        [_, _, ..] => Err(format!("'{word}' can be read as several links: rename a device")),
        [] => {
            let half = parts
                .iter()
                .find(|(a, b, _)| [*a, *b].iter().any(|end| topology.find_device(end).is_some()))
                .or_else(|| parts.first());
            let unknown = half.map_or(
                word,
                |&(a, b, _)| {
                    if topology.find_device(a).is_some() { b } else { a }
                },
            );
            device(topology, unknown).map(Target::Device)
        }
    }
}

/// `GPU1, 0000:05:00.0`: where the links of a device lead.
pub(super) fn links_of(topology: &Topology, id: VertexId) -> String {
    let mut ends: Vec<VertexId> = topology.links_from(id).into_iter().map(|(_, to)| to).collect();
    ends.dedup();
    let names = ends.iter().map(|end| format!("{}-{}", name(topology, id), name(topology, *end)));
    list(names)
}

fn all_names(topology: &Topology) -> String {
    list(topology.graph().node_weights().map(|vertex| vertex.name.clone()))
}

fn list(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        return "none".into();
    }
    let shown = names[..names.len().min(MOST_LISTED)].join(", ");
    match names.len() - names.len().min(MOST_LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
