//! The NVLink fabric: registration, health, cliques, and what NVLink between hosts needs.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::Examination;
use super::device::{Devices, gpu_name};
use crate::snapshot::{FabricHealth, FabricState, GpuFabric};
use crate::{Gpu, Severity};

/// Compute capability times ten of Hopper, the first architecture that registers with a fabric, and of Blackwell,
/// whose switches have a subnet manager (NVLSM) besides the fabric manager.
const HOPPER: u32 = 90;
const BLACKWELL: u32 = 100;

pub(super) fn examine(devices: &Devices<'_>, found: &mut Examination) {
    for gpu in &devices.snapshot.gpus {
        match &gpu.fabric {
            Some(fabric) => {
                registration(devices, gpu, fabric, found);
                health(gpu, fabric, found);
            }
            None if needs_fabric(devices, gpu) => {
                let missing = "the driver did not tell its registration with the fabric";
                found.unchecked("fabric-not-registered", gpu_name(gpu), missing);
            }
            None => {}
        }
        clique_unknown(devices, gpu, found);
    }
    cliques_differ(devices, found);
    imex(devices, found);
}

/// Whether a GPU is at switches that it must register with.
fn needs_fabric(devices: &Devices<'_>, gpu: &Gpu) -> bool {
    gpu.compute_capability.is_some_and(|capability| capability >= HOPPER)
        && (devices.has_nvswitch() || devices.links_leave_the_host(gpu))
}

fn registration(devices: &Devices<'_>, gpu: &Gpu, fabric: &GpuFabric, found: &mut Examination) {
    let blackwell = gpu.compute_capability.is_some_and(|capability| capability >= BLACKWELL);
    let switches = devices.has_nvswitch() || devices.links_leave_the_host(gpu);
    match fabric.state {
        // Boards without switches wait for a fabric that will never come, and lose nothing by it.
        FabricState::NotStarted | FabricState::InProgress if !switches => {}
        FabricState::NotStarted | FabricState::InProgress => {
            let state = match fabric.state {
                FabricState::NotStarted => "has not begun",
                _ => "is in progress",
            };
            let cause = match blackwell {
                true => "the fabric manager or the switches' subnet manager (NVLSM) is not running",
                false => "the fabric manager is not running",
            };
            found.finding(
                "fabric-not-registered",
                Severity::Critical,
                gpu_name(gpu),
                format!("registration with the NVLink fabric {state}: most likely {cause}"),
                "systemctl status nvidia-fabricmanager; its version must be the driver's. CUDA does not start until then",
            );
        }
        FabricState::Completed if fabric.status.is_some_and(|status| status != 0) => {
            found.finding(
                "fabric-not-registered",
                Severity::Critical,
                gpu_name(gpu),
                format!(
                    "registration with the NVLink fabric failed: NVML return code {}",
                    fabric.status.unwrap_or(0)
                ),
                "see the log of nvidia-fabricmanager; reset the GPU",
            );
        }
        FabricState::Completed | FabricState::NotSupported => {}
    }
}

fn health(gpu: &Gpu, fabric: &GpuFabric, found: &mut Examination) {
    let conditions: Vec<&str> = fabric.conditions().map(|(_, words)| words).collect();
    let severity = match fabric.health {
        Some(FabricHealth::Unhealthy) => Severity::Critical,
        Some(FabricHealth::LimitedCapacity) => Severity::Degraded,
        _ if !conditions.is_empty() => Severity::Degraded,
        _ => return,
    };
    let mask = fabric.health_mask.map(|mask| format!("health mask {mask:#x}"));
    let summary = match fabric.health {
        Some(FabricHealth::Unhealthy) => Some(String::from("summary unhealthy")),
        Some(FabricHealth::LimitedCapacity) => Some("summary limited capacity".into()),
        _ => None,
    };
    let words = conditions.into_iter().map(str::to_owned).chain(summary).chain(mask);
    found.finding(
        "fabric-not-healthy",
        severity,
        gpu_name(gpu),
        words.collect::<Vec<_>>().join(", "),
        "see nvidia-smi -q (Fabric) and the log of nvidia-fabricmanager; plan without this GPU's links until it is healthy",
    );
}

/// At the switches of a rack, which clique the GPU is in decides whom it reaches.
fn clique_unknown(devices: &Devices<'_>, gpu: &Gpu, found: &mut Examination) {
    let Some(fabric) = &gpu.fabric else { return };
    let rack = gpu.compute_capability.is_some_and(|capability| capability >= HOPPER)
        && devices.links_leave_the_host(gpu)
        && !devices.is_virtual_machine();
    let registered = fabric.state == FabricState::Completed && fabric.status == Some(0);
    if rack && registered && fabric.domain().is_none() {
        found.finding(
            "fabric-clique-unknown",
            Severity::Degraded,
            gpu_name(gpu),
            format!(
                "its links leave the host, and cluster {} with clique {} name no NVLink domain",
                fabric.cluster.as_deref().unwrap_or("(zero)"),
                fabric.clique.map_or_else(|| "(none)".into(), |clique| clique.to_string())
            ),
            "check the fabric manager's configuration on the switches; until then plan without NVLink between hosts",
        );
    }
}

fn cliques_differ(devices: &Devices<'_>, found: &mut Examination) {
    let mut cliques: BTreeMap<(&str, u32), Vec<String>> = BTreeMap::new();
    for gpu in &devices.snapshot.gpus {
        if let Some(domain) = gpu.fabric.as_ref().and_then(GpuFabric::domain) {
            cliques.entry(domain).or_default().push(format!("GPU{}", gpu.index));
        }
    }
    if cliques.len() > 1 {
        let words: Vec<String> = cliques
            .iter()
            .map(|((cluster, clique), gpus)| {
                format!("clique {clique} of {cluster}: {}", gpus.join(", "))
            })
            .collect();
        found.finding(
            "fabric-cliques-differ",
            Severity::Degraded,
            "host",
            words.join("; "),
            "GPUs of different cliques do not reach each other over NVLink: check the partitions of the fabric",
        );
    }
}

/// Memory of another host is imported through a channel of the driver.
fn imex(devices: &Devices<'_>, found: &mut Examination) {
    let in_a_rack = devices.snapshot.gpus.iter().any(|gpu| {
        devices.links_leave_the_host(gpu)
            && gpu.fabric.as_ref().and_then(GpuFabric::domain).is_some()
    });
    let Some(imex) = devices.snapshot.host.imex.filter(|_| in_a_rack) else { return };
    if imex.channels == Some(0) {
        let masked = match imex.service_masked {
            Some(true) => "; the host's service is masked, so a pod must bring its own",
            _ => "",
        };
        found.finding(
            "imex-no-channel",
            Severity::Degraded,
            "host",
            format!("no IMEX channel device: NVLink between hosts cannot be used{masked}"),
            "create one: modprobe nvidia NVreg_CreateImexChannel0=1, or let the device plugin do it",
        );
    }
    if imex.peers == Some(0) {
        found.finding(
            "imex-no-peers",
            Severity::Degraded,
            "host",
            "the list of IMEX peers is empty",
            "list the hosts of the NVLink domain in nodes_config.cfg, this host among them",
        );
    }
}
