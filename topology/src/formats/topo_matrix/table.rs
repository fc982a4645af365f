//! One table: the rows under its header, and what is wrong with them.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::header::{Column, Header};
use super::words::{cells, is_affinity};
use crate::formats::text::excerpt;
use crate::matrix::Cell;
use crate::{CpuList, PathType};

/// One device's row as far as it was there.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub(super) line: usize,
    /// As many as devices at the end.
    pub(super) cells: Vec<Option<Cell>>,
    pub(super) cpus: Option<CpuList>,
    pub(super) numa_node: Option<u32>,
    /// Of the GPU's own memory.
    pub(super) memory_node: Option<u32>,
}

/// A row's words, split where the cells end.
pub(super) struct Split<'a> {
    pub(super) cells: Vec<Option<Cell>>,
    pub(super) tail: Vec<&'a str>,
    /// The first word that is neither.
    pub(super) foreign: Option<&'a str>,
}

/// Splits the words after a row's name into at most `most` cells and the columns behind them.
pub(super) fn split<'a>(words: &[&'a str], most: usize) -> Split<'a> {
    let mut split = Split { cells: Vec::new(), tail: Vec::new(), foreign: None };
    // `N/A` is a cell while enough words are left for all cells, else an affinity.
    let is_cell = |place: usize, known: usize| known < most && words.len() - place >= most - known;
    for (place, word) in words.iter().copied().enumerate() {
        let found = if split.tail.is_empty() { cells(word) } else { None };
        match found {
            Some(found) if word != "N/A" || is_cell(place, split.cells.len()) => {
                split.cells.extend(found.cells);
                if !found.rest.is_empty() {
                    split.tail.push(found.rest);
                }
            }
            Some(_) => split.tail.push(word),
            None if is_affinity(word) || !split.tail.is_empty() => split.tail.push(word),
            None => {
                split.foreign = Some(word);
                break;
            }
        }
    }
    split
}

pub(super) struct Table {
    pub(super) line: usize,
    pub(super) header: Header,
    pub(super) rows: BTreeMap<usize, Row>,
    /// The first thing that makes it no matrix, with its line.
    pub(super) error: Option<(usize, String)>,
    pub(super) faults: Vec<(usize, String)>,
    /// Whether a cell between two devices was legible: then it is a matrix, and an error in it is one.
    pub(super) legible: bool,
    index: BTreeMap<String, usize>,
    open: Option<usize>,
}

impl Table {
    pub(super) fn new(line: usize, header: Header) -> Self {
        let mut table = Self {
            line,
            header,
            rows: BTreeMap::new(),
            error: None,
            faults: Vec::new(),
            legible: false,
            index: BTreeMap::new(),
            open: None,
        };
        table.reindex();
        table
    }

    fn reindex(&mut self) {
        self.error = self.header.check().err().map(|reason| (self.line, reason));
        self.index = self.header.devices.iter().cloned().zip(0..).collect();
    }

    /// Takes a line directly under the header as the rest of it, if it is.
    pub(super) fn extend_header(&mut self, words: &[&str]) -> bool {
        let is_row = !self.rows.is_empty() || self.row_at(words).is_some();
        let extended = !is_row && self.header.extend(words);
        if extended {
            self.reindex();
        }
        extended
    }

    pub(super) fn size(&self) -> usize {
        self.header.devices.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.open.is_none() && self.rows.len() == self.size()
    }

    /// Takes a line under the header. `last` is the last line of the input, which may end in half a word.
    pub(super) fn take(&mut self, line: usize, words: &[&str], last: bool) {
        if self.error.is_some() || words.is_empty() {
            return;
        }
        match self.row_at(words) {
            Some((device, start, merged)) => {
                self.close();
                let rest = &words[start..];
                let joined: Vec<&str> = merged.into_iter().chain(rest.iter().copied()).collect();
                self.row(line, device, &joined, last);
            }
            None => self.continuation(line, words, last),
        }
    }

    /// The device a line is the row of, where its cells start, and the cell run together with the name. A
    /// quotation mark or a label may come first.
    fn row_at<'a>(&self, words: &[&'a str]) -> Option<(usize, usize, Option<&'a str>)> {
        const MOST_LABELS: usize = 2;
        for (place, word) in words.iter().copied().enumerate().take(MOST_LABELS + 1) {
            let name = word.trim_end_matches(':');
            if let Some(device) = self.index.get(name) {
                // `NIC0: mlx5_0` is a legend.
                let sure = place == 0 && name == word;
                let is_row =
                    words.get(place + 1).map_or(sure, |next| sure || cells(next).is_some());
                return is_row.then_some((*device, place + 1, None));
            }
            if !word.starts_with("GPU") && !word.starts_with("NIC") {
                continue;
            }
            let digits = word[3..].bytes().take_while(u8::is_ascii_digit).count();
            let (name, cell) = word.split_at(3 + digits);
            if let Some(device) = self.index.get(name)
                && cells(cell).is_some()
            {
                return Some((*device, place + 1, Some(cell)));
            }
        }
        None
    }

    fn row(&mut self, line: usize, device: usize, words: &[&str], last: bool) {
        let name = self.header.devices[device].clone();
        let size = self.size();
        let mut split = split(words, size);
        if split.cells.is_empty() {
            // Numbers straight after the name: a table of weights.
            split.foreign = split.foreign.or_else(|| split.tail.first().copied());
        }
        if let Some(word) = split.foreign.take() {
            let begun = self.legible || !split.cells.is_empty();
            if last && words.last() == Some(&word) && begun {
                self.faults
                    .push((line, format!("row {name} ends in '{}', cut off", excerpt(word))));
            } else {
                let reason = format!(
                    "row {name}: '{}' is no path class (X, NV#, PIX, PXB, PHB, NODE, SYS)",
                    excerpt(word)
                );
                self.error = Some((line, reason));
                return;
            }
        }
        if split.cells.len() > size {
            let reason = format!("row {name} has {} cells under {size} columns", split.cells.len());
            self.error = Some((line, reason));
            return;
        }
        let own = Some(Cell::class(PathType::Loc));
        self.legible |=
            split.cells.iter().any(|cell| *cell != own) || (size == 1 && split.cells == [own]);
        if let Some(known) = self.rows.get(&device) {
            if known.cells != split.cells {
                let reason = format!("row {name} is also at line {}, with other cells", known.line);
                self.error = Some((line, reason));
            }
            return;
        }
        let short = split.cells.len() < size;
        let ended = !split.tail.is_empty();
        let mut row = Row { line, cells: split.cells, ..Row::default() };
        self.affinities(&mut row, &name, &split.tail);
        self.rows.insert(device, row);
        if short && !ended {
            self.open = Some(device);
        } else {
            self.settle(device, ended);
        }
    }

    /// The rest of a row that the paste wrapped, if the line looks like one.
    fn continuation(&mut self, line: usize, words: &[&str], last: bool) {
        let Some(device) = self.open else { return };
        let size = self.size();
        let known = self.rows[&device].cells.len();
        let split = split(words, size - known);
        let cut = last && split.foreign.is_some() && split.foreign == words.last().copied();
        let fits = !split.cells.is_empty()
            && known + split.cells.len() <= size
            && (split.foreign.is_none() || cut);
        if !fits {
            self.close();
            return;
        }
        let name = self.header.devices[device].clone();
        let mut row = self.rows.remove(&device).unwrap_or_default();
        row.cells.extend(split.cells);
        self.affinities(&mut row, &name, &split.tail);
        let full = row.cells.len() == size;
        self.rows.insert(device, row);
        if full || !split.tail.is_empty() {
            self.open = None;
            self.settle(device, !split.tail.is_empty());
        }
        if cut {
            self.faults.push((line, format!("row {name} is cut off")));
        }
    }

    /// Ends a row that no continuation followed.
    pub(super) fn close(&mut self) {
        if let Some(device) = self.open.take() {
            self.settle(device, false);
        }
    }

    /// Fills a short row up with unknown cells and sees that its `X` is where it belongs. Where columns
    /// followed (`ended`), the missing cell may be any after the `X`.
    fn settle(&mut self, device: usize, ended: bool) {
        let size = self.size();
        let name = self.header.devices[device].clone();
        let Some(row) = self.rows.get_mut(&device) else { return };
        let found = row.cells.len();
        let own = Some(Cell::class(PathType::Loc));
        let mut selves =
            row.cells.iter().enumerate().filter(|(_, cell)| **cell == own).map(|(at, _)| at);
        let (first, second) = (selves.next(), selves.next());
        let fits =
            second.is_none() && (first == Some(device) || (first.is_none() && found <= device));
        if found == size {
            let unknown = first.is_none() && row.cells[device].is_none();
            if !fits && !unknown {
                let column = first.map_or("no column", |at| self.header.devices[at].as_str());
                let column = excerpt(if second.is_some() { "two columns" } else { column });
                self.error = Some((row.line, format!("row {name} has its X in {column}")));
            }
            return;
        }
        let trusted = match (fits, ended) {
            (false, _) => 0,
            (true, false) => found,
            (true, true) => first.map_or(0, |at| at + 1),
        };
        row.cells.truncate(trusted);
        row.cells.resize(size, None);
        let line = row.line;
        self.faults.push((
            line,
            format!("row {name} has {found} of {size} cells; the places of {trusted} are certain"),
        ));
    }

    fn affinities(&mut self, row: &mut Row, name: &str, tail: &[&str]) {
        let mut words: Vec<String> = Vec::new();
        for word in tail {
            match words.last_mut() {
                // A list printed with spaces after its commas.
                Some(list) if list.ends_with(',') => list.push_str(word),
                // The node written out beside a matrix without columns.
                Some(label) if label == "NUMA" => *label = (*word).into(),
                _ => words.push((*word).into()),
            }
        }
        let columns = match (self.header.columns.as_slice(), words.len()) {
            ([], 1) if tail.first() == Some(&"NUMA") => alloc::vec![Column::Numa],
            ([], _) => alloc::vec![],
            (columns, count) if count == columns.len() => columns.to_vec(),
            // An empty cell leaves no word; a list with a dash or comma is the CPUs', what follows keeps its order.
            (columns, count) => {
                let is_list = words.first().is_some_and(|word| word.contains(['-', ',']));
                let skip = usize::from(
                    columns.first() == Some(&Column::Cpus) && !is_list && count < columns.len(),
                );
                columns.iter().skip(skip).copied().collect()
            }
        };
        if words.len() > columns.len() {
            let error =
                format!("row {name}: '{}' after the last column", excerpt(&words[columns.len()]));
            self.faults.push((row.line, error));
        }
        for (column, word) in columns.iter().zip(&words) {
            if word == "N/A" {
                continue;
            }
            match column {
                Column::Cpus => match word.parse() {
                    Ok(list) => row.cpus = Some(list),
                    Err(_) => self.faults.push((
                        row.line,
                        format!("row {name}: CPU affinity '{}' is no CPU list", excerpt(word)),
                    )),
                },
                Column::Numa => match word.parse() {
                    Ok(node) => row.numa_node = Some(node),
                    Err(_) => self.faults.push((
                        row.line,
                        format!("row {name}: NUMA affinity '{}' is not one node", excerpt(word)),
                    )),
                },
                Column::GpuNuma => row.memory_node = word.parse().ok(),
            }
        }
    }

    /// Cells that contradict their mirror image. Link counts may differ (a link down at one end), classes not.
    pub(super) fn cross_check(&mut self) {
        let cell = |row: usize, column: usize| {
            self.rows.get(&row).and_then(|r| r.cells.get(column)).copied().flatten()
        };
        let mut faults = Vec::new();
        for (row, facts) in &self.rows {
            for column in 0..*row {
                let (Some(here), Some(there)) = (cell(*row, column), cell(column, *row)) else {
                    continue;
                };
                if here == there {
                    continue;
                }
                let (a, b) =
                    (excerpt(&self.header.devices[*row]), excerpt(&self.header.devices[column]));
                let says = format!("{a} to {b} is {here}, {b} to {a} is {there}");
                if here.class != there.class {
                    self.error = Some((facts.line, says));
                    return;
                }
                faults.push((facts.line, says));
            }
        }
        self.faults.append(&mut faults);
    }

    /// Names without a row, for a message.
    pub(super) fn missing(&self) -> String {
        let names = self.header.devices.iter().enumerate();
        let missing: Vec<String> = names
            .filter(|(at, _)| !self.rows.contains_key(at))
            .map(|(_, name)| name.to_string())
            .collect();
        excerpt_list(&missing)
    }
}

fn excerpt_list(names: &[String]) -> String {
    const MOST: usize = 32;
    let shown: Vec<String> = names.iter().take(MOST).map(|name| excerpt(name)).collect();
    let more = names.len().saturating_sub(MOST);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}
