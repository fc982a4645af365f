//! `nvidia-smi -q -x`: what the driver says of each GPU. How GPUs are joined is not in it.
//!
//! ```text
//!   nvidia_smi_log
//!     driver_version, attached_gpus
//!     gpu id="00000000:1B:00.0"        in NVML's order; one alone after `-i`
//!       product_name, uuid, mig_mode/current_mig, fb_memory_usage/total
//!       pci / pci_device_id            device then vendor, hexadecimal
//!       pci / pci_gpu_link_info        generations and widths: most, now, of the device, of the slot
//! ```
//!
//! Elements come and go with drivers, so each is optional; values such as `N/A` and `[Not Supported]` are not told.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use roxmltree::Node;

use super::pci_tree::compute_capability;
use super::text::{excerpt, fault};
use super::xml::Markup;
use super::{DEVICE_LIMIT, ReadError};
use crate::matrix::{Cell, Matrix};
use crate::snapshot::{Gpu, PciDevice, PciKind, PcieLink, PcieLinkFacts, Source};
use crate::{BusId, GpuIndex, PathType, Snapshot};

const FORMAT: &str = "nvidia-smi -q -x XML";
const READER: &str = "nvidia-smi-xml";

pub(super) fn read(text: &str) -> Result<Snapshot, ReadError> {
    let markup = Markup::of(text, FORMAT);
    let document = markup.document()?;
    let root = document.root_element();
    let mut snapshot = Snapshot::new(Source::NvidiaSmiXml);
    snapshot.host.driver = value(root, &["driver_version"]).map(excerpt);
    let mut seen = BTreeSet::new();
    for node in root.children().filter(|node| node.has_tag_name("gpu")) {
        if snapshot.gpus.len() >= DEVICE_LIMIT {
            return Err(markup.refuse(node, format!("more than {DEVICE_LIMIT} GPUs")));
        }
        let stated = node
            .attribute("id")
            .or_else(|| value(node, &["pci", "pci_bus_id"]))
            .unwrap_or_default();
        let bus_id: BusId = stated.parse().map_err(|_| {
            markup.refuse(node, format!("id '{}' of <gpu> is no PCI address", excerpt(stated)))
        })?;
        if !seen.insert(bus_id) {
            return Err(markup.refuse(node, format!("GPU {bus_id} is listed twice")));
        }
        let index = GpuIndex(u32::try_from(snapshot.gpus.len()).unwrap_or(u32::MAX));
        let (gpu, device) = gpu(node, index, bus_id);
        if device.link.device_capable.is_none() {
            let error = format!("{bus_id}: what its PCIe link can do is not told");
            snapshot.faults.push(fault(READER, markup.line(node), error));
        }
        snapshot.gpus.push(gpu);
        snapshot.pci_devices.push(device);
    }
    if snapshot.gpus.is_empty() {
        return Err(markup.refuse(root, "no <gpu> in <nvidia_smi_log>".into()));
    }
    let line = markup.line(root);
    let mut missing = |error: String| snapshot.faults.push(fault(READER, line, error));
    let attached = value(root, &["attached_gpus"]).and_then(|text| text.parse::<usize>().ok());
    if let Some(attached) = attached.filter(|attached| *attached != seen.len()) {
        missing(format!(
            "{} of {attached} GPUs are listed; they are numbered in the order of the file",
            seen.len()
        ));
    }
    missing("how GPUs are joined (NVLinks, PCIe tree, NUMA nodes) is not in this format; `nvidia-smi topo -m` tells some".into());
    missing("NICs are not in this format".into());
    snapshot.matrix = Some(unknown_matrix(&snapshot.gpus));
    snapshot.pci_devices.sort_by_key(|device| device.bus_id);
    Ok(snapshot)
}

/// Text of the first element of each name in turn, where it tells something.
fn value<'a>(node: Node<'a, '_>, path: &[&str]) -> Option<&'a str> {
    let mut at = node;
    for name in path {
        at = at.children().find(|child| child.has_tag_name(*name))?;
    }
    let text = at.text()?.trim();
    (!matches!(text, "" | "N/A" | "None" | "Unknown") && !text.starts_with('[')).then_some(text)
}

fn gpu(node: Node<'_, '_>, index: GpuIndex, bus_id: BusId) -> (Gpu, PciDevice) {
    let ids = value(node, &["pci", "pci_device_id"]).map(|text| text.trim_start_matches("0x"));
    let half =
        |from: usize| ids.and_then(|ids| u16::from_str_radix(ids.get(from..from + 4)?, 16).ok());
    let (device, vendor) = (half(0), half(4));
    let byte = |name| {
        value(node, &["pci", name])
            .and_then(|text| u32::from_str_radix(text, 16).ok())
            .filter(|b| *b < 256)
    };
    let gpu = Gpu {
        bus_id: Some(bus_id),
        uuid: value(node, &["uuid"]).map(excerpt),
        name: value(node, &["product_name"]).map(excerpt),
        compute_capability: compute_capability(vendor, device),
        memory_bytes: value(node, &["fb_memory_usage", "total"]).and_then(bytes),
        mig: match value(node, &["mig_mode", "current_mig"]) {
            Some("Enabled") => Some(true),
            Some("Disabled") => Some(false),
            _ => None,
        },
        ..Gpu::new(index)
    };
    let link = |part: &str, name: &str| value(node, &["pci", "pci_gpu_link_info", part, name]);
    let rate = |name| link("pcie_gen", name).and_then(generation_mtps);
    let width = |name| {
        let text = link("link_widths", name)?;
        text.trim_end_matches('x')
            .parse::<u8>()
            .ok()
            .filter(|lanes| lanes.is_power_of_two() && *lanes <= 32)
    };
    let both = |mtps: Option<u32>, width: Option<u8>| {
        (mtps.is_some() || width.is_some())
            .then(|| PcieLink { mtps: mtps.unwrap_or(0), width: width.unwrap_or(0) })
    };
    let device = PciDevice {
        class: byte("pci_base_class")
            .map(|base| base << 16 | byte("pci_sub_class").unwrap_or(0) << 8),
        vendor,
        device,
        link: PcieLinkFacts {
            trained: both(rate("current_link_gen"), width("current_link_width")),
            // `max_link_gen` is of device and slot together.
            device_capable: both(
                rate("max_device_link_gen").or_else(|| rate("max_link_gen")),
                width("max_link_width"),
            ),
            slot_capable: both(rate("max_host_link_gen"), None),
            trained_total: None,
        },
        ..PciDevice::new(bus_id, PciKind::Gpu)
    };
    (gpu, device)
}

/// MT/s per lane of PCIe 1 to 7.
fn generation_mtps(text: &str) -> Option<u32> {
    let generation: usize = text.parse().ok()?;
    [2500, 5000, 8000, 16_000, 32_000, 64_000, 128_000].get(generation.checked_sub(1)?).copied()
}

/// Bytes of `81559 MiB`.
fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ')?;
    let shift = match unit {
        "MiB" => 20,
        "GiB" => 30,
        "KiB" => 10,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Every GPU to itself, nothing else told.
fn unknown_matrix(gpus: &[Gpu]) -> Matrix {
    let own = |row: usize, column: usize| (row == column).then(|| Cell::class(PathType::Loc));
    Matrix {
        devices: gpus.iter().map(|gpu| format!("GPU{}", gpu.index)).collect(),
        cells: (0..gpus.len())
            .map(|row| (0..gpus.len()).map(|column| own(row, column)).collect::<Vec<_>>())
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::read as read_any;
    use alloc::string::ToString;

    /// Two GPUs as a driver of 2024 writes them, cut to what is read, with the rest of their kind.
    fn log(first: &str) -> String {
        let gpu = |id: &str, uuid: u32, now: &str| {
            format!(
                "\t<gpu id=\"{id}\">\n\t\t<product_name>NVIDIA H100 80GB HBM3</product_name>\n\
                 \t\t<mig_mode>\n\t\t\t<current_mig>Disabled</current_mig>\n\t\t</mig_mode>\n\
                 \t\t<uuid>GPU-{uuid:08}</uuid>\n\t\t<vbios_version>[N/A]</vbios_version>\n\
                 \t\t<pci>\n\t\t\t<pci_base_class>3</pci_base_class>\n\t\t\t<pci_sub_class>2</pci_sub_class>\n\
                 \t\t\t<pci_device_id>233010DE</pci_device_id>\n\t\t\t<pci_gpu_link_info>\n\t\t\t\t<pcie_gen>\n\
                 \t\t\t\t\t<max_link_gen>4</max_link_gen>\n\t\t\t\t\t<current_link_gen>{now}</current_link_gen>\n\
                 \t\t\t\t\t<max_device_link_gen>5</max_device_link_gen>\n\t\t\t\t\t<max_host_link_gen>4</max_host_link_gen>\n\
                 \t\t\t\t</pcie_gen>\n\t\t\t\t<link_widths>\n\t\t\t\t\t<max_link_width>16x</max_link_width>\n\
                 \t\t\t\t\t<current_link_width>8x</current_link_width>\n\t\t\t\t</link_widths>\n\t\t\t</pci_gpu_link_info>\n\
                 \t\t</pci>\n\t\t<fb_memory_usage>\n\t\t\t<total>81559 MiB</total>\n\t\t</fb_memory_usage>\n\t</gpu>\n"
            )
        };
        format!(
            "{first}<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n\
             \t<driver_version>550.54.15</driver_version>\n\t<attached_gpus>2</attached_gpus>\n{}{}</nvidia_smi_log>\n",
            gpu("00000000:1B:00.0", 1, "1"),
            gpu("00000000:43:00.0", 2, "4"),
        )
    }

    #[test]
    fn facts_of_each_gpu() {
        for first in ["", "$ nvidia-smi -q -x\n"] {
            let host = read_any(log(first).as_bytes()).unwrap().remove(0);
            assert_eq!(
                (host.source, host.host.driver.as_deref()),
                (Source::NvidiaSmiXml, Some("550.54.15"))
            );
            let gpu = &host.gpus[0];
            assert_eq!(gpu.bus_id.unwrap().to_string(), "0000:1b:00.0");
            assert_eq!(
                (gpu.name.as_deref(), gpu.uuid.as_deref()),
                (Some("NVIDIA H100 80GB HBM3"), Some("GPU-00000001"))
            );
            assert_eq!(
                (gpu.compute_capability, gpu.mig, gpu.memory_bytes),
                (Some(90), Some(false), Some(81_559 << 20))
            );
            let link = &host.pci_devices[0].link;
            assert_eq!(link.trained, Some(PcieLink { mtps: 2500, width: 8 }));
            // The slot's rate and the trained width limit, whatever rate the link rests at.
            assert_eq!(link.usable(), (Some(16_000), Some(8)));
            assert!(host.faults.iter().any(|fault| fault.error.contains("how GPUs are joined")));
        }
    }

    #[test]
    fn nothing_is_said_of_paths() {
        let host = read_any(log("").as_bytes()).unwrap().remove(0);
        let topology = crate::lower(&[host], crate::RateModel::Effective).unwrap();
        assert!(
            topology.assumptions.iter().any(|a| a.contains("SYS assumed")),
            "{:?}",
            topology.assumptions
        );
    }

    #[track_caller]
    fn check_refused(text: &str, line: usize, word: &str) {
        let error = read_any(text.as_bytes()).unwrap_err();
        assert_eq!((error.format, error.line), (FORMAT, line), "{error}");
        assert!(error.reason.contains(word), "{error}");
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        check_refused("<nvidia_smi_log>\n</nvidia_smi_log>", 1, "no <gpu>");
        check_refused("<nvidia_smi_log>\n<gpu id=\"x\"/></nvidia_smi_log>", 2, "no PCI address");
        let twice =
            "<nvidia_smi_log>\n<gpu id=\"1B:00.0\"/>\n<gpu id=\"0:1b:00.0\"/></nvidia_smi_log>";
        check_refused(twice, 3, "listed twice");
        check_refused("<nvidia_smi_log>\n<gpu id=\"1B:00.0\">", 2, "cut off");
    }

    #[test]
    fn values_that_tell_nothing_are_none() {
        let text = "<nvidia_smi_log><attached_gpus>4</attached_gpus><gpu id=\"1B:00.0\"><uuid>N/A</uuid><product_name>[Unknown Error]\
                    </product_name><pci><pci_device_id>zz</pci_device_id><pci_gpu_link_info><pcie_gen><max_link_gen>99</max_link_gen>\
                    </pcie_gen></pci_gpu_link_info></pci><fb_memory_usage><total>99999999999999999 GiB</total></fb_memory_usage></gpu>\
                    </nvidia_smi_log>";
        let host = read_any(text.as_bytes()).unwrap().remove(0);
        let gpu = &host.gpus[0];
        assert_eq!((&gpu.uuid, &gpu.name, gpu.memory_bytes), (&None, &None, None));
        assert_eq!(host.pci_devices[0].link, PcieLinkFacts::default());
        assert!(host.faults.iter().any(|fault| fault.error.starts_with("1 of 4 GPUs")));
    }
}
