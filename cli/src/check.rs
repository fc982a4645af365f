//! `topoctl check`: may jobs run here?

use std::fmt::Write;

use serde::Serialize;
use topology::health::{self, Examination, FabricVerdict, Status, Unchecked};
use topology::{Fault, Finding, Severity};

use crate::args::{CheckArgs, CheckFormat, FailOn};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::source;

#[derive(Debug, Serialize)]
struct Verdict {
    schema_version: u32,
    status: Status,
    findings: Vec<Finding>,
    /// Rules that lack a fact; any of them makes the status at least unknown.
    unchecked: Vec<Unchecked>,
    /// Themes of which the input's format tells nothing.
    not_told: Vec<&'static str>,
    /// A verdict for each way between GPUs, of each host.
    fabrics: Vec<HostFabrics>,
    faults: Vec<Fault>,
    assumptions: Vec<String>,
}

#[derive(Debug, Serialize)]
struct HostFabrics {
    host: usize,
    #[serde(flatten)]
    verdict: FabricVerdict,
}

pub(crate) fn run(args: &CheckArgs) -> Result<Exit, Failure> {
    let profile = args.against.as_deref().map(source::read_one).transpose()?;
    let topology = source::load(&args.source)?.topology;
    let several = topology.hosts().len() > 1;
    let mut all = Examination::default();
    let mut fabrics = Vec::new();
    for (host, snapshot) in topology.hosts().iter().enumerate() {
        let mut found = match &profile {
            Some(profile) => health::judge_against(snapshot, profile),
            None => health::judge(snapshot),
        };
        if let Some(launcher) = args.launcher {
            let variable = |name: &str| std::env::var(name).ok();
            found.extend(health::launcher(snapshot, launcher, &variable));
        }
        let verdicts = health::fabrics(snapshot, &found);
        fabrics.extend(verdicts.into_iter().map(|verdict| HostFabrics { host, verdict }));
        if several {
            for finding in &mut found.findings {
                finding.component = format!("{host}:{}", finding.component);
            }
            for unchecked in &mut found.unchecked {
                unchecked.component = format!("{host}:{}", unchecked.component);
            }
        }
        all.join(found);
    }
    let incomplete = all.is_incomplete();
    let verdict = Verdict {
        schema_version: 1,
        status: all.status(),
        findings: all.findings,
        unchecked: all.unchecked,
        not_told: all.not_told,
        fabrics,
        faults: topology.hosts().iter().flat_map(|host| host.faults.iter().cloned()).collect(),
        assumptions: topology.assumptions().to_vec(),
    };
    match args.output {
        CheckFormat::Json => output::print_json(&verdict)?,
        CheckFormat::Table => output::print(&table(&verdict))?,
        CheckFormat::Nagios => output::print(&nagios(&verdict))?,
    }
    Ok(exit(verdict.status, args.fail_on, incomplete, args.output))
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
    let mut text = format!("{}\n{}", verdict.status, output::findings(&verdict.findings));
    let several = verdict.fabrics.iter().any(|fabric| fabric.host > 0);
    for HostFabrics { host, verdict } in &verdict.fabrics {
        let FabricVerdict { fabric, ends, status, codes } = verdict;
        let host = if several { format!("{host}:") } else { String::new() };
        let codes = match codes.is_empty() {
            true => String::new(),
            false => format!(" ({})", codes.join(", ")),
        };
        let _ = write!(text, "\n{host}{fabric}, {ends} ends: {status}{codes}");
    }
    if !verdict.fabrics.is_empty() {
        text.push('\n');
    }
    for unchecked in &verdict.unchecked {
        let Unchecked { code, component, missing } = unchecked;
        let _ = writeln!(text, "\nnot checked: {code}: {component}: {missing}");
    }
    for fault in &verdict.faults {
        let _ = writeln!(text, "\nnot read: {}: {}: {}", fault.probe, fault.place, fault.error);
    }
    if !verdict.not_told.is_empty() {
        let _ = writeln!(text, "\nnot in this format: {}", verdict.not_told.join(", "));
    }
    if !verdict.assumptions.is_empty() {
        text.push_str("\nassumed:\n");
        for assumption in &verdict.assumptions {
            let _ = writeln!(text, "  {assumption}");
        }
    }
    text
}

/// One line for Nagios, for Slurm's HealthCheckProgram and for the reason of a drained node: its beginning says what
/// matters, should the rest be cut off.
fn nagios(verdict: &Verdict) -> String {
    let word = match verdict.status {
        Status::Ok => "OK",
        Status::Degraded => "WARNING",
        Status::Critical => "CRITICAL",
        Status::Unknown => "UNKNOWN",
    };
    // Advice does not make the verdict, so it is not what the line is about.
    let findings = verdict.findings.iter().filter(|finding| finding.severity > Severity::Info);
    let findings = findings.map(|f| format!("{} {}: {}", f.code, f.component, f.evidence));
    let unchecked =
        verdict.unchecked.iter().map(|u| format!("{} {}: {}", u.code, u.component, u.missing));
    let faults = verdict.faults.iter().map(|f| format!("{} not read: {}", f.place, f.error));
    let mut reasons = findings.chain(unchecked).chain(faults);
    let what = reasons.next().unwrap_or_else(|| "no findings".into());
    let more = match reasons.count() {
        0 => String::new(),
        n => format!(" (+{n} more)"),
    };
    // An error in a file or call may have lines of its own.
    let line = format!("TOPOLOGY {word} - {what}{more}");
    format!("{}\n", line.split_whitespace().collect::<Vec<_>>().join(" "))
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
