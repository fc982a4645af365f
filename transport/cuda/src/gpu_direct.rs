//! GPUDirect RDMA: slots of messages to other hosts in memory of the device, which NICs read and write themselves.
//!
//! ```text
//!   stream ──▶ slot, posted ── NIC ──────────────▶ slot of the peer's device ── flush ──▶ posted ── stream
//!              └ a fence before "posted"           └ completion: the NIC has sent it on its way to the device
//! ```
//!
//! The memory goes to the NICs as a DMA-BUF (`cuMemGetHandleForAddressRange`, `ibv_reg_dmabuf_mr`) or, where that is not to be had and the host has a
//! peer memory module, by its address (`ibv_reg_mr`). What the order of things rests on, by CUDA's driver API reference:
//!
//! - **before a NIC reads**: a word that a stream writes (`cuStreamWriteValue32`, without `NO_MEMORY_BARRIER`) comes after a fence of the whole
//!   system, so what the stream wrote before is there for everybody who has seen the word; the host has, before it gives the NIC work;
//! - **before a kernel reads what a NIC wrote**: `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING` says whether the device's own work sees
//!   such writes without more (from `OWNER` on); else `cuFlushGPUDirectRDMAWrites` makes it so, where the host may call it
//!   (`..._FLUSH_WRITES_OPTIONS`). A device with neither takes its messages through the host. The host says "posted" after that.
//!
//! **No hardware has run this**, so it is used only where it is asked for ([`Options::gpu_direct`](crate::Options::gpu_direct)).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use topology::health::{GpuDirect, GpuDirectPath};
use topology::{Plan, Rank};
use transport::{Communicator as Group, DeviceMemory};

use crate::buffer::Buffer;
use crate::context::Context;
use crate::error::DriverError;
use crate::ffi::{adopt, attribute};

/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`: the device's own work sees writes of NICs without a flush; greater values say more.
const ORDERED_FOR_OWNER: i32 = 100;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`.
const FLUSHED_BY_HOST: i32 = 1;
/// What is exported must begin and end with pages; the driver gives memory of this length such a place of its own.
const BORDER: usize = 2 << 20;

/// Memory of the device for all slots.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) memory: DeviceMemory,
    pub(crate) buffer: Arc<Buffer>,
    /// How NICs reach it.
    pub(crate) by: By,
    context: Arc<Context>,
    flushed: bool,
}

/// How NICs reach a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    DmaBuf,
    Peermem,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DmaBuf => "DMA-BUF",
            Self::Peermem => "a peer memory module",
        })
    }
}

impl Slots {
    /// Slots of so many bytes for messages to and from `peers`, or why there can be none that NICs reach.
    pub(crate) fn new(
        group: &mut Group,
        plan: &Plan,
        context: &Arc<Context>,
        verdict: Option<&GpuDirect>,
        peers: &BTreeSet<Rank>,
        bytes: usize,
    ) -> Result<Self, String> {
        let path = match verdict {
            None => return Err("GPUDirect RDMA is off".to_owned()),
            Some(GpuDirect::Closed(why)) => {
                return Err(format!("GPUDirect RDMA is not possible: {why}"));
            }
            Some(GpuDirect::Unknown(missing)) => {
                return Err(format!("whether GPUDirect RDMA is possible is not known: {missing}"));
            }
            Some(GpuDirect::Open(path)) => *path,
        };
        let own = group.rank();
        if let Some(peer) = peers.iter().find(|peer| crosses_nodes(plan, own, **peer)) {
            return Err(format!(
                "no GPUDirect RDMA: the plan's way to rank {peer} crosses from one NUMA node to another before it leaves the host"
            ));
        }
        let flushed = needs_flush(context).map_err(|why| format!("no GPUDirect RDMA: {why}"))?;
        let buffer = Buffer::new(context, bytes.next_multiple_of(BORDER));
        let buffer = buffer.map_err(|error| error.to_string())?;
        let ways = match path {
            GpuDirectPath::DmaBuf => &[By::DmaBuf][..],
            GpuDirectPath::Peermem | GpuDirectPath::Unnamed => &[By::DmaBuf, By::Peermem],
        };
        let mut against = Vec::new();
        for by in ways {
            match register(group, context, &buffer, *by, peers) {
                Ok(memory) => {
                    let context = Arc::clone(context);
                    return Ok(Self { memory, buffer, by: *by, context, flushed });
                }
                Err(why) => against.push(format!("by {by}: {why}")),
            }
        }
        Err(format!("GPUDirect RDMA is refused: {}", against.join("; ")))
    }

    /// Makes what NICs have written visible to the device's own work.
    pub(crate) fn flush(&self) -> Result<(), DriverError> {
        if self.flushed { self.context.with(|driver| driver.flush_remote_writes()) } else { Ok(()) }
    }
}

/// Registers it with every NIC that joins this rank with a peer.
fn register(
    group: &mut Group,
    context: &Arc<Context>,
    buffer: &Arc<Buffer>,
    by: By,
    peers: &BTreeSet<Rank>,
) -> Result<DeviceMemory, String> {
    let device = context.device().raw;
    let dma_buf = match by {
        By::Peermem => None,
        By::DmaBuf => Some(
            context
                .with(|driver| {
                    // A driver that exports nothing may not even have the call.
                    match driver.attribute(attribute::DMA_BUF_SUPPORTED, device)? {
                        0 => Ok(None),
                        _ => driver.export_range(buffer.address(), buffer.bytes()),
                    }
                })
                .map_err(|error| error.to_string())?
                .ok_or("the driver exports none")?,
        ),
    };
    let memory = adopt(group, buffer, dma_buf).ok_or("no RDMA joins the ranks")?;
    peers.iter().try_for_each(|peer| group.carries(&memory, *peer))?;
    Ok(memory)
}

/// Whether writes of NICs must be flushed before the device's own work reads them.
fn needs_flush(context: &Context) -> Result<bool, String> {
    let device = context.device().raw;
    let value = |which| {
        let value = context.with(|driver| driver.attribute(which, device));
        value.map_err(|error| error.to_string())
    };
    if value(attribute::GPU_DIRECT_RDMA_SUPPORTED)? == 0 {
        return Err("the device does not support it".to_owned());
    }
    if value(attribute::GPU_DIRECT_RDMA_WRITES_ORDERING)? >= ORDERED_FOR_OWNER {
        return Ok(false);
    }
    let by_host = value(attribute::GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)? & FLUSHED_BY_HOST != 0;
    if by_host && context.driver().flushes() {
        return Ok(true);
    }
    Err("the device does not order writes of NICs, and the host cannot flush them".to_owned())
}

/// Whether all ways that the plan has to a rank of another host cross from one NUMA node to another on this one: there the NIC is far from the
/// device, and the host's memory is as near. A plan without physical ways says nothing.
fn crosses_nodes(plan: &Plan, own: Rank, peer: Rank) -> bool {
    let Some(place) = plan.ranks.get(own.index()) else { return false };
    let host = format!("{}:", place.host);
    let of_set = plan.alternatives.iter().flat_map(|set| &set.channels);
    let channels = plan.channels.iter().chain(of_set);
    let edges = channels.flat_map(|channel| channel.edges.iter().chain(&channel.reduce_edges));
    let between = edges.filter(|e| [(own, peer), (peer, own)].contains(&(e.from, e.to)));
    let mut ways = between.flat_map(|edge| &edge.paths).peekable();
    let node = |name: &&String| {
        name.strip_prefix(&host).is_some_and(|name| {
            name.rsplit(['/', ':']).next().is_some_and(|last| last.starts_with("numa"))
        })
    };
    ways.peek().is_some() && ways.all(|way| way.via.iter().filter(node).count() > 1)
}
