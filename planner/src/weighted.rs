//! All-reduce: how much of the data each rank should own.
//!
//! Three levels, each tried only where the one before misses the bound:
//!
//! 1. Equal shards: reduce-scatter, then all-gather. Best where the ranks are alike.
//! 2. Unequal shards: a rank with poor links owns less, down to nothing. The best shares solve a linear program over all cuts,
//!    min θ with w(S) ≤ θ·B⁺(S), of which few cuts matter; maximum flows find those.
//! 3. Overlapped trees: reducing along a tree upwards and broadcasting downwards use opposite directions of its links, so both run at
//!    once. On symmetric graphs without switches Nash-Williams and Tutte say this reaches the partition bound.
//!
//! Shares come from a floating-point program and are then rounded to fractions; what they reach is recomputed exactly.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use crate::bound::{self, BoundError, Cut, SourceNetwork, UpperBound, bottleneck, count, whole};
use crate::flow_graph::FlowGraph;
use crate::forest::{Forest, ForestError, ForestOptions, Forests, Tree, TreeEdge, TreePath};
use crate::served::Served;
use crate::simplex::{LinearProgram, Optimum, Relation};

/// Trees that carry an all-reduce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllReduceForest {
    /// Trees towards roots. `reduce.trees[i]` and `spread.trees[i]` have one root and one part of the data.
    pub reduce: Forest,
    /// Trees from roots.
    pub spread: Forest,
    /// Whether both run at once and share the links. Otherwise one follows the other.
    pub overlapped: bool,
    /// Total data per second.
    pub algbw: Fraction,
    /// The proved bound.
    pub bound: UpperBound,
}

impl AllReduceForest {
    /// Whether no schedule can be faster.
    #[must_use]
    pub fn is_optimal(&self) -> bool {
        self.algbw == self.bound.algbw
    }
}

/// Rounds of adding cuts or trees.
const MAX_ROUNDS: usize = 40;
/// Pivots of one linear program.
const MAX_PIVOTS: u64 = 20_000;
/// Largest common denominator looked for.
const MAX_DENOMINATOR: u32 = 4096;
/// Part of the best rate at which smaller numbers are preferred: the rest of the 1 % is for packing.
const CLOSE: (u64, u64) = (998, 1000);
/// Weight of evenness beside speed: so small that it decides among equally fast shares only.
const EVEN: f64 = 1.0 / 1024.0;

/// All-reduce by the best of the three levels.
///
/// # Errors
/// [`ForestError`].
pub fn all_reduce(
    graph: &FlowGraph,
    options: &ForestOptions,
) -> Result<AllReduceForest, ForestError> {
    all_reduce_from(&mut Forests::new(graph, *options))
}

/// The same with forests that other collectives may have made already.
///
/// # Errors
/// [`ForestError`].
pub fn all_reduce_from(forests: &mut Forests<'_>) -> Result<AllReduceForest, ForestError> {
    let graph = forests.graph();
    let bound = bound::all_reduce(graph)?;
    let symmetric = forests.is_symmetric();
    let (weights, rate) = shard_weights(graph, symmetric, bound.algbw)?;
    let overlapped =
        if rate < bound.algbw && symmetric { overlapped(graph, bound.algbw) } else { None };
    if let Some(spread) = overlapped.filter(|forest| forest.algbw > rate) {
        let algbw = spread.algbw;
        return Ok(AllReduceForest {
            reduce: spread.reversed(),
            spread,
            overlapped: true,
            algbw,
            bound,
        });
    }
    let found = match in_two_phases(forests, &weights, rate) {
        // Unequal shards can need more trees than there are channels.
        Err(ForestError::Pack(_) | ForestError::Coarse) => {
            in_two_phases(forests, &vec![1; graph.ranks], rate)
        }
        other => other,
    };
    let (reduce, spread) = found?;
    let algbw = in_sequence(reduce.algbw, spread.algbw);
    Ok(AllReduceForest { reduce, spread, overlapped: false, algbw, bound })
}

/// Trees towards the ranks and trees from them, for shards of these sizes.
fn in_two_phases(
    forests: &mut Forests<'_>,
    weights: &[u64],
    rate: Fraction,
) -> Result<(Forest, Forest), ForestError> {
    if forests.is_symmetric() {
        let spread = forests.spread(weights, rate + rate)?;
        return Ok((spread.reversed(), spread));
    }
    let spread = forests.spread(weights, Fraction::ZERO)?;
    let reduce = forests.collect(weights, Fraction::ZERO)?;
    Ok(paired(&reduce, &spread))
}

/// Rate of two phases one after the other.
fn in_sequence(a: Fraction, b: Fraction) -> Fraction {
    a * b / (a + b)
}

/// What shards of these sizes allow.
fn rate_of(graph: &FlowGraph, symmetric: bool, weights: &[u64]) -> Result<Fraction, BoundError> {
    let total = Fraction::of(weights.iter().sum(), 1);
    let spread = total / bottleneck(graph, weights)?.ratio;
    let reduce =
        if symmetric { spread } else { total / bottleneck(&graph.reversed(), weights)?.ratio };
    Ok(in_sequence(reduce, spread))
}

/// Whole shard sizes for reduce-scatter and all-gather in sequence, and the best rate of any; theirs is it or close.
fn shard_weights(
    graph: &FlowGraph,
    symmetric: bool,
    bound: Fraction,
) -> Result<(Vec<u64>, Fraction), BoundError> {
    let uniform = vec![1; graph.ranks];
    let rate = rate_of(graph, symmetric, &uniform)?;
    let mut best = (uniform, rate);
    if rate == bound {
        return Ok(best);
    }
    for even in [EVEN, 0.0] {
        let Some((shares, hoped)) = ShareProgram::new(graph, symmetric, bound).solve(even) else {
            continue;
        };
        let mut found = vec![best];
        for weights in whole_weights(&shares) {
            let rate = rate_of(graph, symmetric, &weights)?;
            found.push((weights, rate));
        }
        best = simplest(found);
        if best.1 == bound || best.1.to_f64() >= hoped * bound.to_f64() * (1.0 - 1e-6) {
            break;
        }
    }
    Ok(best)
}

/// The linear program over shares: minimise the sum of both phases' times, and a little the unevenness.
struct ShareProgram {
    /// The graph, and the graph turned round unless that is the same.
    graphs: Vec<FlowGraph>,
    networks: Vec<SourceNetwork>,
    /// Which graph, the ranks inside, the capacity that leaves over the bound.
    cuts: Vec<(usize, Vec<bool>, f64)>,
    bound: f64,
}

impl ShareProgram {
    fn new(graph: &FlowGraph, symmetric: bool, bound: Fraction) -> Self {
        let mut graphs = vec![graph.clone()];
        if !symmetric {
            graphs.push(graph.reversed());
        }
        let networks = graphs.iter().map(SourceNetwork::new).collect();
        let mut program = Self { graphs, networks, cuts: Vec::new(), bound: bound.to_f64() };
        for direction in 0..program.graphs.len() {
            for v in 0..graph.ranks {
                for inside in [true, false] {
                    let side: Vec<bool> = (0..graph.nodes).map(|x| (x == v) == inside).collect();
                    program.add(direction, &side);
                }
            }
        }
        program
    }

    /// Adds a cut; whether it is new.
    fn add(&mut self, direction: usize, side: &[bool]) -> bool {
        let graph = &self.graphs[direction];
        let ranks = side[..graph.ranks].to_vec();
        let capacity = Fraction::of(Cut::leaving(graph, side).capacity, 1).to_f64() / self.bound;
        if self.cuts.iter().any(|c| c.0 == direction && c.1 == ranks && c.2 <= capacity) {
            return false;
        }
        self.cuts.push((direction, ranks, capacity));
        true
    }

    /// Shares by rank, and the rate they promise as part of the bound.
    fn solve(&mut self, even: f64) -> Option<(Vec<f64>, f64)> {
        let n = self.graphs[0].ranks;
        for _ in 0..MAX_ROUNDS {
            let optimum = self.program(even).maximise(MAX_PIVOTS).ok()?;
            let times = optimum.primal[n..n + self.graphs.len()].to_vec();
            let shares = optimum.primal[..n].to_vec();
            let mut found = false;
            for (direction, &time) in times.iter().enumerate() {
                for side in self.violated(direction, &shares, time) {
                    found |= self.add(direction, &side);
                }
            }
            if !found {
                let time: f64 = if times.len() == 1 { 2.0 * times[0] } else { times.iter().sum() };
                return Some((shares, 1.0 / time));
            }
        }
        None
    }

    /// Columns: a share per rank, a time per direction, the largest distance of a share from 1/N.
    fn program(&self, even: f64) -> LinearProgram {
        let (n, directions) = (self.graphs[0].ranks, self.graphs.len());
        let fair = 1.0 / whole(n).to_f64();
        let mut rows = vec![(Relation::Eq, 1.0)];
        rows.extend((0..n).flat_map(|_| [(Relation::Le, fair), (Relation::Ge, fair)]));
        rows.extend(self.cuts.iter().map(|_| (Relation::Le, 0.0)));
        let mut lp = LinearProgram::new(rows);
        let first = 1 + 2 * n;
        for v in 0..n {
            let inside = self.cuts.iter().enumerate().filter(|(_, c)| c.1[v]);
            let entries = [(0, 1.0), (1 + 2 * v, 1.0), (2 + 2 * v, 1.0)];
            lp.add_column(0.0, entries.into_iter().chain(inside.map(|(i, _)| (first + i, 1.0))));
        }
        let phases = if directions == 1 { 2.0 } else { 1.0 };
        for direction in 0..directions {
            let cuts = self.cuts.iter().enumerate().filter(|(_, c)| c.0 == direction);
            lp.add_column(-phases, cuts.map(|(i, c)| (first + i, -c.2)));
        }
        lp.add_column(-even, (0..n).flat_map(|v| [(1 + 2 * v, -1.0), (2 + 2 * v, 1.0)]));
        lp
    }

    /// A minimum cut per rank that cannot be sent everything in this time.
    fn violated(&mut self, direction: usize, shares: &[f64], time: f64) -> Vec<Vec<bool>> {
        /// Units of the rounded network: fine enough for shares, coarse enough for sums.
        const UNITS: f64 = (1_u64 << 36) as f64;
        let (graph, net) = (&self.graphs[direction], &mut self.networks[direction]);
        for (&id, edge) in net.edges.iter().zip(&graph.edges) {
            let capacity = Fraction::of(edge.capacity, 1).to_f64() / self.bound * time;
            net.network.set_capacity(id, to_units(capacity * UNITS) + 1);
        }
        net.supply = 0;
        for (&id, &share) in net.supplies.iter().zip(shares) {
            let supply = to_units(share * UNITS);
            net.network.set_capacity(id, supply);
            net.supply += supply;
        }
        let enough = net.supply - net.supply / 10_000_000;
        let mut served = Served::new(&net.network, net.source, enough);
        let mut sides = Vec::new();
        for v in 0..graph.ranks {
            if served.shortage(&mut net.network, v).is_some() {
                let mut side = served.side(&mut net.network);
                side.truncate(graph.nodes);
                if !sides.contains(&side) {
                    sides.push(side);
                }
            }
        }
        sides
    }
}

#[expect(clippy::cast_possible_truncation, reason = "values are positive and scaled below 2^50")]
fn to_units(x: f64) -> i64 {
    (x + 0.5) as i64
}

/// The best rate, and the shares that have it; or smaller numbers close to it, where those are so large that they would need
/// many trees.
fn simplest(mut found: Vec<(Vec<u64>, Fraction)>) -> (Vec<u64>, Fraction) {
    let total = |weights: &[u64]| weights.iter().sum::<u64>();
    let small = |weights: &[u64]| total(weights) <= 16 * count(weights.len());
    let best = found.iter().map(|f| f.1).max().unwrap_or(Fraction::ZERO);
    let close = best * Fraction::of(CLOSE.0, CLOSE.1);
    found.retain(|f| f.1 == best || (small(&f.0) && f.1 >= close));
    // Small and exact, small and close, exact.
    found.sort_by_key(|f| (!small(&f.0), f.1 != best, total(&f.0)));
    (found.swap_remove(0).0, best)
}

/// Whole numbers in proportion to the shares: exactly where a small common denominator allows, and on coarser and finer grids.
fn whole_weights(shares: &[f64]) -> Vec<Vec<u64>> {
    let at = |denominator: u32| -> Vec<u64> {
        shares.iter().map(|&s| to_units(s * f64::from(denominator)).unsigned_abs()).collect()
    };
    let near = |denominator: &u32| {
        shares.iter().all(|&s| {
            let x = s * f64::from(*denominator);
            (x - Fraction::of(to_units(x).unsigned_abs(), 1).to_f64()).abs() < 1e-5
        })
    };
    let exact = (1..=MAX_DENOMINATOR).find(near);
    let n = u32::try_from(shares.len()).unwrap_or(MAX_DENOMINATOR);
    let grids = [n, 2 * n, 3 * n, 4 * n, 8 * n, 12 * n, 16 * n, MAX_DENOMINATOR];
    let mut found: Vec<Vec<u64>> = exact.into_iter().chain(grids).map(at).collect();
    found.retain(|weights| weights.iter().any(|&w| w > 0));
    found
}

/// Spanning trees of a symmetric switch-free graph that fill its links with both directions of an all-reduce.
fn overlapped(graph: &FlowGraph, bound: Fraction) -> Option<Forest> {
    if graph.nodes > graph.ranks && graph.edges.iter().any(|e| e.from.max(e.to) >= graph.ranks) {
        return None;
    }
    let links: Vec<(usize, usize, u64)> =
        graph.edges.iter().filter(|e| e.from < e.to).map(|e| (e.from, e.to, e.capacity)).collect();
    let size = bound.to_f64();
    let rows = links.iter().map(|l| (Relation::Le, Fraction::of(l.2, 1).to_f64() / size));
    let mut lp = LinearProgram::new(rows);
    let mut trees: Vec<Vec<usize>> = Vec::new();
    let mut prices: Vec<f64> = links.iter().map(|l| size / Fraction::of(l.2, 1).to_f64()).collect();
    let mut optimum: Option<Optimum> = None;
    for _ in 0..8 * MAX_ROUNDS {
        let tree = cheapest_tree(graph.ranks, &links, &prices)?;
        let cost: f64 = tree.iter().map(|&i| prices[i]).sum();
        if optimum.is_some() && cost >= 1.0 - 1e-9 {
            break;
        }
        lp.add_column(1.0, tree.iter().map(|&i| (i, 1.0)));
        trees.push(tree);
        let found = lp.maximise(MAX_PIVOTS).ok()?;
        prices.clone_from(&found.dual);
        optimum = Some(found);
    }
    let optimum = optimum?;
    let shares: Vec<f64> = optimum.primal.iter().map(|x| x / optimum.objective).collect();
    whole_weights(&shares)
        .into_iter()
        .map(|weights| grown(graph.ranks, &links, &trees, &weights))
        .max_by_key(|forest| forest.algbw)
}

/// Kruskal's spanning tree of least total price, as link numbers.
fn cheapest_tree(
    ranks: usize,
    links: &[(usize, usize, u64)],
    prices: &[f64],
) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = (0..links.len()).collect();
    order.sort_by(|&a, &b| prices[a].total_cmp(&prices[b]).then(a.cmp(&b)));
    let mut part: Vec<usize> = (0..ranks).collect();
    let mut tree = Vec::new();
    for i in order {
        let (a, b) = (part[links[i].0], part[links[i].1]);
        if a != b {
            part.iter_mut().filter(|p| **p == b).for_each(|p| *p = a);
            tree.push(i);
        }
    }
    (tree.len() + 1 == ranks).then_some(tree)
}

/// Roots the trees where they are lowest and sets the rate at which the fullest link is just full.
fn grown(
    ranks: usize,
    links: &[(usize, usize, u64)],
    trees: &[Vec<usize>],
    weights: &[u64],
) -> Forest {
    let mut load = vec![0_u64; links.len()];
    for (tree, &weight) in trees.iter().zip(weights) {
        tree.iter().for_each(|&i| load[i] += weight);
    }
    let rates = links.iter().zip(&load).filter(|(_, l)| **l > 0);
    let unit = rates.map(|(link, &l)| Fraction::of(link.2, l)).min().unwrap_or(Fraction::ZERO);
    let mut by_shape: BTreeMap<(usize, Vec<(usize, usize)>), u64> = BTreeMap::new();
    for (tree, &weight) in trees.iter().zip(weights).filter(|(_, w)| **w > 0) {
        let ends: Vec<(usize, usize)> = tree.iter().map(|&i| (links[i].0, links[i].1)).collect();
        let shapes = (0..ranks).map(|root| away_from(root, &ends, ranks));
        if let Some((_, root, edges)) = shapes.min_by_key(|s| (s.0, s.1)) {
            *by_shape.entry((root, edges)).or_insert(0) += weight;
        }
    }
    let direct = |&(from, to): &(usize, usize)| TreeEdge {
        from,
        to,
        paths: vec![TreePath { via: Vec::new(), share: Fraction::ONE }],
    };
    let trees: Vec<Tree> = by_shape
        .iter()
        .map(|((root, edges), &weight)| Tree {
            root: *root,
            weight,
            edges: edges.iter().map(direct).collect(),
        })
        .collect();
    let total: u64 = trees.iter().map(|t| t.weight).sum();
    Forest { trees, unit, algbw: unit * Fraction::of(total, 1) }
}

/// The tree's edges breadth first from a root, and its height.
fn away_from(
    root: usize,
    ends: &[(usize, usize)],
    ranks: usize,
) -> (usize, usize, Vec<(usize, usize)>) {
    let mut depth = vec![None; ranks];
    depth[root] = Some(0);
    let mut queue = vec![root];
    let mut edges = Vec::new();
    let mut next = 0;
    let mut height = 0;
    while let Some(&x) = queue.get(next) {
        next += 1;
        for &(a, b) in ends {
            let y = if a == x { b } else { a };
            if (a == x || b == x) && depth[y].is_none() {
                height = depth[x].unwrap_or(0) + 1;
                depth[y] = Some(height);
                edges.push((x, y));
                queue.push(y);
            }
        }
    }
    (height, root, edges)
}

/// Cuts the trees of two forests with equal shares per root into pieces that correspond.
fn paired(reduce: &Forest, spread: &Forest) -> (Forest, Forest) {
    let total = |forest: &Forest| forest.trees.iter().map(|t| u128::from(t.weight)).sum::<u128>();
    let (a, b) = (total(reduce), total(spread));
    let common = num_integer::lcm(a, b);
    let mut pieces: Vec<(u128, Tree, Tree)> = Vec::new();
    let mut roots: Vec<usize> = spread.trees.iter().map(|t| t.root).collect();
    roots.sort_unstable();
    roots.dedup();
    for root in roots {
        let queue = |forest: &Forest, scale: u128| -> Vec<(u128, Tree)> {
            let trees = forest.trees.iter().filter(|t| t.root == root);
            trees.map(|t| (u128::from(t.weight) * scale, t.clone())).collect()
        };
        let mut up = queue(reduce, common / a).into_iter().peekable();
        let mut down = queue(spread, common / b).into_iter().peekable();
        while let (Some(x), Some(y)) = (up.peek_mut(), down.peek_mut()) {
            let part = x.0.min(y.0);
            pieces.push((part, x.1.clone(), y.1.clone()));
            x.0 -= part;
            y.0 -= part;
            let (x, y) = (x.0, y.0);
            up.next_if(|_| x == 0);
            down.next_if(|_| y == 0);
        }
    }
    let unit = pieces.iter().fold(0, |g, p| num_integer::gcd(g, p.0)).max(1);
    let parts = Fraction::new(i128::try_from(common / unit).unwrap_or(i128::MAX), 1)
        .unwrap_or(Fraction::ONE);
    let forest = |algbw: Fraction, tree: &dyn Fn(&(u128, Tree, Tree)) -> Tree| Forest {
        trees: pieces
            .iter()
            .map(|piece| {
                let weight = u64::try_from(piece.0 / unit).unwrap_or(u64::MAX);
                Tree { weight, ..tree(piece) }
            })
            .collect(),
        unit: algbw / parts,
        algbw,
    };
    (forest(reduce.algbw, &|p| p.1.clone()), forest(spread.algbw, &|p| p.2.clone()))
}

/// The largest number of trees with one root that a forest of pieces may have is a limit on both of its parts.
#[must_use]
pub fn channels(forest: &AllReduceForest) -> usize {
    forest.spread.channels().max(forest.reduce.channels())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forest::tests::certify;
    use crate::forest::{MAX_CHANNELS, add_loads};
    use crate::test_graphs::{bars, connected_graph, duplex, graph, star};
    use proptest::prelude::*;

    #[track_caller]
    fn certify_all_reduce(g: &FlowGraph, found: &AllReduceForest) {
        certify(g, &found.reduce, true);
        certify(g, &found.spread, false);
        assert!(found.algbw <= found.bound.algbw);
        let total = |f: &Forest| f.trees.iter().map(|t| t.weight).sum::<u64>();
        assert_eq!(total(&found.reduce), total(&found.spread));
        for (up, down) in found.reduce.trees.iter().zip(&found.spread.trees) {
            assert_eq!((up.root, up.weight), (down.root, down.weight));
        }
        if found.overlapped {
            assert_eq!((found.algbw, found.reduce.algbw), (found.spread.algbw, found.spread.algbw));
            let mut loads = found.spread.loads();
            for tree in &found.reduce.trees {
                add_loads(
                    &mut loads,
                    &tree.edges,
                    Fraction::of(tree.weight, 1) * found.reduce.unit,
                );
            }
            for e in &g.edges {
                let load = loads.get(&(e.from, e.to)).copied().unwrap_or(Fraction::ZERO);
                assert!(load <= Fraction::of(e.capacity, 1));
            }
        } else {
            assert_eq!(found.algbw, in_sequence(found.reduce.algbw, found.spread.algbw));
        }
    }

    #[track_caller]
    fn check(g: &FlowGraph, p: i128, q: i128) -> AllReduceForest {
        let found = all_reduce(g, &ForestOptions::default()).unwrap();
        certify_all_reduce(g, &found);
        assert_eq!((found.algbw, found.is_optimal()), (Fraction::new(p, q).unwrap(), true));
        found
    }

    #[test]
    fn equal_ranks_share_equally() {
        let found = check(&star(8, 300), 1200, 7);
        assert!(found.spread.trees.iter().all(|t| t.weight == 1));
    }

    #[test]
    fn a_weak_rank_owns_less() {
        // One GPU of eight at half its links.
        let links: Vec<_> = (0..8).map(|v| (v, 8, if v == 0 { 150 } else { 300 })).collect();
        check(&duplex(8, 9, &links), 150, 1);
        // A leaf behind a thin link owns half: what enters over that link, it also sends.
        check(&duplex(3, 3, &[(0, 1, 10), (1, 2, 1)]), 1, 1);
    }

    /// Two triangles on one side, no shares reach the bound and overlapped trees do.
    #[test]
    fn overlapped_trees_where_shares_do_not_reach() {
        let g = duplex(4, 4, &[(0, 1, 2), (1, 2, 1), (0, 2, 1), (2, 3, 1), (1, 3, 1)]);
        let found = all_reduce(&g, &ForestOptions::default()).unwrap();
        certify_all_reduce(&g, &found);
        assert!(found.is_optimal(), "{} of {}", found.algbw, found.bound.algbw);
    }

    #[test]
    fn one_way_links_are_paired() {
        let g = graph(3, 3, &[(0, 1, 3), (1, 2, 4), (2, 0, 5), (1, 0, 1)]);
        let found = all_reduce(&g, &ForestOptions::default()).unwrap();
        certify_all_reduce(&g, &found);
        assert!(channels(&found) <= 2 * MAX_CHANNELS);
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "the table is what one wants to see of this test")]
    fn bars_are_reached() {
        let mut short = Vec::new();
        for case in bars().into_iter().flatten() {
            let found = all_reduce(&case.graph, &ForestOptions::default()).unwrap();
            certify_all_reduce(&case.graph, &found);
            let part = found.algbw.to_f64() / case.all_reduce;
            let shape = (found.spread.height(), channels(&found), found.spread.trees.len());
            let way = if found.overlapped { "overlapped" } else { "in sequence" };
            if part < 0.99 || shape.1 > MAX_CHANNELS {
                short.push((case.name.clone(), part, shape));
            }
            std::println!(
                "{:40} {part:.4} of the optimum {way}, proved {}, height {}, channels {}, trees {}",
                case.name,
                found.is_optimal(),
                shape.0,
                shape.1,
                shape.2
            );
        }
        assert!(short.is_empty(), "{short:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_graph_gets_a_plan_within_its_bound(g in connected_graph(6, 3)) {
            let found = all_reduce(&g, &ForestOptions::default()).unwrap();
            certify_all_reduce(&g, &found);
            let uniform = rate_of(&g, g.is_symmetric(), &vec![1; g.ranks]).unwrap();
            if g.is_symmetric() {
                prop_assert!(found.algbw >= uniform * Fraction::of(99, 100));
            }
        }

        /// Nash-Williams and Tutte: without switches and with equal directions the bound is always reached.
        #[test]
        fn symmetric_meshes_reach_the_bound(g in connected_graph(6, 0)) {
            let symmetric = FlowGraph::new(g.ranks, g.nodes, g.edges.iter().chain(&g.reversed().edges).copied());
            let found = all_reduce(&symmetric, &ForestOptions::default()).unwrap();
            certify_all_reduce(&symmetric, &found);
            let near = found.bound.algbw * Fraction::of(99, 100);
            prop_assert!(found.algbw >= near, "{} of {}", found.algbw, found.bound.algbw);
        }
    }

    #[test]
    fn shares_become_whole() {
        assert_eq!(whole_weights(&[0.25, 0.5, 0.25])[0], [1, 2, 1]);
        assert_eq!(whole_weights(&[1.0 / 3.0, 2.0 / 3.0, 0.0])[0], [1, 2, 0]);
        let fine = &whole_weights(&[0.5_f64.sqrt() / 2.0, 1.0 - 0.5_f64.sqrt() / 2.0]);
        assert_eq!(fine.len(), 8);
    }
}
