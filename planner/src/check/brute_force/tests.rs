//! Bounds of small graphs by hand, and the published optima where they are at hand.

use std::path::PathBuf;

use serde_json::Value;
use topology::snapshot::LinkGraph;
use topology::{Algorithm, Bandwidth, Snapshot, Source};

use super::*;
use crate::check::sample::{self, both, dgx1v, ranks, topology};

#[track_caller]
fn check(topology: &Topology, collective: Collective, root: Option<u32>, expect: &str) {
    let ranks = ranks(topology, topology.gpus().len());
    let bound = brute_force_bound(topology, &ranks, collective, root.map(Rank), LinkPolicy::Auto);
    assert_eq!(bound.unwrap().algbw_gbps.to_string(), expect, "{collective}");
}

#[test]
fn dgx1v_bounds() {
    let topology = dgx1v();
    check(&topology, Collective::AllGather, None, "1200/7");
    check(&topology, Collective::ReduceScatter, None, "1200/7");
    check(&topology, Collective::AllReduce, None, "600/7");
    check(&topology, Collective::Broadcast, Some(3), "150");
    check(&topology, Collective::Reduce, None, "150");
}

#[test]
fn one_way_links_tell_directions_apart() {
    // 0 sends at 10 and receives at 4, over a switch that the others reach at 20.
    let one =
        topology(3, 1, [(0, 3, 10), (3, 0, 4), (1, 3, 20), (3, 1, 20), (2, 3, 20), (3, 2, 20)]);
    check(&one, Collective::AllGather, None, "6");
    check(&one, Collective::ReduceScatter, None, "12");
    check(&one, Collective::Broadcast, Some(0), "10");
    check(&one, Collective::Broadcast, Some(1), "4");
    check(&one, Collective::Broadcast, None, "4");
    check(&one, Collective::Reduce, Some(0), "4");
    check(&one, Collective::Scatter, Some(0), "15");
    check(&one, Collective::Gather, Some(0), "6");
    check(&one, Collective::AllToAll, None, "6");
    // Into parts {0} and {1, 2} enter 4 and 10 for twice the data; into three parts 4, 20 and 20 for four times.
    check(&one, Collective::AllReduce, None, "7");
}

#[test]
fn large_graphs_are_left_alone() {
    let large = topology(21, 0, both((0..20).map(|gpu| (gpu, gpu + 1, 1))));
    let ranks = ranks(&large, 21);
    assert_eq!(
        brute_force_bound(&large, &ranks, Collective::AllGather, None, LinkPolicy::All),
        None
    );
}

#[test]
fn absent_gpus_do_not_forward() {
    let line = topology(3, 0, both([(0, 2, 10), (2, 1, 10)]));
    let two = ranks(&line, 2);
    let bound = brute_force_bound(&line, &two, Collective::AllGather, None, LinkPolicy::All);
    assert_eq!(bound.unwrap().algbw_gbps, Fraction::ZERO);
}

#[test]
fn claimed_bounds_are_proved_again() {
    let topology = dgx1v();
    let order = [0, 4, 7, 6, 5, 1, 2, 3];
    let collectives = [Collective::AllReduce, Collective::AllGather, Collective::Broadcast];
    let ring = sample::ring(&topology, &collectives, &order, Fraction::ONE);
    let mut plan = sample::plan(&topology, 8, Algorithm::Ring, vec![ring]);
    // The sample claims what its one ring reaches, 50 GB/s on each hop: far below what the links allow.
    let found = bounds(&topology, &plan).unwrap_err();
    let messages: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        [
            "all-reduce: the claimed bound is 200/7 GB/s, all cuts give 600/7",
            "all-gather: the claimed bound is 400/7 GB/s, all cuts give 1200/7",
            "broadcast: the claimed bound is 50 GB/s, all cuts give 150",
        ]
    );
    for (collective, entry) in &mut plan.collectives {
        let proved =
            brute_force_bound(&topology, &plan.ranks, *collective, None, LinkPolicy::All).unwrap();
        entry.bound.as_mut().unwrap().algbw_gbps = proved.algbw_gbps;
    }
    let proved = bounds(&topology, &plan).unwrap();
    assert_eq!(proved.len(), 3);
    assert!(proved.values().all(|bound| bound.tight));
}

/// `TOPOD_BARS`, or the folder beside the workspace.
fn bars() -> PathBuf {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/bars");
    std::env::var_os("TOPOD_BARS").map_or_else(beside, PathBuf::from)
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn published_optima() {
    let path = bars().join("optima.json");
    let Ok(text) = std::fs::read(&path) else {
        eprintln!("skipped: no {}", path.display());
        return;
    };
    let bars: Value = serde_json::from_slice(&text).unwrap();
    let names = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|name| name.as_str().unwrap().into()).collect()
    };
    let (mut compared, mut skipped, mut partitions) = (0, 0, 0);
    for case in bars["topologies"].as_array().unwrap() {
        let mut snapshot = Snapshot::new(Source::LinkGraph);
        let links = case["directed_links_GBps"].as_array().unwrap().iter().map(|link| {
            let rate = Bandwidth::from_gbps(link[2].as_f64().unwrap()).unwrap();
            (link[0].as_str().unwrap().into(), link[1].as_str().unwrap().into(), rate)
        });
        snapshot.link_graph = Some(LinkGraph {
            name: case["name"].as_str().unwrap().into(),
            gpus: names(&case["gpus"]),
            switches: names(&case["switch_nodes"]),
            links: links.collect(),
        });
        let topology = topology::lower(&[snapshot], topology::RateModel::Nominal).unwrap();
        let Some(table) = CutTable::new(&topology, topology.gpus(), LinkPolicy::Auto) else {
            skipped += 1;
            continue;
        };
        let bound = |collective| table.bound(collective, None);
        let all_gather = bound(Collective::AllGather).unwrap();
        let close = |bound: &ProvedBound, expect: &Value| {
            expect.as_f64().is_none_or(|e| (bound.algbw_gbps.to_f64() / e - 1.0).abs() < 1e-4)
        };
        let name = &case["name"];
        assert!(close(&all_gather, &case["allgather_opt_algbw"]), "{name}: {all_gather:?}");
        let reduce_scatter = bound(Collective::ReduceScatter).unwrap();
        assert!(
            close(&reduce_scatter, &case["reduce_scatter_opt_algbw"]),
            "{name}: {reduce_scatter:?}"
        );
        for (rank, gpu) in (0..).map(Rank).zip(names(&case["gpus"])) {
            let bound = table.bound(Collective::Broadcast, Some(rank)).unwrap();
            assert!(
                close(&bound, &case["broadcast_opt_GBps"][&gpu]),
                "{name} from {gpu}: {bound:?}"
            );
        }
        let all_to_all = bound(Collective::AllToAll).unwrap().algbw_gbps.to_f64();
        let expect = &case["alltoall_opt_algbw"];
        assert!(expect.as_f64().is_none_or(|e| all_to_all > e * 0.9999), "{name}: {all_to_all}");
        compared += 1;
        if let Some(all_reduce) = bound(Collective::AllReduce) {
            let expect = &case["allreduce_opt_algbw_flow_lp"];
            let below =
                expect.as_f64().is_some_and(|e| all_reduce.algbw_gbps.to_f64() < e * 0.9999);
            assert!(!below, "{name}: {all_reduce:?} is below {expect}, which is reached");
            assert!(!all_reduce.tight || close(&all_reduce, expect), "{name}: {all_reduce:?}");
            partitions += 1;
        }
    }
    eprintln!(
        "{compared} graphs, {partitions} of them with all-reduce, agree; {skipped} are too large"
    );
    assert!(compared > 0);
}
