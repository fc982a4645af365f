//! What the double plays: a file, then variables of the environment over it. README.md lists both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Of what is configured nothing is needed: without any, eight equal GPUs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// In the order of the buses; `None` for the eight.
    pub(crate) devices: Option<Vec<Described>>,
    /// A scenario of the NVML double, whose devices these are.
    pub(crate) nvml_scenario: Option<PathBuf>,
    /// Of the devices, the first so many.
    pub(crate) count: Option<usize>,
    /// Bytes of memory of each.
    pub(crate) memory: Option<u64>,
    /// As in 90, of each.
    pub(crate) capability: Option<u32>,
    /// Places in the order of the buses, in the order that the driver numbers them.
    pub(crate) order: Option<Vec<usize>>,
    /// What `cuDriverGetVersion` says.
    pub(crate) driver_version: Option<i32>,
    /// Attributes of all devices, by number.
    pub(crate) attributes: BTreeMap<i32, i32>,
    /// Pairs without peer access, both ways.
    pub(crate) no_peer: Vec<(usize, usize)>,
    /// Devices reach each other over PCIe.
    pub(crate) no_nvlink: bool,
    /// Copies between devices without peer access work by `cuMemcpy` too.
    pub(crate) staged_copies: bool,
    /// Addresses that were freed are given out again.
    pub(crate) reuse: bool,
    /// Delays before operations; 0 or none for none.
    pub(crate) seed: Option<u64>,
    /// The host's build of the kernels.
    pub(crate) kernels: Option<PathBuf>,
    /// A line is added for each process that ends.
    pub(crate) report: Option<PathBuf>,
    /// As in `fault::parse`.
    pub(crate) faults: String,
}

/// A device, as a scenario of the NVML double describes one too; other fields of those are passed over.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) bus_id: String,
    pub(crate) memory_total: u64,
    pub(crate) compute_capability: (u32, u32),
}

#[derive(Deserialize)]
struct NvmlScenario {
    devices: Vec<Described>,
}

/// Buses of a DGX H100.
const BUSES: [u32; 8] = [0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf];

fn eight() -> Vec<Described> {
    let describe = |(index, bus): (usize, u32)| Described {
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        uuid: format!("GPU-cdad0b1e-0000-4000-8000-{index:012x}"),
        bus_id: format!("00000000:{bus:02X}:00.0"),
        memory_total: 80 << 30,
        compute_capability: (9, 0),
    };
    BUSES.into_iter().enumerate().map(describe).collect()
}

fn parsed<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("{name}: {text:?} is no number"))
}

/// `0-1,2-3`.
fn pairs(name: &str, text: &str) -> Result<Vec<(usize, usize)>, String> {
    let pair = |text: &str| {
        let (a, b) =
            text.split_once('-').ok_or_else(|| format!("{name}: {text:?} is no pair as 0-1"))?;
        Ok((number(name, a)?, number(name, b)?))
    };
    text.split(',').filter(|text| !text.trim().is_empty()).map(pair).collect()
}

impl Config {
    /// # Errors
    /// Says which variable or file is wrong, and why.
    pub(crate) fn read(
        variable: impl Fn(&str) -> Option<String>,
        beside: Option<PathBuf>,
    ) -> Result<Self, String> {
        let get = |name: &str| {
            let name = format!("TOPOD_CUDA_DOUBLE_{name}");
            variable(&name).filter(|text| !text.is_empty()).map(|text| (name, text))
        };
        let named = get("CONFIG").map(|(_, path)| PathBuf::from(path));
        let beside = beside.filter(|path| path.exists());
        let mut config: Self = match named.or(beside) {
            Some(path) => parsed(&path)?,
            None => Self::default(),
        };
        let named = get("NVML_SCENARIO").map(|(_, path)| PathBuf::from(path));
        if let Some(path) = named.or_else(|| config.nvml_scenario.take()) {
            config.devices = Some(parsed::<NvmlScenario>(&path)?.devices);
        }
        if let Some((name, text)) = get("DEVICES") {
            config.count = Some(number(&name, &text)?);
        }
        if let Some((name, text)) = get("MEMORY") {
            config.memory = Some(number(&name, &text)?);
        }
        if let Some((name, text)) = get("CAPABILITY") {
            config.capability = Some(number(&name, &text)?);
        }
        if let Some((name, text)) = get("DRIVER_VERSION") {
            config.driver_version = Some(number(&name, &text)?);
        }
        if let Some((name, text)) = get("SEED") {
            config.seed = Some(number(&name, &text)?);
        }
        if let Some((name, text)) = get("ORDER") {
            let places = text.split(',').map(|text| number(&name, text));
            config.order = Some(places.collect::<Result<_, _>>()?);
        }
        if let Some((name, text)) = get("NO_PEER") {
            config.no_peer = pairs(&name, &text)?;
        }
        if let Some((_, text)) = get("NO_NVLINK") {
            config.no_nvlink = text != "0";
        }
        if let Some((_, text)) = get("STAGED_COPIES") {
            config.staged_copies = text != "0";
        }
        if let Some((_, text)) = get("REUSE") {
            config.reuse = text != "0";
        }
        if let Some((_, path)) = get("KERNELS") {
            config.kernels = Some(path.into());
        }
        if let Some((_, path)) = get("REPORT") {
            config.report = Some(path.into());
        }
        if let Some((_, text)) = get("FAULTS") {
            config.faults = text;
        }
        if let Some(text) = variable("CUDA_VISIBLE_DEVICES") {
            config = config.visible(&text);
        }
        Ok(config)
    }

    /// The devices in the driver's order.
    pub(crate) fn described(&self) -> Vec<Described> {
        let mut devices = self.devices.clone().unwrap_or_else(eight);
        if let Some(count) = self.count {
            devices.truncate(count);
        }
        for device in &mut devices {
            if let Some(memory) = self.memory {
                device.memory_total = memory;
            }
            if let Some(capability) = self.capability {
                device.compute_capability = (capability / 10, capability % 10);
            }
        }
        let Some(order) = &self.order else { return devices };
        order.iter().filter_map(|place| devices.get(*place).cloned()).collect()
    }

    /// What `CUDA_VISIBLE_DEVICES` leaves: numbers or starts of UUIDs, up to the first that is none.
    fn visible(mut self, text: &str) -> Self {
        let devices = self.described();
        let place = |wanted: &str| {
            let wanted = wanted.trim();
            let by_number = wanted.parse().ok().filter(|place| *place < devices.len());
            let same = |device: &Described| wanted.len() > 4 && device.uuid.starts_with(wanted);
            by_number.or_else(|| devices.iter().position(same))
        };
        let places: Vec<usize> = text.split(',').map_while(place).collect();
        let new = |old: usize| places.iter().position(|place| *place == old);
        self.no_peer =
            self.no_peer.iter().filter_map(|(a, b)| Some((new(*a)?, new(*b)?))).collect();
        self.devices = Some(places.iter().map(|place| devices[*place].clone()).collect());
        (self.order, self.count) = (None, None);
        self
    }
}
