//! Files below a root directory, the host's own `/` or a recorded tree.
//!
//! Symbolic links are followed the way a process with that root would: relative ones from where they lie, absolute
//! ones from the root, and `..` never leads above it. So a recorded tree cannot point at this host's files.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Links on one path before it counts as a loop, as in the kernel (MAXSYMLINKS, 40).
const MOST_LINKS: usize = 40;

/// Most bytes of one file; `cpuinfo` of 1,024 CPUs has about 2 MiB.
const MOST_BYTES: u64 = 16 << 20;

/// A root directory. Paths below it are written without a leading slash.
#[derive(Clone, Debug)]
pub(super) struct Root {
    base: PathBuf,
    /// Directories with their links followed: a probe reads a dozen files of each.
    resolved: RefCell<BTreeMap<String, PathBuf>>,
    /// What was met, where the tree is being recorded.
    log: Option<Log>,
}

/// What a probe met below a root, by place.
pub(super) type Log = Arc<Mutex<BTreeMap<PathBuf, Entry>>>;

/// One thing met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A file that was seen to be there and not read.
    Present,
    /// A file that was read.
    File(Vec<u8>),
    /// A directory.
    Directory,
    /// A link with its text.
    Link(String),
}

impl Root {
    pub(super) fn new(base: &Path) -> Self {
        Self { base: base.into(), resolved: RefCell::default(), log: None }
    }

    /// One whose reader notes all that is met.
    pub(super) fn recorded(base: &Path, log: Log) -> Self {
        Self { log: Some(log), ..Self::new(base) }
    }

    /// Whether this is the running host's own root.
    pub(super) fn is_live(&self) -> bool {
        self.base == Path::new("/")
    }

    /// A file's text without trailing white space. Bytes that are no UTF-8 are replaced.
    pub(super) fn read(&self, path: &str) -> io::Result<String> {
        let bytes = self.read_bytes(path)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().into())
    }

    /// A file's bytes.
    pub(super) fn read_bytes(&self, path: &str) -> io::Result<Vec<u8>> {
        let place = self.resolve(path)?;
        let real = self.base.join(&place);
        // A recorded tree may hold anything; opening a FIFO would wait for a writer.
        if !fs::metadata(&real)?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut bytes = Vec::new();
        File::open(real)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
        self.note(&place, || Entry::File(bytes.clone()));
        Ok(bytes)
    }

    /// Names in a directory, sorted; those that are no UTF-8 are left out.
    pub(super) fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let place = self.resolve(path)?;
        let entries = fs::read_dir(self.base.join(&place))?;
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        if self.log.is_some() {
            self.note(&place, || Entry::Directory);
            for name in &names {
                self.note_existence(&place.join(name));
            }
        }
        Ok(names)
    }

    /// Whether something is there, at the end of all links.
    pub(super) fn exists(&self, path: &str) -> bool {
        let found = self.resolve(path);
        if let Ok(place) = &found {
            self.note_existence(place);
        }
        found.is_ok()
    }

    /// Number of the device that holds the end of a path.
    pub(super) fn device_of(&self, path: &str) -> Option<u64> {
        let place = self.resolve(path).ok()?;
        Some(fs::metadata(self.base.join(place)).ok()?.dev())
    }

    /// What the link at `path` says, whether or not it is a path.
    pub(super) fn link_text(&self, path: &str) -> Option<String> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.resolve(dir).ok()?;
        let target = fs::read_link(self.base.join(dir).join(name)).ok()?;
        target.to_str().map(Into::into)
    }

    /// Where the link at `path` points to, by its text alone: recorded trees have links whose end was not
    /// recorded. `None` where there is no link.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.resolve(dir).ok()?;
        let target = fs::read_link(self.base.join(&dir).join(name)).ok()?;
        let target = target.to_str()?;
        self.note(&dir.join(name), || Entry::Link(target.into()));
        let joined = match target.starts_with('/') {
            true => target.into(),
            false => format!("{}/{target}", dir.display()),
        };
        let mut place = Vec::new();
        for component in joined.split('/') {
            match component {
                "" | "." => {}
                ".." => drop(place.pop()),
                name => place.push(name),
            }
        }
        Some(place.join("/"))
    }

    /// Notes what was met at a place, for whoever records the tree. What was read stays read.
    fn note(&self, place: &Path, entry: impl FnOnce() -> Entry) {
        let Some(log) = &self.log else { return };
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        let known = log.entry(place.to_owned()).or_insert(Entry::Present);
        if *known == Entry::Present {
            *known = entry();
        }
    }

    /// Notes that something is there, and no more of it than replay needs to see the same.
    fn note_existence(&self, place: &Path) {
        if self.log.is_none() {
            return;
        }
        let real = self.base.join(place);
        let Ok(metadata) = fs::symlink_metadata(&real) else { return };
        let target = || fs::read_link(&real).ok()?.to_str().map(Into::into);
        self.note(place, || match metadata.file_type() {
            kind if kind.is_symlink() => target().map_or(Entry::Present, Entry::Link),
            kind if kind.is_dir() => Entry::Directory,
            _ => Entry::Present,
        });
    }

    /// The path with every link followed.
    fn resolve(&self, path: &str) -> io::Result<PathBuf> {
        let Some((dir, name)) = path.rsplit_once('/') else {
            return self.follow(PathBuf::new(), path);
        };
        if let Some(dir) = self.resolved.borrow().get(dir).cloned() {
            return self.follow(dir, name);
        }
        let place = self.follow(PathBuf::new(), dir)?;
        self.resolved.borrow_mut().insert(dir.into(), place.clone());
        self.follow(place, name)
    }

    /// Where `path` leads from `place`, which has no links.
    fn follow(&self, mut place: PathBuf, path: &str) -> io::Result<PathBuf> {
        let components =
            |path: &str| -> Vec<String> { path.split('/').rev().map(Into::into).collect() };
        let mut ahead = components(path);
        let mut links = 0;
        while let Some(component) = ahead.pop() {
            match component.as_str() {
                "" | "." => {}
                ".." => drop(place.pop()),
                name => {
                    let here = place.join(name);
                    let real = self.base.join(&here);
                    if !fs::symlink_metadata(&real)?.is_symlink() {
                        place = here;
                        continue;
                    }
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(io::Error::other("too many symbolic links"));
                    }
                    let target = fs::read_link(&real)?;
                    let target = target.to_str().ok_or(io::ErrorKind::InvalidData)?;
                    self.note(&here, || Entry::Link(target.into()));
                    if target.starts_with('/') {
                        place = PathBuf::new();
                    }
                    ahead.extend(components(target));
                }
            }
        }
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn tree() -> (tempfile::TempDir, Root) {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "outside").unwrap();
        let base = outside.path().join("root");
        fs::create_dir_all(base.join("sys/devices/a")).unwrap();
        fs::create_dir_all(base.join("sys/class")).unwrap();
        fs::write(base.join("sys/devices/a/file"), "inside\n\n").unwrap();
        fs::write(base.join("secret"), "decoy").unwrap();
        for (link, target) in [
            ("sys/class/relative", "../devices/a"),
            ("sys/class/absolute", "/sys/devices/a"),
            ("sys/class/above", "../../../../../secret"),
            ("sys/class/through", "relative/../a/file"),
            ("sys/class/loop", "loop"),
            ("sys/class/dangling", "../devices/b/c"),
        ] {
            symlink(target, base.join(link)).unwrap();
        }
        let root = Root::new(&base);
        (outside, root)
    }

    #[test]
    fn links_stay_below_the_root() {
        let (_dir, root) = tree();
        let check = |path: &str, expect: Option<&str>| {
            assert_eq!(root.read(path).ok().as_deref(), expect, "{path}");
        };
        check("sys/devices/a/file", Some("inside"));
        check("sys/class/relative/file", Some("inside"));
        check("sys/class/absolute/file", Some("inside"));
        // Through the link, `..` is the parent of where the link leads, as in the kernel.
        check("sys/class/through", Some("inside"));
        check("sys/class/above", Some("decoy"));
        check("../secret", Some("decoy"));
        check("sys/class/loop", None);
        check("sys/class/dangling", None);
        check("sys/class", None);
    }

    #[test]
    fn link_text_is_enough() {
        let (_dir, root) = tree();
        assert_eq!(root.link("sys/class/dangling").as_deref(), Some("sys/devices/b/c"));
        assert_eq!(root.link("sys/class/absolute").as_deref(), Some("sys/devices/a"));
        assert_eq!(root.link("sys/class/above").as_deref(), Some("secret"));
        assert_eq!(root.link("sys/devices/a"), None);
        assert!(!root.exists("sys/class/dangling"));
        assert!(root.exists("sys/class/relative"));
    }

    #[test]
    fn lists_are_sorted() {
        let (_dir, root) = tree();
        let names = root.list("sys/class").unwrap();
        assert!(names.is_sorted());
        assert_eq!(names.len(), 6);
    }
}
