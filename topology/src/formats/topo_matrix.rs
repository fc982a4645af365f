//! The matrix of `nvidia-smi topo -m`, as drivers since 2016 print it and people paste it.
//!
//! ```text
//!   $ nvidia-smi topo -m                            prompts, banners, quotation marks: anywhere around
//!           GPU0  GPU1  NIC0  CPU Affinity  NUMA…   header, maybe underlined, maybe on the prompt's line
//!   GPU0     X    NV4   PIX   0-31          0       tabs or spaces, cells maybe run together
//!   GPU1    NV4    X    NODE  0-31          0
//!   NIC0    PIX   NODE   X                          no affinities, or empty ones
//!   NIC Legend: NIC0: mlx5_0                        older drivers head the columns mlx5_0 instead
//! ```
//!
//! Words alone are looked at, never columns of characters: pastes keep the words and lose the spacing. The first
//! legible table of an input is read; others are named in a fault. A table of other words (measured rates, P2P
//! states, another vendor's classes) is refused.

mod header;
mod table;
mod words;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use self::header::{Column, Header};
use self::table::Table;
use self::words::{gpu_index, strip_terminal_codes, words};
use super::text::{excerpt, fault};
use super::{DEVICE_LIMIT, KNOWN, ReadError, unrecognised};
use crate::matrix::Matrix;
use crate::snapshot::{NumaNode, Source};
use crate::{Gpu, GpuIndex, Nic, Snapshot};

const FORMAT: &str = "nvidia-smi topo -m matrix";
const READER: &str = "topo-matrix";

/// Why no matrix was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotRead {
    /// There is one, and it contradicts itself.
    Matrix(ReadError),
    /// There is none; perhaps the text is of another format.
    Other(ReadError),
}

/// The first legible table of a text.
pub(super) fn read(text: &str) -> Result<Snapshot, NotRead> {
    let text = strip_terminal_codes(text);
    let Found { table, others, refused, legend } = find(&text);
    let refuse = |line, reason| ReadError { format: FORMAT, line, reason };
    let table = match (table, refused) {
        (Some(table), _) => table,
        (None, Some((line, reason))) => return Err(NotRead::Other(refuse(line, reason))),
        (None, None) => match headless(&text) {
            Some(table) => table,
            None => {
                let line =
                    text.lines().position(|line| !line.trim().is_empty()).map_or(0, |at| at + 1);
                let reason =
                    format!("no header naming GPU0, GPU1, … and no row of path classes; {KNOWN}");
                return Err(NotRead::Other(unrecognised(line, reason)));
            }
        },
    };
    if let Some((line, reason)) = table.error {
        return Err(NotRead::Matrix(refuse(line, reason)));
    }
    let mut snapshot = assemble(&table, &legend);
    if let Some((line, count)) = others {
        let error = format!(
            "tables not read: {count}, the first here; only that of line {} is",
            table.line
        );
        snapshot.faults.push(fault(READER, line, error));
    }
    Ok(snapshot)
}

/// What a pass over the lines found.
struct Found {
    /// The first legible table.
    table: Option<Table>,
    /// Line of the first further header, and how many there are.
    others: Option<(usize, usize)>,
    /// Why the first illegible one is none.
    refused: Option<(usize, String)>,
    /// The NICs' own names, by column name.
    legend: BTreeMap<String, String>,
}

fn find(text: &str) -> Found {
    let mut found = Found { table: None, others: None, refused: None, legend: BTreeMap::new() };
    let mut current: Option<Table> = None;
    let mut closed = false;
    let mut label: Option<String> = None;
    let last = last_line(text);
    for (number, line) in (1..).zip(text.lines()) {
        if current.is_none() && !line.contains("GPU") {
            continue;
        }
        let words = words(line);
        if let Some(header) = Header::parse(&words) {
            let extended =
                current.as_mut().is_some_and(|table| !closed && table.extend_header(&words));
            if !extended {
                found.end(current.take());
                if found.table.is_some() {
                    found.others.get_or_insert((number, 0)).1 += 1;
                }
                current = Some(Table::new(number, header));
                closed = false;
            }
            continue;
        }
        let Some(table) = current.as_mut() else { continue };
        let is_legend = words.iter().any(|word| word.starts_with("Legend"));
        closed |= is_legend || table.is_full();
        if closed || !table.extend_header(&words) {
            if !closed {
                table.take(number, &words, number == last);
            }
            // A later table's legend is of another host.
            if found.table.is_none() {
                read_legend(&words, &mut label, &mut found.legend);
            }
        }
    }
    found.end(current);
    found
}

impl Found {
    fn end(&mut self, table: Option<Table>) {
        let Some(mut table) = table else { return };
        table.close();
        if table.legible && table.error.is_none() {
            table.cross_check();
        }
        if self.table.is_some() {
            return;
        }
        if table.legible {
            self.table = Some(table);
        } else {
            self.legend.clear();
            let reason =
                "the header has no row of path classes (X, NV#, PIX, PXB, PHB, NODE, SYS) under it";
            let error = table.error.unwrap_or_else(|| (table.line, reason.into()));
            self.refused.get_or_insert(error);
        }
    }
}

/// `NIC0: mlx5_0`, `NIC0=mlx5_0`, `NIC0:` with the name on the next line.
fn read_legend(words: &[&str], label: &mut Option<String>, legend: &mut BTreeMap<String, String>) {
    for word in words {
        let word = word.trim_matches([',', ';', '(', ')']);
        let (key, value) = match word.split_once([':', '=']) {
            Some((key, value)) if is_nic(key) => (Some(key), value),
            _ => (None, word),
        };
        if let Some(key) = key {
            *label = Some(key.into());
        }
        if !value.is_empty()
            && let Some(key) = label.take()
            && legend.len() < DEVICE_LIMIT
        {
            legend.entry(key).or_insert_with(|| excerpt(value));
        }
    }
}

fn is_nic(word: &str) -> bool {
    word.strip_prefix("NIC")
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Number of the last line that is not blank; a cut may have left half a word there.
fn last_line(text: &str) -> usize {
    text.trim_end().lines().count()
}

/// A table whose header was lost: rows of path classes, as many as their cells.
fn headless(text: &str) -> Option<Table> {
    let is_row = |words: &[&str]| {
        let name = words.first().copied().unwrap_or_default();
        let named = words::device_names(name).is_some_and(|(names, _)| names.len() == 1);
        named && words.get(1).is_some_and(|word| words::cells(word).is_some())
    };
    let first = text.lines().position(|line| is_row(&words(line)))?;
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip(first)
        .map(words)
        .take_while(|words| is_row(words))
        .take(DEVICE_LIMIT + 1)
        .collect();
    let most = table::split(rows.first()?.get(1..)?, DEVICE_LIMIT);
    if gpu_index(rows[0][0]).is_none() || most.cells.len() != rows.len() {
        return None;
    }
    // Which columns followed can be told by their number: every driver prints them in one order.
    let all = [Column::Cpus, Column::Numa, Column::GpuNuma];
    let columns = all.into_iter().take(most.tail.len()).collect();
    let devices = rows.iter().map(|words| String::from(words[0])).collect();
    let mut table = Table::new(first + 1, Header { devices, columns });
    let last = last_line(text);
    for (line, words) in (first + 1..).zip(&rows) {
        table.take(line, words, line == last);
    }
    table.close();
    table.cross_check();
    let error = "no header: the columns are taken to be in the order of the rows";
    table.faults.push((first + 1, error.into()));
    Some(table)
}

fn assemble(table: &Table, legend: &BTreeMap<String, String>) -> Snapshot {
    let mut snapshot = Snapshot::new(Source::TopoMatrix);
    let size = table.size();
    let mut nodes = BTreeMap::new();
    for (place, name) in table.header.devices.iter().enumerate() {
        let row = table.rows.get(&place);
        let numa_node = row.and_then(|row| row.numa_node);
        if let Some(id) = numa_node {
            // The affinity is what the process may use there, not all CPUs of the node.
            nodes.insert(id, NumaNode::new(id));
        }
        match gpu_index(name) {
            Some(index) => snapshot.gpus.push(Gpu {
                numa_node,
                cpus: row.and_then(|row| row.cpus.clone()),
                memory_node: row.and_then(|row| row.memory_node),
                ..Gpu::new(GpuIndex(index))
            }),
            None => snapshot.nics.push(Nic {
                numa_node,
                ..Nic::new(legend.get(name).cloned().unwrap_or_else(|| excerpt(name)))
            }),
        }
    }
    snapshot.gpus.sort_by_key(|gpu| gpu.index);
    snapshot.numa_nodes = nodes.into_values().collect();
    let cells = |place| table.rows.get(&place).map(|row| row.cells.clone());
    snapshot.matrix = Some(Matrix {
        devices: table.header.devices.clone(),
        cells: (0..size)
            .map(|place| cells(place).unwrap_or_else(|| alloc::vec![None; size]))
            .collect(),
    });
    let mut faults = table.faults.clone();
    faults.sort_by_key(|(line, _)| *line);
    snapshot.faults = faults.into_iter().map(|(line, error)| fault(READER, line, error)).collect();
    if table.rows.len() < size {
        let error = format!("rows missing: {}", table.missing());
        snapshot.faults.push(fault(READER, table.line, error));
    }
    snapshot
}

#[cfg(test)]
mod tests;
