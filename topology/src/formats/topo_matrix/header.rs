//! The header of a table: the devices, and which columns follow them.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::words::{cells, device_names, gpu_index};
use crate::formats::DEVICE_LIMIT;
use crate::formats::text::excerpt;

/// Columns after the square, in the order the driver prints them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Cpus,
    Numa,
    /// The GPU's own memory node (Grace); not where its CPU side is.
    GpuNuma,
}

pub(super) struct Header {
    pub(super) devices: Vec<String>,
    pub(super) columns: Vec<Column>,
}

impl Header {
    /// The header in a line, if there is one: from the first `GPU#` on, whatever is before it (a prompt, the
    /// command, a quotation mark). A row is none: its first name is followed by a cell.
    pub(super) fn parse(words: &[&str]) -> Option<Self> {
        let start = words.iter().position(|word| {
            word.starts_with("GPU")
                && device_names(word).is_some_and(|(names, _)| gpu_index(names[0]).is_some())
        })?;
        let words = &words[start..];
        let mut devices: Vec<String> = Vec::new();
        let mut tail = String::new();
        let has_columns = words.iter().any(|word| word.eq_ignore_ascii_case("Affinity"));
        let mut complete = true;
        for (place, word) in words.iter().enumerate() {
            // `GPU NUMA ID` starts with a word of its own.
            if matches!(*word, "CPU" | "NUMA" | "GPU") {
                tail = words[place..].concat();
                break;
            }
            if devices.len() > DEVICE_LIMIT {
                break;
            }
            match device_names(word) {
                Some((names, rest)) => {
                    devices.extend(names.into_iter().map(String::from));
                    if !rest.is_empty() {
                        tail = [rest, &words[place + 1..].concat()].concat();
                        break;
                    }
                }
                // Columns follow, so this must be an unusual name.
                None if has_columns && cells(word).is_none() => devices.push((*word).into()),
                None => {
                    complete = false;
                    break;
                }
            }
        }
        // `GPU0 is slow` names no columns.
        if !complete && devices.len() < 2 {
            return None;
        }
        Some(Self { devices, columns: columns(&tail) })
    }

    /// Takes the rest of a header that the paste wrapped; whether the line was one.
    pub(super) fn extend(&mut self, words: &[&str]) -> bool {
        if !self.columns.is_empty() {
            return false;
        }
        let mut devices = Vec::new();
        let mut tail = String::new();
        for (place, word) in words.iter().enumerate() {
            if matches!(*word, "CPU" | "NUMA" | "GPU") {
                tail = words[place..].concat();
                break;
            }
            match device_names(word) {
                Some((names, "")) => devices.extend(names.into_iter().map(String::from)),
                _ => return false,
            }
        }
        let columns = columns(&tail);
        let known = devices.iter().any(|name| self.devices.contains(name));
        if known || (columns.is_empty() && (devices.is_empty() || !tail.is_empty())) {
            return false;
        }
        self.devices.extend(devices);
        self.columns = columns;
        true
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        if let Some(twice) = self.devices.iter().find(|name| !names.insert(name.as_str())) {
            return Err(format!("the header names {} twice", excerpt(twice)));
        }
        let mut indices = BTreeSet::new();
        let gpus = self.devices.iter().filter_map(|name| gpu_index(name));
        if let Some(twice) = gpus.into_iter().find(|index| !indices.insert(*index)) {
            return Err(format!("the header names GPU {twice} twice"));
        }
        if self.devices.len() > DEVICE_LIMIT {
            return Err(format!("{} devices; at most {DEVICE_LIMIT} are read", self.devices.len()));
        }
        Ok(())
    }
}

fn columns(tail: &str) -> Vec<Column> {
    let tail = tail.to_ascii_lowercase();
    let mut found: Vec<(usize, Column)> = [
        ("cpuaffinity", Column::Cpus),
        ("numaaffinity", Column::Numa),
        ("gpunumaid", Column::GpuNuma),
    ]
    .into_iter()
    .filter_map(|(title, column)| Some((tail.find(title)?, column)))
    .collect();
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, column)| column).collect()
}
