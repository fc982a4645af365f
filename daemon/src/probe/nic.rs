//! NIC ports: those of RDMA devices, and network interfaces whose device has no RDMA.
//!
//! Names of hosts, GUIDs, MAC and IP addresses are never read into facts.
//!
//! libibverbs is not asked: what is asked of a port stands in sysfs, from where the library has most of it too. Below `DEV` is
//! `sys/class/infiniband/NAME`, `PORT` is `DEV/ports/N`.
//!
//! | fact | file | what verbs would add |
//! |---|---|---|
//! | devices, their PCI functions | `DEV`, where `DEV/device` leads | nothing: libibverbs lists this folder, or asks rdma netlink for the same |
//! | ports | `PORT` | nothing (`phys_port_cnt`) |
//! | link layer | `PORT/link_layer` | nothing |
//! | state, physical state | `PORT/state`, `PORT/phys_state` | nothing (`ibv_query_port`) |
//! | rate, lanes | `PORT/rate` | speed and width apart; the text has both |
//! | node and system image GUID | `DEV/node_guid`, `DEV/sys_image_guid` | nothing |
//! | firmware, board | `DEV/fw_ver`, `DEV/board_id` | the vendor's part id, which PCI has |
//! | GIDs | `PORT/gids/I` | nothing (`ibv_query_gid`) |
//! | type and interface of a GID | `PORT/gid_attrs/types/I`, `PORT/gid_attrs/ndevs/I` | nothing: older libraries read these files |
//! | counters | `PORT/counters/NAME` | nothing: verbs have none |
//! | interfaces | `DEV/device/net` | nothing: verbs have none |
//! | bond and legs | `sys/class/net/IF/bonding` | nothing |
//! | physical or virtual function | `DEV/device/physfn` | nothing |
//! | DMA-BUF, peer memory | kernel's version and configuration, `/proc/modules` | whether `ibv_reg_dmabuf_mr` works for this pair of GPU and NIC, which takes memory of a GPU to try |
//!
//! Opening a device needs `/dev/infiniband/uverbsN`, which containers often lack; these files need nothing.

use std::collections::BTreeSet;

use topology::BusId;
use topology::snapshot::{Bond, FaultKind, Gid, LinkLayer, PortCounters};

use super::apart::Report;
use super::pci::innermost_bus_id;
use super::port;
use super::root::Root;
use super::trouble::Trouble;

const RDMA: &str = "sys/class/infiniband";
const NET: &str = "sys/class/net";

/// Levels of VLANs, bridges and bonds between the interface of a route and the ports that carry it.
const MOST_LOWER: usize = 4;

/// A piece of this probe's facts.
pub(super) enum NicPart {
    /// A port.
    Port(Box<NicPort>),
    /// The interfaces that carry a default route, and those below them.
    DefaultRoute(BTreeSet<String>),
}

/// A port, as its files tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NicPort {
    /// RDMA device, or network interface where there is none.
    pub(super) name: String,
    pub(super) bus_id: Option<BusId>,
    /// From 1, of an RDMA device.
    pub(super) port: Option<u32>,
    /// While it is up: a port that is down states what it would negotiate at worst.
    pub(super) mbit: Option<u64>,
    pub(super) link_layer: Option<LinkLayer>,
    pub(super) up: Option<bool>,
    /// Whether it has RDMA.
    pub(super) rdma: bool,
    /// Whether its device is a virtual function.
    pub(super) is_virtual: bool,
    /// Whether its wire is counted in a bond that is listed.
    pub(super) in_bond: bool,
    /// Its interfaces.
    pub(super) interfaces: Vec<String>,
    /// Lanes in use.
    pub(super) lanes: Option<u8>,
    pub(super) phys_state: Option<String>,
    /// System image GUID and node GUID. They are compared and never told.
    pub(super) guids: [Option<String>; 2],
    pub(super) firmware: Option<String>,
    pub(super) board: Option<String>,
    /// Whether it is an NVSwitch's own port, made to manage it.
    pub(super) manages_switch: bool,
    pub(super) gids: Option<Vec<Gid>>,
    pub(super) counters: Option<PortCounters>,
    pub(super) bond: Option<Bond>,
}

/// Tells every port, RDMA devices first.
pub(super) fn read(root: &Root, report: &Report<NicPart>) {
    let mut rdma_devices = BTreeSet::new();
    // Without the RDMA modules the class does not exist, which is no fault.
    for name in root.list(RDMA).unwrap_or_default() {
        rdma_ports(root, &name, &mut rdma_devices, report);
    }
    let names = match root.list(NET) {
        Ok(names) => names,
        Err(error) => {
            report.fault(NET, Trouble::from(&error));
            Vec::new()
        }
    };
    for name in &names {
        if let Some(port) = interface(root, name, &rdma_devices) {
            report.part(NicPart::Port(Box::new(port)));
        }
    }
    report.part(NicPart::DefaultRoute(default_route(root)));
}

/// Tells the ports of an RDMA device, and notes its function.
fn rdma_ports(root: &Root, name: &str, devices: &mut BTreeSet<BusId>, report: &Report<NicPart>) {
    let dir = format!("{RDMA}/{name}");
    let path = device_path(root, &dir);
    if path.as_deref().is_some_and(is_virtual_path) {
        // Software RDMA (rxe, siw) rides on an interface that is listed itself.
        return;
    }
    let bus_id = path.as_deref().and_then(innermost_bus_id);
    if bus_id.is_none() {
        report.fault(format!("{dir}/device"), Trouble::new(FaultKind::Absent, "no PCI function"));
    }
    devices.extend(bus_id);
    let interfaces = root.list(&format!("{dir}/device/net")).unwrap_or_default();
    let word =
        |file: &str| root.read(&format!("{dir}/{file}")).ok().filter(|text| !text.is_empty());
    let guid = |file: &str| word(file).filter(|guid| guid.bytes().any(|b| !b":0".contains(&b)));
    let device = NicPort {
        guids: [guid("sys_image_guid"), guid("node_guid")],
        firmware: word("fw_ver"),
        board: word("board_id"),
        manages_switch: manages_switch(root, &dir),
        bond: interfaces.iter().find_map(|interface| port::bond(root, interface)),
        name: name.into(),
        bus_id,
        rdma: true,
        is_virtual: root.link(&format!("{dir}/device/physfn")).is_some(),
        interfaces,
        ..NicPort::default()
    };
    let ports = root.list(&format!("{dir}/ports"));
    let mut ports: Vec<u32> = match ports {
        Ok(names) => names.iter().filter_map(|name| name.parse().ok()).collect(),
        Err(error) => {
            report.fault(format!("{dir}/ports"), Trouble::from(&error));
            report.part(NicPart::Port(Box::new(device)));
            return;
        }
    };
    ports.sort_unstable();
    for port in ports {
        let files = format!("{dir}/ports/{port}");
        let read = |file: &str, parse: &dyn Fn(&str) -> Option<u64>| {
            let place = format!("{files}/{file}");
            let text = root.read(&place);
            let value = text.map_err(|error| Trouble::from(&error)).and_then(|text| {
                let malformed = || Trouble::new(FaultKind::Malformed, format!("'{text}'"));
                parse(&text).ok_or_else(malformed)
            });
            value.map_err(|error| report.fault(place, error)).ok()
        };
        let up = read("state", &parse_state).map(|state| state == ACTIVE);
        let layer = read("link_layer", &parse_link_layer);
        // A port that is down states a rate it does not have.
        let mbit = if up == Some(false) { None } else { read("rate", &parse_rate) };
        let lanes = root.read(&format!("{files}/rate")).ok().as_deref().and_then(parse_lanes);
        let phys_state = root.read(&format!("{files}/phys_state")).ok();
        report.part(NicPart::Port(Box::new(NicPort {
            port: Some(port),
            up,
            mbit,
            link_layer: layer.and_then(|layer| match layer {
                INFINIBAND => Some(LinkLayer::Infiniband),
                ETHERNET => Some(LinkLayer::Ethernet),
                _ => None,
            }),
            lanes: lanes.filter(|_| up == Some(true)),
            phys_state: phys_state.as_deref().and_then(parse_phys_state),
            gids: port::gids(root, &files),
            counters: port::counters(root, &files),
            ..device.clone()
        })));
    }
}

/// An interface that is a port of its own: on a PCI function without RDMA, or a bond of such.
fn interface(root: &Root, name: &str, rdma_devices: &BTreeSet<BusId>) -> Option<NicPort> {
    let dir = format!("{NET}/{name}");
    let read = |file: &str| root.read(&format!("{dir}/{file}")).ok();
    let slaves = read("bonding/slaves").unwrap_or_default();
    // A bond lies where its first leg does; with RDMA its device is listed already.
    let legs = slaves.split_whitespace().map(|leg| function_of(root, leg));
    let bus_id = match slaves.is_empty() {
        true => Some(function_of(root, name)?),
        false => legs.into_iter().collect::<Option<Vec<_>>>()?.first().copied(),
    };
    let legs_have_rdma = slaves
        .split_whitespace()
        .filter_map(|leg| function_of(root, leg))
        .any(|id| rdma_devices.contains(&id));
    if legs_have_rdma || bus_id.is_some_and(|id| rdma_devices.contains(&id)) {
        return None;
    }
    let up = read("operstate").and_then(|state| match state.as_str() {
        "up" => Some(true),
        "down" | "lowerlayerdown" | "dormant" | "notpresent" => Some(false),
        _ => None,
    });
    Some(NicPort {
        name: name.into(),
        bus_id,
        port: None,
        up,
        // The kernel refuses to read it while the interface is down, and virtio says -1.
        mbit: read("speed").and_then(|text| text.parse().ok()).filter(|mbit| *mbit > 0),
        // Numbers of <linux/if_arp.h>.
        link_layer: read("type").and_then(|kind| match kind.as_str() {
            "1" => Some(LinkLayer::Ethernet),
            "32" => Some(LinkLayer::Infiniband),
            _ => None,
        }),
        rdma: false,
        is_virtual: root.link(&format!("{dir}/device/physfn")).is_some(),
        in_bond: slaves.is_empty() && root.exists(&format!("{dir}/bonding_slave")),
        interfaces: vec![name.into()],
        bond: port::bond(root, name),
        ..NicPort::default()
    })
}

/// The PCI function an interface belongs to; none for a virtual one, nor for one behind USB, whose function is the
/// host controller.
fn function_of(root: &Root, interface: &str) -> Option<BusId> {
    let path = device_path(root, &format!("{NET}/{interface}"))?;
    let usb = |component: &str| component.starts_with("usb");
    if is_virtual_path(&path) || path.split('/').any(usb) {
        return None;
    }
    innermost_bus_id(&path)
}

/// Where a class entry leads, or its `device` where the entry is a plain directory.
fn device_path(root: &Root, dir: &str) -> Option<String> {
    root.link(dir).or_else(|| root.link(&format!("{dir}/device")))
}

fn is_virtual_path(path: &str) -> bool {
    path.starts_with("sys/devices/virtual/")
}

/// Port state "active" of the InfiniBand specification, as the kernel numbers it: `4: ACTIVE`.
const ACTIVE: u64 = 4;

fn parse_state(text: &str) -> Option<u64> {
    text.split_once(':')?.0.trim().parse().ok()
}

/// The word in `5: LinkUp`.
fn parse_phys_state(text: &str) -> Option<String> {
    let (number, word) = text.split_once(':')?;
    number.trim().parse::<u8>().ok()?;
    Some(word.trim().into()).filter(|word: &String| !word.is_empty())
}

/// Lanes in `400 Gb/sec (4X NDR)`.
fn parse_lanes(text: &str) -> Option<u8> {
    let (_, rest) = text.split_once('(')?;
    let (lanes, _) = rest.split_once('X')?;
    lanes.trim().parse().ok().filter(|lanes| (1..=12).contains(lanes))
}

/// On boards with fourth generation NVSwitches some RDMA devices are there to manage them; their vital product data
/// says so (NVIDIA's fabric manager guide). It also has serial numbers, so nothing else of it is kept.
fn manages_switch(root: &Root, dir: &str) -> bool {
    const SIGN: &[u8] = b"SW_MNG";
    let data = root.read_bytes(&format!("{dir}/device/vpd")).unwrap_or_default();
    data.windows(SIGN.len()).any(|window| window == SIGN)
}

const INFINIBAND: u64 = 1;
const ETHERNET: u64 = 2;
/// Neither, which is a fact: EFA and other networks with a transport of their own.
const OTHER: u64 = 0;

fn parse_link_layer(text: &str) -> Option<u64> {
    match text {
        "InfiniBand" => Some(INFINIBAND),
        "Ethernet" => Some(ETHERNET),
        // The kernel's words for a device that names no layer (`link_layer_show` of its RDMA core).
        "Unknown" | "Unspecified" => Some(OTHER),
        _ => None,
    }
}

/// Mbit/s in `400 Gb/sec (4X NDR)`, `2.5 Gb/sec (1X SDR)`.
fn parse_rate(text: &str) -> Option<u64> {
    let (gbit, _) = text.split_once("Gb/sec")?;
    let gbit = gbit.trim();
    let (whole, tenths) = gbit.split_once('.').unwrap_or((gbit, "0"));
    let tenths: u64 = if tenths.len() == 1 { tenths.parse().ok()? } else { return None };
    let mbit = whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(tenths * 100)?;
    Some(mbit).filter(|mbit| *mbit > 0)
}

/// Interfaces of default routes, IPv4 and IPv6, with all below them.
fn default_route(root: &Root) -> BTreeSet<String> {
    let read = |file: &str| root.read(file).unwrap_or_default();
    let mut found = BTreeSet::new();
    let v4 = parse_routes_v4(&read("proc/net/route"));
    for interface in v4.into_iter().chain(parse_routes_v6(&read("proc/net/ipv6_route"))) {
        add_with_lower(root, interface, MOST_LOWER, &mut found);
    }
    found
}

fn add_with_lower(root: &Root, interface: String, depth: usize, found: &mut BTreeSet<String>) {
    let entries = root.list(&format!("{NET}/{interface}")).unwrap_or_default();
    if found.insert(interface) && depth > 0 {
        for lower in entries.iter().filter_map(|entry| entry.strip_prefix("lower_")) {
            add_with_lower(root, lower.into(), depth - 1, found);
        }
    }
}

/// Columns: interface, destination, gateway, flags, use counts, metric, mask, ...
fn parse_routes_v4(text: &str) -> Vec<String> {
    let default = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let zero = |column: usize| columns.get(column) == Some(&"00000000");
        (zero(1) && zero(7)).then(|| columns[0].to_owned())
    };
    text.lines().filter_map(default).collect()
}

/// Columns: destination, its prefix length, source, its prefix length, next hop, metric, use counts, flags, interface.
fn parse_routes_v6(text: &str) -> Vec<String> {
    let default = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let all = columns.first()?.bytes().all(|b| b == b'0') && columns.get(1) == Some(&"00");
        // The kernel keeps a reject route on `lo`.
        columns.get(9).filter(|interface| all && **interface != "lo").map(|i| (*i).to_owned())
    };
    text.lines().filter_map(default).collect()
}

/// Feeds the parsers of this file.
pub(super) fn fuzz(text: &str) {
    let _ = parse_state(text);
    let _ = parse_rate(text);
    let _ = parse_lanes(text);
    let _ = parse_phys_state(text);
    port::fuzz(text);
    let _ = parse_routes_v4(text);
    let _ = parse_routes_v6(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_states() {
        let rate = |text: &str, expect: Option<u64>| assert_eq!(parse_rate(text), expect, "{text}");
        rate("400 Gb/sec (4X NDR)", Some(400_000));
        rate("2.5 Gb/sec (1X SDR)", Some(2_500));
        rate("56 Gb/sec (4X FDR)", Some(56_000));
        for text in [
            "",
            "0 Gb/sec",
            "x Gb/sec",
            "400",
            "1.25 Gb/sec",
            "99999999999999999999 Gb/sec",
            "18446744073709551.9 Gb/sec",
        ] {
            rate(text, None);
        }
        assert_eq!(parse_state("4: ACTIVE"), Some(ACTIVE));
        assert_eq!(parse_state("1: DOWN"), Some(1));
        assert_eq!(parse_state("ACTIVE"), None);
        assert_eq!(parse_link_layer("Unknown"), Some(OTHER));
        assert_eq!(parse_link_layer("Token Ring"), None);
        assert_eq!(parse_lanes("400 Gb/sec (4X NDR)"), Some(4));
        assert_eq!(parse_lanes("400 Gb/sec"), None);
        assert_eq!(parse_phys_state("5: LinkUp").as_deref(), Some("LinkUp"));
        assert_eq!(parse_phys_state("LinkUp"), None);
    }

    #[test]
    fn routes() {
        let v4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                  bond0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                  eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(parse_routes_v4(v4), ["bond0"]);
        let zero = "0".repeat(32);
        let v6 = format!(
            "{zero} 00 {zero} 00 fe800000000000000000000000000001 00000064 00000001 00000000 00000003     eth2\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n\
             fe80{} 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001     eth3\n",
            "0".repeat(28)
        );
        assert_eq!(parse_routes_v6(&v6), ["eth2"]);
    }
}
