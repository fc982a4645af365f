//! A graph from which switches are being split off: its capacities and the routes that stand for them.

use alloc::vec;
use alloc::vec::Vec;

use super::logical::{LogicalGraph, Route};
use crate::bound::count;
use crate::flow_graph::{FlowEdge, FlowGraph};
use crate::max_flow::FlowNetwork;
use crate::packing::RankGraph;
use crate::served::Served;

pub(super) struct Splitter<'a> {
    pub(super) ranks: usize,
    pub(super) nodes: usize,
    pub(super) weights: &'a [i64],
    pub(super) total: i64,
    pub(super) capacity: Vec<i64>,
    pub(super) routes: Vec<Vec<Route>>,
}

/// One pair of edges at a switch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) amount: i64,
}

impl<'a> Splitter<'a> {
    pub(super) fn new(graph: &FlowGraph, weights: &'a [i64]) -> Self {
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

    pub(super) fn at(&self, from: usize, to: usize) -> i64 {
        self.capacity[from * self.nodes + to]
    }

    pub(super) fn entering(&self, node: usize) -> Vec<(usize, i64)> {
        (0..self.nodes).map(|u| (u, self.at(u, node))).filter(|e| e.1 > 0).collect()
    }

    pub(super) fn leaving(&self, node: usize) -> Vec<(usize, i64)> {
        (0..self.nodes).map(|t| (t, self.at(node, t))).filter(|e| e.1 > 0).collect()
    }

    pub(super) fn surplus(&self, switch: usize) -> i64 {
        let sum = |edges: Vec<(usize, i64)>| edges.iter().map(|e| e.1).sum::<i64>();
        sum(self.entering(switch)) - sum(self.leaving(switch))
    }

    pub(super) fn balanced(&self) -> bool {
        (self.ranks..self.nodes).all(|switch| self.surplus(switch) == 0)
    }

    /// Switches with the fewest ranks at them first: the core of a fabric before its edge.
    pub(super) fn order(&self) -> Vec<usize> {
        let near = |switch: usize| (0..self.ranks).filter(|&v| self.at(v, switch) > 0).count();
        let mut order: Vec<usize> =
            (self.ranks..self.nodes).filter(|&s| !self.entering(s).is_empty()).collect();
        order.sort_by_key(|&switch| (near(switch), switch));
        order
    }

    pub(super) fn drop_node(&mut self, node: usize) {
        for other in 0..self.nodes {
            for i in [node * self.nodes + other, other * self.nodes + node] {
                self.capacity[i] = 0;
                self.routes[i].clear();
            }
        }
    }

    /// Takes `amount` off an edge and returns the routes it used, oldest first.
    pub(super) fn consume(&mut self, from: usize, to: usize, amount: i64) -> Vec<Route> {
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

    pub(super) fn split(&mut self, switch: usize, Pair { from, to, amount }: Pair) {
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
    pub(super) fn distances(&self, switch: usize, from: usize) -> Vec<usize> {
        let mut distance = vec![usize::MAX; self.nodes];
        distance[from] = 0;
        let mut queue = vec![from];
        let mut next = 0;
        while let Some(&v) = queue.get(next) {
            next += 1;
            for t in (0..self.nodes).filter(|&t| self.at(v, t) > 0) {
                if t != switch && distance[t] == usize::MAX {
                    distance[t] = distance[v] + 1;
                    queue.push(t);
                }
            }
        }
        distance
    }

    pub(super) fn flow_graph(&self) -> FlowGraph {
        let n = self.nodes;
        let edges = self
            .capacity
            .iter()
            .enumerate()
            .filter(|&(_, &c)| c > 0)
            .map(|(i, &c)| FlowEdge { from: i / n, to: i % n, capacity: c.unsigned_abs() });
        FlowGraph::new(self.ranks, n, edges)
    }

    /// Whether with these capacities every rank can be sent everything that the ranks own at once.
    pub(super) fn supports(&self, capacity: &[i64], steps: &mut u64) -> bool {
        let Some(left) = steps.checked_sub(count(self.ranks)) else { return false };
        *steps = left;
        let (nodes, source) = (self.nodes, self.nodes);
        let mut network = FlowNetwork::new(nodes + 1);
        for (i, &capacity) in capacity.iter().enumerate().filter(|(_, c)| **c > 0) {
            network.add_edge(i / nodes, i % nodes, capacity);
        }
        for (v, &weight) in self.weights.iter().enumerate() {
            network.add_edge(source, v, weight);
        }
        Served::all(&mut network, source, self.ranks, self.total)
    }

    pub(super) fn finish(self) -> LogicalGraph {
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
