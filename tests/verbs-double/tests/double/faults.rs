//! Faults that are asked for.

use crate::abi::{opcode, status};
use crate::raw::{End, Verbs, at, errno, int, pair, request};

fn register(verbs: &Verbs, end: &End<'_>, length: u64) -> Result<u64, i32> {
    let words = [at(end.pd), at(end.memory.as_ptr()), length, 1];
    match verbs.call("ibv_reg_mr", &words) {
        0 => Err(errno()),
        region => Ok(region),
    }
}

#[test]
fn registrations_are_refused_beyond_a_limit_and_again_possible_below() {
    // The end has 4096 bytes itself.
    let verbs = Verbs::load("FAULTS=register:device=0,bytes=6000\n");
    let end = End::new(&verbs, 0);
    let small = register(&verbs, &end, 1000).unwrap();
    assert_eq!(register(&verbs, &end, 1000), Err(libc::ENOMEM));
    assert_eq!(int(verbs.call("ibv_dereg_mr", &[small])), 0);
    assert!(register(&verbs, &end, 1000).is_ok());
}

#[test]
fn memory_that_is_not_there_or_not_to_be_written_is_not_registered() {
    static CONSTANT: [u8; 64] = [7; 64];
    let verbs = Verbs::load("");
    let end = End::new(&verbs, 0);
    let words = |start, length, access| [at(end.pd), start, length, access];
    assert_eq!(verbs.call("ibv_reg_mr", &words(4096, 4096, 1)), 0);
    assert_eq!(errno(), libc::EFAULT);
    assert_eq!(verbs.call("ibv_reg_mr", &words(at(CONSTANT.as_ptr()), 64, 1)), 0);
    assert_eq!(errno(), libc::EFAULT);
    assert_ne!(verbs.call("ibv_reg_mr", &words(at(CONSTANT.as_ptr()), 64, 0)), 0);
    // What others may write, its owner must be allowed to.
    assert_eq!(verbs.call("ibv_reg_mr", &words(at(end.memory.as_ptr()), 64, 2)), 0);
    assert_eq!(errno(), libc::EINVAL);
}

#[test]
fn any_call_fails_as_it_is_told() {
    let verbs =
        Verbs::load("FAULTS=call:ibv_create_qp,after=1,times=1,code=12; call:post_send,code=22\n");
    let (left, _right) = (End::new(&verbs, 0), 0);
    let mut init = crate::raw::init_attr(left.cq);
    let mut make = || verbs.call("ibv_create_qp", &[at(left.pd), at(&raw mut init)]);
    assert_eq!((make(), errno()), (0, libc::ENOMEM));
    assert_ne!(make(), 0);
    assert_eq!(left.post(&request(opcode::SEND, &[])), libc::EINVAL);
}

#[test]
fn messages_are_spoilt_by_their_number_and_way() {
    for (fault, expected, event) in [
        ("remote-access:device=0,peer=1,after=2", status::REM_ACCESS_ERR, true),
        ("local-protection:device=0,after=2", status::LOC_PROT_ERR, false),
        ("complete:device=0,status=20,after=2", 20, false),
        ("cut:device=0,peer=1,after=2", status::RETRY_EXC_ERR, false),
    ] {
        let verbs = Verbs::load(&format!("HASTE=1000\nFAULTS={fault}\n"));
        let (left, right) = pair(&verbs, |_| {});
        let mut seen = Vec::new();
        for _ in 0..3 {
            assert_eq!(left.post(&request(opcode::RDMA_WRITE, &[])), 0);
            seen.push(left.await_polled(1)[0].status);
        }
        assert_eq!(seen, [0, 0, expected], "{fault}");
        if event {
            assert_eq!(verbs.event(right.context).event_type, crate::abi::event::QP_ACCESS_ERR);
        }
    }
}

#[test]
fn a_queue_pair_fails_with_its_message() {
    let verbs = Verbs::load("FAULTS=qp-fatal:device=0,after=1\n");
    let (left, _right) = pair(&verbs, |_| {});
    for expected in [status::SUCCESS, status::WR_FLUSH_ERR] {
        assert_eq!(left.post(&request(opcode::RDMA_WRITE, &[])), 0);
        assert_eq!(left.await_polled(1)[0].status, expected);
    }
    let raised = verbs.event(left.context);
    assert_eq!((raised.event_type, raised.element), (crate::abi::event::QP_FATAL, at(left.qp)));
}
