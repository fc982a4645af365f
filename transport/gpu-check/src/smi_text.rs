//! `nvidia-smi -q` as people read it: keys and values, by indentation.
//!
//! ```text
//!   Driver Version                            : 550.54.15
//!   GPU 00000000:1B:00.0
//!       Product Name                          : NVIDIA H100 PCIe
//!       PCI
//!           GPU Link Info
//!               PCIe Generation
//!                   Device Max                : 5
//! ```

use std::collections::BTreeMap;

use topology::BusId;
use topology::snapshot::PcieLink;

/// What it says of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) driver: Option<String>,
    /// As many as it says are attached.
    pub(crate) attached: Option<usize>,
    pub(crate) gpus: Vec<ToldGpu>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToldGpu {
    pub(crate) bus_id: Option<BusId>,
    pub(crate) uuid: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) mig: Option<bool>,
    pub(crate) memory_mib: Option<u64>,
    /// What the device can do, where that is told apart from the slot's.
    pub(crate) link: Option<PcieLink>,
}

/// Transfer rates of PCIe generations 1 to 6 in MT/s (PCI Express base specification).
const MTPS: [u32; 6] = [2500, 5000, 8000, 16_000, 32_000, 64_000];

/// # Errors
/// Where it is no such text.
pub(crate) fn read(text: &str) -> Result<Told, String> {
    if !text.contains("NVSMI LOG") {
        return Err("this is no `nvidia-smi -q`: NVSMI LOG is not in it".to_owned());
    }
    let mut told = Told::default();
    let mut sections: Vec<(BusId, BTreeMap<String, String>)> = Vec::new();
    // Headings above the line, with their columns.
    let mut above: Vec<(usize, String)> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let column = line.len() - line.trim_start().len();
        above.retain(|(other, _)| *other < column);
        // Keys are parted from values by " : "; addresses have colons without spaces.
        let Some((key, value)) = line.split_once(" : ") else {
            let heading = line.trim();
            if column == 0
                && let Some(bus) = heading.strip_prefix("GPU ")
                && let Ok(bus) = bus.parse()
            {
                sections.push((bus, BTreeMap::new()));
            }
            above.push((column, heading.to_owned()));
            continue;
        };
        let (key, value) = (key.trim(), value.trim());
        if column == 0 {
            match key {
                "Driver Version" => told.driver = said(value).map(str::to_owned),
                "Attached GPUs" => told.attached = value.parse().ok(),
                _ => {}
            }
            continue;
        }
        let path: Vec<&str> = above.iter().skip(1).map(|(_, heading)| heading.as_str()).collect();
        let path = path.into_iter().chain([key]).collect::<Vec<_>>().join("/");
        if let (Some((_, facts)), Some(value)) = (sections.last_mut(), said(value)) {
            facts.insert(path, value.to_owned());
        }
    }
    told.gpus = sections.into_iter().map(|(bus, facts)| gpu(bus, &facts)).collect();
    Ok(told)
}

/// `None` for what it says it does not know.
fn said(value: &str) -> Option<&str> {
    let unknown = [
        "N/A",
        "[N/A]",
        "Unknown",
        "Not Supported",
        "Requested functionality has been deprecated",
        "",
    ];
    (!unknown.contains(&value)).then_some(value)
}

fn gpu(bus_id: BusId, facts: &BTreeMap<String, String>) -> ToldGpu {
    let fact = |path: &str| facts.get(path).cloned();
    let link = |name: &str| fact(&format!("PCI/GPU Link Info/{name}"));
    let rate = |name: &str| {
        let generation: usize = link(&format!("PCIe Generation/{name}"))?.parse().ok()?;
        MTPS.get(generation.checked_sub(1)?).copied()
    };
    let width = link("Link Width/Max").and_then(|text| text.trim_end_matches('x').parse().ok());
    // Older drivers tell of device and slot together, which is no fact about the device.
    let link = rate("Device Max").zip(width).map(|(mtps, width)| PcieLink { mtps, width });
    let memory = fact("FB Memory Usage/Total");
    ToldGpu {
        bus_id: Some(bus_id),
        uuid: fact("GPU UUID"),
        name: fact("Product Name"),
        mig: fact("MIG Mode/Current").and_then(|mode| match mode.as_str() {
            "Enabled" => Some(true),
            "Disabled" => Some(false),
            _ => None,
        }),
        memory_mib: memory.and_then(|text| text.strip_suffix(" MiB")?.parse().ok()),
        link,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two GPUs as drivers of the 550s print them, shortened; the second says little.
    const TEXT: &str = "
==============NVSMI LOG==============

Timestamp                                 : Tue Mar  5 10:00:00 2024
Driver Version                            : 550.54.15
CUDA Version                              : 12.4

Attached GPUs                             : 2
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 PCIe
    MIG Mode
        Current                           : Disabled
        Pending                           : Enabled
    GPU UUID                              : GPU-5d1f1c2e-0000-4000-8000-00000000001b
    PCI
        Bus                               : 0x1B
        Bus Id                            : 00000000:1B:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 1
                Device Current            : 1
                Device Max                : 5
                Host Max                  : 4
            Link Width
                Max                       : 16x
                Current                   : 16x
        Tx Throughput                     : 0 KB/s
    FB Memory Usage
        Total                             : 81559 MiB
        Reserved                          : 551 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
    Processes                             : None

GPU 00000001:C1:00.0
    Product Name                          : NVIDIA A30
    MIG Mode
        Current                           : N/A
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 4
            Link Width
                Max                       : 8x
";

    #[test]
    fn facts_are_read_under_their_headings() {
        let told = read(TEXT).unwrap();
        assert_eq!((told.driver.as_deref(), told.attached), (Some("550.54.15"), Some(2)));
        let [first, second] = told.gpus.as_slice() else { panic!("{told:?}") };
        assert_eq!(first.bus_id.unwrap().to_string(), "0000:1b:00.0");
        assert_eq!(first.uuid.as_deref(), Some("GPU-5d1f1c2e-0000-4000-8000-00000000001b"));
        assert_eq!(first.name.as_deref(), Some("NVIDIA H100 PCIe"));
        // The framebuffer's total, not BAR1's; the mode that is, not the one to come.
        assert_eq!((first.memory_mib, first.mig), (Some(81_559), Some(false)));
        assert_eq!(first.link, Some(PcieLink { mtps: 32_000, width: 16 }));
        let expected = ToldGpu {
            bus_id: second.bus_id,
            name: Some("NVIDIA A30".to_owned()),
            ..ToldGpu::default()
        };
        assert_eq!(second, &expected, "what is not told is not guessed");
        assert_eq!(second.bus_id.unwrap().to_string(), "0001:c1:00.0");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "<?xml?>",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        assert_eq!(read("====NVSMI LOG====").unwrap(), Told::default());
    }
}
