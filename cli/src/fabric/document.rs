//! What is shown of a fabric.

use std::fmt::Write;

use serde::Serialize;
use topology::Finding;
use topology::fabric::{Fabric, FabricNic, Peer, host_list, natural_cmp};

use crate::output::{findings, table};

#[derive(Debug, Serialize)]
pub(super) struct Document {
    schema_version: u32,
    source: &'static str,
    switches: Vec<SwitchRow>,
    hosts: Vec<HostRow>,
    blocks: Vec<BlockRow>,
    /// Cables, each once; `None` where the form does not tell them.
    links: Option<usize>,
    tiers: Vec<TierRow>,
    /// Hosts at no switch and in no block.
    pub(super) unplaced: Vec<String>,
    /// Adapters that name no host.
    unnamed: Vec<NicRow>,
    pub(super) findings: Vec<Finding>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct SwitchRow {
    id: String,
    name: String,
    tier: Option<u32>,
    /// Numbers of ports, or of what is below and above where ports are not told.
    to_hosts: usize,
    to_switches: usize,
    ports: Vec<PortRow>,
}

#[derive(Debug, Serialize)]
struct PortRow {
    number: u32,
    to: String,
    /// Gbit/s per direction.
    gbps: Option<f64>,
}

#[derive(Debug, Serialize)]
struct HostRow {
    name: String,
    nics: Vec<NicRow>,
}

#[derive(Debug, Serialize)]
struct NicRow {
    name: Option<String>,
    id: Option<String>,
    port: Option<u32>,
    leaf: Option<String>,
    rail: Option<u32>,
    /// Gbit/s per direction.
    gbps: Option<f64>,
}

#[derive(Debug, Serialize)]
struct BlockRow {
    name: String,
    hosts: Vec<String>,
}

#[derive(Debug, Serialize)]
struct TierRow {
    tier: u32,
    switches: usize,
    /// Down divided by up; `None` where nothing is above, or ports are not told.
    over_subscription: Option<f64>,
    /// What `down` and `up` are.
    measured_in: &'static str,
    down: u64,
    up: u64,
    /// The switch with the least up for its down.
    worst: Option<WorstRow>,
}

#[derive(Debug, Serialize)]
struct WorstRow {
    switch: String,
    down: u64,
    up: u64,
}

impl Document {
    pub(super) fn of(fabric: &Fabric) -> Self {
        let host = |at: &usize| fabric.hosts[*at].name.clone();
        let levels = fabric.levels();
        let placed = super::placed(fabric);
        let unplaced = (0..fabric.hosts.len()).filter(|at| !placed.contains(at));
        Self {
            schema_version: 1,
            source: fabric.form.name(),
            switches: fabric.switches.iter().map(|switch| switch_row(fabric, switch)).collect(),
            hosts: levels
                .order()
                .iter()
                .map(|at| HostRow {
                    name: host(at),
                    nics: fabric.hosts[*at].nics.iter().map(|nic| nic_row(fabric, nic)).collect(),
                })
                .collect(),
            blocks: fabric
                .blocks
                .iter()
                .map(|block| BlockRow {
                    name: block.name.clone(),
                    hosts: block.hosts.iter().map(host).collect(),
                })
                .collect(),
            links: fabric.form.tells_cables().then(|| fabric.links()),
            tiers: tiers(fabric),
            unplaced: unplaced.map(|at| host(&at)).collect(),
            unnamed: fabric.unnamed.iter().map(|nic| nic_row(fabric, nic)).collect(),
            findings: fabric.odd(),
            notes: fabric.notes.clone(),
        }
    }

    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "{}: {} switches, {} hosts",
            self.source,
            self.switches.len(),
            self.hosts.len()
        );
        if let Some(links) = self.links {
            let _ = write!(text, ", {links} cables");
        }
        if !self.blocks.is_empty() {
            let _ = write!(text, ", {} blocks", self.blocks.len());
        }
        text.push('\n');
        self.tier_table(&mut text);
        self.switch_table(&mut text);
        self.host_table(&mut text);
        for block in &self.blocks {
            let _ = writeln!(text, "block {}: {}", block.name, host_list::fold(&block.hosts));
        }
        if !self.unplaced.is_empty() {
            let _ = writeln!(text, "\nat no switch: {}", host_list::fold(&self.unplaced));
        }
        text.push_str(&findings(&self.findings));
        if !self.notes.is_empty() {
            text.push_str("\nnotes:\n");
            for note in &self.notes {
                let _ = writeln!(text, "  {note}");
            }
        }
        text
    }

    fn tier_table(&self, text: &mut String) {
        let mut rows = vec![
            ["tier", "switches", "down", "up", "over-subscription", "worst"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for tier in &self.tiers {
            let width = |value: u64| match (self.links, tier.measured_in) {
                (None, _) => "not told".to_owned(),
                (_, "Mbit/s") => format!("{} Gbit/s", value / 1000),
                _ => format!("{value} ports"),
            };
            rows.push(vec![
                tier.tier.to_string(),
                tier.switches.to_string(),
                width(tier.down),
                width(tier.up),
                tier.over_subscription.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}:1")),
                tier.worst.as_ref().map_or_else(String::new, |worst| {
                    format!("{} ({} to {})", worst.switch, width(worst.down), width(worst.up))
                }),
            ]);
        }
        if rows.len() > 1 {
            let _ = write!(text, "\n{}", table(&rows));
        }
    }

    fn switch_table(&self, text: &mut String) {
        let mut switches: Vec<&SwitchRow> = self.switches.iter().collect();
        switches.sort_by(|a, b| {
            (a.tier.is_none(), a.tier)
                .cmp(&(b.tier.is_none(), b.tier))
                .then_with(|| natural_cmp(&a.name, &b.name))
        });
        let mut rows =
            vec![["switch", "tier", "to hosts", "to switches"].map(str::to_owned).to_vec()];
        rows.extend(switches.into_iter().map(|switch| {
            vec![
                switch.name.clone(),
                switch.tier.map_or_else(|| "?".into(), |tier| tier.to_string()),
                switch.to_hosts.to_string(),
                switch.to_switches.to_string(),
            ]
        }));
        if rows.len() > 1 {
            let _ = write!(text, "\n{}", table(&rows));
        }
    }

    /// Hosts with NICs that have names, a row each; others by their leaf.
    fn host_table(&self, text: &mut String) {
        let has_names = self.hosts.iter().flat_map(|host| &host.nics).any(|nic| nic.name.is_some());
        if has_names {
            let mut rows =
                vec![["host", "NIC", "leaf", "rail", "Gbit/s"].map(str::to_owned).to_vec()];
            for host in &self.hosts {
                for nic in &host.nics {
                    let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".into());
                    rows.push(vec![
                        host.name.clone(),
                        or(&nic.name),
                        or(&nic.leaf),
                        nic.rail.map_or_else(|| "-".into(), |rail| rail.to_string()),
                        nic.gbps.map_or_else(|| "?".into(), |gbps| gbps.to_string()),
                    ]);
                }
            }
            let _ = write!(text, "\n{}", table(&rows));
            return;
        }
        let mut leaves: Vec<(&str, Vec<String>)> = Vec::new();
        for host in &self.hosts {
            let leaf = host.nics.first().and_then(|nic| nic.leaf.as_deref()).unwrap_or("-");
            match leaves.last_mut() {
                Some((last, hosts)) if *last == leaf => hosts.push(host.name.clone()),
                _ => leaves.push((leaf, vec![host.name.clone()])),
            }
        }
        leaves.retain(|(leaf, _)| *leaf != "-");
        if leaves.is_empty() {
            return;
        }
        let mut rows = vec![["leaf", "hosts"].map(str::to_owned).to_vec()];
        rows.extend(
            leaves.iter().map(|(leaf, hosts)| vec![(*leaf).to_owned(), host_list::fold(hosts)]),
        );
        let _ = write!(text, "\n{}", table(&rows));
    }
}

fn switch_row(fabric: &Fabric, switch: &topology::fabric::Switch) -> SwitchRow {
    let count =
        |wanted: fn(&Peer) -> bool| switch.ports.iter().filter(|port| wanted(&port.to)).count();
    SwitchRow {
        id: switch.id.clone(),
        name: switch.name.clone(),
        tier: switch.tier,
        to_hosts: count(|to| matches!(to, Peer::Host(_) | Peer::Unnamed)),
        to_switches: count(|to| matches!(to, Peer::Switch(_))),
        ports: switch
            .ports
            .iter()
            .map(|port| PortRow {
                number: port.number,
                to: match port.to {
                    Peer::Switch(to) => fabric.switches[to].name.clone(),
                    Peer::Host(host) => fabric.hosts[host].name.clone(),
                    Peer::Unnamed => "adapter without a name".into(),
                    Peer::Other => "none of a host".into(),
                },
                gbps: port.mbit.map(gbps),
            })
            .collect(),
    }
}

fn nic_row(fabric: &Fabric, nic: &FabricNic) -> NicRow {
    NicRow {
        name: nic.name.clone(),
        id: nic.id.clone(),
        port: nic.port,
        leaf: nic.leaf.map(|leaf| fabric.switches[leaf].name.clone()),
        rail: nic.rail.map(|rail| rail.0),
        gbps: nic.mbit.map(gbps),
    }
}

/// Rates are below 10 Tbit/s, far from where floating point loses a Mbit.
#[expect(clippy::cast_precision_loss, reason = "rates are below 2^53 Mbit/s")]
fn gbps(mbit: u64) -> f64 {
    mbit as f64 / 1000.0
}

fn tiers(fabric: &Fabric) -> Vec<TierRow> {
    let tiers = fabric.tiers().into_iter();
    tiers
        .map(|tier| TierRow {
            tier: tier.tier,
            switches: tier.switches,
            over_subscription: tier.over_subscription().map(|hundredths| gbps(hundredths * 10)),
            measured_in: if tier.in_mbit { "Mbit/s" } else { "ports" },
            down: tier.down,
            up: tier.up,
            worst: tier.worst.map(|(at, down, up)| WorstRow {
                switch: fabric.switches[at].name.clone(),
                down,
                up,
            }),
        })
        .collect()
}
