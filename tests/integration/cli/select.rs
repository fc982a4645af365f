//! `planner::select` beside a search that tries everything, on recorded machines.

use planner::bound;
use planner::model::Model;
use planner::select::{self, Worth};
use topology::plan::LinkPolicy;
use topology::{Fraction, GpuIndex, PlanRequest, RateModel, Topology, VertexKind, lower};

use super::{check, check_json, corpus, dgx1v, loaded};

/// Every set of `count` of the machine's GPUs, as index bits.
fn sets(gpus: &[GpuIndex], count: u32) -> impl Iterator<Item = Vec<GpuIndex>> {
    let bits = (0_u32..1 << gpus.len()).filter(move |bits| bits.count_ones() == count);
    bits.map(|bits| (0..gpus.len()).filter(|at| bits >> at & 1 == 1).map(|at| gpus[at]).collect())
}

fn all_reduce(topology: &Topology, gpus: &[GpuIndex]) -> Fraction {
    let request = PlanRequest { gpus: Some(gpus.to_vec()), ..Default::default() };
    let bound = Model::new(topology, &request)
        .ok()
        .and_then(|model| bound::all_reduce(model.bound_graph()).ok());
    bound.map_or(Fraction::ZERO, |bound| bound.algbw)
}

fn left(topology: &Topology, taken: &[GpuIndex]) -> u64 {
    let stays: Vec<_> = topology
        .gpus()
        .iter()
        .filter(|id| !matches!(topology.vertex(**id).kind, VertexKind::Gpu { index } if taken.contains(&index)))
        .collect();
    let pair = |a, b| topology.path(a, b).bottleneck.kbps();
    (0..stays.len())
        .flat_map(|a| (0..a).map(move |b| (b, a)))
        .map(|(a, b)| pair(*stays[a], *stays[b]))
        .sum()
}

#[test]
fn no_set_is_better_on_any_machine_of_up_to_ten() {
    let Some(files) = corpus("nccl-model") else { return };
    let (mut machines, mut selections) = (0, 0);
    for path in files {
        let hosts = loaded(&path).expect("a model board loads");
        let topology = lower(&hosts, RateModel::Effective).expect("and lowers");
        let gpus: Vec<GpuIndex> = topology
            .gpus()
            .iter()
            .filter_map(|id| match topology.vertex(*id).kind {
                VertexKind::Gpu { index } => Some(index),
                _ => None,
            })
            .collect();
        if gpus.len() > 10 || topology.hosts().len() > 1 {
            continue;
        }
        machines += 1;
        for count in 1..=u32::try_from(gpus.len()).unwrap() {
            let found =
                select::select(&topology, count as usize, None, LinkPolicy::Auto).expect("a set");
            assert!(found.exhaustive);
            let Worth { all_reduce: reached, rest } = found.best.worth;
            assert_eq!(reached, all_reduce(&topology, &found.best.gpus));
            assert_eq!(rest.left, left(&topology, &found.best.gpus));
            for set in sets(&gpus, count) {
                let other = (all_reduce(&topology, &set), left(&topology, &set));
                assert!(
                    other <= (reached, rest.left),
                    "{}: {count} GPUs: {set:?} are worth {other:?}, {:?} {reached:?} and {}",
                    path.display(),
                    found.best.gpus,
                    rest.left
                );
            }
            selections += 1;
        }
    }
    eprintln!("{selections} selections on {machines} machines, none beaten");
    assert!(machines > 50, "only {machines}");
}

#[test]
fn select_on_the_command_line() {
    let machine = dgx1v();
    let select = |arguments: &[&str], exit| {
        let mut all = vec!["select", "--from", &machine];
        all.extend(arguments);
        all.extend(["-o", "json"]);
        check_json(&all, "", exit)
    };
    let pair = select(&["2"], 0);
    let indices = |row: &serde_json::Value| -> Vec<u64> {
        row["gpus"].as_array().unwrap().iter().map(|g| g["index"].as_u64().unwrap()).collect()
    };
    assert_eq!(indices(&pair["best"]), [0, 3]);
    assert_eq!(pair["exhaustive"], true);
    assert_eq!(pair["sets"], 28);
    assert_eq!(pair["left"].as_array().unwrap().len(), 6);
    let of_free = select(&["2", "--free", "1,4,7"], 0);
    assert_eq!(indices(&of_free["best"]), [4, 7]);
    for (arguments, exit) in [
        (&["9"][..], 7),
        (&["2", "--free", "1"], 7),
        (&["0"], 2),
        (&["2", "--free", "1,1,2"], 2),
        (&["2", "--free", "1,8"], 2),
        (&["2", "--hosts", "2"], 2),
    ] {
        let mut all = vec!["select", "--from", &machine];
        all.extend(arguments);
        check(&all, "", exit);
    }
    let text = check(&["select", "--from", &machine, "4"], "", 0);
    assert!(text.starts_with("GPU0, GPU1, GPU2, GPU3\n"), "{text}");
    assert!(text.contains("of 70 sets none can reach more"), "{text}");
}
