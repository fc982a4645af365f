//! `amd-smi topology --json`, in both of its forms.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::Deserialize;
use serde_json::Value;

use super::{FORMAT, Kind, Name, Tables, cross_check};
use crate::BusId;
use crate::formats::text::excerpt;
use crate::formats::{DEVICE_LIMIT, ReadError};

/// A row.
#[derive(Deserialize)]
struct Row {
    gpu: u32,
    bdf: BusId,
    /// Of the newer form.
    #[serde(default)]
    links: Option<Vec<Link>>,
    /// Of the older form, each by `gpu_N`.
    #[serde(default)]
    link_type: BTreeMap<String, Value>,
    #[serde(default)]
    hops: BTreeMap<String, Value>,
    #[serde(default)]
    numa_bandwidth: BTreeMap<String, Value>,
}

/// A pair.
#[derive(Deserialize)]
struct Link {
    gpu: u32,
    #[serde(default)]
    link_type: Value,
    #[serde(default)]
    num_hops: Value,
    #[serde(default)]
    bandwidth: Value,
}

pub(super) fn read(text: &str) -> Result<Tables<'static>, ReadError> {
    let refuse = |line: usize, reason: String| ReadError { format: FORMAT, line, reason };
    // `-g` picks one GPU, which is then no list and knows of no pair.
    let rows: Result<Vec<Row>, _> = match text.trim_start().starts_with('[') {
        true => serde_json::from_str(text),
        false => serde_json::from_str(text).map(|row| alloc::vec![row]),
    };
    let rows = rows.map_err(|error| refuse(error.line(), error.to_string()))?;
    if rows.len() > DEVICE_LIMIT {
        return Err(refuse(0, format!("{} devices; at most {DEVICE_LIMIT} are read", rows.len())));
    }
    let mut tables = Tables { line: 1, ..Tables::default() };
    let mut places: BTreeMap<u32, usize> = BTreeMap::new();
    for row in &rows {
        if places.insert(row.gpu, tables.names.len()).is_some()
            || tables.names.contains(&Name::Address(row.bdf))
        {
            return Err(refuse(0, format!("GPU {} ({}) is there twice", row.gpu, row.bdf)));
        }
        tables.names.push(Name::Address(row.bdf));
        tables.numbers.push(row.gpu);
    }
    for (at, row) in rows.iter().enumerate() {
        let mut put = |kind: Kind, gpu: u32, value: &Value| -> Result<(), ReadError> {
            let Some(to) = places.get(&gpu) else {
                let reason = format!("GPU {} has a link to GPU {gpu}, which has no row", row.gpu);
                return Err(refuse(0, reason));
            };
            if let Some(word) = word(value) {
                tables.cells.entry(kind).or_default().insert((at, *to), Cow::Owned(word));
            }
            Ok(())
        };
        for link in row.links.iter().flatten() {
            put(Kind::Type, link.gpu, &link.link_type)?;
            put(Kind::Hops, link.gpu, &link.num_hops)?;
            put(Kind::Bandwidth, link.gpu, &link.bandwidth)?;
        }
        let older = [
            (Kind::Type, &row.link_type),
            (Kind::Hops, &row.hops),
            (Kind::Bandwidth, &row.numa_bandwidth),
        ];
        for (kind, cells) in older {
            for (name, value) in cells {
                let gpu = name.strip_prefix("gpu_").and_then(|number| number.parse().ok());
                let gpu = gpu.ok_or_else(|| refuse(0, format!("'{}' is no GPU", excerpt(name))))?;
                put(kind, gpu, value)?;
            }
        }
    }
    if tables.cells.get(&Kind::Type).is_none_or(BTreeMap::is_empty) {
        return Err(refuse(
            0,
            "no link types in it; `amd-smi topology --json` has them when no option picks others"
                .into(),
        ));
    }
    cross_check(&tables)?;
    Ok(tables)
}

/// The word of a cell; none where the tool says that it does not know.
fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(word) if word != "N/A" => Some(word.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
