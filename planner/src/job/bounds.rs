//! What no schedule beats: cuts around hosts and GPUs, once for each class.

use alloc::string::String;
use alloc::vec::Vec;

use topology::{Collective, Fraction, LinkKind, Plan, Topology, VertexId, VertexKind};

use super::Hosts;
use crate::fleet::HostClass;
use crate::max_flow::{FlowNetwork, UNLIMITED};
use crate::select::usable;

/// Rates in kB/s that data of a host of a class cannot exceed.
#[derive(Clone, Debug)]
pub(super) struct ClassCuts {
    /// From the network to its GPUs, all together.
    pub(super) into: u64,
    /// From them to the network.
    pub(super) out: u64,
    /// Into each GPU, from anywhere.
    pub(super) into_gpus: Vec<u64>,
    /// Out of each.
    pub(super) out_of_gpus: Vec<u64>,
}

impl ClassCuts {
    /// `plan` tells whether PCIe carries anything between GPUs; where it does not, it brings a GPU no more than the network does, and that is
    /// nothing where there is no other host.
    pub(super) fn of(class: &HostClass, plan: Option<&Plan>, several: bool) -> Self {
        let topology = &class.topology;
        let gpus: Vec<VertexId> = class.gpus.iter().map(|gpu| gpu.vertex).collect();
        let joined = plan.is_some_and(|plan| {
            plan.channels.iter().flat_map(|channel| channel.all_edges()).all(|edge| {
                edge.paths.iter().flat_map(|path| &path.via).all(|name| {
                    let between = |id| {
                        matches!(
                            topology.vertex(id).kind,
                            VertexKind::NvSwitch | VertexKind::Switch
                        )
                    };
                    topology.find(name).is_some_and(between)
                })
            })
        });
        let single = |gpu: VertexId, into: bool| {
            let graph = topology.graph();
            let direct: u64 = graph
                .edge_indices()
                .filter(|&edge| {
                    let ends = graph.edge_endpoints(edge);
                    ends.is_some_and(|(from, to)| if into { to == gpu } else { from == gpu })
                })
                .map(|edge| topology.link(edge))
                .filter(|link| !joined || !matches!(link.kind, LinkKind::Pcie | LinkKind::C2c))
                .map(|link| link.bandwidth.kbps())
                .sum();
            if joined && several {
                direct.saturating_add(to_network(topology, &[gpu], into, true))
            } else {
                direct
            }
        };
        Self {
            into: to_network(topology, &gpus, true, false),
            out: to_network(topology, &gpus, false, false),
            into_gpus: gpus.iter().map(|&gpu| single(gpu, true)).collect(),
            out_of_gpus: gpus.iter().map(|&gpu| single(gpu, false)).collect(),
        }
    }
}

/// The largest flow between some GPUs and the network; `alone`: over no other GPU and no link between GPUs.
fn to_network(topology: &Topology, gpus: &[VertexId], into: bool, alone: bool) -> u64 {
    let graph = topology.graph();
    let fabric = graph.node_indices().find(|&id| topology.vertex(id).kind == VertexKind::Fabric);
    let Some(fabric) = fabric else { return 0 };
    let nodes = graph.node_count();
    let mut network = FlowNetwork::new(nodes + 1);
    for edge in graph.edge_indices() {
        let Some((from, to)) = graph.edge_endpoints(edge) else { continue };
        let passes = |id: VertexId| match topology.vertex(id).kind {
            VertexKind::Nic { .. } => usable(topology, id),
            VertexKind::Gpu { .. } => !alone || gpus.contains(&id),
            _ => true,
        };
        let between = matches!(graph[edge].kind, LinkKind::NvLink | LinkKind::Xgmi);
        if passes(from) && passes(to) && !(alone && between) {
            let capacity = i64::try_from(graph[edge].bandwidth.kbps()).unwrap_or(UNLIMITED);
            network.add_edge(from.index(), to.index(), capacity);
        }
    }
    for gpu in gpus {
        let (from, to) = if into { (gpu.index(), nodes) } else { (nodes, gpu.index()) };
        network.add_edge(from, to, UNLIMITED);
    }
    let (source, sink) = if into { (fabric.index(), nodes) } else { (nodes, fabric.index()) };
    u64::try_from(network.augment(source, sink, UNLIMITED)).unwrap_or(0)
}

/// Rate in kB/s with what it comes from.
type Limit = (Fraction, String);

impl Hosts {
    /// The lowest of all bounds on a collective, GB/s, with what it comes from.
    pub(super) fn bound(&self, collective: Collective) -> (Fraction, String) {
        let mut limits: Vec<Limit> = Vec::new();
        for class in 0..self.cuts.len() {
            self.cuts_of(class, collective, &mut limits);
        }
        if collective == Collective::AllReduce {
            limits.extend(self.partition());
        }
        let least = limits.into_iter().min_by(|a, b| a.0.cmp(&b.0));
        least.map_or_else(
            || (Fraction::ZERO, "nothing is sent".into()),
            |(kbps, by)| (kbps / Fraction::integer(1_000_000), by),
        )
    }

    /// Cuts around one host and around one GPU.
    fn cuts_of(&self, class: usize, collective: Collective, limits: &mut Vec<Limit>) {
        let cuts = &self.cuts[class];
        let (hosts, ranks) = (self.hosts(), self.ranks());
        // What must cross, per byte of total data: into a set with so many of the ranks, and out of it.
        let crossing = |size: u64| -> [Fraction; 2] {
            let (own, foreign) = (Fraction::of(size, ranks), Fraction::of(ranks - size, ranks));
            match collective {
                Collective::AllReduce => [Fraction::ONE, Fraction::ONE],
                Collective::ReduceScatter => [own, foreign],
                _ => [foreign, own],
            }
        };
        let mut limit = |need: Fraction, kbps: u64, by: String| {
            if !need.is_zero() {
                limits.push((Fraction::of(kbps, 1) / need, by));
            }
        };
        if hosts > 1 {
            let [into, out] = crossing(self.sizes[class]);
            let by = |what: &str| alloc::format!("a host of class {class} {what}");
            limit(into, cuts.into, by("takes no more from the network"));
            limit(out, cuts.out, by("gives no more to the network"));
        }
        if ranks > 1 {
            let [into, out] = crossing(1);
            let least = |of: &[u64]| of.iter().copied().min().unwrap_or(0);
            let by = |what: &str| alloc::format!("a GPU of class {class} {what}");
            limit(into, least(&cuts.into_gpus), by("takes no more"));
            limit(out, least(&cuts.out_of_gpus), by("gives no more"));
        }
    }

    /// The best partition in which each class counts as whole hosts or as single GPUs: `2 (p - 1)` times the data go into its p groups.
    fn partition(&self) -> Option<Limit> {
        // By class: groups of all its hosts and what goes into them, as whole hosts and as GPUs.
        let options: Vec<[(u128, u128); 2]> = (0..self.cuts.len())
            .map(|class| {
                let count = u128::from(self.counts[class]);
                let cuts = &self.cuts[class];
                let gpus: u128 = cuts.into_gpus.iter().map(|&kbps| u128::from(kbps)).sum();
                let size = u128::from(self.sizes[class]);
                [(count, count * u128::from(cuts.into)), (count * size, count * gpus)]
            })
            .collect();
        let mut taken: Vec<usize> = options.iter().map(|_| 1).collect();
        if self.hosts() > 1 {
            taken.fill(0);
        }
        loop {
            let sum = |taken: &[usize]| {
                let chosen = options.iter().zip(taken).map(|(of, &place)| of[place]);
                chosen.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
            };
            let (groups, rate) = sum(&taken);
            if groups < 2 || rate == 0 {
                return None;
            }
            // Per class, which adds more to `groups - 1 - (groups - 1) / rate * rate`.
            let gain = |(p, c): (u128, u128)| -> Option<i128> {
                let gained = p.checked_mul(rate)?;
                let paid = c.checked_mul(groups - 1)?;
                i128::try_from(gained).ok()?.checked_sub(i128::try_from(paid).ok()?)
            };
            let better: Vec<usize> = options
                .iter()
                .zip(&taken)
                .map(|(of, &now)| match (gain(of[now]), gain(of[1 - now])) {
                    (Some(a), Some(b)) if b > a => 1 - now,
                    _ => now,
                })
                .collect();
            if better == taken {
                let kbps = Fraction::new(
                    i128::try_from(rate).ok()?,
                    i128::try_from(2 * (groups - 1)).ok()?,
                )?;
                let whole = taken.iter().all(|&place| place == 0);
                let by = if whole {
                    "what all hosts take from the network"
                } else {
                    "what all GPUs take, by themselves or as hosts"
                };
                return Some((kbps, String::from(by)));
            }
            taken = better;
        }
    }
}
