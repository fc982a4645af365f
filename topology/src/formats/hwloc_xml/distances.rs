//! Distances: NUMA latencies, and the bandwidths of NVLink and xGMI between GPUs.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use roxmltree::Node;

use super::Reader;
use crate::formats::text::excerpt;
use crate::formats::{DEVICE_LIMIT, ReadError};
use crate::snapshot::{Gpu, GpuLinkKind, GpuLinks, LinkPeer};
use crate::{Bandwidth, BusId, RateModel, rates};

/// An object in a matrix of distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Device(BusId),
    Package,
    Unknown,
}

/// Bandwidths in MB/s from each object to each.
pub(super) struct Bandwidths {
    line: usize,
    kind: GpuLinkKind,
    ends: Vec<End>,
    values: Vec<u64>,
}

/// One xGMI link in MB/s: 16 lanes at 25 GT/s (AMD's page on the architecture of MI250). hwloc itself writes one constant, 100000, for
/// every pair that xGMI joins, whatever the generation (`topology-rsmi.c`), so counts made of it are no more than that.
const XGMI_LINK: u64 = 50_000;

impl Reader<'_> {
    pub(super) fn distances(&mut self, root: Node<'_, '_>) -> Result<(), ReadError> {
        for node in root.descendants() {
            match node.tag_name().name() {
                "distances" => self.old_latencies(node),
                "distances2" | "distances2hetero" => self.matrix(node)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// hwloc 1: latencies relative to a base, objects in the order of the file.
    fn old_latencies(&mut self, node: Node<'_, '_>) {
        let ids: Vec<u32> = self.numa.keys().copied().collect();
        let base =
            node.attribute("latency_base").and_then(|text| text.parse::<f64>().ok()).unwrap_or(1.0);
        let values: Vec<u64> = node
            .children()
            .filter(|child| child.has_tag_name("latency"))
            .filter_map(|child| child.attribute("value")?.parse::<f64>().ok())
            .filter_map(|value| units(value * base))
            .collect();
        let told = node.attribute("nbobjs").and_then(|text| text.parse().ok()) == Some(ids.len());
        if told && values.len() == ids.len() * ids.len() {
            self.latencies(&ids, &values);
        } else {
            let line = self.markup.line(node);
            self.fault(line, "distances of other objects than NUMA nodes are left out".into());
        }
    }

    fn latencies(&mut self, ids: &[u32], values: &[u64]) {
        for (from, row) in ids.iter().zip(values.chunks(ids.len().max(1))) {
            let Some(node) = self.numa.get_mut(from) else { continue };
            for (to, value) in ids.iter().zip(row) {
                if let Ok(value) = u32::try_from(*value) {
                    node.distances.insert(*to, value);
                }
            }
        }
    }

    /// hwloc 2 and 3.
    fn matrix(&mut self, node: Node<'_, '_>) -> Result<(), ReadError> {
        let name = node.attribute("name").unwrap_or_default();
        let kind = match name {
            "NVLinkBandwidth" => Some(GpuLinkKind::NvLink),
            "XGMIBandwidth" => Some(GpuLinkKind::Xgmi),
            "NUMALatency" => None,
            _ => return Ok(()),
        };
        let text = |tag: &str| -> String {
            let parts = node.children().filter(|child| child.has_tag_name(tag));
            parts.filter_map(|part| part.text()).fold(String::new(), |all, part| all + part + " ")
        };
        let objects = text("indexes");
        let objects: Vec<&str> = objects.split_whitespace().take(DEVICE_LIMIT + 1).collect();
        let values: Vec<u64> = text("u64values")
            .split_whitespace()
            .take(DEVICE_LIMIT * DEVICE_LIMIT)
            .map_while(|value| value.parse().ok())
            .collect();
        if objects.len() > DEVICE_LIMIT || values.len() != objects.len() * objects.len() {
            let reason = format!(
                "{}: {} values between {} objects",
                excerpt(name),
                values.len(),
                objects.len()
            );
            return Err(self.markup.refuse(node, reason));
        }
        let line = self.markup.line(node);
        match kind {
            None => {
                let ids: Vec<u32> = objects.iter().filter_map(|id| id.parse().ok()).collect();
                if ids.len() == objects.len() && node.attribute("indexing") == Some("os") {
                    self.latencies(&ids, &values);
                }
            }
            Some(kind) => {
                let ends = objects.iter().map(|object| self.end(object)).collect();
                self.has_links = true;
                self.links.push(Bandwidths { line, kind, ends, values });
            }
        }
        Ok(())
    }

    /// `894`, or `OSDev:332` where objects are of several kinds.
    fn end(&self, object: &str) -> End {
        let number = object.rsplit(':').next().and_then(|number| number.parse::<u64>().ok());
        let Some(number) = number else { return End::Unknown };
        if let Some(bus_id) = self.by_id.get(&number) {
            End::Device(*bus_id)
        } else if self.packages.iter().any(|package| package.id == Some(number)) {
            End::Package
        } else {
            End::Unknown
        }
    }

    /// Bandwidths as links: as many of the GPU's generation as they amount to.
    pub(super) fn gpu_links(&mut self, gpus: &mut [Gpu]) {
        let place: BTreeMap<BusId, usize> =
            (0..).zip(gpus.iter()).filter_map(|(place, gpu)| Some((gpu.bus_id?, place))).collect();
        for matrix in core::mem::take(&mut self.links) {
            let size = matrix.ends.len();
            // Parts of one GPU are objects of their own; the most any two of them have stands for the pair.
            let mut pairs: BTreeMap<(usize, End), u64> = BTreeMap::new();
            for (from, row) in matrix.ends.iter().zip(matrix.values.chunks(size.max(1))) {
                let End::Device(from) = from else { continue };
                let Some(gpu) = place.get(from) else { continue };
                for (to, total) in
                    matrix.ends.iter().zip(row).filter(|(to, _)| **to != End::Device(*from))
                {
                    let most = pairs.entry((*gpu, *to)).or_default();
                    *most = (*most).max(*total);
                }
            }
            for ((gpu, to), total) in pairs.into_iter().filter(|(_, total)| *total > 0) {
                let peer = match to {
                    End::Device(to) if place.contains_key(&to) => LinkPeer::Gpu(to),
                    End::Device(to) => LinkPeer::Switch(Some(to)),
                    End::Package => LinkPeer::Cpu(None),
                    End::Unknown => LinkPeer::Unknown,
                };
                let gpu = &mut gpus[gpu];
                let one = match matrix.kind {
                    GpuLinkKind::Xgmi => XGMI_LINK,
                    GpuLinkKind::NvLink => nvlink_mbps(gpu),
                };
                let count = u32::try_from(total / one).unwrap_or(0);
                if total % one == 0 && count > 0 {
                    let rate = Some(Bandwidth::from_mbps(one));
                    gpu.links.push(GpuLinks { kind: matrix.kind, peer, count, rate });
                } else {
                    let error = format!(
                        "{total} MB/s from GPU{} are no whole number of links of {one} MB/s; left out",
                        gpu.index
                    );
                    self.fault(matrix.line, error);
                }
            }
        }
    }
}

/// Wire rate of one NVLink of a GPU, by its generation.
fn nvlink_mbps(gpu: &Gpu) -> u64 {
    let rate = rates::gpu_link(GpuLinkKind::NvLink, gpu.into(), None, RateModel::Nominal);
    rate.bandwidth.kbps() / 1000
}

/// A latency in whole units; `None` for what is none.
fn units(value: f64) -> Option<u64> {
    if !(0.0..=65_535.0).contains(&value) {
        return None;
    }
    // Within range by the test before; the place after the point is hwloc's rounding.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 65,535, by the line above"
    )]
    let whole = (value + 0.5) as u64;
    Some(whole)
}
