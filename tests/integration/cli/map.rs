//! `topoctl map`, and plans by class, as their users run them.

use serde_json::Value;

use super::{check, check_json, dgx1v, topoctl};

fn fixture(name: &str) -> String {
    let path = format!("tests/fixtures/machines/{name}.json");
    crate::workspace_root().join(path).display().to_string()
}

#[test]
fn every_rank_has_a_gpu_and_a_place_in_the_mesh() {
    let from = fixture("dgx_h100");
    let arguments = [
        "map", "--from", &from, "--hosts", "4", "--tp", "4", "--pp", "2", "--dp", "2", "--cp", "2",
        "--ep", "2", "-o", "json",
    ];
    let mapped = check_json(&arguments, "", 0);
    for key in [
        "schema_version",
        "fingerprint",
        "job",
        "order",
        "ranks",
        "mesh",
        "axes",
        "step",
        "identity",
        "alternatives",
        "exhaustive",
        "traffic",
        "warnings",
        "assumptions",
    ] {
        assert!(!mapped[key].is_null(), "{key}");
    }
    let ranks = mapped["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 32);
    let mut places = std::collections::BTreeSet::new();
    for (at, rank) in ranks.iter().enumerate() {
        let number = |key: &str| usize::try_from(rank[key].as_u64().unwrap()).unwrap();
        assert_eq!(number("rank"), at);
        assert!(places.insert((number("host"), number("gpu"))));
        let cell = &mapped["mesh"][number("pp")][number("dp")][number("cp")][number("tp")];
        assert_eq!(cell.as_u64(), Some(at as u64));
        assert_eq!(number("ep"), (number("dp") * 2 + number("cp")) % 2);
    }
    let names: Vec<&str> = mapped["axes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|axis| axis["axis"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["tp", "cp", "ep", "dp", "expert-dp", "pp"]);
    assert_eq!(mapped["axes"][0]["tier"], "gpu-links");
    let text = check(&arguments[..arguments.len() - 2], "", 0);
    assert!(
        text.contains("CUDA_VISIBLE_DEVICES") && text.contains("Pipeline bubble: 12.5 %"),
        "{text}"
    );
}

#[test]
fn exit_codes_of_map() {
    let from = dgx1v();
    let usage = |more: &[&str], says: &str| {
        let arguments = [&["map", "--from", &from][..], more].concat();
        let output = topoctl(&arguments, "");
        assert_eq!(output.status.code(), Some(2), "{more:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(says), "{text}");
    };
    usage(&["--tp", "3"], "no multiple");
    usage(&["--tp", "2", "--dp", "2"], "4 ranks, and there are 8 GPUs");
    usage(&["--tp", "2", "--ep", "3"], "does not divide");
    for axis in ["--tp", "--cp", "--dp", "--pp", "--ep"] {
        usage(&[axis, "0"], "at least one rank");
        usage(&[axis, "0", "--dp", "8"][..if axis == "--dp" { 2 } else { 4 }], "at least one rank");
    }
    let most = u64::MAX.to_string();
    usage(&["--tp", &most, "--pp", &most], "no multiple");
    usage(&["--tp", "2", "--dp", &most], "there are 8 GPUs");
    usage(&["--gpus", "0,1", "--tp", "4", "--dp", "1"], "4 ranks, and there are 2 GPUs");
    usage(&["--gpus", "0,9", "--tp", "2"], "no GPU9");
    // A tensor parallel group over two hosts is worth a warning.
    let arguments = ["map", "--from", &from, "--hosts", "2", "--tp", "16", "-o", "json"];
    let mapped = check_json(&arguments, "", 3);
    let codes: Vec<&str> = mapped["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w["code"].as_str().unwrap())
        .collect();
    assert!(codes.contains(&"tp-group-leaves-nvlink-domain"), "{codes:?}");
}

#[test]
fn given_bytes_and_computing_change_what_is_exposed() {
    let from = dgx1v();
    let step = |more: &[&str]| -> Value {
        let arguments =
            [&["map", "--from", &from, "--tp", "2", "--pp", "2", "-o", "json"][..], more].concat();
        check_json(&arguments, "", 0)["step"].clone()
    };
    let us = |step: &Value, key: &str| step[key].as_f64().unwrap();
    let (derived, given) = (step(&[]), step(&["--bytes-tp", "1KiB", "--bytes-dp", "0"]));
    assert!(us(&given, "communication_us") < us(&derived, "communication_us"));
    assert!(derived["step_us"].is_null() && derived["bubble_us"].is_null());
    // Sizes that nothing has are no reason to end otherwise.
    step(&["--hidden", &u64::MAX.to_string(), "--layers", &u64::MAX.to_string(), "--tflops", "1"]);
    let known = step(&["--tflops", "50"]);
    assert!(us(&known, "exposed_us") < us(&known, "communication_us"));
    assert!(us(&known, "step_us") > us(&known, "bubble_us"));
}

#[test]
fn plans_by_class_are_made_and_verified() {
    let from = fixture("dgx_a100");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json").display().to_string();
    let text = check(&["plan", "--from", &from, "--hosts", "1024", "-o", "json"], "", 0);
    let plan: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(plan["hosts"], serde_json::json!([{ "class": 0, "count": 1024 }]));
    std::fs::write(&path, &text).unwrap();
    assert!(check(&["verify", &path, "--from", &from], "", 0).starts_with("valid"));
    let other = fixture("dgx_h100");
    let wrong = check(&["verify", &path, "--from", &other], "", 4);
    assert!(wrong.contains("no host given has the fingerprint"), "{wrong}");
    let reached = plan["collectives"]["all-reduce"]["algbw_gbps"].as_f64().unwrap();
    let lie = text.replacen("\"exact_algbw\": \"", "\"exact_algbw\": \"1", 1);
    assert!(reached > 0.0 && lie != text);
    std::fs::write(&path, lie).unwrap();
    assert!(check(&["verify", &path, "--from", &from], "", 4).contains("are claimed"));
    let shown = check(&["plan", "--from", &from, "--hosts", "2", "--by-class"], "", 0);
    assert!(shown.contains("16 ranks on 2 hosts of 1 class"), "{shown}");
    check(&["plan", "--from", &from, "--hosts", "64", "--collective", "broadcast"], "", 2);
    check(&["plan", "--from", &from, "--by-class", "--gpus", "0,1"], "", 2);
}
