//! States of queue pairs, and what each needs.

use crate::abi::{QpAttr, mask, opcode, send_flag, state};
use crate::raw::{End, TO_INIT, TO_RTR, TO_RTS, Verbs, at, errno, init_attr, pair, request};

#[test]
fn each_state_needs_its_attributes_and_no_others() {
    let verbs = Verbs::load("");
    let (left, right) = (End::new(&verbs, 0), End::new(&verbs, 1));
    let attr = left.attr(&right);
    for (qp_state, given) in [(state::INIT, TO_INIT), (state::RTR, TO_RTR), (state::RTS, TO_RTS)] {
        let attr = QpAttr { qp_state, ..attr };
        for bit in (0..26).map(|bit| 1 << bit).filter(|bit| given & bit != 0) {
            assert_eq!(left.modify(&attr, given & !bit), libc::EINVAL, "without {bit:#x}");
        }
        assert_eq!(left.modify(&attr, given | 1 << 6), libc::EINVAL, "a Q_Key is for datagrams");
        assert_eq!(left.modify(&attr, given), 0, "to {qp_state}");
    }
    // Not from the end to the middle.
    assert_eq!(left.modify(&QpAttr { qp_state: state::RTR, ..attr }, TO_RTR), libc::EINVAL);
}

#[test]
fn values_out_of_range_are_refused() {
    let verbs = Verbs::load("MTU=1024\n");
    let (left, right) = (End::new(&verbs, 0), End::new(&verbs, 1));
    let good = left.attr(&right);
    let refuses = |change: &dyn Fn(&mut QpAttr), to: u32, given: i32| {
        let mut attr = QpAttr { qp_state: to, ..good };
        change(&mut attr);
        assert_eq!(left.modify(&attr, given), libc::EINVAL);
    };
    refuses(&|attr| attr.port_num = 2, state::INIT, TO_INIT);
    refuses(&|attr| attr.pkey_index = 1, state::INIT, TO_INIT);
    assert_eq!(left.modify(&QpAttr { qp_state: state::INIT, ..good }, TO_INIT), 0);
    refuses(&|attr| attr.path_mtu = 4, state::RTR, TO_RTR);
    refuses(&|attr| attr.dest_qp_num = 1 << 24, state::RTR, TO_RTR);
    refuses(&|attr| attr.min_rnr_timer = 32, state::RTR, TO_RTR);
    refuses(&|attr| attr.max_dest_rd_atomic = 17, state::RTR, TO_RTR);
    refuses(&|attr| attr.ah_attr.dlid = 0, state::RTR, TO_RTR);
    refuses(
        &|attr| (attr.ah_attr.is_global, attr.ah_attr.grh.sgid_index) = (1, 1),
        state::RTR,
        TO_RTR,
    );
    assert_eq!(left.modify(&QpAttr { qp_state: state::RTR, ..good }, TO_RTR), 0);
    refuses(&|attr| attr.timeout = 32, state::RTS, TO_RTS);
    refuses(&|attr| attr.retry_cnt = 8, state::RTS, TO_RTS);
    refuses(&|attr| attr.cur_qp_state = state::RTS, state::RTS, TO_RTS | mask::CUR_STATE);
}

#[test]
fn ethernet_needs_a_global_route() {
    let verbs = Verbs::load("LINK_LAYER=roce\n");
    let (left, right) = (End::new(&verbs, 0), End::new(&verbs, 1));
    let good = left.attr(&right);
    assert_eq!(left.modify(&QpAttr { qp_state: state::INIT, ..good }, TO_INIT), 0);
    assert_eq!(left.modify(&QpAttr { qp_state: state::RTR, ..good }, TO_RTR), libc::EINVAL);
}

#[test]
fn requests_are_taken_in_the_states_that_take_them() {
    let verbs = Verbs::load("");
    let (left, right) = (End::new(&verbs, 0), End::new(&verbs, 1));
    let attr = left.attr(&right);
    let send = request(opcode::SEND, &[]);
    assert_eq!((left.post(&send), left.receive(0, &[])), (libc::EINVAL, libc::EINVAL));
    assert_eq!(left.modify(&QpAttr { qp_state: state::INIT, ..attr }, TO_INIT), 0);
    assert_eq!((left.post(&send), left.receive(0, &[])), (libc::EINVAL, 0));
    assert_eq!(left.modify(&QpAttr { qp_state: state::RTR, ..attr }, TO_RTR), 0);
    assert_eq!((left.post(&send), left.receive(0, &[])), (libc::EINVAL, 0));
}

#[test]
fn queues_hold_what_was_asked_and_pieces_and_flags_are_looked_at() {
    let verbs = Verbs::load("");
    let (left, _right) = pair(&verbs, |_| {});
    let unsignaled = |code| crate::abi::SendWr { send_flags: 0, ..request(code, &[]) };
    for _ in 0..4 {
        assert_eq!(left.post(&unsignaled(opcode::RDMA_WRITE)), 0);
    }
    // All are over, but none told so: nothing freed their places.
    assert_eq!(left.post(&unsignaled(opcode::RDMA_WRITE)), libc::ENOMEM);
    assert!(left.poll().is_empty());
    for _ in 0..4 {
        assert_eq!(left.receive(0, &[]), 0);
    }
    assert_eq!(left.receive(0, &[]), libc::ENOMEM);

    let (left, _right) = pair(&verbs, |_| {});
    let three = [left.piece(0, 1); 3];
    assert_eq!(left.post(&request(opcode::RDMA_WRITE, &three)), libc::EINVAL);
    assert_eq!(left.post(&request(7, &[])), libc::EINVAL);
    let inline = |length| {
        let piece = [left.piece(0, length)];
        let flags = send_flag::INLINE;
        left.post(&crate::abi::SendWr { send_flags: flags, ..request(opcode::RDMA_WRITE, &piece) })
    };
    assert_eq!(inline(65), libc::EINVAL);
}

#[test]
fn what_is_in_use_is_not_destroyed() {
    let verbs = Verbs::load("");
    let end = End::new(&verbs, 0);
    for (name, object) in [
        ("ibv_dealloc_pd", at(end.pd)),
        ("ibv_destroy_cq", at(end.cq)),
        ("ibv_destroy_comp_channel", at(end.channel)),
    ] {
        assert_eq!(crate::raw::int(verbs.call(name, &[object])), libc::EBUSY, "{name}");
    }
    assert_eq!(verbs.report()["misuse"].as_array().map(Vec::len), Some(3));
    end.destroy();
    let left = verbs.report()["left"].clone();
    assert!(left.as_object().unwrap().values().all(|count| count == 0), "{left}");
}

#[test]
fn more_inline_than_there_is_is_refused_or_cut() {
    for (config, granted) in
        [("INLINE=0", None), ("INLINE=16\nINLINE_CLAMPED=1", Some(16)), ("INLINE=64", Some(64))]
    {
        let verbs = Verbs::load(config);
        let context = verbs.open(0);
        let pd = verbs.call("ibv_alloc_pd", &[at(context)]);
        let cq = verbs.call("ibv_create_cq", &[at(context), 1, 0, 0, 0]);
        let mut init = init_attr(crate::raw::to(cq));
        let qp = verbs.call("ibv_create_qp", &[pd, at(&raw mut init)]);
        match granted {
            None => assert_eq!((qp, errno()), (0, libc::EINVAL)),
            Some(granted) => assert_eq!((qp != 0, init.cap.max_inline_data), (true, granted)),
        }
    }
}
