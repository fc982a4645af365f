//! Figures to reach and real machines, kept beside the project: absent ones are skipped by whoever asks.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use topology::snapshot::LinkGraph;
use topology::{Bandwidth, LowerError, RateModel, Snapshot, Source, Topology, lower};

/// The folder that a variable names, or the one beside the project.
#[must_use]
pub fn folder(variable: &str, name: &str) -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared").join(name);
    std::env::var_os(variable).map_or_else(beside, PathBuf::from)
}

/// A JSON file of the bars (`TOPOD_BARS`).
///
/// # Errors
/// Why it cannot be read, with its path.
pub fn read(name: &str) -> Result<Value, String> {
    let path = folder("TOPOD_BARS", "bars").join(name);
    let text = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// A link graph with the figures it is to reach, in GB/s of algorithm bandwidth.
#[derive(Clone, Debug)]
pub struct Optimum {
    /// The graph.
    pub graph: LinkGraph,
    /// All-gather, exact.
    pub all_gather: f64,
    /// All-reduce: the exact optimum where it is known, else what weighted reduce-scatter and all-gather reach.
    pub all_reduce: f64,
}

/// Every topology of `optima.json`, then its GPU subsets.
///
/// # Errors
/// As [`read`]; or what the file lacks.
pub fn optima() -> Result<Vec<Optimum>, String> {
    let file = read("optima.json")?;
    let mut cases = Vec::new();
    let lacks = |what: &Value, key: &str| format!("optima.json: {what} lacks {key}");
    let number = |value: &Value, key: &str| value[key].as_f64();
    for topology in list(&file["topologies"]) {
        let name = text(&topology["name"]);
        let all_reduce = number(topology, "allreduce_opt_algbw_flow_lp")
            .or_else(|| number(topology, "allreduce_weighted_rsag_algbw"));
        cases.push(Optimum {
            graph: LinkGraph {
                gpus: names(&topology["gpus"]),
                switches: names(&topology["switch_nodes"]),
                links: links(&topology["directed_links_GBps"])?,
                name,
            },
            all_gather: number(topology, "allgather_opt_algbw")
                .ok_or_else(|| lacks(&topology["name"], "allgather_opt_algbw"))?,
            all_reduce: all_reduce
                .ok_or_else(|| lacks(&topology["name"], "an all-reduce figure"))?,
        });
    }
    for subset in list(&file["subsets"]) {
        let whole = text(&subset["topology"]);
        let of = cases.iter().find(|case| case.graph.name == whole);
        let of =
            of.ok_or_else(|| format!("optima.json: a subset of {whole}, which is not there"))?;
        let gpus = names(&subset["gpus"]);
        let inside =
            |(from, to, _): &&(String, String, Bandwidth)| gpus.contains(from) && gpus.contains(to);
        cases.push(Optimum {
            graph: LinkGraph {
                name: format!("{whole} [{}]", gpus.join(" ")),
                links: of.graph.links.iter().filter(inside).cloned().collect(),
                switches: Vec::new(),
                gpus,
            },
            all_gather: number(subset, "allgather_opt_algbw")
                .ok_or_else(|| lacks(&subset["gpus"], "allgather_opt_algbw"))?,
            all_reduce: number(subset, "allreduce_opt_algbw")
                .ok_or_else(|| lacks(&subset["gpus"], "allreduce_opt_algbw"))?,
        });
    }
    Ok(cases)
}

/// What TACCL and TE-CCL reach on a graph.
#[derive(Clone, Debug)]
pub struct Published {
    /// The graph.
    pub graph: LinkGraph,
    /// `allgather` or `alltoall`.
    pub collective: String,
    /// The best of TACCL's figures, GB/s.
    pub taccl: Option<f64>,
    /// The best of TE-CCL's, GB/s; a figure that the file says to be no bar is left out.
    pub teccl: Option<f64>,
    /// Seconds their solvers took.
    pub taccl_seconds: Option<f64>,
    /// As `taccl_seconds`.
    pub teccl_seconds: Option<f64>,
}

impl Published {
    /// The faster of the two.
    #[must_use]
    pub fn best(&self) -> Option<f64> {
        self.taccl.into_iter().chain(self.teccl).reduce(f64::max)
    }
}

/// Every figure of `published.json`.
///
/// # Errors
/// As [`read`]; or what the file lacks.
pub fn published() -> Result<Vec<Published>, String> {
    let file = read("published.json")?;
    let row = |row: &Value| {
        let name = text(&row["topology"]);
        let graph = list(&file["graphs"]).find(|graph| text(&graph["name"]) == name);
        let graph = graph.ok_or_else(|| format!("published.json: no graph is named {name}"))?;
        let most = |system: &str, kind: &str| {
            let keys = row.as_object().into_iter().flatten();
            keys.filter(|(key, _)| {
                key.starts_with(system) && key.contains(kind) && !key.contains("reported")
            })
            .filter_map(|(_, value)| value.as_f64())
            .reduce(f64::max)
        };
        Ok(Published {
            graph: LinkGraph {
                gpus: names(&graph["gpus"]),
                switches: names(&graph["switches"]),
                links: links(&graph["links"])?,
                name,
            },
            collective: text(&row["collective"]),
            taccl: most("taccl", "algbw"),
            teccl: most("teccl", "algbw"),
            taccl_seconds: row["taccl_solver_s"].as_f64(),
            teccl_seconds: row["teccl_solver_s"].as_f64(),
        })
    };
    list(&file["published"]).map(row).collect()
}

/// A link graph as a topology.
///
/// # Errors
/// Where it contradicts itself.
pub fn topology(graph: LinkGraph) -> Result<Topology, LowerError> {
    let mut snapshot = Snapshot::new(Source::LinkGraph);
    snapshot.link_graph = Some(graph);
    lower(&[snapshot], RateModel::Nominal)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Names may stand as numbers.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn names(value: &Value) -> Vec<String> {
    list(value).map(text).collect()
}

fn links(value: &Value) -> Result<Vec<(String, String, Bandwidth)>, String> {
    let link = |link: &Value| {
        let rate = link[2].as_f64().and_then(Bandwidth::from_gbps);
        let rate = rate.ok_or_else(|| format!("{link} is no link with a rate"))?;
        Ok((text(&link[0]), text(&link[1]), rate))
    };
    list(value).map(link).collect()
}
