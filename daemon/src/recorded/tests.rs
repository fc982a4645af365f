//! Archives made here: honest, careless and hostile ones.

use std::io::Write;

use proptest::prelude::*;
use tar::{Builder, EntryType, Header};

use super::*;

/// A host with one GPU below a root port.
const FILES: [(&str, &str); 8] = [
    ("sys/devices/pci0000:00/0000:00:01.0/class", "0x060400\n"),
    ("sys/devices/pci0000:00/0000:00:01.0/vendor", "0x8086\n"),
    ("sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/class", "0x030200\n"),
    ("sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/vendor", "0x10de\n"),
    ("sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/device", "0x2330\n"),
    ("sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/numa_node", "0\n"),
    ("sys/devices/system/node/node0/cpulist", "0-3\n"),
    ("proc/cpuinfo", "processor\t: 0\n"),
];

struct Archive(Builder<Vec<u8>>);

impl Archive {
    fn host(prefix: &str) -> Self {
        let mut archive = Self(Builder::new(Vec::new()));
        for (path, text) in FILES {
            archive.file(&format!("{prefix}{path}"), text.as_bytes());
        }
        for id in ["0000:00:01.0", "0000:00:01.0/0000:01:00.0"] {
            let name = id.rsplit('/').next().unwrap();
            let link = format!("{prefix}sys/bus/pci/devices/{name}");
            archive.link(&link, &format!("../../../devices/pci0000:00/{id}"));
        }
        archive
    }

    fn entry(&mut self, kind: EntryType, name: &str, link: Option<&str>, bytes: &[u8]) {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(u64::try_from(bytes.len()).unwrap());
        header.set_mode(0o644);
        // Written raw: the library refuses to make what a hostile archive may hold.
        let field = &mut header.as_old_mut().name;
        field[..name.len()].copy_from_slice(name.as_bytes());
        if let Some(link) = link {
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        }
        header.set_cksum();
        self.0.append(&header, bytes).unwrap();
    }

    fn file(&mut self, name: &str, bytes: &[u8]) {
        self.entry(EntryType::Regular, name, None, bytes);
    }

    fn link(&mut self, name: &str, target: &str) {
        self.entry(EntryType::Symlink, name, Some(target), b"");
    }

    fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[track_caller]
fn check_host(bytes: &[u8]) -> Snapshot {
    let mut hosts = read_bytes(bytes).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(hosts.len(), 1);
    let host = hosts.remove(0);
    assert_eq!(host.gpus.len(), 1, "{:?}", host.faults);
    assert_eq!(host.gpus[0].bus_id, "0000:01:00.0".parse().ok());
    assert_eq!(host.numa_nodes.len(), 1);
    host
}

#[test]
fn one_host_in_every_packing() {
    let mut first = None;
    for prefix in ["", "./", "/", "host/", "a/b/"] {
        let tar = Archive::host(prefix).bytes();
        for bytes in [tar.clone(), gzip(&tar), bzip2(&tar)] {
            let host = check_host(&bytes);
            // Where the tree lay is no fact of the host.
            let first = first.get_or_insert_with(|| host.clone());
            assert_eq!(host.pci_devices, first.pci_devices, "{prefix}");
        }
    }
}

#[test]
fn a_directory_is_read_and_one_without_sys_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in FILES {
        let path = dir.path().join("host").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    assert_eq!(read(dir.path()).unwrap().len(), 1);
    assert_eq!(read(&dir.path().join("host")).unwrap().len(), 1);
    let error = read(&dir.path().join("host/proc")).unwrap_err().to_string();
    assert!(error.starts_with("directory: no sys in it"), "{error}");
    assert!(matches!(read(&dir.path().join("absent")), Err(RecordedError::Open(_))));
}

#[test]
fn another_format_may_be_compressed() {
    let text = br#"{"schema_version":1,"name":"one","gpus":["0"],"switches":[],"links":[]}"#;
    for bytes in [gzip(text), bzip2(text)] {
        assert_eq!(read_bytes(&bytes).unwrap().len(), 1);
    }
    assert!(matches!(read_bytes(&gzip(b"nothing")), Err(RecordedError::Format(_))));
    assert!(matches!(read_bytes(b"\xFD7zXZ\0"), Err(RecordedError::Format(_))));
}

#[track_caller]
fn check_refused(bytes: &[u8], place: &str, word: &str) {
    match read_bytes(bytes) {
        Err(RecordedError::Tree { place: found, reason }) => {
            assert_eq!(found, place, "{reason}");
            assert!(reason.contains(word), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn hostile_archives_are_refused() {
    let with = |change: fn(&mut Archive)| {
        let mut archive = Archive::host("");
        change(&mut archive);
        archive.bytes()
    };
    check_refused(&with(|a| a.file("../evil", b"x")), "archive, entry ../evil", "leads out");
    check_refused(
        &with(|a| a.file("sys/../../evil", b"x")),
        "archive, entry sys/../../evil",
        "leads out",
    );
    // A link out of the tree, and a file through it.
    check_refused(
        &with(|a| {
            a.link("sys/out", "/tmp");
            a.file("sys/out/evil", b"x");
        }),
        "archive, entry sys/out/evil",
        "no directory",
    );
    check_refused(
        &with(|a| {
            a.link("sys/one", "/tmp");
            a.link("sys/one/two", "/etc");
        }),
        "archive, entry sys/one/two",
        "no directory",
    );
    check_refused(
        &with(|a| a.link("proc/cpuinfo", "/etc/passwd")),
        "archive, entry proc/cpuinfo",
        "twice",
    );
    let big = vec![0; usize::try_from(MOST_BYTES).unwrap() / 2];
    let mut archive = Archive::host("");
    archive.file("sys/big", &big);
    check_refused(&gzip(&archive.bytes()), "archive, entry sys/big", "at most");
    check_refused(&Archive::host("").bytes()[..1000], "archive", "cut off");
    check_refused(&gzip(&Archive::host("").bytes())[..200], "gzip data", "cut off");
    check_refused(&gzip(&gzip(b"x")), "archive", "compressed twice");
    let mut empty = Archive(Builder::new(Vec::new()));
    empty.file("readme", b"x");
    check_refused(&empty.bytes(), "archive", "no sys directory");
    let mut two = Archive::host("a/");
    two.file("b/sys/class/x", b"x");
    check_refused(&two.bytes(), "archive", "more than one host's /sys, at a and b");
}

#[test]
fn links_that_lead_out_lead_nowhere() {
    let mut archive = Archive::host("");
    archive.link("sys/devices/system/node/node0/meminfo", "/etc/hostname");
    archive.link("sys/devices/system/node/node0/distance", "../../../../../../../../etc/hostname");
    archive.entry(EntryType::Fifo, "sys/devices/system/node/node0/fifo", None, b"");
    check_host(&archive.bytes());
}

#[test]
fn an_archive_in_text() {
    let mut text =
        String::from("# Archive created by ttar -c -f x\nDirectory: f\nMode: 755\n# ttar - -\n");
    for (path, file) in FILES {
        text.push_str(&format!("Path: f/{path}\nLines: 1\n{file}Mode: 644\n# ttar - -\n"));
    }
    for id in ["0000:00:01.0", "0000:00:01.0/0000:01:00.0"] {
        let name = id.rsplit('/').next().unwrap();
        let link =
            format!("f/sys/bus/pci/devices/{name}\nSymlinkTo: ../../../devices/pci0000:00/{id}");
        text.push_str(&format!("Path: {link}\n# ttar - -\n"));
    }
    check_host(text.as_bytes());
    check_refused(
        text.replace("Path: f/proc", "Path: ../f/proc").as_bytes(),
        "archive, line 40",
        "leads out",
    );
    let cut = b"# Archive created by ttar\nPath: f/x\nLines: 9\na\n";
    check_refused(cut, "archive, line 3", "cut off");
}

#[test]
fn a_sys_below_proc_is_not_the_hosts() {
    let mut archive = Archive::host("");
    archive.file("proc/sys/kernel/ostype", b"Linux");
    archive.file("sys/kernel/debug/sys/x", b"x");
    check_host(&archive.bytes());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Damage anywhere: read or refused, never a panic.
    #[test]
    fn damaged_archives_never_panic(at in 0usize..12_000, byte: u8, cut in 0usize..12_000, packing in 0usize..3) {
        let tar = Archive::host("h/").bytes();
        let mut bytes = match packing { 0 => tar, 1 => gzip(&tar), _ => bzip2(&tar) };
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(bytes.len().max(1) - cut % bytes.len());
        drop(read_bytes(&bytes));
    }
}
