//! The all-to-all bound: every rank sends an equal part to every other at once (maximum concurrent flow).
//!
//! A certificate is a length for every edge. However data is routed, a byte from s to t uses at least dist(s, t) of length,
//! and all edges together offer Σ capacity · length a second:
//!
//! ```text
//!   rate per pair  ≤  Σ b_e · l_e  /  Σ over pairs dist(s, t)
//! ```
//!
//! Any lengths prove a bound, and by LP duality the right ones prove the exact one. They come from a linear program over
//! routings: one row per edge and one per source, one column per tree of shortest paths, added while it improves. Lengths are
//! then rounded to integers and the bound is computed from those exactly.
//!
//! Ranks and edges that are alike need but one row together ([`Symmetry`]): by convexity some best routing treats them alike.

use alloc::vec;
use alloc::vec::Vec;

use topology::Fraction;

use crate::bound::{BoundError, bottleneck, count, whole};
use crate::flow_graph::{FlowEdge, FlowGraph};
use crate::network::Network;
use crate::simplex::{LinearProgram, Relation};
use crate::symmetry::Symmetry;

/// A proved upper bound on all-to-all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllToAllBound {
    /// N parts per second and rank, the own one counted as in nccl-tests, in the graph's unit of capacity.
    pub algbw: Fraction,
    /// The edges with a length above zero: what limits, weighed.
    pub lengths: Vec<(FlowEdge, u64)>,
    /// Whether a routing reaches it, up to rounding of one part in a million. Otherwise the program was too large and
    /// the lengths are a guess: the bound holds but may be loose.
    pub reached: bool,
}

/// Largest number of rows (edges and ranks) for which the linear program is solved.
const MAX_ROWS: usize = 260;
/// Rounds of column generation, and of length updates where the program is too large.
const MAX_ROUNDS: usize = 120;
/// Pivots over all rounds.
const MAX_PIVOTS: u64 = 20_000;
/// Relative gap at which a bound counts as reached.
const GAP: f64 = 1e-6;

/// All-to-all: every rank sends 1/N of its buffer to every rank.
///
/// # Errors
/// [`BoundError`].
pub fn all_to_all(graph: &FlowGraph) -> Result<AllToAllBound, BoundError> {
    // It finds a missing connection and refuses capacities beyond exact arithmetic.
    bottleneck(graph, &vec![1; graph.ranks])?;
    let mut router = Router::new(graph);
    let (lengths, reached) = if router.orbits.len() + router.sources.len() <= MAX_ROWS {
        router.solve()
    } else {
        (router.guess(), 0.0)
    };
    let mut best: Option<(Fraction, Vec<u64>)> = None;
    for candidate in integer_lengths(&lengths) {
        if let Some(bound) = certified(graph, &candidate)
            && best.as_ref().is_none_or(|(least, _)| bound < *least)
        {
            best = Some((bound, candidate));
        }
    }
    let (algbw, lengths) = best.ok_or(BoundError::TooLarge)?;
    let reached =
        reached * router.unit * whole(graph.ranks).to_f64() >= algbw.to_f64() * (1.0 - GAP);
    let lengths = graph.edges.iter().copied().zip(lengths).filter(|&(_, l)| l > 0).collect();
    Ok(AllToAllBound { algbw, lengths, reached })
}

/// Shortest-path routings on edge lengths that change.
struct Router<'a> {
    graph: &'a FlowGraph,
    /// A rank of each orbit.
    sources: Vec<usize>,
    /// Ranks of each orbit.
    alike: f64,
    /// By edge.
    orbit_of: Vec<usize>,
    /// Edges of each orbit, and the capacity of one in units of the largest.
    orbits: Vec<(f64, f64)>,
    /// Edges out of each node.
    out: Vec<Vec<usize>>,
    unit: f64,
    distance: Vec<f64>,
    hops: Vec<usize>,
    by: Vec<usize>,
    order: Vec<usize>,
    load: Vec<f64>,
}

impl<'a> Router<'a> {
    fn new(graph: &'a FlowGraph) -> Self {
        let mut out = vec![Vec::new(); graph.nodes];
        for (i, e) in graph.edges.iter().enumerate() {
            out[e.from].push(i);
        }
        let largest = graph.edges.iter().map(|e| e.capacity).max().unwrap_or(1);
        let unit = Fraction::of(largest, 1).to_f64();
        let network = Network::unfolded(graph);
        let symmetry = Symmetry::of(&network);
        let (orbit_of, sizes) = symmetry.pool_orbits(&network);
        let mut orbits: Vec<(f64, f64)> = sizes.iter().map(|&n| (whole(n).to_f64(), 0.0)).collect();
        for (e, &orbit) in graph.edges.iter().zip(&orbit_of) {
            orbits[orbit].1 = Fraction::of(e.capacity, largest).to_f64();
        }
        Self {
            graph,
            alike: whole(symmetry.order()).to_f64(),
            sources: symmetry.representatives,
            orbit_of,
            orbits,
            out,
            unit,
            distance: vec![0.0; graph.nodes],
            hops: vec![0; graph.nodes],
            by: vec![0; graph.nodes],
            order: Vec::new(),
            load: vec![0.0; graph.edges.len()],
        }
    }

    /// Routes one unit from `source` to every other rank by shortest paths, fewest hops among equals. Leaves the use of each
    /// edge in `load` and returns the sum of the distances.
    fn route(&mut self, source: usize, lengths: &[f64]) -> f64 {
        let nodes = self.graph.nodes;
        self.distance.fill(f64::INFINITY);
        self.hops.fill(usize::MAX);
        self.distance[source] = 0.0;
        self.hops[source] = 0;
        self.order.clear();
        let mut done = vec![false; nodes];
        loop {
            let mut nearest: Option<usize> = None;
            for v in (0..nodes).filter(|&v| !done[v] && self.distance[v] < f64::INFINITY) {
                let key = |v: usize| (self.distance[v], self.hops[v]);
                if nearest.is_none_or(|other| key(v) < key(other)) {
                    nearest = Some(v);
                }
            }
            let Some(v) = nearest else { break };
            done[v] = true;
            self.order.push(v);
            for &i in &self.out[v] {
                let to = self.graph.edges[i].to;
                let key = (self.distance[v] + lengths[i], self.hops[v] + 1);
                if !done[to] && key < (self.distance[to], self.hops[to]) {
                    (self.distance[to], self.hops[to]) = key;
                    self.by[to] = i;
                }
            }
        }
        self.load.fill(0.0);
        let mut below = vec![0.0; nodes];
        let mut total = 0.0;
        for &v in self.order.iter().skip(1).rev() {
            if v < self.graph.ranks {
                below[v] += 1.0;
                total += self.distance[v];
            }
            let i = self.by[v];
            self.load[i] += below[v];
            below[self.graph.edges[i].from] += below[v];
        }
        total
    }

    /// Use of each edge of an orbit by what one source and all like it send along the way last found.
    fn uses(&self) -> Vec<f64> {
        let mut uses = vec![0.0; self.orbits.len()];
        for (&orbit, &load) in self.orbit_of.iter().zip(&self.load) {
            uses[orbit] += load * self.alike / self.orbits[orbit].0;
        }
        uses
    }

    /// What all edges together offer at these lengths by orbit.
    fn offered(&self, lengths: &[f64]) -> f64 {
        self.orbits.iter().zip(lengths).map(|((edges, c), l)| edges * c * l).sum()
    }

    /// Lengths by edge.
    fn by_edge(&self, lengths: &[f64]) -> Vec<f64> {
        self.orbit_of.iter().map(|&orbit| lengths[orbit]).collect()
    }

    /// Lengths by edge from the linear program, and the rate per pair its routing reaches in units.
    fn solve(&mut self) -> (Vec<f64>, f64) {
        let (rows, sources) = (self.orbits.len(), self.sources.clone());
        let edges = self.orbits.iter().map(|&(_, c)| (Relation::Le, c));
        let mut lp = LinearProgram::new(edges.chain(sources.iter().map(|_| (Relation::Le, 0.0))));
        // The rate per pair, which no source's routings together may fall short of.
        lp.add_column(1.0, (0..sources.len()).map(|s| (rows + s, 1.0)));
        let mut lengths: Vec<f64> = self.orbits.iter().map(|(_, c)| 1.0 / c).collect();
        let mut prices = vec![f64::INFINITY; sources.len()];
        let mut best = (lengths.clone(), f64::INFINITY);
        let mut reached = 0.0;
        let mut pivots = MAX_PIVOTS;
        for _ in 0..MAX_ROUNDS {
            let offered = self.offered(&lengths);
            let mut needed = 0.0;
            let mut improved = false;
            let by_edge = self.by_edge(&lengths);
            for (place, (&source, &price)) in sources.iter().zip(&prices).enumerate() {
                let cost = self.route(source, &by_edge) * self.alike;
                needed += cost;
                if cost < price - 1e-10 {
                    improved = true;
                    let used = self.uses().into_iter().enumerate().filter(|u| u.1 > 0.0);
                    lp.add_column(0.0, used.chain([(rows + place, -1.0)]));
                }
            }
            if needed > 0.0 && offered / needed < best.1 {
                best = (lengths.clone(), offered / needed);
            }
            if !improved || best.1 <= reached * (1.0 + 1e-10) {
                break;
            }
            let Ok(optimum) = lp.maximise(pivots) else { break };
            pivots -= optimum.pivots;
            reached = optimum.objective;
            // What the program says of an orbit is said of one of its edges.
            let positive =
                |(y, orbit): (&f64, &(f64, f64))| if *y > 0.0 { y / orbit.0 } else { 0.0 };
            let duals = optimum.dual[..rows].iter().zip(&self.orbits);
            lengths = duals.map(positive).collect();
            prices = optimum.dual[rows..].to_vec();
        }
        (self.by_edge(&best.0), reached)
    }

    /// Lengths for graphs beyond the program: edges that shortest paths overload become longer.
    fn guess(&mut self) -> Vec<f64> {
        let mut lengths: Vec<f64> = self.orbits.iter().map(|(_, c)| 1.0 / c).collect();
        let mut best = (lengths.clone(), f64::INFINITY);
        let mut use_of = vec![0.0; lengths.len()];
        for _ in 0..MAX_ROUNDS / 4 {
            use_of.fill(0.0);
            let mut needed = 0.0;
            let by_edge = self.by_edge(&lengths);
            for source in self.sources.clone() {
                needed += self.route(source, &by_edge) * self.alike;
                use_of.iter_mut().zip(self.uses()).for_each(|(sum, u)| *sum += u);
            }
            let offered = self.offered(&lengths);
            if offered / needed < best.1 {
                best = (lengths.clone(), offered / needed);
            }
            let congestion = |(u, orbit): (&f64, &(f64, f64))| u / orbit.1;
            let worst = use_of.iter().zip(&self.orbits).map(congestion).fold(0.0, f64::max);
            for (length, pair) in lengths.iter_mut().zip(use_of.iter().zip(&self.orbits)) {
                *length *= 1.0 + congestion(pair) / worst;
            }
            let sum: f64 = lengths.iter().sum();
            lengths.iter_mut().for_each(|l| *l /= sum);
        }
        self.by_edge(&best.0)
    }
}

/// Integer lengths near the given ones: multiples of the least that all but vanish in rounding, and a fine grid.
fn integer_lengths(lengths: &[f64]) -> Vec<Vec<u64>> {
    let largest = lengths.iter().copied().fold(0.0, f64::max);
    let least = lengths.iter().copied().filter(|&l| l > largest * 1e-6).fold(largest, f64::min);
    let scaled = |factor: f64| -> Vec<u64> { lengths.iter().map(|&l| round(l * factor)).collect() };
    let mut candidates = Vec::new();
    for multiple in 1..=60_u32 {
        let factor = f64::from(multiple) / least;
        let rounded = scaled(factor);
        let near = lengths
            .iter()
            .zip(&rounded)
            .all(|(&l, &r)| (l * factor - Fraction::of(r, 1).to_f64()).abs() < 1e-4);
        if near {
            candidates.push(rounded);
            break;
        }
    }
    candidates.push(scaled(1e6 / largest));
    candidates
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths are positive and scaled to at most some millions"
)]
fn round(x: f64) -> u64 {
    (x + 0.5) as u64
}

/// The bound that the lengths prove; `None` where they prove none.
fn certified(graph: &FlowGraph, lengths: &[u64]) -> Option<Fraction> {
    let offered =
        graph.edges.iter().zip(lengths).try_fold(0_i128, |sum, (e, &l)| {
            sum.checked_add(i128::from(e.capacity) * i128::from(l))
        })?;
    let mut out = vec![Vec::new(); graph.nodes];
    for (e, &l) in graph.edges.iter().zip(lengths) {
        out[e.from].push((e.to, l));
    }
    let mut needed = 0_i128;
    for source in 0..graph.ranks {
        let mut distance = vec![u64::MAX; graph.nodes];
        let mut done = vec![false; graph.nodes];
        distance[source] = 0;
        while let Some(v) = (0..graph.nodes)
            .filter(|&v| !done[v] && distance[v] < u64::MAX)
            .min_by_key(|&v| distance[v])
        {
            done[v] = true;
            for &(to, l) in &out[v] {
                distance[to] = distance[to].min(distance[v].saturating_add(l));
            }
        }
        needed += distance[..graph.ranks].iter().map(|&d| i128::from(d)).sum::<i128>();
    }
    let n = i128::from(count(graph.ranks));
    offered.checked_mul(n).and_then(|offered| Fraction::new(offered, needed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::Cut;
    use crate::test_graphs::{bars, connected_graph, dgx1v, duplex, graph, published, rails, star};
    use proptest::prelude::*;

    #[track_caller]
    fn check(g: &FlowGraph, p: i128, q: i128) {
        let bound = all_to_all(g).unwrap();
        assert_eq!((bound.algbw, bound.reached), (Fraction::new(p, q).unwrap(), true));
    }

    #[test]
    fn small_graphs() {
        check(&star(4, 3), 4, 1);
        check(&dgx1v(), 3, 1);
        check(&rails(2, 4, 12, 1), 2, 1);
        // A directed ring: the distances add up to 1 + 2 per rank.
        check(&graph(3, 3, &[(0, 1, 2), (1, 2, 2), (2, 0, 2)]), 2, 1);
        assert!(all_to_all(&graph(2, 2, &[(0, 1, 1)])).is_err());
    }

    #[test]
    fn a_program_too_large_still_gives_a_bound() {
        // Ranks alike need one row, so the same number of unlike ones.
        let unlike = |v: usize| if v == 0 { 199 } else { 199 + count(v) };
        let links: Vec<_> = (0..150).map(|v| (v, 150, unlike(v))).collect();
        let bound = all_to_all(&duplex(150, 151, &links)).unwrap();
        assert!(!bound.reached);
        assert!(bound.algbw >= Fraction::of(199 * 150, 149), "{}", bound.algbw);
        let bound = all_to_all(&star(150, 149)).unwrap();
        assert!(bound.reached);
        assert_eq!(bound.algbw, Fraction::integer(150));
    }

    #[test]
    fn bars_are_met() {
        let Some(cases) = bars() else { return };
        for case in cases {
            let Some(bar) = case.all_to_all else { continue };
            let bound = all_to_all(&case.graph).unwrap();
            let (name, found) = (&case.name, bound.algbw.to_f64());
            assert!((found / bar - 1.0).abs() < 1e-6 && bound.reached, "{name}: {found} for {bar}");
        }
        for (name, graph, bar) in published("alltoall").into_iter().flatten() {
            let bound = all_to_all(&graph).unwrap();
            assert!(bound.algbw.to_f64() / 1e6 >= bar, "{name}: {bound:?} for {bar}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// No cut allows less than the bound, and the bound is reached.
        #[test]
        fn no_cut_is_tighter(g in connected_graph(6, 3)) {
            let bound = all_to_all(&g).unwrap();
            prop_assert!(bound.reached, "{:?}", bound);
            for set in 1..1_u32 << g.nodes {
                let side: Vec<bool> = (0..g.nodes).map(|v| set >> v & 1 == 1).collect();
                let inside = (0..g.ranks).filter(|&v| side[v]).count();
                let pairs = count(inside * (g.ranks - inside));
                if pairs > 0 {
                    let capacity = Cut::leaving(&g, &side).capacity;
                    prop_assert!(bound.algbw <= Fraction::of(capacity * count(g.ranks), pairs));
                }
            }
        }
    }
}
