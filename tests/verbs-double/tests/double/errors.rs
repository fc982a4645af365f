//! How requests fail, and what fails with them.

use std::time::Instant;

use crate::abi::{QpAttr, SendWr, Sge, access, event, mask, opcode, state, status};
use crate::raw::{End, Verbs, at, int, pair, request, write_to};

fn statuses(end: &End<'_>, count: usize) -> Vec<u32> {
    end.await_polled(count).iter().map(|wc| wc.status).collect()
}

/// A request that is refused: what its completion says, and what event its peer gets.
fn refused(
    prepare: impl Fn(&End<'_>, &End<'_>),
    wr: impl Fn(&End<'_>, &End<'_>) -> (Vec<Sge>, SendWr),
) -> (u32, Option<i32>) {
    let verbs = Verbs::load("HASTE=1000\n");
    let (left, right) = pair(&verbs, |_| {});
    prepare(&left, &right);
    let (pieces, wr) = wr(&left, &right);
    let wr = SendWr {
        sg_list: pieces.as_ptr().cast_mut(),
        num_sge: i32::try_from(pieces.len()).unwrap(),
        ..wr
    };
    assert_eq!(left.post(&wr), 0);
    let wc = left.await_polled(1)[0];
    assert_eq!(wc.wr_id, 1);
    // Whatever comes after is flushed, signaled or not.
    let after = SendWr { wr_id: 2, send_flags: 0, ..request(opcode::RDMA_WRITE, &[]) };
    assert_eq!(left.post(&after), 0);
    assert_eq!(statuses(&left, 1), [status::WR_FLUSH_ERR]);
    let mut attr = QpAttr::default();
    let mut init = crate::raw::init_attr(right.cq);
    let words = [at(right.qp), at(&raw mut attr), 1, at(&raw mut init)];
    assert_eq!(int(verbs.call("ibv_query_qp", &words)), 0);
    if attr.qp_state == state::RTS {
        return (wc.status, None);
    }
    let raised = verbs.event(right.context);
    assert_eq!(raised.element, at(right.qp));
    (wc.status, Some(raised.event_type))
}

#[test]
fn a_byte_outside_is_refused_on_either_side() {
    let nothing = |_: &End<'_>, _: &End<'_>| {};
    let local =
        refused(nothing, |left, right| (vec![left.piece(4095, 2)], write_to(right, 0, &[])));
    assert_eq!(local, (status::LOC_PROT_ERR, None));
    let remote =
        refused(nothing, |left, right| (vec![left.piece(0, 2)], write_to(right, 4095, &[])));
    assert_eq!(remote, (status::REM_ACCESS_ERR, Some(event::QP_ACCESS_ERR)));
}

#[test]
fn keys_are_of_their_kind_and_domain() {
    let nothing = |_: &End<'_>, _: &End<'_>| {};
    let with_remote_key = refused(nothing, |left, right| {
        let piece = Sge { lkey: left.keys().1, ..left.piece(0, 1) };
        (vec![piece], write_to(right, 0, &[]))
    });
    assert_eq!(with_remote_key.0, status::LOC_PROT_ERR);
    let with_local_key = refused(nothing, |left, right| {
        (vec![left.piece(0, 1)], SendWr { rkey: right.keys().0, ..write_to(right, 0, &[]) })
    });
    assert_eq!(with_local_key.0, status::REM_ACCESS_ERR);
    let of_another_domain = refused(nothing, |left, right| {
        (vec![Sge { lkey: right.keys().0, ..right.piece(0, 1) }], write_to(left, 0, &[]))
    });
    assert_eq!(of_another_domain.0, status::LOC_PROT_ERR);
}

#[test]
fn a_queue_pair_without_the_access_is_no_target() {
    let without = |_: &End<'_>, right: &End<'_>| {
        let attr = QpAttr { qp_access_flags: access::LOCAL_WRITE, ..QpAttr::default() };
        assert_eq!(right.modify(&attr, mask::ACCESS_FLAGS), 0);
    };
    let write = refused(without, |left, right| (vec![left.piece(0, 1)], write_to(right, 0, &[])));
    assert_eq!(write, (status::REM_INV_REQ_ERR, Some(event::QP_REQ_ERR)));
}

#[test]
fn a_receive_that_is_too_short_fails_on_both_sides() {
    let verbs = Verbs::load("");
    let (left, right) = pair(&verbs, |_| {});
    for id in [5, 6] {
        assert_eq!(right.receive(id, &[right.piece(0, 3)]), 0);
    }
    assert_eq!(left.post(&request(opcode::SEND, &[left.piece(0, 4)])), 0);
    assert_eq!(statuses(&left, 1), [status::REM_INV_REQ_ERR]);
    assert_eq!(statuses(&right, 2), [status::LOC_LEN_ERR, status::WR_FLUSH_ERR]);
}

#[test]
fn registered_memory_that_is_let_go_is_protected() {
    let verbs = Verbs::load("");
    let (left, right) = pair(&verbs, |_| {});
    let write = write_to(&right, 0, &[]);
    assert_eq!(int(verbs.call("ibv_dereg_mr", &[at(right.region)])), 0);
    let piece = [left.piece(0, 1)];
    let write = SendWr { sg_list: piece.as_ptr().cast_mut(), num_sge: 1, ..write };
    assert_eq!(left.post(&write), 0);
    assert_eq!(statuses(&left, 1), [status::REM_ACCESS_ERR]);
    assert_eq!(int(verbs.call("ibv_dereg_mr", &[at(right.region)])), libc::EINVAL);
    assert_eq!(verbs.report()["misuse"].as_array().map(Vec::len), Some(1));
}

#[test]
fn receivers_that_are_not_ready_are_asked_so_often_and_no_more() {
    let verbs = Verbs::load("HASTE=100\n");
    let (left, right) = pair(&verbs, |attr| attr.rnr_retry = 2);
    assert_eq!(left.post(&request(opcode::SEND, &[])), 0);
    assert_eq!(statuses(&left, 1), [status::RNR_RETRY_EXC_ERR]);
    assert_eq!(verbs.report()["not_ready"], 3);
    // It was refused, not broken: the receiver goes on.
    assert_eq!(right.receive(1, &[]), 0);
    assert!(right.poll().is_empty());
}

#[test]
fn silence_is_borne_for_as_long_as_was_set() {
    // 4.096 us * 2^14 is 67 ms; two transmissions wait so long each, a tenth of it here.
    let verbs = Verbs::load("HASTE=10\nFAULTS=cut:device=0\n");
    let (left, _right) = pair(&verbs, |attr| attr.retry_cnt = 1);
    let began = Instant::now();
    assert_eq!(left.post(&request(opcode::RDMA_WRITE, &[])), 0);
    assert!(left.poll().is_empty());
    assert_eq!(statuses(&left, 1), [status::RETRY_EXC_ERR]);
    assert!(began.elapsed().as_micros() >= 2 * 6710, "{:?}", began.elapsed());
    assert_eq!(verbs.report()["unanswered"], 2);
}

#[test]
fn sequence_numbers_must_meet() {
    let verbs = Verbs::load("HASTE=1000\n");
    let (left, right) = (End::new(&verbs, 0), End::new(&verbs, 1));
    left.connect(&left.attr(&right));
    let attr = right.attr(&left);
    right.connect(&QpAttr { rq_psn: attr.rq_psn + 1, ..attr });
    assert_eq!(left.post(&request(opcode::RDMA_WRITE, &[])), 0);
    assert_eq!(statuses(&left, 1), [status::RETRY_EXC_ERR]);
}

#[test]
fn ports_that_come_back_in_time_lose_nothing() {
    let verbs = Verbs::load("");
    let (left, right) = pair(&verbs, |_| {});
    verbs.set_faults("port-down:device=1,for=30");
    assert_eq!(verbs.event(right.context).event_type, event::PORT_ERR);
    assert_eq!(left.post(&write_to(&right, 0, &[left.piece(0, 4)])), 0);
    assert!(left.poll().is_empty());
    assert_eq!(statuses(&left, 1), [status::SUCCESS]);
    assert_eq!(verbs.event(right.context).event_type, event::PORT_ACTIVE);
    assert_ne!(verbs.report()["unanswered"], 0);
}

#[test]
fn ports_that_stay_down_and_lids_that_change_end_in_retries_exceeded() {
    for (fault, raised) in
        [("port-down:device=1", event::PORT_ERR), ("lid-change:device=1", event::LID_CHANGE)]
    {
        let verbs = Verbs::load("HASTE=1000\n");
        let (left, right) = pair(&verbs, |_| {});
        verbs.set_faults(fault);
        let told = verbs.event(right.context);
        assert_eq!((told.event_type, told.element), (raised, 1));
        assert_eq!(left.post(&request(opcode::RDMA_WRITE, &[])), 0);
        assert_eq!(statuses(&left, 1), [status::RETRY_EXC_ERR]);
    }
}

#[test]
fn everything_that_waits_is_flushed_in_order() {
    let verbs = Verbs::load("");
    let (left, _right) = pair(&verbs, |_| {});
    for id in [1, 2] {
        assert_eq!(left.receive(id, &[]), 0);
    }
    // The first waits for a receiver, the others for it.
    for id in [11, 12, 13] {
        let send = SendWr { wr_id: id, send_flags: 0, ..request(opcode::SEND, &[]) };
        assert_eq!(left.post(&send), 0);
    }
    let attr = QpAttr { qp_state: state::ERR, ..QpAttr::default() };
    assert_eq!(left.modify(&attr, mask::STATE), 0);
    let wcs = left.poll();
    let ids: Vec<u64> = wcs.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [11, 12, 13, 1, 2]);
    assert!(wcs.iter().all(|wc| wc.status == status::WR_FLUSH_ERR));
    assert_eq!(left.receive(3, &[]), 0);
    assert_eq!(statuses(&left, 1), [status::WR_FLUSH_ERR]);
}

#[test]
fn a_queue_that_runs_over_is_lost() {
    let verbs = Verbs::load("");
    let (left, right) = pair(&verbs, |_| {});
    let small = verbs.call("ibv_create_cq", &[at(left.context), 1, 0, 0, 0]);
    let mut init = crate::raw::init_attr(crate::raw::to(small));
    let qp = verbs.call("ibv_create_qp", &[at(left.pd), at(&raw mut init)]);
    let left = End { qp: crate::raw::to(qp), ..left };
    left.connect(&left.attr(&right));
    let reset = QpAttr { qp_state: state::RESET, ..QpAttr::default() };
    assert_eq!(right.modify(&reset, mask::STATE), 0);
    right.connect(&right.attr(&left));
    for _ in 0..2 {
        assert_eq!(left.post(&request(opcode::RDMA_WRITE, &[])), 0);
    }
    let raised = [verbs.event(left.context), verbs.event(left.context)];
    assert_eq!(raised.map(|raised| raised.event_type), [event::CQ_ERR, event::QP_FATAL]);
}
