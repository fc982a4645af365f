//! `topoctl fabric`: the network between hosts, and the order of hosts that suits it.

mod document;
mod order;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use topology::fabric::slurm::SlurmTopology;
use topology::fabric::topograph::Model;
use topology::fabric::{self, Fabric, FabricForm, host_list, slurm, topograph};
use topology::formats::ReadError;

use crate::args::{FabricArgs, TextFormat};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::source;

pub(crate) fn run(args: &FabricArgs) -> Result<Exit, Failure> {
    let fabric = read_all(args)?;
    if args.order {
        return order::run(args, &fabric);
    }
    let document = document::Document::of(&fabric);
    match args.output {
        TextFormat::Json => output::print_json(&document)?,
        TextFormat::Table => output::print(&document.table())?,
    }
    Ok(match Exit::of(document.findings.iter().map(|finding| finding.severity)) {
        Exit::Ok if !document.unplaced.is_empty() => Exit::Unknown,
        exit => exit,
    })
}

/// One fabric; several files are one host's each, called by the file.
fn read_all(args: &FabricArgs) -> Result<Fabric, Failure> {
    let mut all: Option<Fabric> = None;
    for path in &args.files {
        let mut fabric = read(path, args.topology.as_deref())?;
        if fabric.form == FabricForm::Lldp
            && let (Some(stem), [host]) = (path.file_stem(), &mut fabric.hosts[..])
            && path != Path::new("-")
        {
            host.name = stem.to_string_lossy().into_owned();
        }
        all = Some(match all {
            None => fabric,
            Some(before) if before.form == FabricForm::Lldp && fabric.form == FabricForm::Lldp => {
                before.join(fabric)
            }
            Some(_) => {
                return Err(Failure::usage(format!(
                    "{}: several files are of `lldpctl -f json`, one host each; other forms hold the whole network",
                    path.display()
                )));
            }
        });
    }
    all.ok_or_else(|| Failure::usage("no file"))
}

/// The fabric that a path, or stdin for `-`, holds.
pub(crate) fn read(path: &Path, topology: Option<&str>) -> Result<Fabric, Failure> {
    let bytes = source::read_bytes(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let read = fabric::sniff(&text).and_then(|form| {
        if topology.is_some() && form != FabricForm::SlurmYaml {
            return Err(ReadError {
                format: form.name(),
                line: 0,
                reason: "--topology names one of several in a topology.yaml".into(),
            });
        }
        match form {
            FabricForm::SlurmYaml => {
                slurm::from_yaml(&yaml::<Vec<SlurmTopology>>(form, &text)?, topology)
            }
            FabricForm::ModelYaml => topograph::from_model(&yaml::<Model>(form, &text)?),
            form => fabric::read(form, &text),
        }
    });
    read.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// Most bytes of YAML. A parser of it holds the whole in memory several times over, and no network takes as much.
const YAML_LIMIT: usize = 8 << 20;

/// Deepest nesting of YAML, of which these forms have five levels. The time that libyaml takes grows with the square of it.
const YAML_DEPTH: usize = 64;

/// The line from which YAML is nested too deep, by its brackets and by dashes on one line. Brackets in host lists close again.
fn too_deep(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut deep = |line: &str| {
        if line.trim_start().starts_with('#') {
            return false;
        }
        let words = line.split_whitespace();
        let dashes = words.take_while(|word| ["-", "?"].contains(word)).count();
        let mut most = depth;
        for b in line.bytes() {
            match b {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            most = most.max(depth);
        }
        most.max(dashes) > YAML_DEPTH
    };
    (1..).zip(text.lines()).find(|(_, line)| deep(line)).map(|(number, _)| number)
}

fn yaml<T: serde::de::DeserializeOwned>(form: FabricForm, text: &str) -> Result<T, ReadError> {
    let refuse = |line: usize, reason: String| ReadError { format: form.name(), line, reason };
    if text.len() > YAML_LIMIT {
        let reason = format!("{} bytes of YAML; at most {YAML_LIMIT} are read", text.len());
        return Err(refuse(0, reason));
    }
    if let Some(line) = too_deep(text) {
        return Err(refuse(line, format!("nested deeper than {YAML_DEPTH} levels")));
    }
    serde_yaml_ng::from_str(text).map_err(|error| ReadError {
        format: form.name(),
        line: error.location().map_or(0, |place| place.line()),
        reason: error.to_string(),
    })
}

/// Places in the fabric of the hosts that an option lists, in that order.
pub(crate) fn places(fabric: &Fabric, option: &str, list: &str) -> Result<Vec<usize>, Failure> {
    let known: BTreeMap<&str, usize> =
        fabric.hosts.iter().enumerate().map(|(at, host)| (host.name.as_str(), at)).collect();
    let refuse = |reason: String| Failure::usage(format!("{option}: {reason}"));
    let names = host_list::expand(list).map_err(refuse)?;
    let missing: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| !known.contains_key(name)).collect();
    if !missing.is_empty() {
        let some = missing.iter().take(8).copied().collect::<Vec<_>>().join(", ");
        let (missing, all) = (missing.len(), names.len());
        return Err(refuse(format!("{missing} of {all} are not in the file: {some}")));
    }
    let mut once = BTreeSet::new();
    if let Some(twice) = names.iter().find(|name| !once.insert(name.as_str())) {
        return Err(refuse(format!("'{twice}' is named twice")));
    }
    Ok(names.iter().map(|name| known[name.as_str()]).collect())
}

/// Hosts that a switch or a block places.
fn placed(fabric: &Fabric) -> BTreeSet<usize> {
    let at_switch = fabric
        .hosts
        .iter()
        .enumerate()
        .filter(|(_, host)| host.nics.iter().any(|nic| nic.leaf.is_some()));
    let in_block = fabric.blocks.iter().flat_map(|block| block.hosts.iter().copied());
    at_switch.map(|(at, _)| at).chain(in_block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_of_yaml() {
        for (text, line) in [
            (String::new(), None),
            ("a:\n- \"n[1-3]\"\n".repeat(1000), None),
            (format!("a:\n  b: {}\n", "[".repeat(65)), Some(2)),
            ("[\n".repeat(65), Some(65)),
            (format!("a:\n{}x\n", "- ".repeat(65)), Some(2)),
            ("[".repeat(64), None),
            ("# [\n".repeat(1000), None),
        ] {
            assert_eq!(too_deep(&text), line, "{}", &text[..text.len().min(40)]);
        }
    }
}
