//! `topoctl nccl diff`: what NCCL itself made of a host.

use std::fmt::Write;

use serde::Serialize;
use topology::nccl_diff::{self, Comparison};
use topology::{Finding, nccl_graph, nccl_log};

use crate::args::{NcclDiffArgs, TextFormat};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::plan;
use crate::source::{self, Origin};

#[derive(Debug, Serialize)]
struct Document {
    schema_version: u32,
    /// How many things were compared.
    compared: usize,
    findings: Vec<Finding>,
    /// What is alike, and what could not be compared.
    notes: Vec<String>,
}

pub(super) fn run(args: &NcclDiffArgs) -> Result<Exit, Failure> {
    let origin = source::load(&args.source)?;
    let mut all = Comparison::default();
    if let Some(path) = &args.topo {
        let theirs = topology::lower(&[source::read_one(path)?], args.source.rates)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        all.join(nccl_diff::topology(&origin.topology, &theirs));
    }
    if let Some(path) = &args.graph {
        let file = nccl_graph::read(&source::read_bytes(path)?)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        let (plan, _) = plan::make(&origin, &plan::request(&args.request))?;
        all.join(nccl_diff::graph(&origin.topology, &plan, &file));
    }
    if let Some(path) = &args.log {
        let text = source::read_bytes(path)?;
        let log = nccl_log::read(&String::from_utf8_lossy(&text));
        if log == nccl_log::NcclLog::default() {
            let why = "NCCL says nothing here: it needs NCCL_DEBUG=INFO";
            return Err(Failure::usage(format!("{}: {why}", path.display())));
        }
        all.join(nccl_diff::log(&origin.topology, made(args, &origin).as_ref(), &log));
    }
    let exit = match Exit::of(all.findings.iter().map(|finding| finding.severity)) {
        // Nothing compared is no agreement.
        Exit::Ok if all.compared == 0 => Exit::Unknown,
        exit => exit,
    };
    let Comparison { findings, notes, compared } = all;
    match args.output {
        TextFormat::Json => {
            output::print_json(&Document { schema_version: 1, compared, findings, notes })?;
        }
        TextFormat::Table => {
            let mut text = String::new();
            for note in &notes {
                let _ = writeln!(text, "{note}");
            }
            text.push_str(&output::findings(&findings));
            output::print(&text)?;
        }
    }
    Ok(exit)
}

/// A plan to compare rings with; where there is none, other things are still compared.
fn made(args: &NcclDiffArgs, origin: &Origin) -> Option<topology::Plan> {
    let made = plan::make(origin, &plan::request(&args.request));
    made.map_err(|failure| output::warn(&failure.message)).ok().map(|(plan, _)| plan)
}
