//! `topoctl status`: what the daemon is and publishes.

use std::path::PathBuf;

use serde::Serialize;

use crate::args::{StatusArgs, TextFormat};
use crate::client;
use crate::exit::{Exit, Failure};
use crate::output;

#[derive(Debug, Serialize)]
struct Document {
    schema_version: u32,
    version: String,
    uptime_ms: u64,
    generation: Option<u64>,
    fingerprint: Option<String>,
    hosts: u32,
    gpus: u32,
    nics: u32,
    faults: u32,
    cached_plans: u32,
    /// Made beforehand, for failures that have not happened.
    prepared_plans: u32,
    /// `ok`, `unknown`, `degraded` or `critical`; none before the first reading.
    health: Option<&'static str>,
    readings: u64,
    failed_readings: u64,
    /// Since the latest reading that gave a topology.
    last_success_age_ms: Option<u64>,
    /// Why the latest reading gave none; what was published before stays.
    last_error: Option<String>,
    watchers: u32,
    /// What of the daemon's own does not work.
    warnings: Vec<String>,
}

pub(crate) fn run(args: &StatusArgs) -> Result<Exit, Failure> {
    let socket = args.socket.clone().unwrap_or_else(|| PathBuf::from(proto::DEFAULT_SOCKET));
    let (build, status) = client::status(&socket)?;
    let published = status.published.as_ref();
    let document = Document {
        schema_version: 1,
        version: build.version,
        uptime_ms: status.uptime_ms,
        generation: published.map(|p| p.generation),
        fingerprint: published.map(|p| p.fingerprint.clone()),
        hosts: published.map_or(0, |p| p.hosts),
        gpus: published.map_or(0, |p| p.gpus),
        nics: published.map_or(0, |p| p.nics),
        faults: published.map_or(0, |p| p.faults),
        cached_plans: status.cached_plans,
        prepared_plans: status.prepared_plans,
        health: status.health().word(),
        readings: status.readings,
        failed_readings: status.failed_readings,
        last_success_age_ms: status.last_success_age_ms,
        last_error: status.last_error,
        watchers: status.watchers,
        warnings: status.warnings,
    };
    let exit = match (&document.generation, document.faults, &document.last_error) {
        (Some(_), 0, None) => Exit::Ok,
        _ => Exit::Unknown,
    };
    match args.output {
        TextFormat::Json => output::print_json(&document)?,
        TextFormat::Table => output::print(&render(&document))?,
    }
    Ok(exit)
}

fn render(document: &Document) -> String {
    let mut rows = vec![
        vec!["version".into(), document.version.clone()],
        vec!["up for".into(), format!("{} s", document.uptime_ms / 1000)],
        vec![
            "generation".into(),
            document.generation.map_or_else(|| "none yet".into(), |g| g.to_string()),
        ],
        vec!["fingerprint".into(), document.fingerprint.clone().unwrap_or_default()],
        vec![
            "hosts, GPUs, NICs".into(),
            format!("{}, {}, {}", document.hosts, document.gpus, document.nics),
        ],
        vec!["facts not read".into(), document.faults.to_string()],
        vec!["health".into(), document.health.unwrap_or("not judged yet").into()],
        vec![
            "plans cached".into(),
            format!(
                "{}, {} more for failures that may come",
                document.cached_plans, document.prepared_plans
            ),
        ],
        vec!["watches".into(), document.watchers.to_string()],
        vec![
            "readings".into(),
            format!(
                "{}, {} of them failed, the last good one {}",
                document.readings,
                document.failed_readings,
                document
                    .last_success_age_ms
                    .map_or_else(|| "never".into(), |age| format!("{} s ago", age / 1000))
            ),
        ],
    ];
    if let Some(error) = &document.last_error {
        rows.push(vec![
            "latest reading".into(),
            format!("failed, what is published is older: {error}"),
        ]);
    }
    rows.extend(document.warnings.iter().map(|w| vec!["does not work".into(), w.clone()]));
    output::table(&rows)
}
