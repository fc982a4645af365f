//! Queue pairs and the requests that are posted to them.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};

use super::{address, give, number, object, read, read_all, take_back, write};
use crate::abi::{
    Pd, QPT_RC, Qp, QpAttr, QpInitAttr, RecvWr, SendWr, Sge, opcode, send_flag, state,
};
use crate::config::Config;
use crate::device::Health;
use crate::engine::call;
use crate::errno::Errno;
use crate::fabric::Fabric;
use crate::memory::{Piece, gather, mapped};
use crate::queue_pair::{BITS_24, QueuePair, Receive, Send};

fn check(condition: bool) -> Result<(), Errno> {
    if condition { Ok(()) } else { Err(Errno::INVALID) }
}

/// What a queue pair gets of what was asked.
fn granted(asked: &mut QpInitAttr, config: &Config) -> Result<(), Errno> {
    check(asked.qp_type == QPT_RC)?;
    // Shared receive queues are not played.
    check(asked.srq.is_null())?;
    let cap = &mut asked.cap;
    check(cap.max_send_wr <= config.max_qp_wr && cap.max_recv_wr <= config.max_qp_wr)?;
    check(cap.max_send_sge <= config.max_sge && cap.max_recv_sge <= config.max_sge)?;
    if cap.max_inline_data > config.inline {
        check(config.inline_clamped)?;
        cap.max_inline_data = config.inline;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_qp(pd: *mut Pd, asked: *mut QpInitAttr) -> *mut Qp {
    let of = address(pd);
    object(call(
        "ibv_create_qp",
        |fabric| fabric.pds.get(&of).map(|pd| pd.device),
        |fabric| {
            let Some(domain) = fabric.pds.get(&of) else {
                fabric.counts.misuse("ibv_create_qp with what is no protection domain".to_owned());
                return Err(Errno::INVALID);
            };
            let (context, device) = (domain.context, domain.device);
            if fabric.health(device) != Health::Well {
                return Err(Errno::IO);
            }
            let mut init = read(asked)?;
            for queue in [init.send_cq, init.recv_cq] {
                let known = fabric.cqs.get(&address(queue));
                check(known.is_some_and(|cq| cq.context == context))?;
            }
            granted(&mut init, &fabric.config)?;
            let here = fabric.qps.values().filter(|qp| qp.device == device).count();
            if here >= fabric.config.max_qp {
                return Err(Errno::NO_MEMORY);
            }
            fabric.last_number = (fabric.last_number + 1) & BITS_24;
            let (qp_num, handle) = (fabric.last_number, fabric.handle());
            let qp = give(Qp {
                context: super::pointer(context),
                qp_context: init.qp_context,
                pd,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                handle,
                qp_num,
                state: state::RESET,
                qp_type: init.qp_type,
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                cond: libc::PTHREAD_COND_INITIALIZER,
                events_completed: 0,
            });
            let made = QueuePair {
                context,
                device,
                pd: of,
                send_cq: address(init.send_cq),
                recv_cq: address(init.recv_cq),
                number: qp_num,
                cap: init.cap,
                all_signaled: init.sq_sig_all != 0,
                state: state::RESET,
                attr: QpAttr::default(),
                sends: VecDeque::new(),
                receives: VecDeque::new(),
                send_used: 0,
                receive_used: 0,
                silent: 0,
                held: None,
                next_psn: 0,
                expected_psn: 0,
                established: false,
                unacked_events: 0,
            };
            fabric.qps.insert(qp, made);
            fabric.numbers.insert((device, qp_num), qp);
            write(asked, init)?;
            Ok(qp)
        },
    ))
}

impl Fabric {
    /// Takes a queue pair's completions out of its queues, as providers do when it is reset or destroyed.
    fn clean(&mut self, qp: usize) {
        let Some(found) = self.qps.get(&qp) else { return };
        for queue in [found.send_cq, found.recv_cq] {
            if let Some(cq) = self.cqs.get_mut(&queue) {
                cq.entries.retain(|entry| entry.qp != qp);
            }
        }
    }

    /// Takes back events of an object that is destroyed.
    pub(super) fn drop_events(&mut self, context: usize, of: usize) {
        let Some(context) = self.contexts.get_mut(&context) else { return };
        let before = context.events.len();
        context.events.retain(|event| event.of != Some(of));
        (context.events.len()..before).for_each(|_| crate::completion::unsignal(&context.fd));
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    let of = address(qp);
    let result = call(
        "ibv_destroy_qp",
        |fabric| fabric.qps.get(&of).map(|qp| qp.device),
        |fabric| {
            let Some(ended) = fabric.qps.get(&of) else {
                fabric.counts.misuse("ibv_destroy_qp of what is none".to_owned());
                return Err(Errno::INVALID);
            };
            // The real call waits for them, for ever if need be.
            if ended.unacked_events > 0 {
                fabric
                    .counts
                    .misuse("ibv_destroy_qp before its events are acknowledged".to_owned());
                return Err(Errno::BUSY);
            }
            let (context, key) = (ended.context, (ended.device, ended.number));
            fabric.clean(of);
            fabric.qps.remove(&of);
            fabric.numbers.remove(&key);
            fabric.drop_events(context, of);
            Ok(())
        },
    );
    if result.is_ok() {
        take_back::<Qp>(of);
    }
    number(result)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int {
    let of = address(qp);
    number(call(
        "ibv_modify_qp",
        |fabric| fabric.qps.get(&of).map(|qp| qp.device),
        |fabric| {
            let wanted = read(attr)?;
            let Fabric { qps, devices, config, .. } = &mut *fabric;
            let Some(found) = qps.get_mut(&of) else {
                fabric.counts.misuse("ibv_modify_qp of what is none".to_owned());
                return Err(Errno::INVALID);
            };
            let device = devices.get(found.device).ok_or(Errno::INVALID)?;
            if device.health == Health::Gone {
                return Err(Errno::IO);
            }
            found.modify(&wanted, mask, device, config)?;
            let now = found.state;
            match now {
                state::ERR => fabric.flush(of),
                state::RESET => {
                    fabric.clean(of);
                    let found = fabric.qps.get_mut(&of).ok_or(Errno::INVALID)?;
                    found.sends.clear();
                    found.receives.clear();
                    (found.send_used, found.receive_used, found.silent) = (0, 0, 0);
                    (found.held, found.established) = (None, false);
                    found.attr = QpAttr::default();
                }
                _ => {}
            }
            // SAFETY: a queue pair that was given and not destroyed; a place in it is made, nothing is read.
            write(unsafe { &raw mut (*qp).state }, now)
        },
    ))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp(
    qp: *mut Qp,
    attr: *mut QpAttr,
    _mask: c_int,
    init: *mut QpInitAttr,
) -> c_int {
    let of = address(qp);
    number(call(
        "ibv_query_qp",
        |fabric| fabric.qps.get(&of).map(|qp| qp.device),
        |fabric| {
            let found = fabric.qps.get(&of).ok_or(Errno::INVALID)?;
            if fabric.health(found.device) == Health::Gone {
                return Err(Errno::IO);
            }
            let told = QpAttr {
                qp_state: found.state,
                cur_qp_state: found.state,
                cap: found.cap,
                rq_psn: found.expected_psn,
                sq_psn: found.next_psn,
                ..found.attr
            };
            write(attr, told)?;
            write(
                init,
                QpInitAttr {
                    qp_context: std::ptr::null_mut(),
                    send_cq: super::pointer(found.send_cq),
                    recv_cq: super::pointer(found.recv_cq),
                    srq: std::ptr::null_mut(),
                    cap: found.cap,
                    qp_type: QPT_RC,
                    sq_sig_all: c_int::from(found.all_signaled),
                },
            )
        },
    ))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut Qp,
    _opcode: c_uint,
    _flags: c_uint,
) -> c_int {
    0
}

/// Checks one request as posting does, and takes it.
fn take_send(fabric: &mut Fabric, of: usize, wr: &SendWr) -> Result<(), Errno> {
    let qp = fabric.qps.get(&of).ok_or(Errno::INVALID)?;
    check(matches!(qp.state, state::RTS | state::ERR))?;
    if qp.send_used >= qp.cap.max_send_wr {
        return Err(Errno::NO_MEMORY);
    }
    let reads = wr.opcode == opcode::RDMA_READ;
    check(wr.opcode <= opcode::RDMA_READ)?;
    check(!reads || qp.attr.max_rd_atomic > 0)?;
    let most = if reads { fabric.config.max_sge } else { qp.cap.max_send_sge };
    check(u32::try_from(wr.num_sge).is_ok_and(|count| count <= most.min(qp.cap.max_send_sge)))?;
    let known = send_flag::FENCE | send_flag::SIGNALED | send_flag::SOLICITED | send_flag::INLINE;
    check(wr.send_flags & !known == 0)?;
    let pieces: Vec<Sge> = read_all(wr.sg_list, wr.num_sge)?;
    let inline = if wr.send_flags & send_flag::INLINE == 0 {
        None
    } else {
        check(!reads)?;
        let length: u64 = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        check(length <= qp.cap.max_inline_data.into())?;
        // Keys are not looked at, and the memory is the caller's again at once.
        let places: Vec<Piece> = pieces
            .iter()
            .map(|piece| Piece { start: piece.addr, length: piece.length.into(), device: false })
            .collect();
        if !places.iter().copied().all(mapped) {
            return Err(Errno::FAULT);
        }
        Some(gather(&places).0)
    };
    let send = Send {
        id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.send_flags,
        immediate: wr.imm_data,
        pieces,
        inline,
        remote: wr.remote_addr,
        rkey: wr.rkey,
        begun: false,
        unanswered: 0,
        not_ready: 0,
    };
    let qp = fabric.qps.get_mut(&of).ok_or(Errno::INVALID)?;
    qp.send_used += 1;
    qp.sends.push_back(send);
    if qp.state == state::ERR {
        fabric.flush(of)
    } else {
        fabric.transmit(of)
    }
    Ok(())
}

fn take_receive(fabric: &mut Fabric, of: usize, wr: &RecvWr) -> Result<(), Errno> {
    let qp = fabric.qps.get(&of).ok_or(Errno::INVALID)?;
    check(qp.state != state::RESET)?;
    if qp.receive_used >= qp.cap.max_recv_wr {
        return Err(Errno::NO_MEMORY);
    }
    check(u32::try_from(wr.num_sge).is_ok_and(|count| count <= qp.cap.max_recv_sge))?;
    let pieces = read_all(wr.sg_list, wr.num_sge)?;
    let receive = Receive { id: wr.wr_id, pieces };
    let qp = fabric.qps.get_mut(&of).ok_or(Errno::INVALID)?;
    qp.receive_used += 1;
    qp.receives.push_back(receive);
    if qp.state == state::ERR {
        fabric.flush(of);
    }
    Ok(())
}

/// Posts a list: those before one that is refused are posted, and the caller is told which it is.
fn post<W: Copy>(
    name: &'static str,
    qp: *mut Qp,
    first: *mut W,
    bad: *mut *mut W,
    next: impl Fn(&W) -> *mut W,
    take: impl Fn(&mut Fabric, usize, &W) -> Result<(), Errno>,
) -> c_int {
    let of = address(qp);
    let mut at = first;
    let result = call(
        name,
        |fabric| fabric.qps.get(&of).map(|qp| qp.device),
        |fabric| {
            if !fabric.qps.contains_key(&of) {
                fabric.counts.misuse(format!("{name} to what is no queue pair"));
                return Err(Errno::INVALID);
            }
            while !at.is_null() {
                let request = read(at)?;
                take(fabric, of, &request)?;
                at = next(&request);
            }
            Ok(())
        },
    );
    if result.is_err() && write(bad, at).is_err() {
        // The header's functions always give a place; who calls the table without one has told us nothing to say it with.
        return libc::EINVAL;
    }
    number(result)
}

pub(super) extern "C" fn post_send(qp: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    post("post_send", qp, wr, bad, |wr| wr.next, take_send)
}

pub(super) extern "C" fn post_recv(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    post("post_recv", qp, wr, bad, |wr| wr.next, take_receive)
}
