//! `lldpctl -f json` of one host: which switch each of its interfaces hears.
//!
//! ```text
//!   { "lldp": { "interface": [ { "eth0": { "via": "LLDP", "chassis": { "leaf-1": { "id": … } }, "port": { "id": …, "descr": … } } } ] } }
//! ```
//!
//! With one interface, or one neighbour, the list is an object; a chassis without a name stands without it; in the form `json0`
//! everything is a list and names are values. The file does not name the host: it is called `host` here, for whoever knows better.

use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::Value;

use super::{COUNT_LIMIT, Fabric, FabricForm, FabricHost, FabricNic, Peer, Switch, SwitchPort};
use crate::formats::{ReadError, excerpt};

const FORM: FabricForm = FabricForm::Lldp;

/// What the one host is called.
pub(super) const HOST: &str = "host";

pub(super) fn read(text: &str) -> Result<Fabric, ReadError> {
    let refuse = |line: usize, reason: String| ReadError { format: FORM.name(), line, reason };
    let value: Value =
        serde_json::from_str(text).map_err(|error| refuse(error.line(), format!("{error}")))?;
    let mut fabric = Fabric::new(FORM);
    let mut switch_at: BTreeMap<String, usize> = BTreeMap::new();
    let mut nics = Vec::new();
    let mut silent = Vec::new();
    for (name, interface) in interfaces(&value["lldp"]) {
        if nics.len() >= COUNT_LIMIT {
            return Err(refuse(0, format!("more than {COUNT_LIMIT} interfaces")));
        }
        let Some((id, switch)) = chassis(&interface["chassis"]) else {
            silent.push(excerpt(&name));
            continue;
        };
        let at = *switch_at.entry(id.clone()).or_insert_with(|| {
            fabric.switches.push(Switch { id, name: switch, tier: Some(1), ports: Vec::new() });
            fabric.switches.len() - 1
        });
        let port = SwitchPort { number: 0, to: Peer::Host(0), mbit: None };
        fabric.switches[at].ports.push(port);
        nics.push(FabricNic { name: Some(name), leaf: Some(at), ..FabricNic::default() });
    }
    if nics.is_empty() {
        return Err(refuse(0, "no interface hears a neighbour".into()));
    }
    if !silent.is_empty() {
        fabric.notes.push(format!(
            "interfaces whose neighbour is not told: {}",
            crate::words::some_of(&silent)
        ));
    }
    fabric.hosts.push(FabricHost { name: HOST.to_owned(), nics });
    unlike_names(&mut fabric);
    fabric.finish();
    Ok(fabric)
}

/// Switches that call themselves alike get their identity added.
fn unlike_names(fabric: &mut Fabric) {
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    for switch in &fabric.switches {
        *uses.entry(switch.name.clone()).or_default() += 1;
    }
    for switch in &mut fabric.switches {
        if uses.get(&switch.name).is_some_and(|count| *count > 1) {
            switch.name = format!("{} {}", switch.name, switch.id);
        }
    }
}

/// Interfaces with their neighbours: `{"eth0": {…}}`, a list of such, or a list of objects with names.
fn interfaces(lldp: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for lldp in each(lldp) {
        for entry in each(&lldp["interface"]) {
            match (entry["name"].as_str(), entry.as_object()) {
                (Some(name), _) => found.push((name.to_owned(), entry)),
                (None, Some(named)) => found.extend(
                    named
                        .iter()
                        .filter(|(_, interface)| interface.is_object())
                        .map(|(name, interface)| (name.clone(), interface)),
                ),
                (None, None) => {}
            }
        }
    }
    found
}

/// A value, or each value of a list.
fn each(value: &Value) -> impl Iterator<Item = &Value> {
    let list: &[Value] = match value {
        Value::Array(list) => list,
        other => core::slice::from_ref(other),
    };
    list.iter()
}

/// Identity and name of a chassis. The identity is what it says of itself (a MAC address as a rule), else the name.
fn chassis(value: &Value) -> Option<(String, String)> {
    let chassis = each(value).next()?;
    let id =
        |of: &Value| each(&of["id"]).next().and_then(|id| id["value"].as_str()).map(str::to_owned);
    if let Some(id) = id(chassis) {
        let name = each(&chassis["name"]).next().and_then(|name| {
            name["value"].as_str().or(name.as_str()).filter(|name| !name.is_empty())
        });
        return Some((id.clone(), name.map_or(id, str::to_owned)));
    }
    let (name, named) = chassis.as_object()?.iter().find(|(_, named)| named.is_object())?;
    Some((id(named).unwrap_or_else(|| name.clone()), name.clone()))
}
