//! Graphs for tests: small literal ones, random ones, and those of the bars.
#![expect(clippy::print_stdout, reason = "a test that skips itself says so")]

use std::path::PathBuf;
use std::string::String;
use std::vec::Vec;
use std::{env, format, fs, println};

use proptest::prelude::*;
use serde_json::Value;
use topology::Fraction;

use crate::flow_graph::{FlowEdge, FlowGraph};

pub(crate) fn edge(from: usize, to: usize, capacity: u64) -> FlowEdge {
    FlowEdge { from, to, capacity }
}

pub(crate) fn graph(ranks: usize, nodes: usize, edges: &[(usize, usize, u64)]) -> FlowGraph {
    FlowGraph::new(ranks, nodes, edges.iter().map(|&(a, b, c)| edge(a, b, c)))
}

/// The same links both ways.
pub(crate) fn duplex(ranks: usize, nodes: usize, links: &[(usize, usize, u64)]) -> FlowGraph {
    let both = links.iter().flat_map(|&(a, b, c)| [edge(a, b, c), edge(b, a, c)]);
    FlowGraph::new(ranks, nodes, both)
}

/// Every rank on one switch.
pub(crate) fn star(ranks: usize, capacity: u64) -> FlowGraph {
    duplex(ranks, ranks + 1, &(0..ranks).map(|v| (v, ranks, capacity)).collect::<Vec<_>>())
}

/// A box of eight GPUs as NVIDIA's DGX-1V wires them; capacities in NVLink bricks.
pub(crate) fn dgx1v() -> FlowGraph {
    let links = [
        (0, 1, 1),
        (0, 2, 1),
        (0, 3, 2),
        (0, 4, 2),
        (1, 2, 2),
        (1, 3, 1),
        (1, 5, 2),
        (2, 3, 2),
        (2, 6, 1),
        (3, 7, 1),
        (4, 5, 1),
        (4, 6, 1),
        (4, 7, 2),
        (5, 6, 2),
        (5, 7, 1),
        (6, 7, 2),
    ];
    duplex(8, 8, &links)
}

/// `boxes` of `gpus`, each with one switch, and one NIC per GPU on a rail.
pub(crate) fn rails(boxes: usize, gpus: usize, inside: u64, nic: u64) -> FlowGraph {
    let ranks = boxes * gpus;
    let mut links = Vec::new();
    for v in 0..ranks {
        links.push((v, ranks + v / gpus, inside));
        links.push((v, ranks + boxes + v % gpus, nic));
    }
    duplex(ranks, ranks + boxes + gpus, &links)
}

/// Strongly connected: a cycle through all nodes, and more edges; some graphs symmetric, some not balanced at switches.
pub(crate) fn connected_graph(
    max_ranks: usize,
    max_switches: usize,
) -> impl Strategy<Value = FlowGraph> {
    (2..=max_ranks, 0..=max_switches, any::<bool>()).prop_flat_map(
        |(ranks, switches, symmetric)| {
            let nodes = ranks + switches;
            let cycle = proptest::collection::vec(1_u64..20, nodes);
            let more = proptest::collection::vec((0..nodes, 0..nodes, 1_u64..20), 0..2 * nodes);
            (cycle, more).prop_map(move |(cycle, more)| {
                let around = cycle.iter().enumerate().map(|(v, &c)| (v, (v + 1) % nodes, c));
                let links: Vec<_> = around.chain(more).collect();
                if symmetric { duplex(ranks, nodes, &links) } else { graph(ranks, nodes, &links) }
            })
        },
    )
}

/// The graph with ranks and switches renamed, and where each node went.
pub(crate) fn relabelled(g: &FlowGraph, seed: u64) -> (FlowGraph, Vec<usize>) {
    let mut state = seed;
    let mut shuffled = |from: usize, to: usize| {
        let mut order: Vec<usize> = (from..to).collect();
        for i in (1..order.len()).rev() {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            order.swap(i, usize::try_from(state >> 33).unwrap() % (i + 1));
        }
        order
    };
    let mut map = shuffled(0, g.ranks);
    map.extend(shuffled(g.ranks, g.nodes));
    let edges = g.edges.iter().map(|e| edge(map[e.from], map[e.to], e.capacity));
    (FlowGraph::new(g.ranks, g.nodes, edges), map)
}

/// One graph of the bars with its optima.
#[derive(Clone, Debug)]
pub(crate) struct BarCase {
    pub(crate) name: String,
    /// Capacities in GB/s; they are whole.
    pub(crate) graph: FlowGraph,
    pub(crate) r_star: Fraction,
    /// By root, GB/s.
    pub(crate) broadcasts: Vec<(usize, f64)>,
    /// The best known exact all-reduce, GB/s.
    pub(crate) all_reduce: f64,
    pub(crate) all_to_all: Option<f64>,
}

fn bars_file(name: &str) -> Option<Value> {
    let folder = env::var_os("TOPOD_BARS").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/bars"),
        PathBuf::from,
    );
    let path = folder.join(name);
    match fs::read_to_string(&path) {
        Ok(text) => Some(serde_json::from_str(&text).unwrap()),
        Err(error) => {
            println!("skipped: {}: {error}", path.display());
            None
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| format!("{value}"), str::to_owned)
}

fn link_graph(gpus: &Value, switches: &Value, links: &Value, per_unit: f64) -> FlowGraph {
    let names: Vec<String> =
        [gpus, switches].iter().flat_map(|list| list.as_array().unwrap()).map(text).collect();
    let index = |v: &Value| names.iter().position(|n| *n == text(v)).unwrap();
    let edges = links.as_array().unwrap().iter().map(|link| {
        let capacity = (link[2].as_f64().unwrap() * per_unit).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rounded, positive"
        )]
        edge(index(&link[0]), index(&link[1]), capacity as u64)
    });
    FlowGraph::new(gpus.as_array().unwrap().len(), names.len(), edges)
}

/// The topologies of optima.json and the GPU subsets, or `None` where the file is absent.
pub(crate) fn bars() -> Option<Vec<BarCase>> {
    let file = bars_file("optima.json")?;
    let mut cases = Vec::new();
    let mut links = std::collections::BTreeMap::new();
    let broadcasts = |value: &Value, index: &dyn Fn(&str) -> usize| -> Vec<(usize, f64)> {
        let by_root = value.as_object();
        by_root.into_iter().flatten().map(|(k, v)| (index(k), v.as_f64().unwrap())).collect()
    };
    for t in file["topologies"].as_array().unwrap() {
        let name = text(&t["name"]);
        let graph = link_graph(&t["gpus"], &t["switch_nodes"], &t["directed_links_GBps"], 1.0);
        let gpus: Vec<String> = t["gpus"].as_array().unwrap().iter().map(text).collect();
        let index = |k: &str| gpus.iter().position(|g| g == k).unwrap();
        let exact = t["allreduce_opt_algbw_flow_lp"].as_f64();
        cases.push(BarCase {
            name: name.clone(),
            graph,
            r_star: text(&t["r_star"]).parse().unwrap(),
            broadcasts: broadcasts(&t["broadcast_opt_GBps"], &index),
            all_reduce: exact.or_else(|| t["allreduce_weighted_rsag_algbw"].as_f64()).unwrap(),
            all_to_all: t["alltoall_opt_algbw"].as_f64(),
        });
        links.insert(name, t["directed_links_GBps"].clone());
    }
    for s in file["subsets"].as_array().unwrap() {
        let topology = text(&s["topology"]);
        let gpus: Vec<String> = s["gpus"].as_array().unwrap().iter().map(text).collect();
        let inside = |v: &Value| gpus.contains(&text(v));
        let kept: Vec<Value> = links[&topology]
            .as_array()
            .unwrap()
            .iter()
            .filter(|link| inside(&link[0]) && inside(&link[1]))
            .cloned()
            .collect();
        let index = |k: &str| gpus.iter().position(|g| g == k).unwrap();
        cases.push(BarCase {
            name: format!("{topology} {}", gpus.join(",")),
            graph: link_graph(&s["gpus"], &Value::Array(Vec::new()), &Value::Array(kept), 1.0),
            r_star: text(&s["r_star"]).parse().unwrap(),
            broadcasts: broadcasts(&s["bcast_opt"], &index),
            all_reduce: s["allreduce_opt_algbw"].as_f64().unwrap(),
            all_to_all: None,
        });
    }
    Some(cases)
}

/// The graphs of published.json in kB/s with the best published figure of a collective in GB/s.
pub(crate) fn published(collective: &str) -> Option<Vec<(String, FlowGraph, f64)>> {
    let file = bars_file("published.json")?;
    let mut cases = Vec::new();
    for g in file["graphs"].as_array().unwrap() {
        let figures = file["published"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|p| p["topology"] == g["name"] && p["collective"] == collective);
        // The reported key is marked in the file as no bar.
        let best = figures
            .flat_map(|p| p.as_object().unwrap().iter())
            .filter(|(k, _)| k.contains("algbw") && !k.contains("reported"))
            .filter_map(|(_, v)| v.as_f64())
            .fold(0.0, f64::max);
        let graph = link_graph(&g["gpus"], &g["switches"], &g["links"], 1e6);
        cases.push((text(&g["name"]), graph, best));
    }
    Some(cases)
}
