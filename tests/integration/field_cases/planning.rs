//! Bad rings and channels, and bad choices of GPUs.

use std::collections::BTreeMap;

use serde_json::Value;
use topology::Fraction;

use crate::cli::{check, check_json, topoctl};

use super::{fixture, snapshot};

/// A matrix as `nvidia-smi topo -m` prints it: cells by row and column, GPUs first; NICs are the rest.
fn matrix(
    gpus: usize,
    nics: usize,
    cell: impl Fn(usize, usize) -> String,
    numa: impl Fn(usize) -> usize,
) -> String {
    let name = |at: usize| if at < gpus { format!("GPU{at}") } else { format!("NIC{}", at - gpus) };
    let mut text = String::new();
    for at in 0..gpus + nics {
        text.push_str(&format!("\t{}", name(at)));
    }
    text.push_str("\tCPU Affinity\tNUMA Affinity\n");
    for row in 0..gpus + nics {
        text.push_str(&name(row));
        for column in 0..gpus + nics {
            text.push('\t');
            text.push_str(&if row == column { " X ".into() } else { cell(row, column) });
        }
        text.push_str(&if row < gpus {
            format!("\t0-15\t{}\n", numa(row))
        } else {
            "\t\t\n".into()
        });
    }
    if nics > 0 {
        text.push_str("\nNIC Legend:\n\n");
        (0..nics).for_each(|nic| text.push_str(&format!("  NIC{nic}: mlx5_{nic}\n")));
    }
    text
}

fn channels<'a>(plan: &'a Value, collective: &'a str) -> impl Iterator<Item = &'a Value> {
    let of = move |channel: &&Value| {
        channel["collectives"].as_array().unwrap().iter().any(|c| c == collective)
    };
    plan["channels"].as_array().unwrap().iter().filter(of)
}

/// Names crossed by a channel's hops, with the part of the collective's data that crosses.
fn crossed(channel: &Value) -> Vec<(Vec<String>, Fraction)> {
    let share: Fraction = channel["share"].as_str().unwrap().parse().unwrap();
    let lists = [&channel["edges"], &channel["reduce_edges"]];
    let edges = lists.into_iter().filter_map(Value::as_array).flatten();
    edges
        .flat_map(|edge| edge["paths"].as_array().unwrap())
        .map(|path| {
            let via = path["via"].as_array().unwrap().iter();
            let names = via.map(|name| name.as_str().unwrap().to_owned()).collect();
            (names, share * path["share"].as_str().unwrap().parse::<Fraction>().unwrap())
        })
        .collect()
}

fn codes(document: &Value) -> Vec<&str> {
    document["findings"].as_array().unwrap().iter().filter_map(|f| f["code"].as_str()).collect()
}

/// Five GPUs of a DGX-1, or four in a bent line, have no ring over NVLink and fell to shared memory (NVIDIA/nccl#300, #301): trees over
/// NVLink carry them at the bound, and where PCIe has to help, the plan names the GPUs that force it.
#[test]
fn field_case_020_subsets_stay_on_nvlink() {
    let from = fixture("dgx1v");
    for gpus in ["0,1,2,3,7", "1,2,4,5"] {
        let arguments =
            ["plan", "--from", &from, "--gpus", gpus, "--collective", "all-reduce", "-o", "json"];
        let plan = check_json(&arguments, "", 0);
        let reached = &plan["collectives"]["all-reduce"];
        assert_eq!(reached["best"]["optimal"], true, "{gpus}");
        assert!(codes(&plan).contains(&"no-ring"), "{gpus}");
        for channel in channels(&plan, "all-reduce") {
            assert!(crossed(channel).iter().all(|(via, _)| via.is_empty()), "{gpus}: NVLink alone");
        }
    }
    let arguments = ["plan", "--from", &from, "--gpus", "1,4", "-o", "json"];
    let plan = check_json(&arguments, "", 0);
    let findings = plan["findings"].as_array().unwrap();
    let forced = findings.iter().find(|f| f["code"] == "gpu-links-do-not-connect").unwrap();
    let evidence = forced["evidence"].as_str().unwrap();
    assert!(evidence.contains("GPU4") && evidence.contains("GPU1"), "{evidence}");
}

/// Four GPUs, each pair with two links, got six rings, and with four links a pair four (NVIDIA/nccl#713): both have all six directions of three
/// rings, twice as wide, which is the bound; and the plan says why there are no more.
#[test]
fn field_case_021_as_many_rings_as_the_links_allow() {
    let mut rates = Vec::new();
    for links in [2, 4] {
        let text = matrix(4, 0, |_, _| format!("NV{links}"), |_| 0);
        let arguments =
            ["plan", "--from", "-", "--collective", "all-reduce,all-gather", "-o", "json"];
        let plan = check_json(&arguments, &text, 0);
        let best = &plan["collectives"]["all-gather"]["best"];
        assert_eq!((&best["algorithm"], &best["optimal"]), (&"ring".into(), &true.into()));
        assert_eq!(best["channels"], 6);
        rates.push(best["algbw_gbps"].as_f64().unwrap());
        let explained =
            check(&["plan", "--from", "-", "--collective", "all-gather", "--explain"], &text, 0);
        assert!(
            explained.contains("6 rings") && explained.contains("with one less"),
            "{explained}"
        );
    }
    assert_eq!(rates[1], 2.0 * rates[0]);
}

/// A group that spans hosts fell back to a slow ring without a word (NVIDIA/nccl#262): what is given up stands in the findings, a degraded
/// machine ends with 3, and hosts that cannot reach each other with 7 and the reason.
#[test]
fn field_case_022_no_silent_fallback() {
    let from = fixture("dgx1v");
    let arguments =
        ["plan", "--from", &from, "--hosts", "2", "--collective", "all-reduce", "-o", "json"];
    let plan = check_json(&arguments, "", 0);
    assert_eq!(plan["collectives"]["all-reduce"]["best"]["optimal"], true);
    let mut slow = snapshot(&from);
    slow.nics[0].mbit = Some(10_000);
    let text = topology::formats::write_snapshot(&slow);
    let arguments =
        ["plan", "--from", "-", "--hosts", "2", "--collective", "all-reduce", "-o", "json"];
    let plan = check_json(&arguments, &text, 3);
    let findings = plan["findings"].as_array().unwrap();
    let said =
        findings.iter().any(|f| f["component"].as_str().unwrap().contains(&slow.nics[0].name));
    assert!(said, "{findings:?}");
    let mut cut = snapshot(&from);
    cut.nics.clear();
    let text = topology::formats::write_snapshot(&cut);
    let output = topoctl(&["plan", "--from", "-", "--hosts", "2"], &text);
    assert_eq!(output.status.code(), Some(7));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no way leads from"));
}

/// Two hosts whose NICs stand in another order chose rails each by itself and met on the wrong ones (NVIDIA/nccl#1494): one plan is made for all, and
/// every hop between hosts names the NIC at both ends.
#[test]
fn field_case_023_one_pattern_of_rails_for_all_hosts() {
    let from = fixture("dgx_a100");
    let mut other = snapshot(&from);
    other.nics.reverse();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.json");
    std::fs::write(&path, topology::formats::write_snapshot(&other)).unwrap();
    let path = path.display().to_string();
    let arguments =
        ["plan", "--from", &from, "--from", &path, "--collective", "all-reduce", "-o", "json"];
    let output = topoctl(&arguments, "");
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut between = 0;
    for channel in channels(&plan, "all-reduce") {
        for (via, _) in crossed(channel) {
            let Some(fabric) = via.iter().position(|name| name == "fabric") else { continue };
            between += 1;
            let (out, back) = (&via[fabric - 1], &via[fabric + 1]);
            assert!(out.contains(":mlx5_") && back.contains(":mlx5_"), "{via:?}");
            assert_ne!(out.split(':').next(), back.split(':').next(), "{via:?}");
        }
    }
    assert!(between > 0);
    // By class, rails that differ between hosts are said.
    let arguments = ["plan", "--from", &from, "--from", &path, "--by-class", "-o", "json"];
    let by_class: Value = serde_json::from_slice(&topoctl(&arguments, "").stdout).unwrap();
    assert_eq!(by_class["hosts"].as_array().unwrap().len(), 2);
    assert!(codes(&by_class).contains(&"owners-cross-rails"), "{:?}", codes(&by_class));
}

/// Ranks with different views made rings that did not come back to their start (NVIDIA/nccl#879): a plan for another machine, and a
/// ring that visits a rank twice, are refused before anyone runs them.
#[test]
fn field_case_025_rings_that_do_not_close_are_refused() {
    let from = fixture("dgx1v");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let mut plan =
        check_json(&["plan", "--from", &from, "--collective", "all-gather", "-o", "json"], "", 0);
    let verify = |plan: &Value, from: &str, exit| {
        std::fs::write(&path, plan.to_string()).unwrap();
        check(&["verify", &path.display().to_string(), "--from", from], "", exit)
    };
    assert!(verify(&plan, &from, 0).starts_with("valid"));
    assert!(verify(&plan, &fixture("dgx_a100"), 4).starts_with("not valid"));
    let ring = plan["channels"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .find(|c| c["pattern"] == "ring")
        .unwrap();
    let first = ring["edges"][0]["to"].clone();
    ring["edges"][1]["to"] = first.clone();
    ring["ranks"][2] = first;
    assert!(verify(&plan, &from, 4).starts_with("not valid"));
}

/// With fewer links a GPU, NICs were used unevenly (NVIDIA/nccl#933): each NIC carries as much out as in, and as much as the others.
#[test]
fn field_case_026_nics_carry_alike() {
    let mut host = snapshot(&fixture("dgx_h100"));
    host.gpus.iter_mut().flat_map(|gpu| &mut gpu.links).for_each(|links| links.count = 8);
    let text = topology::formats::write_snapshot(&host);
    let arguments =
        ["plan", "--from", "-", "--hosts", "2", "--collective", "all-reduce", "-o", "json"];
    let output = topoctl(&arguments, &text);
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut carried: BTreeMap<(String, bool), Fraction> = BTreeMap::new();
    for (via, load) in channels(&plan, "all-reduce").flat_map(crossed) {
        for (at, name) in via.iter().enumerate().filter(|(_, name)| name.contains(":mlx5_")) {
            let out = via.get(at + 1).is_some_and(|next| next == "fabric");
            let sum = carried.entry((name.clone(), out)).or_default();
            *sum = *sum + load;
        }
    }
    assert_eq!(carried.len(), 32, "16 NICs, out and in");
    let loads: Vec<Fraction> = carried.into_values().collect();
    let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
    assert!(*least * Fraction::of(101, 100) >= *most, "{least} to {most}");
}

/// Two ports of 200 Gbit/s behind one Gen4 x16 (NVIDIA/nccl#1303): the second brings nothing, the plan leaves it out and says so, and says what
/// each channel is worth.
#[test]
fn field_case_027_what_a_second_port_is_worth() {
    const DUAL: &str = r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
<pci busid="0000:01:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
<pci busid="0000:02:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="80"/></pci>
<pci busid="0000:03:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" gdr="1"/><net name="mlx5_1" dev="1" speed="200000" port="2" guid="0x1" gdr="1"/></nic></pci>
</pci></cpu></system>"#;
    let plan = |more: &[&str]| {
        let mut arguments =
            vec!["plan", "--from", "-", "--hosts", "2", "--collective", "all-reduce"];
        arguments.extend(more);
        check(&arguments, DUAL, 0)
    };
    let found: Value = serde_json::from_str(&plan(&["-o", "json"])).unwrap();
    assert!(codes(&found).contains(&"nic-unused"), "{:?}", codes(&found));
    let one = plan(&["--what-if", "remove 0:mlx5_1", "--what-if", "remove 1:mlx5_1"]);
    assert!(one.contains("same"), "{one}");
    let explained = plan(&["--explain"]);
    assert!(explained.contains("none raises a bound"), "{explained}");
    assert!(explained.contains("fewer cannot carry it"), "{explained}");
}

/// A box of eight L40S with four NICs, all on processors (NVIDIA/nccl-tests#273): planned and checked, on one host and on two.
#[test]
fn field_case_029_all_through_processors() {
    let numa = |at: usize| if at < 8 { at / 4 } else { (at - 8) / 2 };
    let cell =
        |a: usize, b: usize| if numa(a) == numa(b) { "NODE".into() } else { "SYS".to_owned() };
    let text = matrix(8, 4, cell, numa);
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("l40s.txt").display().to_string();
    std::fs::write(&machine, text).unwrap();
    let path = folder.path().join("plan.json").display().to_string();
    for hosts in ["1", "2"] {
        let arguments = [
            "plan",
            "--from",
            &machine,
            "--hosts",
            hosts,
            "--collective",
            "all-reduce,all-gather",
            "-o",
            "json",
        ];
        let output = topoctl(&arguments, "");
        // A matrix does not tell where NICs are: that is said, and is no reason to give no plan.
        assert_eq!(output.status.code(), Some(3));
        std::fs::write(&path, &output.stdout).unwrap();
        let valid = check(&["verify", &path, "--from", &machine, "--hosts", hosts], "", 0);
        assert!(valid.starts_with("valid"), "{valid}");
    }
}

/// GPUs were put in another order by hand, so that ranks that talk at once do not use one NIC (mlcommons/training_results_v3.1#11): the mapping gives an
/// order, as local GPUs for a launcher, with what each axis then gets.
#[test]
fn field_case_030_an_order_without_conflicts() {
    let from = fixture("dgx1v");
    let arguments =
        ["map", "--from", &from, "--hosts", "2", "--tp", "2", "--pp", "2", "-o", "json"];
    let mapped = check_json(&arguments, "", 0);
    let ranks = mapped["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 16);
    let visible = mapped["order"]["visible_devices"].as_array().unwrap();
    for (host, gpus) in visible.iter().enumerate() {
        let of_host = ranks.iter().filter(|rank| rank["host"] == mapped["order"]["hosts"][host]);
        let in_order: Vec<&Value> = of_host.map(|rank| &rank["gpu"]).collect();
        assert_eq!(in_order, gpus.as_array().unwrap().iter().collect::<Vec<_>>());
    }
    // Each pair of ranks that share layers has two links between them.
    let tp = mapped["axes"].as_array().unwrap().iter().find(|axis| axis["axis"] == "tp").unwrap();
    assert_eq!((&tp["tier"], tp["axis_gbps"].as_f64()), (&"gpu-links".into(), Some(40.0)));
    let us = |step: &Value| step["exposed_us"].as_f64().unwrap();
    assert!(us(&mapped["step"]) <= us(&mapped["identity"]));
    for axis in mapped["axes"].as_array().unwrap() {
        let (alone, axis_rate) =
            (axis["alone_gbps"].as_f64().unwrap(), axis["axis_gbps"].as_f64().unwrap());
        assert!(axis_rate <= alone && axis["bottleneck"].is_string(), "{axis}");
    }
}

/// Jobs of one GPU broke up pairs, so that a job of two got GPUs without a link, and three of five ended in a crash
/// (NVIDIA/k8s-device-plugin#546, go-gpuallocator#44).
#[test]
fn field_case_031_singles_leave_pairs_whole() {
    let cell = |a: usize, b: usize| match (a / 2 == b / 2, a / 4 == b / 4) {
        (true, _) => "NV12".to_owned(),
        (_, true) => "NODE".into(),
        _ => "SYS".into(),
    };
    let text = matrix(8, 0, cell, |gpu| gpu / 4);
    let mut free: Vec<u64> = (0..8).collect();
    let take = |count: &str, free: &mut Vec<u64>| -> Vec<u64> {
        let list: Vec<String> = free.iter().map(u64::to_string).collect();
        let arguments = ["select", count, "--free", &list.join(","), "--from", "-", "-o", "json"];
        let found = check_json(&arguments, &text, 0);
        let gpus = found["best"]["gpus"].as_array().unwrap().iter();
        let taken: Vec<u64> = gpus.map(|gpu| gpu["index"].as_u64().unwrap()).collect();
        free.retain(|gpu| !taken.contains(gpu));
        taken
    };
    for _ in 0..4 {
        take("1", &mut free);
    }
    let pair = take("2", &mut free);
    assert_eq!(pair[0] / 2, pair[1] / 2, "{pair:?} are a pair");
    let three = take("3", &mut [0, 2, 3, 5, 7].to_vec());
    assert!(three.len() == 3 && three.contains(&2) && three.contains(&3), "{three:?}");
}

/// NVLinks whose far end is a switch were taken for none (Project-HAMi/HAMi#2103): two GPUs have as many as the one with fewer.
#[test]
fn field_case_032_links_to_a_switch_join_gpus() {
    let mut host = snapshot(&fixture("dgx_h100"));
    let mut left = 10;
    for links in &mut host.gpus[3].links {
        links.count = links.count.min(left);
        left -= links.count;
    }
    host.gpus[3].links.retain(|links| links.count > 0);
    let text = topology::formats::write_snapshot(&host);
    let shown: Value =
        serde_json::from_slice(&topoctl(&["show", "--from", "-", "-o", "json"], &text).stdout)
            .unwrap();
    assert_eq!(
        (&shown["paths"]["GPU0"]["GPU1"], &shown["paths"]["GPU0"]["GPU3"]),
        (&"NV18".into(), &"NV10".into())
    );
    let select = |free: &str| -> Value {
        let arguments = ["select", "2", "--free", free, "--from", "-", "-o", "json"];
        serde_json::from_slice(&topoctl(&arguments, &text).stdout).unwrap()
    };
    let found = select("0,1,3");
    let indices: Vec<&Value> =
        found["best"]["gpus"].as_array().unwrap().iter().map(|gpu| &gpu["index"]).collect();
    assert_eq!(indices, [0, 1]);
    assert!(select("0,3")["best"]["all_reduce_gbps"].as_f64().unwrap() > 100.0);
}
