//! Troubles of users, by the rows of the list of field cases: that every row has a test named after it, and those that take the
//! whole program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use topology::nccl_dialect::scan;
use topology::{Snapshot, formats};

use crate::cli::{PAIR, check, check_json, dgx1v, topoctl};

mod planning;

/// Rows that a small file reproduces without a GPU, of what is found, described, judged, planned and launched. Tests are called
/// `field_case_ROW_WORDS`, numbers with three digits. L is prose with ten cases in it, in its order.
const ROWS: [&str; 81] = [
    "001", "002", "003", "005", "006", "007", "008", "010", "011", "012", "013", "015", "016",
    "017", "018", // A
    "020", "021", "022", "023", "025", "026", "027", "029", "030", "031", "032", // B
    "033", "034", "036", "037", "038", "039", "040", "041", "043", // C
    "044", "046", "047", "048", "050", "051", "052", // D
    "054", "055", "056", "058", "059", // E
    "061", "062", "063", "065", "066", "068", // F
    "069", "070", "072", "073", // G
    "077", "078", // H
    "080", "081", "i_plus", // I
    "j1", "j2", "j3", "j4", "j5", "j6", "j7", // J
    "k1", "k2", // K, which is prose: who is missing, and who has another plan
    "l01", "l02", "l03", "l04", "l05", "l06", "l07", "l08", "l09", "l10", // L
];

/// Rows with a test in the sources below a folder.
fn rows_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            rows_in(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            for pair in lines.windows(2) {
                let name = pair[1].trim_start_matches("async ").strip_prefix("fn field_case_");
                let is_test =
                    pair[0].starts_with("#[test]") || pair[0].starts_with("#[tokio::test");
                if let Some(name) = name.filter(|_| is_test) {
                    let of_row = |row: &str| {
                        name.strip_prefix(row).is_some_and(|rest| rest.starts_with('_'))
                    };
                    let known = ROWS.into_iter().find(|row| of_row(row)).map(str::to_owned);
                    found.insert(
                        known.unwrap_or_else(|| format!("({})", name.split('(').next().unwrap())),
                    );
                }
            }
        }
    }
}

/// A row without a test fails here, and so does a test that names no row of this list or of those other parts answer for.
#[test]
fn every_row_has_a_test_named_after_it() {
    let mut found = BTreeSet::new();
    rows_in(&crate::workspace_root(), &mut found);
    let missing: Vec<&&str> = ROWS.iter().filter(|row| !found.contains(**row)).collect();
    assert!(missing.is_empty(), "rows without a test: {missing:?}");
    // Rows that take a GPU to reproduce may have a test besides.
    let elsewhere = |name: &str| {
        let row = name.trim_start_matches('(').split('_').next().unwrap_or_default();
        row.len() == 3 && row.bytes().all(|byte| byte.is_ascii_digit())
    };
    let odd: Vec<&String> =
        found.iter().filter(|row| row.starts_with('(') && !elsewhere(row)).collect();
    assert!(odd.is_empty(), "tests that name no row: {odd:?}");
}

fn fixture(name: &str) -> String {
    crate::workspace_root()
        .join(format!("tests/fixtures/machines/{name}.json"))
        .display()
        .to_string()
}

fn snapshot(path: &str) -> Snapshot {
    formats::read(&fs::read(path).unwrap()).unwrap().remove(0)
}

/// One number used for the device, the NIC and the place in the job puts all ranks on GPU 0 (uccl#172): here they are three, and
/// none follows from another.
#[test]
fn field_case_066_rank_device_and_nic_are_three_numbers() {
    let from = fixture("dgx_h100");
    let arguments = [
        "plan",
        "--from",
        &from,
        "--hosts",
        "2",
        "--gpus",
        "6,4",
        "--collective",
        "all-gather",
        "-o",
        "json",
    ];
    let plan = check_json(&arguments, "", 0);
    let host = snapshot(&from);
    let ranks = plan["ranks"].as_array().unwrap();
    let named: Vec<_> = ranks
        .iter()
        .map(|rank| [&rank["rank"], &rank["host"], &rank["gpu"]].map(Value::as_u64))
        .collect();
    assert_eq!(named.len(), 4);
    for (at, [rank, of_host, gpu]) in named.iter().enumerate() {
        let index = gpu.unwrap();
        assert_eq!((*rank, *of_host), (Some(at as u64), Some(at as u64 / 2)));
        assert!([4, 6].contains(&index), "{named:?}");
        let of_index = host.gpus.iter().find(|gpu| u64::from(gpu.index.0) == index).unwrap();
        assert_eq!(ranks[at]["bus_id"], of_index.bus_id.unwrap().to_string());
    }
    // NICs are those beside the GPUs, not those of the ranks' numbers.
    let mut used = BTreeSet::new();
    for channel in plan["channels"].as_array().unwrap() {
        for path in channel["edges"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|edge| edge["paths"].as_array().unwrap())
        {
            for via in path["via"].as_array().unwrap().iter().filter_map(Value::as_str) {
                used.extend(via.split_once(":mlx5_").map(|(_, number)| number.to_owned()));
            }
        }
    }
    let shown = check_json(&["show", "--from", &from, "-o", "json"], "", 0);
    let beside = |gpu: u32| {
        let nics = shown["nics"].as_array().unwrap().iter();
        // Two switches lie between a GPU of this board and its NIC.
        let near = |nic: &&Value| {
            shown["paths"][format!("GPU{gpu}")][nic["label"].as_str().unwrap()] == "PXB"
        };
        let names: Vec<_> = nics
            .filter(near)
            .map(|nic| nic["name"].as_str().unwrap().replace("mlx5_", ""))
            .collect();
        names
    };
    let near: BTreeSet<String> = [4, 6].into_iter().flat_map(beside).collect();
    assert!(!used.is_empty() && used.is_subset(&near), "used {used:?}, beside the GPUs {near:?}");
}

/// A flat guest, given the host's file with its own addresses, has the distances of the host (NVIDIA/nccl#1843, kata#7967).
#[test]
fn field_case_069_a_flat_guest_gets_the_tree_of_its_host() {
    let guest = fixture("vm_flat");
    let found = check_json(&["check", "--from", &guest, "-o", "json"], "", 0);
    assert!(
        found["findings"].as_array().unwrap().iter().any(|f| f["code"] == "vm-flat-pci"),
        "{found}"
    );

    // The guest has GPUs of the host's first switch and NICs beside them.
    let dir = tempfile::tempdir().unwrap();
    let host_file = dir.path().join("host.xml").display().to_string();
    let host = fixture("dgx_a100");
    check(&["export", "--format", "nccl-topo", "--from", &host, "-o", &host_file], "", 0);
    let (host, guest_facts) = (snapshot(&host_file), snapshot(&guest));
    let gpus = host
        .gpus
        .iter()
        .filter_map(|gpu| gpu.bus_id)
        .zip(guest_facts.gpus.iter().filter_map(|gpu| gpu.bus_id));
    let nics = host
        .nics
        .iter()
        .filter_map(|nic| nic.bus_id)
        .zip(guest_facts.nics.iter().filter_map(|nic| nic.bus_id));
    let pairs: Vec<_> = gpus.chain(nics).collect();
    assert!(pairs.len() >= 2);
    let map = dir.path().join("map");
    let text: String = pairs.iter().map(|(host, guest)| format!("{host} {guest}\n")).collect();
    fs::write(&map, text).unwrap();
    let map = map.display().to_string();
    let export =
        ["export", "--format", "nccl-topo", "--for-vm", "--map", &map, "--from", &host_file];
    let file = check(&export, "", 0);
    scan(&file).expect("NCCL's dialect");
    let given = snapshot_of(&file);
    let flat =
        |snapshot: &Snapshot| snapshot.pci_devices.iter().all(|device| device.parent.is_none());
    assert!(flat(&guest_facts) && !flat(&given));
    for (of_host, of_guest) in &pairs {
        let switch = |snapshot: &Snapshot, id| {
            snapshot.pci_devices.iter().find(|device| device.bus_id == id).unwrap().parent
        };
        assert_eq!(switch(&host, *of_host).is_some(), switch(&given, *of_guest).is_some());
    }
    let asked = topoctl(&["export", "--format", "nccl-topo", "--for-vm", "--from", &host_file], "");
    assert_eq!(asked.status.code(), Some(2), "without a map there is no guest's file");
}

fn snapshot_of(text: &str) -> Snapshot {
    formats::read(text.as_bytes()).unwrap().remove(0)
}

/// A host with more links and NICs than NCCL's parser has room for (NVIDIA/nccl#2160).
#[test]
fn field_case_073_an_export_fits_the_parser() {
    for name in ["dgx_a100", "dgx_h100", "dgx_b200", "dgx1v", "gb200_tray", "pcie_two_sockets"] {
        let text = check(&["export", "--format", "nccl-topo", "--from", &fixture(name)], "", 0);
        let elements = scan(&text).unwrap_or_else(|offence| panic!("{name}: {offence}")).elements;
        assert!(elements <= topology::nccl_topo::MANY_ELEMENTS, "{name}: {elements}");
        let (read, meant) = (snapshot_of(&text), snapshot(&fixture(name)));
        let addresses =
            |s: &Snapshot| -> Vec<_> { s.gpus.iter().map(|gpu| (gpu.index, gpu.bus_id)).collect() };
        assert_eq!(addresses(&read), addresses(&meant), "{name}");
    }
}

/// What an image leaves in /etc/nccl.conf fails jobs it was not made for (Azure/azhpc-images#327).
#[test]
fn field_case_072_lint_of_an_image() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let channel: String = (0..4).map(|gpu| format!("<gpu dev=\"{gpu}\"/>")).collect();
    let graph = format!(
        "<graphs version=\"1\">\n<graph id=\"0\" pattern=\"4\" crossnic=\"0\" nchannels=\"1\" speedintra=\"20\" speedinter=\"20\" latencyinter=\"0\" typeintra=\"NVL\" typeinter=\"PIX\" samechannels=\"1\">\n<channel>{channel}</channel>\n</graph>\n</graphs>\n"
    );
    write("opt/graph.xml", &graph);
    write("etc/nccl.conf", "NCCL_GRAPH_FILE=/opt/graph.xml\n");
    let path = root.path().display().to_string();
    let lint = |exit: i32| {
        check_json(&["nccl", "lint", "--from", &dgx1v(), "--root", &path, "-o", "json"], "", exit)
    };
    let found = lint(4);
    assert_eq!(found["findings"][0]["code"], "nccl-graph-file-fixes-gpus", "{found}");
    assert_eq!(found["findings"][0]["component"], "/etc/nccl.conf, line 1");
    write("etc/nccl.conf", "# nothing\nNCCL_DEBUG=WARN\n");
    let found = lint(0);
    assert!(
        found["settings"].as_array().unwrap().iter().any(|s| s["variable"] == "NCCL_DEBUG"),
        "{found}"
    );
    let conf = root.path().join("other.conf");
    fs::write(&conf, "NCCL_IB_HCA=^=a,^=b\n").unwrap();
    let conf = conf.display().to_string();
    let text = check(&["nccl", "lint", "--from", &dgx1v(), "--conf", &conf], "", 4);
    assert!(text.contains("nccl-hca-malformed"), "{text}");
}

/// The exact string of this host, and a user's own looked over (NVIDIA/nccl#236).
#[test]
fn field_case_i_plus_hca_of_a_host() {
    let from = fixture("dgx_h100");
    let printed = check(&["nccl", "hca", "--from", &from], "", 0);
    let exact = printed
        .trim()
        .strip_prefix("NCCL_IB_HCA=\"")
        .and_then(|text| text.strip_suffix('"'))
        .unwrap();
    assert!(
        exact.starts_with("=mlx5_") && exact.split(',').all(|entry| entry.contains(":1")),
        "{exact}"
    );
    check(&["nccl", "hca", "--from", &from, "--check", exact], "", 0);
    let found =
        check_json(&["nccl", "hca", "--from", &from, "--check", "mlx5_1", "-o", "json"], "", 3);
    assert_eq!(found["findings"][0]["code"], "nccl-hca-prefix-matches-more", "{found}");
    check(&["nccl", "hca", "--from", &from, "--check", "^=a,^=b"], "", 4);
}

/// Structured output is asked for, and a banner spoils it (NVIDIA/nccl#1629, rocm-systems#6700): stdout is data alone, with a version.
#[test]
fn field_case_l01_stdout_is_data_alone() {
    let from = dgx1v();
    for verb in [
        &["show"][..],
        &["check"],
        &["explain", "GPU0", "GPU1"],
        &["plan", "--collective", "all-gather"],
    ] {
        let arguments = [verb, &["--from", &from, "-o", "json"]].concat();
        let output = topoctl(&arguments, "");
        let text = String::from_utf8(output.stdout).unwrap();
        let document: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{verb:?}: {error}"));
        assert_eq!(document["schema_version"], 1, "{verb:?}");
        assert!(text.starts_with('{') && text.ends_with("}\n"), "{verb:?}");
    }
}

/// "FAILED TO CONVERT TO STRING" (dcgm-exporter#482): every value of an enumeration is a word.
#[test]
fn field_case_l02_enumerations_are_words() {
    for name in ["dgx_h100", "gb200_tray", "mi300x", "vm_flat", "pcie_switches"] {
        let from = fixture(name);
        let shown = check_json(&["show", "--from", &from, "-o", "json"], "", 0);
        let rows = shown["paths"].as_object().unwrap();
        let cells = rows.values().flat_map(|row| row.as_object().unwrap().values());
        let mut classes = 0;
        for cell in cells {
            assert!(cell.as_str().is_some_and(|class| !class.is_empty()), "{name}: {cell}");
            classes += 1;
        }
        assert!(classes >= 4, "{name}");
        for nic in shown["nics"].as_array().unwrap() {
            assert!(nic["role"].is_string() && !nic["link_layer"].is_number(), "{name}: {nic}");
        }
        let found = topoctl(&["check", "--from", &from, "-o", "json"], "");
        let found: Value = serde_json::from_slice(&found.stdout).unwrap();
        assert!(found["status"].is_string());
        for finding in found["findings"].as_array().unwrap() {
            assert!(
                finding["severity"].is_string() && finding["code"].is_string(),
                "{name}: {finding}"
            );
        }
    }
}

/// An enumeration that ended at NVLink 4 showed nothing of a newer board (go-dcgm#46): the count of links is asked for, and a number
/// from beyond the header is a link like others.
#[test]
fn field_case_l03_more_links_than_a_header_knows() {
    let path = fixture("dgx_b200");
    let mut rubin = snapshot(&path);
    for gpu in &mut rubin.gpus {
        gpu.compute_capability = Some(107);
        gpu.links.iter_mut().for_each(|links| links.count *= 2);
    }
    let text = formats::write_snapshot(&rubin);
    let shown = check_json(&["show", "--from", "-", "-o", "json"], &text, 0);
    assert_eq!(shown["paths"]["GPU0"]["GPU1"], "NV36");
}

/// JSON that lacks what the text has (amdgpu_top#137): both are views of one model.
#[test]
fn field_case_l04_text_and_json_tell_the_same() {
    let from = fixture("pcie_switches");
    let text = check(&["check", "--from", &from], "", 3);
    let json = check_json(&["check", "--from", &from, "-o", "json"], "", 3);
    let findings = json["findings"].as_array().unwrap();
    assert!(!findings.is_empty());
    for finding in findings {
        for field in ["code", "component", "evidence", "fix"] {
            assert!(text.contains(finding[field].as_str().unwrap()), "{field} of {finding}");
        }
    }
    assert_eq!(text.matches("fix: ").count(), findings.len());
    let shown = check_json(&["show", "--from", &from, "-o", "json"], "", 0);
    let table = check(&["show", "--from", &from], "", 0);
    for (row, cells) in shown["paths"].as_object().unwrap() {
        let mut rows = table.lines().skip(1);
        let line = rows.find(|line| line.split_whitespace().next() == Some(row)).unwrap();
        for class in cells.as_object().unwrap().values() {
            assert!(
                line.split_whitespace().any(|word| word == class.as_str().unwrap()),
                "{row}: {line}"
            );
        }
    }
}

/// A number that is missing becomes text or 0 in others' JSON (gpustat#10): here it is null, in its place.
#[test]
fn field_case_l05_what_is_missing_is_null() {
    let shown = check_json(&["show", "--from", "-", "-o", "json"], PAIR, 0);
    for gpu in shown["gpus"].as_array().unwrap() {
        let gpu = gpu.as_object().unwrap();
        assert!(
            gpu["uuid"].is_null() && gpu["cpus"].is_null() && gpu["index"].is_number(),
            "{gpu:?}"
        );
    }
}

/// A structured form that works only beside another option (ROC-smi#61): `-o json` alone is enough for each verb that has one.
#[test]
fn field_case_l06_json_alone() {
    let from = dgx1v();
    for verb in ["show", "check", "plan"] {
        let arguments = [verb, "--from", &from, "-o", "json"];
        let arguments = if verb == "plan" {
            [&arguments[..], &["--gpus", "0,1"]].concat()
        } else {
            arguments.to_vec()
        };
        let output = topoctl(&arguments, "");
        assert!(serde_json::from_slice::<Value>(&output.stdout).is_ok(), "{verb}");
    }
}

/// Users of other vendors ask for the matrix they know (tt-smi#235): AMD's GPUs have it in the same words.
#[test]
fn field_case_l07_the_same_matrix_for_other_vendors() {
    let shown = check(&["show", "--from", &fixture("mi300x")], "", 0);
    let header = shown.lines().next().unwrap();
    assert!(header.contains("GPU0") && header.contains("CPU Affinity"), "{header}");
    let row: Vec<&str> = shown.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..3], ["GPU0", "X", "NV1"]);
}

/// Output that drifts breaks whoever reads it (sonar#170): the keys of each document are held here, and a change of them is a change
/// of this test or of `schema_version`.
#[test]
fn field_case_l08_keys_are_held() {
    let keys = |document: &Value| -> Vec<String> {
        document.as_object().unwrap().keys().cloned().collect()
    };
    let from = dgx1v();
    let shown = check_json(&["show", "--from", &from, "-o", "json"], "", 0);
    for key in [
        "schema_version",
        "source",
        "generation",
        "gpus",
        "nics",
        "paths",
        "assumptions",
        "faults",
        "findings",
    ] {
        assert!(keys(&shown).contains(&key.into()), "show: {key}");
    }
    for key in ["index", "uuid", "bus_id", "numa", "cpus"] {
        assert!(keys(&shown["gpus"][0]).contains(&key.into()), "gpus: {key}");
    }
    for key in ["name", "bus_id", "numa", "role"] {
        assert!(keys(&shown["nics"][0]).contains(&key.into()), "nics: {key}");
    }
    let found = check_json(&["check", "--from", &fixture("pcie_switches"), "-o", "json"], "", 3);
    for key in
        ["schema_version", "status", "findings", "unchecked", "not_told", "fabrics", "faults"]
    {
        assert!(keys(&found).contains(&key.into()), "check: {key}");
    }
    for key in ["code", "severity", "component", "evidence", "fix"] {
        assert!(keys(&found["findings"][0]).contains(&key.into()), "findings: {key}");
    }
}

/// A gate passed where data was missing (cluster-readiness-engine#6): here nothing missing passes, in any form of the verdict.
#[test]
fn field_case_l09_missing_data_fails_the_gate() {
    let path = fixture("dgx_h100");
    let changes: [fn(&mut Snapshot); 4] = [
        |s| s.gpus.clear(),
        |s| s.gpus.iter_mut().for_each(|gpu| gpu.inactive_links = None),
        |s| s.nics.iter_mut().for_each(|nic| nic.up = None),
        |s| s.host.iommu = None,
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut host = snapshot(&path);
        change(&mut host);
        let text = formats::write_snapshot(&host);
        let found = check_json(&["check", "--from", "-", "-o", "json"], &text, 5);
        assert_eq!(found["status"], "unknown", "{at}");
        assert!(!found["unchecked"].as_array().unwrap().is_empty(), "{at}");
        check(&["check", "--from", "-", "--fail-on", "critical"], &text, 5);
        let line = check(&["check", "--from", "-", "-o", "nagios"], &text, 3);
        assert!(line.starts_with("TOPOLOGY UNKNOWN - "), "{line}");
    }
}

/// A check of bandwidth on eight bytes says nothing of bandwidth (sichek#52): a figure stands beside its size and never for another, and
/// small sizes are told in time.
#[test]
fn field_case_l10_a_figure_stands_for_its_size() {
    let from = dgx1v();
    let arguments =
        ["plan", "--from", &from, "--collective", "all-reduce", "--size", "8", "-o", "json"];
    let plan = check_json(&arguments, "", 0);
    let reached = &plan["collectives"]["all-reduce"];
    // What is reached at infinite size is called so; what eight bytes take is a time, by their own algorithm.
    assert_eq!(reached["best"]["algorithm"], "ring");
    let sizes = reached["by_size"].as_array().unwrap();
    let eight =
        sizes.iter().find(|row| row["max_bytes"].as_u64().is_none_or(|most| most >= 8)).unwrap();
    let (us, bound) =
        (eight["predicted_us"].as_f64().unwrap(), reached["bound"]["algbw_gbps"].as_f64().unwrap());
    assert!(us > 1.0, "{eight}");
    // Eight bytes in that time are a thousandth of the bound, so neither may be shown as the other.
    assert!(8.0 / (us * 1000.0) < bound / 1000.0, "{eight} {bound}");
}
