//! libibverbs, loaded at run time, and what of its structures is read or written here.
//!
//! Everything is from rdma-core's public header `infiniband/verbs.h`. What that header has as inline functions goes through the
//! table of functions in a context (`struct ibv_context_ops`), here as there. [`layout`] lists every size, offset and number this
//! relies on; a test has a C compiler compare them with the header where there is one.
//!
//! Each wrapper owns one object and keeps alive what it was made from, so objects are destroyed in the order the library wants.
#![expect(unsafe_code, reason = "the other side of every function here is C")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::memory::{Aligned, Slot};

pub(super) mod layout;

/// Everything of a kind that this process has made and not destroyed.
static QUEUE_PAIRS: AtomicU64 = AtomicU64::new(0);
static REGIONS: AtomicU64 = AtomicU64::new(0);
static COMPLETION_QUEUES: AtomicU64 = AtomicU64::new(0);

/// Queue pairs, memory regions and completion queues of this process.
pub(super) fn counts() -> (u64, u64, u64) {
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    (count(&QUEUE_PAIRS), count(&REGIONS), count(&COMPLETION_QUEUES))
}

// Structures of the library that are handed around by address alone.
#[repr(C)]
struct RawDevice(c_void);
#[repr(C)]
struct RawDomain(c_void);
#[repr(C)]
struct RawQueue(c_void);

/// `struct ibv_context_ops`, as far as it is called.
#[repr(C)]
#[derive(Clone, Copy)]
struct ContextOps {
    before_poll: [usize; 11],
    poll_cq: Option<unsafe extern "C" fn(*mut RawQueue, c_int, *mut Completion) -> c_int>,
    req_notify_cq: Option<unsafe extern "C" fn(*mut RawQueue, c_int) -> c_int>,
    before_post: [usize; 12],
    post_send:
        Option<unsafe extern "C" fn(*mut RawPair, *mut SendWork, *mut *mut SendWork) -> c_int>,
    post_recv: Option<
        unsafe extern "C" fn(*mut RawPair, *mut ReceiveWork, *mut *mut ReceiveWork) -> c_int,
    >,
    rest: [usize; 5],
}

/// The beginning of `struct ibv_context`.
#[repr(C)]
struct RawContext {
    device: *mut RawDevice,
    ops: ContextOps,
    cmd_fd: c_int,
    async_fd: c_int,
}

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Default)]
struct RawEvent {
    /// A union: an object's address, or the number of a port.
    element: u64,
    event_type: c_int,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortAttributes {
    pub(super) state: c_int,
    pub(super) max_mtu: c_int,
    pub(super) active_mtu: c_int,
    pub(super) gid_tbl_len: c_int,
    port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    bad_pkey_cntr: u32,
    qkey_viol_cntr: u32,
    pkey_tbl_len: u16,
    pub(super) lid: u16,
    sm_lid: u16,
    lmc: u8,
    max_vl_num: u8,
    sm_sl: u8,
    subnet_timeout: u8,
    init_type_reply: u8,
    active_width: u8,
    active_speed: u8,
    phys_state: u8,
    pub(super) link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Completion {
    pub(super) wr_id: u64,
    pub(super) status: c_int,
    opcode: c_int,
    pub(super) vendor_err: u32,
    byte_len: u32,
    /// In network byte order.
    imm_data: u32,
    pub(super) qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

impl Completion {
    /// What came with the message.
    pub(super) const fn immediate(&self) -> u32 {
        u32::from_be(self.imm_data)
    }

    /// Bytes that came into the memory of a receive; `None` where they were written elsewhere, or none came.
    pub(super) fn received(&self) -> Option<usize> {
        (self.opcode == WC_RECV).then(|| usize::try_from(self.byte_len).unwrap_or(usize::MAX))
    }
}

/// The beginning of `struct ibv_mr`.
#[repr(C)]
struct RawRegion {
    context: *mut RawContext,
    pd: *mut RawDomain,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    lkey: u32,
    rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
struct RawChannel {
    context: *mut RawContext,
    fd: c_int,
    refcnt: c_int,
}

/// The beginning of `struct ibv_qp`.
#[repr(C)]
struct RawPair {
    context: *mut RawContext,
    qp_context: *mut c_void,
    pd: *mut RawDomain,
    send_cq: *mut RawQueue,
    recv_cq: *mut RawQueue,
    srq: *mut c_void,
    handle: u32,
    qp_num: u32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct PairLimits {
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
struct PairSetup {
    qp_context: *mut c_void,
    send_cq: *mut RawQueue,
    recv_cq: *mut RawQueue,
    srq: *mut c_void,
    cap: PairLimits,
    qp_type: c_int,
    sq_sig_all: c_int,
}

/// `struct ibv_global_route`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
struct GlobalRoute {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Address {
    grh: GlobalRoute,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct PairAttributes {
    qp_state: c_int,
    cur_qp_state: c_int,
    path_mtu: c_int,
    path_mig_state: c_int,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: c_uint,
    cap: PairLimits,
    ah_attr: Address,
    alt_ah_attr: Address,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    addr: u64,
    length: u32,
    lkey: u32,
}

/// `struct ibv_send_wr`, its unions as far as a write to remote memory uses them.
#[repr(C)]
struct SendWork {
    wr_id: u64,
    next: *mut Self,
    sg_list: *mut Piece,
    num_sge: c_int,
    opcode: c_int,
    send_flags: c_uint,
    /// In network byte order.
    imm_data: u32,
    remote_addr: u64,
    rkey: u32,
    rest: [u64; 9],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
struct ReceiveWork {
    wr_id: u64,
    next: *mut Self,
    sg_list: *mut Piece,
    num_sge: c_int,
}

const WR_RDMA_WRITE: c_int = 0;
const WR_RDMA_WRITE_WITH_IMM: c_int = 1;
const WR_SEND_WITH_IMM: c_int = 3;
const SEND_SIGNALED: c_uint = 1 << 1;
const SEND_INLINE: c_uint = 1 << 3;
const QPT_RC: c_int = 2;
const QPS_INIT: c_int = 1;
const QPS_RTR: c_int = 2;
const QPS_RTS: c_int = 3;
const QPS_ERR: c_int = 6;
const QP_STATE: c_int = 1 << 0;
const QP_ACCESS_FLAGS: c_int = 1 << 3;
const QP_PKEY_INDEX: c_int = 1 << 4;
const QP_PORT: c_int = 1 << 5;
const QP_AV: c_int = 1 << 7;
const QP_PATH_MTU: c_int = 1 << 8;
const QP_TIMEOUT: c_int = 1 << 9;
const QP_RETRY_CNT: c_int = 1 << 10;
const QP_RNR_RETRY: c_int = 1 << 11;
const QP_RQ_PSN: c_int = 1 << 12;
const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
const QP_MIN_RNR_TIMER: c_int = 1 << 15;
const QP_SQ_PSN: c_int = 1 << 16;
const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
const QP_DEST_QPN: c_int = 1 << 20;
const ACCESS_LOCAL_WRITE: c_int = 1;
const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
// Which member of the union in `struct ibv_async_event` an event has: by ibv_get_async_event(3).
pub(super) const CQ_ERR: c_int = 0;
const QP_FIRST: c_int = 1;
const QP_LAST: c_int = 7;
const PORT_FIRST: c_int = 9;
const PORT_LAST: c_int = 13;
const QP_LAST_WQE_REACHED: c_int = 16;
const CLIENT_REREGISTER: c_int = 17;
pub(super) const GID_CHANGE: c_int = 18;
/// `IBV_PORT_ACTIVE`.
pub(super) const PORT_ACTIVE: c_int = 4;
/// `IBV_LINK_LAYER_INFINIBAND`, and 0 for devices from before there was another.
pub(super) const LINK_LAYER_INFINIBAND: u8 = 1;
/// `IBV_WC_RECV`.
const WC_RECV: c_int = 1 << 7;
/// `IBV_WC_WR_FLUSH_ERR`.
pub(super) const WC_WR_FLUSH_ERR: c_int = 5;
/// `IBV_WC_RETRY_EXC_ERR`.
pub(super) const WC_RETRY_EXC_ERR: c_int = 12;

/// Domain, start in the DMA-BUF, bytes, address by which work names it, descriptor, access.
type RegisterDmaBuf =
    unsafe extern "C" fn(*mut RawDomain, u64, usize, u64, c_int, c_int) -> *mut RawRegion;

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions the library has as symbols.
        struct Calls {
            $($(#[$doc])* $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// `ibv_reg_dmabuf_mr`, which libraries from before rdma-core 34 do not have.
            reg_dmabuf_mr: Option<RegisterDmaBuf>,
            /// Keeps the code mapped; the functions above are of no use without.
            _library: libloading::Library,
        }

        impl Calls {
            fn find(library: libloading::Library) -> Result<Self, libloading::Error> {
                $(
                    // SAFETY: A function of this name in libibverbs has this signature, as its header says.
                    let $name = *unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> $result>($symbol)
                    }?;
                )*
                // SAFETY: As above.
                let reg_dmabuf_mr = unsafe { library.get::<RegisterDmaBuf>(b"ibv_reg_dmabuf_mr\0") };
                let reg_dmabuf_mr = reg_dmabuf_mr.ok().map(|found| *found);
                Ok(Self { $($name,)* reg_dmabuf_mr, _library: library })
            }
        }
    };
}

calls! {
    get_device_list = b"ibv_get_device_list\0": fn(*mut c_int) -> *mut *mut RawDevice;
    free_device_list = b"ibv_free_device_list\0": fn(*mut *mut RawDevice) -> ();
    get_device_name = b"ibv_get_device_name\0": fn(*mut RawDevice) -> *const c_char;
    open_device = b"ibv_open_device\0": fn(*mut RawDevice) -> *mut RawContext;
    close_device = b"ibv_close_device\0": fn(*mut RawContext) -> c_int;
    get_async_event = b"ibv_get_async_event\0": fn(*mut RawContext, *mut RawEvent) -> c_int;
    ack_async_event = b"ibv_ack_async_event\0": fn(*mut RawEvent) -> ();
    query_port = b"ibv_query_port\0": fn(*mut RawContext, u8, *mut PortAttributes) -> c_int;
    alloc_pd = b"ibv_alloc_pd\0": fn(*mut RawContext) -> *mut RawDomain;
    dealloc_pd = b"ibv_dealloc_pd\0": fn(*mut RawDomain) -> c_int;
    reg_mr = b"ibv_reg_mr\0": fn(*mut RawDomain, *mut c_void, usize, c_int) -> *mut RawRegion;
    dereg_mr = b"ibv_dereg_mr\0": fn(*mut RawRegion) -> c_int;
    create_comp_channel = b"ibv_create_comp_channel\0": fn(*mut RawContext) -> *mut RawChannel;
    destroy_comp_channel = b"ibv_destroy_comp_channel\0": fn(*mut RawChannel) -> c_int;
    create_cq = b"ibv_create_cq\0":
        fn(*mut RawContext, c_int, *mut c_void, *mut RawChannel, c_int) -> *mut RawQueue;
    destroy_cq = b"ibv_destroy_cq\0": fn(*mut RawQueue) -> c_int;
    get_cq_event = b"ibv_get_cq_event\0":
        fn(*mut RawChannel, *mut *mut RawQueue, *mut *mut c_void) -> c_int;
    ack_cq_events = b"ibv_ack_cq_events\0": fn(*mut RawQueue, c_uint) -> ();
    create_qp = b"ibv_create_qp\0": fn(*mut RawDomain, *mut PairSetup) -> *mut RawPair;
    modify_qp = b"ibv_modify_qp\0": fn(*mut RawPair, *mut PairAttributes, c_int) -> c_int;
    destroy_qp = b"ibv_destroy_qp\0": fn(*mut RawPair) -> c_int;
}

/// The name under which distributions install it.
const LIBRARY: &str = "libibverbs.so.1";

/// The library, loaded once; else why it cannot be.
fn calls() -> io::Result<&'static Calls> {
    static LOADED: OnceLock<Result<Calls, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        // SAFETY: Its initialisers register drivers and nothing else.
        let library = unsafe { libloading::Library::new(LIBRARY) };
        library.and_then(Calls::find).map_err(|error| error.to_string())
    });
    loaded.as_ref().map_err(|why| {
        let what = format!(
            "{why} (it is in the package libibverbs1 or rdma-core, with drivers in ibverbs-providers)"
        );
        io::Error::new(io::ErrorKind::NotFound, what)
    })
}

/// What functions say that return an error number.
fn result(returned: c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        // A few of them give -1 and set errno in some versions.
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.abs())),
    }
}

/// What functions say that return an object or nothing.
fn made<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

/// Adds what was said to what was tried.
fn tried<T>(what: &str, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}")))
}

/// What the library's words for a kernel without RDMA mean.
fn absent(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EOPNOTSUPP) => {
            let what = "the kernel has none here, or its module ib_uverbs is not loaded";
            io::Error::new(io::ErrorKind::NotFound, what)
        }
        _ => error,
    }
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Device,
    /// From 1.
    Port(u8),
    /// By its number.
    Pair(u32),
    /// By [`Queue::address`].
    Queue(usize),
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => write!(f, "as a whole"),
            Self::Port(port) => write!(f, "port {port}"),
            Self::Pair(number) => write!(f, "queue pair {number}"),
            Self::Queue(_) => write!(f, "completion queue"),
        }
    }
}

/// What a device says beside completions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    /// `enum ibv_event_type`.
    pub(super) kind: c_int,
    pub(super) object: Object,
}

/// A device that is open.
pub(super) struct Context {
    calls: &'static Calls,
    raw: NonNull<RawContext>,
    ops: ContextOps,
    events: c_int,
    pub(super) name: String,
}

// SAFETY: The library locks what its functions share; the handle is an address.
unsafe impl Send for Context {}
// SAFETY: As above.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Opens every device `wanted` by its name; those that cannot be opened are told as errors beside the others.
pub(super) fn open(mut wanted: impl FnMut(&str) -> bool) -> io::Result<Vec<io::Result<Context>>> {
    let calls = calls()?;
    let mut count = 0;
    // SAFETY: The count is written.
    let list = unsafe { (calls.get_device_list)(&raw mut count) };
    let list = tried("list RDMA devices", made(list).map_err(absent))?;
    let mut opened = Vec::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: The list has `count` entries.
        let entry = unsafe { list.add(at) };
        // SAFETY: As above; the library wrote it.
        let device = unsafe { entry.read() };
        // SAFETY: Devices of a list live until it is freed.
        let name = unsafe { (calls.get_device_name)(device) };
        if name.is_null() {
            continue;
        }
        // SAFETY: A string of the device's.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        if wanted(&name) {
            opened.push(Context::open(calls, device, name));
        }
    }
    // SAFETY: What was opened stays so.
    unsafe { (calls.free_device_list)(list.as_ptr()) };
    Ok(opened)
}

impl Context {
    fn open(calls: &'static Calls, device: *mut RawDevice, name: String) -> io::Result<Self> {
        // SAFETY: A device of a list that is not yet freed.
        let raw = unsafe { (calls.open_device)(device) };
        let raw = tried(&format!("open {name}"), made(raw))?;
        // SAFETY: A context begins as declared.
        let told = unsafe { raw.as_ref() };
        let (ops, events) = (told.ops, told.async_fd);
        let context = Self { calls, raw, ops, events, name };
        // Events are taken without waiting for one.
        let flags = rustix::fs::fcntl_getfl(context.events())?;
        rustix::fs::fcntl_setfl(context.events(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(context)
    }

    /// Becomes readable when there is an event.
    pub(super) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: The descriptor lives until the device is closed, that is as long as this.
        unsafe { BorrowedFd::borrow_raw(self.events) }
    }

    /// The next event, where there is one.
    pub(super) fn next_event(&self) -> io::Result<Option<Event>> {
        let mut raw = RawEvent::default();
        // SAFETY: The context is open, and the event is as declared.
        let returned = unsafe { (self.calls.get_async_event)(self.raw.as_ptr(), &raw mut raw) };
        if returned != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        let address = usize::try_from(raw.element).unwrap_or(0);
        let object = match raw.event_type {
            CQ_ERR => Object::Queue(address),
            QP_FIRST..=QP_LAST | QP_LAST_WQE_REACHED => {
                let pair = ptr::with_exposed_provenance::<RawPair>(address);
                // SAFETY: Nobody is done destroying a queue pair before its events are acknowledged.
                Object::Pair(unsafe { pair.as_ref() }.map_or(0, |pair| pair.qp_num))
            }
            // The lower half of the union, as processors here have their bytes in that order or the field is read whole.
            PORT_FIRST..=PORT_LAST | CLIENT_REREGISTER | GID_CHANGE => {
                let port = c_int::from_ne_bytes(
                    *raw.element.to_ne_bytes().first_chunk().expect("four of eight"),
                );
                Object::Port(u8::try_from(port).unwrap_or(0))
            }
            _ => Object::Device,
        };
        // SAFETY: It was got a moment ago, and is acknowledged once.
        unsafe { (self.calls.ack_async_event)(&raw mut raw) };
        Ok(Some(Event { kind: raw.event_type, object }))
    }

    /// State of a port, from 1.
    pub(super) fn port(&self, port: u8) -> io::Result<PortAttributes> {
        let mut attributes = PortAttributes::default();
        // SAFETY: The attributes are as long as the library's, or longer.
        let returned =
            unsafe { (self.calls.query_port)(self.raw.as_ptr(), port, &raw mut attributes) };
        result(returned)?;
        Ok(attributes)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: Nothing made from it is left: whatever is holds it.
        let returned = unsafe { (self.calls.close_device)(self.raw.as_ptr()) };
        report("close a device", returned);
    }
}

/// What could not be destroyed is told: it is a leak.
fn report(what: &str, returned: c_int) {
    if let Err(error) = result(returned) {
        tracing::warn!(target: "topod::net", %error, "cannot {what}");
    }
}

/// Counts an object off where it was destroyed.
fn destroyed(what: &str, returned: c_int, of: &AtomicU64) {
    if returned == 0 {
        of.fetch_sub(1, Ordering::Relaxed);
    }
    report(what, returned);
}

/// A protection domain: regions and queue pairs work together within one.
#[derive(Debug)]
pub(super) struct Domain {
    raw: NonNull<RawDomain>,
    context: Arc<Context>,
}

// SAFETY: As for `Context`.
unsafe impl Send for Domain {}
// SAFETY: As for `Context`.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: The context is open.
        let raw = unsafe { (context.calls.alloc_pd)(context.raw.as_ptr()) };
        let raw = tried("make a protection domain", made(raw))?;
        Ok(Self { raw, context: Arc::clone(context) })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: Nothing made from it is left: whatever is holds it.
        let returned = unsafe { (self.context.calls.dealloc_pd)(self.raw.as_ptr()) };
        report("free a protection domain", returned);
    }
}

/// Memory that a NIC may use, until this is dropped.
#[derive(Debug)]
pub(super) struct Registration {
    raw: NonNull<RawRegion>,
    domain: Arc<Domain>,
    /// What this end names it by, and a peer where it may.
    lkey: u32,
    rkey: u32,
    ended: bool,
}

// SAFETY: As for `Context`.
unsafe impl Send for Registration {}

impl Registration {
    /// Has the NIC read `memory`, and do what `access` says beside.
    fn of(domain: &Arc<Domain>, memory: Slot, access: c_int) -> io::Result<Self> {
        let (address, length) = (memory.address().as_ptr(), memory.bytes());
        let calls = domain.context.calls;
        // SAFETY: Registering reads and writes nothing; what a NIC does there is up to the work it is given, by whoever has both.
        let raw = unsafe { (calls.reg_mr)(domain.raw.as_ptr(), address.cast(), length, access) };
        Self::made(domain, length, raw)
    }

    fn made(domain: &Arc<Domain>, length: usize, raw: *mut RawRegion) -> io::Result<Self> {
        let raw = made(raw).map_err(|error| {
            let hint = if error.raw_os_error() == Some(libc::ENOMEM) {
                "; memory that NICs use is locked, and `ulimit -l` says how much may be"
            } else {
                ""
            };
            let what =
                format!("register {length} bytes with {}: {error}{hint}", domain.context.name);
            io::Error::new(error.kind(), what)
        })?;
        // SAFETY: A region's beginning is as declared.
        let told = unsafe { raw.as_ref() };
        let (lkey, rkey) = (told.lkey, told.rkey);
        REGIONS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { raw, domain: Arc::clone(domain), lkey, rkey, ended: false })
    }

    /// Has the NIC read a caller's memory and, where it is to be `written`, peers write it who are told its key.
    pub(super) fn of_memory(domain: &Arc<Domain>, memory: Slot, written: bool) -> io::Result<Self> {
        Self::of(domain, memory, access(written))
    }

    /// As [`Registration::of_memory`] with memory of a device, all of which the descriptor holds.
    pub(super) fn of_dma_buf(
        domain: &Arc<Domain>,
        memory: Slot,
        fd: &OwnedFd,
        written: bool,
    ) -> io::Result<Self> {
        let Some(register) = domain.context.calls.reg_dmabuf_mr else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this libibverbs has no ibv_reg_dmabuf_mr",
            ));
        };
        let (address, length) = (memory.address().as_ptr().expose_provenance(), memory.bytes());
        let (domain_of, fd, access) = (domain.raw.as_ptr(), fd.as_raw_fd(), access(written));
        // SAFETY: Domain and descriptor are alive for the call; the memory is the descriptor's own.
        let raw = unsafe { register(domain_of, 0, length, address as u64, fd, access) };
        Self::made(domain, length, raw)
    }

    pub(super) fn is_with(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    pub(super) const fn key(&self) -> u32 {
        self.lkey
    }

    /// What a peer names it by.
    pub(super) const fn remote_key(&self) -> u32 {
        self.rkey
    }

    /// Deregisters it; whether the NIC has let it go.
    pub(super) fn end(&mut self) -> bool {
        if std::mem::replace(&mut self.ended, true) {
            return true;
        }
        // SAFETY: Made by the library, and ended once.
        let returned = unsafe { (self.domain.context.calls.dereg_mr)(self.raw.as_ptr()) };
        destroyed("deregister memory", returned, &REGIONS);
        returned == 0
    }
}

/// What may be done with registered memory beside reading it.
const fn access(written: bool) -> c_int {
    if written { ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE } else { 0 }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end();
    }
}

/// Memory of this process that the NIC reads and, where `remote`, peers write.
#[derive(Debug)]
pub(super) struct Region {
    registration: Registration,
    memory: Aligned,
    /// What a peer needs to write it.
    pub(super) rkey: u32,
}

impl Region {
    pub(super) fn new(domain: &Arc<Domain>, mut memory: Aligned, remote: bool) -> io::Result<Self> {
        let access = ACCESS_LOCAL_WRITE | if remote { ACCESS_REMOTE_WRITE } else { 0 };
        let whole = memory.bytes().len();
        let registration = Registration::of(domain, memory.slot(0, whole), access)?;
        let rkey = registration.rkey;
        Ok(Self { registration, memory, rkey })
    }

    /// Where it begins, as a peer names it.
    pub(super) fn address(&self) -> u64 {
        self.memory.bytes().as_ptr().addr() as u64
    }

    /// So many bytes from `start` on, as work names them.
    fn piece(&self, start: usize, bytes: usize) -> Piece {
        let all = self.bytes().len();
        let fits = all.checked_sub(start).is_some_and(|left| left >= bytes);
        assert!(fits, "{bytes} bytes from {start} of a region of {all}");
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        Piece { addr: self.address() + start as u64, length, lkey: self.registration.lkey }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    pub(super) fn slot(&mut self, start: usize, bytes: usize) -> Slot {
        self.memory.slot(start, bytes)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Queue pairs are dropped before regions, so nothing uses it.
        if !self.registration.end() {
            // The NIC may still write it.
            std::mem::forget(std::mem::replace(&mut self.memory, Aligned::new(0)));
        }
    }
}

/// A completion queue with a descriptor that becomes readable.
#[derive(Debug)]
pub(super) struct Queue {
    raw: NonNull<RawQueue>,
    channel: NonNull<RawChannel>,
    fd: c_int,
    context: Arc<Context>,
}

// SAFETY: As for `Context`.
unsafe impl Send for Queue {}
// SAFETY: As for `Context`.
unsafe impl Sync for Queue {}

impl Queue {
    /// For at least `entries` completions.
    pub(super) fn new(context: &Arc<Context>, entries: u32) -> io::Result<Self> {
        let calls = context.calls;
        // SAFETY: The context is open.
        let channel = unsafe { (calls.create_comp_channel)(context.raw.as_ptr()) };
        let channel = tried("make a completion channel", made(channel))?;
        // SAFETY: A channel is as declared.
        let fd = unsafe { channel.as_ref() }.fd;
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: Context and channel are alive; there is no private pointer.
        let raw = unsafe {
            let (raw, channel) = (context.raw.as_ptr(), channel.as_ptr());
            (calls.create_cq)(raw, entries, ptr::null_mut(), channel, 0)
        };
        let raw = match tried("make a completion queue", made(raw)) {
            Ok(raw) => raw,
            Err(error) => {
                // SAFETY: Nothing uses the channel.
                let returned = unsafe { (calls.destroy_comp_channel)(channel.as_ptr()) };
                report("destroy a completion channel", returned);
                return Err(error);
            }
        };
        COMPLETION_QUEUES.fetch_add(1, Ordering::Relaxed);
        let queue = Self { raw, channel, fd, context: Arc::clone(context) };
        // Events are taken without waiting for one.
        let flags = rustix::fs::fcntl_getfl(queue.descriptor())?;
        rustix::fs::fcntl_setfl(queue.descriptor(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(queue)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: The descriptor lives as long as the channel, that is as long as this.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// What events name it by.
    pub(super) fn address(&self) -> usize {
        self.raw.as_ptr().expose_provenance()
    }

    /// Takes what is there; how many. Fewer than there is room for: the queue was empty then.
    pub(super) fn poll(&self, into: &mut [Completion]) -> io::Result<usize> {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        let Some(poll) = self.context.ops.poll_cq else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        // SAFETY: There is room for so many.
        let found = unsafe { poll(self.raw.as_ptr(), room, into.as_mut_ptr()) };
        usize::try_from(found)
            .map_err(|_| io::Error::other("the completion queue cannot be polled"))
    }

    /// Takes the events that made the descriptor readable, and asks for one at the next completion. What came before that shows
    /// by polling alone.
    pub(super) fn arm(&self) -> io::Result<()> {
        loop {
            let (mut queue, mut private) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: The channel lives, and both results are written where one is there.
            let returned = unsafe {
                (self.context.calls.get_cq_event)(
                    self.channel.as_ptr(),
                    &raw mut queue,
                    &raw mut private,
                )
            };
            if returned != 0 {
                break;
            }
            // SAFETY: It is this queue's, the only one of the channel.
            unsafe { (self.context.calls.ack_cq_events)(queue, 1) };
        }
        let Some(notify) = self.context.ops.req_notify_cq else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        // SAFETY: The queue lives.
        result(unsafe { notify(self.raw.as_ptr(), 0) })
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: No queue pair uses it: each holds it.
        let returned = unsafe { (self.context.calls.destroy_cq)(self.raw.as_ptr()) };
        destroyed("destroy a completion queue", returned, &COMPLETION_QUEUES);
        // SAFETY: No queue uses it any more.
        let returned = unsafe { (self.context.calls.destroy_comp_channel)(self.channel.as_ptr()) };
        report("destroy a completion channel", returned);
    }
}

/// How to reach a queue pair, and how to behave towards it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) port: u8,
    /// `None` within an InfiniBand subnet.
    pub(super) global: Option<Global>,
    pub(super) lid: u16,
    /// `enum ibv_mtu`.
    pub(super) mtu: c_int,
    pub(super) service_level: u8,
    pub(super) peer_pair: u32,
    /// Number of the first packet this side sends, and of the first it awaits.
    pub(super) own_packet: u32,
    pub(super) peer_packet: u32,
    /// 4.096 us times two to this power.
    pub(super) timeout: u8,
    pub(super) retries: u8,
}

/// A route by GIDs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Global {
    pub(super) gid: [u8; 16],
    pub(super) own_index: u8,
    pub(super) traffic_class: u8,
}

/// A caller's memory, and its key with the NIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lent {
    pub(super) data: Slot,
    pub(super) key: u32,
}

/// What is written to a peer's memory, or sent to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    /// Comes back with the completion.
    pub(super) id: u64,
    pub(super) signalled: bool,
    /// Taken from memory before this returns.
    pub(super) inline: bool,
    /// Goes along, and ends one receive of the peer's.
    pub(super) immediate: Option<u32>,
    /// Where from: start in the region, and bytes. None: nothing is written.
    pub(super) from: Option<(usize, u32)>,
    /// What is written behind that, from a caller's memory.
    pub(super) lent: Option<Lent>,
    pub(super) to: To,
}

/// Where a write goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum To {
    /// To memory of the peer, by its address and key.
    Memory { address: u64, key: u32 },
    /// To the memory of the peer's next receive.
    Receive,
}

/// A reliable connection's end.
#[derive(Debug)]
pub(super) struct Pair {
    raw: NonNull<RawPair>,
    /// Outlives it.
    _queue: Arc<Queue>,
    domain: Arc<Domain>,
    pub(super) number: u32,
    /// Longest message that may be sent inline, in bytes.
    pub(super) most_inline: usize,
}

// SAFETY: As for `Context`.
unsafe impl Send for Pair {}

impl Pair {
    /// With room for so many writes and receives; of inline data as much as there is, up to `inline` bytes.
    pub(super) fn new(
        domain: &Arc<Domain>,
        queue: &Arc<Queue>,
        sends: u32,
        receives: u32,
        inline: u32,
    ) -> io::Result<Self> {
        let create = |inline| {
            let mut setup = PairSetup {
                qp_context: ptr::null_mut(),
                send_cq: queue.raw.as_ptr(),
                recv_cq: queue.raw.as_ptr(),
                srq: ptr::null_mut(),
                cap: PairLimits {
                    max_send_wr: sends,
                    max_recv_wr: receives,
                    // A header, and a caller's memory.
                    max_send_sge: 2,
                    max_recv_sge: 1,
                    max_inline_data: inline,
                },
                qp_type: QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: Domain and queue live; the setup is as declared, and limits are written back.
            let raw =
                unsafe { (domain.context.calls.create_qp)(domain.raw.as_ptr(), &raw mut setup) };
            made(raw).map(|raw| (raw, setup.cap.max_inline_data))
        };
        // Devices differ in what they can send inline, and refuse more.
        let (raw, inline) = tried("make a queue pair", create(inline).or_else(|_| create(0)))?;
        // SAFETY: A queue pair's beginning is as declared.
        let number = unsafe { raw.as_ref() }.qp_num;
        // Events name it by its address.
        let _ = raw.as_ptr().expose_provenance();
        QUEUE_PAIRS.fetch_add(1, Ordering::Relaxed);
        let (_queue, domain) = (Arc::clone(queue), Arc::clone(domain));
        Ok(Self { raw, _queue, domain, number, most_inline: inline as usize })
    }

    fn modify(&self, attributes: &mut PairAttributes, mask: c_int) -> io::Result<()> {
        // SAFETY: The queue pair lives, and the attributes are as declared.
        result(unsafe {
            (self.domain.context.calls.modify_qp)(self.raw.as_ptr(), attributes, mask)
        })
    }

    /// From now on receives can be posted.
    pub(super) fn initialise(&self, port: u8) -> io::Result<()> {
        let mut attributes = PairAttributes {
            qp_state: QPS_INIT,
            port_num: port,
            qp_access_flags: ACCESS_REMOTE_WRITE.unsigned_abs(),
            ..PairAttributes::default()
        };
        let mask = QP_STATE | QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS;
        tried("initialise a queue pair", self.modify(&mut attributes, mask))
    }

    /// From now on it receives and sends.
    pub(super) fn connect(&self, route: &Route) -> io::Result<()> {
        let global = route.global.map_or_else(GlobalRoute::default, |global| GlobalRoute {
            dgid: global.gid,
            flow_label: 0,
            sgid_index: global.own_index,
            hop_limit: 255,
            traffic_class: global.traffic_class,
        });
        let mut attributes = PairAttributes {
            qp_state: QPS_RTR,
            path_mtu: route.mtu,
            dest_qp_num: route.peer_pair,
            rq_psn: route.peer_packet,
            max_dest_rd_atomic: 1,
            // 0.64 ms; never needed, as there is a receive for every message.
            min_rnr_timer: 12,
            ah_attr: Address {
                grh: global,
                dlid: route.lid,
                sl: route.service_level,
                is_global: u8::from(route.global.is_some()),
                port_num: route.port,
                ..Address::default()
            },
            ..PairAttributes::default()
        };
        let mask = QP_STATE
            | QP_AV
            | QP_PATH_MTU
            | QP_DEST_QPN
            | QP_RQ_PSN
            | QP_MAX_DEST_RD_ATOMIC
            | QP_MIN_RNR_TIMER;
        tried("make a queue pair receive", self.modify(&mut attributes, mask))?;
        let mut attributes = PairAttributes {
            qp_state: QPS_RTS,
            timeout: route.timeout,
            retry_cnt: route.retries,
            rnr_retry: 7,
            sq_psn: route.own_packet,
            max_rd_atomic: 1,
            ..PairAttributes::default()
        };
        let mask =
            QP_STATE | QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_SQ_PSN | QP_MAX_QP_RD_ATOMIC;
        tried("make a queue pair send", self.modify(&mut attributes, mask))
    }

    /// Ends it: what it has still to do is flushed.
    pub(super) fn fail(&self) -> io::Result<()> {
        let mut attributes = PairAttributes { qp_state: QPS_ERR, ..PairAttributes::default() };
        self.modify(&mut attributes, QP_STATE)
    }

    /// Lets one more message with an immediate come in; what it sends beside, into so many bytes of a region from `start` on.
    pub(super) fn post_receive(
        &self,
        id: u64,
        into: Option<(&Region, usize, usize)>,
    ) -> io::Result<()> {
        let Some(post) = self.domain.context.ops.post_recv else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let mut piece = into.map(|(region, start, bytes)| region.piece(start, bytes));
        let num_sge = c_int::from(piece.is_some());
        let sg_list = piece.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        let mut work = ReceiveWork { wr_id: id, next: ptr::null_mut(), sg_list, num_sge };
        let mut bad = ptr::null_mut();
        // SAFETY: The list ends after one; it is copied before this returns. The region lives until the queue pair is gone, as whoever
        // has both drops the pair first.
        result(unsafe { post(self.raw.as_ptr(), &raw mut work, &raw mut bad) })
    }

    /// Writes to the peer's memory from a region, which stays untouched until that is complete (or `inline`), as does what is lent.
    pub(super) fn post_write(&self, region: &Region, write: &Write) -> io::Result<()> {
        let Some(post) = self.domain.context.ops.post_send else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let mut pieces = [Piece::default(); 2];
        let mut filled = 0;
        if let Some((start, length)) = write.from {
            pieces[filled] = region.piece(start, length as usize);
            filled += 1;
        }
        if let Some(Lent { data, key }) = write.lent {
            let addr = data.address().as_ptr().expose_provenance() as u64;
            let length = u32::try_from(data.bytes()).unwrap_or(u32::MAX);
            pieces[filled] = Piece { addr, length, lkey: key };
            filled += 1;
        }
        let mut flags = 0;
        if write.signalled {
            flags |= SEND_SIGNALED;
        }
        if write.inline {
            flags |= SEND_INLINE;
        }
        let (remote_addr, rkey) = match write.to {
            To::Memory { address, key } => (address, key),
            To::Receive => (0, 0),
        };
        let mut work = SendWork {
            wr_id: write.id,
            next: ptr::null_mut(),
            sg_list: pieces.as_mut_ptr(),
            num_sge: c_int::try_from(filled).unwrap_or(0),
            opcode: match (write.immediate, write.to) {
                (_, To::Receive) => WR_SEND_WITH_IMM,
                (Some(_), To::Memory { .. }) => WR_RDMA_WRITE_WITH_IMM,
                (None, To::Memory { .. }) => WR_RDMA_WRITE,
            },
            send_flags: flags,
            imm_data: write.immediate.unwrap_or(0).to_be(),
            remote_addr,
            rkey,
            rest: [0; 9],
        };
        let mut bad = ptr::null_mut();
        // SAFETY: The list ends after one; it is copied before this returns. The region lives until the queue pair is gone, as
        // whoever has both drops the pair first. What is lent is registered, and whoever frees it deregisters it before: the NIC
        // refuses it then.
        result(unsafe { post(self.raw.as_ptr(), &raw mut work, &raw mut bad) })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: Made by the library and used by nobody else.
        let returned = unsafe { (self.domain.context.calls.destroy_qp)(self.raw.as_ptr()) };
        destroyed("destroy a queue pair", returned, &QUEUE_PAIRS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_rdma_is_told_in_words() {
        for number in [libc::ENOSYS, libc::EOPNOTSUPP] {
            let error = absent(io::Error::from_raw_os_error(number));
            assert!(error.to_string().contains("ib_uverbs is not loaded"), "{error}");
        }
        let other = absent(io::Error::from_raw_os_error(libc::ENOMEM));
        assert_eq!(other.raw_os_error(), Some(libc::ENOMEM));
    }

    #[test]
    fn numbers_are_errors() {
        assert!(result(0).is_ok());
        assert_eq!(result(libc::EINVAL).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
