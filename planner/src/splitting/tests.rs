//! Switches split off known and random graphs: routes fit, and every rank can still be sent everything.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::bound::{all_gather, bottleneck};
use crate::flow_graph::FlowEdge;
use crate::test_graphs::{bars, connected_graph, duplex, rails, star};

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
}
