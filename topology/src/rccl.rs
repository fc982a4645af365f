//! Rings and trees for RCCL, AMD's NCCL, which still takes them from variables: `NCCL_RINGS` and `RCCL_TREES`.
//!
//! ```text
//!   NCCL_RINGS   0 1 2 3|N0 3 2 1 0 N1        a ring a channel; N is a NIC it enters or leaves by
//!   RCCL_TREES   (0(1)(2(3)))|…               a tree a channel: a GPU, then its children
//! ```
//!
//! As `parseGraph` and `parseGraphLight` read them (`src/graph/rome_models.cc` of RCCL): GPUs are numbered from 0 within the
//! communicator and looked up among device numbers as they are, and a ring over another number of GPUs is passed over in silence.
//! So only plans over all GPUs of a host are written, numbered from 0.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::nccl_graph::{self, ExportError, Graph};
use crate::plan::{Channel, Pattern, Plan};
use crate::{Collective, Rank, Topology};

/// Children that a GPU may have in a tree (`NCCL_MAX_TREE_ARITY` is 3, and one is for other hosts).
const MOST_CHILDREN: usize = 2;

/// The value of `NCCL_RINGS`.
///
/// # Errors
/// Where the plan has no rings that RCCL would run as planned.
pub fn rings(topology: &Topology, plan: &Plan) -> Result<String, ExportError> {
    let file = nccl_graph::from_plan(topology, plan)?;
    let Some(Graph { channels, .. }) = file.graphs.first() else {
        return Err(ExportError::NoRings);
    };
    let mut rings = Vec::new();
    for (at, channel) in (0..).zip(channels) {
        numbered_from_zero(at, &channel.gpus.iter().copied().collect())?;
        let net = |net: Option<u64>| net.map(|net| format!("N{net}"));
        let gpus = channel.gpus.iter().map(ToString::to_string);
        let words: Vec<String> =
            net(channel.net_in).into_iter().chain(gpus).chain(net(channel.net_out)).collect();
        rings.push(words.join(" "));
    }
    Ok(rings.join("|"))
}

/// The value of `RCCL_TREES`: those of all-reduce inside a host.
///
/// # Errors
/// Where the plan has none, or trees that RCCL's form has no words for.
pub fn trees(plan: &Plan) -> Result<String, ExportError> {
    let trees: Vec<&Channel> = plan
        .channels_of(Collective::AllReduce)
        .filter(|channel| channel.pattern == Pattern::Tree)
        .collect();
    if trees.is_empty() || plan.ranks.iter().any(|rank| rank.host != plan.ranks[0].host) {
        return Err(ExportError::NoTrees);
    }
    let written: Result<Vec<String>, ExportError> =
        trees.into_iter().map(|channel| tree(plan, channel)).collect();
    Ok(written?.join("|"))
}

fn tree(plan: &Plan, channel: &Channel) -> Result<String, ExportError> {
    let inexpressible =
        |reason: &str| ExportError::Inexpressible { channel: channel.index, reason: reason.into() };
    let pairs = |edges: &[crate::plan::ChannelEdge], up: bool| -> BTreeSet<(Rank, Rank)> {
        edges
            .iter()
            .map(|edge| if up { (edge.to, edge.from) } else { (edge.from, edge.to) })
            .collect()
    };
    if pairs(&channel.edges, false) != pairs(&channel.reduce_edges, true) {
        return Err(inexpressible("its way up is not its way down"));
    }
    let gpus: BTreeSet<u64> = plan.ranks.iter().map(|rank| u64::from(rank.gpu.0)).collect();
    numbered_from_zero(channel.index, &gpus)?;
    let mut children: BTreeMap<Rank, Vec<Rank>> = BTreeMap::new();
    for edge in &channel.edges {
        children.entry(edge.from).or_default().push(edge.to);
    }
    if children.values().any(|children| children.len() > MOST_CHILDREN) {
        return Err(inexpressible("a GPU has more than two children"));
    }
    let root = channel.root.ok_or_else(|| inexpressible("it has no root"))?;
    let mut text = String::new();
    // No recursion: a chain is as deep as there are ranks. `None` closes.
    let mut stack = alloc::vec![Some(root)];
    let mut written = 0;
    while let Some(next) = stack.pop() {
        let Some(rank) = next else {
            text.push(')');
            continue;
        };
        written += 1;
        let gpu = plan
            .ranks
            .get(rank.index())
            .ok_or_else(|| inexpressible("a rank is not in the plan"))?
            .gpu;
        if written > plan.ranks.len() {
            return Err(inexpressible("it is no tree"));
        }
        text.push_str(&format!("({gpu}"));
        stack.push(None);
        stack.extend(children.get(&rank).into_iter().flatten().rev().map(|child| Some(*child)));
    }
    match written == plan.ranks.len() {
        true => Ok(text),
        false => Err(inexpressible("it does not reach every rank")),
    }
}

fn numbered_from_zero(channel: u32, gpus: &BTreeSet<u64>) -> Result<(), ExportError> {
    match gpus.iter().copied().eq(0..gpus.len() as u64) {
        true => Ok(()),
        false => Err(ExportError::Inexpressible {
            channel,
            reason: "RCCL numbers GPUs from 0 within the communicator and takes the numbers for device numbers: plan on all GPUs of the host".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{ChannelEdge, LinkPolicy, PlanRank, TopologyRef};
    use crate::{Fraction, Generation, GpuIndex, HostId, RateModel, Source};

    /// A plan with one tree of these edges from parents to children.
    fn plan(gpus: &[u32], root: u32, edges: &[(u32, u32)]) -> Plan {
        let edge =
            |from: u32, to: u32| ChannelEdge { from: Rank(from), to: Rank(to), paths: Vec::new() };
        let channel = Channel {
            index: 0,
            pattern: Pattern::Tree,
            collectives: [Collective::AllReduce].into(),
            ranks: Vec::new(),
            root: Some(Rank(root)),
            nics: Vec::new(),
            share: Fraction::integer(1),
            gbps: Fraction::integer(1),
            edges: edges.iter().map(|(from, to)| edge(*from, *to)).collect(),
            reduce_edges: edges.iter().rev().map(|(from, to)| edge(*to, *from)).collect(),
        };
        let rank = |(rank, gpu): (u32, &u32)| PlanRank {
            rank: Rank(rank),
            host: HostId(0),
            gpu: GpuIndex(*gpu),
            bus_id: None,
            uuid: None,
        };
        let topology = TopologyRef {
            fingerprint: String::new(),
            source: Source::RocmTopo,
            rates: RateModel::Effective,
            links: LinkPolicy::Auto,
            what_if: Vec::new(),
            generation: Generation(0),
        };
        Plan {
            topology,
            ranks: (0..).zip(gpus).map(rank).collect(),
            channels: [channel].into(),
            alternatives: Vec::new(),
            collectives: BTreeMap::new(),
            assumptions: Vec::new(),
            findings: Vec::new(),
        }
    }

    #[test]
    fn trees_in_brackets() {
        let edges = [(2, 0), (2, 3), (0, 1)];
        assert_eq!(trees(&plan(&[0, 1, 2, 3], 2, &edges)).unwrap(), "(2(0(1))(3))");
        assert!(trees(&plan(&[0, 1, 2, 5], 2, &edges)).is_err(), "not numbered from 0");
        assert!(trees(&plan(&[0, 1, 2, 3], 2, &edges[..2])).is_err(), "one is not reached");
        assert!(trees(&plan(&[0, 1, 2], 0, &[(0, 1), (1, 0), (0, 2)])).is_err(), "no tree");
        assert!(
            trees(&plan(&[0, 1, 2, 3], 0, &[(0, 1), (0, 2), (0, 3)])).is_err(),
            "three children"
        );
        let mut other = plan(&[0, 1], 0, &[(0, 1)]);
        other.channels[0].reduce_edges.clear();
        assert!(trees(&other).is_err(), "no way up");
    }
}
