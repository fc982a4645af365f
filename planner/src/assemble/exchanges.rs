//! Ways for all-to-all, gather and scatter, which come with their bounds.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use topology::{Channel, Collective, Fraction};

use super::bounds::{Limit, Prover};
use super::channels::{self, Ground};
use crate::bound::{self, BoundError};
use crate::concurrent_flow::{self, AllToAllBound};
use crate::model::{Model, Pool};
use crate::network::Network;
use crate::pairs::{self, Pair};
use crate::single_source;
use crate::symmetry::Symmetry;

/// Exchanges between all pairs are listed up to so many ranks: beyond it the list is larger than anyone reads.
pub(super) const MOST_PAIRED_RANKS: usize = 72;

/// What moves the data of an exchange.
pub(super) struct Exchange {
    pub(super) channels: Vec<Channel>,
    /// Whether ranks forward data of other pairs.
    pub(super) relayed: bool,
}

/// The bound of an exchange, and ways that reach it or come near; no ways where they are too many to list.
pub(super) fn exchange(
    prover: &Prover<'_>,
    collective: Collective,
) -> (Result<Limit, BoundError>, Option<Exchange>) {
    let model = prover.model();
    let ground = Ground::of_bound(model);
    let (limit, found) = match collective {
        Collective::AllToAll => all_to_all(prover),
        _ => rooted(model, collective),
    };
    if collective == Collective::AllToAll && model.ranks() > MOST_PAIRED_RANKS {
        return (limit, None);
    }
    let usable = found.filter(|pairs| keeps_to_links(model, pairs));
    let listed = match usable {
        Some(pairs) => Some((ground, pairs)),
        None => {
            let routed = match collective {
                Collective::Gather => pairs::route(&model.graph, |_, to| to == 0),
                Collective::Scatter => pairs::route(&model.graph, |from, _| from == 0),
                _ => pairs::route(&model.graph, |_, _| true),
            };
            routed.map(|pairs| (Ground::Usable, pairs))
        }
    };
    let exchange = listed.map(|(ground, pairs)| {
        let passed = pairs.iter().flat_map(|pair| &pair.ways).flat_map(|way| &way.via);
        let relayed = passed.into_iter().any(|node| *node < model.ranks());
        let root = (collective != Collective::AllToAll).then_some(0);
        Exchange { channels: channels::pairs(model, ground, root, &pairs), relayed }
    });
    (limit, exchange)
}

/// The bound of all-to-all alone.
pub(super) fn all_to_all_limit(prover: &Prover<'_>) -> Result<Limit, BoundError> {
    let bound = |network: &Network, symmetry: &Symmetry| {
        let bound = concurrent_flow::bound_with(network, symmetry)?;
        Ok(limit_of(prover.model(), network, &bound))
    };
    on_network(prover, bound)
}

fn all_to_all(prover: &Prover<'_>) -> (Result<Limit, BoundError>, Option<Vec<Pair>>) {
    let model = prover.model();
    if model.ranks() > MOST_PAIRED_RANKS {
        return (all_to_all_limit(prover), None);
    }
    let solved = on_network(prover, |network, symmetry| {
        let found = concurrent_flow::solve_with(network, symmetry)?;
        Ok((limit_of(model, network, &found.bound), found.pairs))
    });
    match solved {
        Ok((limit, pairs)) => (Ok(limit), Some(pairs)),
        Err(error) => (Err(error), None),
    }
}

/// Calls `work` with the model's network and its symmetries.
fn on_network<T>(prover: &Prover<'_>, work: impl Fn(&Network, &Symmetry) -> T) -> T {
    let (network, symmetry) = prover.composer().network();
    work(network, symmetry)
}

fn limit_of(model: &Model, network: &Network, bound: &AllToAllBound) -> Limit {
    let graph = model.bound_graph();
    let edges = bound.lengths.iter().flat_map(|(e, _)| network.narrowest(graph, e)).collect();
    Limit { algbw: bound.algbw, cuts: Vec::new(), edges }
}

fn rooted(model: &Model, collective: Collective) -> (Result<Limit, BoundError>, Option<Vec<Pair>>) {
    let graph = model.bound_graph();
    let solved = match collective {
        Collective::Gather => single_source::gather(graph, 0),
        _ => single_source::scatter(graph, 0),
    };
    match solved {
        Ok(found) => {
            let pairs = found.pairs(graph);
            let algbw = found.bound.algbw;
            let pairs = shares_links(model, &pairs, algbw).then_some(pairs);
            (Ok(Limit { algbw, cuts: found.bound.cuts, edges: Vec::new() }), pairs)
        }
        Err(error) => (Err(error), None),
    }
}

/// Whether pairs leave within their capacity the links that stand in the graph twice.
fn shares_links(model: &Model, pairs: &[Pair], algbw: Fraction) -> bool {
    if !model.is_relaxed() {
        return true;
    }
    let graph = model.bound_graph();
    let mut loads: BTreeMap<Pool, (u64, Fraction)> = BTreeMap::new();
    for pair in pairs {
        for way in &pair.ways {
            let mut at = pair.from;
            for &next in way.via.iter().chain([&pair.to]) {
                let Some(edge) = graph.edge(at, next) else { return false };
                let load = loads.entry(model.pool(edge)).or_insert((edge.capacity, Fraction::ZERO));
                load.1 = load.1 + way.share;
                at = next;
            }
        }
    }
    let rate = algbw / bound::whole(model.ranks());
    loads.values().all(|&(capacity, load)| load * rate <= Fraction::of(capacity, 1))
}

/// Whether ranks of one host exchange data without leaving it, where they must: bounds allow ways through other hosts.
fn keeps_to_links(model: &Model, pairs: &[Pair]) -> bool {
    let keeps =
        |pair: &Pair| pair.ways.iter().all(|way| model.may_pass(pair.from, pair.to, &way.via));
    pairs.iter().all(keeps)
}
