//! Plans for every machine of the corpus, against what NCCL's own search finds there.
//!
//! The corpus lies outside the project (`TOPOD_CORPUS`, `TOPOD_BARS`); without it these tests say so and pass.

#![expect(clippy::print_stdout, reason = "the tables are what a reader runs these tests for")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use planner::change::{Prepared, Standing};
use planner::report::{Row, table};
use topology::snapshot::LinkPeer;
use topology::{Collective, Plan, PlanRequest, RateModel, Snapshot, Topology, VertexKind};

fn outside(variable: &str, default: &str) -> Option<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared").join(default);
    let path = std::env::var_os(variable).map_or(beside, PathBuf::from);
    path.exists().then_some(path)
}

/// Snapshots by file name.
fn machines() -> Option<BTreeMap<String, Vec<Snapshot>>> {
    let Some(folder) = outside("TOPOD_CORPUS", "corpus") else {
        println!("no corpus: skipped");
        return None;
    };
    let mut machines = BTreeMap::new();
    for entry in std::fs::read_dir(folder.join("nccl-model")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let read = topology::formats::read(&std::fs::read(&path).unwrap());
        machines.insert(name.clone(), read.unwrap_or_else(|e| panic!("{name}: {e}")));
    }
    Some(machines)
}

/// NCCL's ring total, the same as its all-gather bus bandwidth, and its all-reduce, by files of a whole-host case.
fn bars() -> BTreeMap<Vec<String>, [f64; 3]> {
    let Some(folder) = outside("TOPOD_BARS", "bars") else { return BTreeMap::new() };
    let text = std::fs::read_to_string(folder.join("nccl.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let figures = |case: &serde_json::Value| {
        let figure = |key: &str| case["nccl"][key].as_f64().unwrap_or(0.0);
        let ring = figure("ring_total_gbps");
        [ring, ring, figure("all_reduce_algbw_gbps")]
    };
    let cases = json["cases"].as_array().unwrap().iter();
    cases
        .filter(|case| case["subset"].is_null())
        .map(|case| {
            let files = case["topologies"].as_array().unwrap().iter();
            let files = files.map(|f| f.as_str().unwrap().to_owned()).collect();
            (files, figures(case))
        })
        .collect()
}

fn planned(hosts: &[Snapshot]) -> (Topology, Plan) {
    let topology = topology::lower(hosts, RateModel::Effective).unwrap();
    let request = PlanRequest {
        collectives: vec![Collective::AllReduce, Collective::AllGather],
        ..PlanRequest::default()
    };
    // A plan that is returned has passed the checker.
    let plan = planner::plan(&topology, &request).unwrap();
    (topology, plan)
}

/// Whether NVLink alone connects the GPUs: a plan then crosses nothing but NVSwitches.
fn nvlink_only(topology: &Topology, plan: &Plan) -> bool {
    plan.channels.iter().flat_map(|c| c.all_edges()).flat_map(|e| &e.paths).all(|path| {
        path.via.iter().all(|name| {
            let vertex = topology.find(name).unwrap();
            topology.vertex(vertex).kind == VertexKind::NvSwitch
        })
    })
}

#[test]
fn one_host() {
    let Some(machines) = machines() else { return };
    let bars = bars();
    let mut rows = Vec::new();
    for (name, snapshots) in &machines {
        let (topology, plan) = planned(snapshots);
        let other = bars.get(&vec![name.clone()]).copied();
        let row = Row::of(name, &plan, other);
        if let Some([rings, ..]) = other.filter(|_| nvlink_only(&topology, &plan)) {
            assert!(row.ring_gbps >= 0.9 * rings, "{name}: {} of {rings}", row.ring_gbps);
        }
        rows.push(row);
    }
    println!("{}", table(&rows, "NCCL"));
    let short: Vec<String> = rows.iter().flat_map(Row::shortfalls).collect();
    println!("below NCCL: {short:#?}");
}

#[test]
fn two_hosts() {
    let Some(machines) = machines() else { return };
    let bars = bars();
    let mut rows = Vec::new();
    for (name, snapshots) in &machines {
        let pair: Vec<Snapshot> = snapshots.iter().chain(snapshots).cloned().collect();
        let topology = topology::lower(&pair, RateModel::Effective).unwrap();
        // Larger pairs take minutes together; the example `nccl_bars` of the tests crate prints them.
        if topology.gpus().len() > 8 {
            continue;
        }
        if topology.nics().is_empty() {
            println!("{name}: two hosts without NICs have no way to each other");
            continue;
        }
        let (_, plan) = planned(&pair);
        rows.push(Row::of(name, &plan, bars.get(&vec![name.clone(); 2]).copied()));
    }
    println!("{}", table(&rows, "NCCL"));
    let short: Vec<String> = rows.iter().flat_map(Row::shortfalls).collect();
    println!("below NCCL: {short:#?}");
}

/// Machines that are planned in pairs: GPUs with fewer links, NICs of unequal speed, PCIe links that serve both directions.
const PAIRS: [&str; 9] = [
    "dgx1p.xml",
    "dgx2.xml",
    "dgx_a100_deg_g3_nv6.xml",
    "dgx_a100_nic2_x8.xml",
    "dgx_h100_8nic.xml",
    "dgx_h100_nic2_x8.xml",
    "rccl_8p6l_4nic.xml",
    "rccl_8p6l_6nic.xml",
    "rccl_8p_940.xml",
];

/// Machines in pairs whose broadcasts come near their bounds by few numbers of trees, or have bounds that cuts alone do not tell.
const SPREADING_PAIRS: [&str; 4] =
    ["rccl_4p_940.xml", "rccl_8p6l_5nic.xml", "rccl_8p_4nics.xml", "rccl_8p_940.xml"];

#[test]
fn broadcasts_of_pairs_come_near_their_bounds() {
    let Some(machines) = machines() else { return };
    for name in SPREADING_PAIRS {
        let Some(snapshots) = machines.get(name) else { continue };
        let pair: Vec<Snapshot> = snapshots.iter().chain(snapshots).cloned().collect();
        let topology = topology::lower(&pair, RateModel::Effective).unwrap();
        let collectives = vec![Collective::Broadcast, Collective::Reduce];
        let request = PlanRequest { collectives, ..PlanRequest::default() };
        let plan = planner::plan(&topology, &request).unwrap();
        for collective in [Collective::Broadcast, Collective::Reduce] {
            let reached = percent(name, &plan, collective);
            assert!(reached >= 99.0, "{name}: {collective} {reached:.2} %");
        }
    }
}

/// Part of its bound that the plan for a collective reaches, in percent.
#[track_caller]
fn percent(name: &str, plan: &Plan, collective: Collective) -> f64 {
    let entry = &plan.collectives[&collective];
    let (bound, best) = (entry.bound.as_ref().unwrap(), entry.best.as_ref().unwrap());
    assert!(best.algbw_gbps <= bound.algbw_gbps, "{name}: {collective} exceeds its bound");
    100.0 * (best.algbw_gbps / bound.algbw_gbps).to_f64()
}

#[test]
fn pairs_of_hosts_come_near_their_bounds() {
    let Some(machines) = machines() else { return };
    let mut short = Vec::new();
    for name in PAIRS {
        let Some(snapshots) = machines.get(name) else { continue };
        let pair: Vec<Snapshot> = snapshots.iter().chain(snapshots).cloned().collect();
        let (topology, plan) = planned(&pair);
        // Without a plan the same is proved, and the same named.
        let bounds = planner::assemble::bounds_of(&topology, &PlanRequest::default()).unwrap();
        for collective in [Collective::AllGather, Collective::AllReduce] {
            let bound = bounds.get(&collective);
            assert_eq!(bound, plan.collectives[&collective].bound.as_ref(), "{name}");
            assert!(bound.is_some_and(|bound| !bound.limited_by.is_empty()), "{name}");
            let percent = percent(name, &plan, collective);
            println!("two {name}: {collective} {percent:.2} %");
            short.extend((percent < 99.0).then_some((name, collective, percent)));
        }
    }
    assert!(short.is_empty(), "{short:?}");
}

/// All-to-all, gather and scatter of one topology; the parts of their bounds that are below a hundredth of it.
fn short_exchanges(name: &str, hosts: &[Snapshot]) -> Vec<String> {
    let topology = topology::lower(hosts, RateModel::Effective).unwrap();
    let exchanges = [Collective::AllToAll, Collective::Gather, Collective::Scatter];
    let request = PlanRequest { collectives: exchanges.to_vec(), ..PlanRequest::default() };
    let plan = planner::plan(&topology, &request).unwrap();
    let mut short = Vec::new();
    for collective in exchanges {
        let percent = percent(name, &plan, collective);
        // One flow is exact.
        let least = if collective == Collective::AllToAll { 99.0 } else { 100.0 };
        println!("{name}: {collective} {percent:.3} %");
        short.extend((percent < least).then(|| format!("{name}: {collective} {percent:.3} %")));
    }
    short
}

#[test]
fn exchanges_reach_their_bounds() {
    let Some(machines) = machines() else { return };
    let mut short = Vec::new();
    for (name, snapshots) in &machines {
        short.extend(short_exchanges(name, snapshots));
    }
    for name in PAIRS {
        let Some(snapshots) = machines.get(name) else { continue };
        let pair: Vec<Snapshot> = snapshots.iter().chain(snapshots).cloned().collect();
        short.extend(short_exchanges(&format!("two {name}"), &pair));
    }
    assert!(short.is_empty(), "{short:#?}");
}

#[test]
fn the_order_of_devices_does_not_matter() {
    let Some(machines) = machines() else { return };
    for name in ["dgx1v.xml", "pcie4_2s_root_skl.xml", "perlmutter_a100_4.xml"] {
        let Some(snapshots) = machines.get(name) else { continue };
        let (_, plan) = planned(snapshots);
        let mut turned = snapshots.clone();
        for snapshot in &mut turned {
            snapshot.pci_devices.reverse();
            snapshot.gpus.reverse();
            snapshot.numa_nodes.reverse();
            for gpu in &mut snapshot.gpus {
                gpu.links.reverse();
            }
        }
        assert_eq!(planned(&turned).1, plan, "{name}");
    }
}

/// The host with `left` links from one GPU to a peer, both ways.
fn with_links(mut host: Snapshot, gpu: usize, peer: &LinkPeer, left: u32) -> Snapshot {
    let own = host.gpus[gpu].bus_id;
    for (at, other) in host.gpus.iter_mut().enumerate() {
        for links in &mut other.links {
            let forth = at == gpu && links.peer == *peer;
            let back = other.bus_id.is_some_and(|id| *peer == LinkPeer::Gpu(id))
                && own.is_some_and(|own| links.peer == LinkPeer::Gpu(own));
            if forth || back {
                links.count = left;
            }
        }
        other.links.retain(|links| links.count > 0);
    }
    host
}

/// On every board of 8 GPUs: whatever link between GPUs gets thinner or fails, a plan that is kept reaches within a hundredth what a new one does.
/// (Where it is not kept, it is the plan for that very machine.)
#[test]
fn kept_plans_are_as_good_as_new_ones() {
    let Some(machines) = machines() else { return };
    let (mut kept, mut failures) = (0, 0);
    for (name, hosts) in machines {
        let [host] = hosts.as_slice() else { continue };
        if host.gpus.len() != 8 {
            continue;
        }
        let (topology, plan) = planned(&hosts);
        let request = PlanRequest {
            collectives: vec![Collective::AllReduce, Collective::AllGather],
            ..PlanRequest::default()
        };
        let standing = Standing::new(&topology, plan, request, Prepared::new()).unwrap();
        for gpu in 0..8 {
            for links in host.gpus[gpu].links.clone() {
                for left in [0, links.count - 1] {
                    failures += 1;
                    let failed = [with_links(host.clone(), gpu, &links.peer, left)];
                    let now = topology::lower(&failed, RateModel::Effective).unwrap();
                    let Some(outcome) = standing.ready(&now).unwrap() else { continue };
                    kept += 1;
                    planner::check::plan(&now, outcome.plan()).unwrap();
                    let (_, fresh) = planned(&failed);
                    for (collective, reached) in &fresh.collectives {
                        let (found, fresh) =
                            (&outcome.plan().collectives[collective].best, &reached.best);
                        let (found, fresh) = (found.as_ref().unwrap(), fresh.as_ref().unwrap());
                        let part = (found.algbw_gbps / fresh.algbw_gbps).to_f64();
                        assert!(
                            part >= 0.99,
                            "{name}: GPU {gpu}, {left} left: {collective} {part}"
                        );
                    }
                }
            }
        }
    }
    println!("{failures} failures, {kept} plans kept");
    assert!(failures > 100);
}
