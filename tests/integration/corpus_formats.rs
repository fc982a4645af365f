//! Recorded machines of other people, read and compared with figures found in them by plain text search.
//!
//! The files are data beside the project (`TOPOD_CORPUS`, by default `../shared/corpus`); without them the tests say so
//! and pass.

mod sides;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use topology::Snapshot;
use topology::formats::{read, write_snapshot};
use topology::snapshot::Source;

/// Folders whose files are compared fact by fact here.
const LOADED: [&str; 3] = ["nccl-model", "real/nccl-topo-xml", "real/nvidia-smi-topo"];

/// Matrices whose rows are not all there: the paste was cut, or the page shows GPU rows alone.
const INCOMPLETE: [&str; 11] = [
    "deepep-128.txt",
    "deepep-145.txt",
    "kubernetes-sigs-dranet__examples-azure-aks-examples-gb300-README-md__L37.txt",
    "nccl-1264-h100.txt",
    "nccl-1435-a100-nps4.txt",
    "nccl-1505-dgxa100.txt",
    "nccl-2150.txt",
    "unsloth-3872-b200.txt",
    "vllm-16359-h100-18nic.txt",
    "vllm-25848-h200-snc.txt",
    "vllm-29944.txt",
];

pub(crate) fn corpus() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpus");
    let root = std::env::var_os("TOPOD_CORPUS").map_or(beside, PathBuf::from);
    let there = root.is_dir();
    if !there {
        say("skipped: no corpus beside the project (TOPOD_CORPUS names one)");
    }
    there.then_some(root)
}

#[expect(clippy::print_stdout, reason = "the counts are what this test is run for")]
fn say(line: &str) {
    println!("{line}");
}

/// Files of a kind, by name.
fn files(root: &Path, kind: &str) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(root.join(kind)) else { return Vec::new() };
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (format!("{kind}/{name}"), fs::read(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn what_is_read_survives_writing() {
    let Some(root) = corpus() else { return };
    for kind in LOADED {
        for (name, bytes) in files(&root, kind) {
            let Ok(hosts) = read(&bytes) else { continue };
            for host in hosts {
                let again = read(write_snapshot(&host).as_bytes());
                assert_eq!(again.as_deref(), Ok(&[host][..]), "{name}");
            }
        }
    }
}

/// Value of an attribute in a line, by plain search.
fn attribute<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_once(&format!(" {name}=\""))?.1.split('"').next()
}

/// What a text search counts in an XML file of one element a line.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    pci: usize,
    numa: usize,
    gpus: BTreeSet<(u32, String)>,
    nics: BTreeMap<String, u64>,
    links: u32,
}

fn searched(text: &str) -> Counts {
    let mut counts = Counts::default();
    let mut tagged = false;
    let mut bus_id = String::new();
    let mut by_class = (Vec::new(), Vec::new());
    for line in text.lines() {
        let line = line.trim_start();
        let number = |name| attribute(line, name).and_then(|value| value.parse::<u64>().ok());
        if line.starts_with("<cpu ") {
            counts.numa += 1;
        } else if line.starts_with("<pci ") {
            counts.pci += 1;
            bus_id = attribute(line, "busid").unwrap().into();
            match attribute(line, "class") {
                Some(class) if class.starts_with("0x03") => by_class.0.push(bus_id.clone()),
                Some(class) if class.starts_with("0x02") => by_class.1.push(bus_id.clone()),
                _ => {}
            }
        } else if line.starts_with("<gpu ") {
            tagged = true;
            counts.gpus.insert((u32::try_from(number("dev").unwrap()).unwrap(), bus_id.clone()));
        } else if line.starts_with("<net ") {
            counts.nics.insert(attribute(line, "name").unwrap().into(), number("speed").unwrap());
        } else if line.starts_with("<nvlink ") || line.starts_with("<xgmi ") {
            // Published files have links of a GPU to itself; they carry nothing.
            if attribute(line, "target") != Some(&bus_id) {
                counts.links += u32::try_from(number("count").unwrap()).unwrap();
            }
        }
    }
    if !tagged {
        by_class.0.sort();
        counts.gpus = (0..).zip(by_class.0).collect();
    }
    if counts.nics.is_empty() {
        counts.nics = by_class.1.into_iter().map(|name| (name, 0)).collect();
    }
    counts
}

fn counted(host: &Snapshot) -> Counts {
    let of_gpu = |gpu: &topology::Gpu| (gpu.index.0, gpu.bus_id.unwrap().to_string());
    Counts {
        pci: host.pci_devices.len(),
        numa: host.numa_nodes.len(),
        gpus: host.gpus.iter().map(of_gpu).collect(),
        nics: host.nics.iter().map(|nic| (nic.name.clone(), nic.mbit.unwrap_or(0))).collect(),
        links: host.gpus.iter().flat_map(|gpu| &gpu.links).map(|links| links.count).sum(),
    }
}

#[test]
fn xml_agrees_with_text_search() {
    let Some(root) = corpus() else { return };
    let mut total = Counts::default();
    let (mut compared, mut gpus, mut nics) = (0, 0, 0);
    for kind in ["nccl-model", "real/nccl-topo-xml"] {
        for (name, bytes) in files(&root, kind) {
            let Ok(hosts) = read(&bytes) else { continue };
            let [host] = &hosts[..] else { panic!("{name}: {} hosts", hosts.len()) };
            assert_eq!(host.source, Source::NcclXml);
            let expect = searched(&String::from_utf8(bytes).unwrap());
            assert_eq!(counted(host), expect, "{name}");
            compared += 1;
            gpus += expect.gpus.len();
            nics += expect.nics.len();
            total.pci += expect.pci;
            total.links += expect.links;
        }
    }
    let (pci, links) = (total.pci, total.links);
    say(&format!(
        "{compared} XML files agree: {gpus} GPUs, {nics} NICs, {pci} PCI functions, {links} link ends"
    ));
}

/// Words of a line, without the underlining and the bars of Markdown.
fn plain_words(line: &str) -> Vec<String> {
    let line = line.replace("\u{1b}[4m", "").replace("\u{1b}[0m", "").replace('|', " ");
    line.split_whitespace().map(String::from).collect()
}

#[test]
fn matrices_agree_cell_by_cell() {
    let Some(root) = corpus() else { return };
    let (mut complete, mut incomplete, mut cells) = (0, 0, 0);
    for (name, bytes) in files(&root, "real/nvidia-smi-topo") {
        let host = read(&bytes).unwrap_or_else(|error| panic!("{name}: {error}")).remove(0);
        let matrix = host.matrix.as_ref().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let lines: Vec<Vec<String>> = text.lines().map(plain_words).collect();
        let header = lines.iter().find(|words| words.first().is_some_and(|w| w == "GPU0")).unwrap();
        let columns: Vec<&String> = header.iter().take_while(|word| *word != "CPU").collect();
        assert_eq!(matrix.devices.iter().collect::<Vec<_>>(), columns, "{name}");
        let gpus = columns.iter().filter(|word| word.starts_with("GPU")).count();
        assert_eq!((host.gpus.len(), host.nics.len()), (gpus, columns.len() - gpus), "{name}");
        let mut all = true;
        for (device, row) in matrix.devices.iter().zip(&matrix.cells) {
            let is_row = |words: &&Vec<String>| {
                words.len() > columns.len()
                    && words[0] == *device
                    && !["GPU1", "CPU"].contains(&&*words[1])
            };
            // The first row of that name; tables after it are other tables.
            let Some(words) = lines.iter().find(is_row) else {
                assert!(row.iter().all(Option::is_none), "{name}: {device}");
                all = false;
                continue;
            };
            for (cell, word) in row.iter().zip(&words[1..]) {
                let word = if word == "SOC" { "SYS" } else { word };
                assert_eq!(cell.unwrap().to_string(), *word, "{name}: {device}");
                cells += 1;
            }
        }
        let file = name.rsplit('/').next().unwrap();
        assert_eq!(!all, INCOMPLETE.contains(&file), "{name}");
        let said = host.faults.iter().any(|fault| fault.error.starts_with("rows missing"));
        assert_eq!(!all, said, "{name}: {:?}", host.faults);
        complete += usize::from(all);
        incomplete += usize::from(!all);
    }
    say(&format!("{complete} complete and {incomplete} incomplete matrices agree: {cells} cells"));
}
