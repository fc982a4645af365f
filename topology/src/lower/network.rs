//! Where hosts meet when a file tells of the network between them.
//!
//! ```text
//!   cables told        1:mlx5_0 ─ fabric:leaf-1 ═ fabric:spine-1 ═ fabric:leaf-2 ─ 2:mlx5_0      every switch above a leaf that is used
//!   cables not told    1:mlx5_0 ─ fabric ─ 2:mlx5_0                                              one vertex for switches that reach each other
//! ```
//!
//! Switches that lie above no leaf of these hosts carry nothing between them and are left out.

use alloc::borrow::ToOwned as _;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::fabric::{Fabric, FabricNic, Peer, natural_cmp};
use crate::rates;
use crate::snapshot::{Nic, NicRole};
use crate::{HostId, LinkKind, Snapshot, VertexKind};

use super::LowerError;
use super::builder::{Builder, Place};

/// Which hosts of a network are lowered.
#[derive(Clone, Copy, Debug)]
pub struct Network<'a> {
    /// The network.
    pub fabric: &'a Fabric,
    /// By host, its place in [`Fabric::hosts`].
    pub hosts: &'a [usize],
}

/// Vertices that stand for switches, made as NICs ask for them.
#[derive(Debug)]
pub(super) struct Wiring<'a> {
    network: Network<'a>,
    /// By host and place in its list of NICs.
    ports: Vec<BTreeMap<usize, &'a FabricNic>>,
    /// By switch, the first of those that it reaches; itself where cables are told.
    stands_for: Vec<usize>,
    places: BTreeMap<usize, Place>,
}

/// By host, what was assumed of it.
type Assumed = Vec<(HostId, String)>;

impl<'a> Wiring<'a> {
    /// Which port of the network each NIC is, with what was assumed of each host.
    ///
    /// # Errors
    /// The host, and why its NICs cannot be found.
    pub(super) fn new(
        network: Network<'a>,
        hosts: &[Snapshot],
    ) -> Result<(Self, Assumed), LowerError> {
        let Network { fabric, hosts: places } = network;
        let refuse = |host: usize, reason: String| LowerError { host, reason };
        if places.len() != hosts.len() {
            let (hosts, places) = (hosts.len(), places.len());
            return Err(refuse(0, format!("{hosts} hosts, and places of {places} in the network")));
        }
        let mut ports = Vec::new();
        let mut assumed = Assumed::new();
        for (host, (place, snapshot)) in places.iter().zip(hosts).enumerate() {
            let there = fabric.hosts.get(*place);
            let there = there
                .ok_or_else(|| refuse(host, format!("there is no host {place} in the network")))?;
            let (found, notes) = ports_of(fabric, &there.nics, &snapshot.nics)
                .map_err(|reason| refuse(host, format!("{}: {reason}", there.name)))?;
            let id = HostId(u32::try_from(host).unwrap_or(u32::MAX));
            assumed.extend(notes.into_iter().map(|note| (id, note)));
            ports.push(found);
        }
        let stands_for = if fabric.form.tells_cables() {
            (0..fabric.switches.len()).collect()
        } else {
            first_reached(fabric)
        };
        Ok((Self { network, ports, stands_for, places: BTreeMap::new() }, assumed))
    }

    /// The port of a NIC and the switch it is at; `None` where the network has no such port.
    fn port(&self, host: HostId, index: usize) -> Option<(&'a FabricNic, usize)> {
        let port = *self.ports.get(host.index())?.get(&index)?;
        Some((port, *self.stands_for.get(port.leaf?)?))
    }

    /// Switches that a way from one used leaf up and down to another may pass, the leaves too.
    fn used(&self) -> BTreeSet<usize> {
        let mut used: BTreeSet<usize> = self.places.keys().copied().collect();
        let mut next: Vec<usize> = used.iter().copied().collect();
        let switches = &self.network.fabric.switches;
        while let Some(at) = next.pop() {
            for port in &switches[at].ports {
                // Upwards, and across where switches of one tier are joined.
                if let Peer::Switch(to) = port.to
                    && switches[to].tier >= switches[at].tier
                    && used.insert(to)
                {
                    next.push(to);
                }
            }
        }
        // What leads nowhere but back is no way.
        loop {
            let leads = |at: usize| {
                let to = switches[at].ports.iter().filter_map(|port| match port.to {
                    Peer::Switch(to) if used.contains(&to) && to != at => Some(to),
                    _ => None,
                });
                to.collect::<BTreeSet<usize>>().len()
            };
            let ends = |at: &usize| !self.places.contains_key(at) && leads(*at) < 2;
            let Some(end) = used.iter().copied().find(ends) else { break };
            used.remove(&end);
        }
        used
    }
}

/// By place in `nics`, the port that it is, and what was assumed to say so.
fn ports_of<'a>(
    fabric: &Fabric,
    ports: &'a [FabricNic],
    nics: &[Nic],
) -> Result<(BTreeMap<usize, &'a FabricNic>, Vec<String>), String> {
    let number = |port: Option<u32>| port.unwrap_or(1);
    let named = |nic: &Nic| {
        ports.iter().find(|port| {
            port.name.as_ref() == Some(&nic.name) && number(port.port) == number(nic.port)
        })
    };
    let mut found: BTreeMap<usize, &FabricNic> = BTreeMap::new();
    let mut notes = Vec::new();
    let wanted: Vec<(usize, &Nic)> =
        nics.iter().enumerate().filter(|(_, nic)| nic.role != NicRole::Other).collect();
    found.extend(nics.iter().enumerate().filter_map(|(index, nic)| Some((index, named(nic)?))));
    let leaves: BTreeSet<Option<usize>> = ports.iter().map(|port| port.leaf).collect();
    if !found.is_empty() {
        for (index, nic) in wanted.iter().filter(|(index, _)| !found.contains_key(index)) {
            notes.push((
                *index,
                format!("{}: not in the network's file, no way to the network", nic.name),
            ));
        }
        notes.sort();
    } else if let ([port, ..], 1) = (ports, leaves.len())
        && (ports.len() == wanted.len() || !fabric.form.tells_cables())
    {
        // Whichever port each is, all are at one switch; a form without cables tells no ports at all.
        found.extend(wanted.iter().map(|(index, _)| (*index, port)));
    } else if ports.len() == wanted.len() {
        let mut wanted = wanted;
        wanted.sort_by(|(_, a), (_, b)| natural_cmp(&a.name, &b.name).then(a.port.cmp(&b.port)));
        for ((index, nic), port) in wanted.into_iter().zip(ports) {
            let what = port.name.as_deref().unwrap_or("port without a name");
            notes.push((
                index,
                format!(
                    "{}: taken as {what} of the network's file, by the order of names",
                    nic.name
                ),
            ));
            found.insert(index, port);
        }
    } else {
        let names = |names: Vec<&str>| names.join(", ");
        return Err(format!(
            "which NIC is at which switch cannot be told: the network's file has {} ports ({}), the host {} NICs ({})",
            ports.len(),
            names(ports.iter().map(|port| port.name.as_deref().unwrap_or("no name")).collect()),
            wanted.len(),
            names(wanted.iter().map(|(_, nic)| nic.name.as_str()).collect()),
        ));
    }
    Ok((found, notes.into_iter().map(|(_, note)| note).collect()))
}

/// By switch, the first of those that reach each other.
fn first_reached(fabric: &Fabric) -> Vec<usize> {
    let mut joined: Vec<BTreeSet<usize>> = alloc::vec![BTreeSet::new(); fabric.switches.len()];
    for (at, switch) in fabric.switches.iter().enumerate() {
        for port in &switch.ports {
            if let Peer::Switch(to) = port.to {
                joined[at].insert(to);
                joined[to].insert(at);
            }
        }
    }
    let mut first: Vec<Option<usize>> = alloc::vec![None; joined.len()];
    for start in 0..joined.len() {
        let mut next = alloc::vec![start];
        while let Some(at) = next.pop() {
            if first[at].is_none() {
                first[at] = Some(start);
                next.extend(&joined[at]);
            }
        }
    }
    first.into_iter().enumerate().map(|(at, first)| first.unwrap_or(at)).collect()
}

impl Builder<'_> {
    /// The vertex that a NIC's port leads to, and the port's rate where the network tells it; `None` where it has no such port.
    pub(super) fn meeting_point(
        &mut self,
        host: HostId,
        index: usize,
    ) -> Result<Option<(Place, Option<u64>)>, String> {
        let Some(wiring) = &self.wiring else {
            return Ok(Some((self.fabric("fabric")?, None)));
        };
        let Some((port, switch)) = wiring.port(host, index) else { return Ok(None) };
        let place = self.switch(switch)?;
        Ok(Some((place, port.mbit)))
    }

    /// The vertex of a switch.
    fn switch(&mut self, switch: usize) -> Result<Place, String> {
        let Some(wiring) = &self.wiring else { return self.fabric("fabric") };
        if let Some(place) = wiring.places.get(&switch) {
            return Ok(*place);
        }
        let fabric = wiring.network.fabric;
        let one = !fabric.form.tells_cables() && wiring.stands_for.iter().all(|first| *first == 0);
        let name = if one {
            "fabric".to_owned()
        } else {
            format!("fabric:{}", fabric.switches[switch].name)
        };
        let place = self.fabric(&name)?;
        if let Some(wiring) = &mut self.wiring {
            wiring.places.insert(switch, place);
        }
        Ok(place)
    }

    fn fabric(&mut self, name: &str) -> Result<Place, String> {
        match self.by_name.get(name).copied() {
            Some(place) if self.vertices[place].kind == VertexKind::Fabric => Ok(place),
            _ => self.add(None, name, VertexKind::Fabric, None),
        }
    }

    /// The switches above the leaves that NICs asked for, and their cables.
    pub(super) fn join_leaves(&mut self) -> Result<(), String> {
        let Some(wiring) = &self.wiring else { return Ok(()) };
        let fabric = wiring.network.fabric;
        if !fabric.form.tells_cables() {
            if !wiring.places.is_empty() {
                self.assumptions.insert(format!(
                    "the network's file ({}) tells no rates: switches that reach each other are taken as blocking nothing",
                    fabric.form
                ));
            }
            return Ok(());
        }
        let used = wiring.used();
        let mut silent = false;
        for &at in &used {
            for port in &fabric.switches[at].ports {
                let Peer::Switch(to) = port.to else { continue };
                if !used.contains(&to) {
                    continue;
                }
                let rate = rates::nic(port.mbit);
                silent |= rate.assumed.is_some();
                let (from, to) = (self.switch(at)?, self.switch(to)?);
                // The other direction is the other end's port.
                let link = crate::Link {
                    kind: LinkKind::Net,
                    bandwidth: rate.bandwidth,
                    count: 1,
                    host_bridge: None,
                };
                self.link(from, to, link);
            }
        }
        if used.len() > 1 {
            self.assumptions.insert(
                "between switches data takes all cables that lead up and down again, in proportion to their rates, as adaptive routing does".into(),
            );
        }
        if silent {
            self.assumptions
                .insert("cables between switches whose rate is not told: 10 Gbit/s assumed".into());
        }
        Ok(())
    }
}
