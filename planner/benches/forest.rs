//! Planning time on one core by size of machine: bounds, forests, all-reduce.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use planner::flow_graph::{FlowEdge, FlowGraph};
use planner::forest::{self, ForestOptions};
use planner::{bound, concurrent_flow, weighted};

type Links = Vec<(usize, usize, u64)>;

fn duplex(ranks: usize, nodes: usize, links: &[(usize, usize, u64)]) -> FlowGraph {
    let edge = |from, to, capacity| FlowEdge { from, to, capacity };
    let both = links.iter().flat_map(|&(a, b, c)| [edge(a, b, c), edge(b, a, c)]);
    FlowGraph::new(ranks, nodes, both)
}

/// The eight GPUs of a DGX-1V, in NVLink bricks.
const DGX1V: [(usize, usize, u64); 16] = [
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

/// A four by four torus of direct links.
fn torus() -> FlowGraph {
    let links: Links = (0..16)
        .flat_map(|v| {
            let (row, column) = (v / 4, v % 4);
            [(v, row * 4 + (column + 1) % 4, 50), (v, (row + 1) % 4 * 4 + column, 50)]
        })
        .collect();
    duplex(16, 16, &links)
}

/// Hosts of eight GPUs on a switch each, a NIC per GPU, rails.
fn hosts(count: usize) -> FlowGraph {
    let ranks = 8 * count;
    let links: Links = (0..ranks)
        .flat_map(|v| [(v, ranks + v / 8, 300), (v, ranks + count + v % 8, 25)])
        .collect();
    duplex(ranks, ranks + count + 8, &links)
}

/// 72 GPUs on 18 switch planes.
fn nvl72() -> FlowGraph {
    let links: Links =
        (0..72).flat_map(|v| (0..18).map(move |plane| (v, 72 + plane, 50))).collect();
    duplex(72, 90, &links)
}

fn machines() -> Vec<(&'static str, FlowGraph)> {
    let star: Links = (0..8).map(|v| (v, 8, 450)).collect();
    vec![
        ("dgx1v-8", duplex(8, 8, &DGX1V)),
        ("dgx1v-7", duplex(7, 7, &DGX1V.into_iter().filter(|l| l.1 < 7).collect::<Links>())),
        ("nvswitch-8", duplex(8, 9, &star)),
        ("torus-16", torus()),
        ("rails-2x8", hosts(2)),
        ("rails-4x8", hosts(4)),
        ("nvl72", nvl72()),
    ]
}

fn collectives(criterion: &mut Criterion) {
    let options = ForestOptions::default();
    for (name, graph) in machines() {
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10);
        let mut measure = |what: &str, work: &dyn Fn()| {
            group.bench_function(BenchmarkId::from_parameter(what), |bencher| bencher.iter(work));
        };
        measure("bound-all-gather", &|| drop(black_box(bound::all_gather(&graph))));
        measure("bound-all-reduce", &|| drop(black_box(bound::all_reduce(&graph))));
        measure("bound-all-to-all", &|| drop(black_box(concurrent_flow::all_to_all(&graph))));
        measure("all-gather", &|| drop(black_box(forest::all_gather(&graph, &options))));
        measure("all-reduce", &|| drop(black_box(weighted::all_reduce(&graph, &options))));
        measure("broadcast", &|| drop(black_box(forest::broadcast(&graph, 0, &options))));
    }
}

criterion_group!(benches, collectives);
criterion_main!(benches);
