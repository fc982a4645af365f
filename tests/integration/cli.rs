//! topoctl as its users run it: a process, its output, its exit code.
#![expect(
    clippy::print_stderr,
    reason = "skips and counts are for whoever reads the test's output"
)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use topology::{Collective, Rank, formats, msccl, nccl_graph};

mod calibration;
mod corpus;
mod inputs;
mod map;
mod nccl;
mod select;
mod verdicts;

/// Four GPUs in a ring of links both ways, as a link graph.
const SQUARE: &str = r#"{"schema_version":1,"name":"square","gpus":["a","b","c","d"],"switches":[],
"links":[["a","b",10],["b","a",10],["b","c",10],["c","b",10],["c","d",10],["d","c",10],["d","a",10],["a","d",10]]}"#;

/// Two GPUs that nothing joins.
const APART: &str =
    r#"{"schema_version":1,"name":"apart","gpus":["a","b"],"switches":[],"links":[]}"#;

/// A host without GPUs.
const NO_GPU: &str = r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1"/></system>"#;

/// A healthy pair, and the same with one link lost on one side.
pub(crate) const PAIR: &str = r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
<pci busid="0000:01:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="80"><nvlink target="0000:02:00.0" count="4"/></gpu></pci>
<pci busid="0000:02:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="1" sm="80"><nvlink target="0000:01:00.0" count="4"/></gpu></pci>
</cpu></system>"#;

pub(crate) fn topoctl(arguments: &[&str], stdin: &str) -> Output {
    let mut process = Command::new(crate::programs::topoctl())
        .args(arguments)
        .env_remove("TOPOD_SOCKET")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("topoctl starts");
    // A command that reads no stdin may be gone before it is written.
    let _ = process.stdin.take().expect("piped").write_all(stdin.as_bytes());
    process.wait_with_output().expect("topoctl ends")
}

/// Runs and compares the exit code; what went to stdout.
#[track_caller]
pub(crate) fn check(arguments: &[&str], stdin: &str, exit: i32) -> String {
    let output = topoctl(arguments, stdin);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {stderr}");
    if exit == 2 || exit == 6 || exit == 7 {
        assert!(output.stdout.is_empty(), "{arguments:?}: data on stdout beside a failure");
        assert!(!stderr.trim().is_empty(), "{arguments:?}: a failure without a word");
    }
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
pub(crate) fn check_json(arguments: &[&str], stdin: &str, exit: i32) -> Value {
    serde_json::from_str(&check(arguments, stdin, exit)).expect("JSON")
}

pub(crate) fn dgx1v() -> String {
    crate::workspace_root().join("tests/fixtures/dgx1v/snapshot.json").display().to_string()
}

#[test]
fn exit_codes() {
    check(&["show", "--from", "-"], SQUARE, 0);
    check(&["show", "--from", "no/such/file"], "", 2);
    check(&["show", "--from", "-"], "neither this nor that", 2);
    check(&["show", "--no-such-flag"], "", 2);
    check(&["explain", "--from", "-", "a", "z"], SQUARE, 2);
    check(&["plan", "--from", "-", "--collective", "allreduce"], SQUARE, 2);
    check(&["show", "--from", "-", "--hosts", "0"], SQUARE, 2);
    check(&["plan", "--from", "-"], APART, 7);
    check(&["plan", "--from", "-", "--gpus", "0,9"], SQUARE, 2);
    check(&["plan", "--from", "-", "--gpus", "0,0"], SQUARE, 2);
    check(&["check", "--from", "-"], PAIR, 0);
    // Nothing is known to be good about a host that shows no GPU.
    check(&["check", "--from", "-"], NO_GPU, 5);
    check(&["plan", "--from", "-"], NO_GPU, 7);
    let lost = PAIR.replacen("count=\"4\"", "count=\"3\"", 1);
    check(&["plan", "--from", "-"], PAIR, 0);
    check(&["plan", "--from", "-"], &lost, 3);
    check(&["bench", "all-reduce", "--ranks", "2", "--from", "-", "--sizes", "9999G"], PAIR, 2);
    check(&["check", "--from", "-"], &lost, 3);
    check(&["check", "--from", "-", "--fail-on", "critical"], &lost, 0);
    check(&["check", "--from", "-", "-o", "nagios"], &lost, 1);
    // A width nobody states is a fact not read, and a fact not read is never good.
    check(
        &["check", "--from", "-"],
        &PAIR.replacen(" link_width=\"16\"", " link_width=\"odd\"", 1),
        5,
    );
    check(&["status", "--socket", "/no/such/socket"], "", 6);
    check(&["show", "--socket", "/no/such/socket"], "", 6);
    assert!(check(&["--help"], "", 0).contains("Exit codes"));
}

#[test]
fn a_dgx1v_has_its_known_rings() {
    let plan = check_json(&["plan", "--from", &dgx1v(), "-o", "json"], "", 0);
    let rings: Vec<(f64, Vec<u64>)> = plan["channels"]
        .as_array()
        .expect("channels")
        .iter()
        .filter(|channel| channel["pattern"] == "ring")
        .map(|channel| {
            let ranks = channel["ranks"]
                .as_array()
                .expect("ranks")
                .iter()
                .filter_map(Value::as_u64)
                .collect();
            (channel["gbps"].as_f64().expect("a rate"), ranks)
        })
        .collect();
    assert_eq!(rings.iter().map(|(gbps, _)| gbps).sum::<f64>(), 120.0, "{rings:?}");
    for collective in ["all-gather", "all-reduce"] {
        assert_eq!(plan["collectives"][collective]["best"]["optimal"], true, "{collective}");
    }
    assert_eq!(plan["collectives"]["all-reduce"]["bound"]["exact"], "480/7");
    assert_eq!(plan["collectives"]["all-gather"]["bound"]["exact"], "960/7");
}

#[test]
fn equal_inputs_give_equal_plans() {
    let plan = || {
        let mut plan = check_json(&["plan", "--from", &dgx1v(), "-o", "json"], "", 0);
        plan.as_object_mut().expect("an object").remove("planning_us");
        plan.to_string()
    };
    assert_eq!(plan(), plan());
}

#[test]
fn a_plan_file_is_verified_and_a_changed_one_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.json");
    let text = check(&["plan", "--from", &dgx1v(), "-o", "json"], "", 0);
    let verify = |text: &str, exit| {
        fs::write(&file, text).expect("written");
        check(&["verify", &file.display().to_string(), "--from", &dgx1v()], "", exit)
    };
    assert!(verify(&text, 0).starts_with("valid"));
    let mut plan: Value = serde_json::from_str(&text).expect("JSON");
    plan["channels"][0]["share"] = "1/2".into();
    assert!(verify(&plan.to_string(), 4).starts_with("not valid"));
    let mut plan: Value = serde_json::from_str(&text).expect("JSON");
    plan["channels"][0]["edges"][0]["to"] = 7.into();
    assert!(verify(&plan.to_string(), 4).starts_with("not valid"));
    let mut plan: Value = serde_json::from_str(&text).expect("JSON");
    plan["collectives"]["all-reduce"]["best"]["algbw_gbps"] = 999.into();
    assert!(verify(&plan.to_string(), 4).contains("says 999"));
    verify("{}", 2);
}

#[test]
fn pictures_name_every_device() {
    for format in ["dot", "svg"] {
        let picture = check(&["show", "--from", &dgx1v(), "-o", format], "", 0);
        for name in ["GPU0", "GPU7", "numa0", "numa1", "fabric"] {
            assert!(picture.contains(name), "{format}: {name}");
        }
    }
    let yaml = check(&["show", "--from", &dgx1v(), "-o", "yaml"], "", 0);
    assert!(yaml.contains("schema_version: 1"), "{yaml}");
}

#[test]
fn explain_names_the_limit() {
    let explanation =
        check_json(&["explain", "--from", &dgx1v(), "GPU0", "GPU7", "-o", "json"], "", 0);
    assert_eq!(explanation["class"], "SYS");
    let limit =
        usize::try_from(explanation["limiting_hop"].as_u64().expect("a hop")).expect("small");
    assert_eq!(explanation["hops"][limit]["kind"], "socket link");
    let direct = check_json(&["explain", "--from", &dgx1v(), "GPU0", "GPU3", "-o", "json"], "", 0);
    assert_eq!(direct["class"], "NV2");
}

#[test]
fn a_change_is_planned_beside_the_machine_as_it_is() {
    let plan = |what_if: &[&str], exit: i32| {
        let from = dgx1v();
        let mut arguments = vec!["plan", "--from", &from, "-o", "json"];
        arguments.extend(["--collective", "all-gather,all-reduce"]);
        arguments.extend(what_if.iter().flat_map(|change| ["--what-if", change]));
        check(&arguments, "", exit)
    };
    let as_it_is: Value = serde_json::from_str(&plan(&[], 0)).expect("JSON");
    assert!(as_it_is["what_if"].is_null() && as_it_is["topology"]["what_if"].is_null());
    // Two bricks between GPU 0 and 3: without them 80 GB/s enter either, so 4/3 as much of rings goes and all-gather falls
    // from 960/7 to 640/7.
    let text = plan(&["remove GPU0-GPU3"], 0);
    let changed: Value = serde_json::from_str(&text).expect("JSON");
    let row = &changed["what_if"]["collectives"]["all-gather"];
    assert_eq!(row["before"]["bound_exact"], "960/7");
    assert_eq!(row["after"]["bound_exact"], "640/7");
    assert_eq!(row["before"]["best_exact"], as_it_is["collectives"]["all-gather"]["best"]["exact"]);
    assert_eq!(row["after"]["best_exact"], changed["collectives"]["all-gather"]["best"]["exact"]);
    assert_eq!(changed["topology"]["what_if"][0], "remove GPU0-GPU3");
    assert_eq!(changed["what_if"]["fingerprint_before"], as_it_is["topology"]["fingerprint"]);
    let assumptions = changed["assumptions"].as_array().expect("a list");
    assert!(assumptions.contains(&"what if: remove GPU0-GPU3".into()), "{assumptions:?}");
    // The file says of which machine it is, so the checker needs nothing more.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.json");
    fs::write(&file, &text).expect("written");
    let verify = ["verify", &file.display().to_string(), "--from", &dgx1v()];
    assert!(check(&verify, "", 0).starts_with("valid"));
    let mut other = changed.clone();
    other["topology"]["what_if"][0] = "remove GPU0-GPU1".into();
    fs::write(&file, other.to_string()).expect("written");
    check(&verify, "", 4);
    other["topology"]["what_if"][0] = "remove GPU0-GPU99".into();
    fs::write(&file, other.to_string()).expect("written");
    check(&verify, "", 2);
    // Taken back, it is the machine as it is.
    let back: Value =
        serde_json::from_str(&plan(&["remove GPU0-GPU3 x1", "add GPU0-GPU3"], 0)).expect("JSON");
    assert_eq!(back["topology"]["fingerprint"], as_it_is["topology"]["fingerprint"]);
}

#[test]
fn changes_that_cannot_be_are_refused() {
    let from = dgx1v();
    for change in ["remove GPU0-GPU9", "slow GPU0-GPU3 to 99GB/s", "perhaps", "move GPU0 to GPU1"] {
        let output = topoctl(&["plan", "--from", &from, "--what-if", change], "");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{change}: {stderr}");
        assert!(stderr.contains(&format!("--what-if '{change}': ")), "{stderr}");
    }
    // A machine with a plan may have none afterwards, and the other way round.
    check(
        &["plan", "--from", "-", "--what-if", "remove a-b", "--what-if", "remove d-a"],
        SQUARE,
        7,
    );
    let joined = check(&["plan", "--from", "-", "--what-if", "add a-b 10GB/s"], APART, 0);
    assert!(joined.contains("The machine as it is has no plan"), "{joined}");
}

#[test]
fn a_changed_path_stands_beside_the_one_there_is() {
    let from = dgx1v();
    let arguments =
        ["explain", "--from", &from, "GPU0", "GPU3", "--what-if", "remove GPU0-GPU3", "-o", "json"];
    let explanation = check_json(&arguments, "", 0);
    assert_eq!(explanation["what_if"]["before"]["class"], "NV2");
    assert_ne!(explanation["class"], "NV2");
    let text = check(&arguments[..7], "", 0);
    assert!(text.contains("What if: remove GPU0-GPU3") && text.contains("As it is: NV2"), "{text}");
}

#[test]
fn explained_plans_say_what_would_help() {
    // A square in which one link is half as fast as the others.
    let square = SQUARE.replace(r#"["a","b",10],["b","a",10]"#, r#"["a","b",5],["b","a",5]"#);
    let arguments =
        ["plan", "--from", "-", "--explain", "--collective", "all-gather", "-o", "json"];
    let plan = check_json(&arguments, &square, 0);
    let explanation = &plan["explanation"];
    let best = &explanation["single_changes"]["gains"][0];
    assert_eq!(best["changes"][0], "add a-b");
    let change = &best["collectives"]["all-gather"];
    assert_eq!(
        change["bound_before_gbps"],
        plan["collectives"]["all-gather"]["bound"]["algbw_gbps"]
    );
    assert!(change["best_after_gbps"].as_f64() > change["best_before_gbps"].as_f64(), "{change}");
    assert!(
        explanation["collectives"]["all-gather"]["full_links"]
            .as_array()
            .is_some_and(|l| !l.is_empty())
    );
    let text = check(&arguments[..6], &square, 0);
    assert!(text.contains("Why these channels:") && text.contains("  add a-b"), "{text}");
    // A plan file with an explanation is a plan file.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.json");
    fs::write(&file, plan.to_string()).expect("written");
    check(&["verify", &file.display().to_string(), "--from", "-"], &square, 0);
}

#[test]
fn a_snapshot_shows_the_same_machine() {
    let show = |arguments: &[&str], stdin: &str| check_json(arguments, stdin, 0);
    let snapshot = check(&["snapshot", "--from", "-"], PAIR, 0);
    let direct = show(&["show", "--from", "-", "-o", "json"], PAIR);
    assert_eq!(direct, show(&["show", "--from", "-", "-o", "json"], &snapshot));
}

/// What hides is a share, whatever the machine does meanwhile.
#[test]
fn a_benchmark_tells_what_hides_behind_work() {
    for collective in ["all-reduce", "all-gather", "reduce-scatter", "broadcast"] {
        let from = dgx1v();
        let sizes = ["--sizes", "64,64K", "--min-time", "1", "-o", "json", "--overlap"];
        let all = [&["bench", collective, "--ranks", "2", "--from", &from][..], &sizes].concat();
        let report = check_json(&all, "", 0);
        for result in report["results"].as_array().expect("results") {
            let hidden = result["hidden_share"].as_f64().expect("a share");
            assert!((0.0..=1.0).contains(&hidden), "{collective}: {result}");
        }
    }
}

#[test]
fn a_protocol_decides_the_way_of_small_messages() {
    let from = dgx1v();
    let arguments = |protocol: &'static str| {
        let start = ["bench", "all-reduce", "--from", &from, "--protocol", protocol];
        let sizes = ["--ranks", "2", "--sizes", "8", "--min-time", "1", "-o", "json"];
        [&start[..], &sizes].concat()
    };
    for (protocol, path) in [("LL", "flat"), ("Simple", "staged"), ("^LL", "staged")] {
        let report = check_json(&arguments(protocol), "", 0);
        assert_eq!(report["results"][0]["path"], path, "{protocol}");
    }
    check(&arguments("UDP"), "", 2);
}

#[test]
fn every_element_of_a_benchmark_is_right() {
    for (ranks, transport) in [("2", "shm"), ("4", "tcp"), ("8", "shm"), ("3", "auto")] {
        let arguments = [
            "bench",
            "all-reduce",
            "--ranks",
            ranks,
            "--transport",
            transport,
            "--from",
            &dgx1v(),
            "--sizes",
            "8,4000,1MiB",
            "--min-time",
            "1",
            "-o",
            "json",
        ];
        let report = check_json(&arguments, "", 0);
        let results = report["results"].as_array().expect("results");
        assert_eq!(results.len(), 3);
        for result in results {
            assert_eq!(result["wrong"], 0, "{ranks} ranks over {transport}: {result}");
            assert!(
                result["operations"].as_u64() >= Some(20) && result["time_us"].as_f64() > Some(0.0),
                "{result}"
            );
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let peer = r#"{"tag":"other","op":"allreduce","ranks":3,"bytes":4000,"us":7.5}"#;
    fs::write(path("peer"), peer).expect("written");
    let ways: [&[&str]; 4] = [
        &["--placement", "out", "--element", "bf16", "--op", "max"],
        &["--registered", "--element", "i64", "--pin"],
        &["--by-plan", "--op", "avg"],
        &["--cold", "--transport", "tcp"],
    ];
    for (at, collective) in Collective::ALL.iter().enumerate() {
        // All ways for one, one way for all.
        let all = *collective == Collective::AllReduce;
        for how in ways.iter().enumerate().filter(|(way, _)| all || at % 4 == *way) {
            let how = *how.1;
            let (peer, svg) = (path("peer"), path("plot"));
            let mut arguments = vec!["bench", collective.as_str(), "--ranks", "3"];
            let from = dgx1v();
            arguments.extend(["--sizes", "24,4000,96K", "--min-time", "1", "-o", "json"]);
            arguments.extend(["--from", &from, "--peer", &peer, "--svg", &svg]);
            arguments.extend(how);
            let report = check_json(&arguments, "", 0);
            let results = report["results"].as_array().expect("results");
            assert_eq!(results.len(), if *collective == Collective::Barrier { 1 } else { 3 });
            for result in results {
                assert_eq!(result["wrong"], 0, "{collective} {how:?}: {result}");
            }
            if *collective == Collective::AllReduce && how.contains(&"out") {
                assert_eq!(results[1]["peer_us"], 7.5);
            }
            let drawn = fs::read_to_string(&svg).expect("a plot");
            assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n"));
        }
    }
    let refused = |arguments: &[&str], code| {
        let from = dgx1v();
        let all = [&["bench"][..], arguments, &["--ranks", "2", "--from", &from]].concat();
        check(&all, "", code);
    };
    refused(&["all-to-all", "--overlap"], 2);
    refused(&["all-to-all", "--placement", "in"], 2);
    refused(&["all-reduce", "--op", "and"], 2);
    refused(&["all-reduce", "--element", "f8"], 2);
    refused(&["all-reduce", "--peer", "/nowhere"], 2);
    check(&["bench", "all-reduce", "--ranks", "9", "--from", &dgx1v()], "", 7);
    check(&["bench", "all-reduce", "--sizes", "6", "--from", &dgx1v()], "", 2);
}

#[test]
fn exports_are_read_back() {
    let graph = check(&["export", "--format", "nccl-graph", "--from", &dgx1v()], "", 0);
    let file = nccl_graph::read(graph.as_bytes()).expect("NCCL's dialect");
    let ring = &file.graphs[0];
    assert_eq!((ring.channels.len(), ring.speed_intra.to_string().as_str()), (6, "20"));
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
        let text = check(
            &[
                "export",
                "--format",
                "msccl",
                "--collective",
                collective.as_str(),
                "--from",
                &dgx1v(),
            ],
            "",
            0,
        );
        let schedule = msccl::read(text.as_bytes()).expect("MSCCL's XML");
        planner::check::schedule(&schedule, 2).expect("a schedule that gives the right result");
    }
    let text = check(
        &["export", "--format", "msccl", "--collective", "broadcast", "--from", &dgx1v()],
        "",
        0,
    );
    let mut schedule = msccl::read(text.as_bytes()).expect("MSCCL's XML");
    schedule.root = Some(Rank(0));
    planner::check::schedule(&schedule, 2).expect("a schedule that gives the right result");
}

/// A folder of the corpus; `None`, said aloud, where the corpus is absent.
fn corpus(folder: &str) -> Option<Vec<PathBuf>> {
    let root = std::env::var_os("TOPOD_CORPUS")
        .map_or_else(|| crate::workspace_root().join("../shared/corpus"), PathBuf::from);
    let Ok(entries) = fs::read_dir(root.join(folder)) else {
        eprintln!("skipped: no corpus at {}", root.display());
        return None;
    };
    let mut files: Vec<PathBuf> =
        entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{folder} is empty");
    Some(files)
}

/// The snapshots of a file, where it is one that loads.
fn loaded(path: &Path) -> Option<Vec<topology::Snapshot>> {
    formats::read(&fs::read(path).expect("readable")).ok()
}
