//! The elements of devices: `gpu` with its links, `nic` with its ports.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use roxmltree::Node;

use super::host::{Host, PendingGpu, PendingLink};
use super::{Above, Reader, values};
use crate::formats::ReadError;
use crate::formats::text::excerpt;
use crate::snapshot::{C2c, GpuLinkKind, LinkLayer, NetInterface};
use crate::{Bandwidth, BusId, Gpu, GpuIndex, Nic, Rail};

/// A NIC faster than this (1 Pbit/s) is a slip of units.
const MOST_MBIT: i64 = 1_000_000_000;

impl Reader<'_> {
    pub(super) fn gpu(
        &self,
        node: Node<'_, '_>,
        bus_id: BusId,
        numa_node: Option<u32>,
        host: &mut Host,
    ) -> Result<(), ReadError> {
        let line = self.line(node);
        let dev = self.index(node, "dev")?;
        let mut gpu = new_gpu(bus_id, numa_node);
        gpu.name = node.attribute("gcn").map(values::gcn_name).map(|name| excerpt(&name));
        gpu.gfx.clone_from(&gpu.name);
        // RCCL's `sm` is a count of compute units, not a capability.
        if gpu.name.is_none() {
            gpu.compute_capability = self.index(node, "sm")?.filter(|sm| *sm > 0);
        }
        gpu.part = self.index(node, "mlopart")?;
        gpu.gdr = self.integer(node, "gdr")?.map(|gdr| gdr != 0);
        if let Some(rank) = self.integer(node, "rank")? {
            host.first_rank = Some(host.first_rank.map_or(rank, |first| first.min(rank)));
        }
        let mut links = Vec::new();
        for child in self.children(node, &["nvlink", "xgmi", "c2c"], &mut host.faults)? {
            match child.tag_name().name() {
                "c2c" if gpu.c2c.is_none() => gpu.c2c = self.c2c(child, host)?,
                "c2c" => host.fault(self.line(child), "a second <c2c> is left out".into()),
                "xgmi" => links.extend(self.gpu_link(child, GpuLinkKind::Xgmi)?),
                _ => links.extend(self.gpu_link(child, GpuLinkKind::NvLink)?),
            }
        }
        host.gpus.push(PendingGpu { line, dev: dev.map(GpuIndex), links, gpu });
        Ok(())
    }

    fn gpu_link(
        &self,
        node: Node<'_, '_>,
        kind: GpuLinkKind,
    ) -> Result<Option<PendingLink>, ReadError> {
        let name = node.tag_name().name();
        let text = node
            .attribute("target")
            .ok_or_else(|| self.refuse(node, format!("<{name}> states no target")))?;
        let target = values::target(text).ok_or_else(|| {
            self.refuse(node, format!("target '{}' of <{name}> is no PCI address", excerpt(text)))
        })?;
        let count = self
            .integer(node, "count")?
            .ok_or_else(|| self.refuse(node, format!("<{name}> states no count")))?;
        let count = u32::try_from(count)
            .map_err(|_| self.refuse(node, format!("{count} is no count of links")))?;
        let target_class = node.attribute("tclass").and_then(values::class);
        Ok((count > 0).then(|| PendingLink {
            line: self.line(node),
            kind,
            target,
            target_class,
            count,
        }))
    }

    /// `bw` is in MB/s per link (`src/graph/topo.cc` divides the product with `count` by 1000 for GB/s).
    fn c2c(&self, node: Node<'_, '_>, host: &mut Host) -> Result<Option<C2c>, ReadError> {
        let (bw, count) = (self.index(node, "bw")?, self.index(node, "count")?);
        match (bw, count) {
            (Some(bw @ 1..), Some(count @ 1..)) => {
                Ok(Some(C2c { count, rate: Bandwidth::from_mbps(u64::from(bw)) }))
            }
            _ => {
                let error = "<c2c> without bw and count: chip-to-chip link unknown";
                host.fault(self.line(node), error.into());
                Ok(None)
            }
        }
    }

    pub(super) fn nic(
        &self,
        node: Node<'_, '_>,
        above: Above,
        class: Option<u32>,
        host: &mut Host,
    ) -> Result<(), ReadError> {
        // `gin` and `rma` list the same ports again for other uses.
        let children = self.children(node, &["net", "gin", "rma"], &mut host.faults)?;
        let name_of =
            |child: &Node<'_, '_>| child.attribute("name").map(|name| String::from(name.trim()));
        for child in &children {
            let child = *child;
            if !child.has_tag_name("net") {
                continue;
            }
            let line = self.line(child);
            let name = child
                .attribute("name")
                .map(str::trim)
                .filter(|name| !name.is_empty())
                .ok_or_else(|| self.refuse(child, "<net> states no name".into()))?;
            let mut nic = new_nic(excerpt(name), above.parent, above.numa_node, class);
            nic.port = self.index(child, "port")?.filter(|port| *port > 0);
            nic.gdr = self.integer(child, "gdr")?.map(|gdr| gdr != 0);
            // Above 16 bits NCCL keeps a flag for "not told".
            nic.rail = self.index(child, "rail")?.filter(|rail| *rail < 1 << 16).map(Rail);
            nic.plane = self.index(child, "plane")?.filter(|plane| *plane < 1 << 16);
            let lists = |tag: &str| {
                // One without a name is of every port of the card.
                children.iter().any(|other| {
                    other.has_tag_name(tag) && name_of(other).is_none_or(|other| other == name)
                })
            };
            nic.interfaces = [("gin", NetInterface::Gin), ("rma", NetInterface::Rma)]
                .into_iter()
                .filter(|(tag, _)| lists(tag))
                .map(|(_, interface)| interface)
                .collect();
            let speed = child.attribute("speed").map(str::trim).unwrap_or_default();
            match speed.parse::<i64>() {
                Ok(mbit @ 1..=MOST_MBIT) => nic.mbit = u64::try_from(mbit).ok(),
                _ => {
                    let error = format!(
                        "{}: speed '{}' Mbit/s, taken as unknown",
                        nic.name,
                        excerpt(speed)
                    );
                    host.fault(line, error);
                }
            }
            host.nics.push((self.index(child, "dev")?, nic));
        }
        Ok(())
    }
}

pub(super) fn new_gpu(bus_id: BusId, numa_node: Option<u32>) -> Gpu {
    Gpu { bus_id: Some(bus_id), numa_node, ..Gpu::new(GpuIndex(0)) }
}

pub(super) fn new_nic(
    name: String,
    bus_id: Option<BusId>,
    numa_node: Option<u32>,
    class: Option<u32>,
) -> Nic {
    let link_layer = match class.map(|class| class >> 8) {
        Some(0x02_07) => Some(LinkLayer::Infiniband),
        Some(0x02_00) => Some(LinkLayer::Ethernet),
        _ => None,
    };
    Nic { bus_id, numa_node, link_layer, ..Nic::new(name) }
}
