//! Small machines in each version of the format.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::formats::read as read_any;
use crate::snapshot::{GpuLinkKind, LinkPeer, PciKind};

const HEAD: &str =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n";

/// Two sockets; on the first a switch with two GPUs and a NIC, their links told by a matrix of bandwidths.
fn machine() -> String {
    let gpu = |number: u32, bus: &str| {
        format!(
            "<object type=\"PCIDev\" gp_index=\"1{number}\" pci_busid=\"0000:{bus}:00.0\" pci_type=\"0302 [10de:2330] [10de:16c1] a1\" pci_link_speed=\"63.015385\">\n\
             <info name=\"PCIDevice\" value=\"GH100\"/>\n\
             <object type=\"OSDev\" gp_index=\"2{number}\" name=\"nvml{number}\" subtype=\"NVML\" osdev_type=\"1\">\n\
             <info name=\"GPUModel\" value=\"NVIDIA H100\"/><info name=\"NVIDIAUUID\" value=\"GPU-{number}\"/></object>\n</object>\n"
        )
    };
    format!(
        "{HEAD}<topology version=\"2.0\">\n\
         <object type=\"Machine\" os_index=\"0\" cpuset=\"0x000000ff\" nodeset=\"0x00000003\" gp_index=\"1\">\n\
         <info name=\"DMIProductName\" value=\"Box\"/><info name=\"OSRelease\" value=\"6.1\"/><info name=\"Architecture\" value=\"x86_64\"/>\n\
         <object type=\"Package\" os_index=\"0\" cpuset=\"0x0000000f\" nodeset=\"0x00000001\" gp_index=\"2\">\n\
         <info name=\"CPUVendor\" value=\"GenuineIntel\"/><info name=\"CPUFamilyNumber\" value=\"6\"/><info name=\"CPUModelNumber\" value=\"143\"/>\n\
         <object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x0000000f\" nodeset=\"0x00000001\" gp_index=\"3\" local_memory=\"1000\"/>\n\
         <object type=\"Bridge\" gp_index=\"4\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[15-1c]\">\n\
         <object type=\"Bridge\" gp_index=\"5\" bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"0000:[16-1c]\" pci_busid=\"0000:15:01.0\" pci_type=\"0604 [8086:352a] [0000:0000] 04\" pci_link_speed=\"63.015385\">\n\
         <object type=\"Bridge\" gp_index=\"6\" bridge_type=\"1-1\" depth=\"2\" bridge_pci=\"0000:[17-1c]\" pci_busid=\"0000:16:00.0\" pci_type=\"0604 [1000:c030] [1000:0000] b0\" pci_link_speed=\"63.015385\">\n\
         <object type=\"Bridge\" gp_index=\"7\" bridge_type=\"1-1\" depth=\"3\" bridge_pci=\"0000:[18-18]\" pci_busid=\"0000:17:00.0\" pci_type=\"0604 [1000:c030] [1000:0000] b0\" pci_link_speed=\"31.507692\">\n{}</object>\n\
         <object type=\"Bridge\" gp_index=\"8\" bridge_type=\"1-1\" depth=\"3\" bridge_pci=\"0000:[19-19]\" pci_busid=\"0000:17:01.0\" pci_type=\"0604 [1000:c030] [1000:0000] b0\" pci_link_speed=\"63.015385\">\n{}</object>\n\
         <object type=\"Bridge\" gp_index=\"9\" bridge_type=\"1-1\" depth=\"3\" bridge_pci=\"0000:[1a-1a]\" pci_busid=\"0000:17:02.0\" pci_type=\"0604 [1000:c030] [1000:0000] b0\" pci_link_speed=\"63.015385\">\n\
         <object type=\"PCIDev\" gp_index=\"30\" pci_busid=\"0000:1a:00.0\" pci_type=\"0207 [15b3:1021] [15b3:0041] 00\" pci_link_speed=\"63.015385\">\n\
         <object type=\"OSDev\" gp_index=\"31\" name=\"ib0\" osdev_type=\"2\"/>\n\
         <object type=\"OSDev\" gp_index=\"32\" name=\"mlx5_0\" osdev_type=\"3\"><info name=\"Port1State\" value=\"4\"/><info name=\"Port2State\" value=\"1\"/></object>\n\
         </object></object>\n</object></object></object>\n</object>\n\
         <object type=\"Package\" os_index=\"1\" cpuset=\"0x000000f0\" nodeset=\"0x00000002\" gp_index=\"40\">\n\
         <object type=\"NUMANode\" os_index=\"1\" cpuset=\"0x000000f0\" nodeset=\"0x00000002\" gp_index=\"41\" local_memory=\"1000\"/></object>\n\
         </object>\n\
         <distances2 type=\"NUMANode\" nbobjs=\"2\" kind=\"5\" name=\"NUMALatency\" indexing=\"os\"><indexes length=\"4\">0 1 </indexes><u64values length=\"12\">10 21 21 </u64values><u64values length=\"3\">10 </u64values></distances2>\n\
         <distances2 type=\"OSDev\" nbobjs=\"2\" kind=\"9\" name=\"NVLinkBandwidth\" indexing=\"gp\"><indexes length=\"6\">20 21 </indexes><u64values length=\"40\">1000000 450000 450000 1000000 </u64values></distances2>\n\
         </topology>\n",
        gpu(1, "18"),
        gpu(0, "19"),
    )
}

fn host(text: &str) -> Snapshot {
    let host = read_any(text.as_bytes()).unwrap_or_else(|error| panic!("{error}")).remove(0);
    crate::lower(core::slice::from_ref(&host), crate::RateModel::Effective).unwrap();
    host
}

#[test]
fn every_fact_of_a_machine() {
    let host = host(&machine());
    assert_eq!((host.source, host.host.product.as_deref()), (Source::HwlocXml, Some("Box")));
    let nodes: Vec<String> = host
        .numa_nodes
        .iter()
        .map(|node| format!("{} {} {:?}", node.id, node.cpus.as_ref().unwrap(), node.distances))
        .collect();
    assert_eq!(nodes, ["0 0-3 {0: 10, 1: 21}", "1 4-7 {0: 21, 1: 10}"]);
    let cpu = &host.numa_nodes[0].cpu;
    assert_eq!(
        (cpu.vendor.as_deref(), cpu.family, cpu.model),
        (Some("GenuineIntel"), Some(6), Some(143))
    );
    let kinds: Vec<PciKind> = host.pci_devices.iter().map(|device| device.kind).collect();
    assert_eq!(kinds[..3], [PciKind::RootPort, PciKind::Switch, PciKind::SwitchPort]);
    assert_eq!(host.pci_devices[0].host_bridge.as_deref(), Some("pci0000:15"));
    // Numbered by NVML, not by address.
    let gpus: Vec<(u32, String)> =
        host.gpus.iter().map(|gpu| (gpu.index.0, gpu.bus_id.unwrap().to_string())).collect();
    assert_eq!(gpus, [(0, "0000:19:00.0".into()), (1, "0000:18:00.0".into())]);
    let gpu = &host.gpus[0];
    assert_eq!((gpu.name.as_deref(), gpu.uuid.as_deref()), (Some("NVIDIA H100"), Some("GPU-0")));
    assert_eq!((gpu.numa_node, gpu.compute_capability), (Some(0), Some(90)));
    assert_eq!((gpu.links[0].count, gpu.links[0].kind), (18, GpuLinkKind::NvLink));
    assert_eq!(gpu.links[0].peer, LinkPeer::Gpu("0000:18:00.0".parse().unwrap()));
    let ports: Vec<(&str, Option<u32>, Option<bool>)> =
        host.nics.iter().map(|nic| (nic.name.as_str(), nic.port, nic.up)).collect();
    assert_eq!(ports, [("mlx5_0", Some(1), Some(true)), ("mlx5_0", Some(2), Some(false))]);
}

#[test]
fn a_link_carries_what_its_lesser_end_trained_to() {
    let host = host(&machine());
    let total = |bus: &str| {
        let device = host.pci_devices.iter().find(|d| d.bus_id == bus.parse().unwrap()).unwrap();
        device.link.trained_total.map(crate::Bandwidth::kbps)
    };
    assert_eq!(total("18:00.0"), Some(31_507_692));
    assert_eq!(total("19:00.0"), Some(63_015_385));
    let topology = crate::lower(&[host], crate::RateModel::Effective).unwrap();
    assert!(topology.assumptions().iter().any(|a| a.contains("as trained when recorded")));
}

#[track_caller]
fn check_fault(text: &str, words: &str) -> Snapshot {
    let host = host(text);
    assert!(host.faults.iter().any(|fault| fault.error.contains(words)), "{:?}", host.faults);
    host
}

#[test]
fn what_is_not_recorded_is_a_fault() {
    let machine = machine();
    check_fault(&machine, "the rates of NIC ports");
    let idle = machine.replace(
        "[10de:16c1] a1\" pci_link_speed=\"63.015385\"",
        "[10de:16c1] a1\" pci_link_speed=\"4.000000\"",
    );
    let host = check_fault(&idle, "links at rest");
    // The port above still tells what the slot trained to.
    assert!(
        host.pci_devices.iter().all(|d| d.link.trained_total.is_none_or(|t| t.kbps() > 4_000_000))
    );
    let host = check_fault(
        &machine.replace("name=\"nvml1\"", "name=\"card1\""),
        "numbered by PCI address",
    );
    assert_eq!(host.gpus[0].bus_id, "0000:18:00.0".parse().ok());
    check_fault(
        &machine.replace("NVLinkBandwidth", "Other"),
        "NVLinks and xGMI links are not recorded",
    );
    check_fault(&machine.replace("450000", "460000"), "no whole number of links");
    let no_devices =
        "<topology version=\"2.0\"><object type=\"Machine\" nodeset=\"0x1\"/></topology>";
    let host = check_fault(no_devices, "no PCI devices recorded");
    assert!(host.gpus.is_empty());
}

#[test]
fn a_device_between_nodes_is_on_none() {
    let text = machine().replace(
        "type=\"Package\" os_index=\"0\" cpuset=\"0x0000000f\" nodeset=\"0x00000001\"",
        "type=\"Group\" cpuset=\"0x0000000f\" nodeset=\"0x00000003\"",
    );
    let host = host(&text);
    assert!(host.gpus.iter().all(|gpu| gpu.numa_node.is_none() && gpu.cpus.is_none()));
}

#[test]
fn hwloc_1_and_3() {
    let old = "<topology>\n<object type=\"Machine\" os_index=\"0\" cpuset=\"0x3\" nodeset=\"0x00000101\">\n\
        <distances nbobjs=\"3\" relative_depth=\"2\" latency_base=\"10.000000\">\
        <latency value=\"1.0\"/><latency value=\"4.0\"/><latency value=\"8.0\"/><latency value=\"4.0\"/><latency value=\"1.0\"/>\
        <latency value=\"8.0\"/><latency value=\"8.0\"/><latency value=\"8.0\"/><latency value=\"1.0\"/></distances>\n\
        <object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x1\" nodeset=\"0x00000001\" local_memory=\"5\">\n\
        <object type=\"Socket\" os_index=\"0\" cpuset=\"0x1\" nodeset=\"0x00000001\"/>\n\
        <object type=\"Bridge\" os_index=\"4\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0004:[00-0a]\">\n\
        <object type=\"PCIDev\" os_index=\"1\" name=\"NVIDIA V100\" pci_busid=\"0004:04:00.0\" pci_type=\"0302 [10de:1db1] [10de:1212] a1\" pci_link_speed=\"0.000000\">\
        <object type=\"OSDev\" name=\"cuda0\" osdev_type=\"5\"/></object>\n\
        </object></object>\n\
        <object type=\"NUMANode\" os_index=\"8\" cpuset=\"0x2\" nodeset=\"0x00000100\" local_memory=\"5\"/>\n\
        <object type=\"NUMANode\" os_index=\"252\" cpuset=\"0x0\" nodeset=\"0x0\" local_memory=\"5\"/>\n</object></topology>";
    let host = check_fault(old, "the bridges above are not recorded");
    assert_eq!(host.numa_nodes[0].distances.values().copied().collect::<Vec<_>>(), [10, 40, 80]);
    assert!(host.numa_nodes[2].cpus.as_ref().is_some_and(CpuList::is_empty));
    assert_eq!(
        (host.gpus[0].numa_node, host.gpus[0].name.as_deref()),
        (Some(0), Some("NVIDIA V100"))
    );
    let new = machine()
        .replace("version=\"2.0\"", "version=\"3.0\"")
        .replace("osdev_type=\"3\"", "osdev_type=\"32\"")
        .replace("osdev_type=\"2\"", "osdev_type=\"16\"");
    assert_eq!(self::host(&new).nics[0].name, "mlx5_0");
}

#[track_caller]
fn check_refused(text: &str, line: usize, words: &str) {
    let error = read_any(text.as_bytes()).unwrap_err();
    assert_eq!((error.format, error.line), (FORMAT, line), "{error}");
    assert!(error.reason.contains(words), "{error}");
}

#[test]
fn contradictions_are_refused() {
    check_refused("<topology version=\"9.0\"/>", 1, "version 9.0");
    check_refused("<topology>\n</topology>", 1, "no <object>");
    check_refused(
        "<topology>\n<object type=\"Package\"/></topology>",
        2,
        "'Package', not a Machine",
    );
    let machine = machine();
    let check = |from: &str, to: &str, nth: usize, words: &str| {
        let text = machine.replacen(from, to, 1);
        let at = text.match_indices(to).nth(nth).map_or(0, |(at, _)| at);
        check_refused(&text, text[..at].matches('\n').count() + 1, words);
    };
    check("0000:18:00.0", "0000:19:00.0", 1, "listed twice");
    check("0000:1a:00.0", "nowhere", 0, "'nowhere' is no PCI address");
    check(
        "<indexes length=\"6\">20 21",
        "<indexes length=\"6\">20 21 22",
        0,
        "4 values between 3 objects",
    );
    let second = "type=\"NUMANode\" os_index=\"0\" cpuset=\"0x000000f0\"";
    check(&second.replace("os_index=\"0\"", "os_index=\"1\""), second, 0, "described twice");
    let cut = &machine[..machine.len() / 2];
    check_refused(cut, cut.lines().count(), "cut off");
}

/// Every object below a wide one inherits its sets, and every pair of nodes is compared: neither may cost more than
/// its text.
#[test]
fn wide_sets_cost_no_more_than_their_text() {
    let wide = format!("0x1{}", ",0xffffffff".repeat(255));
    let objects = "<object type=\"Core\"/>".repeat(60_000);
    let text = format!(
        "<topology><object type=\"Machine\" cpuset=\"{wide}\" nodeset=\"{wide}\">{objects}</object></topology>"
    );
    assert!(host(&text).gpus.is_empty());
    let nodes: String =
        (0..1025).map(|n| format!("<object type=\"NUMANode\" os_index=\"{n}\"/>\n")).collect();
    let text = format!(
        "<topology><object type=\"Machine\" cpuset=\"{wide}\">\n{nodes}</object></topology>"
    );
    check_refused(&text, 1026, "more than 1024 NUMA nodes");
    let nics: String = (0..1025)
        .map(|n| format!("<object type=\"PCIDev\" pci_busid=\"{n:04x}:00:00.0\" pci_type=\"0200 [15b3:1021] [0:0] 00\"/>\n"))
        .collect();
    check_refused(
        &format!("<topology><object type=\"Machine\">\n{nics}</object></topology>"),
        1026,
        "more than 1024 GPUs",
    );
}

proptest! {
    #[test]
    fn mutations_never_panic(at in 0usize..6000, length in 0usize..60, with in "[ -~]{0,6}") {
        let text = machine();
        let at = at.min(text.len());
        let end = (at + length).min(text.len());
        let mutated = format!("{}{with}{}", &text[..at], &text[end..]);
        crate::formats::fuzz::any(mutated.as_bytes());
        crate::formats::fuzz::hwloc_xml(mutated.as_bytes());
    }

    #[test]
    fn nonsense_never_panics(pieces in proptest::collection::vec(proptest::sample::select(&[
        "<object type=\"Package\" nodeset=\"0x1\">", "<object type=\"NUMANode\" os_index=\"0\"/>", "</object>",
        "<object type=\"Bridge\" bridge_type=\"0-1\" bridge_pci=\"0000:[00-ff]\">",
        "<object type=\"Bridge\" bridge_type=\"1-1\" pci_busid=\"0000:00:01.0\" pci_type=\"0604 [1:2]\">",
        "<object type=\"PCIDev\" gp_index=\"1\" pci_busid=\"0000:01:00.0\" pci_type=\"0302 [10de:2330] [0:0] 00\" pci_link_speed=\"1\">",
        "<object type=\"PCIDev\" gp_index=\"2\" pci_busid=\"0000:02:00.0\" pci_type=\"0207 [15b3:1021] [0:0] 00\">",
        "<object type=\"OSDev\" name=\"nvml0\" osdev_type=\"1\"/>", "<object type=\"OSDev\" name=\"mlx5_0\" osdev_type=\"3\"/>",
        "<distances2 name=\"NVLinkBandwidth\"><indexes>1</indexes><u64values>5</u64values></distances2>",
        "<distances nbobjs=\"1\"><latency value=\"1e300\"/></distances>",
    ][..]), 0..24)) {
        let text = format!("<topology version=\"2.0\"><object type=\"Machine\">{}</object></topology>", pieces.concat());
        crate::formats::fuzz::any(text.as_bytes());
    }
}
