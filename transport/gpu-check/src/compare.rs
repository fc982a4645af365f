//! What the probe reads through NVML, beside what nvidia-smi and the CUDA driver say of the same GPUs.

use std::process::Command;

use daemon::probe::{ProbeConfig, probe};
use topology::{BusId, HostId, RateModel, Snapshot, formats, lower};

use crate::budget::Deadline;
use crate::command::Running;
use crate::ffi::Gpu;
use crate::folder::Folder;
use crate::report::Stage;
use crate::smi_text;

/// Probes and compares.
pub(crate) fn probe_and_compare(
    gpu: &Gpu,
    folder: &Folder,
    deadline: Deadline,
) -> Result<(usize, Vec<String>), String> {
    let snapshot = probe(&ProbeConfig::live().with_child());
    if snapshot.gpus.is_empty() {
        let said = |fault: &topology::Fault| format!("{}: {}", fault.place, fault.error);
        let faults = snapshot.faults.iter().map(said).collect::<Vec<_>>();
        return Err(format!("the probe found no GPU: {}", faults.join("; ")));
    }
    let mut compared = 0;
    let mut wrong = cuda(gpu, &snapshot, &mut compared)?;
    let smi = |arguments: &[&str]| nvidia_smi(arguments, folder, deadline);
    let recorded = |arguments: &[&str]| {
        let what = format!("nvidia-smi {}", arguments.join(" "));
        let read = formats::read(&smi(arguments)?).map_err(|error| format!("{what}: {error}"))?;
        read.into_iter().next().ok_or_else(|| format!("{what}: nothing in it"))
    };
    let mut note = |what: &str, found: Vec<String>| {
        wrong.extend(found.into_iter().map(|difference| format!("{what}: {difference}")));
    };
    let xml = recorded(&["-q", "-x"])?;
    note("nvidia-smi -q -x", facts(&snapshot, &xml, &mut compared));
    let text = smi(&["-q"])?;
    let text = smi_text::read(&String::from_utf8_lossy(&text))
        .map_err(|error| format!("nvidia-smi -q: {error}"))?;
    note("nvidia-smi -q", as_text((&snapshot, "the probe"), &text, &mut compared));
    note("nvidia-smi -q", as_text((&xml, "nvidia-smi -q -x"), &text, &mut compared));
    let matrix_told = recorded(&["topo", "-m"])?;
    note("nvidia-smi topo -m", matrix(&snapshot, &matrix_told, &mut compared));
    Ok((compared, wrong))
}

/// The stage.
pub(crate) fn probe_stage(gpu: &Gpu, folder: &Folder, deadline: Deadline) -> Stage {
    match probe_and_compare(gpu, folder, deadline) {
        Ok((compared, wrong)) if wrong.is_empty() => {
            Stage::passed(format!("{compared} facts agree"))
        }
        Ok((_, wrong)) => Stage::wrong(wrong),
        Err(why) => Stage::failed(why),
    }
}

fn nvidia_smi(arguments: &[&str], folder: &Folder, deadline: Deadline) -> Result<Vec<u8>, String> {
    let mut command = Command::new("nvidia-smi");
    command.args(arguments);
    let what = format!("nvidia-smi {}", arguments.join(" "));
    let ended = Running::start(command, folder.path(), "nvidia-smi")?.wait(deadline)?;
    if ended.status.is_some_and(|status| status.success()) {
        Ok(ended.output)
    } else {
        Err(format!("{what}: {} {}", ended.how(), ended.errors))
    }
}

/// One fact told twice. Counted where both tell it; what either does not tell is no difference.
fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    ours: Option<T>,
    theirs: Option<T>,
    compared: &mut usize,
) -> Option<String> {
    same_as((ours, "the probe"), what, theirs, compared)
}

/// As [`same`], where it is somebody else who is compared with.
fn same_as<T: PartialEq + std::fmt::Debug>(
    (ours, who): (Option<T>, &str),
    what: &str,
    theirs: Option<T>,
    compared: &mut usize,
) -> Option<String> {
    let (ours, theirs) = (ours?, theirs?);
    *compared += 1;
    (ours != theirs).then(|| format!("{what}: {theirs:?}, {who} says {ours:?}"))
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
        note(same(
            "memory in MiB",
            mebibytes(our.memory_bytes),
            mebibytes(their.memory_bytes),
            compared,
        ));
        let (one, two) = (device_link(ours, our.bus_id), device_link(theirs, their.bus_id));
        note(same("what its PCIe link can do", one, two, compared));
    }
    wrong
}

/// What a PCI device's link can do.
fn device_link(snapshot: &Snapshot, bus: Option<BusId>) -> Option<topology::snapshot::PcieLink> {
    let device = snapshot.pci_devices.iter().find(|device| Some(device.bus_id) == bus)?;
    device.link.device_capable
}

/// Of bytes, as nvidia-smi rounds them.
fn mebibytes(bytes: Option<u64>) -> Option<u64> {
    bytes.map(|bytes| bytes >> 20)
}

/// What `nvidia-smi -q` says of each GPU, beside what somebody else says.
fn as_text(
    (other, who): (&Snapshot, &str),
    text: &smi_text::Told,
    compared: &mut usize,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let gpus = other.gpus.len();
    wrong.extend(same_as((Some(gpus), who), "GPUs", Some(text.gpus.len()), compared));
    wrong.extend(same_as((Some(gpus), who), "attached GPUs", text.attached, compared));
    let driver = (other.host.driver.clone(), who);
    wrong.extend(same_as(driver, "driver", text.driver.clone(), compared));
    for (known, told) in other.gpus.iter().zip(&text.gpus) {
        let mut note = |difference: Option<String>| {
            wrong.extend(difference.map(|text| format!("GPU {}: {text}", known.index.0)));
        };
        note(same_as((known.bus_id, who), "bus", told.bus_id, compared));
        note(same_as((known.uuid.clone(), who), "UUID", told.uuid.clone(), compared));
        note(same_as((known.name.clone(), who), "name", told.name.clone(), compared));
        note(same_as((known.mig, who), "MIG", told.mig, compared));
        let memory = mebibytes(known.memory_bytes);
        note(same_as((memory, who), "memory in MiB", told.memory_mib, compared));
        let link = device_link(other, known.bus_id);
        note(same_as((link, who), "what its PCIe link can do", told.link, compared));
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

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = "<?xml version=\"1.0\" ?>\n<nvidia_smi_log>\n\t<driver_version>550.54.15</driver_version>\n\
        \t<attached_gpus>1</attached_gpus>\n\t<gpu id=\"00000000:1B:00.0\">\n\t\t<product_name>NVIDIA H100 PCIe</product_name>\n\
        \t\t<mig_mode>\n\t\t\t<current_mig>Disabled</current_mig>\n\t\t</mig_mode>\n\
        \t\t<uuid>GPU-5d1f1c2e-0000-4000-8000-00000000001b</uuid>\n\t\t<fb_memory_usage>\n\t\t\t<total>81559 MiB</total>\n\
        \t\t</fb_memory_usage>\n\t</gpu>\n</nvidia_smi_log>\n";

    const TEXT: &str = "==============NVSMI LOG==============\nDriver Version : 550.54.15\nAttached GPUs : 1\n\
        GPU 00000000:1B:00.0\n    Product Name : NVIDIA H100 PCIe\n    MIG Mode\n        Current : Disabled\n    \
        GPU UUID : GPU-5d1f1c2e-0000-4000-8000-00000000001b\n    FB Memory Usage\n        Total : 81559 MiB\n";

    #[track_caller]
    fn compared(text: &str, expected: &[&str]) -> usize {
        let snapshot = formats::read(XML.as_bytes()).unwrap().remove(0);
        let mut count = 0;
        let told = smi_text::read(text).unwrap();
        let wrong = as_text((&snapshot, "XML"), &told, &mut count);
        assert_eq!(wrong, expected);
        count
    }

    #[test]
    fn both_forms_of_the_query_agree_or_are_told_apart() {
        // GPUs twice, driver, bus, UUID, name, MIG, memory: the link is told by neither.
        assert_eq!(compared(TEXT, &[]), 8);
        compared(&TEXT.replace("81559", "40960"), &["GPU 0: memory in MiB: 40960, XML says 81559"]);
        compared(&TEXT.replace("Disabled", "Enabled"), &["GPU 0: MIG: true, XML says false"]);
        compared(&TEXT.replace("GPUs : 1", "GPUs : 2"), &["attached GPUs: 2, XML says 1"]);
        // What is not known is no difference, and not counted.
        assert_eq!(compared(&TEXT.replace("81559 MiB", "N/A"), &[]), 7);
    }
}
