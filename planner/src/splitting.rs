//! From a graph with switches to capacities between ranks, and back from an edge between ranks to physical paths.
//!
//! Two stages. [`Reduction`] simplifies without losing anything: a switch between two neighbours becomes an edge, switches whose
//! capacities are in proportion become one. [`remove_switches`] then splits edges off at each remaining switch w,
//!
//! ```text
//!      u ──c──> w ──c'──> t          u ──c-γ──> w ──c'-γ──> t
//!                             ⇒      └───────────γ─────────>┘     (through w)
//! ```
//!
//! with γ such that every rank can still be sent everything at once. That a switch with equal capacity in and out can be
//! split off completely is the theorem of Bang-Jensen, Frank and Jackson; that the result supports the trees is
//! checked afterwards all the same.
//!
//! Trees get low when every pair of neighbours gets its part, so shares are spread evenly first, and between ranks that are far
//! apart without the switch before those that are near.

use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use crate::bound::{SourceNetwork, count};
use crate::flow_graph::{FlowEdge, FlowGraph};
use crate::max_flow::{EdgeId, FlowNetwork, UNLIMITED, scaled};
use crate::packing::RankGraph;

/// A path of nodes and which part of the data takes it.
pub type SharedPath = (Vec<usize>, Fraction);

/// A simpler graph of the same nodes with the same optima, and the way back.
#[derive(Clone, Debug)]
pub struct Reduction {
    /// The simpler graph; nodes that went have no edges.
    pub graph: FlowGraph,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    /// Part of the edge from `a` to `b` runs through `switch`.
    Contracted { a: usize, switch: usize, b: usize, part: Fraction },
    /// The first of these switches stands for all of them, each carrying its part.
    Merged(Vec<(usize, Fraction)>),
}

/// A switch's edges: whether out, the neighbour, the capacity over the unit of all.
type Row = Vec<(bool, usize, u64)>;

impl Reduction {
    /// Simplifies as far as possible.
    #[must_use]
    pub fn new(graph: &FlowGraph) -> Self {
        let mut reduction = Self { graph: graph.clone(), steps: Vec::new() };
        while reduction.contract() || reduction.merge() {}
        reduction
    }

    /// Turns every switch with two neighbours into edges between them, and drops those with fewer.
    fn contract(&mut self) -> bool {
        let nodes = self.graph.nodes;
        let mut changed = false;
        for switch in self.graph.ranks..nodes {
            let edges = &self.graph.edges;
            let touches = |e: &&FlowEdge| e.from == switch || e.to == switch;
            let mut neighbours: Vec<usize> = edges
                .iter()
                .filter(touches)
                .map(|e| if e.from == switch { e.to } else { e.from })
                .collect();
            neighbours.sort_unstable();
            neighbours.dedup();
            if neighbours.is_empty() || neighbours.len() > 2 {
                continue;
            }
            let capacity = |from: usize, to: usize| {
                edges
                    .binary_search_by_key(&(from, to), |e| (e.from, e.to))
                    .map_or(0, |i| edges[i].capacity)
            };
            let mut kept: Vec<FlowEdge> = edges.iter().filter(|e| !touches(e)).copied().collect();
            if let [x, y] = neighbours[..] {
                for (a, b) in [(x, y), (y, x)] {
                    let through = capacity(a, switch).min(capacity(switch, b));
                    if through > 0 {
                        let part = Fraction::of(through, through + capacity(a, b));
                        self.steps.push(Step::Contracted { a, switch, b, part });
                        kept.push(FlowEdge { from: a, to: b, capacity: through });
                    }
                }
            }
            self.graph = FlowGraph::new(self.graph.ranks, nodes, kept);
            changed = true;
        }
        changed
    }

    /// Unites switches that have the same neighbours with capacities in the same proportion. A cut that has some of them on one
    /// side is never better than one that has all there.
    fn merge(&mut self) -> bool {
        let nodes = self.graph.nodes;
        let mut rows: Vec<(Row, u64, usize)> = Vec::new();
        for switch in self.graph.ranks..nodes {
            let mut row: Row = self
                .graph
                .edges
                .iter()
                .filter_map(|e| {
                    if e.from == switch {
                        Some((true, e.to, e.capacity))
                    } else {
                        (e.to == switch).then_some((false, e.from, e.capacity))
                    }
                })
                .collect();
            let unit = row.iter().fold(0, |g, r| num_integer::gcd(g, r.2));
            if unit > 0 {
                row.iter_mut().for_each(|r| r.2 /= unit);
                rows.push((row, unit, switch));
            }
        }
        rows.sort_unstable_by(|a, b| (&a.0, a.2).cmp(&(&b.0, b.2)));
        let mut into: Vec<usize> = (0..nodes).collect();
        let mut changed = false;
        for group in rows.chunk_by(|a, b| a.0 == b.0).filter(|group| group.len() > 1) {
            let total: u64 = group.iter().map(|r| r.1).sum();
            let parts: Vec<_> = group.iter().map(|r| (r.2, Fraction::of(r.1, total))).collect();
            group.iter().for_each(|r| into[r.2] = group[0].2);
            self.steps.push(Step::Merged(parts));
            changed = true;
        }
        if changed {
            let moved = self.graph.edges.iter().map(|e| FlowEdge {
                from: into[e.from],
                to: into[e.to],
                capacity: e.capacity,
            });
            self.graph = FlowGraph::new(self.graph.ranks, nodes, moved);
        }
        changed
    }

    /// The paths of the original graph that a path of the simpler one stands for. Parts add up to 1.
    #[must_use]
    pub fn expand(&self, path: &[usize]) -> Vec<SharedPath> {
        let mut paths = vec![(path.to_vec(), Fraction::ONE)];
        for step in self.steps.iter().rev() {
            match step {
                Step::Contracted { a, switch, b, part } => {
                    let at = |path: &[usize]| path.windows(2).position(|hop| hop == [*a, *b]);
                    let mut through = Vec::new();
                    for (path, share) in &mut paths {
                        let Some(i) = at(path) else { continue };
                        let mut longer = path.clone();
                        longer.insert(i + 1, *switch);
                        if *part == Fraction::ONE {
                            *path = longer;
                        } else {
                            through.push((longer, *share * *part));
                            *share = *share * (Fraction::ONE - *part);
                        }
                    }
                    paths.append(&mut through);
                }
                Step::Merged(parts) => {
                    let mut spread = Vec::new();
                    for (path, share) in &mut paths {
                        let Some(i) = path.iter().position(|&v| v == parts[0].0) else { continue };
                        for &(switch, part) in &parts[1..] {
                            let mut other = path.clone();
                            other[i] = switch;
                            spread.push((other, *share * part));
                        }
                        *share = *share * parts[0].1;
                    }
                    paths.append(&mut spread);
                }
            }
        }
        paths.sort_unstable();
        paths
    }
}

/// Capacities between ranks, with the paths of nodes that provide them.
#[derive(Clone, Debug)]
pub struct LogicalGraph {
    /// The capacities.
    pub graph: RankGraph,
    /// By `from * ranks + to`: switches passed, and how much of the capacity runs that way.
    routes: Vec<Vec<Route>>,
}

#[derive(Clone, Debug)]
struct Route {
    via: Vec<usize>,
    amount: i64,
}

impl LogicalGraph {
    /// Multiplies every capacity; `None` where one would exceed 60 bits.
    #[must_use]
    pub fn scaled(mut self, factor: u64) -> Option<Self> {
        let times = |c: i64| scaled(c.unsigned_abs(), factor);
        let edges: Vec<_> = self.graph.edges().collect();
        for (u, t, c) in edges {
            self.graph.set_capacity(u, t, times(c)?);
        }
        for route in self.routes.iter_mut().flatten() {
            route.amount = times(route.amount)?;
        }
        Some(self)
    }

    /// Takes `amount` of the capacity from one rank to another out of the routes: the switches passed and how much goes that way.
    /// One route where one has room, the fewest otherwise.
    ///
    /// # Panics
    /// Where less is left.
    pub fn take(&mut self, from: usize, to: usize, amount: i64) -> Vec<(Vec<usize>, i64)> {
        let routes = &mut self.routes[from * self.graph.ranks() + to];
        let mut taken = Vec::new();
        let mut left = amount;
        while left > 0 {
            // The tightest route that holds all of it keeps the roomy ones whole for others.
            let fits = (0..routes.len())
                .filter(|&i| routes[i].amount >= left)
                .min_by_key(|&i| routes[i].amount);
            let most = || (0..routes.len()).rev().max_by_key(|&i| routes[i].amount);
            let i = fits.or_else(most).expect("trees take no more than the capacity");
            let part = left.min(routes[i].amount);
            taken.push((routes[i].via.clone(), part));
            left -= part;
            routes[i].amount -= part;
            if routes[i].amount == 0 {
                routes.remove(i);
            }
        }
        taken
    }
}

/// Splits all switches off `graph` such that every rank can still be sent everything that the ranks own (`weights`) at once, as
/// far as that is possible: ask [`RankGraph::supports`]. Uses one of `steps` per maximum flow, and beyond that budget
/// takes only the splits that need none.
///
/// # Panics
/// Where there is not one weight per rank, or capacities do not fit 60 bits.
#[must_use]
pub fn remove_switches(graph: &FlowGraph, weights: &[i64], steps: &mut u64) -> LogicalGraph {
    assert_eq!(weights.len(), graph.ranks, "one weight per rank");
    let mut splitter = Splitter::new(graph, weights);
    if !splitter.balanced() {
        splitter.trim(steps);
    }
    for switch in splitter.order() {
        if !splitter.propose(switch, true, steps) && !splitter.propose(switch, false, steps) {
            splitter.split_off(switch, steps);
        }
        splitter.drop_node(switch);
    }
    splitter.finish()
}

/// The graph with capacities lowered until as much enters every switch as leaves it; `None` where that is so already.
///
/// A switch that only forwards cannot use more, so plans lose nothing by some such lowering; this one avoids, as far as it sees,
/// what would hurt the all-gather of `weights`, and spreads the rest in proportion.
///
/// # Panics
/// Where there is not one weight per rank, or capacities do not fit 60 bits.
#[must_use]
pub fn balanced(graph: &FlowGraph, weights: &[i64], steps: &mut u64) -> Option<FlowGraph> {
    assert_eq!(weights.len(), graph.ranks, "one weight per rank");
    let mut splitter = Splitter::new(graph, weights);
    if splitter.balanced() {
        return None;
    }
    splitter.trim(steps);
    splitter.level();
    Some(splitter.flow_graph())
}

struct Splitter<'a> {
    ranks: usize,
    nodes: usize,
    weights: &'a [i64],
    total: i64,
    capacity: Vec<i64>,
    routes: Vec<Vec<Route>>,
}

/// One pair of edges at a switch.
#[derive(Clone, Copy, Debug)]
struct Pair {
    from: usize,
    to: usize,
    amount: i64,
}

impl<'a> Splitter<'a> {
    fn new(graph: &FlowGraph, weights: &'a [i64]) -> Self {
        let nodes = graph.nodes;
        let mut capacity = vec![0; nodes * nodes];
        let mut routes = vec![Vec::new(); nodes * nodes];
        for e in &graph.edges {
            let amount = i64::try_from(e.capacity).expect("the caller scales within 60 bits");
            capacity[e.from * nodes + e.to] = amount;
            routes[e.from * nodes + e.to].push(Route { via: Vec::new(), amount });
        }
        Self { ranks: graph.ranks, nodes, weights, total: weights.iter().sum(), capacity, routes }
    }

    fn at(&self, from: usize, to: usize) -> i64 {
        self.capacity[from * self.nodes + to]
    }

    fn entering(&self, node: usize) -> Vec<(usize, i64)> {
        (0..self.nodes).map(|u| (u, self.at(u, node))).filter(|e| e.1 > 0).collect()
    }

    fn leaving(&self, node: usize) -> Vec<(usize, i64)> {
        (0..self.nodes).map(|t| (t, self.at(node, t))).filter(|e| e.1 > 0).collect()
    }

    fn surplus(&self, switch: usize) -> i64 {
        let sum = |edges: Vec<(usize, i64)>| edges.iter().map(|e| e.1).sum::<i64>();
        sum(self.entering(switch)) - sum(self.leaving(switch))
    }

    fn balanced(&self) -> bool {
        (self.ranks..self.nodes).all(|switch| self.surplus(switch) == 0)
    }

    /// Switches with the fewest ranks at them first: the core of a fabric before its edge.
    fn order(&self) -> Vec<usize> {
        let near = |switch: usize| (0..self.ranks).filter(|&v| self.at(v, switch) > 0).count();
        let mut order: Vec<usize> =
            (self.ranks..self.nodes).filter(|&s| !self.entering(s).is_empty()).collect();
        order.sort_by_key(|&switch| (near(switch), switch));
        order
    }

    fn drop_node(&mut self, node: usize) {
        for other in 0..self.nodes {
            for i in [node * self.nodes + other, other * self.nodes + node] {
                self.capacity[i] = 0;
                self.routes[i].clear();
            }
        }
    }

    /// Takes `amount` off an edge and returns the routes it used, oldest first.
    fn consume(&mut self, from: usize, to: usize, amount: i64) -> Vec<Route> {
        let i = from * self.nodes + to;
        self.capacity[i] -= amount;
        let mut taken = Vec::new();
        let mut left = amount;
        while left > 0 {
            let route = &mut self.routes[i][0];
            let part = left.min(route.amount);
            taken.push(Route { via: route.via.clone(), amount: part });
            route.amount -= part;
            left -= part;
            if route.amount == 0 {
                self.routes[i].remove(0);
            }
        }
        taken
    }

    fn split(&mut self, switch: usize, Pair { from, to, amount }: Pair) {
        let mut first = self.consume(from, switch, amount);
        let mut second = self.consume(switch, to, amount);
        if from == to {
            return;
        }
        let i = from * self.nodes + to;
        self.capacity[i] += amount;
        while let (Some(a), Some(b)) = (first.first_mut(), second.first_mut()) {
            let part = a.amount.min(b.amount);
            let nodes = a.via.iter().chain([&switch]).chain(&b.via);
            let via = without_loops(nodes.copied());
            match self.routes[i].iter_mut().find(|route| route.via == via) {
                Some(route) => route.amount += part,
                None => self.routes[i].push(Route { via, amount: part }),
            }
            a.amount -= part;
            b.amount -= part;
            if a.amount == 0 {
                first.remove(0);
            }
            if b.amount == 0 {
                second.remove(0);
            }
        }
    }

    /// Edges on the way from each neighbour to each other without the switch.
    fn distances(&self, switch: usize, from: usize) -> Vec<usize> {
        let mut distance = vec![usize::MAX; self.nodes];
        distance[from] = 0;
        let mut queue = vec![from];
        let mut next = 0;
        while let Some(&v) = queue.get(next) {
            next += 1;
            for (t, _) in self.leaving(v) {
                if t != switch && distance[t] == usize::MAX {
                    distance[t] = distance[v] + 1;
                    queue.push(t);
                }
            }
        }
        distance
    }

    /// Tries to split the switch off at once, spread evenly over all pairs, or over those `far` apart. Keeps the result
    /// only if every rank can still be sent everything.
    fn propose(&mut self, switch: usize, far: bool, steps: &mut u64) -> bool {
        let (ins, outs) = (self.entering(switch), self.leaving(switch));
        let mut allowed: Vec<Vec<bool>> =
            ins.iter().map(|&(u, _)| outs.iter().map(|&(t, _)| u != t).collect()).collect();
        if far {
            let away: Vec<Vec<usize>> = ins
                .iter()
                .map(|&(u, _)| {
                    let distance = self.distances(switch, u);
                    outs.iter().map(|&(t, _)| distance[t]).collect()
                })
                .collect();
            let furthest_in: Vec<usize> =
                away.iter().map(|row| row.iter().copied().max().unwrap_or(0)).collect();
            let furthest_out: Vec<usize> =
                (0..outs.len()).map(|j| away.iter().map(|row| row[j]).max().unwrap_or(0)).collect();
            let mut all = true;
            for (i, row) in allowed.iter_mut().enumerate() {
                for (j, ok) in row.iter_mut().enumerate() {
                    let near = away[i][j] != furthest_in[i] && away[i][j] != furthest_out[j];
                    all &= !(*ok && near);
                    *ok &= !near;
                }
            }
            if all {
                // Nobody is nearer than others, so this is the proposal without preference.
                return false;
            }
        }
        let pairs = spread(&ins, &outs, &allowed);
        let (capacity, routes) = (self.capacity.clone(), self.routes.clone());
        for pair in pairs {
            self.split(switch, pair);
        }
        self.drop_node(switch);
        if self.supports(steps) {
            return true;
        }
        (self.capacity, self.routes) = (capacity, routes);
        false
    }

    fn flow_graph(&self) -> FlowGraph {
        let n = self.nodes;
        let edges = self
            .capacity
            .iter()
            .enumerate()
            .filter(|&(_, &c)| c > 0)
            .map(|(i, &c)| FlowEdge { from: i / n, to: i % n, capacity: c.unsigned_abs() });
        FlowGraph::new(self.ranks, n, edges)
    }

    fn supports(&self, steps: &mut u64) -> bool {
        let Some(left) = steps.checked_sub(count(self.ranks)) else { return false };
        *steps = left;
        let mut net = self.source_network();
        (0..self.ranks).all(|v| net.network.max_flow(net.source, v, self.total) == self.total)
    }

    fn source_network(&self) -> SourceNetwork {
        let graph = self.flow_graph();
        let mut net = SourceNetwork::new(&graph);
        for (&id, edge) in net.edges.iter().zip(&graph.edges) {
            net.network.set_capacity(id, self.at(edge.from, edge.to));
        }
        for (&id, &weight) in net.supplies.iter().zip(self.weights) {
            net.network.set_capacity(id, weight);
        }
        net.supply = self.total;
        net
    }

    /// Splits pair by pair, each by as much as the cuts allow: first spread over all pairs, then whatever goes, turning back last.
    fn split_off(&mut self, switch: usize, steps: &mut u64) {
        let mut probe = Probe::new(self);
        let (ins, outs) = (self.entering(switch), self.leaving(switch));
        let mut pairs: Vec<(bool, core::cmp::Reverse<usize>, usize, usize)> = Vec::new();
        for (i, &(u, _)) in ins.iter().enumerate() {
            let distance = self.distances(switch, u);
            for j in 0..outs.len() {
                // Rotating the far end gives every node its turn at every place.
                let t = outs[(i + j) % outs.len()].0;
                pairs.push((u == t, core::cmp::Reverse(distance[t]), j, u));
            }
        }
        let to_of = |j: usize, u: usize| {
            let i = ins.iter().position(|e| e.0 == u).unwrap_or(0);
            outs[(i + j) % outs.len()].0
        };
        pairs.sort_unstable();
        for even in [true, false] {
            for &(back, _, j, from) in &pairs {
                let to = to_of(j, from);
                if even && back {
                    continue;
                }
                let mut want = self.at(from, switch).min(self.at(switch, to));
                if even {
                    let others = i64::try_from(outs.len().max(2) - 1).unwrap_or(i64::MAX);
                    let fair = |whole: i64| (whole + others - 1) / others;
                    let part = |edges: &[(usize, i64)], v: usize| {
                        edges.iter().find(|e| e.0 == v).map_or(0, |e| fair(e.1))
                    };
                    want = want.min(part(&ins, from)).min(part(&outs, to));
                }
                if want > 0 {
                    let amount = self.room(&mut probe, switch, (from, to), want, steps);
                    if amount > 0 {
                        self.split(switch, Pair { from, to, amount });
                        for (u, t) in [(from, switch), (switch, to), (from, to)] {
                            probe.set(u, t, self.at(u, t));
                        }
                    }
                }
            }
        }
    }

    /// How much can be split off at (from, switch), (switch, to). Only sets that hold both ends and not the switch, or the switch
    /// and neither end, lose capacity.
    fn room(
        &self,
        probe: &mut Probe,
        switch: usize,
        (from, to): (usize, usize),
        want: i64,
        steps: &mut u64,
    ) -> i64 {
        let ends = [from, to];
        let outside = |v: usize| !ends.contains(&v);
        let targets: Vec<usize> = (0..self.ranks).filter(|&v| outside(v)).collect();
        let mut room = want;
        room = probe.slack(&ends, &[switch], &targets, room, steps);
        if room > 0 {
            // A rank among the ends is the one that the set misses.
            let any_rank = ends.iter().any(|&v| v < self.ranks);
            let targets = if any_rank { Vec::new() } else { targets };
            room = probe.slack_or_plain(&[switch], &ends, &targets, room, any_rank, steps);
        }
        room
    }

    /// Makes in and out equal at every switch by lowering edges, without hurting what ranks can be sent where possible.
    fn trim(&mut self, steps: &mut u64) {
        let mut probe = Probe::new(self);
        for even in [true, false] {
            loop {
                let mut changed = false;
                for switch in self.ranks..self.nodes {
                    let surplus = self.surplus(switch);
                    let edges: Vec<(usize, usize, i64)> = if surplus > 0 {
                        self.entering(switch).iter().map(|&(u, c)| (u, switch, c)).collect()
                    } else {
                        self.leaving(switch).iter().map(|&(t, c)| (switch, t, c)).collect()
                    };
                    let total: i64 = edges.iter().map(|e| e.2).sum();
                    for (from, to, c) in edges {
                        let left = self.surplus(switch).abs();
                        if left == 0 {
                            break;
                        }
                        let fair =
                            i128::from(surplus.abs()) * i128::from(c) / i128::from(total.max(1));
                        let want = if even { i64::try_from(fair).unwrap_or(c).max(1) } else { c };
                        let by = self.spare(&mut probe, from, to, want.min(left).min(c), steps);
                        if by > 0 {
                            self.consume(from, to, by);
                            probe.set(from, to, self.at(from, to));
                            changed = true;
                        }
                    }
                }
                if !changed || even {
                    break;
                }
            }
        }
    }

    /// Lowers the larger side of every unbalanced switch in proportion, whatever that costs, until none is left. Capacities only
    /// ever fall, so it ends.
    fn level(&mut self) {
        while let Some(switch) = (self.ranks..self.nodes).find(|&s| self.surplus(s) != 0) {
            let surplus = self.surplus(switch);
            let edges: Vec<(usize, usize, i64)> = if surplus > 0 {
                self.entering(switch).iter().map(|&(u, c)| (u, switch, c)).collect()
            } else {
                self.leaving(switch).iter().map(|&(t, c)| (switch, t, c)).collect()
            };
            let total: i64 = edges.iter().map(|e| e.2).sum();
            let mut left = surplus.abs();
            for (from, to, c) in edges {
                let part = i128::from(surplus.abs()) * i128::from(c) / i128::from(total);
                // Rounded up, so that the sum suffices.
                let by = i64::try_from(part).unwrap_or(c).saturating_add(1).min(c).min(left);
                self.consume(from, to, by);
                left -= by;
            }
        }
    }

    /// By how much an edge can be lowered: sets that hold its tail and not its head lose that.
    fn spare(&self, probe: &mut Probe, from: usize, to: usize, want: i64, steps: &mut u64) -> i64 {
        if to < self.ranks {
            return probe.slack_or_plain(&[from], &[to], &[], want, true, steps);
        }
        let targets: Vec<usize> = (0..self.ranks).filter(|&v| v != from).collect();
        probe.slack(&[from], &[to], &targets, want, steps)
    }

    fn finish(self) -> LogicalGraph {
        let mut graph = RankGraph::new(self.ranks);
        let mut routes = Vec::with_capacity(self.ranks * self.ranks);
        for u in 0..self.ranks {
            for t in 0..self.ranks {
                graph.set_capacity(u, t, self.at(u, t));
                routes.push(self.routes[u * self.nodes + t].clone());
            }
        }
        LogicalGraph { graph, routes }
    }
}

/// The network of a splitter: a source that supplies every rank with its weight.
struct Probe {
    network: FlowNetwork,
    nodes: usize,
    /// By `from * nodes + to`.
    edges: Vec<Option<EdgeId>>,
    source: usize,
    total: i64,
}

impl Probe {
    fn new(splitter: &Splitter<'_>) -> Self {
        let nodes = splitter.nodes;
        let source = nodes;
        let mut network = FlowNetwork::new(nodes + 1);
        let mut edges = vec![None; nodes * nodes];
        for (i, &capacity) in splitter.capacity.iter().enumerate().filter(|(_, c)| **c > 0) {
            edges[i] = Some(network.add_edge(i / nodes, i % nodes, capacity));
        }
        for (v, &weight) in splitter.weights.iter().enumerate() {
            network.add_edge(source, v, weight);
        }
        Self { network, nodes, edges, source, total: splitter.total }
    }

    /// Takes over a capacity that changed.
    fn set(&mut self, from: usize, to: usize, capacity: i64) {
        if from == to {
            return;
        }
        match &mut self.edges[from * self.nodes + to] {
            Some(edge) => self.network.set_capacity(*edge, capacity),
            none => *none = Some(self.network.add_edge(from, to, capacity)),
        }
    }

    /// By how much, at most `want`, every set that holds all `inside`, none of `outside` and misses a rank of `targets` exceeds what
    /// it must let through.
    fn slack(
        &mut self,
        inside: &[usize],
        outside: &[usize],
        targets: &[usize],
        want: i64,
        steps: &mut u64,
    ) -> i64 {
        self.slack_or_plain(inside, outside, targets, want, false, steps)
    }

    /// The same; with `plain` the sets need miss no target.
    fn slack_or_plain(
        &mut self,
        inside: &[usize],
        outside: &[usize],
        targets: &[usize],
        want: i64,
        plain: bool,
        steps: &mut u64,
    ) -> i64 {
        let Some(left) = steps.checked_sub(1) else { return 0 };
        *steps = left;
        let mut sources = vec![self.source];
        sources.extend_from_slice(inside);
        let mut sinks = outside.to_vec();
        let limit = self.total + want;
        // Common to all targets: what reaches the nodes outside.
        self.network.clear_flow();
        let base = self.network.augment_between(&sources, &sinks, limit);
        let mut least = if plain { base } else { limit };
        if base < limit && !plain {
            self.network.save();
            for &target in targets {
                let Some(left) = steps.checked_sub(1) else {
                    least = 0;
                    break;
                };
                *steps = left;
                sinks.push(target);
                let more = self.network.augment_between(&sources, &sinks, least - base);
                sinks.pop();
                least = least.min(base + more);
                if least <= self.total {
                    break;
                }
                self.network.rollback();
            }
        }
        (least - self.total).clamp(0, want)
    }
}

/// Whole amounts for the allowed pairs that use up what enters and leaves as far as they can, in proportion first.
fn spread(ins: &[(usize, i64)], outs: &[(usize, i64)], allowed: &[Vec<bool>]) -> Vec<Pair> {
    let mut amounts = vec![vec![0_i64; outs.len()]; ins.len()];
    let mut left_in: Vec<i64> = ins.iter().map(|e| e.1).collect();
    let mut left_out: Vec<i64> = outs.iter().map(|e| e.1).collect();
    let reach_in: Vec<i64> = allowed
        .iter()
        .map(|row| row.iter().zip(outs).filter(|(ok, _)| **ok).map(|(_, e)| e.1).sum())
        .collect();
    let reach_out: Vec<i64> = (0..outs.len())
        .map(|j| allowed.iter().zip(ins).filter(|(row, _)| row[j]).map(|(_, e)| e.1).sum())
        .collect();
    let part = |a: i64, b: i64, whole: i64| {
        i64::try_from(i128::from(a) * i128::from(b) / i128::from(whole.max(1))).unwrap_or(0)
    };
    for (i, row) in allowed.iter().enumerate() {
        for j in (0..outs.len()).filter(|&j| row[j]) {
            let (a, b) = (ins[i].1, outs[j].1);
            let amount = part(a, b, reach_in[i]).min(part(a, b, reach_out[j]));
            amounts[i][j] = amount;
            left_in[i] -= amount;
            left_out[j] -= amount;
        }
    }
    // The remainders of rounding, by a flow: at first no pair gets more than its share of them.
    let (source, sink) = (ins.len() + outs.len(), ins.len() + outs.len() + 1);
    let mut net = FlowNetwork::new(sink + 1);
    left_in.iter().enumerate().for_each(|(i, &left)| {
        net.add_edge(source, i, left);
    });
    left_out.iter().enumerate().for_each(|(j, &left)| {
        net.add_edge(ins.len() + j, sink, left);
    });
    let mut cells = Vec::new();
    for (i, row) in allowed.iter().enumerate() {
        // Rotated, so that equal remainders do not all go to the first.
        for j in (0..outs.len()).map(|j| (i + 1 + j) % outs.len()).filter(|&j| row[j]) {
            cells.push((i, j, net.add_edge(i, ins.len() + j, 1)));
        }
    }
    let most = left_in.iter().copied().max().unwrap_or(0);
    let mut cap = 1;
    loop {
        net.max_flow(source, sink, UNLIMITED);
        let used: i64 = cells.iter().map(|c| net.flow(c.2)).sum();
        if cap >= most || used == left_in.iter().sum::<i64>() {
            break;
        }
        cap = (cap * 2).min(most);
        cells.iter().for_each(|c| net.set_capacity(c.2, cap));
    }
    for &(i, j, id) in &cells {
        amounts[i][j] += net.flow(id);
    }
    let mut pairs = Vec::new();
    for (i, row) in amounts.iter().enumerate() {
        for (j, &amount) in row.iter().enumerate().filter(|(_, a)| **a > 0) {
            pairs.push(Pair { from: ins[i].0, to: outs[j].0, amount });
        }
    }
    pairs
}

/// The nodes without the rounds between two visits of the same.
fn without_loops(nodes: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut path: Vec<usize> = Vec::new();
    for node in nodes {
        match path.iter().position(|&v| v == node) {
            Some(i) => path.truncate(i + 1),
            None => path.push(node),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::{all_gather, bottleneck};
    use crate::test_graphs::{bars, connected_graph, duplex, rails, star};
    use proptest::prelude::*;

    /// The graph scaled such that its optimum needs exactly the weights returned.
    fn tight(g: &FlowGraph) -> (FlowGraph, Vec<i64>) {
        let r = bottleneck(g, &vec![1; g.ranks]).unwrap().ratio;
        let p = u64::try_from(r.numerator()).unwrap();
        let edges = g.edges.iter().map(|e| FlowEdge { capacity: e.capacity * p, ..*e });
        let scaled = FlowGraph::new(g.ranks, g.nodes, edges);
        (scaled, vec![i64::try_from(r.denominator()).unwrap(); g.ranks])
    }

    /// All routes together load no edge beyond its capacity, and follow edges from end to end.
    #[track_caller]
    fn certify(g: &FlowGraph, logical: &LogicalGraph) {
        let mut left: std::collections::BTreeMap<(usize, usize), i64> =
            g.edges.iter().map(|e| ((e.from, e.to), i64::try_from(e.capacity).unwrap())).collect();
        for (u, t, c) in logical.graph.edges() {
            let routes = logical.clone().take(u, t, c);
            assert_eq!(routes.iter().map(|r| r.1).sum::<i64>(), c);
            for (via, amount) in routes {
                let mut at = u;
                for next in via.into_iter().chain([t]) {
                    *left.get_mut(&(at, next)).expect("routes follow edges") -= amount;
                    at = next;
                }
            }
        }
        assert!(left.values().all(|&l| l >= 0), "overloaded: {left:?}");
    }

    #[test]
    fn one_switch_gives_a_clique() {
        let (g, weights) = tight(&star(8, 300));
        let logical = remove_switches(&g, &weights, &mut 1000);
        certify(&g, &logical);
        let first = logical.graph.capacity(0, 1);
        assert!(logical.graph.edges().count() == 56 && logical.graph.edges().all(|e| e.2 == first));
    }

    #[test]
    fn a_fabric_joins_boxes_first() {
        // Two boxes of four; each GPU has a NIC on one common fabric.
        let mut links: Vec<_> = (0..8).map(|v| (v, 8 + v / 4, 12)).collect();
        links.extend((0..8).map(|v| (v, 10, 4)));
        let (g, weights) = tight(&duplex(8, 11, &links));
        let logical = remove_switches(&g, &weights, &mut 1000);
        certify(&g, &logical);
        assert!(logical.graph.supports(&weights));
        for (u, t, c) in logical.graph.edges() {
            if u / 4 == t / 4 {
                assert!(logical.clone().take(u, t, c).iter().all(|r| r.0 == [8 + u / 4]));
            }
        }
    }

    #[test]
    fn equal_planes_are_one() {
        let mut links = Vec::new();
        for v in 0..4 {
            links.extend([(v, 4, 1), (v, 5, 2), (v, 6, 3)]);
        }
        let reduction = Reduction::new(&duplex(4, 7, &links));
        assert_eq!(reduction.graph.edges.len(), 8);
        let paths = reduction.expand(&[0, 4, 1]);
        let part = |i: u64| Fraction::of(i, 6);
        assert_eq!(
            paths,
            [(vec![0, 4, 1], part(1)), (vec![0, 5, 1], part(2)), (vec![0, 6, 1], part(3))]
        );
    }

    #[test]
    fn a_switch_between_two_is_an_edge() {
        // 0 - 2 - 3 - 1 beside a direct link.
        let reduction =
            Reduction::new(&duplex(2, 4, &[(0, 2, 5), (2, 3, 3), (3, 1, 4), (0, 1, 3)]));
        assert_eq!(reduction.graph, duplex(2, 4, &[(0, 1, 6)]));
        let half = Fraction::of(1, 2);
        assert_eq!(reduction.expand(&[0, 1]), [(vec![0, 1], half), (vec![0, 2, 3, 1], half)]);
        assert_eq!(reduction.expand(&[1, 0]), [(vec![1, 0], half), (vec![1, 3, 2, 0], half)]);
    }

    #[test]
    fn every_graph_of_the_bars_keeps_its_optimum() {
        for case in bars().into_iter().flatten() {
            let reduction = Reduction::new(&case.graph);
            assert_eq!(
                all_gather(&reduction.graph).unwrap().algbw,
                all_gather(&case.graph).unwrap().algbw,
                "{}",
                case.name
            );
            let (g, weights) = tight(&reduction.graph);
            let logical = remove_switches(&g, &weights, &mut 100_000);
            certify(&g, &logical);
            assert!(logical.graph.supports(&weights), "{}", case.name);
        }
    }

    #[test]
    fn rails_stay_rails() {
        let (g, weights) = tight(&rails(2, 4, 12, 1));
        let reduced = Reduction::new(&g);
        let logical = remove_switches(&reduced.graph, &weights, &mut 1000);
        assert!(logical.graph.supports(&weights));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn symmetric_graphs_keep_their_optimum(g in connected_graph(6, 5)) {
            let reduction = Reduction::new(&g);
            prop_assert_eq!(all_gather(&reduction.graph).unwrap().algbw, all_gather(&g).unwrap().algbw);
            let (scaled, weights) = tight(&reduction.graph);
            let logical = remove_switches(&scaled, &weights, &mut 100_000);
            certify(&scaled, &logical);
            if g.is_symmetric() {
                prop_assert!(logical.graph.supports(&weights));
            }
        }

        /// Whatever stands for a path carries no more than the path, edge by edge.
        #[test]
        fn expansions_fit(g in connected_graph(4, 6)) {
            let reduction = Reduction::new(&g);
            let mut load = std::collections::BTreeMap::new();
            for e in &reduction.graph.edges {
                let mut parts = Fraction::ZERO;
                for (path, part) in reduction.expand(&[e.from, e.to]) {
                    parts = parts + part;
                    // A merged switch at an end shows as any of its planes.
                    for hop in path.windows(2) {
                        let sum = load.entry((hop[0], hop[1])).or_insert(Fraction::ZERO);
                        *sum = *sum + part * Fraction::of(e.capacity, 1);
                    }
                }
                prop_assert_eq!(parts, Fraction::ONE);
            }
            for e in &g.edges {
                if let Some(&load) = load.get(&(e.from, e.to)) {
                    prop_assert!(load <= Fraction::of(e.capacity, 1));
                }
            }
        }
    }
}
