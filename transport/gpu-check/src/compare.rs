//! What the probe reads through NVML, beside what nvidia-smi and the CUDA driver say of the same GPUs.

use std::process::{Command, Stdio};

use daemon::probe::{ProbeConfig, probe};
use topology::{BusId, HostId, RateModel, Snapshot, formats, lower};

use crate::ffi::Gpu;
use crate::report::Stage;

/// Probes and compares.
pub(crate) fn probe_and_compare(gpu: &Gpu) -> Result<(usize, Vec<String>), String> {
    let snapshot = probe(&ProbeConfig::live().with_child());
    if snapshot.gpus.is_empty() {
        let said = |fault: &topology::Fault| format!("{}: {}", fault.place, fault.error);
        let faults = snapshot.faults.iter().map(said).collect::<Vec<_>>();
        return Err(format!("the probe found no GPU: {}", faults.join("; ")));
    }
    let mut compared = 0;
    let mut wrong = cuda(gpu, &snapshot, &mut compared)?;
    let mut told = |arguments: &[&str],
                    judge: fn(&Snapshot, &Snapshot, &mut usize) -> Vec<String>| {
        let text = nvidia_smi(arguments)?;
        let what = format!("nvidia-smi {}", arguments.join(" "));
        let read = formats::read(&text).map_err(|error| format!("{what}: {error}"))?;
        let other = read.first().ok_or_else(|| format!("{what}: nothing in it"))?;
        let found = judge(&snapshot, other, &mut compared);
        wrong.extend(found.into_iter().map(|difference| format!("{what}: {difference}")));
        Ok::<_, String>(())
    };
    told(&["-q", "-x"], facts)?;
    told(&["topo", "-m"], matrix)?;
    Ok((compared, wrong))
}

/// The stage.
pub(crate) fn probe_stage(gpu: &Gpu) -> Stage {
    match probe_and_compare(gpu) {
        Ok((compared, wrong)) if wrong.is_empty() => {
            Stage::passed(format!("{compared} facts agree"))
        }
        Ok((_, wrong)) => Stage::wrong(wrong),
        Err(why) => Stage::failed(why),
    }
}

fn nvidia_smi(arguments: &[&str]) -> Result<Vec<u8>, String> {
    let mut command = Command::new("nvidia-smi");
    let output = command.args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("nvidia-smi: {error}"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(format!(
            "nvidia-smi {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }
}

/// One fact told twice. Counted where both tell it; what either does not tell is no difference.
fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    ours: Option<T>,
    theirs: Option<T>,
    compared: &mut usize,
) -> Option<String> {
    let (ours, theirs) = (ours?, theirs?);
    *compared += 1;
    (ours != theirs).then(|| format!("{what}: {theirs:?}, the probe says {ours:?}"))
}

/// The CUDA driver's device among the probe's.
fn cuda(gpu: &Gpu, snapshot: &Snapshot, compared: &mut usize) -> Result<Vec<String>, String> {
    let bus: BusId = gpu.bus_id()?.parse().map_err(|error| format!("the driver's bus: {error}"))?;
    let Some(probed) = snapshot.gpus.iter().find(|probed| probed.bus_id == Some(bus)) else {
        return Ok(vec![format!("the CUDA driver has a GPU at {bus}, the probe none")]);
    };
    let capability = same(
        "CUDA driver: compute capability",
        probed.compute_capability,
        Some(gpu.capability()),
        compared,
    );
    let uuid = same("CUDA driver: UUID", probed.uuid.clone(), Some(gpu.uuid()?), compared);
    let name = same("CUDA driver: name", probed.name.clone(), Some(gpu.name()?), compared);
    Ok([capability, uuid, name].into_iter().flatten().collect())
}

/// What `nvidia-smi -q -x` says of each GPU.
fn facts(ours: &Snapshot, theirs: &Snapshot, compared: &mut usize) -> Vec<String> {
    let mut wrong = Vec::new();
    wrong.extend(same("GPUs", Some(ours.gpus.len()), Some(theirs.gpus.len()), compared));
    wrong.extend(same("driver", ours.host.driver.clone(), theirs.host.driver.clone(), compared));
    for (our, their) in ours.gpus.iter().zip(&theirs.gpus) {
        let mut note = |difference: Option<String>| {
            wrong.extend(difference.map(|text| format!("GPU {}: {text}", our.index.0)));
        };
        note(same("bus", our.bus_id, their.bus_id, compared));
        note(same("UUID", our.uuid.clone(), their.uuid.clone(), compared));
        note(same("name", our.name.clone(), their.name.clone(), compared));
        note(same("MIG", our.mig, their.mig, compared));
        // In MiB there, and rounded.
        let mebibytes = |bytes: Option<u64>| bytes.map(|bytes| bytes >> 20);
        note(same(
            "memory in MiB",
            mebibytes(our.memory_bytes),
            mebibytes(their.memory_bytes),
            compared,
        ));
        let link = |snapshot: &Snapshot, bus: Option<BusId>| {
            let device = snapshot.pci_devices.iter().find(|device| Some(device.bus_id) == bus)?;
            device.link.device_capable
        };
        let (one, two) = (link(ours, our.bus_id), link(theirs, their.bus_id));
        note(same("what its PCIe link can do", one, two, compared));
    }
    wrong
}

/// What `nvidia-smi topo -m` says of each pair of GPUs.
fn matrix(ours: &Snapshot, theirs: &Snapshot, compared: &mut usize) -> Vec<String> {
    let Some(told) = &theirs.matrix else { return vec!["no matrix".to_owned()] };
    let own = match lower(std::slice::from_ref(ours), RateModel::default()) {
        Ok(topology) => topology.matrix(HostId(0)),
        Err(error) => return vec![format!("what was probed is no topology: {error}")],
    };
    let mut wrong = Vec::new();
    let gpus = |devices: &[String]| devices.iter().filter(|name| name.starts_with("GPU")).count();
    wrong.extend(same("GPUs", Some(gpus(&own.devices)), Some(gpus(&told.devices)), compared));
    for (i, row) in told.devices.iter().enumerate() {
        for (j, column) in told.devices.iter().enumerate() {
            let place = |name: &String| own.devices.iter().position(|other| other == name);
            let (Some(a), Some(b)) = (place(row), place(column)) else { continue };
            let cell = |matrix: &topology::matrix::Matrix, a: usize, b: usize| {
                matrix
                    .cells
                    .get(a)
                    .and_then(|cells| cells.get(b).copied())
                    .flatten()
                    .map(|cell| cell.to_string())
            };
            let what = format!("{row} to {column}");
            wrong.extend(same(&what, cell(&own, a, b), cell(told, i, j), compared));
        }
    }
    // The NUMA node of each GPU, where both tell it.
    for (our, their) in ours.gpus.iter().zip(&theirs.gpus) {
        let what = format!("GPU{} NUMA node", our.index.0);
        wrong.extend(same(&what, our.numa_node, their.numa_node, compared));
    }
    wrong
}
