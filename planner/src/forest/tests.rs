//! Forests on known and random graphs, each checked by a sum of its own.

use super::*;
use crate::bound;
use crate::test_graphs::{bars, connected_graph, dgx1v, duplex, published, relabelled, star};
use proptest::prelude::*;

/// Spanning trees in data order, shares that add up, physical paths, loads within capacity: by a sum of its own.
#[track_caller]
pub(crate) fn certify(g: &FlowGraph, forest: &Forest, towards: bool) {
    let mut loads: BTreeMap<(usize, usize), Fraction> = BTreeMap::new();
    let mut total = 0;
    for tree in &forest.trees {
        total += tree.weight;
        let mut reached = vec![false; g.ranks];
        reached[tree.root] = true;
        let edges: Vec<&TreeEdge> =
            if towards { tree.edges.iter().rev().collect() } else { tree.edges.iter().collect() };
        assert_eq!(edges.len(), g.ranks - 1);
        for edge in edges {
            let (parent, child) = if towards { (edge.to, edge.from) } else { (edge.from, edge.to) };
            assert!(reached[parent] && !reached[child]);
            reached[child] = true;
            let shares: Fraction = edge.paths.iter().map(|p| p.share).sum();
            assert_eq!(shares, Fraction::ONE);
            for path in &edge.paths {
                assert!(path.share > Fraction::ZERO);
                assert!(path.via.iter().all(|&v| v >= g.ranks), "through a rank: {path:?}");
                let mut nodes = vec![edge.from];
                nodes.extend(&path.via);
                nodes.push(edge.to);
                for hop in nodes.windows(2) {
                    let load = loads.entry((hop[0], hop[1])).or_insert(Fraction::ZERO);
                    *load = *load + path.share * Fraction::of(tree.weight, 1) * forest.unit;
                }
            }
        }
    }
    for (&(from, to), &load) in &loads {
        let edge = g.edges.iter().find(|e| (e.from, e.to) == (from, to));
        let capacity = edge.expect("paths follow edges").capacity;
        assert!(load <= Fraction::of(capacity, 1), "{from}-{to}: {load} of {capacity}");
    }
    assert_eq!(loads, forest.loads());
    assert_eq!(forest.algbw, forest.unit * Fraction::of(total, 1));
}

#[track_caller]
fn check(g: &FlowGraph, least_height: usize, most_channels: usize) {
    let forest = all_gather(g, &ForestOptions::default()).unwrap();
    certify(g, &forest, false);
    let bound = bound::all_gather(g).unwrap().algbw;
    assert!(forest.algbw <= bound && forest.algbw >= bound * Fraction::of(99, 100));
    let found = (forest.height(), forest.channels());
    assert!(found.0 <= least_height && found.1 <= most_channels, "{found:?}");
}

#[test]
fn known_machines() {
    check(&star(8, 12), 1, 1);
    check(&dgx1v(), 5, 8);
    // Two staging switches in a row, one way only at each.
    check(&duplex(4, 6, &[(0, 4, 24), (1, 4, 24), (2, 5, 24), (3, 5, 24), (4, 5, 20)]), 3, 4);
}

#[test]
fn planes_share_every_hop() {
    let mut links = Vec::new();
    for v in 0..4 {
        links.extend([(v, 4, 3), (v, 5, 3)]);
    }
    let g = duplex(4, 6, &links);
    let forest = all_gather(&g, &ForestOptions::default()).unwrap();
    certify(&g, &forest, false);
    assert_eq!((forest.height(), forest.channels()), (1, 1));
    assert!(forest.trees[0].edges.iter().all(|e| e.paths.len() == 2));
}

#[test]
fn a_broadcast_on_a_switch_is_low() {
    let g = star(8, 12);
    let forest = broadcast(&g, 3, &ForestOptions::default()).unwrap();
    certify(&g, &forest, false);
    assert_eq!((forest.algbw, forest.height()), (Fraction::integer(12), 2));
    let back = reduce(&g, 3, &ForestOptions::default()).unwrap();
    certify(&g, &back, true);
    assert_eq!((back.height(), back.channels()), (2, 7));
    assert!(broadcast(&g, 8, &ForestOptions::default()).is_err());
}

/// At least 99 % of every optimum in the bars within 32 channels, and what it took.
#[test]
fn bars_are_reached() {
    let mut short = Vec::new();
    for case in bars().into_iter().flatten() {
        let g = &case.graph;
        let options = ForestOptions::default();
        let optimum = bound::whole(g.ranks) / case.r_star;
        for (towards, forest) in
            [(false, all_gather(g, &options)), (true, reduce_scatter(g, &options))]
        {
            let forest = forest.unwrap();
            certify(g, &forest, towards);
            let part = (forest.algbw / optimum).to_f64();
            if part < 0.99 || forest.channels() > MAX_CHANNELS {
                short.push((case.name.clone(), part, forest.channels()));
            }
            if !towards {
                report(&case.name, part, &forest);
            }
        }
    }
    assert!(short.is_empty(), "{short:?}");
}

#[expect(clippy::print_stdout, reason = "the table is what one wants to see of this test")]
fn report(name: &str, part: f64, forest: &Forest) {
    let (height, channels, trees) = (forest.height(), forest.channels(), forest.trees.len());
    std::println!(
        "{name:40} {part:.4} of the bound, height {height}, channels {channels}, trees {trees}"
    );
}

#[test]
fn published_schedules_are_beaten() {
    for (name, graph, bar) in published("allgather").into_iter().flatten() {
        let forest = all_gather(&graph, &ForestOptions::default()).unwrap();
        certify(&graph, &forest, false);
        let rate = forest.algbw.to_f64() / 1e6;
        report(&name, (forest.algbw / bound::all_gather(&graph).unwrap().algbw).to_f64(), &forest);
        // The figures are rounded.
        assert!(rate >= bar * 0.9999, "{name}: {rate} for {bar}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn forests_fit_and_keep_to_the_bound(g in connected_graph(7, 4), root in 0_usize..7) {
        let options = ForestOptions::default();
        let gather = all_gather(&g, &options).unwrap();
        certify(&g, &gather, false);
        let bound = bound::all_gather(&g).unwrap().algbw;
        prop_assert!(gather.algbw <= bound);
        if g.is_symmetric() {
            prop_assert!(gather.algbw >= bound * Fraction::of(99, 100), "{} of {bound}", gather.algbw);
        }
        certify(&g, &reduce_scatter(&g, &options).unwrap(), true);
        let root = root % g.ranks;
        let one = broadcast(&g, root, &options).unwrap();
        certify(&g, &one, false);
        prop_assert!(one.algbw <= bound::broadcast(&g, root).unwrap().algbw);
        certify(&g, &reduce(&g, root, &options).unwrap(), true);
    }

    #[test]
    fn names_do_not_matter(g in connected_graph(6, 3), seed in 0_u64..1000) {
        prop_assume!(g.is_symmetric());
        let (other, _) = relabelled(&g, seed);
        let options = ForestOptions::default();
        let bound = bound::all_gather(&g).unwrap().algbw;
        let near = bound * Fraction::of(99, 100);
        prop_assert!(all_gather(&other, &options).unwrap().algbw >= near);
        prop_assert_eq!(all_gather(&g, &options).unwrap(), all_gather(&g, &options).unwrap());
    }
}
