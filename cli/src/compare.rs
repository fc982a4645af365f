//! `topoctl compare`: what hosts that should be alike do not have in common.

use std::fmt::Write;

use serde::Serialize;
use topology::Snapshot;
use topology::health::{Difference, differences};

use crate::args::{CompareArgs, TextFormat};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::source;

#[derive(Debug, Serialize)]
struct Comparison {
    schema_version: u32,
    /// The host the others are compared with.
    reference: String,
    /// Why that one.
    reason: &'static str,
    hosts: Vec<HostRow>,
}

#[derive(Debug, Serialize)]
struct HostRow {
    name: String,
    differences: Vec<Difference>,
    /// Facts that could not be read of it: what is not known is not compared.
    faults: usize,
}

pub(crate) fn run(args: &CompareArgs) -> Result<Exit, Failure> {
    let mut hosts: Vec<(String, Snapshot)> = Vec::new();
    for path in &args.hosts {
        let read = source::read(path)?;
        let several = read.len() > 1;
        for (place, snapshot) in read.into_iter().enumerate() {
            let name = path.display().to_string();
            hosts.push((if several { format!("{name}[{place}]") } else { name }, snapshot));
        }
    }
    if hosts.len() < 2 {
        return Err(Failure::usage("one host alone has nothing to differ from: name two or more"));
    }
    let (reference, reason) = reference(&hosts);
    let row = |(place, (name, snapshot)): (usize, &(String, Snapshot))| HostRow {
        name: name.clone(),
        differences: match place == reference {
            true => Vec::new(),
            false => differences(&hosts[reference].1, snapshot),
        },
        faults: snapshot.faults.len(),
    };
    let comparison = Comparison {
        schema_version: 1,
        reference: hosts[reference].0.clone(),
        reason,
        hosts: hosts.iter().enumerate().map(row).collect(),
    };
    match args.output {
        TextFormat::Json => output::print_json(&comparison)?,
        TextFormat::Table => output::print(&table(&comparison))?,
    }
    Ok(exit(&comparison))
}

/// The host to compare the others with: of two the first; of more the one that has most in common with all others, so
/// that it is the odd one that stands out and not whoever was named first.
fn reference(hosts: &[(String, Snapshot)]) -> (usize, &'static str) {
    if hosts.len() == 2 {
        return (0, "named first");
    }
    let apart = |place: &usize| -> usize {
        let others = hosts.iter().map(|(_, other)| differences(&hosts[*place].1, other).len());
        others.sum()
    };
    ((0..hosts.len()).min_by_key(apart).unwrap_or(0), "has most in common with the others")
}

/// Fail closed: hosts of which not all is known are not proved to be alike.
fn exit(comparison: &Comparison) -> Exit {
    let differences = comparison.hosts.iter().flat_map(|host| &host.differences);
    match Exit::of(differences.map(|difference| difference.severity)) {
        Exit::Ok if comparison.hosts.iter().any(|host| host.faults > 0) => Exit::Unknown,
        exit => exit,
    }
}

fn table(comparison: &Comparison) -> String {
    let mut text = format!("reference: {} ({})\n", comparison.reference, comparison.reason);
    for host in comparison.hosts.iter().filter(|host| host.name != comparison.reference) {
        let _ = writeln!(text, "\n{}:", host.name);
        if host.differences.is_empty() {
            text.push_str("  no difference that matters\n");
        }
        for Difference { component, what, first, second, severity } in &host.differences {
            let _ = writeln!(
                text,
                "  {severity} {component}: {what} is {second}, the reference has {first}"
            );
        }
        if host.faults > 0 {
            let _ = writeln!(text, "  {} facts could not be read", host.faults);
        }
    }
    text
}
