//! Reliable connected queue pairs: states, what each change of state needs, and the requests that wait.
//!
//! ```text
//!   RESET ──▶ INIT ──▶ RTR ──▶ RTS        any ──▶ ERR   by request, or by an error of a work request
//!     ▲                         │         any ──▶ RESET
//!     └─────────────────────────┘
//! ```

use std::collections::VecDeque;
use std::time::Instant;

use crate::abi::{QpAttr, QpCap, Sge, access, mask, state};
use crate::config::{Config, LinkLayer};
use crate::device::Device;
use crate::errno::Errno;
use crate::fabric::Address;

/// A send work request in the queue.
#[derive(Clone, Debug)]
pub(crate) struct Send {
    pub(crate) id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) immediate: u32,
    pub(crate) pieces: Vec<Sge>,
    /// Taken when it was posted, where it is inline.
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    /// It was counted, and waited as a seed had it wait.
    pub(crate) begun: bool,
    /// Transmissions that nobody answered.
    pub(crate) unanswered: u32,
    /// Answers that the receiver is not ready.
    pub(crate) not_ready: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) pieces: Vec<Sge>,
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) context: Address,
    pub(crate) device: usize,
    pub(crate) pd: Address,
    pub(crate) send_cq: Address,
    pub(crate) recv_cq: Address,
    pub(crate) number: u32,
    pub(crate) cap: QpCap,
    pub(crate) all_signaled: bool,
    pub(crate) state: u32,
    /// What was set, by the last change that set it.
    pub(crate) attr: QpAttr,
    pub(crate) sends: VecDeque<Send>,
    pub(crate) receives: VecDeque<Receive>,
    /// Places taken, those included whose completion nobody polled.
    pub(crate) send_used: u32,
    pub(crate) receive_used: u32,
    /// Requests that ended without a completion since the last that had one.
    pub(crate) silent: u32,
    /// Nothing is sent before then.
    pub(crate) held: Option<Instant>,
    pub(crate) next_psn: u32,
    pub(crate) expected_psn: u32,
    pub(crate) established: bool,
    pub(crate) unacked_events: u64,
}

/// Packet sequence numbers and queue pair numbers have 24 bits.
pub(crate) const BITS_24: u32 = 0x00ff_ffff;

/// Attributes that a change of state needs and those it may have, as `ibv_modify_qp` lists them.
fn attributes(from: u32, to: u32) -> Option<(i32, i32)> {
    use mask::{
        ACCESS_FLAGS, AV, CUR_STATE, DEST_QPN, MAX_DEST_RD_ATOMIC, MAX_QP_RD_ATOMIC, MIN_RNR_TIMER,
        PATH_MTU, PKEY_INDEX, PORT, RETRY_CNT, RNR_RETRY, RQ_PSN, SQ_PSN, TIMEOUT,
    };
    Some(match (from, to) {
        (_, state::RESET) => (0, 0),
        (_, state::ERR) => (0, CUR_STATE),
        (state::RESET, state::INIT) => (PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        (state::INIT, state::INIT) => (0, PKEY_INDEX | PORT | ACCESS_FLAGS),
        (state::INIT, state::RTR) => (
            AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            PKEY_INDEX | ACCESS_FLAGS,
        ),
        (state::RTR, state::RTS) => (
            TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
            CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER,
        ),
        (state::RTS, state::RTS) => (0, CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER),
        _ => return None,
    })
}

fn check(condition: bool) -> Result<(), Errno> {
    if condition { Ok(()) } else { Err(Errno::INVALID) }
}

impl QueuePair {
    /// Changes attributes and the state; the caller makes of a change to ERR and RESET what follows.
    pub(crate) fn modify(
        &mut self,
        attr: &QpAttr,
        given: i32,
        device: &Device,
        config: &Config,
    ) -> Result<(), Errno> {
        let has = |bit: i32| given & bit != 0;
        let to = if has(mask::STATE) { attr.qp_state } else { self.state };
        check(!has(mask::CUR_STATE) || attr.cur_qp_state == self.state)?;
        let (needed, optional) = attributes(self.state, to).ok_or(Errno::INVALID)?;
        let rest = given & !mask::STATE;
        check(rest & needed == needed && rest & !(needed | optional) == 0)?;
        if has(mask::PKEY_INDEX) {
            check(attr.pkey_index == 0)?;
        }
        if has(mask::PORT) {
            check(device.port(attr.port_num.into()).is_some())?;
        }
        let known = access::LOCAL_WRITE
            | access::REMOTE_WRITE
            | access::REMOTE_READ
            | access::REMOTE_ATOMIC;
        check(!has(mask::ACCESS_FLAGS) || attr.qp_access_flags & !known == 0)?;
        check(!has(mask::PATH_MTU) || (1..=u32::from(config.mtu)).contains(&attr.path_mtu))?;
        check(!has(mask::DEST_QPN) || attr.dest_qp_num <= BITS_24)?;
        check(!has(mask::TIMEOUT) || attr.timeout < 32)?;
        check(!has(mask::MIN_RNR_TIMER) || attr.min_rnr_timer < 32)?;
        check(!has(mask::RETRY_CNT) || attr.retry_cnt < 8)?;
        check(!has(mask::RNR_RETRY) || attr.rnr_retry < 8)?;
        check(!has(mask::MAX_QP_RD_ATOMIC) || attr.max_rd_atomic <= config.max_rd_atomic)?;
        check(!has(mask::MAX_DEST_RD_ATOMIC) || attr.max_dest_rd_atomic <= config.max_rd_atomic)?;
        if has(mask::AV) {
            self.check_address(attr, device)?;
        }
        self.take(attr, given);
        self.state = to;
        Ok(())
    }

    fn check_address(&self, attr: &QpAttr, device: &Device) -> Result<(), Errno> {
        let address = &attr.ah_attr;
        check(address.port_num == self.attr.port_num)?;
        let port = device.port(address.port_num.into()).ok_or(Errno::INVALID)?;
        match device.link_layer {
            // Ethernet has no LIDs: without a global route there is no way.
            LinkLayer::Ethernet => check(address.is_global != 0)?,
            LinkLayer::InfiniBand => check(address.dlid != 0)?,
        }
        if address.is_global != 0 {
            let index = usize::from(address.grh.sgid_index);
            check(port.gids.get(index).copied().flatten().is_some())?;
        }
        check(address.sl < 16)
    }

    fn take(&mut self, attr: &QpAttr, given: i32) {
        let has = |bit: i32| given & bit != 0;
        let mine = &mut self.attr;
        if has(mask::PORT) {
            mine.port_num = attr.port_num;
        }
        if has(mask::PKEY_INDEX) {
            mine.pkey_index = attr.pkey_index;
        }
        if has(mask::ACCESS_FLAGS) {
            mine.qp_access_flags = attr.qp_access_flags;
        }
        if has(mask::AV) {
            mine.ah_attr = attr.ah_attr;
        }
        if has(mask::PATH_MTU) {
            mine.path_mtu = attr.path_mtu;
        }
        if has(mask::DEST_QPN) {
            mine.dest_qp_num = attr.dest_qp_num;
        }
        if has(mask::RQ_PSN) {
            mine.rq_psn = attr.rq_psn & BITS_24;
            self.expected_psn = mine.rq_psn;
        }
        if has(mask::SQ_PSN) {
            mine.sq_psn = attr.sq_psn & BITS_24;
            self.next_psn = mine.sq_psn;
        }
        if has(mask::TIMEOUT) {
            mine.timeout = attr.timeout;
        }
        if has(mask::RETRY_CNT) {
            mine.retry_cnt = attr.retry_cnt;
        }
        if has(mask::RNR_RETRY) {
            mine.rnr_retry = attr.rnr_retry;
        }
        if has(mask::MIN_RNR_TIMER) {
            mine.min_rnr_timer = attr.min_rnr_timer;
        }
        if has(mask::MAX_QP_RD_ATOMIC) {
            mine.max_rd_atomic = attr.max_rd_atomic;
        }
        if has(mask::MAX_DEST_RD_ATOMIC) {
            mine.max_dest_rd_atomic = attr.max_dest_rd_atomic;
        }
    }

    /// Whether it takes what peers send.
    pub(crate) fn receives(&self) -> bool {
        matches!(self.state, state::RTR | state::RTS)
    }
}
