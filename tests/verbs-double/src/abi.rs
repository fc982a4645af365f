//! Structures and constants of `infiniband/verbs.h`, as far as they are played, with the header's order of fields.
//!
//! The tests take this file too, and hold it against the header where that is installed.
#![allow(dead_code, reason = "the library and its tests need different parts")]

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) type Function = *const c_void;

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ops: [Function; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// `struct ibv_context_ops`; what has no name here is compatibility and never called.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ContextOps {
    pub(crate) compat_first: [Function; 7],
    pub(crate) alloc_mw: Function,
    pub(crate) bind_mw: Function,
    pub(crate) dealloc_mw: Function,
    pub(crate) compat_create_cq: Function,
    pub(crate) poll_cq: Function,
    pub(crate) req_notify_cq: Function,
    pub(crate) compat_queues: [Function; 7],
    pub(crate) post_srq_recv: Function,
    pub(crate) compat_qp: [Function; 4],
    pub(crate) post_send: Function,
    pub(crate) post_recv: Function,
    pub(crate) compat_last: [Function; 5],
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    pub(crate) ops: ContextOps,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

/// `struct verbs_context`: grows at its beginning, and the context is its end.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct VerbsContext {
    pub(crate) query_port: Function,
    pub(crate) between: [Function; 25],
    pub(crate) private: *mut c_void,
    pub(crate) query_device_ex: Function,
    pub(crate) old: [Function; 10],
    pub(crate) placeholder: u64,
    pub(crate) size: usize,
    pub(crate) context: Context,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DeviceAttr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) max_ee: c_int,
    pub(crate) max_rdd: c_int,
    pub(crate) max_mw: c_int,
    pub(crate) max_raw_ipv6_qp: c_int,
    pub(crate) max_raw_ethy_qp: c_int,
    pub(crate) max_mcast_grp: c_int,
    pub(crate) max_mcast_qp_attach: c_int,
    pub(crate) max_total_mcast_qp_attach: c_int,
    pub(crate) max_ah: c_int,
    pub(crate) max_fmr: c_int,
    pub(crate) max_map_per_fmr: c_int,
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PortAttr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GidEntry {
    pub(crate) gid: [u64; 2],
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsyncEvent {
    /// A pointer to the object, or the number of a port in its lower half.
    pub(crate) element: u64,
    pub(crate) event_type: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) context: *mut Context,
    pub(crate) handle: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GlobalRoute {
    pub(crate) dgid: [u64; 2],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AhAttr {
    pub(crate) grh: GlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut c_void,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: u32,
    pub(crate) cur_qp_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) send_flags: c_uint,
    pub(crate) imm_data: u32,
    /// Of a union whose largest member is that of atomic operations.
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) rest_of_atomic: [u64; 2],
    pub(crate) xrc: u32,
    /// Of a union for memory windows and segmentation.
    pub(crate) bind_or_tso: [u64; 6],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: u32,
    pub(crate) qp_type: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct CompChannel {
    pub(crate) context: *mut Context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    pub(crate) channel: *mut CompChannel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

pub(crate) mod access {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
    pub(crate) const REMOTE_READ: u32 = 1 << 2;
    pub(crate) const REMOTE_ATOMIC: u32 = 1 << 3;
    /// Those that may be left out of account: 1 << 20 to 1 << 29 (`IBV_ACCESS_OPTIONAL_RANGE`).
    pub(crate) const OPTIONAL: u32 = 0x3ff0_0000;
}

pub(crate) mod opcode {
    pub(crate) const RDMA_WRITE: u32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_WITH_IMM: u32 = 3;
    pub(crate) const RDMA_READ: u32 = 4;
}

pub(crate) mod send_flag {
    pub(crate) const FENCE: u32 = 1;
    pub(crate) const SIGNALED: u32 = 1 << 1;
    pub(crate) const SOLICITED: u32 = 1 << 2;
    pub(crate) const INLINE: u32 = 1 << 3;
}

pub(crate) mod wc_opcode {
    pub(crate) const SEND: u32 = 0;
    pub(crate) const RDMA_WRITE: u32 = 1;
    pub(crate) const RDMA_READ: u32 = 2;
    pub(crate) const RECV: u32 = 1 << 7;
    pub(crate) const RECV_RDMA_WITH_IMM: u32 = (1 << 7) + 1;
}

/// `IBV_WC_WITH_IMM`.
pub(crate) const WC_WITH_IMM: u32 = 1 << 1;

pub(crate) mod status {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const LOC_LEN_ERR: u32 = 1;
    pub(crate) const LOC_QP_OP_ERR: u32 = 2;
    pub(crate) const LOC_PROT_ERR: u32 = 4;
    pub(crate) const WR_FLUSH_ERR: u32 = 5;
    pub(crate) const REM_INV_REQ_ERR: u32 = 9;
    pub(crate) const REM_ACCESS_ERR: u32 = 10;
    pub(crate) const REM_OP_ERR: u32 = 11;
    pub(crate) const RETRY_EXC_ERR: u32 = 12;
    pub(crate) const RNR_RETRY_EXC_ERR: u32 = 13;
    /// One more than the header's last.
    pub(crate) const COUNT: u32 = 24;
}

pub(crate) mod event {
    pub(crate) const CQ_ERR: i32 = 0;
    pub(crate) const QP_FATAL: i32 = 1;
    pub(crate) const QP_REQ_ERR: i32 = 2;
    pub(crate) const QP_ACCESS_ERR: i32 = 3;
    pub(crate) const COMM_EST: i32 = 4;
    pub(crate) const DEVICE_FATAL: i32 = 8;
    pub(crate) const PORT_ACTIVE: i32 = 9;
    pub(crate) const PORT_ERR: i32 = 10;
    pub(crate) const LID_CHANGE: i32 = 11;
    pub(crate) const PKEY_CHANGE: i32 = 12;
    pub(crate) const SM_CHANGE: i32 = 13;
    pub(crate) const CLIENT_REREGISTER: i32 = 17;
    pub(crate) const GID_CHANGE: i32 = 18;
}

pub(crate) mod state {
    pub(crate) const RESET: u32 = 0;
    pub(crate) const INIT: u32 = 1;
    pub(crate) const RTR: u32 = 2;
    pub(crate) const RTS: u32 = 3;
    pub(crate) const ERR: u32 = 6;
}

/// `enum ibv_qp_attr_mask`.
pub(crate) mod mask {
    pub(crate) const STATE: i32 = 1;
    pub(crate) const CUR_STATE: i32 = 1 << 1;
    pub(crate) const ACCESS_FLAGS: i32 = 1 << 3;
    pub(crate) const PKEY_INDEX: i32 = 1 << 4;
    pub(crate) const PORT: i32 = 1 << 5;
    pub(crate) const AV: i32 = 1 << 7;
    pub(crate) const PATH_MTU: i32 = 1 << 8;
    pub(crate) const TIMEOUT: i32 = 1 << 9;
    pub(crate) const RETRY_CNT: i32 = 1 << 10;
    pub(crate) const RNR_RETRY: i32 = 1 << 11;
    pub(crate) const RQ_PSN: i32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: i32 = 1 << 15;
    pub(crate) const SQ_PSN: i32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub(crate) const DEST_QPN: i32 = 1 << 20;
}

/// `IBV_QPT_RC`.
pub(crate) const QPT_RC: c_int = 2;
/// `IBV_NODE_CA`.
pub(crate) const NODE_CA: c_int = 1;

pub(crate) mod port {
    pub(crate) const DOWN: i32 = 1;
    pub(crate) const ACTIVE: i32 = 4;
    pub(crate) const LINK_LAYER_INFINIBAND: u8 = 1;
    pub(crate) const LINK_LAYER_ETHERNET: u8 = 2;
    /// Physical states of the InfiniBand specification, PortInfo.PortPhysicalState.
    pub(crate) const PHYSICAL_POLLING: u8 = 2;
    pub(crate) const PHYSICAL_LINK_UP: u8 = 5;
}

pub(crate) mod gid_type {
    pub(crate) const IB: u32 = 0;
    pub(crate) const ROCE_V1: u32 = 1;
    pub(crate) const ROCE_V2: u32 = 2;
}
