//! Before and after a change made in thought, per collective.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use topology::plan::CollectivePlan;
use topology::{Algorithm, Collective, Fraction, Plan};

use super::gbps;
use crate::exit::Failure;
use crate::output;

#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    changes: Vec<String>,
    /// Of the machine as it is; `None` where no plan exists for it.
    fingerprint_before: Option<String>,
    /// Why there is no plan for the machine as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_plan_before: Option<String>,
    collectives: BTreeMap<Collective, Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    before: Option<Figures>,
    after: Figures,
    /// `best` after to before.
    #[serde(skip_serializing_if = "Option::is_none")]
    best_ratio: Option<f64>,
    /// `bound` after to before.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound_ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Figures {
    bound_gbps: Option<f64>,
    bound_exact: Option<Fraction>,
    best_gbps: Option<f64>,
    best_exact: Option<Fraction>,
    algorithm: Option<Algorithm>,
    limited_by: Vec<String>,
}

impl Figures {
    fn of(reached: &CollectivePlan) -> Self {
        let bound = reached.bound.as_ref();
        let best = reached.best.as_ref();
        Self {
            bound_gbps: bound.map(|bound| bound.algbw_gbps.to_f64()),
            bound_exact: bound.map(|bound| bound.algbw_gbps),
            best_gbps: best.map(|best| best.algbw_gbps.to_f64()),
            best_exact: best.map(|best| best.algbw_gbps),
            algorithm: best.map(|best| best.algorithm),
            limited_by: bound.map(|bound| bound.limited_by.clone()).unwrap_or_default(),
        }
    }
}

fn ratio(before: Option<Fraction>, after: Option<Fraction>) -> Option<f64> {
    after?.checked_div(before?).map(Fraction::to_f64)
}

impl Comparison {
    pub(super) fn new(before: Result<&Plan, &Failure>, after: &Plan) -> Self {
        let row = |(collective, reached): (&Collective, &CollectivePlan)| {
            let before = before.ok().and_then(|plan| plan.collectives.get(collective));
            let before = before.map(Figures::of);
            let after = Figures::of(reached);
            let of = |figure: fn(&Figures) -> Option<Fraction>| {
                ratio(before.as_ref().and_then(figure), figure(&after))
            };
            let row = Row {
                best_ratio: of(|figures| figures.best_exact),
                bound_ratio: of(|figures| figures.bound_exact),
                before,
                after,
            };
            (*collective, row)
        };
        Self {
            changes: after.topology.what_if.clone(),
            fingerprint_before: before.ok().map(|plan| plan.topology.fingerprint.clone()),
            no_plan_before: before.err().map(|failure| failure.message.clone()),
            collectives: after.collectives.iter().map(row).collect(),
        }
    }

    pub(super) fn render(&self) -> String {
        let mut text = String::from("What if:\n");
        for change in &self.changes {
            let _ = writeln!(text, "  {change}");
        }
        if let Some(reason) = &self.no_plan_before {
            let _ = writeln!(text, "The machine as it is has no plan: {reason}");
        }
        let header =
            ["COLLECTIVE", "BOUND NOW", "THEN", "", "BEST NOW", "THEN", "", "BY NOW", "THEN"];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        for (collective, row) in &self.collectives {
            let before = row.before.as_ref();
            let figure = |value: Option<Fraction>| value.map_or_else(|| "-".into(), gbps);
            let word = |by: Option<Algorithm>| by.map_or_else(|| "-".into(), |by| by.to_string());
            rows.push(vec![
                collective.to_string(),
                figure(before.and_then(|figures| figures.bound_exact)),
                figure(row.after.bound_exact),
                percent(row.bound_ratio),
                figure(before.and_then(|figures| figures.best_exact)),
                figure(row.after.best_exact),
                percent(row.best_ratio),
                word(before.and_then(|figures| figures.algorithm)),
                word(row.after.algorithm),
            ]);
        }
        let _ = write!(text, "\n{}", output::table(&rows));
        text.push_str(&self.limits());
        text
    }

    /// What limits before and after where that differs, each once.
    fn limits(&self) -> String {
        let mut seen: Vec<(String, String)> = Vec::new();
        let mut text = String::new();
        for (collective, row) in &self.collectives {
            let words = |figures: &Figures| short(&figures.limited_by);
            let now = row.before.as_ref().map_or_else(|| "-".into(), words);
            let pair = (now, words(&row.after));
            if pair.0 == pair.1 || seen.contains(&pair) {
                continue;
            }
            let _ =
                writeln!(text, "\n{collective} is limited\n  now:  {}\n  then: {}", pair.0, pair.1);
            seen.push(pair);
        }
        text
    }
}

/// `+20.0 %`, or nothing where there is nothing to compare.
pub(super) fn percent(ratio: Option<f64>) -> String {
    match ratio {
        None => String::new(),
        Some(ratio) if (ratio - 1.0).abs() < 5e-4 => "same".into(),
        Some(ratio) => format!("{:+.1} %", 100.0 * (ratio - 1.0)),
    }
}

/// A symmetric machine is limited in every device alike: one of them says it.
fn short(limited_by: &[String]) -> String {
    match limited_by {
        [] => "-".into(),
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first}; and {} more alike", rest.len()),
    }
}
