//! Slurm's topology.conf and topology.yaml: trees of switches, blocks, rings.
//!
//! Parameters and what they mean are those of the manual pages topology.conf(5) and topology.yaml(5).

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::Deserialize;

use super::tree::Tree;
use super::{Fabric, FabricForm};
use crate::formats::{ReadError, excerpt};

/// Name and value of `Name=value` words of a line without its comment.
fn settings(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let line = line.split_once('#').map_or(line, |(before, _)| before);
    line.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .map(|(name, value)| (name, value.trim_matches('"')))
}

pub(super) fn is_line(line: &str) -> bool {
    let first = settings(line).next().map(|(name, _)| name);
    let known = ["SwitchName", "BlockName", "RingName", "BlockSizes"];
    first.is_some_and(|name| known.iter().any(|known| name.eq_ignore_ascii_case(known)))
}

pub(super) fn read(text: &str) -> Result<Fabric, ReadError> {
    let mut tree = Tree::new(FabricForm::SlurmConf);
    let mut unknown = Vec::new();
    let mut joined = String::new();
    let mut start = 0;
    for (number, line) in (1..).zip(text.lines()) {
        // A backslash at the end joins lines.
        if joined.is_empty() {
            start = number;
        }
        if let Some(part) = line.strip_suffix('\\') {
            joined.push_str(part);
            joined.push(' ');
            continue;
        }
        joined.push_str(line);
        entry(&mut tree, start, &joined, &mut unknown)?;
        joined.clear();
    }
    if !joined.is_empty() {
        entry(&mut tree, start, &joined, &mut unknown)?;
    }
    if !unknown.is_empty() {
        tree.note(format!("passed over: {}", crate::words::some_of(&unknown)));
    }
    tree.finish(true)
}

fn entry(
    tree: &mut Tree,
    line: usize,
    text: &str,
    unknown: &mut Vec<String>,
) -> Result<(), ReadError> {
    let mut subject = None;
    let (mut switches, mut nodes, mut sizes) = (None, None, None);
    for (name, value) in settings(text) {
        let slot = match name.to_ascii_lowercase().as_str() {
            kind @ ("switchname" | "blockname" | "ringname") => {
                let kind = match kind {
                    "switchname" => Kind::Switch,
                    "blockname" => Kind::Block,
                    _ => Kind::Ring,
                };
                if subject.replace((kind, value)).is_some() {
                    return Err(tree.refuse(line, "two names on one line".into()));
                }
                continue;
            }
            "switches" => &mut switches,
            "nodes" => &mut nodes,
            "blocksizes" => &mut sizes,
            // Units are arbitrary, and Slurm itself does not use it.
            "linkspeed" => continue,
            _ => {
                unknown.push(format!("{} (line {line})", excerpt(name)));
                continue;
            }
        };
        if slot.replace(value).is_some() {
            return Err(tree.refuse(line, format!("{name} twice on one line")));
        }
    }
    if let Some(sizes) = sizes {
        let sizes: Option<Vec<u32>> =
            sizes.split(',').map(|size| size.trim().parse().ok()).collect();
        let sizes = sizes.filter(|sizes| sizes.iter().all(|size| *size > 0));
        let sizes = sizes.ok_or_else(|| tree.refuse(line, "BlockSizes are no numbers".into()))?;
        tree.sizes(sizes);
    }
    let names = |tree: &mut Tree, list: Option<&str>| match list {
        Some(list) => tree.expand(line, list),
        None => Ok(Vec::new()),
    };
    let (switches, nodes) = (names(tree, switches)?, names(tree, nodes)?);
    match subject {
        Some((Kind::Switch, name)) => {
            let at = tree.describe(line, name)?;
            for child in switches {
                tree.child(line, at, &child)?;
            }
            for node in nodes {
                let host = tree.host(line, &node)?;
                tree.leaf_of(line, at, host)?;
            }
        }
        Some((Kind::Block | Kind::Ring, name)) => {
            for node in nodes {
                let host = tree.host(line, &node)?;
                tree.in_block(line, name, host)?;
            }
        }
        None if switches.is_empty() && nodes.is_empty() => {}
        None => return Err(tree.refuse(line, "nodes or switches of nothing".into())),
    }
    Ok(())
}

enum Kind {
    Switch,
    Block,
    /// A ring is ordered; its order is that of the names, as Slurm's is that of the list.
    Ring,
}

/// One topology of a topology.yaml, which is a list of them.
#[derive(Clone, Debug, Deserialize)]
pub struct SlurmTopology {
    /// Its name.
    pub topology: String,
    /// Whether it is that of partitions which name none.
    #[serde(default)]
    pub cluster_default: bool,
    /// A tree of switches.
    #[serde(default)]
    pub tree: Option<SlurmTree>,
    /// Blocks. Of other kinds (`flat`, rings) nothing is read.
    #[serde(default)]
    pub block: Option<SlurmBlocks>,
}

/// `tree:`
#[derive(Clone, Debug, Deserialize)]
pub struct SlurmTree {
    /// The switches.
    pub switches: Vec<SlurmSwitch>,
}

/// One switch of `switches:`.
#[derive(Clone, Debug, Deserialize)]
pub struct SlurmSwitch {
    /// Name.
    pub switch: String,
    /// Switches below it, a host list.
    #[serde(default)]
    pub children: Option<String>,
    /// Hosts at it, a host list.
    #[serde(default)]
    pub nodes: Option<String>,
}

/// `block:`
#[derive(Clone, Debug, Deserialize)]
pub struct SlurmBlocks {
    /// Hosts in a block, then in blocks taken together.
    #[serde(default)]
    pub block_sizes: Vec<u32>,
    /// The blocks.
    pub blocks: Vec<SlurmBlock>,
}

/// One block of `blocks:`.
#[derive(Clone, Debug, Deserialize)]
pub struct SlurmBlock {
    /// Name.
    pub block: String,
    /// Hosts in it, a host list.
    #[serde(default)]
    pub nodes: Option<String>,
}

/// The fabric of a topology.yaml: of several topologies the one asked for, else the cluster's default, else the first that is not flat.
///
/// # Errors
/// Where there is no such topology, or it contradicts itself.
pub fn from_yaml(topologies: &[SlurmTopology], wanted: Option<&str>) -> Result<Fabric, ReadError> {
    let mut tree = Tree::new(FabricForm::SlurmYaml);
    let usable = |topology: &&SlurmTopology| topology.tree.is_some() || topology.block.is_some();
    let names: Vec<String> = topologies.iter().map(|t| excerpt(&t.topology)).collect();
    let chosen = match wanted {
        Some(wanted) => topologies.iter().find(|topology| topology.topology == wanted),
        None => {
            let default = topologies.iter().find(|topology| topology.cluster_default);
            default.filter(usable).or_else(|| topologies.iter().find(usable))
        }
    };
    let chosen = chosen.filter(usable).ok_or_else(|| {
        let all = crate::words::some_of(&names);
        let reason = match wanted.map(excerpt) {
            None => format!("of the topologies in it ({all}) none is a tree or has blocks"),
            Some(wanted) if names.contains(&wanted) => {
                format!("topology '{wanted}' is no tree and has no blocks")
            }
            Some(wanted) => format!("there is no topology '{wanted}' in it; there are {all}"),
        };
        tree.refuse(0, reason)
    })?;
    if topologies.len() > 1 {
        let others = names.iter().filter(|name| **name != chosen.topology).cloned();
        let others = crate::words::some_of(&others.collect::<Vec<_>>());
        tree.note(format!(
            "topology '{}' is read; there are also {others}",
            excerpt(&chosen.topology)
        ));
    }
    let list = |tree: &mut Tree, text: &Option<String>| match text {
        Some(text) => tree.expand(0, text),
        None => Ok(Vec::new()),
    };
    for switch in chosen.tree.iter().flat_map(|tree| &tree.switches) {
        let at = tree.describe(0, &switch.switch)?;
        for child in list(&mut tree, &switch.children)? {
            tree.child(0, at, &child)?;
        }
        for node in list(&mut tree, &switch.nodes)? {
            let host = tree.host(0, &node)?;
            tree.leaf_of(0, at, host)?;
        }
    }
    if let Some(blocks) = &chosen.block {
        for block in &blocks.blocks {
            for node in list(&mut tree, &block.nodes)? {
                let host = tree.host(0, &node)?;
                tree.in_block(0, &block.block, host)?;
            }
        }
        if blocks.block_sizes.contains(&0) {
            return Err(tree.refuse(0, "a block size of 0".into()));
        }
        tree.sizes(blocks.block_sizes.clone());
    }
    tree.finish(true)
}
