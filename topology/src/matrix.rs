//! The matrix of `nvidia-smi topo -m`: one cell per pair of devices, one word per cell.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::PathType;

/// Path classes between devices, row and column order as printed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// Names as in the header: `GPU0`, `NIC0` or `mlx5_0`.
    pub devices: Vec<String>,
    /// Square, in the order of `devices`; `None` where the source's row is missing or the cell illegible.
    pub cells: Vec<Vec<Option<Cell>>>,
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cell {
    /// The class; `Loc` prints as `X`.
    pub class: PathType,
    /// Bonded NVLinks of an `Nvl` cell (`NV12`); 0 for other classes.
    pub links: u32,
}

/// Text that is no cell of a matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a cell of a topology matrix (X, NV#, PIX, PXB, PHB, NODE, SYS)")]
pub struct InvalidCell {
    /// The text as found.
    pub text: String,
}

impl Cell {
    /// A cell of a class that counts no links.
    #[must_use]
    pub const fn class(class: PathType) -> Self {
        Self { class, links: 0 }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.class {
            PathType::Loc => f.pad("X"),
            PathType::Nvl => f.pad(&alloc::format!("NV{}", self.links)),
            other => f.pad(other.as_str()),
        }
    }
}

impl FromStr for Cell {
    type Err = InvalidCell;

    /// Takes `SOC`, the word of 2017 drivers, for `SYS`.
    fn from_str(text: &str) -> Result<Self, InvalidCell> {
        let error = || InvalidCell { text: text.into() };
        Ok(match text {
            "X" | "x" => Self::class(PathType::Loc),
            "PIX" => Self::class(PathType::Pix),
            "PXB" => Self::class(PathType::Pxb),
            "PHB" => Self::class(PathType::Phb),
            "NODE" => Self::class(PathType::Node),
            "SYS" | "SOC" => Self::class(PathType::Sys),
            "C2C" => Self::class(PathType::C2c),
            "NET" => Self::class(PathType::Net),
            "DIS" => Self::class(PathType::Dis),
            _ => {
                let digits = text
                    .strip_prefix("NV")
                    .filter(|d| d.bytes().all(|b| b.is_ascii_digit()))
                    .ok_or_else(error)?;
                let links = digits.parse::<u32>().map_err(|_| error())?;
                Self { class: PathType::Nvl, links }
            }
        })
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cell {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        assert_eq!(text.parse::<Cell>().ok().map(|c| c.to_string()).as_deref(), expect, "{text}");
    }

    #[test]
    fn words() {
        check("X", Some("X"));
        check("NV12", Some("NV12"));
        check("SOC", Some("SYS"));
        check("NODE", Some("NODE"));
        for text in ["", "NV", "NV-1", "N/A", "0-15", "NV99999999999"] {
            check(text, None);
        }
    }
}
