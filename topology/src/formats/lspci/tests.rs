//! Whole listings, as text and as pasted.

use alloc::string::ToString;
use alloc::vec::Vec;

use super::*;
use crate::formats::read as read_any;
use crate::snapshot::{PciKind, PcieLink};

/// A switch with a GPU and a NIC below it, and a NIC on the other socket; the GPU rests at Gen1.
const VERBOSE: &str = "\
00:01.0 PCI bridge: Intel Corporation Device 352a (rev 04) (prog-if 00 [Normal decode])
\tNUMA node: 0
\tBus: primary=00, secondary=01, subordinate=04, sec-latency=0
\t\tLnkCap:\tPort #8, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s, Width x16
01:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tNUMA node: 0
\tBus: primary=01, secondary=02, subordinate=04, sec-latency=0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16
02:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tBus: primary=02, secondary=03, subordinate=03, sec-latency=0
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16
02:01.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tBus: primary=02, secondary=04, subordinate=04, sec-latency=0
03:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)
\tNUMA node: 0
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)
04:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\tNUMA node: 0
04:00.1 Infiniband controller: Mellanox Technologies ConnectX Family mlx5Gen Virtual Function
80:01.0 PCI bridge: Intel Corporation Device 352a (rev 04)
\tBus: primary=80, secondary=81, subordinate=81, sec-latency=0
81:00.0 Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\tNUMA node: 1
";

const TREE: &str = "\
-+-[0000:00]-+-00.0  Intel Corporation Device 09a2
 |           +-01.0-[01-04]----00.0-[02-04]--+-00.0-[03]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
 |           |                               \\-01.0-[04]--+-00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
 |           |                                            \\-00.2  Mellanox Technologies MT43244 BlueField-3 SoC Management Interface
 |           \\-1d.0-[05]--
 \\-[0000:80]-+-00.0  Intel Corporation Device 09a2
             \\-01.0-[81]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
";

fn kinds(host: &Snapshot) -> Vec<(String, PciKind)> {
    host.pci_devices.iter().map(|device| (device.bus_id.to_string(), device.kind)).collect()
}

#[test]
fn both_forms_give_one_tree() {
    let verbose = read_any(VERBOSE.as_bytes()).unwrap().remove(0);
    let tree = read_any(TREE.as_bytes()).unwrap().remove(0);
    assert_eq!(kinds(&verbose), kinds(&tree));
    assert_eq!(verbose.pci_devices.len(), 8);
    for host in [&verbose, &tree] {
        assert_eq!((host.gpus.len(), host.nics.len()), (1, 2));
        for device in &host.pci_devices {
            let root = device.bus_id.bus() & 0x80 == device.bus_id.bus();
            assert_eq!(device.host_bridge.is_some(), root, "{device:?}");
        }
        let topology =
            crate::lower(core::slice::from_ref(host), crate::RateModel::Effective).unwrap();
        let class = topology.matrix(crate::HostId(0)).cells[0][1].map(|cell| cell.to_string());
        assert_eq!(class.as_deref(), Some("PIX"));
    }
    assert_eq!(verbose.gpus[0].compute_capability, Some(90));
    assert_eq!(verbose.numa_nodes.len(), 2);
    let gpu = verbose.pci_devices.iter().find(|device| device.kind == PciKind::Gpu).unwrap();
    assert_eq!(gpu.link.trained, Some(PcieLink { mtps: 2500, width: 8 }));
    assert_eq!(gpu.link.slot_capable, Some(PcieLink { mtps: 16_000, width: 16 }));
    // The slot's rate, and the width as trained.
    assert_eq!(gpu.link.usable(), (Some(16_000), Some(8)));
    assert!(tree.faults.iter().any(|fault| fault.error.contains("by its name alone")));
}

#[test]
fn pastes_are_read() {
    let prompt = format!("$ lspci -tv\n{TREE}\n$ ls\n");
    let indented: String = TREE.lines().map(|line| format!("    {line}\n")).collect();
    for text in [prompt, indented] {
        let host = read_any(text.as_bytes()).unwrap().remove(0);
        assert_eq!(host.pci_devices.len(), 8, "{text}");
    }
    let spaces = VERBOSE.replace('\t', "        ");
    assert_eq!(read_any(spaces.as_bytes()).unwrap()[0].pci_devices.len(), 8);
}

#[track_caller]
fn check_refused(text: &str, format: &str, line: usize, word: &str) {
    let error = read_any(text.as_bytes()).unwrap_err();
    assert_eq!((error.format, error.line), (format, line), "{error}");
    assert!(error.reason.contains(word), "{error}");
}

#[test]
fn a_list_without_bridges_is_refused() {
    let short: String = VERBOSE
        .lines()
        .filter(|line| !line.starts_with('\t'))
        .map(|line| format!("{line}\n"))
        .collect();
    check_refused(&short, "lspci output without the tree", 1, "lspci -vv");
    let one = "$ lspci -vvv -s 03:00.0\n03:00.0 3D controller: NVIDIA Corporation Device 2330\n\tNUMA node: 0\n";
    check_refused(one, "lspci output without the tree", 2, "below");
    let unnamed: String = TREE.lines().map(|line| format!("{}\n", tree_only(line))).collect();
    check_refused(&unnamed, "lspci tree without names", 1, "lspci -tv");
}

/// A line without its name.
fn tree_only(line: &str) -> &str {
    let start = line.find(|c: char| !matches!(c, ' ' | '|')).unwrap_or(0);
    line[start..].find("  ").map_or(line, |at| &line[..start + at])
}

#[test]
fn contradictions_are_refused() {
    check_refused(&format!("{VERBOSE}{VERBOSE}"), FORMAT, 26, "also at line 1");
    check_refused(&VERBOSE.replace("secondary=01", "secondary=09"), FORMAT, 3, "below secondary");
    let moved = TREE.replace(
        " |           |                               \\-01.0",
        " |           |            \\-01.0",
    );
    check_refused(&moved, FORMAT, 3, "hangs below nothing");
    check_refused(&TREE.replace("[0000:80]", "[0000:00]"), FORMAT, 6, "also at line 1");
    check_refused(&TREE.replace("\\-01.0-[81]", "\\-zz.0-[81]"), FORMAT, 7, "no function");
}
