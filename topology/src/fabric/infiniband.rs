//! `ibnetdiscover` output and net files of ibsim.
//!
//! ```text
//!   Switch  65 "S-2c5e…"   # "MF0;leaf-1:MQM9701/U1" enhanced port 0 lid 73 lmc 0
//!   [1]  "H-e09d…"[1](e09d…)   # "host-1 mlx5_5" lid 647 4xNDR
//!
//!   Ca  1 "H-e09d…"        # "host-1 mlx5_5"
//!   [1](e09d…)  "S-2c5e…"[1]   # lid 647 lmc 0 "MF0;leaf-1:MQM9701/U1" lid 73 4xNDR
//! ```
//!
//! In net files the text after `#` may be missing, names are any, and `Hca` stands for `Ca`. Whether a node is a switch is told by
//! the block that describes it, else by its name's first letter.

use alloc::format;
use alloc::string::String;

use super::network::{FarEnd, Network, NodeKind};
use super::{Fabric, FabricForm};
use crate::formats::{ReadError, excerpt};

const FORM: FabricForm = FabricForm::Infiniband;

/// A line that begins a node's block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NodeLine<'a> {
    kind: NodeKind,
    id: &'a str,
    description: Option<&'a str>,
}

pub(super) fn node_line(line: &str) -> Option<NodeLine<'_>> {
    let (kind, rest) = line.trim().split_once(char::is_whitespace)?;
    let (count, rest) = rest.trim_start().split_once(char::is_whitespace)?;
    let kind = match kind {
        "Switch" => NodeKind::Switch,
        "Rt" => NodeKind::Router,
        "Ca" | "Hca" => NodeKind::Adapter,
        _ => return None,
    };
    let digits = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
    let (id, rest) = quoted(rest.trim_start())?;
    let description = rest.split_once('#').and_then(|(_, rest)| quoted(rest.trim_start()));
    digits.then_some(NodeLine {
        kind,
        id,
        description: description.map(|(description, _)| description),
    })
}

/// The text in quotes that a text begins with, and what follows.
fn quoted(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('"')?.split_once('"')
}

/// Mbit/s of `4xNDR`.
pub(super) fn rate(width: &str, speed: &str) -> Option<u64> {
    // Mbit/s per lane, as the kernel prints rates of ports (drivers/infiniband/core/sysfs.c).
    let lane = match speed {
        "SDR" => 2_500,
        "DDR" => 5_000,
        "QDR" | "FDR10" => 10_000,
        "FDR" => 14_000,
        "EDR" => 25_000,
        "HDR" => 50_000,
        "NDR" => 100_000,
        "XDR" => 200_000,
        _ => return None,
    };
    let width: u64 = width.parse().ok().filter(|width| [1, 2, 4, 8, 12].contains(width))?;
    Some(width * lane)
}

fn rate_in(comment: &str) -> Option<u64> {
    let mut words = comment.split_whitespace().rev();
    words.find_map(|word| word.split_once('x').and_then(|(width, speed)| rate(width, speed)))
}

pub(super) fn read(text: &str) -> Result<Fabric, ReadError> {
    let mut network = Network::new(FORM);
    let refuse = |line: usize, reason: String| ReadError { format: FORM.name(), line, reason };
    let mut current = None;
    // Kinds by the blocks, before cables name nodes that come later.
    for (number, line) in (1..).zip(text.lines()) {
        let Some(node) = node_line(line) else { continue };
        network.node(number, node.kind, node.id, node.description, false)?;
    }
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if let Some(node) = node_line(line) {
            current = Some((network.node(number, node.kind, node.id, None, true)?, node.kind));
            continue;
        }
        let Some(rest) = line.strip_prefix('[') else {
            // Headers (`vendid=…`), comments, and what shells print around.
            continue;
        };
        // The prompt of a shell: `[root@n1 ~]$`.
        if rest.split_once(']').is_some_and(|(inside, _)| inside.contains('@')) {
            continue;
        }
        let Some((node, kind)) = current else {
            return Err(refuse(number, "a port before any node".into()));
        };
        let (port, rest) = rest
            .split_once(']')
            .and_then(|(port, rest)| Some((port.trim().parse::<u32>().ok()?, rest)))
            .ok_or_else(|| refuse(number, format!("'{}' is no port", excerpt(line))))?;
        // The port's own GUID, and ibsim's marks before the name.
        let start = rest.find('"').unwrap_or(rest.len());
        let Some((id, rest)) = quoted(&rest[start..]) else {
            return Err(refuse(number, format!("'{}' names no far end", excerpt(line))));
        };
        let far_port = rest
            .trim_start()
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'))
            .and_then(|(port, _)| port.trim().parse::<u32>().ok())
            .ok_or_else(|| {
                refuse(number, format!("'{}' names no port of the far end", excerpt(line)))
            })?;
        let comment = rest.split_once('#').map_or("", |(_, comment)| comment);
        let far_kind = match id.as_bytes().first() {
            Some(b'S') => NodeKind::Switch,
            Some(b'R') => NodeKind::Router,
            _ => NodeKind::Adapter,
        };
        // At a switch the far end's description comes first; at an adapter it is the switch's, after the own lid.
        let description = match kind {
            NodeKind::Switch => quoted(comment.trim_start()).map(|(text, _)| text),
            _ => comment.split_once('"').and_then(|(_, rest)| rest.split_once('"')).map(|(t, _)| t),
        };
        let far = FarEnd { kind: far_kind, id, port: far_port, description };
        network.cable(number, node, port, &far, rate_in(comment))?;
    }
    network.finish()
}
