//! The link graph: any fabric in its barest form.
//!
//! ```json
//! {"schema_version": 1, "name": "pair", "gpus": ["0", "1"], "switches": ["s0"],
//!  "links": [["0", "s0", 25.0], ["s0", "1", 25.0]]}
//! ```
//!
//! Links are directed, rates in GB/s (1e9 bytes per second), switches forward only, and a GPU's rank is its
//! place in `gpus`. The reader is strict: programs write this, and a slip would plan for another fabric.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::ReadError;
use super::snapshot_json::{link_ends, refuse_json};
use super::text::{Lines, excerpt, fault};
use crate::snapshot::{LinkGraph, Source};
use crate::{Bandwidth, Snapshot};

const FORMAT: &str = "link graph JSON";
const SCHEMA: u32 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema_version: u64,
    #[serde(default)]
    name: String,
    gpus: Vec<Name>,
    #[serde(default)]
    switches: Vec<Name>,
    links: Vec<(Name, Name, Rate)>,
}

pub(super) fn read(text: &str) -> Result<Snapshot, ReadError> {
    let file: File = serde_json::from_str(text).map_err(|error| refuse_json(FORMAT, &error))?;
    let refuse = |line, reason| ReadError { format: FORMAT, line, reason };
    if file.schema_version != u64::from(SCHEMA) {
        let reason = format!(
            "schema version {} is not known; {SCHEMA} is the only one",
            file.schema_version
        );
        return Err(refuse(0, reason));
    }
    if file.gpus.is_empty() {
        return Err(refuse(0, "the graph has no GPU".into()));
    }
    let mut names = BTreeSet::new();
    for (key, list) in [("gpus", &file.gpus), ("switches", &file.switches)] {
        for (place, name) in list.iter().enumerate() {
            if !names.insert(name.0.as_str()) {
                let reason = format!("{key}[{place}]: '{}' is named twice", excerpt(&name.0));
                return Err(refuse(line_of(text, key, place), reason));
            }
        }
    }
    let mut snapshot = Snapshot::new(Source::LinkGraph);
    let mut links = Vec::with_capacity(file.links.len());
    let mut idle = Vec::new();
    for (place, (from, to, rate)) in file.links.iter().enumerate() {
        let at = |reason: String| {
            refuse(line_of(text, "links", place), format!("links[{place}]: {reason}"))
        };
        link_ends(&names, &from.0, &to.0).map_err(at)?;
        if rate.0.is_zero() {
            idle.push(place);
            continue;
        }
        links.push((from.0.clone(), to.0.clone(), rate.0));
    }
    if let Some(first) = idle.first() {
        let (line, count) = (line_of(text, "links", *first), idle.len());
        let error =
            format!("links without capacity are left out: {count}, the first links[{first}]");
        snapshot.faults.push(fault("link-graph", line, error));
    }
    let own = |names: Vec<Name>| names.into_iter().map(|name| name.0).collect();
    snapshot.link_graph = Some(LinkGraph {
        name: file.name.clone(),
        links,
        gpus: own(file.gpus),
        switches: own(file.switches),
    });
    Ok(snapshot)
}

/// A link graph in the form read here.
#[must_use]
pub fn write_link_graph(graph: &LinkGraph) -> String {
    #[derive(Serialize)]
    struct Out<'a> {
        schema_version: u32,
        name: &'a str,
        gpus: &'a [String],
        switches: &'a [String],
        links: Vec<(&'a str, &'a str, f64)>,
    }
    let links = graph.links.iter().map(|(a, b, rate)| (a.as_str(), b.as_str(), rate.gbps()));
    let out = Out {
        schema_version: SCHEMA,
        name: &graph.name,
        gpus: &graph.gpus,
        switches: &graph.switches,
        links: links.collect(),
    };
    let mut text = serde_json::to_string(&out)
        .expect("strings and finite numbers under string keys always serialise");
    text.push('\n');
    text
}

/// A node's name; a number stands for its digits.
struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl Visitor<'_> for Names {
            type Value = Name;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a node's name (a string or a whole number)")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Name, E> {
                if text.is_empty() {
                    return Err(E::custom("a node without a name"));
                }
                Ok(Name(text.into()))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Name, E> {
                Ok(Name(number.to_string()))
            }
        }
        deserializer.deserialize_any(Names)
    }
}

/// A rate in GB/s.
struct Rate(Bandwidth);

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let gbps = f64::deserialize(deserializer)?;
        // The conversion rounds down a hair; a negative rate must not pass as zero.
        let rate = if gbps < 0.0 { None } else { Bandwidth::from_gbps(gbps) };
        rate.map(Self).ok_or_else(|| de::Error::custom(format!("{gbps} is no rate in GB/s")))
    }
}

/// Line of an element of a top-level list. The parser keeps no positions; a second, plain look at the text
/// finds the one that a message needs. 0 if it is not found.
fn line_of(text: &str, key: &str, place: usize) -> usize {
    let mut depth = 0usize;
    let mut in_list = false;
    let mut count = 0;
    let mut last_string = "";
    let mut fresh = true;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        if in_list && depth == 2 && fresh && !byte.is_ascii_whitespace() && byte != b']' {
            if count == place {
                return Lines::of(text).at(at);
            }
            count += 1;
            fresh = false;
        }
        match byte {
            b'"' => {
                let start = at + 1;
                let mut end = start;
                while let Some((inner, byte)) = bytes.next() {
                    end = inner;
                    match byte {
                        b'\\' => drop(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
                if depth == 1 {
                    last_string = text.get(start..end).unwrap_or_default();
                }
            }
            b'[' | b'{' => {
                depth += 1;
                if depth == 2 && byte == b'[' {
                    in_list = last_string == key;
                    fresh = true;
                }
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                in_list &= depth > 1;
            }
            b',' if depth == 2 => fresh = true,
            _ => {}
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::read as read_any;
    use proptest::prelude::*;

    #[track_caller]
    fn check_refused(text: &str, line: usize, words: &str) {
        let error = read_any(text.as_bytes()).expect_err("must be refused");
        assert!(
            error.format.ends_with("JSON") && error.reason.contains(words) && error.line == line,
            "{error}"
        );
    }

    #[test]
    fn names_may_be_numbers() {
        let text = r#"{"schema_version":1,"name":"x","gpus":[0,"1"],"switches":[],"links":[[0,"1",25],["1",0,0.5]]}"#;
        let graph = read_any(text.as_bytes()).unwrap().remove(0).link_graph.unwrap();
        assert_eq!(graph.gpus, ["0", "1"]);
        assert_eq!(graph.links[1], ("1".into(), "0".into(), Bandwidth::from_mbps(500)));
    }

    #[test]
    fn refused_with_the_place() {
        let with = |gpus: &str, links: &str| {
            format!(
                "{{\"schema_version\": 1,\n\"gpus\": {gpus},\n\"switches\": [\"s\"],\n\"links\": [{links}]}}"
            )
        };
        let good = "[\"0\",\"s\",1]";
        check_refused(&with("[0,\n0]", ""), 3, "gpus[1]: '0' is named twice");
        check_refused(&with("[0,\"s\"]", ""), 3, "switches[0]: 's' is named twice");
        check_refused(
            &with("[0]", &format!("{good},\n[\"0\",\"9\",1]")),
            5,
            "links[1]: '9' is no GPU",
        );
        check_refused(&with("[0]", &format!("{good},\n[0,0,1]")), 5, "linked to itself");
        check_refused(&with("[0]", &format!("{good},\n[0,\"s\",-1]")), 5, "-1 is no rate");
        check_refused(&with("[0]", &format!("{good},\n[0,\"s\",NaN]")), 5, "expected");
        check_refused(&with("[0]", "[0,\"s\",1e999]"), 4, "out of range");
        check_refused(&with("[0]", "[0,\"s\"]"), 4, "invalid length 2");
        check_refused(&with("[0.5]", ""), 2, "a node's name");
        check_refused(&with("[\"\"]", ""), 2, "without a name");
        check_refused(&with("[]", ""), 0, "no GPU");
        check_refused(&with("[0]", "").replace("1,", "3,"), 0, "schema version 3");
        check_refused(&with("[0]", "").replace("switches", "swiches"), 3, "unknown field");
    }

    #[test]
    fn a_link_without_capacity_is_a_fault() {
        let text = r#"{"schema_version":1,"gpus":[0,1],"links":[[0,1,0],[1,0,2]]}"#;
        let snapshot = read_any(text.as_bytes()).unwrap().remove(0);
        assert_eq!(snapshot.link_graph.unwrap().links.len(), 1);
        assert_eq!(snapshot.faults.len(), 1);
    }

    fn graphs() -> impl Strategy<Value = LinkGraph> {
        (1usize..6, 0usize..4).prop_flat_map(|(gpus, switches)| {
            let names: Vec<String> = (0..gpus)
                .map(|g| g.to_string())
                .chain((0..switches).map(|s| format!("s{s}")))
                .collect();
            let n = names.len();
            proptest::collection::vec((0..n, 0..n, 1u64..2_000_000_000_000), 0..20).prop_map(
                move |links| LinkGraph {
                    name: "any \"name\"\n".into(),
                    gpus: names[..gpus].to_vec(),
                    switches: names[gpus..].to_vec(),
                    links: links
                        .into_iter()
                        .filter(|(a, b, _)| a != b)
                        .map(|(a, b, r)| {
                            (names[a].clone(), names[b].clone(), Bandwidth::from_kbps(r))
                        })
                        .collect(),
                },
            )
        })
    }

    proptest! {
        #[test]
        fn round_trip(graph in graphs()) {
            let read = read_any(write_link_graph(&graph).as_bytes()).unwrap();
            prop_assert_eq!(read[0].link_graph.as_ref(), Some(&graph));
            let snapshot = crate::formats::write_snapshot(&read[0]);
            prop_assert_eq!(read_any(snapshot.as_bytes()).unwrap(), read);
        }
    }
}
