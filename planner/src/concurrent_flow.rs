//! The all-to-all optimum: every rank sends an equal part to every other at once (maximum concurrent flow). Both the bound and ways that reach it.
//!
//! A certificate is a length for every edge. However data is routed, a byte from s to t uses at least dist(s, t) of length,
//! and all edges together offer Σ capacity · length a second:
//!
//! ```text
//!   rate per pair  ≤  Σ b_e · l_e  /  Σ over pairs dist(s, t)
//! ```
//!
//! Any lengths prove a bound, and by LP duality the right ones prove the exact one. They come from a linear program over
//! routings ([`program`]): one row per link and one per source, one column per tree of shortest paths, added while it improves. Lengths are
//! then rounded to integers and the bound is computed from those exactly. The rates of the trees are the routing: rounded to
//! whole parts of the data of a pair ([`ways`]), they are what a plan lists.
//!
//! Ranks and links that are alike need but one row together ([`Symmetry`]): by convexity some best routing treats them alike.
//! Edges that share one link share its length, as they share its capacity ([`Network`]).

use alloc::vec::Vec;

use topology::Fraction;

use crate::bound::{BoundError, bottleneck, whole};
use crate::flow_graph::{FlowEdge, FlowGraph};
use crate::network::Network;
use crate::pairs::Pair;
use crate::symmetry::Symmetry;
use crate::units::{simple_multiples, to_units};
use program::Program;
use ways::Rounded;

mod program;
mod ways;

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

/// The bound with ways for all pairs.
#[derive(Clone, Debug)]
pub struct ConcurrentFlow {
    /// No routing moves more.
    pub bound: AllToAllBound,
    /// What [`pairs`](Self::pairs) move, in the measure of the bound. Shares are rounded such that this is within a
    /// thousandth of what the program reaches, wherever [`AllToAllBound::reached`] says that it reaches the bound.
    pub algbw: Fraction,
    /// Ways of every pair in nodes of the graph the network was made from, by sender, then receiver.
    pub pairs: Vec<Pair>,
}

/// Relative gap at which a bound counts as reached.
const GAP: f64 = 1e-6;
/// Largest multiple tried in making all lengths whole.
const MOST_MULTIPLE: u32 = 400;
/// The grid that lengths are rounded to where no multiple does.
const GRID: f64 = 1e6;

/// All-to-all: every rank sends 1/N of its buffer to every rank.
///
/// # Errors
/// [`BoundError`].
pub fn all_to_all(graph: &FlowGraph) -> Result<AllToAllBound, BoundError> {
    let network = Network::plain(graph);
    can_exchange(&network.graph)?;
    bound_with(&network, &Symmetry::of(&network))
}

/// The bound on a network, and ways.
///
/// # Errors
/// [`BoundError`].
pub fn solve(network: &Network) -> Result<ConcurrentFlow, BoundError> {
    can_exchange(&network.graph)?;
    solve_with(network, &Symmetry::of(network))
}

/// The bound, where the network's symmetries are known.
pub(crate) fn bound_with(
    network: &Network,
    symmetry: &Symmetry,
) -> Result<AllToAllBound, BoundError> {
    can_exchange(&network.graph)?;
    bounded(&mut Program::new(network, symmetry)).map(|found| found.0)
}

/// The bound and ways, where the network's symmetries are known.
pub(crate) fn solve_with(
    network: &Network,
    symmetry: &Symmetry,
) -> Result<ConcurrentFlow, BoundError> {
    can_exchange(&network.graph)?;
    let mut program = Program::new(network, symmetry);
    let (bound, rates) = bounded(&mut program)?;
    let rounded = Rounded::best(&program, &rates).ok_or(BoundError::TooLarge)?;
    let pairs = rounded.pairs(&program);
    Ok(ConcurrentFlow { bound, algbw: rounded.rate * whole(network.graph.ranks), pairs })
}

fn can_exchange(graph: &FlowGraph) -> Result<(), BoundError> {
    if graph.ranks < 2 {
        return Err(BoundError::TooFewRanks);
    }
    if !is_connected(graph) || !is_connected(&graph.reversed()) {
        // It names the cut that is missing.
        bottleneck(graph, &alloc::vec![1; graph.ranks])?;
    }
    Ok(())
}

/// Whether the first rank reaches all others.
fn is_connected(graph: &FlowGraph) -> bool {
    let mut seen = alloc::vec![false; graph.nodes];
    seen[0] = true;
    let mut stack = alloc::vec![0];
    while let Some(node) = stack.pop() {
        let first = graph.edges.partition_point(|e| e.from < node);
        for e in graph.edges[first..].iter().take_while(|e| e.from == node) {
            if !seen[e.to] {
                seen[e.to] = true;
                stack.push(e.to);
            }
        }
    }
    seen[..graph.ranks].iter().all(|&s| s)
}

/// Solves the program: the bound, and the rates of its trees.
fn bounded(program: &mut Program<'_>) -> Result<(AllToAllBound, Vec<f64>), BoundError> {
    let mixture = program.solve();
    let mut best: Option<(Fraction, Vec<u64>)> = None;
    for candidate in integer_lengths(&mixture.lengths) {
        if let Some(rate) = program.certified(&candidate)
            && best.as_ref().is_none_or(|(least, _)| rate < *least)
        {
            best = Some((rate, candidate));
        }
    }
    let (rate, lengths) = best.ok_or(BoundError::TooLarge)?;
    let reached = mixture.reached >= rate.to_f64() * (1.0 - GAP);
    let network = program.network;
    let priced = network.graph.edges.iter().zip(&network.pool_of);
    let lengths = priced
        .map(|(e, &pool)| (*e, lengths[program.orbit_of[pool]]))
        .filter(|&(_, length)| length > 0)
        .collect();
    let algbw = rate * whole(network.graph.ranks);
    Ok((AllToAllBound { algbw, lengths, reached }, mixture.rates))
}

/// Integer lengths near the given ones: multiples of the least that all but vanish in rounding, and a fine grid.
fn integer_lengths(lengths: &[f64]) -> Vec<Vec<u64>> {
    let largest = lengths.iter().copied().fold(0.0, f64::max);
    let factor = GRID / largest;
    let grid = lengths.iter().map(|&l| to_units(l * factor)).collect();
    simple_multiples(lengths, MOST_MULTIPLE).into_iter().chain([grid]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::{Cut, count};
    use crate::pairs::tests::rate;
    use crate::test_graphs::{bars, connected_graph, dgx1v, duplex, graph, published, rails, star};
    use proptest::prelude::*;

    #[track_caller]
    fn check(g: &FlowGraph, p: i128, q: i128) {
        let found = routed(g);
        let bound = found.bound;
        assert_eq!((bound.algbw, bound.reached), (Fraction::new(p, q).unwrap(), true));
        assert_eq!(found.algbw, bound.algbw);
    }

    /// The solution, after a look at whether its ways are what it says of them: all pairs, within the bound, near it.
    #[track_caller]
    fn routed(g: &FlowGraph) -> ConcurrentFlow {
        let found = solve(&Network::plain(g)).unwrap();
        let ends: Vec<_> = found.pairs.iter().map(|pair| (pair.from, pair.to)).collect();
        let all = (0..g.ranks).flat_map(|a| (0..g.ranks).map(move |b| (a, b)));
        assert_eq!(ends, all.filter(|(a, b)| a != b).collect::<Vec<_>>());
        let counted = rate(g, &found.pairs);
        // Ways that share a forwarder's links in another proportion than the program had may be better than it knew.
        assert!(found.algbw <= counted && counted <= found.bound.algbw);
        let near = found.bound.algbw * Fraction::of(999, 1000);
        assert!(
            !found.bound.reached || found.algbw >= near,
            "{} of {}",
            found.algbw,
            found.bound.algbw
        );
        found
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
            let bound = routed(&case.graph).bound;
            let (name, found) = (&case.name, bound.algbw.to_f64());
            assert!((found / bar - 1.0).abs() < 1e-6 && bound.reached, "{name}: {found} for {bar}");
        }
        for (name, graph, bar) in published("alltoall").into_iter().flatten() {
            let found = routed(&graph);
            assert!(found.algbw.to_f64() / 1e6 >= bar, "{name}: {} for {bar}", found.algbw);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// No cut allows less than the bound, and the bound is reached.
        #[test]
        fn no_cut_is_tighter(g in connected_graph(6, 3)) {
            let bound = routed(&g).bound;
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
