//! Devices: the list, contexts, and what they and their ports tell.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, OnceLock};

use super::{address, give, minus_one, number, object, pointer, read, set_errno, take_back, write};
use super::{completion, queue_pair, write_start};
use crate::abi::{
    Context, ContextOps, Device, DeviceAttr, GidEntry, NODE_CA, PortAttr, VerbsContext, port,
};
use crate::config::LinkLayer;
use crate::device::{GID_TABLE, Gid, Health};
use crate::engine::{call, with};
use crate::errno::Errno;
use crate::fabric::{self, Address, Fabric};

const NOTHING: *const c_void = std::ptr::null();

/// A text in a field of fixed size, cut where it is too long.
fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    field
}

/// The structures that devices are known by; they live as long as the process.
fn structures() -> Result<&'static [Address], Errno> {
    static STRUCTURES: OnceLock<Vec<Address>> = OnceLock::new();
    let (names, folder) = with(|fabric| {
        let names: Vec<String> = fabric.devices.iter().map(|device| device.name.clone()).collect();
        let folder = fabric.config.sysfs.clone();
        Ok((names, folder.unwrap_or_else(|| "/sys/class/infiniband".into())))
    })?;
    Ok(STRUCTURES.get_or_init(|| {
        let structure = |(number, name): (usize, &String)| {
            give(Device {
                ops: [NOTHING; 2],
                node_type: NODE_CA,
                transport_type: 0,
                name: text(name),
                dev_name: text(&format!("uverbs{number}")),
                dev_path: text(&format!("/sys/class/infiniband_verbs/uverbs{number}")),
                ibdev_path: text(&folder.join(name).to_string_lossy()),
            })
        };
        names.iter().enumerate().map(structure).collect()
    }))
}

fn place(device: *const Device) -> Result<usize, Errno> {
    let wanted = address(device);
    structures()?.iter().position(|address| *address == wanted).ok_or(Errno::INVALID)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device {
    let result = structures().and_then(|devices| {
        call(
            "ibv_get_device_list",
            |_| None,
            |fabric| {
                fabric.counts.lists += 1;
                if !count.is_null() {
                    write(count, c_int::try_from(devices.len()).map_err(|_| Errno::INVALID)?)?;
                }
                let list: Box<[*mut Device]> =
                    devices.iter().map(|device| pointer(*device)).chain([pointer(0)]).collect();
                Ok(address(Box::into_raw(list).cast::<*mut Device>()))
            },
        )
    });
    object(result)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_free_device_list(list: *mut *mut Device) {
    if list.is_null() {
        return;
    }
    let known = structures().map(<[Address]>::len);
    let _ = with(|fabric| {
        fabric.counts.call("ibv_free_device_list");
        match fabric.counts.lists.checked_sub(1) {
            Some(left) => fabric.counts.lists = left,
            None => fabric.counts.misuse("a list of devices was freed twice".to_owned()),
        }
        Ok(())
    });
    let Ok(known) = known else { return };
    let list = std::ptr::slice_from_raw_parts_mut(list, known + 1);
    // SAFETY: a list of `ibv_get_device_list`, which has this length.
    drop(unsafe { Box::from_raw(list) });
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_name(device: *const Device) -> *const c_char {
    if place(device).is_err() {
        return std::ptr::null();
    }
    // SAFETY: one of the structures, which are never freed; a place in it is made, nothing is read.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(device: *const Device) -> c_int {
    place(device).ok().and_then(|place| c_int::try_from(place).ok()).unwrap_or(-1)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(device: *const Device) -> u64 {
    let guid = place(device).and_then(|place| {
        with(|fabric| fabric.devices.get(place).map(|device| device.guid).ok_or(Errno::INVALID))
    });
    // In network order.
    guid.unwrap_or(0).to_be()
}

/// The functions that the header's inline ones call, and the numbers that they look at.
fn structure(device: *mut Device, async_fd: c_int, plain: bool) -> VerbsContext {
    VerbsContext {
        query_port: query_port_extended as *const c_void,
        between: [NOTHING; 25],
        private: std::ptr::null_mut(),
        query_device_ex: NOTHING,
        old: [NOTHING; 10],
        placeholder: 0,
        size: size_of::<VerbsContext>(),
        context: Context {
            device,
            ops: ContextOps {
                compat_first: [NOTHING; 7],
                alloc_mw: NOTHING,
                bind_mw: NOTHING,
                dealloc_mw: NOTHING,
                compat_create_cq: NOTHING,
                poll_cq: completion::poll_cq as *const c_void,
                req_notify_cq: completion::req_notify_cq as *const c_void,
                compat_queues: [NOTHING; 7],
                post_srq_recv: NOTHING,
                compat_qp: [NOTHING; 4],
                post_send: queue_pair::post_send as *const c_void,
                post_recv: queue_pair::post_recv as *const c_void,
                compat_last: [NOTHING; 5],
            },
            cmd_fd: -1,
            async_fd,
            num_comp_vectors: 1,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            // All ones tell the header's inline functions of the extended context around this one.
            abi_compat: if plain { pointer(0) } else { pointer(usize::MAX) },
        },
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    let result = place(device).and_then(|number| {
        call(
            "ibv_open_device",
            |_| Some(number),
            |fabric| {
                if fabric.health(number) == Health::Gone {
                    return Err(Errno::IO);
                }
                let flags =
                    rustix::event::EventfdFlags::SEMAPHORE | rustix::event::EventfdFlags::CLOEXEC;
                let fd = rustix::event::eventfd(0, flags)
                    .map_err(|errno| Errno(errno.raw_os_error()))?;
                let plain = fabric.config.plain;
                let around = give(structure(device, fd.as_raw_fd(), plain));
                let context = around + std::mem::offset_of!(VerbsContext, context);
                let made = fabric::Context {
                    device: number,
                    events: std::collections::VecDeque::new(),
                    fd: Arc::new(fd),
                    unacked: 0,
                };
                fabric.contexts.insert(context, made);
                fabric.happenings(number, None);
                Ok(context)
            },
        )
    });
    object(result)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    let of = address(context);
    let result = call(
        "ibv_close_device",
        |fabric| fabric.device_of(of),
        |fabric| {
            let Some(ended) = fabric.contexts.remove(&of) else {
                fabric.counts.misuse("ibv_close_device of what is no context".to_owned());
                return Err(Errno::INVALID);
            };
            let left = fabric.pds.values().filter(|pd| pd.context == of).count()
                + fabric.regions.values().filter(|region| region.context == of).count()
                + fabric.channels.values().filter(|channel| channel.context == of).count()
                + fabric.cqs.values().filter(|cq| cq.context == of).count()
                + fabric.qps.values().filter(|qp| qp.context == of).count();
            fabric.counts.closed_with += left as u64;
            if ended.unacked > 0 {
                fabric.counts.misuse("a context ended with events not acknowledged".to_owned());
            }
            Ok(())
        },
    );
    if result.is_ok() {
        take_back::<VerbsContext>(of - std::mem::offset_of!(VerbsContext, context));
    }
    minus_one(result)
}

/// A context's device, counted as a call on it. What has gone answers with an I/O error.
pub(super) fn ask<T>(
    name: &'static str,
    context: *const Context,
    action: impl FnOnce(&mut Fabric, usize) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let of = address(context);
    call(
        name,
        |fabric| fabric.device_of(of),
        |fabric| {
            let Some(device) = fabric.device_of(of) else {
                fabric.counts.misuse(format!("{name} with what is no context"));
                return Err(Errno::INVALID);
            };
            if fabric.health(device) == Health::Gone {
                Err(Errno::IO)
            } else {
                action(fabric, device)
            }
        },
    )
}

fn int(value: impl TryInto<c_int>) -> c_int {
    value.try_into().unwrap_or(c_int::MAX)
}

fn device_attr(fabric: &Fabric, device: usize) -> Option<DeviceAttr> {
    let (config, device) = (&fabric.config, fabric.devices.get(device)?);
    Some(DeviceAttr {
        fw_ver: text("28.40.1000"),
        node_guid: device.guid.to_be(),
        sys_image_guid: device.guid.to_be(),
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_ffff_ffff_f000,
        // A vendor that IEEE calls locally administered.
        vendor_id: 0x0250c2,
        vendor_part_id: 4129,
        hw_ver: 0,
        max_qp: int(config.max_qp),
        max_qp_wr: int(config.max_qp_wr),
        // RNR NAK generation, port active events, system image GUID.
        device_cap_flags: 1 << 12 | 1 << 10 | 1 << 11,
        max_sge: int(config.max_sge),
        max_sge_rd: int(config.max_sge),
        max_cq: int(config.max_cq),
        max_cqe: int(config.max_cqe),
        max_mr: int(config.max_mr),
        max_pd: int(config.max_pd),
        max_qp_rd_atom: config.max_rd_atomic.into(),
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(config.max_qp * usize::from(config.max_rd_atomic)),
        max_qp_init_rd_atom: config.max_rd_atomic.into(),
        max_ee_init_rd_atom: 0,
        atomic_cap: 0,
        max_ee: 0,
        max_rdd: 0,
        max_mw: 0,
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: 0,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: 0,
        max_srq_wr: 0,
        max_srq_sge: 0,
        max_pkeys: 1,
        local_ca_ack_delay: 16,
        phys_port_cnt: config.ports,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int {
    number(ask("ibv_query_device", context, |fabric, device| {
        write(attr, device_attr(fabric, device).ok_or(Errno::INVALID)?)
    }))
}

fn port_attr(fabric: &Fabric, device: usize, number: u8) -> Option<PortAttr> {
    let (config, device) = (&fabric.config, fabric.devices.get(device)?);
    let told = device.port(number.into())?;
    let infiniband = device.link_layer == LinkLayer::InfiniBand;
    Some(PortAttr {
        state: if told.active { port::ACTIVE } else { port::DOWN },
        max_mtu: 5,
        active_mtu: config.mtu.into(),
        gid_tbl_len: int(GID_TABLE.max(told.gids.len())),
        port_cap_flags: 0,
        max_msg_sz: u32::try_from(crate::wire::MAX_MESSAGE).unwrap_or(u32::MAX),
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: told.lid,
        sm_lid: u16::from(infiniband),
        lmc: 0,
        max_vl_num: 4,
        sm_sl: 0,
        subnet_timeout: 18,
        init_type_reply: 0,
        active_width: config.width,
        active_speed: config.speed,
        phys_state: if told.active { port::PHYSICAL_LINK_UP } else { port::PHYSICAL_POLLING },
        link_layer: if infiniband {
            port::LINK_LAYER_INFINIBAND
        } else {
            port::LINK_LAYER_ETHERNET
        },
        // IBV_QPF_GRH_REQUIRED is for what needs a global route beyond what the link layer says.
        flags: 0,
        port_cap_flags2: 0,
    })
}

fn query_port(
    context: *mut Context,
    port: u8,
    attr: *mut PortAttr,
    room: usize,
) -> Result<(), Errno> {
    ask("ibv_query_port", context, |fabric, device| {
        let told = port_attr(fabric, device, port).ok_or(Errno::INVALID)?;
        write_start(attr, &told, room)
    })
}

/// The symbol is of a structure without the last field, which the header's inline function falls back on.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_port(context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int {
    number(query_port(context, port, attr, std::mem::offset_of!(PortAttr, port_cap_flags2)))
}

extern "C" fn query_port_extended(
    context: *mut Context,
    port: u8,
    attr: *mut PortAttr,
    room: usize,
) -> c_int {
    number(query_port(context, port, attr, room))
}

/// An entry of a port's table; `Ok(None)` where it is empty.
fn gid(fabric: &Fabric, device: usize, port: u32, index: usize) -> Result<Option<Gid>, Errno> {
    let port = fabric.devices.get(device).and_then(|device| device.port(port));
    let port = port.ok_or(Errno::INVALID)?;
    if index >= GID_TABLE.max(port.gids.len()) {
        return Err(Errno::INVALID);
    }
    Ok(port.gids.get(index).copied().flatten())
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_gid(
    context: *mut Context,
    port: u8,
    index: c_int,
    into: *mut [u8; 16],
) -> c_int {
    minus_one(ask("ibv_query_gid", context, |fabric, device| {
        let index = usize::try_from(index).map_err(|_| Errno::INVALID)?;
        // An empty entry reads as zeros.
        let gid = gid(fabric, device, port.into(), index)?;
        write(into, gid.map_or([0; 16], |gid| gid.bytes))
    }))
}

fn entry(gid: Gid, port: u32, index: usize, ethernet: bool) -> GidEntry {
    let (first, last) = gid.bytes.split_at(8);
    let half = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    GidEntry {
        gid: [half(first), half(last)],
        gid_index: u32::try_from(index).unwrap_or(u32::MAX),
        port_num: port,
        gid_type: gid.kind,
        // Number of a network device, as if there were one for each port.
        ndev_ifindex: if ethernet { port + 1 } else { 0 },
    }
}

fn is_ethernet(fabric: &Fabric, device: usize) -> bool {
    fabric.devices.get(device).is_some_and(|device| device.link_layer == LinkLayer::Ethernet)
}

#[unsafe(no_mangle)]
pub extern "C" fn _ibv_query_gid_ex(
    context: *mut Context,
    port: u32,
    index: u32,
    into: *mut GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    number(ask("ibv_query_gid_ex", context, |fabric, device| {
        if flags != 0 {
            return Err(Errno::INVALID);
        }
        let index = usize::try_from(index).map_err(|_| Errno::INVALID)?;
        let gid = gid(fabric, device, port, index)?.ok_or(Errno::NO_DATA)?;
        write_start(into, &entry(gid, port, index, is_ethernet(fabric, device)), size)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn _ibv_query_gid_table(
    context: *mut Context,
    into: *mut GidEntry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    let result = ask("ibv_query_gid_table", context, |fabric, device| {
        if flags != 0 || size != size_of::<GidEntry>() {
            return Err(Errno::INVALID);
        }
        let ethernet = is_ethernet(fabric, device);
        let ports = fabric.devices.get(device).map(|device| &device.ports[..]).unwrap_or_default();
        let mut count = 0;
        for (number, port) in (1_u32..).zip(ports) {
            for (index, gid) in port.gids.iter().enumerate() {
                let Some(gid) = gid else { continue };
                if count == room {
                    return Err(Errno::INVALID);
                }
                write(into.wrapping_add(count), entry(*gid, number, index, ethernet))?;
                count += 1;
            }
        }
        isize::try_from(count).map_err(|_| Errno::INVALID)
    });
    result.unwrap_or_else(|errno| isize::try_from(-errno.0).unwrap_or(-1))
}

/// The default partition, with full membership, in network order.
const DEFAULT_PKEY: u16 = 0xffff;

#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_pkey(
    context: *mut Context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    minus_one(ask("ibv_query_pkey", context, |fabric, device| {
        let known = fabric.devices.get(device).and_then(|device| device.port(port.into()));
        if known.is_none() || index != 0 {
            return Err(Errno::INVALID);
        }
        write(pkey, DEFAULT_PKEY.to_be())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_pkey_index(context: *mut Context, port: u8, pkey: u16) -> c_int {
    let mut found = 0_u16;
    match ibv_query_pkey(context, port, 0, &raw mut found) {
        0 if read(&raw const found) == Ok(pkey) => 0,
        0 => {
            set_errno(Errno::INVALID);
            -1
        }
        failed => failed,
    }
}
