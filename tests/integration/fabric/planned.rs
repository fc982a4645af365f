//! Plans and maps over a network that a file tells.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::cli::topoctl;

/// Hosts a to d with NICs `mlx5_0` to `mlx5_3`, a and c at leaf-1, b and d at leaf-2, and one cable from each leaf to the spine.
fn network() -> String {
    let mut text = String::new();
    for (leaf, hosts) in [(1, ["a", "c"]), (2, ["b", "d"])] {
        let _ = writeln!(text, "Switch 40 \"S-{leaf}\" # \"leaf-{leaf}\"");
        for (port, (host, nic)) in (1..).zip(hosts.iter().flat_map(|h| (0..4).map(move |n| (h, n))))
        {
            let _ =
                writeln!(text, "[{port}] \"H-{host}{nic}\"[1] # \"{host} mlx5_{nic}\" lid 1 4xEDR");
        }
        let _ = writeln!(text, "[40] \"S-9\"[{leaf}] # \"spine\" lid 1 4xEDR");
    }
    text + "Switch 2 \"S-9\" # \"spine\"\n[1] \"S-1\"[40] # \"leaf-1\" lid 1 4xEDR\n[2] \"S-2\"[40] # \"leaf-2\" lid 1 4xEDR\n"
}

struct Files {
    folder: tempfile::TempDir,
    machine: String,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("net"), network()).expect("written");
        let machines = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/machines");
        Self { folder, machine: machines.join("dgx1v.json").display().to_string() }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Four copies of the machine in the network, called `names`.
    fn run(&self, verb: &[&str], names: &[&str]) -> (String, String, i32) {
        let net = self.path("net");
        let mut all = verb.to_vec();
        all.extend(["--from", &self.machine, "--hosts", "4", "--fabric", &net]);
        if !names.is_empty() {
            all.extend(["--fabric-hosts"].iter().chain(names));
        }
        let output = topoctl(&all, "");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr), output.status.code().expect("no signal"))
    }
}

#[test]
fn a_plan_keeps_to_the_cables_that_are_there() {
    let files = Files::new();
    let ask = ["plan", "--collective", "all-gather", "-o", "json"];
    let (plan, error, code) = files.run(&ask, &["a,b,c,d"]);
    assert_eq!(code, 0, "{error}");
    let json: Value = serde_json::from_str(&plan).expect("JSON");
    // Half of everything crosses a cable of 12.5 GB/s each way.
    let of = &json["collectives"]["all-gather"];
    assert_eq!(of["bound"]["exact"], "25", "{of}");
    assert!(of["bound"]["limited_by"].to_string().contains("fabric:leaf-"), "{of}");
    assert!(of["best"]["algbw_gbps"].as_f64().expect("a number") >= 24.75, "{of}");
    let path = files.path("plan.json");
    std::fs::write(&path, &plan).expect("written");
    let (report, _, code) = files.run(&["verify", &path], &["a,b,c,d"]);
    assert_eq!(code, 0, "{report}");
    // Without the network, or with the hosts elsewhere in it, it is a plan of another topology.
    let (report, _, code) = files.run(&["verify", &path], &["a,c,b,d"]);
    assert_eq!(code, 4, "{report}");
    let output = topoctl(&["verify", &path, "--from", &files.machine, "--hosts", "4"], "");
    assert_eq!(output.status.code(), Some(4));
}

#[test]
fn a_map_tells_where_groups_meet() {
    let files = Files::new();
    let sizes = "--hidden 8192 --layers 80 --sequence 4096 --batch 64".split(' ');
    let job: Vec<&str> = "map --tp 16 --pp 2".split(' ').chain(sizes).collect();
    let (text, error, code) = files.run(&[&job[..], &["-o", "json"]].concat(), &["a,b,c,d"]);
    assert!([0, 3].contains(&code), "{error}");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let network = &json["network"];
    assert_eq!(network["levels"], serde_json::json!(["leaf", "tier 2"]));
    let axis = |name: &str| {
        let axes = network["axes"].as_array().expect("axes");
        axes.iter().find(|axis| axis["axis"] == name).expect("the axis")["by_level"].clone()
    };
    // A group of 16 has two hosts; those that follow each other are at different leaves. Stages send less.
    assert_eq!(axis("tp"), serde_json::json!([0, 2]));
    assert_eq!(network["closer"], serde_json::json!(["a", "c", "b", "d"]));
    let (text, _, _) = files.run(&job, &["a,c,b,d"]);
    assert!(
        text.contains("Groups by where their hosts meet") && !text.contains("closer with"),
        "{text}"
    );
}

#[test]
fn hosts_that_the_network_does_not_know_are_refused() {
    let files = Files::new();
    let check = |names: &[&str], said: &str| {
        let (out, error, code) = files.run(&["plan"], names);
        assert_eq!((code, out.as_str()), (2, ""), "{error}");
        assert!(error.contains(said), "expected '{said}' in '{error}'");
    };
    check(&[], "name them in rank order with --fabric-hosts");
    check(&["a,b"], "names 2, and there are 4 hosts");
    check(&["a,b,c,e"], "--fabric-hosts: 1 of 4 are not in the file: e");
    check(&["a,b,c,a"], "--fabric-hosts: 'a' is named twice");
    check(&["a,b,c["], "--fabric-hosts");
    let (_, error, code) = files.run(&["plan", "--by-class"], &["a,b,c,d"]);
    assert!(code == 2 && error.contains("blocking nothing"), "{error}");
}
