//! `topoctl fabric --order`: hosts so that those that are close follow each other, and what that brings.
//!
//! NCCL numbers hosts by the first rank on each, leads rings from each host to the next, and builds its two trees over these numbers.
//! So the order in which a launcher lists hosts decides how many of these edges cross which tier of the network.

use std::collections::BTreeMap;
use std::fmt::Write;

use planner::trees::double_tree;
use serde::Serialize;
use topology::fabric::{Crossings, Fabric, Levels, host_list};

use crate::args::{FabricArgs, TextFormat};
use crate::exit::{Exit, Failure};
use crate::output::{self, table};

#[derive(Debug, Serialize)]
struct Document {
    schema_version: u32,
    source: &'static str,
    order: Vec<String>,
    /// Where two hosts can meet, closest first.
    levels: Vec<String>,
    /// In the order of `--hosts`, else of their names as text, as Slurm and torchrun list hosts.
    before: Patterns,
    after: Patterns,
    /// Hosts that no switch and no block places; they come last.
    unplaced: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Patterns {
    ring: Row,
    double_tree: Row,
}

/// Edges by the level at which their ends meet.
#[derive(Debug, Serialize)]
struct Row {
    by_level: Vec<usize>,
    /// Between hosts that nothing in the file joins.
    apart: usize,
}

pub(super) fn run(args: &FabricArgs, fabric: &Fabric) -> Result<Exit, Failure> {
    let levels = fabric.levels();
    let before = chosen(args, fabric)?;
    let mut place = vec![0_usize; fabric.hosts.len()];
    for (at, host) in levels.order().iter().enumerate() {
        place[*host] = at;
    }
    let placed = super::placed(fabric);
    let is_placed = |host: &usize| placed.contains(host);
    let mut after = before.clone();
    after.sort_by_key(|host| (!is_placed(host), place[*host]));
    let name = |host: &usize| fabric.hosts[*host].name.clone();
    let document = Document {
        schema_version: 1,
        source: fabric.form.name(),
        order: after.iter().map(name).collect(),
        levels: levels.names.clone(),
        before: patterns(&levels, &before),
        after: patterns(&levels, &after),
        unplaced: after.iter().filter(|host| !is_placed(host)).map(name).collect(),
    };
    match args.output {
        TextFormat::Json => output::print_json(&document)?,
        TextFormat::Table => output::print(&text(&document))?,
    }
    Ok(if document.unplaced.is_empty() { Exit::Ok } else { Exit::Unknown })
}

/// Places of the hosts asked for, in that order; else of all, by their names as text.
fn chosen(args: &FabricArgs, fabric: &Fabric) -> Result<Vec<usize>, Failure> {
    let places: BTreeMap<&str, usize> =
        fabric.hosts.iter().enumerate().map(|(at, host)| (host.name.as_str(), at)).collect();
    let Some(list) = &args.hosts else { return Ok(places.into_values().collect()) };
    super::places(fabric, "--hosts", list)
}

fn patterns(levels: &Levels, order: &[usize]) -> Patterns {
    let row = |Crossings { by_level, apart }: Crossings| Row { by_level, apart };
    Patterns {
        ring: row(levels.count(ring(order.len()).map(|(a, b)| (order[a], order[b])))),
        double_tree: row(levels.count(trees(order.len()).map(|(a, b)| (order[a], order[b])))),
    }
}

/// Edges of a ring over places; none for one host alone.
fn ring(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).filter(move |_| count > 1).map(move |at| (at, (at + 1) % count))
}

/// Edges of both trees over places.
fn trees(count: usize) -> impl Iterator<Item = (usize, usize)> {
    double_tree(count).into_iter().flat_map(|parents| {
        parents.into_iter().enumerate().filter_map(|(at, parent)| Some((at, parent?)))
    })
}

/// Comments and one host a line, so that the text is a hostfile.
fn text(document: &Document) -> String {
    let mut rows = vec![vec!["# edges that meet at".to_owned()]];
    rows[0].extend(document.levels.iter().cloned());
    let is_apart = [&document.before, &document.after]
        .iter()
        .any(|patterns| patterns.ring.apart + patterns.double_tree.apart > 0);
    if is_apart {
        rows[0].push("nowhere".into());
    }
    for (when, patterns) in [("before", &document.before), ("after", &document.after)] {
        for (what, row) in [("ring", &patterns.ring), ("double tree", &patterns.double_tree)] {
            let mut cells = vec![format!("# {what} {when}")];
            cells.extend(row.by_level.iter().map(ToString::to_string));
            if is_apart {
                cells.push(row.apart.to_string());
            }
            rows.push(cells);
        }
    }
    let mut text = table(&rows);
    if !document.unplaced.is_empty() {
        let _ = writeln!(
            text,
            "# last, because nothing places them: {}",
            host_list::fold(&document.unplaced)
        );
    }
    for host in &document.order {
        text.push_str(host);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::fabric::{FabricForm, read};

    /// Leaves of 32 hosts, pods of some leaves, a core above.
    fn pods(count: usize, leaves_per_pod: usize) -> Fabric {
        let mut text = String::new();
        let leaves = count / 32;
        let pods = leaves / leaves_per_pod;
        let _ = writeln!(text, "SwitchName=core Switches=pod[0-{}]", pods - 1);
        for pod in 0..pods {
            let first = leaves_per_pod * pod;
            let last = first + leaves_per_pod - 1;
            let _ = writeln!(text, "SwitchName=pod{pod} Switches=leaf[{first}-{last}]");
        }
        for leaf in 0..leaves {
            let (first, last) = (32 * leaf, 32 * leaf + 31);
            let _ = writeln!(text, "SwitchName=leaf{leaf} Nodes=n[{first}-{last}]");
        }
        read(FabricForm::SlurmConf, &text).unwrap()
    }

    fn counted(levels: &Levels, order: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let Patterns { ring, double_tree } = patterns(levels, order);
        assert_eq!(ring.apart + double_tree.apart, 0);
        (ring.by_level, double_tree.by_level)
    }

    /// Numbers counted for NCCL's ring and double tree by others than this code.
    #[test]
    fn crossings_of_a_thousand_hosts() {
        let fabric = pods(1024, 8);
        let levels = fabric.levels();
        assert_eq!(levels.names, ["leaf", "tier 2", "tier 3"]);
        let sorted = counted(&levels, levels.order());
        assert_eq!(sorted, (vec![992, 28, 4], vec![1952, 84, 10]));
        // Striped: neighbours by name are in different leaves.
        let striped: Vec<usize> = (0..1024).map(|at| (at % 32) * 32 + at / 32).collect();
        let by_name: Vec<usize> = (0..1024).collect();
        assert_eq!(levels.order(), by_name);
        let (ring, trees) = counted(&levels, &striped);
        assert_eq!(ring, [0, 896, 128]);
        assert_eq!(trees, [62, 1664, 320]);
        let fabric = pods(4096, 32);
        let levels = fabric.levels();
        let (ring, trees) = counted(&levels, levels.order());
        assert_eq!((ring[2], trees[2]), (4, 10));
    }

    #[test]
    fn small_orders_have_no_edges_to_themselves() {
        assert_eq!(ring(1).count(), 0);
        assert_eq!(ring(0).count(), 0);
        assert_eq!(trees(1).count(), 0);
        assert_eq!(ring(2).count(), 2);
    }
}
