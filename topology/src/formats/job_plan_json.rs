//! Plans by class as JSON: `classes` with a plan file of each, hosts as runs of equal ones, exact figures beside decimals.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::ReadError;
use super::plan_json::PlanDocument;
use crate::job_plan::{Exchange, JobClass, JobCollective, JobPlan, JobUplink};
use crate::plan::PlanRank;
use crate::{Collective, Finding, Fraction};

const FORMAT: &str = "plan by class";
const SCHEMA_VERSION: u32 = 1;
/// Larger files are no plan of this form.
const MOST_BYTES: usize = 64 << 20;
/// More hosts than this are a slip, and would only fill memory.
const MOST_HOSTS: u64 = 1 << 24;

#[derive(Debug, Serialize, Deserialize)]
struct Document {
    schema_version: u32,
    hosts: Vec<Run>,
    classes: Vec<ClassDocument>,
    collectives: BTreeMap<Collective, CollectiveDocument>,
    #[serde(default)]
    assumptions: Vec<String>,
    #[serde(default)]
    findings: Vec<Finding>,
}

/// So many hosts of one class, one after the other.
#[derive(Debug, Serialize, Deserialize)]
struct Run {
    class: u32,
    count: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct ClassDocument {
    fingerprint: String,
    ranks: Vec<PlanRank>,
    owners: Vec<Fraction>,
    uplinks: Vec<Vec<JobUplink>>,
    plan: Option<PlanDocument>,
}

#[derive(Debug, Serialize, Deserialize)]
struct CollectiveDocument {
    algbw_gbps: f64,
    bound_gbps: f64,
    #[serde(flatten)]
    exact: ExactDocument,
}

/// [`JobCollective`] with its fractions under names of their own.
#[derive(Debug, Serialize, Deserialize)]
struct ExactDocument {
    exchange: Exchange,
    exact_algbw: Fraction,
    exact_bound: Fraction,
    bound_by: String,
    limited_by: String,
}

/// The plan as JSON text, with a final newline.
#[must_use]
pub fn write(plan: &JobPlan) -> String {
    let mut hosts: Vec<Run> = Vec::new();
    for &class in &plan.class_of {
        match hosts.last_mut() {
            Some(run) if run.class == class => run.count += 1,
            _ => hosts.push(Run { class, count: 1 }),
        }
    }
    let class = |class: &JobClass| ClassDocument {
        fingerprint: class.fingerprint.clone(),
        ranks: class.ranks.clone(),
        owners: class.owners.clone(),
        uplinks: class.uplinks.clone(),
        plan: class.plan.as_ref().map(Into::into),
    };
    let collective = |reached: &JobCollective| CollectiveDocument {
        algbw_gbps: reached.algbw_gbps.to_f64(),
        bound_gbps: reached.bound_gbps.to_f64(),
        exact: ExactDocument {
            exchange: reached.exchange.clone(),
            exact_algbw: reached.algbw_gbps,
            exact_bound: reached.bound_gbps,
            bound_by: reached.bound_by.clone(),
            limited_by: reached.limited_by.clone(),
        },
    };
    let document = Document {
        schema_version: SCHEMA_VERSION,
        hosts,
        classes: plan.classes.iter().map(class).collect(),
        collectives: plan
            .collectives
            .iter()
            .map(|(c, reached)| (*c, collective(reached)))
            .collect(),
        assumptions: plan.assumptions.clone(),
        findings: plan.findings.clone(),
    };
    // The document holds only strings, numbers and lists of them; serialising those cannot fail.
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

/// A plan from JSON text.
///
/// # Errors
/// Where the bytes are no plan of this form and version, with the line.
pub fn read(bytes: &[u8]) -> Result<JobPlan, ReadError> {
    let refuse = |line, reason| ReadError { format: FORMAT, line, reason };
    if bytes.len() > MOST_BYTES {
        return Err(refuse(0, format!("larger than {MOST_BYTES} bytes")));
    }
    let document: Document =
        serde_json::from_slice(bytes).map_err(|e| refuse(e.line(), e.to_string()))?;
    if document.schema_version != SCHEMA_VERSION {
        let found = document.schema_version;
        return Err(refuse(0, format!("schema_version {found} is not {SCHEMA_VERSION}")));
    }
    let hosts = document.hosts.iter().fold(0_u64, |all, run| all.saturating_add(run.count));
    if hosts > MOST_HOSTS {
        return Err(refuse(0, format!("{hosts} hosts, more than {MOST_HOSTS}")));
    }
    let mut class_of = Vec::new();
    for run in &document.hosts {
        if run.class as usize >= document.classes.len() {
            return Err(refuse(0, format!("hosts of class {}, which is not listed", run.class)));
        }
        class_of.extend((0..run.count).map(|_| run.class));
    }
    let class = |class: ClassDocument| JobClass {
        fingerprint: class.fingerprint,
        ranks: class.ranks,
        plan: class.plan.map(Into::into),
        owners: class.owners,
        uplinks: class.uplinks,
    };
    let collective = |reached: CollectiveDocument| JobCollective {
        exchange: reached.exact.exchange,
        algbw_gbps: reached.exact.exact_algbw,
        bound_gbps: reached.exact.exact_bound,
        bound_by: reached.exact.bound_by,
        limited_by: reached.exact.limited_by,
    };
    Ok(JobPlan {
        classes: document.classes.into_iter().map(class).collect(),
        class_of,
        collectives: document.collectives.into_iter().map(|(c, r)| (c, collective(r))).collect(),
        assumptions: document.assumptions,
        findings: document.findings,
    })
}

/// Whether the bytes look like a plan by class: a JSON object with the keys `classes` and `hosts`.
#[must_use]
pub fn recognise(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Shape {
        #[serde(rename = "classes")]
        _classes: serde::de::IgnoredAny,
        #[serde(rename = "hosts")]
        _hosts: serde::de::IgnoredAny,
    }
    serde_json::from_slice::<Shape>(bytes).is_ok()
}

/// What a fuzzer runs: any bytes are refused or read, and what is read is written and read again as the same.
pub fn fuzz(bytes: &[u8]) {
    if let Ok(plan) = read(bytes) {
        assert_eq!(read(write(&plan).as_bytes()).ok(), Some(plan));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> JobPlan {
        let class = |name: &str| JobClass {
            fingerprint: name.into(),
            ranks: Vec::new(),
            plan: None,
            owners: [Fraction::of(1, 3), Fraction::of(2, 3)].into(),
            uplinks: [
                Vec::new(),
                [JobUplink {
                    rail: 1,
                    share: Fraction::ONE,
                    out: ["a".into()].into(),
                    back: ["b".into()].into(),
                }]
                .into(),
            ]
            .into(),
        };
        let reached = JobCollective {
            exchange: Exchange::Hubs([Fraction::of(1, 4), Fraction::of(1, 2)].into()),
            algbw_gbps: Fraction::of(100, 3),
            bound_gbps: Fraction::of(101, 3),
            bound_by: "hosts".into(),
            limited_by: "a link".into(),
        };
        JobPlan {
            classes: [class("x"), class("y")].into(),
            class_of: [0, 0, 1].into(),
            collectives: [(Collective::AllReduce, reached)].into(),
            assumptions: ["something".into()].into(),
            findings: Vec::new(),
        }
    }

    #[test]
    fn reads_what_it_writes() {
        let text = write(&example());
        assert_eq!(read(text.as_bytes()).unwrap(), example());
        assert!(recognise(text.as_bytes()));
        assert!(!recognise(b"{\"channels\": []}"));
    }

    #[test]
    fn refuses_hosts_of_no_class_and_too_many() {
        let text = write(&example());
        let refused = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            read(text.replacen(from, to, 1).as_bytes()).unwrap_err().to_string()
        };
        assert!(refused("\"class\": 1", "\"class\": 2").contains("class 2, which is not listed"));
        assert!(refused("\"count\": 2", "\"count\": 99999999999").contains("more than"));
        assert!(
            refused("\"schema_version\": 1", "\"schema_version\": 9").contains("schema_version 9")
        );
    }

    proptest! {
        #[test]
        fn mutated_plans_never_panic(at in 0usize..1200, byte: u8) {
            let mut text = write(&example()).into_bytes();
            let at = at % text.len();
            text[at] = byte;
            fuzz(&text);
        }
    }
}
