//! Protection domains and memory regions.

use std::ffi::{c_int, c_uint, c_void};

use super::device::ask;
use super::{address, give, number, object, pointer, take_back};
use crate::abi::{Context, Mr, Pd, access};
use crate::device::Health;
use crate::engine::call;
use crate::errno::Errno;
use crate::fabric::{self, Address, Fabric};
use crate::fault;
use crate::memory::{Mapping, Of, Region, may_be_pinned, peer};

#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    object(ask("ibv_alloc_pd", context, |fabric, device| {
        let here = fabric.pds.values().filter(|pd| pd.device == device).count();
        if here >= fabric.config.max_pd {
            return Err(Errno::NO_MEMORY);
        }
        let handle = fabric.handle();
        let pd = give(Pd { context, handle });
        fabric.pds.insert(pd, fabric::Pd { context: address(context), device });
        Ok(pd)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    let of = address(pd);
    let result = call(
        "ibv_dealloc_pd",
        |fabric| fabric.pds.get(&of).map(|pd| pd.device),
        |fabric| {
            if !fabric.pds.contains_key(&of) {
                fabric.counts.misuse("ibv_dealloc_pd of what is no protection domain".to_owned());
                return Err(Errno::INVALID);
            }
            if fabric.regions.values().any(|region| region.pd == of)
                || fabric.qps.values().any(|qp| qp.pd == of)
            {
                fabric.counts.misuse("ibv_dealloc_pd while it is used".to_owned());
                return Err(Errno::BUSY);
            }
            fabric.pds.remove(&of);
            Ok(())
        },
    );
    if result.is_ok() {
        take_back::<Pd>(of);
    }
    number(result)
}

/// A key that no region has: never 0, and local ones unlike remote ones, so that neither passes for the other.
fn key(fabric: &mut Fabric) -> u32 {
    fabric.last_key += 1;
    // Spread over the numbers as devices' keys are.
    fabric.last_key.wrapping_mul(0x0001_0100) | 0x47
}

/// Of a registration that was asked for.
struct Asked {
    start: u64,
    length: u64,
    iova: u64,
    access: u32,
    /// A DMA-BUF, and where the memory begins in it; else the memory begins at `start`.
    dma_buf: Option<(c_int, u64)>,
}

/// The memory that is meant: where it can be reached, and whose it is.
fn memory(asked: &Asked, peer_memory: bool, maps: &str) -> Result<(u64, Of), Errno> {
    if let Some((fd, offset)) = asked.dma_buf {
        const PAGE: u64 = 4096;
        // Within a page both begin at the same place (`ibv_reg_dmabuf_mr` in the kernel).
        if offset % PAGE != asked.iova % PAGE {
            return Err(Errno::INVALID);
        }
        let within = offset % PAGE;
        let length = (within + asked.length).next_multiple_of(PAGE);
        let mapping = Mapping::of(fd, offset - within, length).map_err(|_| Errno::INVALID)?;
        return Ok((mapping.start() + within, Of::DmaBuf { _mapping: mapping }));
    }
    let write = asked.access & access::LOCAL_WRITE != 0;
    if may_be_pinned(maps, asked.start, asked.length, write) {
        return Ok((asked.start, Of::Host));
    }
    let found = if peer_memory { peer(asked.start, asked.length) } else { None };
    found.map(|place| (place, Of::Peer)).ok_or(Errno::FAULT)
}

fn register(name: &'static str, pd: *mut Pd, asked: &Asked) -> Result<Address, Errno> {
    let of = address(pd);
    // Read outside the lock: it may be long.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    call(
        name,
        |fabric| fabric.pds.get(&of).map(|pd| pd.device),
        |fabric| {
            let Some(domain) = fabric.pds.get(&of) else {
                fabric.counts.misuse(format!("{name} with what is no protection domain"));
                return Err(Errno::INVALID);
            };
            let (context, device) = (domain.context, domain.device);
            if fabric.health(device) != Health::Well {
                return Err(Errno::IO);
            }
            let given = asked.access & !access::OPTIONAL;
            let remote = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
            let known = access::LOCAL_WRITE | access::REMOTE_READ | remote;
            // What others may write, this side must be allowed to write too (ibv_reg_mr).
            if given & !known != 0 || (given & remote != 0 && given & access::LOCAL_WRITE == 0) {
                return Err(Errno::INVALID);
            }
            if asked.start.checked_add(asked.length).is_none() || asked.length == 0 {
                return Err(Errno::INVALID);
            }
            if asked.dma_buf.is_some() && !fabric.config.dma_buf {
                return Err(Errno::NOT_SUPPORTED);
            }
            let (start, whose) = memory(asked, fabric.config.peer_memory, &maps)?;
            let pinned = fabric.devices.get(device).map_or(0, |device| device.pinned);
            // Of a device's memory nothing is locked.
            let pinned = pinned + if whose.is_device() { 0 } else { asked.length };
            if let Some(errno) = fault::register(&mut fabric.faults, device, pinned) {
                return Err(errno);
            }
            let here = fabric.regions.values().filter(|region| region.device == device).count();
            if here >= fabric.config.max_mr {
                return Err(Errno::NO_MEMORY);
            }
            if let Some(device) = fabric.devices.get_mut(device) {
                device.pinned = pinned;
            }
            let all = fabric.devices.iter().map(|device| device.pinned).sum();
            fabric.counts.pinned_most = fabric.counts.pinned_most.max(all);
            let (lkey, rkey, handle) = (key(fabric), key(fabric), fabric.handle());
            let region = give(Mr {
                context: pointer(context),
                pd,
                addr: pointer(usize::try_from(asked.start).map_err(|_| Errno::INVALID)?),
                length: usize::try_from(asked.length).map_err(|_| Errno::INVALID)?,
                handle,
                lkey,
                rkey,
            });
            fabric.keys.extend([(lkey, region), (rkey, region)]);
            fabric.counts.registered(&whose);
            let made = Region {
                context,
                device,
                pd: of,
                start,
                iova: asked.iova,
                length: asked.length,
                access: given,
                lkey,
                rkey,
                of: whose,
            };
            fabric.regions.insert(region, made);
            Ok(region)
        },
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr(
    pd: *mut Pd,
    start: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    ibv_reg_mr_iova2(pd, start, length, address(start) as u64, access.cast_unsigned())
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr_iova(
    pd: *mut Pd,
    start: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    ibv_reg_mr_iova2(pd, start, length, iova, access.cast_unsigned())
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr_iova2(
    pd: *mut Pd,
    start: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    let (start, length, dma_buf) = (address(start) as u64, length as u64, None);
    let asked = Asked { start, length, iova, access, dma_buf };
    object(register("ibv_reg_mr", pd, &asked))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut Pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut Mr {
    let (length, access, dma_buf) = (length as u64, access.cast_unsigned(), Some((fd, offset)));
    let asked = Asked { start: 0, length, iova, access, dma_buf };
    object(register("ibv_reg_dmabuf_mr", pd, &asked))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dereg_mr(region: *mut Mr) -> c_int {
    let of = address(region);
    let result = call(
        "ibv_dereg_mr",
        |fabric| fabric.regions.get(&of).map(|region| region.device),
        |fabric| {
            let Some(ended) = fabric.regions.remove(&of) else {
                fabric.counts.misuse("ibv_dereg_mr of what is no memory region".to_owned());
                return Err(Errno::INVALID);
            };
            fabric.keys.remove(&ended.lkey);
            fabric.keys.remove(&ended.rkey);
            if let Some(device) = fabric.devices.get_mut(ended.device) {
                device.pinned -= if ended.of.is_device() { 0 } else { ended.length };
            }
            // Allowed, but what is on its way will fail.
            let names = |piece: &crate::abi::Sge| piece.lkey == ended.lkey && piece.length > 0;
            let used = fabric.qps.values().any(|qp| {
                let sends = qp.sends.iter().filter(|send| send.inline.is_none());
                sends.flat_map(|send| &send.pieces).any(names)
                    || qp.receives.iter().flat_map(|receive| &receive.pieces).any(names)
            });
            fabric.counts.deregistered_in_use += u64::from(used);
            Ok(())
        },
    );
    if result.is_ok() {
        take_back::<Mr>(of);
    }
    number(result)
}
