//! The text form of an archive that Prometheus' exporters keep recorded trees in ("ttar").
//!
//! ```text
//!   # Archive created by ttar …
//!   Directory: fixtures/sys           Path: fixtures/sys/x      Path: fixtures/sys/l
//!   Mode: 755                         Lines: 1                  SymlinkTo: ../x
//!   # ttar - - - -                    text of the file
//!                                     Mode: 644
//! ```
//!
//! Within the lines `NULLBYTE` stands for a zero byte, and `EOF` at the end of the last for no newline there.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::RecordedError;
use super::{MOST_ENTRIES, Node, add, inside};

pub(super) fn is(bytes: &[u8]) -> bool {
    bytes.starts_with(b"# Archive created by ttar")
}

pub(super) fn gather(bytes: &[u8]) -> Result<BTreeMap<PathBuf, Node>, RecordedError> {
    let text = String::from_utf8_lossy(bytes);
    let mut nodes = BTreeMap::new();
    let mut path: Option<PathBuf> = None;
    let mut lines = (1..).zip(text.split('\n'));
    while let Some((number, line)) = lines.next() {
        let refusal = |reason: &str| RecordedError::tree(format!("archive, line {number}"), reason);
        let refuse = |reason: &str| Err(refusal(reason));
        if nodes.len() > MOST_ENTRIES {
            return refuse("too many entries");
        }
        let Some((key, value)) = line.split_once(": ") else { continue };
        let (at, node) = match key {
            "Path" | "Directory" => {
                let Some(inside) = inside(value.as_bytes()) else {
                    return refuse("its name leads out of the archive, or is longer than any");
                };
                if key == "Path" {
                    path = Some(inside);
                    continue;
                }
                (inside, Node::Dir)
            }
            "Lines" => {
                let (Some(at), Ok(count)) = (path.take(), value.trim().parse::<usize>()) else {
                    return refuse("lines of no file");
                };
                let body: Vec<&str> = lines.by_ref().map(|(_, line)| line).take(count).collect();
                if body.len() < count {
                    return refuse("the file is cut off");
                }
                let mut body = body.join("\n").replace("NULLBYTE", "\0");
                match body.strip_suffix("EOF") {
                    Some(whole) => body.truncate(whole.len()),
                    None if count > 0 => body.push('\n'),
                    None => {}
                }
                (at, Node::File(body.into_bytes()))
            }
            "SymlinkTo" => {
                let Some(at) = path.take() else { return refuse("a link without a path") };
                (at, Node::Link(value.into()))
            }
            _ => continue,
        };
        add(&mut nodes, at, node).map_err(refusal)?;
    }
    Ok(nodes)
}
