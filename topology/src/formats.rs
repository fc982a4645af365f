//! Readers of recorded machines. Pure functions over bytes; the format is recognised by content.
//!
//! ```text
//!   bytes ── text ──▶ '<' by root: NCCL topology, hwloc, nvidia-smi -q -x ─┐
//!                     '{' by keys: snapshot, link graph, amd-smi ──────────┤
//!                     else by words: topo -m, rocm-smi, amd-smi, lspci ────┼──▶ one Snapshot per host, with
//!                     known and no topology (logs, fabrics, …): refused    │    a Fault for each fact not told
//! ```
//!
//! Every reader is strict about what it must not get wrong (a contradiction is a [`ReadError`] with its line)
//! and lenient about what is merely absent (a [`Fault`](crate::Fault) in the snapshot). None panics on any
//! bytes; size, depth and counts are limited before memory is spent on them.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::Snapshot;

mod foreign;
pub mod fuzz;
mod hwloc_xml;
pub mod job_plan_json;
mod link_graph;
mod lspci;
mod nccl_xml;
mod nvidia_smi_xml;
mod pci_tree;
pub mod plan_json;
mod rocm_topo;
mod snapshot_json;
mod text;
mod topo_matrix;
mod xml;

pub use link_graph::write_link_graph;
pub use snapshot_json::write_snapshot;
pub(crate) use text::excerpt;

/// Most bytes of an input. The largest real ones (a fused dump of a 576-GPU rack, a link graph of as
/// many GPUs in full mesh) stay under half of it.
pub const SIZE_LIMIT: usize = 16 << 20;

/// Most bytes of a text that may hold a matrix: many times the largest, with the report around it.
pub const TEXT_LIMIT: usize = 4 << 20;

/// Deepest nesting of an XML input. Real trees have at most a dozen levels of bridges.
pub const DEPTH_LIMIT: usize = 64;

/// Most elements of an XML input. NCCL itself stops at 256 per host.
pub const ELEMENT_LIMIT: usize = 1 << 16;

/// Most attributes of one XML element. NCCL itself stops at 16.
pub const ATTRIBUTE_LIMIT: usize = 32;

/// Most devices of a matrix.
pub const DEVICE_LIMIT: usize = 1024;

const UNRECOGNISED: &str = "unrecognised input";
const KNOWN: &str = "known are topod snapshot JSON, NCCL topology XML, hwloc XML, `nvidia-smi topo -m` and `-q -x`, \
                     `rocm-smi --showtopo`, `amd-smi topology` (also with --json), `lspci -vv` and `-tv` of all devices, and link graph JSON";

/// Why an input was refused: what it was taken for, where, and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{format}{}: {reason}", place(*line))]
pub struct ReadError {
    /// What the input was taken for: `NCCL topology XML`, ..., or `unrecognised input`.
    pub format: &'static str,
    /// Line in the input, from 1; 0 where no line can be named.
    pub line: usize,
    /// What is wrong, in words.
    pub reason: String,
}

/// `, line 3`; nothing where no line can be named.
fn place(line: usize) -> String {
    if line == 0 { String::new() } else { format!(", line {line}") }
}

/// Reads a recorded machine of any known format. More than one snapshot where the input holds several hosts,
/// then in rank order where the input tells ranks, else in the input's order.
///
/// # Errors
/// Where the bytes are of no known format, or contradict the format they are in.
pub fn read(bytes: &[u8]) -> Result<Vec<Snapshot>, ReadError> {
    if let Some(what) = foreign::container(bytes) {
        let reason = format!(
            "{what}; of archives only a host's /sys is read, as .tar, .tar.gz or .tar.bz2, by topoctl"
        );
        return Err(unrecognised(0, reason));
    }
    let text = decode(bytes)?;
    match sniff(&text) {
        Shape::Xml => read_xml(&text),
        Shape::Json => read_json(&text),
        // A file shown by `cat` in a terminal, say.
        Shape::Text if xml::is_in(&text) => read_xml(&text),
        Shape::Text => read_text(&text),
    }
}

fn read_xml(text: &str) -> Result<Vec<Snapshot>, ReadError> {
    let what = match xml::root_name(text) {
        "system" => return nccl_xml::read(text),
        "topology" => return hwloc_xml::read(text).map(|snapshot| alloc::vec![snapshot]),
        "nvidia_smi_log" => {
            return nvidia_smi_xml::read(text).map(|snapshot| alloc::vec![snapshot]);
        }
        "graphs" | "graph" => {
            return Err(foreign::recognise(text).unwrap_or_else(|| {
                unrecognised(1, "an NCCL graph file: channels, no topology".into())
            }));
        }
        "algo" => "an MSCCL schedule",
        "node" | "list" => "perhaps `lshw -xml` output, which is not read",
        "domain" => "perhaps a libvirt domain, which describes what a guest gets, not the host",
        "" => "no element",
        _ => "no topology",
    };
    let line = text.lines().position(|line| !line.trim().is_empty()).map_or(0, |at| at + 1);
    let root = excerpt(xml::root_name(text));
    Err(unrecognised(line, format!("XML whose root is <{root}>: {what}; {KNOWN}")))
}

fn read_text(text: &str) -> Result<Vec<Snapshot>, ReadError> {
    if text.len() > TEXT_LIMIT {
        return Err(foreign::recognise(&text[..text.floor_char_boundary(TEXT_LIMIT)])
            .unwrap_or_else(|| {
                unrecognised(
                    0,
                    format!("{} bytes of text; at most {TEXT_LIMIT} are read", text.len()),
                )
            }));
    }
    let matrix = topo_matrix::read(text);
    let snapshot = match matrix {
        Ok(snapshot) => snapshot,
        Err(topo_matrix::NotRead::Matrix(error)) => return Err(error),
        Err(topo_matrix::NotRead::Other(_)) if rocm_topo::is_in(text) => rocm_topo::read(text)?,
        Err(topo_matrix::NotRead::Other(_)) if lspci::is_in(text) => lspci::read(text)?,
        Err(topo_matrix::NotRead::Other(error)) => {
            return Err(foreign::recognise(text).unwrap_or(error));
        }
    };
    Ok(alloc::vec![snapshot])
}

fn read_json(text: &str) -> Result<Vec<Snapshot>, ReadError> {
    match snapshot_json::sniff(text)? {
        snapshot_json::Kind::Snapshot => snapshot_json::read(text),
        snapshot_json::Kind::LinkGraph => link_graph::read(text).map(|s| alloc::vec![s]),
        snapshot_json::Kind::AmdSmi => rocm_topo::read_json(text).map(|s| alloc::vec![s]),
        snapshot_json::Kind::Other(keys) => {
            Err(unrecognised(0, format!("JSON with {keys}; {KNOWN}")))
        }
    }
}

fn unrecognised(line: usize, reason: String) -> ReadError {
    ReadError { format: UNRECOGNISED, line, reason }
}

enum Shape {
    Xml,
    Json,
    Text,
}

/// By the first characters that are not white space. A shell prompt such as `[root@n1 ~]$` or `<user>$` is text.
fn sniff(text: &str) -> Shape {
    let start = text.trim_start();
    let mut chars = start.chars();
    match chars.next() {
        Some('<') if looks_like_xml(start) => Shape::Xml,
        Some('{') => Shape::Json,
        Some('[')
            if matches!(chars.as_str().trim_start().chars().next(), Some('{' | ']' | '"')) =>
        {
            Shape::Json
        }
        _ => Shape::Text,
    }
}

fn looks_like_xml(text: &str) -> bool {
    let second = text.as_bytes().get(1).copied().unwrap_or(0);
    matches!(second, b'?' | b'!')
        || (second.is_ascii_alphabetic()
            && (text.contains("/>") || text.contains("</") || !text.contains("GPU")))
}

/// Text of the bytes: UTF-8, or UTF-16 with a byte order mark (as PowerShell redirects). Other bytes become
/// U+FFFD, which no reader takes for a fact: they may stand in a comment or a banner.
fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, ReadError> {
    if bytes.len() > SIZE_LIMIT {
        let reason = format!("{} bytes; at most {SIZE_LIMIT} are read", bytes.len());
        return Err(unrecognised(0, reason));
    }
    let utf16 = |units: fn([u8; 2]) -> u16| {
        let units = bytes[2..].chunks_exact(2).map(|pair| units([pair[0], pair[1]]));
        char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
    };
    let text: Cow<'_, str> = match bytes {
        [0xFF, 0xFE, ..] => Cow::Owned(utf16(u16::from_le_bytes)),
        [0xFE, 0xFF, ..] => Cow::Owned(utf16(u16::from_be_bytes)),
        [0xEF, 0xBB, 0xBF, rest @ ..] => String::from_utf8_lossy(rest),
        _ => String::from_utf8_lossy(bytes),
    };
    if text.trim().is_empty() {
        return Err(unrecognised(0, format!("the input is empty; {KNOWN}")));
    }
    Ok(text)
}
