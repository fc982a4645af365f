//! The network between hosts: files about it, the order of hosts that follows from it, and what is odd in it.
//!
//! ```text
//!   ibnetdiscover, its -p, ibsim net ── infiniband, port_list ──┐
//!   lldpctl -f json                  ── lldp ───────────────────┤
//!   Slurm topology.conf and .yaml    ── slurm ──────────────────┼──▶ Fabric ──▶ levels: who meets whom below which tier, host order
//!   topograph graph JSON, model YAML ── topograph ──────────────┘           ├──▶ rails: which NICs of all hosts share a leaf
//!                                                                           └──▶ odd: findings, over-subscription
//! ```
//!
//! A fabric is no [`Snapshot`](crate::Snapshot): it holds no inside of any host. Readers are strict about contradictions, which are a
//! [`ReadError`] with the line, and lenient about what is absent, which is a note. The YAML forms have serde types here and are
//! parsed by whoever has a YAML parser, for none is `no_std`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::Serialize;

use crate::Rail;
use crate::formats::ReadError;

pub mod fuzz;
pub mod host_list;
mod infiniband;
mod levels;
mod lldp;
mod natural;
mod network;
mod odd;
mod port_list;
mod rails;
pub mod slurm;
pub mod topograph;
mod tree;

pub use levels::{Crossings, Levels};
pub use natural::natural_cmp;
pub use odd::TierSummary;

/// Most bytes of a file: ibnetdiscover of some 100,000 adapters, several times the largest fabrics published.
pub const SIZE_LIMIT: usize = 64 << 20;

/// Most hosts, NICs or switches of a fabric.
pub const COUNT_LIMIT: usize = 1 << 20;

/// Most tiers of switches.
pub const TIER_LIMIT: u32 = 64;

/// The forms that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricForm {
    /// `ibnetdiscover`, and the net files of ibsim, which are of the same form.
    Infiniband,
    /// `ibnetdiscover -p`.
    PortList,
    /// Slurm's topology.conf.
    SlurmConf,
    /// Slurm's topology.yaml.
    SlurmYaml,
    /// A model of NVIDIA's topograph.
    ModelYaml,
    /// What topograph's engine `graph` gives.
    TopographGraph,
    /// `lldpctl -f json` of one host.
    Lldp,
}

impl FabricForm {
    /// What messages call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Infiniband => "ibnetdiscover output",
            Self::PortList => "ibnetdiscover -p output",
            Self::SlurmConf => "Slurm topology.conf",
            Self::SlurmYaml => "Slurm topology.yaml",
            Self::ModelYaml => "model of a network",
            Self::TopographGraph => "topograph graph JSON",
            Self::Lldp => "lldpctl JSON",
        }
    }

    /// Whether every cable is told, so that ports can be counted.
    #[must_use]
    pub fn tells_cables(self) -> bool {
        matches!(self, Self::Infiniband | Self::PortList)
    }
}

impl fmt::Display for FabricForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A network between hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// What it was read from.
    pub form: FabricForm,
    /// In the file's order.
    pub switches: Vec<Switch>,
    /// In the file's order.
    pub hosts: Vec<FabricHost>,
    /// Sets of hosts that belong closer together than the switches tell: NVLink domains, Slurm's blocks. In the file's order.
    pub blocks: Vec<Block>,
    /// Slurm's `BlockSizes`, in hosts: the first is that of a block, the others those of neighbouring blocks taken together.
    pub block_sizes: Vec<u32>,
    /// Adapters whose description names no host.
    pub unnamed: Vec<FabricNic>,
    /// What was passed over or is told by one end alone, in words.
    pub notes: Vec<String>,
}

/// A switch: one chip of it, where the file tells chips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// GUID or name, unique.
    pub id: String,
    /// For people; unique.
    pub name: String,
    /// 1 for a leaf, where hosts are; one more per step away. `None` where no host can be reached.
    pub tier: Option<u32>,
    /// Ports that lead somewhere.
    pub ports: Vec<SwitchPort>,
}

/// A port of a switch, or where cables are not told: what is below or above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchPort {
    /// 0 where ports are not told.
    pub number: u32,
    /// What it leads to.
    pub to: Peer,
    /// Rate in Mbit/s per direction, as sysfs counts it (4X NDR is 400,000).
    pub mbit: Option<u64>,
}

/// What a port of a switch leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Place in [`Fabric::switches`].
    Switch(usize),
    /// Place in [`Fabric::hosts`].
    Host(usize),
    /// An adapter that names no host.
    Unnamed,
    /// A switch's own aggregation engine, or a router: no host and no way to one.
    Other,
}

/// A host as the network sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricHost {
    /// Unique.
    pub name: String,
    /// In the order of their names. A form that tells no NICs has one without a name per switch that the host is at.
    pub nics: Vec<FabricNic>,
}

/// One port of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricNic {
    /// As in its description: `mlx5_0`, `HCA-1`; an interface.
    pub name: Option<String>,
    /// GUID, for one that has it.
    pub id: Option<String>,
    /// Port of the NIC, from 1.
    pub port: Option<u32>,
    /// The switch it is at: place in [`Fabric::switches`].
    pub leaf: Option<usize>,
    /// Rate in Mbit/s per direction.
    pub mbit: Option<u64>,
    /// Which of its host's rails; `None` where the hosts around are on one leaf, or the leaf cannot be told from their majority.
    pub rail: Option<Rail>,
}

/// Hosts that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Unique.
    pub name: String,
    /// Places in [`Fabric::hosts`].
    pub hosts: Vec<usize>,
}

impl Fabric {
    fn new(form: FabricForm) -> Self {
        Self {
            form,
            switches: Vec::new(),
            hosts: Vec::new(),
            blocks: Vec::new(),
            block_sizes: Vec::new(),
            unnamed: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Cables, each once, with those of adapters that name no host, without those to what is no host.
    #[must_use]
    pub fn links(&self) -> usize {
        let ports = self.switches.iter().flat_map(|switch| &switch.ports);
        let ends = ports.map(|port| match port.to {
            Peer::Switch(_) => 1,
            Peer::Host(_) | Peer::Unnamed => 2,
            Peer::Other => 0,
        });
        ends.sum::<usize>() / 2
    }

    /// Files of several hosts as one fabric: switches of one name are one switch, hosts of one name one host.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        let mut all = self;
        let switch_at: Vec<usize> = other
            .switches
            .iter()
            .map(|switch| match all.switches.iter().position(|known| known.id == switch.id) {
                Some(place) => place,
                None => {
                    all.switches.push(Switch { ports: Vec::new(), ..switch.clone() });
                    all.switches.len() - 1
                }
            })
            .collect();
        let moved =
            |nic: FabricNic| FabricNic { leaf: nic.leaf.map(|leaf| switch_at[leaf]), ..nic };
        let host_at: Vec<usize> = other
            .hosts
            .into_iter()
            .map(|host| {
                let place = all.hosts.iter().position(|known| known.name == host.name);
                let place = place.unwrap_or_else(|| {
                    all.hosts.push(FabricHost { name: host.name, nics: Vec::new() });
                    all.hosts.len() - 1
                });
                all.hosts[place].nics.extend(host.nics.into_iter().map(moved));
                place
            })
            .collect();
        for (switch, at) in other.switches.into_iter().zip(&switch_at) {
            all.switches[*at].ports.extend(switch.ports.into_iter().map(|port| SwitchPort {
                to: match port.to {
                    Peer::Switch(to) => Peer::Switch(switch_at[to]),
                    Peer::Host(host) => Peer::Host(host_at[host]),
                    other => other,
                },
                ..port
            }));
        }
        all.unnamed.extend(other.unnamed.into_iter().map(moved));
        all.notes.extend(other.notes);
        all.finish();
        all
    }

    /// What follows from all that was read: NICs in order, rails.
    fn finish(&mut self) {
        for host in &mut self.hosts {
            host.nics.sort_by(|a, b| {
                let name = |nic: &FabricNic| nic.name.clone().unwrap_or_default();
                natural_cmp(&name(a), &name(b)).then_with(|| a.port.cmp(&b.port))
            });
        }
        rails::assign(self);
    }
}

/// Which form a line is of, by words that form alone has.
#[must_use]
pub fn form_of_line(line: &str) -> Option<FabricForm> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    if infiniband::node_line(line).is_some() {
        Some(FabricForm::Infiniband)
    } else if port_list::is_line(line) {
        Some(FabricForm::PortList)
    } else if slurm::is_line(line) {
        Some(FabricForm::SlurmConf)
    } else if line.starts_with("- topology:") {
        Some(FabricForm::SlurmYaml)
    } else if line == "switches:" || line == "blocks:" {
        Some(FabricForm::ModelYaml)
    } else {
        None
    }
}

/// Which form a file is of, told by its content.
///
/// # Errors
/// Where it is of none that is known.
pub fn sniff(text: &str) -> Result<FabricForm, ReadError> {
    let refuse =
        |line: usize, reason: String| ReadError { format: "unrecognised input", line, reason };
    if text.len() > SIZE_LIMIT {
        return Err(refuse(0, format!("{} bytes; at most {SIZE_LIMIT} are read", text.len())));
    }
    if text.trim_start().starts_with('{') {
        return topograph::sniff_json(text);
    }
    let mut lines = (1..).zip(text.lines());
    let form = lines.find_map(|(number, line)| match line.trim() {
        "LLDP neighbors:" => Some(Err(refuse(
            number,
            "lldpctl's text form; its JSON form is read: `lldpctl -f json`".into(),
        ))),
        _ => form_of_line(line).map(Ok),
    });
    form.unwrap_or_else(|| {
        Err(refuse(
            0,
            "known are ibnetdiscover and ibnetdiscover -p output, ibsim net files, Slurm's topology.conf and topology.yaml, \
             topograph's graph JSON and model YAML, and `lldpctl -f json`"
                .into(),
        ))
    })
}

/// Reads a file of a form that is no YAML: for those see [`slurm::from_yaml`] and [`topograph::from_model`].
///
/// # Errors
/// Where the text contradicts its form or itself, or is larger than limits allow.
pub fn read(form: FabricForm, text: &str) -> Result<Fabric, ReadError> {
    match form {
        FabricForm::Infiniband => infiniband::read(text),
        FabricForm::PortList => port_list::read(text),
        FabricForm::SlurmConf => slurm::read(text),
        FabricForm::TopographGraph => topograph::read(text),
        FabricForm::Lldp => lldp::read(text),
        FabricForm::SlurmYaml | FabricForm::ModelYaml => Err(ReadError {
            format: form.name(),
            line: 0,
            reason: "YAML is parsed before it comes here".into(),
        }),
    }
}

#[cfg(test)]
mod tests;
