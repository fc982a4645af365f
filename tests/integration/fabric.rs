//! Networks between hosts: recorded ones compared with figures found in them by plain text search, and a simulated one that the real
//! ibnetdiscover discovers.

mod planned;
mod simulated;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::corpus_formats::corpus;
use crate::programs::topoctl;

fn fabric(args: &[&str]) -> Output {
    Command::new(topoctl()).arg("fabric").args(args).output().expect("topoctl runs")
}

/// Output of `topoctl fabric FILE -o json`, and the exit code.
fn json(args: &[&str]) -> (Value, i32) {
    let output = fabric(&[args, &["-o", "json"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    let value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{args:?}: {error}: {stderr}"));
    (value, output.status.code().expect("no signal"))
}

fn recorded() -> Option<Vec<(String, PathBuf, String)>> {
    let folder = corpus()?.join("real/ib-fabric");
    let entries = std::fs::read_dir(folder).expect("the corpus has networks");
    let mut files: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("a file").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).expect("text");
            (name, path, text)
        })
        .collect();
    files.sort();
    Some(files)
}

/// Text between the first two marks of a kind.
fn quoted(line: &str, mark: char) -> Option<&str> {
    line.split(mark).nth(1)
}

/// Switches, hosts' names as far as plain search tells them, and cables.
#[derive(Debug, PartialEq)]
struct Counts {
    switches: usize,
    hosts: usize,
    links: Option<usize>,
}

fn searched(name: &str, text: &str) -> Option<Counts> {
    let lines = || text.lines().map(str::trim);
    if lines().any(|line| line.starts_with("Switch\t") || line.starts_with("Switch ")) {
        let is_switch = |line: &&str| line.starts_with("Switch");
        let is_adapter = |line: &&str| line.starts_with("Ca") || line.starts_with("Hca");
        let mut hosts = BTreeSet::new();
        let (mut between, mut down) = (0, 0);
        let (mut switch, mut id) = (false, "");
        for line in lines() {
            if is_switch(&line) || is_adapter(&line) {
                switch = is_switch(&line);
                id = quoted(line, '"').expect("a name");
            }
            if is_adapter(&line) {
                let description = line
                    .split_once('#')
                    .map_or(id, |(_, text)| quoted(text, '"').expect("a description"));
                let host = description.rsplit_once(' ').map_or(description, |(host, _)| host);
                if !description.contains("Mellanox Technologies") && host != "localhost" {
                    hosts.insert(host.to_owned());
                }
            }
            if switch && line.starts_with('[') {
                let far = quoted(line, '"').expect("a far end");
                if far.starts_with('S') {
                    between += 1;
                } else if !line.contains("Aggregation Node") {
                    down += 1;
                }
            }
        }
        assert!(between % 2 == 0, "{name}: each cable between switches has two lines");
        let switches = lines().filter(is_switch).count();
        return Some(Counts { switches, hosts: hosts.len(), links: Some(between / 2 + down) });
    }
    if lines().any(|line| line.starts_with("CA ") || line.starts_with("SW ")) {
        let ends: Vec<Vec<&str>> = lines().map(|line| line.split_whitespace().collect()).collect();
        let guids = |kind: &str| -> BTreeSet<&str> {
            let near =
                ends.iter().filter(|words| words.first() == Some(&kind)).map(|words| words[3]);
            let far =
                ends.iter().filter(|words| words.get(7) == Some(&kind)).map(|words| words[10]);
            near.chain(far).collect()
        };
        let cables: BTreeSet<Vec<(&str, &str)>> = ends
            .iter()
            .filter(|words| words.get(6) == Some(&"-"))
            .map(|words| {
                let mut ends = vec![(words[3], words[2]), (words[10], words[9])];
                ends.sort_unstable();
                ends
            })
            .collect();
        return Some(Counts {
            switches: guids("SW").len(),
            hosts: guids("CA").len(),
            links: Some(cables.len()),
        });
    }
    let switches = lines().filter(|line| line.starts_with("SwitchName=")).count();
    let blocks = lines().filter(|line| line.starts_with("BlockName=")).count();
    // Every list of hosts here is one range of numbers.
    let hosts = |key: &str| -> usize {
        lines()
            .filter_map(|line| line.split_once(key))
            .map(|(_, list)| {
                let (_, range) = list.split_once('[').expect("a range");
                let (first, last) = range.trim_end_matches(']').split_once('-').expect("a range");
                let number = |text: &str| text.parse::<usize>().expect("a number");
                number(last) - number(first) + 1
            })
            .sum()
    };
    (switches + blocks > 0).then(|| Counts { switches, hosts: hosts(" Nodes="), links: None })
}

/// Models of topograph, counted by hand.
const MODELS: [(&str, usize, usize, usize); 4] = [
    ("topograph-model__dual-xclr-regular.yaml", 19, 96, 2),
    ("topograph-model__large.yaml", 19, 96, 12),
    ("topograph-model__medium.yaml", 7, 8, 4),
    ("topograph-model__small-tree.yaml", 3, 6, 2),
];

#[test]
fn recorded_networks_agree_with_text_search() {
    let Some(files) = recorded() else { return };
    let mut compared = 0;
    for (name, path, text) in files {
        let (value, code) = json(&[path.to_str().expect("UTF-8")]);
        assert!([0, 3, 5].contains(&code), "{name}: {code}");
        let length = |key: &str| value[key].as_array().expect("a list").len();
        if let Some((_, switches, hosts, blocks)) = MODELS.iter().find(|model| model.0 == name) {
            assert_eq!(
                (length("switches"), length("hosts"), length("blocks")),
                (*switches, *hosts, *blocks),
                "{name}"
            );
            compared += 1;
            continue;
        }
        let expect = searched(&name, &text).unwrap_or_else(|| panic!("{name}: nothing to count"));
        let found = Counts {
            switches: length("switches"),
            hosts: length("hosts"),
            links: value["links"].as_u64().map(|links| usize::try_from(links).expect("few")),
        };
        assert_eq!(found, expect, "{name}");
        println!("{name}: {found:?}, exit {code}");
        compared += 1;
    }
    assert!(compared > 0);
    println!("{compared} networks agree");
}

/// The order of a recorded network crosses upper tiers as seldom as the number of its leaves allows.
#[test]
fn recorded_networks_in_order() {
    let Some(files) = recorded() else { return };
    for (name, path, _) in files {
        let (value, code) = json(&["--order", path.to_str().expect("UTF-8")]);
        let order: BTreeSet<&str> =
            value["order"].as_array().expect("hosts").iter().filter_map(Value::as_str).collect();
        assert_eq!(order.len(), value["order"].as_array().expect("hosts").len(), "{name}");
        assert!([0, 5].contains(&code), "{name}: {code}");
        let far = |when: &str| {
            let levels = value[when]["ring"]["by_level"].as_array().expect("levels");
            levels.iter().skip(1).filter_map(Value::as_u64).sum::<u64>()
        };
        assert!(far("after") <= far("before"), "{name}: {value}");
    }
}

#[test]
fn refusals_name_place_and_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |text: &str, args: &[&str], said: &str| {
        let path = folder.path().join("net");
        std::fs::write(&path, text).expect("written");
        let output = fabric(&[&[path.to_str().expect("UTF-8")], args].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}: {stderr}");
        assert!(
            output.stdout.is_empty() && stderr.contains(said),
            "expected '{said}' in '{stderr}'"
        );
    };
    check("hello\n", &[], "known are ibnetdiscover");
    check("SwitchName=a Nodes=n[1-\n", &[], "Slurm topology.conf, line 1");
    check("- topology: a\n  tree:\n    switches: 3\n", &[], "Slurm topology.yaml, line 3");
    check("switches:\n  a: [\n", &[], "model of a network, line");
    check("SwitchName=a Nodes=n1\n", &["--order", "--hosts", "n1,n2"], "n2");
    check("SwitchName=a Nodes=n1\n", &["--order", "--hosts", "n1,n1"], "twice");
    check("SwitchName=a Nodes=n1\n", &["--topology", "t"], "--topology names one");
    let deep = format!("switches:\n  a: {}\n", "[".repeat(100_000));
    check(&deep, &[], "model of a network");
    // Aliases that grow by powers of ten.
    let mut laughs = "switches:\n  a0: &a0 {switches: [x,x,x,x,x,x,x,x,x,x]}\n".to_owned();
    for level in 1..12 {
        let before = format!("*a{}", level - 1);
        laughs.push_str(&format!("  a{level}: &a{level} [{}]\n", [before.as_str(); 10].join(",")));
    }
    check(&laughs, &[], "model of a network");
}

#[test]
fn the_order_is_a_hostfile() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("topology.yaml");
    let text = "- topology: other\n  flat: true\n- topology: here\n  cluster_default: true\n  tree:\n    switches:\n\
                \x20   - switch: r\n      children: s[1-2]\n    - switch: s1\n      nodes: n[1,3]\n    - switch: s2\n      nodes: n[2,4]\n";
    std::fs::write(&path, text).expect("written");
    let output = fabric(&[path.to_str().expect("UTF-8"), "--order"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let hosts: Vec<&str> = stdout.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!((hosts, output.status.code()), (vec!["n1", "n3", "n2", "n4"], Some(0)), "{stdout}");
    assert!(stdout.contains("# ring before         0     4"), "{stdout}");
    assert!(stdout.contains("# ring after          2     2"), "{stdout}");
}
