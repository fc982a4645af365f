//! Bounds by enumeration of all cuts: slow, simple, and nothing in common with max-flow.
//!
//! For small topologies every set of vertices is looked at. What leaves a set of GPUs at most is the least
//! capacity over all ways to put the forwarding vertices on either side; from that table every bound is a minimum.

#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use topology::plan::{LinkPolicy, Plan, PlanRank};
use topology::{Collective, Fraction, HostId, LinkKind, Rank, Topology, VertexId};

use super::violation::{Place, Violation, ViolationKind};
use super::{semantics, structure};

/// Vertices of the largest graph all cuts of which are looked at (2^20 sets).
const MOST_VERTICES: usize = 20;

/// GPUs of the largest graph all partitions of which are looked at (3^12 pairs of sets).
const MOST_PARTITIONED: usize = 12;

/// A bound that enumeration proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProvedBound {
    /// Total data per second, GB/s: no schedule is faster.
    pub algbw_gbps: Fraction,
    /// Whether some schedule is as fast, so that any other bound is wrong or weaker.
    pub tight: bool,
}

/// Proves the claimed bounds of `plan` again where the topology is small enough.
///
/// # Errors
/// A violation for each bound that differs from a tight one.
pub fn bounds(
    topology: &Topology,
    plan: &Plan,
) -> Result<BTreeMap<Collective, ProvedBound>, Vec<Violation>> {
    let mut found = Vec::new();
    let Some(vertices) = structure::ranks(topology, &plan.ranks, &mut found) else {
        return Err(found);
    };
    let mut proved = BTreeMap::new();
    let Some(table) = CutTable::new(topology, &vertices, plan.topology.links) else {
        return Ok(proved);
    };
    for (collective, entry) in &plan.collectives {
        let Some(claimed) = entry.bound.as_ref().map(|bound| bound.algbw_gbps) else { continue };
        let roots = semantics::roots(plan.channels_of(*collective), *collective);
        // The slowest of the roots that the plan serves; without a name it serves all.
        let each = roots.iter().filter_map(|root| table.bound(*collective, Some(*root)));
        let slowest =
            each.min_by_key(|bound| bound.algbw_gbps).or_else(|| table.bound(*collective, None));
        let Some(bound) = slowest else { continue };
        if bound.tight && bound.algbw_gbps != claimed {
            let kind = ViolationKind::Bound { claimed, proved: bound.algbw_gbps };
            found.push(Place::default().collective(*collective).violation(kind));
        }
        proved.insert(*collective, bound);
    }
    if found.is_empty() { Ok(proved) } else { Err(found) }
}

/// The bound of `collective` over `ranks`; without a root where it has one, that of the slowest root.
///
/// `None` where it is not computed: for more than 20 vertices; for collectives without a bound by cuts; and under
/// [`LinkPolicy::Auto`] for several hosts with NVLink inside, where PCIe is restricted by kind of traffic and not by link.
#[must_use]
pub fn brute_force_bound(
    topology: &Topology,
    ranks: &[PlanRank],
    collective: Collective,
    root: Option<Rank>,
    links: LinkPolicy,
) -> Option<ProvedBound> {
    let vertices = structure::ranks(topology, ranks, &mut Vec::new())?;
    CutTable::new(topology, &vertices, links)?.bound(collective, root)
}

/// Least capacity that leaves each set of ranks, kB/s; by bit mask of ranks.
struct CutTable {
    ranks: usize,
    leaves: Vec<u64>,
    /// Without forwarding vertices and with equal capacity both ways between any two ranks.
    plain: bool,
}

impl CutTable {
    fn new(topology: &Topology, ranks: &[VertexId], links: LinkPolicy) -> Option<Self> {
        let graph = Graph::new(topology, ranks, links)?;
        (graph.size() <= MOST_VERTICES).then(|| graph.cuts(ranks.len()))
    }

    fn bound(&self, collective: Collective, root: Option<Rank>) -> Option<ProvedBound> {
        let all = (1_usize << self.ranks) - 1;
        let count = |set: usize| u64::from(set.count_ones());
        let total = count(all);
        let has_root = |set: usize| root.is_none_or(|root| set >> root.0 & 1 == 1);
        // The slowest cut: kB/s and by what to divide it. Multiplied out, as there are many to compare.
        let mut slowest: Option<(u128, u128)> = None;
        // One way to cut: `times` GB leave for `data` GB of the collective.
        let mut consider = |kbps: u64, data: u64, times: u64| {
            let rate = (u128::from(kbps) * u128::from(data), u128::from(times));
            if slowest.is_none_or(|slowest| rate.0 * slowest.1 < slowest.0 * rate.1) {
                slowest = Some(rate);
            }
        };
        let proper = 1..all;
        match collective {
            Collective::AllGather => {
                proper.for_each(|set| consider(self.leaves[set], total, count(set)));
            }
            Collective::ReduceScatter => {
                proper.for_each(|set| consider(self.leaves[all ^ set], total, count(set)));
            }
            Collective::Broadcast => {
                proper
                    .filter(|set| has_root(*set))
                    .for_each(|set| consider(self.leaves[set], 1, 1));
            }
            Collective::Reduce => {
                let sets = proper.filter(|set| has_root(all ^ *set));
                sets.for_each(|set| consider(self.leaves[set], 1, 1));
            }
            Collective::Scatter => {
                let sets = proper.filter(|set| has_root(*set));
                sets.for_each(|set| consider(self.leaves[set], total, count(all ^ set)));
            }
            Collective::Gather => {
                let sets = proper.filter(|set| has_root(all ^ *set));
                sets.for_each(|set| consider(self.leaves[set], total, count(set)));
            }
            Collective::AllToAll => {
                proper.for_each(|set| {
                    consider(self.leaves[set], total, count(set) * count(all ^ set));
                });
            }
            Collective::AllReduce | Collective::SendRecv | Collective::Barrier => {}
        }
        let by_cuts = slowest.and_then(|(kbps, times)| {
            let denominator = i128::try_from(times).ok()?.checked_mul(1_000_000)?;
            Fraction::new(i128::try_from(kbps).ok()?, denominator)
        });
        let least = if collective == Collective::AllReduce { self.partitions() } else { by_cuts };
        let tight = match collective {
            // Cuts do not decide what many flows at once can do.
            Collective::AllToAll => false,
            // Spanning trees pack to the bound of Nash-Williams and Tutte in an undirected graph.
            Collective::AllReduce => self.plain,
            _ => true,
        };
        least.map(|algbw_gbps| ProvedBound { algbw_gbps, tight })
    }

    /// Every all-reduce passes `2 (p - 1)` times its data into the parts of any partition in p parts.
    fn partitions(&self) -> Option<Fraction> {
        if self.ranks > MOST_PARTITIONED {
            return None;
        }
        let all = (1_usize << self.ranks) - 1;
        // By number of parts, then set: least sum of what enters the parts of a partition of the set.
        let mut sums = vec![vec![None::<u64>; all + 1]; self.ranks + 1];
        sums[0][0] = Some(0);
        for parts in 1..=self.ranks {
            for set in 1..=all {
                // The part with the lowest member, so that each partition is met once.
                let lowest = set & set.wrapping_neg();
                let rest = set ^ lowest;
                let mut others = rest;
                let mut least: Option<u64> = None;
                loop {
                    let part = set ^ others;
                    if let Some(sum) = sums[parts - 1][others] {
                        let sum = sum + self.leaves[all ^ part];
                        least = Some(least.map_or(sum, |least| least.min(sum)));
                    }
                    if others == 0 {
                        break;
                    }
                    others = (others - 1) & rest;
                }
                sums[parts][set] = least;
            }
        }
        (2_u64..)
            .zip(&sums[2.min(self.ranks)..])
            .filter_map(|(parts, by_set)| {
                let entering = Fraction::of(by_set[all]?, 1_000_000);
                Some(entering / Fraction::of(2 * (parts - 1), 1))
            })
            .min()
            .filter(|_| self.ranks > 1)
    }
}

/// Capacities between vertices, ranks first.
struct Graph {
    kbps: Vec<Vec<u64>>,
}

impl Graph {
    /// The links that count between `ranks`, without vertices that cannot matter.
    fn new(topology: &Topology, ranks: &[VertexId], links: LinkPolicy) -> Option<Self> {
        let only_gpu_links = links == LinkPolicy::Auto && {
            let hosts: BTreeSet<_> = ranks.iter().map(|rank| topology.vertex(*rank).host).collect();
            let connected = |host: &Option<HostId>| {
                let of_host = |rank: &&VertexId| topology.vertex(**rank).host == *host;
                let gpus: Vec<_> = ranks.iter().filter(of_host).copied().collect();
                gpus.len() > 1 && Self::of(topology, &gpus, is_gpu_link).is_connected(gpus.len())
            };
            let connected = hosts.iter().filter(|host| connected(host)).count();
            if connected > 0 && hosts.len() > 1 {
                return None;
            }
            connected > 0
        };
        let mut graph = if only_gpu_links {
            Self::of(topology, ranks, is_gpu_link)
        } else {
            Self::of(topology, ranks, |_| true)
        };
        while let Some(vertex) = (ranks.len()..graph.size()).find(|v| graph.bypass(*v)) {
            graph.remove(vertex);
        }
        Some(graph)
    }

    fn of(topology: &Topology, ranks: &[VertexId], counts: impl Fn(LinkKind) -> bool) -> Self {
        let graph = topology.graph();
        let forwarders = graph.node_indices().filter(|id| !topology.gpus().contains(id));
        let vertices: Vec<_> = ranks.iter().copied().chain(forwarders).collect();
        let places: BTreeMap<_, _> = vertices.iter().zip(0..).map(|(id, at)| (*id, at)).collect();
        let mut kbps = vec![vec![0_u64; vertices.len()]; vertices.len()];
        for id in &vertices {
            for (link, to) in topology.links_from(*id) {
                let link = topology.link(link);
                if let (Some(from), Some(to)) = (places.get(id), places.get(&to))
                    && counts(link.kind)
                    && from != to
                {
                    let (from, to): (usize, usize) = (*from, *to);
                    kbps[from][to] += link.bandwidth.kbps();
                }
            }
        }
        Self { kbps }
    }

    fn size(&self) -> usize {
        self.kbps.len()
    }

    /// Joins the neighbours of a forwarding vertex directly where it has at most two, so that it can go.
    fn bypass(&mut self, vertex: usize) -> bool {
        let neighbours: Vec<_> = (0..self.size())
            .filter(|other| self.kbps[vertex][*other] > 0 || self.kbps[*other][vertex] > 0)
            .collect();
        if let [a, b] = neighbours[..] {
            for (a, b) in [(a, b), (b, a)] {
                let through = self.kbps[a][vertex].min(self.kbps[vertex][b]);
                self.kbps[a][b] += through;
            }
        }
        neighbours.len() <= 2
    }

    fn remove(&mut self, vertex: usize) {
        self.kbps.remove(vertex);
        for row in &mut self.kbps {
            row.remove(vertex);
        }
    }

    /// Whether each of the first `ranks` vertices reaches every other.
    fn is_connected(&self, ranks: usize) -> bool {
        let reaches_all = |forward: bool| {
            let mut seen = vec![false; self.size()];
            let mut front = vec![0];
            seen[0] = true;
            while let Some(here) = front.pop() {
                for (next, seen) in seen.iter_mut().enumerate() {
                    let kbps = if forward { self.kbps[here][next] } else { self.kbps[next][here] };
                    if kbps > 0 && !*seen {
                        *seen = true;
                        front.push(next);
                    }
                }
            }
            seen[..ranks].iter().all(|seen| *seen)
        };
        reaches_all(true) && reaches_all(false)
    }

    /// Goes through all sets of vertices, one vertex changing sides at a time (Gray code).
    fn cuts(&self, ranks: usize) -> CutTable {
        let size = self.size();
        let of_ranks = (1_usize << ranks) - 1;
        let mut leaves = vec![u64::MAX; of_ranks + 1];
        leaves[0] = 0;
        let (mut set, mut leaving) = (0_usize, 0_u64);
        for step in 1_usize..1 << size {
            let vertex = step.trailing_zeros() as usize;
            let joins = set >> vertex & 1 == 0;
            set ^= 1 << vertex;
            // What crosses with the vertex inside, and with it outside.
            let (mut inside, mut outside) = (0, 0);
            for other in (0..size).filter(|other| *other != vertex) {
                if set >> other & 1 == 1 {
                    outside += self.kbps[other][vertex];
                } else {
                    inside += self.kbps[vertex][other];
                }
            }
            leaving = if joins { leaving + inside - outside } else { leaving + outside - inside };
            let least = &mut leaves[set & of_ranks];
            *least = (*least).min(leaving);
        }
        let symmetric = (0..size).all(|a| (0..size).all(|b| self.kbps[a][b] == self.kbps[b][a]));
        CutTable { ranks, leaves, plain: size == ranks && symmetric }
    }
}

fn is_gpu_link(kind: LinkKind) -> bool {
    matches!(kind, LinkKind::NvLink | LinkKind::Xgmi)
}
