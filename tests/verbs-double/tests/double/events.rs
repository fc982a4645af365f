//! Who is told of completions and of devices, and when.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::abi::{AsyncEvent, SendWr, event, opcode, send_flag};
use crate::raw::{End, Verbs, at, errno, int, pair, request};

fn readable(fd: i32) -> bool {
    // SAFETY: descriptors of contexts and channels that are open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

fn told(end: &End<'_>) -> bool {
    // SAFETY: a channel that lives as long as its end.
    readable(unsafe { (*end.channel).fd })
}

fn take(end: &End<'_>) -> (u64, u64) {
    let (mut cq, mut context) = (0_u64, 0_u64);
    let words = [at(end.channel), at(&raw mut cq), at(&raw mut context)];
    assert_eq!(int(end.verbs.call("ibv_get_cq_event", &words)), 0);
    (cq, context)
}

#[test]
fn channels_tell_once_for_each_time_they_are_asked() {
    let verbs = Verbs::load("");
    let (left, right) = pair(&verbs, |_| {});
    let send = |flags| {
        assert_eq!(right.receive(1, &[]), 0);
        assert_eq!(left.post(&SendWr { send_flags: flags, ..request(opcode::SEND, &[]) }), 0);
    };
    send(send_flag::SIGNALED);
    assert!(!told(&right), "nobody asked");
    right.notify(false);
    assert!(!told(&right), "what is there already is not told");
    send(0);
    assert!(told(&right));
    assert_eq!(take(&right), (at(right.cq), 77));
    send(0);
    assert!(!told(&right), "asked once, told once");
    right.notify(true);
    send(0);
    assert!(!told(&right), "not solicited");
    right.await_polled(4);
    left.await_polled(1);
    send(send_flag::SOLICITED | send_flag::SIGNALED);
    assert!(told(&right));
    take(&right);
    assert_eq!(int(verbs.call("ibv_destroy_qp", &[at(right.qp)])), 0);
    assert_eq!(int(verbs.call("ibv_destroy_cq", &[at(right.cq)])), libc::EBUSY);
    verbs.call("ibv_ack_cq_events", &[at(right.cq), 2]);
    assert_eq!(int(verbs.call("ibv_destroy_cq", &[at(right.cq)])), 0);
}

#[test]
fn events_go_with_their_queue() {
    let verbs = Verbs::load("");
    let (left, right) = pair(&verbs, |_| {});
    right.notify(false);
    assert_eq!(right.receive(1, &[]), 0);
    assert_eq!(left.post(&request(opcode::SEND, &[])), 0);
    assert!(told(&right));
    assert_eq!(int(verbs.call("ibv_destroy_qp", &[at(right.qp)])), 0);
    assert_eq!(int(verbs.call("ibv_destroy_cq", &[at(right.cq)])), 0);
    assert!(!told(&right));
}

#[test]
fn devices_tell_all_their_contexts() {
    let verbs = Verbs::load("DEVICES=2\nPORTS=2\n");
    let contexts = [verbs.open(0), verbs.open(0), verbs.open(1)];
    // SAFETY: contexts that are open.
    let fds = contexts.map(|context| unsafe { (*context).async_fd });
    verbs.set_faults("port-down:device=0,port=2; event:device=0,type=13");
    assert_eq!(fds.map(readable), [true, true, false]);
    for context in &contexts[..2] {
        let told = verbs.event(*context);
        assert_eq!((told.event_type, told.element), (event::PORT_ERR, 2));
        assert_eq!(verbs.event(*context).event_type, event::SM_CHANGE);
    }
    verbs.set_faults("port-up:device=0,port=2; device-fatal:device=1");
    assert_eq!(verbs.event(contexts[0]).event_type, event::PORT_ACTIVE);
    assert_eq!(verbs.event(contexts[2]).event_type, event::DEVICE_FATAL);
}

#[test]
fn reading_events_of_a_device_that_is_gone_is_an_io_error() {
    for (fault, tells) in [("gone:device=0", true), ("eio:device=0", false)] {
        let verbs = Verbs::load("");
        let (left, right) = pair(&verbs, |_| {});
        verbs.set_faults(fault);
        // SAFETY: a context that is open.
        let fd = unsafe { (*left.context).async_fd };
        assert!(readable(fd));
        if tells {
            assert_eq!(verbs.event(left.context).event_type, event::DEVICE_FATAL);
        }
        for _ in 0..2 {
            assert!(readable(fd));
            let mut into = AsyncEvent { element: 0, event_type: 0 };
            let got = verbs.call("ibv_get_async_event", &[at(left.context), at(&raw mut into)]);
            assert_eq!((int(got), errno()), (-1, libc::EIO));
        }
        assert_eq!(verbs.call("ibv_alloc_pd", &[at(left.context)]), 0);
        assert_eq!(errno(), libc::EIO);
        assert_eq!(left.post(&request(opcode::RDMA_WRITE, &[])), 0);
        assert!(left.poll().is_empty());
        left.destroy();
        right.destroy();
    }
}
