//! Small files, each with one thing odd about it.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use proptest::prelude::*;

use crate::formats::read as read_any;
use crate::snapshot::{
    C2c, GpuLinkKind, GpuLinks, LinkLayer, LinkPeer, NetInterface, PciKind, PcieLink, Snapshot,
};
use crate::{Bandwidth, BusId, CpuArch, GpuIndex};

fn bus(text: &str) -> BusId {
    text.parse().unwrap()
}

/// Two GPUs below a switch, joined by two NVLinks, with a NIC.
const PAIR: &str = r#"<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:12:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" link_speed="16.0 GT/s PCIe" link_width="8">
        <gpu dev="1" sm="80" rank="1" gdr="0">
          <nvlink target="0000:11:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:13:00.0" class="0x020700" vendor="0x15b3" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
</system>
"#;

#[track_caller]
fn load(text: &str) -> Vec<Snapshot> {
    read_any(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn load_one(text: &str) -> Snapshot {
    let mut hosts = load(text);
    assert_eq!(hosts.len(), 1);
    hosts.remove(0)
}

/// One `cpu` around the given elements, each on lines of its own from line 3 on.
fn system(inside: &str) -> String {
    format!("<system version=\"1\">\n<cpu numaid=\"0\">\n{inside}\n</cpu>\n</system>\n")
}

/// A `pci` with a `gpu` of the given attributes and links.
fn gpu(bus_id: &str, attributes: &str, links: &str) -> String {
    format!("<pci busid=\"{bus_id}\" class=\"0x030200\"><gpu {attributes}>{links}</gpu></pci>")
}

#[track_caller]
fn check_refused(text: &str, line: usize, words: &str) {
    let error = read_any(text.as_bytes()).expect_err("must be refused");
    assert!(error.line == line && error.reason.contains(words), "{error}");
}

#[track_caller]
fn check_fault(text: &str, words: &str) -> Snapshot {
    let snapshot = load_one(text);
    let said = snapshot.faults.iter().any(|fault| fault.error.contains(words));
    assert!(said, "{words} not in {:#?}", snapshot.faults);
    snapshot
}

#[test]
fn a_whole_file() {
    let snapshot = load_one(PAIR);
    assert_eq!(snapshot.faults, []);
    let node = &snapshot.numa_nodes[0];
    assert_eq!(node.cpus.as_ref().unwrap().to_string(), "0-15");
    assert_eq!((node.cpu.arch, node.cpu.family), (Some(CpuArch::X86_64), Some(23)));
    let [first, second] = &snapshot.gpus[..] else { panic!("{:#?}", snapshot.gpus) };
    assert_eq!((first.index, first.bus_id), (GpuIndex(0), Some(bus("0000:11:00.0"))));
    assert_eq!(
        (first.compute_capability, first.gdr, second.gdr),
        (Some(80), Some(true), Some(false))
    );
    let link = GpuLinks {
        kind: GpuLinkKind::NvLink,
        peer: LinkPeer::Gpu(bus("0000:12:00.0")),
        count: 2,
        rate: None,
    };
    assert_eq!(first.links, [link]);
    let nic = &snapshot.nics[0];
    assert_eq!((nic.name.as_str(), nic.mbit, nic.port), ("mlx5_0", Some(200_000), Some(1)));
    assert_eq!((nic.link_layer, nic.gdr), (Some(LinkLayer::Infiniband), Some(true)));
    let kinds: Vec<_> = snapshot.pci_devices.iter().map(|d| (d.kind, d.parent)).collect();
    let switch = Some(bus("0000:10:00.0"));
    assert_eq!(
        kinds,
        [
            (PciKind::Switch, None),
            (PciKind::Gpu, switch),
            (PciKind::Gpu, switch),
            (PciKind::Nic, switch)
        ]
    );
    let capable = snapshot.pci_devices[2].link.device_capable;
    assert_eq!(capable, Some(PcieLink { mtps: 16_000, width: 8 }));
}

/// What newer versions of NCCL write and the planner does not use yet is kept.
#[test]
fn rails_planes_parts_and_direct_links_are_kept() {
    let text = system(
        "<pci busid='0000:20:00.0' class='0x060400'><pcilink target='0000:10:00.0'/></pci>\
         <pci busid='0000:10:00.0' class='0x060400'><pcilink target='0000:20:00.0'/>\
         <pci busid='0000:11:00.0' class='0x030200'><gpu dev='0' mlopart='1'/></pci>\
         <pci busid='0000:12:00.0' class='0x020700'><nic>\
         <net name='mlx5_0' speed='400000' rail='2' plane='1'/><gin name='mlx5_0'/><gin name='mlx5_1'/><rma/>\
         <net name='mlx5_1' speed='400000' rail='3' plane='4294967295'/></nic></pci></pci>",
    );
    let snapshot = check_fault(&text, "is kept and not planned on");
    assert_eq!(snapshot.pci_links, [(bus("0000:10:00.0"), bus("0000:20:00.0"))]);
    assert_eq!(snapshot.gpus[0].part, Some(1));
    let [first, second] = &snapshot.nics[..] else { panic!("{:#?}", snapshot.nics) };
    assert_eq!((first.rail.map(|rail| rail.0), first.plane), (Some(2), Some(1)));
    // Above 16 bits NCCL keeps a flag for "not told".
    assert_eq!((second.rail.map(|rail| rail.0), second.plane), (Some(3), None));
    let both = [NetInterface::Gin, NetInterface::Rma];
    assert_eq!((&first.interfaces[..], &second.interfaces[..]), (&both[..], &both[..]));
}

/// Row 5 of the field cases: in a VM the kernel knows neither rate nor width.
#[test]
fn field_case_005_link_speed_and_width_empty() {
    for (speed, width) in [("", ""), ("Unknown", "0"), ("Unknown speed", "255")] {
        let text = PAIR.replace(
            "\"16.0 GT/s PCIe\" link_width=\"8\"",
            &format!("\"{speed}\" link_width=\"{width}\""),
        );
        let snapshot = check_fault(&text, "link_speed not told, unknown: 0000:12:00.0");
        assert_eq!(snapshot.pci_devices[2].link.device_capable, None, "never 0");
        assert_eq!(snapshot.pci_devices[2].link.usable(), (None, None));
    }
    let text = PAIR.replace("link_width=\"8\"", "link_width=\"\"");
    let snapshot = check_fault(&text, "link_width not told, unknown: 0000:12:00.0");
    assert_eq!(snapshot.pci_devices[2].link.usable(), (Some(16_000), None));
    check_fault(&PAIR.replace("link_width=\"8\"", "link_width=\"7\""), "'7' is no PCIe width");
    check_fault(&PAIR.replacen("16.0 GT/s PCIe", "fast", 1), "'fast' is no PCIe rate");
}

#[test]
fn markup_that_stops_nccl_is_read() {
    let expect = load_one(PAIR);
    let tabs = PAIR.replace("  ", "\t").replace("\" ", "\"\n\t");
    for text in [
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!-- <pci> in a comment -->\n{PAIR}"),
        PAIR.replace('\n', "\r\n"),
        tabs,
        PAIR.replace('"', "'"),
        format!("\u{feff}{PAIR}"),
        format!("[root@n1 ~]$ cat topo.xml\n{PAIR}[root@n1 ~]$ \n"),
        PAIR.replace("version=\"1\"", "version=\"2\""),
    ] {
        assert_eq!(load_one(&text), expect, "{text}");
    }
    let utf16: Vec<u8> =
        "\u{feff}".encode_utf16().chain(PAIR.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    assert_eq!(read_any(&utf16).unwrap(), core::slice::from_ref(&expect));
    let mut latin1 = PAIR.as_bytes().to_vec();
    latin1.extend(b"<!-- caf\xe9 -->");
    assert_eq!(read_any(&latin1).unwrap(), [expect]);
}

#[test]
fn children_may_come_in_any_order() {
    let reordered: String = r#"<system version="1"><cpu modelid="49" familyid="143" vendor="AuthenticAMD" arch="x86_64" affinity="0000ffff" numaid="0">
        <pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
          <pci busid="0000:13:00.0" class="0x020700" vendor="0x15b3" link_speed="16.0 GT/s PCIe" link_width="16">
            <nic><net gdr="1" port="1" speed="200000" dev="0" name="mlx5_0"/></nic></pci>
          <pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" link_speed="16.0 GT/s PCIe" link_width="8">
            <gpu dev="1" sm="80" gdr="0"><nvlink target="0000:11:00.0" count="1"/><nvlink target="00000000:11:00.0" count="1"/></gpu></pci>
          <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" link_speed="16.0 GT/s PCIe" link_width="16">
            <gpu dev="0" sm="80" gdr="1"><nvlink target="0000:12:00.0" count="2"/></gpu></pci>
        </pci></cpu></system>"#.into();
    assert_eq!(load_one(&reordered), load_one(PAIR));
}

#[test]
fn links_end_at_what_their_class_says() {
    let with = |link: &str| system(&gpu("0000:11:00.0", "dev=\"0\" sm=\"90\"", link));
    let peer = |link: &str| load_one(&with(link)).gpus[0].links[0].peer.clone();
    let switch = Some(bus("0000:1c:00.0"));
    assert_eq!(
        peer("<nvlink target='0000:1c:00.0' count='5' tclass='0x068000'/>"),
        LinkPeer::Switch(switch)
    );
    assert_eq!(
        peer("<nvlink target='fffffff:ffff:ff' count='18' tclass='0x068000'/>"),
        LinkPeer::Switch(None)
    );
    assert_eq!(peer("<nvlink target='fffffff:ff:ff.0' count='18'/>"), LinkPeer::Switch(None));
    assert_eq!(
        peer("<nvlink target='0000:1c:00.0' count='3' tclass='0x068001'/>"),
        LinkPeer::Cpu(switch)
    );
    // A dump of a communicator over some of the GPUs keeps the links to the others.
    let text = with("<nvlink target='0000:12:00.0' count='1' tclass='0x030200'/>");
    check_fault(&text, "link to 0000:12:00.0, a GPU that this file does not list");
    let text = with("<nvlink target='0000:11:00.0' count='1' tclass='0x030200'/>");
    assert_eq!(check_fault(&text, "to itself").gpus[0].links, []);
    assert_eq!(load_one(&with("<nvlink target='0000:1c:00.0' count='0'/>")).gpus[0].links, []);

    check_refused(&with("\n<nvlink target='0000:12:00.0' count='1'/>"), 4, "not in the file");
    check_refused(
        &with("\n<nvlink target='1' count='1'/>"),
        4,
        "'1' of <nvlink> is no PCI address",
    );
    check_refused(&with("\n<nvlink count='1'/>"), 4, "states no target");
    check_refused(&with("\n<nvlink target='fffffff:ffff:ff'/>"), 4, "states no count");
    check_refused(&with("\n<nvlink target='fffffff:ffff:ff' count='-1'/>"), 4, "no count of links");
    let nic = PAIR.replacen("target=\"0000:12:00.0\"", "target=\"0000:13:00.0\"", 1);
    check_refused(&nic, 6, "0000:13:00.0 (line 14) is no GPU");
    let lie = PAIR.replacen("tclass=\"0x030200\"", "tclass=\"0x068000\"", 1);
    check_refused(&lie, 6, "is a GPU of this file");
}

#[test]
fn dialect_of_rccl() {
    let xgmi = "<xgmi target='0000:12:00.0' count='1' tclass='0x038000'/>";
    let first = gpu("0000:11:00.0", "dev='0' sm='104' gcn='910' arch='38911'", xgmi);
    let second = gpu("0000:12:00.0", "dev='1' sm='304' gcn='gfx942'", "");
    let snapshot = load_one(&system(&format!("{first}{second}")));
    let [first, second] = &snapshot.gpus[..] else { panic!() };
    assert_eq!(first.links[0].kind, GpuLinkKind::Xgmi);
    assert_eq!((first.name.as_deref(), first.compute_capability), (Some("gfx90a"), None));
    assert_eq!(second.name.as_deref(), Some("gfx942"));
}

#[test]
fn chip_to_chip_links_count_in_mb_per_second() {
    let text = system(&gpu("0008:06:00.0", "dev='0' sm='103'", "<c2c bw='44712' count='5'/>"));
    let c2c = C2c { count: 5, rate: Bandwidth::from_mbps(44_712) };
    assert_eq!(load_one(&text).gpus[0].c2c, Some(c2c));
    let text = system(&gpu("0008:06:00.0", "dev='0' sm='103'", "<c2c count='5'/>"));
    assert_eq!(check_fault(&text, "chip-to-chip link unknown").gpus[0].c2c, None);
}

#[test]
fn minimal_files_load() {
    use PciKind::{Gpu, Nic, NvSwitch, Other, Switch};
    let bare = system("<pci busid='0000:00:1b.0'/>\n<pci busid='0000:00:1c.0'/>");
    let snapshot = check_fault(&bare, "neither class nor device told");
    assert_eq!(snapshot.gpus, []);
    assert!(snapshot.pci_devices.iter().all(|device| device.kind == Other));

    let classes = system(
        "<pci busid='0000:02:00.0' class='0x030200' vendor='0x10de'/>
         <pci busid='0000:01:00.0' class='0x03'/>
         <pci busid='0000:03:00.0' class='0x030000' vendor='0x1a03'/>
         <pci busid='0000:04:00.0' class='0x020000'/>
         <pci busid='0000:05:00.0' class='0x068000'/>
         <pci busid='0000:06:00.0' class='0x120000' vendor='0x1002'/>
         <pci busid='0000:07:00.0'><pci busid='0000:08:00.0' class='0x030200'><gpu dev='0'/></pci></pci>",
    );
    let snapshot =
        check_fault(&classes, "dev not told, numbered by PCI address: 0000:01:00.0 as 1");
    check_fault(&classes, "no <gpu>, a GPU by its class");
    check_fault(&classes, "no <net>, a NIC by its class");
    let gpus: Vec<_> = snapshot.gpus.iter().map(|g| (g.index.0, g.bus_id.unwrap().bus())).collect();
    assert_eq!(gpus, [(0, 8), (1, 1), (2, 2), (3, 6)]);
    let kinds: Vec<_> = snapshot.pci_devices.iter().map(|device| device.kind).collect();
    assert_eq!(kinds, [Gpu, Gpu, Other, Nic, NvSwitch, Gpu, Switch, Gpu]);
    let nic = &snapshot.nics[0];
    assert_eq!((nic.name.as_str(), nic.mbit), ("0000:04:00.0", None));
}

#[test]
fn nics_keep_the_order_of_dev() {
    let text = system(
        "<pci busid='0000:01:00.0' class='0x020000'><nic>
           <net name='b' dev='2' speed='-1' port='0'/><net name='a' dev='0' speed='100000' port='2'/>
           <gin name='a' dev='0'/><net name='late' speed='1e5'/>
         </nic></pci>
         <nic><net name='eth0' dev='1' speed='10000'/></nic>",
    );
    let snapshot = check_fault(&text, "b: speed '-1' Mbit/s, taken as unknown");
    let nics: Vec<_> =
        snapshot.nics.iter().map(|nic| (nic.name.as_str(), nic.mbit, nic.port)).collect();
    assert_eq!(
        nics,
        [
            ("a", Some(100_000), Some(2)),
            ("eth0", Some(10_000), None),
            ("b", None, None),
            ("late", None, None)
        ]
    );
    assert_eq!(snapshot.nics[1].bus_id, None);
    assert_eq!(snapshot.nics[1].numa_node, Some(0));
    let twice = text.replace("dev='1'", "dev='2'");
    check_fault(&twice, "both have dev 2");
    check_fault(&text.replace("10000'", "99999999999999'"), "taken as unknown");
}

#[test]
fn fused_dumps_hold_several_hosts() {
    let host = |hash: &str, rank: usize| {
        PAIR.replace("<system version=\"1\">\n", "")
            .replace("</system>\n", "")
            .replace("numaid=\"0\"", &format!("host_hash=\"{hash}\" numaid=\"0\""))
            .replace("rank=\"0\"", &format!("rank=\"{rank}\""))
            .replace("rank=\"1\"", &format!("rank=\"{}\"", rank + 1))
    };
    let fused = format!("<system version=\"1\">\n{}{}</system>", host("0xb", 2), host("0xa", 0));
    assert_eq!(load(&fused), [load_one(PAIR), load_one(PAIR)]);
    // Rank order, not file order.
    let with_sm = fused.replacen("sm=\"80\"", "sm=\"90\"", 1);
    assert_eq!(load(&with_sm)[1].gpus[0].compute_capability, Some(90));
    // A hash of zero is NCCL's for none.
    let one = fused.replace("0xb", "0x0").replace("host_hash=\"0xa\"", "");
    check_refused(&one, 23, "is listed here and at line 4, and one is a GPU");
}

#[test]
fn addresses_listed_twice() {
    let bridges = system(
        "<pci busid='0000:c3:00.0' class='0x060400'>
           <pci busid='0000:c5:00.0' class='0x060400'><pci busid='0000:d0:00.0' class='0x030200'><gpu dev='0'/></pci></pci>
           <pci busid='0000:c5:00.0' class='0x060400'><pci busid='0000:d1:00.0' class='0x030200'><gpu dev='1'/></pci></pci>
           <pci busid='0000:c5:00.1' class='0x020000'/>
         </pci>",
    );
    let snapshot =
        check_fault(&bridges, "0000:c5:00.0 is also at line 4; this one is called 0000:c5:00.2");
    let above = |bus_id| {
        snapshot.pci_devices.iter().find(|device| device.bus_id == bus(bus_id)).unwrap().parent
    };
    assert_eq!(above("0000:d1:00.0"), Some(bus("0000:c5:00.2")));
    assert_eq!(above("0000:d0:00.0"), Some(bus("0000:c5:00.0")));

    let twice = PAIR.replace("0000:12:00.0\" class", "0000:11:00.0\" class");
    check_refused(&twice, 9, "0000:11:00.0 is listed here and at line 4");
    let spelled = PAIR.replace("0000:12:00.0\" class", "00000000:11:00.0\" class");
    check_refused(&spelled, 9, "0000:11:00.0 is listed here and at line 4");
    check_refused(&PAIR.replace("dev=\"1\"", "dev=\"0\""), 10, "dev 0 is also the GPU at line 5");
    let cpus = PAIR.replace("</cpu>", "</cpu><cpu numaid=\"0\" affinity=\"ff\"/>");
    check_refused(&cpus, 20, "NUMA node 0 is described twice");
}

#[test]
fn unknown_numa_node_is_not_node_0() {
    let snapshot = load_one(&PAIR.replace("numaid=\"0\"", "numaid=\"-1\""));
    assert_eq!(snapshot.numa_nodes, []);
    assert!(snapshot.pci_devices.iter().all(|device| device.numa_node.is_none()));
}

#[test]
fn refused_with_the_line() {
    let drop = |words: &str| PAIR.replacen(words, "", 1);
    check_refused(&PAIR.replace("version=\"1\"", "version=\"3\""), 1, "version 3");
    check_refused(&drop(" version=\"1\""), 1, "no version");
    check_refused(&drop(" numaid=\"0\""), 2, "no numaid");
    check_refused(&drop(" busid=\"0000:11:00.0\""), 4, "no busid");
    check_refused(&drop(" name=\"mlx5_0\""), 16, "no name");
    check_refused(
        &PAIR.replace("busid=\"0000:11", "busid=\"x:11"),
        4,
        "'x:11:00.0' is no PCI address",
    );
    check_refused(&PAIR.replace("dev=\"1\"", "dev=\"one\""), 10, "'one', not an integer");
    check_refused(&PAIR[..PAIR.len() / 2], 9, "cut off");
    check_refused(&PAIR.replace("</gpu>", "</cpu>"), 7, "not well-formed");
    check_refused("<system version=\"1\"/>", 1, "no <cpu>");
    check_refused(
        "<system version=\"1\"><gpu dev=\"0\"/></system>",
        1,
        "<gpu> cannot be inside <system>",
    );
    check_refused(
        &system("<pci busid='0000:01:00.0'><gpu><cpu/></gpu></pci>"),
        3,
        "<cpu> cannot be inside <gpu>",
    );
    check_refused("<graphs version=\"1\">\n</graphs>", 1, "channels NCCL uses, no machine");
    check_refused("\n<algo name=\"a\"/>", 2, "root is <algo>: an MSCCL schedule");
    check_refused("<!DOCTYPE s [<!ENTITY a \"b\">]>\n<system version=\"1\"/>", 1, "document types");
    check_refused(&system("<pci busid='0000:01:00.0' class='&lol;'/>"), 3, "not well-formed");
}

#[test]
fn hostile_sizes_are_refused_before_they_cost() {
    let deep = "<pci busid='0000:01:00.0'>".repeat(50_000);
    check_refused(&system(&deep), 3, "deep");
    let attributes: String = (0..5000).map(|n| format!(" a{n}='x'")).collect();
    check_refused(&system(&format!("<pci{attributes}/>")), 3, "attributes");
    check_refused(&system(&"<pci/>".repeat(70_000)), 3, "elements");
    check_refused(&PAIR.replacen("<pci", "<pci xmlns:a='b'", 1), 3, "namespaces");
    let error = read_any(&alloc::vec![b'<'; crate::formats::SIZE_LIMIT + 1]).unwrap_err();
    assert!(error.reason.contains("bytes"), "{error}");
}

#[test]
fn what_is_odd_but_harmless_is_a_fault() {
    check_fault(&PAIR.replace("<nic>", "<nic><speed/>"), "<speed> is not known");
    check_fault(&PAIR.replace("<nic>", "… <nic>"), "text '…' between elements");
    check_fault(&PAIR.replace("0000ffff", "all"), "affinity");
    check_fault(&PAIR.replace("x86_64", "riscv64"), "arch 'riscv64'");
    check_fault(&PAIR.replace("0x020700", "nic"), "'nic' is no class code");
    check_fault(
        &PAIR
            .replace("<nic>", "<nic/><nic>")
            .replace("<gpu dev=\"0\"", "<pcilink target='x'/><gpu dev=\"0\""),
        "target 'x' of <pcilink>",
    );
    check_fault(&PAIR.replace("</gpu>", "</gpu><gpu dev='7'/>"), "several <gpu>");
}

proptest! {
    /// Cuts, drops and foreign bytes in a valid file: read or refused, never a panic.
    #[test]
    fn mutations_never_panic(at in 0..PAIR.len(), length in 0usize..40, with in "[ -~]{0,6}") {
        let end = (at + length).min(PAIR.len());
        let mutated = format!("{}{with}{}", &PAIR[..at], &PAIR[end..]);
        crate::formats::fuzz::any(mutated.as_bytes());
        crate::formats::fuzz::nccl_topology_xml(mutated.as_bytes());
    }

    /// Files that are well-formed but make no sense.
    #[test]
    fn nonsense_never_panics(pieces in proptest::collection::vec(
        proptest::sample::select(&[
            "<cpu numaid='0'>", "</cpu>", "<pci busid='0000:01:00.0'>", "<pci busid='0000:02:00.0' class='0x03'>",
            "</pci>", "<gpu dev='0'>", "<gpu>", "</gpu>", "<nvlink target='0000:01:00.0' count='1'/>", "<nic>", "</nic>",
            "<net name='a'/>", "<c2c bw='1' count='1'/>", "text", "<x/>",
        ][..]), 0..24))
    {
        let text = format!("<system version='1'>{}</system>", pieces.concat());
        crate::formats::fuzz::any(text.as_bytes());
    }
}
