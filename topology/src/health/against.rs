//! A host beside another of its kind, or beside itself in its good days.
//!
//! What may differ between two hosts of one kind is not compared: identifiers, counters, faults, which cables lead
//! where. Of one host over time a counter that has grown says something; see [`examine`].

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::Examination;
use super::device::nic_name;
use super::gpu_links::link_total;
use crate::snapshot::{Gpu, Nic, PcieLink, Snapshot};
use crate::{BusId, GpuIndex, HostId, RateModel, Severity, lower};

/// Something that two hosts do not have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Difference {
    /// The device, pair or theme.
    pub component: String,
    /// What of it.
    pub what: String,
    /// On the first host, or in the profile; `-` where there is none.
    pub first: String,
    /// On the second, or now.
    pub second: String,
    /// How bad it is where the first is as it should be.
    pub severity: Severity,
}

/// Collects differences.
#[derive(Default)]
struct Differences(Vec<Difference>);

impl Differences {
    fn compare<T: PartialEq + ToString>(
        &mut self,
        component: &str,
        what: &str,
        severity: Severity,
        first: Option<T>,
        second: Option<T>,
    ) {
        if first == second {
            return;
        }
        let words = |value: Option<T>| value.map_or_else(|| "-".into(), |value| value.to_string());
        self.0.push(Difference {
            component: component.into(),
            what: what.into(),
            first: words(first),
            second: words(second),
            severity,
        });
    }
}

/// What the second host has otherwise than the first, by component.
#[must_use]
pub fn differences(first: &Snapshot, second: &Snapshot) -> Vec<Difference> {
    let mut all = Differences::default();
    host(first, second, &mut all);
    gpus(first, second, &mut all);
    nics(first, second, &mut all);
    paths(first, second, &mut all);
    all.0.sort();
    all.0
}

fn host(first: &Snapshot, second: &Snapshot, all: &mut Differences) {
    use Severity::{Degraded, Info};
    let (a, b) = (&first.host, &second.host);
    let mut text = |what, severity, a: &Option<String>, b: &Option<String>| {
        all.compare("host", what, severity, a.as_ref(), b.as_ref());
    };
    text("product", Info, &a.product, &b.product);
    text("kernel", Info, &a.kernel, &b.kernel);
    text("GPU driver", Degraded, &a.driver, &b.driver);
    let flags = |flags: &Option<Vec<String>>| flags.as_ref().map(|flags| flags.join(" "));
    text("kernel flags", Info, &flags(&a.kernel_flags), &flags(&b.kernel_flags));
    let nodes = |snapshot: &Snapshot| Some(snapshot.numa_nodes.len());
    all.compare("host", "NUMA nodes", Degraded, nodes(first), nodes(second));
    for node in &first.numa_nodes {
        let other = second.numa_nodes.iter().find(|other| other.id == node.id);
        let cpus = |node: &crate::snapshot::NumaNode| node.cpus.as_ref().map(ToString::to_string);
        if let Some(other) = other {
            let name = format!("NUMA node {}", node.id);
            all.compare(&name, "CPUs", Degraded, cpus(node), cpus(other));
        }
    }
    let redirecting = |snapshot: &Snapshot| {
        let known = snapshot.pci_devices.iter().filter_map(|device| device.acs);
        let count = known.clone().filter(|acs| acs.redirects()).count();
        (known.count() > 0).then_some(count)
    };
    all.compare(
        "host",
        "bridges with ACS redirection",
        Degraded,
        redirecting(first),
        redirecting(second),
    );
}

/// Rate and width that a function's link can carry, in words.
fn pcie_link(snapshot: &Snapshot, bus_id: Option<BusId>) -> Option<String> {
    let device = snapshot.pci_devices.iter().find(|device| Some(device.bus_id) == bus_id)?;
    let (mtps, width) = device.link.usable();
    let link = PcieLink { mtps: mtps?, width: width? };
    Some(format!("{} MT/s x{}", link.mtps, link.width))
}

fn gpus(first: &Snapshot, second: &Snapshot, all: &mut Differences) {
    use Severity::{Critical, Degraded, Info};
    let by_index = |snapshot: &Snapshot| -> BTreeMap<GpuIndex, Gpu> {
        snapshot.gpus.iter().map(|gpu| (gpu.index, gpu.clone())).collect()
    };
    let (a, b) = (by_index(first), by_index(second));
    let indices: BTreeSet<GpuIndex> = a.keys().chain(b.keys()).copied().collect();
    for index in indices {
        let name = format!("GPU{index}");
        let (Some(a), Some(b)) = (a.get(&index), b.get(&index)) else {
            let here = |gpu: Option<&Gpu>| gpu.map(|_| "there");
            let severity = if b.contains_key(&index) { Info } else { Critical };
            all.compare(&name, "presence", severity, here(a.get(&index)), here(b.get(&index)));
            continue;
        };
        let text = |value: &Option<String>| value.clone();
        all.compare(&name, "product", Degraded, text(&a.name), text(&b.name));
        all.compare(&name, "PCI address", Info, a.bus_id, b.bus_id);
        all.compare(&name, "NUMA node", Degraded, a.numa_node, b.numa_node);
        all.compare(&name, "active links", Degraded, Some(link_total(a)), Some(link_total(b)));
        all.compare(&name, "MIG mode", Degraded, a.mig, b.mig);
        all.compare(&name, "partition", Degraded, text(&a.partition), text(&b.partition));
        let links = (pcie_link(first, a.bus_id), pcie_link(second, b.bus_id));
        all.compare(&name, "PCIe link", Degraded, links.0, links.1);
    }
}

fn nics(first: &Snapshot, second: &Snapshot, all: &mut Differences) {
    use Severity::{Degraded, Info};
    let by_name = |snapshot: &Snapshot| -> BTreeMap<String, Nic> {
        snapshot.nics.iter().map(|nic| (nic_name(nic), nic.clone())).collect()
    };
    let (a, b) = (by_name(first), by_name(second));
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    for name in names {
        let (Some(a), Some(b)) = (a.get(name), b.get(name)) else {
            let here = |nic: Option<&Nic>| nic.map(|_| "there");
            let severity = if b.contains_key(name) { Info } else { Degraded };
            all.compare(name, "presence", severity, here(a.get(name)), here(b.get(name)));
            continue;
        };
        let state = |up: Option<bool>| up.map(|up| if up { "up" } else { "down" });
        all.compare(name, "state", Degraded, state(a.up), state(b.up));
        all.compare(name, "Mbit/s", Degraded, a.mbit, b.mbit);
        all.compare(name, "PCI address", Info, a.bus_id, b.bus_id);
        all.compare(name, "NUMA node", Degraded, a.numa_node, b.numa_node);
        all.compare(name, "firmware", Info, a.firmware.clone(), b.firmware.clone());
        all.compare(name, "rail", Degraded, a.rail.map(|rail| rail.0), b.rail.map(|rail| rail.0));
        let role = |nic: &Nic| Some(format!("{:?}", nic.role).to_lowercase());
        all.compare(name, "role", Degraded, role(a), role(b));
        let links = (pcie_link(first, a.bus_id), pcie_link(second, b.bus_id));
        all.compare(name, "PCIe link", Degraded, links.0, links.1);
        let gids = |nic: &Nic| {
            let routable = nic.gids.as_ref()?.iter().filter(|gid| gid.is_routable());
            Some(routable.map(|gid| gid.index.to_string()).collect::<Vec<_>>().join(","))
        };
        all.compare(name, "routable GID indices", Degraded, gids(a), gids(b));
    }
}

/// Classes of paths between devices that both have.
fn paths(first: &Snapshot, second: &Snapshot, all: &mut Differences) {
    let classes = |snapshot: &Snapshot| -> BTreeMap<(String, String), String> {
        let Ok(topology) = lower(core::slice::from_ref(snapshot), RateModel::Effective) else {
            return BTreeMap::new();
        };
        let matrix = topology.matrix(HostId(0));
        let mut classes = BTreeMap::new();
        for (row, (a, cells)) in matrix.devices.iter().zip(&matrix.cells).enumerate() {
            for (b, cell) in matrix.devices.iter().zip(cells).skip(row + 1) {
                let class = cell.map_or_else(|| "-".into(), |cell| cell.to_string());
                classes.insert((a.clone(), b.clone()), class);
            }
        }
        classes
    };
    let (a, b) = (classes(first), classes(second));
    for (pair, class) in &a {
        if let Some(other) = b.get(pair) {
            let name = format!("{} to {}", pair.0, pair.1);
            all.compare(&name, "path", Severity::Degraded, Some(class), Some(other));
        }
    }
}

/// Findings of a host that should be as the profile says.
pub(super) fn examine(snapshot: &Snapshot, profile: &Snapshot, found: &mut Examination) {
    for difference in differences(profile, snapshot) {
        let fix = match difference.what.as_str() {
            "presence" => "find out where the device went: lspci, dmesg; then power-cycle the host",
            _ => {
                "bring the host back to the profile, or record a new profile if the change was meant"
            }
        };
        found.finding(
            "differs-from-profile",
            difference.severity,
            difference.component,
            format!(
                "{}: {}, the profile has {}",
                difference.what, difference.second, difference.first
            ),
            fix,
        );
    }
    for nic in &snapshot.nics {
        let name = nic_name(nic);
        let before = profile.nics.iter().find(|other| nic_name(other) == name);
        let downed = |nic: &Nic| nic.counters.and_then(|counters| counters.link_downed);
        let (Some(before), Some(now)) = (before.and_then(downed), downed(nic)) else { continue };
        if now > before {
            found.finding(
                "nic-port-flapping",
                Severity::Degraded,
                name,
                format!("the link went down {} times since the profile was recorded", now - before),
                "check cable and transceiver; see the switch's log",
            );
        }
    }
}
