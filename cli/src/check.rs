//! `topoctl check`: may jobs run here?

use std::fmt::Write;

use serde::Serialize;
use topology::health::{self, Status};
use topology::{Fault, Finding};

use crate::args::{CheckArgs, CheckFormat, FailOn};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::source;

#[derive(Debug, Serialize)]
struct Verdict {
    schema_version: u32,
    status: Status,
    findings: Vec<Finding>,
    faults: Vec<Fault>,
    assumptions: Vec<String>,
}

pub(crate) fn run(args: &CheckArgs) -> Result<Exit, Failure> {
    let topology = source::load(&args.source)?.topology;
    let several = topology.hosts().len() > 1;
    let mut findings = Vec::new();
    for (host, snapshot) in topology.hosts().iter().enumerate() {
        findings.extend(health::examine(snapshot).into_iter().map(|mut finding| {
            if several {
                finding.component = format!("{host}:{}", finding.component);
            }
            finding
        }));
    }
    let verdict = Verdict {
        schema_version: 1,
        status: health::status(&findings, topology.hosts()),
        findings,
        faults: topology.hosts().iter().flat_map(|host| host.faults.iter().cloned()).collect(),
        assumptions: topology.assumptions().to_vec(),
    };
    match args.output {
        CheckFormat::Json => output::print_json(&verdict)?,
        CheckFormat::Table => output::print(&table(&verdict))?,
        CheckFormat::Nagios => output::print(&nagios(&verdict))?,
    }
    Ok(exit(verdict.status, args.fail_on, !verdict.faults.is_empty(), args.output))
}

/// Fail closed: with `--fail-on critical` a degraded host passes, one with unread facts never does.
fn exit(status: Status, fail_on: FailOn, unread: bool, format: CheckFormat) -> Exit {
    let passed = status == Status::Degraded && fail_on == FailOn::Critical && !unread;
    match (format, status) {
        _ if passed => Exit::Ok,
        // Nagios and Slurm's health check know 0 ok, 1 warning, 2 critical, 3 unknown.
        (CheckFormat::Nagios, Status::Degraded) => Exit::Internal,
        (CheckFormat::Nagios, Status::Critical) => Exit::Usage,
        (CheckFormat::Nagios, Status::Unknown) => Exit::Degraded,
        (_, Status::Ok) => Exit::Ok,
        (_, Status::Degraded) => Exit::Degraded,
        (_, Status::Critical) => Exit::Critical,
        (_, Status::Unknown) => Exit::Unknown,
    }
}

fn table(verdict: &Verdict) -> String {
    let mut text = format!("{}\n", verdict.status);
    for finding in &verdict.findings {
        let _ = writeln!(
            text,
            "\n{} {}: {}\n  {}\n  fix: {}",
            finding.severity, finding.code, finding.component, finding.evidence, finding.fix
        );
    }
    for fault in &verdict.faults {
        let _ = writeln!(text, "\nnot read: {}: {}: {}", fault.probe, fault.place, fault.error);
    }
    if !verdict.assumptions.is_empty() {
        text.push_str("\nassumed:\n");
        for assumption in &verdict.assumptions {
            let _ = writeln!(text, "  {assumption}");
        }
    }
    text
}

/// One line, its beginning short enough for a drain reason.
fn nagios(verdict: &Verdict) -> String {
    let word = match verdict.status {
        Status::Ok => "OK",
        Status::Degraded => "WARNING",
        Status::Critical => "CRITICAL",
        Status::Unknown => "UNKNOWN",
    };
    let what = match (verdict.findings.first(), verdict.faults.first()) {
        (Some(finding), _) => {
            format!("{} {}: {}", finding.code, finding.component, finding.evidence)
        }
        (None, Some(fault)) => format!("{} not read: {}", fault.place, fault.error),
        (None, None) => "no findings".into(),
    };
    let more = match verdict.findings.len() + verdict.faults.len() {
        0 | 1 => String::new(),
        n => format!(" (+{} more)", n - 1),
    };
    format!("TOPOLOGY {word} - {what}{more}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_never_passes() {
        use CheckFormat::{Json, Nagios};
        let cases = [
            (Status::Ok, FailOn::Degraded, false, Json, Exit::Ok),
            (Status::Degraded, FailOn::Degraded, false, Json, Exit::Degraded),
            (Status::Degraded, FailOn::Critical, false, Json, Exit::Ok),
            (Status::Degraded, FailOn::Critical, true, Json, Exit::Degraded),
            (Status::Critical, FailOn::Critical, false, Json, Exit::Critical),
            (Status::Unknown, FailOn::Critical, true, Json, Exit::Unknown),
            (Status::Unknown, FailOn::Degraded, true, Nagios, Exit::Degraded),
            (Status::Degraded, FailOn::Degraded, false, Nagios, Exit::Internal),
            (Status::Critical, FailOn::Degraded, false, Nagios, Exit::Usage),
        ];
        for (status, fail_on, unread, format, expect) in cases {
            assert_eq!(
                exit(status, fail_on, unread, format),
                expect,
                "{status} {fail_on:?} {format:?}"
            );
        }
    }
}
