//! Completion channels and queues.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use super::device::ask;
use super::event::wait;
use super::{address, give, minus_one, number, object, pointer, take_back, write};
use crate::abi::{CompChannel, Context, Cq, Wc};
use crate::completion::{Armed, Channel, CompletionQueue, unsignal};
use crate::device::Health;
use crate::engine::{call, with};
use crate::errno::Errno;

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
    object(ask("ibv_create_comp_channel", context, |fabric, _| {
        let flags = rustix::event::EventfdFlags::SEMAPHORE | rustix::event::EventfdFlags::CLOEXEC;
        let fd = rustix::event::eventfd(0, flags).map_err(|errno| Errno(errno.raw_os_error()))?;
        let channel = give(CompChannel { context, fd: fd.as_raw_fd(), refcnt: 0 });
        let made =
            Channel { context: address(context), fd: Arc::new(fd), pending: VecDeque::new() };
        fabric.channels.insert(channel, made);
        Ok(channel)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    let of = address(channel);
    let result = call(
        "ibv_destroy_comp_channel",
        |_| None,
        |fabric| {
            if fabric.cqs.values().any(|cq| cq.channel == Some(of)) {
                fabric.counts.misuse("ibv_destroy_comp_channel while it is used".to_owned());
                return Err(Errno::BUSY);
            }
            match fabric.channels.remove(&of) {
                Some(_) => Ok(()),
                None => {
                    fabric.counts.misuse("ibv_destroy_comp_channel of what is none".to_owned());
                    Err(Errno::INVALID)
                }
            }
        },
    );
    if result.is_ok() {
        take_back::<CompChannel>(of);
    }
    number(result)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    vector: c_int,
) -> *mut Cq {
    object(ask("ibv_create_cq", context, |fabric, device| {
        let here = fabric.cqs.values().filter(|cq| cq.device == device).count();
        let most = c_int::try_from(fabric.config.max_cqe).unwrap_or(c_int::MAX);
        if here >= fabric.config.max_cq {
            return Err(Errno::NO_MEMORY);
        }
        // One completion vector.
        if !(1..=most).contains(&entries) || vector != 0 {
            return Err(Errno::INVALID);
        }
        if fabric.health(device) != Health::Well {
            return Err(Errno::IO);
        }
        let told = (!channel.is_null()).then(|| address(channel));
        if told.is_some_and(|channel| {
            fabric.channels.get(&channel).is_none_or(|channel| channel.context != address(context))
        }) {
            return Err(Errno::INVALID);
        }
        let handle = fabric.handle();
        let cq = give(Cq {
            context,
            channel,
            cq_context,
            handle,
            cqe: entries,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            comp_events_completed: 0,
            async_events_completed: 0,
        });
        let made = CompletionQueue {
            context: address(context),
            device,
            channel: told,
            user: address(cq_context),
            capacity: usize::try_from(entries).map_err(|_| Errno::INVALID)?,
            entries: VecDeque::new(),
            armed: Armed::Not,
            overrun: false,
            unacked_completions: 0,
            unacked_events: 0,
        };
        fabric.cqs.insert(cq, made);
        Ok(cq)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    let of = address(cq);
    let result = call(
        "ibv_destroy_cq",
        |fabric| fabric.cqs.get(&of).map(|cq| cq.device),
        |fabric| {
            let Some(ended) = fabric.cqs.get(&of) else {
                fabric.counts.misuse("ibv_destroy_cq of what is none".to_owned());
                return Err(Errno::INVALID);
            };
            if fabric.qps.values().any(|qp| qp.send_cq == of || qp.recv_cq == of) {
                fabric.counts.misuse("ibv_destroy_cq while it is used".to_owned());
                return Err(Errno::BUSY);
            }
            // The real call waits for them, for ever if need be.
            if ended.unacked_completions > 0 || ended.unacked_events > 0 {
                fabric
                    .counts
                    .misuse("ibv_destroy_cq before its events are acknowledged".to_owned());
                return Err(Errno::BUSY);
            }
            let (channel, context) = (ended.channel, ended.context);
            fabric.cqs.remove(&of);
            if let Some(channel) = channel.and_then(|channel| fabric.channels.get_mut(&channel)) {
                let before = channel.pending.len();
                channel.pending.retain(|pending| *pending != of);
                (channel.pending.len()..before).for_each(|_| unsignal(&channel.fd));
            }
            fabric.drop_events(context, of);
            Ok(())
        },
    );
    if result.is_ok() {
        take_back::<Cq>(of);
    }
    number(result)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_cq_event(
    channel: *mut CompChannel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let of = address(channel);
    let result = loop {
        let fd = call(
            "ibv_get_cq_event",
            |_| None,
            |fabric| {
                let channel = fabric.channels.get(&of).ok_or(Errno::INVALID)?;
                Ok(Arc::clone(&channel.fd))
            },
        );
        let got = fd.and_then(|fd| {
            wait(&fd)?;
            with(|fabric| {
                let channel = fabric.channels.get_mut(&of).ok_or(Errno::INVALID)?;
                // None where it went with its queue meanwhile.
                let Some(told) = channel.pending.pop_front() else { return Ok(false) };
                let Some(queue) = fabric.cqs.get_mut(&told) else { return Ok(false) };
                queue.unacked_completions += 1;
                write(cq, pointer(told))?;
                write(cq_context, pointer(queue.user))?;
                Ok(true)
            })
        });
        match got {
            Ok(true) => break Ok(()),
            Ok(false) => {}
            Err(errno) => break Err(errno),
        }
    };
    minus_one(result)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(cq: *mut Cq, count: c_uint) {
    let of = address(cq);
    let _ = with(|fabric| {
        fabric.counts.call("ibv_ack_cq_events");
        let left = fabric.cqs.get(&of).map(|cq| cq.unacked_completions);
        match left.and_then(|left| left.checked_sub(count.into())) {
            Some(left) => {
                if let Some(cq) = fabric.cqs.get_mut(&of) {
                    cq.unacked_completions = left;
                }
            }
            None => {
                fabric.counts.misuse("more completion events were acknowledged than got".to_owned())
            }
        }
        Ok(())
    });
}

pub(super) extern "C" fn poll_cq(cq: *mut Cq, room: c_int, into: *mut Wc) -> c_int {
    let of = address(cq);
    let polled = call(
        "poll_cq",
        |fabric| fabric.cqs.get(&of).map(|cq| cq.device),
        |fabric| {
            let room = usize::try_from(room).map_err(|_| Errno::INVALID)?;
            if !fabric.cqs.contains_key(&of) {
                fabric.counts.misuse("ibv_poll_cq of what is none".to_owned());
            }
            fabric.poll(of, room).ok_or(Errno::INVALID)
        },
    );
    let written = polled.and_then(|polled| {
        for (index, wc) in polled.iter().enumerate() {
            write(into.wrapping_add(index), *wc)?;
        }
        c_int::try_from(polled.len()).map_err(|_| Errno::INVALID)
    });
    written.unwrap_or_else(|errno| -errno.0)
}

pub(super) extern "C" fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
    let of = address(cq);
    number(call(
        "req_notify_cq",
        |fabric| fabric.cqs.get(&of).map(|cq| cq.device),
        |fabric| {
            let cq = fabric.cqs.get_mut(&of).ok_or(Errno::INVALID)?;
            // To ask for the next is never undone by asking for the next solicited one.
            cq.armed = match (cq.armed, solicited_only) {
                (Armed::Next, _) | (_, 0) => Armed::Next,
                _ => Armed::Solicited,
            };
            Ok(())
        },
    ))
}
