//! Every file of the corpus on the side it is listed on: read, or refused as what it is.
//!
//! `tests/fixtures/corpus_sides.tsv` is the list. A file that changes sides fails here and is either a regression or a
//! new line of that list; a file that is not listed may be on either side, where a refusal has place and reason.

use std::collections::BTreeMap;
use std::path::Path;

use daemon::recorded::{self, RecordedError};
use topology::{RateModel, Snapshot, lower};

use super::{corpus, say};

const LIST: &str = include_str!("../../fixtures/corpus_sides.tsv");

/// File, by its path below `real`, to what it is taken for where it is refused.
fn listed() -> BTreeMap<&'static str, Option<&'static str>> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let mut fields = line.split('\t').skip(1);
            let file = fields.next().expect("a file");
            match (fields.next(), fields.next()) {
                (Some("read"), None) => (file, None),
                (Some("refused"), Some(what)) => (file, Some(what)),
                other => panic!("{file}: {other:?}"),
            }
        })
        .collect()
}

/// File and kind of each line of the corpus' index.
fn index(root: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root.join("INDEX.tsv")).unwrap_or_default();
    let lines = text.lines().skip(1).filter_map(|line| {
        let mut fields = line.split('\t');
        let file = fields.next()?.strip_prefix("real/")?;
        Some((file.to_owned(), fields.next()?.to_owned()))
    });
    lines.collect()
}

/// What was read is consistent: it makes a graph, and survives being written.
fn check_sound(file: &str, hosts: &[Snapshot]) {
    assert!(!hosts.is_empty(), "{file}: no host");
    for host in hosts {
        lower(std::slice::from_ref(host), RateModel::Effective)
            .unwrap_or_else(|error| panic!("{file}: {error}"));
        let text = topology::formats::write_snapshot(host);
        let again = topology::formats::read(text.as_bytes());
        assert_eq!(again.as_deref(), Ok(std::slice::from_ref(host)), "{file}");
    }
}

/// What a refusal names: a format or place, and why.
fn named(file: &str, error: &RecordedError) -> String {
    match error {
        RecordedError::Format(error) => {
            assert!(error.line > 0, "{file}: no place: {error}");
            assert!(error.reason.len() > 10, "{file}: no reason: {error}");
            error.format.to_owned()
        }
        RecordedError::Tree { place, reason } => {
            assert!(!place.is_empty() && !reason.is_empty(), "{file}: {error}");
            place.clone()
        }
        RecordedError::Open(error) => panic!("{file}: {error}"),
    }
}

#[test]
fn every_file_is_on_its_side() {
    let Some(root) = corpus() else { return };
    let listed = listed();
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut refusals = Vec::new();
    let mut unlisted = 0;
    for (file, kind) in index(&root) {
        let count = counts.entry(kind).or_default();
        let read = recorded::read(&root.join("real").join(&file));
        match &read {
            Ok(hosts) => {
                check_sound(&file, hosts);
                count.0 += 1;
            }
            Err(error) => {
                refusals.push(format!("{file}: {error}"));
                count.1 += 1;
            }
        }
        match (read, listed.get(file.as_str())) {
            (Ok(_), Some(None)) => {}
            (Err(error), Some(Some(what))) => assert_eq!(named(&file, &error), *what, "{file}"),
            (Ok(_), Some(Some(what))) => panic!("{file} was refused as {what} and is now read"),
            (Err(error), Some(None)) => panic!("{file} was read and is now refused: {error}"),
            (Ok(_), None) => unlisted += 1,
            (Err(error), None) => {
                named(&file, &error);
                unlisted += 1;
            }
        }
    }
    for (kind, (read, refused)) in &counts {
        say(&format!("{kind}: {read} read, {refused} refused"));
    }
    say(&format!("{} kinds; {unlisted} files are not in the list", counts.len()));
    for refusal in refusals {
        say(&format!("  {refusal}"));
    }
}

/// Value of an attribute in a line, by plain search.
fn attribute<'a>(line: &'a str, name: &str) -> &'a str {
    let value =
        line.split_once(&format!(" {name}=\"")).and_then(|(_, rest)| rest.split('"').next());
    value.unwrap_or_default()
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).expect("readable")).into_owned()
}

/// GPUs, NIC functions, NUMA nodes, and the NVLinks and xGMI links of the matrices in MB/s.
#[test]
fn hwloc_agrees_with_text_search() {
    let Some(root) = corpus() else { return };
    let (mut compared, mut gpus, mut links) = (0, 0, 0);
    for (file, _) in index(&root).into_iter().filter(|(_, kind)| kind == "hwloc-xml") {
        let path = root.join("real").join(&file);
        let host =
            recorded::read(&path).unwrap_or_else(|error| panic!("{file}: {error}")).remove(0);
        let text = text(&path);
        let objects = |kind: &str| -> Vec<&str> {
            text.lines().filter(|line| line.contains(&format!("<object type=\"{kind}\""))).collect()
        };
        let of_class = |wanted: &dyn Fn(&str) -> bool| {
            objects("PCIDev").into_iter().filter(|line| wanted(attribute(line, "pci_type"))).count()
        };
        let is_gpu = |kind: &str| {
            let of_vendor = ["[10de:", "[1002:"]
                .iter()
                .any(|vendor| kind.get(5..).is_some_and(|ids| ids.starts_with(vendor)));
            // ES1000: the console graphics of older servers.
            of_vendor
                && !kind.contains("[1002:515e]")
                && (kind.starts_with("03") || kind.starts_with("1200"))
        };
        let is_nic = |kind: &str| kind.starts_with("02") || kind.starts_with("0c06");
        assert_eq!(host.gpus.len(), of_class(&is_gpu), "{file}: GPUs");
        let functions: std::collections::BTreeSet<_> =
            host.nics.iter().map(|nic| nic.bus_id).collect();
        assert_eq!(functions.len(), of_class(&is_nic), "{file}: NIC functions");
        assert_eq!(host.numa_nodes.len(), objects("NUMANode").len(), "{file}: NUMA nodes");
        // Totals of the matrices, ends at themselves (1000000) left out; parts of one GPU are compared by none.
        if !host.faults.iter().any(|fault| fault.error.contains("parts; one GPU")) {
            let mut total = 0;
            let mut inside = false;
            for line in text.lines() {
                inside |= line.contains("NVLinkBandwidth") || line.contains("XGMIBandwidth");
                inside &= !line.contains("</distances2");
                if let (true, Some((_, rest))) = (inside, line.split_once("<u64values")) {
                    let numbers =
                        rest.split_once('>').expect("values").1.split('<').next().expect("values");
                    total += numbers
                        .split_whitespace()
                        .map(|number| number.parse::<u64>().expect("a number"))
                        .filter(|number| *number != 1_000_000)
                        .sum::<u64>();
                }
            }
            let found: u64 = host
                .gpus
                .iter()
                .flat_map(|gpu| &gpu.links)
                // The matrix lists a link to a package from both its ends.
                .map(|links| {
                    let ends = if matches!(links.peer, topology::snapshot::LinkPeer::Cpu(_)) {
                        2
                    } else {
                        1
                    };
                    ends * u64::from(links.count) * links.rate.expect("told").kbps() / 1000
                })
                .sum();
            assert_eq!(found, total, "{file}: links in MB/s");
            links += found;
        }
        compared += 1;
        gpus += host.gpus.len();
    }
    say(&format!("{compared} hwloc files agree: {gpus} GPUs, {links} MB/s of direct links"));
}

/// Devices by their lines, and cells by their words.
#[test]
fn text_of_tools_agrees_with_text_search() {
    let Some(root) = corpus() else { return };
    let kinds = ["lspci", "rocm-topo"];
    for (file, kind) in index(&root).into_iter().filter(|(_, kind)| kinds.contains(&kind.as_str()))
    {
        let path = root.join("real").join(&file);
        let Ok(hosts) = recorded::read(&path) else { continue };
        let text = text(&path);
        let lines = |words: &[&str], but: &str| {
            text.lines()
                .filter(|line| words.iter().any(|w| line.contains(w)) && !line.contains(but))
                .count()
        };
        match kind.as_str() {
            "lspci" => {
                let gpus = lines(
                    &[" 3D controller: NVIDIA", "VGA compatible controller: NVIDIA", "0.0  NVIDIA"],
                    "Subsystem:",
                );
                assert_eq!(hosts[0].gpus.len(), gpus, "{file}");
                let nics = lines(
                    &[
                        " Ethernet controller: ",
                        " Infiniband controller: ",
                        "  Mellanox Technologies MT",
                        "Intel Corporation Ethernet Controller",
                    ],
                    "Subsystem:",
                );
                assert_eq!(hosts[0].nics.len(), nics, "{file}");
                say(&format!("{file}: {gpus} GPUs, {nics} NIC functions"));
            }
            "rocm-topo" => {
                let xgmi = text.split_whitespace().filter(|word| *word == "XGMI").count();
                let matrix = hosts[0].matrix.as_ref().expect("a matrix");
                let cells = matrix.cells.iter().flatten().flatten();
                let found = cells.filter(|cell| cell.class == topology::PathType::Nvl).count();
                assert_eq!(found, xgmi, "{file}");
                say(&format!("{file}: {} GPUs, {found} xGMI cells", hosts[0].gpus.len()));
            }
            _ => {}
        }
    }
}
