//! The tables of `rocm-smi --showtopo` and `amd-smi topology`.
//!
//! ```text
//!   == Hops between two GPUs ==            HOPS TABLE:                       titles say what a table is
//!          GPU0   GPU1                                  0000:0c:00.0 …       names: numbers or PCI addresses
//!   GPU0   0      1                        0000:0c:00.0 0            …       a row for each
//!   == Link Type between two GPUs ==       LINK TYPE TABLE:                  XGMI or PCIE
//!   GPU[0] : (Topology) Numa Affinity: 0                                     -1 is unknown
//!                                          NUMA BW TABLE:                    50000-100000: one link and all, MB/s
//! ```
//!
//! `amd-smi topology --json` says the same (AMD's changelog of amd-smi has both of its forms):
//!
//! ```text
//!   [{ "gpu": 0, "bdf": "0000:0c:00.0", "links": [{ "gpu": 1, "bdf": …, "link_type": "XGMI", "num_hops": 1, "bandwidth": "50000-100000" }, …] }, …]
//!   [{ "gpu": 0, "bdf": "0000:0c:00.0", "link_type": { "gpu_1": "XGMI" }, "hops": { "gpu_1": 1 }, "numa_bandwidth": { "gpu_1": "N/A" } }, …]
//! ```
//!
//! They become a matrix: a pair with a direct xGMI link counts its links (`NV2`), a pair over PCIe is on one NUMA node
//! (two hops) or on two. Which switches GPUs share, and the NICs, these tools do not say.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::text::{excerpt, fault};
use super::{DEVICE_LIMIT, ReadError};
use crate::matrix::{Cell, Matrix};
use crate::snapshot::{Gpu, NumaNode, Source};
use crate::words::some_of;
use crate::{BusId, GpuIndex, PathType, Snapshot};

mod json;

const FORMAT: &str = "rocm-smi or amd-smi topology";
const READER: &str = "rocm-topo";

/// What a table's cells are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Type,
    Hops,
    Bandwidth,
    /// Weights, access, coherence, atomics: nothing a topology needs.
    Other,
}

/// Whether a text is of these tools.
pub(super) fn is_in(text: &str) -> bool {
    text.lines().any(|line| mark(line.trim()))
}

fn mark(line: &str) -> bool {
    let titles = [
        "Link Type between two GPUs",
        "Hops between two GPUs",
        "(Topology) Numa ",
        "amd-smi topology",
    ];
    let tables =
        ["ACCESS TABLE:", "WEIGHT TABLE:", "HOPS TABLE:", "LINK TYPE TABLE:", "NUMA BW TABLE:"];
    titles.iter().any(|title| line.contains(title)) || tables.contains(&line) || {
        let mut words = line.split_whitespace();
        let named = words.next().is_some_and(|name| name_of(name).is_some());
        let cells: Vec<&str> = words.collect();
        named && cells.contains(&"XGMI") && (cells.contains(&"0") || cells.contains(&"SELF"))
    }
}

/// A name of a row or column: a number or a PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Number(u32),
    Address(BusId),
}

impl Name {
    fn is_number(&self) -> bool {
        matches!(self, Self::Number(_))
    }
}

fn name_of(word: &str) -> Option<Name> {
    if let Some(number) = word.strip_prefix("GPU") {
        let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        return plain.then(|| number.parse().ok()).flatten().map(Name::Number);
    }
    (word.len() >= 12 && word.contains(':')).then(|| word.parse().ok()).flatten().map(Name::Address)
}

/// The kind a title names; `None` where the line is no title.
fn title(line: &str) -> Option<Kind> {
    let banner = line.starts_with("===") || line.ends_with("TABLE:");
    if !banner {
        return None;
    }
    let line = line.to_ascii_lowercase();
    Some(if line.contains("link type") {
        Kind::Type
    } else if line.contains("hops") {
        Kind::Hops
    } else if line.contains("bw table") || line.contains("bandwidth") {
        Kind::Bandwidth
    } else {
        Kind::Other
    })
}

#[derive(Default)]
struct Tables<'a> {
    names: Vec<Name>,
    /// Their numbers, where the source tells both.
    numbers: Vec<u32>,
    /// Line of the first header.
    line: usize,
    cells: BTreeMap<Kind, BTreeMap<(usize, usize), Cow<'a, str>>>,
    /// By GPU number: (affinity, node).
    numa: BTreeMap<u32, (Option<u32>, Option<u32>)>,
    rows: BTreeMap<Kind, usize>,
}

pub(super) fn read(text: &str) -> Result<Snapshot, ReadError> {
    let tables = tables(text)?;
    let refuse = |line, reason: &str| ReadError { format: FORMAT, line, reason: reason.into() };
    let told = |kind| tables.cells.get(&kind).is_some_and(|cells| !cells.is_empty());
    if !told(Kind::Type) {
        let line = (1..)
            .zip(text.lines())
            .find(|(_, line)| mark(line.trim()))
            .map_or(1, |(number, _)| number);
        return Err(refuse(
            line,
            "no table of link types; `amd-smi topology` and `rocm-smi --showtopo` print it when no option picks others",
        ));
    }
    Ok(snapshot(&tables))
}

/// The JSON form.
pub(super) fn read_json(text: &str) -> Result<Snapshot, ReadError> {
    json::read(text).map(|tables| snapshot(&tables))
}

fn snapshot(tables: &Tables<'_>) -> Snapshot {
    let told = |kind| tables.cells.get(&kind).is_some_and(|cells| !cells.is_empty());
    let mut snapshot = Snapshot::new(Source::RocmTopo);
    let mut missing = |error: String| snapshot.faults.push(fault(READER, tables.line, error));
    if !told(Kind::Hops) {
        missing("no table of hops: every xGMI pair is taken as direct".into());
    }
    if !told(Kind::Bandwidth) {
        missing("no table of bandwidths: one xGMI link assumed for each pair that has any".into());
    }
    missing("PCIe links, switches and NICs are not told by this tool".into());
    let size = tables.names.len();
    let mut unread: Vec<String> = Vec::new();
    let cells = (0..size)
        .map(|row| {
            (0..size)
                .map(|column| match row == column {
                    true => Some(Cell::class(PathType::Loc)),
                    false => tables.pair(row, column, &mut unread),
                })
                .collect()
        })
        .collect();
    if !unread.is_empty() {
        missing(format!("what joins them is not told: {}", some_of(&unread)));
    }
    for (place, name) in (0..).zip(&tables.names) {
        let index = match name {
            Name::Number(number) => *number,
            Name::Address(_) => usize::try_from(place)
                .ok()
                .and_then(|at| tables.numbers.get(at))
                .copied()
                .unwrap_or(place),
        };
        let (affinity, node) = tables.numa.get(&index).copied().unwrap_or_default();
        let numa_node = affinity.or(node);
        let bus_id = match name {
            Name::Number(_) => None,
            Name::Address(id) => Some(*id),
        };
        snapshot.gpus.push(Gpu { bus_id, numa_node, ..Gpu::new(GpuIndex(index)) });
        if let Some(id) = numa_node
            && !snapshot.numa_nodes.iter().any(|node| node.id == id)
        {
            snapshot.numa_nodes.push(NumaNode::new(id));
        }
    }
    let devices = snapshot.gpus.iter().map(|gpu| format!("GPU{}", gpu.index)).collect();
    snapshot.matrix = Some(Matrix { devices, cells });
    snapshot.gpus.sort_by_key(|gpu| gpu.index);
    snapshot.numa_nodes.sort_by_key(|node| node.id);
    snapshot
}

impl Tables<'_> {
    /// From either side.
    fn cell(&self, kind: Kind, row: usize, column: usize) -> Option<&str> {
        let cells = self.cells.get(&kind)?;
        cells.get(&(row, column)).or_else(|| cells.get(&(column, row))).map(AsRef::as_ref)
    }

    fn pair(&self, row: usize, column: usize, unread: &mut Vec<String>) -> Option<Cell> {
        let hops = self.cell(Kind::Hops, row, column).and_then(|cell| cell.parse::<u32>().ok());
        let node = |place: usize| match self.names[place] {
            Name::Number(number) => {
                self.numa.get(&number).and_then(|(affinity, node)| affinity.or(*node))
            }
            Name::Address(_) => None,
        };
        let cell = self.cell(Kind::Type, row, column);
        match cell {
            Some("XGMI") if hops.is_none_or(|hops| hops == 1) => {
                let links = self.cell(Kind::Bandwidth, row, column).and_then(links).unwrap_or(1);
                Some(Cell { class: PathType::Nvl, links })
            }
            // A pair that reaches each other through a third GPU has no link of its own.
            Some("XGMI") => None,
            Some("PCIE") => match (hops, node(row), node(column)) {
                (Some(hops), ..) => {
                    Some(Cell::class(if hops > 2 { PathType::Sys } else { PathType::Node }))
                }
                (None, Some(a), Some(b)) => {
                    Some(Cell::class(if a == b { PathType::Node } else { PathType::Sys }))
                }
                (None, ..) => Some(Cell::class(PathType::Sys)),
            },
            other => {
                if row < column {
                    unread.push(format!(
                        "GPU{row} to GPU{column} ({})",
                        other.map_or_else(|| "no cell".into(), excerpt)
                    ));
                }
                None
            }
        }
    }
}

/// Links of a pair: `50000-200000` is what one carries and what all do.
fn links(cell: &str) -> Option<u32> {
    let (one, all) = cell.split_once('-')?;
    let (one, all): (u32, u32) = (one.parse().ok()?, all.parse().ok()?);
    (one > 0 && all % one == 0 && all >= one).then(|| all / one)
}

fn tables(text: &str) -> Result<Tables<'_>, ReadError> {
    let mut tables = Tables::default();
    let mut kind = None;
    // Columns of the table at hand, as places among all names.
    let mut columns: Vec<usize> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let refuse = |reason: String| ReadError { format: FORMAT, line: number, reason };
        if let Some(found) = title(line) {
            kind = Some(found);
            columns.clear();
            continue;
        }
        if let Some((gpu, fact)) = numa(line) {
            if tables.numa.len() < DEVICE_LIMIT || tables.numa.contains_key(&gpu) {
                let entry = tables.numa.entry(gpu).or_default();
                match fact {
                    Numa::Affinity(node) => entry.0 = node,
                    Numa::Node(node) => entry.1 = node,
                }
            }
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let names: Vec<Name> = words.iter().map_while(|word| name_of(word)).collect();
        if !names.is_empty() && names.len() == words.len() {
            if names.len() > DEVICE_LIMIT {
                return Err(refuse(format!(
                    "{} devices; at most {DEVICE_LIMIT} are read",
                    names.len()
                )));
            }
            let mut once = names.clone();
            once.sort_unstable();
            once.dedup();
            if once.len() < names.len() {
                return Err(refuse("the header names a GPU twice".into()));
            }
            // A number would stand beside a place in the list, which may be the same.
            if names.iter().any(Name::is_number) && !names.iter().all(Name::is_number) {
                return Err(refuse("the header names GPUs by number and by address".into()));
            }
            if tables.names.is_empty() {
                tables.line = number;
                tables.names = names;
                columns = (0..tables.names.len()).collect();
            } else {
                let place = |name: &Name| tables.names.iter().position(|known| known == name);
                let places: Option<Vec<usize>> = names.iter().map(place).collect();
                columns = places.filter(|places| places.len() == tables.names.len()).ok_or_else(
                    || {
                        refuse(format!(
                            "this table is of other GPUs than that of line {}",
                            tables.line
                        ))
                    },
                )?;
            }
            continue;
        }
        let (Some(name), false) = (names.first(), columns.is_empty()) else { continue };
        let Some(row) = tables.names.iter().position(|known| known == name) else {
            return Err(refuse(format!("row {} is in no column", excerpt(words[0]))));
        };
        let cells = &words[1..];
        let kind =
            kind.unwrap_or_else(|| match cells.contains(&"XGMI") || cells.contains(&"PCIE") {
                true => Kind::Type,
                false => Kind::Other,
            });
        if cells.len() != columns.len() {
            return Err(refuse(format!("{} cells under {} columns", cells.len(), columns.len())));
        }
        *tables.rows.entry(kind).or_default() += 1;
        if kind == Kind::Other {
            continue;
        }
        let all = tables.cells.entry(kind).or_default();
        for (column, cell) in columns.iter().zip(cells) {
            all.entry((row, *column)).or_insert(Cow::Borrowed(cell));
        }
    }
    cross_check(&tables)?;
    Ok(tables)
}

/// Both rows of a pair must agree on what joins it.
fn cross_check(tables: &Tables<'_>) -> Result<(), ReadError> {
    let Some(cells) = tables.cells.get(&Kind::Type) else { return Ok(()) };
    for ((row, column), cell) in cells {
        let other = cells.get(&(*column, *row));
        if other.is_some_and(|other| other != cell) {
            let reason = format!(
                "row {row} has {} to {column}, row {column} has {} back",
                excerpt(cell),
                other.map(|other| excerpt(other)).unwrap_or_default()
            );
            return Err(ReadError { format: FORMAT, line: tables.line, reason });
        }
    }
    Ok(())
}

enum Numa {
    Affinity(Option<u32>),
    Node(Option<u32>),
}

/// `GPU[0] : (Topology) Numa Affinity: 0`.
fn numa(line: &str) -> Option<(u32, Numa)> {
    let (gpu, rest) = line.strip_prefix("GPU[")?.split_once(']')?;
    let (_, rest) = rest.split_once("(Topology) Numa ")?;
    let (what, node) = rest.split_once(':')?;
    let node = node.trim().parse().ok();
    let fact = match what {
        "Affinity" => Numa::Affinity(node),
        "Node" => Numa::Node(node),
        _ => return None,
    };
    Some((gpu.parse().ok()?, fact))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::read as read_any;

    const HEAD: &str = "======= ROCm System Management Interface =======\n";

    fn table(name: &str, cells: &[&str]) -> String {
        let mut text =
            format!("===== {name} between two GPUs =====\n       GPU0   GPU1   GPU2   \n");
        for (row, cells) in cells.iter().enumerate() {
            text.push_str(&format!("GPU{row}   {cells}   \n"));
        }
        text + "\n"
    }

    #[track_caller]
    fn check(text: &str, rows: [&str; 3]) -> Snapshot {
        let host = read_any(text.as_bytes()).unwrap().remove(0);
        let matrix = host.matrix.as_ref().unwrap();
        for (cells, expect) in matrix.cells.iter().zip(rows) {
            let cells: Vec<String> =
                cells.iter().map(|cell| cell.map_or("-".into(), |cell| cell.to_string())).collect();
            assert_eq!(cells.join(" "), expect);
        }
        crate::lower(core::slice::from_ref(&host), crate::RateModel::Effective).unwrap();
        host
    }

    /// Three GPUs whose numbers are not in the order of rows.
    const JSON: &str = r#"[
        {"gpu": 2, "bdf": "0000:0c:00.0", "links": [
            {"gpu": 2, "bdf": "0000:0c:00.0", "weight": 0, "link_type": "SELF", "num_hops": 0, "bandwidth": "N/A"},
            {"gpu": 0, "bdf": "0000:22:00.0", "weight": 15, "link_type": "XGMI", "num_hops": 1, "bandwidth": "50000-100000"},
            {"gpu": 1, "bdf": "0001:38:00.0", "weight": 52, "link_type": "PCIE", "num_hops": 3, "bandwidth": "N/A"}]},
        {"gpu": 0, "bdf": "0000:22:00.0", "links": []},
        {"gpu": 1, "bdf": "0001:38:00.0", "links": [
            {"gpu": 0, "bdf": "0000:22:00.0", "link_type": "PCIE", "num_hops": 2, "bandwidth": "N/A"}]}]"#;

    #[test]
    fn amd_smi_json() {
        let host = check(JSON, ["X NV2 SYS", "NV2 X NODE", "SYS NODE X"]);
        let gpus: Vec<_> =
            host.gpus.iter().map(|gpu| (gpu.index.0, gpu.bus_id.unwrap().to_string())).collect();
        let gpu = |index: u32, id: &str| (index, String::from(id));
        assert_eq!(gpus, [gpu(0, "0000:22:00.0"), gpu(1, "0001:38:00.0"), gpu(2, "0000:0c:00.0")]);
        assert_eq!(host.matrix.unwrap().devices, ["GPU2", "GPU0", "GPU1"]);
        let older = r#"[
            {"gpu": 0, "bdf": "0000:0c:00.0", "weight": {"gpu_0": 0, "gpu_1": 40}, "hops": {"gpu_0": 0, "gpu_1": 2},
             "link_type": {"gpu_0": "SELF", "gpu_1": "PCIE"}, "numa_bandwidth": {"gpu_0": "N/A", "gpu_1": "N/A"}},
            {"gpu": 1, "bdf": "0000:22:00.0", "hops": {"gpu_0": 2}, "link_type": {"gpu_0": "PCIE", "gpu_1": "SELF"}}]"#;
        check(older, ["X NODE", "NODE X", ""]);
        let alone =
            r#"{"gpu": 0, "bdf": "0000:0b:00.0", "links": [{"gpu": 0, "link_type": "SELF"}]}"#;
        check(alone, ["X", "", ""]);
    }

    #[test]
    fn amd_smi_json_refusals() {
        for (text, said) in [
            (JSON.replace("\"gpu\": 2", "\"gpu\": 1"), "is there twice"),
            (
                JSON.replace(
                    "\"gpu\": 0, \"bdf\": \"0000:22:00.0\", \"weight\"",
                    "\"gpu\": 7, \"weight\"",
                ),
                "which has no row",
            ),
            (JSON.replace("0000:0c:00.0", "slot 3"), "line 2"),
            (JSON.replace("link_type", "type"), "no link types"),
            (
                JSON.replace("\"links\": []", "\"links\": [{\"gpu\": 2, \"link_type\": \"PCIE\"}]"),
                "row 0 has XGMI to 1",
            ),
            (
                r#"[{"gpu": 0, "asic": {"market_name": "x"}, "bus": {"bdf": "0000:0c:00.0"}}]"#
                    .into(),
                "amd-smi static",
            ),
        ] {
            let error = read_any(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(said), "expected '{said}' in '{error}'");
        }
    }

    #[test]
    fn rocm_smi() {
        let text = format!(
            "{HEAD}{}{}{}==== Numa Nodes ====\nGPU[0]\t\t: (Topology) Numa Node: 0\nGPU[0]\t\t: (Topology) Numa Affinity: 1\n\
             GPU[1]\t\t: (Topology) Numa Affinity: -1\n",
            table("Weight", &["0 15 52", "15 0 30", "52 30 0"]),
            table("Hops", &["0 1 3", "1 0 2", "3 2 0"]),
            table("Link Type", &["0 XGMI PCIE", "XGMI 0 XGMI", "PCIE XGMI 0"]),
        );
        let host = check(&text, ["X NV1 SYS", "NV1 X -", "SYS - X"]);
        assert_eq!(
            host.gpus.iter().map(|gpu| gpu.numa_node).collect::<Vec<_>>(),
            [Some(1), None, None]
        );
        assert!(host.faults.iter().any(|fault| fault.error.contains("no table of bandwidths")));
    }

    #[test]
    fn amd_smi_counts_links() {
        let table = |name: &str, cells: [&str; 3]| {
            let ids = ["0000:0c:00.0", "0000:22:00.0", "0000:38:00.0"];
            let rows: String =
                ids.iter().zip(cells).map(|(id, cells)| format!("{id} {cells}\n")).collect();
            format!("{name} TABLE:\n             {}\n{rows}\n", ids.join(" "))
        };
        let text = table("HOPS", ["0 1 1", "1 0 1", "1 1 0"])
            + &table("LINK TYPE", ["SELF XGMI XGMI", "XGMI SELF PCIE", "XGMI PCIE SELF"])
            + &table(
                "NUMA BW",
                ["N/A 50000-200000 50000-50000", "50000-200000 N/A N/A", "50000-50000 N/A N/A"],
            );
        let host = check(&text, ["X NV4 NV1", "NV4 X NODE", "NV1 NODE X"]);
        assert_eq!(host.gpus[1].bus_id, "0000:22:00.0".parse().ok());
        let topology = crate::lower(&[host], crate::RateModel::Effective).unwrap();
        let kinds: Vec<_> = topology
            .graph
            .edge_weights()
            .filter(|link| link.kind == crate::LinkKind::Xgmi)
            .collect();
        assert_eq!(kinds.iter().map(|link| link.count).max(), Some(4));
    }

    #[track_caller]
    fn check_refused(text: &str, line: usize, word: &str) {
        let error = read_any(text.as_bytes()).unwrap_err();
        assert_eq!((error.format, error.line), (FORMAT, line), "{error}");
        assert!(error.reason.contains(word), "{error}");
    }

    #[test]
    fn contradictions_are_refused() {
        let types = |cells: &[&str]| format!("{HEAD}{}", table("Link Type", cells));
        check_refused(&types(&["0 XGMI PCIE", "PCIE 0 XGMI", "PCIE XGMI 0"]), 3, "back");
        check_refused(&types(&["0 XGMI", "XGMI 0", "PCIE XGMI"]), 4, "2 cells under 3 columns");
        let twice = "Link Type between two GPUs\nGPU0 GPU0\nGPU0 0 XGMI";
        check_refused(twice, 2, "twice");
        let mixed = "Link Type between two GPUs\nGPU1 0000:0c:00.0\nGPU1 0 XGMI";
        check_refused(mixed, 2, "by number and by address");
        let other =
            format!("{}=== Hops between two GPUs ===\nGPU0 GPU9\n", types(&["0 XGMI PCIE"]));
        check_refused(&other, 7, "other GPUs");
        check_refused(&format!("{HEAD}{}", table("Hops", &["0 1 1"])), 2, "no table of link types");
        check_refused(
            "$ amd-smi topology -h\nusage: amd-smi topology [-h]",
            1,
            "no table of link types",
        );
    }
}
