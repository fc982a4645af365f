//! Where the hosts of each axis's groups meet in the network, and whether another order of hosts would bring them closer.

use std::collections::BTreeMap;
use std::fmt::Write;

use planner::map::{MappedRank, Mapping};
use serde::Serialize;
use topology::Finding;
use topology::Severity;
use topology::fabric::{Fabric, Levels};

#[derive(Debug, Serialize)]
pub(super) struct Network {
    source: &'static str,
    /// Hosts by place, as the network's file calls them.
    hosts: Vec<String>,
    /// Where two hosts can meet, closest first.
    levels: Vec<String>,
    axes: Vec<AxisRow>,
    /// The hosts in an order in which close ones follow each other, where fewer bytes then go far.
    closer: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
struct AxisRow {
    axis: &'static str,
    /// Groups that lie inside one host.
    inside: usize,
    /// By level, groups whose hosts first meet there.
    by_level: Vec<usize>,
    /// Groups that nothing in the file joins.
    apart: usize,
}

/// A rank's place along every axis but one.
type Others = (usize, usize, usize);
type Key = fn(&MappedRank) -> Others;

impl Network {
    /// What a network says of a mapping; `places` are those of the mapping's hosts in it.
    pub(super) fn of(fabric: &Fabric, places: &[usize], mapping: &Mapping) -> Self {
        let levels = fabric.levels();
        let name = |place: &usize| fabric.hosts[*place].name.clone();
        let rows = axes(&levels, places, mapping);
        let mut at = vec![0; fabric.hosts.len()];
        for (order, host) in levels.order().iter().enumerate() {
            at[*host] = order;
        }
        let mut near = places.to_vec();
        near.sort_by_key(|place| at[*place]);
        let sent = sent(mapping);
        let better = distance(&axes(&levels, &near, mapping), &sent) < distance(&rows, &sent);
        Self {
            source: fabric.form.name(),
            hosts: places.iter().map(name).collect(),
            levels: levels.names,
            axes: rows,
            closer: better.then(|| near.iter().map(name).collect()),
        }
    }

    /// Groups that no way joins.
    pub(super) fn warnings(&self) -> Vec<Finding> {
        let apart = self.axes.iter().filter(|axis| axis.apart > 0);
        apart
            .map(|axis| {
                Finding::new(
                    "group-is-apart-in-the-network",
                    Severity::Degraded,
                    axis.axis,
                    format!(
                        "{} groups have hosts that nothing in the {} joins",
                        axis.apart, self.source
                    ),
                    "take hosts that the network joins, or a file of the whole network",
                )
            })
            .collect()
    }

    pub(super) fn render(&self) -> String {
        let mut rows = vec![
            ["AXIS".to_owned(), "ONE HOST".to_owned()]
                .into_iter()
                .chain(self.levels.iter().map(|level| level.to_uppercase()))
                .chain(["APART".to_owned()])
                .collect::<Vec<_>>(),
        ];
        for axis in &self.axes {
            let counts =
                [axis.inside].into_iter().chain(axis.by_level.iter().copied()).chain([axis.apart]);
            rows.push(
                [axis.axis.to_owned()]
                    .into_iter()
                    .chain(counts.map(|count| count.to_string()))
                    .collect(),
            );
        }
        let mut text = format!(
            "\nGroups by where their hosts meet ({}):\n{}",
            self.source,
            crate::output::table(&rows)
        );
        if let Some(closer) = &self.closer {
            let _ = writeln!(
                text,
                "closer with hosts in the order {}",
                topology::fabric::host_list::fold(closer)
            );
        }
        text
    }
}

/// By axis, the bytes that each of its members brings to its operations in a step.
fn sent(mapping: &Mapping) -> BTreeMap<&'static str, u128> {
    let mut sent = BTreeMap::new();
    for axis in &mapping.axes {
        let operation = &axis.operation;
        let bytes = u128::from(operation.bytes) * u128::from(operation.times);
        *sent.entry(operation.axis.as_str()).or_default() += bytes;
    }
    sent
}

/// Bytes of groups by how far they go, the farthest first: fewer there are better, whatever is nearer.
fn distance(rows: &[AxisRow], sent: &BTreeMap<&'static str, u128>) -> Vec<u128> {
    let levels = rows.first().map_or(0, |row| row.by_level.len());
    let weight = |row: &AxisRow, groups: usize| {
        groups as u128 * sent.get(row.axis).copied().unwrap_or_default()
    };
    let apart = rows.iter().map(|row| weight(row, row.apart)).sum();
    let at = |level: usize| rows.iter().map(|row| weight(row, row.by_level[level])).sum();
    [apart].into_iter().chain((0..levels).rev().map(at)).collect()
}

fn axes(levels: &Levels, places: &[usize], mapping: &Mapping) -> Vec<AxisRow> {
    let keys: [(&'static str, Key); 4] = [
        ("tp", |rank| (rank.at.cp, rank.at.dp, rank.at.pp)),
        ("cp", |rank| (rank.at.tp, rank.at.dp, rank.at.pp)),
        ("dp", |rank| (rank.at.tp, rank.at.cp, rank.at.pp)),
        ("pp", |rank| (rank.at.tp, rank.at.cp, rank.at.dp)),
    ];
    let mut rows = Vec::new();
    for (axis, key) in keys {
        let mut groups: BTreeMap<Others, Vec<usize>> = BTreeMap::new();
        for rank in &mapping.ranks {
            groups.entry(key(rank)).or_default().push(places[rank.host]);
        }
        if groups.values().all(|hosts| hosts.len() < 2) {
            continue;
        }
        let mut row = AxisRow { axis, inside: 0, by_level: vec![0; levels.names.len()], apart: 0 };
        for hosts in groups.into_values() {
            let first = hosts[0];
            if hosts.iter().all(|host| *host == first) {
                row.inside += 1;
                continue;
            }
            let others = hosts.iter().filter(|host| **host != first);
            // Sets grow, so where the farthest meets the first, all do.
            match others
                .map(|host| levels.meet(first, *host))
                .try_fold(0, |far, met| met.map(|met| far.max(met)))
            {
                Some(level) => row.by_level[level] += 1,
                None => row.apart += 1,
            }
        }
        rows.push(row);
    }
    rows
}
