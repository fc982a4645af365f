//! `topoctl plan`: channels, what they reach, the proved bound, what limits.

use std::fmt::Write;
use std::time::Instant;

use planner::PlanError;
use serde::Serialize;
use topology::calibration::{Calibration, HostLink};
use topology::formats::plan_json::PlanDocument;
use topology::plan::{Candidate, CollectivePlan, LinkPolicy, Pattern, PlanRequest};
use topology::{Collective, Fraction, Generation, GpuIndex, Plan, RateModel, Severity, Topology};

use crate::args::{Links, PlanArgs, RequestArgs, TextFormat};
use crate::bench;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::size;
use crate::source::{self, Origin};

pub(crate) mod by_class;
mod volumes;
mod what_if;
mod why;

pub(crate) fn run(args: &PlanArgs) -> Result<Exit, Failure> {
    if args.by_class || args.source.hosts > by_class::MANY_HOSTS {
        return by_class::run(args);
    }
    let origin = source::load(&args.source)?;
    let request = request(&args.request);
    let calibration = calibration(args)?;
    let make = |origin: &Origin, request: &PlanRequest| {
        make_calibrated(origin, request, calibration.as_ref())
    };
    let changes = &args.what_if.what_if;
    let (origin, comparison, plan, planning_us) = if changes.is_empty() {
        let (plan, planning_us) = make(&origin, &request)?;
        (origin, None, plan, planning_us)
    } else {
        let changed = origin.changed(changes)?;
        // The machine as it is may have no plan where the changed one has: that is what was asked.
        let before = make(&origin, &request).map(|(plan, _)| plan);
        let (plan, planning_us) = make(&changed, &request)?;
        let comparison = what_if::Comparison::new(before.as_ref(), &plan);
        (changed, Some(comparison), plan, planning_us)
    };
    let why = args
        .explain
        .then(|| why::Explanation::new(&origin.topology, &request, &plan))
        .transpose()
        .map_err(no_plan)?;
    let volumes = volumes::Volumes::new(&origin.topology, &plan, request.size_bytes)?;
    match args.output {
        TextFormat::Json => {
            let mut document = PlanDocument::from(&plan);
            document.planning_us = Some(planning_us);
            output::print_json(&Document {
                plan: document,
                volumes,
                what_if: comparison,
                explanation: why,
            })?;
        }
        TextFormat::Table => {
            let mut text = String::new();
            if let Some(comparison) = &comparison {
                text.push_str(&comparison.render());
                text.push_str("\nThe changed machine:\n\n");
            }
            text.push_str(&render(&plan, origin.topology.hosts().len(), planning_us));
            text.push_str(&volumes.render());
            if let Some(why) = &why {
                text.push_str(&why.render());
            }
            output::print(&text)?;
        }
    }
    Ok(exit(&plan, &origin.topology))
}

/// A plan file with what was asked besides; readers of plans take no notice of it.
#[derive(Debug, Serialize)]
struct Document {
    #[serde(flatten)]
    plan: PlanDocument,
    volumes: volumes::Volumes,
    #[serde(skip_serializing_if = "Option::is_none")]
    what_if: Option<what_if::Comparison>,
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<why::Explanation>,
}

pub(crate) fn request(args: &RequestArgs) -> PlanRequest {
    PlanRequest {
        gpus: args.gpus.as_ref().map(|gpus| gpus.iter().copied().map(GpuIndex).collect()),
        collectives: args.collective.clone(),
        size_bytes: args.size,
        links: match args.links {
            Links::Auto => LinkPolicy::Auto,
            Links::All => LinkPolicy::All,
        },
    }
}

/// The figures by which choices by size are made, where they are asked for.
fn calibration(args: &PlanArgs) -> Result<Option<Calibration>, Failure> {
    let Some(path) = &args.calibration else { return Ok(None) };
    if args.source.rates != RateModel::Measured {
        return Err(Failure::usage("--calibration needs --rates measured"));
    }
    let calibration = bench::calibrate::read(path)?;
    if calibration.link(HostLink::Shm).is_none() {
        return Err(Failure::usage(format!(
            "{}: shared memory was not measured, by which processes of one host would run the plan: calibrate with --transport shm",
            path.display()
        )));
    }
    Ok(Some(calibration))
}

/// A checked plan, and the microseconds it took to make.
pub(crate) fn make(origin: &Origin, request: &PlanRequest) -> Result<(Plan, u64), Failure> {
    make_calibrated(origin, request, None)
}

fn make_calibrated(
    origin: &Origin,
    request: &PlanRequest,
    calibration: Option<&Calibration>,
) -> Result<(Plan, u64), Failure> {
    let start = Instant::now();
    let made = planner::plan_calibrated(&origin.topology, request, calibration);
    let mut plan = made.map_err(no_plan)?;
    let planning_us = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    plan.topology.generation = Generation(origin.generation);
    Ok((plan, planning_us))
}

/// A GPU that is not there is a slip of the command line; everything else is the machine's.
fn no_plan(error: PlanError) -> Failure {
    match error {
        PlanError::UnknownGpu { .. } | PlanError::GpuTwice { .. } => {
            Failure::usage(format!("GPUs asked for: {error}"))
        }
        _ => Failure::new(Exit::NoPlan, error.to_string()),
    }
}

/// Partial data comes before degraded: where facts are missing nobody knows how degraded the host is.
fn exit(plan: &Plan, topology: &Topology) -> Exit {
    if topology.hosts().iter().any(|host| !host.faults.is_empty()) {
        return Exit::Unknown;
    }
    // A plan is no verdict on its host: it never ends as critical.
    let severities = plan.findings.iter().map(|finding| finding.severity.min(Severity::Degraded));
    Exit::of(severities)
}

fn render(plan: &Plan, hosts: usize, planning_us: u64) -> String {
    let ranks = plan.ranks.len();
    let mut text = format!(
        "{ranks} ranks on {hosts} {}, {} rates, planned in {}.{:03} ms\n\n",
        if hosts == 1 { "host" } else { "hosts" },
        plan.topology.rates,
        planning_us / 1000,
        planning_us % 1000
    );
    text.push_str(&collectives(plan));
    text.push_str(&limits(plan));
    text.push_str(&channels(plan));
    text.push_str(&candidates(plan));
    text.push_str(&sizes(plan));
    list(
        &mut text,
        "Findings",
        plan.findings
            .iter()
            .map(|f| format!("{} {}: {}: {}", f.severity, f.code, f.component, f.evidence)),
    );
    list(&mut text, "Assumed", plan.assumptions.iter().cloned());
    text
}

fn list(text: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    let lines: Vec<String> = lines.collect();
    if !lines.is_empty() {
        let _ = writeln!(text, "\n{title}:");
        for line in lines {
            let _ = writeln!(text, "  {line}");
        }
    }
}

pub(crate) fn gbps(value: Fraction) -> String {
    format!("{:.2}", value.to_f64())
}

fn collectives(plan: &Plan) -> String {
    let header = [
        "COLLECTIVE",
        "ALGORITHM",
        "CHANNELS",
        "HEIGHT",
        "ALGBW GB/s",
        "BUSBW GB/s",
        "BOUND GB/s",
        "OF BOUND",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let ranks = u32::try_from(plan.ranks.len()).unwrap_or(u32::MAX);
    for (collective, reached) in &plan.collectives {
        let bound = reached.bound.as_ref().map(|bound| bound.algbw_gbps);
        let row = match &reached.best {
            Some(best) => best_row(*collective, best, bound, ranks),
            None => vec![
                collective.to_string(),
                "none".into(),
                String::new(),
                String::new(),
                "-".into(),
                "-".into(),
                bound.map(gbps).unwrap_or_default(),
            ],
        };
        rows.push(row);
    }
    output::table(&rows)
}

fn best_row(
    collective: Collective,
    best: &Candidate,
    bound: Option<Fraction>,
    ranks: u32,
) -> Vec<String> {
    let share = match bound {
        Some(_) if best.optimal => "optimal".into(),
        Some(bound) if !bound.is_zero() => {
            format!("{:.1} %", 100.0 * best.algbw_gbps.to_f64() / bound.to_f64())
        }
        _ => "no bound".into(),
    };
    vec![
        collective.to_string(),
        best.algorithm.to_string(),
        best.channels.to_string(),
        best.height.to_string(),
        gbps(best.algbw_gbps),
        format!("{:.2}", best.algbw_gbps.to_f64() * collective.busbw_factor(ranks)),
        bound.map_or_else(|| "-".into(), |bound| format!("{} = {bound}", gbps(bound))),
        share,
    ]
}

/// What limits, each reason once with the collectives it limits.
fn limits(plan: &Plan) -> String {
    let mut reasons: Vec<(Vec<Collective>, &[String])> = Vec::new();
    for (collective, CollectivePlan { bound, .. }) in &plan.collectives {
        let Some(bound) = bound.as_ref().filter(|bound| !bound.limited_by.is_empty()) else {
            continue;
        };
        match reasons.iter_mut().find(|(_, by)| *by == bound.limited_by.as_slice()) {
            Some((collectives, _)) => collectives.push(*collective),
            None => reasons.push((vec![*collective], &bound.limited_by)),
        }
    }
    let mut text = String::new();
    list(
        &mut text,
        "Limited by",
        reasons.iter().map(|(collectives, by)| {
            let names: Vec<&str> = collectives.iter().map(|c| c.as_str()).collect();
            // A symmetric machine is limited in every device alike: two of them say it.
            let more = if by.len() > 2 {
                format!("; and {} more alike", by.len() - 2)
            } else {
                String::new()
            };
            format!("{}: {}{more}", names.join(", "), by[..by.len().min(2)].join("; "))
        }),
    );
    text
}

fn channels(plan: &Plan) -> String {
    let mut rows = vec![
        ["CHANNEL", "PATTERN", "GB/s", "SHARE", "COLLECTIVES", "RANKS"].map(str::to_owned).to_vec(),
    ];
    for channel in &plan.channels {
        let names: Vec<&str> = channel.collectives.iter().map(|c| c.as_str()).collect();
        let way = match channel.pattern {
            Pattern::Ring => {
                channel.ranks.iter().map(|rank| rank.to_string()).collect::<Vec<_>>().join(" ")
            }
            Pattern::Tree | Pattern::Pairs | Pattern::Rounds => {
                let edges =
                    if channel.edges.is_empty() { &channel.reduce_edges } else { &channel.edges };
                let hops: Vec<String> =
                    edges.iter().map(|edge| format!("{}>{}", edge.from, edge.to)).collect();
                match channel.root {
                    Some(root) => format!("root {root}: {}", hops.join(" ")),
                    None => hops.join(" "),
                }
            }
        };
        rows.push(vec![
            channel.index.to_string(),
            serde_json::to_value(channel.pattern)
                .ok()
                .and_then(|v| v.as_str().map(str::to_owned))
                .unwrap_or_default(),
            gbps(channel.gbps),
            channel.share.to_string(),
            names.join(","),
            way,
        ]);
    }
    format!("\n{}", output::table(&rows))
}

/// What was weighed beside the best, and why it is not that.
fn candidates(plan: &Plan) -> String {
    let header = ["COLLECTIVE", "CANDIDATE", "HOPS", "ALGBW GB/s", "RUN BY", "NOTE"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (collective, reached) in &plan.collectives {
        for candidate in &reached.candidates {
            let by: Vec<&str> = candidate.executors.iter().map(|e| e.as_str()).collect();
            rows.push(vec![
                collective.to_string(),
                candidate.algorithm.to_string(),
                candidate.height.to_string(),
                gbps(candidate.algbw_gbps),
                if by.is_empty() { "nothing".into() } else { by.join(",") },
                candidate.note.clone(),
            ]);
        }
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", output::table(&rows)) }
}

fn sizes(plan: &Plan) -> String {
    let mut rows = vec![
        ["COLLECTIVE", "UP TO", "ALGORITHM", "PROTOCOL", "CHANNELS", "PREDICTED us"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (collective, reached) in &plan.collectives {
        for choice in &reached.by_size {
            rows.push(vec![
                collective.to_string(),
                if choice.max_bytes == u64::MAX {
                    "any size".into()
                } else {
                    size::display(choice.max_bytes)
                },
                choice.algorithm.to_string(),
                choice.protocol.to_string(),
                choice.channels.to_string(),
                choice.predicted_ps.map_or_else(
                    || "-".into(),
                    |ps| format!("{:.1}", Fraction::of(ps, 1_000_000).to_f64()),
                ),
            ]);
        }
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", output::table(&rows)) }
}
