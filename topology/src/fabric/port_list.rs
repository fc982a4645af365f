//! `ibnetdiscover -p`: a line for each port.
//!
//! ```text
//!   CA   134  1 0x7cfe9003003b4bde 4x EDR - SW  1719 10 0x7cfe9003009ce5b0 ( 'o0001 HCA-1' - 'ib-i1l1s01' )
//!   SW  2052 37 0x506b4b03005c2740 4x ???                                    'ib-i4l1s01'
//! ```
//!
//! Nodes are told apart by the GUID of their port, so that an adapter of two ports is two of one description.

use alloc::format;
use alloc::string::String;

use super::infiniband::rate;
use super::network::{FarEnd, Network, NodeKind};
use super::{Fabric, FabricForm};
use crate::formats::{ReadError, excerpt};

const FORM: FabricForm = FabricForm::PortList;

/// Kind, port and GUID of one end.
struct End<'a> {
    kind: NodeKind,
    port: u32,
    guid: &'a str,
}

/// The end that words begin with, and the words after it.
fn end<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<End<'a>> {
    let kind = match words.next()? {
        "CA" => NodeKind::Adapter,
        "SW" => NodeKind::Switch,
        "RT" => NodeKind::Router,
        _ => return None,
    };
    words.next()?.parse::<u32>().ok()?;
    let port = words.next()?.parse().ok()?;
    let guid = words.next().filter(|word| word.starts_with("0x") && word.len() > 2)?;
    Some(End { kind, port, guid })
}

pub(super) fn is_line(line: &str) -> bool {
    end(&mut line.split_whitespace()).is_some()
}

pub(super) fn read(text: &str) -> Result<Fabric, ReadError> {
    let mut network = Network::new(FORM);
    let mut unconnected = 0_usize;
    for (number, line) in (1..).zip(text.lines()) {
        let refuse = |reason: String| ReadError { format: FORM.name(), line: number, reason };
        let mut words = line.split_whitespace();
        let Some(near) = end(&mut words) else {
            let known = ["CA", "SW", "RT"];
            if line.split_whitespace().next().is_some_and(|word| known.contains(&word)) {
                return Err(refuse(format!("'{}' is no port", excerpt(line.trim()))));
            }
            continue;
        };
        let mbit = match (words.next(), words.next()) {
            (Some(width), Some(speed)) => {
                width.strip_suffix('x').and_then(|width| rate(width, speed))
            }
            _ => return Err(refuse("the line ends before the port's width and speed".into())),
        };
        let cabled = words.next() == Some("-");
        let far = if cabled {
            Some(end(&mut words).ok_or_else(|| refuse("no far end after the '-'".into()))?)
        } else {
            None
        };
        let descriptions = line.split_once('(').map(|(_, rest)| rest);
        let (near_text, far_text) = match descriptions {
            Some(text) if cabled => text
                .split_once("' - '")
                .map_or((None, None), |(a, b)| (between(a, b, true), between(a, b, false))),
            _ => (None, None),
        };
        // A port that leads nowhere says no more than that its switch is there.
        let alone = line.split_once('\'').and_then(|(_, rest)| rest.rsplit_once('\''));
        let near_text =
            near_text.or_else(|| if cabled { None } else { alone.map(|(text, _)| text) });
        let node = network.node(number, near.kind, near.guid, near_text, true)?;
        match far {
            None => unconnected += 1,
            Some(far) => {
                let far =
                    FarEnd { kind: far.kind, id: far.guid, port: far.port, description: far_text };
                network.cable(number, node, near.port, &far, mbit)?;
            }
        }
    }
    let mut fabric = network.finish()?;
    if unconnected > 0 {
        fabric.notes.push(format!("{unconnected} ports lead nowhere"));
    }
    Ok(fabric)
}

/// The first or second of ` 'a' - 'b' )`, whose halves at `' - '` are given.
fn between<'a>(first: &'a str, second: &'a str, near: bool) -> Option<&'a str> {
    if near {
        first.split_once('\'').map(|(_, text)| text)
    } else {
        second.rsplit_once('\'').map(|(text, _)| text)
    }
}
