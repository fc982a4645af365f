//! What tools tell of InfiniBand, put together: nodes with ports, each cable by one or both of its ends.

use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeMap;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{COUNT_LIMIT, Fabric, FabricForm, FabricHost, FabricNic, Peer, Switch, SwitchPort};
use crate::formats::{ReadError, excerpt};

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    Switch,
    Adapter,
    Router,
}

#[derive(Debug)]
struct Node {
    kind: NodeKind,
    id: String,
    description: Option<String>,
    /// Where the file describes it; 0 where another node alone names it.
    line: usize,
    ports: BTreeMap<u32, Cable>,
}

/// Where a port leads.
#[derive(Clone, Copy, Debug)]
struct Cable {
    line: usize,
    node: usize,
    port: u32,
    mbit: Option<u64>,
}

/// The far end of a cable as a line tells it.
#[derive(Debug)]
pub(super) struct FarEnd<'a> {
    pub(super) kind: NodeKind,
    pub(super) id: &'a str,
    pub(super) port: u32,
    pub(super) description: Option<&'a str>,
}

#[derive(Debug)]
pub(super) struct Network {
    form: FabricForm,
    nodes: Vec<Node>,
    by_id: BTreeMap<String, usize>,
}

impl Network {
    pub(super) fn new(form: FabricForm) -> Self {
        Self { form, nodes: Vec::new(), by_id: BTreeMap::new() }
    }

    fn refuse(&self, line: usize, reason: String) -> ReadError {
        ReadError { format: self.form.name(), line, reason }
    }

    /// A node that the file describes at a line; `again` where it may do so more than once.
    pub(super) fn node(
        &mut self,
        line: usize,
        kind: NodeKind,
        id: &str,
        description: Option<&str>,
        again: bool,
    ) -> Result<usize, ReadError> {
        let place = self.place(line, kind, id, description)?;
        let known = &self.nodes[place];
        if known.kind != kind {
            return Err(self.refuse(
                line,
                format!("'{}' is a {} here and a {} elsewhere", excerpt(id), kind, known.kind),
            ));
        }
        if !again && known.line > 0 {
            let first = known.line;
            return Err(self.refuse(line, format!("'{}' is also at line {first}", excerpt(id))));
        }
        self.nodes[place].line = line;
        Ok(place)
    }

    fn place(
        &mut self,
        line: usize,
        kind: NodeKind,
        id: &str,
        description: Option<&str>,
    ) -> Result<usize, ReadError> {
        let place = match self.by_id.get(id) {
            Some(place) => *place,
            None => {
                if self.nodes.len() >= COUNT_LIMIT {
                    return Err(self.refuse(line, format!("more than {COUNT_LIMIT} nodes")));
                }
                self.nodes.push(Node {
                    kind,
                    id: id.to_owned(),
                    description: None,
                    line: 0,
                    ports: BTreeMap::new(),
                });
                self.by_id.insert(id.to_owned(), self.nodes.len() - 1);
                self.nodes.len() - 1
            }
        };
        let node = &mut self.nodes[place];
        if node.description.is_none() {
            node.description = description.map(str::to_owned);
        }
        Ok(place)
    }

    /// A cable as the node at one end tells it.
    pub(super) fn cable(
        &mut self,
        line: usize,
        node: usize,
        port: u32,
        far: &FarEnd<'_>,
        mbit: Option<u64>,
    ) -> Result<(), ReadError> {
        let to = self.place(line, far.kind, far.id, far.description)?;
        if self.nodes[to].kind != far.kind && self.form == FabricForm::PortList {
            return Err(self.refuse(
                line,
                format!(
                    "'{}' is a {} here and a {} elsewhere",
                    excerpt(far.id),
                    far.kind,
                    self.nodes[to].kind
                ),
            ));
        }
        let cable = Cable { line, node: to, port: far.port, mbit };
        if let Some(first) = self.nodes[node].ports.insert(port, cable) {
            return Err(self.refuse(line, format!("port {port} is also at line {}", first.line)));
        }
        Ok(())
    }

    /// The fabric.
    pub(super) fn finish(mut self) -> Result<Fabric, ReadError> {
        let one_sided = self.complete()?;
        if self.nodes.is_empty() {
            return Err(self.refuse(0, "no node in it".into()));
        }
        let mut fabric = Fabric::new(self.form);
        let mut peers: Vec<Peer> = alloc::vec![Peer::Other; self.nodes.len()];
        let mut nic_names: Vec<Option<String>> = alloc::vec![None; self.nodes.len()];
        let mut host_at: BTreeMap<String, usize> = BTreeMap::new();
        let switch_names = switch_names(&self.nodes);
        for (place, node) in self.nodes.iter().enumerate() {
            match node.kind {
                NodeKind::Switch => {
                    peers[place] = Peer::Switch(fabric.switches.len());
                    fabric.switches.push(Switch {
                        id: node.id.clone(),
                        name: switch_names[&place].clone(),
                        tier: None,
                        ports: Vec::new(),
                    });
                }
                NodeKind::Router => {}
                NodeKind::Adapter => match owner(node) {
                    Owner::Host(name, nic) => {
                        let at = *host_at.entry(name.to_owned()).or_insert_with(|| {
                            fabric
                                .hosts
                                .push(FabricHost { name: name.to_owned(), nics: Vec::new() });
                            fabric.hosts.len() - 1
                        });
                        peers[place] = Peer::Host(at);
                        nic_names[place] = nic.map(str::to_owned);
                    }
                    Owner::Unknown => peers[place] = Peer::Unnamed,
                    Owner::Engine => {}
                },
            }
        }
        for (place, node) in self.nodes.iter().enumerate() {
            if let Peer::Switch(at) = peers[place] {
                fabric.switches[at].ports = node
                    .ports
                    .iter()
                    .map(|(number, cable)| SwitchPort {
                        number: *number,
                        to: peers[cable.node],
                        mbit: cable.mbit,
                    })
                    .collect();
                continue;
            }
            let nics = match peers[place] {
                Peer::Host(at) => &mut fabric.hosts[at].nics,
                Peer::Unnamed => &mut fabric.unnamed,
                Peer::Switch(_) | Peer::Other => continue,
            };
            for (port, cable) in &node.ports {
                let leaf = match peers[cable.node] {
                    Peer::Switch(leaf) => Some(leaf),
                    _ => None,
                };
                nics.push(FabricNic {
                    name: nic_names[place].clone(),
                    id: Some(node.id.clone()),
                    port: Some(*port),
                    leaf,
                    mbit: cable.mbit,
                    ..FabricNic::default()
                });
            }
            // Seen without a cable: ibnetdiscover on a host whose port is down.
            if node.ports.is_empty() {
                nics.push(FabricNic {
                    name: nic_names[place].clone(),
                    id: Some(node.id.clone()),
                    ..FabricNic::default()
                });
            }
        }
        let undescribed = self.nodes.iter().filter(|node| node.line == 0).count();
        if undescribed > 0 {
            fabric.notes.push(format!(
                "{undescribed} nodes are named by others and not described themselves: the file is cut or was edited"
            ));
        }
        if one_sided > 0 && self.form == FabricForm::PortList {
            fabric.notes.push(format!("{one_sided} cables are told by one of their ends alone"));
        }
        assign_tiers(&mut fabric);
        fabric.finish();
        Ok(fabric)
    }

    /// Gives both ends of every cable; how many were told by one end alone.
    fn complete(&mut self) -> Result<usize, ReadError> {
        let mut missing = Vec::new();
        for (place, node) in self.nodes.iter().enumerate() {
            for (port, cable) in &node.ports {
                match self.nodes[cable.node].ports.get(&cable.port) {
                    Some(back) if back.node == place && back.port == *port => {}
                    Some(back) => {
                        let reason = format!(
                            "port {port} of '{}' leads to port {} of '{}', which at line {} leads elsewhere",
                            excerpt(&node.id),
                            cable.port,
                            excerpt(&self.nodes[cable.node].id),
                            back.line
                        );
                        return Err(self.refuse(cable.line, reason));
                    }
                    None => missing.push((
                        cable.node,
                        cable.port,
                        Cable { line: cable.line, node: place, port: *port, mbit: cable.mbit },
                    )),
                }
            }
        }
        let one_sided = missing.len();
        for (node, port, cable) in missing {
            let line = cable.line;
            if let Some(other) = self.nodes[node].ports.insert(port, cable) {
                let reason = format!(
                    "port {port} of '{}' has this cable and that of line {}",
                    excerpt(&self.nodes[node].id),
                    other.line
                );
                return Err(self.refuse(line, reason));
            }
        }
        Ok(one_sided)
    }
}

impl core::fmt::Display for NodeKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Switch => "switch",
            Self::Adapter => "channel adapter",
            Self::Router => "router",
        })
    }
}

/// Whose an adapter is.
enum Owner<'a> {
    /// Host, and the NIC's name.
    Host(&'a str, Option<&'a str>),
    /// Its description is that of the factory, or of a host without a name.
    Unknown,
    /// A switch's own aggregation engine.
    Engine,
}

fn owner(node: &Node) -> Owner<'_> {
    let description = node.description.as_deref().unwrap_or(&node.id).trim();
    if description.contains("Aggregation Node") {
        return Owner::Engine;
    }
    let words = description.rsplit_once(char::is_whitespace);
    let (host, nic) = match words {
        Some((host, nic)) => (host.trim(), Some(nic)),
        None => (description, None),
    };
    let nameless = host.is_empty()
        || description.contains("Mellanox Technologies")
        || ["localhost", "localhost.localdomain", "(none)"].contains(&host);
    if nameless { Owner::Unknown } else { Owner::Host(host, nic) }
}

/// Names of switches for people, by node: what the description calls it, as short as names stay different.
fn switch_names(nodes: &[Node]) -> BTreeMap<usize, String> {
    let switches = || nodes.iter().enumerate().filter(|(_, node)| node.kind == NodeKind::Switch);
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    for (_, node) in switches() {
        *uses.entry(short_name(node)).or_default() += 1;
    }
    let name = |node: &Node| {
        let short = short_name(node);
        if uses.get(&short).is_some_and(|count| *count > 1) {
            format!("{short} {}", node.id)
        } else {
            short
        }
    };
    switches().map(|(place, node)| (place, name(node))).collect()
}

/// `MF0;leaf-1:MQM9701/U1` is `leaf-1`; of a director's chips, `MF0;core-1:MCS8500/L02/U1` is `core-1/L02/U1`.
fn short_name(node: &Node) -> String {
    let Some(description) = &node.description else { return node.id.clone() };
    let name = description.strip_prefix("MF0;").unwrap_or(description).trim();
    let name = match name.rsplit_once(':').map(|(name, model)| (name, model.split_once('/'))) {
        Some((name, Some((_, chip)))) if chip.contains('/') => format!("{name}/{chip}"),
        Some((name, Some(_))) => name.to_owned(),
        _ => name.to_owned(),
    };
    if name.is_empty() { node.id.clone() } else { name }
}

/// Leaves are where hosts are, tiers the steps from there. A switch whose neighbours are mostly leaves with four times its hosts is
/// none itself: a manager's host is often at a spine.
fn assign_tiers(fabric: &mut Fabric) {
    let adapters = |switch: &Switch| {
        switch.ports.iter().filter(|port| matches!(port.to, Peer::Host(_) | Peer::Unnamed)).count()
    };
    let hosts_at: Vec<usize> = fabric.switches.iter().map(adapters).collect();
    let is_leaf = |at: usize| {
        let mut neighbours: Vec<usize> = neighbours(&fabric.switches, at).collect();
        neighbours.sort_unstable();
        neighbours.dedup();
        let larger = neighbours.iter().filter(|to| hosts_at[**to] >= 4 * hosts_at[at]).count();
        hosts_at[at] > 0 && 2 * larger <= neighbours.len()
    };
    let mut leaves: Vec<usize> = (0..fabric.switches.len()).filter(|at| is_leaf(*at)).collect();
    if leaves.is_empty() {
        leaves = (0..fabric.switches.len()).filter(|at| hosts_at[*at] > 0).collect();
    }
    let mut queue = VecDeque::new();
    for at in leaves {
        fabric.switches[at].tier = Some(1);
        queue.push_back((at, 1_u32));
    }
    while let Some((at, tier)) = queue.pop_front() {
        let next: Vec<usize> = neighbours(&fabric.switches, at).collect();
        for to in next {
            if fabric.switches[to].tier.is_none() {
                fabric.switches[to].tier = Some(tier.saturating_add(1));
                queue.push_back((to, tier.saturating_add(1)));
            }
        }
    }
}

fn neighbours(switches: &[Switch], at: usize) -> impl Iterator<Item = usize> {
    switches[at].ports.iter().filter_map(move |port| match port.to {
        Peer::Switch(to) if to != at => Some(to),
        _ => None,
    })
}
