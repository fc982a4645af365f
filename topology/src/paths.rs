//! The path between two devices, and its class.
//!
//! Classes are NVML's: decided by the nearest common ancestor in the PCIe tree, NVLink before any of them.
//! A host that came as a matrix keeps the classes it stated.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::matrix::{Cell, Matrix};
use crate::{Bandwidth, HostId, LinkId, LinkKind, PathType, Topology, VertexId, VertexKind};

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
    /// Bonded NVLinks where the class is `Nvl`: of a direct connection all of them, through a switch the lesser end's.
    pub links: u32,
    /// In order; empty where it is the device itself or not connected.
    pub hops: Vec<Hop>,
    /// Least bandwidth on the way; zero where there is no way.
    pub bottleneck: Bandwidth,
}

impl Path {
    /// The first hop whose bandwidth is the least.
    #[must_use]
    pub fn limiting_hop(&self, topology: &Topology) -> Option<Hop> {
        self.hops.iter().copied().find(|hop| topology.link(hop.link).bandwidth == self.bottleneck)
    }
}

impl Topology {
    /// The path between two devices as a person counts it: NVLink direct or through NVSwitches, else down
    /// the PCIe tree and between sockets, else over the network.
    #[must_use]
    pub fn path(&self, from: VertexId, to: VertexId) -> Path {
        let hops = self
            .nvlink_hops(from, to)
            .or_else(|| self.route(from, to, &[LinkKind::Pcie, LinkKind::Socket]))
            .or_else(|| self.route(from, to, &[LinkKind::Pcie, LinkKind::Socket, LinkKind::Net]))
            .or_else(|| self.route(from, to, &[LinkKind::Abstract]))
            .unwrap_or_default();
        let bottleneck =
            hops.iter().map(|hop| self.link(hop.link).bandwidth).min().unwrap_or(Bandwidth::ZERO);
        let (class, links) = match self.declared(from, to) {
            Some(cell) => (cell.class, cell.links),
            None => self.classify(from, to, &hops),
        };
        Path { class, links, hops, bottleneck }
    }

    /// The matrix of a host in nvidia-smi's order: GPUs, then NICs. As stated where the host came as a matrix.
    #[must_use]
    pub fn matrix(&self, host: HostId) -> Matrix {
        if let Some(matrix) =
            self.hosts.get(host.index()).and_then(|snapshot| snapshot.matrix.as_ref())
        {
            return matrix.clone();
        }
        let devices = self.matrix_devices(host);
        let cells = devices
            .iter()
            .map(|(_, from)| {
                let cell = |to| {
                    let path = self.path(*from, to);
                    Some(Cell { class: path.class, links: path.links })
                };
                devices.iter().map(|(_, to)| cell(*to)).collect()
            })
            .collect();
        Matrix { devices: devices.into_iter().map(|(name, _)| name).collect(), cells }
    }

    /// Devices of the matrix of a host with their names there: `GPU0`.. by index, `NIC0`.. by place in the list.
    #[must_use]
    pub fn matrix_devices(&self, host: HostId) -> Vec<(String, VertexId)> {
        let of_host = |id: &&VertexId| self.vertex(**id).host == Some(host);
        let name = |id: VertexId| match self.vertex(id).kind {
            VertexKind::Gpu { index } => format!("GPU{index}"),
            VertexKind::Nic { index } => format!("NIC{index}"),
            _ => self.vertex(id).name.clone(),
        };
        self.gpus()
            .iter()
            .filter(of_host)
            .chain(self.nics().iter().filter(of_host))
            .map(|id| (name(*id), *id))
            .collect()
    }

    fn nvlink_hops(&self, from: VertexId, to: VertexId) -> Option<Vec<Hop>> {
        let nvlink =
            |link: &LinkId| matches!(self.link(*link).kind, LinkKind::NvLink | LinkKind::Xgmi);
        let both_gpus =
            [from, to].iter().all(|id| matches!(self.vertex(*id).kind, VertexKind::Gpu { .. }));
        if !both_gpus || from == to {
            return None;
        }
        let direct = self.links_between(from, to).into_iter().find(nvlink);
        if let Some(link) = direct {
            return Some(alloc::vec![Hop { link, to }]);
        }
        self.links_from(from)
            .into_iter()
            .filter(|(link, end)| nvlink(link) && self.vertex(*end).kind == VertexKind::NvSwitch)
            .find_map(|(link, switch)| {
                let last = self.links_between(switch, to).into_iter().find(nvlink)?;
                Some(alloc::vec![Hop { link, to: switch }, Hop { link: last, to }])
            })
    }

    /// Fewest hops over links of these kinds, not through other GPUs or NICs' hosts; ties go to the first in vertex order.
    fn route(&self, from: VertexId, to: VertexId, kinds: &[LinkKind]) -> Option<Vec<Hop>> {
        if from == to {
            return Some(Vec::new());
        }
        let mut reached: Vec<Option<(VertexId, LinkId)>> =
            alloc::vec![None; self.graph.node_count()];
        let mut queue = VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            let dead_end = at != from && matches!(self.vertex(at).kind, VertexKind::Gpu { .. });
            if dead_end {
                continue;
            }
            for (link, next) in self.links_from(at) {
                if next != from
                    && reached[next.index()].is_none()
                    && kinds.contains(&self.link(link).kind)
                {
                    reached[next.index()] = Some((at, link));
                    queue.push_back(next);
                }
            }
        }
        let mut hops = Vec::new();
        let mut at = to;
        while at != from {
            let (before, link) = reached[at.index()]?;
            hops.push(Hop { link, to: at });
            at = before;
        }
        hops.reverse();
        Some(hops)
    }

    fn declared(&self, from: VertexId, to: VertexId) -> Option<Cell> {
        let (a, b) = (self.vertex(from), self.vertex(to));
        let host = a.host.filter(|host| b.host == Some(*host))?;
        let matrix = self.hosts.get(host.index())?.matrix.as_ref()?;
        // Rows are GPUs and NICs in header order; a NIC is the i-th name that is no GPU.
        let place = |id: VertexId| match self.vertex(id).kind {
            VertexKind::Gpu { index } => {
                matrix.devices.iter().position(|name| *name == format!("GPU{index}"))
            }
            VertexKind::Nic { index } => {
                let is_gpu = |name: &str| {
                    name.strip_prefix("GPU").is_some_and(|digits| digits.parse::<u32>().is_ok())
                };
                matrix
                    .devices
                    .iter()
                    .enumerate()
                    .filter(|(_, name)| !is_gpu(name))
                    .nth(index as usize)
                    .map(|(place, _)| place)
            }
            _ => None,
        };
        let (row, column) = (place(from)?, place(to)?);
        let at = |row: usize, column: usize| {
            matrix.cells.get(row).and_then(|cells| cells.get(column)).copied().flatten()
        };
        at(row, column).or_else(|| at(column, row))
    }

    fn classify(&self, from: VertexId, to: VertexId, hops: &[Hop]) -> (PathType, u32) {
        if from == to {
            return (PathType::Loc, 0);
        }
        if hops.is_empty() {
            return (PathType::Dis, 0);
        }
        let kind = |hop: &Hop| self.link(hop.link).kind;
        if hops.iter().all(|hop| matches!(kind(hop), LinkKind::NvLink | LinkKind::Xgmi)) {
            return (
                PathType::Nvl,
                hops.iter().map(|hop| self.link(hop.link).count).min().unwrap_or(0),
            );
        }
        if hops.iter().any(|hop| matches!(kind(hop), LinkKind::Net | LinkKind::Abstract)) {
            return (PathType::Net, 0);
        }
        if hops.iter().any(|hop| kind(hop) == LinkKind::Socket) {
            return (PathType::Sys, 0);
        }
        let crosses = |wanted: fn(&VertexKind) -> bool| {
            hops.iter().filter(|hop| hop.to != to && wanted(&self.vertex(hop.to).kind)).count()
        };
        if crosses(|kind| matches!(kind, VertexKind::NumaNode { .. })) > 0 {
            // The two links at the NUMA node say which host bridges they belong to, where that is known.
            let bridges: Vec<_> =
                hops.iter().filter_map(|hop| self.link(hop.link).host_bridge.as_ref()).collect();
            let apart = bridges.windows(2).any(|pair| pair[0] != pair[1]);
            return (if apart { PathType::Node } else { PathType::Phb }, 0);
        }
        let switches = crosses(|kind| *kind == VertexKind::PcieSwitch);
        (if switches <= 1 { PathType::Pix } else { PathType::Pxb }, 0)
    }
}

impl Topology {
    /// The NUMA node a device hangs below, by the PCIe tree.
    #[must_use]
    pub fn numa_of(&self, id: VertexId) -> Option<VertexId> {
        let mut seen = alloc::collections::BTreeSet::from([id]);
        let mut queue = VecDeque::from([id]);
        while let Some(at) = queue.pop_front() {
            for (link, next) in self.links_from(at) {
                if self.link(link).kind != LinkKind::Pcie || !seen.insert(next) {
                    continue;
                }
                match self.vertex(next).kind {
                    VertexKind::NumaNode { .. } => return Some(next),
                    VertexKind::PcieSwitch | VertexKind::NicCard => queue.push_back(next),
                    _ => {}
                }
            }
        }
        None
    }
}
