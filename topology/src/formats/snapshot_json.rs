//! The snapshot's own JSON form, and what other JSON inputs are told apart by.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::ReadError;
use crate::snapshot::{LinkGraph, SCHEMA_VERSION, Snapshot};
use crate::{BusId, GpuIndex};

const FORMAT: &str = "topod snapshot JSON";

/// What a JSON input is.
pub(super) enum Kind {
    Snapshot,
    LinkGraph,
    /// `amd-smi topology --json`.
    AmdSmi,
    /// The keys it has, for a message.
    Other(&'static str),
}

/// The keys that tell the formats apart. Parsed with everything else ignored, so that a hostile input costs no memory.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Keys {
    schema_version: Option<u64>,
    source: Option<IgnoredAny>,
    faults: Option<IgnoredAny>,
    links: Option<IgnoredAny>,
    switches: Option<IgnoredAny>,
    channels: Option<IgnoredAny>,
    paths: Option<IgnoredAny>,
    instances: Option<IgnoredAny>,
    lldp: Option<IgnoredAny>,
    lscpu: Option<IgnoredAny>,
    /// `amd-smi topology --json`.
    bdf: Option<IgnoredAny>,
    link_type: Option<IgnoredAny>,
    /// `amd-smi static --json`.
    asic: Option<IgnoredAny>,
    #[serde(rename = "apiVersion")]
    api_version: Option<IgnoredAny>,
}

/// The keys of an object, or of the first of a list.
struct FirstKeys {
    keys: Keys,
    is_list: bool,
}

impl<'de> Deserialize<'de> for FirstKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct First;
        impl<'de> Visitor<'de> for First {
            type Value = FirstKeys;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or a list of objects")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FirstKeys, A::Error> {
                let keys = Keys::deserialize(MapAccessDeserializer::new(map))?;
                Ok(FirstKeys { keys, is_list: false })
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FirstKeys, A::Error> {
                let keys = list.next_element()?.unwrap_or_default();
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(FirstKeys { keys, is_list: true })
            }
        }
        deserializer.deserialize_any(First)
    }
}

pub(super) fn sniff(text: &str) -> Result<Kind, ReadError> {
    let FirstKeys { keys, is_list } =
        serde_json::from_str(text).map_err(|error| refuse_json("JSON", &error))?;
    Ok(if keys.source.is_some() && keys.channels.is_none() && keys.paths.is_none() {
        newer(keys.schema_version)?;
        Kind::Snapshot
    } else if keys.bdf.is_some() && (keys.links.is_some() || keys.link_type.is_some()) {
        Kind::AmdSmi
    } else if !is_list && (keys.links.is_some() || keys.switches.is_some()) && keys.faults.is_none()
    {
        Kind::LinkGraph
    } else if keys.channels.is_some() {
        Kind::Other("channels: a plan, no topology")
    } else if keys.paths.is_some() {
        Kind::Other("paths: output for people and scripts, which lacks facts a snapshot has")
    } else if keys.instances.is_some() {
        Kind::Other(
            "instances: a topograph graph, the network between hosts, with no host's inside; `topoctl fabric` reads it",
        )
    } else if keys.lldp.is_some() {
        Kind::Other(
            "lldp: lldpctl output, which names the switches of a host's interfaces and holds no GPU; `topoctl fabric` reads it",
        )
    } else if keys.lscpu.is_some() {
        Kind::Other("lscpu: it describes processors and holds no GPU")
    } else if keys.bdf.is_some() {
        Kind::Other("bdf: perhaps of amd-smi; `amd-smi topology` is read, as text and with --json")
    } else if keys.asic.is_some() {
        Kind::Other(
            "asic: perhaps `amd-smi static`, which lists GPUs without what joins them; `amd-smi topology --json` is read",
        )
    } else if keys.api_version.is_some() {
        Kind::Other("apiVersion: a Kubernetes object, no machine")
    } else {
        Kind::Other("none of the keys that known formats have")
    })
}

fn newer(version: Option<u64>) -> Result<(), ReadError> {
    let reason = match version {
        Some(version) if version > u64::from(SCHEMA_VERSION) => format!(
            "schema version {version} is newer than {SCHEMA_VERSION}, the newest that is read here"
        ),
        None | Some(0) => "the snapshot states no schema_version".into(),
        Some(_) => return Ok(()),
    };
    Err(ReadError { format: FORMAT, line: 0, reason })
}

pub(super) fn read(text: &str) -> Result<Vec<Snapshot>, ReadError> {
    let is_list = text.trim_start().starts_with('[');
    let hosts: Vec<Snapshot> = if is_list {
        serde_json::from_str(text)
    } else {
        serde_json::from_str(text).map(|host| alloc::vec![host])
    }
    .map_err(|error| refuse_json(FORMAT, &error))?;
    for (host, snapshot) in hosts.iter().enumerate() {
        newer(Some(u64::from(snapshot.schema_version)))?;
        validate(snapshot).map_err(|reason| {
            let reason = if hosts.len() > 1 { format!("host {host}: {reason}") } else { reason };
            ReadError { format: FORMAT, line: 0, reason }
        })?;
    }
    Ok(hosts)
}

/// A snapshot as JSON for people and files: indented, a newline at the end, equal for equal snapshots.
#[must_use]
pub fn write_snapshot(snapshot: &Snapshot) -> String {
    let mut text = serde_json::to_string_pretty(snapshot)
        .expect("a snapshot has string or integer keys only and its serialisers never fail");
    text.push('\n');
    text
}

pub(super) fn refuse_json(format: &'static str, error: &serde_json::Error) -> ReadError {
    let text = format!("{error}");
    // The library appends the place, which has a field of its own here.
    let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason).into();
    ReadError { format, line: error.line(), reason }
}

/// What no reader of ours writes and every later stage may rely on not to see.
pub(super) fn validate(snapshot: &Snapshot) -> Result<(), String> {
    let mut parents: BTreeMap<BusId, Option<BusId>> = BTreeMap::new();
    for device in &snapshot.pci_devices {
        if parents.insert(device.bus_id, device.parent).is_some() {
            return Err(format!("PCI function {} is listed twice", device.bus_id));
        }
    }
    for (bus_id, parent) in &parents {
        if let Some(parent) = parent
            && !parents.contains_key(parent)
        {
            return Err(format!("PCI function {bus_id} is below {parent}, which is not listed"));
        }
    }
    no_loop(&parents)?;
    let mut indices: BTreeSet<GpuIndex> = BTreeSet::new();
    for gpu in &snapshot.gpus {
        if !indices.insert(gpu.index) {
            return Err(format!("two GPUs have index {}", gpu.index));
        }
    }
    if let Some(matrix) = &snapshot.matrix {
        let size = matrix.devices.len();
        if matrix.cells.len() != size || matrix.cells.iter().any(|row| row.len() != size) {
            return Err(format!("the matrix of {size} devices is not square"));
        }
    }
    snapshot.link_graph.as_ref().map_or(Ok(()), validate_link_graph)
}

/// Walks up from every function, each edge once.
fn no_loop(parents: &BTreeMap<BusId, Option<BusId>>) -> Result<(), String> {
    let mut rooted: BTreeSet<BusId> = BTreeSet::new();
    for start in parents.keys() {
        let mut way: BTreeSet<BusId> = BTreeSet::new();
        let mut at = Some(*start);
        while let Some(function) = at.filter(|function| !rooted.contains(function)) {
            if !way.insert(function) {
                return Err(format!("PCI function {function} is below itself"));
            }
            at = parents.get(&function).copied().flatten();
        }
        rooted.append(&mut way);
    }
    Ok(())
}

pub(super) fn validate_link_graph(graph: &LinkGraph) -> Result<(), String> {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for name in graph.gpus.iter().chain(&graph.switches) {
        if !names.insert(name) {
            return Err(format!("two nodes are called '{}'", super::text::excerpt(name)));
        }
    }
    for (place, (from, to, _)) in graph.links.iter().enumerate() {
        link_ends(&names, from, to).map_err(|reason| format!("links[{place}]: {reason}"))?;
    }
    Ok(())
}

pub(super) fn link_ends(names: &BTreeSet<&str>, from: &str, to: &str) -> Result<(), String> {
    for end in [from, to] {
        if !names.contains(end) {
            return Err(format!("'{}' is no GPU and no switch", super::text::excerpt(end)));
        }
    }
    if from == to {
        return Err(format!("'{}' is linked to itself", super::text::excerpt(from)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::read as read_any;
    use crate::snapshot::{PciDevice, PciKind, Source};
    use alloc::string::ToString;

    #[track_caller]
    fn check_refused(text: &str, words: &str) {
        let error = read_any(text.as_bytes()).expect_err("must be refused");
        assert!(error.to_string().contains(words), "{error}");
    }

    fn pci(bus: u8, parent: Option<u8>) -> PciDevice {
        let id = |bus| BusId::new(0, bus, 0, 0).unwrap();
        PciDevice { parent: parent.map(id), ..PciDevice::new(id(bus), PciKind::Switch) }
    }

    #[test]
    fn round_trip_is_exact_and_stable() {
        let mut snapshot = Snapshot::new(Source::Live);
        snapshot.pci_devices = alloc::vec![pci(1, None), pci(2, Some(1))];
        let text = write_snapshot(&snapshot);
        let read = read_any(text.as_bytes()).unwrap();
        assert_eq!(read, [snapshot]);
        assert_eq!(write_snapshot(&read[0]), text);
        let list = format!("[{text},{text}]");
        assert_eq!(read_any(list.as_bytes()).unwrap().len(), 2);
    }

    #[test]
    fn newer_schema_is_refused_by_name() {
        let text = r#"{"schema_version": 7, "source": "live", "invented_later": true}"#;
        check_refused(text, "schema version 7 is newer than 1");
        check_refused(r#"{"source": "live"}"#, "no schema_version");
    }

    #[test]
    fn contradictions_are_refused() {
        let mut snapshot = Snapshot::new(Source::Live);
        snapshot.pci_devices = alloc::vec![pci(1, Some(2)), pci(2, Some(1))];
        check_refused(&write_snapshot(&snapshot), "below itself");
        snapshot.pci_devices = alloc::vec![pci(1, Some(9))];
        check_refused(&write_snapshot(&snapshot), "not listed");
        snapshot.pci_devices = alloc::vec![pci(1, None), pci(1, None)];
        check_refused(&write_snapshot(&snapshot), "twice");
    }

    #[test]
    fn other_json_is_refused_with_a_hint() {
        check_refused("{\n\"source\": \"live\",\n", "line 3");
        check_refused(r#"{"channels": []}"#, "a plan");
        check_refused(r#"{"a": 1}"#, "known are topod snapshot JSON");
        check_refused(r#"{"lldp": {"interface": []}}"#, "holds no GPU");
        check_refused(r#"{"instances": [{"id": "n1"}]}"#, "the network between hosts");
        check_refused(r#"[{"gpu": 0, "bdf": "0000:01:00.0", "links": []}]"#, "amd-smi topology");
        check_refused(r#"{"apiVersion": "v1", "kind": "Node"}"#, "a Kubernetes object");
        check_refused("[]", "none of the keys");
        check_refused(r#"{"schema_version": 1, "source": "live", "gpu": []}"#, "unknown field");
        check_refused(&"[".repeat(10_000), "unrecognised");
        check_refused(&"{\"source\":".repeat(10_000), "EOF");
    }
}
