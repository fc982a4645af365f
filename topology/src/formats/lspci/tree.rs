//! The tree that `lspci -tv` draws.
//!
//! A branch hangs below the column where its line began, so columns say what is below what:
//!
//! ```text
//!   -+-[0000:20]-+-03.1-[21]--+-00.0  Mellanox …        a root bus, a bridge, the bus below it, a function
//!    |           |            \-00.1  Mellanox …        same bus: the branch column is that of the line above
//!    |           \-07.1-[22]----00.0  AMD …             one function alone needs no branch
//! ```

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::verbose::vendor_by_name;
use super::{FORMAT, Listing};
use crate::BusId;
use crate::formats::pci_tree::{Function, Guess, Tree};
use crate::formats::text::excerpt;
use crate::formats::{DEVICE_LIMIT, ReadError};

/// Whether a line is of a tree: it begins with a root bus, or ends a branch.
pub(in crate::formats) fn is_tree_line(line: &str) -> bool {
    ["-[", "-+-[", "+-[", "\\-["].iter().any(|start| {
        line.strip_prefix(start).is_some_and(|rest| {
            rest.split_once(']')
                .is_some_and(|(bus, rest)| root(bus).is_some() && rest.starts_with('-'))
        })
    })
}

/// Whether a text has a tree whose devices are named.
pub(super) fn is_in(text: &str) -> bool {
    let mut inside = false;
    text.lines().any(|line| {
        inside |= is_tree_line(line.trim());
        inside && line.contains("  ") && vendor_by_name(name(line).1).is_some()
    })
}

/// A line without its name, and the name: what follows the first function that two spaces follow.
fn name(line: &str) -> (&str, &str) {
    let start = line.find(|c: char| !matches!(c, ' ' | '|')).unwrap_or(line.len());
    match line[start..].find("  ") {
        Some(at) => (&line[..start + at], line[start + at..].trim()),
        None => (line.trim_end(), ""),
    }
}

/// Domain and bus of `0000:20`, or of `20` alone.
fn root(text: &str) -> Option<(u32, u8)> {
    let (domain, bus) = text.split_once(':').unwrap_or(("0", text));
    let short = bus.len() == 2 && domain.len() <= 8;
    short
        .then(|| Some((u32::from_str_radix(domain, 16).ok()?, u8::from_str_radix(bus, 16).ok()?)))
        .flatten()
}

/// What hangs at a branch.
#[derive(Clone, Copy, Debug)]
enum Bus {
    /// Root buses.
    Roots,
    /// Functions of a bus, below a bridge or a host bridge.
    Functions { domain: u32, bus: u8, bridge: Option<BusId> },
}

struct Reader {
    tree: Tree,
    names: Vec<(BusId, String)>,
    /// Columns where branches hang, and what hangs there; the last is the deepest.
    branches: Vec<(usize, Bus)>,
    lines: BTreeMap<BusId, usize>,
}

pub(super) fn read(text: &str) -> Result<Listing, ReadError> {
    let mut reader = Reader {
        tree: Tree::default(),
        names: Vec::new(),
        branches: Vec::new(),
        lines: BTreeMap::new(),
    };
    let mut first = None;
    for (number, line) in (1..).zip(text.lines()) {
        if first.is_none() {
            if !is_tree_line(line.trim()) {
                continue;
            }
            first = Some(number);
        }
        let refuse = |reason: String| ReadError { format: FORMAT, line: number, reason };
        match reader.line(number, line) {
            Ok(true) => {}
            // The tree ends at a line that is none of it.
            Ok(false) => break,
            Err(reason) => return Err(refuse(reason)),
        }
        if reader.tree.0.len() > 16 * DEVICE_LIMIT {
            return Err(refuse(format!("more than {} functions", 16 * DEVICE_LIMIT)));
        }
    }
    Ok(Listing {
        tree: reader.tree,
        names: reader.names,
        line: first.unwrap_or(0),
        missing: alloc::vec![
            "rates and widths of PCIe links are not told",
            "what a device is was told by its name alone",
        ],
    })
}

impl Reader {
    /// Takes a line; `false` where it is none of a tree.
    fn line(&mut self, number: usize, line: &str) -> Result<bool, String> {
        let (drawing, name) = name(line);
        let Some(start) = drawing.find(|c: char| !matches!(c, ' ' | '|')) else {
            return Ok(!line.trim().is_empty());
        };
        let mut rest = &drawing[start..];
        let mut bus = match rest.as_bytes().first() {
            Some(b'-') => {
                if !self.branches.is_empty() {
                    return Ok(false);
                }
                rest = &rest[1..];
                Bus::Roots
            }
            Some(b'+' | b'\\') => {
                while self.branches.last().is_some_and(|(column, _)| *column > start) {
                    self.branches.pop();
                }
                match self.branches.last() {
                    Some((column, bus)) if *column == start => *bus,
                    _ => return Err(
                        "a branch that hangs below nothing: the columns are not as lspci drew them"
                            .into(),
                    ),
                }
            }
            _ => return Ok(false),
        };
        let mut last;
        // Each turn takes one root bus or function.
        loop {
            let column = drawing.len() - rest.len();
            if rest.starts_with(['+', '\\']) {
                if self.branches.last().is_none_or(|(known, _)| *known < column) {
                    self.branches.push((column, bus));
                }
                rest = rest[1..]
                    .strip_prefix('-')
                    .ok_or("a branch without a line to what hangs there")?;
            }
            rest = rest.trim_start_matches('-');
            match bus {
                Bus::Roots => {
                    let (stated, after) = bracket(rest).ok_or("no root bus where one should be")?;
                    let (domain, number) =
                        root(stated).ok_or_else(|| format!("'{}' is no bus", excerpt(stated)))?;
                    bus = Bus::Functions { domain, bus: number, bridge: None };
                    last = None;
                    rest = after;
                }
                Bus::Functions { domain, bus: number_of, bridge } => {
                    let end = rest
                        .find(|c: char| !(c.is_ascii_hexdigit() || c == '.'))
                        .unwrap_or(rest.len());
                    let (place, after) = rest.split_at(end);
                    let id: BusId = format!("{domain:x}:{number_of:02x}:{place}")
                        .parse()
                        .map_err(|_| format!("'{}' is no function", excerpt(place)))?;
                    self.add(number, id, bridge)?;
                    last = Some(id);
                    rest = after;
                    if let Some((below, after)) = rest.strip_prefix('-').and_then(bracket) {
                        let first = below.split('-').next().and_then(root);
                        let (_, below_bus) =
                            first.ok_or_else(|| format!("'{}' are no buses", excerpt(below)))?;
                        bus = Bus::Functions { domain, bus: below_bus, bridge: Some(id) };
                        if let Some(function) = self.tree.0.get_mut(&id) {
                            function.is_bridge = true;
                        }
                        last = None;
                        rest = after;
                    } else {
                        break;
                    }
                }
            }
            // A line goes on to what is below, or a bridge has nothing below it.
            if !rest.starts_with('-') {
                break;
            }
            rest = &rest[1..];
            rest = rest.trim_start_matches('-');
            if rest.is_empty() {
                break;
            }
        }
        if !rest.trim().is_empty() {
            return Err(format!(
                "'{}' where a name or the end of the line should be",
                excerpt(rest)
            ));
        }
        if let (Some(id), false) = (last, name.is_empty()) {
            self.names.push((id, excerpt(name)));
            if let Some(function) = self.tree.0.get_mut(&id) {
                function.vendor = vendor_by_name(name);
                function.guess = guess(name);
            }
        }
        Ok(true)
    }

    fn add(&mut self, number: usize, id: BusId, bridge: Option<BusId>) -> Result<(), String> {
        if let Some(first) = self.lines.insert(id, number) {
            return Err(format!("{id} is also at line {first}"));
        }
        let host_bridge =
            bridge.is_none().then(|| format!("pci{:04x}:{:02x}", id.domain(), id.bus()));
        self.tree.0.insert(id, Function { parent: bridge, host_bridge, ..Function::default() });
        Ok(())
    }
}

/// The text in brackets that a text begins with, and what follows.
fn bracket(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('[')?.split_once(']')
}

/// What a device is, by its name: of a GPU's board the audio, USB and serial functions are none.
fn guess(name: &str) -> Option<Guess> {
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    let beside = [
        "Audio",
        "USB",
        "UCSI",
        "Serial",
        "Bridge",
        "Switch",
        "Encryption",
        "Device 1af1",
        "Device 22a3",
        "Device 1ac2",
    ];
    if vendor_by_name(name).is_some() {
        return (!has(&beside)).then_some(Guess::Gpu);
    }
    let nic = [
        "ConnectX",
        "BlueField",
        "Ethernet",
        "InfiniBand",
        "Infiniband",
        "Network Connection",
        "Elastic Fabric",
        "Omni-Path",
    ];
    let not = ["DMA controller", "Bridge", "Emulated", "SoC Management", "Crypto"];
    (has(&nic) && !has(&not)).then_some(Guess::Nic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_lines() {
        for (line, expect) in [
            ("-+-[0000:00]-+-00.0", true),
            ("-[0000:00]-+-00.0  Intel", true),
            ("+-[0000:20]-+-00.0", true),
            ("-[00]-+-00.0", true),
            ("\\-[10000:e0]---01.0-[e1]--", true),
            ("- [ ] a task", false),
            ("-[x]- done", false),
            ("-[0000:00]", false),
            ("", false),
        ] {
            assert_eq!(is_tree_line(line), expect, "{line}");
        }
    }

    #[test]
    fn guesses_by_name() {
        let nvidia = |rest: &str| guess(&format!("NVIDIA Corporation {rest}"));
        assert_eq!(nvidia("AD102GL [RTX 6000 Ada Generation]"), Some(Guess::Gpu));
        assert_eq!(nvidia("AD102 High Definition Audio Controller"), None);
        assert_eq!(nvidia("TU102 USB 3.1 Host Controller"), None);
        assert_eq!(nvidia("GH100 [H100 NVSwitch]"), None);
        assert_eq!(
            guess("Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X]"),
            Some(Guess::Gpu)
        );
        assert_eq!(
            guess(
                "Advanced Micro Devices, Inc. [AMD/ATI] Navi 10 XL Upstream Port of PCI Express Switch"
            ),
            None
        );
        assert_eq!(guess("Mellanox Technologies MT2910 Family [ConnectX-7]"), Some(Guess::Nic));
        assert_eq!(
            guess("Mellanox Technologies MT42822 BlueField-2 SoC Management Interface"),
            None
        );
        assert_eq!(guess("Samsung Electronics Co Ltd NVMe SSD Controller"), None);
    }
}
