//! Makes a graph simpler without losing anything, and leads paths back.

use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use crate::flow_graph::{FlowEdge, FlowGraph};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_graphs::{connected_graph, duplex};
    use proptest::prelude::*;

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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

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
