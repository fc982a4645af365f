//! Joins what the probes told into one snapshot. Pure: no file, no call, no clock but for the faults.

use std::collections::{BTreeMap, BTreeSet};

use topology::snapshot::{Nic, NumaNode, PciDevice, PcieLinkFacts};
use topology::{BusId, Snapshot};

use super::apart::Clock;
use super::cpu::CpuPart;
use super::gpu::{NvmlFacts, gpus};
use super::kind::{is_gpu, is_nic, is_nvswitch, kinds, links_below};
use super::locality::Locality;
use super::nic::{NicPart, NicPort};
use super::nvml::NvmlPart;
use super::pci::{Fact, PciFunction, place_by_bus_number, with_ancestors};
use super::role::{Candidate, roles};

/// What each probe told.
pub(super) struct Parts {
    pub(super) cpu: Vec<CpuPart>,
    pub(super) pci: Vec<(BusId, PciFunction)>,
    pub(super) nic: Vec<NicPart>,
    /// `None` where NVML is off.
    pub(super) nvml: Option<Vec<NvmlPart>>,
    pub(super) clock: Clock,
}

/// Fills the snapshot.
pub(super) fn assemble(parts: Parts, snapshot: &mut Snapshot) {
    let mut gpudirect = None;
    for part in parts.cpu {
        match part {
            CpuPart::GpuDirect(possible) => gpudirect = Some(possible),
            CpuPart::Host(host) => snapshot.host = host,
            CpuPart::Node(node) => snapshot.numa_nodes.push(node),
        }
    }
    let mut functions: BTreeMap<BusId, PciFunction> = parts.pci.into_iter().collect();
    place_by_bus_number(&mut functions);
    let mut ports = Vec::new();
    let mut default_route = BTreeSet::new();
    for part in parts.nic {
        match part {
            NicPart::Port(port) => ports.push(port),
            NicPart::DefaultRoute(interfaces) => default_route = interfaces,
        }
    }
    ports.sort_by_cached_key(|port| (!port.rdma, natural_key(&port.name), port.port));
    let facts = NvmlFacts::new(parts.nvml);
    if let Some(driver) = &facts.driver {
        snapshot.host.driver = Some(driver.clone());
    }

    snapshot.numa_nodes.sort_by_key(|node: &NumaNode| node.id);
    let locality = Locality { functions: &functions, nodes: &snapshot.numa_nodes };
    let (gpus, gpu_faults) = gpus(facts, locality, gpudirect, parts.clock);
    let nics = nics(&ports, &default_route, locality, gpudirect);
    let nic_functions = ports.iter().filter_map(|port| port.bus_id).collect();
    let (pci_devices, pci_faults) = pci_devices(&functions, &nic_functions);
    snapshot.gpus = gpus;
    snapshot.nics = nics;
    snapshot.pci_devices = pci_devices;
    snapshot.faults.extend(gpu_faults);
    snapshot.faults.extend(pci_faults);
    snapshot.faults.sort_by(|a, b| {
        (&a.probe, &a.place, &a.error, a.at_unix_ms).cmp(&(
            &b.probe,
            &b.place,
            &b.error,
            b.at_unix_ms,
        ))
    });
}

/// GPUs, NICs, NVSwitches and what lies between them and their host bridges, by address.
fn pci_devices(
    functions: &BTreeMap<BusId, PciFunction>,
    nics: &BTreeSet<BusId>,
) -> (Vec<PciDevice>, Vec<topology::Fault>) {
    let ends = functions.iter().filter(|(bus_id, function)| {
        is_gpu(function) || is_nic(function) || is_nvswitch(function) || nics.contains(bus_id)
    });
    let kept = with_ancestors(functions, ends.map(|(bus_id, _)| *bus_id));
    let kinds = kinds(functions, &kept, nics);
    let mut faults = Vec::new();
    let mut devices = Vec::new();
    for (bus_id, kind) in kinds {
        let Some(function) = functions.get(&bus_id) else { continue };
        let parent = function.parent.filter(|parent| functions.contains_key(parent));
        // The link files of a root port, and of a switch's downstream port, are about the link below, which is the
        // child's. A function on the root bus is part of the root complex and has none.
        let has_link = parent.is_some() && !links_below(kind);
        let matters = |fact: &Fact| match fact {
            Fact::Identity => true,
            Fact::Trained => has_link,
            Fact::Capable => has_link || links_below(kind),
        };
        faults.extend(
            function
                .faults
                .iter()
                .filter(|(fact, _)| matters(fact))
                .map(|(_, fault)| fault.clone()),
        );
        let above = parent.and_then(|parent| functions.get(&parent));
        let link = PcieLinkFacts {
            trained: function.trained,
            device_capable: function.capable,
            slot_capable: above.and_then(|above| above.capable),
            trained_total: None,
        };
        devices.push(PciDevice {
            parent,
            host_bridge: function.host_bridge.clone().filter(|_| parent.is_none()),
            class: function.class,
            vendor: function.vendor,
            device: function.device,
            numa_node: function.numa_node,
            link: if has_link { link } else { PcieLinkFacts::default() },
            ..PciDevice::new(bus_id, kind)
        });
    }
    (devices, faults)
}

fn nics(
    ports: &[NicPort],
    default_route: &BTreeSet<String>,
    locality: Locality<'_>,
    gpudirect: Option<bool>,
) -> Vec<Nic> {
    let candidates: Vec<Candidate<'_>> = ports
        .iter()
        .map(|port| {
            let function = port.bus_id.and_then(|id| locality.functions.get(&id));
            let model = function.and_then(|function| Some((function.vendor?, function.device?)));
            Candidate { port, model }
        })
        .collect();
    let nic = |(port, (role, reason)): (&NicPort, (_, &str))| {
        tracing::debug!(nic = port.name, port = port.port, ?role, reason, "NIC role");
        Nic {
            bus_id: port.bus_id,
            numa_node: port.bus_id.and_then(|id| locality.node_of(id)),
            port: port.port,
            mbit: port.mbit,
            link_layer: port.link_layer,
            up: port.up,
            gdr: if port.rdma { gpudirect } else { Some(false) },
            role,
            ..Nic::new(port.name.clone())
        }
    };
    ports.iter().zip(roles(&candidates, default_route)).map(nic).collect()
}

/// Orders `mlx5_2` before `mlx5_10`, as the libraries list devices.
fn natural_key(name: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (head, tail) = rest.split_at(text);
        let digits = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (number, next) = tail.split_at(digits);
        // A number beyond 64 bits is no counter; its digits count as one.
        key.push((head.to_owned(), number.parse().unwrap_or(u64::MAX)));
        rest = next;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::natural_key;

    #[test]
    fn names_sort_by_number() {
        let mut names = ["mlx5_10", "mlx5_2", "mlx5_bond_0", "mlx4_0", "eth0"];
        names.sort_by_cached_key(|name| natural_key(name));
        assert_eq!(names, ["eth0", "mlx4_0", "mlx5_2", "mlx5_10", "mlx5_bond_0"]);
    }
}
