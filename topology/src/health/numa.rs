//! NUMA: devices of unknown place, nodes without CPUs, CPUs that may not be used.

use alloc::format;

use super::Examination;
use super::device::{Devices, gpu_name, nic_name};
use crate::{BusId, CpuList, Severity};

pub(super) fn examine(devices: &Devices<'_>, found: &mut Examination) {
    unknown(devices, found);
    memory_only(devices, found);
    not_allowed(devices, found);
}

fn unknown(devices: &Devices<'_>, found: &mut Examination) {
    let nodes = &devices.snapshot.numa_nodes;
    // Nodes of memory alone are no place for a device.
    let places = nodes.iter().filter(|node| !node.is_memory_only()).count();
    if places < 2 {
        return;
    }
    let of_device = |bus_id: Option<BusId>| {
        devices.way_up(bus_id?).into_iter().find_map(|function| function.numa_node)
    };
    let snapshot = devices.snapshot;
    let gpus = snapshot.gpus.iter().map(|gpu| (gpu_name(gpu), gpu.numa_node, gpu.bus_id));
    let nics = snapshot.nics.iter().map(|nic| (nic_name(nic), nic.numa_node, nic.bus_id));
    for (name, stated, bus_id) in gpus.chain(nics) {
        if stated.is_none() && of_device(bus_id).is_none() {
            found.finding(
                "numa-node-unknown",
                Severity::Degraded,
                name,
                format!("no source tells its NUMA node; the host has {places}"),
                "update firmware, or pass the NUMA layout through to the virtual machine",
            );
        }
    }
}

fn memory_only(devices: &Devices<'_>, found: &mut Examination) {
    let nodes = &devices.snapshot.numa_nodes;
    let bare = CpuList::from_cpus(nodes.iter().filter(|n| n.is_memory_only()).map(|n| n.id));
    if !bare.is_empty() {
        found.finding(
            "numa-nodes-of-memory-alone",
            Severity::Info,
            format!("NUMA nodes {bare}"),
            format!("{} of {} NUMA nodes have no CPU", bare.len(), nodes.len()),
            "bind CPUs to the other nodes only: numactl --cpunodebind fails on these",
        );
    }
}

/// GPUs whose near CPUs the reading process may not use, as in a container pinned to another socket.
fn not_allowed(devices: &Devices<'_>, found: &mut Examination) {
    let limits = devices.snapshot.host.limits.as_ref();
    let Some(allowed) = limits.and_then(|limits| limits.cpus.as_ref()) else { return };
    for gpu in &devices.snapshot.gpus {
        let Some(near) = gpu.cpus.as_ref().filter(|cpus| !cpus.is_empty()) else { continue };
        if !near.iter().any(|cpu| allowed.iter().any(|other| other == cpu)) {
            found.finding(
                "near-cpus-not-allowed",
                Severity::Degraded,
                gpu_name(gpu),
                format!("CPUs {near} are near, the process may run on {allowed} alone"),
                "give the container or task CPUs of the GPU's socket",
            );
        }
    }
}
