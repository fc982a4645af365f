//! `topoctl plan --explain`: why so many channels, what limits, and what one change would bring.

use std::collections::BTreeMap;
use std::fmt::Write;

use planner::advice::{self, Advice};
use planner::{PlanError, why};
use serde::Serialize;
use topology::plan::Pattern;
use topology::{Collective, Fraction, Plan, PlanRequest, Topology};

use super::gbps;
use super::what_if::percent;

/// Most links spelled out in the table; JSON has them all.
const SPELLED: usize = 6;

#[derive(Debug, Serialize)]
pub(super) struct Explanation {
    collectives: BTreeMap<Collective, Channels>,
    single_changes: SingleChanges,
}

#[derive(Debug, Serialize)]
struct Channels {
    pattern: Pattern,
    /// Fastest first.
    rates: Vec<Rate>,
    algbw_gbps: f64,
    /// Without the slowest ring, or the slowest tree of each root.
    algbw_gbps_with_one_less: Option<f64>,
    /// Links that decide the bandwidth: sender and receiver.
    full_links: Vec<(String, String)>,
    used_links: usize,
    limited_by: Vec<String>,
    #[serde(skip)]
    reached: (Fraction, Option<Fraction>),
    #[serde(skip)]
    optimal: bool,
    #[serde(skip)]
    per_root: u32,
}

#[derive(Debug, Serialize)]
struct Rate {
    gbps: f64,
    channels: usize,
}

#[derive(Debug, Serialize)]
struct SingleChanges {
    tried: usize,
    left_out: usize,
    not_listed: usize,
    gains: Vec<Gain>,
}

#[derive(Debug, Serialize)]
struct Gain {
    changes: Vec<String>,
    alike: usize,
    collectives: BTreeMap<Collective, Change>,
}

#[derive(Debug, Serialize)]
struct Change {
    bound_before_gbps: f64,
    bound_after_gbps: f64,
    bound_after_exact: Fraction,
    best_before_gbps: Option<f64>,
    best_after_gbps: Option<f64>,
}

impl Explanation {
    pub(super) fn new(
        topology: &Topology,
        request: &PlanRequest,
        plan: &Plan,
    ) -> Result<Self, PlanError> {
        let of = |collective: &Collective| {
            let why = why::channels(topology, plan, *collective)?;
            let reached = &plan.collectives[collective];
            let best = reached.best.as_ref();
            let channels = Channels {
                pattern: why.pattern,
                rates: why
                    .rates
                    .iter()
                    .map(|(gbps, channels)| Rate { gbps: gbps.to_f64(), channels: *channels })
                    .collect(),
                algbw_gbps: why.algbw_gbps.to_f64(),
                algbw_gbps_with_one_less: why.with_one_less.map(Fraction::to_f64),
                full_links: why.full,
                used_links: why.used,
                limited_by: reached
                    .bound
                    .as_ref()
                    .map(|bound| bound.limited_by.clone())
                    .unwrap_or_default(),
                reached: (why.algbw_gbps, why.with_one_less),
                optimal: best.is_some_and(|best| best.optimal),
                per_root: best.map_or(0, |best| best.channels),
            };
            Some((*collective, channels))
        };
        Ok(Self {
            collectives: plan.collectives.keys().filter_map(of).collect(),
            single_changes: advice::single_changes(topology, request, plan)?.into(),
        })
    }

    pub(super) fn render(&self) -> String {
        let mut text = String::from("\nWhy these channels:\n");
        for (collective, channels) in &self.collectives {
            let _ = writeln!(text, "  {collective}: {}", channels.sentence());
            let _ = writeln!(text, "    full: {}", channels.full());
            for limit in &channels.limited_by {
                let _ = writeln!(text, "    limited {limit}");
            }
        }
        text.push_str(&self.single_changes.render());
        text
    }
}

impl Channels {
    fn sentence(&self) -> String {
        let count: usize = self.rates.iter().map(|rate| rate.channels).sum();
        let rates: Vec<String> = self
            .rates
            .iter()
            .take(SPELLED)
            .map(|rate| format!("{} of {:.2} GB/s", rate.channels, rate.gbps))
            .collect();
        let more = match self.rates.len().saturating_sub(SPELLED) {
            0 => String::new(),
            more => format!(" and {more} more rates"),
        };
        let what = match self.pattern {
            Pattern::Ring => format!("{count} rings"),
            Pattern::Tree => format!("{count} trees, at most {} a root", self.per_root),
            Pattern::Pairs => "one list of pairs".into(),
            Pattern::Rounds => format!("{count} rounds"),
        };
        let end = if self.optimal { ", which is the bound" } else { "" };
        let less = match self.reached.1 {
            Some(less) => format!(
                "with one less{} {} GB/s",
                if self.pattern == Pattern::Tree { " for each root" } else { "" },
                gbps(less)
            ),
            None => "fewer cannot carry it".into(),
        };
        format!(
            "{what}: {}{more}; together {} GB/s{end}; {less}",
            rates.join(", "),
            gbps(self.reached.0)
        )
    }

    fn full(&self) -> String {
        let links: Vec<String> = self
            .full_links
            .iter()
            .take(SPELLED)
            .map(|(from, to)| format!("{from} to {to}"))
            .collect();
        let more = match self.full_links.len().saturating_sub(SPELLED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{}{more}; {} links carry something", links.join(", "), self.used_links)
    }
}

impl From<Advice> for SingleChanges {
    fn from(advice: Advice) -> Self {
        let gain = |gain: advice::Gain| Gain {
            collectives: gain
                .bounds
                .iter()
                .map(|(collective, (before, after))| {
                    let best = gain.best.get(collective);
                    let change = Change {
                        bound_before_gbps: before.to_f64(),
                        bound_after_gbps: after.to_f64(),
                        bound_after_exact: *after,
                        best_before_gbps: best.map(|(before, _)| before.to_f64()),
                        best_after_gbps: best.map(|(_, after)| after.to_f64()),
                    };
                    (*collective, change)
                })
                .collect(),
            changes: gain.changes,
            alike: gain.alike,
        };
        Self {
            tried: advice.tried,
            left_out: advice.left_out,
            not_listed: advice.not_listed,
            gains: advice.gains.into_iter().map(gain).collect(),
        }
    }
}

impl SingleChanges {
    fn render(&self) -> String {
        let left_out = match self.left_out {
            0 => String::new(),
            more => format!(", {more} more not tried"),
        };
        let mut text = format!("\nWhat one change would bring ({} tried{left_out}):\n", self.tried);
        if self.gains.is_empty() {
            text.push_str("  none raises a bound: devices alike limit alike\n");
        }
        for gain in &self.gains {
            let alike = match gain.alike {
                0 => String::new(),
                1 => " (another brings the same)".into(),
                more => format!(" ({more} others bring the same)"),
            };
            let _ = writeln!(text, "  {}{alike}", gain.changes.join(", "));
            for (collective, change) in &gain.collectives {
                let _ = write!(
                    text,
                    "    {collective}: bound {:.2} to {:.2} GB/s ({})",
                    change.bound_before_gbps,
                    change.bound_after_gbps,
                    percent(Some(change.bound_after_gbps / change.bound_before_gbps))
                );
                if let (Some(before), Some(after)) =
                    (change.best_before_gbps, change.best_after_gbps)
                {
                    let _ = write!(
                        text,
                        ", plan {before:.2} to {after:.2} ({})",
                        percent(Some(after / before))
                    );
                }
                text.push('\n');
            }
        }
        if self.not_listed > 0 {
            let _ = writeln!(text, "  and {} more that bring less", self.not_listed);
        }
        text
    }
}
