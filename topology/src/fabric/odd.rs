//! What is odd in a fabric, and how much narrower it becomes from tier to tier.

use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{Fabric, FabricNic, Peer, Switch, rails};
use crate::words::some_of;
use crate::{Finding, Severity};

/// What the switches of one tier have below and above them, in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierSummary {
    /// 1 for leaves.
    pub tier: u32,
    /// Switches of it.
    pub switches: usize,
    /// Mbit/s towards hosts, or ports where a rate is not told.
    pub down: u64,
    /// Mbit/s towards higher tiers, or ports where a rate is not told.
    pub up: u64,
    /// Whether `down` and `up` are Mbit/s; else they are numbers of ports.
    pub in_mbit: bool,
    /// The switch with the least up for its down, with both, where there is any up.
    pub worst: Option<(usize, u64, u64)>,
}

impl TierSummary {
    /// `down / up` in hundredths, rounded up: 100 is non-blocking. `None` where nothing is above.
    #[must_use]
    pub fn over_subscription(&self) -> Option<u64> {
        hundredths(self.down, self.up)
    }
}

/// `down / up` in hundredths, rounded up.
fn hundredths(down: u64, up: u64) -> Option<u64> {
    (up > 0).then(|| down.saturating_mul(100).div_ceil(up))
}

/// Below, above, or beside a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Below,
    Beside,
    Above,
}

fn side(fabric: &Fabric, switch: &Switch, to: Peer) -> Option<Side> {
    match to {
        Peer::Host(_) | Peer::Unnamed => Some(Side::Below),
        Peer::Other => None,
        Peer::Switch(to) => {
            let (own, other) = (switch.tier?, fabric.switches[to].tier?);
            Some(match own.cmp(&other) {
                core::cmp::Ordering::Greater => Side::Below,
                core::cmp::Ordering::Equal => Side::Beside,
                core::cmp::Ordering::Less => Side::Above,
            })
        }
    }
}

impl Fabric {
    /// Tiers from the leaves up. Down and up are zero where the form tells no cables.
    #[must_use]
    pub fn tiers(&self) -> Vec<TierSummary> {
        let mut tiers: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, switch) in self.switches.iter().enumerate() {
            if let Some(tier) = switch.tier {
                tiers.entry(tier).or_default().push(at);
            }
        }
        let ports = || self.switches.iter().flat_map(|switch| &switch.ports);
        let in_mbit = ports().all(|port| port.mbit.is_some() || port.to == Peer::Other);
        let widths = |switch: &Switch| {
            let width = |wanted: Side| -> u64 {
                let of =
                    switch.ports.iter().filter(|port| side(self, switch, port.to) == Some(wanted));
                of.map(|port| if in_mbit { port.mbit.unwrap_or(0) } else { 1 })
                    .fold(0, u64::saturating_add)
            };
            (width(Side::Below), width(Side::Above))
        };
        tiers
            .into_iter()
            .map(|(tier, switches)| {
                let mut summary = TierSummary {
                    tier,
                    switches: switches.len(),
                    down: 0,
                    up: 0,
                    in_mbit,
                    worst: None,
                };
                if !self.form.tells_cables() {
                    return summary;
                }
                for at in switches {
                    let (down, up) = widths(&self.switches[at]);
                    summary.down = summary.down.saturating_add(down);
                    summary.up = summary.up.saturating_add(up);
                    let worse = match summary.worst {
                        Some((_, worst_down, worst_up)) => {
                            hundredths(down, up) > hundredths(worst_down, worst_up)
                        }
                        None => true,
                    };
                    if up > 0 && worse {
                        summary.worst = Some((at, down, up));
                    }
                }
                summary
            })
            .collect()
    }

    /// What is odd: NICs off their rail, links slower than their siblings, hosts with fewer NICs than most, adapters without a host.
    #[must_use]
    pub fn odd(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        self.off_rail(&mut findings);
        self.slow_links(&mut findings);
        self.few_nics(&mut findings);
        if !self.unnamed.is_empty() {
            let component = format!("{} adapters", self.unnamed.len());
            let evidence = format!(
                "their descriptions name no host: {}",
                some_of(&self.unnamed.iter().map(nic_name).collect::<Vec<_>>())
            );
            let fix = "set the node description on those hosts (rdma-ndd does), so that their places in the network are known";
            let code = "fabric-adapter-unnamed";
            findings.push(Finding::new(code, Severity::Info, component, evidence, fix));
        }
        findings
    }

    fn off_rail(&self, findings: &mut Vec<Finding>) {
        for (host, nic, of_rail) in rails::strays(self) {
            let host = &self.hosts[host];
            let nic = &host.nics[nic];
            let rail = nic.rail.map(|rail| rail.0.to_string()).unwrap_or_default();
            let leaf = nic.leaf.map_or("no switch", |leaf| &self.switches[leaf].name);
            let component = format!("{} {}", host.name, nic_name(nic));
            let of_rail = &self.switches[of_rail].name;
            let evidence =
                format!("it is at {leaf}; others of rail {rail} around are at {of_rail}");
            let fix = "move the cable to the rail's leaf: traffic of this rail crosses the spine to and from this host";
            let code = "fabric-nic-off-rail";
            findings.push(Finding::new(code, Severity::Degraded, component, evidence, fix));
        }
    }

    /// Per switch and side: slower than the rate that most of at least three have.
    fn slow_links(&self, findings: &mut Vec<Finding>) {
        for (at, switch) in self.switches.iter().enumerate() {
            let mut rates: BTreeMap<Side, BTreeMap<u64, usize>> = BTreeMap::new();
            for port in &switch.ports {
                if let (Some(side), Some(mbit)) = (side(self, switch, port.to), port.mbit) {
                    *rates.entry(side).or_default().entry(mbit).or_default() += 1;
                }
            }
            let usual = |rates: &BTreeMap<u64, usize>| {
                let total: usize = rates.values().sum();
                rates
                    .iter()
                    .find(|(_, count)| 2 * **count > total && total >= 3)
                    .map(|(rate, _)| *rate)
            };
            let usual: BTreeMap<Side, u64> =
                rates.iter().filter_map(|(side, rates)| Some((*side, usual(rates)?))).collect();
            for port in &switch.ports {
                let (Some(side), Some(mbit)) = (side(self, switch, port.to), port.mbit) else {
                    continue;
                };
                let Some(usual) = usual.get(&side).filter(|usual| mbit < **usual) else { continue };
                let peer = match port.to {
                    Peer::Host(host) => self.hosts[host].name.clone(),
                    // Told once, by the switch of the lower place.
                    Peer::Switch(to) if to > at || !self.is_slow(to, at, mbit) => {
                        self.switches[to].name.clone()
                    }
                    Peer::Switch(_) => continue,
                    Peer::Unnamed => "an adapter without a name".to_owned(),
                    Peer::Other => continue,
                };
                let component = format!("{} port {}", switch.name, port.number);
                let evidence = format!(
                    "{} Gbit/s to {peer}; most of its ports on that side have {}",
                    gbit(mbit),
                    gbit(*usual)
                );
                let fix = "look at the cable and both its ends: a link trains down when lanes fail or an end is older";
                let code = "fabric-link-slow";
                findings.push(Finding::new(code, Severity::Degraded, component, evidence, fix));
            }
        }
    }

    /// Whether `switch` will tell of a slow link to `to` itself.
    fn is_slow(&self, switch: usize, to: usize, mbit: u64) -> bool {
        let switch = &self.switches[switch];
        let own = side(self, switch, Peer::Switch(to));
        let rates = switch.ports.iter().filter(|port| side(self, switch, port.to) == own);
        let rates: Vec<u64> = rates.filter_map(|port| port.mbit).collect();
        let faster = rates.iter().filter(|rate| **rate > mbit);
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for rate in faster {
            *counts.entry(*rate).or_default() += 1;
        }
        rates.len() >= 3 && counts.values().any(|count| 2 * count > rates.len())
    }

    fn few_nics(&self, findings: &mut Vec<Finding>) {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for host in &self.hosts {
            *counts.entry(host.nics.len()).or_default() += 1;
        }
        let total = self.hosts.len();
        let usual = counts.iter().find(|(_, count)| 2 * **count > total && total >= 3);
        let Some((usual, _)) = usual else { return };
        for host in self.hosts.iter().filter(|host| host.nics.len() < *usual) {
            let seen = match &host.nics[..] {
                [] => "no port".to_owned(),
                [nic] => format!("one port, {},", nic_name(nic)),
                nics => format!("{} ports", nics.len()),
            };
            let evidence = format!("{seen} seen in the network; most hosts have {usual}");
            let fix = "if the host is like the others, look for ports that are down or descriptions that were not set";
            let (code, component) = ("fabric-host-incomplete", host.name.as_str());
            findings.push(Finding::new(code, Severity::Degraded, component, evidence, fix));
        }
    }
}

fn nic_name(nic: &FabricNic) -> String {
    let name = nic.name.as_ref().or(nic.id.as_ref());
    name.cloned().unwrap_or_else(|| "its NIC".to_owned())
}

/// Gbit/s in words: `400`, `2.5`.
fn gbit(mbit: u64) -> String {
    match mbit % 1000 {
        0 => (mbit / 1000).to_string(),
        rest => format!("{}.{}", mbit / 1000, format!("{rest:03}").trim_end_matches('0')),
    }
}
