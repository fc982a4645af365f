//! A plan file alone suffices to add up every link's load: a script that knows nothing of these crates does so.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use topology::formats::{plan_json, write_link_graph};
use topology::{Collective, PlanRequest};

/// Runs the script; `None`, said aloud, where there is no Python.
fn script(arguments: &[&Path]) -> Option<Output> {
    let script = crate::workspace_root().join("tests/scripts/link_loads.py");
    match Command::new("python3").arg(script).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: python3: {error}");
            None
        }
    }
}

fn plan_of(graph: topology::snapshot::LinkGraph) -> topology::Plan {
    let name = graph.name.clone();
    let topology = tests::bars::topology(graph).expect("a graph of the bars is sound");
    let request =
        PlanRequest { collectives: vec![Collective::AllGather], ..PlanRequest::default() };
    planner::plan(&topology, &request).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_plan_adds_up_from_its_file() {
    let Some(cases) = super::present(tests::bars::optima()) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let mut arguments = Vec::new();
    let mut expected = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let plan = plan_of(case.graph.clone());
        let file = |kind: &str| folder.path().join(format!("{number}.{kind}.json"));
        fs::write(file("plan"), plan_json::write(&plan, None)).expect("written");
        fs::write(file("graph"), write_link_graph(&case.graph)).expect("written");
        arguments.extend([file("plan"), "--graph".into(), file("graph")]);
        let best = plan.collectives[&Collective::AllGather].best.as_ref().expect("a best");
        expected.push((file("plan").display().to_string(), best.algbw_gbps, case));
    }
    let arguments: Vec<&Path> = arguments.iter().map(AsRef::as_ref).collect();
    let Some(output) = script(&arguments) else { return };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut short = Vec::new();
    for (file, best, case) in &expected {
        // The script's own sum, exactly.
        let line = format!("{file}: all-gather {:.6} GB/s = {best}", best.to_f64());
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        if best.to_f64() < 0.99 * case.all_gather {
            short.push(format!("{}: {:.3} of {}", case.graph.name, best.to_f64(), case.all_gather));
        }
    }
    eprintln!(
        "{} plans add up; below 99 % of the optimum: {}",
        expected.len(),
        if short.is_empty() { "none".into() } else { short.join(", ") }
    );
}

/// A script that agrees with everything would show nothing.
#[test]
fn a_wrong_file_does_not_add_up() {
    let graph = topology::snapshot::LinkGraph {
        name: "square".into(),
        gpus: ["a", "b", "c", "d"].map(String::from).into(),
        switches: Vec::new(),
        links: [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]
            .into_iter()
            .flat_map(|(a, b)| [(a, b), (b, a)])
            .map(|(a, b)| (a.into(), b.into(), topology::Bandwidth::from_mbps(10_000)))
            .collect(),
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (plan_file, graph_file) = (folder.path().join("plan"), folder.path().join("graph"));
    let plan = plan_json::write(&plan_of(graph.clone()), None);
    let graph: Value = serde_json::from_str(&write_link_graph(&graph)).expect("JSON");
    let plan: Value = serde_json::from_str(&plan).expect("JSON");
    let check = |change: &dyn Fn(&mut Value, &mut Value), exit: i32, part: &str| {
        let (mut plan, mut graph) = (plan.clone(), graph.clone());
        change(&mut plan, &mut graph);
        fs::write(&plan_file, plan.to_string()).expect("written");
        fs::write(&graph_file, graph.to_string()).expect("written");
        let Some(output) = script(&[&plan_file, Path::new("--graph"), &graph_file]) else { return };
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit), "{part}: {stderr}");
        assert!(stderr.contains(part), "{part}: {stderr}");
    };
    check(&|_, _| (), 0, "");
    check(&|_, graph| graph["links"][0][2] = 9.5.into(), 1, "a to b carries 10 of 19/2 GB/s");
    check(
        &|_, graph| {
            for link in graph["links"].as_array_mut().expect("links") {
                link[2] = 11.into();
            }
        },
        1,
        "no link is full",
    );
    check(
        &|_, graph| drop(graph["links"].as_array_mut().expect("links").remove(0)),
        1,
        "no link from a to b",
    );
    check(
        &|plan, _| plan["collectives"]["all-gather"]["best"]["exact"] = "27".into(),
        1,
        "the plan says 27",
    );
    check(
        &|plan, _| drop(plan["channels"].as_array_mut().expect("channels").remove(0)),
        1,
        "shares do not add up to 1",
    );
    check(&|plan, _| plan["channels"][0]["exact_gbps"] = "9".into(), 1, "different speeds");
    check(&|plan, _| plan["channels"] = 7.into(), 2, "TypeError");
}
