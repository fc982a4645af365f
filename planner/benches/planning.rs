//! Planning time on one core by machine: whole plans for all eight collectives, and the stages they are made of.
//!
//! `cargo bench -p planner -- plan/` measures whole plans, `-- aim/` those the project has aims for, `cargo bench -p planner` the stages
//! too. Machines are made here, but for those with hosts, which are copies of this project's fixtures.

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use planner::change::{Prepared, Standing, single_failures};
use planner::flow_graph::{FlowEdge, FlowGraph};
use planner::forest::{self, ForestOptions};
use planner::{bound, bounded_search, concurrent_flow, rings, weighted};
use topology::snapshot::LinkGraph;
use topology::{Bandwidth, PlanRequest, RateModel, Snapshot, Source, Topology, what_if};

/// Duplex links in GB/s; nodes beyond the ranks are switches.
struct Machine {
    name: String,
    ranks: usize,
    nodes: usize,
    links: Vec<(usize, usize, u64)>,
}

impl Machine {
    fn new(name: &str, ranks: usize, nodes: usize, links: Vec<(usize, usize, u64)>) -> Self {
        Self { name: name.into(), ranks, nodes, links }
    }

    fn both_ways(&self) -> impl Iterator<Item = (usize, usize, u64)> {
        self.links.iter().flat_map(|&(a, b, gbps)| [(a, b, gbps), (b, a, gbps)])
    }

    fn flow_graph(&self) -> FlowGraph {
        let edge = |(from, to, gbps)| FlowEdge { from, to, capacity: gbps * 1_000_000 };
        FlowGraph::new(self.ranks, self.nodes, self.both_ways().map(edge))
    }

    fn topology(&self) -> Topology {
        let name = |node: usize| match node.checked_sub(self.ranks) {
            None => node.to_string(),
            Some(switch) => format!("s{switch}"),
        };
        let link = |(from, to, gbps)| (name(from), name(to), Bandwidth::from_mbps(gbps * 1000));
        let mut snapshot = Snapshot::new(Source::LinkGraph);
        snapshot.link_graph = Some(LinkGraph {
            name: self.name.clone(),
            gpus: (0..self.ranks).map(name).collect(),
            switches: (self.ranks..self.nodes).map(name).collect(),
            links: self.both_ways().map(link).collect(),
        });
        topology::lower(&[snapshot], RateModel::Effective).expect("links between known nodes")
    }
}

/// NVLink bricks of a DGX-1V.
const DGX1V: [(usize, usize, u64); 16] = [
    (0, 1, 25),
    (0, 2, 25),
    (0, 3, 50),
    (0, 4, 50),
    (1, 2, 50),
    (1, 3, 25),
    (1, 5, 50),
    (2, 3, 50),
    (2, 6, 25),
    (3, 7, 25),
    (4, 5, 25),
    (4, 6, 25),
    (4, 7, 50),
    (5, 6, 50),
    (5, 7, 25),
    (6, 7, 50),
];

/// GPUs on so many equal switch planes.
fn planes(name: &str, ranks: usize, planes: usize, gbps: u64) -> Machine {
    let links = (0..ranks).flat_map(|v| (0..planes).map(move |plane| (v, ranks + plane, gbps)));
    Machine::new(name, ranks, ranks + planes, links.collect())
}

/// A square torus of direct links.
fn torus(side: usize) -> Machine {
    let neighbours = |v: usize| {
        let (row, column) = (v / side, v % side);
        [row * side + (column + 1) % side, (row + 1) % side * side + column]
    };
    let links = (0..side * side).flat_map(|v| neighbours(v).map(|to| (v, to, 50)));
    Machine::new(&format!("torus-{}", side * side), side * side, side * side, links.collect())
}

/// Boxes of eight GPUs on a switch each, a NIC per GPU, rails: one host to the planner.
fn rails(boxes: usize) -> Machine {
    let ranks = 8 * boxes;
    let links = (0..ranks)
        .flat_map(|v| [(v, ranks + v / 8, 300), (v, ranks + boxes + v % 8, 25)])
        .collect();
    Machine::new(&format!("rails-{boxes}x8"), ranks, ranks + boxes + 8, links)
}

fn machines() -> Vec<Machine> {
    let seven = DGX1V.into_iter().filter(|link| link.1 < 7).collect();
    vec![
        Machine::new("dgx1v-8", 8, 8, DGX1V.into()),
        Machine::new("dgx1v-7", 7, 7, seven),
        planes("nvswitch-8", 8, 1, 450),
        planes("nvswitch-16", 16, 1, 450),
        planes("nvswitch-32", 32, 1, 450),
        planes("nvswitch-64", 64, 1, 450),
        planes("nvl72", 72, 18, 50),
        torus(3),
        torus(4),
        torus(5),
        rails(2),
        rails(4),
    ]
}

/// Copies of a board of the fixtures.
fn hosts(board: &str, count: usize) -> (String, Topology) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/machines");
    let bytes = std::fs::read(folder.join(format!("{board}.json")));
    let board_of = topology::formats::read(&bytes.expect("the fixture is part of the project"));
    let board_of = board_of.expect("the fixture is a machine");
    let boards: Vec<_> = (0..count).flat_map(|_| board_of.clone()).collect();
    let topology = topology::lower(&boards, RateModel::Effective);
    (format!("{board}-x{count}"), topology.expect("the fixture has a topology"))
}

/// Most milliseconds for all eight collectives, by machine.
fn aims() -> Vec<(u32, (String, Topology))> {
    let made = |machine: Machine| (machine.name.clone(), machine.topology());
    let one_host = ["dgx1v", "dgx_a100", "dgx_h100", "mi300x", "pcie_switches"];
    let two_hosts = ["dgx1v", "dgx_a100", "dgx_h100"];
    let mut aims: Vec<_> = one_host.map(|board| (5, hosts(board, 1))).into();
    aims.push((100, made(torus(4))));
    aims.extend(two_hosts.map(|board| (50, hosts(board, 2))));
    aims.push((100, made(planes("nvl72", 72, 18, 50))));
    aims
}

fn measure_plans(criterion: &mut Criterion, group: &str, cases: Vec<(String, Topology)>) {
    let mut group = criterion.benchmark_group(group);
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_secs(2));
    for (name, topology) in cases {
        group.bench_function(name, |bencher| {
            bencher.iter(|| planner::plan(black_box(&topology), &PlanRequest::default()));
        });
    }
}

fn whole_plans(criterion: &mut Criterion) {
    let mut cases: Vec<(String, Topology)> =
        machines().iter().map(|machine| (machine.name.clone(), machine.topology())).collect();
    cases.extend([1, 2, 4].map(|count| hosts("dgx1v", count)));
    measure_plans(criterion, "plan", cases);
}

/// Named by what they are to keep below.
fn plans_with_aims(criterion: &mut Criterion) {
    let named = |(ms, (name, topology)): (u32, (String, Topology))| {
        (format!("{name}-below-{ms}-ms"), topology)
    };
    measure_plans(criterion, "aim", aims().into_iter().map(named).collect());
}

/// What becomes of a plan for 8 GPUs when a link gets slower that has room, and when one fails whose plan stands ready.
fn changes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("change");
    for name in ["dgx1v", "dgx_h100"] {
        let (_, whole) = hosts(name, 1);
        let request = PlanRequest::default();
        let plan = planner::plan(&whole, &request).expect("a plan");
        let failures = single_failures(&whole);
        let link = failures.iter().find(|failure| failure.contains("GPU0")).expect("a link");
        let nic = failures.iter().find(|failure| failure.contains("mlx5")).expect("a NIC");
        let mut prepared = Prepared::new();
        prepared.prepare(&whole, &request, link).expect("a failure of this machine");
        let standing = Standing::new(&whole, plan, request, prepared).expect("its own plan");
        let failed = what_if::apply(&whole, &[link]).expect("a failure of this machine");
        let slower = what_if::apply(&whole, &[nic]).expect("a failure of this machine");
        for (what, now) in [("repair", &failed), ("keep", &slower)] {
            group.bench_function(format!("{what}/{name}-below-1-ms"), |bencher| {
                bencher.iter(|| standing.ready(black_box(now)));
            });
        }
    }
}

fn stages(criterion: &mut Criterion) {
    /// Tries for each speed, as NCCL's search has them.
    const TRIES: u64 = 1 << 14;
    let options = ForestOptions::default();
    for machine in machines() {
        let graph = machine.flow_graph();
        let mut group = criterion.benchmark_group(format!("stage/{}", machine.name));
        group.sample_size(10);
        let mut measure = |what: &str, work: &dyn Fn()| {
            group.bench_function(what, |bencher| bencher.iter(work));
        };
        let ring_options = rings::RingOptions::new(vec![0; graph.ranks]);
        measure("bound-all-gather", &|| drop(black_box(bound::all_gather(&graph))));
        measure("bound-all-reduce", &|| drop(black_box(bound::all_reduce(&graph))));
        measure("bound-all-to-all", &|| drop(black_box(concurrent_flow::all_to_all(&graph))));
        measure("rings", &|| drop(black_box(rings::pack(&graph, &ring_options))));
        measure("all-gather", &|| drop(black_box(forest::all_gather(&graph, &options))));
        measure("all-reduce", &|| drop(black_box(weighted::all_reduce(&graph, &options))));
        measure("broadcast", &|| drop(black_box(forest::broadcast(&graph, 0, &options))));
        measure("bounded-search", &|| drop(black_box(bounded_search::search(&graph, TRIES))));
    }
}

criterion_group!(benches, plans_with_aims, whole_plans, changes, stages);
criterion_main!(benches);
