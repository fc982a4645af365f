//! The symbols and tables, called with words: integers and addresses are passed alike by the calling conventions of 64-bit Linux.

use std::ffi::{CString, c_char, c_void};

use libloading::Library;
use tempfile::TempDir;

use crate::abi::{
    AhAttr, AsyncEvent, CompChannel, Context, Cq, Mr, Pd, Qp, QpAttr, QpCap, QpInitAttr, RecvWr,
    SendWr, Sge, Wc, access, mask, opcode, send_flag, state,
};

type Any = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64;

/// A library of its own: a copy of the double, with its configuration.
pub(crate) struct Verbs {
    library: Library,
    _directory: TempDir,
}

pub(crate) fn at<T>(value: *const T) -> u64 {
    value.expose_provenance() as u64
}

pub(crate) fn to<T>(word: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(usize::try_from(word).unwrap())
}

/// As functions return an `int`.
pub(crate) fn int(word: u64) -> i32 {
    u32::try_from(word & 0xffff_ffff).unwrap().cast_signed()
}

pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

impl Verbs {
    pub(crate) fn load(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("verbs-double.conf"), config).unwrap();
        let library = machines::install_verbs_double(directory.path()).unwrap();
        // SAFETY: the double has no initialisers.
        let library = unsafe { Library::new(library) }.unwrap();
        Self { library, _directory: directory }
    }

    pub(crate) fn call(&self, name: &str, words: &[u64]) -> u64 {
        // SAFETY: every symbol takes words, at most six.
        let function = unsafe { self.library.get::<Any>(name) }.unwrap();
        call(*function, words)
    }

    pub(crate) fn device(&self, number: usize) -> u64 {
        let list: *const u64 = to(self.call("ibv_get_device_list", &[0]));
        let place = list.wrapping_add(number);
        // SAFETY: the list has as many, and an end.
        let device = unsafe { place.read() };
        self.call("ibv_free_device_list", &[at(list)]);
        device
    }

    pub(crate) fn open(&self, number: usize) -> *mut Context {
        let context = self.call("ibv_open_device", &[self.device(number)]);
        assert_ne!(context, 0);
        to(context)
    }

    pub(crate) fn set_faults(&self, faults: &str) {
        let text = CString::new(faults).unwrap();
        assert_eq!(int(self.call("topodVerbsDoubleSetFaults", &[at(text.as_ptr())])), 0);
    }

    pub(crate) fn report(&self) -> serde_json::Value {
        let mut text = vec![0_u8; 1 << 16];
        let words = [at(text.as_mut_ptr()), text.len() as u64];
        assert_eq!(int(self.call("topodVerbsDoubleReport", &words)), 0);
        let end = text.iter().position(|byte| *byte == 0).unwrap();
        serde_json::from_slice(&text[..end]).unwrap()
    }

    /// The next event of a context, which is there already.
    pub(crate) fn event(&self, context: *mut Context) -> AsyncEvent {
        let mut event = AsyncEvent { element: 0, event_type: -1 };
        let got = self.call("ibv_get_async_event", &[at(context), at(&raw mut event)]);
        assert_eq!(int(got), 0);
        self.call("ibv_ack_async_event", &[at(&raw mut event)]);
        event
    }
}

fn call(function: Any, words: &[u64]) -> u64 {
    let word = |index| words.get(index).copied().unwrap_or(0);
    // SAFETY: as where the function is found.
    unsafe { function(word(0), word(1), word(2), word(3), word(4), word(5)) }
}

/// A function of a table.
pub(crate) fn entry(function: *const c_void, words: &[u64]) -> i32 {
    assert!(!function.is_null());
    // SAFETY: entries of the tables take words, at most six.
    int(call(unsafe { std::mem::transmute::<*const c_void, Any>(function) }, words))
}

/// One end of a connection: a context, and one of everything on it.
pub(crate) struct End<'a> {
    pub(crate) verbs: &'a Verbs,
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) channel: *mut CompChannel,
    pub(crate) cq: *mut Cq,
    pub(crate) qp: *mut Qp,
    pub(crate) memory: Box<[u8; 4096]>,
    pub(crate) region: *mut Mr,
    pub(crate) lid: u16,
}

pub(crate) const DEPTH: u32 = 4;
pub(crate) const INLINE: u32 = 64;
pub(crate) const ALL: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;

pub(crate) fn init_attr(cq: *mut Cq) -> QpInitAttr {
    QpInitAttr {
        qp_context: std::ptr::null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: std::ptr::null_mut(),
        cap: QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: INLINE,
        },
        qp_type: 2,
        sq_sig_all: 0,
    }
}

pub(crate) const TO_INIT: i32 = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
pub(crate) const TO_RTR: i32 = mask::STATE
    | mask::AV
    | mask::PATH_MTU
    | mask::DEST_QPN
    | mask::RQ_PSN
    | mask::MAX_DEST_RD_ATOMIC
    | mask::MIN_RNR_TIMER;
pub(crate) const TO_RTS: i32 = mask::STATE
    | mask::TIMEOUT
    | mask::RETRY_CNT
    | mask::RNR_RETRY
    | mask::SQ_PSN
    | mask::MAX_QP_RD_ATOMIC;

impl<'a> End<'a> {
    pub(crate) fn new(verbs: &'a Verbs, device: usize) -> Self {
        let context = verbs.open(device);
        let pd = to::<Pd>(verbs.call("ibv_alloc_pd", &[at(context)]));
        let channel = to::<CompChannel>(verbs.call("ibv_create_comp_channel", &[at(context)]));
        let cq = to::<Cq>(verbs.call("ibv_create_cq", &[at(context), 16, 77, at(channel), 0]));
        let mut init = init_attr(cq);
        let qp = to::<Qp>(verbs.call("ibv_create_qp", &[at(pd), at(&raw mut init)]));
        let memory = Box::new([0; 4096]);
        let words = [at(pd), at(memory.as_ptr()), 4096, ALL.into()];
        let region = to::<Mr>(verbs.call("ibv_reg_mr", &words));
        assert!(!qp.is_null() && !region.is_null());
        let mut port = crate::abi::PortAttr::default();
        assert_eq!(int(verbs.call("ibv_query_port", &[at(context), 1, at(&raw mut port)])), 0);
        Self { verbs, context, pd, channel, cq, qp, memory, region, lid: port.lid }
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: a queue pair that lives as long as this.
        unsafe { (*self.qp).qp_num }
    }

    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: a region that lives as long as this.
        let region = unsafe { &*self.region };
        (region.lkey, region.rkey)
    }

    pub(crate) fn modify(&self, attr: &QpAttr, given: i32) -> i32 {
        let words = [at(self.qp), at(attr), u64::from(given.cast_unsigned())];
        int(self.verbs.call("ibv_modify_qp", &words))
    }

    /// What the three changes of state set for a connection to another end.
    pub(crate) fn attr(&self, far: &Self) -> QpAttr {
        QpAttr {
            path_mtu: 3,
            rq_psn: far.number() + 1000,
            sq_psn: self.number() + 1000,
            dest_qp_num: far.number(),
            qp_access_flags: ALL,
            ah_attr: AhAttr { dlid: far.lid, port_num: 1, ..AhAttr::default() },
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            port_num: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        }
    }

    pub(crate) fn connect(&self, attr: &QpAttr) {
        let steps = [(state::INIT, TO_INIT), (state::RTR, TO_RTR), (state::RTS, TO_RTS)];
        for (qp_state, given) in steps {
            assert_eq!(self.modify(&QpAttr { qp_state, ..*attr }, given), 0, "to {qp_state}");
        }
    }

    pub(crate) fn piece(&self, from: usize, length: u32) -> Sge {
        Sge { addr: at(self.memory.as_ptr()) + from as u64, length, lkey: self.keys().0 }
    }

    pub(crate) fn ops(&self) -> &crate::abi::ContextOps {
        // SAFETY: a context that lives as long as this.
        unsafe { &(*self.context).ops }
    }

    pub(crate) fn post(&self, wr: &SendWr) -> i32 {
        let mut wr = *wr;
        let mut bad = 0_u64;
        let (wr, bad_at) = (&raw mut wr, &raw mut bad);
        let answer = entry(self.ops().post_send, &[at(self.qp), at(wr), at(bad_at)]);
        assert_eq!(bad, if answer == 0 { 0 } else { at(wr) });
        answer
    }

    pub(crate) fn receive(&self, id: u64, pieces: &[Sge]) -> i32 {
        let mut wr = RecvWr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: pieces.as_ptr().cast_mut(),
            num_sge: i32::try_from(pieces.len()).unwrap(),
        };
        let mut bad = 0_u64;
        entry(self.ops().post_recv, &[at(self.qp), at(&raw mut wr), at(&raw mut bad)])
    }

    pub(crate) fn poll(&self) -> Vec<Wc> {
        let mut wcs = [Wc::default(); 16];
        let count = entry(self.ops().poll_cq, &[at(self.cq), 16, at(wcs.as_mut_ptr())]);
        wcs[..usize::try_from(count).unwrap()].to_vec()
    }

    /// Waits for as many completions; the test's own limit of time ends it.
    pub(crate) fn await_polled(&self, count: usize) -> Vec<Wc> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.poll());
            std::thread::yield_now();
        }
        all
    }

    pub(crate) fn notify(&self, solicited: bool) {
        assert_eq!(entry(self.ops().req_notify_cq, &[at(self.cq), solicited.into()]), 0);
    }

    pub(crate) fn destroy(self) {
        let call = |name, object| assert_eq!(int(self.verbs.call(name, &[object])), 0, "{name}");
        call("ibv_destroy_qp", at(self.qp));
        call("ibv_dereg_mr", at(self.region));
        call("ibv_destroy_cq", at(self.cq));
        call("ibv_destroy_comp_channel", at(self.channel));
        call("ibv_dealloc_pd", at(self.pd));
        call("ibv_close_device", at(self.context));
    }
}

/// Two ends on two devices, connected.
pub(crate) fn pair<'a>(verbs: &'a Verbs, change: impl Fn(&mut QpAttr)) -> (End<'a>, End<'a>) {
    let (left, right) = (End::new(verbs, 0), End::new(verbs, 1));
    for (near, far) in [(&left, &right), (&right, &left)] {
        let mut attr = near.attr(far);
        change(&mut attr);
        near.connect(&attr);
    }
    (left, right)
}

/// A signaled request; the caller adds what it needs.
pub(crate) fn request(code: u32, pieces: &[Sge]) -> SendWr {
    SendWr {
        wr_id: 1,
        next: std::ptr::null_mut(),
        sg_list: pieces.as_ptr().cast_mut(),
        num_sge: i32::try_from(pieces.len()).unwrap(),
        opcode: code,
        send_flags: send_flag::SIGNALED,
        imm_data: 0,
        remote_addr: 0,
        rkey: 0,
        rest_of_atomic: [0; 2],
        xrc: 0,
        bind_or_tso: [0; 6],
    }
}

/// A write of pieces to a place in another end's memory.
pub(crate) fn write_to(far: &End<'_>, place: usize, pieces: &[Sge]) -> SendWr {
    SendWr {
        remote_addr: at(far.memory.as_ptr()) + place as u64,
        rkey: far.keys().1,
        ..request(opcode::RDMA_WRITE, pieces)
    }
}

pub(crate) fn text(pointer: u64) -> String {
    // SAFETY: the library gives texts that end and are never freed.
    let text = unsafe { std::ffi::CStr::from_ptr(to::<c_char>(pointer)) };
    text.to_str().unwrap().to_owned()
}

/// Bytes of an end's memory, which a NIC writes behind the compiler's back.
pub(crate) fn bytes(end: &End<'_>, from: usize, length: usize) -> Vec<u8> {
    let first = end.memory.as_ptr();
    let place = |place| {
        let place: *const u8 = first.wrapping_add(place);
        // SAFETY: within the memory, as tests ask for.
        unsafe { place.read_volatile() }
    };
    (from..from + length).map(place).collect()
}
