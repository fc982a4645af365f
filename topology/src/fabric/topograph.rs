//! NVIDIA's topograph: the JSON of its engine `graph`, and the models its simulated providers take.
//!
//! Both know switches and hosts, and domains of accelerators, which are NVLink domains; neither knows NICs. Names of fields are those of
//! its documentation: <https://docs.nvidia.com/topograph>.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::tree::Tree;
use super::{Fabric, FabricForm};
use crate::formats::ReadError;

#[derive(Deserialize)]
struct Keys {
    instances: Option<IgnoredAny>,
    lldp: Option<IgnoredAny>,
}

pub(super) fn sniff_json(text: &str) -> Result<FabricForm, ReadError> {
    let refuse = |line: usize, reason: String| ReadError { format: "JSON", line, reason };
    let keys: Keys =
        serde_json::from_str(text).map_err(|error| refuse(error.line(), format!("{error}")))?;
    match keys {
        Keys { instances: Some(_), .. } => Ok(FabricForm::TopographGraph),
        Keys { lldp: Some(_), .. } => Ok(FabricForm::Lldp),
        Keys { .. } => Err(refuse(
            0,
            "neither 'instances' (topograph's graph) nor 'lldp' (`lldpctl -f json`) in it".into(),
        )),
    }
}

#[derive(Deserialize)]
struct Graph {
    instances: Vec<Instance>,
}

#[derive(Deserialize)]
struct Instance {
    id: String,
    /// Closest first.
    #[serde(default)]
    network_layers: Vec<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// Of versions before 1.0.
    #[serde(default)]
    attributes: BTreeMap<String, serde_json::Value>,
}

pub(super) fn read(text: &str) -> Result<Fabric, ReadError> {
    let mut tree = Tree::new(FabricForm::TopographGraph);
    let graph: Graph = serde_json::from_str(text)
        .map_err(|error| tree.refuse(error.line(), format!("{error}")))?;
    let mut nowhere = 0_usize;
    for instance in graph.instances {
        let host = tree.host(0, &instance.id)?;
        match instance.network_layers.first() {
            Some(leaf) => {
                let leaf = tree.switch(0, leaf)?;
                tree.leaf_of(0, leaf, host)?;
            }
            None => nowhere += 1,
        }
        for pair in instance.network_layers.windows(2) {
            let above = tree.switch(0, &pair[1])?;
            tree.child(0, above, &pair[0])?;
        }
        let attribute = instance.attributes.get("nvlink").and_then(|value| value.as_str());
        if let Some(domain) = domain(&instance.labels).or(attribute) {
            tree.in_block(0, domain, host)?;
        }
    }
    if nowhere > 0 {
        tree.note(format!("{nowhere} instances have no network_layers"));
    }
    tree.finish(false)
}

/// The NVLink domain that labels name. Models of tests use a prefix of their own; versions before 1.0 had another label.
fn domain(labels: &BTreeMap<String, String>) -> Option<&str> {
    let of = |wanted: &dyn Fn(&str) -> bool| {
        labels.iter().find(|(key, _)| wanted(key)).map(|(_, value)| value.as_str())
    };
    of(&|key| {
        key.strip_prefix("accelerator.")
            .and_then(|rest| rest.split_once('/'))
            .is_some_and(|(_, name)| name == "domain")
    })
    .or_else(|| of(&|key| key.ends_with("/accelerator")))
    .filter(|domain| !domain.is_empty())
}

/// A model.
#[derive(Clone, Debug, Deserialize)]
pub struct Model {
    /// Switches that have switches below them, by name.
    #[serde(default)]
    pub switches: BTreeMap<String, ModelSwitch>,
    /// Hosts at leaves.
    #[serde(default)]
    pub blocks: Vec<ModelBlock>,
}

/// One switch of a model.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ModelSwitch {
    /// Switches below it, host lists.
    #[serde(default)]
    pub switches: Vec<String>,
}

/// Hosts at one leaf.
#[derive(Clone, Debug, Deserialize)]
pub struct ModelBlock {
    /// The leaf.
    #[serde(default)]
    pub switch: Option<String>,
    /// The hosts, host lists.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Labels, among them the domain.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Annotations, among them the domain.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// The domain, in older models.
    #[serde(default)]
    pub nvlink: Option<String>,
}

/// The fabric of a model.
///
/// # Errors
/// Where the model contradicts itself.
pub fn from_model(model: &Model) -> Result<Fabric, ReadError> {
    let mut tree = Tree::new(FabricForm::ModelYaml);
    for (name, switch) in &model.switches {
        let at = tree.describe(0, name)?;
        for children in &switch.switches {
            for child in tree.expand(0, children)? {
                tree.child(0, at, &child)?;
            }
        }
    }
    for block in &model.blocks {
        let leaf = match &block.switch {
            Some(name) => Some(tree.switch(0, name)?),
            None => None,
        };
        let domain = domain(&block.annotations)
            .or_else(|| domain(&block.labels))
            .or(block.nvlink.as_deref());
        for nodes in &block.nodes {
            for node in tree.expand(0, nodes)? {
                let host = tree.host(0, &node)?;
                if let Some(leaf) = leaf {
                    tree.leaf_of(0, leaf, host)?;
                }
                if let Some(domain) = domain {
                    tree.in_block(0, domain, host)?;
                }
            }
        }
    }
    if model.blocks.is_empty() {
        return Err(
            tree.refuse(0, format!("{} switches and no blocks with hosts", model.switches.len()))
        );
    }
    tree.finish(false)
}
