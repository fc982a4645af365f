//! Asynchronous events.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{address, minus_one, read, write};
use crate::abi::{AsyncEvent, Context, event};
use crate::device::Health;
use crate::engine::{call, with};
use crate::errno::Errno;

/// Waits for a semaphore, or not, as its owner set it.
pub(super) fn wait(fd: &Arc<OwnedFd>) -> Result<(), Errno> {
    let mut token = [0; 8];
    rustix::io::read(fd, &mut token).map_err(|errno| Errno(errno.raw_os_error()))?;
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_async_event(context: *mut Context, into: *mut AsyncEvent) -> c_int {
    let of = address(context);
    let fd = call(
        "ibv_get_async_event",
        |fabric| fabric.device_of(of),
        |fabric| {
            let context = fabric.contexts.get(&of).ok_or(Errno::INVALID)?;
            Ok(Arc::clone(&context.fd))
        },
    );
    let result = fd.and_then(|fd| {
        wait(&fd)?;
        with(|fabric| {
            let context = fabric.contexts.get_mut(&of).ok_or(Errno::INVALID)?;
            let device = context.device;
            let Some(event) = context.events.pop_front() else {
                // What was to be read went with its object, or the device is gone.
                let gone = fabric.health(device) == Health::Gone;
                return Err(if gone { Errno::IO } else { Errno(libc::EAGAIN) });
            };
            write(into, AsyncEvent { element: event.element, event_type: event.kind })?;
            if let Some(qp) = event.of.and_then(|of| fabric.qps.get_mut(&of)) {
                qp.unacked_events += 1;
            } else if let Some(cq) = event.of.and_then(|of| fabric.cqs.get_mut(&of)) {
                cq.unacked_events += 1;
            } else if let Some(context) = fabric.contexts.get_mut(&of) {
                context.unacked += 1;
            }
            Ok(())
        })
    });
    minus_one(result)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_async_event(event: *mut AsyncEvent) {
    let Ok(acknowledged) = read(event) else { return };
    let _ = with(|fabric| {
        fabric.counts.call("ibv_ack_async_event");
        let of = usize::try_from(acknowledged.element).unwrap_or(0);
        let count = match acknowledged.event_type {
            event::CQ_ERR => fabric.cqs.get_mut(&of).map(|cq| &mut cq.unacked_events),
            event::QP_FATAL..=event::COMM_EST => {
                fabric.qps.get_mut(&of).map(|qp| &mut qp.unacked_events)
            }
            // Which context it is of is not told: any that has one.
            _ => {
                let mut contexts = fabric.contexts.values_mut();
                contexts.find(|context| context.unacked > 0).map(|context| &mut context.unacked)
            }
        };
        match count.filter(|count| **count > 0) {
            Some(count) => *count -= 1,
            None => fabric.counts.misuse(format!(
                "event {} was acknowledged once too often",
                acknowledged.event_type
            )),
        }
        Ok(())
    });
}
