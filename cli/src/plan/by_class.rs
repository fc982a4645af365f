//! Plans for many hosts, in the form that does not grow with them.

use std::fmt::Write;
use std::time::Instant;

use planner::check::job as check_job;
use planner::fleet::Fleet;
use planner::job;
use serde::Serialize;
use topology::formats::job_plan_json;
use topology::job_plan::{Exchange, JobPlan};
use topology::{Collective, Severity, Topology};

use super::{gbps, list};
use crate::args::{PlanArgs, SourceArgs, TextFormat};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::source;

/// Hosts beyond which plans are made by class without being asked to.
pub(crate) const MANY_HOSTS: u16 = 32;

pub(crate) fn run(args: &PlanArgs) -> Result<Exit, Failure> {
    if args.request.gpus.is_some() {
        return Err(Failure::usage("--by-class plans all GPUs of every host: leave --gpus out"));
    }
    let fleet = source::fleet(&args.source)?;
    let start = Instant::now();
    let request = super::request(&args.request);
    let plan =
        job::plan(&fleet, &request.collectives, request.links).map_err(|error| match error {
            job::JobError::NotPlanned(_) => Failure::usage(error.to_string()),
            job::JobError::Refused(_) => Failure::internal(error),
            _ => Failure::new(Exit::NoPlan, error.to_string()),
        })?;
    let planning_ms = start.elapsed().as_secs_f64() * 1e3;
    match args.output {
        TextFormat::Json => output::print(&job_plan_json::write(&plan))?,
        TextFormat::Table => output::print(&render(&plan, planning_ms))?,
    }
    let hosts = || fleet.classes.iter().flat_map(|class| class.topology.hosts());
    Ok(if hosts().any(|host| !host.faults.is_empty()) {
        Exit::Unknown
    } else if plan.findings.iter().any(|finding| finding.severity > Severity::Info) {
        Exit::Degraded
    } else {
        Exit::Ok
    })
}

fn render(plan: &JobPlan, planning_ms: f64) -> String {
    let mut text = format!(
        "{} ranks on {} hosts of {} {}, planned by class in {planning_ms:.3} ms\n\n",
        plan.ranks(),
        plan.class_of.len(),
        plan.classes.len(),
        if plan.classes.len() == 1 { "class" } else { "classes" },
    );
    let mut rows = vec![
        [
            "COLLECTIVE",
            "BETWEEN HOSTS",
            "ALGBW GB/s",
            "BUSBW GB/s",
            "BOUND GB/s",
            "OF BOUND",
            "LIMITED BY",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let ranks = u32::try_from(plan.ranks()).unwrap_or(u32::MAX);
    for (collective, reached) in &plan.collectives {
        let exchange = match reached.exchange {
            Exchange::Direct => "each to each",
            Exchange::Hubs(_) => "over hubs",
        };
        let share = if reached.bound_gbps == reached.algbw_gbps {
            "optimal".into()
        } else {
            format!("{:.1} %", 100.0 * reached.algbw_gbps.to_f64() / reached.bound_gbps.to_f64())
        };
        rows.push(vec![
            collective.to_string(),
            exchange.into(),
            gbps(reached.algbw_gbps),
            format!("{:.2}", reached.algbw_gbps.to_f64() * collective.busbw_factor(ranks)),
            gbps(reached.bound_gbps),
            share,
            reached.limited_by.clone(),
        ]);
    }
    text.push_str(&output::table(&rows));
    let mut classes = vec![
        ["CLASS", "HOSTS", "GPUS", "OWNERS", "HUB FOR", "FINGERPRINT"].map(str::to_owned).to_vec(),
    ];
    for (place, (class, count)) in plan.classes.iter().zip(plan.counts()).enumerate() {
        let owners: Vec<String> = class
            .owners
            .iter()
            .enumerate()
            .filter(|(_, part)| !part.is_zero())
            .map(|(local, part)| format!("{local}:{part}"))
            .collect();
        let reached = plan.collectives.get(&Collective::AllReduce).map(|reached| &reached.exchange);
        let hub = match reached {
            Some(Exchange::Hubs(weights)) => format!("{:.6}", weights[place].to_f64()),
            _ => "-".into(),
        };
        classes.push(vec![
            place.to_string(),
            count.to_string(),
            class.ranks.len().to_string(),
            owners.join(" "),
            hub,
            class.fingerprint.chars().take(12).collect(),
        ]);
    }
    let _ = write!(text, "\n{}", output::table(&classes));
    list(
        &mut text,
        "Bounds",
        plan.collectives.iter().map(|(c, reached)| format!("{c}: {}", reached.bound_by)),
    );
    let findings = plan.findings.iter();
    list(
        &mut text,
        "Findings",
        findings.map(|f| format!("{} {}: {}: {}", f.severity, f.code, f.component, f.evidence)),
    );
    list(&mut text, "Assumed", plan.assumptions.iter().cloned());
    text
}

#[derive(Debug, Serialize)]
struct Report {
    schema_version: u32,
    valid: bool,
    violations: Vec<String>,
    collectives: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    collective: Collective,
    /// As counted by the checker.
    algbw_gbps: f64,
    exact: String,
}

/// The checker on a plan by class.
pub(crate) fn verify(
    bytes: &[u8],
    name: &str,
    source: &SourceArgs,
    form: TextFormat,
) -> Result<Exit, Failure> {
    let plan =
        job_plan_json::read(bytes).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let mut source = source.clone();
    if let Some(local) = plan.classes.iter().find_map(|class| class.plan.as_ref()) {
        source.rates = local.topology.rates;
    }
    let fleet = source::fleet(&source)?;
    let mut report =
        Report { schema_version: 1, valid: true, violations: Vec::new(), collectives: Vec::new() };
    match topologies(&plan, &fleet) {
        Err(missing) => report.violations.push(missing),
        Ok(topologies) => match check_job::job(&topologies, &plan) {
            Err(violations) => report.violations.extend(violations),
            Ok(counted) => {
                report.collectives.extend(counted.iter().map(|(collective, counted)| Row {
                    collective: *collective,
                    algbw_gbps: counted.algbw_gbps.to_f64(),
                    exact: counted.algbw_gbps.to_string(),
                }));
            }
        },
    }
    report.valid = report.violations.is_empty();
    match form {
        TextFormat::Json => output::print_json(&report)?,
        TextFormat::Table => output::print(&render_report(&report))?,
    }
    Ok(if report.valid { Exit::Ok } else { Exit::Critical })
}

/// The host that each class was made for, by fingerprint.
fn topologies<'a>(plan: &JobPlan, fleet: &'a Fleet) -> Result<Vec<&'a Topology>, String> {
    let of = |fingerprint: &String| {
        let found = fleet.classes.iter().find(|c| c.topology.fingerprint() == fingerprint);
        found
            .map(|class| &class.topology)
            .ok_or_else(|| format!("no host given has the fingerprint {fingerprint}"))
    };
    plan.classes.iter().map(|class| of(&class.fingerprint)).collect()
}

fn render_report(report: &Report) -> String {
    if !report.valid {
        return report
            .violations
            .iter()
            .fold("not valid\n".to_owned(), |text, violation| format!("{text}  {violation}\n"));
    }
    let mut rows = vec![["COLLECTIVE", "ALGBW GB/s", "EXACT"].map(str::to_owned).to_vec()];
    for row in &report.collectives {
        rows.push(vec![
            row.collective.to_string(),
            format!("{:.2}", row.algbw_gbps),
            row.exact.clone(),
        ]);
    }
    format!("valid\n\n{}", output::table(&rows))
}
