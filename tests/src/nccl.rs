//! The cases of `nccl.json`: what NCCL's own search finds on recorded machines, with the bounds printed beside it.

use std::fs;

use serde_json::Value;
use topology::{GpuIndex, LowerError, RateModel, Snapshot, Topology, formats, lower};

use crate::bars::{folder, read};

/// One machine or several, or some of their GPUs.
#[derive(Clone, Debug)]
pub struct Case {
    /// Place in the file, from 0.
    pub number: usize,
    /// Files of the corpus, one a host.
    pub files: Vec<String>,
    /// NVML indices, the same on every host; `None` is all.
    pub gpus: Option<Vec<GpuIndex>>,
    /// What NCCL's search finds.
    pub nccl: Figures,
    /// The printed bounds of all-gather and all-reduce, GB/s of algorithm bandwidth.
    pub bound: [f64; 2],
}

/// In GB/s.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Rings and the rate of each.
    pub rings: (u32, f64),
    /// Total of the rings: bus bandwidth.
    pub ring_total: f64,
    /// Algorithm bandwidth of all-gather by those rings.
    pub all_gather: f64,
    /// Algorithm bandwidth of all-reduce, by rings or trees.
    pub all_reduce: f64,
    /// Path types within and between hosts, such as `NVL/PIX`.
    pub path: String,
}

/// The group a case is compared in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// All GPUs of one host.
    OneHost,
    /// Some GPUs of one host.
    OneHostSubset,
    /// All GPUs of two hosts, equal or not.
    TwoHosts,
    /// Some GPUs of two hosts.
    TwoHostsSubset,
    /// All GPUs of more hosts.
    MoreHosts,
}

impl Group {
    /// As it stands in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneHost => "one host",
            Self::OneHostSubset => "one host, GPU subsets",
            Self::TwoHosts => "two hosts, mixed hosts",
            Self::TwoHostsSubset => "two hosts, GPU subsets",
            Self::MoreHosts => "four hosts",
        }
    }
}

impl Case {
    /// Its group.
    #[must_use]
    pub fn group(&self) -> Group {
        match (self.files.len(), self.gpus.is_some()) {
            (1, false) => Group::OneHost,
            (1, true) => Group::OneHostSubset,
            (2, false) => Group::TwoHosts,
            (2, true) => Group::TwoHostsSubset,
            _ => Group::MoreHosts,
        }
    }

    /// `dgx1v x2 [0 1 2]`.
    #[must_use]
    pub fn name(&self) -> String {
        let mut distinct = self.files.clone();
        distinct.dedup();
        let files: Vec<&str> = distinct.iter().map(|file| file.trim_end_matches(".xml")).collect();
        let copies = if distinct.len() == 1 && self.files.len() > 1 {
            format!(" x{}", self.files.len())
        } else {
            String::new()
        };
        let gpus = self.gpus.as_ref().map(|gpus| {
            format!(" [{}]", gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        });
        format!("{}{copies}{}", files.join(" + "), gpus.unwrap_or_default())
    }

    /// Its hosts as one topology, with NCCL's rates.
    ///
    /// # Errors
    /// Where a file of the corpus is missing or is none.
    pub fn topology(&self) -> Result<Topology, String> {
        let mut hosts: Vec<Snapshot> = Vec::new();
        for file in &self.files {
            let path = folder("TOPOD_CORPUS", "corpus").join("nccl-model").join(file);
            let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
            let bytes = fs::read(&path).map_err(|error| named(&error))?;
            hosts.extend(formats::read(&bytes).map_err(|error| named(&error))?);
        }
        lower(&hosts, RateModel::Effective).map_err(|error: LowerError| error.to_string())
    }
}

/// Every case.
///
/// # Errors
/// As [`read`]; or which case lacks what.
pub fn cases() -> Result<Vec<Case>, String> {
    let file = read("nccl.json")?;
    file["cases"].as_array().into_iter().flatten().enumerate().map(case).collect()
}

fn case((number, case): (usize, &Value)) -> Result<Case, String> {
    let lacks = |what: &str| format!("nccl.json: case {number} lacks {what}");
    let files = case["topologies"].as_array().ok_or_else(|| lacks("topologies"))?;
    let index = |value: &Value| value.as_u64().and_then(|i| u32::try_from(i).ok()).map(GpuIndex);
    let n = case["gpus"].as_f64().ok_or_else(|| lacks("gpus"))?;
    let nccl = |key: &str| case["nccl"][key].as_f64().ok_or_else(|| lacks(key));
    let bound = |key: &str| case["bound"][key].as_f64().ok_or_else(|| lacks(key));
    // Printed as bus bandwidth.
    let gathered = n / (n - 1.0);
    Ok(Case {
        number,
        files: files.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        gpus: case["subset"].as_array().map(|list| list.iter().filter_map(index).collect()),
        nccl: Figures {
            rings: (
                u32::try_from(case["nccl"]["rings"].as_u64().unwrap_or(0)).unwrap_or(0),
                nccl("ring_gbps")?,
            ),
            ring_total: nccl("ring_total_gbps")?,
            all_gather: nccl("ring_total_gbps")? * gathered,
            all_reduce: nccl("all_reduce_algbw_gbps")?,
            path: case["nccl"]["path"].as_str().unwrap_or_default().into(),
        },
        bound: [bound("all_gather_busbw_gbps")? * gathered, bound("all_reduce_algbw_gbps")?],
    })
}
