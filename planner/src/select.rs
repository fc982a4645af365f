//! Which GPUs to give to a job: the best so many of those that are free, and of equally good ones those that leave the rest as whole as can be.
//!
//! Sets are compared by, in this order,
//!
//! ```text
//!   all-reduce     what it can reach among them: the proved bound
//!   left           bandwidth between every two of the free GPUs that stay, added up: what later jobs can still get
//!   NICs           bandwidth of the NICs near them, each counted once
//!   NUMA nodes     the fewer the better
//!   indices        the lowest, so that the answer is one
//! ```
//!
//! Up to [`MOST_SETS`] sets all of them count, and the answer is the best there is. Of more, sets are improved by exchanging one GPU
//! for another until no exchange helps; the answer says which of the two it is.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use topology::plan::LinkPolicy;
use topology::snapshot::NicRole;
use topology::{Fraction, GpuIndex, PathType, PlanRequest, Topology, VertexId, VertexKind};

use crate::bound;
use crate::model::Model;
use crate::plan_error::PlanError;

/// So many sets are looked at one by one. 8 of 16 are 12,870.
pub const MOST_SETS: u64 = 20_000;
/// Sets whose bound is computed even where they cannot win, so that alternatives can be told.
const MOST_BOUNDS: usize = 512;
/// Alternatives told.
const ALTERNATIVES: usize = 3;

/// Why nothing can be selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// Selection is within one host.
    #[error("selection is among the GPUs of one host, and there are {0}")]
    SeveralHosts(usize),
    /// Fewer are free than are asked for.
    #[error("{wanted} GPUs are asked for, and {free} are free")]
    TooFew {
        /// Asked for.
        wanted: usize,
        /// Free.
        free: usize,
    },
    /// None are asked for.
    #[error("no GPU is asked for")]
    None,
    /// A free GPU that is not there, or named twice.
    #[error(transparent)]
    Gpu(#[from] PlanError),
}

/// What a set of GPUs is worth; greater is better.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Worth {
    /// Proved bound on all-reduce among them, kB/s; zero for one GPU, and where they cannot reach each other.
    pub all_reduce: Fraction,
    /// What they leave.
    pub rest: Rest,
}

/// What a set of GPUs leaves and has near, comparable without planning anything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rest {
    /// Bandwidth between every two free GPUs that stay, kB/s, one direction.
    pub left: u64,
    /// Of the NICs near them, kB/s.
    pub nics: u64,
    /// NUMA nodes they are spread over.
    pub nodes: Reverse<usize>,
}

/// A set of GPUs with its worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Ascending.
    pub gpus: Vec<GpuIndex>,
    /// Compared by.
    pub worth: Worth,
    /// Names of the NICs near them, in the host's order.
    pub near_nics: Vec<String>,
    /// NUMA nodes they hang below, by name.
    pub nodes: Vec<String>,
    /// Two of them that no NVLink, xGMI or link of a graph joins, directly or over others of the set: why PCIe is used.
    pub apart: Option<(GpuIndex, GpuIndex)>,
}

/// What was selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The best.
    pub best: Choice,
    /// Free GPUs that stay, ascending.
    pub left: Vec<GpuIndex>,
    /// [`Rest::left`] if nothing were taken.
    pub all_free: u64,
    /// Sets there are.
    pub sets: u64,
    /// Whether no set is better, which all of them were looked at for.
    pub exhaustive: bool,
    /// Sets that reach as much in all-reduce as the best, as far as they were computed; with it.
    pub as_fast: usize,
    /// The next best that were computed, best first.
    pub alternatives: Vec<Choice>,
}

/// The best `count` of the `free` GPUs (all of them where `None`).
///
/// # Errors
/// [`SelectError`].
pub fn select(
    topology: &Topology,
    count: usize,
    free: Option<&[GpuIndex]>,
    links: LinkPolicy,
) -> Result<Selection, SelectError> {
    within(topology, count, free, links, MOST_SETS, MOST_BOUNDS)
}

/// [`select`] with other budgets.
fn within(
    topology: &Topology,
    count: usize,
    free: Option<&[GpuIndex]>,
    links: LinkPolicy,
    most_sets: u64,
    most_bounds: usize,
) -> Result<Selection, SelectError> {
    let field = Field::new(topology, free, links)?;
    if count == 0 {
        return Err(SelectError::None);
    }
    if count > field.free.len() {
        return Err(SelectError::TooFew { wanted: count, free: field.free.len() });
    }
    let sets = binomial(field.free.len(), count);
    let exhaustive = sets <= most_sets;
    let ranked = if exhaustive { field.all(count, most_bounds) } else { field.exchanged(count) };
    let mut ranked = ranked.into_iter();
    // There is at least one set, and both searches give one.
    let Some((worth, best)) = ranked.next() else { return Err(SelectError::None) };
    let as_fast =
        1 + ranked.clone().filter(|(other, _)| other.all_reduce == worth.all_reduce).count();
    let left = (0..field.free.len()).filter(|place| !best.contains(place));
    Ok(Selection {
        left: left.map(|place| field.free[place].0).collect(),
        all_free: field.between(&(0..field.free.len()).collect::<Vec<_>>()),
        sets,
        exhaustive,
        as_fast,
        alternatives: ranked
            .take(ALTERNATIVES)
            .map(|(worth, set)| field.choice(&set, worth))
            .collect(),
        best: field.choice(&best, worth),
    })
}

/// Places in [`Field::free`], ascending.
type Set = Vec<usize>;

/// The free GPUs and what is between and near them.
struct Field<'a> {
    topology: &'a Topology,
    links: LinkPolicy,
    /// By index.
    free: Vec<(GpuIndex, VertexId)>,
    /// Bandwidth from each to each, kB/s.
    between: Vec<Vec<u64>>,
    /// Places in `nics` near each.
    near: Vec<Vec<usize>>,
    /// Name, bandwidth in kB/s.
    nics: Vec<(String, u64)>,
    /// NUMA node of each.
    node: Vec<Option<VertexId>>,
}

impl<'a> Field<'a> {
    fn new(
        topology: &'a Topology,
        free: Option<&[GpuIndex]>,
        links: LinkPolicy,
    ) -> Result<Self, SelectError> {
        if topology.hosts().len() > 1 {
            return Err(SelectError::SeveralHosts(topology.hosts().len()));
        }
        let mut by_index = BTreeMap::new();
        for &id in topology.gpus() {
            if let VertexKind::Gpu { index } = topology.vertex(id).kind {
                by_index.insert(index, id);
            }
        }
        let chosen: Vec<(GpuIndex, VertexId)> = match free {
            None => by_index.into_iter().collect(),
            Some(free) => {
                let mut chosen = BTreeMap::new();
                for gpu in free {
                    let Some(id) = by_index.get(gpu) else {
                        let known = by_index.keys().copied().collect();
                        let host = topology.vertex(topology.gpus()[0]).host.unwrap_or_default();
                        return Err(PlanError::UnknownGpu { gpu: *gpu, host, known }.into());
                    };
                    if chosen.insert(*gpu, *id).is_some() {
                        return Err(PlanError::GpuTwice { gpu: *gpu }.into());
                    }
                }
                chosen.into_iter().collect()
            }
        };
        let between = chosen
            .iter()
            .map(|(_, from)| {
                chosen
                    .iter()
                    .map(|(_, to)| match from == to {
                        true => 0,
                        false => topology.path(*from, *to).bottleneck.kbps(),
                    })
                    .collect()
            })
            .collect();
        let mut nics = Vec::new();
        let mut near = vec![Vec::new(); chosen.len()];
        let usable: Vec<VertexId> =
            topology.nics().iter().copied().filter(|id| usable(topology, *id)).collect();
        let reach: Vec<Vec<(PathType, u64)>> = chosen
            .iter()
            .map(|(_, gpu)| {
                usable
                    .iter()
                    .map(|nic| {
                        let path = topology.path(*gpu, *nic);
                        (path.class, path.bottleneck.kbps())
                    })
                    .collect()
            })
            .collect();
        for (place, nic) in usable.iter().enumerate() {
            let widest = reach.iter().map(|row| row[place].1).max().unwrap_or(0);
            nics.push((topology.vertex(*nic).name.clone(), widest));
        }
        for (gpu, row) in reach.iter().enumerate() {
            let within = row.iter().map(|(class, _)| *class);
            let nearest = within.min().filter(|class| *class < PathType::Net);
            near[gpu] = (0..row.len()).filter(|place| Some(row[*place].0) == nearest).collect();
        }
        let node = chosen.iter().map(|(_, gpu)| topology.numa_of(*gpu)).collect();
        Ok(Self { topology, links, free: chosen, between, near, nics, node })
    }

    /// All sets, best first; beyond `most_bounds` sets those are left out that cannot be better than another.
    fn all(&self, count: usize, most_bounds: usize) -> Vec<(Worth, Set)> {
        let mut sets: Vec<Set> = Vec::new();
        let mut set: Set = (0..count).collect();
        loop {
            sets.push(set.clone());
            if !advance(&mut set, self.free.len()) {
                break;
            }
        }
        let mut computed = Vec::new();
        if sets.len() <= most_bounds {
            computed.extend(sets.into_iter().map(|set| (self.worth(&set), set)));
        } else {
            // Where a quick limit is reached, the first set that has it is the best, and the others need no look.
            let mut drafts: Vec<(Worth, Set)> =
                sets.into_iter().map(|set| (self.ceiling(&set), set)).collect();
            best_first(&mut drafts);
            let mut best: Option<(Worth, Set)> = None;
            for (ceiling, set) in drafts {
                // Of equal worth the one with lower indices is better.
                let wins = |worth: &Worth, best: &(Worth, Set)| (worth, &best.1) > (&best.0, &set);
                if best.as_ref().is_some_and(|best| !wins(&ceiling, best)) {
                    continue;
                }
                let worth = Worth { all_reduce: self.all_reduce(&set), ..ceiling };
                if best.as_ref().is_none_or(|best| wins(&worth, best)) {
                    best = Some((worth.clone(), set.clone()));
                }
                computed.push((worth, set));
            }
        }
        best_first(&mut computed);
        computed
    }

    /// The best of sets reached from the first by exchanging one GPU for another, as long as that helps.
    fn exchanged(&self, count: usize) -> Vec<(Worth, Set)> {
        let mut here: Set = self.grown(count);
        let mut known: BTreeMap<Set, Worth> = BTreeMap::from([(here.clone(), self.worth(&here))]);
        loop {
            let worth = known[&here].clone();
            let mut better: Vec<(Worth, Set)> = Vec::new();
            for out in &here {
                for new in (0..self.free.len()).filter(|place| !here.contains(place)) {
                    let mut set: Set = here.iter().copied().filter(|place| place != out).collect();
                    set.push(new);
                    set.sort_unstable();
                    let ceiling = known.get(&set).cloned().unwrap_or_else(|| self.ceiling(&set));
                    if ceiling > worth {
                        better.push((ceiling, set));
                    }
                }
            }
            best_first(&mut better);
            let step = better
                .into_iter()
                .map(|(_, set)| set)
                .find(|set| *known.entry(set.clone()).or_insert_with(|| self.worth(set)) > worth);
            let Some(set) = step else { break };
            here = set;
        }
        let mut sets: Vec<(Worth, Set)> =
            known.into_iter().map(|(set, worth)| (worth, set)).collect();
        best_first(&mut sets);
        sets
    }

    /// A set grown from the GPU with the widest paths, each time by the one with the widest paths to those taken.
    fn grown(&self, count: usize) -> Set {
        let everyone: Set = (0..self.free.len()).collect();
        let mut set: Set = Vec::new();
        while set.len() < count {
            let towards = if set.is_empty() { &everyone } else { &set };
            let width = |place: &usize| -> u64 {
                towards.iter().map(|other| self.between[*place][*other]).sum()
            };
            let next = everyone
                .iter()
                .filter(|place| !set.contains(place))
                .max_by_key(|place| (width(place), Reverse(**place)));
            let Some(&next) = next else { break };
            set.push(next);
        }
        set.sort_unstable();
        set
    }

    fn gpus(&self, set: &[usize]) -> Vec<GpuIndex> {
        set.iter().map(|place| self.free[*place].0).collect()
    }

    fn model(&self, set: &[usize]) -> Option<Model> {
        let request = PlanRequest {
            gpus: Some(self.gpus(set)),
            collectives: Vec::new(),
            size_bytes: None,
            links: self.links,
        };
        Model::new(self.topology, &request).ok()
    }

    fn worth(&self, set: &[usize]) -> Worth {
        Worth { all_reduce: self.all_reduce(set), rest: self.rest(set) }
    }

    /// No less than [`Self::worth`], without looking for a bound.
    fn ceiling(&self, set: &[usize]) -> Worth {
        Worth { all_reduce: self.quick_limit(set), rest: self.rest(set) }
    }

    /// The proved bound on all-reduce; zero where there is none to speak of.
    fn all_reduce(&self, set: &[usize]) -> Fraction {
        let bound = self.model(set).and_then(|model| bound::all_reduce(model.bound_graph()).ok());
        bound.map_or(Fraction::ZERO, |bound| bound.algbw)
    }

    /// No less than [`Self::all_reduce`]: what the links into the GPUs, one by one, allow.
    fn quick_limit(&self, set: &[usize]) -> Fraction {
        let Some(model) = self.model(set) else { return Fraction::ZERO };
        let graph = model.bound_graph();
        let sum = |rank: &dyn Fn(&crate::flow_graph::FlowEdge) -> usize| -> u64 {
            graph.edges.iter().filter(|e| rank(e) < graph.ranks).map(|e| e.capacity).sum()
        };
        let least = sum(&|e| e.to).min(sum(&|e| e.from));
        let others = 2 * (set.len().max(2) as u64 - 1);
        Fraction::of(least, others)
    }

    /// Bandwidth between every two of a set.
    fn between(&self, set: &[usize]) -> u64 {
        let pairs =
            set.iter().enumerate().flat_map(|(i, a)| set[i + 1..].iter().map(move |b| (*a, *b)));
        pairs.map(|(a, b)| self.between[a][b]).sum()
    }

    fn rest(&self, set: &[usize]) -> Rest {
        let left: Set = (0..self.free.len()).filter(|place| !set.contains(place)).collect();
        let nics = self.near_nics(set);
        Rest {
            left: self.between(&left),
            nics: nics.iter().map(|nic| self.nics[*nic].1).sum(),
            nodes: Reverse(self.nodes(set).len()),
        }
    }

    fn near_nics(&self, set: &[usize]) -> BTreeSet<usize> {
        set.iter().flat_map(|place| &self.near[*place]).copied().collect()
    }

    fn nodes(&self, set: &[usize]) -> BTreeSet<VertexId> {
        set.iter().filter_map(|place| self.node[*place]).collect()
    }

    fn choice(&self, set: &[usize], worth: Worth) -> Choice {
        let name = |id: VertexId| self.topology.vertex(id).name.clone();
        Choice {
            gpus: self.gpus(set),
            worth,
            near_nics: self
                .near_nics(set)
                .into_iter()
                .map(|nic| self.nics[nic].0.clone())
                .collect(),
            nodes: self.nodes(set).into_iter().map(name).collect(),
            apart: self.apart(set),
        }
    }

    /// Two that links between GPUs do not join, directly or over others of the set.
    fn apart(&self, set: &[usize]) -> Option<(GpuIndex, GpuIndex)> {
        let joined = |a: usize, b: usize| {
            let class = self.topology.path(self.free[a].1, self.free[b].1).class;
            class == PathType::Nvl
                || self.topology.hosts()[0].link_graph.is_some() && self.between[a][b] > 0
        };
        let (&first, others) = set.split_first()?;
        let mut reached = BTreeSet::from([first]);
        let mut queue = vec![first];
        while let Some(at) = queue.pop() {
            for &next in others {
                if joined(at, next) && reached.insert(next) {
                    queue.push(next);
                }
            }
        }
        let missed = others.iter().find(|place| !reached.contains(place))?;
        Some((self.free[first].0, self.free[*missed].0))
    }
}

/// A NIC that traffic between GPUs may take.
pub(crate) fn usable(topology: &Topology, id: VertexId) -> bool {
    let vertex = topology.vertex(id);
    let VertexKind::Nic { index } = vertex.kind else { return false };
    let host = vertex.host.unwrap_or_default();
    let nic = topology.hosts().get(host.index()).and_then(|facts| facts.nics.get(index as usize));
    nic.is_none_or(|nic| nic.role != NicRole::Other && nic.up != Some(false))
}

/// Equal ones in the order of their indices.
fn best_first(sets: &mut [(Worth, Set)]) {
    sets.sort_by(|(a, first), (b, second)| b.cmp(a).then_with(|| first.cmp(second)));
}

/// The next set of as many places below `end`, in lexical order.
fn advance(set: &mut [usize], end: usize) -> bool {
    let count = set.len();
    let Some(at) = (0..count).rev().find(|&at| set[at] < end - count + at) else { return false };
    set[at] += 1;
    for next in at + 1..count {
        set[next] = set[next - 1] + 1;
    }
    true
}

/// How many sets of `count` there are among `of`; saturates.
fn binomial(of: usize, count: usize) -> u64 {
    let count = count.min(of - count);
    let mut sets = 1_u128;
    for k in 0..count {
        sets = sets * (of - k) as u128 / (k as u128 + 1);
        if sets > u128::from(u64::MAX) {
            return u64::MAX;
        }
    }
    u64::try_from(sets).unwrap_or(u64::MAX)
}

impl Choice {
    /// `GPU0, GPU3`.
    #[must_use]
    pub fn names(&self) -> String {
        names(&self.gpus)
    }
}

/// `GPU0, GPU3`.
#[must_use]
pub fn names(gpus: &[GpuIndex]) -> String {
    gpus.iter().map(|gpu| format!("GPU{gpu}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
