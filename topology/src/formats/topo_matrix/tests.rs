//! Small pastes, each with one thing odd about it.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use proptest::prelude::*;

use crate::formats::read as read_any;
use crate::matrix::{Cell, Matrix};
use crate::{PathType, Snapshot};

const FULL: &str = "\
\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tPIX\tSYS\t0-15,32-47\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tPXB\t16-31,48-63\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tPXB\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = a long way
  NV#  = a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: rocep1s0
";

#[track_caller]
fn load(text: &str) -> Snapshot {
    let mut hosts = read_any(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(hosts.len(), 1);
    hosts.remove(0)
}

/// The matrix as rows of words, `?` for a cell not known.
fn rows(snapshot: &Snapshot) -> Vec<String> {
    let word = |cell: &Option<Cell>| cell.map_or_else(|| "?".into(), |cell| cell.to_string());
    let matrix = snapshot.matrix.as_ref().unwrap();
    matrix.cells.iter().map(|row| row.iter().map(word).collect::<Vec<_>>().join(" ")).collect()
}

#[track_caller]
fn check_rows(text: &str, expect: &[&str]) -> Snapshot {
    let snapshot = load(text);
    assert_eq!(rows(&snapshot), expect, "{text}");
    snapshot
}

#[track_caller]
fn check_fault(text: &str, words: &str) -> Snapshot {
    let snapshot = load(text);
    let said = snapshot.faults.iter().any(|fault| fault.error.contains(words));
    assert!(said, "{words} not in {:#?}", snapshot.faults);
    snapshot
}

#[track_caller]
fn check_refused(text: &str, line: usize, words: &str) {
    let error = read_any(text.as_bytes()).expect_err("must be refused");
    assert!(error.line == line && error.reason.contains(words), "{error}");
}

#[track_caller]
fn check_same(text: &str) {
    let mut expect = load(FULL);
    let mut found = load(text);
    expect.faults.clear();
    found.faults.clear();
    assert_eq!(found, expect, "{text}");
}

#[test]
fn a_whole_paste() {
    let snapshot =
        check_rows(FULL, &["X NV4 PIX SYS", "NV4 X SYS PXB", "PIX SYS X SYS", "SYS PXB SYS X"]);
    assert_eq!(snapshot.faults, []);
    assert_eq!(snapshot.matrix.as_ref().unwrap().devices, ["GPU0", "GPU1", "NIC0", "NIC1"]);
    let gpus: Vec<_> = snapshot
        .gpus
        .iter()
        .map(|gpu| (gpu.index.0, gpu.numa_node, gpu.cpus.as_ref().unwrap().to_string()))
        .collect();
    assert_eq!(gpus, [(0, Some(0), "0-15,32-47".into()), (1, Some(1), "16-31,48-63".into())]);
    let nics: Vec<_> = snapshot.nics.iter().map(|nic| nic.name.as_str()).collect();
    assert_eq!(nics, ["mlx5_0", "rocep1s0"]);
    let nodes: Vec<_> =
        snapshot.numa_nodes.iter().map(|node| (node.id, node.cpus.is_none())).collect();
    assert_eq!(nodes, [(0, true), (1, true)]);
}

/// Row 11 of the field cases: affinity columns without a value.
#[test]
fn field_case_011_affinities_not_applicable() {
    for text in [
        "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tN/A\tN/A\n",
        "        GPU0    CPU Affinity    NUMA Affinity   GPU NUMA ID\nGPU0     X      N/A     N/A             N/A\n",
        "GPU0 CPU Affinity NUMA Affinity\nGPU0 X N/A N/A",
        "\tGPU0\tCPU Affinity\nGPU0\t X \t",
        "\tGPU0\nGPU0\t X \t",
    ] {
        let snapshot = check_rows(text, &["X"]);
        assert_eq!((snapshot.gpus[0].numa_node, snapshot.gpus[0].cpus.as_ref()), (None, None));
        assert_eq!(snapshot.faults, []);
    }
}

/// Row 12 of the field cases: underlined headers even in a pipe, tabs or spaces, NIC names as headers, `SOC`.
#[test]
fn field_case_012_every_era_of_header() {
    check_same(&FULL.replacen("\tGPU0", "\t\u{1b}[4mGPU0", 1).replacen(
        "GPU NUMA ID",
        "GPU NUMA ID\u{1b}[0m",
        1,
    ));
    check_same(&FULL.replacen("\tGPU0", "\t[4mGPU0", 1).replacen(
        "GPU NUMA ID",
        "GPU NUMA ID[0m",
        1,
    ));
    check_same(&FULL.replace('\t', "    "));
    check_same(&FULL.replace('\t', " ").replace("  ", " "));
    check_same(&FULL.replace('\n', "\r\n"));
    check_same(&FULL.replace("SYS", "SOC"));
    let named = FULL.replace("NIC0", "mlx5_0").replace("NIC1", "rocep1s0");
    let snapshot = load(&named);
    assert_eq!(snapshot.matrix.as_ref().unwrap().devices[2..], ["mlx5_0", "rocep1s0"]);
    assert_eq!(snapshot.nics, load(FULL).nics);
    check_rows("GPU0 GPU1 CPU Affinity\nGPU0 X SOC 0-9\nGPU1 SOC X 10-19", &["X SYS", "SYS X"]);
}

/// On coherent boards a GPU's own memory is a NUMA node, and not the one its CPU side is on.
#[test]
fn the_node_of_a_gpus_memory() {
    let snapshot = load(&FULL.replacen("\t0\t\tN/A", "\t0\t\t4", 1));
    let nodes: Vec<_> = snapshot.gpus.iter().map(|gpu| (gpu.numa_node, gpu.memory_node)).collect();
    assert_eq!(nodes, [(Some(0), Some(4)), (Some(1), None)]);
}

#[test]
fn what_stands_around_does_not_matter() {
    check_same(&format!("user@n1:~$ nvidia-smi topo -m\n{FULL}\nuser@n1:~$ "));
    check_same(&format!("[root@n1 ~]# nvidia-smi topo -m {}", FULL.trim_start()));
    check_same(FULL.trim_start());
    check_same(&format!("GPU Topology:\n====\n{FULL}____\n"));
    let quoted: String = FULL.lines().map(|line| format!("> {line}\n")).collect();
    check_same(&quoted);
    let labelled: String = FULL.lines().map(|line| format!("0: {line}\n")).collect();
    check_same(&labelled);
    let markdown: String = FULL
        .lines()
        .take(5)
        .map(|line| format!("|{}|\n", line.trim_end().replace("\t\t", "\t").replace('\t', " | ")))
        .collect();
    let names = "NIC mapping: NIC0=mlx5_0 (NUMA 0), NIC1=rocep1s0";
    check_same(&format!("{}|---|---|\n{markdown}{names}\n", ""));
    let spaced = FULL.replace('\n', "\n\n");
    check_same(&spaced);
    check_same(
        &FULL.replace("  NIC0: mlx5_0\n  NIC1: rocep1s0", "  NIC0: mlx5_0 NIC1:\n rocep1s0"),
    );
    check_same(&FULL.replace("0-15,32-47", "0-15, 32-47"));
    let utf16: Vec<u8> =
        core::iter::once(0xFEFF).chain(FULL.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    assert_eq!(read_any(&utf16).unwrap(), [load(FULL)]);
}

#[test]
fn merged_and_wrapped_words() {
    check_same(&FULL.replace("NIC0\tNIC1\tCPU", "NIC0NIC1\tCPU"));
    check_same(&FULL.replace("NIC0\tNIC1\tCPU", "NIC0NIC1CPU"));
    check_same(&FULL.replacen("PIX\tSYS", "PIXSYS", 1));
    check_same(&FULL.replace("GPU1\tNV4", "GPU1NV4"));
    check_same(&FULL.replace("SYS\t0-15", "SYS0-15"));
    check_same(&FULL.replace("NIC1\tCPU Affinity", "NIC1\nCPU Affinity"));
    check_same(&FULL.replace("GPU1\tNIC0\tNIC1\tCPU", "GPU1\n\tNIC0\tNIC1\tCPU"));
    check_same(&FULL.replace("PIX\tSYS\t0-15,32-47", "PIX\n   SYS\t0-15,32-47"));
}

#[test]
fn columns_in_any_subset() {
    let head = |columns: &str, tail: &str| {
        load(&format!("GPU0 GPU1 {columns}\nGPU0 X PHB {tail}\nGPU1 PHB X {tail}\n")).gpus.remove(0)
    };
    let cpus = |gpu: &crate::Gpu| gpu.cpus.as_ref().map(ToString::to_string);
    let gpu = head("CPU Affinity", "0-7");
    assert_eq!((cpus(&gpu).as_deref(), gpu.numa_node), (Some("0-7"), None));
    let gpu = head("CPU Affinity NUMA Affinity", "5 1");
    assert_eq!((cpus(&gpu).as_deref(), gpu.numa_node), (Some("5"), Some(1)));
    let gpu = head("NUMA Affinity", "1");
    assert_eq!((cpus(&gpu), gpu.numa_node), (None, Some(1)));
    // An empty CPU affinity leaves no word.
    let gpu = head("CPU Affinity NUMA Affinity GPU NUMA ID", "1 N/A");
    assert_eq!((cpus(&gpu), gpu.numa_node), (None, Some(1)));
    let gpu = head("CPU Affinity NUMA Affinity GPU NUMA ID", "0-7 1 2");
    assert_eq!((cpus(&gpu).as_deref(), gpu.numa_node), (Some("0-7"), Some(1)));
    // A column that nobody titled.
    let gpu = head("", "NUMA 1");
    assert_eq!((cpus(&gpu), gpu.numa_node), (None, Some(1)));
    check_fault("GPU0 CPU Affinity NUMA Affinity\nGPU0 X 0-7 0-1", "'0-1' is not one node");
    check_fault("GPU0 CPU Affinity\nGPU0 X 0-99999999", "is no CPU list");
}

#[test]
fn cut_pastes_are_incomplete_not_refused() {
    let cut = FULL.find("NIC0\tPIX").unwrap();
    let snapshot = check_fault(&FULL[..cut], "rows missing: NIC0, NIC1");
    assert_eq!(rows(&snapshot), ["X NV4 PIX SYS", "NV4 X SYS PXB", "? ? ? ?", "? ? ? ?"]);
    let snapshot =
        check_fault("GPU0 GPU1 GPU2\nGPU0 X NV1 NV2\nGPU1 NV1 X N", "ends in 'N', cut off");
    assert_eq!(rows(&snapshot), ["X NV1 NV2", "NV1 X ?", "? ? ?"]);
    // The legend comes while rows are missing.
    let without: String =
        FULL.lines().filter(|line| !line.starts_with("NIC1\t")).map(|l| format!("{l}\n")).collect();
    let snapshot = check_fault(&without, "rows missing: NIC1");
    assert_eq!(snapshot.nics[1].name, "rocep1s0");
}

#[test]
fn ragged_rows_keep_what_is_certain() {
    // A cell after the X of GPU0 is gone: which one, nobody can tell.
    let text =
        "GPU0 GPU1 GPU2 CPU Affinity\nGPU0 X NV1 0-7\nGPU1 NV1 X NV1 0-7\nGPU2 NV2 NV1 X 0-7";
    let snapshot = check_fault(text, "row GPU0 has 2 of 3 cells; the places of 1 are certain");
    assert_eq!(rows(&snapshot), ["X ? ?", "NV1 X NV1", "NV2 NV1 X"]);
    // The X of GPU1 is a place too early: nothing is certain.
    let text =
        "GPU0 GPU1 GPU2 CPU Affinity\nGPU0 X NV1 NV1 0-7\nGPU1 X NV1 0-7\nGPU2 NV1 NV1 X 0-7";
    let snapshot = check_fault(text, "the places of 0 are certain");
    assert_eq!(rows(&snapshot), ["X NV1 NV1", "? ? ?", "NV1 NV1 X"]);
    let snapshot = check_rows("GPU0 GPU1\nGPU0 X N/A\nGPU1 N/A X", &["X ?", "? X"]);
    assert_eq!(snapshot.gpus.len(), 2);
}

#[test]
fn a_header_may_be_missing() {
    let body: String = FULL.lines().skip(1).take(4).map(|line| format!("{line}\n")).collect();
    let snapshot = check_fault(&body, "no header");
    assert_eq!(rows(&snapshot), rows(&load(FULL)));
    assert_eq!(snapshot.gpus, load(FULL).gpus);
    check_refused("GPU0 X NV1 NV2\nGPU1 NV1 X NV2", 1, "no header");
}

#[test]
fn the_first_of_several_tables_is_read() {
    let p2p = "\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n";
    let snapshot = check_fault(
        &format!("{FULL}\n{p2p}"),
        "tables not read: 1, the first here; only that of line 1 is",
    );
    assert_eq!(snapshot.faults[0].place, "line 18");
    check_same(&format!("{FULL}\n{p2p}"));
    check_same(&format!("{p2p}\n{FULL}"));
    let other = FULL.replace("NV4", "NV8").replace("mlx5_0", "mlx5_9");
    check_same(&format!("{FULL}\n{other}"));
}

#[test]
fn other_tables_are_refused() {
    check_refused("\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n", 2, "not what joins them");
    check_refused(" Dst→ GPU0 GPU1\nGPU0: — 53.9\nGPU1: 53.8 —\n", 1, "no row of path classes");
    check_refused("     GPU0 GPU1\nGPU0 0 15\nGPU1 15 0\n", 2, "'0' is no path class");
    check_refused("     GPU 0 GPU 1\nGPU 0 - 56.2\nGPU 1 56.2 -\n", 1, "no header");
    check_refused(
        "| X | Device 0 | Device 1 |\n| Device 0 | X | SYS |\n| Device 1 | SYS | X |",
        1,
        "no header",
    );
    check_refused("GPU0 GPU1\nGPU0 X XGMI\nGPU1 XGMI X", 2, "'XGMI' is no path class");
    check_refused("nothing of the kind", 1, "no header");
    check_refused("  \n ", 0, "empty");
}

#[test]
fn contradictions_are_refused() {
    let with = |row: &str| format!("GPU0 GPU1 GPU2\nGPU0 X PIX SYS\n{row}\nGPU2 SYS SYS X\n");
    check_rows(&with("GPU1 PIX X SYS"), &["X PIX SYS", "PIX X SYS", "SYS SYS X"]);
    check_refused(&with("GPU1 PHB X SYS"), 3, "GPU1 to GPU0 is PHB, GPU0 to GPU1 is PIX");
    check_refused(&with("GPU1 PIX SYS X"), 3, "row GPU1 has its X in GPU2");
    check_refused(&with("GPU1 X X SYS"), 3, "X in two columns");
    check_refused(&with("GPU1 PIX PIX SYS"), 3, "X in no column");
    check_refused(&with("GPU1 PIX X SYS SYS"), 3, "4 cells under 3 columns");
    check_refused(&with("GPU1 PIX X FAR"), 3, "'FAR' is no path class");
    check_refused(&with("GPU1 PIX X SYS\nGPU1 PIX X PIX"), 4, "row GPU1 is also at line 3");
    check_refused("GPU0 GPU0\nGPU0 X SYS", 1, "names GPU0 twice");
    check_refused("GPU0 GPU00\nGPU0 X SYS", 1, "names GPU 0 twice");
    // A link may be down at one end.
    let text = "GPU0 GPU1\nGPU0 X NV12\nGPU1 NV11 X";
    assert_eq!(
        rows(&check_fault(text, "GPU1 to GPU0 is NV11, GPU0 to GPU1 is NV12")),
        ["X NV12", "NV11 X"]
    );
}

/// A symmetric matrix of `gpus` GPUs and some NICs.
fn matrices() -> impl Strategy<Value = Matrix> {
    let words = ["NV1", "NV12", "PIX", "PXB", "PHB", "NODE", "SYS"];
    (2usize..9, 0usize..6).prop_flat_map(move |(gpus, nics)| {
        let n = gpus + nics;
        proptest::collection::vec(proptest::sample::select(words.to_vec()), n * n).prop_map(
            move |words| {
                let cell = |a: usize, b: usize| match a.cmp(&b) {
                    core::cmp::Ordering::Equal => Cell::class(PathType::Loc),
                    core::cmp::Ordering::Less => words[a * n + b].parse().unwrap(),
                    core::cmp::Ordering::Greater => words[b * n + a].parse().unwrap(),
                };
                Matrix {
                    devices: (0..gpus)
                        .map(|g| format!("GPU{g}"))
                        .chain((0..nics).map(|nic| format!("NIC{nic}")))
                        .collect(),
                    cells: (0..n).map(|a| (0..n).map(|b| Some(cell(a, b))).collect()).collect(),
                }
            },
        )
    })
}

/// How a driver prints: separator, padding of `X`, columns after the square.
fn print(matrix: &Matrix, separator: &str, columns: usize) -> String {
    let titles = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"];
    let values = ["0-7,16-23", "0", "N/A"];
    let line = |name: &str, cells: Vec<String>, tail: &[&str]| {
        let tail = tail.iter().map(|word| (*word).into());
        let words: Vec<String> = core::iter::once(name.into()).chain(cells).chain(tail).collect();
        words.join(separator) + "\n"
    };
    let mut text = line("", matrix.devices.clone(), &titles[..columns]);
    for (name, row) in matrix.devices.iter().zip(&matrix.cells) {
        let cells = row.iter().map(|cell| format!("{:^3}", cell.unwrap())).collect();
        let tail = if name.starts_with("GPU") { &values[..columns] } else { &[] };
        text += &line(name, cells, tail);
    }
    text
}

proptest! {
    #[test]
    fn printed_matrices_are_read_back(
        matrix in matrices(),
        separator in proptest::sample::select(vec!["\t", " ", "    ", " | "]),
        columns in 0usize..4,
    ) {
        let snapshot = load(&print(&matrix, separator, columns));
        prop_assert_eq!(snapshot.faults.len(), 0, "{:?}", snapshot.faults);
        prop_assert_eq!(snapshot.matrix, Some(matrix));
        prop_assert_eq!(snapshot.gpus[0].cpus.is_some(), columns > 0);
        prop_assert_eq!(snapshot.gpus[0].numa_node, (columns > 1).then_some(0));
    }

    /// A cut anywhere loses cells, never moves one, and is never refused once a row has begun to be legible.
    #[test]
    fn cuts_never_move_a_cell(matrix in matrices(), keep in 0.0f64..1.0) {
        let text = print(&matrix, "\t", 2);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "an index below the length")]
        let end = (text.len() as f64 * keep) as usize;
        let read = read_any(&text.as_bytes()[..end]);
        let Ok(hosts) = read else {
            let second = text.match_indices('\n').nth(1).unwrap().0;
            prop_assert!(end <= second, "{:?}", read);
            return Ok(());
        };
        let found = hosts[0].matrix.as_ref().unwrap();
        if found.devices != matrix.devices {
            // The header itself was cut, or the cut is in the columns' titles.
            return Ok(());
        }
        for (a, row) in found.cells.iter().enumerate() {
            for (b, cell) in row.iter().enumerate() {
                // `NV12` cut to `NV1` is the last word of the text: no reader can know.
                let last = text[..end].trim_end().rsplit('\t').next().unwrap_or_default();
                let cut = cell.is_some_and(|cell| cell.to_string() == last.trim());
                prop_assert!(cell.is_none() || *cell == matrix.cells[a][b] || cut);
            }
        }
    }

    #[test]
    fn mutations_never_panic(at in 0..FULL.len(), length in 0usize..60, with in "[ -~\t\n]{0,8}") {
        let end = (at + length).min(FULL.len());
        let mutated = format!("{}{with}{}", &FULL[..at], &FULL[end..]);
        crate::formats::fuzz::any(mutated.as_bytes());
        crate::formats::fuzz::topo_m(mutated.as_bytes());
    }

    #[test]
    fn nonsense_never_panics(words in proptest::collection::vec(proptest::sample::select(vec![
        "GPU0", "GPU1", "GPU01", "NIC0", "NIC0:", "mlx5_0", "X", "NV4", "NV99999999999", "SYS", "N/A", "NUMA", "CPU",
        "Affinity", "0-7", "1", "Legend", "\n", "\n", "\u{1b}[4m", "|", "GPU", "é", "GPU0X",
    ]), 0..60)) {
        crate::formats::fuzz::any(words.join(" ").as_bytes());
        crate::formats::fuzz::any(words.concat().as_bytes());
    }
}
