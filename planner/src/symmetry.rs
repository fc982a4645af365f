//! Symmetries of a network: ways to rename its nodes that change nothing, found without knowing what it is a network of.
//!
//! Equal hosts, GPUs under one switch, the two halves of a board: all are renamings under which every rank takes the place of another. What is
//! planned for one rank then serves all it can be renamed to, and a plan for two hundred ranks costs what one for a few costs.
//!
//! ```text
//!   colours      nodes that look different, from near or far, get different colours (`colours`)
//!   search       a renaming of order p that leaves no rank in place and agrees with those known so far
//!   group        all products of the renamings found; each rank goes to each other one by one of them at most
//! ```
//!
//! That no renaming but the identity leaves a rank in place makes averages exact: a best plan averaged over the group is a best plan, and consists
//! of the images of trees from one rank of each orbit.

use alloc::vec;
use alloc::vec::Vec;

use crate::forest::{Forest, Tree, TreeEdge, TreePath};
use crate::network::Network;
use colours::Pair;

mod colours;

/// A group of renamings, none of which but the identity leaves a rank in place.
#[derive(Clone, Debug)]
pub(crate) struct Symmetry {
    /// Where each node goes, by renaming; the identity first.
    pub(crate) elements: Vec<Vec<usize>>,
    /// The first rank of each orbit.
    pub(crate) representatives: Vec<usize>,
    /// By rank: place of its representative, and the renaming that takes it there.
    pub(crate) from: Vec<(usize, usize)>,
}

/// Orders of renamings looked for.
const PRIMES: [usize; 6] = [2, 3, 5, 7, 11, 13];
/// Colourings of the search, for each prime and each renaming found.
const MAX_COLOURINGS: usize = 600;
/// Ways to close a cycle tried.
const MAX_CLOSINGS: usize = 4;

impl Symmetry {
    /// As many renamings as are found within a budget. Which of several is found first decides what can join it, so there is more than one
    /// attempt unless the first takes every rank to every other.
    pub(crate) fn of(network: &Network) -> Self {
        let mut best: Vec<Vec<usize>> = vec![(0..network.graph.nodes).collect()];
        let rising = PRIMES;
        let mut falling = PRIMES;
        falling.reverse();
        for (orders, turn) in [(rising, 0), (falling, 0), (rising, 1)] {
            let found = Self::attempt(network, &orders, turn);
            if found.len() > best.len() {
                best = found;
            }
            if best.len() == network.graph.ranks {
                break;
            }
        }
        Self::from_elements(network, best)
    }

    fn attempt(network: &Network, orders: &[usize], turn: usize) -> Vec<Vec<usize>> {
        let mut elements: Vec<Vec<usize>> = vec![(0..network.graph.nodes).collect()];
        let ranks = network.graph.ranks;
        for &order in orders {
            while (ranks / elements.len()).is_multiple_of(order) {
                let closings = 0..elements.len().min(MAX_CLOSINGS);
                let found = closings
                    .map(|closing| Search::new(network, &elements, order, closing, turn))
                    .find_map(Search::run);
                let Some(renaming) = found else { break };
                let Some(more) = extended(&elements, &renaming, order) else { break };
                elements = more;
            }
        }
        elements
    }

    fn from_elements(network: &Network, elements: Vec<Vec<usize>>) -> Self {
        let ranks = network.graph.ranks;
        let mut from = vec![(usize::MAX, 0); ranks];
        let mut representatives = Vec::new();
        for rank in 0..ranks {
            if from[rank].0 == usize::MAX {
                for (i, element) in elements.iter().enumerate() {
                    from[element[rank]] = (representatives.len(), i);
                }
                representatives.push(rank);
            }
        }
        Self { elements, representatives, from }
    }

    /// The forest under a renaming.
    pub(crate) fn renamed(&self, forest: &Forest, element: usize) -> Forest {
        renamed(forest, &self.elements[element])
    }

    /// Number of renamings.
    pub(crate) fn order(&self) -> usize {
        self.elements.len()
    }

    /// By pool, the orbit it lies in; and the size of each orbit.
    pub(crate) fn pool_orbits(&self, network: &Network) -> (Vec<usize>, Vec<usize>) {
        let mut orbit_of = vec![usize::MAX; network.capacity.len()];
        let mut sizes = Vec::new();
        for (e, &pool) in network.graph.edges.iter().zip(&network.pool_of) {
            if orbit_of[pool] != usize::MAX {
                continue;
            }
            sizes.push(0);
            for element in &self.elements {
                let Some(image) = network.edge(element[e.from], element[e.to]) else { continue };
                let image = network.pool_of[image];
                if orbit_of[image] == usize::MAX {
                    orbit_of[image] = sizes.len() - 1;
                    sizes[orbit_of[image]] += 1;
                }
            }
        }
        (orbit_of, sizes)
    }
}

/// The forest with each node another.
pub(crate) fn renamed(forest: &Forest, map: &[usize]) -> Forest {
    let path = |path: &TreePath| TreePath {
        via: path.via.iter().map(|&node| map[node]).collect(),
        share: path.share,
    };
    let edge = |edge: &TreeEdge| {
        let mut paths: Vec<TreePath> = edge.paths.iter().map(path).collect();
        paths.sort_unstable();
        TreeEdge { from: map[edge.from], to: map[edge.to], paths }
    };
    let trees = forest.trees.iter().map(|tree| Tree {
        root: map[tree.root],
        weight: tree.weight,
        edges: tree.edges.iter().map(edge).collect(),
    });
    Forest { trees: trees.collect(), ..*forest }
}

/// The group with one more renaming; `None` where the products are not a group of the expected order.
fn extended(elements: &[Vec<usize>], renaming: &[usize], order: usize) -> Option<Vec<Vec<usize>>> {
    let after = |a: &[usize], b: &[usize]| -> Vec<usize> { b.iter().map(|&x| a[x]).collect() };
    if elements.iter().any(|e| after(e, renaming) != after(renaming, e)) {
        return None;
    }
    let mut all = elements.to_vec();
    let mut power = renaming.to_vec();
    for _ in 1..order {
        all.extend(elements.iter().map(|e| after(e, &power)));
        power = after(renaming, &power);
    }
    elements.contains(&power).then_some(all)
}

/// A node map that takes the network to itself turned round and every rank to itself: a way from a to b becomes a way back.
pub(crate) fn mirror(network: &Network) -> Option<Vec<usize>> {
    let mut pair = Pair::new(network, true);
    for rank in 0..network.graph.ranks {
        pair.identify(rank, rank);
    }
    if !pair.refine() {
        return None;
    }
    let map = pair.matched()?;
    maps_onto(network, &map, true).then_some(map)
}

/// Whether a node map takes edges to equal edges and pools to equal pools.
fn maps_onto(network: &Network, map: &[usize], turned: bool) -> bool {
    let mut pool_map = vec![usize::MAX; network.capacity.len()];
    let mut taken = vec![usize::MAX; network.capacity.len()];
    network.graph.edges.iter().zip(&network.pool_of).all(|(e, &pool)| {
        let (from, to) = (map[e.from], map[e.to]);
        let image = if turned { network.edge(to, from) } else { network.edge(from, to) };
        let Some(image) = image else { return false };
        let onto = network.pool_of[image];
        let same = network.graph.edges[image].capacity == e.capacity
            && network.capacity[onto] == network.capacity[pool];
        let first = pool_map[pool] == usize::MAX && taken[onto] == usize::MAX;
        if first {
            (pool_map[pool], taken[onto]) = (onto, pool);
        }
        same && (pool_map[pool], taken[onto]) == (onto, pool)
    })
}

/// Depth first over images of one rank after the other, colours telling early where that leads nowhere.
struct Search<'a> {
    network: &'a Network,
    elements: &'a [Vec<usize>],
    order: usize,
    /// The element that the last of a cycle of orbits leads back by.
    closing: usize,
    /// How far candidates are rotated before they are tried.
    turn: usize,
    /// Ranks that are or lie on a cycle in the making.
    taken: Vec<bool>,
    colourings: usize,
}

impl<'a> Search<'a> {
    fn new(
        network: &'a Network,
        elements: &'a [Vec<usize>],
        order: usize,
        closing: usize,
        turn: usize,
    ) -> Self {
        let taken = vec![false; network.graph.ranks];
        Self { network, elements, order, closing, turn, taken, colourings: 0 }
    }

    fn run(mut self) -> Option<Vec<usize>> {
        let mut pair = Pair::new(self.network, false);
        pair.refine().then_some(())?;
        self.next_cycle(&pair)
    }

    fn next_cycle(&mut self, pair: &Pair<'a>) -> Option<Vec<usize>> {
        let Some(start) = self.taken.iter().position(|taken| !taken) else {
            let map = pair.matched()?;
            return maps_onto(self.network, &map, false).then_some(map);
        };
        self.take(start, true);
        let found = self.onward(pair, start, start, 1);
        if found.is_none() {
            self.take(start, false);
        }
        found
    }

    /// Tries every image of `at`, the last of `length` ranks of a cycle from `start`.
    fn onward(
        &mut self,
        pair: &Pair<'a>,
        start: usize,
        at: usize,
        length: usize,
    ) -> Option<Vec<usize>> {
        let back = length == self.order;
        let mut images: Vec<usize> = if back {
            vec![self.elements[self.closing][start]]
        } else {
            (0..self.taken.len()).filter(|&y| !self.taken[y] && pair.alike(at, y)).collect()
        };
        let half = images.len() / 2 * self.turn;
        images.rotate_left(half);
        for to in images {
            if self.colourings >= MAX_COLOURINGS {
                return None;
            }
            self.colourings += 1;
            let mut next = pair.clone();
            for element in self.elements {
                next.identify(element[at], element[to]);
            }
            if !next.refine() {
                continue;
            }
            let found = if back {
                self.next_cycle(&next)
            } else {
                self.take(to, true);
                let found = self.onward(&next, start, to, length + 1);
                if found.is_none() {
                    self.take(to, false);
                }
                found
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn take(&mut self, rank: usize, taken: bool) {
        for element in self.elements {
            self.taken[element[rank]] = taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_graph::FlowGraph;
    use crate::test_graphs::{connected_graph, dgx1v, duplex, graph, rails, relabelled, star};
    use proptest::prelude::*;

    fn order(g: &FlowGraph) -> usize {
        Symmetry::of(&Network::plain(g)).order()
    }

    #[test]
    fn orders_of_known_machines() {
        assert_eq!(order(&star(8, 12)), 8);
        assert_eq!(order(&star(72, 12)), 72);
        assert_eq!(order(&rails(2, 8, 300, 25)), 16);
        assert_eq!(order(&rails(3, 4, 300, 25)), 12);
        assert!(order(&dgx1v()) >= 4);
        // A ring of five turns, one way only.
        let ring: Vec<_> = (0..5).map(|v| (v, (v + 1) % 5, 3)).collect();
        assert_eq!(order(&graph(5, 5, &ring)), 5);
        // No rank looks like another here.
        assert_eq!(order(&graph(3, 3, &[(0, 1, 1), (1, 2, 2), (2, 0, 3)])), 1);
        // Three on a line: the middle one stays, so no renaming moves all.
        assert_eq!(order(&duplex(3, 3, &[(0, 1, 4), (1, 2, 4)])), 1);
    }

    #[test]
    fn a_mirror_turns_every_way_round() {
        // Out by 2, in by 3; and what enters rank 0 is thinner.
        let g = graph(2, 4, &[(0, 2, 5), (1, 2, 5), (2, 3, 9), (3, 0, 5), (3, 1, 5)]);
        assert_eq!(mirror(&Network::plain(&g)), Some(vec![0, 1, 3, 2]));
        let g = graph(2, 4, &[(0, 2, 5), (1, 2, 5), (2, 3, 9), (3, 0, 4), (3, 1, 5)]);
        assert_eq!(mirror(&Network::plain(&g)), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Two to four copies of anything, in any order, joined by a common switch: at least that many renamings, all of them true.
        #[test]
        fn copies_are_found(g in connected_graph(5, 3), copies in 2_usize..5, seed in 0_u64..1000) {
            let (ranks, inner) = (g.ranks, g.nodes - g.ranks);
            let hub = copies * g.nodes;
            let mut edges = Vec::new();
            for copy in 0..copies {
                let at = |v: usize| {
                    if v < ranks { copy * ranks + v } else { copies * ranks + copy * inner + v - ranks }
                };
                edges.extend(g.edges.iter().map(|e| (at(e.from), at(e.to), e.capacity)));
                edges.extend((0..ranks).flat_map(|v| [(at(v), hub, 7), (hub, at(v), 7)]));
            }
            let whole = graph(copies * ranks, hub + 1, &edges);
            let (other, _) = relabelled(&whole, seed);
            let network = Network::plain(&other);
            let found = Symmetry::of(&network);
            // Of four copies two may be exchanged and two turned in themselves; then no more may agree with that.
            let least = if copies == 3 { 3 } else { 2 };
            prop_assert!(found.order() >= least, "{} of {}", found.order(), copies);
            for (i, element) in found.elements.iter().enumerate() {
                prop_assert!(maps_onto(&network, element, false));
                let moved = (0..other.ranks).filter(|&v| element[v] != v).count();
                prop_assert_eq!(moved, usize::from(i > 0) * other.ranks);
            }
            let (orbit_of, sizes) = found.pool_orbits(&network);
            for (orbit, size) in sizes.iter().enumerate() {
                prop_assert_eq!(orbit_of.iter().filter(|&&o| o == orbit).count(), *size);
            }
        }
    }
}
