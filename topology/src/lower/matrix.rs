//! Lowering of a matrix of path classes: the least PCIe tree in which every pair has its class.
//!
//! ```text
//!   PIX  same lower switch       numa0 ─ (host bridge) ─ upper switch ─ lower switch ─ device
//!   PXB  same upper switch
//!   PHB  same host bridge
//!   NODE same NUMA node
//! ```
//!
//! Classes come from the matrix itself and stay as printed; the tree is only there to plan on, which the
//! assumptions say. A cell the source lacks is taken as `SYS`, the worst that can be reached.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::builder::{Builder, Place};
use crate::matrix::{Cell, Matrix};
use crate::rates;
use crate::snapshot::{GpuLinkKind, PcieLinkFacts};
use crate::{CpuModel, Gpu, HostId, Link, LinkKind, Nic, PathType, Snapshot, Source, VertexKind};

/// Links of the largest GPU before Rubin (NVLink 4 and 5). More in one row can only go through switches.
const MOST_DIRECT_LINKS: u32 = 18;

enum Device<'a> {
    Gpu(&'a Gpu),
    Nic(usize, &'a Nic),
}

struct Classes<'a> {
    matrix: &'a Matrix,
}

pub(super) fn lower(
    builder: &mut Builder<'_>,
    host: HostId,
    snapshot: &Snapshot,
    matrix: &Matrix,
) -> Result<(), String> {
    let devices = devices_of(snapshot, matrix)?;
    let n = devices.len();
    let classes = Classes { matrix };
    builder.assume(host, "a matrix tells path classes, not the PCIe tree: the least tree with those classes is planned on");
    let pairs = || (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
    if n > 2 && pairs().all(|(a, b)| classes.cell(a, b).is_none()) {
        builder.assume(host, "how devices are joined is not told: SYS assumed between all");
    } else {
        for (a, b) in pairs().filter(|(a, b)| classes.cell(*a, *b).is_none()) {
            let (a, b) = (&matrix.devices[a], &matrix.devices[b]);
            builder.assume(host, &format!("{a} to {b}: not told, SYS assumed"));
        }
    }

    let lower_switch = classes.groups(n, |class| class == PathType::Pix);
    let upper_switch = classes.groups(n, |class| class <= PathType::Pxb);
    let bridge = classes.groups(n, |class| class <= PathType::Phb);
    let node = numa_groups(&devices, &classes);
    let node_ids = numa_ids(&devices, &node);

    let mut numa: BTreeMap<usize, Place> = BTreeMap::new();
    for (group, id) in &node_ids {
        let kind = VertexKind::NumaNode { id: Some(*id), cpu: CpuModel::default() };
        numa.insert(*group, builder.add(Some(host), &format!("numa{id}"), kind, None)?);
    }
    let unknown = PcieLinkFacts::default();
    let mut switches: BTreeMap<(bool, usize), Place> = BTreeMap::new();
    let mut above = Vec::with_capacity(n);
    for device in 0..n {
        let upper = group_size(&lower_switch, &upper_switch, upper_switch[device]) > 1;
        let lower =
            upper || lower_switch.iter().filter(|g| **g == lower_switch[device]).count() > 1;
        let mut place = numa[&node[device]];
        let mut host_bridge = Some(format!("bridge{}", bridge[device]));
        for (wanted, key) in
            [(upper, (true, upper_switch[device])), (lower, (false, lower_switch[device]))]
        {
            if !wanted {
                continue;
            }
            place = match switches.get(&key) {
                Some(switch) => *switch,
                None => {
                    let name = format!("switch{}", switches.len());
                    let switch = builder.add(Some(host), &name, VertexKind::PcieSwitch, None)?;
                    builder.pcie(host, (switch, "PCIe links"), place, &unknown, host_bridge.take());
                    switches.insert(key, switch);
                    switch
                }
            };
            host_bridge = None;
        }
        above.push((place, host_bridge));
    }

    let mut gpus = Vec::new();
    for (place, (device, (above, host_bridge))) in devices.iter().zip(above).enumerate() {
        let vertex = match device {
            Device::Gpu(gpu) => {
                let vertex = builder.add(
                    Some(host),
                    &format!("GPU{}", gpu.index),
                    VertexKind::Gpu { index: gpu.index },
                    gpu.bus_id,
                )?;
                gpus.push((place, vertex));
                vertex
            }
            Device::Nic(index, nic) => builder.nic(host, *index, nic)?,
        };
        // Some sources without a tree still tell a device's own link.
        let bus_id = match device {
            Device::Gpu(gpu) => gpu.bus_id,
            Device::Nic(_, nic) => nic.bus_id,
        };
        let known = bus_id.and_then(|id| snapshot.pci_devices.iter().find(|d| d.bus_id == id));
        let link = known.map_or(&unknown, |device| &device.link);
        builder.pcie(host, (vertex, "PCIe links"), above, link, host_bridge);
    }
    gpu_links(builder, host, &classes, &gpus, snapshot)?;
    let nodes: Vec<(Place, CpuModel)> =
        numa.into_values().map(|place| (place, CpuModel::default())).collect();
    builder.sockets(host, &nodes);
    Ok(())
}

/// The facts behind each row: `GPU3` is the GPU of that index, any other name the next NIC.
fn devices_of<'a>(snapshot: &'a Snapshot, matrix: &Matrix) -> Result<Vec<Device<'a>>, String> {
    let mut nics = snapshot.nics.iter().enumerate();
    matrix
        .devices
        .iter()
        .map(|name| {
            let index = name.strip_prefix("GPU").and_then(|digits| digits.parse::<u32>().ok());
            match index {
                Some(index) => {
                    snapshot.gpus.iter().find(|gpu| gpu.index.0 == index).map(Device::Gpu)
                }
                None => nics.next().map(|(place, nic)| Device::Nic(place, nic)),
            }
            .ok_or_else(|| format!("the matrix names {name}, which is not among the devices"))
        })
        .collect()
}

impl Classes<'_> {
    /// The cell of a pair, from either side.
    fn cell(&self, a: usize, b: usize) -> Option<Cell> {
        let at = |row: usize, column: usize| {
            self.matrix.cells.get(row).and_then(|cells| cells.get(column)).copied().flatten()
        };
        at(a, b).or_else(|| at(b, a))
    }

    /// Devices joined by pairs whose class is `near`; a group is named by its first member. NVLink classes say
    /// nothing of the PCIe tree and join nobody.
    fn groups(&self, n: usize, near: impl Fn(PathType) -> bool) -> Vec<usize> {
        let mut group: Vec<usize> = (0..n).collect();
        for a in 0..n {
            for b in a + 1..n {
                let joined = self
                    .cell(a, b)
                    .is_some_and(|cell| cell.class >= PathType::Pix && near(cell.class));
                if joined {
                    join(&mut group, a, b);
                }
            }
        }
        group
    }
}

fn join(group: &mut [usize], a: usize, b: usize) {
    let (keep, drop) = (group[a].min(group[b]), group[a].max(group[b]));
    for of in group.iter_mut().filter(|of| **of == drop) {
        *of = keep;
    }
}

/// How many lower groups an upper group holds.
fn group_size(lower: &[usize], upper: &[usize], wanted: usize) -> usize {
    lower
        .iter()
        .zip(upper)
        .filter(|(_, of)| **of == wanted)
        .map(|(of, _)| *of)
        .collect::<BTreeSet<_>>()
        .len()
}

/// NUMA nodes: by the NUMA column, by equal CPU lists, and by classes that stay within a node.
fn numa_groups(devices: &[Device<'_>], classes: &Classes<'_>) -> Vec<usize> {
    let mut group = classes.groups(devices.len(), |class| class <= PathType::Node);
    for (a, device_a) in devices.iter().enumerate() {
        for (b, device_b) in devices.iter().enumerate().skip(a + 1) {
            let (Device::Gpu(gpu_a), Device::Gpu(gpu_b)) = (device_a, device_b) else { continue };
            let same = match (gpu_a.numa_node, gpu_b.numa_node) {
                (Some(node_a), Some(node_b)) => node_a == node_b,
                _ => gpu_a.cpus.as_ref().is_some_and(|cpus| gpu_b.cpus.as_ref() == Some(cpus)),
            };
            // A pair the matrix puts on different nodes stays there, whatever the affinity columns say.
            let apart = classes.cell(a, b).is_some_and(|cell| cell.class == PathType::Sys);
            if same && !apart {
                join(&mut group, a, b);
            }
        }
    }
    group
}

/// A number for each group: the one its GPUs state where it is free, else the least unused.
fn numa_ids(devices: &[Device<'_>], group: &[usize]) -> BTreeMap<usize, u32> {
    let mut ids = BTreeMap::new();
    let mut used = BTreeSet::new();
    for (device, of) in devices.iter().zip(group) {
        let Device::Gpu(gpu) = device else { continue };
        if let Some(node) =
            gpu.numa_node.filter(|node| !ids.contains_key(of) && !used.contains(node))
        {
            ids.insert(*of, node);
            used.insert(node);
        }
    }
    for of in group {
        if !ids.contains_key(of) {
            let node = (0..).find(|node| !used.contains(node)).unwrap_or(u32::MAX);
            ids.insert(*of, node);
            used.insert(node);
        }
    }
    ids
}

/// NVLinks: direct, or through a switch where one row counts more links than any GPU has. A matrix of AMD's tools
/// counts xGMI links in the same cells.
fn gpu_links(
    builder: &mut Builder<'_>,
    host: HostId,
    classes: &Classes<'_>,
    gpus: &[(usize, Place)],
    snapshot: &Snapshot,
) -> Result<(), String> {
    let (kind, word, told) = match snapshot.source {
        Source::RocmTopo => (LinkKind::Xgmi, "xGMI links", GpuLinkKind::Xgmi),
        _ => (LinkKind::NvLink, "NVLinks", GpuLinkKind::NvLink),
    };
    let capability = snapshot.gpus.iter().find_map(|gpu| gpu.compute_capability);
    let links = |a: usize, b: usize| {
        classes
            .cell(a, b)
            .filter(|cell| a != b && cell.class == PathType::Nvl)
            .map_or(0, |cell| cell.links)
    };
    let mut component: Vec<usize> = (0..gpus.len()).collect();
    for (i, (a, _)) in gpus.iter().enumerate() {
        for (j, (b, _)) in gpus.iter().enumerate().skip(i + 1) {
            if links(*a, *b) > 0 {
                join(&mut component, i, j);
            }
        }
    }
    let mut switched: BTreeMap<usize, Option<Place>> = BTreeMap::new();
    for (i, (a, _)) in gpus.iter().enumerate() {
        let total: u32 = gpus.iter().map(|(b, _)| links(*a, *b)).fold(0, u32::saturating_add);
        if total > MOST_DIRECT_LINKS && kind == LinkKind::NvLink {
            switched.insert(component[i], None);
        }
    }
    for (i, (a, place_a)) in gpus.iter().enumerate() {
        let most = gpus.iter().map(|(b, _)| links(*a, *b)).max().unwrap_or(0);
        // 18 links a GPU is what Hopper and Blackwell have; the slower of both is taken.
        let generation = capability.or_else(|| (most == 18).then_some(90));
        let arch = rates::GpuArch { compute_capability: generation, gfx: None };
        let rate = rates::gpu_link(told, arch, None, builder.rates);
        let each = if most > 0 { builder.take(host, word, rate) } else { rate.bandwidth };
        let link = |count: u32| Link {
            kind,
            bandwidth: each * u64::from(count),
            count,
            host_bridge: None,
        };
        if !switched.contains_key(&component[i]) {
            for (b, place_b) in gpus {
                builder.link(*place_a, *place_b, link(links(*a, *b)));
            }
            continue;
        }
        let number = switched.values().filter(|switch| switch.is_some()).count();
        let switch = match switched[&component[i]] {
            Some(switch) => switch,
            None => {
                builder.assume(
                    host,
                    &format!(
                        "NV{most} to every peer is more links than a GPU has: NVSwitches assumed"
                    ),
                );
                let switch =
                    builder.add(Some(host), &format!("nvs{number}"), VertexKind::NvSwitch, None)?;
                switched.insert(component[i], Some(switch));
                switch
            }
        };
        builder.link(*place_a, switch, link(most));
        builder.link(switch, *place_a, link(most));
    }
    Ok(())
}
