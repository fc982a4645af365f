//! The path between two devices and its class.
use alloc::vec::Vec;

use crate::{Bandwidth, LinkId, PathType, VertexId};

/// One step of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The link taken.
    pub link: LinkId,
    /// Where it leads.
    pub to: VertexId,
}

/// How one device reaches another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Class.
    pub class: PathType,
    /// Bonded NVLinks where the class is `Nvl`.
    pub links: u32,
    /// In order; empty where it is the device itself or not connected.
    pub hops: Vec<Hop>,
    /// Least bandwidth on the way.
    pub bottleneck: Bandwidth,
}
