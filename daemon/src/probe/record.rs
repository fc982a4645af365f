//! The files a probe read, so that the machine can be probed again from them.
//!
//! Nothing is searched for names and addresses; that would miss some. Rather the probe reads few files that can hold any,
//! all of them known here, and each is kept in a form that has none and leads to the same facts.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::PoisonError;

use super::host::kernel_flags;
use super::root::{Entry, Log};

/// One recorded thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// A file with what it holds; nothing where it was seen and not read.
    File(Vec<u8>),
    /// A directory.
    Directory,
    /// A symbolic link with its text.
    Link(String),
}

/// The files a probe read, by path below its root, without what tells names, serial numbers and addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Paths are relative and have no `..`.
    pub entries: BTreeMap<PathBuf, Recorded>,
}

/// Directories and files that are left out: what a job and its container are called, what identifies the host, what
/// addresses its peers have.
const LEFT_OUT: [&str; 6] = [
    "etc/machine-id",
    "etc/nvidia-imex",
    "proc/self",
    "proc/sys/kernel/random",
    "sys/fs/cgroup",
    "dev/shm",
];

impl Recording {
    /// What was met, scrubbed.
    pub(super) fn scrubbed(log: &Log) -> Self {
        let log = log.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guids = Stand::default();
        let mut gids = Stand::default();
        let mut entries = BTreeMap::new();
        for (path, entry) in log.iter() {
            let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
            if !plain || is_left_out(path) {
                continue;
            }
            let recorded = match entry {
                Entry::Present => Recorded::File(Vec::new()),
                Entry::Directory => Recorded::Directory,
                Entry::Link(target) => Recorded::Link(target.clone()),
                Entry::File(bytes) => Recorded::File(scrub(path, bytes, &mut guids, &mut gids)),
            };
            entries.insert(path.clone(), recorded);
        }
        Self { entries }
    }
}

/// `proc/self` is a link to the process's own number.
fn is_left_out(path: &Path) -> bool {
    let process = path.strip_prefix("proc").ok().and_then(|rest| rest.iter().next()?.to_str());
    LEFT_OUT.iter().any(|left_out| path.starts_with(left_out))
        || process.is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()))
}

/// A number that stands for each text, equal for equal ones.
#[derive(Default)]
struct Stand(BTreeMap<String, usize>);

impl Stand {
    fn of(&mut self, text: &str) -> usize {
        let next = self.0.len() + 1;
        *self.0.entry(text.into()).or_insert(next)
    }
}

fn scrub(path: &Path, bytes: &[u8], guids: &mut Stand, gids: &mut Stand) -> Vec<u8> {
    let text = || String::from_utf8_lossy(bytes);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let parent = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let in_proc = |file: &str| path == Path::new("proc").join(file);
    match name {
        "sys_image_guid" | "node_guid" => guid(text().trim(), guids).into_bytes(),
        // Vital product data has serial numbers.
        "vpd" => match bytes.windows(6).any(|window| window == b"SW_MNG") {
            true => b"SW_MNG".to_vec(),
            false => Vec::new(),
        },
        _ if parent == Some("gids") => gid(text().trim(), gids).into_bytes(),
        "cmdline" if in_proc("cmdline") => kernel_flags(&text()).join(" ").into_bytes(),
        // The release is the third word; who built the kernel where comes after it.
        "version" if in_proc("version") => {
            text().split_whitespace().take(3).collect::<Vec<_>>().join(" ").into_bytes()
        }
        "cpuinfo" if in_proc("cpuinfo") => {
            let no_serial = |line: &&str| !line.to_ascii_lowercase().starts_with("serial");
            text()
                .lines()
                .filter(no_serial)
                .map(|line| format!("{line}\n"))
                .collect::<String>()
                .into()
        }
        "route" if in_proc("net/route") => routes_v4(&text()).into_bytes(),
        "ipv6_route" if in_proc("net/ipv6_route") => routes_v6(&text()).into_bytes(),
        _ => bytes.to_vec(),
    }
}

/// A GUID of the kernel's form that is no maker's: the local bit is set.
fn guid(text: &str, guids: &mut Stand) -> String {
    if !text.bytes().any(|b| b.is_ascii_hexdigit() && b != b'0') {
        return text.into();
    }
    let number = guids.of(text);
    format!("0200:0000:0000:{:04x}\n", number & 0xffff)
}

/// An address of the same reach: the interface identifier is a number, the prefix that of a documented range.
fn gid(text: &str, gids: &mut Stand) -> String {
    let groups: Vec<u16> =
        text.split(':').filter_map(|group| u16::from_str_radix(group, 16).ok()).collect();
    let Ok(groups) = <[u16; 8]>::try_from(groups) else { return String::new() };
    // The empty entries of the table.
    if groups == [0; 8] || groups[0] == 0xfe80 && groups[4..] == [0; 4] {
        return format!("{text}\n");
    }
    let number = gids.of(text) & 0xffff;
    let mapped = groups[..5] == [0; 5] && groups[5] == 0xffff;
    let prefix = match groups[0] {
        // 198.18.0.0/15, for measurements (RFC 2544).
        _ if mapped => "0000:0000:0000:0000:0000:ffff:c612",
        first if first & 0xffc0 == 0xfe80 => "fe80:0000:0000:0000:0200:0000:0000",
        first if first & 0xfe00 == 0xfc00 => "fd00:0000:0000:0000:0200:0000:0000",
        // For documentation (RFC 3849).
        _ => "2001:0db8:0000:0000:0200:0000:0000",
    };
    format!("{prefix}:{number:04x}\n")
}

/// The header and the default routes, without their gateways.
fn routes_v4(text: &str) -> String {
    let keep = |line: &str| {
        let mut columns: Vec<&str> = line.split_whitespace().collect();
        let default = columns.get(1) == Some(&"00000000") && columns.get(7) == Some(&"00000000");
        if default {
            columns[2] = "00000000";
        }
        (default || columns.first() == Some(&"Iface")).then(|| columns.join("\t") + "\n")
    };
    text.lines().filter_map(keep).collect()
}

/// The default routes, without their next hops.
fn routes_v6(text: &str) -> String {
    const ZERO: &str = "00000000000000000000000000000000";
    let keep = |line: &str| {
        let mut columns: Vec<&str> = line.split_whitespace().collect();
        let default = columns.first() == Some(&ZERO) && columns.get(1) == Some(&"00");
        if default && columns.len() > 4 {
            (columns[2], columns[4]) = (ZERO, ZERO);
        }
        default.then(|| columns.join(" ") + "\n")
    };
    text.lines().filter_map(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expect: &str) {
        let (mut guids, mut gids) = (Stand::default(), Stand::default());
        let found = scrub(Path::new(path), text.as_bytes(), &mut guids, &mut gids);
        assert_eq!(String::from_utf8(found).unwrap().trim_end(), expect, "{path}");
    }

    #[test]
    fn addresses_and_names_are_replaced() {
        let device = "sys/devices/pci0000:00/0000:01:00.0/infiniband/mlx5_0";
        check(&format!("{device}/node_guid"), "b8ce:f603:0012:3456", "0200:0000:0000:0001");
        check(&format!("{device}/node_guid"), "0000:0000:0000:0000", "0000:0000:0000:0000");
        let port = format!("{device}/ports/1");
        let gid = |index: &str, text: &str, expect: &str| {
            check(&format!("{port}/gids/{index}"), text, expect);
        };
        gid(
            "0",
            "fe80:0000:0000:0000:bace:f6ff:fe12:3456",
            "fe80:0000:0000:0000:0200:0000:0000:0001",
        );
        gid(
            "3",
            "0000:0000:0000:0000:0000:ffff:0a01:0203",
            "0000:0000:0000:0000:0000:ffff:c612:0001",
        );
        gid(
            "4",
            "0000:0000:0000:0000:0000:0000:0000:0000",
            "0000:0000:0000:0000:0000:0000:0000:0000",
        );
        check("proc/cmdline", "root=/dev/sda host=secret iommu=pt", "iommu=pt");
        check("proc/version", "Linux version 6.8.0 (me@secret) (gcc)", "Linux version 6.8.0");
        check("proc/cpuinfo", "processor : 0\nSerial\t: 123\n", "processor : 0");
        check(
            "proc/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
             eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\n\
             eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
             eth0\t00000000\t00000000\t0003\t0\t0\t0\t00000000",
        );
        check("sys/devices/pci0000:00/0000:01:00.0/vpd", "SN: 123, V3: SW_MNG", "SW_MNG");
        check("sys/class/dmi/id/product_name", "Example", "Example");
    }

    #[test]
    fn equal_guids_stay_equal() {
        let mut guids = Stand::default();
        let (a, b, c) =
            (guid("1:2:3:4", &mut guids), guid("1:2:3:5", &mut guids), guid("1:2:3:4", &mut guids));
        assert_eq!(a, c);
        assert_ne!(a, b);
    }

    #[test]
    fn what_names_the_host_is_left_out() {
        for path in ["etc/machine-id", "proc/self", "proc/1234/status", "sys/fs/cgroup/user/x"] {
            assert!(is_left_out(Path::new(path)), "{path}");
        }
        for path in ["proc/modules", "etc/systemd/system/nvidia-imex.service", "dev/nvidia-caps"] {
            assert!(!is_left_out(Path::new(path)), "{path}");
        }
    }
}
