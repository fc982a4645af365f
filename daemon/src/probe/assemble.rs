//! Joins what the probes told into one snapshot. Pure: no file, no call, no clock but for the faults.

use std::collections::{BTreeMap, BTreeSet};

use topology::snapshot::{Nic, NumaNode, PciDevice, PcieLinkFacts};
use topology::{BusId, Snapshot, dpu};

use super::apart::Clock;
use super::cpu::CpuPart;
use super::gpu::{NvmlFacts, gpus};
use super::gpudirect::possible;
use super::kfd::KfdGpu;
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
    pub(super) kfd: Vec<(BusId, KfdGpu)>,
    /// `None` where NVML is off.
    pub(super) nvml: Option<Vec<NvmlPart>>,
    pub(super) clock: Clock,
}

/// Fills the snapshot.
pub(super) fn assemble(parts: Parts, snapshot: &mut Snapshot) {
    let mut gpudirect = None;
    for part in parts.cpu {
        match part {
            CpuPart::Host(host) => {
                gpudirect = host.gpudirect.as_ref().and_then(possible);
                snapshot.host = *host;
            }
            CpuPart::Node(node) => snapshot.numa_nodes.push(node),
        }
    }
    let mut functions: BTreeMap<BusId, PciFunction> = parts.pci.into_iter().collect();
    place_by_bus_number(&mut functions);
    let mut ports = Vec::new();
    let mut default_route = BTreeSet::new();
    for part in parts.nic {
        match part {
            NicPart::Port(port) => ports.push(*port),
            NicPart::DefaultRoute(interfaces) => default_route = interfaces,
        }
    }
    ports.sort_by_cached_key(|port| (!port.rdma, natural_key(&port.name), port.port));
    let facts = NvmlFacts::new(parts.nvml);
    if let Some(driver) = &facts.driver {
        snapshot.host.driver = Some(driver.clone());
    }
    snapshot.host.confidential = facts.confidential;

    snapshot.numa_nodes.sort_by_key(|node: &NumaNode| node.id);
    let locality = Locality { functions: &functions, nodes: &snapshot.numa_nodes };
    let boards = parts.kfd.into_iter().collect();
    let (gpus, gpu_faults) = gpus(facts, &boards, locality, gpudirect, parts.clock);
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

/// GPUs, NICs, NVSwitches, ways to DPUs, and what lies between them and their host bridges, by address.
fn pci_devices(
    functions: &BTreeMap<BusId, PciFunction>,
    nics: &BTreeSet<BusId>,
) -> (Vec<PciDevice>, Vec<topology::Fault>) {
    let ends = functions.iter().filter(|(bus_id, function)| {
        is_gpu(function)
            || is_nic(function)
            || is_nvswitch(function)
            || dpu::is_management(function.vendor, function.device)
            || nics.contains(bus_id)
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
        // Nor is a link that carries no traffic worth a fault: the one to the cores of a DPU is its ports' own.
        let way_to_dpu = dpu::is_management(function.vendor, function.device);
        let has_link = parent.is_some() && !links_below(kind) && !way_to_dpu;
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
            acs: function.acs,
            iommu: function.iommu,
            suspended: function.suspended,
            driver: function.driver.clone(),
            physical_function: function.physical_function,
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
            let beside_gpu = port.bus_id.is_some_and(|id| beside_gpu(id, locality.functions));
            Candidate { port, model, beside_gpu }
        })
        .collect();
    let [cards, nodes] = [0, 1].map(|which| numbers(ports, which));
    let number = |numbers: &BTreeMap<String, u32>, guid: &Option<String>| {
        numbers.get(guid.as_ref()?).copied()
    };
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
            role_reason: Some(reason.into()),
            netdevs: port.interfaces.clone(),
            lanes: port.lanes,
            phys_state: port.phys_state.clone(),
            card: number(&cards, &port.guids[0]),
            node: number(&nodes, &port.guids[1]),
            firmware: port.firmware.clone(),
            board: port.board.clone(),
            gids: port.gids.clone(),
            counters: port.counters,
            bond: port.bond.clone(),
            ..Nic::new(port.name.clone())
        }
    };
    ports.iter().zip(roles(&candidates, default_route)).map(nic).collect()
}

/// Whether a switch is above both a function and a GPU. A bridge below a bridge is part of one; what has none above
/// it is a root port.
fn beside_gpu(bus_id: BusId, functions: &BTreeMap<BusId, PciFunction>) -> bool {
    let switches = |bus_id: BusId| {
        let mut above = with_ancestors(functions, [bus_id]);
        above.remove(&bus_id);
        above.retain(|id| functions.get(id).is_some_and(|bridge| bridge.parent.is_some()));
        above
    };
    let own = switches(bus_id);
    let gpus = functions.iter().filter(|(_, function)| is_gpu(function));
    !own.is_empty() && gpus.into_iter().any(|(gpu, _)| !switches(*gpu).is_disjoint(&own))
}

/// A number for each GUID, from 0 in the order of the ports: equal ones stay equal, and none is told.
fn numbers(ports: &[NicPort], which: usize) -> BTreeMap<String, u32> {
    let mut numbers = BTreeMap::new();
    for guid in ports.iter().filter_map(|port| port.guids[which].clone()) {
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        numbers.entry(guid).or_insert(next);
    }
    numbers
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
