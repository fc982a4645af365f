//! Archives of a host's `/sys` and `/proc`: tar, plain or compressed.
//!
//! An archive is foreign: it may name files outside, link out of itself, or unpack to more than the disk holds. So
//! its entries are first gathered in memory within limits, then written below a fresh directory: directories and
//! files by their names, links last and as text only, so that no write ever goes through a link. The probe follows
//! links itself and never above its root.

// The path is said so that the fuzz target, which takes this file alone, finds it too.
#[path = "archive/ttar.rs"]
mod ttar;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use tempfile::TempDir;

use super::RecordedError;

/// Most bytes of all files together, and of an archive once decompressed (a tar pads each file to 512 bytes).
const MOST_UNPACKED: u64 = 512 << 20;
/// Most bytes of one file; the probe reads no more of one either.
const MOST_FILE: u64 = 16 << 20;
/// Most entries. The largest hosts have some 100,000 files below `/sys/devices` that a recorder keeps.
const MOST_ENTRIES: usize = 1 << 19;
/// Longest name, with room for the directory it is unpacked in (PATH_MAX is 4,096), longest part of one (NAME_MAX), and deepest path.
const MOST_NAME: usize = 3584;
const MOST_COMPONENT: usize = 255;
const MOST_DEPTH: usize = 64;

const GZIP: [u8; 2] = [0x1F, 0x8B];
const BZIP2: &[u8] = b"BZh";

/// Whether bytes are gzip or bzip2 data.
pub(super) fn is_compressed(bytes: &[u8]) -> bool {
    bytes.starts_with(&GZIP) || bytes.starts_with(BZIP2)
}

/// Whether bytes are a tar archive (POSIX or GNU), or one in text as Prometheus' exporters keep their fixtures.
pub(super) fn is_archive(bytes: &[u8]) -> bool {
    bytes.get(257..262) == Some(b"ustar") || ttar::is(bytes)
}

/// The bytes that gzip or bzip2 data stands for.
pub(super) fn decompress(bytes: &[u8]) -> Result<Vec<u8>, RecordedError> {
    let (what, mut reader): (_, Box<dyn Read + '_>) = if bytes.starts_with(&GZIP) {
        ("gzip data", Box::new(flate2::read::MultiGzDecoder::new(bytes)))
    } else {
        ("bzip2 data", Box::new(bzip2::read::MultiBzDecoder::new(bytes)))
    };
    let mut plain = Vec::new();
    reader
        .by_ref()
        .take(MOST_UNPACKED + 1)
        .read_to_end(&mut plain)
        .map_err(|error| RecordedError::tree(what, format!("damaged or cut off: {error}")))?;
    if u64::try_from(plain.len()).is_ok_and(|length| length > MOST_UNPACKED) {
        return Err(RecordedError::tree(
            what,
            format!("unpacks to more than {MOST_UNPACKED} bytes"),
        ));
    }
    Ok(plain)
}

/// A tree on disk, removed with this.
#[derive(Debug)]
pub(super) struct Unpacked {
    dir: TempDir,
    /// The directory that holds `sys`, below `dir`.
    root: PathBuf,
}

impl Unpacked {
    pub(super) fn root(&self) -> PathBuf {
        self.dir.path().join(&self.root)
    }
}

/// What a path of an archive is.
enum Node {
    Dir,
    File(Vec<u8>),
    Link(PathBuf),
}

/// Unpacks an archive that holds the tree of one host.
pub(super) fn unpack(tar: &[u8]) -> Result<Unpacked, RecordedError> {
    let nodes = if ttar::is(tar) { ttar::gather(tar)? } else { gather(tar)? };
    let root = root(&nodes)?;
    let dir = tempfile::Builder::new().prefix("topod-").tempdir()?;
    write(dir.path(), &nodes)?;
    Ok(Unpacked { dir, root })
}

fn gather(tar: &[u8]) -> Result<BTreeMap<PathBuf, Node>, RecordedError> {
    let damaged =
        |error: io::Error| RecordedError::tree("archive", format!("damaged or cut off: {error}"));
    let mut nodes: BTreeMap<PathBuf, Node> = BTreeMap::new();
    let mut total = 0_u64;
    let mut archive = tar::Archive::new(tar);
    for (count, entry) in archive.entries().map_err(damaged)?.enumerate() {
        let mut entry = entry.map_err(damaged)?;
        let stated = entry.path_bytes().into_owned();
        let place = || format!("archive, entry {}", excerpt(&stated));
        let refuse = |reason: String| Err(RecordedError::tree(place(), reason));
        if count >= MOST_ENTRIES {
            return refuse(format!("more than {MOST_ENTRIES} entries"));
        }
        let kind = entry.header().entry_type();
        let Some(path) = inside(&stated) else {
            return refuse("its name leads out of the archive, or is longer than any".into());
        };
        if path.as_os_str().is_empty() {
            continue;
        }
        let node = if kind.is_dir() {
            Node::Dir
        } else if kind.is_symlink() {
            let Some(target) =
                entry.link_name().map_err(damaged)?.map(std::borrow::Cow::into_owned)
            else {
                continue;
            };
            Node::Link(target)
        } else if kind.is_file() || kind.is_gnu_sparse() || kind.is_contiguous() {
            if entry.size() > MOST_FILE {
                return refuse(format!("{} bytes; at most {MOST_FILE} are read", entry.size()));
            }
            total += entry.size();
            if total > MOST_UNPACKED {
                return refuse(format!("the files are more than {MOST_UNPACKED} bytes together"));
            }
            let mut bytes = Vec::new();
            entry.by_ref().take(MOST_FILE).read_to_end(&mut bytes).map_err(damaged)?;
            Node::File(bytes)
        } else {
            // Devices, FIFOs and hard links are no facts of a host.
            continue;
        };
        add(&mut nodes, path, node).map_err(|reason| RecordedError::tree(place(), reason))?;
    }
    Ok(nodes)
}

/// Adds what a path is, where the archive does not contradict itself.
fn add(nodes: &mut BTreeMap<PathBuf, Node>, path: PathBuf, node: Node) -> Result<(), &'static str> {
    // What no file system takes leads nowhere, and the probe finds no less without it.
    if let Node::Link(target) = &node {
        let text = target.as_os_str().as_encoded_bytes();
        if !(1..=MOST_NAME).contains(&text.len()) || text.contains(&0) {
            return Ok(());
        }
    }
    // A path through a link or a file is none: directories alone hold entries.
    let is_dir = |above: &Path| !matches!(nodes.get(above), Some(Node::File(_) | Node::Link(_)));
    if !path.ancestors().skip(1).all(is_dir) {
        return Err("it lies below what the archive says is no directory");
    }
    match (nodes.get(&path), &node) {
        (None, _) | (Some(Node::File(_)), Node::File(_)) => {
            nodes.insert(path, node);
        }
        (Some(Node::Dir), Node::Dir) => {}
        _ => return Err("the archive has it twice, as different things"),
    }
    Ok(())
}

/// A name without what roots it (`/`, `./`); `None` where it leads outside or is beyond any real one.
fn inside(name: &[u8]) -> Option<PathBuf> {
    let name = std::str::from_utf8(name)
        .ok()
        .filter(|name| name.len() <= MOST_NAME && !name.contains('\0'))?;
    let mut path = PathBuf::new();
    for component in Path::new(name).components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) if name.len() <= MOST_COMPONENT => path.push(name),
            Component::Normal(_) => return None,
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    (path.components().count() <= MOST_DEPTH).then_some(path)
}

/// The directory that holds `sys`; refused where there is none or more than one.
fn root(nodes: &BTreeMap<PathBuf, Node>) -> Result<PathBuf, RecordedError> {
    let mut roots: Vec<PathBuf> = Vec::new();
    for (path, node) in nodes {
        // Archives may leave directories out and name the files alone.
        let ends_in_dir = matches!(node, Node::Dir);
        let above = path.ancestors().skip(usize::from(!ends_in_dir));
        for dir in above.filter(|dir| dir.file_name().is_some_and(|name| name == "sys")) {
            let parent = dir.parent().unwrap_or_else(|| Path::new(""));
            if !roots.iter().any(|root| root == parent) {
                roots.push(parent.into());
            }
        }
    }
    // Of one inside another (`proc/sys`, `sys/kernel/…/sys`) the outer counts, and below `proc` none does.
    let outermost = |root: &&PathBuf| {
        !roots.iter().any(|other| other != *root && root.starts_with(other))
            && root.file_name().is_none_or(|name| name != "proc")
    };
    let mut found = roots.iter().filter(outermost);
    match (found.next(), found.next()) {
        (Some(root), None) => Ok(root.clone()),
        (Some(first), Some(second)) => Err(RecordedError::tree(
            "archive",
            format!(
                "more than one host's /sys, at {} and {}; give each in an archive of its own",
                shown(first),
                shown(second)
            ),
        )),
        (None, _) => {
            Err(RecordedError::tree("archive", "no sys directory in it: no recorded host"))
        }
    }
}

fn shown(path: &Path) -> String {
    if path.as_os_str().is_empty() { "its root".into() } else { path.display().to_string() }
}

/// Directories and files in the order of their paths, then links. Nothing is overwritten: the directory is new.
fn write(base: &Path, nodes: &BTreeMap<PathBuf, Node>) -> io::Result<()> {
    for (path, node) in nodes {
        let path = base.join(path);
        match node {
            Node::Dir => fs::create_dir_all(path)?,
            Node::File(bytes) => {
                if let Some(dir) = path.parent() {
                    fs::create_dir_all(dir)?;
                }
                fs::write(path, bytes)?;
            }
            Node::Link(_) => {}
        }
    }
    for (path, node) in nodes {
        let Node::Link(target) = node else { continue };
        let path = base.join(path);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        symlink(target, path)?;
    }
    Ok(())
}

/// Body of the fuzz target: any bytes are gathered or refused, and what was gathered stays below its directory.
pub(super) fn fuzz(bytes: &[u8]) {
    let plain = if is_compressed(bytes) { decompress(bytes).ok() } else { Some(bytes.to_vec()) };
    let Some(plain) = plain.filter(|plain| is_archive(plain)) else { return };
    let nodes = if ttar::is(&plain) { ttar::gather(&plain) } else { gather(&plain) };
    let Ok(nodes) = nodes else { return };
    for path in nodes.keys() {
        let plain = |component: Component<'_>| matches!(component, Component::Normal(_));
        assert!(path.components().all(plain), "{}", path.display());
    }
    // Writing goes to a file system, which knows no other failure than its own.
    if root(&nodes).is_ok() && nodes.len() < 64 {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), &nodes).expect("what was gathered can be written");
    }
}

/// The end of a foreign name, printable.
fn excerpt(name: &[u8]) -> String {
    const MOST: usize = 80;
    let name = String::from_utf8_lossy(name);
    let long = name.chars().count().saturating_sub(MOST);
    let end = name.chars().skip(long).map(|c| if c.is_control() { ' ' } else { c });
    if long > 0 { std::iter::once('…').chain(end).collect() } else { end.collect() }
}
