//! The JSON form of a plan: what `topoctl plan -o json` prints and `topoctl verify` reads.
//!
//! Every figure stands there twice, as a decimal for people and scripts and as an exact fraction;
//! reading takes the fraction. `planning_us` is measured by whoever prints and is no part of the plan.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::ReadError;
use crate::plan::{
    Bound, Candidate, Channel, ChannelEdge, ChannelSet, CollectivePlan, LinkPolicy, Pattern, Plan,
    PlanRank, SizeChoice, TopologyRef,
};
use crate::{
    Algorithm, Collective, Executor, Finding, Fraction, Generation, Protocol, Rank, RateModel,
    Source,
};

/// Version of the form; readers refuse others.
pub const SCHEMA_VERSION: u32 = 1;

const FORMAT: &str = "plan JSON";

/// Largest plan file read, in bytes; a plan of 1,024 ranks with 32 channels is about a tenth of it.
const MOST_BYTES: usize = 256 << 20;

/// A plan as it stands in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanDocument {
    schema_version: u32,
    topology: TopologyDocument,
    ranks: Vec<PlanRank>,
    /// Time the planner took, in microseconds, where somebody measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planning_us: Option<u64>,
    channels: Vec<ChannelDocument>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    alternatives: Vec<ChannelSetDocument>,
    collectives: BTreeMap<Collective, CollectiveDocument>,
    #[serde(default)]
    assumptions: Vec<String>,
    #[serde(default)]
    findings: Vec<Finding>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct TopologyDocument {
    fingerprint: String,
    source: Source,
    rates: RateModel,
    /// What `topoctl plan` takes where nobody says otherwise.
    #[serde(default)]
    links: LinkPolicy,
    /// Changes made in thought, for a machine that does not exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    what_if: Vec<String>,
    #[serde(default)]
    generation: Generation,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ChannelDocument {
    index: u32,
    pattern: Pattern,
    collectives: Vec<Collective>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<Rank>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    root: Option<Rank>,
    #[serde(default)]
    nics: Vec<String>,
    share: Fraction,
    gbps: f64,
    exact_gbps: Fraction,
    edges: Vec<ChannelEdge>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reduce_edges: Vec<ChannelEdge>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ChannelSetDocument {
    algorithm: Algorithm,
    collectives: Vec<Collective>,
    channels: Vec<ChannelDocument>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CollectiveDocument {
    bound: Option<BoundDocument>,
    best: Option<CandidateDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ring: Option<CandidateDocument>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    candidates: Vec<CandidateDocument>,
    #[serde(default)]
    by_size: Vec<SizeDocument>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct BoundDocument {
    algbw_gbps: f64,
    exact: Fraction,
    limited_by: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CandidateDocument {
    algbw_gbps: f64,
    exact: Fraction,
    algorithm: Algorithm,
    channels: u32,
    height: u32,
    optimal: bool,
    #[serde(default)]
    executors: Vec<Executor>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    note: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SizeDocument {
    /// `None` is without limit.
    max_bytes: Option<u64>,
    algorithm: Algorithm,
    protocol: Protocol,
    channels: u32,
    predicted_us: Option<f64>,
}

/// A figure for people: six digits after the point.
fn decimal(exact: Fraction) -> f64 {
    let scaled = exact.to_f64() * 1e6;
    // Round half up without std; figures are far below 2^52.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "display only, within range"
    )]
    let rounded = if scaled.abs() < 4e15 { (scaled + 0.5) as i64 as f64 } else { scaled };
    rounded / 1e6
}

/// The plan as JSON text, with a final newline. Equal plans give equal bytes for equal `planning_us`.
#[must_use]
pub fn write(plan: &Plan, planning_us: Option<u64>) -> String {
    let mut document = PlanDocument::from(plan);
    document.planning_us = planning_us;
    // The document holds only strings, numbers and lists of them; serialising those cannot fail.
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

/// A plan from JSON text.
///
/// # Errors
/// Where the bytes are no plan of this version, with the line.
pub fn read(bytes: &[u8]) -> Result<Plan, ReadError> {
    let refuse = |line, reason| ReadError { format: FORMAT, line, reason };
    if bytes.len() > MOST_BYTES {
        return Err(refuse(0, format!("larger than {MOST_BYTES} bytes")));
    }
    let document: PlanDocument =
        serde_json::from_slice(bytes).map_err(|e| refuse(e.line(), e.to_string()))?;
    if document.schema_version != SCHEMA_VERSION {
        return Err(refuse(
            0,
            format!("schema_version {} is not {SCHEMA_VERSION}", document.schema_version),
        ));
    }
    Ok(document.into())
}

/// Decimals of a plan file that contradict the exact figures beside them; reading takes the exact ones, but whoever
/// reads the file otherwise would be misled.
///
/// # Errors
/// As [`read`].
pub fn disagreements(bytes: &[u8]) -> Result<Vec<String>, ReadError> {
    let plan = read(bytes)?;
    let refuse =
        |e: serde_json::Error| ReadError { format: FORMAT, line: e.line(), reason: e.to_string() };
    let found: PlanDocument = serde_json::from_slice(bytes).map_err(refuse)?;
    let exact = PlanDocument::from(&plan);
    let mut list = Vec::new();
    let mut compare = |what: String, found: f64, exact: f64| {
        // Both have six digits after the point; anything more is another figure.
        let agree = (found - exact).abs() <= 1e-6;
        if !agree {
            list.push(format!("{what} says {found}, its exact figure is {exact}"));
        }
    };
    for (channel, exact) in found.channels.iter().zip(&exact.channels) {
        compare(format!("channel {}: gbps", channel.index), channel.gbps, exact.gbps);
    }
    for (collective, reached) in &found.collectives {
        let Some(exact) = exact.collectives.get(collective) else { continue };
        if let (Some(bound), Some(exact)) = (&reached.bound, &exact.bound) {
            compare(format!("{collective}: bound algbw_gbps"), bound.algbw_gbps, exact.algbw_gbps);
        }
        let named = [("best", &reached.best, &exact.best), ("ring", &reached.ring, &exact.ring)];
        let named = named
            .into_iter()
            .filter_map(|(name, found, exact)| Some((name, found.as_ref()?, exact.as_ref()?)));
        let listed = reached
            .candidates
            .iter()
            .zip(&exact.candidates)
            .map(|(found, exact)| ("candidate", found, exact));
        for (name, found, exact) in named.chain(listed) {
            compare(format!("{collective}: {name} algbw_gbps"), found.algbw_gbps, exact.algbw_gbps);
        }
    }
    Ok(list)
}

/// Whether the bytes look like a plan: a JSON object with the key `channels`.
#[must_use]
pub fn recognise(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Shape {
        #[serde(rename = "channels")]
        _channels: serde::de::IgnoredAny,
    }
    serde_json::from_slice::<Shape>(bytes).is_ok()
}

impl From<&Plan> for PlanDocument {
    fn from(plan: &Plan) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            topology: TopologyDocument {
                fingerprint: plan.topology.fingerprint.clone(),
                source: plan.topology.source,
                rates: plan.topology.rates,
                links: plan.topology.links,
                what_if: plan.topology.what_if.clone(),
                generation: plan.topology.generation,
            },
            ranks: plan.ranks.clone(),
            planning_us: None,
            channels: plan.channels.iter().map(Into::into).collect(),
            alternatives: plan
                .alternatives
                .iter()
                .map(|set| ChannelSetDocument {
                    algorithm: set.algorithm,
                    collectives: set.collectives.clone(),
                    channels: set.channels.iter().map(Into::into).collect(),
                })
                .collect(),
            collectives: plan
                .collectives
                .iter()
                .map(|(collective, reached)| (*collective, reached.into()))
                .collect(),
            assumptions: plan.assumptions.clone(),
            findings: plan.findings.clone(),
        }
    }
}

impl From<PlanDocument> for Plan {
    fn from(document: PlanDocument) -> Self {
        Self {
            topology: TopologyRef {
                fingerprint: document.topology.fingerprint,
                source: document.topology.source,
                rates: document.topology.rates,
                links: document.topology.links,
                what_if: document.topology.what_if,
                generation: document.topology.generation,
            },
            ranks: document.ranks,
            channels: document.channels.into_iter().map(Into::into).collect(),
            alternatives: document
                .alternatives
                .into_iter()
                .map(|set| ChannelSet {
                    algorithm: set.algorithm,
                    collectives: set.collectives,
                    channels: set.channels.into_iter().map(Into::into).collect(),
                })
                .collect(),
            collectives: document
                .collectives
                .into_iter()
                .map(|(collective, reached)| (collective, reached.into()))
                .collect(),
            assumptions: document.assumptions,
            findings: document.findings,
        }
    }
}

impl From<&Channel> for ChannelDocument {
    fn from(channel: &Channel) -> Self {
        Self {
            index: channel.index,
            pattern: channel.pattern,
            collectives: channel.collectives.clone(),
            ranks: channel.ranks.clone(),
            root: channel.root,
            nics: channel.nics.clone(),
            share: channel.share,
            gbps: decimal(channel.gbps),
            exact_gbps: channel.gbps,
            edges: channel.edges.clone(),
            reduce_edges: channel.reduce_edges.clone(),
        }
    }
}

impl From<ChannelDocument> for Channel {
    fn from(document: ChannelDocument) -> Self {
        Self {
            index: document.index,
            pattern: document.pattern,
            collectives: document.collectives,
            ranks: document.ranks,
            root: document.root,
            nics: document.nics,
            share: document.share,
            gbps: document.exact_gbps,
            edges: document.edges,
            reduce_edges: document.reduce_edges,
        }
    }
}

impl From<&CollectivePlan> for CollectiveDocument {
    fn from(reached: &CollectivePlan) -> Self {
        Self {
            bound: reached.bound.as_ref().map(|bound| BoundDocument {
                algbw_gbps: decimal(bound.algbw_gbps),
                exact: bound.algbw_gbps,
                limited_by: bound.limited_by.clone(),
            }),
            best: reached.best.as_ref().map(Into::into),
            ring: reached.ring.as_ref().map(Into::into),
            candidates: reached.candidates.iter().map(Into::into).collect(),
            by_size: reached
                .by_size
                .iter()
                .map(|choice| SizeDocument {
                    max_bytes: (choice.max_bytes != u64::MAX).then_some(choice.max_bytes),
                    algorithm: choice.algorithm,
                    protocol: choice.protocol,
                    channels: choice.channels,
                    predicted_us: choice
                        .predicted_ps
                        .map(|ps| decimal(Fraction::of(ps, 1_000_000))),
                })
                .collect(),
        }
    }
}

impl From<CollectiveDocument> for CollectivePlan {
    fn from(document: CollectiveDocument) -> Self {
        Self {
            bound: document
                .bound
                .map(|bound| Bound { algbw_gbps: bound.exact, limited_by: bound.limited_by }),
            best: document.best.map(Into::into),
            ring: document.ring.map(Into::into),
            candidates: document.candidates.into_iter().map(Into::into).collect(),
            by_size: document
                .by_size
                .into_iter()
                .map(|choice| SizeChoice {
                    max_bytes: choice.max_bytes.unwrap_or(u64::MAX),
                    algorithm: choice.algorithm,
                    protocol: choice.protocol,
                    channels: choice.channels,
                    predicted_ps: choice.predicted_us.filter(|us| (0.0..1e12).contains(us)).map(
                        |us| {
                            #[expect(
                                clippy::cast_possible_truncation,
                                clippy::cast_sign_loss,
                                reason = "range checked above"
                            )]
                            let ps = (us * 1e6 + 0.5) as u64;
                            ps
                        },
                    ),
                })
                .collect(),
        }
    }
}

impl From<&Candidate> for CandidateDocument {
    fn from(candidate: &Candidate) -> Self {
        Self {
            algbw_gbps: decimal(candidate.algbw_gbps),
            exact: candidate.algbw_gbps,
            algorithm: candidate.algorithm,
            channels: candidate.channels,
            height: candidate.height,
            optimal: candidate.optimal,
            executors: candidate.executors.clone(),
            note: candidate.note.clone(),
        }
    }
}

impl From<CandidateDocument> for Candidate {
    fn from(document: CandidateDocument) -> Self {
        Self {
            algorithm: document.algorithm,
            algbw_gbps: document.exact,
            channels: document.channels,
            height: document.height,
            optimal: document.optimal,
            executors: document.executors,
            note: document.note,
        }
    }
}

/// Body of the fuzz target: any bytes are read or refused, and what was read survives a round trip.
pub fn fuzz(bytes: &[u8]) {
    let _ = recognise(bytes);
    if let Ok(plan) = read(bytes) {
        let again = read(write(&plan, None).as_bytes());
        assert!(
            again.is_ok(),
            "a written plan is read back: {}",
            again.err().map(|e| e.to_string()).unwrap_or_default()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Plan {
        let edge = |from, to| ChannelEdge {
            from: Rank(from),
            to: Rank(to),
            paths: alloc::vec![crate::plan::EdgePath {
                via: alloc::vec!["nvs0".into()],
                share: Fraction::ONE
            }],
        };
        let best = Candidate {
            algorithm: Algorithm::Ring,
            algbw_gbps: Fraction::of(480, 7),
            channels: 1,
            height: 1,
            optimal: true,
            executors: alloc::vec![Executor::Host],
            note: String::new(),
        };
        Plan {
            topology: TopologyRef {
                fingerprint: "ab".into(),
                source: Source::NcclXml,
                rates: RateModel::Effective,
                links: LinkPolicy::All,
                what_if: alloc::vec!["remove GPU0-GPU3".into()],
                generation: Generation(3),
            },
            ranks: alloc::vec![PlanRank {
                rank: Rank(0),
                host: crate::HostId(0),
                gpu: crate::GpuIndex(4),
                bus_id: "0000:01:00.0".parse().ok(),
                uuid: None
            }],
            channels: alloc::vec![Channel {
                index: 0,
                pattern: Pattern::Ring,
                collectives: alloc::vec![Collective::AllReduce],
                ranks: alloc::vec![Rank(0), Rank(1)],
                root: None,
                nics: Vec::new(),
                share: Fraction::ONE,
                gbps: Fraction::integer(20),
                edges: alloc::vec![edge(0, 1), edge(1, 0)],
                reduce_edges: Vec::new(),
            }],
            alternatives: Vec::new(),
            collectives: BTreeMap::from([(
                Collective::AllReduce,
                CollectivePlan {
                    bound: Some(Bound {
                        algbw_gbps: Fraction::of(480, 7),
                        limited_by: alloc::vec!["GPU0".into()],
                    }),
                    best: Some(best.clone()),
                    ring: Some(best.clone()),
                    candidates: alloc::vec![best],
                    by_size: alloc::vec![
                        SizeChoice {
                            max_bytes: 32768,
                            algorithm: Algorithm::Tree,
                            protocol: Protocol::Ll,
                            channels: 1,
                            predicted_ps: Some(14_200_000)
                        },
                        SizeChoice {
                            max_bytes: u64::MAX,
                            algorithm: Algorithm::Ring,
                            protocol: Protocol::Simple,
                            channels: 1,
                            predicted_ps: None
                        },
                    ],
                },
            )]),
            assumptions: alloc::vec!["x".into()],
            findings: Vec::new(),
        }
    }

    #[test]
    fn reads_what_it_writes() {
        let plan = example();
        let text = write(&plan, Some(412));
        assert_eq!(read(text.as_bytes()).unwrap(), plan);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["collectives"]["all-reduce"]["bound"]["exact"], "480/7");
        assert_eq!(json["collectives"]["all-reduce"]["best"]["algbw_gbps"], 68.571429);
        assert_eq!(json["collectives"]["all-reduce"]["by_size"][0]["predicted_us"], 14.2);
        assert_eq!(json["planning_us"], 412);
        assert_eq!(json["channels"][0]["gbps"], 20.0);
    }

    #[test]
    fn decimals_must_agree_with_the_exact_figures() {
        let text = write(&example(), None);
        assert_eq!(disagreements(text.as_bytes()).unwrap(), Vec::<String>::new());
        let changed = text.replacen("\"algbw_gbps\": 68.571429", "\"algbw_gbps\": 69.0", 1);
        let list = disagreements(changed.as_bytes()).unwrap();
        assert!(list.len() == 1 && list[0].contains("says 69"), "{list:?}");
    }

    #[test]
    fn refuses_with_the_line() {
        let error = read(b"{\n\"schema_version\": 1,\n\"channels\": 3}").unwrap_err();
        assert_eq!(error.line, 3, "{error}");
        let newer =
            write(&example(), None).replacen("\"schema_version\": 1", "\"schema_version\": 2", 1);
        assert!(read(newer.as_bytes()).unwrap_err().to_string().contains("schema_version 2"));
    }

    proptest! {
        #[test]
        fn mutated_plans_never_panic(at in 0usize..2000, byte: u8) {
            let mut bytes = write(&example(), None).into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            fuzz(&bytes);
        }

        #[test]
        fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            fuzz(&bytes);
        }
    }
}
