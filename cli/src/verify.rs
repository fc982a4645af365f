//! `topoctl verify PLAN.json`: the independent checker on a plan file, and on the schedules the transport makes of it.

use serde::Serialize;
use topology::formats::{job_plan_json, plan_json};
use topology::{Collective, Plan, Rank, Topology};
use transport::schedule::{MIN_SLOTS, Sizing};

use crate::args::{TextFormat, VerifyArgs};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::plan::{by_class, gbps};
use crate::source::{self, read_bytes};

/// Elements the schedules are made for: none, one, a few that divide by nothing, and enough for every chunk shape.
const COUNTS: [usize; 4] = [0, 1, 1009, 1 << 16];

/// Slots small enough that the larger counts are cut into many chunks.
const SLOT_BYTES: usize = 4096;

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
    /// Most loaded links.
    limiting: Vec<String>,
    /// Schedules simulated step by step.
    schedules: usize,
}

pub(crate) fn run(args: &VerifyArgs) -> Result<Exit, Failure> {
    let bytes = read_bytes(&args.plan)?;
    let refuse = |error| Failure::usage(format!("{}: {error}", args.plan.display()));
    if job_plan_json::recognise(&bytes) {
        return by_class::verify(
            &bytes,
            &args.plan.display().to_string(),
            &args.source,
            args.output,
        );
    }
    let plan = plan_json::read(&bytes).map_err(refuse)?;
    let disagreements = plan_json::disagreements(&bytes).map_err(refuse)?;
    let mut source_args = args.source.clone();
    source_args.rates = plan.topology.rates;
    // A plan of a machine changed in thought says how it was changed.
    let origin = source::load(&source_args)?;
    let topology = if plan.topology.what_if.is_empty() {
        origin.topology
    } else {
        origin.changed(&plan.topology.what_if)?.topology
    };
    let mut report = verify(&topology, &plan);
    report.valid &= disagreements.is_empty();
    report.violations.extend(disagreements);
    match args.output {
        TextFormat::Json => output::print_json(&report)?,
        TextFormat::Table => output::print(&render(&report))?,
    }
    Ok(if report.valid { Exit::Ok } else { Exit::Critical })
}

fn verify(topology: &Topology, plan: &Plan) -> Report {
    let mut report =
        Report { schema_version: 1, valid: true, violations: Vec::new(), collectives: Vec::new() };
    match planner::check::plan(topology, plan) {
        Err(violations) => report.violations.extend(violations.iter().map(ToString::to_string)),
        Ok(checked) => {
            for (collective, counted) in &checked.collectives {
                let name = |link: &topology::LinkId| {
                    let ends = topology.graph().edge_endpoints(*link);
                    ends.map(|(a, b)| {
                        format!("{} to {}", topology.vertex(a).name, topology.vertex(b).name)
                    })
                };
                report.collectives.push(Row {
                    collective: *collective,
                    algbw_gbps: counted.algbw_gbps.to_f64(),
                    exact: counted.algbw_gbps.to_string(),
                    limiting: counted.limiting.iter().filter_map(name).collect(),
                    schedules: 0,
                });
            }
            for row in &mut report.collectives {
                match schedules(plan, row.collective) {
                    Ok(count) => row.schedules = count,
                    Err(violation) => report.violations.push(violation),
                }
            }
        }
    }
    report.valid = report.violations.is_empty();
    report
}

/// Simulates the schedules of a collective the transport can run; how many there were.
fn schedules(plan: &Plan, collective: Collective) -> Result<usize, String> {
    let sizing = Sizing::new(4, SLOT_BYTES).map_err(|error| error.to_string())?;
    let mut simulated = 0;
    for count in COUNTS {
        let root = collective.has_root().then_some(Rank(0));
        let Ok(schedule) = transport::schedule::schedule(plan, collective, root, count, sizing)
        else {
            return Ok(simulated);
        };
        // As few slots as the transport ever has are the hardest case for deadlock.
        planner::check::schedule(&schedule, MIN_SLOTS)
            .map_err(|violation| format!("{collective}, {count} elements: {violation}"))?;
        simulated += 1;
    }
    Ok(simulated)
}

fn render(report: &Report) -> String {
    if !report.valid {
        return report
            .violations
            .iter()
            .fold("not valid\n".to_owned(), |text, violation| format!("{text}  {violation}\n"));
    }
    let mut rows = vec![
        ["COLLECTIVE", "ALGBW GB/s", "EXACT", "SCHEDULES", "MOST LOADED LINKS"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for row in &report.collectives {
        let exact: topology::Fraction = row.exact.parse().unwrap_or(topology::Fraction::ZERO);
        let shown: Vec<&str> = row.limiting.iter().take(4).map(String::as_str).collect();
        let more = row.limiting.len().saturating_sub(shown.len());
        let limiting = if more > 0 {
            format!("{} and {more} more", shown.join(", "))
        } else {
            shown.join(", ")
        };
        let schedules =
            if row.schedules == 0 { "none yet".into() } else { row.schedules.to_string() };
        rows.push(vec![
            row.collective.to_string(),
            gbps(exact),
            row.exact.clone(),
            schedules,
            limiting,
        ]);
    }
    format!("valid\n\n{}", output::table(&rows))
}
