//! What holds for plans on any graph: random ones with switches, one-way links and uneven rates.
#![expect(clippy::print_stderr, reason = "counts are for whoever reads the test's output")]

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use topology::formats::plan_json;
use topology::snapshot::LinkGraph;
use topology::{Bandwidth, Collective, Fraction, Plan, PlanRequest, Topology, what_if};

/// Graphs looked at by each test.
const CASES: u32 = 192;

/// Strongly connected: a cycle through all nodes and more links, each way alike or one way only. Links by place, GPUs first.
fn graphs() -> impl Strategy<Value = LinkGraph> {
    (2_usize..7, 0_usize..4, any::<bool>()).prop_flat_map(|(gpus, switches, both_ways)| {
        let nodes = gpus + switches;
        let cycle = proptest::collection::vec(1_u64..20, nodes);
        let more = proptest::collection::vec((0..nodes, 0..nodes, 1_u64..20), 0..2 * nodes);
        (cycle, more).prop_map(move |(cycle, more)| {
            let around =
                cycle.into_iter().enumerate().map(|(at, rate)| (at, (at + 1) % nodes, rate));
            let links = around.chain(more.into_iter().filter(|(a, b, _)| a != b));
            let links = links.flat_map(|(a, b, rate)| {
                [(a, b, rate), (b, a, rate)].into_iter().take(if both_ways { 2 } else { 1 })
            });
            graph(gpus, switches, links)
        })
    })
}

fn graph(
    gpus: usize,
    switches: usize,
    links: impl Iterator<Item = (usize, usize, u64)>,
) -> LinkGraph {
    let name = |at: usize| if at < gpus { format!("g{at}") } else { format!("s{}", at - gpus) };
    LinkGraph {
        name: "random".into(),
        gpus: (0..gpus).map(name).collect(),
        switches: (gpus..gpus + switches).map(name).collect(),
        links: links
            .map(|(a, b, gbps)| (name(a), name(b), Bandwidth::from_mbps(1000 * gbps)))
            .collect(),
    }
}

fn machine(graph: LinkGraph) -> Topology {
    tests::bars::topology(graph).expect("a sound graph")
}

fn plan(topology: &Topology) -> Result<Plan, TestCaseError> {
    let plan = planner::plan(topology, &PlanRequest::default());
    plan.map_err(|error| TestCaseError::fail(error.to_string()))
}

fn bounds(topology: &Topology) -> Vec<(Collective, Fraction)> {
    let bounds = planner::assemble::bounds_of(topology, &PlanRequest::default());
    let bounds = bounds.expect("strongly connected graphs have bounds");
    bounds.into_iter().map(|(collective, bound)| (collective, bound.algbw_gbps)).collect()
}

/// The bound of all-to-all comes of a linear program in floating point, proved but up to one part in a million loose.
fn at_least(collective: Collective, high: Fraction, low: Fraction) -> bool {
    match collective {
        Collective::AllToAll => {
            high * Fraction::integer(1_000_001) >= low * Fraction::integer(1_000_000)
        }
        _ => high >= low,
    }
}

#[track_caller]
fn hold<S: Strategy>(strategy: S, property: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    if let Err(error) = TestRunner::new(config).run(&strategy, property) {
        panic!("{error}");
    }
}

/// Counts while a property holds.
#[derive(Default)]
struct Count(Cell<usize>);

impl Count {
    fn add(&self, more: bool) {
        self.0.set(self.0.get() + usize::from(more));
    }
}

#[test]
fn plans_lie_between_rings_and_bounds() {
    let [graphs_seen, figures, at_bound, with_rings, above_rings] =
        std::array::from_fn(|_| Count::default());
    hold(graphs(), |graph| {
        let topology = machine(graph);
        let plan = plan(&topology)?;
        graphs_seen.add(true);
        let model =
            planner::model::Model::new(&topology, &PlanRequest::default()).expect("a model");
        let bounded = planner::bounded_search::search(&model.graph, 1 << 10).total();
        for (collective, reached) in &plan.collectives {
            let bound = reached.bound.as_ref().expect("a bound").algbw_gbps;
            for candidate in &reached.candidates {
                prop_assert!(
                    at_least(*collective, bound, candidate.algbw_gbps),
                    "{collective}: {} by {} is above the bound {bound}",
                    candidate.algbw_gbps,
                    candidate.algorithm
                );
            }
            let Some(best) = &reached.best else { continue };
            figures.add(true);
            at_bound.add(best.optimal);
            if let Some(ring) = &reached.ring {
                prop_assert!(best.algbw_gbps >= ring.algbw_gbps, "{collective} below its rings");
                with_rings.add(true);
                above_rings.add(best.algbw_gbps > ring.algbw_gbps);
            }
            if *collective == Collective::AllGather {
                let n = u64::try_from(plan.ranks.len()).expect("few");
                let rings = Fraction::of(bounded * n, 1_000_000 * (n - 1));
                // Rings are preferred within a hundredth of the best.
                prop_assert!(
                    best.algbw_gbps * Fraction::integer(100) >= rings * Fraction::integer(99),
                    "{} is below the {rings} of a bounded search",
                    best.algbw_gbps
                );
            }
        }
        Ok(())
    });
    let [graphs_seen, figures, at_bound, with_rings, above_rings] =
        [graphs_seen, figures, at_bound, with_rings, above_rings].map(|count| count.0.get());
    eprintln!(
        "{graphs_seen} graphs, {figures} best figures: none above its bound, {at_bound} at it; {with_rings} beside rings: \
         none below, {above_rings} above"
    );
    assert!(at_bound * 2 > figures && above_rings > 0);
}

#[test]
fn more_capacity_never_lowers_a_bound() {
    let [compared, raised] = std::array::from_fn(|_| Count::default());
    let link =
        (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1_u64..20, any::<bool>());
    hold((graphs(), link), |(graph, (from, to, gbps, both_ways))| {
        let names: Vec<&String> = graph.gpus.iter().chain(&graph.switches).collect();
        let (from, to) = (from.get(&names).to_string(), to.get(&names).to_string());
        prop_assume!(from != to);
        let sign = if both_ways { '-' } else { '>' };
        let before = machine(graph.clone());
        let after = what_if::apply(&before, &[format!("add {from}{sign}{to} {gbps}GB/s")])
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        for ((collective, low), (_, high)) in bounds(&before).into_iter().zip(bounds(&after)) {
            prop_assert!(at_least(collective, high, low), "{collective}: {low} falls to {high}");
            compared.add(true);
            raised.add(high > low);
        }
        Ok(())
    });
    let [compared, raised] = [compared, raised].map(|count| count.0.get());
    eprintln!("{compared} bounds with one link more: none falls, {raised} rise");
    assert!(raised > 0);
}

#[test]
fn names_and_order_of_devices_do_not_matter() {
    let [renamed, reordered, equal] = std::array::from_fn(|_| Count::default());
    hold((graphs(), any::<u64>()), |(graph, seed)| {
        let first = machine(graph.clone());
        let plan_of_first = plan(&first)?;
        // Another order of links and switches in the file: the very same plan.
        let mut other = graph.clone();
        shuffle(&mut other.links, seed);
        shuffle(&mut other.switches, seed);
        let same = plan(&machine(other))?;
        prop_assert_eq!(plan_json::write(&plan_of_first, None), plan_json::write(&same, None));
        reordered.add(true);
        // Other ranks for the GPUs: the same bounds, except from rank 0 where that is another GPU now.
        let mut turned = graph;
        shuffle(&mut turned.gpus, seed);
        let turned = machine(turned);
        let rooted = [Collective::Gather, Collective::Scatter];
        for ((collective, was), (_, is)) in bounds(&first).into_iter().zip(bounds(&turned)) {
            if rooted.contains(&collective) {
                continue;
            }
            let same = at_least(collective, was, is) && at_least(collective, is, was);
            prop_assert!(same, "{collective}: {was} under one order of ranks, {is} under another");
            renamed.add(true);
        }
        // And what plans reach lies within the hundredth that rings are preferred by.
        for (collective, reached) in plan(&turned)?.collectives {
            let was = plan_of_first.collectives[&collective].best.as_ref();
            let (Some(was), Some(is)) = (was, &reached.best) else { continue };
            equal.add(was.algbw_gbps == is.algbw_gbps);
        }
        Ok(())
    });
    let [renamed, reordered, equal] = [renamed, reordered, equal].map(|count| count.0.get());
    eprintln!(
        "{reordered} plans the same from another order of the file; {renamed} bounds the same under other ranks, \
         {equal} best figures too"
    );
}

/// A permutation by the seed (Fisher and Yates with splitmix64).
fn shuffle<T>(list: &mut [T], mut seed: u64) {
    for at in (1..list.len()).rev() {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let pick = (z ^ (z >> 31)) % (at as u64 + 1);
        list.swap(at, usize::try_from(pick).expect("an index"));
    }
}
