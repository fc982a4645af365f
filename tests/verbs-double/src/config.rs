//! What the double plays: `KEY=VALUE` lines of a file beside the library, then variables of the environment over them.
//! README.md lists the keys.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkLayer {
    InfiniBand,
    Ethernet,
}

/// An entry of a `RoCE` port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GidKind {
    LinkLocal(u32),
    V4(u32),
    V6(u32),
    Empty,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) devices: usize,
    pub(crate) ports: u8,
    /// Of the devices in their order; `mlx5_0` and on for those it does not reach.
    pub(crate) names: Vec<String>,
    /// Of the devices in their order; the last is that of the rest.
    pub(crate) link_layers: Vec<LinkLayer>,
    pub(crate) gids: Vec<GidKind>,
    /// Of the devices in their order; the last is that of the rest. Devices of different subnets do not reach each other.
    pub(crate) subnets: Vec<u16>,
    /// As `enum ibv_mtu`.
    pub(crate) mtu: u8,
    /// Codes of PortInfo, `LinkWidthActive` and `LinkSpeedActive`.
    pub(crate) width: u8,
    pub(crate) speed: u8,
    /// Bytes that a queue pair can send inline.
    pub(crate) inline: u32,
    /// Asking for more inline bytes is granted what there is, instead of refused.
    pub(crate) inline_clamped: bool,
    pub(crate) max_qp: usize,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_cq: usize,
    pub(crate) max_cqe: u32,
    pub(crate) max_mr: usize,
    pub(crate) max_pd: usize,
    pub(crate) max_rd_atomic: u8,
    /// Timers of the specification run so many times as fast.
    pub(crate) haste: u32,
    /// Delays of messages, by a sequence of numbers.
    pub(crate) seed: Option<u64>,
    /// Devices take DMA-BUFs.
    pub(crate) dma_buf: bool,
    /// A module of the kernel that knows devices' memory is loaded.
    pub(crate) peer_memory: bool,
    /// Contexts as of libraries before extended ones.
    pub(crate) plain: bool,
    /// A folder that gets what the kernel shows of the devices.
    pub(crate) sysfs: Option<PathBuf>,
    pub(crate) report: Option<PathBuf>,
    pub(crate) faults: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: 2,
            ports: 1,
            names: Vec::new(),
            link_layers: vec![LinkLayer::InfiniBand],
            gids: vec![
                GidKind::LinkLocal(1),
                GidKind::LinkLocal(2),
                GidKind::V4(1),
                GidKind::V4(2),
            ],
            subnets: vec![0],
            mtu: 5,
            // 4X at NDR's 100 Gbit/s a lane.
            width: 2,
            speed: 128,
            inline: 512,
            inline_clamped: false,
            max_qp: 4096,
            max_qp_wr: 16384,
            max_sge: 16,
            max_cq: 4096,
            max_cqe: 1 << 20,
            max_mr: 1 << 16,
            max_pd: 1024,
            max_rd_atomic: 16,
            haste: 1,
            seed: None,
            dma_buf: true,
            peer_memory: false,
            plain: false,
            sysfs: None,
            report: None,
            faults: String::new(),
        }
    }
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("{name}: {text:?} is no such number"))
}

fn list<T>(text: &str, item: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let items: Vec<T> = text.split(',').map(|text| item(text.trim())).collect::<Result<_, _>>()?;
    Ok(items)
}

fn link_layer(text: &str) -> Result<LinkLayer, String> {
    match text {
        "ib" => Ok(LinkLayer::InfiniBand),
        "roce" => Ok(LinkLayer::Ethernet),
        _ => Err(format!("LINK_LAYER: {text:?} is neither ib nor roce")),
    }
}

fn gid_kind(text: &str) -> Result<GidKind, String> {
    Ok(match text {
        "ll-v1" => GidKind::LinkLocal(1),
        "ll-v2" => GidKind::LinkLocal(2),
        "ip4-v1" => GidKind::V4(1),
        "ip4-v2" => GidKind::V4(2),
        "ip6-v1" => GidKind::V6(1),
        "ip6-v2" => GidKind::V6(2),
        "empty" => GidKind::Empty,
        _ => return Err(format!("GIDS: {text:?} is no kind of GID")),
    })
}

impl Config {
    /// # Errors
    /// Says which key is wrong, and why.
    pub(crate) fn read(
        variable: impl Fn(&str) -> Option<String>,
        file: &str,
    ) -> Result<Self, String> {
        let mut beside = BTreeMap::new();
        for line in file.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (key, value) =
                line.split_once('=').ok_or_else(|| format!("{line:?} is no KEY=VALUE"))?;
            beside.insert(key.trim().to_owned(), value.trim().to_owned());
        }
        let mut config = Self::default();
        for key in KEYS {
            let named = variable(&format!("TOPOD_VERBS_DOUBLE_{key}"));
            let beside = beside.remove(*key);
            if let Some(text) = named.or(beside).filter(|text| !text.is_empty()) {
                config.set(key, &text)?;
            }
        }
        match beside.keys().next() {
            Some(key) => Err(format!("{key} means nothing")),
            None => Ok(config),
        }
    }

    fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        match key {
            "DEVICES" => self.devices = number(key, text)?,
            "PORTS" => self.ports = number(key, text)?,
            "NAMES" => self.names = list(text, |name| Ok(name.to_owned()))?,
            "LINK_LAYER" => self.link_layers = list(text, link_layer)?,
            "GIDS" => self.gids = list(text, gid_kind)?,
            "SUBNETS" => self.subnets = list(text, |text| number(key, text))?,
            "MTU" => {
                let bytes: u32 = number(key, text)?;
                let code = (1..=5).find(|code| 128_u32 << code == bytes);
                self.mtu = code.ok_or_else(|| format!("MTU: no port has {bytes}"))?;
            }
            "WIDTH" => self.width = number(key, text)?,
            "SPEED" => self.speed = number(key, text)?,
            "INLINE" => self.inline = number(key, text)?,
            "INLINE_CLAMPED" => self.inline_clamped = text != "0",
            "MAX_QP" => self.max_qp = number(key, text)?,
            "MAX_QP_WR" => self.max_qp_wr = number(key, text)?,
            "MAX_SGE" => self.max_sge = number(key, text)?,
            "MAX_CQ" => self.max_cq = number(key, text)?,
            "MAX_CQE" => self.max_cqe = number(key, text)?,
            "MAX_MR" => self.max_mr = number(key, text)?,
            "MAX_PD" => self.max_pd = number(key, text)?,
            "MAX_RD_ATOMIC" => self.max_rd_atomic = number(key, text)?,
            "HASTE" => self.haste = number::<u32>(key, text)?.max(1),
            "SEED" => self.seed = Some(number(key, text)?).filter(|seed| *seed != 0),
            "DMA_BUF" => self.dma_buf = text != "0",
            "PEER_MEMORY" => self.peer_memory = text != "0",
            "PLAIN" => self.plain = text != "0",
            "SYSFS" => self.sysfs = Some(text.into()),
            "REPORT" => self.report = Some(text.into()),
            _ => text.clone_into(&mut self.faults),
        }
        Ok(())
    }

    pub(crate) fn link_layer(&self, device: usize) -> LinkLayer {
        let layers = &self.link_layers;
        layers.get(device).or_else(|| layers.last()).copied().unwrap_or(LinkLayer::InfiniBand)
    }

    pub(crate) fn subnet(&self, device: usize) -> u16 {
        self.subnets.get(device).or_else(|| self.subnets.last()).copied().unwrap_or(0)
    }

    pub(crate) fn name(&self, device: usize) -> String {
        self.names.get(device).cloned().unwrap_or_else(|| format!("mlx5_{device}"))
    }
}

const KEYS: &[&str] = &[
    "DEVICES",
    "PORTS",
    "NAMES",
    "LINK_LAYER",
    "GIDS",
    "SUBNETS",
    "MTU",
    "WIDTH",
    "SPEED",
    "INLINE",
    "INLINE_CLAMPED",
    "MAX_QP",
    "MAX_QP_WR",
    "MAX_SGE",
    "MAX_CQ",
    "MAX_CQE",
    "MAX_MR",
    "MAX_PD",
    "MAX_RD_ATOMIC",
    "HASTE",
    "SEED",
    "DMA_BUF",
    "PEER_MEMORY",
    "PLAIN",
    "SYSFS",
    "REPORT",
    "FAULTS",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_wins_over_the_file() {
        let variable = |name: &str| (name == "TOPOD_VERBS_DOUBLE_DEVICES").then(|| "3".to_owned());
        let config =
            Config::read(variable, "DEVICES=1\n# two rails\nLINK_LAYER = ib,roce\nMTU=1024\n")
                .unwrap();
        assert_eq!((config.devices, config.mtu), (3, 3));
        assert_eq!(config.link_layer(0), LinkLayer::InfiniBand);
        assert_eq!(config.link_layer(2), LinkLayer::Ethernet);
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        for file in ["COLOUR=1", "DEVICES", "DEVICES=x", "MTU=9000", "GIDS=v9", "LINK_LAYER=opa"] {
            assert!(Config::read(|_| None, file).is_err(), "{file}");
        }
    }
}
